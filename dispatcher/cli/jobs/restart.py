"""``dispatch restart``: the ranks of a running job end and start again, with the code as it is now.

Connections, agents and placement stay, so it costs less than a stop and a new start.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence

import click

from dispatcher.cli import say
from dispatcher.cli.jobs.attach import tell_end
from dispatcher.cli.options.declaration import Options, argument, dry_run_option, preset
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import LONGEST_ORDER, JobConnection
from dispatcher.model import errors
from dispatcher.model.errors import CannotRestart, UnexpectedArgument, UsageError
from dispatcher.model.names import plural
from dispatcher.output.text.sanitize import sanitize_text


class RestartOptions(Options):
    """End the ranks of a running job and start them again, with the code as it is now.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs -a lists, or latest.
    If only one job runs, in the background or in another terminal, you need not name it.

    The ranks get the same signals as from dispatch stop (--stop-signal and --grace of the run).
    As many ranks start again on the present hosts and connections; if the run had --sync, dispatch
    sends the working folder again. A new command goes after --: a script and its arguments if the
    ranks ran a script. It is one more attempt of the job, which --max-restarts does not count.
    """

    examples = (
        ("dispatch restart", "the only running job, after fixing its script"),
        ("dispatch restart k3f9x2 -- train.py --lr 1e-4", "with other arguments"),
        ("dispatch restart latest -x NCCL_DEBUG=INFO", "with one more variable"),
    )
    epilog = (
        "Exit code: 0 when the ranks start again, 125 if they do not, 130 after Ctrl-C, which "
        "undoes nothing."
    )

    job: str | None = argument()
    words: tuple[str, ...] = argument(metavar="[-- PROGRAM [ARGS]...]")
    exports: tuple[str, ...] = preset(
        "-x",
        "--export",
        metavar="NAME[=VALUE]",
        help="Give the ranks this variable, beside the run's variables. May be repeated.",
    )
    dry_run: bool = dry_run_option()


def restart(options: RestartOptions) -> int:
    """Have the ranks started again; the exit code. Raises: DispatchError."""
    from dispatcher.cli.options.connect_options import show_only
    from dispatcher.plan.variables import exported

    given_words = (*(() if options.job is None else (options.job,)), *options.words)
    name, program = apart(given_words, click.get_current_context().obj)
    if not program and "--" in click.get_current_context().obj:
        raise UsageError("no command after --", hint="dispatch restart JOB -- train.py")
    given = exported(os.environ, options.exports)
    exports = [[name, given[name]] for name in dict.fromkeys(map(_name, options.exports))]
    found = registry.find_running(name)
    does = f"end the ranks of {found.run_id} and start them again"
    if show_only(options, "restart", ((host, does) for host in found.targets)):
        return 0
    if len(json.dumps([program, exports])) > LONGEST_ORDER // 2:
        raise UsageError(f"more than {LONGEST_ORDER >> 11} KiB of arguments and variables")
    try:
        with JobConnection(found) as call:
            call.order("restart", words=program, exports=exports)
            return _follow(found, call)
    except KeyboardInterrupt:
        say(f"\nnote: job {found.run_id} is still being restarted")
        return errors.SIGNAL_BASE + 2


def _name(export: str) -> str:
    return export.partition("=")[0]


def apart(words: Sequence[str], typed: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """JOB, and the words after ``--``, of ``words``: the command line ``typed`` less options.

    Raises: UnexpectedArgument.
    """
    words = tuple(words)
    at = len(words) - (len(typed) - 1 - typed.index("--") if "--" in typed else 0)
    if at > 1:
        command = click.get_current_context().info_name
        raise UnexpectedArgument(
            f"{words[1]}: put words for the program after --",
            hint=f"{command} {shlex.join([words[0], '--', *words[1:]])}",
        )
    return (words[0] if at else None), words[at:]


def _follow(job: registry.Job, call: JobConnection) -> int:
    """Print the launcher's answers until the restart is done or refused; the exit code."""
    while True:
        match fields := call.answer():
            case {"type": "refused", "why": str(why)}:
                hint = fields.get("hint")
                raise CannotRestart(
                    f"job {job.run_id}: {sanitize_text(why)}",
                    hint=sanitize_text(hint) if isinstance(hint, str) else None,
                )
            case {"type": "restarted", "world_size": int(size), "restart": int(number)}:
                starts = f"attempt {number + 1}, {plural(size, 'rank')}"
                say(f"note: job {job.run_id}: started again: {starts}")
                return 0
            case {"type": "say", "line": str(line)}:
                say(sanitize_text(line))
            case {"type": "verdict"}:
                tell_end(registry.find(job.run_id))
                return errors.CLUSTER
