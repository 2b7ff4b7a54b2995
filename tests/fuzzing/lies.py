"""What a liar says: frames of an agent with lies among them, and what a fan-out command writes.

A script is a seed. The bytes that it makes decide what becomes of each frame that the liar would
have sent (``Lies``), or of what its command says (``LyingCommand``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from runner.played import Command
from runner.test_reports import GOOD

from dispatcher.model.failure import Ending
from dispatcher.remote.protocol.frames import (
    CONTROL,
    COUNT,
    ENDED,
    HEADER,
    INPUT,
    OUTPUT,
    SYNC,
    TAKEN,
    encode,
)
from dispatcher.remote.protocol.packing import pack, unpack
from dispatcher.transport.base import RecvBuffer

from .choices import Choices


def script(seed: int) -> Choices:
    """What the liar of this seed decides by."""
    return Choices(random.Random(seed).randbytes(600))


class Lies(RecvBuffer):
    """What an agent says, on its way to the launcher. others: ranks that run elsewhere."""

    def __init__(self, take: Choices, own: Sequence[int], others: Sequence[int]) -> None:
        super().__init__()
        self._take = take
        self._own = own
        self._others = others
        self._often = take.one((256, 100, 40, 16))  # of 256 frames so many may be lies
        self._held: list[bytes] = []
        self.closed_early = False
        self.told: list[str] = []  # what was made of the frames, for people

    def feed(self, data: bytes) -> None:
        if self.closed_early:
            return
        take = self._take
        how = take.below(48) if take.left and take.chance(self._often) else 0
        if how < 24:
            self._say(data)
        elif how < 44:
            LIES[how - 24](self, data)
        else:
            for _ in range(1 + take.below(4)):
                self._say(self._invented())
            self._say(data)
        if how >= 24:
            self.told.append(f"{how}")

    def _say(self, *frames: bytes) -> None:
        for frame in (*frames, *self._held):
            super().feed(frame)
        self._held = []

    def _hang_up(self) -> None:
        self.closed_early = True
        self.close()

    # -- lies about one frame ---------------------------------------------------------------

    def drop(self, data: bytes) -> None: ...

    def repeat(self, data: bytes) -> None:
        self._say(*[data] * self._take.one((2, 3, 50)))

    def hold(self, data: bytes) -> None:
        self._held.append(data)

    def change(self, data: bytes) -> None:
        """The same report with a part changed."""
        value = self._report(data)
        if value is None:
            self._say(self._output_lie())
            return
        self._say(encode(CONTROL, pack(self._take.changed(value))))

    def change_rank(self, data: bytes) -> None:
        """The same about ranks of others."""
        kind, stream, *_ = HEADER.unpack_from(data) if len(data) > 11 else (0, 0)
        value = self._report(data)
        other = self._take.one((*self._others, 99, 1 << 31, 1 << 33))
        if value is None and kind in (OUTPUT, ENDED):
            self._say(encode(kind, data[HEADER.size :], other & 0xFFFFFFFF, stream))
        elif value is not None and "rank" in value:
            self._say(encode(CONTROL, pack({**value, "rank": other})))
        elif value is not None and "pids" in value:
            self._say(encode(CONTROL, pack({**value, "pids": [[other, 5]]})))
        else:
            self._say(data)

    def replace(self, data: bytes) -> None:
        self._say(self._invented())

    def half(self, data: bytes) -> None:
        self._say(data[: self._take.below(max(1, len(data)))])
        self._hang_up()

    def garbage(self, data: bytes) -> None:
        self._say(self._take.blob() + data)

    def huge(self, data: bytes) -> None:
        size = self._take.one((1 << 20, 16 << 20, (16 << 20) + 1, (1 << 32) - 1))
        self._say(HEADER.pack(self._take.one((CONTROL, OUTPUT, 9)), 0, 0, 0, size), bytes(1 << 16))

    def flood(self, data: bytes) -> None:
        frame = self._take.one((self._invented, lambda: data, self._output_lie))()
        self._say(*[frame] * 400)

    def hang_up(self, data: bytes) -> None:
        self._say(data)
        self._hang_up()

    def say_nothing_more(self, data: bytes) -> None:
        self.closed_early = True

    def notice(self, data: bytes) -> None:
        text = self._take.text() * self._take.one((1, 1, 2000))
        kind, name = self._take.one((("node.noticed", "text"), ("node.dying", "why")))
        self._say(encode(CONTROL, pack({"type": kind, name: text})), data)

    def other_output(self, data: bytes) -> None:
        self._say(self._output_lie(), data)

    # -- what lies are made of ------------------------------------------------------------

    def _report(self, data: bytes) -> dict[str, Any] | None:
        if len(data) <= HEADER.size or data[0] != CONTROL:
            return None
        try:
            value = unpack(data[HEADER.size :])
        except ValueError:
            return None
        return value if isinstance(value, dict) and "type" in value else None

    def _rank(self) -> int:
        take = self._take
        return take.one(self._others) if take.chance(60) else take.one(self._own)

    def _invented(self) -> bytes:
        """A report that nobody asked for, right in its form or nearly so."""
        take = self._take
        kind = take.one(sorted(GOOD))
        value = self._with_ranks({"type": kind, **GOOD[kind]})
        if kind == "pmi.committed":
            value |= {"world": take.below(2), "epoch": take.below(2)}
        return encode(CONTROL, pack(take.changed(value) if take.chance(100) else value))

    def _with_ranks(self, value: Any) -> Any:
        """The ranks of the example (4 and 5) made ranks of this run."""
        if isinstance(value, dict):
            return {
                name: self._rank() if name == "rank" else self._with_ranks(item)
                for name, item in value.items()
            }
        if isinstance(value, list):
            if value and value[0] in (4, 5) and not isinstance(value[0], bool):
                return [self._rank(), *map(self._with_ranks, value[1:])]
            return [self._with_ranks(item) for item in value]
        return value

    def _output_lie(self) -> bytes:
        take = self._take
        kind = take.one((OUTPUT, ENDED, TAKEN, INPUT))
        count = take.one((0, 1, 5, 1 << 20, (1 << 64) - 1))
        body = {
            OUTPUT: take.blob() or b"x", ENDED: COUNT.pack(count),
            TAKEN: COUNT.pack(count), INPUT: b"x",
        }[kind]  # fmt: skip
        stream = 0 if kind in (TAKEN, INPUT) else take.one((1, 2))
        return encode(kind, body, 0 if kind in (TAKEN, INPUT) else self._rank(), stream)


LIES: tuple[Callable[[Lies, bytes], None], ...] = (
    Lies.drop, Lies.repeat, Lies.hold, Lies.change, Lies.change, Lies.change, Lies.change_rank,
    Lies.change_rank, Lies.replace, Lies.half, Lies.garbage, Lies.huge, Lies.flood, Lies.hang_up,
    Lies.say_nothing_more, Lies.notice, Lies.notice, Lies.other_output, Lies.other_output,
    Lies.change,
)  # fmt: skip


class LyingCommand(Command):
    """A host's command that says what its script decides, and ends how and when that does."""

    def __init__(self, take: Choices) -> None:
        super().__init__(lambda data: None)
        self._take = take

    def write(self, data: bytes) -> None:
        if self._opened:
            if self._take.chance(128):
                self._end(Ending(None, "TERM"))
            return
        self._opened = True
        take = self._take
        for _ in range(take.below(6)):
            how = take.below(6)
            if how == 0:
                self._out.feed(SYNC)
            elif how == 1:
                self._out.feed(SYNC[: take.below(len(SYNC))])
            elif how == 2:
                self._out.feed(take.blob() * take.one((1, 1, 3000)))
            elif how == 3:
                self._errors += take.blob() * take.one((1, 1, 3000))
            else:
                self._out.feed(take.text().encode("utf-8", "surrogateescape") + b"\n")
        if take.chance(200):
            code = take.one((0, 1, 127, 255, 256, -1, None))
            self._end(Ending(code, take.one((None, take.text()))))
