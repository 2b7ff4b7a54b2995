"""The files of a run: its plan, the journal, and what the ranks wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dispatcher.api.report import write_json
from dispatcher.core.events.sink import Sink
from dispatcher.model.errors import UsageError
from dispatcher.model.paths_part import RunPaths
from dispatcher.output.files.journal import Journal
from dispatcher.output.files.rotation_part import Rotation
from dispatcher.plan.job.job_plan import JobPlan

Overflow = Literal["block", "spool", "drop"]


def open_files(
    plan: JobPlan,
    paths: RunPaths,
    say: Callable[[str], None],
    *,
    merge: bool = False,
    overflow: Overflow = "block",
    rotation: Rotation | None = None,
) -> list[Sink]:
    """The sinks that write them; the plan is written at once.

    say: writes a line to the user. merge: one file for all ranks. overflow: what is to happen
    when the disk is slower than the ranks. Raises: UsageError.
    """
    rotation = rotation or Rotation()
    try:
        write_json(paths.plan, plan.describe())
        found = [Journal(paths.journal, say), _output(paths, say, merge, overflow, rotation)]
    except OSError as error:
        raise UsageError(f"--log-dir {paths.folder.parent}: {error.strerror}") from None
    if plan.limits.hang_timeout:
        from dispatcher.output.text.stacks_text import Stacks

        hosts = [node.host.name for node in (*plan.nodes, *plan.spares)]
        found.append(Stacks(hosts, paths.folder, lambda number, lines: None, say))
    return found


def _output(
    paths: RunPaths,
    say: Callable[[str], None],
    merge: bool,
    overflow: Overflow,
    rotation: Rotation,
) -> Sink:
    files: Sink
    if merge:
        from dispatcher.output.files.merged_log import Merged

        files = Merged(paths.merged, say, rotation)
    else:
        from dispatcher.output.files.rank_logs import RankFiles

        files = RankFiles(paths.folder, say, rotation)
    if overflow != "block":
        from dispatcher.output.buffered import Behind
        from dispatcher.output.files.spool_part import Spool

        files = Behind(files, "files", spool=Spool() if overflow == "spool" else None)
    return files
