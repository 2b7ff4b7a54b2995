"""The way into a command and out of it: errors in one form, exit codes, handlers of signals."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import enter, load_command
from dispatcher.cli.jobs import jobs
from dispatcher.core.events import codec
from dispatcher.core.events.monitor_events import RunBegan
from dispatcher.core.events.run_events import Entry, NodeConnecting, RunFinished
from dispatcher.model.errors import DispatchError, UsageError

Does = Callable[[Callable[[Any], Any]], None]


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Does:
    """``does(function)``: that is what the command ``jobs`` does."""
    return lambda function: monkeypatch.setattr(jobs, "jobs", function)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def function(options: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(("found", "code"), [(0, 0), (7, 7), (None, 0)])
def test_what_a_command_returns(does: Does, found: int | None, code: int) -> None:
    seen = []

    def does_it(options: Any) -> int | None:
        seen.append(options)
        return found

    does(does_it)
    assert enter("jobs", ["--json"]) == code
    assert seen == [jobs.JobsOptions(as_json=True, everything=False)]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("who: why", hint="do"), 2, "error: who: why [bad-value]\n  hint: do\n"),
        (DispatchError("who: why"), 125, "error: who: why [dispatch-failed]\n"),
        (click.exceptions.Abort(), 130, ""),
        (click.UsageError("No such thing."), 2,
         "error: no such thing [unexpected-argument]\n  hint: dispatch jobs --help\n"),
    ],
)  # fmt: skip
def test_an_error(
    does: Does, error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    does(raising(error))
    assert enter("jobs", []) == code
    assert capsys.readouterr() == ("", said)


def test_nobody_reads(does: Does, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of what would be written goes nowhere, and is no error."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    does(raising(BrokenPipeError()))
    assert enter("jobs", []) == 141
    with sys.stdout:
        assert sys.stdout.name == os.devnull


def test_a_reader_that_has_gone() -> None:
    """As with ``| head -1``: ends as if by SIGPIPE, also if only the flush fails."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dispatcher"]
    dry = ["-H", "localhost", "--dry-run", "--no-python", "true"]
    listed = (["hosts", "n1"], ["hosts", "n[1-9999]"], ["explain", "--json"])
    for words in (*listed, ["--help"], ["help"], dry):
        done = subprocess.run(
            [*command, *words], stdout=writer, stderr=subprocess.PIPE, check=False
        )
        assert (words, done.returncode, done.stderr) == (words, 141, b"")
    os.close(writer)


def test_a_full_disk() -> None:
    """One line that says so, whether the write fails or the flush."""
    command = [sys.executable, "-m", "dispatcher"]
    fanned = ["exec", "-w", "localhost"]
    for buffered, words in (
        ("1", ["hosts", "n1"]), ("", ["hosts", "n1"]), ("1", ["explain"]), ("", ["help"]),
        ("1", ["help"]), ("", [*fanned, "--dry-run", "true"]), ("", [*fanned, "echo", "x"]),
        ("", ["-H", "localhost", "--no-python", "echo", "x"]),
    ):  # fmt: skip
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*command, *words], stdout=full, stderr=subprocess.PIPE, check=False,
                env={**os.environ, "PYTHONUNBUFFERED": buffered},
            )  # fmt: skip
        told = [line for line in done.stderr.splitlines() if not line.startswith(b"note: ")]
        assert (words, done.returncode, told) == (
            words, 1, [b"error: standard output: no space left on device"],
        )  # fmt: skip


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_and_notes_in_one_pipe(unbuffered: str) -> None:
    """Each line stands where it was said, as on a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher", "exec", "-w", "n1", "--dry-run", "true"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert done.stdout == b"n1 (1): run true\nnote: a dry run: no host was contacted\n"


@cases(
    ("words", "out"),
    [
        (["report", "./run", "-o", "-"], "<td>łódź".encode()),  # a page is UTF-8
    ],
)
def test_a_locale_that_is_not_utf_8(tmp_path: Path, words: list[str], out: bytes) -> None:
    happened = (RunBegan("x", 0.0, ("łódź",)), NodeConnecting(0), RunFinished(0, ""))
    lines = [codec.encode(Entry(at, float(at), event)) for at, event in enumerate(happened, 1)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dispatch.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "run" / "plan.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher", *words], cwd=tmp_path, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=True,
    )  # fmt: skip
    assert out in done.stdout


SAYS_MUCH = """
from dispatcher import cli
cli._open_standard_streams()
cli.say("x" * 25_000)
"""


@cases(
    ("stream", "words"),
    [("stdout", ["-m", "dispatcher", "explain", "--json"]), ("stderr", ["-c", SAYS_MUCH])],
)
def test_a_pipe_that_others_made_non_blocking(stream: str, words: list[str]) -> None:
    """As ssh and node leave one that they share with us: we wait for its reader."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with subprocess.Popen([sys.executable, *words], **{stream: writer}) as process:  # type: ignore[call-overload]
        os.close(writer)
        with open(reader, "rb") as file:
            read = file.read()
    assert (process.returncode, len(read) > 25_000, read[-1:]) == (0, True, b"\n")


