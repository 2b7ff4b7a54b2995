"""A job from a program's point of view, over this machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cases import cases

import dispatcher
from dispatcher.api import run as module
from dispatcher.api.run import Line, _Feed
from dispatcher.api.transports import TransportPool, nobody
from dispatcher.core.events.run_events import Entry, Event, OutputEnded, RankSpawned, RanksPlaced
from dispatcher.jobs import registry
from dispatcher.model.errors import UsageError
from dispatcher.plan.job.placement import FIRST
from dispatcher.runner.background import BackgroundRun

SLEEP = ["sh", "-c", "echo up; exec sleep 1000"]


def ranks(argv: list[str], count: int = 2, **fields: Any) -> dispatcher.Request:
    return dispatcher.request(f"localhost:{count}", argv, kind="command", **fields)


@cases(
    ("line", "text", "shown"),
    [
        (Line("3", "stdout", b"a b"), "a b", "[3] a b"),
        (Line("1.0", "stderr", b"\xff\x1b]0;x"), "\ufffd\x1b]0;x", "[1.0] \\xff\\x1b]0;x"),
    ],
)
def test_a_line(line: Line, text: str, shown: str) -> None:
    assert (line.text, str(line)) == (text, shown)


# -- what a program reads -------------------------------------------------------------------


class Fed:
    """A feed, and what it put."""

    def __init__(self, *, lines: bool = True, events: bool = False) -> None:
        self.put: list[tuple[Any, int]] = []
        self.said: list[str] = []
        self.one = _Feed(
            lambda item, size: self.put.append((item, size)), self.said.append,
            lines=lines, events=events,
        )  # fmt: skip

    def event(self, event: Event) -> None:
        self.one.event(Entry(1, 0.0, event))

    @property
    def lines(self) -> list[tuple[str, str, bytes]]:
        return [(one.rank, one.stream, one.data) for one, _ in self.put if isinstance(one, Line)]


def test_lines_are_whole_and_in_order() -> None:
    fed = Fed()
    fed.one.output(0, 1, b"a\nb")
    fed.one.output(FIRST, 2, b"x\n")
    fed.one.output(0, 2, b"error")
    fed.one.output(0, 1, b"c\n\nd")
    assert fed.lines == [
        ("0", "stdout", b"a"),
        ("1.0", "stderr", b"x"),
        ("0", "stdout", b"bc"),
        ("0", "stdout", b""),
    ]
    assert [size for _, size in fed.put] == [1, 1, 2, 0]
    fed.event(OutputEnded(0, 0, 2, 5, 5))
    assert fed.lines[-1] == ("0", "stderr", b"error")
    fed.event(OutputEnded(0, 0, 2, 5, 5))
    fed.event(OutputEnded(0, 7, 1, 0, 0))
    assert len(fed.lines) == 5
    fed.one.close()
    assert fed.lines[5:] == [("0", "stdout", b"d")]
    assert fed.said == []


def test_what_ranks_had_begun_ends_when_they_start_again() -> None:
    fed = Fed(events=True)
    fed.one.output(0, 1, b"half")
    placed = RanksPlaced(2, "n1", 1, 1)
    fed.event(placed)
    assert [one for one, _ in fed.put] == [
        Line("0", "stdout", b"half"), Entry(1, 0.0, placed),
    ]  # fmt: skip
    fed.one.output(0, 1, b"new\n")
    assert fed.lines[-1] == ("0", "stdout", b"new")


@cases(("lines", "events", "count"), [(True, False, 1), (False, True, 1)])
def test_only_what_is_wanted(lines: bool, events: bool, count: int) -> None:
    fed = Fed(lines=lines, events=events)
    fed.one.output(0, 1, b"a\n")
    fed.event(OutputEnded(0, 0, 1, 2, 2))
    assert len(fed.put) == count
    assert isinstance(fed.put[0][0], Line) is lines


def test_a_line_has_any_length() -> None:
    fed = Fed()
    for _ in range(20):
        fed.one.output(0, 1, b"x" * 50_000)
    fed.one.output(0, 1, b"y\r\nz\n")
    fed.one.close()
    (first, size), (second, _) = fed.put
    assert first.data == b"x" * 1_000_000 + b"y"
    assert size == 1_000_001
    assert second.data == b"z"


def test_a_line_behind_bars_waits_for_no_other() -> None:
    fed = Fed()
    fed.one.output(0, 2, b"\ra\n\rb\x1b[A\n\nready\n")
    while fed.one.tick(0.0):
        pass
    assert [data for _, _, data in fed.lines] == [b"a", b"b", b"ready"]
    assert not fed.one.tick(0.0)


def test_what_has_no_room_is_said() -> None:
    fed = Fed()
    fed.one._spill.words = lambda: ["the disk is full"]  # type: ignore[method-assign]
    fed.one.close()
    assert fed.said == ["note: the disk is full"]


# -- over this machine -----------------------------------------------------------------------


def test_lines_and_events_are_given_here() -> None:
    lines: list[str] = []
    names: list[str] = []
    notes: list[str] = []
    threads = set()

    def on_line(line: Line) -> None:
        threads.add(threading.current_thread())
        lines.append(str(line))

    report = dispatcher.run(
        ranks(["sh", "-c", "echo $RANK"]), on_line=on_line,
        on_event=lambda entry: names.append(entry.event.name), on_note=notes.append,
    )  # fmt: skip
    assert report.ok
    assert sorted(lines) == ["[0] 0", "[1] 1"]
    assert threads == {threading.current_thread()}
    assert names.count("rank.exited") == 2
    assert notes == []
    assert report.log_dir is None


def test_who_looks_on_may_stop_it() -> None:
    with dispatcher.start(ranks(SLEEP), lines=True) as running:
        first = next(iter(running))
        assert isinstance(first, Line)
        assert first.data == b"up"
        assert running.plan.world_size == 2
        running.stop()
        report = running.wait()
    assert report.exit_code == 128 + signal.SIGINT
    assert report.cause is not None
    assert report.cause.kind == "Interrupted"


def test_leaving_ends_the_job() -> None:
    with dispatcher.start(ranks(SLEEP, 1), lines=True) as running:
        next(iter(running))
    assert running.wait().exit_code == 128 + signal.SIGINT


def test_a_program_with_a_loop_awaits_it(tmp_path: Path) -> None:
    lines: list[str] = []
    names: list[str] = []
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(1)
            if len(turns) == 5:
                turned.touch()
            await asyncio.sleep(0.01)

    turned = tmp_path / "turned"
    waits = f"n=0; until test -e {turned} || test $n = 600; do n=$((n+1)); sleep 0.1; done"

    async def main() -> dispatcher.Report:
        beside = asyncio.create_task(others())
        report = await dispatcher.run_async(
            ranks(["sh", "-c", f"echo $RANK; {waits}"]),
            on_line=lambda line: lines.append(str(line)),
            on_event=lambda entry: names.append(entry.event.name),
        )
        beside.cancel()
        return report

    report = asyncio.run(main())
    assert report.ok
    assert sorted(lines) == ["[0] 0", "[1] 1"]
    assert names.count("rank.exited") == 2
    assert turned.exists()  # the loop went on meanwhile
    found = registry.find(report.run_id)
    assert (found.state, found.exit_code, found.by_program) == ("ended", 0, True)


def test_cancelling_ends_the_job_first() -> None:
    up = asyncio.Event()
    pids: list[int] = []

    def on_event(entry: Entry) -> None:
        if isinstance(entry.event, RankSpawned):
            pids.append(entry.event.pid)
            up.set()

    async def main() -> None:
        job = ranks(["sleep", "1000"], 1)
        task = asyncio.create_task(dispatcher.run_async(job, on_event=on_event))
        await up.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()


def test_an_error_on_the_loop_ends_the_job_and_is_raised() -> None:
    def broken(line: Line) -> None:
        raise ZeroDivisionError(line.text)

    with pytest.raises(ZeroDivisionError, match="up"):
        asyncio.run(dispatcher.run_async(ranks(SLEEP, 1), on_line=broken))


def test_cancelling_twice_kills_and_three_times_leaves() -> None:
    told: list[str] = []
    over = threading.Event()

    def work() -> None:
        over.wait(60)

    class Job(BackgroundRun[None, int]):
        def stop(self, *, now: bool = False) -> None:
            told.append("kill" if now else "stop")

    async def main() -> None:
        job = Job(work, lambda event: None)
        task = asyncio.create_task(job.run_async(lambda item: None))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    over.set()
    assert told == ["stop", "kill"]


def test_signals_are_taken_only_if_that_is_wanted() -> None:
    import os

    before = signal.getsignal(signal.SIGTERM)

    def on_line(line: Line) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before
        os.kill(os.getpid(), signal.SIGTERM)

    report = dispatcher.run(ranks(SLEEP, 1), on_line=on_line, signals=True)
    assert report.exit_code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    seen: list[Any] = []
    report = dispatcher.run(
        ranks(["echo", "x"], 1), on_line=lambda line: seen.append(signal.getsignal(signal.SIGTERM))
    )
    assert seen == [before]


def test_signals_are_for_the_main_thread() -> None:
    caught: list[str] = []

    def body() -> None:
        try:
            dispatcher.run(ranks(["true"]), signals=True)
        except UsageError as error:
            caught.append(error.message)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(60)
    assert caught == ["signals: only the main thread can take them"]


@cases(
    ("job", "how", "said"),
    [
        (("n1:1", ["a"]), {"ways": dispatcher.Ways("slurm", host_keys="strict")}, "--host-keys is"),
        (("n1:1", ["a"]), {"agent_python": "a b"}, "--agent-python"),
        (("n1:1", ["a"]), {"log_dir": "/dev/null/x"}, "--log-dir /dev/null/x: not a directory"),
        (("n1:1", []), {}, ""),
    ],
)
def test_refused_before_any_host(job: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        dispatcher.run(dispatcher.request(*job), **how)
    assert caught.value.message.startswith(said)


def test_a_plan_is_a_job_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hosts").write_text("localhost\nlocalhost\n")
    plan = dispatcher.plan_job(dispatcher.request(tmp_path / "hosts", ["true"], kind="command"))
    assert plan.notices
    notes: list[str] = []
    assert dispatcher.run(plan, on_note=notes.append).ok
    assert notes[0] == f"note: {plan.notices[0]}"
    with caplog.at_level(logging.INFO, "dispatcher"):
        report = dispatcher.run(plan)
    assert report.run_id == plan.run_id
    assert caplog.messages[0] == plan.notices[0]


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("note: a: b", logging.INFO, "a: b"), ("error: a: b", logging.ERROR, "a: b"),
        ("n1: 100 %s", logging.INFO, "n1: 100 %s"), ("nothing", logging.INFO, "nothing"),
    ],
)  # fmt: skip
def test_notes_go_to_a_logger(
    line: str, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "dispatcher"):
        module._log(line)
    assert caplog.record_tuples == [("dispatcher", level, text)]


def test_how_it_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    sessions: list[dict[str, Any]] = []

    class Session:
        def __init__(self, *given: Any, **more: Any) -> None:
            sessions.append(more)
            self.error_of = self.add = lambda *what: None

    def pool(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    def ask(prompt: str) -> None: ...

    real, ways = TransportPool, dispatcher.Ways("ssh")
    monkeypatch.setattr("dispatcher.api.transports.TransportPool", pool)
    monkeypatch.setattr(module, "RunSession", Session)
    job = dispatcher.request("n1:1", ["a"])
    module.Running(job, False, False, {"ways": ways, "ask": ask})
    module.Running(job, True, False, {"check": False, "agent_python": sys.executable})
    assert made == [(ways, ask), (dispatcher.Ways(), nobody)]
    told = [(one["check"], one["agent_python"], one["paths"]) for one in sessions]
    assert told == [(True, None, None), (False, sys.executable, None)]
