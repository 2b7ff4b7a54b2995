"""Other launchers' command lines as dispatch's: ``translate(["torchrun", ...])``. Pure.

Each launcher is one table of its flags. A flag that is not in it is an error, never dropped in
silence: a job that ignores half of what it was asked looks as if it had run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from dispatcher.model.errors import CannotTranslate, UsageError
from dispatcher.model.hostset import split_list
from dispatcher.model.names import MOST_RANKS, digits, shown
from dispatcher.plan.hosts.hostfile import parse_inline
from dispatcher.plan.job.node_launchers import NAMES
from dispatcher.plan.job.placement import parse_mapping
from dispatcher.plan.job.request import parse_nproc, parse_seconds, parse_stdin, parse_time
from dispatcher.plan.variables import RESERVED_NAMES, check_variable

#: the values of a flag to words for dispatch; None: it is not needed there
Becomes = Callable[..., Sequence[str] | None]


@dataclass(frozen=True)
class Flag:
    """The translation of a flag: the words for dispatch, why, and how many values it takes."""

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


def translate(words: Sequence[str], read: ReadFile | None = None, pythonpath: str = "") -> Line:
    """The dispatch command line that does what ``words`` do.

    ``read`` reads the files that they name; ``pythonpath`` is the user's own. Variables may come
    before the launcher, as for a shell or ``env``. Raises: UsageError for a launcher or a flag that
    is not known, or cannot be met.
    """
    variables, words = assigned(words)
    name, rest = _launcher(words)
    if name not in _LAUNCHERS:
        known = ", ".join(key for key in _LAUNCHERS if "." not in key)
        raise CannotTranslate(f"not a launcher that is known here: {name!r}; known: {known}")
    told: list[Reason] = []
    named: list[str] = []  # for mpirun, which gives them to each of its programs
    for one in variables:
        key, _, value = one.partition("=")
        flag = SETTINGS.get(key) or Flag(lambda v, k=key: _export(f"{k}={v}"))
        if key.startswith("PET_") and "torch" in name:
            option = "--" + key[4:].lower().replace("_", "-")
            is_switch = option in TORCHRUN and not TORCHRUN[option].values
            more = [option] * (value != "0") if is_switch else [f"{option}={value}"]
            rest, flag = [*more, *rest], Flag(_gone, f"as {' '.join(more)} of torchrun")
        told.append(_first([one], {key: flag}, name))
        if _LAUNCHERS[name] is _mpirun_line and told[-1].words[:1] == ("-x",):
            named += ["-genv", *told[-1].words[1].split("=", 1)]
        pythonpath = value if key == "PYTHONPATH" else pythonpath
    line = _LAUNCHERS[name]([*named, *rest], read)
    is_module, is_program = "-m" in line.options, "--no-python" in line.options
    if name in ("deepspeed", "ds") and (is_program or ("/" in line.program[0] and not is_module)):
        why = "on several hosts deepspeed has Python look in this folder first"
        told.append(Reason((), ("-x", f"PYTHONPATH=.:{pythonpath}".rstrip(":")), why))
    options = [w for one in told if not (named and one.words[:1] == ("-x",)) for w in one.words]
    return Line((*options, *line.options), line.program, (*told, *line.reasons[len(named) // 3 :]))


def is_known(words: Sequence[str]) -> bool:
    """Whether ``words`` are the command line of a launcher that ``translate`` knows."""
    return _launcher(assigned(words)[1])[0] in _LAUNCHERS


def assigned(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words that set variables before a command, and the command."""
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
    """Translate the flag that ``words`` begin with. Raises: UsageError."""
    name, equals, value = words[0].partition("=")
    flag = table.get(name.replace("_", "-"), table.get(name))
    glued = SRUN.get(name[:2], _switch())  # -N2
    if flag is None and table is SRUN and glued.values:
        return replace(_first([name[:2], words[0][2:]], table, who), written=(words[0],))
    if flag is None:
        raise CannotTranslate(f"{who}: {name}: not known here", hint="leave it out and ask again")
    if equals and flag.values != 1 and flag.becomes is not _gone:
        raise CannotTranslate(f"{who}: {name} takes no value after =")
    count = 1 if equals else 1 + flag.values
    if len(words) < count:
        raise CannotTranslate(f"{who}: {name}: its value is missing")
    written = tuple(words[:count])
    try:
        became = flag.becomes(*([value] if equals else written[1:])) or ()
    except (UsageError, ValueError) as error:
        message = f"{who}: {' '.join(written)}: {error}"
        raise CannotTranslate(message, hint=getattr(error, "hint", None)) from None
    return Reason(written, tuple(became), flag.why or ("" if became else _OURS))


