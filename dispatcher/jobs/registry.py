"""The record of a job on its login node, by which another shell of the same user finds it::

    $XDG_STATE_HOME/dispatch/jobs/RUN_ID/    mode 0700; else ~/.local/state/dispatch
        job.json, end.json                   what it is, its launcher; exit code and verdict
        room                                 what ``end.json`` needs of the disk, kept free for it
        control, phase.json                  the launcher's socket; what the run does now
        commit.json, changes.patch           of git, as the ranks began (``code_state``)
        versions.json                        of software on the hosts

Pids are reused, so a launcher is identified by pid, start time and boot id. If it is gone and
there is no ``end.json``, the job is dead. So ``kill -9`` and a power cut need no cleaning. A
folder that is not ours alone is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dispatcher.model import errors
from dispatcher.model.frozen import Value, fields_of, value
from dispatcher.model.host import Host
from dispatcher.model.names import MOST_RANKS, nearest
from dispatcher.model.paths import (
    RunPaths,
    is_run_id,
    open_owned,
    private_folder,
    replace_file,
    state_folder,
    write_new,
)

#: ended jobs that are kept at most
MOST_RECORDS = 100
#: bytes of a record that are read at most; that the end may take on a disk that is full by then
LARGEST = 8 << 20
ROOM = 4096
#: hosts that a record blames at most, and the form of the code of a cause
MOST_BLAMED, _CODE = 256, re.compile(r"[\w-]{1,60}").fullmatch

#: the file of changes that were not committed
PATCH = "changes.patch"

#: seconds from the end of a killed process's socket to its own
DYING = 2.0

RUNNING, ENDED, DEAD, ELSEWHERE = "running", "ended", "dead", "elsewhere"
#: phases of a running job; and that its launcher has been stopped (Ctrl-Z, SIGSTOP)
PHASES = ("waiting", "connecting", "starting", "running", "stopping", "restarting")
PAUSED, WAITING = "paused", "waiting"


@value
class Process(Value):
    """One process of one boot of one machine: never mistaken for another."""

    pid: int
    started: int  # clock ticks since the boot
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has ``pid`` now; None if there is no such process."""
        try:
            words = _stat(pid)
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        return None if words[0] in "ZX" else cls(pid, int(words[19]), boot)

    @property
    def lives(self) -> bool:
        return Process.of(self.pid) == self

    def wait(self, seconds: float) -> None:
        """Wait ``seconds`` at most until it is gone. It is not our child, so we poll."""
        until = time.monotonic() + seconds
        while self.lives and time.monotonic() < until:
            time.sleep(0.02)

    @property
    def is_stopped(self) -> bool:
        """Whether it does nothing until a SIGCONT."""
        try:
            return _stat(self.pid)[0] == "T"
        except OSError:
            return False


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on. Raises: OSError."""
    # the command name in parentheses may hold spaces and parentheses: proc(5)
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


@value
class Typed(Value):
    """A command line of run as the user typed it, in ``folder``; no value of -x is in it.

    ``words`` are the program and its arguments, ``withheld`` the variables whose values were typed.
    """

    options: tuple[str, ...]
    words: tuple[str, ...]
    folder: str
    withheld: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for words in (self.options, self.words, (self.folder,), self.withheld):
            if not all(isinstance(word, str) and "\0" not in word for word in words):
                raise ValueError("not words")


@value
class Job(Value):
    """A job's record. ``folder``: of the record; ``logs``: None if it keeps none.

    hosts: (name, user, port). reach: the flags that say how hosts are reached. name: the user's.
    commit: git's, of its folder when its ranks last started; is_dirty: whether files had changed.
    gpus: those chosen on each host, None for any.
    end: None while there is no ``end.json``. doing: one of ``PHASES``, as it last said.
    by_program: begun by a program that imports dispatcher; no terminal shows it. ``is_cut``
    says that the changes on record end early. ``variables`` are the names of those that the ranks
    got from the login node.
    """

    folder: Path
    run_id: str
    node: str
    launcher: Process
    program: tuple[str, ...]
    hosts: tuple[tuple[str, str | None, int | None], ...]
    ranks: int | None
    began: float
    logs: Path | None
    detached: bool
    reach: Mapping[str, Any]
    end: Mapping[str, Any] | None
    doing: str = RUNNING
    by_program: bool = False
    name: str | None = None
    commit: str | None = None
    is_dirty: bool | None = None
    is_cut: bool = False
    typed: Typed | None = None
    variables: tuple[str, ...] = ()
    gpus: tuple[frozenset[str] | None, ...] = ()

    @property
    def state(self) -> str:
        """``running``, ``ended``, ``dead``, or ``elsewhere`` for another machine's."""
        if self.end is not None:
            return ENDED
        if self.node != socket.gethostname():
            return ELSEWHERE
        if self.launcher.lives:
            return RUNNING
        # one that has ended since this was read ran when it was read, and was not killed
        return RUNNING if (self.folder / "end.json").exists() else DEAD

    @property
    def title(self) -> str:
        """Its name, if it has one, and its id."""
        return f"{self.name} ({self.run_id})" if self.name else self.run_id

    @property
    def targets(self) -> tuple[Host, ...]:
        """The hosts, as they are reached."""
        return tuple(Host(name, user=user, port=port) for name, user, port in self.hosts)

    @property
    def phase(self) -> str:
        """``state``, with a phase in place of ``running``: one of ``PHASES`` or paused."""
        if self.state != RUNNING:
            return self.state
        return PAUSED if self.launcher.is_stopped else self.doing

    def check_rank(self, rank: int) -> None:
        """Raises: NoSuchJob for a rank that it lacks; spawned ranks are not checked."""
        if self.ranks is not None and self.ranks <= rank < MOST_RANKS:
            raise errors.NoSuchJob(
                f"job {self.run_id}: it has no rank {rank}", hint=f"--rank 0 to {self.ranks - 1}"
            )

    @property
    def blamed(self) -> dict[str, str]:
        """Host -> code of the cause, of hosts to blame for how it ended; see ``host_history``."""
        found = {} if self.end is None else self.end.get("blamed")
        items = found.items() if isinstance(found, dict) else ()
        return {name: code for name, code in items if isinstance(code, str) and _CODE(code)}

    @property
    def exit_code(self) -> int | None:
        """The job's exit code; None while it has none, and for ever if its launcher died."""
        return None if self.end is None else int(self.end["exit_code"])


