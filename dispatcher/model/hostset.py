"""Host expressions: ``n[01-16,20]`` to names (``expand``), and names to the short form (``fold``).

The grammar is ClusterShell's (and Slurm's and pdsh's, where they agree)::

    list    = operand *( ("," / "!" / "&" / "^") operand )     read left to right
    operand = "@" group / 1*( text / "[" range *("," range) "]" )
    range   = number [ "-" number [ "/" step ] ]               ASCII digits only

Names and numbers come in written order, once. A newline is a comma. A leading zero on the left
bound sets the width. All is counted before anything is allocated. ClusterShell answers for groups
only: its parser reads ``node1[9-10]`` as 92 hosts, and forgets the written order.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import BadName, check_host, nearest, quoted

LIMIT = 65536  # hosts; far above what one login node can drive
LONGEST_TEXT = 1 << 20
#: beyond this count, which may have a million digits, the number of names is not computed
UNCOUNTED = 10**12
#: of a number in a name; more are text
MOST_DIGITS = 18
_NUMBER = re.compile(r"([0-9]+)")
_SAFE = re.compile(r"[A-Za-z0-9_.:-]+\Z")
_OPERATORS = ",!&^"
_RANGE = re.compile(r"([0-9]+)(?: *- *([0-9]+)(?: */ *([0-9]+))?)?")
_GROUP = re.compile(r"@(?:[A-Za-z0-9_.+-]+:)?(?:[A-Za-z0-9_.+-]+|\*)\Z")

Resolve = Callable[[str], Sequence[str]]


class HostsetError(BadName):
    """A bad host expression: message, ``offset`` of the culprit in the text, hint."""


@value
class _Span(Value):
    """Numbers ``first, first+step, ... last`` written at least ``width`` digits wide."""

    first: int
    last: int
    step: int
    width: int

    def __len__(self) -> int:
        return (self.last - self.first) // self.step + 1

    def __iter__(self) -> Iterator[str]:
        """The text of each number."""
        for number in range(self.first, self.last + 1, self.step):
            yield str(number).zfill(self.width)


@value
class _Operand(Value):
    """One name template: literal texts and brackets in turn, and where it stood."""

    operator: str
    offset: int
    pieces: tuple[str | tuple[_Span, ...], ...]

    def count(self) -> int:
        """The number of names; above ``UNCOUNTED`` it is not exact."""
        made = 1
        for piece in self.pieces:
            if not isinstance(piece, str) and made <= UNCOUNTED:
                made *= sum(map(len, piece))
        return made

    def names(self) -> Iterator[str]:
        axes: list[Sequence[str]] = []
        for piece in self.pieces:
            if isinstance(piece, str):
                axes.append((piece,))
            else:
                axes.append(list(dict.fromkeys(itertools.chain.from_iterable(piece))))
        return map("".join, itertools.product(*axes))


def expand(text: str, limit: int = LIMIT, resolve: Resolve | None = None) -> list[str]:
    """The host names that ``text`` stands for, in written order, each once, never none.

    limit: most names the operands may add up to. resolve: group text such as ``@rack1`` or
    ``@slurm:gpu`` to names; default ClusterShell's groups. Raises: HostsetError when the text is
    not of the grammar above, asks for more than ``limit`` names, names an unknown group, makes a
    name no host can have, or when set algebra leaves nothing.
    """
    if len(text) > LONGEST_TEXT:
        raise HostsetError(f"host list of {len(text)} characters (at most {LONGEST_TEXT})")
    operands = _parse(re.sub(r"[\r\n]+", ",", text.strip("\r\n")))
    left = limit
    for operand in operands:
        wanted = operand.count()
        if wanted > left:
            many = str(wanted) if wanted <= UNCOUNTED else f"more than {UNCOUNTED}"
            raise HostsetError(
                f"too many hosts: {many} in {quoted(text)}, room for {left}",
                operand.offset,
                "check the bounds of the range",
            )
        left -= wanted
    selected: dict[str, None] = {}
    for operand in operands:
        names = dict.fromkeys(_checked(operand, resolve or groups, limit))
        if operand.operator == ",":
            selected |= names
        elif operand.operator == "!":
            selected = {name: None for name in selected if name not in names}
        elif operand.operator == "&":
            selected = {name: None for name in selected if name in names}
        else:
            only = {name: None for name in names if name not in selected}
            selected = {name: None for name in selected if name not in names} | only
        if len(selected) > limit:
            raise HostsetError(f"too many hosts: more than {limit}", operand.offset)
    if not selected:
        raise HostsetError(f"no host is left: {quoted(text)}")
    return list(selected)


def _checked(operand: _Operand, resolve: Resolve, limit: int) -> Iterator[str]:
    """Names of one operand, each fit to be a host; groups resolved."""
    for name in operand.names():
        if not name.startswith("@"):
            try:
                yield check_host(name)
            except BadName as bad:
                shift = min(bad.offset, _literal_head(operand))
                raise HostsetError(bad.message, operand.offset + shift, bad.hint) from None
            continue
        if not _GROUP.match(name):
            raise HostsetError(f"not a group name: {quoted(name)}", operand.offset)
        members = resolve(name)
        if not members:
            near = nearest(name, group_names(name))
            raise HostsetError(
                f"group {quoted(name)} is unknown or empty",
                operand.offset,
                f"did you mean {near}?" if near else "list the groups with: cluset -L",
            )
        if len(members) > limit:
            raise HostsetError(f"group {quoted(name)} has more than {limit} hosts", operand.offset)
        for member in members:
            try:
                yield check_host(member)
            except BadName as bad:
                message = f"group {quoted(name)}: {bad.message}"
                raise HostsetError(message, operand.offset, bad.hint) from None


def _literal_head(operand: _Operand) -> int:
    first = operand.pieces[0]
    return len(first) if isinstance(first, str) else 0


def _parse(text: str) -> list[_Operand]:
    """The operands of a whole expression, checked but not expanded."""
    if not text.strip(" "):
        raise HostsetError("empty host list", hint="name a host, a range n[1-4], or a group @rack1")
    operands = []
    operator, start = ",", 0
    for end in [*_outside(text, _OPERATORS), len(text)]:
        raw = text[start:end]
        stripped = raw.strip(" ")
        offset = start + len(raw) - len(raw.lstrip(" "))
        if not stripped:
            where = f"before {text[end]!r}" if end < len(text) else f"after {operator!r}"
            raise HostsetError(f"a host is missing {where}", min(end, len(text) - 1))
        operands.append(_Operand(operator, offset, _pieces(stripped, offset)))
        if end < len(text):
            operator, start = text[end], end + 1
    return operands


def _outside(text: str, wanted: str) -> list[int]:
    """Offsets of the ``wanted`` characters that stand outside brackets."""
    found: list[int] = []
    opened: int | None = None
    for match in re.finditer(r"[\[\]" + re.escape(wanted) + "]", text):
        char, offset = match[0], match.start()
        if char == "[":
            if opened is not None:
                raise HostsetError("a '[' inside brackets", offset, "brackets do not nest")
            opened = offset
        elif char == "]":
            if opened is None:
                raise HostsetError("']' without its '['", offset)
            opened = None
        elif opened is None:
            found.append(offset)
    if opened is not None:
        raise HostsetError("'[' without its ']'", opened)
    return found


def _pieces(text: str, offset: int) -> tuple[str | tuple[_Span, ...], ...]:
    """Literal texts and ranges of one operand; brackets are known to be balanced."""
    pieces: list[str | tuple[_Span, ...]] = []
    at = 0
    for part in re.split(r"(\[[^\]]*\])", text):
        if part.startswith("["):
            pieces.append(_spans(part[1:-1], offset + at + 1))
        elif part:
            blank = re.search(r"[ \t]", part)
            if blank:
                hint = "separate hosts by commas"
                raise HostsetError("a blank inside a name", offset + at + blank.start(), hint)
            pieces.append(part)
        elif pieces and at < len(text):
            raise HostsetError("two ranges with nothing between", offset + at)
        at += len(part)
    for i in range(1, len(pieces)):
        before, here = pieces[i - 1], pieces[i]
        if isinstance(before, str):
            continue
        assert isinstance(here, str), "two ranges with nothing between were refused"
        if not here[:1].isdigit():
            continue
        at_here = offset + text.index("]") + 1
        if any(span.step > 1 for span in before):
            raise HostsetError("digits after a range with a step", at_here)
        if here.isdigit() and i + 1 < len(pieces):
            raise HostsetError("only digits between two ranges", at_here)
    return tuple(pieces)


def _spans(inside: str, offset: int) -> tuple[_Span, ...]:
    spans, at = [], offset
    for item in inside.split(","):
        spans.append(_span(item, at))
        at += len(item) + 1
    return tuple(spans)


def _span(item: str, offset: int) -> _Span:
    match = _RANGE.fullmatch(item.strip(" "))
    if not match:
        raise HostsetError(
            f"not a range: {quoted(item.strip())}" if item.strip(" ") else "an empty range",
            offset,
            "a range is 1-16 or 0-14/2; several are separated by commas",
        )
    bare = item.replace(" ", "")
    first, last, step = match[1], match[2] or match[1], match[3] or "1"
    if max(len(first), len(last), len(step)) > MOST_DIGITS:
        raise HostsetError(f"a number of more than {MOST_DIGITS} digits", offset)
    padded = first.startswith("0")
    if len(last) > 1 and last.startswith("0") and len(last) != len(first):
        raise HostsetError(
            f"the bounds disagree on leading zeros: {bare}",
            offset,
            f"write [{first.zfill(len(last))}-{last}]",
        )
    if int(step) == 0:
        raise HostsetError("a step of 0", offset)
    if int(first) > int(last):
        raise HostsetError(f"a range that runs backwards: {bare}", offset)
    return _Span(int(first), int(last), int(step), len(first) if padded else 1)


def split_list(text: str) -> list[tuple[str, int]]:
    """The comma-separated items of ``text`` with their offsets; commas in brackets do not split.

    Raises: HostsetError when brackets are unbalanced or an item is empty.
    """
    items, start = [], 0
    for end in [*_outside(text, ","), len(text)]:
        raw = text[start:end]
        item = raw.strip(" ")
        if not item:
            raise HostsetError("a host is missing beside ','", max(0, min(end, len(text) - 1)))
        items.append((item, start + len(raw) - len(raw.lstrip(" "))))
        start = end + 1
    return items


def has_algebra(text: str) -> bool:
    """Whether ``!``, ``&`` or ``^`` stands outside brackets.

    Raises: HostsetError when brackets are unbalanced.
    """
    return bool(_outside(text, "!&^"))


def groups(text: str) -> list[str]:
    """Members of a ClusterShell group (``@rack1``, ``@source:name``), empty when unknown.

    Reads the site's and the user's groups.conf, which may run their commands.
    Raises: HostsetError when ClusterShell cannot answer.
    """
    from ClusterShell.NodeSet import NodeSet

    try:
        return list(NodeSet(text))
    except Exception as error:
        raise HostsetError(f"group {quoted(text)}: {error}", hint="see: cluset -L") from error


def group_names(text: str = "@") -> list[str]:
    """The groups that ClusterShell knows: ``@rack1``, or ``@source:name`` if ``text`` has a source.

    text: the beginning of a group. None if its files name no groups, or cannot be read.
    """
    from ClusterShell.NodeSet import std_group_resolver

    source = text[1:].partition(":")[0] if ":" in text else None
    before = "@" if source is None else f"@{source}:"
    try:
        return sorted(f"{before}{name}" for name in std_group_resolver().grouplist(source))
    except Exception:  # noqa: BLE001 - for suggestions, which must not fail
        return []


def fold(names: Iterable[str]) -> str:
    """Short text for many names, ``n[03-07],login``; for display, so it never fails.

    If a name has several numbers, only the one that makes the text short is folded. Names that only
    look like syntax come unchanged, after the others.
    """
    wanted = list(dict.fromkeys(names))
    alike: dict[str, list[tuple[str, ...]]] = {}  # r%sc%s -> numbers of each name
    others = []
    for name in wanted:
        pieces = _NUMBER.split(name)
        numbers = tuple(pieces[1::2])
        if _SAFE.match(name) and max(map(len, numbers), default=0) <= MOST_DIGITS:
            alike.setdefault("%s".join(pieces[::2]), []).append(numbers)
        else:
            others.append(name)
    if len(wanted) - len(others) < 2:
        return ",".join(wanted)
    short = [text for template in sorted(alike) for text in _texts(template, alike[template])]
    return ",".join([*short, *others])


def _texts(template: str, names: Sequence[tuple[str, ...]]) -> list[str]:
    """The short texts of all names of one template, as few as folding one number gives."""
    if len(names) == 1:
        return [template % names[0]]
    best: dict[tuple[str, ...], list[str]] = {}
    folded = 0
    for gap in reversed(range(len(names[0]))):
        rows: dict[tuple[str, ...], list[str]] = {}  # the other numbers -> this one's
        for numbers in names:
            rows.setdefault(numbers[:gap] + numbers[gap + 1 :], []).append(numbers[gap])
        if not best or len(rows) < len(best):
            best, folded = rows, gap
    return [
        template % (*row[:folded], _ranges(best[row]), *row[folded:])
        for row in sorted(best, key=lambda row: [(len(number), number) for number in row])
    ]


def _ranges(numbers: Iterable[str]) -> str:
    """``[01-03,07]`` for numbers; without brackets if there is one alone."""
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda number: (len(number), number)):
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][-1])):
            first = runs[-1][0]
            if len(number) == len(first) or first == "0" or first[0] != "0":
                runs[-1][1:] = [number]
                continue
        runs.append([number])
    text = ",".join("-".join(run) for run in runs)
    return text if text.isdigit() else f"[{text}]"


def natural(name: str) -> tuple[tuple[str, int, int], ...]:
    """A key that sorts names by their text and, within it, by their numbers: n2, n10."""
    parts = re.findall(r"([^0-9]*)([0-9]*)", name)
    return tuple((text, int(number[:MOST_DIGITS] or -1), len(number)) for text, number in parts)
