"""Who talks with the commands of an errand on their standard input and output.

An errand's output goes to the sinks unless somebody here takes it; its input is empty
unless somebody here writes it. ``Broadcast`` writes the same to all and hears nothing.
"""

from __future__ import annotations

from typing import Protocol

from dispatcher.transport.base import Link


class Dialogue(Protocol):
    """Talks with every host's command. Methods are called from the hosts' own threads."""

    #: whether ``heard`` takes the standard output, in the place of the sinks
    hears: bool

    def start(self, node: int, link: Link) -> None:
        """The command of ``node`` has started; returns at once, may write to ``link`` later."""

    def heard(self, node: int, data: bytes) -> None:
        """Standard output of ``node``; may block, which holds back that host only."""

    def finish(self, node: int) -> None:
        """All output of ``node`` was heard; returns when what it calls for is done."""

    def close(self) -> None:
        """Nothing is to be written any more."""
