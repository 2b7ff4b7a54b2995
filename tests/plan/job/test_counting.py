"""Sockets, cores and NUMA nodes are counted as hwloc counts them, which Open MPI asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cases import cases
from numa_machines import Cpus

from dispatcher.model.names import fold_numbers
from dispatcher.plan.job.binding import Topology, _Chooser
from dispatcher.remote.host.binding import topology

#: machines as they are sold, and as some are set up
MACHINES = {
    "two threads": Cpus(
        {cpu: (cpu % 8 // 4, cpu % 4) for cpu in range(16)},
        {0: [*range(4), *range(8, 12)], 1: [*range(4, 8), *range(12, 16)]},
    ),
    "some are off": Cpus(
        {cpu: (cpu % 8 // 4, cpu % 4) for cpu in range(16)},
        {0: [*range(4), *range(8, 12)], 1: [*range(4, 8), *range(12, 16)]},
        off=(2, 12),
    ),
    "even and odd": Cpus(
        {cpu: (cpu % 2, cpu // 2) for cpu in range(8)}, {0: range(0, 8, 2), 1: range(1, 8, 2)}
    ),
    "nodes within sockets": Cpus(
        {cpu: (cpu // 4, cpu % 4) for cpu in range(8)},
        {node: (2 * node, 2 * node + 1) for node in range(4)},
    ),
    "even and odd, with nodes": Cpus(
        {cpu: (cpu % 2, cpu // 2) for cpu in range(16)},
        {node: range(node, 16, 4) for node in range(4)},
    ),
    "sockets within nodes": Cpus(
        {cpu: (cpu % 4, cpu // 4) for cpu in range(8)}, {0: (0, 2, 4, 6), 1: (1, 3, 5, 7)}
    ),
    "the second node first": Cpus(
        {cpu: (cpu // 48, cpu % 48) for cpu in range(96)}, {0: range(48, 96), 1: range(48)}
    ),
    "a node of memory alone": Cpus(
        {cpu: (0, cpu) for cpu in range(4)}, {0: range(4), 1: ()}
    ),
    "without nodes": Cpus({cpu: (cpu % 2, cpu // 2) for cpu in range(4)}, {}),
    "without sockets": Cpus({cpu: (-1, cpu) for cpu in range(4)}, {0: range(4)}),
    "numbers with gaps": Cpus({cpu: (cpu // 4, 4 * cpu) for cpu in range(8)}, {0: range(8)}),
}  # fmt: skip
#: what they are called there
WORDS = {"numa": "NUMANode", "socket": "Package", "core": "Core"}


def counted(machine: Cpus, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The CPUs of each, in the order in which they are counted here."""
    machine.write(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda pid: set(machine.on))
        told = topology([b"core", b"socket"], 0, str(root))
    assert told is not None
    nodes = tuple((number, cpus) for number, cpus in told["nodes"])
    there = Topology(told["allowed"], nodes, tuple(told["cores"]), sockets=tuple(told["sockets"]))
    chooser = _Chooser(there, ())
    return {what: [fold_numbers(sorted(one)) for one in chooser.units(what)] for what in WORDS}


def by_hwloc(root: Path) -> dict[str, list[str]]:
    """The same as lstopo counts them on the machine whose files are below ``root``."""
    done = subprocess.run(
        ["lstopo-no-graphics", "--input", str(root), "--of", "xml", "--no-io", "--no-caches"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found: dict[str, list[str]] = {what: [] for what in WORDS}
    for one in ET.fromstring(done.stdout).iter("object"):
        for what, name in WORDS.items():
            bits = int(
                "".join(f"{word[2:]:0>8}" for word in one.get("cpuset", "0x0").split(",")), 16
            )
            if one.get("type") == name and bits:
                found[what].append(
                    fold_numbers([cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1])
                )
    return found


@cases("name", [*MACHINES])
def test_what_a_host_has_is_counted_as_hwloc_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("lstopo-no-graphics"):
        pytest.skip("hwloc is not installed")
    assert counted(MACHINES[name], tmp_path, monkeypatch) == by_hwloc(tmp_path)


@cases(
    ("name", "what", "found"),
    [
        ("two threads", "core", "0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15"),
        ("some are off", "core", "0,8 1,9 3,11 10 4 5,13 6,14 7,15"),
        ("even and odd", "core", "0 2 4 6 1 3 5 7"),
        ("even and odd", "socket", "0,2,4,6 1,3,5,7"),
        ("even and odd, with nodes", "core", "0 4 8 12 2 6 10 14 1 5 9 13 3 7 11 15"),
        ("even and odd, with nodes", "numa", "0,4,8,12 2,6,10,14 1,5,9,13 3,7,11,15"),
        ("sockets within nodes", "socket", "0,4 2,6 1,5 3,7"),
        ("the second node first", "numa", "0-47 48-95"), ("a node of memory alone", "numa", "0-3"),
        ("without nodes", "core", "0 2 1 3"), ("without sockets", "socket", "0-3"),
    ],
)  # fmt: skip
def test_how_it_is_counted(
    name: str, what: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert " ".join(counted(MACHINES[name], tmp_path, monkeypatch)[what]) == found
