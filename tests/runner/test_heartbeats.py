"""Heartbeats that wait to be told: each once, with its age."""

from __future__ import annotations

import time

import pytest

from dispatcher.core.events.run_events import NodesHeard
from dispatcher.runner.run.liveness import Heartbeats


def test_each_is_told_once_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Heartbeats()
    for node, when in ((3, 10.0), (1, 11.0), (3, 12.0)):
        monkeypatch.setattr(time, "monotonic", lambda when=when: when)
        noted.note(node)
    assert noted.news(14.0) == NodesHeard((3, 1), (2.0, 3.0))
    assert noted.news(15.0) is None
    monkeypatch.setattr(time, "monotonic", lambda: 15.0)
    noted.note(1)
    assert noted.news(15.0) == NodesHeard((1,), (0.0,))
