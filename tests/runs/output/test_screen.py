"""Readers that pause, leave or are slow: what the ranks notice of it, and what is lost."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import wait_for

from ..conftest import PROGRAM, Desk, script

MARK = " \N{LEFTWARDS ARROW WITH HOOK}\n".encode()
LINES, WIDTH = 100_000, 100
#: writes 10 MB and then a file, so that its end can be seen without reading
FLOOD = f"""
import hashlib
import os
rank = os.environ["RANK"]
for start in range(0, {LINES}, 1000):
    lines = b"".join(b"%0{WIDTH - 1}d\\n" % n for n in range(start, start + 1000))
    at = 0
    while at < len(lines):
        at += os.write(1, lines[at:])
open("done-" + rank, "w").close()
"""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """(master, slave) of a terminal that changes nothing of what is written."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    yield master, slave  # which the test closes: its number may be somebody else's by now
    os.close(master)


def all_of(fd: int) -> bytes:
    """What comes until nobody holds the other end."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(fd, 1 << 16)
        except OSError:  # EIO: a terminal whose slave is closed
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


def missing_of(text: bytes) -> int:
    """Bytes that the screen said it did not show."""
    counts = re.findall(rb"^\.\.\. ([\d,]+) bytes of [^\n]* not shown$", text, re.M)
    return sum(int(count.replace(b",", b"")) for count in counts)


def finished(desk: Desk, ranks: int) -> bool:
    return all((desk.folder / f"done-{rank}").exists() for rank in range(ranks))


def test_a_paused_terminal_does_not_hold_the_ranks_back(
    desk: Desk, terminal: tuple[int, int]
) -> None:
    master, slave = terminal
    process = desk.start(
        "-H", "localhost:2", script(desk.folder, FLOOD), stdout=slave, stderr=slave,
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(slave)
    wait_for(lambda: finished(desk, 2), 60, lambda: "the ranks end while nobody reads")
    text = all_of(master)
    assert process.wait(timeout=30) == 0
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", text)
    lines = re.findall(rb"^\[\d\] ([^\n]*\n)", plain, re.M)
    # a line that is cut by a gap is shown in two pieces, the first with a mark and an end
    shown = sum(len(line.removesuffix(MARK)) for line in lines)
    missing = missing_of(plain)
    assert missing > 0
    assert shown + missing == 2 * LINES * WIDTH
    assert f"note: {missing:,} bytes of output were not shown".encode() in plain


@pytest.mark.parametrize("words", [(), ("-b",)])
def test_a_paused_terminal_does_not_hold_commands_back(
    tmp_path: Path, terminal: tuple[int, int], words: tuple[str, ...]
) -> None:
    master, slave = terminal
    stream = 2 if words else 1  # gathered output waits for its end, the other is shown
    text = f"{sys.executable} flood.py >&{stream}; exit 3"
    (tmp_path / "flood.py").write_text(FLOOD.replace('"RANK"', '"DISPATCH_INDEX"'))
    process = subprocess.Popen(
        [*PROGRAM, "exec", "-v", *words, "-w", "localhost", "--shell", f"cd {tmp_path} && {text}"],
        stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    wait_for((tmp_path / "done-0").exists, 60, "the command ends while nobody reads")
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", all_of(master))
    assert process.wait(timeout=30) == 1
    lines = re.findall(rb"^localhost: (\d[^\n]*\n)", plain, re.M)
    shown, missing = sum(len(line.removesuffix(MARK)) for line in lines), missing_of(plain)
    assert missing > 0
    assert shown + missing == LINES * WIDTH
    said = [
        b"localhost: exit code 3",
        b"%s bytes of output were not shown" % f"{missing:,}".encode(),
    ]
    assert [text in plain for text in said] == [True, True]


def test_a_paused_pipe_does_not_either_when_files_keep_all(desk: Desk) -> None:
    process = desk.start("--log-dir", "logs", "-H", "localhost:2", script(desk.folder, FLOOD))
    wait_for(lambda: finished(desk, 2), 60, lambda: "the ranks end while nobody reads")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert " bytes of " in out
    for rank in range(2):
        kept = (desk.folder / f"logs/latest/rank-{rank:05d}.out").read_bytes()
        assert kept == b"".join(b"%0*d\n" % (WIDTH - 1, n) for n in range(LINES))


def test_a_program_behind_a_pipe_gets_every_byte(desk: Desk) -> None:
    process = desk.start("--label", "none", "-H", "localhost", script(desk.folder, FLOOD))
    assert process.stdout is not None
    out = process.stdout.read()
    assert process.wait(timeout=60) == 0
    assert out == "".join(f"{n:0{WIDTH - 1}d}\n" for n in range(LINES))


def test_a_reader_that_leaves_does_not_cost_the_files_anything(desk: Desk) -> None:
    line = desk.argv("--log-dir", "logs", "-H", "localhost:2", script(desk.folder, FLOOD))
    words = " ".join(str(word) for word in line)
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=desk.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 1
    for rank in range(2):
        assert (desk.folder / f"logs/latest/rank-{rank:05d}.out").stat().st_size == LINES * WIDTH


def test_one_merged_file_in_pieces(desk: Desk) -> None:
    program = "for i in 1 2 3 4 5 6 7 8 9; do echo $RANK line $i; done; printf end >&2"
    where = ("-H", "localhost:2", "--no-python", "sh", "-c", program)
    done = desk.run("--log-dir", "logs", "--log-merge", "--log-size", "4K", *where)
    assert done.returncode == 0, done.stderr
    lines = (desk.folder / "logs/latest/merged.log").read_text().splitlines()
    told = [line.split(" ", 1)[1] for line in lines]
    for rank in range(2):
        mine = [line for line in told if line.startswith(f"{rank} ")]
        assert [line for line in mine if " out " in line] == [
            f"{rank} out F {rank} line {i}" for i in range(1, 10)
        ]
        assert f"{rank} err P end" in mine
    assert not list((desk.folder / "logs/latest").glob("rank-*"))


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        (("--only-ranks", "0,2-3"), {"[0] out", "[2] out", "[3] out"}, {"[0] err", "[3] err"}),
        (("--rank0",), {"[0] out"}, {"[0] err"}),
        (("--only-ranks", "none"), set(), set()),
        (("--grep", "err"), set(), {"[0] err", "[1] err", "[3] err"}),
    ],
)
def test_what_is_shown_can_be_chosen(
    desk: Desk, words: tuple[str, ...], out: set[str], err: set[str]
) -> None:
    program = "echo out; [ $RANK = 2 ] || echo err >&2"
    done = desk.run(*words, "-H", "localhost:4", "--no-python", "sh", "-c", program)
    assert (set(done.stdout.splitlines()), set(done.stderr.splitlines())) == (out, err)


#: lines of each rank; --nightly takes as many as the promise is made for
EACH = 100_000 if "FLOOD_ALL" in os.environ else 20_000
#: lines with an md5 each, written in pieces of any size
CHECKED = f"""
import hashlib, os, random
rank = os.environ["RANK"]
dice = random.Random(rank)
data = bytearray()
for number in range({EACH}):
    text = b"%d %s" % (number, b"x" * dice.randrange(60))
    data += text + b" " + hashlib.md5(text).hexdigest().encode() + b"\\n"
at = 0
while at < len(data):
    at += os.write(1, data[at : at + dice.choice((1, 7, 100, 4095, 4096, 4097, 70000))])
"""


def test_no_line_is_broken_or_out_of_order(desk: Desk) -> None:
    done = desk.run("-H", "localhost:8", script(desk.folder, CHECKED), text=False)
    assert done.returncode == 0, done.stderr
    following = dict.fromkeys(range(8), 0)
    for line in done.stdout.splitlines():
        label, text = line.split(b"] ", 1)
        words, _, digest = text.rpartition(b" ")
        assert hashlib.md5(words).hexdigest().encode() == digest, line
        rank, number = int(label[1:]), int(words.split()[0])
        assert number == following[rank]
        following[rank] += 1
    assert set(following.values()) == {EACH}
