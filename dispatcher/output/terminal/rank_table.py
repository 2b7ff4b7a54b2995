"""The table of all ranks on a terminal's other screen: ``dispatch top``.

``TableView`` follows the keys and draws a moment of the run (``run_picture.Snapshot``) on an
``AltScreen``, which opens its own descriptor and never blocks. ``leave`` restores the terminal.
Only SIGKILL leaves the terminal changed, as with any full-screen program: reset(1).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from dispatcher.model.hostset import fold
from dispatcher.model.names import duration
from dispatcher.model.paths import in_front
from dispatcher.output.monitor.run_picture import Snapshot, TopRank
from dispatcher.output.run_state import NOTHING
from dispatcher.output.terminal.footer import Footer, drawn
from dispatcher.output.text.sanitize import sanitize_text

#: the other screen, no cursor; and back
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l\x1b[2J", b"\x1b[?25h\x1b[?1049l"
#: seconds that a terminal may take for the last bytes
LAST = 1.0


class AltScreen:
    """The terminal that the descriptor ``fd`` leads to. Raises: OSError if it is not a terminal."""

    def __init__(self, fd: int) -> None:
        name = os.ttyname(fd)
        try:
            flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            self._fd = os.open(name, flags)
        except OSError:  # another user's, or of another /dev: then the one we were given
            self._fd = os.dup(fd)
        self._before: list[Any] | None = None
        self._rest = b""
        self._size = (0, 0)

    @property
    def taken(self) -> bool:
        return self._before is not None

    @property
    def is_ours(self) -> bool:
        return in_front(self._fd)

    def enter(self) -> bool:
        """Take the terminal; False while in the background. Raises: OSError, termios.error."""
        if not self.is_ours:
            return False
        if self._before is None:
            self._before = termios.tcgetattr(self._fd)
        modes = termios.tcgetattr(self._fd)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 0, 0
        termios.tcsetattr(self._fd, termios.TCSANOW, modes)
        self._rest = ENTER
        self._flush()
        return True

    def leave(self) -> None:
        """Give the terminal back."""
        if self._before is None:
            return
        before, self._before = self._before, None
        with contextlib.suppress(OSError, termios.error):  # it may have gone away
            if self.is_ours:
                # without IXON for a moment, output goes on that Ctrl-S had paused
                awake = [before[0] & ~termios.IXON, *before[1:]]
                termios.tcsetattr(self._fd, termios.TCSANOW, awake)
                termios.tcsetattr(self._fd, termios.TCSANOW, before)
            # drop the rest of a picture
            self._rest = self._rest[-1:] and b"\x18"  # CAN ends a sequence that is cut
            self._rest += LEAVE
            while self._rest and select.select([], [self._fd], [], LAST)[1]:
                self._flush()
        self._rest = b""

    def close(self) -> None:
        """Restore the terminal and close it."""
        self.leave()
        os.close(self._fd)

    @property
    def size(self) -> tuple[int, int]:
        """(columns, rows)."""
        try:
            found = os.get_terminal_size(self._fd)
        except OSError:
            return 80, 24
        return max(1, found.columns), max(1, found.lines)

    def draw(self, lines: Sequence[bytes]) -> None:
        """Show only these lines; they are dropped while the terminal is full. Raises: OSError."""
        self._flush()
        if self._rest or not self.taken:
            return
        size, self._size = self._size, self.size
        wipe = b"\x1b[2J" if size != self._size else b""
        body = b"\r\n".join(line + b"\x1b[K" for line in lines)
        self._rest = wipe + b"\x1b[H" + body + b"\x1b[J"
        self._flush()

    def typed(self) -> bytes:
        """The keys typed since the last call; b"" if none. Raises: OSError."""
        if not self.taken or not self.is_ours:
            return b""
        try:
            return os.read(self._fd, 1024)
        except BlockingIOError:
            return b""

    def _flush(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            pass


#: characters of a filter
MOST_FILTER = 64

#: seconds of silence that are coloured
LONG = 60.0

HELP = "q quit  s sort  / filter  \N{UPWARDS ARROW}\N{DOWNWARDS ARROW} PgUp PgDn scroll"

#: the orders that the key s goes through: name -> figure of which the first rows have most
SORTS: dict[str, Callable[[TopRank], float]] = {
    "rank": lambda row: 0.0,  # they come in that order
    "silence": lambda row: -1.0 if row.silence is None else row.silence,
    "cpu": lambda row: -1.0 if row.cpu is None else row.cpu,
    "rss": lambda row: -1.0 if row.rss is None else row.rss,
}

_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1bOH": "home", b"\x1bOF": "end", b"\x1b[1~": "home", b"\x1b[4~": "end",
    b"\r": "enter", b"\n": "enter", b"\x7f": "back", b"\x08": "back", b"\x1b": "escape",
}  # fmt: skip

_KEY = re.compile(rb"\x1b\[[0-9;]{0,16}[@-~]|\x1bO.|[ -~]|[\x08\n\r\x1b\x7f]", re.DOTALL)


def keys(data: bytes) -> list[str]:
    """The names of the keys that sent ``data``; a printable one is its character."""
    found = []
    for match in _KEY.finditer(data):
        key = _KEYS.get(match[0]) or (match[0].decode() if len(match[0]) == 1 else None)
        if key is not None:
            found.append(key)
    return found


@dataclass(frozen=True)
class ViewState:
    """The user's view of the table. top: rows scrolled away; typing: a filter not yet entered."""

    sort: str = "rank"
    top: int = 0
    filter: str = ""
    typing: str | None = None
    over: bool = False

    def pressed(self, key: str, page: int) -> ViewState:
        """The view after ``key``; ``over``: the user has left. page: rows that fit the screen."""
        new = dataclasses.replace
        if self.typing is not None:
            if key == "enter":
                return new(self, filter=self.typing, typing=None, top=0)
            if key == "escape":
                return new(self, typing=None)
            if key == "back":
                return new(self, typing=self.typing[:-1])
            return new(self, typing=(self.typing + key)[:MOST_FILTER]) if len(key) == 1 else self
        if key == "q":
            return new(self, over=True)
        if key == "s":
            order = list(SORTS)
            return new(self, sort=order[(order.index(self.sort) + 1) % len(order)], top=0)
        if key == "/":
            return new(self, typing="")
        if key == "escape":
            return new(self, filter="", top=0)
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key in moves:
            return new(self, top=max(0, self.top + moves[key]))
        tops = {"home": 0, "end": 1 << 30}
        return new(self, top=tops[key]) if key in tops else self


