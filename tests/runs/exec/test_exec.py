"""``dispatch exec -w localhost``: the whole path without sshd."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events.exec_events import Exited, HostDone
from dispatcher.model import errors
from dispatcher.output.files.journal import read

EXEC = [sys.executable, "-m", "dispatcher", "exec"]


def run(*words: str | bytes, **options: Any) -> subprocess.CompletedProcess[Any]:
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("text", True)
    return subprocess.run([*EXEC, *words], capture_output=True, timeout=100, check=False, **options)


@pytest.fixture
def started() -> Iterator[Any]:
    runs: list[subprocess.Popen[str]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("stdin", subprocess.DEVNULL)
        runs.append(
            subprocess.Popen(
                [*EXEC, *words], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
            )
        )  # fmt: skip
        return runs[-1]

    yield start
    for one in runs:
        if one.poll() is None:
            one.kill()
        one.communicate(timeout=30)


def test_a_line_and_its_label() -> None:
    done = run("-w", "localhost", "--", "echo", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "localhost: hi\n", "")
    assert run("-N", "-w", "localhost", "echo", "hi").stdout == "hi\n"


def test_arguments_are_exact() -> None:
    words = [b"%s|", b"%u", b"a  b", b"$HOME", b"`id`", b"it's", b"new\nline", b"", b"\xff", b"*"]
    done = run("-N", "-w", "localhost", "--", "printf", *words, text=False)
    assert done.stdout == b"%u|a  b|$HOME|`id`|it's|new\nline||\xff|*|"
    percent = run("-w", "localhost", "--", "echo", "%u", "a  b")
    assert percent.stdout == "localhost: %u a  b\n"


def test_shell_text_is_one_word() -> None:
    assert run("-w", "localhost", "--shell", "echo a | tr a b").stdout == "localhost: b\n"
    assert run("-w", "localhost", "--", "echo a | tr a b").stdout == "localhost: b\n"
    assert run("-w", "localhost", "echo", "a | tr a b").stdout == "localhost: a | tr a b\n"
    refused = run("-w", "localhost", "--", "echo a |", "tr a b")
    assert refused.returncode == errors.USAGE
    assert refused.stderr.endswith("hint: --shell '...'  # the whole command, in quotes\n")


def test_stderr_stays_apart_and_codes_count() -> None:
    done = run("-w", "localhost", "--shell", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (1, "localhost: out\n")
    assert done.stderr == (
        "localhost: err\nerror: 1 of 1 host failed [hosts-failed]\n  localhost  exit code 7\n"
    )
    assert run("-S", "-w", "localhost", "--shell", "exit 7").returncode == 7
    killed = run("-S", "-w", "localhost", "--shell", "kill -SEGV $$")
    assert killed.returncode == 128 + signal.SIGSEGV
    assert "killed by SIGSEGV" in killed.stderr


def test_both_streams_keep_their_order_where_they_end_in_one_place(tmp_path: Path) -> None:
    text = "for i in 1 2 3 4 5 6; do echo o$i; echo e$i >&2; done; exec nosuchprogram"
    words = [*EXEC, "-N", "-w", "localhost", "--shell", text]

    def lines(*more: str) -> list[str]:
        done = subprocess.run(
            [*words, *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout.splitlines()

    found = lines()
    assert found[:12] == [f"{letter}{i}" for i in range(1, 7) for letter in "oe"]
    assert "nosuchprogram" in found[12]
    lines("-e", str(tmp_path))  # here they are to be told apart
    kept = (tmp_path / "localhost").read_text().splitlines()
    assert kept[:-1] == [f"e{i}" for i in range(1, 7)]


def test_large_output_of_both_streams_arrives_whole() -> None:
    size = 10 << 20
    text = f"head -c {size} /dev/zero | tr '\\0' x; head -c {size} /dev/zero | tr '\\0' y >&2"
    done = run("-N", "-w", "localhost", "--shell", text)
    assert done.stdout.count("x") == size
    assert done.stderr.count("y") == size


def test_progress_bars_nul_and_bytes_that_are_no_text() -> None:
    """A bar comes in its last state, all else as it was written."""
    words = [*EXEC, "-w", "localhost", "--", "printf", r"10%%\r50%%\rdone\n\377\r\n\000z\n"]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"localhost: done\nlocalhost: \xff\r\nlocalhost: \0z\n"


def test_a_very_long_line_comes_whole_in_pieces() -> None:
    done = run("-N", "-w", "localhost", "--shell", "head -c 421083 /dev/zero | tr '\\0' x")
    assert done.stdout.count("x") == 421083


def test_standard_input_is_left_alone() -> None:
    script = "while read host; do $0 -m dispatcher exec -N -w localhost -- echo $host; done"
    done = subprocess.run(
        ["sh", "-c", script, sys.executable], input="a\nb\nc\n", text=True,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "a\nb\nc\n"


@pytest.mark.parametrize("from_file", [True, False])
def test_standard_input_for_the_command(tmp_path: Path, from_file: bool) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    words = [*EXEC, "-N", "-I", "-w", "localhost", "--", "wc", "-c"]
    if from_file:
        with (tmp_path / "data").open("rb") as file:
            done = subprocess.run(words, stdin=file, capture_output=True, timeout=60, check=False)
    else:
        done = subprocess.run(words, input=data, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"%d" % len(data))


def test_what_reads_only_a_part_of_its_input_ends_well() -> None:
    done = run("-N", "-I", "-w", "localhost", "--", "head", "-c", "3", input="x" * (1 << 20),
               stdin=None)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "xxx")


def test_command_timeout_kills_the_group() -> None:
    text = "echo $$; sleep 1000 & trap '' TERM; while :; do sleep 0.1; done"
    done = run("-N", "-u", "8", "--grace", "0.2", "-w", "localhost", "--shell", text)
    assert done.returncode == errors.TIME_LIMIT
    assert "timeout: longer than the 8 s of the command" in done.stderr
    wait_for(lambda: group_is_empty(int(done.stdout)), 60, "nothing is left of the group")


def group_is_empty(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_command(started: Any, number: signal.Signals) -> None:
    one = started("-N", "-w", "localhost", "--shell", "echo $$; exec sleep 1000")
    pgid = int(one.stdout.readline())
    one.send_signal(number)
    assert one.wait(60) == 128 + number
    assert "stopping; localhost running; again to kill" in one.stderr.read()
    wait_for(lambda: group_is_empty(pgid), 60, "nothing is left of the group")


@pytest.mark.parametrize("words", [(), ("-I",)])
def test_the_death_of_dispatch_ends_the_command(started: Any, words: tuple[str, ...]) -> None:
    text = "echo $$; sleep 1000 & trap '' TERM; while :; do sleep 0.1; done"
    pipe, hold = os.pipe()
    one = started("-N", *words, "-w", "localhost", "--shell", text, stdin=pipe)
    pgid = int(one.stdout.readline())
    one.kill()
    one.wait(30)
    os.close(pipe)
    os.close(hold)
    wait_for(lambda: group_is_empty(pgid), 60, "nothing is left of the group")


def test_a_reader_that_leaves_ends_it(started: Any) -> None:
    one = started("-w", "localhost", "--", "yes")
    one.stdout.readline()
    one.stdout.close()
    assert one.wait(60) == 128 + signal.SIGPIPE
    assert one.stderr.read() == ""
    one.stdout = None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "true"), "no hosts"),
        (("-w", "n1"), "no command"),
        (("-w", "n1", "--shell", "x", "y"), "--shell takes the whole command"),
        (("-w", "n[1-", "x"), "'[' without its ']'"),
        (("-w", "n1", "-x", "n1", "x"), "no host is left"),
        (("-w", "n1", "-t", "soon", "x"), "--connect-timeout: not a number"),
        (("-w", "n1", "-f", "0", "x"), "--fanout"),
        (("-H", "nosuchfile.txt", "x"), "no such file"),
        (("-I", "-n", "-w", "n1", "x"), "exclude each other"),
        (("-w", "n1", "--nonsense", "x"), "no such option"),
    ],
)
def test_usage_errors_touch_no_host(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == errors.USAGE
    assert said in done.stderr
    assert done.stderr.startswith("error: ")


class TestTelling:
    def test_gathered(self) -> None:
        done = run("-b", "-w", "localhost,127.0.0.1", "--", "echo", "same")
        assert done.stdout.splitlines()[1:] == [
            "127.0.0.1,localhost (2)", "---------------", "same",
        ]  # fmt: skip

    def test_gathered_with_standard_error(self) -> None:
        done = run("-B", "-w", "localhost,127.0.0.1", "--shell", "echo out; echo err >&2")
        assert done.stdout.splitlines()[1::2] == ["127.0.0.1,localhost (2)", "out"]
        said = done.stderr.splitlines()[1::2]
        assert said == ["127.0.0.1,localhost (2), standard error", "err"]

    def test_json(self) -> None:
        done = run("--json", "-w", "localhost", "--shell", "echo out; echo err >&2; exit 4")
        assert done.returncode == 1
        found = promises.told(done.stdout)
        assert (found["host"], found["outcome"], found["code"]) == ("localhost", "exited", 4)
        assert (found["stdout"], found["stderr"]) == ("out\n", "err\n")

    def test_files_hold_the_exact_bytes(self, tmp_path: Path) -> None:
        out, err = tmp_path / "o", tmp_path / "e"
        words = ("-o", str(out), "-e", str(err), "-w", "localhost")
        run(*words, "--", "echo", "old" * 100)
        run(*words, "--", "printf", r"\377\000\r no end")
        assert (out / "localhost").read_bytes() == b"\xff\0\r no end"
        assert not (err / "localhost").exists()
        assert (out / "localhost").stat().st_mode & 0o777 == 0o600

    def test_a_link_in_the_way_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "victim").write_text("precious")
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "localhost").symlink_to(tmp_path / "victim")
        assert run("-o", str(tmp_path / "o"), "-w", "localhost", "echo", "x").returncode == 0
        assert (tmp_path / "victim").read_text() == "precious"
        assert (tmp_path / "o" / "localhost").read_text() == "x\n"

    def test_the_failed_are_kept_and_tried_again(self, tmp_path: Path) -> None:
        file = tmp_path / "failed"
        text = "[ $DISPATCH_HOST = localhost ]"
        run("--failed-to", str(file), "-w", "localhost,127.0.0.1", "--shell", text)
        assert file.read_text().splitlines()[1:] == ["127.0.0.1  # exit code 1"]
        again = run("--retry-failed", str(file), "hostname")
        assert again.stdout.startswith("127.0.0.1: ")
        nothing = run("--retry-failed", str(file), "hostname")
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert "no host failed the last time" in nothing.stderr

    def test_events_and_times(self, tmp_path: Path) -> None:
        done = run("-T", "--events", str(tmp_path / "ev"), "-w", "localhost", "echo", "x")
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} localhost: x\n", done.stdout)
        events = [json.loads(line) for line in (tmp_path / "ev").read_text().splitlines()]
        assert events[-1]["name"] == "host.done"
        assert events[-1]["context"]["outcome"] == {"kind": "Exited", "code": 0}
        assert [one.event for one in read(tmp_path / "ev")][-1] == HostDone(0, Exited(0))


@cases(("option", "to"), [("-o", ""), ("-e", " >&2")])
def test_output_that_a_file_does_not_take_is_a_failure(
    tmp_path: Path, option: str, to: str
) -> None:
    """It was said, but the exit code was 0."""
    text = f"head -c 200000 /dev/zero{to}"
    words = [*EXEC, "-w", "localhost", option, str(tmp_path / "o"), "--shell", text]
    full = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *words]  # as a disk that has no more
    done = subprocess.run(full, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"bytes of output are missing from the files" in done.stderr
