"""A run on record: written down when it begins and ends, so that ``dispatch jobs`` lists it, with a
socket at which other shells ask where its ranks are, and have them started again.
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
    """Says of hosts that a job before has lost for how long its ranks may run on there.

    names: of the run's hosts. A host is known again by its machine: names are given to others, too.
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
                text = f"a job lost it before: ranks of that may run on for {seconds:.0f} s more"
                self._tell(NodeNoticed(node, text))

    def write_down(self, left: Mapping[str, float]) -> None:
        """Remember what this run has ``left``; see ``Report.may_run_on``. Raises: OSError."""
        known = {name: self._machines[name] for name in left if self._machines.get(name)}
        if known:
            registry.note_left({machine: left[name] for name, machine in known.items()})


class JobRecord:
    """The record of ``plan``; ``sinks`` are to be told of the run, ``conclude`` of its end.

    reach: the flags that say how hosts are reached. paths: of its files, if it keeps any. tell:
    lets the run know of an event; restart: has its ranks started again. detached: it runs in the
    background. by_program: a program has begun it, no shell. say: tells the user that there is no
    record (a home that is full or read-only); the run goes on without one.
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
        """Let other shells ask and order what they may. Raises: OSError."""
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
            # whoever asks sees by itself that a disk has refused: no file is named
            make_sink=lambda told: stacks_sink(plan, paths, told, lambda line: None),
            restart=self._order_restart,
        )
        self.sinks.append(self._server)

    def _order_restart(self, order: Mapping[str, Any]) -> None:
        """Somebody wants the ranks to be started again. Raises: DispatchError, Malformed."""
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
        """What the ranks are to run. Raises: DispatchError."""
        self._check_script(self._plan.program.argv[0], words, self._plan.cwd)
        return replace(self._plan.program, argv=words)

    def _check_script(self, old: str, words: tuple[str, ...], folder: str) -> None:
        """Refuse ``words`` whose script is not here, where the ``old`` one is, in ``folder``.

        Hosts may have what this machine has not, but a script that nobody has would end the job.
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
        """There is no record, or nobody can ask: the run is worth more."""
        why = error.message if isinstance(error, DispatchError) else errors.reason(error)
        self._say(f"note: dispatch jobs and stop will not know this job: {why}")

    def answer(self) -> None:
        """From now on the run can be asked and told things: let other shells do that."""
        if self._server is not None:
            self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """A run that could not even be begun has ended, too."""
        if isinstance(error, DispatchError):
            self.conclude(error.exit_code, [f"error: {error.message} [{error.code}]"])
        elif error is not None:
            self.conclude(errors.CLUSTER, [f"error: {type(error).__name__}: {error}"])

    def conclude(
        self, exit_code: int, lines: Sequence[str], left: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Write down the end, and tell it to whoever has asked. left: see ``Report.may_run_on``."""
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
    """What finds the answer of who asks where the ranks are, and writes the whole of it down."""
    from dispatcher.output.text.stacks_text import Stacks

    # with a limit for silence the files are written anyway
    at = paths.folder if paths is not None and not plan.limits.hang_timeout else None
    return Stacks([node.host.name for node in (*plan.nodes, *plan.spares)], at, told, warn)
