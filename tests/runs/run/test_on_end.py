"""``--on-end``: what the user's command is told, when, and that it changes nothing of the run."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import promises
import pytest
from rig import wait_for

from dispatcher import cli
from dispatcher.cli.run import on_end
from dispatcher.model.errors import DispatchError, UsageError
from dispatcher.runner import loop

from ..background import jobs
from ..conftest import Desk

TELL = (
    'echo "$DISPATCH_EVENT|$DISPATCH_EXIT_CODE|$DISPATCH_VERDICT" >> told; '
    'cat > "input-$DISPATCH_EVENT"; env > "env-$DISPATCH_EVENT"'
)
HERE = ("-H", "localhost:2", "--no-python")
FAILS = ("sh", "-c", "echo no space >&2; exit $((RANK + 3))")
ONE_FAILS = ("sh", "-c", "[ $RANK = 0 ] || sleep 60; echo no space >&2; exit 3")
END_3 = "end|3|error: rank 0 on localhost, pid N: exit code 3: no space [rank-failed]"
OK = "end|0|\N{CHECK MARK} 2 ranks on 1 host, N"
HUNG = ["hang|124|no activity for N s", "end|124|error: no activity on any rank for N s [job-hung]"]


def told(folder: Path) -> list[str]:
    """The lines that the command wrote, with N for seconds and pids."""
    lines = (folder / "told").read_text().splitlines() if (folder / "told").exists() else []
    return [re.sub(r"(?<=pid )\d+|(?<=for )\d+|\d+:\d\d:\d\d$", "N", line) for line in lines]


@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        ([*HERE, "true"], 0, [OK]),
        ([*HERE, *ONE_FAILS], 3, [END_3]),
        (
            ["--max-restarts", "1", *HERE, *ONE_FAILS], 3,
            ["restart|3|rank 0 on localhost: exit code 3: no space; restart 1 of 1", END_3],
        ),
        (["--hang-timeout", "2", "--grace", "1", *HERE, "sleep", "60"], 124, HUNG),
        (
            ["-w", "no-such-host.invalid", "--no-python", "true"], 125,
            ["end|125|error: 1 host of 1 cannot be used; nothing was started [hosts-rejected]"],
        ),
        (["--np", "x", *HERE, "true"], 2, []),
        (["--dry-run", *HERE, "true"], 0, []),
    ],
    ids=["ok", "failed", "restart", "hang", "rejected", "usage", "dry-run"],
)  # fmt: skip
def test_when_it_is_run_and_what_it_is_told(
    desk: Desk, words: list[str], code: int, lines: list[str]
) -> None:
    done = desk.run("--log-dir", "logs", "--name", "lr-1", "--on-end", TELL, *words)
    assert done.returncode == code, done.stderr
    assert told(desk.folder) == lines
    events = [line.partition("|")[0] for line in lines]
    for event in events:
        text = (desk.folder / f"input-{event}").read_text()
        if event == "end":
            found = promises.told(text)
            assert found == json.loads((desk.folder / "logs/latest/report.json").read_text())
        else:  # a line of the journal
            assert text in (desk.folder / "logs/latest/dispatch.jsonl").read_text().splitlines(True)
        known = variables(desk.folder, event)
        assert known["DISPATCH_LOG_DIR"] == str((desk.folder / "logs/latest").resolve())
        assert known["DISPATCH_LOG_DIR"].endswith(known["DISPATCH_JOB"])
        assert known["DISPATCH_PROGRAM"] == next(w for w in ("sh", "sleep", "true") if w in words)
        assert known["DISPATCH_NAME"] == "lr-1"
        assert known["HOME"] == os.environ["HOME"]
        assert "DISPATCH_RUN_ID" not in known, "it would count as a leftover of the run"


def variables(folder: Path, event: str) -> dict[str, str]:
    lines = (folder / f"env-{event}").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_and_not_the_command(desk: Desk, signum: signal.Signals) -> None:
    """The signal comes again while the command runs, to the whole group of the launcher."""
    slow = f"touch begun; sleep 1; {TELL}"
    process = desk.start(
        "--on-end", slow, *HERE, "sh", "-c", "echo up; exec sleep 60", start_new_session=True
    )
    desk.lines(process, 2)
    process.send_signal(signum)
    wait_for((desk.folder / "begun").exists, 30, "the command runs")
    if signum != signal.SIGINT:  # which asks to kill it
        os.killpg(process.pid, signum)
    code, by = 128 + signum, "" if signum == signal.SIGINT else f" by {signum.name}"
    assert process.wait(timeout=60) == code
    assert told(desk.folder) == [f"end|{code}|error: interrupted{by} [interrupted]"]


def test_ctrl_c_kills_it(desk: Desk) -> None:
    process = desk.start("--on-end", "touch begun; sleep 60", *HERE, "true")
    wait_for((desk.folder / "begun").exists, 30, "the command runs")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert process.returncode == 0
    assert re.fullmatch(r"note: --on-end \(end\): killed after \d+ s\n", said)


def test_a_job_in_the_background(desk: Desk, state: Path) -> None:
    assert desk.run("--detach", "--on-end", TELL, *HERE, *FAILS).returncode in (0, 3, 4)
    at = desk.folder / "env-end"
    wait_for(lambda: at.exists() and "DISPATCH_LOG_DIR" in at.read_text(), 60, "it is run")
    (line,) = told(desk.folder)
    assert re.match(r"end\|[34]\|error: rank [01] on localhost, pid N: exit code", line)
    assert variables(desk.folder, "end")["DISPATCH_LOG_DIR"] == jobs()[-1]["logs"]


# -- in this process ------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("echo much; cat > got", ""),
        ("exit 7", "exit code 7"),
        ("echo sent; printf 'curl: (6) no \\033[2Jhost\\n' >&2; exit 6",
         "exit code 6: curl: (6) no \\x1b[2Jhost"),
        ("kill -9 $$", "killed by SIGKILL (signal 9)"),
        ("x" * (1 << 18), "argument list too long"),
        ("\0", "embedded null byte"),
        ("yes", "killed after N s"),
        ("exec > /dev/null 2>&1; sleep 60", "killed after N s"),
        ("sleep 60 &", "killed after N s"),
        ("setsid sleep 3 > /dev/null 2>&1 &", ""),
    ],
)  # fmt: skip
def test_a_command_that_fails_is_one_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    command: str, note: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(on_end, "LIMIT", 0.6)
    assert cli.main(["--on-end", command, *HERE, "true"]) == 0
    out, err = capfd.readouterr()
    expected = f"note: --on-end (end): {note}\n" if note else ""
    assert (out, re.sub(r"(?<=after )\d+", "N", err)) == ("", expected)


def test_a_large_report_is_no_burden_for_a_command_that_reads_nothing(folder: Path) -> None:
    for command in ("wc -c > size", "true"):
        call = on_end._Call("end", command, os.environb, b"x" * (8 << 20))
        call.start()
        call.join(60)
        assert (call.is_alive(), call.trouble) == (False, "")
    assert int((folder / "size").read_text()) == 8 << 20


@pytest.mark.parametrize("quiet", [False, True])
def test_the_user_s_own_file_may_set_it(
    folder: Path, capfd: pytest.CaptureFixture[str], quiet: bool
) -> None:
    own = folder / "config/dispatch/dispatch.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[run]\non-end = 'touch own; exit 1'\n")
    assert cli.main([*(["-q"] if quiet else []), *HERE, "true"]) == 0
    assert (folder / "own").exists()
    assert capfd.readouterr().err == ("" if quiet else "note: --on-end (end): exit code 1\n")
    (folder / "own").unlink()
    assert cli.main(["--on-end", "", *HERE, "true"]) == 0
    assert not (folder / "own").exists()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DispatchError("no"), 125, "no [dispatch-failed]"),
        (ValueError("no"), 125, "ValueError: no"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt: "),
        (UsageError("no"), 2, ""),
    ],
)
def test_an_error_of_dispatch_itself_is_an_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(loop, "pass_over", fail)
    with pytest.raises(ValueError) if isinstance(error, ValueError) else nullcontext():
        assert cli.main(["--on-end", TELL, *HERE, "true"]) == code
    assert told(folder) == ([f"end|{code}|error: {text}"] if text else [])
    if text:
        record = json.loads((folder / "input-end").read_text())
        (end,) = (folder / "state/dispatch/jobs").glob("*/end.json")
        assert record.keys() == json.loads(end.read_text()).keys()
        assert (record["exit_code"], record["verdict"]) == (code, [f"error: {text}"])
