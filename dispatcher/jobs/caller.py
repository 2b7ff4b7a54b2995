"""The caller's side of a job's socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dispatcher.core.events.sink import BEAT
from dispatcher.jobs.job_socket import Frames
from dispatcher.jobs.registry import Job, not_running


class Call:
    """A connection to the launcher of ``job``; ``frames`` is what it says.

    Raises: DispatchError when nobody answers.
    """

    def __init__(self, job: Job) -> None:
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            at = os.open(job.folder, os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._link.connect(f"/proc/self/fd/{at}/control")
            finally:
                os.close(at)
        except OSError:
            self._link.close()
            raise not_running(job) from None

    def order(self, order: str, **fields: Any) -> None:
        """Send an order. Raises: OSError."""
        self._link.sendall(json.dumps({"order": order, **fields}).encode() + b"\n")

    def frames(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Every frame until the launcher hangs up, and an empty one now and then.

        Raises: Malformed, OSError.
        """
        frames = Frames()
        self._link.settimeout(BEAT)
        while True:
            try:
                data = self._link.recv(1 << 16)
            except TimeoutError:
                yield {}, b""
                continue
            if not data:
                return
            yield from frames.feed(data)

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.close()
