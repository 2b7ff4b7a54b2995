"""Signals that who started dispatch has it ignore: nohup(1), a script's ``&``, a shell's trap."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rig import wait_for

from ..conftest import Desk

#: says that it is up, waits for the file "go", at most a minute, and says that it is done
WAITS = (
    "echo up >>said; n=0; until [ -e go ] || [ $n = 600 ]; do sleep 0.1; n=$((n+1)); done; "
    "echo done >>said"
)
RUN = ("-H", "localhost:1", "--no-python", "sh", "-c", WAITS)
EXEC = ("exec", "-w", "localhost", "sh", "-c", f"cd %s && {{ {WAITS}; }}")


#: notes what it says and its exit code; when the terminal's own shell dies of the terminal's end
#: this one gets a HUP with the command that it runs, and outlives it
NOTED = """trap : HUP; {how} >out 2>&1; echo code $? >>out"""
#: in the background of a terminal that stops all that write to it from there (``stty tostop``)
BEHIND = """set -m; stty tostop; {how} & wait $!; echo code $? >out"""
#: how dispatch is started, with its pid in a file
PLAIN = """sh -c 'echo $$ >pid; exec "$@"' sh "$@\""""


class Terminal:
    """A terminal of its own, on whose shell ``dispatch`` runs in the foreground.

    how: what starts it there. noted: what becomes of its output.
    """

    def __init__(
        self, desk: Desk, words: tuple[str, ...], how: str = PLAIN, noted: str = NOTED
    ) -> None:
        self.desk = desk
        self.master, slave = pty.openpty()
        dispatch = [w % desk.folder if "%s" in w else w for w in map(str, desk.argv(*words))]
        if words[0] == "exec":
            dispatch = [dispatch[0], "-m", "dispatcher", *dispatch[dispatch.index("exec") :]]

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.shell = subprocess.Popen(
            ["sh", "-c", 'sh -c "$0" sh "$@"; :', noted.format(how=how), *dispatch],
            env={**os.environ, "TERM": "xterm"},
            cwd=desk.folder, stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(slave)
        wait_for(lambda: self.said() == "up\n", 60, lambda: f"it is up: {self.told()}")

    def said(self) -> str:
        try:
            return (self.desk.folder / "said").read_text()
        except OSError:
            return ""

    def told(self) -> str:
        out = self.desk.folder / "out"
        return out.read_text() if out.exists() else "nothing"

    def launcher(self) -> int:
        return int((self.desk.folder / "pid").read_text())

    def hang_up(self) -> None:
        """The kernel sends HUP to the shell, and at its death to all of its foreground."""
        os.close(self.master)
        self.master = -1
        assert self.shell.wait(timeout=60) == -signal.SIGHUP

    def go(self) -> None:
        (self.desk.folder / "go").touch()

    def ends(self, code: int) -> None:
        end = f"code {code}\n"
        wait_for(lambda: self.told().endswith(end), 60, lambda: f"{end!r}: {self.told()}")
        assert self.said() == ("up\n" if code else "up\ndone\n")

    def close(self) -> None:
        self.go()
        if self.master >= 0:
            self.shell.wait(timeout=60)
            os.close(self.master)


@pytest.fixture
def terminal(desk: Desk) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*fields: Any) -> Terminal:
        made.append(Terminal(desk, *fields))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize("words", [RUN, EXEC], ids=["run", "exec"])
class TestIgnored:
    def test_nohup_survives_the_terminal(
        self, terminal: Callable[..., Terminal], words: tuple[str, ...]
    ) -> None:
        one = terminal(words, f"nohup {PLAIN}")
        one.hang_up()
        one.go()
        one.ends(0)

    def test_without_it_the_terminals_end_ends_it(
        self, terminal: Callable[..., Terminal], words: tuple[str, ...]
    ) -> None:
        one = terminal(words)
        one.hang_up()
        one.ends(129)

    @pytest.mark.parametrize(
        ("how", "name"),
        [
            (f"{PLAIN} & wait $!", "INT"),
            (f"{PLAIN} & wait $!", "QUIT"),
            (f"trap '' TERM; {PLAIN}", "TERM"),
        ],
        ids=["background-INT", "background-QUIT", "trap-TERM"],
    )
    def test_what_is_ignored_stays_so(
        self, terminal: Callable[..., Terminal], words: tuple[str, ...], how: str, name: str
    ) -> None:
        """A script's ``&`` is deaf to what the keyboard sends, a trap to what it names."""
        one = terminal(words, f"{{ {how}; }}")
        for _ in range(3):
            os.kill(one.launcher(), getattr(signal, f"SIG{name}"))
        one.go()
        one.ends(0)

    def test_other_signals_are_heard(
        self, terminal: Callable[..., Terminal], words: tuple[str, ...]
    ) -> None:
        one = terminal(words, f"{{ {PLAIN} & wait $!; }}")
        os.kill(one.launcher(), signal.SIGTERM)
        one.ends(143)

    def test_in_the_background_no_terminal_stops_it(
        self, terminal: Callable[..., Terminal], words: tuple[str, ...]
    ) -> None:
        one = terminal((*words[:-1], f"{words[-1]}; echo hello"), PLAIN, BEHIND)
        one.go()
        one.ends(0)
        assert b"hello" in os.read(one.master, 4096)
