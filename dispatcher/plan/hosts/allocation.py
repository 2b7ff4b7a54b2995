"""Hosts from the batch system around us, for a command without ``-H``: ``discover``.

One function a system looks at the surroundings and returns None (we are not in such a job) or a
``Grant``: hosts, their slots, and the variable with them. The variables are those of sbatch(1),
qsub of PBS, the LSF reference, sge_pe(5), flux-getattr(1), Kubeflow's mpi-operator and DeepSpeed.
It checks all sources, because a stale source is common; two that disagree are an error that names
both. One task on every node does not count as a slot count: most users then start more ranks.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dispatcher.model.errors import BadBatchJob, HostsDisagree
from dispatcher.model.host import Host, Hostlist, parse_gpus
from dispatcher.model.hostset import LIMIT, expand, fold, split_list
from dispatcher.model.names import BadName, plural, quoted, size
from dispatcher.plan.hosts.hostfile import MOST_BYTES, parse_hostfile
from dispatcher.plan.hosts.hostfile_line import MOST_SLOTS

#: where the mpi-operator of Kubeflow and DeepSpeed's images put their hostfiles
MPI_OPERATOR = "/etc/mpi/hostfile"
MPI_OPERATOR_SCRIPT = "/etc/mpi/discover_hosts.sh"
DEEPSPEED = "/job/hostfile"

#: variables by which MPI launchers are given a hostfile
HOSTFILE_VARIABLES = (
    "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE",
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,60}\Z")
_COUNT = re.compile(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?\Z")


@dataclass(frozen=True)
class Surroundings:
    """Where we were started.

    environ: our environment. read: a file's bytes, raises OSError. ask: the
    standard output of a program, raises OSError when it could not be had.
    """

    environ: Mapping[str, str]
    read: Callable[[str], bytes]
    ask: Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Grant:
    """Hosts from one source, at least one.

    who: the source as text, "Slurm job 4711". words: the variable or file with the hosts.
    counted: the source of the slots, "" if they are unknown.
    """

    who: str
    words: str
    hosts: tuple[Host, ...]
    counted: str = ""
    notices: tuple[str, ...] = ()


def slurm(place: Surroundings) -> Grant | None:
    """The job's nodes, also for the one task of a step, or its first task at a terminal (--pty)."""
    get = place.environ.get
    if not (get("SLURM_JOB_ID") or get("SLURM_JOBID")):
        return None
    who = _job(place, "Slurm", "SLURM_JOB_ID" if get("SLURM_JOB_ID") else "SLURM_JOBID")
    typed = get("SLURM_PTY_PORT") and get("SLURM_PROCID") == "0"  # the others have no terminal
    tasks_here = _number(get("SLURM_STEP_NUM_TASKS"))
    if tasks_here > 1 and get("SLURM_PROCID") is not None and not typed:
        raise BadBatchJob(
            f"{who}: srun started dispatch {get('SLURM_STEP_NUM_TASKS')} times: once is enough",
            hint="call dispatch from the batch script itself, without srun",
        )
    groups = min(_number(get("SLURM_HET_SIZE")), 4096)
    hosts: list[Host] = []
    counted = ""
    for part in [f"_HET_GROUP_{group}" for group in range(groups)] if groups > 1 else [""]:
        words = f"SLURM_JOB_NODELIST{part}"
        nodes = get(words)
        if nodes is None:
            words, nodes = "SLURM_NODELIST", get("SLURM_NODELIST")
        if not nodes:
            raise BadBatchJob(
                f"{who}: SLURM_JOB_NODELIST{part} is not set",
                hint='name the hosts: -H "$(squeue -h -j $SLURM_JOB_ID -o %N)"',
            )
        names = _expanded(who, words, nodes)
        told, text = _asked(place.environ, part, len(names))
        tasks = _tasks(who, told, text, len(names))
        gpus = _number(get("SLURM_GPUS_ON_NODE"))
        slots: list[int | None] = [gpus or None] * len(names)
        if tasks and max(tasks) > 1:
            slots, counted = list(tasks), told
        elif gpus:
            counted = "SLURM_GPUS_ON_NODE"
        hosts += [Host(n, slots=s, origin=words) for n, s in zip(names, slots, strict=True)]
    own = get("SLURMD_NODENAME")
    given = slurm_gpus(place.environ)
    hosts = [replace(h, granted=given) if h.name == own else h for h in hosts]
    return Grant(who, words, _once(hosts), counted)


