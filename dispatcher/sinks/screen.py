"""The ranks' lines on standard output and standard error, labelled, each in one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dispatcher.agent.wire import STDERR, STDOUT
from dispatcher.core.events import OutputEnded
from dispatcher.sinks.base import Sink, Stamped
from dispatcher.sinks.files import write_all
from dispatcher.sinks.lines import LineAssembler, harmless

#: SGR foreground colours that can be told apart on dark and light backgrounds
COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


class Screen(Sink):
    """Writes ``label line\\n`` for every line of every rank.

    labels: rank -> text, "" for none. fds: where stream 1 and stream 2 go.
    colour: streams whose labels are coloured. on_broken: called once when
    nobody reads a stream any more (``| head``); that stream is then silent.
    """

    def __init__(
        self,
        labels: Callable[[int], str],
        *,
        fds: Mapping[int, int] | None = None,
        colour: frozenset[int] = frozenset(),
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._labels = labels
        self._fds = dict(fds or {STDOUT: 1, STDERR: 2})
        self._colour = colour
        self._on_broken = on_broken
        self._lines: dict[tuple[int, int], LineAssembler] = {}
        self._prefixes: dict[tuple[int, int], bytes] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        assembler = self._lines.get((rank, stream))
        if assembler is None:
            assembler = self._lines[rank, stream] = LineAssembler()
        self._write(rank, stream, assembler.feed(data))

    def event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, OutputEnded):
            self._finish(stamped.event.rank, stamped.event.stream)

    def close(self) -> None:
        for rank, stream in list(self._lines):
            self._finish(rank, stream)

    def _finish(self, rank: int, stream: int) -> None:
        assembler = self._lines.pop((rank, stream), None)
        if assembler is not None:
            self._write(rank, stream, assembler.finish())

    def _write(self, rank: int, stream: int, lines: list[bytes]) -> None:
        fd = self._fds.get(stream)
        if not lines or fd is None:
            return
        prefix = self._prefix(rank, stream)
        batch = b"".join(prefix + harmless(line) + b"\n" for line in lines)
        try:
            write_all(fd, batch)
        except OSError:  # EPIPE, or a terminal that went away
            del self._fds[stream]
            self._on_broken()

    def _prefix(self, rank: int, stream: int) -> bytes:
        prefix = self._prefixes.get((rank, stream))
        if prefix is None:
            label = self._labels(rank)
            if label and stream in self._colour:
                label = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{label}\x1b[0m"
            prefix = self._prefixes[rank, stream] = f"{label} ".encode() if label else b""
        return prefix
