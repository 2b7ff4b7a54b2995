"""Real agents for tests: booted as a host would boot them, driven over their pipes.

``interpreters()`` finds every Python this machine has, so that what travels is tried on each.
"""

from __future__ import annotations

import glob
import os
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rig import kill_left, wait_for

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.bootstrap.payload import SyncScanner
from dispatcher.remote.protocol.frames import CONTROL, COUNT, OUTPUT, Decoder, control
from dispatcher.remote.protocol.packing import unpack

#: seconds after which a test gives up on an event
LIMIT = 40.0


def noting(into: list[Any], answer: Any = None) -> Callable[..., Any]:
    """A function that notes what it is given, a single argument by itself, and answers that."""

    def note(*given: Any) -> Any:
        into.append(given[0] if len(given) == 1 else given)
        return answer

    return note


class Os:
    """``os`` with some functions of the test's, for one module alone: pytest wants its own."""

    def __init__(self, **own: Any) -> None:
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@cache
def interpreters() -> dict[tuple[int, int], str]:
    """(major, minor) -> path of a Python of that version, whatever is found here."""
    kept = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")))
    found: dict[tuple[int, int], str] = {}
    for path in kept:  # a folder of pyenv's has the name of its version
        name = path.split("/")[-3].split(".")
        if name[0] == "3" and name[1:2] and name[1].isdigit():
            found.setdefault((3, int(name[1])), path)
    named = [shutil.which(f"python3.{minor}") for minor in range(5, 15) if (3, minor) not in found]
    paths = list(filter(None, named))
    ask = ["-I", "-S", "-c", "import sys; print('%d %d' % sys.version_info[:2])"]
    asked = [  # all at once
        subprocess.Popen([path, *ask], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for path in paths
    ]
    for path, process in zip(paths, asked, strict=True):
        version = process.communicate()[0].split()
        if process.returncode == 0:
            found.setdefault((int(version[0]), int(version[1])), path)
    return found


def new_enough() -> list[tuple[int, int]]:
    """The versions found that agents run on, the oldest first."""
    return sorted(version for version in interpreters() if version >= bootstrap.OLDEST_PYTHON)


class Agent:
    """One booted agent. ``control`` and ``output`` hold what it has said so far."""

    def __init__(
        self,
        python: str,
        env: Mapping[str, str] | None = None,
        stage: Sequence[str] = ("/bin/sh", "-c"),
        payload: bytes | None = None,
        **popen: Any,
    ) -> None:
        self.mark = f"DISPATCH_TEST_MARK={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [*stage, bootstrap.command(first=[python])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **(env or {}), name: value},
            **popen,
        )
        self.scanner = SyncScanner()
        self.decoder = Decoder()
        self.synced = False
        self.ended = False
        self.errors = b""
        self.reports: list[dict[str, Any]] = []
        self.output: dict[tuple[int, int], bytearray] = {}
        self.counts: dict[tuple[int, int], int] = {}
        self.frames: list[Any] = []
        self.write(bootstrap.payload() if payload is None else payload)

    # -- saying -----------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def order(self, type: str, **fields: object) -> None:
        self.write(control(type, **fields))

    def prepare(self, **fields: object) -> dict[str, Any]:
        """Send the first order; the agent's answer."""
        known = {
            "run_id": "test", "node": 0, "check": {}, "path": None, "cwd": b"/", "reserve": None,
            "token": b"T" * 16, "heartbeat": 60.0, "lease": 60.0, "lifeline_grace": 0.3,
            "credit": 1 << 30, "parts": bootstrap.parts(bootstrap.PARTS),
        }  # fmt: skip
        self.order("prepare", **{**known, **fields})
        return self.report("node.ready")

    def start(
        self,
        *argvs: Sequence[bytes | str],
        common: Sequence[Sequence[bytes]] = (),
        envs: Mapping[int, Sequence[Sequence[bytes]]] | None = None,
        scrub: Sequence[bytes] = (),
        **fields: object,
    ) -> dict[int, int]:
        """Start a rank for each of ``argvs``; rank -> pid of those that run."""
        ranks = [
            [rank, [word.encode() if isinstance(word, str) else word for word in argv],
             list((envs or {}).get(rank, ()))]
            for rank, argv in enumerate(argvs)
        ]  # fmt: skip
        self.order("start_ranks", ranks=ranks, common=list(common), scrub=list(scrub), **fields)
        return dict(self.report("rank.spawned")["pids"])

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    # -- hearing ----------------------------------------------------------------

    def hear(self, timeout: float) -> None:
        """Take what the agent says within ``timeout`` seconds, at least one piece if it can."""
        out, err = self.process.stdout, self.process.stderr
        assert out is not None
        assert err is not None
        readable, _, _ = select.select([err] if self.ended else [out, err], [], [], timeout)
        if err in readable:
            self.errors += err.read(1 << 16) or b""
        if out in readable:
            data = out.read(1 << 18)
            if not data:
                self.ended = True
            elif not self.synced:
                rest = self.scanner.feed(data)
                self.synced = rest is not None
                self._take(rest or b"")
            else:
                self._take(data)

    def _take(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.frames.append(frame)
            if frame.kind == CONTROL:
                self.reports.append(unpack(frame.body))
            elif frame.kind == OUTPUT:
                self.output.setdefault((frame.rank, frame.stream), bytearray()).extend(frame.body)
            else:
                (self.counts[frame.rank, frame.stream],) = COUNT.unpack(frame.body)

    def until(self, true: Callable[[], Any], limit: float = LIMIT) -> Any:
        """Hear until ``true()``. Raises: AssertionError at the end of the stream or in time."""
        end = time.monotonic() + limit
        while not (result := true()):
            said = f"reports {self.reports}, errors {self.errors!r}, noise {self.scanner.noise!r}"
            assert not self.ended, f"the agent ended; {said}"
            assert time.monotonic() < end, f"waited {limit:.0f} s; {said}"
            self.hear(0.05)
        return result

    def found(self, type: str, **fields: object) -> dict[str, Any] | None:
        for report in self.reports:
            if report["type"] == type and fields.items() <= report.items():
                return report
        return None

    def report(self, type: str, limit: float = LIMIT, **fields: object) -> dict[str, Any]:
        """The first report of ``type`` with ``fields``, awaited."""
        found: dict[str, Any] = self.until(lambda: self.found(type, **fields), limit)
        return found

    def status(self, rank: int = 0) -> int:
        """How ``rank`` ended, awaited."""
        status: int = self.report("rank.exited", rank=rank)["status"]
        return status

    def text(self, rank: int = 0, stream: int = 1) -> bytes:
        """All that ``rank`` wrote to ``stream``, awaited; its count is checked."""
        self.until(lambda: (rank, stream) in self.counts)
        data = bytes(self.output.get((rank, stream), b""))
        assert len(data) == self.counts[rank, stream]
        return data

    def finish(self) -> dict[str, Any]:
        """Order the end; the agent's last answer. The agent has exited with 0."""
        self.order("finish")
        swept = self.report("node.swept")
        assert self.exit() == 0
        return swept

    def exit(self, limit: float = LIMIT) -> int:
        """The agent's exit code, awaited while it is listened to."""
        end = time.monotonic() + limit
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the agent runs on after {limit:.0f} s: {self.reports}"
            self.hear(0.02)
        while not self.ended and time.monotonic() < end:
            self.hear(0.2)
        err = self.process.stderr  # what it said just before
        assert err is not None
        while select.select([err], [], [], 0.0)[0] and (data := err.read(1 << 16)):
            self.errors += data
        return self.process.returncode

    # -- what is left -------------------------------------------------------------

    def living(self) -> list[int]:
        """Pids of every living process that carries this agent's mark."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if self.mark.encode() in environ and state not in "ZX":
                found.append(int(name))
        return found

    def is_gone(self, limit: float = LIMIT) -> None:
        """Wait until nothing of this agent lives. Raises: AssertionError."""
        wait_for(lambda: not self.living(), limit, f"{self.living()} to end")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        kill_left(self.living())
        for report in self.reports:  # whose guardian is dead as well
            if report["type"] == "node.ready" and report["facts"].get("error_folder"):
                shutil.rmtree(report["facts"]["error_folder"], ignore_errors=True)
