"""``dispatch report``: a run as one HTML page; with --json its phases for programs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher import __version__
from dispatcher.api.report import Fold
from dispatcher.cli import named_files, print_json, say
from dispatcher.cli.options.declaration import Options, argument, json_option, option
from dispatcher.core.events.monitor_events import VERSION, RunBegan, RunClosed
from dispatcher.jobs import registry
from dispatcher.model.errors import ConflictingOptions, FileUnusable, JournalUnusable, NoLogFiles
from dispatcher.model.hostset import fold
from dispatcher.model.paths import RunPaths, is_ours, open_owned
from dispatcher.output.files import journal
from dispatcher.output.page import Told, run_page
from dispatcher.output.terminal.notes import Notes
from dispatcher.output.timeline import History, phases
from dispatcher.plan.job import placement
from dispatcher.plan.job.rank_environment import limits_record
from dispatcher.plan.job.request import Limits, Restarts
from dispatcher.plan.variables import CROSSING_PREFIXES, redacted, redacted_words

if TYPE_CHECKING:
    from dispatcher.core.events.verdicts import Cause

#: bytes of a plan; of the end of a rank's file, and its lines
MOST_PLAN, MOST_TAIL, MOST_LINES = 1 << 26, 16 << 10, 40


class ReportOptions(Options):
    """Draw a run as one HTML page that can be sent to others: its verdict, the hosts and attempts
    over time, the resources of its ranks (with --sample), its outliers, its command.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs lists, or latest,
    whose run had --log-dir; or the folder of such a run, with a / if a job has its name. If there
    is only one job you need not name it.

    The page loads nothing and runs nothing. Values of variables and of arguments whose names
    suggest a secret are hidden; the ranks' output is not.
    """

    examples = (
        ("dispatch report", "the only job"),
        ("dispatch report latest -o run.html", "the last one"),
        ("dispatch report logs/latest", "from the files of a run"),
    )
    epilog = (
        "Exit code: 0; 2 if there is no such run, or the command line is wrong; 125 if the files "
        "of a job are gone, or cannot be used."
    )

    job: str | None = argument(metavar="JOB|FOLDER")
    output: str | None = option(
        "-o",
        metavar="FILE|-",
        help="Write the page to FILE.",
        usual="report.html in the run's folder, or in this folder if other users can write to "
        "the run's",
    )
    as_json: bool = json_option("the phases", ", and write a page only with -o")


def report(options: ReportOptions) -> int:
    """Write the page; the exit code. Raises: UsageError."""
    if options.as_json and options.output == "-":
        raise ConflictingOptions("--json and -o - both want standard output")
    paths, state = _run_of(options.job)
    history, page = _drawn(paths, state)
    if options.as_json:
        print_json(phases(history.spans(), history.hosts))
        if options.output is None:
            return 0
    if options.output == "-":
        sys.stdout.buffer.write(page.encode())  # in the encoding that it declares, in any locale
        return 0
    path = options.output or "report.html"
    if options.output is None and is_ours(paths.folder):
        path = str(paths.folder / path)
    named_files.write(path, path, page)
    say(f"note: wrote {path}")
    return 0


def _is_path(text: str) -> bool:
    """Whether ``text`` means a file or folder. The name of a job comes before one without a /."""
    if "/" in text:
        return True
    like_one = "." in text or os.path.exists(text)
    return like_one and all(job.name != text for job in registry.jobs())


def _run_of(found: str | None) -> tuple[RunPaths, str]:
    """The files of a run, and its state, for one without an end. Raises: UsageError."""
    if found is not None and _is_path(found):
        folder = Path(found).resolve()
        paths = RunPaths(folder.parent if folder.suffix == ".jsonl" else folder)
        if not folder.exists():
            named_files.read(found, found, 1)  # says why
        if not paths.journal.is_file():
            raise FileUnusable(f"{found}: not the folder of a run: no {paths.journal.name}")
        return paths, "still runs, or its launcher was killed"
    job = registry.find(found)
    if job.logs is None:
        raise NoLogFiles(
            f"job {job.run_id}: it keeps no files", hint="dispatch --log-dir DIR --sample 5 ..."
        )
    if not job.logs.is_dir():
        raise registry.files_gone(job)
    known = {
        registry.DEAD: "its launcher was killed",
        registry.ENDED: f"exit code {job.exit_code}; its journal breaks off",
    }
    return RunPaths(job.logs), known.get(job.state, "still runs")


def _drawn(paths: RunPaths, state: str) -> tuple[History, str]:
    """The timeline of a run, and its page. state: of one without an end."""
    history, report = History(), Fold(paths.folder)
    notes: list[tuple[float, str]] = []
    told: Notes | None = None
    for entry in journal.read(paths.journal, may_break_off=True):
        event = entry.event
        if isinstance(event, RunBegan):
            if event.version > VERSION:
                raise JournalUnusable(f"{paths.journal}: version {event.version}, not {VERSION}")
            told = Notes(event.hosts, lambda line: notes.append((history.seconds, line)),
                         verbose=False)  # fmt: skip
        elif told is None:
            raise JournalUnusable(f"{paths.journal}: no run.began: not the journal of a run")
        try:
            for sink in (history, report, told):
                sink.event(entry)
        except (LookupError, OverflowError) as error:  # numbers that fit no host
            why = f"its events do not fit together: {error}"
            raise JournalUnusable(f"{paths.journal}:{entry.seq}: {why}") from None
    if told is None:
        raise JournalUnusable(f"{paths.journal}: no run.began: not the journal of a run")
    ok: bool | None = None
    lines: Sequence[str] = ()
    if history.closed is not None:
        done = report.report()
        ok, lines = done.ok, done.verdict
        state = "succeeded" if done.ok else f"exit code {done.exit_code}"
    command, settings = _plan(paths)
    page = run_page(
        history,
        Told(state, ok, lines, notes, _tails(paths, history.closed), command, settings,
             __version__),
    )  # fmt: skip
    return history, page


def _tails(paths: RunPaths, closed: RunClosed | None) -> list[tuple[str, list[str]]]:
    """The last lines of the rank that failed first in each attempt, as far as files have them."""
    if closed is None:
        return []
    verdict = closed.verdict
    failed: list[tuple[int, Cause | None]] = [
        (one.restart, one.cause) for one in verdict.attempts if one.started
    ]
    failed.append((len(failed), verdict.cause))
    found = []
    for restart, cause in failed:
        rank = getattr(cause, "rank", None)
        if rank is None:
            continue
        world, own = placement.place(rank)
        which = f"{world}." if world else ""
        for side, stream in (("err", "stderr"), ("out", "stdout")):
            folder = paths.folder / f"restart-{restart}" if restart else paths.folder
            lines = _tail(folder / f"rank-{which}{own:05d}.{side}")
            if lines:
                attempt = f" of attempt {restart + 1}" if len(failed) > 1 else ""
                title = f"Last lines of rank {placement.rank_name(rank)}{attempt} ({stream})"
                found.append((title, lines))
                break
    return found


def _tail(path: Path) -> list[str]:
    try:
        with open(open_owned(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_TAIL))
            data = file.read(MOST_TAIL)
    except OSError:
        return []
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return [line.rpartition("\r")[2] for line in text.rstrip().split("\n")][-MOST_LINES:]


def _plan(paths: RunPaths) -> tuple[str, list[tuple[str, str]]]:
    """The command and other settings, from plan.json, secrets hidden again."""
    try:
        with open(open_owned(paths.plan), "rb") as file:
            plan = json.loads(file.read(MOST_PLAN))
        ranks, nodes = plan.get("ranks") or [], plan.get("nodes") or []
        command = (
            shlex.join(redacted_words([str(word) for word in ranks[0]["argv"]])) if ranks else ""
        )
        exports = {str(name): str(value) for name, value in plan.get("exports", {}).items()}
        known = redacted({n: v for n, v in exports.items() if n.startswith(CROSSING_PREFIXES)})
        rest = sorted(exports.keys() - known.keys())
        settings = {
            "folder": plan.get("cwd"),
            "hosts": fold(str(node["host"]) for node in nodes),
            "spares": fold(str(one["host"]) for one in plan.get("spares") or []),
            **_others(plan.get("limits"), Limits(), ""),
            **_others(plan.get("restarts"), Restarts(), "restarts: "),
            **{name: plan.get(name) for name in ("bind_to", "mem_bind")},
            **dict(zip(known, redacted_words(list(known.values())), strict=True)),
            "other variables": ", ".join(rest),
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", []
    return command, [(w.replace("_", " ") if w.islower() else w, str(value)) for w, value in
                     settings.items() if value not in (None, "", False, 0, [], {})]  # fmt: skip


def _others(found: Any, usual: Limits | Restarts, before: str) -> dict[str, Any]:
    """The fields of ``found`` that differ from ``usual``."""
    known = limits_record(usual)
    return {f"{before}{n}": v for n, v in dict(found or {}).items() if known.get(n) != v}
