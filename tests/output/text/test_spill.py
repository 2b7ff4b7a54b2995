"""Where long lines wait: a private file without a name, bounded, whose room is used again."""

from __future__ import annotations

import os
import random
import stat
import tempfile
from pathlib import Path

import pytest

from dispatcher.output.text.lines import BLOCK, LongLine, Spill


@pytest.fixture
def spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spill:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Spill()


def fd_of(spill: Spill) -> int:
    assert spill._fd is not None
    return spill._fd


def test_lines_grow_side_by_side(spill: Spill) -> None:
    dice, lines = random.Random(1), [LongLine(spill) for _ in range(5)]
    wrote, rests = [b""] * 5, [b""] * 5
    for _ in range(100):
        at, data = dice.randrange(5), dice.randbytes(dice.randrange(3 * BLOCK))
        wrote[at] += data
        rest = lines[at].take(rests[at] + data)
        assert rest is not None
        rests[at] = rest
        assert len(rest) < BLOCK
        if dice.random() < 0.2:
            assert b"".join(lines[at].pieces()) + rest == wrote[at]
            lines[at].drop()
            wrote[at] = rests[at] = b""
    for line, rest, all_of_it in zip(lines, rests, wrote, strict=True):
        assert b"".join(line.pieces()) + rest == all_of_it
        line.drop()
    assert os.fstat(fd_of(spill)).st_size == 0
    assert spill.words() == []


def test_nobody_else_finds_it(spill: Spill, tmp_path: Path) -> None:
    LongLine(spill).take(bytes(BLOCK))
    status = os.fstat(fd_of(spill))
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 0)
    assert not os.get_inheritable(fd_of(spill))
    assert list(tmp_path.iterdir()) == []
    spill.close()


def test_room_is_used_again(spill: Spill) -> None:
    other = LongLine(spill)
    other.take(bytes(BLOCK))
    for _ in range(10):
        line = LongLine(spill)
        line.take(bytes(4 * BLOCK))
        line.drop()
    assert os.fstat(fd_of(spill)).st_size == 5 * BLOCK


def test_no_more_than_half_of_what_is_free(spill: Spill, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs

    def nearly_full(fd: int) -> os.statvfs_result:
        return os.statvfs_result([BLOCK, BLOCK, 8, 8, 4, *real(fd)[5:]])

    monkeypatch.setattr(os, "fstatvfs", nearly_full)
    line = LongLine(spill)
    assert line.take(bytes(2 * BLOCK)) == b""
    assert line.take(bytes(BLOCK)) is None
    assert len(line) == 2 * BLOCK
    spill.broken = 2
    assert spill.words() == [
        f"2 lines of more than 64 KiB came in pieces, as marked: no room in {tempfile.tempdir}: "
        "it may take 128 KiB at most"
    ]


def test_what_cannot_be_read_back_is_counted(spill: Spill) -> None:
    line = LongLine(spill)
    line.take(bytes(2 * BLOCK))
    os.ftruncate(fd_of(spill), BLOCK)
    assert list(line.pieces()) == [bytes(BLOCK), b"[dispatch: 65,536 bytes lost here]"]
    assert spill.words() == ["65,536 bytes of long lines were lost, as marked"]
