"""Our standard input for every host: read once, kept on disk, sent at each host's own pace.

A host that reads slowly must neither hold back the others nor make us keep its
backlog in memory. So what is read goes to an unlinked temporary file (mode
0600), and each host's writer reads it there at its own position; a regular
file is not copied at all. Memory is one chunk a host.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading

from dispatcher.transport.base import Link, LinkClosed

CHUNK = 64 << 10
_LOOK = 0.5  # seconds between two looks whether a link has ended


class Broadcast:
    """Copies of descriptor ``fd`` for any number of links; one thread reads, one a link writes.

    ``problem`` says why not all of it could be read, if so.
    """

    hears = False

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = 0
        self._complete = False
        self._closed = False
        self._grown = threading.Condition()
        self.problem: str | None = None
        self._file: int
        if stat.S_ISREG(os.fstat(fd).st_mode):
            self._start = os.lseek(fd, 0, os.SEEK_CUR)
            self._size = max(self._start, os.fstat(fd).st_size)
            self._file = os.dup(fd)
            self._complete = True
            return
        self._start = 0
        with tempfile.TemporaryFile(prefix="dispatch-stdin-") as file:
            self._file = os.dup(file.fileno())
        threading.Thread(target=self._fill, name="stdin", daemon=True).start()

    def start(self, node: int, link: Link) -> None:
        """Write all of it to ``link`` and end its input, in a thread that ends with the link."""
        threading.Thread(target=self._feed, args=(link,), name="stdin:link", daemon=True).start()

    def heard(self, node: int, data: bytes) -> None:
        """Nothing is expected: output goes to the sinks."""

    def finish(self, node: int) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Let the writers end."""
        with self._grown:
            self._closed = True
            self._grown.notify_all()

    def _fill(self) -> None:
        try:
            while data := os.read(self._fd, CHUNK):
                written = os.pwrite(self._file, data, self._size)
                while written < len(data):
                    written += os.pwrite(self._file, data[written:], self._size + written)
                with self._grown:
                    self._size += len(data)
                    self._grown.notify_all()
        except OSError as error:
            self.problem = f"standard input: {(error.strerror or '').lower()}"
        with self._grown:
            self._complete = True
            self._grown.notify_all()

    def _feed(self, link: Link) -> None:
        at = self._start
        try:
            while not link.gone() and not self._closed:
                with self._grown:
                    if at == self._size and not self._complete:
                        self._grown.wait(_LOOK)
                        continue
                    size = self._size
                data = os.pread(self._file, min(CHUNK, size - at), at)
                if not data:
                    break
                link.write(data)
                at += len(data)
            link.end_input()
        except LinkClosed:
            pass  # the command reads no more; whether that is a failure, its exit code says
