"""``dispatch exec --pty``: a terminal on the far side, and ours joined to that of one host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rig import Cluster, gone, wait_for
from typist import Typist

from dispatcher.runner.exec.stdio import Keys

EXEC = [sys.executable, "-m", "dispatcher", "exec", "-t", "60"]
TWO = ("-w", "localhost,127.0.0.1")


@pytest.fixture
def sit() -> Iterator[Any]:
    made: list[Typist] = []

    def start(*words: str, **options: Any) -> Typist:
        made.append(Typist([*EXEC, *words], **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXEC, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False, **options,
    )  # fmt: skip


def test_many_hosts_have_terminals_and_labelled_lines() -> None:
    text = r"[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size; echo err >&2; printf '\033]0;x\a\n'"
    done = run("--pty", *TWO, "--shell", text)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{host}: {line}"
        for host in ("localhost", "127.0.0.1")
        for line in ("24 80", "err", "\x1b]0;x\x07")
    )


def test_arguments_are_exact_and_codes_the_commands_own() -> None:
    done = run("--pty", "-S", "-N", "-w", "localhost", "--", "sh", "-c", 'printf %s "$1"; exit 7',
               "x", "it's\na  b $HOME " + "long" * 5000)  # fmt: skip
    assert done.returncode == 7
    assert done.stdout == "it's\na  b $HOME " + "long" * 5000 + "\n"


def test_our_terminal_is_the_commands(sit: Any) -> None:
    # a signal that comes just before a read is answered after it only
    text = (
        "trap 'stty size; n=1' WINCH; printf '\\033[1m'; stty size; "
        'until [ "$n" ]; do sleep 0.1; done; read x; echo got $x'
    )
    one = sit("--pty", "-w", "localhost", "--shell", text, size=(70, 20))
    one.until("\x1b[1m20 70\r\n")  # as it is, and nothing before it
    one.resize(101, 33)
    one.until("33 101\r\n")
    one.type("keys\r")
    one.until("got keys\r\n")
    assert one.wait() == 0
    assert one.echoes


def test_ctrl_c_is_the_commands(sit: Any) -> None:
    text = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.1; done"
    one = sit("--pty", "-S", "-w", "localhost", "--shell", text)
    one.until("up\r\n")
    one.type("\x03")
    one.until("caught\r\n")
    assert one.wait() == 5


def test_a_way_out(sit: Any) -> None:
    text = "trap '' INT HUP TERM; echo $$; while :; do sleep 0.1; done"
    one = sit("--pty", "--grace", "0.2", "-w", "localhost", "--shell", text)
    pid = int(one.until("\r\n"))
    one.type("\r~.")
    assert one.wait() == 128 + signal.SIGHUP
    assert one.echoes
    wait_for(lambda: gone(pid), 60, "the command is gone")


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ([b"~."], None),
        ([b"~", b"."], None),
        ([b"a~."], b"a~."),
        ([b"a\r~", b"."], None),
        ([b"~~."], b"~."),
        ([b"~x"], b"~x"),
        ([b"\r~\r~."], None),
        ([b"a\xff\x03\x00"], b"a\xff\x03\x00"),
    ],
)
def test_keys(typed: list[bytes], sent: bytes | None) -> None:
    keys, parts = Keys(), []
    for one in typed:
        parts.append(keys.feed(one))
    assert (None if None in parts else b"".join(filter(None, parts))) == sent


class TestOverSsh:
    @pytest.fixture(params=["paramiko", "ssh"])
    def transport(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_terminals(self, cluster: Cluster, transport: str) -> None:
        text = "[ -t 0 ] && [ -t 2 ] && hostname; [ $DISPATCH_HOST = n1 ] || kill -KILL $$"
        words = ["--transport", transport, "--pty", "-w", "n[1-2]", "--shell", text]
        done = cluster.run([*EXEC, *words])
        assert sorted(done.stdout.splitlines()) == ["n1: n1", "n2: n2"]
        assert done.returncode == 1, done.stderr

    def test_the_size_is_ours(self, cluster: Cluster) -> None:
        done = cluster.run([*EXEC, "--pty", "-N", "-w", "n1", "--", "stty", "size"])
        assert done.stdout == "24 80\n"

    @pytest.mark.parametrize("how", ["killed", "too long", "ctrl-c"])
    def test_nothing_is_left(self, cluster: Cluster, transport: str, how: str) -> None:
        if (transport, how) == ("ssh", "killed"):
            pytest.skip("an orphaned ssh keeps its terminal open")
        text = "sleep 1000 & trap '' TERM HUP INT; echo up; while :; do sleep 0.1; done"
        limit = ["-u", "8"] if how == "too long" else []
        words = ["--transport", transport, "--pty", "--grace", "0.3", *limit, "-w", "n[1-2]"]
        with cluster.popen(
            [*EXEC, *words, "--shell", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ) as one:  # fmt: skip
            assert one.stdout is not None
            assert [one.stdout.readline().split()[1] for _ in range(2)] == ["up", "up"]
            if how == "killed":
                one.kill()
            elif how == "ctrl-c":
                one.send_signal(signal.SIGINT)
                assert one.wait(60) == 130
            else:
                assert one.wait(60) == 124
            one.communicate()
        wait_for(lambda: not cluster.on_hosts(), 60, lambda: cluster.on_hosts())


def test_the_shell_that_asks_for_it_is_in_no_terminal_of_ours() -> None:
    """The far terminal is the command's own session's, never the launcher's."""
    done = run("--pty", "-N", "-w", "localhost", "--shell", "ps -o sid= -p $$")
    assert int(done.stdout) != os.getsid(0)
