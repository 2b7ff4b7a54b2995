"""What whole hosts said: gathered, and compared."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.core.events.exec_events import Exited
from dispatcher.output.exec import host_blocks
from dispatcher.output.exec.host_blocks import blocks_of, differences, gather_output, lines_of
from dispatcher.output.exec.host_results import HostResult


def test_equal_blocks_once_most_hosts_first() -> None:
    said = (b"odd\n", b"same\n", b"same\n", b"", b"last\n")
    blocks = blocks_of(
        [HostResult(f"n{n}", n, Exited(0), 1.0, one) for n, one in enumerate(said, 1)]
    )
    shown = b"".join(gather_output(blocks)).decode()
    rule = "-" * 15
    assert shown == (
        f"{rule}\nn[2-3] (2)\n{rule}\nsame\n{rule}\nn1\n{rule}\nodd\n{rule}\nn5\n{rule}\nlast\n"
    )
    bare = b"".join(gather_output(blocks, label=False))
    assert bare == b"same\nodd\nlast\n"


RULE = b"-" * 15 + b"\n"


def test_only_a_last_line_end_may_differ() -> None:
    said = {"n1": b"done\n", "n2": b"odd\n", "n3": b"done"}
    assert list(gather_output(said)) == [
        RULE + b"n[1,3] (2)\n" + RULE + b"done\n", RULE + b"n2\n" + RULE + b"odd\n",
    ]  # fmt: skip
    assert list(lines_of(said, gather=True)) == [b"n[1,3]: done\n", b"n2: odd\n"]
    (found,) = differences(said)
    assert found == b"--- n[1,3] (2)\n+++ n2\n@@ -1 +1 @@\n-done\n+odd\n"


@cases(
    ("one", "other", "shown"),
    [
        (b"n1 is here\rsame\n", b"n2 is here\rsame\n",
         [b"n1 is here\\x0dsame\n", b"n2 is here\\x0dsame\n"]),
        (b"a\r\n", b"a\n", [b"a\\x0d\n", b"a\n"]),
        (b"\xf8\n", b"\\xf8\n", [b"\\xf8\n", b"\\\\xf8\n"]),
        (b"a\0\n", b"a\\x00\n", [b"a\\x00\n", b"a\\\\x00\n"]),
        (b"a \n", b"a\n", [b"a \n", b"a\n"]), (b"10%\rdone\n", b"odd\n", [b"done\n", b"odd\n"]),
    ],
)  # fmt: skip
def test_what_differs_is_different(one: bytes, other: bytes, shown: list[bytes]) -> None:
    """Bytes are compared. Two that look alike on a terminal are shown there so that they differ."""
    said = {"n1": one, "n2": other}
    assert list(gather_output(said, label=False)) == shown
    assert list(gather_output(said, label=False, exact=True)) == [one, other]
    assert len(list(differences(said))) == len(list(differences(said, exact=True))) == 1
    assert list(differences({"n1": one, "n2": one})) == []


def test_a_terminal_cannot_be_told_anything() -> None:
    shown = b"".join(gather_output({"n1": b"\x1b]0;x\x07\n10%\r20%\n"}))
    assert b"\x1b" not in shown
    assert b"\n20%\n" in shown


def test_the_head_of_a_block() -> None:
    (shown,) = gather_output({"n1": b"x\n", "n2": b"x\n"}, what=" stderr")
    assert shown == RULE + b"n[1-2] (2) stderr\n" + RULE + b"x\n"


def test_differences_of_several_and_of_long_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = {"n1": b"a\n", "n2": b"a\n", "n3": b"b\n", "n4": b"\x1b[2J\n", "n5": b""}
    assert list(differences(blocks)) == [
        b"--- n[1-2] (2)\n+++ n3\n@@ -1 +1 @@\n-a\n+b\n",
        b"--- n[1-2] (2)\n+++ n4\n@@ -1 +1 @@\n-a\n+\\x1b[2J\n",
        b"--- n[1-2] (2)\n+++ n5\n@@ -1 +0,0 @@\n-a\n",
    ]
    monkeypatch.setattr(host_blocks, "MOST_LINES", 2)
    for lines, is_long in ((b"a\nb\n", False), (b"a\nb\nc\n", True)):
        (found,) = differences({"n1": b"x\n", "n2": lines})
        assert (found == b"n2 and n1 differ\n") == is_long


def test_what_was_not_kept_is_counted_in_the_block() -> None:
    one = HostResult("n1", 0, Exited(0), 1.0, b"out", b"err", stdout_dropped=7)
    assert blocks_of([one]) == {"n1": b"out\n[7 bytes more]\n"}
    assert blocks_of([one], errors=True) == {"n1": b"err"}
