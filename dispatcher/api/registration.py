"""Registers a run, so that ``dispatch jobs`` lists it and other shells can control it.

A socket lets other shells ask where the ranks are, and stop or restart them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dispatcher.api.host_notes import HostNotes
from dispatcher.core.events.monitor_events import SamplesWanted, StacksWanted
from dispatcher.core.events.run_events import Entry, Event, RunRestarting, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.host_history import LostBefore
from dispatcher.jobs.job_server import JobServer
from dispatcher.jobs.job_socket import restart_of
from dispatcher.model import errors
from dispatcher.model.errors import CannotRestart, DispatchError, FileUnusable
from dispatcher.model.frozen import fields_of
from dispatcher.model.paths import RunPaths, state_folder
from dispatcher.plan.job.devices import chosen
from dispatcher.plan.job.job_plan import Change, JobPlan
from dispatcher.plan.variables import exported
from dispatcher.runner.loop import Stop

if TYPE_CHECKING:
    from typing_extensions import Self

    from dispatcher.api.run_session import RunSession
    from dispatcher.plan.job.parts import Program


class JobRecord(Sink):
    """The record of the run of ``session``, for which it is a sink; ``conclude`` records the end.

    It serves the job's socket (``job_server.Orders``). reach: the flags for reaching hosts. paths:
    of its files, if it keeps any. say: prints a note if there is no record (a full or read-only
    home); the run goes on. tell: passes another shell's order on to the run. program_of: the
    program for the new words of a restart. slow: lines on slow ranks. started: called with the
    number of ranks when all run; given only in the background. by_program: a program started the
    run. ``typed`` is the user's command line.
    Raises: FileUnusable in the background if there is no record, for no command could reach it.
    """

    def __init__(
        self,
        session: RunSession,
        reach: Mapping[str, Any],
        paths: RunPaths | None,
        say: Callable[[str], None],
        *,
        tell: Callable[[Event], None] | None = None,
        program_of: Callable[[tuple[str, ...]], Program] | None = None,
        slow: Callable[[], Sequence[str]] = tuple,
        started: Callable[[int], None] | None = None,
        by_program: bool = False,
        typed: registry.Typed | None = None,
    ) -> None:
        self._session, self._state, self._plan = session, session.state, session.plan
        self._paths, self._say, self._slow, self._started = paths, say, slow, started
        self._tell = tell or session.tell
        self._program_of = program_of or (lambda words: other_words(self._plan, words))
        self.stop = Stop(self._tell, "dispatch stop").ordered
        self._phase = ""
        self._folder: Path | None = None
        self._server: JobServer | None = None
        self._stacks: Sink | None = None  # made when a client first asks
        self._hosts: HostNotes | None = None  # if there is a record
        places = (*self._plan.nodes, *self._plan.spares)
        hosts = [node.host for node in places]
        self._lost = LostBefore(self._state.hosts, session.tell)
        parts = self._plan.every_part
        try:
            self._folder = registry.enroll(
                self._plan.run_id,
                name=self._plan.name,
                program=self._plan.command,
                hosts=[(host.name, host.user, host.port) for host in hosts],
                ranks=None if self._plan.is_open else self._plan.world_size,
                logs=None if paths is None else paths.folder,
                detached=started is not None,
                by_program=by_program,
                reach=reach,
                typed=typed,
                variables=sorted({name for part in parts for name, _ in part.exports}),
                gpus=[chosen(node, self._plan.devices, self._plan.exports) for node in places],
            )
            self._hosts = HostNotes(session, self._folder, self._tell)
            self._note_phase(self._folder)
            self._server = JobServer(self._folder, self)
        except (OSError, DispatchError) as error:
            self._unrecorded(error)

    def event(self, entry: Entry) -> None:
        if self._folder is None:
            return
        self._note_phase(self._folder)
        if isinstance(entry.event, RunRestarting):
            words = getattr(entry.event.cause, "words", ())  # verdicts are not loaded for this
            if words:
                with contextlib.suppress(OSError, ValueError):
                    registry.note_program(self._folder, words)
        for sink in (self._hosts, self._lost, self._server, self._stacks):
            if sink is not None:
                sink.event(entry)

    def tick(self, now: float) -> bool:
        return self._hosts is not None and self._hosts.tick(now)

    def goes_on(self) -> None:
        """The run has waited for its hosts, and connects now."""
        self._state.phase = "connecting"
        if self._folder is not None:
            self._note_phase(self._folder)

    def _note_phase(self, folder: Path) -> None:
        """Write down what the run does now; a disk that refuses it costs the word, not the job."""
        if self._phase == self._state.phase:
            return
        self._phase = self._state.phase
        with contextlib.suppress(OSError):
            registry.note_phase(folder, self._phase)
        if self._phase != "running":
            return
        if self._started is not None:
            self._started(self._state.world_size)
        if self._hosts is not None:
            self._hosts.look_around()

    def picture(self) -> Mapping[str, Any]:
        """The progress of the run, as plain values."""
        from dispatcher.output.monitor.run_picture import picture_of

        return fields_of(picture_of(self._state))

    def progress(self) -> Mapping[str, Any]:
        """The ranks' last progress as text, and the seconds left."""
        with self._state.lock:
            pace = self._state.pace
            left = None if pace is None else pace.left(self._state.clock())
            return {"reached": self._state.reached, "left": left}

    def table(self) -> Mapping[str, Any]:
        """The state of each rank, as plain values."""
        from dispatcher.output.monitor.run_picture import snapshot_of

        return snapshot_of(self._state, self._slow()).plain()

    def sample(self, seconds: float) -> None:
        """Have the ranks measured so often from now on."""
        self._tell(SamplesWanted(seconds))

    def gather(self) -> None:
        """Find where the ranks are, for the clients that asked."""
        from dispatcher.output.text.stacks_text import StackFiles

        if self._stacks is None:
            assert self._server is not None, "which asks for them"
            # with a limit for silence the files are written anyway
            paths = None if self._plan.limits.hang_timeout else self._paths
            folder = None if paths is None else paths.folder
            # the answer names no file if the disk refused, so no warning is needed
            self._stacks = StackFiles(
                self._state.hosts, folder, self._server.stacks, lambda line: None
            )
        self._tell(StacksWanted())

    def restart(self, order: Mapping[str, Any]) -> None:
        """Restart the ranks as ``order`` asks. Raises: DispatchError, Malformed."""
        words, pairs = restart_of(order)
        exports = exported({}, [f"{name}={text}" for name, text in pairs])
        if words and self._plan.parts:
            raise CannotRestart(
                "it has several programs, which only start again as they are",
                hint="dispatch restart without arguments",
            )
        program = self._program_of(words) if words else None
        self._session.restart(Change(program, tuple(exports.items())))

    def _unrecorded(self, error: OSError | DispatchError) -> None:
        """Print a note that the run has no record, or no socket, and go on."""
        why = error.message if isinstance(error, DispatchError) else errors.reason(error)
        if self._started is None:
            self._say(f"note: dispatch jobs and stop will not know this job: {why}")
            return
        refused = FileUnusable(
            f"--detach: the job cannot be recorded in {state_folder()}: {why}",
            hint="XDG_STATE_HOME=DIR dispatch ...  # your own folder on a disk with room",
        )
        self.__exit__(None, refused, None)
        raise refused from None

    def shown_to_clients(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """``say``, but clients get the lines as well."""

        def both(line: str) -> None:
            say(line)
            if self._server is not None:
                self._server.say(line)

        return both

    def answer(self) -> None:
        """Accept questions and orders of other shells from now on."""
        if self._server is not None:
            self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Record the error as the end of a run that could not begin."""
        if isinstance(error, DispatchError):
            self.conclude(error.exit_code, [f"error: {error.message} [{error.code}]"])
        elif error is not None:
            self.conclude(errors.CLUSTER, [f"error: {type(error).__name__}: {error}"])

    def conclude(
        self,
        exit_code: int,
        lines: Sequence[str],
        left: Mapping[str, float] = MappingProxyType({}),
        unfit: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Record the end, and send it to waiting clients. left: see ``Report.may_run_on``.

        unfit: host -> why it did not pass the checks before the start, as a code.
        """
        if self._folder is not None and self._hosts is not None:
            blamed = {**unfit, **self._hosts.conclude()}
            if blamed and (before := self._hosts.failed_before()[1]):
                self._say(f"note: {before}")
            try:
                rate = None if self._state.pace is None else self._state.pace.rate
                registry.conclude(self._folder, exit_code, lines, blamed, rate)
                self._lost.write_down(left)
            except OSError as error:  # the exit code is worth more than the file
                self._say(f"note: dispatch jobs will not know how it ended: {errors.reason(error)}")
        if self._server is not None:
            self._server.finish(exit_code, lines)


def other_words(plan: JobPlan, words: tuple[str, ...]) -> Program:
    """The program of ``plan`` with other ``words``. Raises: DispatchError."""
    check_script(plan, plan.program.argv[0], words, plan.cwd)
    return replace(plan.program, argv=words)


def check_script(plan: JobPlan, old: str, words: tuple[str, ...], folder: str) -> None:
    """Refuse ``words`` whose script is not here, where the ``old`` one is, in ``folder``.

    Hosts may have scripts that this machine has not, but a script that no host has would end
    the job.
    """
    if plan.program.kind == "command":
        return
    new = words[0]
    here = {name: os.path.exists(os.path.join(folder, name)) for name in (old, new)}
    if here[old] and not here[new]:
        is_script = "/" in new or new.endswith(".py")  # else arguments alone were meant
        line = shlex.join([old, *(words[1:] if is_script else words)])
        raise CannotRestart(
            f"{new}: no such script in {folder}",
            hint=f"dispatch restart {plan.run_id} -- {line}",
        )
