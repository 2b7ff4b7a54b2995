"""Many names as one short text: ``n[03-07],login``, names of two numbers as ``r[1-4]c[01-20]``.

It is what ClusterShell's ``nodeset -f`` prints (1.9 and later; tests compare the two), in much less
time: 10,000 names of two numbers that make no rectangle take ClusterShell minutes.

Theory. A name is a template, such as ``r%sc%s``, and a number for each of its gaps. Names of one
template are points; a box is a set of numbers for each gap, and stands for all points that can be
made of it. Two boxes that differ in one gap alone make one box. ClusterShell joins neighbours in
sorted order, again and again as long as that finds any, and then tries every pair. Which boxes come
out depends on that order, so it is kept here; but with whom a box can be joined is looked up, by
its sets less one, and not searched for. That works because all boxes are made of different points:
two that are alike in all gaps but one have no number in common there.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

#: of a number that ``expand`` takes back
MOST_DIGITS = 18
_NUMBER = re.compile(r"([0-9]+)")
_SAFE = re.compile(r"[A-Za-z0-9_.:-]+\Z")
#: different numbers of a gap; of more, sets as bits would take too much memory
_MOST_NUMBERS = 20_000

#: a set for each gap: the bits stand for the numbers of that gap, in rising order
Box = tuple[int, ...]


def fold(names: Iterable[str]) -> str:
    """Short text for many names, ``n[03-07],login``; for display, so it never fails.

    Names that only look like syntax stand as they are, after the others.
    """
    wanted = list(dict.fromkeys(names))
    points: dict[str, list[tuple[str, ...]]] = {}
    others = []
    for name in wanted:
        pieces = _NUMBER.split(name)
        numbers = tuple(pieces[1::2])
        if _SAFE.match(name) and max(map(len, numbers), default=0) <= MOST_DIGITS:
            points.setdefault("%s".join(pieces[::2]), []).append(numbers)
        else:
            others.append(name)
    if len(wanted) - len(others) < 2:
        return ",".join(wanted)
    short = [text for template in sorted(points) for text in _texts(template, points[template])]
    return ",".join([*short, *others])


def _texts(template: str, points: list[tuple[str, ...]]) -> list[str]:
    """The short texts of all names of one template."""
    if len(points) == 1:
        return [template % points[0]]
    gaps = [sorted(set(numbers), key=_order) for numbers in zip(*points, strict=True)]
    if sum(len(gap) > 1 for gap in gaps) == 1:
        return [template % tuple(map(_ranges, gaps))]
    if max(map(len, gaps)) > _MOST_NUMBERS:
        return _by_last_number(template, points)
    bits = [{number: 1 << at for at, number in enumerate(gap)} for gap in gaps]
    boxes = [
        tuple(bit[number] for bit, number in zip(bits, point, strict=True)) for point in points
    ]
    return [
        template % tuple(_ranges(_numbers(gap, one)) for gap, one in zip(gaps, box, strict=True))
        for box in _joined(boxes, gaps)
    ]


def _by_last_number(template: str, points: list[tuple[str, ...]]) -> list[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for *first, last in points:
        rows.setdefault(tuple(first), []).append(last)
    return [template % (*row, _ranges(sorted(rows[row], key=_order))) for row in sorted(rows)]


def _order(number: str) -> tuple[int, str]:
    return len(number), number


def _ranges(numbers: Sequence[str]) -> str:
    """``[01-03,07]`` for numbers in rising order; without brackets if there is one alone.

    As ClusterShell writes it, which after a single number does not look anew whether those that
    follow have leading zeros: 08,98-99,100.
    """
    if len(numbers) == 1:
        return numbers[0]
    runs = []
    first = last = numbers[0]
    width, padded = len(first), _is_padded(first)
    for number in numbers[1:]:
        other = len(number) != width if padded else _is_padded(number)
        if not other and int(number) == int(last) + 1:
            last = number
            continue
        runs.append(first if first == last else f"{first}-{last}")
        if other or first != last:
            width, padded = len(number), _is_padded(number)
        first = last = number
    runs.append(first if first == last else f"{first}-{last}")
    return f"[{','.join(runs)}]"


def _is_padded(number: str) -> bool:
    return len(number) > 1 and number.startswith("0")


def _numbers(gap: Sequence[str], one: int) -> list[str]:
    """The numbers of the set ``one``, in rising order."""
    found = []
    while one:
        lowest = one & -one
        found.append(gap[lowest.bit_length() - 1])
        one ^= lowest
    return found


def _joined(boxes: list[Box], gaps: Sequence[Sequence[str]]) -> list[Box]:
    """As few boxes as ClusterShell finds, in its order."""
    known: list[dict[int, tuple[int, str, str]]] = [{} for _ in gaps]

    def order(box: Box) -> tuple[int, tuple[tuple[int, str, str], ...]]:
        """Many points first; then gap by gap: many numbers, a low first one, a low last one."""
        parts = []
        for seen, gap, one in zip(known, gaps, box, strict=True):
            part = seen.get(one)
            if part is None:
                low, high = (one & -one).bit_length() - 1, one.bit_length() - 1
                part = seen[one] = -one.bit_count(), gap[low], gap[high]
            parts.append(part)
        return -abs(math.prod(part[0] for part in parts)), tuple(parts)

    try_all = False
    while True:
        boxes.sort(key=order)
        fewer = _join_all(boxes) if try_all else _join_neighbours(boxes)
        if try_all and len(fewer) == len(boxes):
            return fewer
        try_all = try_all or len(fewer) == len(boxes)
        boxes = fewer


def _join_neighbours(boxes: Sequence[Box]) -> list[Box]:
    found = [boxes[0]]
    for box in boxes[1:]:
        last = found[-1]
        differing = [at for at, one in enumerate(box) if last[at] != one]
        if len(differing) == 1:
            found[-1] = _join(last, box, differing[0])
        else:
            found.append(box)
    return found


def _join_all(boxes: Sequence[Box]) -> list[Box]:
    """Each box, joined with all behind it that it can be joined with, one after the other."""
    # a gap and the sets of the others -> where the boxes stand that have these
    places: dict[tuple[int, Box], list[int]] = {}
    for at, box in enumerate(boxes):
        for gap in range(len(box)):
            places.setdefault((gap, _less(box, gap)), []).append(at)
    gone: set[int] = set()
    found = []
    for at, box in enumerate(boxes):
        if at in gone:
            continue
        behind = at
        while True:
            partners = []
            for gap in range(len(box)):
                where = places.get((gap, _less(box, gap)), ())
                first = bisect_right(where, behind)
                if first < len(where):
                    partners.append((where[first], gap))
            if not partners:
                break
            behind, gap = min(partners)
            partner = boxes[behind]
            gone.add(behind)
            for other in range(len(partner)):
                where = places[other, _less(partner, other)]
                del where[bisect_left(where, behind)]
            box = _join(box, partner, gap)
        found.append(box)
    return found


def _less(box: Box, gap: int) -> Box:
    return box[:gap] + box[gap + 1 :]


def _join(box: Box, other: Box, gap: int) -> Box:
    return (*box[:gap], box[gap] | other[gap], *box[gap + 1 :])
