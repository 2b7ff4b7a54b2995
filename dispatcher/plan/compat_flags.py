"""Translates each flag of torchrun, deepspeed, accelerate, mpirun, srun and sky. Pure.

Each launcher is one table: the names of a flag, with spaces between, and its translation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dispatcher.model.errors import CannotTranslate
from dispatcher.model.hostset import split_list
from dispatcher.model.names import MOST_RANKS, digits
from dispatcher.plan.hosts.hostfile import parse_inline
from dispatcher.plan.job.placement import parse_mapping
from dispatcher.plan.job.request import parse_nproc, parse_seconds, parse_stdin, parse_time
from dispatcher.plan.variables import RESERVED_NAMES, check_variable

#: the text of a file that a line names
ReadFile = Callable[[str], str]
#: the values of a flag to words for dispatch; None: it is not needed there
Becomes = Callable[..., Sequence[str] | None]


@dataclass(frozen=True)
class Flag:
    """The translation of a flag: the words for dispatch, why, and how many values it takes."""

    becomes: Becomes
    why: str = ""
    values: int = 1


def _by_name(table: Mapping[str, Flag]) -> dict[str, Flag]:
    return {name: flag for names, flag in table.items() for name in names.split()}


def _to(*words: str) -> Becomes:
    """The flag's values follow ``words``."""
    return lambda *values: (*words, *values)


def switch(*words: str) -> Flag:
    """A flag without a value, which becomes ``words``."""
    return Flag(_to(*words), values=0)


def gone(*_: str) -> None:
    """The flag has no counterpart and needs none."""


def _refuse(hint: str) -> Becomes:
    def becomes(*values: str) -> Sequence[str]:
        raise CannotTranslate("cannot be met by dispatch", hint=hint.format(*values))

    return becomes


def _variable(name: str, fixed: str | None = None) -> Becomes:
    return lambda *values: ("-x", f"{name}={fixed if fixed is not None else values[0]}")


def _checked(flag: str, parse: Callable[[str, str], object]) -> Becomes:
    """``flag`` and the value, if ``parse`` takes that."""
    return lambda value: (flag, value) if parse(value, flag) is not None else ()


def _count(flag: str, low: int = 1, high: int = MOST_RANKS) -> Becomes:
    return _checked(flag, partial(digits, low=low, high=high))


def nnodes(value: str) -> Sequence[str]:
    """``--nnodes N`` or ``N:M``. Raises: UsageError where M is less than N."""
    least, colon, most = value.partition(":")
    low = digits(least, "--nnodes", 1, MOST_RANKS)
    digits(most if colon else least, "--nnodes", low, MOST_RANKS)
    return ("--nnodes", value)


def _ssh_args(value: str) -> Sequence[str]:
    port = re.fullmatch(r"-p\s*([0-9]+)", value.strip())
    return ("--ssh-port", port[1]) if port else ("--rsh", f"ssh {value.strip()} {{host}}")


def _one_of(flag: str, known: Mapping[str, str]) -> Becomes:
    """``flag`` and the word that ``known`` has for the value."""

    def becomes(value: str) -> Sequence[str]:
        if value not in known:
            raise CannotTranslate("cannot be met by dispatch", hint=f"known: {', '.join(known)}")
        return (flag, known[value])

    return becomes


def _pyxis_mounts(value: str) -> Sequence[str]:
    """A ``--mount`` for each SRC:DST[:FLAGS] of pyxis, in which + separates flags."""
    mounts = (item.split(":") for item in value.split(","))
    known = (
        ":".join([*one[:2], *(["ro"] if "ro" in re.split(r"\W", ":".join(one[2:])) else [])])
        for one in mounts
    )
    return [word for one in known for word in ("--mount", one if ":" in one else f"{one}:{one}")]