def node_file(system: str, variable: str, job: str) -> Callable[[Surroundings], Grant | None]:
    """The function for a file with a line a slot, that ``variable`` points at in each ``job``."""

    def find(place: Surroundings) -> Grant | None:
        path = place.environ.get(variable)
        if not path:
            return None
        who = _job(place, system, job)
        return _first_given(place, _parsed(who, path, _contents(place, who, variable, path)))

    return find


def lsf(place: Surroundings) -> Grant | None:
    """LSF: ``hostA 8 hostB 8``."""
    text = place.environ.get("LSB_MCPU_HOSTS")
    if not text or not text.strip():
        return None
    who, words = _job(place, "LSF", "LSB_JOBID"), text.split()
    lines = [f"{name} slots={count}" for name, count in zip(words[::2], words[1::2], strict=False)]
    if len(words) % 2 or not all(count.isdigit() for count in words[1::2]):
        raise BadBatchJob(f"{who}: LSB_MCPU_HOSTS: not names and numbers in turn: {quoted(text)}")
    return _first_given(place, _parsed(who, "LSB_MCPU_HOSTS", "\n".join(lines).encode()))


def sge(place: Surroundings) -> Grant | None:
    """Grid Engine: a file of ``host slots queue processors`` lines, one for each of its queues."""
    path = place.environ.get("PE_HOSTFILE")
    if not path:
        return None
    who = _job(place, "Grid Engine", "JOB_ID")
    slots: dict[str, str] = {}
    for line in _contents(place, who, "PE_HOSTFILE", path).decode("utf-8", "replace").splitlines():
        if line.strip():
            name, count = [*line.split(), ""][:2]
            both = _number(slots.get(name)), _number(count)
            slots[name] = str(sum(both)) if all(both) else count
    lines = [f"{name} slots={count}" for name, count in slots.items()]
    return _parsed(who, path, "\n".join(lines).encode())


def flux(place: Surroundings) -> Grant | None:
    """Flux: the hosts of the instance we run in."""
    if not place.environ.get("FLUX_URI"):
        return None
    words = "flux getattr hostlist"
    try:
        nodes = place.ask(words.split()).strip()
    except OSError as error:
        raise BadBatchJob(
            f"Flux: FLUX_URI is set, but {words}: {error.strerror or error}",
            hint="name the hosts with -H, or: env -u FLUX_URI dispatch ...",
        ) from None
    names = _expanded("Flux", words, nodes)
    return Grant("Flux", words, tuple(Host(name, origin=words) for name in names))


def mpi_operator(place: Surroundings) -> Grant | None:
    """Kubernetes MPIJobs: ``/etc/mpi``; the script lists the pods that run by now."""
    if place.environ.get("K_MPI_JOB_ROLE") == "worker":
        return None
    who = "Kubernetes MPIJob"
    try:
        text = place.read(MPI_OPERATOR)
    except OSError:
        text = b""
    if text.strip():
        return _parsed(who, MPI_OPERATOR, text)
    if place.environ.get("K_MPI_JOB_ROLE") is None:
        return None
    try:
        text = place.ask([MPI_OPERATOR_SCRIPT]).encode()
    except OSError as error:
        raise BadBatchJob(
            f"{who}: neither {MPI_OPERATOR} nor {MPI_OPERATOR_SCRIPT} names a host: "
            f"{error.strerror or error}"
        ) from None
    return _parsed(who, MPI_OPERATOR_SCRIPT, text)


