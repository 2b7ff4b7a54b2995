"""Registers a run, so that ``dispatch jobs`` lists it and other shells can control it.

A socket lets other shells ask where the ranks are, and stop or restart them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dispatcher.core.events.run_events import Entry, Event, NodeNoticed, NodeReady, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.status import Phase
from dispatcher.model import errors
from dispatcher.model.errors import CannotRestart, DispatchError
from dispatcher.model.paths import RunPaths
from dispatcher.plan.job.job_plan import Change, JobPlan

if TYPE_CHECKING:
    from typing_extensions import Self

    from dispatcher.jobs.status import OnAnswer, OrderServer
    from dispatcher.plan.job.parts import Program


class LostBefore(Sink):
    """Warns if an earlier job lost a host, whose old ranks may still run there, and how long.

    names: of the run's hosts. Hosts are identified by machine, because names may be reused.
    """

    def __init__(self, names: Sequence[str], tell: Callable[[Event], None]) -> None:
        self._names, self._tell = names, tell
        self._left = registry.left()
        self._machines: dict[str, str] = {}

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, NodeReady):
            node, machine = entry.event.node, entry.event.facts.machine
            self._machines[self._names[node]] = machine
            if seconds := self._left.pop(machine, 0.0):
                text = f"an earlier job lost it: that job's ranks may run on for {seconds:.0f} s"
                self._tell(NodeNoticed(node, text))

    def write_down(self, left: Mapping[str, float]) -> None:
        """Remember what this run has ``left``; see ``Report.may_run_on``. Raises: OSError."""
        known = {name: self._machines[name] for name in left if self._machines.get(name)}
        if known:
            registry.note_left({machine: left[name] for name, machine in known.items()})


class JobRecord:
    """The record of ``plan``; ``sinks`` get the run's events, ``conclude`` its end.

    reach: the flags for reaching hosts. paths: of its files, if it keeps any. tell: sends the run
    an event; restart: starts its ranks again. detached: it runs in the background. by_program: a
    program started it, not a shell. say: prints a note if there is no record (a home that is full
    or read-only); the run goes on without one.
    """

    def __init__(
        self,
        plan: JobPlan,
        reach: Mapping[str, Any],
        paths: RunPaths | None,
        tell: Callable[[Event], None],
        restart: Callable[[Change], None],
        say: Callable[[str], None],
        *,
        detached: bool = False,
        by_program: bool = False,
    ) -> None:
        self._plan, self._restart, self._detached, self._say = plan, restart, detached, say
        self._lost = LostBefore([one.host.name for one in (*plan.nodes, *plan.spares)], tell)
        self._server: OrderServer | None = None
        self.sinks: list[Sink] = []
        self._folder = None
        try:
            self._folder = registry.enroll(
                plan.run_id,
                program=plan.command,
                hosts=[
                    (host.name, host.user, host.port)
                    for host in (one.host for one in (*plan.nodes, *plan.spares))
                ],
                ranks=None if plan.is_open else plan.world_size,
                logs=None if paths is None else paths.folder,
                detached=detached,
                by_program=by_program,
                reach=reach,
            )
            self.sinks = [Phase(self._folder), self._lost]
            self._serve(plan, paths, tell)
        except (OSError, DispatchError) as error:
            self._unrecorded(error)

    def _serve(self, plan: JobPlan, paths: RunPaths | None, tell: Callable[[Event], None]) -> None:
        """Set up the socket for questions and orders of other shells. Raises: OSError."""
        from dispatcher.jobs.status import OrderServer
        from dispatcher.runner.loop import Stop

        assert self._folder is not None

        def ask() -> None:
            from dispatcher.core.events.monitor_events import StacksWanted

            tell(StacksWanted())

        self._server = OrderServer(
            self._folder,
            Stop(tell, "dispatch stop").ordered,
            gather=ask,
            # the answer names no file if the disk refused, so no warning is needed
            make_sink=lambda told: stacks_sink(plan, paths, told, lambda line: None),
            restart=self._order_restart,
        )
        self.sinks.append(self._server)

    def _order_restart(self, order: Mapping[str, Any]) -> None:
        """Restart the ranks as ``order`` asks. Raises: DispatchError, Malformed."""
        from dispatcher.jobs.job_socket import restart_of
        from dispatcher.plan.variables import exported

        words, pairs = restart_of(order)
        exports = exported({}, [f"{name}={text}" for name, text in pairs])
        if words and self._plan.parts:
            raise CannotRestart(
                "it has several programs, which only start again as they are",
                hint="dispatch restart without arguments",
            )
        self._restart(Change(self._program(words) if words else None, tuple(exports.items())))

    def _program(self, words: tuple[str, ...]) -> Program:
        """The program for the ranks' new ``words``. Raises: DispatchError."""
        self._check_script(self._plan.program.argv[0], words, self._plan.cwd)
        return replace(self._plan.program, argv=words)

    def _check_script(self, old: str, words: tuple[str, ...], folder: str) -> None:
        """Refuse ``words`` whose script is not here, where the ``old`` one is, in ``folder``.

        Hosts may have scripts that this machine has not, but a script that no host has would end
        the job.
        """
        if self._plan.program.kind == "command":
            return
        new = words[0]
        here = {name: os.path.exists(os.path.join(folder, name)) for name in (old, new)}
        if here[old] and not here[new]:
            is_script = "/" in new or new.endswith(".py")  # else arguments alone were meant
            line = shlex.join([old, *(words[1:] if is_script else words)])
            raise CannotRestart(
                f"{new}: no such script in {folder}",
                hint=f"dispatch restart {self._plan.run_id} -- {line}",
            )

    def _unrecorded(self, error: OSError | DispatchError) -> None:
        """Print a note that the run has no record, or no socket, and go on."""
        why = error.message if isinstance(error, DispatchError) else errors.reason(error)
        self._say(f"note: dispatch jobs and stop will not know this job: {why}")

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
        self, exit_code: int, lines: Sequence[str], left: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Record the end, and send it to waiting clients. left: see ``Report.may_run_on``."""
        if self._folder is not None:
            try:
                registry.conclude(self._folder, exit_code, lines)
                self._lost.write_down(left)
            except OSError as error:  # the exit code is worth more than the file
                self._say(f"note: dispatch jobs will not know how it ended: {errors.reason(error)}")
        if self._server is not None:
            self._server.finish(exit_code, lines if self._detached else ())


def stacks_sink(
    plan: JobPlan, paths: RunPaths | None, told: OnAnswer, warn: Callable[[str], None]
) -> Sink:
    """The sink that answers clients which ask where the ranks are, and writes stacks to files."""
    from dispatcher.output.text.stacks_text import Stacks

    # with a limit for silence the files are written anyway
    at = paths.folder if paths is not None and not plan.limits.hang_timeout else None
    return Stacks([node.host.name for node in (*plan.nodes, *plan.spares)], at, told, warn)