def selected(rows: Sequence[TopRank], view: ViewState) -> list[TopRank]:
    """The rows that pass the filter (part of a host's name, or a rank), as sorted."""
    wanted = view.filter
    fits = [row for row in rows if not wanted or wanted in row.host or wanted == row.rank]
    return sorted(fits, key=SORTS[view.sort], reverse=True)


class WatchTable:
    """Makes the lines of the table; remembers a few seconds for a rate. hosts: node -> name.

    job: its name, if it has one.
    """

    def __init__(self, hosts: Sequence[str], job: str | None = None) -> None:
        self._footer, self._job = Footer(hosts), job
        self.page = 1  # rows of the last picture

    def lines(
        self, snapshot: Snapshot, view: ViewState, columns: int, height: int
    ) -> tuple[list[Text], ViewState]:
        """At most ``height`` lines of ``columns``, and the view, scrolled at most to the end."""
        head = [] if self._job is None else [Text(self._job, style="bold")]
        head += self._footer.lines(snapshot.picture, [], columns)[::-1]
        if snapshot.late_gpus:
            names = sanitize_text(fold(snapshot.late_gpus))
            head.append(Text(f"GPUs do not answer: {names}", style="yellow"))
        head += [Text(sanitize_text(words), style="yellow") for words in snapshot.slow]
        rows = selected(snapshot.ranks, view)
        self.page = max(1, height - len(head) - 2)
        view = dataclasses.replace(view, top=max(0, min(view.top, len(rows) - self.page)))
        seen = rows[view.top : view.top + self.page]
        lines = [*head, *table(seen, snapshot.ranks, view.sort)]
        lines += [Text()] * (height - len(lines) - 1)
        lines.append(_status(view, len(rows), len(seen)))
        for line in lines:
            line.truncate(columns, overflow="ellipsis")
            line.no_wrap = True
        return lines[:height], view


def _status(view: ViewState, total: int, seen: int) -> Text:
    if view.typing is not None:
        return Text(f"host or rank: {view.typing}\N{LOWER ONE EIGHTH BLOCK}")
    where = f"{view.top + 1}-{view.top + seen} of {total}" if total else "no ranks"
    only = f" with {view.filter!r}" if view.filter else ""
    return Text(f"{where}{only}, by {view.sort}   {HELP}", style="dim")


