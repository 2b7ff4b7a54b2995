"""Other launchers' command lines as dispatch's: ``translate(["torchrun", ...])``. Pure.

Each launcher is one table of its flags. A flag that is not in it is an error, never dropped in
silence: a job that ignores half of what it was asked looks as if it had run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from dispatcher.model.errors import CannotTranslate, UsageError
from dispatcher.model.names import shown
from dispatcher.plan.job.placement import parse_mapping
from dispatcher.plan.job.request import parse_nproc
from dispatcher.plan.variables import RESERVED_NAMES

#: the values of a flag to words for dispatch; None: it is not needed there
Becomes = Callable[..., Sequence[str] | None]


@dataclass(frozen=True)
class Flag:
    """What becomes of a flag: the words for dispatch, why, and how many values it takes."""

    becomes: Becomes
    why: str = ""
    values: int = 1


@dataclass(frozen=True)
class Reason:
    """A flag as it was written, the words it became (none: left out), and why."""

    written: tuple[str, ...]
    words: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Line:
    """A command line of dispatch: ``options``, then ``program``; and how it came about."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The whole line, ``dispatch`` first."""
        return ("dispatch", *self.options, *self.program)


#: as a shell takes one for it before a command
_VARIABLE = re.compile(r"[A-Za-z_]\w*=", re.ASCII)

#: the text of a file that a line names
ReadFile = Callable[[str], str]


def translate(words: Sequence[str], read: ReadFile | None = None) -> Line:
    """The dispatch command line that does what ``words`` do. read: for mpirun's ``-configfile``.

    Variables may stand before the launcher, as for a shell or ``env``. Raises: UsageError for a
    launcher or a flag that is not known, or cannot be met.
    """
    variables, words = assigned(words)
    name, rest = _launcher(words)
    if name not in _LAUNCHERS:
        known = ", ".join(key for key in _LAUNCHERS if "." not in key)
        raise CannotTranslate(f"not a launcher that is known here: {name!r}; known: {known}")
    exports = [(one, tuple(_export(one))) for one in variables]
    told = tuple(Reason((one,), to, "all ranks get it" if to else _OURS) for one, to in exports)
    if _LAUNCHERS[name] is _mpirun_line:  # each of its programs gets them
        named = [word for one in variables for word in ("-genv", *one.split("=", 1))]
        line = _mpirun_line([*named, *rest], read)
        return replace(line, reasons=(*told, *line.reasons[len(told) :]))
    line = _LAUNCHERS[name](rest)
    options = (word for one in told for word in one.words)
    return Line((*options, *line.options), line.program, (*told, *line.reasons))


def is_known(words: Sequence[str]) -> bool:
    """Whether ``words`` are the command line of a launcher that ``translate`` knows."""
    return _launcher(assigned(words)[1])[0] in _LAUNCHERS