def enroll(
    run_id: str,
    *,
    program: Sequence[str],
    hosts: Sequence[tuple[str, str | None, int | None]],
    ranks: int | None,
    logs: Path | None,
    detached: bool,
    reach: Mapping[str, Any],
    by_program: bool = False,
    name: str | None = None,
    typed: Typed | None = None,
    variables: Sequence[str] = (),
    gpus: Sequence[Sequence[str] | None] = (),
) -> Path:
    """Write down that this process is the launcher of ``run_id``; the folder of the record.

    Raises: UsageError, OSError.
    """
    private_folder(state_folder())
    base = private_folder(state_folder() / "jobs")
    _forget(base)
    folder = base / run_id
    folder.mkdir(mode=0o700)
    launcher = Process.of(os.getpid())
    assert launcher is not None
    if reach.get("ssh_config") not in (None, "none"):  # none: as ssh has it, no file
        reach = {**reach, "ssh_config": os.path.abspath(reach["ssh_config"])}
    record = {
        "run_id": run_id,
        "node": socket.gethostname(),
        "launcher": [launcher.pid, launcher.started, launcher.boot],
        "program": [_text(word) for word in program],
        "hosts": [list(host) for host in hosts],
        "ranks": ranks,
        "began": time.time(),
        # opened by others: bytes that are not UTF-8 are kept
        "logs": None if logs is None else os.path.abspath(logs),
        "detached": detached,
        "by_program": by_program,
        "name": name,
        "reach": dict(reach),
        "typed": None if typed is None else fields_of(typed),
        "variables": list(variables),
        "gpus": [None if one is None else list(one) for one in gpus],
    }
    try:
        write_new(folder / "room", bytes(ROOM))
        write(folder / "job.json", record)
    except OSError:
        import shutil  # every start would pay for it

        shutil.rmtree(folder, ignore_errors=True)  # a job without an end would count as dead
        raise
    return folder


def note_phase(folder: Path, phase: str) -> None:
    """Write down what the job is doing now. Raises: OSError; the word from before is gone then."""
    try:
        write(folder / "phase.json", {"phase": phase})
    except OSError:
        (folder / "phase.json").unlink(missing_ok=True)
        raise


def note_program(folder: Path, program: Sequence[str]) -> None:
    """Write down that the ranks run another program now. Raises: OSError, ValueError."""
    record = _load(folder / "job.json")
    if record.get("typed") is not None:
        record["typed"]["words"] = list(program)
    write(folder / "job.json", {**record, "program": [_text(word) for word in program]})


def conclude(
    folder: Path,
    exit_code: int,
    lines: Sequence[str],
    blamed: Mapping[str, str] = MappingProxyType({}),
    rate: float | None = None,
) -> None:
    """Write down how the job ended: its verdict, cut where the disk is full. Raises: OSError.

    blamed: see ``Job``. ``rate`` is its last progress, a second.
    """
    verdict, room = [_text(line) for line in lines], folder / "room"
    end: dict[str, Any] = {"exit_code": exit_code, "verdict": verdict, "ended": time.time()}
    if rate is not None:
        end["rate"] = rate
    if blamed:
        end["blamed"] = dict(islice(blamed.items(), MOST_BLAMED))
    try:
        write(folder / "end.json", end)
        room.unlink(missing_ok=True)
    except OSError:
        end.pop("blamed", None)
        while len(data := json.dumps(end).encode()) > ROOM:
            verdict.pop()
        with open(room, "r+b") as file:
            file.write(data)
            file.truncate()
        os.replace(room, folder / "end.json")


