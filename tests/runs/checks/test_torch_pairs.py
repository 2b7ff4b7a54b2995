"""Pairs of hosts measured by all-reduces of torch: over gloo, without torch, and one that hangs."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promises
import pytest
from rig import Cluster

from dispatcher.remote.rank import pair as program

NEEDS = [name for name in ("torch", "mpi4py") if importlib.util.find_spec(name) is None]
needs_ranks = pytest.mark.skipif(bool(NEEDS), reason=f"needs {NEEDS} in the ranks' Python")


#: dispatch that gives a pair the time of a loaded machine
PATIENT = """
import dataclasses, sys
from dispatcher import cli
from dispatcher.api import rank_pairs
for over, probe in rank_pairs.PROBES.items():
    rank_pairs.PROBES[over] = dataclasses.replace(probe, start=100.0, limit=100.0)
sys.exit(cli.main(sys.argv[1:]))
"""


def check(cluster: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    pairs = "-w", "n1,n2", "--pairs", "--rounds", "1", "--json", *words
    done = cluster.run([sys.executable, "-c", PATIENT, "check", *pairs], timeout=220)
    assert done.stdout, done
    return done.returncode, promises.told(done.stdout)


@pytest.mark.torch
@needs_ranks
def test_two_hosts(cluster: Cluster) -> None:
    code, found = check(cluster, "--backend", "gloo")
    (pair,) = found["pairs"]
    assert (code, pair["hosts"], pair["why"]) == (0, ["n1", "n2"], "")
    assert pair["latency"] > 0
    assert pair["there"] == pair["back"] > 0


#: a stand-in for hosts with two GPUs each: what is played by NCCL on GPUs, by gloo on two slots
TWO_EACH = """
import dataclasses, sys
from dispatcher import cli
from dispatcher.api import rank_pairs
from dispatcher.cli.checks import pairs
rank_pairs.PROBES["gloo"] = dataclasses.replace(rank_pairs.PROBES["nccl"])
rank_pairs.SECONDS = 0.1
find_hosts = pairs.find_hosts
pairs.find_hosts = lambda *words, slots: find_hosts(*words, slots=True)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.torch
@needs_ranks
def test_two_hosts_with_several_ranks_each(cluster: Cluster) -> None:
    """Their rails, and what they reach by themselves."""
    hostfile = Path(cluster.shared, "two-each")
    hostfile.write_text("n1 slots=2\nn2 slots=2\n")
    words = "--pairs", "--rounds", "1", "--json", "--backend", "gloo", "-H", str(hostfile)
    done = cluster.run([sys.executable, "-c", TWO_EACH, "check", *words], timeout=200)
    found = json.loads(done.stdout)
    (pair,) = found["pairs"]
    assert (pair["hosts"], pair["why"], len(pair["rails"])) == (["n1", "n2"], "", 2)
    assert min(pair["rails"]) > 0
    assert {name: one["gpus"] for name, one in found["inside"].items()} == {"n1": 2, "n2": 2}
    assert all(one["rate"] > 0 for one in found["inside"].values())


@needs_ranks
def test_a_host_without_torch_is_told(cluster: Cluster) -> None:
    python = Path(cluster.shared, "python-without")
    real = shlex.quote(sys.executable)
    python.write_text(
        f'#!/bin/sh\n[ "$DISPATCH_HOST" = n2 ] && exec {real} -S "$@"\nexec {real} "$@"\n'
    )
    python.chmod(0o755)
    code, found = check(cluster, "--backend", "gloo", "--python", str(python))
    assert (code, found["pairs"]) == (125, []), found
    assert "No module named 'torch'; --python PATH names another" in found["problems"]["n2"]
    assert found["problems"]["n1"] == "no partner was left for it"


def torch(cuda: str | None, sees: bool, nccl: bool) -> SimpleNamespace:
    """As much of a torch as is looked at before ranks meet."""
    return SimpleNamespace(
        __version__="2.9",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: sees),
        distributed=SimpleNamespace(is_nccl_available=lambda: nccl),
    )


@pytest.mark.parametrize(
    ("there", "over", "words"),
    [
        (None, "gloo", ": torch: import of torch halted; None in sys.modules; --python PATH names"),
        (torch(None, False, False), "gloo", ""),
        (torch(None, False, False), "nccl", "torch 2.9 is built for the CPU alone; a torch for"),
        (torch("13", False, True), "nccl", "torch 2.9 sees no GPU; ask nvidia-smi why, or"),
        (torch("13", True, False), "nccl", "torch 2.9 is built without NCCL; another torch, or"),
        (torch("13", True, True), "nccl", ""),
    ],
)
def test_what_a_host_lacks(
    monkeypatch: pytest.MonkeyPatch, there: SimpleNamespace | None, over: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", there)
    monkeypatch.setitem(sys.modules, "torch.distributed", there and there.distributed)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace())
    said = program.lack(over)
    assert words in said
    assert bool(words) == bool(said)


def test_a_host_without_our_own_package_is_told_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.distributed", "mpi4py"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "dispatcher.comm", None)
    remedy = "; pip install --no-deps dispatch-launcher there, or --python PATH names another"
    assert program.lack("gloo").endswith(remedy)


def test_a_hang_ends_by_the_deadline() -> None:
    late = """
import threading
from dispatcher.remote.rank.pair import Result
result = Result()
result.doing = "large all-reduces"
result.found["latency"] = 0.5
result.until(0)
threading.Event().wait(60)
"""
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(program.MARK)
    why = "no answer in time: large all-reduces"
    said = json.loads(done.stdout.removeprefix(program.MARK))
    assert said == {"latency": 0.5, "rate": None, "why": why, "lack": ""}
