"""How ``exec`` shows and keeps output, over this machine by three of its names."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases
from rig import wait_for

from dispatcher import cli
from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.exec.exec_output import ExecOutput
from dispatcher.model.host import Host
from dispatcher.output.exec.exec_progress import ExecNotes
from dispatcher.plan.exec_plan import ExecPlan

from ..conftest import Terminal, full_disk

ON_THREE = ["exec", "-w", "localhost,127.0.0.1", "-H", "::1"]


@pytest.fixture(autouse=True)
def _here(nothing_around: Path) -> None:
    """No batch job, an empty folder."""


def test_lines_are_labelled(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ON_THREE, "--shell", "echo out; echo error >&2"]) == 0
    out, err = capfd.readouterr()
    names = ["127.0.0.1", "::1", "localhost"]
    assert sorted(out.splitlines()) == [f"{name}: out" for name in names]
    assert sorted(err.splitlines()) == [f"{name}: error" for name in names]


@cases(
    ("words", "out", "err"),
    [
        ([], "localhost: out\n", "localhost: error\n"),
        (["-N"], "out\n", "error\n"),
        (["-b"], "---------------\nlocalhost\n---------------\nout\n", "localhost: error\n"),
        (["-b", "-N"], "out\n", "error\n"),
        (["-B"], "---------------\nlocalhost\n---------------\nout\n",
         "---------------\nlocalhost, standard error\n---------------\nerror\n"),
    ],
)  # fmt: skip
def test_how_it_is_shown(
    words: list[str], out: str, err: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = ["exec", "-w", "localhost", *words, "--shell", "echo out; echo error >&2"]
    assert cli.main(line) == 0
    assert capfd.readouterr() == (out, err)


def test_how_output_differs_from_that_of_most(capfd: pytest.CaptureFixture[str]) -> None:
    text = "mkdir one 2>/dev/null && echo odd || echo same; echo end"
    assert cli.main([*ON_THREE, "--serial", "1", "--diff", "--shell", text]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if line[:1] in "+-" and line[1:2].isalpha()] == [
        "-same", "+odd",
    ]  # fmt: skip
    assert "::1" in out


@cases(
    ("text", "shown"),
    [
        ('[ "$DISPATCH_INDEX" != 1 ] || echo odd', ["+odd"]),
        ('[ "$DISPATCH_INDEX" = 1 ] || echo same', ["-same"]),
        ('[ "$DISPATCH_INDEX" = 1 ] && kill -9 $$; echo same', []),
    ],
)
def test_who_ends_and_says_nothing_differs_from_those_who_do(
    text: str, shown: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    cli.main([*ON_THREE, "--diff", "--shell", text])
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line[:1] in "+-" and line[1:2].isalpha()] == shown


def test_output_that_is_missing_is_a_host_s(capfd: pytest.CaptureFixture[str]) -> None:
    """As of a paused terminal."""
    plan = ExecPlan((Host("n1"), Host("n2")), ("true",))
    screen = ExecOutput(ExecOptions(), plan, print, lambda: None).sinks[-1]
    screen.gap({(1, 1): 5})
    screen.gap({(0, 1): 5, (1, 1): 2})
    screen.close()
    assert capfd.readouterr().out == (
        "... 5 bytes of n2 not shown\n... 7 bytes of 2 hosts not shown\n"
    )


def test_the_time_before_every_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exec", "-w", "localhost", "-T", "echo", "x"]) == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d\S* localhost: x\n", capfd.readouterr().out)


def test_for_programs(capfd: pytest.CaptureFixture[str]) -> None:
    text = "echo out; echo error >&2; exit 3"
    assert cli.main([*ON_THREE, "--json", "--shell", text]) == 1
    out, err = capfd.readouterr()
    rows = [promises.told(line) for line in out.splitlines()]
    assert [row["host"] for row in rows] == ["::1", "localhost", "127.0.0.1"]
    assert {(row["stdout"], row["stderr"], row["code"]) for row in rows} == {
        ("out\n", "error\n", 3)
    }
    assert err.startswith("error: 3 of 3 hosts failed [hosts-failed]\n")


@cases(
    ("file", "word", "out"),
    [
        ("gather = true\ndiff = true", "--json", None),
        ("json = true", "-L", "localhost: hi\n"),
        ("stdin = true", "-n", "localhost: hi\n"),
        ("pty = true", "-I", "localhost: hi\n"),
        ("stdin = true", "--pty", "localhost: hi\n"),
        ("no-stdin = true", "-I", "localhost: hi\n"),
    ],
)
def test_what_is_typed_wins_over_what_a_file_says(
    file: str, word: str, out: str | None, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DISPATCH_CONFIG", "dispatch.toml")
    Path("dispatch.toml").write_text(f"[exec]\n{file}\n")
    assert cli.main(["exec", "-w", "localhost", word, "echo", "hi"]) == 0
    shown = capfd.readouterr().out
    assert promises.told(shown)["stdout"] == "hi\n" if out is None else shown == out


def test_a_dry_run_tells_how_many_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--serial", "50%", "--max-fail", "1%", "--dry-run", "echo", "hi"]
    assert cli.main([*ON_THREE, *words]) == 0
    assert capfd.readouterr().out.splitlines()[1:] == [
        "on at most 2 of 3 at a time (--serial 50%)", "no more hosts once 1 failed (--max-fail)",
    ]  # fmt: skip
    assert cli.main([*ON_THREE, "--serial", "10", "--dry-run", "echo", "hi"]) == 0
    assert capfd.readouterr().out.splitlines()[1:] == ["on all 3 hosts at a time (--serial 10)"]


@cases("command", ["exec", "put", "get"])
def test_a_dry_run_tells_the_steps(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").touch()
    words = [str(tmp_path / "f"), "/there"]
    line = [command, "-w", "n[1-24]", "--serial", "1,10%,2", "--delay", "5", "--dry-run"]
    assert cli.main([*line, *words]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert len(shown) == 13 + (24 if command == "get" else 1)
    shown = shown[-13:]
    assert shown[:3] == [
        "batch 1 of 12: n1 (1)", "batch 2 of 12: n[2-4] (3)", "batch 3 of 12: n[5-6] (2)",
    ]  # fmt: skip
    assert shown[10:] == [
        "and so on: 2 batches more", "5 s after each batch (--delay)",
        "no more batches once all hosts of one failed (--serial)",
    ]  # fmt: skip
    assert cli.main([*line, "--max-fail", "10%", "--json", *words]) == 0
    told = promises.told(capfd.readouterr().out)
    assert (told["batches"], told["delay"], told["max_fail"]) == ([1, 3, *[2] * 10], 5.0, 3)
    assert cli.main([*line, "--max-fail", "10%", *words]) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "no more batches once all hosts of one of batches 1-2 failed (--serial)",
        "no more hosts once 3 failed (--max-fail)",
    ]


@cases("other", ["-b", "-B", "-L", "--diff"])
def test_json_is_alone(other: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ON_THREE, "--json", other, "true"]) == 2
    assert (
        capfd.readouterr().err
        == "error: --json cannot be used with -b, -B, -L or --diff [conflicting-options]\n"
    )


def test_what_is_kept_in_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "echo out; echo error >&2"
    words = [*ON_THREE, "-o", "out", "-e", "err", "--events", "events", "--shell", text]
    assert cli.main(words) == 0
    assert capfd.readouterr().out.count("out") == 3
    for folder, said in (("out", "out\n"), ("err", "error\n")):
        found = {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
        assert found == dict.fromkeys(("127.0.0.1", "::1", "localhost"), said)
    promises.keep_journal(tmp_path / "events")
    names = [json.loads(line)["name"] for line in (tmp_path / "events").read_text().splitlines()]
    assert names.count("host.done") == 3
    (tmp_path / "one").mkdir()
    assert cli.main(["exec", "-w", "localhost", "-o", "one", "echo", "x"]) == 0
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["localhost"]


def test_every_step_is_told_by_v(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exec", "-v", "-w", "localhost", "true"]) == 0
    assert "localhost" in capfd.readouterr().err
    assert cli.main(["exec", "-w", "localhost", "true"]) == 0
    assert capfd.readouterr().err == ""


# -- before a terminal ------------------------


@contextmanager
def going_on(seen: Callable[[], bool]) -> Iterator[str]:
    """Text for a shell that waits in the block until something was ``seen``, half a minute at most.

    The file of which it waits lies in the folder of the test.
    """

    def look() -> None:
        with suppress(AssertionError):  # the test will say what is missing
            wait_for(seen, 30)
        Path("seen").touch()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield "until [ -e seen ]; do sleep 0.05; done"
    finally:
        looker.join()


def test_progress_stands_below_the_lines(terminal: Terminal) -> None:
    terminal.take()
    with going_on(lambda: "3 hosts" in terminal.text or "/3" in terminal.text) as waits:
        assert cli.main([*ON_THREE, "--shell", f"echo line; echo oops >&2; {waits}"]) == 0
    shown = terminal.leave()
    assert shown.count("line") == 3
    assert terminal.plain.count(": oops") == 3  # as it is, though both streams end here
    assert "3 hosts" in shown or "/3" in shown
    assert "\x1b[" in shown


@cases("words", [["-q"], ["-I"], ["--sudo"]])
def test_no_progress_where_it_would_be_in_the_way(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatcher.cli.exec import exec_output

    monkeypatch.setattr(exec_output, "may_draw", lambda environ: True)
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 0)
    kinds = {"-q": {"quiet": True}, "-I": {"stdin": True}, "--sudo": {"sudo": "root"}}
    draw = exec_output._may_draw
    assert draw(ExecOptions())
    assert not draw(ExecOptions(**kinds[words[0]]))  # type: ignore[arg-type]
    # the password is known already; what is read is no terminal
    assert draw(ExecOptions(sudo="root", ask_sudo_password=True))
    monkeypatch.setattr(os, "isatty", lambda fd: fd != 0)
    assert draw(ExecOptions(stdin=True))
    monkeypatch.setattr(exec_output, "may_draw", lambda environ: False)
    assert not draw(ExecOptions())


# -- what goes wrong beside the hosts ----------------------------------------------------------


@cases("words", [[], ["-N"], ["-b"], ["-L"], ["-B"], ["--json"]])
def test_a_full_disk(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Told once; the commands go on to their ends, for what else they do."""
    text = f"cd {os.getcwd()}; for i in 1 2 3; do echo x; done; echo done > it; exit"
    with full_disk():
        assert cli.main(["exec", "-w", "localhost", *words, text]) == 1
    assert Path("it").read_text() == "done\n"
    assert capfd.readouterr().err == "error: standard output: no space left on device\n"


def test_a_sink_that_fails_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def event(self: ExecNotes, entry: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ExecNotes, "event", event)
    assert cli.main(["exec", "-w", "localhost", "echo", "x"]) == 0
    out, err = capfd.readouterr()
    assert out == "localhost: x\n"
    assert "error: ExecNotes: a bug\n" in err
    assert cli.main(["put", "-w", "localhost", "/etc/hostname", os.getcwd() + "/"]) == 0
    assert "error: ExecNotes: a bug\n" in capfd.readouterr().err
