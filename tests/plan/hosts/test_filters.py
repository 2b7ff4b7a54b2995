"""Filters as DeepSpeed documents them: its own table, and the cases it gets wrong."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import PlanError, UsageError
from dispatcher.model.host import Host
from dispatcher.plan.hosts.filters import choose_hosts, fitting
from dispatcher.plan.hosts.hostfile import parse_hostfile

H1 = "w0 slots=4"
H2 = "w0 slots=4\nw1 slots=4"


def chosen(hosts: str, include: str | None = None, exclude: str | None = None) -> dict[str, str]:
    found = choose_hosts(parse_hostfile(hosts, "hf").hosts, include, exclude)
    return {
        choice.host.name: "?" if choice.slots is None else ",".join(choice.slots)
        for choice in found
    }


@cases(
    ("hosts", "include", "exclude", "result"),
    [
        (H1, None, None, {"w0": "0,1,2,3"}), (H1, None, "w0:1", {"w0": "0,2,3"}),
        (H1, None, "w0:1,2", {"w0": "0,3"}), (H1, "w0:1", None, {"w0": "1"}),
        (H1, "w0:1,1", None, {"w0": "1"}), (H1, "w0:1@w0:0,1", None, {"w0": "0,1"}),
        (H1, "w0", None, {"w0": "0,1,2,3"}), (H1, None, "w0", {}), (H1, None, "w0:0,1,2,3", {}),
        (H2, None, None, {"w0": "0,1,2,3", "w1": "0,1,2,3"}),
        (H2, "w1:0,3", None, {"w1": "0,3"}),
        (H2, None, "w1", {"w0": "0,1,2,3"}),
        (H2, None, "w0:0,1@w1:3", {"w0": "2,3", "w1": "0,1,2"}),
        # what its command line gets wrong
        (H2, "w0", None, {"w0": "0,1,2,3"}),
        (H2, "w0@w1:0,2", None, {"w0": "0,1,2,3", "w1": "0,2"}),
        (H2, "w1:0,1@w0:3,2", None, {"w0": "2,3", "w1": "0,1"}),
        (H2, None, "w1:0", {"w0": "0,1,2,3", "w1": "1,2,3"}),
        (H2, "w0@w0:1", None, {"w0": "0,1,2,3"}),
        # beyond it: ranges of hosts and of slots, addresses, GPU names
        (H2, "w[0-1]:0-2", None, {"w0": "0,1,2", "w1": "0,1,2"}),
        (H2, "w1,w0", None, {"w0": "0,1,2,3", "w1": "0,1,2,3"}),
        ("::1 slots=2\n[fe80::1] slots=2", "[::1]:1@fe80::1", None, {"::1": "1", "fe80::1": "0,1"}),
        ("w0 gpus=4,5,7", "w0:7,4", None, {"w0": "4,7"}),
        ("w0 gpus=GPU-a,GPU-b,GPU-c", "w0:2,GPU-a", None, {"w0": "GPU-a,GPU-c"}),
        ("w0 gpus=GPU-a,GPU-b,GPU-c", None, "w0:1", {"w0": "GPU-a,GPU-c"}),
        ("w0\nw1", "w1", None, {"w1": "?"}),
        ("w0\nw1", "w0:3,10,2", None, {"w0": "2,3,10"}),
        ("w0\nw1", None, "w1", {"w0": "?"}),
    ],
)  # fmt: skip
def test_filters(
    hosts: str, include: str | None, exclude: str | None, result: dict[str, str]
) -> None:
    found = chosen(hosts, include, exclude)
    assert found == result
    assert list(found) == list(result), "the hostfile's order wins"


@cases(
    ("hosts", "include", "exclude", "result"),
    [
        ("w[0-3]", "w[1-3]", "w2", {"w1": "?", "w3": "?"}),
        ("w0 slots=4", "w0:0-2", "w0:2,3", {"w0": "0,1"}),
        ("w0", "w0:0-2", "w0:2,3", {"w0": "0,1"}),
        ("w0 gpus=GPU-a,GPU-b", "w0:0", "w0:1", {"w0": "GPU-a"}),
        ("w0\nw1", "w0", "w0", {}),
    ],
)
def test_both_leave_what_is_in_one_and_not_in_the_other(
    hosts: str, include: str, exclude: str, result: dict[str, str]
) -> None:
    assert chosen(hosts, include, exclude) == result


@cases(
    ("text", "left"),
    [
        ("w0", "w0"), ("w[0-1]:0,2@m3", "w0:0,2@w1:0,2"), ("m[1-3]@m4:0", None),
        ("::1@[::1]:0", "::1"), ("[::1]:0", "[::1]:0"),
    ],
)  # fmt: skip
def test_of_a_filter_for_others_what_fits_is_left(text: str, left: str | None) -> None:
    hosts = parse_hostfile("w[0-1]\n[::1]", "hf").hosts
    found = fitting(text, hosts, "f", strict=False)
    if found is not None:
        assert choose_hosts(hosts, include=found) == choose_hosts(hosts, include=left)
    else:
        assert left is None
    with pytest.raises(PlanError, match=r"^f: no host 'm1'"):
        fitting("m1", hosts, "f", strict=True)


@cases("flag", ["include", "exclude"])
@cases(
    ("text", "message"),
    [
        ("jeff", r"no host 'jeff' \(known: w\[0-1\]\)"),
        ("w1:4", r"w1: no slot '4' \(it has 0,1,2,3\)"),
        ("w1@w0:1@5", "no host '5'"),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(flag: str, text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        chosen(H2, **{flag: text})


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(PlanError) as caught:
        chosen("worker-0 slots=1\nworker-1 slots=1", "worker_1")
    assert caught.value.hint == "did you mean worker-1?"


def test_slots_nobody_counted_cannot_be_excluded() -> None:
    with pytest.raises(PlanError, match="not known") as caught:
        chosen("w0", exclude="w0:1")
    assert caught.value.hint
    assert "w0 slots=8" in caught.value.hint


@given(st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 7), min_size=1), min_size=1))
def test_include_and_exclude_of_the_same_filter_share_everything(
    wanted: dict[int, set[int]],
) -> None:
    hosts = "w[0-9] slots=8"
    text = "@".join(f"w{host}:{','.join(map(str, ids))}" for host, ids in wanted.items())
    inside, outside = chosen(hosts, include=text), chosen(hosts, exclude=text)
    for n in range(10):
        together = [
            *filter(None, inside.get(f"w{n}", "").split(",")),
            *filter(None, outside.get(f"w{n}", "").split(",")),
        ]
        assert sorted(map(int, together)) == list(range(8))


@cases(
    ("hosts", "include", "exclude", "named"),
    [
        ("w0 slots=4", None, None, False), ("w0 slots=4", "w0", None, False),
        ("w0 slots=4", "w0:1", None, True), ("w0 slots=4", None, "w0:1", True),
        ("w0", "w0:1", None, True), ("w0 gpus=1,2", None, None, True),
        ("w0 gpus=1,2", "w0", None, True),
    ],
)  # fmt: skip
def test_whether_gpus_were_named(
    hosts: str, include: str | None, exclude: str | None, named: bool
) -> None:
    (choice,) = choose_hosts(parse_hostfile(hosts, "hf").hosts, include, exclude)
    assert choice.named is named


@cases(
    ("text", "said", "hint"),
    [
        ("", "--include: empty filter", "leave it out, or: --include host:0,1"),
        ("w0@", "--include: a host is missing beside '@'", None),
        ("w0: 1", "--include: 'w0: 1': a blank inside", "write host:0,1@host2"),
        ("w0,w1:0", "--include: 'w0,w1:0': several hosts before ':'", "join specs by @"),
        ("[::1]x", "--include: '[::1]x': text after the bracketed address", None),
        ("w0:3-1", "--include: 'w0:3-1': not a slot: '3-1'",
         "slots are numbers or GPU names: --include host:0,2"),
        ("w0:0,4097", "--include: 'w0:0,4097': not a slot: '4097'",
         "slots are numbers or GPU names: --include host:0,2"),
        ("w[]", "--include: 'w[]': an empty range",
         "a range is 1-16 or 0-14/2; several are separated by commas"),
        ("w00", "--include: no host 'w00' (known: w[0-1])", "did you mean w0?"),
        ("jeff", "--include: no host 'jeff' (known: w[0-1])", None),
    ],
)  # fmt: skip
def test_a_filter_that_is_wrong(text: str, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(H2, text)
    assert (caught.value.message, caught.value.hint) == (said, hint)


@cases(
    ("hosts", "text", "result"),
    [
        ("w0", "w0:4096", {"w0": "4096"}),
        ("w0", "w0:2-2,01", {"w0": "1,2"}),
        ("w0", "w0:GPU-a,MIG-b/1/0", {"w0": "GPU-a,MIG-b/1/0"}),
        ("w[0-1],x", "w[0-1],x", {"w0": "?", "w1": "?", "x": "?"}),
        ("w0 gpus=5,6", "w0:6", {"w0": "6"}),
        ("w0 gpus=GPU-a", "w0:0", {"w0": "GPU-a"}),
    ],
)
def test_slots_as_they_may_be_written(hosts: str, text: str, result: dict[str, str]) -> None:
    assert chosen(hosts, text) == result


@cases(
    ("hosts", "text", "has"),
    [
        ("w0 slots=8", "w0:8", "0,1,2,3,4,5,6,7"),
        ("w0 slots=9", "w0:9", "0 to 8"),
        ("w0 gpus=GPU-a,GPU-b", "w0:2", "GPU-a,GPU-b"),
        ("w0 gpus=GPU-a,GPU-b", "w0:GPU-c", "GPU-a,GPU-b"),
        ("w0 gpus=5,6", "w0:0", "5,6"),
    ],
)
@cases("flag", ["include", "exclude"])
def test_a_slot_that_is_not_there(hosts: str, text: str, has: str, flag: str) -> None:
    name = text.partition(":")[2]
    with pytest.raises(PlanError) as caught:
        chosen(hosts, **{flag: text})
    assert caught.value.message == f"w0: no slot '{name}' (it has {has})"


def test_many_known_hosts_are_cut_short() -> None:
    """And one of a like name is found among very many."""
    for count in (1000, 5000):
        hosts = [Host(f"a{i}b{i * 7919 % 977}") for i in range(count)]
        with pytest.raises(PlanError) as caught:
            choose_hosts(hosts, "a1b103x")
        assert len(caught.value.message) < 360
        assert caught.value.message.endswith("...)")
        assert caught.value.hint == "did you mean a1b103?"


def test_what_fits_names_slots_in_order_and_every_host() -> None:
    hosts = [Host("w0"), Host("::1")]
    assert fitting("w0:2,1@[::1]:0@w9", hosts, "f", strict=False) == "w0:1,2@[::1]:0"
    assert fitting("w0:0@w0", hosts, "f", strict=True) == "w0"
    assert fitting("w9", hosts, "f", strict=False) is None
    with pytest.raises(UsageError, match=r"^f: empty filter"):
        fitting("", hosts, "f", strict=False)
