"""The event of hosts whose ranks use another network than was meant; nobody decides on it."""

from __future__ import annotations

from dispatcher.core.events.run_events import Remark
from dispatcher.model.frozen import value


@value
class NetworksDiffer(Remark):
    """``what`` NCCL says of the network it uses on ``nodes``: ``fell back to Socket``."""

    nodes: tuple[int, ...]
    what: str
