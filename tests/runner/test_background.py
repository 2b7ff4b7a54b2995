"""A job on a thread of its own, for a program that looks on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cases import cases
from rig import wait_for
from typing_extensions import Self

from dispatcher.model.errors import UsageError
from dispatcher.runner.background import MOST_BYTES, MOST_WAITING, BackgroundRun


def started(work: Any, tell: Any) -> BackgroundRun[Any, Any]:
    run: BackgroundRun[Any, Any] = BackgroundRun(lambda: work(run), tell)
    return run


def test_the_result_and_what_was_put() -> None:
    def work(run: BackgroundRun[Any, Any]) -> str:
        for number in range(3):
            run.put(number)
        return "result"

    run = started(work, lambda event: None)
    with run as same:
        assert same is run
        assert list(run.start()) == [0, 1, 2]
        assert run.wait() == "result"
        assert list(run) == []


def test_what_was_put_before_a_loop_looks_is_told_there() -> None:
    class Quick(BackgroundRun[str, int]):
        def start(self) -> Self:
            super().start()
            self._thread.join(20)
            return self

    def work() -> str:
        for number in range(3):
            run.put(number)
        return "result"

    run, told = Quick(work, lambda event: None), list[int]()
    assert asyncio.run(run.run_async(told.append)) == "result"
    assert told == [0, 1, 2]


def test_other_tasks_of_a_loop_go_on_while_much_is_told() -> None:
    def work(run: BackgroundRun[Any, Any]) -> None:
        for number in range(3):
            run.put(number)

    run, told = started(work, lambda event: None), list[Any]()

    def tell(item: Any) -> None:
        if item == 0:
            wait_for(lambda: run._queue.qsize() >= 2)
            asyncio.get_running_loop().call_soon(told.append, "another")
        told.append(item)

    asyncio.run(run.run_async(tell))
    assert told == [0, "another", 1, 2]


def test_an_error_is_raised_where_one_waits() -> None:
    def work(run: BackgroundRun[Any, Any]) -> None:
        raise UsageError("no such way")

    run = started(work, lambda event: None)
    with run:
        assert list(run.start()) == []
        with pytest.raises(UsageError, match="no such way"):
            run.wait()


def test_one_that_was_never_begun() -> None:
    told: list[Any] = []
    with started(lambda run: None, told.append):
        pass
    assert told == []


def test_leaving_ends_it_and_waits_for_that() -> None:
    over = threading.Event()
    told: list[Any] = []

    def tell(event: Any) -> None:
        told.append(event)
        over.set()

    def work(run: BackgroundRun[Any, Any]) -> None:
        assert over.wait(30)
        time.sleep(0.05)
        told.append("ended")

    run = started(work, tell)
    with run.start():
        pass
    assert len(told) == 2
    assert told[-1] == "ended"
    with started(lambda run: None, told.append).start() as ended:
        ended.wait()
    assert len(told) == 2  # what has ended is not stopped


def test_a_further_ctrl_c_kills_and_one_more_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[bool] = []
    over = threading.Event()
    run = started(lambda run: over.wait(30), lambda event: None)

    def stop(*, now: bool = False) -> None:
        orders.append(now)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "stop", stop)
    with pytest.raises(KeyboardInterrupt), run.start():
        pass
    assert orders == [False, True]
    over.set()
    run._thread.join(60)


@cases(("now", "count"), [(False, 1), (True, 2)])
def test_stop(now: bool, count: int) -> None:
    told: list[Any] = []
    run = started(lambda run: None, told.append)
    run.stop(now=now)
    assert len(told) == count


def test_who_reads_slowly_finds_few_things_waiting() -> None:
    given: list[int] = []

    def work(run: BackgroundRun[Any, Any]) -> None:
        for number in range(MOST_WAITING + 50):
            run.put(number)
            given.append(number)

    run = started(work, lambda event: None)
    things: Iterator[int] = iter(run.start())
    assert next(things) == 0
    wait_for(lambda: len(given) >= MOST_WAITING, 20, lambda: "the queue is full")
    assert len(given) <= MOST_WAITING + 1
    assert list(things) == list(range(1, MOST_WAITING + 50))
    run.wait()


def test_and_few_bytes() -> None:
    given: list[int] = []

    def work(run: BackgroundRun[Any, Any]) -> None:
        for number in range(12):
            run.put(number, MOST_BYTES // 4)
            given.append(number)

    run = started(work, lambda event: None)
    things = iter(run.start())
    for number in range(12):
        assert next(things) == number
        least = min(12, number + 4)
        wait_for(lambda least=least: len(given) >= least, 20, lambda: "there is room")  # type: ignore[misc]
        assert len(given) <= number + 5
    assert list(things) == []


def test_what_is_larger_than_all_room_is_given_alone() -> None:
    def work(run: BackgroundRun[Any, Any]) -> None:
        for word in "abc":
            run.put(word, 2 * MOST_BYTES)

    assert list(started(work, lambda event: None).start()) == ["a", "b", "c"]


def test_what_nobody_reads_holds_nobody() -> None:
    def work(run: BackgroundRun[Any, Any]) -> str:
        for number in range(2 * MOST_WAITING):
            run.put(number)
        return "done"

    run = started(work, lambda event: None)
    assert run.start().wait() == "done"
    assert (run._thread.name, run._thread.daemon) == ("dispatch", True)
