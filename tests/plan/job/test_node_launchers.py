"""Launchers once a host: their table, and the placeholders in a program's words."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import DispatchError, UsageError
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.node_launchers import (
    LAUNCHERS,
    NAMES,
    check_even,
    fill_words,
    start_words,
    with_slots,
    world_values,
)
from dispatcher.plan.job.request import Program, Request

VALUES: dict[str, object] = {name: f"<{name}>" for name in NAMES}


@cases(
    ("word", "wanted"),
    [
        ("{node_rank}", "<node_rank>"),
        ("--rdzv={master_addr}:{master_port}", "--rdzv=<master_addr>:<master_port>"),
        ("{unknown}", "{unknown}"),
        ('{"rank": {"host": 1}}', '{"rank": {"host": 1}}'),
        ("{ host }", "{ host }"), ("{host", "{host"), ("${host}", "$<host>"), ("", ""),
    ],
)  # fmt: skip
def test_filled(word: str, wanted: str) -> None:
    assert fill_words((word,), VALUES) == (wanted,)


@given(st.lists(st.text(alphabet="{}ab_ host", max_size=20)))
def test_every_other_word_stands(words: list[str]) -> None:
    for before, after in zip(words, fill_words(tuple(words), VALUES), strict=True):
        if not any(f"{{{name}}}" in before for name in NAMES):
            assert after == before


def test_a_value_is_not_filled_again() -> None:
    assert fill_words(("{host}",), {**VALUES, "host": "{run_id}"}) == ("{run_id}",)


def test_a_name_without_a_value() -> None:
    with pytest.raises(KeyError, match="host"):
        fill_words(("{host}",), {})


def test_torchrun_is_told_where_to_meet() -> None:
    words = start_words("torchrun", ("t.py", "{nproc_per_node}"), "script", "4")
    assert words == (
        "torch.distributed.run", "--nnodes", "{nnodes}", "--nproc-per-node", "4",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "{master_addr}:{master_port}",
        "--rdzv-id", "{run_id}-{restart}", "--rdzv-conf", "is_host={is_first_node}",
        "--local-addr", "{address}", "t.py", "{nproc_per_node}",
    )  # fmt: skip


Kind = Literal["script", "module", "command"]


@cases(
    ("name", "kind", "form"),
    [
        ("torchrun", "module", "-m"), ("torchrun", "command", "--no-python"),
        ("accelerate", "module", "--module"), ("accelerate", "command", "--no_python"),
        ("deepspeed", "module", "--module"), ("deepspeed", "command", "--no_python"),
        ("lightning", "module", None), ("lightning", "command", None),
        ("llamafactory-cli", "module", None), ("llamafactory-cli", "command", None),
    ],
)  # fmt: skip
def test_modules_and_commands(name: str, kind: Kind, form: str | None) -> None:
    if form is None:
        with pytest.raises(UsageError, match=f"--launcher {name} starts scripts only"):
            start_words(name, ("p", "x"), kind, None)
    else:
        assert start_words(name, ("--own", "p", "x"), kind, None)[-4:] == (form, "--own", "p", "x")


def test_what_the_table_fills_in_is_known() -> None:
    for one in LAUNCHERS.values():
        used = {word.strip("{}") for word in one.options if word.startswith("{")}
        assert {part for word in used for part in word.split("}:{")} <= set(NAMES) | {
            "run_id}-{restart"
        }
        assert "script" in one.forms


def plan_of(*hosts: Host, **fields: Any) -> JobPlan:
    program = Program("command", ("p",))
    request = Request(Hostlist(hosts), program, "/w", nproc_per_node=1, per_node=True, **fields)
    return plan_job(request, "run-1")


@cases(
    ("hosts", "size", "info"),
    [
        ([Host("a", slots=2), Host("b", slots=1)], 3, {"a": [0, 1], "b": [0]}),
        ([Host("a"), Host("b", slots=1)], 5, {"a": [0, 1, 2, 3], "b": [0]}),
        ([Host("a", slots=2, gpus=("3", "GPU-x"))], 2, {"a": [3, "GPU-x"]}),
        ([Host("a", slots=1), Host("a", slots=1, port=2)], 2, {"a#0": [0], "a#1": [0]}),
    ],
)
def test_the_world_of_all_hosts(
    hosts: list[Host], size: int, info: dict[str, list[object]]
) -> None:
    found = world_values(plan_of(*hosts), 4)
    assert found["world_size"] == size
    assert json.loads(base64.urlsafe_b64decode(str(found["world_info"]))) == info


@cases(
    ("name", "hosts", "nproc", "want"),
    [
        ("torchrun", [Host("a"), Host("b", slots=3)], None, [None, 3]),
        ("deepspeed", [Host("a", slots=2), Host("b", slots=3)], None, [2, 3]),
        ("deepspeed", [Host("a"), Host("b", slots=3)], 4, [4, 4]),
        ("accelerate", [Host("n1"), Host("n2")], None,
         "--launcher accelerate: how many ranks on n"),
        ("lightning", [Host("a", slots=1, gpus=("3",))], 2, "--nproc-per-node 2: other GPUs are"),
    ],
)  # fmt: skip
def test_slots_of_all_hosts(
    name: str, hosts: list[Host], nproc: int | None, want: list[int | None] | str
) -> None:
    try:
        found = with_slots(name, Hostlist(tuple(hosts)), nproc)
    except UsageError as refused:
        assert refused.message.startswith(str(want))  # noqa: PT017 - some are refused
    else:
        assert [host.slots for host in found.hosts] == want


@cases(
    ("name", "slots", "said"),
    [
        ("deepspeed", (2, 3), None),
        ("accelerate", (2, 2), None),
        ("accelerate", (2, 3), "as many ranks on each host, and these differ: 2 on n0, 3 on n1"),
        ("llamafactory-cli", (1, 8), "these differ: 1 on n0, 8 on n1"),
    ],
)
def test_launchers_that_want_equal_hosts(
    name: str, slots: tuple[int, ...], said: str | None
) -> None:
    plan = plan_of(*(Host(f"n{at}", slots=count) for at, count in enumerate(slots)))
    if said is None:
        check_even(name, plan.nodes)
        assert plan.nodes
    else:
        with pytest.raises(DispatchError, match=said):
            check_even(name, plan.nodes)
