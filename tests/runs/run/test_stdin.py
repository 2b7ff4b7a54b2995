"""``--stdin``: real runs that are fed, slowly and fast, and runs that must not read at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from rig import Cluster, wait_for

from ..conftest import PROGRAM, Desk, words_of

SIZE = 20_000_000


def big(folder: Path) -> tuple[Path, str]:
    """A file of random bytes, and its digest."""
    data = os.urandom(SIZE)
    path = folder / "input"
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(("who", "readers"), [("0", {0}), ("2", {2}), ("all", {0, 1, 2})])
def test_slow_readers_get_every_byte(desk: Desk, who: str, readers: set[int]) -> None:
    path, digest = big(desk.folder)
    text = "[ $RANK = 0 ] && sleep 0.5; sha256sum"
    with path.open("rb") as file:
        done = desk.run(
            "--stdin", who, "-H", "localhost:3", "--no-python", "sh", "-c", text, stdin=file
        )
    nothing = hashlib.sha256(b"").hexdigest()
    expected = [f"[{rank}] {digest if rank in readers else nothing}  -" for rank in range(3)]
    assert words_of(done.stdout) == expected
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_stops_nobody(desk: Desk) -> None:
    text = "case $RANK in 0) head -c 10 | wc -c;; 1) exec 0<&-;; 2) wc -c;; esac"
    done = desk.run(
        "--stdin", "all", "-H", "localhost:3", "--no-python", "sh", "-c", text,
        stdin=None, input=bytes(1_000_000), text=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert words_of(done.stdout.decode()) == ["[0] 10", "[2] 1000000"]
    said = b"ranks 0-1 did not take all of standard input: 1000000 of 1000000 bytes were left\n"
    assert done.stderr == b"note: " + said


def test_the_run_ends_though_its_input_is_open_and_leaves_the_rest(desk: Desk) -> None:
    ours, theirs = os.pipe()
    try:
        run = desk.start(
            "--stdin", "0", "-H", "localhost:2", "--no-python", "sh", "-c", "read x; echo got $x",
            stdin=ours,
        )  # fmt: skip
        os.write(theirs, b"a line\n")
        out, err = run.communicate(timeout=60)
        os.write(theirs, b"for the next")
        assert sorted(out.splitlines()) == ["[0] got a line", "[1] got"]
        assert (run.returncode, err) == (0, "")
        assert os.read(ours, 99) == b"for the next"
    finally:
        os.close(ours)
        os.close(theirs)


def test_unasked_it_reads_nothing(desk: Desk) -> None:
    loop = "while read host; do %s -H $host --no-python sh -c 'echo \"$0\"; cat' $host; done"
    words = " ".join(map(str, PROGRAM))
    done = subprocess.run(
        ["sh", "-c", loop % words], input="localhost\nlocalhost:1\n", cwd=desk.folder,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "[0] localhost\n[0] localhost:1\n", done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stdin", "2", "-H", "localhost:2"), "--stdin 2: there are only 2 ranks"),
        (("--stdin", "rank0", "-H", "localhost"), "--stdin: not a whole number: 'rank0'"),
        (("--stdin", "-1", "-H", "localhost"), "--stdin"),
        (("--stdin", "0", "-H", "-"), "--stdin 0: -H - takes the hosts from standard input"),
    ],
)
def test_what_cannot_be_is_refused(desk: Desk, words: tuple[str, ...], said: str) -> None:
    done = desk.run(*words, "--no-python", "cat")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_closed_input_is_refused(desk: Desk) -> None:
    words = [str(word) for word in desk.argv("--stdin", "0", "-H", "localhost", "train.py")]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--stdin 0: standard input is closed" in done.stderr


def test_a_background_job_of_a_terminal_is_not_stopped(desk: Desk) -> None:
    """The terminal's foreground is the shell's: ``dispatch --stdin 0 ... &`` waits, and runs."""
    ours, theirs = os.openpty()
    text = "echo up; sleep 1; exit 7"
    words = desk.argv("--stdin", "0", "-H", "localhost", "--no-python", "sh", "-c", text)
    # -m: a process group for each job, so that this one is in the background
    shell = subprocess.Popen(
        ["setsid", "-c", "sh", "-mc", '"$@" & wait $!; echo ended $?', "sh", *words],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=desk.folder,
    )  # fmt: skip
    try:
        os.write(ours, b"typed for the shell\n")
        out, err = shell.communicate(timeout=60)
        assert "[0] up" in out, err
        assert "ended 7" in out
        assert os.read(ours, 99)  # the echo of what was typed
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(theirs)


def test_a_terminals_end_of_file_reaches_the_rank(desk: Desk) -> None:
    ours, theirs = os.openpty()
    words = desk.argv("--stdin", "0", "-H", "localhost", "--no-python", "cat")
    with subprocess.Popen(
        ["setsid", "-c", *words], stdin=theirs, stdout=subprocess.PIPE, text=True, cwd=desk.folder
    ) as run:
        os.write(ours, b"typed\n\x04")
        assert run.communicate(timeout=60)[0] == "[0] typed\n"
        assert run.returncode == 0
    os.close(ours)
    os.close(theirs)


def test_ctrl_c_ends_a_run_that_is_being_fed(desk: Desk) -> None:
    run = desk.start(
        "--stdin", "all", "-H", "localhost:2", "--no-python", "sh", "-c", "echo up; sleep 1000",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    desk.lines(run, 2)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    assert run.stdin is not None
    run.stdin.close()


class TestHosts:
    def test_all_ranks_of_two_hosts(self, cluster: Cluster, tmp_path: Path) -> None:
        path, digest = big(tmp_path)
        text = "[ $RANK = 3 ] && sleep 0.3; [ $RANK = 1 ] && exit 0; sha256sum"
        done = cluster.run(
            ["sh", "-c", '"$@" <' + str(path), "sh", *map(str, PROGRAM), "--stdin", "all",
             "-H", "n[1-2]:2", "--no-python", "sh", "-c", text]
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == [f"[{rank}] {digest}  -" for rank in (0, 2, 3)]
        assert "rank 1 did not take all of standard input" in done.stderr

    def test_a_lost_host_does_not_hold_the_input(self, cluster: Cluster) -> None:
        """Its agent is killed while it holds back; the run ends and says why."""
        text = "[ $RANK = 1 ] && { echo $PPID; exec sleep 1000; }; cat >/dev/null; exec sleep 1000"
        run = cluster.popen(
            ["sh", "-c", 'yes | "$@"', "sh", *map(str, PROGRAM), "--stdin", "all",
             "-H", "n1,n2", "--no-python", "sh", "-c", text],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with run:
            assert run.stdout is not None
            pid = run.stdout.readline().split()[1]
            cluster.run(["kill", "-9", pid], "n2", check=True)
            assert run.wait(timeout=28) == 125  # less than the lease
        wait_for(
            lambda: not cluster.on_hosts(), 30, lambda: f"idle hosts; there is {cluster.on_hosts()}"
        )
