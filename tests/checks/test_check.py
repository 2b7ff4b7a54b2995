"""Readings and findings: what a reading is worth, and how hosts are held against each other."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

from checks.samples import HUNG, MISSING, call, files, said
from dispatcher.checks.check import (
    Finding,
    Level,
    Reading,
    Seen,
    Unread,
    a_few,
    checked,
    each,
    equal,
    mode,
    ok,
    warn,
)
from dispatcher.remote.protocol.packing import pack

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL


def test_which_hosts_can_be_used() -> None:
    assert [level.fit for level in (OK, WARN, INCOMPLETE, CRITICAL)] == [True, True, False, False]
    assert sorted([CRITICAL, OK, INCOMPLETE, WARN]) == [OK, WARN, INCOMPLETE, CRITICAL]


@cases(
    ("reading", "value", "why"),
    [
        (call([1, b"\xff", {"a": b"b"}, None]), [1, "\\xff", {"a": "b"}, None], "exit code 0: "),
        (HUNG, None, "no answer in time"),
        (MISSING, None, "not installed"),
        (said(b"", 3), None, "exit code 3"),
        (said(b"one\n\ntwo \n\n", 3), None, "exit code 3: two"),
        (said(b"x" * 300, 1), None, "exit code 1: " + "x" * 200),
        (said(b"not packed"), None, "exit code 0: not packed"),
        (Reading(0, pack(7), cut=True), None, "exit code 0: "),
        (Reading(1, pack(7)), None, "exit code 1: "),
    ],
)
def test_what_a_reading_gave(reading: Reading, value: Any, why: str) -> None:
    assert reading.value() == value
    assert reading.why().startswith(why)
    assert reading.why() == why or why.endswith(": ")
    assert reading.hung == (reading is HUNG)


def seen(**readings: Reading) -> Seen:
    return Seen("n1", readings, {"again": call("later")})


def test_what_is_read_of_a_host() -> None:
    one = seen(
        value=call(5), none=call(None), files=files({"/a": b"A", "/b": b""}), run=said(b"x\n")
    )
    assert one.value("value") == 5
    assert one.value("again", later=True) == "later"
    assert one.files("files") == {"/a": "A", "/b": ""}
    assert one.file("files", "/a") == "A"
    assert one.output("run") == "x\n"


@cases(
    ("ask", "why"),
    [
        (lambda one: one.reading("absent"), "not read"),
        (lambda one: one.reading("again"), "not read"),  # it is of the second visit
        (lambda one: one.value("fails"), "exit code 1: no"),
        (lambda one: one.value("hung"), "no answer in time"),
        (lambda one: one.files("three"), "a malformed answer"),
        (lambda one: one.files("rows"), "a malformed answer"),
        (lambda one: one.files("numbers"), "a malformed answer"),
        (lambda one: one.file("files", "/b"), "/b: cannot be read"),
        (lambda one: one.output("fails"), "exit code 1: no"),
        (lambda one: one.output("long"), "its output is too long"),
    ],
)
def test_what_cannot_be_read(ask: Any, why: str) -> None:
    one = seen(
        fails=said(b"no", 1), hung=HUNG, three=call([["a", "b", "c"]]), rows=call(["abc"]),
        numbers=call(3), files=files({"/a": b"A"}), long=Reading(0, b"x", cut=True),
    )  # fmt: skip
    with pytest.raises(Unread) as told:
        ask(one)
    assert str(told.value) == why


@cases(
    ("error", "text"),
    [
        (Unread("why"), "could not be read: why"),
        (ValueError("a"), "could not be understood: a"),
        (StopIteration(), "could not be understood: StopIteration"),
        (RecursionError("g" * 999), "could not be understood: " + "g" * 200),
    ],
)
def test_a_check_that_fails_has_found_nothing(error: Exception, text: str) -> None:
    def check(one: Seen) -> Finding:
        raise error

    assert checked(check, seen()) == Finding(INCOMPLETE, text)


@cases(
    ("texts", "how", "line"),
    [
        ([], {}, ""), (["a"], {}, "a"), (["a", "b", "c"], {}, "a, b, c"),
        (["a", "b", "c", "d"], {}, "a, b, c and 1 more"),
        (["a", "b", "c"], {"most": 1, "between": "; "}, "a and 2 more"),
        (["a", "b", "c"], {"most": 2, "between": "; "}, "a; b and 1 more"),
    ],
)  # fmt: skip
def test_a_few_of_many(texts: list[str], how: Any, line: str) -> None:
    assert a_few(texts, **how) == line


@cases(("values", "common"), [([], None), (["a"], "a"), (["b", "a", "a"], "a"), (["b", "a"], "b")])
def test_the_usual_value(values: list[str], common: str | None) -> None:
    assert mode(values) == common
    assert mode(iter(values)) == common


def test_hosts_are_held_against_what_most_of_them_have() -> None:
    found = {"a": ok("1"), "b": ok("2"), "c": ok("2"), "d": ok(""), "e": warn("odd", None, "9"),
             "f": Finding(INCOMPLETE, "?")}  # fmt: skip
    hosts = {name: Seen(name) for name in found}
    assert each(lambda one: found[one.name])(hosts) == found
    assert equal(lambda one: found[one.name], CRITICAL, "mend it")(hosts) == {
        **found,
        "a": Finding(CRITICAL, "1 here, 2 elsewhere", "1", "mend it"),
        "d": Finding(CRITICAL, "none here, 2 elsewhere", "", "mend it"),
    }


def test_most_may_have_none() -> None:
    found = {"a": ok("1"), "b": ok(""), "c": ok("")}
    compared = equal(lambda one: found[one.name], WARN)({name: Seen(name) for name in found})
    assert compared["a"] == Finding(WARN, "1 here, none elsewhere", "1")
    assert compared["b"] == ok("")
