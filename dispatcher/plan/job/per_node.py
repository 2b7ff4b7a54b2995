"""One process a node, its place in its words: ``--node-rank {node_rank}``, ``--node-rank 3``.

Only where the user asked for one process a node (``--per-node``): such programs
are launchers themselves and want their place as arguments. Only the names below
are known; every other brace stands as it is, so JSON passes untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: name -> what it stands for
NAMES = {
    "nnodes": "number of hosts",
    "node_rank": "this host's number, from 0",
    "nproc_per_node": "slots of this host, else its GPUs, else 1",
    "master_addr": "address of host 0 that all others reach",
    "master_port": "port kept free there",
    "address": "this host's own address",
    "host": "this host's name as the hostfile has it",
    "is_first_node": "1 on host 0, else 0",
    "run_id": "the run's id",
    "restart": "number of this start, from 0",
}
#: variables that launchers started once a node look for, besides MASTER_ADDR and MASTER_PORT
PER_NODE = ("NNODES", "NODE_RANK", "NPROC_PER_NODE")
_FIELD = re.compile(r"\{([a-z_]+)\}")

#: torchrun's own rendezvous, on the address and port that dispatch has proved
_TORCHRUN = (
    "torch.distributed.run", "--nnodes", "{nnodes}", "--nproc-per-node", "{nproc_per_node}",
    "--rdzv-backend", "c10d", "--rdzv-endpoint", "{master_addr}:{master_port}",
    "--rdzv-id", "{run_id}-{restart}", "--rdzv-conf", "is_host={is_first_node}",
    "--local-addr", "{address}",
)  # fmt: skip


def torchrun(words: Sequence[str], nproc: str | None, kind: str) -> tuple[str, ...]:
    """Module and arguments that start ``words`` by torchrun, one on every host.

    nproc: ranks a host, as torchrun takes it; None for ``{nproc_per_node}``.
    kind: ``script``, ``module`` or ``command``, as in ``Program``.
    """
    options = [nproc if nproc and word == "{nproc_per_node}" else word for word in _TORCHRUN]
    how = {"script": [], "module": ["-m"], "command": ["--no-python"]}[kind]
    return (*options, *how, *words)


def filled(words: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """``words`` with every known ``{name}`` replaced by its value.

    Raises: KeyError when a name of ``NAMES`` has no value.
    """
    return tuple(
        _FIELD.sub(lambda m: str(values[m[1]]) if m[1] in NAMES else m[0], word) for word in words
    )