def variable(name: str) -> Callable[[Surroundings], Grant | None]:
    """The function for a hostfile that the variable ``name`` points at."""

    def find(place: Surroundings) -> Grant | None:
        path = place.environ.get(name)
        if not path or os.path.normpath(path) == MPI_OPERATOR:  # ``mpi_operator`` reads that
            return None
        return _parsed(name, path, _contents(place, "hostfile", name, path))

    return find


def deepspeed(place: Surroundings) -> Grant | None:
    """DeepSpeed's default hostfile, where there is one."""
    try:
        text = place.read(DEEPSPEED)
    except OSError:
        return None
    return _parsed("DeepSpeed's default hostfile", DEEPSPEED, text)


def _job(place: Surroundings, system: str, variable: str) -> str:
    number = place.environ.get(variable)
    if not number:
        return system
    return f"{system} job {number if _PLAIN.match(number) else quoted(number)}"


def _first_given(place: Surroundings, grant: Grant) -> Grant:
    """``grant``, its first host, where these systems run the script, with the script's GPUs."""
    given = _gpus(place.environ.get("CUDA_VISIBLE_DEVICES"))
    return replace(grant, hosts=(replace(grant.hosts[0], granted=given), *grant.hosts[1:]))


def slurm_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs of this host that Slurm gave to the step or job around us; None for none."""
    return _gpus(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"))


def _gpus(text: str | None) -> tuple[str, ...] | None:
    """The GPUs that a batch system's variable names; None if it is unset or unusable."""
    try:
        return parse_gpus(text, MOST_SLOTS) if text else None
    except BadName:
        return None


def _contents(place: Surroundings, who: str, variable: str, path: str) -> bytes:
    try:
        text = place.read(path)
    except OSError as error:
        raise BadBatchJob(
            f"{who}: {variable}: {quoted(path)}: {error.strerror or error}",
            hint=f"name the hosts with -H, or: env -u {variable} dispatch ...",
        ) from None
    if len(text) > MOST_BYTES:
        raise BadBatchJob(f"{who}: {quoted(path)}: more than {size(MOST_BYTES)}, not a hostfile")
    return text


def _parsed(who: str, words: str, text: bytes) -> Grant:
    """The hosts of a hostfile's text; one slot everywhere is no slot count."""
    found = parse_hostfile(text, words)
    hosts = found.hosts
    if {host.slots for host in hosts} == {1}:
        hosts = tuple(replace(host, slots=None) for host in hosts)
    counted = words if any(host.slots is not None for host in hosts) else ""
    notices = tuple(n for n in found.notices if "each line counts one slot" not in n)
    return Grant(who, words, hosts, counted, notices)


def _expanded(who: str, words: str, nodes: str) -> list[str]:
    try:
        return expand(nodes)
    except BadName as bad:
        raise BadBatchJob(f"{who}: {words}: {bad.message}", hint=bad.hint) from None


def _asked(environ: Mapping[str, str], part: str, nodes: int) -> tuple[str, str | None]:
    """The variable with the number of tasks for each node, and its text, None if there is none.

    If no tasks were asked for, SLURM_TASKS_PER_NODE has the CPUs of a job with ``--exclusive``;
    in a step of one task, srun's version of that.
    """
    told, each = f"SLURM_TASKS_PER_NODE{part}", f"SLURM_NTASKS_PER_NODE{part}"
    text, per_node = environ.get(told), environ.get(each)
    if text == environ.get("SLURM_STEP_TASKS_PER_NODE") == "1":
        return each, f"{per_node}(x{nodes})" if per_node else None
    return told, text if per_node or environ.get(f"SLURM_NTASKS{part}") else None


def _tasks(who: str, told: str, text: str | None, nodes: int) -> list[int]:
    """``8(x3),4`` as ``[8, 8, 8, 4]``; empty if the text is missing."""
    if not text:
        return []
    counts: list[int] = []
    for piece in text.split(","):
        match = _COUNT.match(piece)
        times = int(match[2] or 1) if match else 0
        if match is None or times > LIMIT:
            raise BadBatchJob(f"{who}: {told}: not of the form 8(x3),4: {quoted(text)}")
        counts += [int(match[1])] * times
    if len(counts) != nodes:
        raise BadBatchJob(
            f"{who}: {told} is for {len(counts)} nodes, the node list has {nodes}",
            hint='name the hosts: -H "$SLURM_JOB_NODELIST" --nproc-per-node 8',
        )
    return counts


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else 0


