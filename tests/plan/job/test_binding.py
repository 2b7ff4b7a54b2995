"""Where ranks run on machines as their kernels show them: from the trees to the CPUs of each."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from numa_machines import DGX_A100, NDV5, SMALL, Machine, with_idle_node

from dispatcher.model.host import Host
from dispatcher.model.names import fold_numbers
from dispatcher.plan.job import binding
from dispatcher.plan.job.binding import Binding, Topology, bindings, cpu_set, group_bindings
from dispatcher.plan.job.devices import NodePlan
from dispatcher.plan.job.placement import parse_mapping
from dispatcher.remote.host.binding import topology


def shown(there: Topology, count: int, target: Any, mapping: str = "slot", **how: Any) -> str:
    """CPUs of ``count`` ranks, or why none; ranks that are alike written once."""
    node = NodePlan(0, Host("n1"), how.get("slots", ()), tuple(range(count)), gpus=how.get("gpus"))
    policy = how.get("devices", "auto")
    found = bindings(target, policy, node, len(there.gpus), there, parse_mapping(mapping))
    alike = [(fold_numbers(one.cpus) or one.why, one.sharers) for one in found]
    return " | ".join(f"{text} x{alike.count((text, n))}" for text, n in dict.fromkeys(alike))


def read(machine: Machine, root: Path, *words: bytes) -> Topology:
    machine.write(root)
    told = topology([b"gpu", *words], len(machine.gpus), str(root))
    assert told is not None
    rows: Any = {name: tuple(map(tuple, told[name])) for name in ("nodes", "gpus", "nics")}
    lists = {name: tuple(told[name]) for name in ("cores", "sockets")}
    found = Topology(told["allowed"], **lists, **rows)
    found.check()
    return found


#: two threads a core, and one core that is half ours
THREADS = Topology("0-3,5-7,16", ((0, "0-1,4-5"), (1, "2-3,6-7")), ("0,4", "1,5", "2,6", "3,7"),
                   (("", 1, ""), ("", 0, "")))  # fmt: skip
#: what a kernel without NUMA tells
MANY = Topology("0-11", (), tuple(sorted(map(str, range(12)))))
PLAIN = Topology("2-5", (), ("0", "1", "2", "3", "4", "5"))


@cases(
    ("machine", "count", "target", "how", "found"),
    [
        (NDV5, 8, "auto", {}, "48-95 x4 | 0-47 x4"), (NDV5, 8, "gpu", {}, "48-95 x4 | 0-47 x4"),
        (NDV5, 8, "numa", {}, "48-95 x4 | 0-47 x4"), (NDV5, 8, "none", {}, "not asked x8"),
        (NDV5, 2, "auto", {"slots": ("0", "4")}, "48-95 x1 | 0-47 x1"),
        (NDV5, 2, "auto", {"slots": ("0", "GPU-5")}, "48-95 x1 | 0-47 x1"),
        (NDV5, 2, "auto", {"gpus": ("6", "7")}, "0-47 x2"),
        (NDV5, 2, "auto", {"gpus": ()}, "no GPU that is known x2"),
        (NDV5, 2, "gpu", {"gpus": ("MIG-1", "MIG-2")}, "no GPU that is known x2"),
        (NDV5, 2, "gpu", {"gpus": ("GPU-",)}, "no GPU that is known x2"),  # eight fit
        (NDV5, 3, "auto", {"devices": "rank", "slots": ("1", "2", "7")}, "48-95 x2 | 0-47 x1"),
        (NDV5, 2, "auto", {"devices": "none", "gpus": ("7",)}, "0-47 x2"),
        # one rank may use all eight, so only who asks is bound
        (NDV5, 1, "auto", {}, "its GPUs are at several NUMA nodes x1"),
        (NDV5, 1, "auto", {"gpus": ("4", "6")}, "0-47 x1"),
        (NDV5, 1, "gpu", {}, "48-95 x1"),
        (NDV5, 1, "auto", {"gpus": ("0", "MIG-1")}, "no GPU that is known x1"),
        (NDV5, 16, "auto", {}, "48-95 x8 | 0-47 x8"),  # two a GPU
        (replace(NDV5, allowed="0-63"), 8, "auto", {}, "48-63 x4 | 0-47 x4"),
        (replace(NDV5, allowed="0-31"), 8, "auto", {}, "one NUMA node only x8"),
        (replace(NDV5, allowed="0-31"), 8, "gpu", {},
         "no CPU allowed at NUMA node 0 x4 | 0-31 x4"),
        (replace(NDV5, allowed="200"), 1, "numa", {}, "no CPU allowed at NUMA node 0 x1"),
        (with_idle_node(NDV5), 8, "auto", {}, "48-95 x8"),
        (DGX_A100, 8, "auto", {}, "48-63,176-191 x2 | 16-31,144-159 x2 | 112-127,240-255 x2 | "
         "80-95,208-223 x2"),
        # who has no GPU: in blocks, whatever the host has
        (replace(NDV5, gpus={}), 4, "numa", {}, "48-95 x2 | 0-47 x2"),
        (replace(NDV5, gpus={}), 3, "numa", {}, "48-95 x2 | 0-47 x1"),
        (replace(NDV5, gpus={}), 1, "gpu", {}, "no GPU that is known x1"),
        (SMALL, 2, "auto", {}, "0 x1 | 1 x1"),
        # cores of one's own: whole ones, as far as they are ours
        (THREADS, 2, "core", {}, "2-3,6-7 x1 | 0-1,5 x1"),
        (THREADS, 4, "core", {}, "2,6 x1 | 0 x1 | 3,7 x1 | 1,5 x1"),
        (THREADS, 5, "core", {},
         "fewer cores (2) than ranks (3) at NUMA node 1 x3 | 0 x1 | 1,5 x1"),
        (MANY, 3, "core", {}, "0-3 x1 | 4-7 x1 | 8-11 x1"),
        (PLAIN, 3, "core", {}, "2 x1 | 3 x1 | 4-5 x1"),
        (PLAIN, 3, "numa", {}, "2-5 x3"),
        (replace(PLAIN, gpus=(("", -1, ""),)), 1, "gpu", {}, "2-5 x1"),
        (replace(THREADS, gpus=(("", -1, ""),)), 1, "gpu", {},
         "its GPU's NUMA node is not known x1"),
    ],
)  # fmt: skip
def test_where_ranks_run(
    tmp_path: Path, machine: Any, count: int, target: Any, how: dict[str, Any], found: str
) -> None:
    words = [b"uuid"] if "GPU-5" in how.get("slots", ()) else []
    there = machine if isinstance(machine, Topology) else read(machine, tmp_path, *words)
    assert shown(there, count, target, **how) == found


#: two sockets of two NUMA nodes of two cores each
SOCKETS = Topology(
    "0-7", tuple((n, f"{2 * n}-{2 * n + 1}") for n in range(4)), tuple(map(str, range(8))),
    sockets=("4-7", "0-3"),
)  # fmt: skip


@cases(
    ("there", "count", "mapping", "target", "found"),
    [
        (SOCKETS, 4, "socket", "auto", "0-3 x2 | 4-7 x2"),
        (SOCKETS, 3, "numa", "auto", "0-1 x1 | 2-3 x1 | 4-5 x1"),
        (SOCKETS, 5, "numa", "auto", "0-1 x2 | 2-3 x1 | 4-5 x1 | 6-7 x1"),
        (SOCKETS, 3, "core", "auto", "0 x1 | 1 x1 | 2 x1"),
        (SOCKETS, 9, "core", "auto", "0 x2 | 1 x1 | 2 x1 | 3 x1 | 4 x1 | 5 x1 | 6 x1 | 7 x1"),
        (SOCKETS, 4, "ppr:2:socket", "auto", "0-3 x2 | 4-7 x2"),
        (SOCKETS, 4, "ppr:2:socket", "core", "0-1 x1 | 2-3 x1 | 4-5 x1 | 6-7 x1"),
        (SOCKETS, 4, "socket", "core", "0-1 x1 | 4-5 x1 | 2-3 x1 | 6-7 x1"),
        (SOCKETS, 2, "ppr:2:socket", "numa", "0-1 x2"),
        (SOCKETS, 4, "numa", "socket", "0-3 x2 | 4-7 x2"),
        (SOCKETS, 4, "core", "socket", "0-3 x4"),
        (SOCKETS, 6, "numa", "none", "not asked x6"),
        (SOCKETS, 10, "ppr:5:numa", "core", "fewer cores (2) than ranks (5) at numa x10"),
        # without a mapping: in blocks
        (SOCKETS, 4, "slot", "socket", "0-3 x2 | 4-7 x2"),
        (SOCKETS, 2, "node", "socket", "0-3 x1 | 4-7 x1"),
        (THREADS, 2, "slot", "socket", "the host reports no socket x2"),
        (THREADS, 2, "socket", "auto", "the host reports no socket x2"),
        (THREADS, 2, "numa", "auto", "0-1,5 x1 | 2-3,6-7 x1"),
        (THREADS, 2, "gpu", "auto", "2-3,6-7 x1 | 0-1,5 x1"),
        (THREADS, 2, "ppr:1:gpu", "none", "not asked x2"),
        (PLAIN, 3, "numa", "auto", "2-5 x3"),
    ],
)  # fmt: skip
def test_ranks_are_dealt_to_what_map_by_names(
    there: Topology, count: int, mapping: str, target: Any, found: str
) -> None:
    assert shown(there, count, target, mapping) == found


@cases("target", ["socket", "numa", "core"])
def test_ranks_on_the_same_cpus_share_them(target: Any) -> None:
    node = NodePlan(0, Host("n1"), (), tuple(range(8)))
    found = bindings(target, "auto", node, 0, SOCKETS)
    assert [one.sharers for one in found] == [{"socket": 4, "numa": 2, "core": 1}[target]] * 8


@cases(
    ("text", "there", "found"),
    [
        ("0", SOCKETS, "0"), ("7", SOCKETS, "7"), ("1:0-1", SOCKETS, "4-5"),
        ("1:*", SOCKETS, "4-7"),
        ("0:0;1:3", SOCKETS, "0,7"), ("p2-3", SOCKETS, "2-3"), ("*", SOCKETS, "0-7"),
        ("0-1,3", SOCKETS, "0-1,3"),
        # cores have two threads, of which not all are ours; CPUs have the kernel's numbers
        ("0", THREADS, "0"), ("1-2", THREADS, "1-2,5-6"), ("p5", THREADS, "5"),
        ("p*", THREADS, "0-3,5-7"),
        ("p4", THREADS, "no CPU 4: ranks may use 7"), ("4", THREADS, "no core 4: ranks may use 4"),
        ("0:0", THREADS, "no socket 0: ranks may use 0"),
        ("1:4", SOCKETS, "no core 4 on socket 1: ranks may use 4"),
        ("2:0", SOCKETS, "no socket 2: ranks may use 2"),
        ("0-99999", SOCKETS, "no core 8: ranks may use 8"),
        ("2-5", PLAIN, "no core 4: ranks may use 4"), ("0", PLAIN, "2"), ("p2", PLAIN, "2"),
    ],
)  # fmt: skip
def test_what_a_rankfile_means_on_a_host(text: str, there: Topology, found: str) -> None:
    one = binding.slot(text, there)
    assert (fold_numbers(one.cpus) or one.why) == found


def test_ranks_that_a_rankfile_names_cpus_for_run_there() -> None:
    node = NodePlan(0, Host("n1"), (), (0, 1, 2, 3))
    how = ("auto", node, 0, SOCKETS)
    found = bindings("auto", *how, slots=("1:0", "4", "0:*", ""))
    told = [(fold_numbers(one.cpus) or one.why, one.nodes, one.sharers) for one in found]
    assert told == [("4", (2,), 2), ("4", (2,), 2), ("0-3", (0, 1), 1), ("not asked", (), 1)]
    assert not any(one.cpus for one in bindings("none", *how, slots=("0", "1", "2", "3")))
    assert bindings("auto", "auto", node, 0, None, slots=("0",) * 4)[0].why


@cases(
    ("what", "there", "count"),
    [("numa", SOCKETS, 4), ("socket", SOCKETS, 2), ("core", SOCKETS, 8), ("core", THREADS, 4),
     ("socket", THREADS, 0), ("numa", PLAIN, 1), ("core", PLAIN, 4), ("numa", None, 0)],
)  # fmt: skip
def test_how_many_there_are_to_deal_to(what: str, there: Topology | None, count: int) -> None:
    assert binding.count(what, there) == count


def test_sockets_are_told_when_asked_for(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "core_siblings_list").write_text("0-95\n")
    there = read(replace(SMALL, gpus={}), tmp_path, b"socket")
    assert there.sockets == ("0-95",)


def test_a_host_that_told_nothing_binds_nobody() -> None:
    node = NodePlan(0, Host("n1"), (), (0, 1))
    assert bindings("gpu", "auto", node, 8, None) == [Binding(why="the host reports no CPUs")] * 2


def test_how_many_share_the_cpus_of_a_rank(tmp_path: Path) -> None:
    node = NodePlan(0, Host("n1"), (), tuple(range(6)))
    found = bindings("numa", "auto", node, 6, read(NDV5, tmp_path))
    assert [one.sharers for one in found] == [4, 4, 4, 4, 2, 2]
    assert [one.nodes for one in found] == [(0,)] * 4 + [(1,)] * 2
    assert [one.sharers for one in bindings("core", "auto", node, 2, THREADS)[3:]] == [1] * 3


@cases(
    ("machine", "gpu", "names"),
    [
        # below the same switch; below the same host bridge only; at the same NUMA node
        (DGX_A100, 0, "mlx5_0"), (DGX_A100, 1, "mlx5_0"), (DGX_A100, 6, "mlx5_4"),
        (NDV5, 0, "mlx5_0 mlx5_1 mlx5_2 mlx5_3"), (NDV5, 7, "mlx5_4 mlx5_5 mlx5_6 mlx5_7"),
        (replace(DGX_A100, nics={"a": (2, "pci0000:20/0000:20:01.1/0000:99:00.0")}), 0, ""),
        (replace(DGX_A100, nics={"a": (3, "pci0000:30/0000:30:02.1/0000:99:00.0")}), 0, "a"),
    ],
)  # fmt: skip
def test_which_network_is_near_to_a_gpu(
    tmp_path: Path, machine: Machine, gpu: int, names: str
) -> None:
    there = read(machine, tmp_path, b"nics")
    node = NodePlan(0, Host("n1"), (), tuple(range(8)))
    for target in ("gpu", "none"):
        found = bindings(target, "auto", node, 8, there)
        assert " ".join(found[gpu].nics) == names
    assert binding.near(there.nics) == ()


@cases(
    ("text", "cpus"),
    [
        ("", []), ("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), ("7,2-3", [2, 3, 7]),
        ("0-8191", list(range(8192))), ("0-8192", None), ("3-1", None), ("1,1", None), ("x", None),
        ("-1", None), ("0-3,3", None), ("1,", None),
    ],
)  # fmt: skip
def test_sets_of_cpus_as_the_kernel_writes_them(text: str, cpus: list[int] | None) -> None:
    if cpus is None:
        with pytest.raises(ValueError, match=r"CPUs|invalid literal"):
            cpu_set(text)
    else:
        assert sorted(cpu_set(text)) == cpus
        assert cpu_set(fold_numbers(cpus)) == cpu_set(text)


def test_the_most_that_a_kernel_may_say() -> None:
    there = Topology("0-8191", tuple((n, f"{n * 4096}-{n * 4096 + 4095}") for n in (0, 1)))
    assert there.check() is None  # type: ignore[func-returns-value]


@cases(
    "there",
    [
        Topology("x"), Topology("0", ((0, "0-9000"),)), Topology("0", cores=("0-8191", "0")),
        Topology("0", tuple((n, "0-4095") for n in range(3))),
    ],
)  # fmt: skip
def test_what_no_kernel_says(there: Topology) -> None:
    with pytest.raises(ValueError, match=r"CPUs|invalid literal"):
        there.check()


def test_ranks_that_are_bound_alike_are_told_together() -> None:
    found = [Binding((0, 1), (0,)), Binding(why="why"), Binding((0, 1), (0,)), Binding(why="why")]
    assert group_bindings(found, (4, 5, 6, 7), bound=True) == (("CPUs 0-1 of NUMA node 0", (4, 6)),)
    assert group_bindings(found, (4, 5, 6, 7), bound=False) == (("why", (5, 7)),)
