"""What programs give to public functions: judged by name and type."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from cases import cases

import dispatcher as house
from dispatcher.model.arguments import fits, words
from dispatcher.model.errors import WrongArgument

#: without its types, which would refuse these calls before they are made
dispatcher: Any = house


@cases(
    ("hint", "good", "bad", "said"),
    [
        (int, [1, 0], [True, 1.0, "1", None], "a whole number"),
        (float, [1, 1.5], [False, "1"], "a number"),
        (bool, [True, 0], ["", None], "True or False"),
        (int | None, [None, 3], ["3"], "a whole number or None"),
        (Literal["a", 3], ["a", 3], ["b", 3.0], "'a' or 3"),
        (int | Literal["auto", "gpu"], [2, "gpu"], ["moon"], "a whole number or 'auto' or 'gpu'"),
        (tuple[str, ...], [(), ["a"], ("a", "b")], ["a", [3], None], "a list of texts"),
        (tuple[tuple[str, bytes | str], ...], [[("a", b"")]], [[("a",)], ["ab"]],
         "a list of pairs"),
        (Mapping[str, str], [{}, os.environ], [3, []], "a dictionary"),
        (Callable[[str], None], [print], [3], "a function"),
        (str | os.PathLike[str] | None, ["a", None], [3], "a text, a path or None"),
        (dispatcher.Limits, [dispatcher.Limits()], [{}], "Limits"),
        (Any, [3, None], [], "Any"),
    ],
)  # fmt: skip
def test_types(hint: Any, good: list[Any], bad: list[Any], said: str) -> None:
    assert [value for value in good if not fits(value, hint)] == []
    assert [value for value in bad if fits(value, hint)] == []
    assert words(hint) == said


@cases(
    ("make", "said"),
    [
        (lambda: dispatcher.Limits(grac=3), "Limits: takes no argument 'grac'"),
        (lambda: dispatcher.Limits(grace="3"), "Limits: grace takes a number, not '3'"),
        (lambda: dispatcher.ExecLimits(command="x"),
         "ExecLimits: command takes a number or None, not 'x'"),
        (lambda: dispatcher.Restarts(*range(9)), "Restarts: "),
        (lambda: dispatcher.Request(), "Request: no value for 'hosts'"),
        (lambda: dispatcher.exec("localhost", ["true"], limits=3),
         "exec: limits takes ExecLimits, not 3"),
        (lambda: dispatcher.run(3), "run: job takes a Request or a JobPlan, not 3"),
        (lambda: dispatcher.run(dispatcher.request("n1", ["a"]), logdir="x"),
         "run: takes no argument 'logdir'"),
        (lambda: dispatcher.start(dispatcher.request("n1", ["a"]), ways=3),
         "run: ways takes Ways, not 3"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(WrongArgument) as caught:
        make()
    assert caught.value.message.startswith(said)
