"""``dispatch shell``: a prompt for many hosts, over connections that stay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import Cluster, wait_for
from typist import Typist

SHELL = [sys.executable, "-m", "dispatcher", "shell"]


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Any]:
    made: list[Typist] = []

    def start(*words: str, before: tuple[str, ...] = ()) -> Typist:
        env = {"XDG_STATE_HOME": str(tmp_path)}
        made.append(Typist([*before, *SHELL, *words], env, size=(100, 40)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_commands_and_the_last_code() -> None:
    done = subprocess.run(
        [*SHELL, "-w", "localhost,127.0.0.1"], text=True, capture_output=True, timeout=60,
        input="echo same\n!echo here\n=localhost\n:no-gather\nexit 3\n", check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[1:] == [
        "127.0.0.1,localhost (2)", "---------------", "same", "here",
    ]  # fmt: skip
    assert done.returncode == 1
    assert "localhost  exit code 3" in done.stderr


def test_a_folder_stays_and_the_last_command_comes_again(tmp_path: Path) -> None:
    (tmp_path / "a b" / "c").mkdir(parents=True)
    typed = f"""!!
cd {tmp_path}
cd 'a b'
cd nosuch
ls
!!
cd c
cd -
cd c # a comment
pwd
cd ..; }}
cd "
cd $(mktemp -d {tmp_path}/new.XXXXXX)
pwd
cd
cd -
cd -
"""
    done = subprocess.run(
        [*SHELL, "-w", "localhost"], text=True, capture_output=True, timeout=60, input=typed,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    top = str(tmp_path)
    (new,) = map(str, tmp_path.glob("new.*"))
    assert [line for line in done.stdout.splitlines() if line not in ("-" * 15, "localhost")] == [
        top, f"{top}/a b", "c", "ls", "c", f"{top}/a b/c", f"{top}/a b",
        *(f"{top}/a b/c",) * 2, *(new,) * 2, top, new, top,
    ]  # fmt: skip
    assert "!!: there was no command yet" in done.stderr
    assert done.stderr.count("nosuch") == 1


def test_ctrl_c_ends_the_command_and_not_the_shell(sit: Any) -> None:
    one = sit("-w", "localhost")
    one.until("localhost> ")
    command = f"sleep 1000.{os.getpid()}"  # nobody else's
    one.type(f"{command}\n")
    one.until(f"{command}\r\n")
    # what the terminal does with the key before the command runs is the prompt's affair
    wait_for(lambda: one.process.poll() is None and _runs(command), 60, "it runs")
    one.type("\x03")
    one.until("interrupted by SIGINT")
    one.until("localhost> ")
    one.type("half a line")
    one.until("half a line")
    _press_until_prompt(one)
    one.type("echo on$((1+1))\n")
    one.until("on2\r\n")
    one.until("localhost> ")
    one.type("\x04")
    assert one.wait() == 0


def _press_until_prompt(one: Typist) -> None:
    """Press Ctrl-C until there is a new prompt.

    Python's readline hears of a signal when it waits for a key. One that came just before it
    does is noticed with the next key only.
    """
    for _ in range(10):
        one.type("\x03")
        try:
            one.until("localhost> ", seconds=10)
        except AssertionError:
            continue
        return
    raise AssertionError("no new prompt")


def _runs(text: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip() == text:
                return True
        except OSError:
            continue
    return False


def test_history_and_completion(sit: Any, tmp_path: Path) -> None:
    one = sit("-w", "localhost,127.0.0.1")
    one.until("localhost> ")
    one.type("echo first$((2*3))\n")
    one.until("first6\r\n")
    one.until("localhost> ")
    one.type("quit\n")
    assert one.wait() == 0
    history = tmp_path / "dispatch" / "shell_history"
    assert history.stat().st_mode & 0o777 == 0o600
    two = sit("-w", "localhost,127.0.0.1")
    two.until("localhost> ")
    two.type("\x1b[A\x1b[A\n")  # up, up: the line before quit
    two.until("first6\r\n")
    two.until("localhost> ")
    two.type("=loc\t\n")
    two.until("localhost (1)\r\n")


class TestOverSsh:
    def test_the_connections_stay(self, cluster: Cluster) -> None:
        lines = "echo $PPID\n" * 3 + "+n3\nhostname\n"
        done = cluster.run([*SHELL, "-t", "60", "--no-gather", "-w", "n[1-2]"], input=lines)
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        for host in ("n1", "n2"):
            assert len({line for line in said[:6] if line.startswith(host)}) == 1, said
        assert sorted(said[6:]) == ["n1: n1", "n2: n2", "n3: n3"]

    def test_an_interrupted_command_leaves_nothing(self, cluster: Cluster) -> None:
        text = "(trap '' TERM INT; exec sleep 1000) & echo up; wait"
        lines = f"{text}\nhostname\n"
        done = cluster.run(
            [*SHELL, "-t", "60", "-u", "8", "--grace", "0.3", "-w", "n[1-2]"], input=lines
        )
        assert done.returncode == 0, done.stderr
        assert "timeout" in done.stderr
        assert "\nn1\n" in done.stdout
        wait_for(lambda: not cluster.on_hosts(), 60, lambda: cluster.on_hosts())
