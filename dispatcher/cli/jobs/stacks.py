"""``dispatch stacks``: where in its program each rank of a job is."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click

from dispatcher.cli.entry import MIXED, enter, say
from dispatcher.core.hang_monitor import GATHER
from dispatcher.jobs import registry
from dispatcher.jobs.caller import Call
from dispatcher.jobs.job_socket import Malformed
from dispatcher.model import exitcodes
from dispatcher.model.errors import DispatchError
from dispatcher.output.text.sanitize import harmless_text

#: seconds that the launcher may take longer than its hosts
SLACK = 10.0


@click.command("stacks", context_settings=MIXED)
@click.argument("job", required=False)
def command(job: str | None) -> int:
    """Say where in its program each rank of a job is; ranks in the same place together.

    JOB is the start of an id of dispatch jobs -a, or latest; not needed if only one runs: in
    the background, or in front of you in another shell. All hosts look at once, by py-spy where
    there is one, else by what a Python rank of a job with --hang-timeout says itself, else by
    /proc. Nothing is ended. The whole stacks go to a file beside the job's logs.
    """
    found = registry.find(job, foreground=True)
    if found.state == registry.ENDED:
        raise DispatchError(
            f"job {found.run_id}: it has ended, exit code {found.exit_code}",
            hint=f"dispatch logs {found.run_id}",
        )
    until = time.monotonic() + GATHER + SLACK
    try:
        with Call(found) as call:
            call.order("stacks")
            for fields, _ in call.frames():
                match fields:
                    case {"type": "stacks", "number": int(number), "lines": list(lines)}:
                        return _show(found, number, [str(line) for line in lines])
                    case {"type": "verdict", "exit_code": int(code)}:
                        say(f"note: job {found.run_id} ended, exit code {code}")
                        return exitcodes.CLUSTER
                if time.monotonic() > until:
                    raise DispatchError(f"job {found.run_id}: its launcher does not answer")
    except (OSError, Malformed):
        pass  # the launcher is gone; the record says what became of it
    raise registry.not_running(registry.find(found.run_id))


def _show(job: registry.Job, number: int, lines: Sequence[str]) -> int:
    for line in lines:
        click.echo(harmless_text(line))
    path = None if job.logs is None else os.path.join(job.logs, f"stacks-{number}.txt")
    if path is not None and os.path.exists(path):
        say(f"note: whole stacks in {path}")
    return 0


def main(words: Sequence[str]) -> int:
    """Run ``dispatch stacks`` with ``words``; the exit code."""
    return enter(command, words, "dispatch stacks")
