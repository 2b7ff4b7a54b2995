"""A copy to or from one host: its thread, its messages and its state.

Each host has one thread that talks with it (``CopyHandler``) and reads its answers, bounded and in
frames (``FrameReader``). The first bytes show whether Python answers there or only a shell.
"""

from __future__ import annotations

import abc
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.bootstrap import payload
from dispatcher.model.errors import UsageError, reason
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.transfer.dest_dir import BadArchive
from dispatcher.transport.base import Link, LinkClosed


@dataclass
class HostCopy:
    """The state of one copy; written by the thread that talks with the host, read by others.

    python: whether its Python does the work, None until that is known. bytes: copied, of
    ``wanted``; ``found`` more were there. sent, equal: files, at the end. error: why it failed;
    ``hostile``: it broke the rules, ``late``: it was given up. left_out: files that could not be
    copied, and why. relay_error: why the host above it in a tree did not serve it.
    """

    python: bool | None = None
    bytes: int = 0
    wanted: int = 0
    found: int = 0
    sent: int | None = None
    equal: int = 0
    error: str | None = None
    hostile: bool = False
    late: bool = False
    left_out: list[str] = field(default_factory=list)
    relay_error: str | None = None

    def fail(self, error: Exception) -> None:
        """Note the failure ``error``: of the host, of a limit, or of our disk."""
        self.hostile = isinstance(error, (Malformed, BadArchive))
        self.error = reason(error) if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.filename is not None:
            self.error = f"{error.filename}: {self.error}"

    def is_refused(self, answer: dict[str, Any]) -> bool:
        """Whether ``answer`` holds a host's error; it is kept."""
        if not isinstance(answer.get("error"), str):
            return False
        self.error = answer["error"][:500]
        return True


#: pieces of output, each of at most 256 KiB, that may wait
_WAITING = 8
#: seconds between two checks for the reader's end
_POLL = 0.5


class Ended(Exception):
    """The host sends no more."""


class FrameReader:
    """Bytes from a host's own thread (``put``, ``finish``) to the one that talks (the others)."""

    def __init__(self, largest: int) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(_WAITING)
        self._frames = copy_frames.frames(largest)
        self._come: list[tuple[int, bytes]] = []  # the next one last
        self._rest = b""  # what came behind the first line
        self._deaf = False
        self._thread: threading.Thread | None = None
        self.n_said = 0  # bytes

    def talk(self, name: str, what: Callable[[], None]) -> None:
        """Run ``what`` in its own thread; ``finish`` waits for its end."""
        self._thread = threading.Thread(target=what, name=name, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Add output of the host; waits while much of it is not yet read."""
        self.n_said += len(data)
        while not self._deaf:
            try:
                return self._chunks.put(data, timeout=_POLL)
            except queue.Full:
                continue
        return None

    def finish(self) -> None:
        """Mark the end of the host's output; wait until all of it is dealt with."""
        self.put(b"")
        while self._thread is not None and self._thread.is_alive() and not self._deaf:
            self._thread.join(_POLL)

    def stop(self) -> None:
        """Stop reading."""
        self._deaf = True

    def line(self, size: int) -> bytes:
        """The first ``size`` bytes. Raises: Ended."""
        first = b""
        while len(first) < size:
            first += self.chunk()
        self._rest = first[size:]
        return first[:size]

    def frame(self) -> tuple[int, bytes]:
        """The next frame. Raises: Ended, Malformed."""
        while not self._come:
            come = self._frames.feed(self.chunk())
            self._come += [(kind, body) for _, kind, body in reversed(come)]
        return self._come.pop()

    def value(self) -> dict[str, Any]:
        """The next frame, which must hold a value. Raises: Ended, Malformed."""
        return copy_frames.value_of(*self.frame(), copy_frames.MOST_SAID)

    def chunk(self) -> bytes:
        """The next bytes, of a host that sends no frames. Raises: Ended."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        while not self._deaf:
            try:
                chunk = self._chunks.get(timeout=_POLL)
            except queue.Empty:
                continue
            if chunk:
                return chunk
            break
        raise Ended


class CopyHandler(abc.ABC):
    """Talks with the hosts of a copy: a ``runner.exec.stdio``, one thread a host.

    verb: names the threads; largest: bytes of one value of a host; copies: one a node.
    """

    takes_output = True

    def __init__(self, verb: str, largest: int, copies: Sequence[HostCopy]) -> None:
        self._verb = verb
        self._readers = [FrameReader(largest) for _ in copies]
        self._links: dict[int, Link] = {}  # of those that are talked with
        self.copies = copies

    def start(self, node: int, link: Link) -> None:
        """Talk with ``node``, whose program runs, in its own thread."""
        self._links[node] = link
        self._readers[node].talk(f"{self._verb}:{node}", lambda: self._talk(node, link))

    def take_output(self, node: int, data: bytes) -> None:
        """Take ``data`` from ``node``; waits while much is not yet read."""
        self._readers[node].put(data)

    def finish(self, node: int) -> None:
        """Mark the end of the output of ``node``; returns when it is dealt with."""
        self._readers[node].finish()
        self._links.pop(node, None)

    def moved(self) -> dict[int, int]:
        """Bytes that went to each host in progress, or came from it."""
        return {
            node: self.copies[node].bytes + self._readers[node].n_said for node in [*self._links]
        }

    def give_up(self, node: int, why: str) -> None:
        """Stop waiting for ``node``."""
        link = self._links.pop(node, None)
        if link is not None:
            self.copies[node].error, self.copies[node].late = why, True
            self._readers[node].stop()
            link.close()

    def close(self) -> None:
        """Stop talking with all hosts."""
        for reader in self._readers:
            reader.stop()

    @abc.abstractmethod
    def _by_python(self, node: int, link: Link) -> None:
        """Copy with a host that has Python. Raises: Ended, Malformed, BadArchive, UsageError,
        OSError for an error of this side's disk."""

    @abc.abstractmethod
    def _by_tar(self, node: int, link: Link) -> None:
        """Copy with a host that has no Python. Raises: as ``_by_python``."""

    def _talk(self, node: int, link: Link) -> None:
        copy, reader = self.copies[node], self._readers[node]
        try:
            first = reader.line(len(payload.PYTHON))
            copy.python = first == payload.PYTHON
            if copy.python:
                self._by_python(node, link)
            elif first == payload.SHELL:
                self._by_tar(node, link)
            else:
                copy.error, copy.hostile = "it did not say how it copies", True
                link.close()
            link.end_input()
        except (LinkClosed, Ended):
            pass  # the end of its command says more
        except (Malformed, BadArchive, UsageError, OSError) as error:
            copy.fail(error)
            link.close()
        finally:
            reader.stop()
