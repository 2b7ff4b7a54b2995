"""``attach`` and ``stop``: what is ordered of a job's launcher, and shown of what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for

from dispatcher import cli
from dispatcher.cli.jobs.attach import RemoteProgress
from dispatcher.core.events import codec
from dispatcher.core.events.run_events import Entry, Event, OutputEnded, RankSpawned, RanksPlaced
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import frame, listen
from dispatcher.model.frozen import fields_of
from dispatcher.output.monitor.run_picture import Picture, picture_of
from dispatcher.output.run_state import LOST, RUNNING, RunState

from ..conftest import FakeLauncher, Launched, OnRecord, Terminal

VERDICT = frame(type="verdict", exit_code=3, lines=[])
RUN_ID = "20260131-142501-k3f9x2"
CODE = f"note: job {RUN_ID} ended, exit code 3\n"


def happened(*events: Event) -> str:
    """The lines of a journal."""
    return "".join(codec.encode(Entry(1, 0.0, event)).decode() for event in events)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """What two ranks have written, and where they run."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "rank-00000.out").write_bytes(b"past of 0\nhalf")
    (folder / "rank-00001.out").write_bytes(b"past of 1\n")
    (folder / "rank-00001.err").write_bytes(b"oops\n")
    (folder / "dispatch.jsonl").write_text(
        happened(RanksPlaced(2, "n1", 1), RankSpawned(1, 0, 7), RankSpawned(1, 1, 8))
    )
    return folder


def write(folder: Path, **texts: str) -> Callable[[], None]:
    """A function that adds to the files of ranks: ``out0="text"``."""

    def add() -> None:
        for name, text in texts.items():
            with open(folder / f"rank-0000{name[3]}.{name[:3]}", "a") as file:
                file.write(text)

    return add


