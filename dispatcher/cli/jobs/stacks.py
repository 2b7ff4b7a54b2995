"""``dispatch stacks``: where in its program each rank of a job is.

The run's journal has the places of the ranks; its launcher asks them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli import say, tell
from dispatcher.cli.options.declaration import Options, argument, json_option
from dispatcher.core.hang_monitor import GATHER
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model import errors
from dispatcher.model.errors import LauncherSilent
from dispatcher.model.names import MOST_RANKS
from dispatcher.output.text.sanitize import sanitize_text

if TYPE_CHECKING:
    from dispatcher.model import formats


class JournalLocations:
    """Each rank's host and program, by the journal; read when a new rank is asked for."""

    def __init__(self, journal: Path, hosts: Sequence[str]) -> None:
        self._journal = journal
        self._hosts = hosts
        self._offset = 0
        self._homes: dict[int, tuple[int, int]] = {}
        self._next: dict[int, int] = {}  # host -> the local rank that is started next
        self._programs: list[str] = []  # of each rank, where there are several

    def home(self, rank: int) -> tuple[int, int]:
        """The number of the rank's host, and the rank's number there."""
        if rank not in self._homes:
            self._read()
        return self._homes.get(rank, (len(self._hosts), rank))

    def host_of(self, rank: int) -> str:
        """The name of the rank's host."""
        host = self.home(rank)[0]
        return self._hosts[host] if host < len(self._hosts) else "?"

    def program_of(self, rank: int) -> str:
        """The name of the rank's program among several; "" where there is one."""
        self.home(rank)
        return self._programs[rank] if rank < len(self._programs) else ""

    def forget(self) -> None:
        """Forget the places: the ranks have been placed again."""
        self._homes.clear()

    def _read(self) -> None:
        try:
            with open(self._journal, "rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._offset += len(line)
                    if b'"rank' in line:
                        self._note(line)
        except OSError:
            return

    def _note(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            name, context = record["name"], record["context"]
            if name == "ranks.placed":
                self._next.clear()
                parts = context.get("parts") or ()  # an older run's has none
                names = [[str(name)] * min(size, MOST_RANKS) for name, size in parts]
                self._programs = [sanitize_text(name) for own in names for name in own]
            elif name == "rank.spawned":
                host, rank = int(context["node"]), int(context["rank"])
                if 0 <= host < len(self._hosts):
                    local = self._next.get(host, 0)
                    self._homes[rank] = (host, local)
                    self._next[host] = local + 1
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return


#: seconds that the launcher may take longer than its hosts
SLACK = 10.0


class StacksOptions(Options):
    """Show each rank's position in its program, ranks at the same place together.

    JOB is the beginning of an id that dispatch jobs -a lists, or latest. If only one job runs, in
    the background or in another terminal, you need not name it.

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
    found = registry.find_running(options.job, foreground=True)
    until = time.monotonic() + GATHER + SLACK
    with JobConnection(found) as call:
        call.order("stacks")
        while time.monotonic() <= until:
            match fields := call.answer():
                case {"type": "stacks", "number": int(number), "lines": list(lines)}:
                    path = "" if found.logs is None else str(found.logs / f"stacks-{number}.txt")
                    whole = path if os.path.exists(path) else None
                    if options.as_json:
                        tell(record(found.run_id, fields.get("found"), whole))
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