def table(rows: Sequence[TopRank], everyone: Sequence[TopRank], sort: str = "") -> list[Text]:
    """Heading and ``rows``; columns as wide as ``everyone`` needs, so that scrolling keeps them."""
    gpus = any((row.gpu_used, row.gpu_memory, row.gpu_watts) != (None,) * 3 for row in everyone)
    columns = _COLUMNS if gpus else [one for one in _COLUMNS if one[0] not in _OF_GPUS]
    wide = [max([len(title), *(len(cell(row)) for row in everyone)]) for title, _, cell in columns]
    heading = Text(style="bold")
    lines = [heading]
    for at, (title, right, _) in enumerate(columns):
        text = title.rjust(wide[at]) if right else title.ljust(wide[at])
        heading.append(text, style="underline" if title.lower() == sort else "")
        heading.append("  ")
    heading.append("LAST LINE")
    for row in rows:
        line = Text()
        for at, (title, right, cell) in enumerate(columns):
            text = cell(row)
            line.append(text.rjust(wide[at]) if right else text.ljust(wide[at]), _style(title, row))
            line.append("  ")
        line.append(Text.from_ansi(row.last_line).plain.expandtabs(8), "" if row.alive else "dim")
        lines.append(line)
    return lines


def _style(title: str, row: TopRank) -> str:
    if not row.alive:
        return "dim" if row.state == "done" else "red" if title == "STATE" else "dim"
    silent = row.silence is not None and row.silence >= LONG
    if title == "SILENCE" and silent:
        return "yellow"
    if title == "CPU" and silent and row.cpu is not None and row.cpu < NOTHING:
        return "bold yellow"
    return {"RANK": "cyan"}.get(title, "red" if title == "STATE" and "disk" in row.state else "")


def _size(count: float | None) -> str:
    if count is None:
        return "-"
    units = ["", "K", "M", "G", "T"]
    while count >= 1000 and len(units) > 1:
        count /= 1024
        del units[0]
    unit = units[0]
    return f"{count:.0f}{unit}" if count >= 10 or not unit else f"{count:.1f}{unit}"


def _whole(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


#: title, whether cells are aligned right, and the cell of a row
_COLUMNS: list[tuple[str, bool, Callable[[TopRank], str]]] = [
    ("RANK", True, lambda row: sanitize_text(row.rank)),
    ("HOST", False, lambda row: sanitize_text(row.host)),
    ("LOCAL", True, lambda row: str(row.local_rank)),
    ("PID", True, lambda row: _whole(row.pid, "")),
    ("STATE", False, lambda row: row.state),
    ("CPU", True, lambda row: _whole(row.cpu, "%")),
    ("RSS", True, lambda row: _size(row.rss)),
    ("GPU", True, lambda row: _whole(row.gpu_used, "%")),
    ("GMEM", True, lambda row: _size(row.gpu_memory)),
    ("POWER", True, lambda row: _whole(row.gpu_watts, "W")),
    ("SILENCE", True, lambda row: "-" if row.silence is None else duration(round(row.silence))),
]
#: columns that are shown if a figure of a GPU is known
_OF_GPUS = ("GPU", "GMEM", "POWER")


#: seconds between two pictures
EVERY = 0.5
#: a picture comes half a second later for each so many ranks: to draw 512 takes 12 ms
MANY = 256


class TableView:
    """Draws ``snapshot`` on ``alt_screen`` and follows the keys. hosts, job: of ``WatchTable``."""

    def __init__(
        self,
        alt_screen: AltScreen,
        hosts: Sequence[str],
        snapshot: Callable[[], Snapshot],
        job: str | None = None,
    ) -> None:
        self.alt_screen = alt_screen
        self._shot = snapshot
        self._table, self._look = WatchTable(hosts, job), ViewState()
        self._next = 0.0

    def turn(self, now: float) -> bool:
        """Read the keys and draw when it is time; False when the user has left.

        Raises: OSError, termios.error when the terminal is gone.
        """
        if not self.alt_screen.is_ours:
            return True
        if not self.alt_screen.taken:
            self.alt_screen.enter()
            self._next = now
        for key in keys(self.alt_screen.typed()):
            self._look = self._look.pressed(key, self._table.page)
            self._next = now
        if self._look.over:
            return False
        if now >= self._next:
            self._next = now + EVERY
            columns, rows = self.alt_screen.size
            wide = max(1, columns - 1)  # a full line may leave the cursor in either of two places
            shot = self._shot()
            self._next += EVERY * (len(shot.ranks) // MANY)
            lines, self._look = self._table.lines(shot, self._look, wide, rows)
            self.alt_screen.draw([line for line, _ in drawn(lines, wide)])
        return True
