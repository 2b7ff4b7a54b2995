"""Completion in bash, zsh and fish: ``dispatch completion SHELL`` prints the script for a shell.

click asks every parameter what may follow (``words_for``). The names come from the declarations,
ssh's own files, the hostfile in the line, ClusterShell's groups and the registry of jobs; no host
is touched. Two of click's scripts do not serve lists of hosts: bash's cuts words at ``=`` and
``@``, fish's ends a value at its first comma. None completes ``dsx`` as well.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load_command
from dispatcher.cli.help import PURPOSES
from dispatcher.cli.options.declaration import Options, argument
from dispatcher.cli.options.spelling import bare_of
from dispatcher.model.paths import open_regular

#: signs that a shell would interpret: a name with one, which a folder's file may have, is not
#: offered
_LIVE = re.compile(r"[\s;&|<>()$`\\\"'#!*?~]")
#: marks the end of the typed text
_CURSOR = "\0"


class _Shell(ShellComplete):
    """The common part of the three shells: the command, and options as ``--name=value``."""

    def source(self) -> str:
        """The script; click's own way starts bash to learn its version."""
        return self.source_template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one at the cursor, less ``dispatch``, and that one as typed so far.

        ``_DISPATCH_LINE``: the line up to the cursor, by bash and by scripts that are installed.
        """
        line = os.environ.get("_DISPATCH_LINE")
        if line is None:
            words, typed = super().get_completion_args()
            program, *_ = [*split_arg_string(os.environ["COMP_WORDS"]), ""]
        else:
            program, *words = split_arg_string(line + _CURSOR)
            typed = words.pop().removesuffix(_CURSOR) if words else ""
        return ["dsx", *words] if os.path.basename(program) == "dsx" else words, typed

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """The words that are possible after ``args``."""
        if args[:1] == ["help"]:
            return _begun(_commands(), incomplete) if len(args) == 1 else []
        if not args and not incomplete.startswith("-"):
            helping = CompletionItem("help", help="Show all commands, or all about one.")
            return [
                CompletionItem(incomplete, "file"), *_begun([*_commands(), helping], incomplete)
            ]  # fmt: skip
        name = args[0] if args and args[0] in COMMANDS else ""
        self.cli = load_command(name or "run")
        args, bare = args[bool(name) :], bare_of(self.cli)
        last = args[-1].replace("_", "-") if args else ""
        if last in bare:  # the next word is not its value
            args[-1] = f"{last}={bare[last]}"
        found = super().get_completions(args, incomplete)
        found = [one for one in found if not _LIVE.search(one.value.removeprefix(incomplete))]
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for one in found:
                one.value = option + equals + one.value
        return found


class _Bash(_Shell, BashComplete):
    source_template = r"""_dispatch_completion() {
    local kind value files=
    COMPREPLY=()
    while IFS=, read -r kind value; do
        if [ "$kind" = plain ]; then COMPREPLY+=("$value"); else files=$kind; fi
    done < <(_DISPATCH_COMPLETE=bash_complete _DISPATCH_LINE="${COMP_LINE:0:COMP_POINT}" \
        _DISPATCH_WORD="$2" "$1" 2>/dev/null)
    case $files in
        dir) compopt -o filenames; while IFS= read -r value; do COMPREPLY+=("$value")
            done < <(compgen -d -- "$2") ;;
        file) compopt -o filenames; while IFS= read -r value; do COMPREPLY+=("$value")
            done < <(compgen -f -- "$2") ;;
    esac
}
complete -o nosort -F _dispatch_completion dispatch dsx
"""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """All, less the part of the word that bash keeps: ``--map-by=`` of ``--map-by=no``."""
        found = super().get_completions(args, incomplete)
        part = "".join(split_arg_string(os.environ.get("_DISPATCH_WORD", incomplete)))
        left = len(incomplete) - len(part) if incomplete.endswith(part) else 0
        for one in found:
            one.value = one.value[left:] if one.type == "plain" else one.value
        return found


class _Zsh(_Shell, ZshComplete):
    source_template = ZshComplete.source_template.replace(
        "#compdef %(prog_name)s", "#compdef %(prog_name)s dsx"
    ).replace("compdef %(complete_func)s %(prog_name)s", "compdef %(complete_func)s dispatch dsx")


class _Fish(_Shell, FishComplete):
    source_template = (
        FishComplete.source_template.replace("string split ", "string split -m 1 ")
        + 'complete --no-files --command dsx --arguments "(%(complete_func)s)"\n'
    )


SHELLS: dict[str, type[_Shell]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def asked_by(shell: str) -> _Shell:
    """click's answers for ``shell``."""
    return SHELLS[shell](click.Command("dispatch"), {}, "dispatch", "_DISPATCH_COMPLETE")