def note_left(hosts: Mapping[str, float]) -> None:
    """Write down for how many seconds ranks may run on, by machine. Raises: OSError."""
    now = time.time()
    ends = {name: now + seconds for name, seconds in (left() | dict(hosts)).items()}
    write(state_folder() / "left.json", ends)


def left() -> dict[str, float]:
    """By machine, the seconds for which ranks of jobs that lost their hosts may still run."""
    now = time.time()
    try:
        ends = _load(state_folder() / "left.json")
        return {name: end - now for name, end in ends.items() if end > now}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def jobs(*, running: bool = False) -> list[Job]:
    """The jobs on record, the newest last. Stale sockets of dead jobs are removed.

    running: leave out jobs that have ended; of these nothing is read.
    """
    base = state_folder() / "jobs"
    try:
        names = sorted(name for name in os.listdir(base) if is_run_id(name))
    except OSError:
        return []
    names = [name for name in names if not (running and (base / name / "end.json").exists())]
    private_folder(base)
    found = [job for name in names if (job := _read(base / name)) is not None]
    found.sort(key=lambda job: job.began)  # ids of one second are in no order
    for job in found:
        if job.state in (DEAD, ENDED):
            with contextlib.suppress(OSError):
                (job.folder / "control").unlink()
    return found


def any_blamed() -> bool:
    """Whether any record blames a host. Only ends are read for that, because every run asks."""
    base = state_folder() / "jobs"
    for name in os.listdir(base) if base.exists() else ():
        with contextlib.suppress(OSError), open(f"{base}/{name}/end.json", "rb") as file:
            if b'"blamed"' in file.read(LARGEST):
                return True
    return False


def find(name: str | None, *, runs: bool = False) -> Job:
    """The job that ``name`` means: a name, the start of an id or of its last part, or ``latest``.

    Of jobs of one name it is the newest that runs, else the newest. None is the only running job,
    or the only job. runs: it is useful only while it runs.
    Raises: UsageError if no job fits, or several.
    """
    known = jobs()
    if not known:
        raise errors.NoSuchJob(
            "this machine has no record of a job", hint="dispatch run --detach -H hostfile ..."
        )
    if name == "latest":
        return known[-1]
    if name is None:
        running = [job for job in known if job.state == RUNNING]
        if runs and not running and len(known) > 1:
            raise errors.NoSuchJob("no job runs here", hint="dispatch jobs -a")
        meant = running or known
        if len(meant) == 1:
            return meant[0]
        raise errors.AmbiguousJob(f"which of {len(meant)} jobs?", hint="dispatch jobs, or: latest")
    if named := [job for job in known if name and job.name == name]:
        running = [job for job in named if job.state == RUNNING]
        if len(running) > 1:
            raise errors.AmbiguousJob(
                f"{len(running)} running jobs have the name {name!r}",
                hint=", ".join(job.run_id for job in running),
            )
        return (running or named)[-1]
    fits = [job for job in known if job.run_id.startswith(name)]
    fits = fits or [job for job in known if name and job.run_id.split("-")[-1].startswith(name)]
    if not fits:
        words = [word for job in known for word in (job.run_id.split("-")[-1], job.name) if word]
        near = nearest(name, [*words, "latest"])
        hint = f"{near}  # did you mean this job?" if near else "dispatch jobs"
        raise errors.NoSuchJob(f"this machine has no record of job {name!r}", hint=hint)
    if len(fits) > 1:
        raise errors.AmbiguousJob(
            f"{name!r} could be any of {len(fits)} jobs",
            hint=", ".join(job.run_id for job in fits[-3:]),
        )
    return fits[0]


def find_running(name: str | None) -> Job:
    """The job that ``name`` means, as ``find`` has it, which runs. Raises: DispatchError."""
    found = find(name, runs=True)
    if found.state != RUNNING:
        raise not_running(found)
    return found


