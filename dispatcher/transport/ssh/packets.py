"""paramiko's ``Packetizer``: bounded, without a timer, and knows when the host was heard last.

It is given to the session, which is called when the host has been silent (``silent``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paramiko.packet import Packetizer

from dispatcher.transport.ssh.channel import Misbehaved

_MAX_READ = 1 << 18  # no honest packet is larger: the protocol's own limit is 35000


class Packets(Packetizer):  # type: ignore[misc]
    """Packets of one connection; see ``session`` for what is changed."""

    heard = 0.0  # when the last bytes came
    silent: Callable[[float], None]

    def read_all(self, n: int, check_rekey: bool = False) -> Any:
        if n > _MAX_READ:
            raise Misbehaved(f"it announces a packet of {n} bytes")
        found = super().read_all(n, check_rekey)
        self.heard = time.monotonic()
        return found

    def _check_keepalive(self) -> None:
        """paramiko calls it when nothing came for ``_active_check_timeout``."""
        self.silent(time.monotonic() - self.heard)

    def sends(self) -> bool:
        """Whether somebody is sending, and maybe for long."""
        free = self._Packetizer__write_lock.acquire(blocking=False)
        if free:
            self._Packetizer__write_lock.release()
        return not free

    def start_handshake(self, timeout: float) -> None:
        """Nothing: deadlines are the caller's, and a timer would be a thread more."""

    def _log(self, level: int, msg: Any) -> None:
        pass
