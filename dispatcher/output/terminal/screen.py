"""The ranks' lines on standard output and standard error, labelled, each in one piece.

``Screen`` makes lines and decides when they are shown; ``Writer`` writes whole batches of them, and
notices when a reader closes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from dispatcher.core.events.run_events import TICK, Counts, Entry, OutputEnded, RanksPlaced, Sink
from dispatcher.model.frozen import Value, value
from dispatcher.model.names import plural
from dispatcher.model.paths import stream_error, write_all
from dispatcher.output.terminal.asking import OURS
from dispatcher.output.text.fold import Folded, Folding
from dispatcher.output.text.lines import ExactLines, LineAssembler, Spill
from dispatcher.output.text.sanitize import sanitize_lines, sanitize_paragraph, sanitize_pieces
from dispatcher.plan.job.placement import rank_name
from dispatcher.remote.protocol.frames import STDERR, STDOUT

#: SGR foreground colours that differ on dark and light backgrounds
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)

#: seconds until an unfinished line is shown on a terminal, and between two copies of one that goes
#: on, as a progress bar does, in a file or pipe
PARTIAL, STATE = 0.2, 30.0

#: bytes of a long line in which ``grep`` looks
GREPPED = 16 << 20


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 1.0``, ``8 ranks``."""
    return f"rank {rank_name(ranks[0])}" if len(ranks) == 1 else plural(len(ranks), "rank")


@value
class LineFormat(Value):
    """How lines look, and which are shown; docs/design/output.md has the rules for open lines.

    label: rank -> text, "" for none. hue: rank -> a number that chooses its colour. terminals:
    streams that lead to one; a line that is too long, or rests for ``partial_after`` seconds, is
    cut there. state_after: seconds after which a line without end, or a bar without a footer, is
    shown on other streams; 0 for never. coloured: streams whose labels have a colour. timestamps:
    of arrival. grep: show only lines with this. mark_errors: ``!`` after the label of standard
    error where both streams lead to the same place. fold: world size -> the folding that makes
    equal lines of many ranks one. fold_label: ranks -> their label. exact: streams whose bytes pass
    unchanged to a program; ranks take turns at line ends, and an open line is ended before another
    rank's. is_alone: there is only one rank, whose exact bytes pass at once. by_terminal: the bytes
    come through a terminal, which makes CR LF of each LF. who: ranks -> text for a note.
    """

    label: Callable[[int], str]
    hue: Callable[[int], int] = lambda rank: rank
    terminals: frozenset[int] = frozenset()
    coloured: frozenset[int] = frozenset()
    timestamps: bool = False
    grep: re.Pattern[bytes] | None = None
    partial_after: float = PARTIAL
    state_after: float = STATE
    mark_errors: bool = True
    fold: Callable[[int], Folding[int]] | None = None
    fold_label: Callable[[Sequence[int]], str] = lambda ranks: f"[{len(ranks)} ranks]"
    exact: frozenset[int] = frozenset()
    is_alone: bool = False
    by_terminal: bool = False
    who: Callable[[Sequence[int]], str] = ranks_in_words