@cases(
    ("line", "code", "out"),
    [
        ("exec -w localhost echo a >&-", 0, b""),
        ("hosts n1 >&-", 0, b""),
        ("exec -w localhost -S 'exit 3' 2>&-", 3, b""),
        ("exec -w localhost -I wc -c <&-", 0, b"localhost: 0\n"),
        ("exec -w localhost -n echo a <&- 2>&-", 0, b"localhost: a\n"),
        ("-H localhost --no-python true <&- >&- 2>&-", 0, b""),
        # or a full disk, or nobody who reads: what runs goes on, and its exit code stays
        ("-H localhost --no-python sh -c 'echo a; exit 3' 2>/dev/full", 3, b"[0] a\n"),
        ("exec -w localhost -S 'exit 3' 2>/dev/full", 3, b""),
        ("exec -w nowhere.invalid true 2>/dev/full", 125, b""),
        ("--no-such 2>/dev/full", 2, b""),
    ],
)
def test_where_messages_go_nowhere(line: str, code: int, out: bytes) -> None:
    """As a job of cron may have it: what would be written there goes nowhere."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -m dispatcher {line}"],
        capture_output=True, check=False,
    )  # fmt: skip
    told = [one for one in done.stderr.splitlines() if not one.startswith(b"note: ")]
    assert (done.returncode, done.stdout, told) == (code, out, [])


def test_another_error_of_a_file_is_a_bug(does: Does) -> None:
    does(raising(FileNotFoundError(2, "nothing", "x")))
    with pytest.raises(FileNotFoundError):
        enter("jobs", [])


@cases(
    ("words", "hint"),
    [
        (["--nosuch"], "dispatch --help"),
        (["exec", "--nosuch"], "dispatch exec --help"),
        (["run", "--nosuch"], "dispatch run --help"),
        (["completion", "tcsh"], "dispatch completion --help"),
        (["report", "a", "b"], "dispatch report --help"),
        (["completion"], "dispatch completion --help"),
        (["jobs", "one", "more"], "dispatch jobs --help"),
    ],
)
def test_words_that_no_command_takes(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    first, *_, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert not first[7].isupper()
    assert not first.endswith(".")
    assert second == f"  hint: {hint}"


def test_what_follows_the_program_is_the_program_s() -> None:
    settings = {name: load_command(name).context_settings for name in COMMANDS}
    last = {name for name, one in settings.items() if not one["allow_interspersed_args"]}
    assert last == {"run", "exec", "dsx", "import"}


def test_dashes_and_underscores_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--fold-numbers", "--fold_numbers"):
        words = ["-H", "n1:1", word, "--dry_run", "--no-python", "true"]
        assert cli.main(words) == 0
        assert "world size  1" in capsys.readouterr().out


@cases("words", [["--version"], ["run", "--version"], ["--np", "0", "--version"]])
def test_the_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else is wrong."""
    from dispatcher import __version__

    assert cli.main(words) == 0
    assert capsys.readouterr() == (f"dispatch, version {__version__}\n", "")


def test_a_script_of_a_command_s_name_is_reached_by_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-H", "n1:1", "--dry-run", "exec"]) == 0
    assert "rank 0" in capsys.readouterr().out


@cases(
    ("words", "usage"),
    [(["help"], "dispatch "), (["help", "put"], "dispatch put "), (["help", "put", "x"],
     "dispatch put ")],
)  # fmt: skip
def test_help_is_a_command(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out.startswith(f"Usage: {usage}")


# -- main ------------------------


def test_handlers_are_as_they_were(does: Does) -> None:
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def deaf(options: Any) -> int:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        return 3

    does(deaf)
    assert cli.main(["jobs"]) == 3
    assert [signal.getsignal(number) for number in numbers] == before
    does(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["jobs"])


def test_another_thread_may_call(does: Does) -> None:
    does(lambda options: 5)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["jobs"])))
    thread.start()
    thread.join(60)
    assert codes == [5]


def test_the_words_of_the_process(does: Does, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    does(seen.append)
    monkeypatch.setattr(sys, "argv", ["dispatch", "jobs", "--all"])
    assert cli.main() == 0
    assert seen == [jobs.JobsOptions(everything=True, as_json=False)]


# -- console ------------------------


def test_ends_of_children_count_where_who_started_us_ignores_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher", "exec", "-w", "localhost", "sh -c 'exit 7'"],
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    assert b"exit code 7" in done.stderr
    assert done.returncode == 1


class Left(BaseException):
    """The process would be gone."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(sys, "argv", ["dispatch", "jobs"])
    before = gc.get_threshold()
    yield codes
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(None, 4, ""), (KeyboardInterrupt(), 130, ""), (ZeroDivisionError("a bug"), 125, "a bug")],
)
def test_the_process_ends_at_once(
    does: Does, left: list[int], error: BaseException | None, code: int, said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    does((lambda options: 4) if error is None else raising(error))
    with pytest.raises(Left):
        cli.console()
    assert left == [code]
    assert gc.get_threshold()[0] > 10_000
    err = capsys.readouterr().err
    assert said in err
    assert ("Traceback" in err) == (code == 125)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [(OSError(), 0, 1), (OSError(), 4, 4), (BrokenPipeError(), 0, 141), (BrokenPipeError(), 4, 4)],
)
def test_words_that_do_not_arrive(
    does: Does, left: list[int], error: OSError, code: int, told: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Full:
        def flush(self) -> None:
            raise error

    does(lambda options: code)
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(Left):
        cli.console()
    sys.stdout.close()
    assert left == [told]


def test_what_was_written_is_flushed(does: Does, left: list[int], tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            does(lambda options: print("words") or cli.sys.stderr.write("more"))  # type: ignore[attr-defined]
            with pytest.raises(Left):
                cli.console()
        assert (tmp_path / "out").read_text() == "words\n"
        assert (tmp_path / "err").read_text() == "more"
