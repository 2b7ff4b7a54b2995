"""The messages between the two ends of a copy, and lists of files.

Frames of ``remote.protocol.mux``, all on channel 0::

    VALUE   a packed value (``remote.protocol.packing``): an order, a list, an answer, a report
    DATA    bytes of the file whose turn it is: files come in the order of the list
    START   eight bytes: these many bytes of the file are there already, and were compared
    END     the file's end: the SHA-256 of all of it
    BROKEN  the file cannot be given to its end: why
    HOLE    eight bytes: this many bytes of the file, at most ``CHUNK``, are a hole in it
"""

from __future__ import annotations

from dispatcher.remote.protocol.mux import OWN, Decoder, Malformed, frame
from dispatcher.remote.protocol.packing import MOST_VALUES, PackError, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")

VALUE, DATA, START, END, BROKEN, HOLE = range(OWN, OWN + 6)

#: bytes of a file in one frame, and most bytes of the body of any frame but a value's
CHUNK = 256 << 10
LARGEST = 1 << 20

#: entries of one piece of a list, characters of their names, and bytes of a piece on the wire
_ENTRIES, _TEXT, LARGEST_PIECE = 400, 8 << 10, 128 << 10
#: files that are gone on with in one copy: each run that was cut off leaves one
MOST_PARTS = 16
#: values in one message of a host: a few of its own, or one for each host below it in a tree
MOST_SAID = 16 << 10

#: kinds of entries; not copied: OTHER, a device or the like; UNREAD, which cannot be (more: why)
FILE, FOLDER, LINK, OTHER, UNREAD = "f", "d", "l", "o", "u"


def message(value: Any) -> bytes:
    """The frame of a value."""
    return frame(0, VALUE, pack(value))


def frames(largest: int) -> Decoder:
    """A decoder of frames from bytes in any pieces; a value has ``largest`` bytes at most."""
    return Decoder(LARGEST, {VALUE: largest})


def value_of(kind: int, body: bytes, most: int = MOST_VALUES) -> dict[str, Any]:
    """The dictionary in a frame, of at most ``most`` values. Raises: Malformed."""
    if kind != VALUE:
        raise Malformed(f"a frame of kind {kind} instead of a value")
    try:
        value = unpack(body, most)
    except PackError as error:
        raise Malformed(str(error)) from None
    if not isinstance(value, dict):
        raise Malformed("no dictionary")
    return value


def bytes_of(kind: int, body: bytes) -> int:
    """How many bytes of a file a frame of DATA or a HOLE is; 0 for a hole that cannot be."""
    if kind == DATA:
        return len(body)
    size = int.from_bytes(body[:8], "big")
    return size if len(body) == 8 and size <= CHUNK else 0


def whole(size: int, known: bytes) -> bytes:
    """The frames for a file of which all ``size`` bytes are there; known: their SHA-256."""
    start = frame(0, START, size.to_bytes(8, "big")) if size else b""
    return start + frame(0, END, known)


class Entry:
    """A file, folder or link of a list.

    path: parts joined by ``/``. mtime: nanoseconds. more: a link's target, or the SHA-256
    of a file where contents are compared, else empty.
    """

    __slots__ = ("kind", "mode", "more", "mtime", "path", "size")

    def __init__(self, path: str, kind: str, mode: int, size: int, mtime: int, more: str = ""):
        self.path = path
        self.kind = kind
        self.mode = mode
        self.size = size
        self.mtime = mtime
        self.more = more


def entry_columns(entries: Iterable[Entry]) -> dict[str, Any]:
    """``entries`` as a value; by columns, which split and convert at the speed of C."""
    entries = list(entries)
    return {
        "paths": _joined(entry.path for entry in entries),
        "kinds": "".join(entry.kind for entry in entries),
        "modes": numbers(entry.mode for entry in entries),
        "sizes": numbers(entry.size for entry in entries),
        "mtimes": numbers(entry.mtime for entry in entries),
        "more": _joined(entry.more for entry in entries),
    }


def pieces(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """A list in values of at most ``LARGEST_PIECE`` bytes; each but the last is marked ``more``."""
    held: list[Entry] = []
    text = 0
    for entry in entries:
        if len(held) == _ENTRIES or text >= _TEXT:
            yield {"list": entry_columns(held), "more": True}
            held, text = [], 0
        held.append(entry)
        text += len(entry.path) + len(entry.more)
    yield {"list": entry_columns(held), "more": False}


def rows(value: dict[str, Any]) -> list[Entry]:
    """The entries in what ``entry_columns`` made. Raises: Malformed."""
    try:
        paths = _split(value["paths"])
        counts = [numbers_of(value[name]) for name in ("modes", "sizes", "mtimes")]
        table = (paths, list(value["kinds"]), *counts, _split(value["more"]))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Malformed("a broken list") from None
    if any(len(column) != len(paths) for column in table):
        raise Malformed("a list of uneven columns")
    return [Entry(*row) for row in zip(*table)]


def numbers(values: Iterable[int]) -> str:
    """Whole numbers as one text."""
    return " ".join(map(str, values))


def numbers_of(text: str, most: int = -1) -> list[int]:
    """The numbers in a text of ``numbers``; splits at most ``most``. Raises: ValueError."""
    return list(map(int, text.split(None, most)))


def needed_of(answer: dict[str, Any]) -> list[int]:
    """The entries that an answer wants: it has a byte for each. Raises: Malformed."""
    need = answer.get("need")
    if not isinstance(need, bytes):
        raise Malformed("a broken answer")
    return [index for index, wanted in enumerate(need) if wanted]


def starts_of(answer: dict[str, Any]) -> dict[int, tuple[int, str]]:
    """index -> bytes that are there already, and their SHA-256. Raises: Malformed.

    There are at most as many as entries, for each of which ``need`` has a byte.
    """
    try:
        most = len(answer["need"])
        pairs = numbers_of(answer["start"], 2 * most)
        seen = answer["seen"].split(None, most)
    except (KeyError, ValueError, AttributeError, TypeError):
        raise Malformed("a broken answer") from None
    if len(pairs) != 2 * len(seen):
        raise Malformed("an uneven answer")
    return {index: (size, known) for index, size, known in zip(pairs[::2], pairs[1::2], seen)}


def host_branches(hosts: Sequence[T], branches: int) -> list[list[T]]:
    """``hosts`` in at most ``branches`` runs of about one length; the first of each is its head."""
    count = min(branches, len(hosts))
    cuts = [len(hosts) * i // count for i in range(count + 1)] if count else []
    return [list(hosts[a:b]) for a, b in zip(cuts, cuts[1:])]


def _joined(texts: Iterable[str]) -> str:
    return "".join(text + "\0" for text in texts)


def _split(text: str) -> list[str]:
    return text.split("\0")[:-1]


def sha256() -> Any:
    """A new SHA-256; ``hashlib`` itself takes longer to load than all of this program."""
    try:
        from _hashlib import openssl_sha256
    except ImportError:
        from hashlib import sha256 as openssl_sha256
    return openssl_sha256()
