"""Hints for command lines that cannot be right, or that hosts reject: the word that was meant.

One rule for an option, command, host, file or value that is unknown: the tables of other
launchers' names are asked first (``FOREIGN``, ``plan.compat``), then the nearest known name. A hint
is a short piece to paste. It repeats no value but numbers, hosts and names, so it holds no secret.

Only certain mistakes are refused before hosts are touched: a script need not be on this machine.
``Advice`` answers at the end for a trouble as the verdict names it: a kind of failure (``name not
found``), an agent's finding (``no script``), or a fan-out command's end (``exit code 127``).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from dispatcher.api.request import cwd_of, is_program
from dispatcher.cli import COMMANDS, object_at, say
from dispatcher.cli.options.declaration import NotAChoice, declared
from dispatcher.cli.options.host_options import only_typed
from dispatcher.cli.options.option_defaults import origin, typed
from dispatcher.cli.options.removed import removed
from dispatcher.model import errors
from dispatcher.model.errors import NotAScript, UnknownCommand, UnknownOption, UsageError
from dispatcher.model.failure import Kind
from dispatcher.model.names import nearest, quoted
from dispatcher.plan.variables import HIDDEN, is_secret

if TYPE_CHECKING:
    from dispatcher.cli.exec.exec import ExecOptions
    from dispatcher.cli.options.host_options import HostOptions
    from dispatcher.cli.run.run import RunOptions

#: other launchers' names for our options; ``plan.compat`` has more
FOREIGN = {
    "gpus": "nproc-per-node", "gpus-per-node": "nproc-per-node", "host": "hosts",
    "main-process-ip": "master-addr", "nodelist": "hosts",
    "nodes": "nnodes", "nproc": "nproc-per-node", "ntasks": "np",
    "ntasks-per-node": "nproc-per-node", "slots": "nproc-per-node",
    "timeout": "time-limit command-timeout",
}  # fmt: skip
#: options of pdsh and clush that dsx has not -> what to do
_PDSH_CLUSH = {
    **{name: f"without {name}" for name in
       ("-G", "-M", "-i", "--axis", "--groupbase", "--regroup", "--remote")},
    "-A": "-a", "-Q": "-q", "-d": "-v", "-k": "--max-fail 1", "--topology": "--fanout-tree",
    "-j": "-w \"$(squeue -hj JOB -o %N)\"", "-m": "--sudo, for clush's -m sudo",
    **dict.fromkeys(("-s", "--groupsource"), "-w @SOURCE:GROUP, for clush's -s SOURCE -g GROUP"),
    **dict.fromkeys(("-O", "--option"), "dispatch config --help  # where defaults are kept"),
    "--conf": "DISPATCH_CONFIG=FILE dsx ...  # a dispatch.toml",
    "--groupsconf": "CLUSTERSHELL_CFGDIR=DIR dsx ...", "--options": "--ssh-config FILE",
}  # fmt: skip
#: options of scp, pdcp and rsync; ``put`` and ``get`` always behave so
NEEDLESS = {
    "-a": "folders are copied whole, with modes and times, anyway",
    "-r": "folders are copied whole anyway",
    "--archive": "folders are copied whole, with modes and times, anyway",
    "--recursive": "folders are copied whole anyway",
}
#: other tools' names for our commands
_ELSEWHERE = {
    "cancel": "stop", "copy": "put", "disconnect": "connect --close", "download": "get",
    "fetch": "get", "history": "jobs -a", "list": "jobs", "log": "logs", "nodes": "hosts",
    "ps": "jobs", "pull": "get", "push": "put", "queue": "jobs", "scancel": "stop",
    "squeue": "jobs", "ssh": "exec", "start": "run", "status": "jobs", "submit": "run",
    "upload": "put", "validate": "check",
}  # fmt: skip
#: command -> the one that does the same on hosts of a list
_AKIN = {"kill": "sweep", "stop": "sweep"}
#: launchers of batch systems, which are not translated: dispatch reads their allocation itself
_STEPS = ("aprun", "jsrun", "prun", "srun")
_HOSTS = ("-H", "--hostfile", "-w", "--hosts")
_PYTHON = re.compile(r"python[0-9.]*\Z")
_BARE = re.compile(r"[A-Za-z0-9][\w.-]*\Z")
_NUMBER = re.compile(r"[0-9]+")
#: characters that a shell interprets, and that no program's name has
_SHELL = frozenset(" \t\n;|&*$<>`")
#: characters that a shell interprets (POSIX.1-2017, XCU 2.2), though a name may have them
_QUOTED = _SHELL | frozenset("()\\\"'?[~")
#: an operator of a shell, a variable, or a path with wildcards
_FOR_SHELL = re.compile(
    r"[0-9]?[|&;<>]+[0-9]?|\$\{?[A-Za-z_]\w*\}?|~?[\w./-]*/[\w.-]*[*?][\w.*?-]*"
)
#: commands that only a shell has
_BUILTINS = frozenset({
    ".", "alias", "bg", "cd", "eval", "exec", "exit", "export", "fg", "hash", "jobs", "read", "set",
    "shift", "source", "trap", "type", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
#: click's errors as ours; the first that fits counts
_KINDS: dict[type[click.ClickException], type[UsageError]] = {
    click.MissingParameter: errors.MissingArgument,
    click.BadParameter: UsageError,
    click.UsageError: errors.UnexpectedArgument,
}
#: comment after a guess
MEANT = "  # did you mean this?"
_EVERYWHERE = "or a folder that every host has: --chdir DIR"
_UNQUOTED = "without the quotes"
#: how ``exec`` takes text for a shell
_AS_SHELL_TEXT = "--shell '...'  # the whole command, in quotes"


def explained(error: click.ClickException, shown_name: str) -> UsageError:
    """``error`` in our words, with a hint. shown_name: ``dispatch exec``, for example."""
    help_line = f"{shown_name} --help"
    match error:
        case click.NoSuchOption(ctx=click.Context() as context):
            return _no_such_option(error.option_name, context, help_line)
        case NotAChoice(ctx=click.Context() as context, param=click.Parameter() as parameter):
            with context.scope():
                return _not_a_choice(error, parameter, help_line)
        case click.BadOptionUsage():
            what = "takes no value" if "does not take" in error.message else "needs a value"
            return UsageError(f"{error.option_name}: {what}", hint=help_line)
    text = error.format_message().rstrip(".")
    kind = next((ours for theirs, ours in _KINDS.items() if isinstance(error, theirs)), UsageError)
    return kind(text[:1].lower() + text[1:], hint=help_line)


def _no_such_option(name: str, context: click.Context, help_line: str) -> UsageError:
    if gone := removed(name):
        return UnknownOption(gone)
    command, ours, why = context.command.name or "", _names(context.command), "no such option"
    if command in ("get", "put") and name in NEEDLESS:
        return UnknownOption(f"{name}: {why}: {NEEDLESS[name]}", hint=f"without {name}")
    if command == "dsx" and name in _PDSH_CLUSH:
        return UnknownOption(f"{name}: {why} here", hint=_PDSH_CLUSH[name])
    known = FOREIGN.get(name[2:].replace("_", "-"), "") if name.startswith("--") else ""
    near = next((f"--{one}" for one in known.split() if f"--{one}" in ours), None)
    if near is None:
        if hint := _translated(name, context):
            return UnknownOption(f"{name}: {why}", hint=hint)
        # the short name of another command's option may be ours by its long name
        there = [(one, names[name]) for one, names in _elsewhere(command) if name in names]
        fields = [field for _, field in there] if len(name) == 2 else []
        long = [one for one in ours if one.startswith("--")]
        near = next((one for one in long if ours[one] in fields), None)
        if near is None and there:
            takers = [taker for taker, _ in there]
            takers = [_AKIN[command]] if _AKIN.get(command) in takers else takers[:2]
            others = " and ".join(f"dispatch {taker}" for taker in takers)
            have = "has" if len(takers) == 1 else "have"
            return UnknownOption(f"{name}: {why} here; {others} {have} it", hint=help_line)
        near = near or (nearest(name, long) if len(name) > 2 else None)
        if near is not None:  # which may say the opposite, or be a flag where a value stands
            flags = [one for param in context.command.params for one in param.opts
                     if getattr(param, "is_flag", False)]  # fmt: skip
            valued = any(word.startswith(f"{name}=") for word in context.obj or ())
            turned = name.startswith("--no") != near.startswith("--no")
            near = None if turned or (valued and near in flags) else near
    if near is None:
        return UnknownOption(f"{name}: {why}", hint=help_line)
    return UnknownOption(f"{name}: {why}", hint=_valued(name, near, context.obj or ()) + MEANT)


def _names(command: click.Command) -> dict[str, str]:
    """Name -> field of all options of ``command``."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {name: param.name or "" for param in options for name in param.opts}


