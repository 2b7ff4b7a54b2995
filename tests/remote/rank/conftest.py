"""The clock that a pair is measured by, in the test's hands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dispatcher.remote.rank import pair


class Clock:
    """``time``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        looks = dict.fromkeys(("monotonic", "perf_counter"), lambda: self.now)
        monkeypatch.setattr(pair, "time", SimpleNamespace(**looks))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
