"""What dispatch exits with, and how a mistake is pointed at."""

from __future__ import annotations

from cases import cases

from dispatcher.model import errors
from dispatcher.model.errors import (
    DispatchError,
    HostfileError,
    InternalError,
    PlanError,
    Problem,
    UsageError,
    from_status,
)


@cases(("status", "code"), [(0, 0), (3, 3), (255, 255), (-1, 129), (-9, 137)])
def test_a_rank_s_status_is_our_exit_code(status: int, code: int) -> None:
    assert from_status(status) == code


def test_each_error_has_its_exit_code() -> None:
    codes = {kind: kind.exit_code for kind in (DispatchError, InternalError, UsageError, PlanError)}
    assert codes == {DispatchError: 125, InternalError: 125, UsageError: 2, PlanError: 2}
    assert HostfileError([Problem("hf", 1, 1, "", "x")]).exit_code == 2
    error = UsageError("who: what", hint="do this")
    assert (str(error), error.message, error.hint) == ("who: what", "who: what", "do this")
    assert (errors.NO_RESTART, errors.TIME_LIMIT) == (93, 124)


@cases(
    ("problem", "told"),
    [
        (Problem("hf", 2, 4, "n1 x", "why"), "hf:2:4: why\n  n1 x\n     ^"),
        (Problem("-H", 0, 1, "n1", "why"), "-H: why\n  n1\n  ^"),
        (Problem("", 0, 2, "n1", "why", "do this"), "why\n  n1\n   ^\n  hint: do this"),
        (Problem("hf", 1, 3, "a\tbc", "why", width=2), "hf:1:3: why\n  a bc\n    ^^"),
        (Problem("hf", 1, 1, "", "empty", width=0), "hf:1:1: empty\n  \n  ^"),
    ],
)
def test_the_caret_stands_below_the_mistake(problem: Problem, told: str) -> None:
    assert str(problem) == told
    assert str(HostfileError([problem, problem])) == f"{told}\n{told}"


@cases(("column", "cut"), [(100, False), (120, False), (121, True), (500, True)])
def test_of_a_long_line_what_stands_around_it_is_shown(column: int, cut: bool) -> None:
    text = "." * (column - 1) + "X" + "." * 20
    _, shown, caret = str(Problem("hf", 1, column, text, "why")).split("\n")
    assert shown[caret.index("^")] == "X"
    assert len(shown) == (2 + 3 + 60 + 21 if cut else 2 + len(text))
