"""``--launcher mpirun``: the plan, carried out by somebody else's launcher. Pure.

What dispatch starts is then one process of this machine, ``mpirun`` itself. It is told where the
ranks belong, in its own words, and reaches hosts by a script of ours, its *remote-shell
agent*: ``AGENT [options] HOST COMMAND...``, the command for a shell there, in the foreground
until it ends. The names of variables go in arguments, their values never do.

Not ours any more: labels (mpirun's own, a chunk and not a line each), checks on the hosts, who
failed first, GPUs. Ranks find RANK and its like, as far as mpirun tells them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dispatcher.model.errors import MpirunCannot
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold
from dispatcher.plan.job.job_plan import JobPlan, NodePlan
from dispatcher.plan.job.rank_environment import interface
from dispatcher.plan.job.request import Program, Restarts

#: Open MPI to 4.1; from 5.0, whose launcher is PRRTE; MPICH's, and Intel MPI's like it
Family = Literal["openmpi", "prrte", "hydra"]

#: where ranks meet unless something is said; torch's own choice
PORT = 29500

#: of our own variables, what a rank beside mpirun would else inherit from it
_GONE = (
    "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE", "DISPATCH_HOST", "DISPATCH_HOSTS",
)  # fmt: skip
#: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE in each family's words
_OPENMPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

#: stand for themselves while a shell text is made
_HOST, _COMMAND = "\0host", "\0command"


@dataclass(frozen=True)
class Launcher:
    """program: its path. family: how it is spoken to. version: its own words."""

    program: str
    family: Family
    version: str


def family(text: str) -> Family | None:
    """Whose launcher says ``text`` of its version; None for an unknown one."""
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)", text):
        return "openmpi" if int(match[1]) < 5 else "prrte"
    if "PRRTE" in text:
        return "prrte"
    return "hydra" if "HYDRA" in text or "Intel(R) MPI" in text else None


def check(plan: JobPlan) -> None:
    """Nothing, if another launcher can do what ``plan`` says. Raises: UsageError."""
    if plan.mapping.each is not None or plan.mapping.within == "gpu":
        raise MpirunCannot(f"--map-by {plan.map_by}: hosts are not looked at with --launcher")
    if plan.is_open:
        names = fold(node.host.name for node in plan.nodes if not node.slots)
        raise MpirunCannot(
            f"--launcher: how many ranks on {names}? GPUs are not counted with --launcher",
            hint="slots=N in the hostfile, or --nproc-per-node N",
        )
    for what, asked in (
        ("--per-node and --rdzv", plan.per_node),
        ("several programs", plan.parts),
        ("--spares", plan.spares),
        ("--min-nodes", plan.restarts.min_nodes is not None),
        ("--progress-file", plan.restarts.progress_file is not None),
        ("--devices rank", plan.devices == "rank"),
        ("--local-rank-arg", plan.local_rank_arg is not None),
        (f"--mpi {plan.mpi}", plan.mpi not in ("auto", "none")),
        ("--bind-to gpu", plan.bind_to == "gpu"),
        ("--rankfile", plan.rankfile),
        ("--rank-by and --report-bindings", plan.rank_by is not None or plan.report_bindings),
        ("--mem-bind and --near-hca", plan.mem_bind != "none" or plan.near_hca),
        (f"--stdin {plan.stdin}", plan.stdin not in ("none", 0)),
    ):
        if asked:
            raise MpirunCannot(f"{what}: needs ranks that dispatch starts itself, not --launcher")
    hosts = [node.host.name for node in plan.nodes]
    for node in plan.nodes:
        for what, text in (("env", node.host.env), ("python", node.host.python)):
            if text:
                raise MpirunCannot(f"{node.host.name}: {what}=: mpirun treats all hosts alike")
        if hosts.count(node.host.name) > 1:
            raise MpirunCannot(f"{node.host.name}: two ports of one name: mpirun knows names only")


def words(
    plan: JobPlan, launcher: Launcher, agent: str, *, labels: bool, root: bool
) -> tuple[str, ...]:
    """The command line of ``launcher`` that does what ``plan`` says.

    agent: path of the script that reaches hosts. labels: mpirun labels lines, if it can. root:
    whether we are. Raises: UsageError for a placement that it cannot be told.
    """
    names = ["DISPATCH_RUN_ID", *interface(plan.iface), *(name for name, _ in plan.exports)]
    kind = launcher.family
    if kind == "hydra":
        options = [
            "-launcher", "ssh", "-launcher-exec", agent, "-hosts", _hydra_hosts(plan),
            "-genvlist", ",".join(dict.fromkeys(names)), "-wdir", plan.cwd,
        ]  # fmt: skip
        options += ["-iface", plan.iface] if plan.iface else []
        options += ["-bind-to", _bind_to(plan)] if _bind_to(plan) != "none" else []
        options += ["-prepend-rank"] if labels else []
    else:
        options = _open_mpi(plan, agent, kind)
        options += ["--allow-run-as-root"] if root else []
        for name in dict.fromkeys(names):
            # those it takes by itself, and does not want to be told of
            options += [] if name.startswith(("OMPI_", "PMIX_", "PRTE_")) else ["-x", name]
        if labels:
            options += ["--tag-output"] if kind == "openmpi" else ["--output", "tag"]
    variables = _HYDRA if kind == "hydra" else _OPENMPI
    shim = ("sh", "-c", _shim(plan, variables), "sh")
    return (launcher.program, *options, "-n", str(plan.world_size), *shim, *plan.argv(0))


def _open_mpi(plan: JobPlan, agent: str, kind: Family) -> list[str]:
    place, slots = _placing(plan, kind)
    counts = ",".join(f"{n.host.name}:{count}" for n, count in zip(plan.nodes, slots, strict=True))
    flag, layer = ("--mca", "plm_rsh") if kind == "openmpi" else ("--prtemca", "plm_ssh")
    own = "orte" if kind == "openmpi" else "prte"
    options = [
        # the daemons there look for the agent's first word too, though they never use it
        flag, f"{layer}_agent", f"sh {agent}", flag, f"{layer}_no_tree_spawn", "1",
        flag, f"{own}_keep_fqdn_hostnames", "1", "--leave-session-attached",
        "-H", counts, "--map-by", place, "--bind-to", _unit(_bind_to(plan), kind),
        "--wdir", plan.cwd,
    ]  # fmt: skip
    if plan.iface:
        name = "oob_tcp_if_include" if kind == "openmpi" else "prte_if_include"
        options += [flag, name, plan.iface, "--mca", "btl_tcp_if_include", plan.iface]
    return options


def _placing(plan: JobPlan, kind: Family) -> tuple[str, list[int]]:
    """What Open MPI's ``--map-by`` must say for the ranks to be where ``plan`` has them, and slots.

    Slots beyond the ranks are for those that they spawn.
    """
    used = [len(node.ranks) for node in plan.nodes]
    slots = [max(len(node.slots), len(node.ranks)) for node in plan.nodes]
    if plan.mapping.across == "node":
        return "node", slots
    if used[:-1] == slots[:-1]:
        return _unit(plan.mapping.within or "slot", kind), slots
    if len(set(used)) == 1 and not plan.mapping.within:
        return f"ppr:{used[0]}:node", slots
    return _unit(plan.mapping.within or "slot", kind), used


def _unit(name: str, kind: Family) -> str:
    """What the launcher calls a socket: PRRTE has another word for it."""
    return "package" if name == "socket" and kind == "prrte" else name


def _bind_to(plan: JobPlan) -> str:
    dealt = plan.mapping.within if plan.bind_to == "auto" else plan.bind_to
    return dealt if dealt in ("core", "numa", "socket") else "none"


def _hydra_hosts(plan: JobPlan) -> str:
    counts = [len(node.ranks) for node in plan.nodes]
    if plan.mapping.within:
        raise MpirunCannot(f"--map-by {plan.map_by}: Hydra does not deal ranks to it")
    if plan.map_by == "node":  # with one slot each it begins again at the first host
        if len(set(counts)) > 1:
            raise MpirunCannot(
                "--map-by node: Hydra deals ranks round to equal hosts only", hint="--map-by slot"
            )
        counts = [1] * len(counts)
    return ",".join(f"{n.host.name}:{count}" for n, count in zip(plan.nodes, counts, strict=True))


def _shim(plan: JobPlan, variables: Sequence[str]) -> str:
    """The shell text that gives a rank the variables torch wants, and becomes its program."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    found = " ".join(f'{name}="${theirs}"' for name, theirs in zip(names, variables, strict=True))
    address = shlex.quote(plan.master_addr or plan.nodes[0].host.name)
    port = plan.master_port or PORT
    return (
        f"unset {' '.join(_GONE)}; export {found} MASTER_ADDR={address} MASTER_PORT={port}; "
        'exec "$@"'
    )


