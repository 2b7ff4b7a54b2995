"""A relay of a tree as a process, driven over its link; its host's commands are real."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig import UNMEASURED

from dispatcher.remote.protocol.mux import (
    ENDED,
    ERRORS_END,
    OPEN,
    OUTPUT_END,
    Decoder,
    frame,
)
from dispatcher.remote.tree_relay import STATUS

SYNC = b"here I am"
PROGRAM = f"from dispatcher.remote.tree_relay import serve; serve({SYNC!r})"
LIMIT = 60.0


class Relay:
    """A relay, and what it has said so far, by channel."""

    def __init__(self, files: int | None = None) -> None:
        def limit() -> None:
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=limit, env=None if files is None else {**os.environ, **UNMEASURED},
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.come, self.go = self.process.stdout, self.process.stdin
        sync = b""
        while len(sync) < len(SYNC):
            sync += self.come.read(len(SYNC) - len(sync)) or b"!"
        assert sync == SYNC
        self.frames = Decoder()
        self.said: list[tuple[int, int, bytes]] = []

    def say(self, number: int, kind: int, body: bytes = b"") -> None:
        self.go.write(frame(number, kind, body))

    def open(self, number: int, *words: str | bytes, known: bytes = b"") -> None:
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        self.say(number, OPEN, b"\0".join([known, *parts]))

    def hear(self, seconds: float) -> bool:
        """Take what it says within ``seconds``; False at its end."""
        if select.select([self.come], [], [], seconds)[0]:
            data = self.come.read(1 << 16)
            self.said += self.frames.feed(data or b"")
            return bool(data)
        return True

    def until(self, true: Callable[[], Any]) -> None:
        """Hear until ``true()``. Raises: AssertionError."""
        end = time.monotonic() + LIMIT
        while not true():
            assert time.monotonic() < end, self.said[-20:]
            assert self.hear(0.05), self.said[-20:]

    def of(self, number: int, kind: int) -> bytes:
        return b"".join(body for n, k, body in self.said if (n, k) == (number, kind))

    def kinds(self, number: int) -> list[int]:
        return [k for n, k, _ in self.said if n == number]

    def over(self, number: int) -> int:
        """The exit code of a command of which everything was told."""
        ends = {ENDED, OUTPUT_END, ERRORS_END}
        self.until(lambda: ends <= set(self.kinds(number)))
        assert all(self.kinds(number).count(end) == 1 for end in ends)
        code: int = STATUS.unpack(self.of(number, ENDED))[0]
        return code

    def children(self) -> list[int]:
        place = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return list(map(int, Path(place).read_text().split()))

    def end(self) -> tuple[int, bytes]:
        """End the link: (exit code, errors) of the relay."""
        self.go.close()
        while self.hear(LIMIT):
            pass
        assert self.process.stderr is not None
        return self.process.wait(LIMIT), self.process.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for one in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert one is not None
            one.close()
