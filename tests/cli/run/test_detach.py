"""What the foreground of a job in the background waits for, and what it ends with."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.api.request import plan_job, request
from dispatcher.cli.run import detach as module
from dispatcher.cli.run.detach import ForegroundLink, _Foreground, check
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import DispatchError, LauncherKilled, UsageError
from dispatcher.model.paths import RunPaths
from dispatcher.output.terminal.asking import Asking


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., int]:
    def wait(*words: dict[str, Any]) -> int:
        """The exit code, when the launcher says ``words`` and hangs up."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in words))
            theirs.shutdown(socket.SHUT_WR)
            code = _Foreground(ours, RunPaths(tmp_path), "run-1").wait()
            ours.shutdown(socket.SHUT_RDWR)
            theirs.settimeout(60)
            self_answers.append(theirs.recv(100))
        return code

    self_answers: list[bytes] = []
    wait.answers = self_answers  # type: ignore[attr-defined]
    return wait


@pytest.mark.parametrize(("ranks", "words"), [(1, "1 rank runs"), (2, "2 ranks run")])
def test_it_ends_when_the_ranks_run(
    told: Callable[..., int], ranks: int, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert told({"pid": 77}, {"running": ranks}) == 0
    assert capsys.readouterr().out == (
        f"job run-1: {words} (launcher: pid 77)\n  logs: {tmp_path}\n  dispatch attach run-1\n"
    )


@pytest.mark.parametrize(("words", "code"), [([{"ended": 3}], 3), ([], 125)])
def test_a_launcher_that_ends_before_shows_what_it_said(
    told: Callable[..., int], words: list[dict[str, Any]], code: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    RunPaths(tmp_path).launcher.write_text("error: it failed [dispatch-failed]\n")
    assert told(*words) == code
    assert capsys.readouterr().err == "error: it failed [dispatch-failed]\n"


def test_a_launcher_that_is_killed_before(
    told: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunPaths(tmp_path).launcher.write_text("note: logs in x\n")
    with pytest.raises(LauncherKilled, match=r"^job run-1: its launcher \(pid 77\) was killed$"):
        told({"pid": 77})
    assert capsys.readouterr().err == "note: logs in x\n"


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_job_that_runs_is_told_of_on_standard_error_where_output_takes_no_more(
    told: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert told({"pid": 77}, {"running": 2}) == 0
    assert capsys.readouterr().err.startswith("job run-1: 2 ranks run (launcher: pid 77)\n")
    sys.stdout.close()


def test_a_launcher_that_said_nothing(
    told: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunPaths(tmp_path).launcher.write_text("")
    assert told({"ended": 4}) == 4
    assert "job run-1 ended during startup, exit code 4" in capsys.readouterr().err


@pytest.mark.parametrize("secret", ["abc", None])
def test_it_asks_for_the_launcher(
    told: Callable[..., int], secret: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunPaths(tmp_path).launcher.write_text("error: refused\n")
    asked: list[str] = []

    def ask(self: Asking, prompt: str) -> str | None:
        asked.append(prompt)
        return secret

    monkeypatch.setattr(Asking, "ask", ask)
    words = {"ask": "passphrase of id: "}, {"ended": 125}
    if secret is None:
        with pytest.raises(
            UsageError, match="there is no terminal to ask for the passphrase of id"
        ):
            told(*words)
    else:
        assert told(*words) == 125
        assert told.answers == [b'{"answer": "abc"}\n']  # type: ignore[attr-defined]
    assert asked == ["passphrase of id: "]


# -- what cannot be had in the background ------------------------


@cases(
    ("given", "said"),
    [
        ({"stdin": "all"}, "--stdin: a job in the background reads no standard input"),
        ({"stdin": "0"}, "--stdin: a job in the background"),
        ({"only_ranks": "1"}, "--only-ranks needs a screen"),
        ({"grep": "x"}, "--grep needs a screen"),
        ({"timestamps": True}, "--timestamps needs a screen"),
        ({"rank0": True}, "--rank0 needs a screen"),
        ({"fold": True, "label": "host"}, ""),
    ],
)
def test_what_needs_a_screen(given: dict[str, Any], said: str) -> None:
    options = RunOptions(detach=True, **given)
    if not said:
        assert check(options) is None  # type: ignore[func-returns-value]
        return
    with pytest.raises(UsageError) as caught:
        check(options)
    assert caught.value.message.startswith(said)
    assert caught.value.hint


@cases("log_dir", [None, "logs"])
def test_a_job_keeps_its_files_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_dir: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = plan_job(request("n1:1", ["a"], kind="command"))
    seen: list[Any] = []

    def background(launcher: Any, paths: RunPaths, run_id: str, name: object) -> int:
        seen.append((paths, run_id))
        return int(launcher("the word"))

    def run(*given: Any) -> int:
        seen.append(given)
        return 5

    monkeypatch.setattr(module, "background", background)
    assert module.detach(plan, RunOptions(log_dir=log_dir, detach=True), run) == 5
    (paths, run_id), (ran, options, output, same, word) = seen
    base = tmp_path / "logs" if log_dir else tmp_path / "state" / "dispatch"
    assert paths.folder.resolve() == base / plan.run_id
    assert paths.folder.is_dir()
    assert (run_id, ran, same, word) == (plan.run_id, plan, paths, "the word")
    assert (options.only_ranks, options.detach) == ("none", True)
    assert 0 not in output.only
    with pytest.raises(UsageError):
        module.detach(plan, RunOptions(log_dir=log_dir, rank0=True), run)


# -- the launcher's side ------------------------


def lines_of(link: socket.socket) -> list[dict[str, Any]]:
    link.settimeout(60)
    with link.makefile("rb") as lines:
        return [json.loads(line) for line in lines]


def test_the_foreground_hears_when_all_ranks_run() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            word = ForegroundLink(theirs)
            word.started(2)
            word.tell(ended=3)
        assert lines_of(ours) == [{"pid": os.getpid()}, {"running": 2}, {"ended": 3}]
    word.tell(ended=4)  # the foreground has left, the job goes on


@cases(
    ("answer", "told"),
    [(b'{"answer": "abc"}\n', "abc"), (b'{"answer": null}\n', None), (b"rubbish\n", None),
     (b"", None)],
)  # fmt: skip
def test_the_launcher_asks_the_foreground(answer: bytes, told: str | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        word = ForegroundLink(theirs)
        ours.sendall(answer)
        ours.shutdown(socket.SHUT_WR)
        assert word.ask("passphrase: ") == told
        theirs.shutdown(socket.SHUT_WR)
        assert lines_of(ours)[1:] == [{"ask": "passphrase: "}]


# -- both ------------------------


#: run by a Python of its own, since only a process without threads can put itself in the background
DETACHED = """
import os, signal, sys, time
from pathlib import Path
from dispatcher.cli.run.detach import background
from dispatcher.model.paths import RunPaths

def launcher(word):
    print("to the log", flush=True)
    end = time.monotonic() + 20
    while os.getppid() == os.getsid(0) and time.monotonic() < end:
        time.sleep(0.01)  # the leader of the session is about to end
    alone = os.getsid(0) != os.getppid() and os.getsid(0) != os.getpid()
    print(alone, os.getsid(0) != first, signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
          os.read(0, 1), file=sys.stderr, flush=True)
    if sys.argv[2] == "runs":
        word.started(1)
    return 3

first = os.getsid(0)
sys.exit(background(launcher, RunPaths(Path(sys.argv[1])), "run-1"))
"""


@cases(("does", "code"), [("runs", 0), ("ends", 3)])
def test_a_process_of_its_own(tmp_path: Path, does: str, code: int) -> None:
    argv = [sys.executable, "-c", DETACHED, str(tmp_path), does]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    log = tmp_path / "launcher.log"
    wait_for(lambda: log.read_text().count("\n") == 2, 20, lambda: "the launcher has ended")
    said = "to the log\nTrue True True b''\n"
    assert log.read_text() == said
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert done.returncode == code, done.stderr
    if does == "runs":
        assert done.stdout.startswith("job run-1: 1 rank runs (launcher: pid ")
        assert done.stderr == ""
    else:
        assert (done.stdout, done.stderr) == ("", said)


def test_without_a_log_it_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 1)  # those of other tests are no matter
    paths = RunPaths(tmp_path / "none")
    with pytest.raises(UsageError, match=r"none/launcher\.log: no such file or directory"):
        module.background(lambda word: 0, paths, "run-1")


def test_threads_would_be_lost() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(DispatchError, match="cannot detach: threads are running already"):
            module.background(lambda word: 0, RunPaths(Path("/none")), "run-1")
    finally:
        over.set()
        thread.join(60)


# -- Ctrl-C in the foreground ------------------------


def test_ctrl_c_is_for_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ends what has begun, and says so; nobody is told before it has said who it is."""
    RunPaths(tmp_path).launcher.write_text("error: interrupted\n")
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))

    class Lines:
        """Ctrl-C, who it is, Ctrl-C, the end."""

        def __init__(self) -> None:
            self.words: list[dict[str, int] | None] = [None, {"pid": 77}, None, {"ended": 130}]

        def readline(self) -> bytes:
            word = self.words.pop(0)
            if word is None:
                raise KeyboardInterrupt
            return json.dumps(word).encode()

        def __enter__(self) -> Lines:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    class Link:
        def makefile(self, mode: str) -> Lines:
            return Lines()

    link: Any = Link()
    assert _Foreground(link, RunPaths(tmp_path), "run-1").wait() == 130
    assert killed == [(77, signal.SIGINT)]


@pytest.mark.parametrize(("ended", "code"), [(2, 130), (125, 130), (0, 0)])
def test_ctrl_c_may_be_the_answer(
    told: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int, code: int
) -> None:
    def ask(self: Asking, prompt: str) -> str:
        raise KeyboardInterrupt

    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(Asking, "ask", ask)
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    assert told({"pid": 77}, {"ask": "passphrase: "}, {"ended": ended}) == code
    assert killed == [(77, signal.SIGINT)]
    assert told.answers == [b'{"answer": null}\n']  # type: ignore[attr-defined]
