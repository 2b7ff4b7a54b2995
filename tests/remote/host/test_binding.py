"""What a host tells of its CPUs, GPUs and RDMA devices; and ranks that really run where ordered."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from numa_machines import DGX_A100, NDV5

from dispatcher.remote.host import binding, host_facts
from dispatcher.remote.host.binding import Bound, topology
from remote.driver import Agent, Os, noting

#: what a container says to whom it allows no memory policy
NOT_ALLOWED = "Operation not permitted"
EVERY = [b"core", b"uuid", b"nics"]


def test_what_a_machine_of_two_nodes_tells(tmp_path: Path) -> None:
    NDV5.write(tmp_path)
    told = topology(EVERY, 8, str(tmp_path))
    assert told is not None
    assert (told["allowed"], told["nodes"]) == ("0-95", [[0, "48-95"], [1, "0-47"]])
    assert told["gpus"][3] == ["GPU-3aa", 0, "pci0008:00/0008:00:00.0"]
    assert told["nics"][4] == ["mlx5_4", 1, "pci0105:00/0105:00:00.0"]
    assert topology([b"gpu"], 8, str(tmp_path))["gpus"][3][0] == ""  # type: ignore[index]


@cases(
    ("wanted", "gpus", "nodes", "is_told"),
    [
        ([b"auto"], 8, 2, True), ([b"auto"], 0, 2, False), ([b"auto"], 8, 1, False),
        ([b"auto", b"nics"], 8, 1, True), ([b"numa"], 0, 2, True), ([b"core"], 0, 1, True),
    ],
)  # fmt: skip
def test_nothing_is_told_where_nothing_is_to_be_chosen(
    tmp_path: Path, wanted: list[bytes], gpus: int, nodes: int, is_told: bool
) -> None:
    replace(NDV5, nodes=dict([*NDV5.nodes.items()][:nodes])).write(tmp_path)
    assert (topology(wanted, gpus, str(tmp_path)) is not None) == is_told


def test_gpus_that_are_not_ours_do_not_count(tmp_path: Path) -> None:
    """A container's, or a step's: the device files that may be opened tell which they are."""
    DGX_A100.write(tmp_path)
    for minor in (0, 1, 2, 5, 6, 7):
        (tmp_path / f"dev/nvidia{minor}").unlink()
    told = topology([b"gpu"], 2, str(tmp_path))
    assert told is not None
    assert [one[:2] for one in told["gpus"]] == [["GPU-3aa", 1], ["GPU-4aa", 7]]
    assert topology([b"gpu"], 3, str(tmp_path))["gpus"] == []  # type: ignore[index]


def test_a_device_whose_node_the_kernel_does_not_tell(tmp_path: Path) -> None:
    NDV5.write(tmp_path)
    devices = sorted((tmp_path / "sys/bus/pci/devices").glob("*/numa_node"))
    for text, path in zip(("", "-1\n", None), devices, strict=False):
        path.write_text(text) if text is not None else path.unlink()
    told = topology(EVERY, 8, str(tmp_path))
    assert told is not None
    assert [one[1] for one in (*told["gpus"], *told["nics"])].count(-1) == 3


def test_a_host_without_any_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "os", Os(sched_getaffinity=lambda _: {*range(9)}))
    told = topology(EVERY, 0, str(tmp_path))
    cores = [*"012345678"]  # in order, so that hosts that are alike tell the same
    nothing = {"allowed": "", "nodes": [], "gpus": [], "nics": [], "sockets": []}
    assert told == nothing | {"cores": cores}


def test_only_who_is_asked_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start pays for it only where there are GPUs, or where the user wants it."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(binding, "topology", noting(asked, {}))
    for gpus, check in ((0, {}), (0, {"bind": b"auto"}), (8, {}), (8, {"bind": b"auto"}),
                        (0, {"bind": b"core"}), (0, {"bind": b"auto nics"})):  # fmt: skip
        monkeypatch.setattr(host_facts, "count_gpus", lambda gpus=gpus: gpus)
        host_facts.gather(check)
    assert asked == [([b"auto"], 8), ([b"core"], 0), ([b"auto", b"nics"], 0)]


def test_a_process_is_bound_and_the_agent_is_not() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    with Bound([last], []) as bound:
        assert os.sched_getaffinity(0) == {last}
    assert (os.sched_getaffinity(0), bound.refused) == (before, "")
    for cpus, nodes, refused in (([8191], [], "CPUs: "), ([last], [1023], "memory: ")):
        with Bound(cpus, nodes) as bound:
            assert bound.refused in (refused + "Invalid argument", refused + NOT_ALLOWED)
        assert os.sched_getaffinity(0) == before


def test_what_was_refused_is_told_by_what_this_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine if pid == 0 else {8191})
    monkeypatch.setattr(binding, "POLICY_CALLS", {})
    with Bound([*mine], [0]) as bound:
        assert bound.refused.startswith("memory: ")


def test_the_memory_policy_is_as_it_was_afterwards() -> None:
    def policy() -> str:
        return Path("/proc/self/numa_maps").read_text().split()[1]

    before, mine = policy(), [*os.sched_getaffinity(0)]
    with Bound(mine, [0]) as outer:
        if not outer.refused:
            assert policy() == "bind:0"
            with Bound(mine, [0]):
                pass
            assert policy() == "bind:0"
    assert policy() == before
    assert outer.refused in ("", "memory: " + NOT_ALLOWED)


def test_a_machine_whose_calls_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "POLICY_CALLS", {})
    with Bound([*os.sched_getaffinity(0)], [0]) as bound:
        assert bound.refused == "memory: no memory policy is known for this kind of machine"


def test_ranks_run_where_ordered(agent: Agent) -> None:
    """On CPUs of their own, with memory of their node; who cannot be bound starts all the same."""
    mine = sorted(os.sched_getaffinity(0))
    agent.prepare()
    show = ["sh", "-c", "grep Cpus_allowed_list /proc/self/status; head -n 1 /proc/self/numa_maps"]
    agent.start(show, show, show, bind=[[0, mine[:1], [0]], [1, mine[-1:], []], [2, [8191], []]])
    everywhere = Path("/proc/self/status").read_text().partition("Cpus_allowed_list:\t")[2]
    for rank, cpus in enumerate((mine[0], mine[-1], everywhere.partition("\n")[0])):
        assert f"Cpus_allowed_list:\t{cpus}\n" in agent.text(rank).decode()
    assert b" bind:0 " in agent.text(0) or agent.found("node.noticed")  # a container may refuse it
    assert b" default " in agent.text(1)
    assert "rank 2 is not bound as planned: CPUs: " in str(agent.reports)