def answer(instruction: str) -> int:
    """Answer ``bash_complete`` and the like by environment variables; 0 if it was understood."""
    shell, _, what = instruction.partition("_")
    asks = what == "complete" and {"COMP_WORDS", "_DISPATCH_LINE"} & os.environ.keys()
    if shell not in SHELLS or not (asks or what == "source"):
        return 1
    with contextlib.redirect_stderr(io.StringIO()):  # a note would appear in the user's line
        text = f"{asked_by(shell).complete()}\n" if asks else script(shell)
    sys.stdout.write(text)
    return 0


def script(shell: str) -> str:
    """The script that ``shell`` loads."""
    return asked_by(shell).source()


class CompletionOptions(Options):
    """Print a script to load in a shell, so that the Tab key completes dispatch's commands.

    It completes commands, options and their values, and names of hosts, groups, jobs and files.
    For zsh, ~/.zfunc must be in fpath: fpath+=~/.zfunc before compinit in ~/.zshrc.
    """

    examples = (
        ("dispatch completion bash > ~/.local/share/bash-completion/completions/dispatch", "bash"),
        ("dispatch completion zsh > ~/.zfunc/_dispatch", "zsh"),
        ("dispatch completion fish > ~/.config/fish/completions/dispatch.fish", "fish"),
    )

    shell: Literal["bash", "zsh", "fish"] = argument(required=True)


def completion(options: CompletionOptions) -> int:
    """Print the script; the exit code."""
    sys.stdout.write(script(options.shell))
    return 0


#: fields whose values are lists of hosts, and the signs between two
HOSTS = {
    "hostfile": ",!&^", "lists": ",!&^", "excluded": ",!&^", "common": ",!&^", "include": "@",
    "exclude": "@",
}  # fmt: skip
#: launchers that ``dispatch import`` knows
_LAUNCHERS = ("accelerate", "deepspeed", "mpiexec", "mpirun", "sky", "srun", "torchrun")
#: words of a metavar that are typed unchanged
_LITERAL = re.compile(r"(?<![^|])[a-z][a-z0-9]*(?![^|])")