def _elsewhere(but: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Every other command, and the name -> field of its options."""
    for command, (kind, _) in COMMANDS.items():
        if command not in (but, "dsx", "again"):  # which have those of exec and run
            options = [one.parameter(field) for field, one in declared(object_at(kind)).items()]
            yield command, _names(click.Command(command, params=options))


def _valued(name: str, new: str, words: Sequence[str]) -> str:
    """The option ``new``, with the value that ``name`` has in ``words`` if that is a number."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == name:
            value = value if equals else "".join(words[at + 1 : at + 2])
            return f"{new} {value}" if value.isdecimal() else new
    return new


def _translated(name: str, context: click.Context) -> str | None:
    """Another launcher's option ``name`` in the words of ``run``; None if no launcher has it."""
    words = list(context.obj or ())
    flags = [word.partition("=")[0].replace("_", "-") for word in words]
    if context.command.name != "run" or name not in flags:
        return None
    from dispatcher.plan import compat  # for mistakes only

    try:
        found = compat.of_launcher(words[flags.index(name) :])
    except UsageError as error:
        return error.hint
    if found is None or any(value[:1] == "-" for value in found.written[1:]):
        return None
    behind = words[flags.index(name) + 1 :]
    if len(name) == 2 and len(found.written) == 1 and behind and behind[0][:1] != "-":
        return None  # it may have a value
    words = [hidden(word) if " " not in word else "..." for word in found.words]
    new = shlex.join(words) or f"without {name}"
    return f"{new}  # {found.why}" if found.why else new + MEANT


def _not_a_choice(error: NotAChoice, parameter: click.Parameter, help_line: str) -> UsageError:
    if gone := removed(parameter.opts[-1], error.value):
        return UnknownOption(gone)
    place = origin(parameter.name or "")
    option = "" if isinstance(parameter, click.Argument) else parameter.opts[-1]
    who = place or option or help_line.split()[1]
    why = f"{who}: {quoted(error.value)} is not one of: {', '.join(error.choices)}"
    near = nearest(error.value, error.choices)
    if option == "--worker":
        return UsageError(why, hint="--rsh COMMAND  # for other ways than ssh")
    if near is None:
        hint = option and _translated(option, click.get_current_context())
        return UsageError(why, hint=hint or help_line)
    return UsageError(why, hint=f"{'' if place else option} {near}{MEANT}".strip())


def hidden(word: str) -> str:
    """``word``, but only the name if it is a variable whose name looks like a secret's."""
    found = re.match(r"([A-Za-z_][A-Za-z0-9_]*)=", word)
    return f"{found[0]}{HIDDEN}" if found and is_secret(found[1]) else word


def check_command(name: str) -> None:
    """Check that ``name`` is a command. Raises: UsageError."""
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"{near}{MEANT}" if near else f"known: {', '.join(COMMANDS)}"
        raise UnknownCommand(f"{quoted(name)}: no such command", hint=hint)


def near_command(words: Sequence[str]) -> str | None:
    """The command that the first of ``words`` may be a slip of, if the line begins with them."""
    context = click.get_current_context()
    if not words or context.info_name != "dispatch" or context.obj[:1] != (words[0],):
        return None
    near = _ELSEWHERE.get(words[0]) or nearest(words[0], COMMANDS)
    return f"dispatch {near}" if near and not os.path.lexists(words[0]) else None


def no_hosts(words: Sequence[str]) -> UsageError | None:
    """The mistake in ``words`` where no hosts are given; None if there is no other."""
    if not words and not click.get_current_context().obj:
        return UsageError(
            "no hosts given, and no program", hint="dispatch -h  # examples, and all commands"
        )
    if near := near_command(words):
        why = f"{quoted(words[0])}: no such command or script in this folder"
        return UnknownCommand(why, hint=near)
    for at, word in enumerate(words[1:-1], 1):
        if word in _HOSTS:
            why = f"no hosts: {word} comes after the program, so the program gets it"
            return NotAScript(why, hint=_begun(words, word, words[at + 1]))
    return None


def last_list(options: HostOptions) -> str | None:
    """The text that names hosts on the command line, the last if there are several."""
    if options.lists and typed("lists"):
        return options.lists[-1]
    return options.hostfile[-1] if options.hostfile and typed("hostfile") else None


def neighbours(words: Sequence[str], options: HostOptions) -> str | None:
    """The list in which the first of ``words`` are hosts, too: a blank is there for a comma."""
    listed = last_list(options)
    if not listed or os.path.lexists(listed):
        return None
    series = {_shape(host) for host in re.split(r",(?![^\[]*\])", listed)} - {""}
    found = [listed.strip(",")]
    for word in words:
        if _shape(word.strip(",")) not in series or os.path.lexists(word):
            break
        found.append(word.strip(","))
    return shlex.join(["-w", ",".join(found)]) if len(found) > 1 else None


def _shape(word: str) -> str:
    """The pattern of a series of names: ``n0-0`` for ``n07-1``; "" without a number."""
    return _NUMBER.sub("0", word) if _NUMBER.search(word) else ""


def script(words: Sequence[str], run: RunOptions) -> None:
    """Refuse ``words``, a script of Python and its arguments, if the first cannot be a script."""
    name, folder = words[0], cwd_of(run.chdir)
    here = os.path.lexists(os.path.join(folder, name))
    usual = run.python is None and run.chdir is None
    if here and not (usual and is_program(name)):
        return
    _launcher(words, run)
    if not here:
        _variables(words)
    if _PYTHON.match(os.path.basename(name)):
        why = "not a script: dispatch itself starts scripts with Python"
        raise NotAScript(f"{quoted(name)}: {why}", hint=_bare(words))
    if hint := neighbours(words, run):
        why = "a host, not a script: put commas between the hosts of a list"
        raise NotAScript(f"{quoted(name)}: {why}", hint=hint)
    first, *rest = _split(name)
    path = os.path.join(folder, first)
    if rest and not here and (os.path.isfile(path) or first.endswith(".py") > name.endswith(".py")):
        raise _one_word(name, "script", _UNQUOTED)
    from shutil import which  # 2 ms, and few command lines come here

    if here or ("/" not in name and usual and which(name)):
        raise _no_script(words)
    near = None if {"/", "."} & set(name) else near_command(words)
    if near is not None:
        hint = f"{near}  # or, if the hosts have such a script: dispatch run {name}"
        raise UnknownCommand(f"{quoted(name)}: no such command or script in this folder", hint=hint)


def module(words: Sequence[str]) -> None:
    """Refuse ``words``, a module and its arguments, if the name holds arguments as well."""
    if _SHELL.intersection(words[0]):
        raise _one_word(words[0], "module", _UNQUOTED)


def command(words: Sequence[str]) -> None:
    """Refuse ``words``, a program and its arguments, if the first is text for a shell."""
    if is_shell_text(words[0]):
        raise _one_word(words[0], "program", _apart(words[0]))
    if not os.path.lexists(words[0]):
        _variables(words, as_is=True)


def exec_words(words: Sequence[str]) -> None:
    """Refuse ``words``, a program and its arguments, if the first is text for a shell; of the
    others name one that seems to be.
    """
    if is_shell_text(words[0]):
        raise _one_word(words[0], "program", _AS_SHELL_TEXT)
    if word := next(filter(_FOR_SHELL.fullmatch, words[1:]), None):
        say(f"note: {quoted(word)} is sent unchanged; for the host's shell: --shell '...'")


def _apart(word: str) -> str:
    """How a user can run ``word``, which is text for a shell, in a run."""
    plain = not _SHELL.intersection(word).difference(" ") and "=" not in word
    return _UNQUOTED if plain else "--no-python sh -c '...'"


def is_quoted(word: str) -> bool:
    """Whether ``word``, the whole command, is text for the shells of hosts."""
    return bool(word.strip() and _QUOTED.intersection(word))


def is_shell_text(word: str, *, surely: bool = True) -> bool:
    """Whether ``word`` is text for a shell rather than the name of a program.

    surely: a path may hold anything, so a word that starts as one is left to the hosts.
    """
    return bool(word.strip() and _SHELL.intersection(word)) and not (
        surely and "/" in _split(word)[0]
    )


def _launcher(words: Sequence[str], run: RunOptions) -> None:
    """Refuse another launcher as the first of ``words``."""
    from dispatcher.plan import compat

    step = os.path.basename(words[0]) in _STEPS
    if not step and not compat.is_known(words):
        return
    if run.per_node:
        raise _no_script(words)
    hint = f"dispatch import -- {_begun(words)}  # prints the line for dispatch"
    if step:
        hint = f"without {words[0]}  # --transport slurm has srun start the ranks"
    raise NotAScript(
        f"{quoted(words[0])}: another launcher: dispatch starts the ranks itself", hint=hint
    )


def _no_script(words: Sequence[str]) -> UsageError:
    hint = _begun(words, "--no-python")
    return NotAScript(f"{quoted(words[0])}: a program, not a Python script", hint=hint)


def _variables(words: Sequence[str], *, as_is: bool = False) -> None:
    """Refuse variables before a program, as for a shell. as_is: --no-python is there."""
    if "=" not in words[0] and words[0] != "env":
        return
    from dispatcher.plan.compat import split_variables

    found, rest = split_variables(words)
    if found and rest and words[0] != "env" and not any(map(_SHELL.intersection, found)):
        exports = [word for one in found for word in ("-x", hidden(one))]
        hint = _begun(rest, *exports) if as_is else _bare(rest, *exports)
        why = "a variable for a shell, and no program"
        raise NotAScript(f"{quoted(hidden(words[0]))}: {why}", hint=hint)


def _bare(words: Sequence[str], *more: str) -> str:
    """The program of ``words`` without the Python that they may start with. more: options."""
    from dispatcher.plan.compat import program

    before, rest = ([], list(words)) if words[0].endswith(".py") else program(words, words[0])
    if before[:1] == ["--python"] and before[1] in ("python", "python3"):
        before = before[2:]  # the one that the user's shell finds is the one we take
    return _begun(rest, *more, *before)


def _begun(words: Sequence[str], *options: str) -> str:
    """``options`` and the first of ``words``; ``...`` for the others."""
    return shlex.join([*options, words[0]]) + (" ..." if words[1:] else "")


def _one_word(word: str, what: str, hint: str) -> UsageError:
    return NotAScript(f"{quoted(word)}: one word, read as the name of a {what}", hint=hint)


def _split(word: str) -> list[str]:
    """The words that a shell would see in ``word``."""
    try:
        return shlex.split(word) or [word]
    except ValueError:
        return word.split() or [word]


class Advice:
    """Hints for the command line whose options are ``options``."""

    def __init__(self, options: HostOptions) -> None:
        self._options = options

    def __call__(self, trouble: str) -> str | None:
        """The advice about ``trouble``; None if this machine knows nothing of it."""
        if trouble == Kind.DNS.value:
            return _no_such_host(only_typed(self._options))
        from dispatcher.cli.exec.exec import ExecOptions
        from dispatcher.cli.run.run import RunOptions
        from dispatcher.output.exec.host_results import NOT_STARTED

        options = self._options
        if isinstance(options, RunOptions):
            if trouble in ("no script", "cwd"):
                return _not_there(options, trouble == "cwd")
            if options.no_python and options.app is None and ":" not in options.words:
                return _not_run(options, trouble)
        elif isinstance(options, ExecOptions):
            if trouble == "exit code 127":
                return _not_found(options)
            file = options.failed_to or options.retry_failed
            if trouble == NOT_STARTED and file:
                again = f"--retry-failed {shlex.quote(file)}"
                return f"{again}  # in place of the hosts: goes on with these"
        return None


def _no_such_host(options: HostOptions) -> str | None:
    """A hint for a name that may have been meant for a file of hosts, or for another host."""
    name, lists = next(iter(options.hostfile), None), options.lists
    if not name and len(lists) == 1 and os.path.isfile(lists[0]):
        return f"-H {shlex.quote(lists[0])}  # it is a file, and -w takes lists"
    is_name = name is not None and _BARE.match(name) and not os.path.lexists(name)
    if name and is_name and (near := _near_file(name, ".")):
        return f"-H {shlex.quote(near)}  # there is no such file; did you mean this?"
    known = object_at("tools.completion:known_hosts")(getattr(options, "ssh_config", None))
    for host in (one for text in filter(None, (name, *lists)) for one in text.split(",")):
        near = nearest(host, known) if _BARE.match(host) and host not in known else None
        if near is not None:
            return f"{near}  # ssh knows this name; did you mean it?"
    return f"getent hosts {name}  # and there is no such file" if is_name else None


def _not_run(options: RunOptions, trouble: str) -> str | None:
    """A hint for the one program of ``--no-python``, which hosts lack or may not execute."""
    word = options.words[0]
    path = os.path.join(cwd_of(options.chdir), word)
    if trouble == "not executable" and os.path.isfile(path) and not os.access(path, os.X_OK):
        return f"chmod +x {shlex.quote(word)}  # and on hosts that have their own copy"
    if trouble != "missing":
        return None
    if is_shell_text(word, surely=False):
        return _apart(word)
    if "/" in word:
        return _not_there(options, folder_missing=False)
    if os.path.isfile(path):
        return f"--no-python ./{shlex.quote(word)}  # without ./ it is looked for in PATH"
    return None


def _not_there(options: RunOptions, folder_missing: bool) -> str | None:
    """A hint for a script, a program or the folder of all that hosts do not have."""
    _, several = object_at("run.parts:split")(options, lambda program: None)
    path, folder = "", ""
    for one in [part.options for part in several] or [options]:
        folder = cwd_of(one.chdir)
        path = os.path.join(folder, one.words[0])
        if not os.path.isdir(folder):
            return "--chdir DIR  # there is no such folder here either"
        is_path = "/" in one.words[0] if one.no_python else not one.module
        if is_path and not os.path.lexists(path):
            return _absent(one.words, path, "program" if one.no_python else "script")
    path, here = os.path.normpath(folder if folder_missing else path), cwd_of(None)
    whole = (os.path.expanduser("~"), "/")
    if path in whole or "{" in path:
        return "--chdir DIR  # a folder that every host has"
    if here not in whole and os.path.commonpath([path, here]) == here and options.sync is None:
        return f"--sync  # {_EVERYWHERE}"
    words = shlex.join([path, os.path.join(os.path.dirname(path), "")])
    return f"dispatch put HOSTS {words}  # {_EVERYWHERE}"


def _absent(words: tuple[str, ...], path: str, what: str) -> str:
    """A hint for a file, a script or program (``what``), that is not on this machine either."""
    folder, name = os.path.split(path)
    absent = f"no such {what} here either"
    if near := _near_file(name, folder):
        found = shlex.quote(os.path.join(os.path.dirname(words[0]), near))
        return f"{found}  # {absent}; did you mean this?"
    if near := near_command(words):
        return f"{near}  # {absent}; did you mean this?"
    if "/" not in words[0] and not words[0].endswith(".py"):
        return f"{_begun(words, '--no-python')}  # {absent}; if it is a program"
    return f"ls {shlex.quote(os.path.normpath(folder))}  # {absent}: {words[0]}"


def _not_found(options: ExecOptions) -> str | None:
    """A hint for a command of ``exec`` that no host has, when it was meant otherwise."""
    words = options.words
    quoted = len(words) == 1 and is_quoted(words[0])
    if not words or quoted or options.script is not None:
        return None  # --shell, words that are not the user's, or a shell that has named it
    for_shell = is_shell_text(words[0], surely=False) or words[0] in _BUILTINS or "=" in words[0]
    if for_shell and not options.joined:
        return _AS_SHELL_TEXT
    return neighbours(words[:-1], options)


def _near_file(name: str, folder: str) -> str | None:
    """The file in ``folder`` that ``name`` may have been meant for."""
    try:
        near = nearest(name, os.listdir(folder or "."))
    except OSError:
        return None
    return near if near and os.path.isfile(os.path.join(folder, near)) else None
