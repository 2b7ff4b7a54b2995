"""``dispatch jobs``: the running and recently ended jobs of this user on this machine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase

import click

from dispatcher.cli import aligned, print_json, print_lines
from dispatcher.cli.options.declaration import Options, argument, json_option, option
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import progress_of
from dispatcher.model.frozen import Document, value
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import cell

#: characters of a program and of hosts in a row
WIDEST = 32
#: seconds that running jobs have, together, to report their progress
PATIENCE = 1.0
#: seconds for which an ended job is recent
RECENT = 7 * 86400


@value
class ListedJob(Document):
    """An element of ``dispatch jobs --json``.

    state: waiting, connecting, starting, running, stopping, restarting, paused, ended, dead or
    elsewhere. exit_code: null while it has none. hosts: in short, n[1-3]. pid, node: of its
    launcher. began, ended: seconds since 1970. logs: the folder of its files. name: as --name gave
    it. verdict: dispatch's lines at the end. commit: of git, of the folder where it was started,
    when its ranks last started. dirty: whether files that git knows differed from it. Both are null
    if unknown. ``progress`` is the last match of --progress-line, and ``left`` the seconds until
    all is done. Both are null if unknown, and for jobs that do not run. ``command`` is the line as
    typed in ``folder``, without values of -x; both are null for a program's job. ``variables`` are
    the names of those that ranks got from the login node, ``patch`` is the file of uncommitted
    changes, and ``patch_cut`` says whether it ends early. ``versions`` maps software (python,
    torch, nccl, ...) to its versions on the hosts, and these to the hosts.
    """

    schema = "job/1"
    id: str
    state: str
    exit_code: int | None
    ranks: int | None
    hosts: str
    program: tuple[str, ...]
    pid: int
    node: str
    began: float
    ended: float | None
    logs: str | None
    detached: bool
    name: str | None
    verdict: tuple[str, ...]
    commit: str | None
    dirty: bool | None
    progress: str | None
    left: float | None
    command: tuple[str, ...] | None
    folder: str | None
    variables: tuple[str, ...]
    patch: str | None
    patch_cut: bool
    versions: Mapping[str, Mapping[str, str]]


class JobsOptions(Options):
    """List your jobs on this machine, running and recently ended, the newest last.

    STATE is the job's state: waiting (--if-busy wait), connecting, starting, running, stopping (its
    ranks are ending), restarting (they will start again soon), paused (its launcher, by Ctrl-Z), or
    ended. A job is dead if its launcher was killed: it has no verdict. dispatch kill ends its
    leftover processes; then it counts as ended, with exit code 125. PROGRESS is what
    --progress-line found last, and the time left if that shows a total, as in step 120/1000.

    With GLOB, list only jobs whose name (--name) fits it.
    """

    examples = (
        ("dispatch jobs", "running ones, and those of the last 7 days that no terminal had"),
        ("dispatch jobs -a", "all jobs on record, with their verdicts"),
        ("dispatch jobs -a 'lr-*'", "the jobs of a sweep"),
        ("dispatch jobs -a --json | jq -r '.[] | select(.state == \"dead\").id'", "for programs"),
    )

    everything: bool = option(
        "-a", "--all", help="Also list ended foreground runs and older runs, and show verdicts."
    )
    glob: str | None = argument(metavar="[GLOB]")
    as_json: bool = json_option("the list")


def jobs(options: JobsOptions) -> int:
    """Print the table of jobs; the exit code."""
    known = registry.jobs()
    if options.glob is not None:
        known = [job for job in known if fnmatchcase(job.name or "", options.glob)]
    known = [job for job in known if options.everything or _is_of_interest(job)]
    running = (one for one in known if one.state == registry.RUNNING)
    progress = progress_of((one for one in running if one.phase != registry.PAUSED), PATIENCE)
    found = [_listed(job, *progress.get(job.run_id, ("", None))) for job in known]
    if options.as_json:
        print_json(found)
    elif not found:
        click.echo("no jobs", err=True)
    else:
        rows = list(map(_row, found))
        shown = {
            "NAME": any(job.name for job in found),
            "PROGRESS": any(job.progress for job in found),
            "VERDICT": options.everything,
        }
        titles = [title for title in rows[0] if shown.get(title, True)]
        print_lines(aligned([titles, *([row[title] for title in titles] for row in rows)]))
    return 0


def _is_of_interest(job: registry.Job) -> bool:
    if job.state in (registry.ENDED, registry.DEAD) and time.time() - job.began > RECENT:
        return False
    return job.detached or job.by_program or job.state in (registry.RUNNING, registry.DEAD)


def _listed(job: registry.Job, progress: str, left: float | None) -> ListedJob:
    typed, patch = job.typed, job.folder / registry.PATCH
    return ListedJob(
        id=job.run_id, state=job.phase, exit_code=job.exit_code, ranks=job.ranks,
        hosts=fold(name for name, _, _ in job.hosts), program=job.program,
        pid=job.launcher.pid, node=job.node, began=job.began,
        ended=None if job.end is None else job.end["ended"],
        logs=None if job.logs is None else str(job.logs), detached=job.detached, name=job.name,
        verdict=tuple(map(str, job.end["verdict"])) if job.end else (),
        commit=job.commit, dirty=job.is_dirty, progress=progress or None, left=left,
        command=None if typed is None else (*typed.options, *typed.words),
        folder=None if typed is None else typed.folder, variables=job.variables,
        patch=str(patch) if patch.exists() else None, patch_cut=job.is_cut,
        versions=registry.versions_of(job),
    )  # fmt: skip


def _progress(job: ListedJob) -> str:
    if not job.progress:
        return "-"
    from dispatcher.output.monitor.run_picture import progress_text  # it loads much

    return progress_text(job.progress, job.left)


def _row(job: ListedJob) -> dict[str, str]:
    return {
        "JOB": job.id,
        "NAME": job.name or "-",
        "STATE": job.state,
        "CODE": "-" if job.exit_code is None else str(job.exit_code),
        "RANKS": "-" if job.ranks is None else str(job.ranks),
        "AGE": age(time.time() - job.began),
        "HOSTS": cell(job.hosts, WIDEST),
        "PROGRAM": cell(shlex.join(job.program), WIDEST),
        "PROGRESS": _progress(job),
        "VERDICT": cell((*job.verdict, "-")[0], 2 * WIDEST),
    }


def age(seconds: float) -> str:
    """``59s``, ``12m``, ``3h05m``, ``4d02h``."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02d}h"
    if hours:
        return f"{hours}h{minute:02d}m"
    return f"{minutes}m" if minutes else f"{second}s"
