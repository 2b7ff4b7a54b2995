"""``dispatch logs``: what a job's ranks have written, from the files; ``-f`` goes on with it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from dispatcher import exitcodes
from dispatcher.cli.door import MIXED, enter
from dispatcher.errors import DispatchError, UsageError
from dispatcher.jobs import record
from dispatcher.paths import RunPaths
from dispatcher.plan import worlds
from dispatcher.sinks.base import Sink

#: seconds between two looks at the files
LOOK = 0.2
CHUNK = 1 << 16

_FILE = re.compile(r"rank-(?:([0-9]{1,6})\.)?([0-9]{5,7})\.(out|err)(?:\.([0-9]{1,9}))?")


@click.command("logs", context_settings=MIXED)
@click.argument("job", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", metavar="N", help="Only rank N, without labels.")
def command(job: str | None, follow: bool, rank: str | None) -> int:
    """Show what a job's ranks have written: rank by rank, then, with -f, as it comes.

    JOB is the start of an id of dispatch jobs, or latest; not needed if only one is known.
    """
    from dispatcher.cli.attach import open_screen
    from dispatcher.sinks.outlet import Outlet
    from dispatcher.sinks.screen import Screen, View

    found = record.find(job)
    only = None if rank is None else _rank(rank)
    screen = open_screen() if only is None else Screen(View(lambda _: ""), Outlet())
    reader = Files(_folder(found), only)
    try:
        while True:
            live = follow and record.find(found.run_id).state == record.RUNNING
            any_new = reader.read(screen)
            screen.tick(time.monotonic())
            if not live:
                break
            if not any_new:
                time.sleep(LOOK)
    except KeyboardInterrupt:
        return exitcodes.SIGNAL_BASE + 2
    finally:
        screen.close()
    if only is not None and not reader.seen:
        raise DispatchError(f"rank {only}: has written nothing")
    return 0


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise UsageError(f"--rank: not a rank: {text!r}", hint="--rank 0")
    return int(text)


def _folder(job: record.Job) -> Path:
    """Where the job's files are. Raises: DispatchError if there are none."""
    if job.logs is None:
        raise DispatchError(f"job {job.run_id}: it keeps no files", hint="--log-dir DIR")
    if not job.logs.is_dir():
        raise DispatchError(f"job {job.run_id}: its files are gone: {job.logs}")
    if RunPaths(job.logs).merged.exists():
        raise DispatchError(
            f"job {job.run_id}: its output is in one file (--log-merge)",
            hint=f"less {RunPaths(job.logs).merged}",
        )
    return job.logs


class Files:
    """The files of the ranks in ``folder``, read on from where the last ``read`` ended."""

    def __init__(self, folder: Path, only: int | None = None) -> None:
        self._folder = folder
        self._only = only
        self._offsets: dict[int, int] = {}  # by inode: a full piece gets another name

    @property
    def seen(self) -> bool:
        return bool(self._offsets)

    def read(self, sink: Sink, most: Mapping[tuple[int, int], int] | None = None) -> bool:
        """Give ``sink`` what is new, of a rank's stream ``most`` bytes; whether anything was."""
        any_new = False
        for rank, stream, path in self._files():
            try:
                file = open(path, "rb")  # noqa: SIM115 - closed below
            except FileNotFoundError:
                continue  # --log-keep has removed it, or it has just become a piece
            with file:
                inode = os.fstat(file.fileno()).st_ino
                offset = self._offsets.setdefault(inode, 0)
                left = None if most is None else most.get((rank, stream), 0) - offset
                file.seek(offset)
                while data := file.read(CHUNK if left is None else min(CHUNK, max(0, left))):
                    sink.output(rank, stream, data)
                    any_new = True
                    self._offsets[inode] += len(data)
                    left = None if left is None else left - len(data)
        return any_new

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        found = []
        for path in self._folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match is None:
                continue
            rank = worlds.number(int(match[1] or 0), int(match[2]))
            if self._only in (None, rank):
                piece = int(match[4]) if match[4] else 1 << 62  # the one without a number is last
                found.append((rank, 1 if match[3] == "out" else 2, piece, path))
        for rank, stream, _, path in sorted(found):
            yield rank, stream, path


def replay(job: record.Job, sink: Sink, most: Mapping[tuple[int, int], int] | None = None) -> None:
    """Give ``sink`` what the job's files hold, of a rank's stream ``most`` bytes.

    Raises: DispatchError when the files do not hold it.
    """
    folder = _folder(job)
    if any(path.name.endswith((".out.1", ".err.1")) for path in folder.iterdir()):
        raise DispatchError(
            f"job {job.run_id}: its files are in pieces (--log-size)",
            hint=f"dispatch logs {job.run_id}",
        )
    Files(folder).read(sink, most)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch logs`` with ``words``; the exit code."""
    return enter(command, words, "dispatch logs")
