"""How much memory a launcher took at most, seen from outside while it runs."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

#: seconds between two looks
EVERY = 0.05


class Peak:
    """The largest ``VmHWM`` of the processes below ``process`` whose command line has ``word``."""

    def __init__(self, process: subprocess.Popen[Any], word: str = "dispatcher") -> None:
        self._kib = 0
        self._process = process
        self._word = word.encode()
        self._thread = threading.Thread(target=self._watch, name="peak")
        self._thread.start()

    def mib(self) -> float:
        """Waits for the process to end. 0.0 if it was never seen."""
        self._thread.join()
        return self._kib / 1024

    def _watch(self) -> None:
        while self._process.poll() is None:
            for pid in _family(self._process.pid):
                found = re.search(rb"^VmHWM:\s+(\d+) kB", _read(f"/proc/{pid}/status"), re.M)
                if found is not None and self._word in _read(f"/proc/{pid}/cmdline"):
                    self._kib = max(self._kib, int(found[1]))
            time.sleep(EVERY)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in _read(f"/proc/{pid}/task/{pid}/children").split():
        yield from _family(int(child))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has ended
        return b""