def _once(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Each host once; a host in two groups of one job has the slots of both."""
    found: dict[str, Host] = {}
    for host in hosts:
        first = found.get(host.name)
        if first is not None and first.slots is not None and host.slots is not None:
            host = replace(first, slots=first.slots + host.slots)
        found[host.name] = host
    return tuple(found.values())


_SOURCES = (
    slurm,
    node_file("PBS", "PBS_NODEFILE", "PBS_JOBID"),  # and Torque
    node_file("LSF", "LSB_DJOB_HOSTFILE", "LSB_JOBID"),
    *(lsf, sge, flux, mpi_operator),
    *(variable(name) for name in HOSTFILE_VARIABLES),
    deepspeed,
)


def discover(place: Surroundings) -> Hostlist | None:
    """The hosts of the batch system, with a notice of its name; None outside any allocation.

    Raises: UsageError when a source cannot be read or two disagree; HostfileError
    when the text of one is wrong.
    """
    grants = [grant for grant in (source(place) for source in _SOURCES) if grant is not None]
    if not grants:
        return None
    best = next((grant for grant in grants if grant.counted), grants[0])
    for other in grants:
        why = _difference(best, other)
        if why is not None:
            raise HostsDisagree(
                f"two sources of hosts disagree: {_source(best)} and {_source(other)}: {why}",
                hint=f"choose: -H {_as_option(best)}, or -H {_as_option(other)}",
            )
    agreeing = [grant.words for grant in grants if grant is not best]
    also = f"; the same in {', '.join(agreeing)}" if agreeing else ""
    notice = f"hosts of {_source(best)}: {_slots(best)}{also}"
    return Hostlist(best.hosts, (notice, *best.notices))


def _source(grant: Grant) -> str:
    return grant.who if grant.who == grant.words else f"{grant.who} ({grant.words})"


def _slots(grant: Grant) -> str:
    """Folded names with their slots and the source of the count, as text."""
    names = fold([host.name for host in grant.hosts])
    if not grant.counted:
        return f"{names}, a slot per GPU"
    by = "" if grant.counted == grant.words else f" ({grant.counted})"
    counts = {host.slots for host in grant.hosts}
    if len(counts) == 1:
        return f"{names}, {plural(counts.pop() or 0, 'slot')} each{by}"
    return f"{names}, {plural(sum(host.slots or 0 for host in grant.hosts), 'slot')}{by}"


def _difference(one: Grant, other: Grant) -> str | None:
    """The difference between two sources, as text, or None."""
    mine = {_short(host.name): host for host in one.hosts}
    theirs = {_short(host.name): host for host in other.hosts}
    for grant, has, lacks in ((one, mine, theirs), (other, theirs, mine)):
        only = [host.name for key, host in has.items() if key not in lacks]
        if only:
            return f"only {grant.words} has {fold(only)}"
    for key, host in mine.items():
        again = theirs[key]
        if host.slots is not None and again.slots is not None and host.slots != again.slots:
            slots = plural(host.slots, "slot")
            return f"{host.name} has {slots} in one and {again.slots} in the other"
    return None


def _short(name: str) -> str:
    """The name without its domain: batch systems and pods differ in whether they write it."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.partition(".")[0]
    return name


def _as_option(grant: Grant) -> str:
    """The grant as a value of ``-H`` that can be pasted."""
    by_slots: dict[int | None, list[str]] = {}
    for host in grant.hosts:
        by_slots.setdefault(host.slots, []).append(host.name)
    parts = [
        f"{part}{'' if slots is None else f':{slots}'}"
        for slots, names in by_slots.items()
        for part, _ in split_list(fold(names))
    ]
    return f"'{','.join(parts)}'"