def _hydra_hosts(value: str) -> Sequence[str]:
    """Hydra deals ranks to names, a slot each, in the order written, and again from the first."""
    parse_inline(value)
    items = (item.partition(":") for item in value.split(","))
    places = [name for name, _, count in items for _ in range(int(count or 1))]
    slots = {name: places.count(name) for name in places}
    hosts = ",".join(f"{name}:{count}" for name, count in slots.items())
    turns = [name for n in range(len(places)) for name, count in slots.items() if count > n]
    if places == turns:
        more = ["--oversubscribe"] if len(places) == len(slots) else []
        return ("-H", hosts, *more, "--map-by", "node")
    if places != sorted(places, key=[*slots].index):
        raise CannotTranslate("ranks would be elsewhere", hint="--rankfile FILE of dispatch")
    return ("-H", hosts)


def hydra_file(read: ReadFile | None, path: str) -> Sequence[str]:
    """Hydra deals ranks to the names of its file as to those of ``-hosts``."""
    has_numbers = read and re.search(r"^[^#\s]+:[0-9]", read(path), re.MULTILINE)
    return ("-H", path) if has_numbers else ("-H", path, "--oversubscribe", "--map-by", "node")


def _hosts(value: str) -> Sequence[str]:
    """Each name of Open MPI's ``--host`` is one slot, where dispatch would count the GPUs."""
    parse_inline(value)
    names = value.split(",")
    are_slots = len({name.partition(":")[0] for name in names}) == len(names) > 1 and all(names)
    counted = ",".join(name if ":" in name else f"{name}:1" for name in names)
    return ("-H", counted if are_slots else value)


def _map_by(value: str) -> Sequence[str]:
    """``ppr:2:socket:OVERSUBSCRIBE``; what ranks would be elsewhere without is refused."""
    words = value.split(":")
    kind, equals, file = value.partition("=")
    if equals and kind.lower() == "rankfile:file":
        return ["--rankfile", file]
    count = 3 if words[0] == "ppr" else 1
    known = [_UNITS.get(word.lower(), word) for word in words[:count]]
    more = [word for part in words[count:] for word in part.upper().split(",") if word]
    options = ["--oversubscribe"] if "OVERSUBSCRIBE" in more else []
    strange = [word for word in more if word not in ("OVERSUBSCRIBE", "NOOVERSUBSCRIBE")]
    if strange:
        raise CannotTranslate(f"{strange[0]} cannot be met by dispatch", hint="--bind-to core")
    if words[0] == "ppr" and len(known) == 3 and known[1].isdecimal() and known[2] == "node":
        return ["--nproc-per-node", known[1], *options]
    if ":".join(known) == "" and options:
        return options
    parse_mapping(":".join(known))
    return ["--map-by", ":".join(known), *options]


def _bind_to(value: str) -> Sequence[str]:
    word, _, more = value.partition(":")
    target = word if more in ("", "overload-allowed", "if-supported") else value
    return _one_of("--bind-to", _TARGETS)(target) or ()


def _mca(name: str, value: str) -> Sequence[str] | None:
    if name in ("plm_rsh_agent", "plm_ssh_agent"):
        return ("--rsh", value)
    if name in ("plm_rsh_args", "plm_ssh_args"):
        return _ssh_args(value)
    if name in ("btl_tcp_if_include", "oob_tcp_if_include") and not {"/", ","} & set(value):
        return ("--iface", value)
    if name in ("orte_default_hostfile", "prte_default_hostfile"):
        return ("-H", value)
    if name.startswith(_PLACING):
        hint = "--map-by, --rank-by, --bind-to or --oversubscribe of mpirun"
        raise CannotTranslate("only mpirun itself uses it", hint=hint)
    return ("-x", f"OMPI_MCA_{name}={value}")


def export(text: str) -> Sequence[str]:
    """Words for ``NAME`` or ``NAME=VALUE``; none for what ``-x`` refuses, as dispatch sets it."""
    name, _, value = text.partition("=")
    if name == "MASTER_PORT" and value:
        return _PORT(value) or ()
    return () if name in RESERVED_NAMES else ("-x", text.replace(name, check_variable(name), 1))


