"""Bounds of what hosts send, as annotations of fields: ``errno: Annotated[int, between(0, 4095)]``.

A bound takes what came, and the ranks that its host may name; it returns the field's value, or
raises ValueError. The types below are those that several fields have. ``runner.run.reports``
reads reports by them. What a fan-out command loads imports them for type checkers only.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from socket import AF_INET, AF_INET6, inet_pton
from typing import Annotated, Any

Bound = Callable[[Any, Container[int]], Any]

#: characters of a text, and of one for the user
TEXT_LIMIT, WORDS_LIMIT = 4096, 400
#: items of a list, unless its field has ``at_most``
LIST_LIMIT = 4096
#: bytes of one report; two bytes can become an object of a hundred, so this is far below a frame's
BODY_LIMIT = 1 << 20
#: bytes of a rank's error file, of a stack or dump, and of a value that is published by PMIx
ERROR_LIMIT, STACK_LIMIT, VALUE_LIMIT = 64 << 10, 256 << 10, 256 << 10
#: characters of a host's name: Linux has 64 bytes for it, DNS 253
MOST_NAME = 255
#: addresses of a host, all of which every other host may have to try; an agent sends 32
MOST_ADDRESSES = 64
#: a GPU's index at most, and a NUMA node's
MOST_GPU = MOST_NODE = 1 << 10


def between(low: int, high: int) -> Bound:
    """An integer from ``low`` to ``high``."""

    def take(found: Any, ranks: Container[int]) -> int:
        if type(found) is not int or not low <= found <= high:
            raise ValueError(f"not an integer from {low} to {high}")
        return found

    return take


def own_rank(found: Any, ranks: Container[int]) -> int:
    """A rank that was given to the host."""
    if type(found) is not int or found not in ranks:
        raise ValueError(f"report about rank {ascii(found)[:20]}, which runs elsewhere")
    return found


def duration(found: Any, ranks: Container[int]) -> float:
    """Seconds."""
    if type(found) is not float or not 0 <= found < 1e9:
        raise ValueError("not a duration")
    return found


def figure(found: Any, ranks: Container[int]) -> float:
    """A measured number."""
    if type(found) not in (int, float) or not 0 <= found < 1e15:
        raise ValueError("not a number")
    return float(found)


def text(most: int, *, fits: Callable[[str], object] = lambda found: True) -> Bound:
    """A text for which ``fits`` is true, cut to ``most`` characters."""

    def take(found: Any, ranks: Container[int]) -> str:
        if type(found) is not str or not fits(found):
            raise ValueError("not a text of its kind")
        return found[:most]

    return take


def words(most: int) -> Bound:
    """A text for the user; a long one is cut, with a note on the rest's size."""

    def take(found: Any, ranks: Container[int]) -> str:
        if type(found) is not str:
            raise ValueError("not a text")
        more = len(found) - most
        return f"{found[:most]} ... ({more:,} more characters)" if more > 0 else found

    return take


def one_of(*known: str) -> Bound:
    """One of the ``known`` words."""
    return text(TEXT_LIMIT, fits=lambda found: found in known)


def raw(most: int, *, without: bytes = b"") -> Bound:
    """At most ``most`` bytes, ``without`` a certain one."""

    def take(found: Any, ranks: Container[int]) -> bytes:
        if type(found) is not bytes or len(found) > most or (without and without in found):
            raise ValueError(f"not at most {most} bytes")
        return found

    return take


def made(make: Callable[[Any], Any], bound: Bound) -> Bound:
    """The result of ``make`` for what ``bound`` takes."""
    return lambda found, ranks: make(bound(found, ranks))


class at_most(int):
    """How many items a list has at most; their type has their bounds."""


def _is_numeric(address: str) -> bool:
    try:
        inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    except (OSError, ValueError):
        return False
    return True


OwnRank = Annotated[int, own_rank]
Pid = Annotated[int, between(1, 1 << 32)]
Count = Annotated[int, between(0, 1 << 32)]
Size = Annotated[int, between(0, 1 << 62)]
Nanoseconds = Annotated[int, between(0, 1 << 63)]
Sum = Annotated[int, between(0, (1 << 32) - 1)]  # CRC-32
Gpu = Annotated[int, between(0, MOST_GPU)]
Gpus = Annotated[tuple[Gpu, ...], at_most(MOST_GPU)]
Node = Annotated[int, between(-1, MOST_NODE)]  # of memory, -1 for none
Seconds = Annotated[float, duration]
Figure = Annotated[float, figure]
a_text, error_file = text(TEXT_LIMIT), raw(ERROR_LIMIT)
Text = Annotated[str, a_text]
Dump = Annotated[bytes, raw(STACK_LIMIT)]
Bytes = Annotated[bytes, raw(BODY_LIMIT)]
Word = Annotated[bytes, raw(BODY_LIMIT, without=b"\0")]  # of a command line
Address = Annotated[str, text(TEXT_LIMIT, fits=_is_numeric)]
HostName = Annotated[
    str, text(MOST_NAME, fits=lambda it: len(it) <= MOST_NAME and it.isprintable())
]
Letter = Annotated[str, text(1, fits=lambda it: len(it) == 1 and it.isalpha())]
State = Annotated[str, text(1, fits=lambda it: len(it) == 1 and (it.isalpha() or it == "-"))]
Words = Annotated[str, words(WORDS_LIMIT)]
