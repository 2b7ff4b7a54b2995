"""What a target is, and what counts as a finding.

A target reads bytes and may raise its own errors. A finding is any other exception, time that
grows faster than the input, memory beyond a bound, and a change on the disk outside its folder.
"""

from __future__ import annotations

import hashlib
import re
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from . import confined

#: CPU seconds that up to ``SHORT`` bytes may take
MOST_SECONDS, SHORT = 0.5, 4096
#: bytes of long inputs whose times are compared, and how many times longer the next may take: it
#: is 4 times as long, so 4 is linear and 16 is quadratic
LENGTHS, MOST_GROWTH = (4 << 10, 16 << 10, 64 << 10), 9.0
#: seconds below which no growth is believed
LEAST_SECONDS = 0.1
#: what patterns are slow at, repeated
USUAL = (b"\n", b" ", b"\t\n", b"x", b"0", b"[", b"{", b"(", b"<", b'"', b"\\", b"/", b"=", b": ",
         b",", b"*", b"-", b"\x1b[", b"\xff", b"a.", b"a b", b"1,")  # fmt: skip
#: of what seeds consist
_WORD = re.compile(rb"\w+|\s+|[^\w\s]")
#: bytes held at most at any time: what one host may cost, and so many for each byte of the input
FIXED, EACH = 16 << 20, 256


@dataclass(frozen=True)
class Target:
    """``run`` reads what ``make`` makes of an input, and raises one of ``own`` or nothing.

    seeds: inputs that are right, for the fuzzer to begin with. long: whether inputs that repeat
    themselves are tried too; not where each byte costs a file.
    """

    name: str
    about: str
    run: Callable[[bytes], object]
    own: tuple[type[Exception], ...] = ()
    seeds: tuple[bytes, ...] = ()
    long: bool = True
    make: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True)
class Finding:
    """``key``: the same for inputs that fail alike; ``text``: for people."""

    key: str
    text: str
    data: bytes


def judge(target: Target, data: bytes, *, memory: bool = False) -> Finding | None:
    """What is wrong with how ``target`` takes ``data``; memory is measured only if asked for."""
    body = target.make(data)
    found = _judged(target, body, memory=memory)
    return found and replace(found, data=data)


def _judged(target: Target, body: bytes, *, memory: bool) -> Finding | None:
    seconds, wrong = _timed(target, body)
    if wrong is not None:
        return wrong
    most = MOST_SECONDS * max(1.0, len(body) / SHORT)
    if seconds > most:
        seconds = min(seconds, *(_timed(target, body)[0] for _ in range(2)))
        if seconds > most:
            return Finding("slow", f"{seconds:.2f} s for {len(body)} bytes", body)
    return _held(target, body) if memory else None


def judge_growth(target: Target, data: bytes) -> Finding | None:
    """What is wrong with how ``target`` takes inputs that repeat a piece of ``data``."""
    for whole, piece in pieces(data):
        if (wrong := judge_repeated(target, whole, piece)) is not None:
            return wrong
    return None


def judge_seeds(target: Target) -> Iterator[Finding]:
    """What is wrong with how ``target`` takes its seeds where a byte or some words are repeated."""
    for seed in target.seeds if target.long else ():
        words = [match.span() for match in _WORD.finditer(seed)]
        spans = {(at, at + 1) for at in range(len(seed))}
        for first in range(len(words)):
            spans.update((words[first][0], end) for _, end in words[first : first + 10])
        for span in sorted(spans):
            if (wrong := judge_repeated(target, seed, span, memory=False)) is not None:
                yield wrong


def judge_repeated(
    target: Target, whole: bytes, piece: tuple[int, int], *, memory: bool = True
) -> Finding | None:
    """What is wrong with how ``target`` takes ``whole`` as one piece of it is repeated."""
    before = None
    for length in LENGTHS:
        longer = pumped(whole, piece, length)
        seconds, wrong = _timed(target, longer)
        if wrong is not None:
            return wrong
        if before is not None and _grows(before[0], seconds):
            first = min(_timed(target, before[1])[0] for _ in range(3))
            again = min(_timed(target, longer)[0] for _ in range(2))
            if _grows(first, again):
                text = f"{first:.3f} s for {len(before[1])} bytes, {again:.3f} s for {length}"
                return Finding("grows", text, longer)
        before = seconds, longer
    return _held(target, longer) if memory else None


def _grows(first: float, then: float) -> bool:
    return then > max(LEAST_SECONDS, MOST_GROWTH * first)


def pieces(data: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Texts, and where a piece of each begins and ends: one of ``data``, one of ``USUAL`` in it.

    Both are chosen by its digest, so they are always the same.
    """
    if not data:
        return
    digest = hashlib.sha256(data).digest()
    begin = int.from_bytes(digest[:2], "big") % len(data)
    size = 1 + int.from_bytes(digest[2:4], "big") % min(32, len(data) - begin)
    yield data, (begin, begin + size)
    usual = USUAL[digest[4] % len(USUAL)]
    yield data[:begin] + usual + data[begin:], (begin, begin + len(usual))


def pumped(data: bytes, piece: tuple[int, int], length: int) -> bytes:
    """``data`` with a piece of it repeated, so that all is about ``length`` bytes."""
    begin, end = piece
    times = max(1, (length - len(data)) // (end - begin))
    return data[:begin] + data[begin:end] * times + data[end:]


def _timed(target: Target, data: bytes) -> tuple[float, Finding | None]:
    begun = time.thread_time()
    confined.watch(True)
    try:
        target.run(data)
    except target.own:
        pass
    except (Exception, SystemExit) as error:
        return 0.0, Finding(_where(error), _told(error), data)
    finally:
        confined.watch(False)
    return time.thread_time() - begun, None


def _held(target: Target, data: bytes) -> Finding | None:
    tracemalloc.start()
    try:
        wrong = _timed(target, data)[1]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if wrong is None and most > FIXED + EACH * len(data):
        return Finding("memory", f"{most} bytes held for {len(data)} bytes", data)
    return wrong


def _where(error: BaseException) -> str:
    """The type of ``error`` and the innermost line of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/dispatcher/" in frame.filename] or frames
    path = ours[-1].filename.rpartition("/dispatcher/")[2]
    return f"{type(error).__name__} {path}:{ours[-1].lineno}"


def _told(error: BaseException) -> str:
    return f"{_where(error)}: {str(error)[:200]!r}"
