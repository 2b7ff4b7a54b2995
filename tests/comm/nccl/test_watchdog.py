"""Calls that are late are told so, once each, by a thread that hangs on none of them."""

from __future__ import annotations

import threading

import pytest

from dispatcher.comm.nccl.communicator import Watchdog

LIMIT = 30.0


def test_who_is_in_time_is_left_alone() -> None:
    watchdog = Watchdog()
    late: list[str] = []
    seen = threading.Event()

    def fail(key: str) -> None:
        raise KeyError(key)

    for number in range(3):
        assert watchdog.run(60, lambda: late.append("early"), abs, -number) == number
    assert watchdog.run(0.05, seen.set, seen.wait, LIMIT)  # a shorter limit is kept, too
    with pytest.raises(KeyError, match="7"):
        watchdog.run(60, lambda: late.append("failed"), fail, "7")
    assert late == []
    assert watchdog._calls == {}


def test_a_shorter_limit_is_looked_at_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.comm.nccl.communicator._LONGEST", 2 * LIMIT)
    watchdog = Watchdog()
    seen = threading.Event()
    assert watchdog.run(20 * LIMIT, seen.set, abs, -1) == 1  # the next look is a minute away
    assert watchdog.run(0.05, seen.set, seen.wait, LIMIT)


def test_threads_are_watched_apart_and_a_hanging_abort_holds_up_none() -> None:
    watchdog = Watchdog()
    told: list[str] = []
    begun, ended, release = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        told.append("first")
        begun.set()
        release.wait(LIMIT)

    def end() -> None:
        told.append("second")
        ended.set()

    def first() -> bool:
        assert begun.wait(LIMIT)
        thread = threading.Thread(target=watchdog.run, args=(0.1, end, ended.wait, LIMIT))
        thread.start()
        thread.join(LIMIT)
        return ended.is_set()

    assert watchdog.run(0.02, hang, first)
    release.set()
    assert told == ["first", "second"]  # each once, however long it went on
