"""A run on record: written down when it begins and ends, with a socket for other shells."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from dispatcher.core.events.run_events import Event, Sink
from dispatcher.jobs import registry
from dispatcher.jobs.status import Phase
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError, FileUnusable
from dispatcher.model.host import Host
from dispatcher.model.paths import RunPaths
from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.cli.run.detach import ForegroundLink
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.jobs.control_server import ControlServer
    from dispatcher.jobs.status import OnAnswer, StacksServer


class JobRegistration:
    """The record of ``plan``; ``sinks`` are to be told of the run, ``conclude`` of its end.

    slow: tells of slow ranks, in words. elsewhere: hosts where ranks run that are not in the plan.

    A run in the foreground goes on without a record where none can be written
    (a home that is full or read-only); one in the background would be out of reach.
    Raises: UsageError for the latter.
    """

    def __init__(
        self,
        plan: JobPlan,
        options: RunOptions,
        paths: RunPaths | None,
        word: ForegroundLink | None,
        tell: Callable[[Event], None],
        slow: Callable[[], tuple[str, ...]],
        elsewhere: Sequence[Host] = (),
    ) -> None:
        self.control: ControlServer | None = None
        self._stacks_server: StacksServer | None = None
        self.sinks: list[Sink] = []
        self._folder = None
        try:
            self._folder = registry.enroll(
                plan.run_id,
                program=plan.program.argv,
                hosts=[
                    (host.name, host.user, host.port)
                    for host in (*(n.host for n in (*plan.nodes, *plan.spares)), *elsewhere)
                ],
                ranks=None if plan.is_open else plan.world_size,
                logs=None if paths is None else paths.folder,
                detached=word is not None,
                reach={
                    "transport": options.transport,
                    "rsh": options.rsh,
                    "ssh_config": options.ssh_config,
                    "host_keys": options.host_keys,
                },
            )
            self.sinks = [Phase(self._folder)]
            if word is None:
                self._serve_stacks(plan, paths, tell)
            else:
                from dispatcher.cli.run.monitoring import open_table
                from dispatcher.core.events.monitor_events import SamplesWanted, StacksWanted
                from dispatcher.jobs.control_server import ControlServer
                from dispatcher.output.monitor.run_progress import encode_picture
                from dispatcher.runner.loop import Stop

                stop = Stop(tell)
                table = open_table(plan, slow)
                self.control = ControlServer(
                    self._folder, lambda how: stop(now=how == "kill"),
                    lambda: encode_picture(table.picture()),
                    heads=options.log_merge,
                    table=lambda: table.snapshot().plain(),
                    sample=lambda seconds: tell(SamplesWanted(seconds)),
                    gather=lambda: tell(StacksWanted()),
                )  # fmt: skip
                stacks = _stacks(plan, paths, self.control.stacks, self.control.say)
                self.sinks += [table, stacks, self.control, word]
        except (OSError, DispatchError) as error:
            if word is not None:
                why = error.message if isinstance(error, DispatchError) else error.strerror
                raise FileUnusable(f"--detach: the job cannot be written down: {why}") from None

    def _serve_stacks(
        self, plan: JobPlan, paths: RunPaths | None, tell: Callable[[Event], None]
    ) -> None:
        """Let other shells ask where the ranks of a run in the foreground are. Raises: OSError."""
        from dispatcher.jobs.status import StacksServer

        assert self._folder is not None

        def ask() -> None:
            from dispatcher.core.events.monitor_events import StacksWanted

            tell(StacksWanted())

        self._stacks_server = StacksServer(
            self._folder, ask, lambda told: _stacks(plan, paths, told, _nobody)
        )
        self.sinks.append(self._stacks_server)

    def shown_to_viewers(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """``say``, heard by attached callers as well."""
        control = self.control
        if control is None:
            return say

        def both(line: str) -> None:
            say(line)
            control.say(line)

        return both

    def __enter__(self) -> JobRegistration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A run that could not even be begun has ended, too."""
        if isinstance(error, DispatchError):
            self.conclude(error.exit_code, [f"error: {error.message} [{error.code}]"])
        elif error is not None:
            self.conclude(errors.CLUSTER, [f"error: {type(error).__name__}: {error}"])

    def conclude(self, exit_code: int, lines: Sequence[str]) -> None:
        """Write down the end, and tell it to whoever is attached."""
        if self._folder is not None:
            with contextlib.suppress(OSError):  # the exit code is worth more than the file
                registry.conclude(self._folder, exit_code, lines)
        if self.control is not None:
            self.control.finish(exit_code, lines)
        if self._stacks_server is not None:
            self._stacks_server.finish(exit_code)


def _nobody(line: str) -> None:
    """A disk that refuses: who asks sees that no file is named."""


def _stacks(
    plan: JobPlan,
    paths: RunPaths | None,
    told: OnAnswer,
    warn: Callable[[str], None],
) -> Sink:
    """What finds the answer of who asks where the ranks are, and writes the whole of it down."""
    from dispatcher.output.text.stacks_text import Stacks

    # with a limit for silence the files are written anyway
    at = paths.folder if paths is not None and not plan.limits.hang_timeout else None
    return Stacks([node.host.name for node in (*plan.nodes, *plan.spares)], at, told, warn)
