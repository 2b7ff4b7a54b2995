"""``dispatch profile``: samples of the stacks of a job's ranks, in one file for speedscope.

As for ``dispatch debug`` a second command over the job's own way to its hosts does the work
(``remote.rank.profiler``). This module bounds and checks a host's bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from binascii import a2b_base64
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher import __version__
from dispatcher.api.exec_session import ExecSession
from dispatcher.bootstrap import payload
from dispatcher.cli import named_files, say
from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.jobs.debug import candidates
from dispatcher.cli.options.connect_options import LoginTransports, show_only
from dispatcher.cli.options.declaration import Options, argument, dry_run_option, option, preset
from dispatcher.core.events.exec_events import own_code
from dispatcher.jobs import registry
from dispatcher.model import errors
from dispatcher.model.errors import NotProfiled, UsageError
from dispatcher.model.hostset import fold
from dispatcher.model.names import MOST_RANKS, fold_numbers
from dispatcher.output.exec.host_results import BOTH, HostResult, describe
from dispatcher.output.text.fold import fold_ranks
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.plan.job.placement import parse_ranks
from dispatcher.runner.exec.exec_loop import HANDLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.model.host import Host

#: ranks of one call; bytes of one rank's samples; characters of a name
MOST, LARGEST, LONGEST = 64, 32 << 20, 1000
#: a host's bytes may cause these errors
MALFORMED = ValueError, TypeError, LookupError, ArithmeticError, RecursionError, zlib.error
#: seconds for hosts to begin and to answer
SLACK = 30.0
#: modules of the agent that ``profiler`` needs
NEEDS = (
    "protocol.packing", "protocol.frames", "host.proctree", "host.process", "host.child",
    "host.tcp_peer", "probe.usage", "probe.nccl_state", "probe.stack_dump", "rank.debugger",
)  # fmt: skip


class ProfileOptions(Options):
    """Take samples of what ranks of a running job do, and write a file for speedscope.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs -a lists, or latest.
    If only one job runs, in the background or in another terminal, you need not name it.

    py-spy takes up to 100 samples a second, if it is installed in the ranks' environment or on the
    host and may look into them. Otherwise a thread of the rank takes up to 20, in a tenth of its
    time at most; then the rank must run Python that dispatch has started. The ranks run on. Open
    the file with https://www.speedscope.app: there each thread is a profile.
    """

    examples = (
        ("dispatch profile", "rank 0 of the only job that runs, for 10 seconds"),
        ("dispatch profile k3f9x2 --rank 0-3,8 --seconds 30 -o slow.json", "several ranks"),
    )
    epilog = "Exit code: 125 if a rank gave no samples; 130 after Ctrl-C, with all samples so far."

    job: str | None = argument()
    rank: str = preset(default="0", metavar="LIST", help="Profile these ranks: 0,3-5, or all.")
    seconds: int | None = preset(
        most=600, metavar="S", help="Take samples for S seconds.", usual="10"
    )
    output: str | None = option(
        "-o", metavar="FILE", help="Write FILE, which must not exist.",
        usual="profile-JOB-RANKS.speedscope.json",
    )  # fmt: skip
    dry_run: bool = dry_run_option()


def profile(options: ProfileOptions) -> int:
    """Write the file; the exit code. Raises: DispatchError."""
    job, seconds = registry.find_running(options.job), options.seconds or 10
    wanted = parse_ranks(options.rank, "--rank", job.ranks)
    every = (rank for rank in range(job.ranks or MOST_RANKS) if rank in wanted)
    ranks = [*islice(every, MOST + 1)]
    if not 0 < len(ranks) <= MOST:
        raise UsageError(f"--rank {options.rank}: not 1 to {MOST} ranks", hint="--rank 0-7")
    hosts = candidates(job, ranks)
    does = f"sample ranks {fold_numbers(ranks)} of {job.run_id} for {seconds} s"
    if show_only(options, "profile", ((host, does) for host in hosts)):
        return 0
    name = f"profile-{job.name or job.run_id}-{fold_numbers(ranks)}"
    path = options.output or f"{name[:200]}.speedscope.json"
    named_files.create(f"-o {path}", path)  # while no host is touched
    file: dict[str, Any] = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": f"{job.title}, ranks {fold_numbers(ranks)}", "exporter": f"dispatch {__version__}",
        "shared": {"frames": []}, "profiles": [],
    }  # fmt: skip
    saved = False
    try:
        results = _sampled(job, hosts, ranks, seconds)
        missing = _read(results, ranks, file)
        if file["profiles"]:
            named_files.write(f"-o {path}", path, json.dumps(file))
            click.echo(f"{path}: open it with https://www.speedscope.app")
            saved = True
    finally:
        if not saved:
            Path(path).unlink(missing_ok=True)
    code = max(own_code(one.outcome) for one in results)
    if code - errors.SIGNAL_BASE in HANDLED:
        return code
    if missing:
        for one in results:
            for line in one.stderr.decode("utf-8", "replace").splitlines()[-1:]:
                say(f"note: {one.host}: {line[:LONGEST]}")
        for line in describe(results):
            say(line)
        said = "; ".join(f"{fold_ranks(of)}: {why}" for why, of in missing.items())
        raise NotProfiled(f"job {job.run_id}: {said}", hint=f"dispatch stacks {job.run_id}")
    return 0


def _sampled(
    job: registry.Job, hosts: tuple[Host, ...], ranks: Sequence[int], seconds: int
) -> tuple[HostResult, ...]:
    words = f"{job.run_id} {seconds} {' '.join(map(str, ranks))}"
    source = payload.standalone("rank.profiler", NEEDS)
    plan = ExecPlan(
        hosts, payload.standalone_command(source, words.encode()),
        limits=ExecLimits(command=seconds + SLACK, grace=SLACK),
    )  # fmt: skip
    os.environ.pop("DISPATCH_RUN_ID", None)  # under a rank our own children would inherit it
    with LoginTransports(ExecOptions(**job.reach)) as reach:
        return ExecSession(plan, reach.transport_for, streams=BOTH, say=say).run()


def _read(
    results: Sequence[HostResult], ranks: Sequence[int], file: dict[str, Any]
) -> dict[str, list[int]]:
    """Put the hosts' samples into ``file`` and report on them; why ranks have none -> the ranks."""
    missing = dict.fromkeys(ranks, "no process of it is there")
    shown: dict[str, list[tuple[int, str]]] = {}
    for one in results:
        for line in one.stdout.split(b"\n"):
            if not line.startswith(b"profile "):
                continue
            try:
                text = zlib.decompressobj().decompress(a2b_base64(line[8:]), LARGEST)
                told = json.loads(text)
                rank, said = int(told["rank"]), _clean(told["said"])
                if rank in missing and told.get("profiles"):
                    _add(file, told, f"rank {rank} on {one.host}: ")
                    del missing[rank]
                    shown.setdefault(said, []).append((rank, one.host))
                elif rank in missing:
                    missing[rank] = "no samples" if "profiles" in told else said
            except MALFORMED:
                say(f"note: {one.host}: its samples make no sense")
                break
    for said, of in shown.items():
        places = fold(dict.fromkeys(host for _, host in of))
        say(f"note: {fold_ranks(rank for rank, _ in of)} on {places}: {said}")
    return {why: [r for r in ranks if missing.get(r) == why] for why in missing.values()}


def _add(file: dict[str, Any], told: Any, whose: str) -> None:
    """Add the samples of a rank, if they are as speedscope takes them."""
    frames, new = file["shared"]["frames"], []
    for one in told["shared"]["frames"]:
        name, path, line = _clean(one["name"]), _clean(one["file"] or ""), int(one["line"] or 0)
        new.append({"name": name, "file": path, "line": line})
    numbers = range(len(frames), len(frames) + len(new))
    profiles = []
    for one in told["profiles"]:
        samples = [[numbers[at] for at in sample] for sample in one["samples"]]
        weights = [max(0.0, min(float(weight), 1e4)) for weight in one["weights"]]
        if len(samples) != len(weights):
            raise ValueError("a sample without its time")
        profiles.append({
            "type": "sampled", "name": whose + _clean(one["name"]), "unit": "seconds",
            "startValue": 0, "endValue": sum(weights), "samples": samples, "weights": weights,
        })  # fmt: skip
    frames += new
    file["profiles"] += sorted(profiles, key=lambda one: "MainThread" not in str(one["name"]))


def _clean(text: str) -> str:
    return sanitize_text(text[:LONGEST])