def _variables(value: str) -> Sequence[str]:
    names = (name for name in value.split(",") if name not in ("", "ALL", "NONE"))  # srun's two
    return [word for name in names for word in export(name)]


_PORT = _count("--master-port", high=65535)
_STDIN = Flag(_checked("--stdin", parse_stdin))
_LIMIT = Flag(_checked("--time-limit", parse_seconds))
_TIME = _checked("--time-limit", parse_time)
_rank_by = _one_of("--rank-by", {"slot": "slot", "fill": "slot", "node": "node"})
_ALL = "dispatch starts every node from one command"
_RENDEZVOUS = "dispatch tests an address of host 0 and keeps a free port on it"
_LAUNCHER = "dispatch is the launcher"
OURS = "dispatch sets it itself"
_BATCH = "sbatch or salloc sets it; dispatch uses the job's hosts and GPUs"
_THERE = "the hosts exist already"
_SIGNALS = "INT, TERM, HUP, QUIT, USR1 and USR2 reach the ranks"
TURNS = "each name is one slot, in turn"
#: MCA parameters, of Open MPI to 4.1 and of PRRTE, for where its launcher has ranks run
_PLACING = ("rmaps_", "hwloc_base_binding_policy", "hwloc_default_binding_policy")
#: mpirun's words for what ranks are dealt to, where ours are others
_UNITS = {"package": "socket", "cpu": "core", "block": "slot"}
#: mpirun's and Hydra's words for what ranks are bound to
_TARGETS = {word: word for word in ("none", "core", "numa", "socket")}
_TARGETS |= {"cpu": "core", "package": "socket", "board": "none", "machine": "none"}

TORCHRUN = _by_name({
    "--nnodes": Flag(nnodes, "a range is the smallest and the largest number of hosts"),
    "--nproc-per-node": Flag(_checked("--nproc-per-node", parse_nproc)),
    "--node-rank --group-rank": Flag(gone, _ALL), "--signals-to-handle": Flag(gone, _SIGNALS),
    "--master-addr --rdzv-endpoint --rdzv-backend --rdzv-id --rdzv-conf --local-addr": Flag(
        gone, _RENDEZVOUS),
    "--master-port": Flag(_PORT), "--shutdown-timeout": Flag(_checked("--grace", parse_seconds)),
    "--standalone": Flag(_to("-H", "localhost"), "on this machine", 0),
    "--max-restarts": Flag(_count("--max-restarts", 0), "all ranks of all hosts start again"),
    "--log-dir": Flag(_to("--log-dir"), "one file for each rank of all hosts, on this machine"),
    "-r --redirects -t --tee": Flag(gone, "every line is shown; --log-dir keeps them all"),
    "--role --monitor-interval --start-method --event-log-handler": Flag(gone, _ALL),
    "--local-ranks-filter": Flag(gone, "see --only-ranks, which counts over all hosts"),
    "-m --module": switch("-m"), "--no-python": switch("--no-python"),
    "--run-path": Flag(_refuse("name the script itself"), values=0),
    "--numa-binding": Flag(_one_of("--bind-to", {"node": "gpu", "exclusive": "core"}),
                           "node is gpu, exclusive is core; without numactl"),
    "--virtual-local-rank": Flag(_to("--devices", "rank"), "each rank sees one GPU", 0),
})  # fmt: skip

LAUNCH = TORCHRUN | {"--use-env": Flag(gone, "LOCAL_RANK is always in the environment", 0)}

