"""``dispatch again``: starts a recorded job again, in its folder, perhaps with changes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

import click

from dispatcher.cli import say
from dispatcher.cli.entry import enter
from dispatcher.cli.jobs.option_words import changed, grouped
from dispatcher.cli.jobs.restart import apart
from dispatcher.cli.options.declaration import argument
from dispatcher.cli.run.run import RunOptions
from dispatcher.jobs import registry
from dispatcher.jobs.code_state import changed_since
from dispatcher.model import errors
from dispatcher.model.errors import FileUnusable, UsageError


class AgainOptions(RunOptions):
    """Start a job on record again: in the folder it had, with its command line.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs -a lists. Without it,
    the job that was started last is meant.

    Options are added after the job's own, and win over them; -H or -w replace its hosts. After --
    come arguments for the program: an option that it had gets the new value, any other is added.
    The record has no value of -x NAME=VALUE, so NAME gets the value in your environment.
    """

    examples = (
        ("dispatch again", "the job that was started last"),
        ("dispatch again llama -- --lr 2e-4", "with another learning rate"),
        ("dispatch again llama --nnodes 2 --dry-run", "show the plan for two hosts"),
        ("dispatch again k3f9x2 -H other-hosts --name llama-2", "on other hosts"),
    )
    epilog = "Exit code: as of dispatch run; 2 if no job on record fits."

    words: tuple[str, ...] = argument(metavar="[JOB] [-- ARGS]...")


def again(options: AgainOptions) -> int:
    """Start the job; the exit code of the run. Raises: UsageError."""
    words: tuple[str, ...] = click.get_current_context().obj
    name, arguments = apart(options.words, words)
    given = list(words[: words.index("--")] if "--" in words else words)
    if name is not None:
        given.remove(name)
    job = registry.find(name or "latest")
    typed = job.typed
    if typed is None or (arguments and ":" in typed.words):
        why = "its command line is not on record" if typed is None else "it has several programs"
        hint = f"dispatch run -H hostfile {shlex.join(job.program)}"
        raise UsageError(f"job {job.title}: {why}", hint=hint)
    for withheld in typed.withheld:
        if withheld in (export.partition("=")[0] for export in options.exports):
            os.environ.setdefault(withheld, "")  # for the recorded -x NAME; the new -x wins
        elif withheld not in os.environ:
            raise UsageError(
                f"-x {withheld}: the record has no values, and your environment has none for it",
                hint=f"dispatch again {job.run_id} -x {withheld}=VALUE",
            )
    if arguments[:1] == typed.words[:1]:  # typed with its name, as for restart
        arguments = arguments[1:]
    program = [*typed.words[:1], *changed(typed.words[1:], arguments)]
    program = program if arguments else list(typed.words)  # which may be several
    line = [*_with(typed.options, given), *program]
    try:
        os.chdir(typed.folder)
    except OSError as error:
        raise FileUnusable(
            f"job {job.title}: its folder {typed.folder}: {errors.reason(error)}",
            hint=f"dispatch run {shlex.join(line)}  # in another folder",
        ) from None
    os.environ["PWD"] = typed.folder
    say(f"note: in {typed.folder}: {shlex.join(program)}")
    if since := changed_since(job):
        say(f"note: {since}")
    return enter("run", line)


def _with(options: Sequence[str], given: Sequence[str]) -> list[str]:
    """The ``options`` of a job and then those ``given``, which may choose other hosts."""
    end = ["--"] if options[-1:] == ("--",) else []
    hosts = ("-H", "-w", "--hostfile", "--machinefile")

    def are_hosts(key: str) -> bool:
        return key in hosts or key[:2] in hosts

    groups = grouped(options[: len(options) - len(end)])
    if any(are_hosts(key) for key, _ in grouped(given)):
        groups = [group for group in groups if not are_hosts(group[0])]
    return [*(word for _, group in groups for word in group), *given, *end]
