"""What a rank wrote of its end, out of real endings: one line, where it happened, one remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.output.text.error_forms import MOST_TEXT, begin_at, one_line
from dispatcher.output.text.last_error import LastError, last_error
from dispatcher.output.text.story import Tail

FOLDER = Path(__file__).with_name("endings")


def ending(path: Path) -> tuple[dict[str, str], str]:
    """What is expected of an ending, and the text that it is about."""
    head, _, text = path.read_text().partition("\n\n")
    return dict(line.split(": ", 1) for line in head.splitlines() if ": " in line), text


@cases("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_real_endings(path: Path) -> None:
    wanted, text = ending(path)
    assert wanted["source"]  # own, or where it was published
    tail = Tail()
    tail.output(0, 2, text.encode())
    found = tail.error(0, int(wanted["status"])) or LastError("")
    assert str(found) == wanted.get("error", "")
    assert (found.hint, found.is_echo) == (wanted.get("hint", ""), "echo" in wanted)


TRACEBACK = ["Traceback (most recent call last):", '  File "/job/a.py", line 3, in f', "E: no"]


@cases(
    ("lines", "status", "text"),
    [
        ([], 1, ""),
        (["step 1", "step 2"], 1, ""),
        # who was killed did not die of what it wrote
        (TRACEBACK, -9, ""),
        (TRACEBACK, 137, ""),
        # nor who crashed long after
        ([*TRACEBACK, *["step"] * 9], -11, ""),
        (TRACEBACK, -11, "E: no"),
        ([*TRACEBACK, *["step"] * 60], 1, "E: no"),
        ([*TRACEBACK, *["step"] * 61], 1, ""),
        # whom dispatch ended may have been about to end
        (TRACEBACK, -15, "E: no"),
        ([*TRACEBACK, *["step"] * 9], -15, ""),
        # of several the last, and of an abort what the runtime says
        ([*TRACEBACK, *TRACEBACK[:2], "F: also"], 1, "F: also"),
        (["free(): invalid pointer", *TRACEBACK], -6, "free(): invalid pointer"),
        # a traceback whose end is not there
        (TRACEBACK[:2], 1, ""),
        (["Fatal Python error: none_dealloc: x"], -6, "Fatal Python error: none_dealloc: x"),
        (["terminate called without an active exception"], -6,
         "terminate called without an active exception"),
        ([*TRACEBACK, "terminate called without an active exception", *TRACEBACK], -6, "E: no"),
        ([*TRACEBACK, "terminate called without an active exception"], -6, "E: no"),
        (["Exception ignored in: <f>", *TRACEBACK], 1, ""),
        (["Exception in thread T:", *TRACEBACK], 1, "E: no"),
        (["error: " + "x" * 300], 1, ""),
        (["bash: line 1: 7 Killed   python train.py"], 137, ""),
    ],
)  # fmt: skip
def test_which_line_counts(lines: list[str], status: int, text: str) -> None:
    found = last_error(lines, status)
    assert (found.text if found else "") == text


#: the beginnings, the middles and the ends of all forms, to be put together at random
PARTS = sorted(
    {line for path in FOLDER.glob("*.txt") for line in ending(path)[1].splitlines()}
    | {"x" * 5000, "a/" * 3000, "Root Cause", "E:", ": ", "Last error:", "+-+---- 1 ----", "| E: a"}
)


@given(
    st.lists(st.sampled_from(PARTS) | st.text(max_size=9), max_size=40),
    st.sampled_from([-15, -11, -9, -7, -6, -2, 1, 2, 134, 139, 255]),
)
def test_whatever_a_rank_writes_it_is_a_line_or_nothing(lines: list[str], status: int) -> None:
    found = last_error(lines, status)
    if found is not None:
        assert len(found.text) <= MOST_TEXT
        assert "\n" not in found.text
        assert found.text or found.hint


def test_a_missing_module_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "own.py").touch()
    for name in ("mine", "own", "numpy", "mine.sub"):
        lines = [
            "Traceback (most recent call last):",
            '  File "a.py", line 1',
            f"ModuleNotFoundError: No module named '{name}'",
        ]
        found = last_error(lines, 1)
        assert found is not None
        assert found.hint.startswith(f"{name} is in this folder: -x ") is (name in ("mine", "own"))


def test_it_is_one_line_of_bounded_length() -> None:
    found = last_error([*TRACEBACK[:2], "E: " + "word " * 999], 1)
    assert found is not None
    assert (len(found.text), found.text[-1]) == (MOST_TEXT - 1, "\N{HORIZONTAL ELLIPSIS}")
    long = last_error([*TRACEBACK[:2], "E: " + "a sentence. " * 99], 1)
    assert long is not None
    assert long.text.endswith("a sentence. \N{HORIZONTAL ELLIPSIS}")


def test_reading_begins_a_little_before_the_first_sign() -> None:
    head = "Traceback (most recent call last):"
    steps = [f"step {number}" for number in range(9)]
    assert begin_at([*steps, head]) == 6
    assert begin_at([head, *steps]) == 0
    assert begin_at(steps) == 5


def test_a_text_is_cut_at_a_sentence() -> None:
    assert one_line(" a  b\n", 9) == "a b"
    assert one_line("x" * 99, 20) == "x" * 18 + " \N{HORIZONTAL ELLIPSIS}"
    long = "One sentence of a good length, which is more than a third of what is shown. "
    assert one_line(long + "y" * 200, 240) == long + "\N{HORIZONTAL ELLIPSIS}"