DEEPSPEED = _by_name({
    "-H --hostfile": Flag(_to("-H")), "--ssh-port": Flag(_count("--ssh-port", high=65535)),
    "-i --include": Flag(_to("--include")), "-e --exclude": Flag(_to("--exclude")),
    "--num-nodes --max-elastic-nodes": Flag(nnodes),
    "--min-elastic-nodes": Flag(_count("--min-nodes")),
    "--num-gpus --num-accelerators": Flag(_count("--nproc-per-node")),
    "--master-addr": Flag(_to("--master-addr")), "--master-port": Flag(_PORT),
    "--node-rank": Flag(gone, _ALL), "--launcher": Flag(gone, _LAUNCHER),
    "--launcher-args": Flag(_refuse("dispatch import -- deepspeed ... has them as options")),
    "--module": switch("-m"), "--no-python": switch("--no-python"),
    "--no-local-rank": Flag(gone, "no --local_rank is added to the script's arguments", 0),
    "--no-ssh --no-ssh-check --force-multi": Flag(gone, _ALL, 0),
    "--save-pid": Flag(gone, "dispatch jobs knows the job; dispatch kill ends it", 0),
    "--enable-each-rank-log": Flag(_to("--log-dir")), "-q --quiet": switch("--quiet"),
    "--log-level": Flag(gone, "-v prints more, -q less"),
    "--bind-cores-to-rank": Flag(_to("--bind-to", "core"), "its own cores, and threads", 0),
    "--bind-core-list": Flag(gone, "by taskset -c on the host; ranks stay inside"),
    "--venv-script": Flag(_refuse("--python /path/to/venv/bin/python")),
    "--autotuning": Flag(_refuse("run the tuner by deepspeed itself")),
    "--elastic-training": Flag(_to("--max-restarts", "100"), values=0),
})  # fmt: skip

