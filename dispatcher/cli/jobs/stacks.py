"""``dispatch stacks``: where in its program each rank of a job is, as its launcher finds out."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli import print_json, say
from dispatcher.cli.options.declaration import Options, argument, json_option
from dispatcher.core.hang_monitor import GATHER
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model import errors
from dispatcher.model.errors import LauncherSilent
from dispatcher.output.text.sanitize import sanitize_text

if TYPE_CHECKING:
    from dispatcher.model import formats


#: seconds that the launcher may take longer than its hosts
SLACK = 10.0


class StacksOptions(Options):
    """Show each rank's position in its program, ranks at the same place together.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs -a lists, or latest.
    If only one job runs, in the background or in another terminal, you need not name it.

    It asks all hosts at once, and ends nothing. The source is py-spy if it is installed, else the
    stack that a Python rank of a job with --hang-timeout writes, else /proc. The whole stacks go
    to a file beside the job's logs.
    """

    examples = (
        ("dispatch stacks", "the only job that runs"),
        ("dispatch stacks latest", "the job that was started last"),
    )

    job: str | None = argument()
    as_json: bool = json_option("the stacks")


def stacks(options: StacksOptions) -> int:
    """Print the stacks; the exit code. Raises: DispatchError."""
    found = registry.find_running(options.job)
    until = time.monotonic() + GATHER + SLACK
    with JobConnection(found) as call:
        call.order("stacks")
        while time.monotonic() <= until:
            match fields := call.answer():
                case {"type": "stacks", "number": int(number), "lines": list(lines)}:
                    path = "" if found.logs is None else str(found.logs / f"stacks-{number}.txt")
                    whole = path if os.path.exists(path) else None
                    if options.as_json:
                        print_json(record(found.run_id, fields.get("found"), whole))
                        return 0
                    for line in lines:
                        click.echo(sanitize_text(str(line)))
                    if whole is not None:
                        say(f"note: whole stacks in {whole}")
                    return 0
                case {"type": "verdict", "exit_code": int(code)}:
                    say(f"note: job {found.run_id} ended, exit code {code}")
                    return errors.CLUSTER
    raise LauncherSilent(f"job {found.run_id}: its launcher does not answer")


def record(run_id: str, found: Any, whole: str | None) -> formats.Stacks:
    """The stacks that the launcher has ``found``, for programs. Raises: LauncherSilent."""
    if not isinstance(found, dict):
        raise LauncherSilent(
            f"job {run_id}: its launcher is an older dispatch, without stacks --json"
        )
    return {
        "schema": "stacks/1",
        "run_id": run_id,
        "groups": found["groups"],
        "hosts": found["hosts"],
        "late": found["late"],
        "collective": found.get("collective"),
        "file": whole,
    }
