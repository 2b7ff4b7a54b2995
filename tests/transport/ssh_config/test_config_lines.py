"""OpenSSH's patterns: as ``fnmatch`` has stars and question marks, and never slow."""

from __future__ import annotations

import fnmatch
import time

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.transport.ssh_config.config_lines import matches


@given(text=st.text("ab.\n", max_size=9), pattern=st.text("ab.*?", max_size=9))
def test_as_fnmatch(text: str, pattern: str) -> None:
    assert matches(text, pattern) == fnmatch.fnmatchcase(text, pattern)


def test_no_pattern_is_slow() -> None:
    started = time.process_time()
    assert not matches("node" * 15, "*?" * 30 + "x")
    assert not matches("a" * 255, "*a" * 100 + "b")
    assert matches("a" * 255, "*a" * 100)
    assert time.process_time() - started < 1
