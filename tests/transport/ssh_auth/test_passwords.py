"""What a host asks, as a terminal shows it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.transport.ssh_auth import passwords
from dispatcher.transport.ssh_auth.passwords import Passwords

PROMPTS = st.one_of(
    st.text(st.sampled_from(" aé\u3164\u4e2d\t\n\r\u2028\x1b"), max_size=300),
    st.builds(
        "{}{}".format, st.integers(0, 90).map(" ".__mul__), st.just("password of all hosts:")
    ),
)


def rows(text: str, columns: int) -> list[str]:
    """Of a terminal that gives each character but those of ASCII two columns."""
    rows = []
    for line in text.split("\n"):
        at = columns
        for c in line:
            width = 1 if c.isascii() else 2
            if at + width > columns:
                rows.append("")
                at = 0
            rows[-1] += c
            at += width
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROMPTS, PROMPTS, st.sampled_from([1, 38, 79, 200]), st.sampled_from([16, 40, 80, 300]))
def test_every_row_of_a_question_says_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, above: str, prompt: str, length: int, columns: int
) -> None:
    monkeypatch.setattr(passwords, "_columns", lambda: columns)
    seen: list[str] = []
    Passwords(seen.append).answer("n" * length, [above], prompt)
    name = "n" * min(length, columns // 2)
    assert all(row.startswith(f"{name}: ") for row in rows(seen[0], columns))


@pytest.mark.parametrize(("told", "columns"), [(None, 80), (0, 80), (132, 132)])
def test_how_wide_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, told: int | None, columns: int
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, told or 0, 0, 0))

    def opened(path: str, mode: str) -> Any:
        assert path == "/dev/tty"
        if told is None:
            raise OSError
        return os.fdopen(slave, mode, closefd=False)

    monkeypatch.setattr(passwords, "open", opened, raising=False)
    assert passwords._columns() == columns
    os.close(slave)
    os.close(master)