def words_for(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """The words that are possible for ``parameter``, as click asks for them."""
    name, metavar, command = parameter.name or "", parameter.metavar or "", context.command.name
    if isinstance(parameter.type, click.Choice):  # less ppr:N:WHAT
        return _begun(map(CompletionItem, filter(str.islower, parameter.type.choices)), typed)
    files = [CompletionItem(typed, "file")]
    if name in HOSTS or (name, command) == ("words", "hosts"):
        hosts = _hosts(context, typed, HOSTS.get(name, HOSTS["lists"]))
        return [*files, *hosts] if name == "hostfile" else hosts
    if isinstance(parameter, click.Option):
        if "DIR" in metavar:
            files[0].type = "dir"
        elif not re.search("FILE|PATH|TEXT", metavar):
            files = []
        return [*files, *_begun(map(CompletionItem, _LITERAL.findall(metavar)), typed)]
    if name in _ARGUMENTS:
        return [*(files if command == "report" else []), *_begun(_ARGUMENTS[name](), typed)]
    first = not context.params.get(name)
    if command == "again":
        return _begun(_jobs(), typed) if first else files
    if command == "explain":
        return _begun(_codes(), typed) if first else []
    launchers = map(CompletionItem, _LAUNCHERS if command == "import" and first else ())
    return [*files, *_begun(launchers, typed)]


def _hosts(context: click.Context, typed: str, between: str) -> list[CompletionItem]:
    """Hosts and groups that begin with the text after the last of ``between``."""
    end = max(typed.rfind(sign) for sign in between) + 1
    before, last = typed[:end], typed[end:]
    if last.startswith("@"):
        from dispatcher.model.hostset import group_names

        names = group_names(last)
    else:
        names = known_hosts(context.params.get("ssh_config"))
        files = context.params.get("hostfile") or ()
        names = list(dict.fromkeys([*(one for file in files for one in hosts_of(file)), *names]))
    there = re.split(f"[{re.escape(between)}]", before)
    names = [name for name in names if name not in there]
    return [CompletionItem(before + name) for name in names if name.startswith(last)]


def _begun(items: Iterable[CompletionItem], typed: str) -> list[CompletionItem]:
    return [one for one in items if one.value.startswith(typed)]


def _commands() -> list[CompletionItem]:
    return [
        CompletionItem(name, help=said)
        for commands in PURPOSES.values()
        for name, said in commands.items()
    ]


def _codes() -> list[CompletionItem]:
    from dispatcher.model.messages import MESSAGES

    return [CompletionItem(one.code, help=one.what) for one in MESSAGES.values()]


def _jobs() -> list[CompletionItem]:
    known = jobs()
    names = {name: text for _, name, text in reversed(known) if name}  # of one name the newest
    return [
        *(CompletionItem(name, help=text) for name, text in names.items()),
        *(CompletionItem(run_id.rpartition("-")[2], help=text) for run_id, _, text in known),
        CompletionItem("latest", help="The job that was started last."),
    ]


#: the argument of some commands -> the words that it may have
_ARGUMENTS: dict[str, Callable[[], list[CompletionItem]]] = {
    "job": _jobs,
    "other": _jobs,
    "run_id": lambda: [CompletionItem(run_id, help=text) for run_id, _, text in jobs()],
    "name": _commands,
}


_MOST_BYTES = 4 << 20
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
#: of a line of a hostfile, in any dialect, its first word
_FIRST = re.compile(r"\s*(?:[\w.-]+@)?([A-Za-z0-9][\w.-]*)")


def known_hosts(config: str | None = None) -> list[str]:
    """Plain names of hosts in known_hosts and ssh_config, sorted. config: the file of ``-F``."""
    folder = os.path.expanduser("~/.ssh")
    config = config or os.environ.get("DISPATCH_SSH_CONFIG")
    files = (
        (_of_known_hosts, "/etc/ssh/ssh_known_hosts"),
        (_of_known_hosts, os.path.join(folder, "known_hosts")),
        (_of_config, "/etc/ssh/ssh_config"),
        (_of_config, config or os.path.join(folder, "config")),
    )
    return sorted({
        name for reader, path in files for name in reader(_lines(path)) if _PLAIN.match(name)
    })  # fmt: skip


def hosts_of(hostfile: str) -> list[str]:
    """The first word of each line of ``hostfile``, where that may be a host."""
    found = (_FIRST.match(line.partition("#")[0]) for line in _lines(hostfile))
    return [match[1] for match in found if match]


def jobs() -> list[tuple[str, str | None, str]]:
    """(run id, name, state and program) of each job on record, the newest first."""
    from dispatcher.jobs import registry
    from dispatcher.output.text.sanitize import sanitize_text

    return [
        (job.run_id, job.name, f"{job.phase}: {sanitize_text(' '.join(job.program))}")
        for job in reversed(registry.jobs())
    ]


def _lines(path: str) -> list[str]:
    try:
        with open(open_regular(path), encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).splitlines()
    except (OSError, ValueError):
        return []


def _of_known_hosts(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = line.split()
        if words and words[0].startswith("@"):
            words = words[1:]
        if words and not words[0].startswith(("#", "|")):
            for name in words[0].split(","):
                yield name.partition("]")[0].lstrip("[")


def _of_config(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = re.split(r"[\s=]+", line.strip())
        if words[0].lower() == "host":
            yield from words[1:]