class Screen(Sink):
    """Writes ``label line\\n`` for every line of every rank, a chunk's lines at once.

    footer: (states of bars with their labels, columns) -> lines to draw below the others,
    if the writer is a ``live_terminal.Terminal``.
    """

    def __init__(
        self,
        view: LineFormat,
        writer: Writer,
        *,
        footer: Callable[[list[tuple[str, bytes]], int], list[tuple[bytes, int]]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._view = view
        self._writer = writer
        self._footer = footer
        self._clock = clock
        self._folding: Folding[int] | None = None
        self._speakers: dict[int, set[int]] = {}  # rank -> its streams that ``_folding`` waits for
        self._lines: dict[tuple[int, int], LineAssembler] = {}
        self._bars: set[tuple[int, int]] = set()  # streams that ever had a bar
        self._exact: dict[tuple[int, int], ExactLines] = {}
        #: descriptor, by its first stream -> the rank with an open line
        self._open: dict[int, int] = {}
        self._prefixes: dict[tuple[int, int], bytes] = {}
        self._spill = Spill()
        #: streams with an unfinished line to show -> since when it rests, where it will be cut;
        #: else since it began, or went on after it was shown
        self._unfinished: dict[tuple[int, int], float] = {}
        # Time that the screen itself was stuck in a write does not count as silence of a
        # rank, so this clock moves by little more than a beat a tick.
        self._quiet_clock = 0.0
        self._last_tick = 0.0
        self._not_shown = 0

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        if stream in self._view.exact:
            exact = self._exact.get(key) or self._exact.setdefault(key, ExactLines(self._spill))
            self._pass(rank, stream, exact.feed(data))
            if self._view.is_alone:
                self._pass(rank, stream, exact.finish())
            return
        lines = self._lines.get(key) or self._begin(key)
        block = lines.feed(data)
        if lines.is_bar:
            self._bars.add(key)
        if block:
            self._show(rank, stream, block)
        if not self._delay(key, lines):
            self._unfinished.pop(key, None)
        elif block or self._is_cut(key, lines) or (b"\n" in data and not lines.is_bar):
            self._unfinished[key] = self._quiet_clock
        else:
            self._unfinished.setdefault(key, self._quiet_clock)

    def event(self, entry: Entry) -> None:
        match entry.event:
            case OutputEnded(_, rank, stream):
                self._finish(rank, stream)
                if self._folding is not None and rank in self._speakers:
                    self._speakers[rank].discard(stream)
                    if not self._speakers[rank]:
                        del self._speakers[rank]
                        self._folding.leave()
            case RanksPlaced(world_size):
                # finish lines of a lost host, whose ranks are started again
                for key in [*self._lines, *self._exact]:
                    self._finish(*key)
                if self._folding is not None:
                    self._show_folded(self._folding.finish())
                if self._view.fold is not None:
                    self._folding = self._view.fold(world_size)
                    self._speakers = {rank: {STDOUT, STDERR} for rank in range(world_size)}

    def gap(self, missing: Counts) -> None:
        for key in missing:
            if key in self._lines:
                self._show(*key, self._lines[key].flush())
            if key in self._exact:
                self._pass(*key, self._exact[key].finish())
        for stream in sorted({stream for _, stream in missing}):
            counts = {rank: n for (rank, one), n in missing.items() if one == stream}
            total = sum(counts.values())
            self._not_shown += total
            text = f"... {total:,} bytes of {self._view.who(list(counts))} not shown\n"
            self._end_line(stream)
            self._writer.write(stream, text.encode())

    def say(self, line: str) -> None:
        self._end_line(STDERR)
        self._writer.write(STDERR, sanitize_paragraph(line).encode() + b"\n")  # may quote hosts

    def tick(self, now: float) -> bool:
        self._quiet_clock += min(now - self._last_tick, 2 * TICK)
        self._last_tick = now
        for key, since in list(self._unfinished.items()):
            lines = self._lines[key]
            if self._quiet_clock - since >= self._delay(key, lines):
                del self._unfinished[key]
                is_cut = self._is_cut(key, lines)
                self._show(*key, lines.flush() if is_cut else lines.state())
        again = bool(self._unfinished)
        for key in self._bars:
            self._show(*key, self._lines[key].rested())
            again = again or self._lines[key].block is not None
        if self._folding is not None:
            self._show_folded(self._folding.due(self._quiet_clock))
            again = again or self._folding.waiting > 0
        return self._writer.refresh(now, self._live) or again

    def close(self) -> None:
        for key in [*self._lines, *self._exact]:
            self._finish(*key)
        if self._folding is not None:
            self._show_folded(self._folding.finish())
        if self._not_shown:
            self.say(f"note: {self._not_shown:,} bytes of output were not shown, as marked above")
        for words in self._spill.words():
            self.say(f"note: {words}")
        self._spill.close()
        self._writer.close()

    def _begin(self, key: tuple[int, int]) -> LineAssembler:
        if key[1] in self._view.terminals:
            lines = LineAssembler()
        else:
            long, keep = partial(self._show_long, *key), not self._view.by_terminal
            lines = LineAssembler(long, self._spill, keep_ends=keep)
        self._lines[key] = lines
        return lines

    def _is_cut(self, key: tuple[int, int], lines: LineAssembler) -> bool:
        """Whether showing the unfinished line before its end cuts it."""
        return not lines.is_bar and key[1] in self._view.terminals

    def _delay(self, key: tuple[int, int], lines: LineAssembler) -> float:
        """Seconds until the unfinished line is shown; 0 for never, or if there is none."""
        if not lines.rest:
            return 0.0
        if key[1] not in self._view.terminals:
            return self._view.state_after
        if not lines.is_bar:
            return self._view.partial_after
        return 0.0 if self._footer is not None else self._view.state_after

    def _finish(self, rank: int, stream: int) -> None:
        exact = self._exact.pop((rank, stream), None)
        if exact is not None:
            self._pass(rank, stream, exact.finish())
        lines = self._lines.pop((rank, stream), None)
        self._bars.discard((rank, stream))
        self._unfinished.pop((rank, stream), None)
        if lines is not None:
            self._show(rank, stream, lines.finish())

    def _pass(self, rank: int, stream: int, pieces: Iterator[bytes]) -> None:
        for piece in filter(None, pieces):
            if self._open.get(self._place(stream), rank) != rank:
                self._end_line(stream)
            self._open.pop(self._place(stream), None)
            self._writer.write(stream, piece)
            if not piece.endswith(b"\n"):
                self._open[self._place(stream)] = rank

    def _place(self, stream: int) -> int:
        """The stream, or standard output where both lead to the same place, as for ``2>&1``."""
        return STDOUT if self._writer.together else stream

    def _end_line(self, stream: int) -> None:
        if self._open.pop(self._place(stream), None) is not None:
            self._writer.write(stream, b"\n")

    def _show(self, rank: int, stream: int, block: bytes) -> None:
        if self._folding is None and stream in self._view.terminals:
            block = sanitize_lines(block)
        if self._view.grep is not None:
            found = self._view.grep.search
            block = b"".join(line for line in block.splitlines(keepends=True) if found(line[:-1]))
        if not block:
            return
        if self._folding is not None:
            for line in block[:-1].split(b"\n"):
                self._show_folded(self._folding.add(rank, line, self._quiet_clock, stream))
            return
        prefix = self._prefix(rank, stream)
        if self._view.timestamps:
            prefix = self._stamp() + prefix
        if prefix:
            block = block.replace(b"\n", b"\n" + prefix)  # one too many, at the end
            block = b"".join((prefix, memoryview(block)[: -len(prefix)]))
        self._writer.write(stream, block)

    def _show_long(self, rank: int, stream: int, pieces: Iterator[bytes], end: bytes) -> None:
        """Show a line that is too long to be held. It is not folded, but keeps its place."""
        if stream in self._view.terminals:
            pieces = sanitize_pieces(pieces)
        if self._view.grep is not None:
            head = bytearray()
            while len(head) < GREPPED and (piece := next(pieces, None)) is not None:
                head += piece
            if not self._view.grep.search(head):
                return
            pieces = chain((bytes(head),), pieces)
        if self._folding is not None:
            self._show_folded(self._folding.finish())
        stamp = self._stamp() if self._view.timestamps else b""
        self._writer.write(stream, stamp + self._prefix(rank, stream) + next(pieces))
        for piece in pieces:
            self._writer.write(stream, piece)
        self._writer.write(stream, end)

    def _show_folded(self, groups: list[Folded[int]]) -> None:
        for group in groups:
            if len(group.speakers) == 1:
                prefix = self._prefix(group.speakers[0], group.kind)
            else:
                label = self._marked(self._view.fold_label(group.speakers), group.kind)
                prefix = f"{label} ".encode() if label else b""
            stamp = self._stamp() if self._view.timestamps else b""
            line = group.line
            if group.kind in self._view.terminals:
                line = sanitize_lines(line)
            self._writer.write(group.kind, stamp + prefix + line + b"\n")

    def _live(self, columns: int) -> list[tuple[bytes, int]]:
        if self._footer is None:
            return []
        bars = [
            (self._view.label(rank), bar)
            for rank, stream in sorted(self._bars)
            if self._lines[rank, stream].is_bar
            for bar in self._lines[rank, stream].rest.split(b"\n")
            if bar.strip()
        ]
        return self._footer(bars, columns)

    def _stamp(self) -> bytes:
        now = self._clock()
        return time.strftime("%H:%M:%S", time.localtime(now)).encode() + b".%03d " % (now % 1 * 1e3)

    def _prefix(self, rank: int, stream: int) -> bytes:
        prefix = self._prefixes.get((rank, stream))
        if prefix is None:
            label = self._marked(self._view.label(rank), stream)
            if label and stream in self._view.coloured:
                colour = COLOURS[self._view.hue(rank) % len(COLOURS)]
                label = f"\x1b[{colour}m{label}\x1b[0m"
            prefix = self._prefixes[rank, stream] = f"{label} ".encode() if label else b""
        return prefix

    def _marked(self, label: str, stream: int) -> str:
        """``label``, with ``!`` for standard error where both streams lead to the same place."""
        is_error = stream == STDERR and self._view.mark_errors and self._writer.together
        return label + "!" if label and is_error else label


#: bytes that a pipe to a reader may hold (pipe-max-size of pipe(7))
PIPE_SIZE = 1 << 20

#: columns -> lines to draw below the others, and how many columns each takes
Live = Callable[[int], list[tuple[bytes, int]]]


class Writer:
    """Writes batches to the descriptor of their stream.

    on_broken: called once for every stream that lost its reader (``| head``, a closed terminal);
    that stream is silent from then on. on_full: the same for a stream that takes no more for
    another reason, as on a full disk, after an error on standard error.
    """

    def __init__(
        self,
        fds: Mapping[int, int] | None = None,
        on_broken: Callable[[], None] = lambda: None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._fds = dict(fds or {STDOUT: 1, STDERR: 2})
        self._on_broken = on_broken
        self._on_full = on_full
        #: batches written so far: it grows while a long line is written
        self.pace = 0
        for fd in self._fds.values():
            widen(fd)
        #: whether both streams lead to the same place, so that labels must distinguish them
        self.together = len(self._fds) == 2 and same_file(*self._fds.values())
        self._terminals = frozenset(fd for fd in self._fds.values() if os.isatty(fd))

    def write(self, stream: int, batch: bytes) -> None:
        """Write ``batch``, whole lines."""
        fd = self._fds.get(stream)
        if fd is None:
            return
        try:
            if fd in self._terminals:  # which may show a question
                with OURS.lines() as (before, behind):
                    write_all(fd, before + batch + behind)
            else:
                write_all(fd, batch)
            self.pace += 1
        except OSError as error:
            del self._fds[stream]
            if isinstance(error, ConnectionError) or fd in self._terminals:
                self._on_broken()
                return
            self.write(STDERR, f"error: {stream_error(error, stream)}\n".encode())
            self._on_full()

    def refresh(self, now: float, live: Live) -> bool:
        """Draw below the lines if it is time; False if this writer never does."""
        return False

    def close(self) -> None:
        """Wipe the footer, if there is one."""


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same terminal, pipe or file."""
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)


def widen(fd: int) -> None:
    """Make the buffer of ``fd`` larger if it is a pipe, so that its reader wakes less often."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def can_pause(fd: int) -> bool:
    """Whether the reader of ``fd`` may pause: a terminal, a pipe, a socket."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