#: what ``Accelerator()`` reads goes into the environment
ACCELERATE = _by_name({
    "--num-processes": Flag(_count("--np"), "the number of all ranks, as with accelerate"),
    "--num-machines": Flag(nnodes), "--machine-rank": Flag(gone, _ALL),
    "--main-process-ip": Flag(gone, "dispatch tests an address of host 0"),
    "--main-process-port": Flag(_PORT), "-t --tee": Flag(gone, "every line is shown"),
    "--multi-gpu --same-network": Flag(gone, "that is how dispatch runs", 0),
    "--rdzv-backend --rdzv-conf --monitor-interval --role": Flag(gone, _ALL),
    "--max-restarts": Flag(_count("--max-restarts", 0)), "--log-dir": Flag(_to("--log-dir")),
    "--mixed-precision": Flag(_variable("ACCELERATE_MIXED_PRECISION")),
    "--dynamo-backend": Flag(lambda v: ("-x", f"ACCELERATE_DYNAMO_BACKEND={v.upper()}")),
    "--gradient-accumulation-steps": Flag(_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")),
    "--enable-cpu-affinity": Flag(_to("--bind-to", "gpu"), values=0),
    "--cpu": Flag(_variable("ACCELERATE_USE_CPU", "true"), values=0),
    "--use-deepspeed": Flag(_variable("ACCELERATE_USE_DEEPSPEED", "true"), values=0),
    "--deepspeed-config-file": Flag(_variable("ACCELERATE_DEEPSPEED_CONFIG_FILE")),
    "--deepspeed-hostfile": Flag(_to("-H")), "--deepspeed-inclusion-filter": Flag(_to("--include")),
    "--deepspeed-exclusion-filter": Flag(_to("--exclude")),
    "--deepspeed-multinode-launcher": Flag(gone, _LAUNCHER), "-m --module": switch("-m"),
    "--no-python": switch("--no-python"), "-q --quiet": switch("--quiet"),
    "--use-fsdp": Flag(_refuse("build FullyShardedDataParallelPlugin in the script, "
                               "or give its FSDP_* with -x"), values=0),
    "--config-file": Flag(_refuse("dispatch -H hostfile --launcher accelerate -- "
                                  "--config_file {0} train.py")),
    "--gpu-ids": Flag(_refuse("--include host:0,2")),
})  # fmt: skip

#: Open MPI's (also PRRTE's) and Hydra's (MPICH, Intel MPI)
MPIRUN = _by_name({
    "-n -np --n --np -c": Flag(_count("--np")), "-genvlist -envlist": Flag(_variables),
    "-hostfile --hostfile -machinefile --machinefile -f": Flag(_to("-H")),
    "-H -host --host": Flag(_hosts, "one slot for each name, or the given number"),
    "-hosts --hosts": Flag(_hydra_hosts, TURNS), "-x": Flag(export), "-timeout --timeout": _LIMIT,
    "-genv -env": Flag(lambda name, value: export(f"{name}={value}"), values=2),
    "-genvall -envall": Flag(gone, "exports are named one by one", 0), "-stdin --stdin -s": _STDIN,
    "-genvnone -envnone": Flag(gone, "only what dispatch sets and -x names", 0),
    "-npernode --npernode -N -ppn -perhost --ppn": Flag(_count("--nproc-per-node")),
    "-pernode --pernode": switch("--nproc-per-node", "1"), "-rank-by --rank-by": Flag(_rank_by),
    "-map-by --map-by": Flag(_map_by, "also bound to it, unless --bind-to is set"),
    "-bynode --bynode": switch("--map-by", "node"), "--forward-signals": Flag(gone, _SIGNALS),
    "-byslot --byslot": switch("--map-by", "slot"), "-q -quiet --quiet": switch("--quiet"),
    "-rf --rankfile -rankfile": Flag(_to("--rankfile"), "as many ranks as it has places for"),
    "--cpus-per-proc --cpus-per-rank -cpus-per-proc": Flag(_refuse("--bind-to core")),
    "-bind-to --bind-to": Flag(_bind_to, "core is an equal share of the cores, not one core"),
    "-report-bindings --report-bindings": switch("--report-bindings"),
    "-oversubscribe --oversubscribe": switch("--oversubscribe"),
    "-mca --mca --gmca -gmca --prtemca": Flag(_mca, "a variable for the library", 2),
    "--allow-run-as-root -allow-run-as-root": Flag(gone, "never asks", 0),
    "-tag-output --tag-output -l -prepend-rank -nooversubscribe --nooversubscribe": Flag(
        gone, "as dispatch does", 0),
    "-timestamp-output --timestamp-output": switch("--timestamps"),
    "-output-filename --output-filename": Flag(_to("--log-dir")),
    "-output --output": Flag(_refuse("--log-dir DIR, --timestamps")),
    "-display-map --display-map": Flag(gone, "--dry-run shows where ranks will run", 0),
    "-merge-stderr-to-stdout --merge-stderr-to-stdout": Flag(gone, "write 2>&1 after it", 0),
    "-wdir --wdir -wd": Flag(_to("--chdir")), "-iface": Flag(_to("--iface")),
    "-launcher -bootstrap -rmk": Flag(gone, _LAUNCHER),
    "-launcher-exec -bootstrap-exec": Flag(_to("--rsh")),
    "-v -verbose --verbose -d --debug-daemons": switch("--verbose"),
    "--prefix -prefix -path": Flag(gone, "the ranks' PATH is the login node's; see -x PATH"),
    "-configfile --configfile --app -app": Flag(_refuse("give its lines with : between them")),
})  # fmt: skip

SRUN = _by_name({
    "-n --ntasks": Flag(_count("--np")), "-N --nodes": Flag(_count("--nnodes")),
    "--ntasks-per-node": Flag(_count("--nproc-per-node")), "-i --input": _STDIN,
    "-w --nodelist": Flag(lambda v: ("-H" if "/" in v else "-w", v)),
    "-x --exclude": Flag(lambda v: ("--exclude", "@".join(one for one, _ in split_list(v)))),
    "-D --chdir": Flag(_to("--chdir")), "--signal": Flag(_to("--signal")),
    "-t --time": Flag(lambda v: _TIME(f"{v}m" if v.isdigit() else v), "srun counts minutes"),
    "-c --cpus-per-task": Flag(lambda _: ("--bind-to", "core"), "an equal share of the cores"),
    "--cpu-bind": Flag(_one_of("--bind-to", {
        "none": "none", "no": "none", "cores": "core", "sockets": "socket", "ldoms": "numa"})),
    "-m --distribution": Flag(_one_of("--map-by", {"block": "slot", "cyclic": "node"})),
    "--export": Flag(_variables, "docs/guides/environment.md lists the others"),
    "-O --overcommit": switch("--oversubscribe"), "-Q --quiet": switch("--quiet"),
    "-v --verbose": switch("--verbose"), "-J --job-name --mpi": Flag(gone, OURS),
    "-l --label -u --unbuffered -K --kill-on-bad-exit": Flag(gone, "as dispatch does", 0),
    "-o --output -e --error": Flag(_refuse("--log-dir DIR of dispatch, or > {0}")),
    "--multi-prog": Flag(_refuse("--app FILE of dispatch, a line a program"), values=0),
    "--container-image": Flag(  # enroot writes REGISTRY#IMAGE
        lambda v: ("--container-image", v.removeprefix("docker://").replace("#", "/")),
        "the hosts must have the image"),
    "--container-mounts": Flag(_pyxis_mounts), "--container-workdir": Flag(_to("--chdir")),
    "--no-container-entrypoint --no-container-mount-home --no-container-remap-root": Flag(
        gone, "as dispatch does", 0),
    "--container-mount-home": Flag(_refuse("--mount $HOME:$HOME of dispatch"), values=0),
    "-p --partition -A --account -q --qos -C --constraint --mem --mem-per-cpu --mem-per-gpu --gres "
    "-G --gpus --gpus-per-node --gpus-per-task --reservation": Flag(gone, _BATCH),
    "--exclusive --overlap --exact": Flag(gone, _BATCH, 0),
})  # fmt: skip

SKY = _by_name({
    "-c --cluster -n --name": Flag(gone, _THERE), "-y --yes": Flag(gone, "never asks", 0),
    "-d --detach-run": switch("--detach"), "--num-nodes": Flag(nnodes), "--env": Flag(export),
})  # fmt: skip
#: the keys of SkyPilot's tasks, and why they become what they do
TASK = {
    "name": _THERE, "resources": _THERE, "num_nodes": "", "envs": "", "run": "once on each host",
    "setup": "NOT DONE: run it before, by dispatch exec --script",
    "workdir": "NOT DONE: --sync sends this folder", "file_mounts": "NOT DONE: see dispatch put",
}  # fmt: skip
#: SkyPilot's variables as dispatch has them for one process a host
SKY_VARIABLES = (
    (r'echo "?\$\{?SKYPILOT_NODE_IPS\}?"? *\| *head -n ?1\b', "echo $MASTER_ADDR"),
    (r"\bSKYPILOT_NODE_RANK\b", "NODE_RANK"), (r"\bSKYPILOT_NUM_NODES\b", "NNODES"),
    (r"\bSKYPILOT_NUM_GPUS_PER_NODE\b", "NPROC_PER_NODE"),
)  # fmt: skip

#: DeepSpeed's launchers whose own words are known
THROUGH = dict.fromkeys(("openmpi", "mpich", "impi"), MPIRUN) | {"slurm": SRUN}

#: variables that launchers themselves read
SETTINGS = _by_name({
    "PYTHON_EXEC": Flag(_to("--python")), "MPIEXEC_TIMEOUT": _LIMIT,
    "DS_ENV_FILE": Flag(_to("--env-file"), "if it has a $ in it, export DS_ENV_FILE instead"),
    "PDSH_SSH_ARGS PDSH_SSH_ARGS_APPEND": Flag(_ssh_args),
    "PDSH_RCMD_TYPE HYDRA_LAUNCHER HYDRA_BOOTSTRAP HYDRA_RMK": Flag(gone, _LAUNCHER),
})  # fmt: skip
BY_LAUNCHER = {
    "torchrun": TORCHRUN, "deepspeed": DEEPSPEED, "accelerate launch": ACCELERATE,
    "mpirun": MPIRUN, "srun": SRUN,
}  # fmt: skip
