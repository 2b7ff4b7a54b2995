"""``played``: a loop whose surroundings the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.agent.played import Played


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Played]:
    """A loop without an order yet; its private folder would lie in ``tmp_path``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    one = Played(monkeypatch)
    yield one
    one.close()
