"""Other launchers' command lines as dispatch's: ``translate(["torchrun", ...])``. Pure.

``compat_flags`` has a translation for each flag. A flag that is not there is an error, never
dropped in silence: a job that ignores half of its options looks as if it had run.
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
from dispatcher.model.names import quoted
from dispatcher.plan import compat_flags as tables
from dispatcher.plan.compat_flags import Flag, ReadFile, export, gone, hydra_file, nnodes, switch
from dispatcher.plan.job.node_launchers import NAMES


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
#: Hydra's variables for all programs
_FOR_ALL = ("-genv", "-genvlist")
#: where Open MPI has hosts, and Hydra the number of ranks of each
_FILES = ("-hostfile", "--hostfile", "-machinefile", "--machinefile")
_LISTS = {"-H", "-host", "--host"}
_EACH = {"-ppn", "-perhost", "--ppn"}
_APP_FILES = ("-configfile", "--configfile", "--app", "-app")


def translate(words: Sequence[str], read: ReadFile | None = None, pythonpath: str = "") -> Line:
    """The dispatch command line that does what ``words`` do.

    ``read`` reads the files that they name; ``pythonpath`` is the user's own. Variables may come
    before the launcher, as for a shell or ``env``. Raises: UsageError for a launcher or a flag that
    is not known, or cannot be met.
    """
    variables, words = split_variables(words)
    name, rest = _launcher(words)
    if name not in _LAUNCHERS:
        known = ", ".join(key for key in _LAUNCHERS if "." not in key)
        raise CannotTranslate(f"not a launcher that dispatch knows: {name!r}; known: {known}")
    told: list[Reason] = []
    named: list[str] = []  # for mpirun, which gives them to each of its programs
    for one in variables:
        key, _, value = one.partition("=")
        flag = tables.SETTINGS.get(key) or Flag(lambda v, k=key: export(f"{k}={v}"))
        if key.startswith("PET_") and "torch" in name:
            option = "--" + key[4:].lower().replace("_", "-")
            is_switch = option in tables.TORCHRUN and not tables.TORCHRUN[option].values
            more = [option] * (value != "0") if is_switch else [f"{option}={value}"]
            rest, flag = [*more, *rest], Flag(gone, f"as {' '.join(more)} of torchrun")
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
    return _launcher(split_variables(words)[1])[0] in _LAUNCHERS


def split_variables(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
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
    glued = tables.SRUN.get(name[:2], switch())  # -N2
    if flag is None and table is tables.SRUN and glued.values:
        return replace(_first([name[:2], words[0][2:]], table, who), written=(words[0],))
    if flag is None:
        raise CannotTranslate(f"{who}: {name}: not known here", hint="leave it out and ask again")
    if equals and flag.values != 1 and flag.becomes is not gone:
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
    return Reason(written, tuple(became), flag.why or ("" if became else tables.OURS))


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
    for who, table in tables.BY_LAUNCHER.items():
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
         "a lost host counts as a restart for dispatch, not for torchrun"),
        (one_rank, "--nproc-per-node", "1", "torchrun's default; leave it out for a rank per GPU"),
        (named and switch not in _given(words, table), "--local-rank-arg", named,
         f"{who} gives scripts {named}=N; leave it out if yours does not take it"),
    )  # fmt: skip
    added = [Reason((), (n, v), why) for wanted, n, v, why in usual if wanted and n not in options]
    options += [word for reason in added for word in reason.words]
    if ":" in rest or rest[0][:1] == "-" != rest[0]:
        options.append("--")  # else a : would separate two programs
    return Line(tuple(options), tuple(rest), (*reasons, *added))


def _accelerate_line(words: Sequence[str], _: ReadFile | None) -> Line:
    if not words or words[0] != "launch":
        raise CannotTranslate("accelerate: only its launch command starts ranks")
    return _script_line(words[1:], who="accelerate launch", table=tables.ACCELERATE)


def _deepspeed_line(words: Sequence[str], _: ReadFile | None) -> Line:
    launcher = _given(words, tables.DEEPSPEED).get("--launcher", "pdsh")

    def through(text: str) -> Sequence[str]:
        options, rest, _ = _read(shlex.split(text), tables.THROUGH.get(launcher, {}), launcher)
        if rest:
            raise CannotTranslate(f"{launcher}: {rest[0]}: not known here")
        return options

    table = tables.DEEPSPEED | {"--launcher-args": Flag(through)}
    local_rank = ("--local_rank", "--no-local-rank")
    return _script_line(words, who="deepspeed", table=table, local_rank=local_rank)


def _srun_line(words: Sequence[str], _: ReadFile | None) -> Line:
    options, rest, reasons = _read(words, tables.SRUN, "srun")
    how, what = program(rest, "srun")
    return Line((*options, *how), tuple(what), tuple(reasons))


def _sky_line(words: Sequence[str], read: ReadFile | None) -> Line:
    """A task of SkyPilot: its ``run``, by bash, once on each host."""
    _, rest, reasons = _read(words[1:], tables.SKY, "sky")
    if words[:1] not in (["launch"], ["exec"]) or len(rest) != 1 or read is None:
        raise CannotTranslate("sky: only a file of a task", hint="sky launch task.yaml")
    task = dict(re.findall(r"^(\w+):(.*(?:\n(?:[ \t].*)?)*)", read(rest[0]), re.MULTILINE))
    head, _, body = task.get("run", "").partition("\n")
    import textwrap  # each run loads this module

    run = textwrap.dedent(body).rstrip() if head.strip() in ("|", "|-") else head.strip()
    for form, ours in tables.SKY_VARIABLES:
        run = re.sub(form, ours, run)
    for word in ("SKYPILOT_", *(f"{{{name}}}" for name in NAMES), *(task.keys() - tables.TASK)):
        if not run or run[0] in ">|\"'" or word in run or word in task:
            raise CannotTranslate(f"{rest[0]}: {word if run else 'run'}: cannot be met by dispatch")
    for key, text in task.items():
        became = ["--per-node", "--no-python"] if key == "run" else []
        if key == "num_nodes" and "--num-nodes" not in _given(words[1:], tables.SKY):
            became = [*nnodes(text.partition("#")[0].strip())]
        for name, value in re.findall(r"^[ \t]+(\w+):(.*)", text * (key == "envs"), re.MULTILINE):
            became += export("=".join([name, *shlex.split(value, comments=True)]))
        reasons.append(Reason((f"{key}:",), tuple(became), tables.TASK[key]))
    options = (word for one in reasons for word in one.words)
    return Line(tuple(options), ("bash", "-c", run), tuple(reasons))


def _mpirun_line(words: Sequence[str], read: ReadFile | None) -> Line:
    words = _with_file(list(words), read)
    colons = [-1, *(at for at, word in enumerate(words) if word == ":"), len(words)]
    parts = [words[one + 1 : other] for one, other in pairwise(colons)]
    table = tables.MPIRUN
    for flags in [_given(part, tables.MPIRUN) for part in parts]:
        if _LISTS.intersection(flags):  # of Open MPI
            picks = Flag(gone, "-host picks some of its hosts, a slot a name")
            table = table | dict.fromkeys(_FILES, picks)
        if _EACH.intersection(flags):
            table = table | {"-hosts": tables.MPIRUN["-f"]}
        elif len(parts) == 1:
            table = table | {"-f": Flag(partial(hydra_file, read), tables.TURNS)}
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
    """``words`` with the lines of ``-configfile`` or ``--app`` in their place, a program each.

    A program's own ``--app`` stays.
    """
    named = [flag for flag in _given(words, tables.MPIRUN) if flag in _APP_FILES]
    at = words.index(named[0]) if named and named[0] in words else len(words)
    if read is None or at + 1 >= len(words):
        return words
    found: list[str] = []
    for line in read(words[at + 1]).replace("\\\n", " ").splitlines():
        try:
            told = shlex.split(line, comments=True)
        except ValueError as error:
            why = f"{str(error).lower()}: {quoted(line)}"
            raise CannotTranslate(f"{words[at]} {words[at + 1]}: {why}") from None
        found += [":", *told] if found and told else told
    return [*words[:at], *found, *words[at + 2 :]]


_torchrun_line = partial(_script_line, who="torchrun", table=tables.TORCHRUN, one_rank=True)

_LAUNCHERS: dict[str, Callable[[Sequence[str], ReadFile | None], Line]] = {
    "torchrun": _torchrun_line, "torch.distributed.run": _torchrun_line,
    "torch.distributed.launch": partial(
        _script_line, who="torch.distributed.launch", table=tables.LAUNCH, one_rank=True,
        local_rank=("--local-rank", "--use-env")),
    "deepspeed": _deepspeed_line, "ds": _deepspeed_line, "accelerate": _accelerate_line,
    "srun": _srun_line, "sky": _sky_line,
    **dict.fromkeys(
        ("mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi",
         "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"), _mpirun_line),
}  # fmt: skip
