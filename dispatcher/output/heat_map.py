"""Figures of ranks over time, and the picture that is made of them: ranks x time, as a PNG. Pure.

A picture has at most ``MOST_ROWS`` x ``MOST_COLUMNS`` points of 4 bits, 60 KB before it is
compressed, whatever a run was like.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from statistics import median

#: a figure -> its unit, in the order in which they are drawn
FIGURES = {
    "CPU": "% of one CPU",
    "GPU": "% of the time in which it computed",
    "memory": "GiB resident, of the rank and its children",
    "GPU memory": "GiB used on its GPU",
}
#: rows and columns of a heat map at most, and the seconds of one before any are joined
MOST_ROWS, MOST_COLUMNS, FINEST = 512, 240, 0.125


class Heat:
    """One figure of every rank over time, in columns of equal ``width`` (seconds).

    The run's length is not known while it is folded: when the columns do not suffice, two are
    joined everywhere, so that memory is bounded by ranks. A cell is the mean of what was added.
    top: the least that a picture's scale ends with.
    """

    def __init__(self, top: float = 0.0) -> None:
        self.top = top
        self.width = FINEST
        self.cells: dict[int, dict[int, tuple[float, float]]] = {}  # rank -> column -> sum, weight

    def add(self, rank: int, since: float, until: float, value: float) -> None:
        """``rank`` had ``value`` from ``since`` to ``until`` (seconds since the run began)."""
        while until / self.width >= MOST_COLUMNS:
            self._join()
        row = self.cells.setdefault(rank, {})
        for column in range(int(since / self.width), int(until / self.width) + 1):
            first, last = column * self.width, (column + 1) * self.width
            weight = max(min(until, last) - max(since, first), 1e-9)
            total, before = row.get(column, (0.0, 0.0))
            row[column] = total + value * weight, before + weight

    def _join(self) -> None:
        self.width *= 2
        for rank, row in self.cells.items():
            joined: dict[int, tuple[float, float]] = {}
            for column, (total, weight) in row.items():
                others = joined.get(column // 2, (0.0, 0.0))
                joined[column // 2] = others[0] + total, others[1] + weight
            self.cells[rank] = joined

    @property
    def columns(self) -> int:
        """How many there are, from the run's beginning to the last figure."""
        return 1 + max((max(row) for row in self.cells.values() if row), default=-1)

    def row(self, rank: int) -> dict[int, float]:
        """Column -> mean, of ``rank``."""
        return {at: total / weight for at, (total, weight) in self.cells.get(rank, {}).items()}

    def rows(self) -> tuple[list[list[int]], list[dict[int, float]]]:
        """The rows of a picture: the ranks of each, and its means by column.

        Of more than ``MOST_ROWS`` ranks some share a row; it shows the farthest from the median.
        """
        ranks = sorted(self.cells)
        group = -(-len(ranks) // MOST_ROWS)
        members = [ranks[at : at + group] for at in range(0, len(ranks), group)]
        cells = {rank: self.row(rank) for rank in ranks}
        if group == 1:
            return members, [cells[few[0]] for few in members]
        columns = {at for row in cells.values() for at in row}
        usual = {at: median(row[at] for row in cells.values() if at in row) for at in columns}
        return members, [_oddest([cells[rank] for rank in few], usual) for few in members]

    def means(self) -> dict[int, float]:
        """Rank -> mean over all its time."""
        sums = {rank: [*map(sum, zip(*row.values(), strict=True))] for rank, row in
                self.cells.items() if row}  # fmt: skip
        return {rank: total / weight for rank, (total, weight) in sums.items()}


#: of a heat map, from little to much: viridis, which stays in order in grey and for all eyes
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
LEVELS = 15


def _oddest(rows: Sequence[Mapping[int, float]], usual: Mapping[int, float]) -> dict[int, float]:
    """Of several rows one: in each column what is farthest from the median of all ranks."""
    columns = {at for row in rows for at in row}
    return {
        at: max((row[at] for row in rows if at in row), key=lambda value: abs(value - usual[at]))
        for at in columns
    }


def _colour(level: int) -> tuple[int, ...]:
    place = level / (LEVELS - 1) * (len(_STOPS) - 1)
    low = min(int(place), len(_STOPS) - 2)
    pairs = zip(_STOPS[low], _STOPS[low + 1], strict=True)
    return tuple(round(a + (b - a) * (place - low)) for a, b in pairs)


def hexadecimal(level: int) -> str:
    """The colour of a level, 0 for the least, as CSS has it."""
    return "#" + "".join(f"{part:02x}" for part in _colour(level))


def levels(rows: Sequence[Mapping[int, float]], columns: int, top: float) -> list[list[int]]:
    """``rows`` as ``png`` draws them, with ``top`` as the most."""
    return [
        [1 + max(0, min(LEVELS - 1, int(row[at] / top * LEVELS))) if at in row else 0
         for at in range(columns)]
        for row in rows
    ]  # fmt: skip


def png(points: Sequence[Sequence[int]]) -> bytes:
    """A picture of rows of levels: 0 is transparent, the others are colours, little to much.

    PNG, 4 bits a point with a palette: https://www.w3.org/TR/png-3/
    """
    width = len(points[0])
    lines = bytearray()
    for row in points:
        even = [*row, *[0] * (width % 2)]
        lines.append(0)  # no filter
        lines += bytes(a << 4 | b for a, b in zip(even[::2], even[1::2], strict=True))
    palette = bytes((0, 0, 0)) + b"".join(bytes(_colour(level)) for level in range(LEVELS))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, len(points), 4, 3, 0, 0, 0)), (b"PLTE", palette),
        (b"tRNS", b"\0"), (b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b""),
    )  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
