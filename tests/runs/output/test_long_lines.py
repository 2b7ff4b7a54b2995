"""A line is a line: of any length, from many ranks at once, to whatever does not look like a
terminal; and a line that is redrawn is seen there before its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from rig import Cluster, Peak, wait_for

from dispatcher.cli.run.run_sinks import PAUSED

from ..conftest import PROGRAM, Desk, script

SHORT = 200_000
#: two of which are more than the launcher may take of memory; and what is long enough to be spilled
LONG, LONG_ENOUGH = 50_000_000, 5_000_000
#: lines of ``SHORT`` bytes that each rank writes, and what the launcher may take of memory
EACH, MOST_MIB = 20, 128
MARK = " \N{LEFTWARDS ARROW WITH HOOK}"

#: writes lines of JSON, one of them long, and after each a word on standard error
WRITES = f"""
import hashlib, json, os, random, sys
LONG = int(sys.argv[1])
who = os.environ.get("RANK") or os.environ["DISPATCH_HOST"]
long = who in ("0", "1", "n1", "n2")
dice = random.Random(who)
for number in range({EACH} + long):
    size = LONG if number == {EACH} // 2 and long else {SHORT}
    text = dice.randbytes(500).hex() * (size // 1000)
    md5 = hashlib.md5(text.encode()).hexdigest()
    line = json.dumps({{"who": who, "number": number, "text": text, "md5": md5}}).encode()
    at = 0
    while at < len(line):
        at += os.write(1, line[at : at + dice.choice((4095, 65536, 1 << 20))])
    os.write(1, b"\\n")
    os.write(2, f"{{who}} has written {{number}}\\n".encode())
"""


def parsed(lines: Iterable[bytes]) -> Counter[str]:
    """Who has written how many good lines; what is not JSON are words of standard error."""
    found: Counter[str] = Counter()
    for line in lines:
        if line.startswith(b"{"):
            one = json.loads(line)
            assert hashlib.md5(one["text"].encode()).hexdigest() == one["md5"]
            assert one["number"] == found[one["who"]]
            found[one["who"]] += 1
        else:
            who, text = line.decode().split(" ", 1)
            assert text.startswith("has written ")
            found[f"{who} err"] += 1
    return found


def expected(names: Iterable[str]) -> Counter[str]:
    counts = {who: EACH + (who in ("0", "1", "n1", "n2")) for who in names}
    return Counter(counts | {f"{who} err": count for who, count in counts.items()})


def labelled(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        label, text = line.split(b" ", 1)
        assert label.rstrip(b"!").strip(b"[]:").isalnum()
        yield text


@pytest.mark.parametrize(
    ("how", "place", "long"),
    [("run", "pipe", LONG), ("run bare", "file", LONG_ENOUGH), ("fold", "pipe", LONG_ENOUGH),
     ("merged", "file", LONG), ("exec", "file", LONG), ("exec bare", "pipe", LONG_ENOUGH)],
)  # fmt: skip
@pytest.mark.timeout(400)
def test_every_line_is_whole(
    cluster: Cluster, tmp_path: Path, how: str, place: str, long: int
) -> None:
    program, hosts = Path(cluster.shared, "writes.py"), cluster.hostfile(slots=1)
    program.write_text(WRITES)
    words = {
        "run": ["-H", hosts, str(program)],
        "run bare": ["--label", "none", "-H", hosts, str(program)],
        "fold": ["--fold", "-H", hosts, str(program)],
        "merged": ["--log-dir", str(tmp_path / "logs"), "--log-merge", "--only-ranks", "none",
                   "-H", hosts, str(program)],
        "exec": ["exec", "-H", hosts, "--", sys.executable, str(program)],
        "exec bare": ["exec", "-N", "-H", hosts, "--", sys.executable, str(program)],
    }[how]  # fmt: skip
    with open(tmp_path / "out", "wb") as out:
        pipe = subprocess.PIPE if place == "pipe" else out
        argv = [*PROGRAM, *words, str(long)]
        with cluster.popen(argv, stdout=pipe, stderr=subprocess.STDOUT) as process:
            peak = Peak(process)
            while process.stdout is not None and (data := process.stdout.read(1 << 20)):
                out.write(data)
    assert process.returncode == 0
    place_of = tmp_path / ("logs/latest/merged.log" if how == "merged" else "out")
    with open(place_of, "rb") as file:
        found: Iterable[bytes] = file
        if how == "merged":
            heads = (line.split(b" ", 4) for line in file)
            found = (text for _, _, _, tag, text in heads if tag == b"F")
        elif not how.endswith("bare"):
            found = labelled(file)
        names = [f"n{n}" for n in range(1, 5)] if "exec" in how else map(str, range(4))
        assert parsed(found) == expected(names)
    assert 0 < peak.mib() < MOST_MIB


#: a line without an end, and then what is put here
BEGINS = """
import os, signal, sys, time
def put(text):
    at = 0
    while at < len(text):
        at += os.write(1, text[at:])
put(b"x" * 1_000_000)
open("up", "w").close()
"""


@pytest.mark.parametrize("end", ["dies", "ctrl-c"])
def test_a_line_whose_writer_ends_is_whole_as_far_as_it_came(desk: Desk, end: str) -> None:
    how = "os.kill(os.getpid(), 9)" if end == "dies" else "time.sleep(60)"
    process = desk.start("-H", "localhost", script(desk.folder, BEGINS + how))
    if end == "ctrl-c":
        wait_for((desk.folder / "up").exists, 60, lambda: "the rank runs")
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if end == "ctrl-c" else 137)
    assert out == "[0] " + "x" * 1_000_000 + "\n"


def spilled(pid: int) -> list[os.stat_result]:
    """What the process has open of files without a name."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            status = fd.stat()
            if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_size > 500_000:
                found.append(status)
    return found


def test_a_long_line_waits_where_nobody_finds_it_and_leaves_nothing(desk: Desk) -> None:
    place = desk.folder / "tmp"
    place.mkdir()
    process = desk.start(
        "-H", "localhost", script(desk.folder, BEGINS + "time.sleep(1000)"),
        env={**os.environ, "TMPDIR": str(place)},
    )  # fmt: skip
    (status,) = wait_for(lambda: spilled(process.pid), 60, lambda: "the line waits")
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_dev == place.stat().st_dev
    process.kill()
    process.wait(timeout=60)
    desk.wait_until_clean()
    assert not any(path.is_file() for path in place.iterdir())  # the agent has its folder there


def test_a_full_disk_costs_no_byte_and_is_told(desk: Desk) -> None:
    def limit() -> None:  # of the size of any file, where pipes are none
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    text = BEGINS + "put(b'\\n' + b'y' * 200_000 + b'\\n')"
    done = desk.run("-H", "localhost", script(desk.folder, text), preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    *pieces, last = done.stdout.splitlines()
    assert len(pieces) > 2
    assert "".join(n.removeprefix("[0] ").removesuffix(MARK) for n in pieces) == "x" * 1_000_000
    assert last == "[0] " + "y" * 200_000
    assert re.search(
        r"^note: 1 line of more than 64 KiB came in pieces, as marked: no room in .*: file too",
        done.stderr, re.M,
    )  # fmt: skip


def test_a_slow_reader_of_a_long_line_has_not_paused(desk: Desk) -> None:
    text = (
        BEGINS + "put(b'x' * 9_000_000 + b'\\n')\nfor n in range(80): put(b'y' * 99_999 + b'\\n')"
    )
    process = desk.start("--log-dir", "logs", "-H", "localhost", script(desk.folder, text))
    assert process.stdout is not None
    sizes: Counter[int] = Counter()
    rest, longest, last = "", 0.0, 0.0
    while data := process.stdout.read(1_000_000):
        before, last = last or time.monotonic(), time.monotonic()
        longest = max(longest, last - before)
        *lines, rest = (rest + data).split("\n")
        sizes.update(map(len, lines))
        if not sizes:
            time.sleep(0.4)  # as slow as a line of 2.5 MB/s; the long line takes more than PAUSED
    assert process.wait(timeout=60) == 0
    # where this machine let one of the two not run for so long, it has
    assert sizes == {10_000_004: 1, 100_003: 80} or longest > PAUSED - 0.4


BAR = """
import os, sys, time
for percent in range(101):
    while percent == 50 and not os.path.exists("seen"):
        time.sleep(0.02)
    sys.stderr.write(f"\\r{percent:3d}% of it")
    sys.stderr.flush()
    if percent % 10 == 0:
        print("step", percent, flush=True)
    time.sleep(0.02)
print(file=sys.stderr)
"""


@pytest.mark.parametrize("how", [("--partial-after", "0.4"), (), ("--partial-after", "0")])
def test_a_bar_in_a_log(desk: Desk, how: tuple[str, ...]) -> None:
    began, place = time.monotonic(), desk.folder / "log"
    shown = how == ("--partial-after", "0.4")
    halfway = {f"[{rank}]!  49% of it{MARK}" for rank in (0, 1)}
    with open(place, "wb") as log:
        process = desk.start(
            "--log-dir", "logs", *how, "-H", "localhost:2", script(desk.folder, BAR),
            stdout=log, stderr=log,
        )  # fmt: skip
        if shown:
            wait_for(lambda: halfway <= set(place.read_text().splitlines()), 60, "the bars")
        (desk.folder / "seen").touch()
        assert process.wait(timeout=60) == 0
    seconds = time.monotonic() - began  # two on a quiet machine, not the 30 after which one shows
    lines = place.read_text().splitlines()
    for rank in (0, 1):
        steps = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert steps == [f"[{rank}] step {percent}" for percent in range(0, 101, 10)]
        *states, end = [line for line in lines if line.startswith(f"[{rank}]! ")]
        assert end == f"[{rank}]! 100% of it"
        assert all(re.fullmatch(rf"\[{rank}\]!  *\d+% of it{MARK}", state) for state in states)
        assert bool(states) == shown
        assert len(states) <= seconds / 0.4
        kept = (desk.folder / f"logs/latest/rank-0000{rank}.err").read_bytes().decode()
        assert kept == "".join(f"\r{percent:3d}% of it" for percent in range(101)) + "\n"


def test_a_prompt_in_a_log_is_seen_and_its_line_is_whole(desk: Desk) -> None:
    text = """
import os, time
print("sure? ", end="", flush=True)
while not os.path.exists("seen"): time.sleep(0.02)
print("yes")
"""
    process = desk.start("--partial-after", "0.3", "-H", "localhost", script(desk.folder, text))
    assert desk.lines(process, 1) == [f"[0] sure? {MARK}\n"]
    (desk.folder / "seen").touch()
    assert process.communicate(timeout=60)[0] == "[0] sure? yes\n"
