"""The live view of real runs on a real pty, seen through a terminal emulator."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from ..conftest import Desk
from ..seat import SIGN, Chair, Seat, status_of

BAR = 'for i in 1 2 3; do printf "\\r$i of 3"; sleep 0.4; done; echo; echo "end of $RANK"'
STEPS = BAR.replace("sleep 0.4", "until [ $i != 2 ] || [ -e seen ]; do sleep 0.1; done")


def test_a_run_with_bars(desk: Desk, seat: Seat) -> None:
    seat.start("-H", "localhost:2", "--no-python", "bash", "-c", STEPS)
    bars = {"[0] 2 of 3", "[1] 2 of 3"}
    lines = seat.until(lambda lines: bars <= {*lines} and status_of(lines) != "")
    assert "1 host: 1 running" in status_of(lines)
    assert "2 ranks: 2 running" in status_of(lines)
    (desk.folder / "seen").touch()
    code, lines = seat.end()
    assert code == 0
    *before, last = lines
    before = seat.kept(before, *(f"[{rank}] {n} of 3" for rank in (0, 1) for n in (1, 2)))
    assert sorted(before) == ["[0] 3 of 3", "[0] end of 0", "[1] 3 of 3", "[1] end of 1"]
    assert re.match("\N{CHECK MARK} 2 ranks on 1 host, 0:0\\d:\\d\\d", last)


def test_a_failure(desk: Desk, seat: Seat) -> None:
    text = "until [ -e seen ]; do sleep 0.1; done; exit $((RANK * 3))"
    seat.start("-H", "localhost:2", "--no-python", "sh", "-c", text)
    seat.until(lambda lines: "2 running" in status_of(lines))
    (desk.folder / "seen").touch()
    code, lines = seat.end()
    lines = seat.kept(lines)
    assert code == 3
    assert "exit code 3 · 2 ranks on 1 host" in lines[0]
    assert lines[1].startswith("error: rank 1 on localhost")
    assert not any(line.startswith(SIGN) for line in lines)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal(seat: Seat, signum: signal.Signals) -> None:
    process = seat.start("-H", "localhost:2", "--no-python", "sleep", "1000")
    seat.until(lambda lines: "2 running" in status_of(lines))
    process.send_signal(signum)
    code, lines = seat.end()
    assert code == 128 + signum
    said = "interrupted" if signum == signal.SIGINT else f"interrupted by {signum.name}"
    assert any(said in line for line in lines)
    assert status_of(lines) == ""


def test_killed_it_leaves_a_usable_terminal(seat: Seat) -> None:
    process = seat.start("-H", "localhost:2", "--no-python", "sleep", "1000")
    seat.until(lambda lines: "2 running" in status_of(lines))
    process.kill()
    code, lines = seat.end()
    assert code == -signal.SIGKILL
    assert status_of(lines) == lines[-1]  # the last picture stays; the cursor stands below it


@pytest.mark.parametrize("name", ["CI", "NO_COLOR", "TERM"])
def test_plain_lines_where_nothing_can_be_drawn(desk: Desk, name: str) -> None:
    seat = Seat(desk, **{name: "dumb"})
    seat.start("-H", "localhost:2", "--no-python", "bash", "-c", BAR)
    code, lines = seat.end()
    assert code == 0
    assert sorted(lines) == ["[0] 3 of 3", "[0] end of 0", "[1] 3 of 3", "[1] end of 1"]
    seat.close()


def test_a_silent_rank_is_named(seat: Seat, desk: Desk) -> None:
    text = "[ $RANK = 1 ] && exec sleep 1000; while :; do echo x; sleep 0.1; done"
    # rank 0 itself may be held up, but not for so long
    words = ("--stall-after", "8", "--log-dir", "logs", "-H", "localhost:2")
    process = seat.start(*words, "--no-python", "sh", "-c", text)
    lines = seat.until(lambda lines: any("no output for 8 s: rank 1" in line for line in lines))
    assert "note: rank 1: no output for 8 s" in "\n".join(lines)
    process.send_signal(signal.SIGTERM)
    seat.end()
    journal = Path(desk.folder / "logs/latest/dispatch.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in journal]
    (stalled,) = [event for event in events if event["name"] == "ranks.stalled"]
    assert stalled["context"] == {"ranks": [1], "seconds": 8.0}


def test_rich_is_loaded_only_where_something_is_drawn(desk: Desk) -> None:
    done = desk.run(
        "-H", "localhost", "--no-python", "sleep", "0.6", env={"PYTHONVERBOSE": "1"}, text=False
    )
    assert done.returncode == 0
    assert b"dispatcher.output.terminal.screen" in done.stderr
    assert b"import 'rich" not in done.stderr


def test_enter_leaves_nothing_of_a_footer(desk: Desk) -> None:
    def shows(wanted: int, lines: list[str]) -> bool:
        return len(lines) >= wanted and status_of(lines) != ""

    chair = Chair(desk)
    text = "[ $RANK = 0 ] || exec sleep 1000; while :; do echo line; sleep 0.3; done"
    chair.start("-H", "localhost:2", "--no-python", "sh", "-c", text)
    chair.until(lambda lines: "2 running" in status_of(lines))
    for _ in range(4):
        wanted = len(chair.emulator.lines()) + 3
        chair.press(b"text\r")
        lines = chair.until(partial(shows, wanted))
    # one may be echoed in the very moment in which the footer is drawn
    assert sum(line.startswith(SIGN) for line in chair.kept(lines)) <= 2
    shown = [line for line in lines if not line.startswith(SIGN)]
    assert shown.count("[0] line") >= len(shown) - 4
    chair.press(b"\x03")
    code, _ = chair.end()
    assert code == 128 + signal.SIGINT
    chair.close()