def _read(folder: Path) -> Job | None:
    """The record in ``folder``; None while it is being written, or if it is not a record."""
    try:
        record = _load(folder / "job.json")
        end = _load(folder / "end.json") if (folder / "end.json").exists() else None
        pid, started, boot = record["launcher"]
        return Job(
            folder=folder,
            run_id=folder.name,
            node=record["node"],
            launcher=Process(pid, started, boot),
            program=tuple(record["program"]),
            hosts=tuple((name, user, port) for name, user, port in record["hosts"]),
            ranks=record["ranks"],
            began=float(record["began"]),
            logs=None if record["logs"] is None else Path(record["logs"]),
            detached=bool(record["detached"]),
            reach=dict(record["reach"]),
            end=end,
            doing=_doing(folder),
            by_program=bool(record.get("by_program")),
            name=record.get("name"),
            typed=_typed(record.get("typed")),
            variables=tuple(map(str, record.get("variables", ()))),
            gpus=tuple(
                None if one is None else frozenset(one)
                for one in record.get("gpus") or [None] * len(record["hosts"])
            ),
            **_commit(folder),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _doing(folder: Path) -> str:
    """The phase that the job has written last."""
    try:
        phase = _load(folder / "phase.json")["phase"]
    except (OSError, ValueError, KeyError, TypeError):
        return RUNNING  # there is no phase: an older dispatch, a full disk
    return phase if phase in PHASES else RUNNING


def _commit(folder: Path) -> dict[str, Any]:
    """The fields of a job that ``note_commit`` has found."""
    try:
        found = _load(folder / "commit.json")
        kept = {"commit": found["commit"], "is_dirty": found["dirty"]}
        return {**kept, "is_cut": bool(found.get("cut"))}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _typed(found: Any) -> Typed | None:
    if found is None:
        return None
    many = {name: tuple(found[name]) for name in ("options", "words", "withheld")}
    return Typed(folder=found["folder"], **many)


def patch_of(job: Job) -> bytes | None:
    """The changes that were not committed as its ranks began; None if none are on record."""
    try:
        with open(open_owned(job.folder / PATCH), "rb") as file:
            return file.read(LARGEST)
    except OSError:
        return None


def _load(path: Path) -> Any:
    """Raises: OSError; ValueError if it is not JSON."""
    with open(path, "rb") as file:
        try:
            return json.loads(file.read(LARGEST))
        except RecursionError:
            raise ValueError("nested too deep") from None


def write(path: Path, value: Any) -> None:
    """Replace a file of a record by ``value``, as JSON. Raises: OSError."""
    replace_file(path, json.dumps(value).encode())


def _forget(base: Path) -> None:
    """Remove the oldest records, so that ``MOST_RECORDS`` stay; never a running job's record."""
    names = sorted(name for name in os.listdir(base) if is_run_id(name))
    for name in names[: max(0, len(names) - MOST_RECORDS)]:
        job = _read(base / name)
        if job is None or job.state in (ENDED, DEAD):
            import shutil  # every start would pay for it

            shutil.rmtree(base / name, ignore_errors=True)


def _text(text: str) -> str:
    """``text`` with bytes that are not UTF-8 shown: for eyes alone, it names nothing."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def versions_of(job: Job) -> dict[str, dict[str, str]]:
    """Software -> its versions on the hosts of ``job`` -> these hosts; {} while unknown."""
    try:
        found = _load(job.folder / "versions.json")
        return {name: {one: str(of[one]) for one in of} for name, of in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _last_line(path: Path) -> str:
    try:
        with open(open_owned(path), "rb") as file:
            return file.read(LARGEST).decode("utf-8", "replace").strip().rpartition("\n")[2]
    except OSError:
        return ""


def files_gone(job: Job) -> errors.NoLogFiles:
    """An error: the files of ``job`` were removed."""
    return errors.NoLogFiles(f"job {job.run_id}: its files are gone: {job.logs}")


def not_running(job: Job) -> errors.DispatchError:
    """The error for ``job`` when it does not answer; waits for a launcher that is being killed."""
    if job.state == ENDED:
        return errors.JobEnded(
            f"job {job.run_id}: it has ended, exit code {job.exit_code}",
            hint=f"dispatch logs {job.run_id}",
        )
    if job.state == RUNNING:
        job.launcher.wait(DYING)  # the kernel closes its socket before it is gone
    if job.state == DEAD:
        why = f"its launcher (pid {job.launcher.pid}) was killed: no verdict"
        if job.detached and (last := _last_line(RunPaths(job.logs or job.folder).launcher)):
            why += f"; its log ends: {last}"
        return errors.LauncherKilled(
            f"job {job.run_id}: {why}",
            hint=f"dispatch kill {job.run_id}  # ends what it may have left on its hosts",
        )
    if job.state == ELSEWHERE:
        return errors.JobElsewhere(
            f"job {job.run_id}: it belongs to {job.node}", hint=f"ssh {job.node}"
        )
    if job.phase == PAUSED:
        pid = job.launcher.pid
        return errors.LauncherSilent(
            f"job {job.run_id}: it is paused (pid {pid})",
            hint=f"kill -CONT {pid}  # or fg where it was started",
        )
    return errors.LauncherSilent(f"job {job.run_id}: its launcher does not answer")
