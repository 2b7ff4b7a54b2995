"""``--watch`` on a real pty that rules its processes, seen through a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rig import wait_for

from ..conftest import Desk
from ..seat import SIGN, Seat, status_of

#: says a line a rank, then waits
PROGRAM = ("--no-python", "sh", "-c", "echo hello from $RANK; exec sleep 1000")
HOSTS = ("-H", "localhost:2")


class Chair(Seat):
    """A seat with a keyboard: the terminal controls what is started."""

    def take(self, *argv: str | bytes) -> subprocess.Popen[bytes]:
        def own() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv, cwd=self._desk.folder, env=self._environ, stdin=self._slave,
            stdout=self._slave, stderr=self._slave, preexec_fn=own,
        )  # fmt: skip
        self._desk._started.append(self.process)
        return self.process

    def press(self, data: bytes) -> None:
        os.write(self._master, data)

    def resize(self, columns: int, rows: int) -> None:
        self.emulator.resize(columns, rows)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def is_as_before(self) -> bool:
        other, hidden = self.emulator.on_other_screen, self.emulator.screen.cursor.hidden
        return termios.tcgetattr(self._slave) == self._before and not other and not hidden


@pytest.fixture
def chair(desk: Desk) -> Iterator[Chair]:
    chair = Chair(desk)
    yield chair
    chair.close()


def has_table(lines: list[str]) -> bool:
    return sum("hello from" in line and "localhost" in line for line in lines) == 2


def test_the_table_and_back_to_lines(chair: Chair) -> None:
    process = chair.start(*HOSTS, "--watch", "--sample", "0.3", *PROGRAM)
    lines = chair.until(has_table)
    assert chair.emulator.on_other_screen
    assert "2 ranks: 2 running" in lines[0]
    chair.until(lambda lines: all("sleeps" in line and "0%" in line for line in lines[2:4]))
    chair.press(b"s")
    chair.until(lambda lines: "by silence" in lines[-1])
    chair.press(b"/9\r")
    chair.until(lambda lines: "no ranks with '9'" in lines[-1])
    chair.press(b"q")
    lines = chair.until(lambda lines: any("bytes of 2 ranks not shown" in x for x in lines))
    assert chair.is_as_before
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, lines = chair.end()
    assert code == 128 + signal.SIGTERM
    assert not any("LAST LINE" in line for line in lines)


@pytest.mark.parametrize("key", [b"\x03", b"\x1c"])
def test_ctrl_c_ends_the_run_as_ever(chair: Chair, key: bytes) -> None:
    chair.start(*HOSTS, "--watch", *PROGRAM)
    chair.until(has_table)
    chair.press(key)
    code, lines = chair.end()
    assert code == 128 + (signal.SIGINT if key == b"\x03" else signal.SIGQUIT)
    assert chair.is_as_before
    assert any("exit code" in line for line in lines)
    assert not any("LAST LINE" in line for line in lines)


def test_a_run_that_ends_shows_its_verdict_where_the_lines_were(chair: Chair, desk: Desk) -> None:
    text = "echo hello from $RANK; until [ -e seen ]; do sleep 0.1; done; exit $((RANK * 3))"
    chair.start(*HOSTS, "--watch", "--no-python", "sh", "-c", text)
    chair.until(has_table)
    (desk.folder / "seen").touch()
    code, lines = chair.end()
    assert code == 3
    assert chair.is_as_before
    assert any(line.startswith("error: rank 1 on localhost") for line in lines)


def test_ctrl_z_gives_the_terminal_to_the_shell(chair: Chair) -> None:
    process = chair.start(*HOSTS, "--watch", *PROGRAM)
    chair.until(has_table)
    chair.press(b"\x1a")

    def stopped() -> bool:
        chair.watch()
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_for(stopped, 60, lambda: "it has not stopped")
    chair.watch(0.2)
    assert chair.is_as_before
    process.send_signal(signal.SIGCONT)
    chair.until(lambda lines: chair.emulator.on_other_screen and has_table(lines))
    chair.press(b"\x03")
    code, _ = chair.end()
    assert code == 128 + signal.SIGINT
    assert chair.is_as_before


def test_it_follows_the_window(chair: Chair) -> None:
    chair.start(*HOSTS, "--watch", *PROGRAM)
    chair.until(has_table)
    chair.resize(60, 8)
    chair.until(lambda lines: len(lines) == 8 and "1-2 of 2" in lines[7])
    chair.resize(120, 30)
    chair.until(lambda lines: len(lines) == 30 and "1-2 of 2" in lines[29] and has_table(lines))
    chair.press(b"\x03")
    chair.end()


def test_a_paused_terminal_holds_nobody(chair: Chair, desk: Desk) -> None:
    text = "echo hello from $RANK; while [ ! -e go ]; do sleep 0.1; done; touch done$RANK"
    chair.start(*HOSTS, "--watch", "--no-python", "sh", "-c", text)
    chair.until(has_table)
    chair.press(b"\x13")  # Ctrl-S
    (desk.folder / "go").touch()
    wait_for(
        lambda: all((desk.folder / f"done{rank}").exists() for rank in range(2)), 60,
        lambda: "ranks did not go on",
    )  # fmt: skip
    code, _ = chair.end()  # it is given back all the same
    assert code == 0
    assert chair.is_as_before


def test_enter_leaves_nothing_of_a_footer(chair: Chair) -> None:
    def shows(wanted: int, lines: list[str]) -> bool:
        return len(lines) >= wanted and status_of(lines) != ""

    text = "[ $RANK = 0 ] || exec sleep 1000; while :; do echo line; sleep 0.3; done"
    chair.start(*HOSTS, "--no-python", "sh", "-c", text)
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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "standard output and standard error are not one terminal"),
        (("--detach",), "--watch needs a screen, and --detach has none"),
    ],
)
def test_where_there_is_no_screen(desk: Desk, words: tuple[str, ...], why: str) -> None:
    done = desk.run(*HOSTS, "--watch", *words, *PROGRAM)
    assert done.returncode == 2
    assert why in done.stderr
