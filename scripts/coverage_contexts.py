"""A plugin of pytest for ``scripts/cover``: each line is noted with the test that ran it."""

from __future__ import annotations

import pytest
from coverage import Coverage


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """What runs from here on is this test's; its parameters are left out, there would be many."""
    measured = Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid.split("[")[0])