def test_what_it_says_from_now_on(
    launched: Launched, logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = launched(
        frame(type="say", line="note: n1 is slow"),
        frame(type="nothing we know"),
        VERDICT,
        frame(type="say", line="not heard"),
        before=write(logs, out0=" and more\n", err1="error\n", out1="open"),
        logs=logs, code=3, lines=("error: rank 0: exit code 3", "  hint: look"),
    )  # fmt: skip
    assert cli.main(["attach"]) == 3
    out, err = capfd.readouterr()
    assert out.splitlines() == ["[0]  and more", "[1] open"]
    assert "not heard" not in err
    assert "[1] error\n" in err
    assert "oops" not in err
    assert "note: n1 is slow\n" in err
    assert err.endswith(f"error: rank 0: exit code 3\n  hint: look\n{CODE}")
    assert one.orders == [{"order": "attach", "notes": True, "picture": False}]


@pytest.mark.parametrize(
    ("words", "notes", "shown"),
    [
        (["-q"], False, []),
        (["--only-ranks", "1"], True, ["[1] b"]),
        (["--rank0"], True, ["[0] a"]),
        (["--grep", "b"], True, ["[1] b"]),
        (["--label", "none"], True, ["a", "b"]),
        (["--label", "host"], True, ["[n2:0] a", "[n2:1] b"]),
        (["latest"], True, ["[0] a", "[1] b"]),
        (["k3f9"], True, ["[0] a", "[1] b"]),
    ],
)
def test_how_it_is_shown(
    launched: Launched, logs: Path, capfd: pytest.CaptureFixture[str],
    words: list[str], notes: bool, shown: list[str],
) -> None:  # fmt: skip
    one = launched(VERDICT, logs=logs, before=write(logs, out0="a\n", out1="b\n"))
    assert cli.main(["attach", *words]) == 0
    assert capfd.readouterr().out.splitlines() == shown
    assert one.orders[0]["notes"] is notes


def test_from_the_start_nothing_is_missing_or_twice(
    launched: Launched, logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launched(VERDICT, logs=logs, before=write(logs, out0=" line\n"))
    assert cli.main(["attach", "--from-start"]) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] half line", "[0] past of 0", "[1] past of 1"]
    assert err.startswith("[1] oops\n")


def test_equal_lines_wait_for_no_rank_that_has_ended(
    launched: Launched, logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (logs / "dispatch.jsonl").open("a") as journal:
        journal.write(happened(OutputEnded(1, 1, 1, 10, 10), OutputEnded(1, 1, 2, 5, 5)))

    def shown() -> None:
        write(logs, out0="same\n")()
        wait_for(lambda: "[0] same" in capfd.readouterr().out, 30, lambda: "it is shown at once")

    launched(VERDICT, logs=logs, before=shown)
    assert cli.main(["attach", "--fold", "--only-ranks", "0"]) == 0


@pytest.mark.parametrize(("by_program", "whose"), [(False, "terminal"), (True, "program")])
def test_a_job_without_files_is_shown_without_its_output(
    launched: Launched, by_program: bool, whose: str, capfd: pytest.CaptureFixture[str]
) -> None:
    launched(frame(type="say", line="note: x"), VERDICT, detached=False, by_program=by_program)
    assert cli.main(["attach"]) == 0
    said = f"note: job {RUN_ID} keeps no files (--log-dir), so only its {whose} has its output\n"
    end = f"note: job {RUN_ID} ended, exit code 0\n"
    assert capfd.readouterr() == ("", f"{said}note: x\n{end}")


@pytest.mark.parametrize("merged", [False, True])
def test_a_job_that_has_ended(
    on_record: OnRecord, logs: Path, merged: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = on_record(logs=logs)
    registry.conclude(folder, 3, ["error: it failed"])
    if merged:
        (logs / "merged.log").write_text("")
    assert cli.main(["attach"]) == 3
    assert capfd.readouterr() == ("", f"error: it failed\n{CODE}")
    assert cli.main(["attach", "--from-start", "--label", "host"]) == 3
    out, err = capfd.readouterr()
    assert err.endswith(f"error: it failed\n{CODE}")
    if merged:
        assert out == ""
    else:
        assert out.splitlines() == ["[n2:0] past of 0", "[n2:1] past of 1", "[n2:0] half"]


@pytest.mark.parametrize(
    ("about", "words", "code", "said"),
    [
        ({}, ["--from-start"], 125, "job {id}: it keeps no files"),
        ({"logs": Path("/no/where")}, ["--from-start"], 125, "job {id}: its files are gone: /no/w"),
        ({}, ["--from-start", "--timestamps"], 2, "--timestamps: attach does not know the times"),
        ({}, ["--only-ranks", "2"], 2, "--only-ranks"),
        ({}, ["other"], 2, "this machine has no record of job 'other'"),
    ],
)
def test_refusals(
    on_record: OnRecord, capfd: pytest.CaptureFixture[str],
    about: dict[str, Path], words: list[str], code: int, said: str,
) -> None:  # fmt: skip
    registry.conclude(on_record(**about), 0, [])
    assert cli.main(["attach", *words]) == code
    assert capfd.readouterr().err.startswith(f"error: {said.format(id=RUN_ID)}")


@pytest.mark.parametrize("command", ["attach", "stop"])
def test_nobody_answers(
    on_record: OnRecord, command: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(registry, "DYING", 0.0)
    on_record()
    assert cli.main([command]) == 125
    said = f"error: job {RUN_ID}: its launcher does not answer [launcher-silent]\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["attach"], 3, f"error: it failed\n{CODE}"),
        (["stop"], 0, f"error: it failed\n{CODE}"),
        (["top"], 125, f"error: job {RUN_ID}: it has ended, exit code 3 [job-ended]\n"),
    ],
)
def test_a_job_that_ends_as_it_is_called(
    on_record: OnRecord, words: list[str], code: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It was found running, and then nobody listens any more."""
    folder, usual = on_record(), registry.find

    def find(*name: Any, **how: Any) -> registry.Job:
        found = usual(*name, **how)
        registry.conclude(folder, 3, ["error: it failed"])
        return found

    monkeypatch.setattr(registry, "find", find)
    assert cli.main(words) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(said)


@pytest.mark.parametrize("words", [["attach"], ["stop"], ["stacks"], ["top"]])
def test_a_launcher_that_is_gone_left_its_word_or_none(
    launched: Launched, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    launched(b"[1]\n", code=None)
    assert cli.main(words) == 125
    assert "its launcher does not answer" in capfd.readouterr().err


@pytest.mark.parametrize(("words", "code"), [(["attach"], 3), (["stop"], 0)])
def test_the_launcher_s_verdict_counts_where_no_disk_takes_it(
    launched: Launched, words: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    launched(frame(type="verdict", exit_code=3, lines=["error: it failed"]), code=None)
    assert cli.main(words) == code
    assert capfd.readouterr().err.endswith(f"error: it failed\n{CODE}")


@pytest.mark.parametrize("words", [["attach"], ["top"]])
def test_there_is_no_room_for_one_more(
    launched: Launched, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    launched(frame(type="refused", why="16 others are attached to it", hint=None), code=None)
    assert cli.main(words) == 125
    said = f"error: job {RUN_ID}: 16 others are attached to it [launcher-silent]\n"
    assert capfd.readouterr().err.endswith(said)


Paused = tuple[FakeLauncher, registry.Process]


@pytest.fixture
def paused(launched: Launched) -> Iterator[Paused]:
    """A job that would answer, and the process on record as its launcher, which is stopped."""
    one = launched(VERDICT, code=3)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        known = registry.Process.of(process.pid)
        assert known is not None
        path = one.folder / "job.json"
        launcher = [known.pid, known.started, known.boot]
        path.write_text(json.dumps({**json.loads(path.read_text()), "launcher": launcher}))
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: known.is_stopped, 30, "the process is stopped")
        yield one, known
        process.kill()


@pytest.mark.parametrize("words", [["attach"], ["restart"], ["stacks"], ["top"]])
def test_a_paused_launcher_is_not_waited_for(
    paused: Paused, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    one, process = paused
    assert cli.main(words) == 125
    said = f"error: job {RUN_ID}: it is paused (pid {process.pid}) [launcher-silent]\n"
    hint = f"  hint: kill -CONT {process.pid}  # or fg where it was started\n"
    assert capfd.readouterr().err == said + hint
    one.close()
    assert not one.called  # its queue is not filled with those who have gone again


def test_a_paused_launcher_is_woken_to_stop(paused: Paused) -> None:
    one, process = paused
    assert cli.main(["stop"]) == 0
    assert [order["order"] for order in one.orders] == ["stop"]
    wait_for(lambda: not process.is_stopped, 30, "it goes on")


def test_what_it_shows_is_shown_before_the_end_is_told(
    launched: Launched, logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last words of a launcher that hangs up without a verdict: the record has it."""
    launched(code=3, logs=logs, before=write(logs, out0="last"))
    assert cli.main(["attach"]) == 3
    assert capfd.readouterr() == ("[0] last\n", CODE)


# -- Ctrl-C -------------------------------------------------------------------------------


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_detaches(launched: Launched, capfd: pytest.CaptureFixture[str]) -> None:
    one = launched(before=interrupt, code=None)
    assert cli.main(["attach"]) == 130
    err = capfd.readouterr().err
    assert f"note: detached; job {RUN_ID} goes on" in err
    assert [order["order"] for order in one.orders] == ["attach"]


@pytest.mark.parametrize("presses", [1, 2, 3])
def test_ctrl_c_ends_the_job_only_if_that_was_asked_for(
    on_record: OnRecord, presses: int, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dispatcher.core.interrupts.APART", 0.0)  # a person is not so quick
    folder = on_record()
    listener = listen(folder)
    listener.setblocking(True)
    orders: list[dict[str, object]] = []

    def serve() -> None:
        link, _ = listener.accept()
        with link, link.makefile("rb") as lines, suppress(OSError):
            orders.append(json.loads(lines.readline()))
            for nth in range(presses):
                interrupt()
                if nth < 2:
                    orders.append(json.loads(lines.readline()))
            if presses < 3:
                registry.conclude(folder, 130, ["error: interrupted"])
                link.sendall(VERDICT)
            lines.read()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["attach", "--stop-on-interrupt"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    thread.join(60)
    listener.close()
    wanted = [{"order": "stop", "now": False}, {"order": "stop", "now": True}]
    assert orders[1:] == wanted[: min(presses, 2)]
    err = capfd.readouterr().err
    assert ("detached" in err) == (presses == 3)
    if presses < 3:
        assert "note: ending the job; again to kill it\n" in err
        assert ("note: killing the job\n" in err) == (presses == 2)
        assert f"error: interrupted\nnote: job {RUN_ID} ended, exit code 130\n" in err


# -- stop ------------------------


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ([], {"now": False, "signal": 0}),
        (["--now"], {"now": True}),
        (["latest"], {"now": False, "signal": 0}),
        (["--signal", "USR1"], {"now": False, "signal": 10}),
    ],
)
def test_stop_waits_for_the_end(
    launched: Launched, words: list[str], how: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    one = launched(VERDICT, code=3, lines=("error: interrupted",))
    assert cli.main(["stop", *words]) == 0
    assert one.orders == [{"order": "stop", **how}]
    assert capfd.readouterr() == ("", f"error: interrupted\n{CODE}")


def test_stop_at_once_begins_with_no_signal(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "--now", "--signal", "USR1"]) == 2
    assert "--now and --signal exclude each other: --now kills at once" in capfd.readouterr().err


def test_stop_of_a_job_that_has_ended(
    on_record: OnRecord, capfd: pytest.CaptureFixture[str]
) -> None:
    registry.conclude(on_record(), 3, ["error: it failed"])
    assert cli.main(["stop"]) == 0
    assert capfd.readouterr().err == f"error: it failed\n{CODE}"


def test_stop_where_none_runs(on_record: OnRecord, capfd: pytest.CaptureFixture[str]) -> None:
    for run_id in (RUN_ID, "20260131-142502-aaaaaa"):
        registry.conclude(on_record(run_id), 0, [])
    assert cli.main(["stop"]) == 2
    assert capfd.readouterr().err == (
        "error: no job runs here [no-such-job]\n  hint: dispatch jobs -a\n"
    )


def test_ctrl_c_leaves_it_ending(launched: Launched, capfd: pytest.CaptureFixture[str]) -> None:
    launched(before=interrupt, code=None)
    assert cli.main(["stop"]) == 130
    said = f"note: job {RUN_ID} is being ended; dispatch attach shows it"
    assert said in capfd.readouterr().err


# -- before a terminal ------------------------


def picture() -> bytes:
    state = RunState(["n1", "n2"], lambda: 0.0)
    for event in (RanksPlaced(2, "n1", 1), RankSpawned(0, 0, 7), RankSpawned(1, 1, 8)):
        state.event(Entry(0, 0.0, event))
    return frame(type="picture", picture=fields_of(picture_of(state)))


def test_a_verdict_below_the_lines(launched: Launched, logs: Path, terminal: Terminal) -> None:
    terminal.take()
    lines = ("error: rank 0 failed",)
    one = launched(
        picture(), VERDICT, code=3, lines=lines, logs=logs, before=write(logs, out0="a line\n")
    )
    assert cli.main(["attach"]) == 3
    terminal.leave()
    shown = terminal.plain
    assert one.orders[0]["picture"] is True
    assert "a line" in shown
    assert "error: rank 0 failed" in shown
    assert "2 ranks on 2 hosts" in shown
    assert f"job {RUN_ID} ended, exit code 3" in shown


def test_a_footer_while_it_runs(launched: Launched, terminal: Terminal) -> None:
    """As soon as there is something to draw."""

    def leave() -> None:
        wait_for(lambda: "2 ranks: 2 running" in terminal.plain, 30, lambda: "the footer is drawn")
        interrupt()

    looker = threading.Thread(target=leave)
    looker.start()
    terminal.take()
    launched(picture(), stays=True, code=None)
    assert cli.main(["attach"]) == 130
    looker.join(40)


def test_quiet_has_no_footer(launched: Launched, terminal: Terminal) -> None:
    terminal.take()
    one = launched(VERDICT, code=3, lines=("error: rank 0 failed",))
    assert cli.main(["attach", "-q"]) == 3
    assert one.orders[0]["picture"] is False
    assert "error: rank 0 failed\r\n" in terminal.leave()


def test_a_picture_grows_older_until_the_next_one() -> None:
    now = [100.0]
    taken = Picture({RUNNING: 2, LOST: 1}, (2,), {"running": 4}, 12, 3.5, 0.5, (1, 3), 2.0, "x")
    far = RemoteProgress(3, lambda: now[0])
    assert not far.heard
    far.hear(fields_of(taken))
    now[0] += 2
    assert far.picture().seconds == 5.5
    assert far.picture().since_line == 2.5
    few = RemoteProgress(2, lambda: 0.0)  # a host that is pending is none of ours
    few.hear(fields_of(taken))
    assert not few.heard