def _given(words: Sequence[str], table: Mapping[str, Flag]) -> dict[str, str]:
    """The flags that ``words`` begin with, and the value of each."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and (flag := table.get(words[at].partition("=")[0].replace("_", "-"))):
        name, equals, value = words[at].partition("=")
        found[name.replace("_", "-")] = value if equals else "".join(words[at + 1 : at + 2])
        at += 1 if equals else 1 + flag.values
    return found


def of_launcher(words: Sequence[str]) -> Reason | None:
    """Translate the flag that ``words`` begin with, of any launcher; None if no launcher has it.

    Raises: UsageError for one that cannot be met.
    """
    name = words[0].partition("=")[0].replace("_", "-")
    for who, table in _TABLES.items():
        if name in table:
            return _first(words, table, who)
    return None


def _script_line(
    words: Sequence[str],
    _: ReadFile | None = None,
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
    ranges = any(flag == "--nnodes" and ":" in value for flag, value in pairwise(options))
    named, switch = local_rank or ("", "")
    usual = (
        (ranges, "--max-restarts", "3",
         "hosts that come and go are no restarts for torchrun; here a lost one is"),
        (one_rank, "--nproc-per-node", "1", "torchrun's default; leave it out for a rank per GPU"),
        (named and switch not in _given(words, table), "--local-rank-arg", named,
         f"{who} gives scripts {named}=N; leave it out if yours does not want it"),
    )  # fmt: skip
    added = [Reason((), (n, v), why) for wanted, n, v, why in usual if wanted and n not in options]
    options += [word for reason in added for word in reason.words]
    if ":" in rest or rest[0][:1] == "-" != rest[0]:
        options.append("--")  # else a : would separate two programs
    return Line(tuple(options), tuple(rest), (*reasons, *added))


def _accelerate_line(words: Sequence[str], _: ReadFile | None) -> Line:
    if not words or words[0] != "launch":
        raise CannotTranslate("accelerate: only its launch command starts ranks")
    return _script_line(words[1:], who="accelerate launch", table=ACCELERATE)


def _deepspeed_line(words: Sequence[str], _: ReadFile | None) -> Line:
    launcher = _given(words, DEEPSPEED).get("--launcher", "pdsh")

    def through(text: str) -> Sequence[str]:
        options, rest, _ = _read(shlex.split(text), _THROUGH.get(launcher, {}), launcher)
        if rest:
            raise CannotTranslate(f"{launcher}: {rest[0]}: not known here")
        return options

    table = DEEPSPEED | {"--launcher-args": Flag(through)}
    local_rank = ("--local_rank", "--no-local-rank")
    return _script_line(words, who="deepspeed", table=table, local_rank=local_rank)


def _srun_line(words: Sequence[str], _: ReadFile | None) -> Line:
    options, rest, reasons = _read(words, SRUN, "srun")
    how, what = program(rest, "srun")
    return Line((*options, *how), tuple(what), tuple(reasons))


def _sky_line(words: Sequence[str], read: ReadFile | None) -> Line:
    """A task of SkyPilot: its ``run``, by bash, once on each host."""
    _, rest, reasons = _read(words[1:], SKY, "sky")
    if words[:1] not in (["launch"], ["exec"]) or len(rest) != 1 or read is None:
        raise CannotTranslate("sky: only a file of a task", hint="sky launch task.yaml")
    task = dict(re.findall(r"^(\w+):(.*(?:\n(?:[ \t].*)?)*)", read(rest[0]), re.MULTILINE))
    head, _, body = task.get("run", "").partition("\n")
    import textwrap  # each run loads this module

    run = textwrap.dedent(body).rstrip() if head.strip() in ("|", "|-") else head.strip()
    for form, ours in _SKYS:
        run = re.sub(form, ours, run)
    for word in ("SKYPILOT_", *(f"{{{name}}}" for name in NAMES), *(task.keys() - TASK)):
        if not run or run[0] in ">|\"'" or word in run or word in task:
            raise CannotTranslate(f"{rest[0]}: {word if run else 'run'}: cannot be met by dispatch")
    for key, text in task.items():
        became = ["--per-node", "--no-python"] if key == "run" else []
        if key == "num_nodes" and "--num-nodes" not in _given(words[1:], SKY):
            became = [*_nnodes(text.partition("#")[0].strip())]
        for name, value in re.findall(r"^[ \t]+(\w+):(.*)", text * (key == "envs"), re.MULTILINE):
            became += _export("=".join([name, *shlex.split(value, comments=True)]))
        reasons.append(Reason((f"{key}:",), tuple(became), TASK[key]))
    options = (word for one in reasons for word in one.words)
    return Line(tuple(options), ("bash", "-c", run), tuple(reasons))


def _mpirun_line(words: Sequence[str], read: ReadFile | None) -> Line:
    words = _with_file(list(words), read)
    colons = [-1, *(at for at, word in enumerate(words) if word == ":"), len(words)]
    parts = [words[one + 1 : other] for one, other in pairwise(colons)]
    table = MPIRUN
    for flags in [_given(part, MPIRUN) for part in parts]:
        if _LISTS.intersection(flags):  # of Open MPI
            picks = Flag(_gone, "-host picks some of its hosts, a slot a name")
            table = table | dict.fromkeys(_FILES, picks)
        if _EACH.intersection(flags):
            table = table | {"-hosts": MPIRUN["-f"]}
        elif len(parts) == 1:
            table = table | {"-f": Flag(partial(_hydra_file, read), _TURNS)}
    read_parts = [_read(part, table, "mpirun") for part in parts]
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


def _with_file(words: list[str], read: ReadFile | None) -> list[str]:
    """``words`` with the lines of ``-configfile`` or ``--app`` in their place, a program each."""
    named = [flag for flag in _given(words, MPIRUN) if flag in _APP_FILES]  # not the program's own
    at = words.index(named[0]) if named and named[0] in words else len(words)
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


def _switch(*words: str) -> Flag:
    return Flag(_to(*words), values=0)


def _gone(*_: str) -> None:
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


def _nnodes(value: str) -> Sequence[str]:
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


def _hydra_file(read: ReadFile | None, path: str) -> Sequence[str]:
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
        raise CannotTranslate("only mpirun itself obeys it", hint=hint)
    return ("-x", f"OMPI_MCA_{name}={value}")


def _export(text: str) -> Sequence[str]:
    """Words for ``NAME`` or ``NAME=VALUE``; none for what ``-x`` refuses, as dispatch sets it."""
    name, _, value = text.partition("=")
    if name == "MASTER_PORT" and value:
        return _PORT(value) or ()
    return () if name in RESERVED_NAMES else ("-x", text.replace(name, check_variable(name), 1))


def _variables(value: str) -> Sequence[str]:
    names = (name for name in value.split(",") if name not in ("", "ALL", "NONE"))  # srun's two
    return [word for name in names for word in _export(name)]


_PORT = _count("--master-port", high=65535)
_STDIN = Flag(_checked("--stdin", parse_stdin))
_LIMIT = Flag(_checked("--time-limit", parse_seconds))
_TIME = _checked("--time-limit", parse_time)
_rank_by = _one_of("--rank-by", {"slot": "slot", "fill": "slot", "node": "node"})
#: Hydra's variables for all programs
_FOR_ALL = ("-genv", "-genvlist")
#: where Open MPI has hosts, and Hydra the number of ranks of each
_FILES = ("-hostfile", "--hostfile", "-machinefile", "--machinefile")
_LISTS = {"-H", "-host", "--host"}
_EACH = {"-ppn", "-perhost", "--ppn"}
_APP_FILES = ("-configfile", "--configfile", "--app", "-app")
_ALL = "dispatch starts every node from one command"
_RENDEZVOUS = "dispatch proves an address of host 0 and keeps a port free there"
_LAUNCHER = "dispatch is the launcher"
_OURS = "dispatch sets it itself"
_BATCH = "sbatch and salloc ask for it; dispatch takes what that job has"
_THERE = "the hosts are there"
_SIGNALS = "INT, TERM, HUP, QUIT, USR1 and USR2 reach the ranks"
_TURNS = "a name is a slot; they are taken in turn"
#: MCA parameters, of Open MPI to 4.1 and of PRRTE, for where its launcher has ranks run
_PLACING = ("rmaps_", "hwloc_base_binding_policy", "hwloc_default_binding_policy")
#: mpirun's words for what ranks are dealt to, where ours are others
_UNITS = {"package": "socket", "cpu": "core", "block": "slot"}
#: mpirun's and Hydra's words for what ranks are bound to
_TARGETS = {word: word for word in ("none", "core", "numa", "socket")}
_TARGETS |= {"cpu": "core", "package": "socket", "board": "none", "machine": "none"}

TORCHRUN = _by_name({
    "--nnodes": Flag(_nnodes, "a range is the least and the most number of hosts"),
    "--nproc-per-node": Flag(_checked("--nproc-per-node", parse_nproc)),
    "--node-rank --group-rank": Flag(_gone, _ALL), "--signals-to-handle": Flag(_gone, _SIGNALS),
    "--master-addr --rdzv-endpoint --rdzv-backend --rdzv-id --rdzv-conf --local-addr": Flag(
        _gone, _RENDEZVOUS),
    "--master-port": Flag(_PORT), "--shutdown-timeout": Flag(_checked("--grace", parse_seconds)),
    "--standalone": Flag(_to("-H", "localhost"), "on this machine", 0),
    "--max-restarts": Flag(_count("--max-restarts", 0), "all ranks of all hosts start again"),
    "--log-dir": Flag(_to("--log-dir"), "one file a rank of the world, of all hosts, here"),
    "-r --redirects -t --tee": Flag(_gone, "every line is shown; --log-dir keeps them all"),
    "--role --monitor-interval --start-method --event-log-handler": Flag(_gone, _ALL),
    "--local-ranks-filter": Flag(_gone, "see --only-ranks, which counts over all hosts"),
    "-m --module": _switch("-m"), "--no-python": _switch("--no-python"),
    "--run-path": Flag(_refuse("name the script itself"), values=0),
    "--numa-binding": Flag(_one_of("--bind-to", {"node": "gpu", "exclusive": "core"}),
                           "node is gpu, exclusive is core; without numactl"),
    "--virtual-local-rank": Flag(_to("--devices", "rank"), "each rank sees one GPU", 0),
})  # fmt: skip

LAUNCH = TORCHRUN | {"--use-env": Flag(_gone, "LOCAL_RANK is always in the environment", 0)}

DEEPSPEED = _by_name({
    "-H --hostfile": Flag(_to("-H")), "--ssh-port": Flag(_count("--ssh-port", high=65535)),
    "-i --include": Flag(_to("--include")), "-e --exclude": Flag(_to("--exclude")),
    "--num-nodes --max-elastic-nodes": Flag(_nnodes),
    "--min-elastic-nodes": Flag(_count("--min-nodes")),
    "--num-gpus --num-accelerators": Flag(_count("--nproc-per-node")),
    "--master-addr": Flag(_to("--master-addr")), "--master-port": Flag(_PORT),
    "--node-rank": Flag(_gone, _ALL), "--launcher": Flag(_gone, _LAUNCHER),
    "--launcher-args": Flag(_refuse("dispatch import -- deepspeed ... has them as options")),
    "--module": _switch("-m"), "--no-python": _switch("--no-python"),
    "--no-local-rank": Flag(_gone, "no --local_rank is added to the script's words", 0),
    "--no-ssh --no-ssh-check --force-multi": Flag(_gone, _ALL, 0),
    "--save-pid": Flag(_gone, "dispatch jobs knows the job; dispatch kill ends it", 0),
    "--enable-each-rank-log": Flag(_to("--log-dir")), "-q --quiet": _switch("--quiet"),
    "--log-level": Flag(_gone, "-v says more, -q less"),
    "--bind-cores-to-rank": Flag(_to("--bind-to", "core"), "cores of its own, and threads", 0),
    "--bind-core-list": Flag(_gone, "by taskset -c on the host; ranks stay inside"),
    "--venv-script": Flag(_refuse("--python /path/to/venv/bin/python")),
    "--autotuning": Flag(_refuse("run the tuner by deepspeed itself")),
    "--elastic-training": Flag(_to("--max-restarts", "100"), values=0),
})  # fmt: skip

#: what ``Accelerator()`` reads goes into the environment
ACCELERATE = _by_name({
    "--num-processes": Flag(_count("--np"), "the world's size, as there"),
    "--num-machines": Flag(_nnodes), "--machine-rank": Flag(_gone, _ALL),
    "--main-process-ip": Flag(_gone, "dispatch proves an address of host 0"),
    "--main-process-port": Flag(_PORT), "-t --tee": Flag(_gone, "every line is shown"),
    "--multi-gpu --same-network": Flag(_gone, "that is how dispatch runs", 0),
    "--rdzv-backend --rdzv-conf --monitor-interval --role": Flag(_gone, _ALL),
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
    "--deepspeed-multinode-launcher": Flag(_gone, _LAUNCHER), "-m --module": _switch("-m"),
    "--no-python": _switch("--no-python"), "-q --quiet": _switch("--quiet"),
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
    "-H -host --host": Flag(_hosts, "a slot a name, unless a number says more"),
    "-hosts --hosts": Flag(_hydra_hosts, _TURNS), "-x": Flag(_export), "-timeout --timeout": _LIMIT,
    "-genv -env": Flag(lambda name, value: _export(f"{name}={value}"), values=2),
    "-genvall -envall": Flag(_gone, "exports are named one by one", 0), "-stdin --stdin -s": _STDIN,
    "-genvnone -envnone": Flag(_gone, "only what dispatch sets and -x names", 0),
    "-npernode --npernode -N -ppn -perhost --ppn": Flag(_count("--nproc-per-node")),
    "-pernode --pernode": _switch("--nproc-per-node", "1"), "-rank-by --rank-by": Flag(_rank_by),
    "-map-by --map-by": Flag(_map_by, "bound there, too, unless --bind-to says otherwise"),
    "-bynode --bynode": _switch("--map-by", "node"), "--forward-signals": Flag(_gone, _SIGNALS),
    "-byslot --byslot": _switch("--map-by", "slot"), "-q -quiet --quiet": _switch("--quiet"),
    "-rf --rankfile -rankfile": Flag(_to("--rankfile"), "as many ranks as it has places for"),
    "--cpus-per-proc --cpus-per-rank -cpus-per-proc": Flag(_refuse("--bind-to core")),
    "-bind-to --bind-to": Flag(_bind_to, "core is a share of the cores, not one of them"),
    "-report-bindings --report-bindings": _switch("--report-bindings"),
    "-oversubscribe --oversubscribe": _switch("--oversubscribe"),
    "-mca --mca --gmca -gmca --prtemca": Flag(_mca, "a variable for the library", 2),
    "--allow-run-as-root -allow-run-as-root": Flag(_gone, "nobody asks", 0),
    "-tag-output --tag-output -l -prepend-rank -nooversubscribe --nooversubscribe": Flag(
        _gone, "as dispatch does", 0),
    "-timestamp-output --timestamp-output": _switch("--timestamps"),
    "-output-filename --output-filename": Flag(_to("--log-dir")),
    "-output --output": Flag(_refuse("--log-dir DIR, --timestamps")),
    "-display-map --display-map": Flag(_gone, "--dry-run shows where ranks will run", 0),
    "-merge-stderr-to-stdout --merge-stderr-to-stdout": Flag(_gone, "write 2>&1 behind it", 0),
    "-wdir --wdir -wd": Flag(_to("--chdir")), "-iface": Flag(_to("--iface")),
    "-launcher -bootstrap -rmk": Flag(_gone, _LAUNCHER),
    "-launcher-exec -bootstrap-exec": Flag(_to("--rsh")),
    "-v -verbose --verbose -d --debug-daemons": _switch("--verbose"),
    "--prefix -prefix -path": Flag(_gone, "the ranks' PATH is the login node's; see -x PATH"),
    "-configfile --configfile --app -app": Flag(_refuse("give its lines with : between them")),
})  # fmt: skip

SRUN = _by_name({
    "-n --ntasks": Flag(_count("--np")), "-N --nodes": Flag(_count("--nnodes")),
    "--ntasks-per-node": Flag(_count("--nproc-per-node")), "-i --input": _STDIN,
    "-w --nodelist": Flag(lambda v: ("-H" if "/" in v else "-w", v)),
    "-x --exclude": Flag(lambda v: ("--exclude", "@".join(one for one, _ in split_list(v)))),
    "-D --chdir": Flag(_to("--chdir")), "--signal": Flag(_to("--signal")),
    "-t --time": Flag(lambda v: _TIME(f"{v}m" if v.isdigit() else v), "minutes there"),
    "-c --cpus-per-task": Flag(lambda _: ("--bind-to", "core"), "an equal share of the cores"),
    "--cpu-bind": Flag(_one_of("--bind-to", {
        "none": "none", "no": "none", "cores": "core", "sockets": "socket", "ldoms": "numa"})),
    "-m --distribution": Flag(_one_of("--map-by", {"block": "slot", "cyclic": "node"})),
    "--export": Flag(_variables, "docs/guides/environment.md lists the others"),
    "-O --overcommit": _switch("--oversubscribe"), "-Q --quiet": _switch("--quiet"),
    "-v --verbose": _switch("--verbose"), "-J --job-name --mpi": Flag(_gone, _OURS),
    "-l --label -u --unbuffered -K --kill-on-bad-exit": Flag(_gone, "as dispatch does", 0),
    "-o --output -e --error": Flag(_refuse("--log-dir DIR of dispatch, or > {0}")),
    "--multi-prog": Flag(_refuse("--app FILE of dispatch, a line a program"), values=0),
    "-p --partition -A --account -q --qos -C --constraint --mem --mem-per-cpu --mem-per-gpu --gres "
    "-G --gpus --gpus-per-node --gpus-per-task --reservation": Flag(_gone, _BATCH),
    "--exclusive --overlap --exact": Flag(_gone, _BATCH, 0),
})  # fmt: skip

SKY = _by_name({
    "-c --cluster -n --name": Flag(_gone, _THERE), "-y --yes": Flag(_gone, "nobody asks", 0),
    "-d --detach-run": _switch("--detach"), "--num-nodes": Flag(_nnodes), "--env": Flag(_export),
})  # fmt: skip
#: the keys of SkyPilot's tasks, and why they become what they do
TASK = {
    "name": _THERE, "resources": _THERE, "num_nodes": "", "envs": "", "run": "once on each host",
    "setup": "NOT DONE: run it before, by dispatch exec --script",
    "workdir": "NOT DONE: --sync sends this folder", "file_mounts": "NOT DONE: see dispatch put",
}  # fmt: skip
#: SkyPilot's variables as dispatch has them for one process a host
_SKYS = (
    (r'echo "?\$\{?SKYPILOT_NODE_IPS\}?"? *\| *head -n ?1\b', "echo $MASTER_ADDR"),
    (r"\bSKYPILOT_NODE_RANK\b", "NODE_RANK"), (r"\bSKYPILOT_NUM_NODES\b", "NNODES"),
    (r"\bSKYPILOT_NUM_GPUS_PER_NODE\b", "NPROC_PER_NODE"),
)  # fmt: skip

#: DeepSpeed's launchers whose own words are known
_THROUGH = dict.fromkeys(("openmpi", "mpich", "impi"), MPIRUN) | {"slurm": SRUN}

#: variables that launchers themselves read
SETTINGS = _by_name({
    "PYTHON_EXEC": Flag(_to("--python")), "MPIEXEC_TIMEOUT": _LIMIT,
    "DS_ENV_FILE": Flag(_to("--env-file"), "if it has a $ in it, export DS_ENV_FILE instead"),
    "PDSH_SSH_ARGS PDSH_SSH_ARGS_APPEND": Flag(_ssh_args),
    "PDSH_RCMD_TYPE HYDRA_LAUNCHER HYDRA_BOOTSTRAP HYDRA_RMK": Flag(_gone, _LAUNCHER),
})  # fmt: skip

_TABLES = {
    "torchrun": TORCHRUN, "deepspeed": DEEPSPEED, "accelerate launch": ACCELERATE,
    "mpirun": MPIRUN, "srun": SRUN,
}  # fmt: skip

_torchrun_line = partial(_script_line, who="torchrun", table=TORCHRUN, one_rank=True)

_LAUNCHERS: dict[str, Callable[[Sequence[str], ReadFile | None], Line]] = {
    "torchrun": _torchrun_line, "torch.distributed.run": _torchrun_line,
    "torch.distributed.launch": partial(
        _script_line, who="torch.distributed.launch", table=LAUNCH, one_rank=True,
        local_rank=("--local-rank", "--use-env")),
    "deepspeed": _deepspeed_line, "ds": _deepspeed_line, "accelerate": _accelerate_line,
    "srun": _srun_line, "sky": _sky_line,
    **dict.fromkeys(
        ("mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi",
         "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"), _mpirun_line),
}  # fmt: skip