def delegated(plan: JobPlan, argv: Sequence[str]) -> JobPlan:
    """``plan`` as dispatch carries it out: one process of this machine, ``argv``."""
    here = NodePlan(0, Host("localhost"), ("0",), (0,))
    return replace(
        plan,
        nodes=(here,),
        spares=(),
        program=Program("command", tuple(argv)),
        np=1,
        nproc_per_node=1,
        map_by="block",
        devices="none",
        omp="keep",
        mpi="none",
        pmi_port=False,
        dedup_output=False,
        bind_to="none",
        mem_bind="none",
        near_hca=False,
        master_addr=None,
        master_port=None,
        restarts=replace(plan.restarts, min_nodes=None) if plan.restarts.most else Restarts(),
        notices=(),
    )


def agent_script(hosts: Iterable[Host], argv_of: Callable[[Host, str, str], Sequence[str]]) -> str:
    """The remote-shell agent for ``hosts``, a shell script.

    argv_of: (a host, what stands for its name, what stands for the command) -> the words
    that run the command there.
    """
    groups: dict[tuple[str | None, int | None], list[Host]] = {}
    for host in hosts:
        groups.setdefault((host.user, host.port), []).append(host)
    cases = [
        f"{'|'.join(host.name for host in alike)}) "
        f"exec {_shell(argv_of(alike[0], _HOST, _COMMAND))} ;;\n"
        for alike in groups.values()
    ]
    return (
        "#!/bin/sh\n"
        "# how dispatch reaches hosts, for mpirun: [OPTIONS] HOST COMMAND...\n"
        "while :; do case $1 in -*) shift ;; *) break ;; esac; done\n"
        "host=$1\n"
        "shift\n"
        "case $host in\n"
        f"{''.join(cases)}"
        '*) echo "error: $host: mpirun wants a host that is not in the plan" >&2; exit 255 ;;\n'
        "esac\n"
    )


def _shell(argv: Sequence[str]) -> str:
    """``argv`` as shell text, with what stands for host and command as the script has them."""
    quoted = []
    for word in argv:
        parts = re.split(f"({_HOST}|{_COMMAND})", word)
        known = {_HOST: '"$host"', _COMMAND: '"$*"'}
        quoted.append("".join(known.get(part) or shlex.quote(part) for part in parts if part))
    return " ".join(quoted)