def assigned(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What sets variables before a command, and the command."""
    rest = words[1:] if words and words[0] == "env" else words
    count = next((n for n, word in enumerate(rest) if not _VARIABLE.match(word)), len(rest))
    return rest[:count], rest[count:]


def _launcher(words: Sequence[str]) -> tuple[str, list[str]]:
    """The launcher's name, "" for none, and its words."""
    rest = list(words)
    name = os.path.basename(rest.pop(0)) if rest else ""
    if name.startswith("python"):  # python [-u] -m torch.distributed.run ...
        while rest and rest[0] in ("-u", "-B"):
            rest.pop(0)
        name = rest[1] if len(rest) > 1 and rest[0] == "-m" else ""
        rest = rest[2:]
    return name, rest


def program(words: Sequence[str], who: str) -> tuple[list[str], list[str]]:
    """Options and words for a program written as for ``mpirun``: any command, Python included.

    Raises: UsageError when there is none.
    """
    if not words:
        raise CannotTranslate(f"{who}: no program in it")
    name = words[0].rpartition("/")[2]
    rest = list(words[1:])
    while rest[:1] == ["-u"]:  # dispatch starts Python so anyway
        rest.pop(0)
    if name == "python" or name.startswith("python3"):
        if rest[:1] == ["-m"] and len(rest) > 1:
            return ["--python", words[0], "-m"], rest[1:]
        if rest and not rest[0].startswith("-"):
            return ["--python", words[0]], rest
    return ["--no-python"], list(words)


def _read(
    words: Sequence[str], table: Mapping[str, Flag], who: str
) -> tuple[list[str], list[str], list[Reason]]:
    """Options for dispatch, what comes after the flags, and the reasons. Raises: UsageError."""
    options: list[str] = []
    reasons: list[Reason] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        reason = _first(rest, table, who)
        rest = rest[len(reason.written) :]
        _add(reason, reasons, who)
        options += reason.words
    return options, rest[1:] if rest[:1] == ["--"] else rest, reasons


def _add(reason: Reason, reasons: list[Reason], who: str) -> None:
    """Add ``reason``. Raises: UsageError where another has that option with another value."""
    for other in reasons:  # of two values dispatch would take the last
        if reason.words[:1] == other.words[:1] != ("-x",) and reason.words != other.words:
            flags = " and ".join(" ".join(one.written) for one in (other, reason))
            raise CannotTranslate(f"{who}: {flags} contradict each other", hint="leave one out")
    reasons.append(reason)


def _first(words: Sequence[str], table: Mapping[str, Flag], who: str) -> Reason:
    """What becomes of the flag that ``words`` begin with. Raises: UsageError."""
    name, equals, value = words[0].partition("=")
    flag = table.get(name.replace("_", "-"))
    if flag is None:
        raise CannotTranslate(f"{who}: {name}: not known here", hint="leave it out and ask again")
    if equals and flag.values != 1:
        raise CannotTranslate(f"{who}: {name} takes no value after =")
    count = 1 if equals else 1 + flag.values
    if len(words) < count:
        raise CannotTranslate(f"{who}: {name}: its value is missing")
    written = tuple(words[:count])
    try:
        became = flag.becomes(*([value] if equals else written[1:])) or ()
    except UsageError as error:
        message = f"{who}: {' '.join(written)}: {error.message}"
        raise CannotTranslate(message, hint=error.hint) from None
    return Reason(written, tuple(became), flag.why or ("" if became else _OURS))


def of_launcher(words: Sequence[str]) -> Reason | None:
    """What becomes of the flag that ``words`` begin with, of whichever launcher; None: of none.

    Raises: UsageError for one that cannot be met.
    """
    name = words[0].partition("=")[0].replace("_", "-")
    for who, table in _TABLES.items():
        if name in table:
            return _first(words, table, who)
    return None


def _script_line(
    words: Sequence[str],
    *,
    who: str,
    table: Mapping[str, Flag],
    one_rank: bool = False,
    local_rank: tuple[str, str] | None = None,
) -> Line:
    """The line for a launcher of scripts. Raises: UsageError.

    one_rank: a host has one unless the line says how many. local_rank: what the launcher gives
    scripts as their first argument, and the flag without which it does.
    """
    options, rest, reasons = _read(words, table, who)
    if not rest:
        raise CannotTranslate(f"{who}: no script in it")
    given = {reason.written[0].replace("_", "-") for reason in reasons}
    added = []
    ranges = [value for flag, value in pairwise(options) if flag == "--nnodes" and ":" in value]
    if ranges and "--max-restarts" not in options:
        why = "hosts that come and go are no restarts for torchrun; here a lost one is"
        added.append(Reason((), ("--max-restarts", "3"), why))
    if one_rank and "--nproc-per-node" not in options:
        why = "torchrun's default; leave it out for a rank per GPU"
        added.append(Reason((), ("--nproc-per-node", "1"), why))
    if local_rank is not None and local_rank[1] not in given:
        argument = local_rank[0]
        why = f"{who} gives scripts {argument}=N; leave it out if yours does not want it"
        added.append(Reason((), ("--local-rank-arg", argument), why))
    options += [word for reason in added for word in reason.words]
    if ":" in rest:
        options.append("--")  # else it would stand between two programs
    return Line(tuple(options), tuple(rest), (*reasons, *added))


def _accelerate_line(words: Sequence[str]) -> Line:
    if not words or words[0] != "launch":
        raise CannotTranslate("accelerate: only its launch command starts ranks")
    return _script_line(words[1:], who="accelerate launch", table=ACCELERATE)


def _mpirun_line(words: Sequence[str], read: ReadFile | None = None) -> Line:
    parts = list(_parts(_with_file(list(words), read)))
    read_parts = [_read(part, MPIRUN, "mpirun") for part in parts]
    made = [program(rest, "mpirun") for _, rest, _ in read_parts]
    reasons = tuple(reason for _, _, told in read_parts for reason in told)
    if len(parts) == 1:
        (options, _, _), (how, what) = read_parts[0], made[0]
        return Line((*options, *how), tuple(what), reasons)
    job: list[Reason] = []
    own: list[list[str]] = []
    every = [reason.words for reason in reasons if reason.written[0] in _FOR_ALL]
    for _, _, told in read_parts:
        own.append([word for words in every if words[:1] == ("-x",) for word in words])
        for reason in told:
            if "--nproc-per-node" in reason.words:
                flag = " ".join(reason.written)
                raise CannotTranslate(f"mpirun: {flag}: of several programs", hint="-n N of each")
            if reason.words[:1] not in (("--np",), ("-x",), ("--chdir",), ("-H",)):
                _add(reason, job, "mpirun")
            elif reason.written[0] not in _FOR_ALL:
                own[-1] += reason.words
    lines = [[*mine, *how, *what] for mine, (how, what) in zip(own, made, strict=True)]
    more = [word for line in lines[1:] for word in (":", *line)]
    how, what = made[0]
    options = [word for reason in job for word in reason.words]
    return Line((*options, *own[0], *how), (*what, *more), reasons)


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    """What stands between the ``:`` of ``words``."""
    part: list[str] = []
    for word in words:
        if word == ":":
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _with_file(words: list[str], read: ReadFile | None) -> list[str]:
    """``words`` with the lines of ``-configfile`` or ``--app`` in their place, a program each."""
    at = 0
    while at < len(words) and words[at] not in _APP_FILES:
        name, equals, _ = words[at].partition("=")
        flag = MPIRUN.get(name.replace("_", "-"))
        if flag is None:  # the program, whose own words may be called so as well
            return words
        at += 1 if equals else 1 + flag.values
    if read is None or at + 1 >= len(words):
        return words
    found: list[str] = []
    for line in read(words[at + 1]).replace("\\\n", " ").splitlines():
        try:
            told = shlex.split(line, comments=True)
        except ValueError as error:
            why = f"{str(error).lower()}: {shown(line)}"
            raise CannotTranslate(f"{words[at]} {words[at + 1]}: {why}") from None
        found += [":", *told] if found and told else told
    return [*words[:at], *found, *words[at + 2 :]]


# -- the tables: names with spaces between -> what becomes of the flag -------------------------


def _by_name(table: Mapping[str, Flag]) -> dict[str, Flag]:
    return {name: flag for names, flag in table.items() for name in names.split()}


def _to(*words: str) -> Becomes:
    """The flag's values follow ``words``."""
    return lambda *values: (*words, *values)


def _gone(*_: str) -> None:
    """The flag has no counterpart and needs none."""


def _refuse(hint: str) -> Becomes:
    def becomes(*_: str) -> Sequence[str]:
        raise CannotTranslate("cannot be met by dispatch", hint=hint)

    return becomes


def _variable(name: str, fixed: str | None = None) -> Becomes:
    return lambda *values: ("-x", f"{name}={fixed if fixed is not None else values[0]}")


def _nproc(value: str) -> Sequence[str]:
    return ("--nproc-per-node", str(parse_nproc(value)))


def _hosts(value: str) -> Sequence[str]:
    """Each name of Open MPI's ``--host`` is one slot, where dispatch would count the GPUs."""
    names = value.split(",")
    are_slots = len({name.partition(":")[0] for name in names}) == len(names) > 1 and all(names)
    counted = ",".join(name if ":" in name else f"{name}:1" for name in names)
    return ("-H", counted if are_slots else value)


def _endpoint(value: str) -> None:
    if not value:
        raise CannotTranslate("an empty endpoint")


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


def _rank_by(value: str) -> Sequence[str]:
    word = value.partition(":")[0]
    word = "slot" if word == "fill" else word
    if word not in ("slot", "node"):
        raise CannotTranslate("cannot be met by dispatch", hint="--rank-by slot or node")
    return ("--rank-by", word)


def _bind_to(value: str) -> Sequence[str]:
    word, _, more = value.partition(":")
    target = _TARGETS.get(word)
    if target is None or more not in ("", "overload-allowed", "if-supported"):
        raise CannotTranslate("cannot be met by dispatch", hint=f"known: {', '.join(_TARGETS)}")
    return ("--bind-to", target)


def _numa_binding(value: str) -> Sequence[str]:
    known = {"node": "gpu", "exclusive": "core"}
    if value not in known:
        raise CannotTranslate("cannot be met by dispatch", hint="--bind-to gpu or core")
    return ("--bind-to", known[value])


def _mca(name: str, value: str) -> Sequence[str] | None:
    if name in ("plm_rsh_agent", "plm_ssh_agent"):
        return ("--rsh", value)
    port = re.match(r"-p\s*([0-9]+)\Z", value)
    if name in ("plm_rsh_args", "plm_ssh_args") and port:
        return ("--ssh-port", port[1])
    if name in ("btl_tcp_if_include", "oob_tcp_if_include") and not {"/", ","} & set(value):
        return ("--iface", value)
    if name in ("orte_default_hostfile", "prte_default_hostfile"):
        return ("-H", value)
    if name.startswith(_PLACING):
        hint = "--map-by, --rank-by, --bind-to or --oversubscribe of mpirun"
        raise CannotTranslate("only mpirun itself obeys it", hint=hint)
    return ("-x", f"OMPI_MCA_{name}={value}")


def _export(text: str) -> Sequence[str]:
    """Words for ``NAME`` or ``NAME=VALUE``; none for what ``-x`` refuses, as dispatch sets it."""
    name, _, value = text.partition("=")
    if name == "MASTER_PORT" and value:
        return ("--master-port", value)
    return () if name in RESERVED_NAMES else ("-x", text)


def _variables(value: str) -> Sequence[str]:
    return [word for name in value.split(",") if name for word in _export(name)]


#: Hydra's variables for all programs
_FOR_ALL = ("-genv", "-genvlist")
_APP_FILES = ("-configfile", "--configfile", "--app", "-app")
_ALL = "dispatch starts every node from one command"
_RENDEZVOUS = "dispatch proves an address of host 0 and keeps a port free there"
_LAUNCHER = "dispatch is the launcher"
_OURS = "dispatch sets it itself"
#: MCA parameters, of Open MPI to 4.1 and of PRRTE, for where its launcher has ranks run
_PLACING = ("rmaps_", "hwloc_base_binding_policy", "hwloc_default_binding_policy")
#: mpirun's words for what ranks are dealt to, where ours are others
_UNITS = {"package": "socket", "cpu": "core"}
#: mpirun's and Hydra's words for what ranks are bound to
_TARGETS = {
    "none": "none", "core": "core", "cpu": "core", "numa": "numa", "socket": "socket",
    "package": "socket", "board": "none", "machine": "none",
}  # fmt: skip

TORCHRUN = _by_name({
    "--nnodes": Flag(_to("--nnodes"), "a range is the least and the most number of hosts"),
    "--nproc-per-node": Flag(_nproc),
    "--node-rank --group-rank": Flag(_gone, _ALL),
    "--master-addr": Flag(_gone, _RENDEZVOUS),
    "--master-port": Flag(_to("--master-port")),
    "--rdzv-endpoint": Flag(_endpoint, _RENDEZVOUS),
    "--rdzv-backend --rdzv-id --rdzv-conf --local-addr": Flag(_gone, _RENDEZVOUS),
    "--standalone": Flag(_to("-H", "localhost"), "on this machine", 0),
    "--max-restarts": Flag(_to("--max-restarts"), "all ranks of all hosts start again"),
    "--log-dir": Flag(_to("--log-dir"), "one file a rank of the world, of all hosts, here"),
    "-r --redirects -t --tee": Flag(_gone, "every line is shown; --log-dir keeps them all"),
    "--role --monitor-interval --start-method --event-log-handler": Flag(_gone, _ALL),
    "--local-ranks-filter": Flag(_gone, "see --only-ranks, which counts over all hosts"),
    "--shutdown-timeout": Flag(_to("--grace")),
    "--signals-to-handle": Flag(_gone, "INT, TERM, HUP, QUIT, USR1 and USR2 reach the ranks"),
    "-m --module": Flag(_to("-m"), values=0),
    "--no-python": Flag(_to("--no-python"), values=0),
    "--run-path": Flag(_refuse("name the script itself"), values=0),
    "--numa-binding": Flag(_numa_binding, "node is gpu, exclusive is core; without numactl"),
    "--virtual-local-rank": Flag(_to("--devices", "rank"), "each rank sees one GPU", 0),
})  # fmt: skip

LAUNCH = TORCHRUN | {"--use-env": Flag(_gone, "LOCAL_RANK is always in the environment", 0)}

DEEPSPEED = _by_name({
    "-H --hostfile": Flag(_to("-H")),
    "-i --include": Flag(_to("--include")),
    "-e --exclude": Flag(_to("--exclude")),
    "--num-nodes": Flag(_to("--nnodes")),
    "--num-gpus --num-accelerators": Flag(_to("--nproc-per-node")),
    "--master-addr": Flag(_to("--master-addr")),
    "--master-port": Flag(_to("--master-port")),
    "--node-rank": Flag(_gone, _ALL),
    "--launcher --launcher-args": Flag(_gone, _LAUNCHER),
    "--module": Flag(_to("-m"), values=0),
    "--no-python": Flag(_to("--no-python"), values=0),
    "--no-local-rank": Flag(_gone, "no --local_rank is added to the script's words", 0),
    "--no-ssh --no-ssh-check --force-multi": Flag(_gone, _ALL, 0),
    "--save-pid": Flag(_gone, "dispatch jobs knows the job; dispatch kill ends it", 0),
    "--enable-each-rank-log": Flag(_to("--log-dir")),
    "--ssh-port": Flag(_to("--ssh-port")),
    "--log-level": Flag(_gone, "-v says more, -q less"),
    "-q --quiet": Flag(_to("--quiet"), values=0),
    "--bind-cores-to-rank": Flag(_to("--bind-to", "core"), "cores of its own, and threads", 0),
    "--bind-core-list": Flag(_gone, "by taskset -c on the host; ranks stay inside"),
    "--venv-script": Flag(_refuse("--python /path/to/venv/bin/python")),
    "--autotuning": Flag(_refuse("run the tuner by deepspeed itself")),
    "--elastic-training": Flag(_to("--max-restarts", "100"), values=0),
    "--min-elastic-nodes": Flag(_to("--min-nodes")),
    "--max-elastic-nodes": Flag(_to("--nnodes")),
})  # fmt: skip

#: what ``Accelerator()`` reads goes into the environment
ACCELERATE = _by_name({
    "--num-processes": Flag(_to("--np"), "the world's size, as there"),
    "--num-machines": Flag(_to("--nnodes")),
    "--machine-rank": Flag(_gone, _ALL),
    "--main-process-ip": Flag(_gone, "dispatch proves an address of host 0"),
    "--main-process-port": Flag(_to("--master-port")),
    "--multi-gpu --same-network": Flag(_gone, "that is how dispatch runs", 0),
    "--rdzv-backend --rdzv-conf --monitor-interval --role": Flag(_gone, _ALL),
    "--max-restarts": Flag(_to("--max-restarts")),
    "--mixed-precision": Flag(_variable("ACCELERATE_MIXED_PRECISION")),
    "--dynamo-backend": Flag(lambda v: ("-x", f"ACCELERATE_DYNAMO_BACKEND={v.upper()}")),
    "--gradient-accumulation-steps": Flag(_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")),
    "--enable-cpu-affinity": Flag(_to("--bind-to", "gpu"), values=0),
    "--cpu": Flag(_variable("ACCELERATE_USE_CPU", "true"), values=0),
    "--use-deepspeed": Flag(_variable("ACCELERATE_USE_DEEPSPEED", "true"), values=0),
    "--deepspeed-config-file": Flag(_variable("ACCELERATE_DEEPSPEED_CONFIG_FILE")),
    "--deepspeed-hostfile": Flag(_to("-H")),
    "--deepspeed-inclusion-filter": Flag(_to("--include")),
    "--deepspeed-exclusion-filter": Flag(_to("--exclude")),
    "--deepspeed-multinode-launcher": Flag(_gone, _LAUNCHER),
    "--log-dir": Flag(_to("--log-dir")),
    "-t --tee": Flag(_gone, "every line is shown"),
    "-m --module": Flag(_to("-m"), values=0),
    "--no-python": Flag(_to("--no-python"), values=0),
    "-q --quiet": Flag(_to("--quiet"), values=0),
    "--use-fsdp": Flag(_refuse("build FullyShardedDataParallelPlugin in the script, "
                               "or give its FSDP_* with -x"), values=0),
    "--config-file": Flag(_refuse("dispatch -H hostfile --launcher accelerate -- "
                              "--config_file FILE train.py")),
    "--gpu-ids": Flag(_refuse("--include host:0,2")),
})  # fmt: skip

#: Open MPI's (also PRRTE's) and Hydra's (MPICH, Intel MPI)
MPIRUN = _by_name({
    "-n -np --n --np -c": Flag(_to("--np")),
    "-hostfile --hostfile -machinefile --machinefile -f": Flag(_to("-H")),
    "-H -host --host": Flag(_hosts, "a slot a name, unless a number says more"),
    "-hosts --hosts": Flag(_to("-H")),
    "-x": Flag(_export),
    "-genv -env": Flag(lambda name, value: _export(f"{name}={value}"), values=2),
    "-genvlist -envlist": Flag(_variables),
    "-genvall -envall": Flag(_gone, "exports are named one by one", 0),
    "-genvnone -envnone": Flag(_gone, "only what dispatch sets and -x names", 0),
    "-npernode --npernode -N -ppn -perhost --ppn": Flag(_to("--nproc-per-node")),
    "-pernode --pernode": Flag(_to("--nproc-per-node", "1"), values=0),
    "-map-by --map-by": Flag(_map_by, "bound there, too, unless --bind-to says otherwise"),
    "-bynode --bynode": Flag(_to("--map-by", "node"), values=0),
    "-byslot --byslot": Flag(_to("--map-by", "slot"), values=0),
    "-rank-by --rank-by": Flag(_rank_by),
    "-rf --rankfile -rankfile": Flag(_to("--rankfile"), "as many ranks as it has places for"),
    "--cpus-per-proc --cpus-per-rank -cpus-per-proc": Flag(_refuse("--bind-to core")),
    "-bind-to --bind-to": Flag(_bind_to, "core is a share of the cores, not one of them"),
    "-report-bindings --report-bindings": Flag(_to("--report-bindings"), values=0),
    "-oversubscribe --oversubscribe": Flag(_to("--oversubscribe"), values=0),
    "-mca --mca --gmca -gmca --prtemca": Flag(_mca, "a variable for the library", 2),
    "--allow-run-as-root -allow-run-as-root": Flag(_gone, "nobody asks", 0),
    "-tag-output --tag-output -l -prepend-rank": Flag(_gone, "as dispatch does", 0),
    "-timestamp-output --timestamp-output": Flag(_to("--timestamps"), values=0),
    "-output-filename --output-filename": Flag(_to("--log-dir")),
    "-wdir --wdir -wd": Flag(_to("--chdir")),
    "-iface": Flag(_to("--iface")),
    "-launcher -bootstrap -rmk": Flag(_gone, _LAUNCHER),
    "-launcher-exec -bootstrap-exec": Flag(_to("--rsh")),
    "-q -quiet --quiet": Flag(_to("--quiet"), values=0),
    "-v -verbose --verbose -d --debug-daemons": Flag(_to("--verbose"), values=0),
    "--prefix -prefix -path": Flag(_gone, "the ranks' PATH is the login node's; see -x PATH"),
    "-stdin --stdin -s": Flag(_to("--stdin")),
    "-configfile --configfile --app -app": Flag(_refuse("give its lines with : between them")),
})  # fmt: skip

_TABLES = {
    "torchrun": TORCHRUN, "deepspeed": DEEPSPEED, "accelerate launch": ACCELERATE, "mpirun": MPIRUN,
}  # fmt: skip

_torchrun_line = partial(_script_line, who="torchrun", table=TORCHRUN, one_rank=True)
_deepspeed_line = partial(
    _script_line, who="deepspeed", table=DEEPSPEED, local_rank=("--local_rank", "--no-local-rank")
)

_LAUNCHERS: dict[str, Callable[[Sequence[str]], Line]] = {
    "torchrun": _torchrun_line,
    "torch.distributed.run": _torchrun_line,
    "torch.distributed.launch": partial(
        _script_line,
        who="torch.distributed.launch",
        table=LAUNCH,
        one_rank=True,
        local_rank=("--local-rank", "--use-env"),
    ),
    "deepspeed": _deepspeed_line,
    "ds": _deepspeed_line,
    "accelerate": _accelerate_line,
    **dict.fromkeys(
        (
            "mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi",
            "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra",
        ),
        _mpirun_line,
    ),
}  # fmt: skip
