"""One command for many hosts, as it is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import cases

from dispatcher.model.errors import NotAScript, PlanError, UsageError
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.exec_plan import LONGEST, ExecLimits, ExecPlan, Script, spelled, target_hosts
from dispatcher.plan.hosts.hostfile import parse_inline

HOSTS = (Host("n1"), Host("n2", port=2201), Host("n2", port=2202), Host("n3", port=7))


def test_what_nobody_said() -> None:
    assert vars(ExecLimits()) == {
        "connect": 10.0, "login": 0.0, "command": None, "total": None, "grace": 5.0, "fanout": 64,
        "serial": None, "max_fail": None, "delay": 0.0,
    }  # fmt: skip
    plan = ExecPlan(HOSTS, ("true",))
    assert (plan.stdin, plan.limits, plan.tails) == (False, ExecLimits(), ())
    assert (plan.sudo, plan.terminal) == (None, None)


@cases(
    ("limits", "is_good"),
    [
        ({"grace": 0}, True), ({"grace": -1}, False), ({"connect": 0}, False),
        ({"connect": 0.1}, True), ({"command": 0}, False), ({"command": None}, True),
        ({"total": LONGEST - 1}, True), ({"total": LONGEST}, False),
        ({"total": float("nan")}, False), ({"fanout": 1}, True), ({"fanout": 0}, False),
        ({"serial": 1}, True), ({"serial": 0}, False), ({"max_fail": 1}, True),
        ({"max_fail": 0}, False), ({"fanout": 0.5}, False), ({"serial": 0.5}, False),
        ({"max_fail": 0.5}, False), ({"max_fail": 1.5}, False), ({"delay": -1}, False),
    ],
)  # fmt: skip
def test_limits(limits: dict[str, Any], is_good: bool) -> None:
    if is_good:
        assert vars(ExecLimits(**limits)).items() >= limits.items()
        return
    (name, given), *_ = limits.items()
    with pytest.raises(UsageError, match=f"{name}: {given} is not a sensible limit"):
        ExecLimits(**limits)


@cases(
    ("limits", "hosts", "batches", "at_once"),
    [
        ({}, 5, (5,), 5), ({"serial": 2}, 5, (5,), 2), ({"serial": "41%"}, 5, (5,), 3),
        ({"serial": 10}, 3, (3,), 3), ({"serial": 2, "delay": 1}, 5, (2, 2, 1), 2),
        ({"serial": "1,10%,50%"}, 20, (1, 2, 10, 7), 10),
        ({"serial": "1,10%,50%"}, 2, (1, 1), 1),
        ({"serial": "1,1"}, 3, (1, 1, 1), 1),
        ({"serial": "100%,1"}, 3, (3,), 3),
    ],
)  # fmt: skip
def test_batches(
    limits: dict[str, Any], hosts: int, batches: tuple[int, ...], at_once: int
) -> None:
    found = ExecLimits(**limits)
    assert (found.batches(hosts), found.at_once(hosts)) == (batches, at_once)


@cases(
    ("limits", "hosts", "canaries"),
    [
        ({"serial": 2, "delay": 1}, 5, 0),
        ({"serial": "1,10%,50%"}, 20, 4),
        ({"serial": "1,10%,50%", "max_fail": 2}, 20, 2),
        ({"serial": "1,10%,50%", "max_fail": 2}, 1, 1),  # no more than there are batches
    ],
)
def test_which_batches_are_canaries(limits: dict[str, Any], hosts: int, canaries: int) -> None:
    assert ExecLimits(**limits).canaries(hosts) == canaries


@cases(("most", "hosts", "failures"), [(None, 9, None), (2, 9, 2), ("10%", 9, 1), ("34%", 9, 4)])
def test_when_failures_end_it(most: Any, hosts: int, failures: int | None) -> None:
    assert ExecLimits(max_fail=most).most_failures(hosts) == failures


@cases(
    ("content", "words"),
    [
        (b"", ("/bin/sh", "s")), (b"echo", ("/bin/sh", "s")), (b"#!", ("/bin/sh", "s")),
        (b"#!/bin/bash", ("/bin/bash", "s")),
        (b"#! /bin/bash -eu \n", ("/bin/bash", "-eu", "s")),
        (b"#!/usr/bin/env -S perl -w\n", ("/usr/bin/env", "-S perl -w", "s")),
        (b"#!/\xff\tx y\nz", ("/\udcff", "x y", "s")),
        (b"echo\r\n", ("/bin/sh", "s")),
    ],
)  # fmt: skip
def test_who_runs_a_script(content: bytes, words: tuple[str, ...]) -> None:
    assert Script("s", content).words == words


@cases(
    ("content", "said", "hint"),
    [
        (b"\x7fELF..", "'s': a program, not a script", "dispatch put -H hostfile s /tmp/"),
        (b"#!/bin/sh\r\nid\r\n", r"'s': its lines end in \r\n, and", r"sed -i 's/\r$//' s"),
    ],
)
def test_what_is_no_script(content: bytes, said: str, hint: str) -> None:
    with pytest.raises(NotAScript) as caught:
        Script("s", content)
    assert caught.value.message.startswith(said)
    assert caught.value.hint == hint


@cases(
    ("limits", "said"),
    [
        ({"serial": "x"}, "serial: not a whole number: 'x'"),
        ({"serial": "0%"}, "serial: 0 is not between 1 and 100"),
        ({"max_fail": "1,2"}, "max_fail: not a whole number: '1,2'"),
        ({"delay": 1.0}, "delay: needs serial"),
    ],
)
def test_shares_that_are_none(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        ExecLimits(**limits)
    assert caught.value.message == said


@cases(
    ("words", "tails", "why"),
    [
        ((), (), "no command given"), (("",), (), "no command given"),
        (("ls", "a\0b"), (), "a NUL byte"), (("ls",), (("a",), ("b", "\0")), "a NUL byte"),
    ],
)  # fmt: skip
def test_a_command_must_be_one(
    words: tuple[str, ...], tails: tuple[tuple[str, ...], ...], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        ExecPlan(HOSTS[:2], words, tails=tails)


def test_each_host_has_a_name_words_and_a_place() -> None:
    plan = ExecPlan(HOSTS, ("ls", "-l"))
    assert plan.names == ["n1", "n2:2201", "n2:2202", "n3"]
    assert plan.words_for(1) == ("ls", "-l")
    assert plan.environment(2) == (
        ("DISPATCH_HOST", "n2"), ("DISPATCH_INDEX", "2"), ("DISPATCH_COUNT", "4"),
    )  # fmt: skip
    assert ExecPlan((Host("n1"), Host("n1", port=22)), ("ls",)).names == ["n1", "n1:22"]
    own = ExecPlan(HOSTS[:2], ("ls",), tails=(("a",), ("b", "c")))
    assert [own.words_for(node) for node in (0, 1)] == [("ls", "a"), ("ls", "b", "c")]


def test_what_w_calls_a_host() -> None:
    found = [
        Host("a"), Host("a", user="me"), Host("a", user="me", port=7), Host("::1", user="me"),
        Host("::1", user="me", port=7),
    ]  # fmt: skip
    words = ["a", "me@a", "me@a:7", "me@::1", "me@[::1]:7"]
    assert spelled([*found, Host("a", port=7)]) == [*words, None]
    for host, word in zip(found, words, strict=True):
        (read,) = parse_inline(word, "-w", slots=False).hosts
        assert replace(read, origin=host.origin) == host
    assert spelled(found[2:3], "me", 7) == ["a"]


def targets(*lists: tuple[Host, ...], without: tuple[str, ...] = (), **more: Any) -> list[Host]:
    return list(target_hosts(map(Hostlist, lists), without, **more))


def test_the_hosts_of_all_lists_each_once() -> None:
    found = targets((HOSTS[0], HOSTS[1]), (HOSTS[2], Host("n1", user="late"), HOSTS[1]))
    assert found == [HOSTS[0], HOSTS[1], HOSTS[2]]
    assert targets(HOSTS, without=("n2", "n9")) == [HOSTS[0], HOSTS[3]]


def test_user_and_port_hold_where_a_host_names_none() -> None:
    found = targets((Host("a"), Host("b", user="own", port=7)), user="me", port=2222)
    assert found == [Host("a", user="me", port=2222), Host("b", user="own", port=7)]
    twice = (Host("a"), Host("a", user="own", port=22))
    assert targets(twice, port=22) == [Host("a", port=22)]
    assert targets(twice) == list(twice)


def test_no_host_left() -> None:
    with pytest.raises(PlanError, match=r"^no hosts$") as caught:
        targets()
    assert caught.value.hint is None
    with pytest.raises(PlanError, match=r"^no host is left after -x$"):
        targets(HOSTS[:1], without=("n1",))
    with pytest.raises(PlanError, match=r"^no host is left after --exclude$") as caught:
        targets(HOSTS[:1], without=("n1",), option="--exclude", hint="leave it out")
    assert caught.value.hint == "leave it out"
