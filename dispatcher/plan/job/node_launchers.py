"""Launchers that start the ranks of a host themselves: one process a host, which gets its place.

With ``--per-node`` the words of that process have placeholders: ``--node-rank {node_rank}`` becomes
``--node-rank 3``. Only ``NAMES`` are known; every other brace stays as it is, so JSON passes. A
framework (``--launcher accelerate``) is a line of ``LAUNCHERS``: a module, its options with
placeholders, and variables. The user's own options for it come before the script.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dispatcher.model.errors import ConflictingOptions, PlanError, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Hostlist
from dispatcher.model.hostset import fold

if TYPE_CHECKING:
    from dispatcher.plan.job.devices import NodePlan
    from dispatcher.plan.job.job_plan import JobPlan

#: name -> what it stands for
NAMES = {
    "nnodes": "number of hosts",
    "node_rank": "this host's number, from 0",
    "nproc_per_node": "slots of this host, else its GPUs, else 1",
    "master_addr": "address of host 0 that all others reach",
    "master_port": "port kept free on host 0", "address": "this host's own address",
    "host": "this host's name as the hostfile has it",
    "is_first_node": "1 on host 0, else 0",
    "world_size": "slots of all hosts; one that names none counts as this host does",
    "world_info": "the slots of all hosts, as DeepSpeed passes them on",
    "run_id": "the run's id", "restart": "number of this start, from 0",
}  # fmt: skip
#: variables that launchers started once a node look for, besides MASTER_ADDR and MASTER_PORT
PER_NODE = ("NNODES", "NODE_RANK", "NPROC_PER_NODE")
_FIELD = re.compile(r"\{([a-z_]+)\}")


@value
class NodeLauncher(Value):
    """A framework's launcher, started once a host.

    module: as ``python -m`` runs it. options: with placeholders. forms: kind of program -> the
    options for it; it cannot start other kinds. env: variables, less those the user
    gives. counts: whether it must know the slots of all hosts; even: only as many on each.
    """

    module: str
    options: tuple[str, ...]
    forms: Mapping[str, tuple[str, ...]]
    env: tuple[str, ...] = ()
    counts: bool = True
    even: bool = False


_DASHES = {"script": (), "module": ("-m",), "command": ("--no-python",)}
_WORDS = {"script": (), "module": ("--module",), "command": ("--no_python",)}

#: what ``--launcher`` calls it -> how it is started. Their own sources say what they take:
#: torch/distributed/run.py, accelerate/commands/launch.py, deepspeed/launcher/launch.py (what its
#: runner starts on each host), lightning/fabric/cli.py, llamafactory/launcher.py (which takes its
#: place from NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT)
LAUNCHERS: dict[str, NodeLauncher] = {
    "torchrun": NodeLauncher("torch.distributed.run",
        ("--nnodes", "{nnodes}", "--nproc-per-node", "{nproc_per_node}",
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "{master_addr}:{master_port}",
         "--rdzv-id", "{run_id}-{restart}", "--rdzv-conf", "is_host={is_first_node}",
         "--local-addr", "{address}"),
        _DASHES, counts=False),
    "accelerate": NodeLauncher("accelerate.commands.launch",
        ("--num_machines", "{nnodes}", "--num_processes", "{world_size}",
         "--machine_rank", "{node_rank}", "--main_process_ip", "{master_addr}",
         "--main_process_port", "{master_port}"),
        _WORDS, even=True),
    "deepspeed": NodeLauncher("deepspeed.launcher.launch",
        ("--world_info", "{world_info}", "--node_rank", "{node_rank}",
         "--master_addr", "{master_addr}", "--master_port", "{master_port}"),
        _WORDS),
    "lightning": NodeLauncher("lightning.fabric.cli",
        ("--num-nodes", "{nnodes}", "--node-rank", "{node_rank}", "--devices", "{nproc_per_node}",
         "--main-address", "{master_addr}", "--main-port", "{master_port}"),
        {"script": ()}, even=True),
    "llamafactory-cli": NodeLauncher(
        "llamafactory.cli", (), {"script": ()}, env=("FORCE_TORCHRUN=1",), even=True
    ),
}  # fmt: skip


def start_words(
    name: str, words: Sequence[str], kind: Literal["script", "module", "command"], nproc: str | None
) -> tuple[str, ...]:
    """Module and arguments by which the launcher ``name`` starts ``words``, one on every host.

    nproc: ranks a host, if it replaces ``{nproc_per_node}``.
    Raises: UsageError for a kind of program that it does not start.
    """
    launcher = LAUNCHERS[name]
    if kind not in launcher.forms:
        option = {"module": "--module", "command": "--no-python"}[kind]
        raise ConflictingOptions(f"--launcher {name} starts scripts only, not what {option} says")
    options = (nproc if nproc and w == "{nproc_per_node}" else w for w in launcher.options)
    return (launcher.module, *options, *launcher.forms[kind], *words)


def with_slots(name: str, hosts: Hostlist, nproc: int | None) -> Hostlist:
    """``hosts`` with ``nproc`` slots each, and all of them known, as the launcher ``name`` needs.

    Raises: UsageError for hosts that say no number.
    """
    launcher = LAUNCHERS[name]
    if nproc is not None:
        named = [host.name for host in hosts.hosts if host.gpus and len(host.gpus) != nproc]
        if named:
            raise UsageError(f"--nproc-per-node {nproc}: other GPUs are named for {fold(named)}")
        counted = tuple(replace(host, slots=nproc) for host in hosts.hosts)
        hosts = replace(hosts, hosts=counted)
    unknown = [host.name for host in hosts.hosts if host.slots is None]
    if launcher.counts and unknown:
        raise UsageError(
            f"--launcher {name}: how many ranks on {fold(unknown)}?",
            hint="--nproc-per-node N, or slots=N in the hostfile",
        )
    return hosts


def check_even(name: str, nodes: Sequence[NodePlan]) -> None:
    """Check that ``name`` can start as many ranks as each node has. Raises: PlanError."""
    found = {len(node.slots): node.host.name for node in nodes if node.slots}
    if LAUNCHERS[name].even and len(found) > 1:
        each = ", ".join(f"{count} on {host}" for count, host in sorted(found.items()))
        raise PlanError(
            f"--launcher {name}: starts as many ranks on each host, and these differ: {each}",
            hint="--nproc-per-node N",
        )


def world_values(plan: JobPlan, otherwise: int) -> dict[str, object]:
    """The placeholders about all hosts. otherwise: slots of a host that names none."""
    slots = [
        (node.gpus or ())[: len(node.slots) or None]  # those chosen on the host, if any were
        or node.slots
        or tuple(map(str, range(otherwise)))
        for node in plan.nodes
    ]
    hosts = [node.host.name for node in plan.nodes]
    info = {
        name if hosts.count(name) == 1 else f"{name}#{at}": [
            int(slot) if slot.isdigit() else slot for slot in mine
        ]
        for at, (name, mine) in enumerate(zip(hosts, slots, strict=True))
    }
    return {
        "world_size": sum(map(len, slots)),
        "world_info": base64.urlsafe_b64encode(json.dumps(info).encode()).decode(),
    }


def fill_words(words: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """``words`` with every known ``{name}`` replaced by its value.

    Raises: KeyError when a name of ``NAMES`` has no value.
    """
    return tuple(
        _FIELD.sub(lambda m: str(values[m[1]]) if m[1] in NAMES else m[0], word) for word in words
    )
