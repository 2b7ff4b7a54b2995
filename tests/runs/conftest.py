"""Real runs of ``dispatch`` on this machine: started as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rig import kill_left, wait_for

if TYPE_CHECKING:
    from .seat import Seat

PROGRAM = [sys.executable, "-m", "dispatcher"]
#: seconds in which a loaded machine ends what is ended; fewer than a lease, which would do so, too
CLEAN = 20.0


class Desk:
    """A login node's desk: runs ``dispatch`` and can say what it left behind.

    Every rank carries ``mark`` in its environment, so leftovers are found
    whatever they became.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"DESK_MARK={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[Any]] = []

    def argv(self, *words: str | bytes) -> list[str | bytes]:
        return [*PROGRAM, "-x", self.mark, *words]

    def run(
        self,
        *words: str | bytes,
        env: Mapping[str, str] | None = None,
        text: bool = True,
        timeout: float = 100,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.argv(*words),
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=text,
            timeout=timeout,
            check=False,
            **options,
        )

    def start(self, *words: str, **options: Any) -> subprocess.Popen[Any]:
        """Start and do not wait; standard output is a text pipe. Ended after the test."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen(self.argv(*words), cwd=self.folder, text=True, **options)
        self._started.append(process)
        return process

    def lines(self, process: subprocess.Popen[Any], count: int) -> list[str]:
        """The next ``count`` lines of the process, sorted."""
        assert process.stdout is not None
        return sorted(process.stdout.readline() for _ in range(count))

    def left(self) -> list[tuple[int, str]]:
        """Living processes that carry the mark: (pid, command line); not dispatch itself."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environ and b"dispatcher" not in command:
                found.append((int(name), command.replace(b"\0", b" ").decode(errors="replace")))
        return found

    def wait_until_clean(self) -> None:
        wait_for(lambda: not self.left(), CLEAN, lambda: f"nothing is left; there is {self.left()}")

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=30)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()
    desk.wait_until_clean()


def script(folder: Path, text: str, name: str = "prog.py") -> str:
    (folder / name).write_text(text)
    return name


def words_of(output: str) -> Sequence[str]:
    return sorted(output.splitlines())


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of one's own; launchers that still run are killed after the test."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    yield folder
    from . import background  # which needs the names above

    over = ("ended", "dead", "elsewhere")
    kill_left(job["pid"] for job in background.jobs() if job["state"] not in over)


@pytest.fixture
def seat(desk: Desk) -> Iterator[Seat]:
    from .seat import Seat

    seat = Seat(desk)
    yield seat
    seat.close()
