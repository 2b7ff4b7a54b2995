"""``dispatch debug``: pdb of one rank of a running job, on this terminal.

The journal has the rank's host; without a journal all hosts are asked. A second command
over the job's own way to its hosts connects our terminal (``remote.rank.debugger`` is both).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dispatcher.cli import say
from dispatcher.cli.options.connect_options import LoginTransports, show_only
from dispatcher.cli.options.declaration import Options, argument, dry_run_option, preset
from dispatcher.jobs import registry
from dispatcher.model import errors
from dispatcher.model.errors import NoSuchJob, UsageError
from dispatcher.model.host import Host, Hostlist
from dispatcher.model.hostset import fold
from dispatcher.model.names import MOST_RANKS, BadName, digits
from dispatcher.model.paths import RunPaths
from dispatcher.output.files.journal import JournalState


class DebugOptions(Options):
    """Debug a running rank with pdb, on this terminal.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs -a lists, or latest.
    If only one job runs, in the background or in another terminal, you need not name it.

    The rank stops where it is and goes on when you type c or q, or close the terminal. A rank that
    calls breakpoint() waits for this command. The rank must run Python that dispatch has started,
    and be between two of its lines: for a rank that is stuck in C use dispatch stacks. The other
    ranks run on, and wait for this one in their next collective; --hang-timeout counts that.

    It opens no port: it uses your terminal, SSH and a socket in a folder that is yours alone.
    """

    examples = (
        ("dispatch debug", "rank 0 of the only job that runs"),
        ("dispatch debug k3f9x2 --rank 3", "rank 3 of the job k3f9x2"),
    )

    job: str | None = argument()
    rank: str = preset(default="0", metavar="N", help="Debug rank N.")
    dry_run: bool = dry_run_option()


def debug(options: DebugOptions) -> int:
    """Talk with the rank; the exit code. Raises: DispatchError."""
    rank = _number(options.rank)
    job = registry.find_running(options.job)
    hosts = candidates(job, [rank])
    does = f"look for rank {rank} of {job.run_id}, and run pdb in it"
    if show_only(options, "debug", ((host, does) for host in hosts)):
        return 0
    job.check_rank(rank)
    return _attach(job, hosts, rank)


def _number(text: str) -> int:
    try:
        return digits(text, "--rank", 0, MOST_RANKS - 1)
    except BadName as bad:
        raise UsageError(bad.message, hint="--rank 0") from None


def candidates(job: registry.Job, ranks: Sequence[int]) -> tuple[Host, ...]:
    """The hosts that have ``ranks`` by the job's journal, or all hosts."""
    names = [name for name, _, _ in job.hosts]
    state = JournalState(RunPaths(job.logs or job.folder).journal, names)
    for _ in state.news():
        pass
    homes = {state.home(rank)[0] for rank in ranks}
    found = tuple(host for at, host in enumerate(job.targets) if at in homes)
    return found if len(found) == len(homes) else job.targets


def _attach(job: registry.Job, hosts: tuple[Host, ...], rank: int) -> int:
    from dispatcher.api.run import exec as exec_on
    from dispatcher.api.transports import Ways
    from dispatcher.bootstrap import payload
    from dispatcher.cli.exec.exec import ExecOptions
    from dispatcher.cli.exec.run_exec import carry_out, terminal_size
    from dispatcher.plan.exec_plan import ExecPlan

    with open(payload.path_of("rank.debugger"), encoding="utf-8") as file:
        words = payload.python_command("-c", file.read())  # the rank answers with its own
    # under a rank our own children would inherit its run id
    os.environ.pop("DISPATCH_RUN_ID", None)
    answers = exec_on(
        Hostlist(hosts), (*words, "find", job.run_id, str(rank)), ways=Ways(**job.reach)
    )
    found = [host for host, answer in zip(hosts, answers.hosts, strict=True) if answer.code == 0]
    if len(found) > 1:
        names = fold(host.name for host in found)
        raise NoSuchJob(f"job {job.run_id}: {names} all report that they have rank {rank}")
    if not found:
        for line in answers.verdict if answers.exit_code == errors.CLUSTER else ():
            say(line)
        raise NoSuchJob(
            f"job {job.run_id}: no host has a rank {rank} that runs Python",
            hint=f"dispatch stacks {job.run_id}",
        )
    say(f"note: rank {rank} on {found[0].name}; c or q: it goes on")
    typed = os.isatty(0) and os.isatty(1)
    options = ExecOptions(pty=typed, stdin=not typed, no_label=True, quiet=True, **job.reach)
    plan = ExecPlan(
        tuple(found), (*words, "attach", job.run_id, str(rank)), stdin=not typed,
        terminal=terminal_size(options),
    )  # fmt: skip
    with LoginTransports(options, alone=True) as reach:
        return carry_out(plan, options, reach)[0]
