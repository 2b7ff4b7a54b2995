"""The result of one end of a pair is told once, and in time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.remote.rank import pair
from remote.driver import Os


class TestResult:
    def test_it_is_said_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = pair.Result()
        result.found["rate"] = 5.0
        result.tell()
        result.found["rate"] = 6.0
        result.tell()
        mark, text = capsys.readouterr().out.split(": ", 1)
        assert mark + ": " == pair.MARK
        assert json.loads(text) == {"latency": None, "rate": 5.0, "why": "", "lack": ""}

    def test_late_is_told_with_what_was_done(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        codes: list[int] = []
        timers: list[Any] = []

        class Timer:
            daemon = False

            def __init__(self, seconds: float, call: Callable[[], None]) -> None:
                self.seconds, self.call = seconds, call

            def start(self) -> None:
                timers.append((self.seconds, self.daemon, self.call))

        monkeypatch.setattr(pair, "os", Os(_exit=codes.append))
        monkeypatch.setattr(pair, "threading", SimpleNamespace(Timer=Timer, Lock=threading.Lock))
        result = pair.Result()
        result.doing = "small all-reduces"
        result.until(7.5)
        ((seconds, is_daemon, call),) = timers
        assert (seconds, is_daemon, codes) == (7.5, True, [])
        call()
        assert codes == [1]
        assert '"why": "no answer in time: small all-reduces"' in capsys.readouterr().out
