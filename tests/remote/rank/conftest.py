"""The clock that a pair is measured by, in the test's hands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dispatcher.remote.rank import pair
from remote.driver import Os


class Clock:
    """``time`` and ``os.sched_yield``, which takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        looks = dict.fromkeys(("monotonic", "perf_counter"), lambda: self.now)
        monkeypatch.setattr(pair, "time", SimpleNamespace(**looks))
        monkeypatch.setattr(pair, "os", Os(sched_yield=self.pass_by))

    def pass_by(self, seconds: float = 1.0) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
