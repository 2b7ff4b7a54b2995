"""The record of a run of the command line; a background run can be attached to and stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dispatcher.api.registration import JobRecord, stacks_sink
from dispatcher.api.request import cwd_of
from dispatcher.cli.options.declaration import replace
from dispatcher.core.events.run_events import Event
from dispatcher.model.errors import DispatchError, FileUnusable, reason
from dispatcher.model.paths import RunPaths, state_folder
from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.cli.run.detach import ForegroundLink
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.jobs.control_server import ControlServer
    from dispatcher.output.run_state import RunState
    from dispatcher.plan.job.job_plan import Change
    from dispatcher.plan.job.parts import Program


class JobRegistration(JobRecord):
    """The record of a run of the command line; one in the background can be called, too.

    word: to the foreground, if we are in the background. slow: the slow ranks as text.
    Raises: UsageError for a job in the background without a record: no command could reach it.
    """

    def __init__(
        self,
        plan: JobPlan,
        options: RunOptions,
        paths: RunPaths | None,
        word: ForegroundLink | None,
        state: RunState,
        tell: Callable[[Event], None],
        restart: Callable[[Change], None],
        say: Callable[[str], None],
        slow: Callable[[], tuple[str, ...]],
    ) -> None:
        self.control: ControlServer | None = None
        self._options, self._word, self._state, self._slow = options, word, state, slow
        reach = {
            "transport": options.transport,
            "rsh": options.rsh,
            "ssh_config": options.ssh_config,
            "host_keys": options.host_keys,
        }
        super().__init__(plan, reach, paths, tell, restart, say, detached=word is not None)

    def _serve(self, plan: JobPlan, paths: RunPaths | None, tell: Callable[[Event], None]) -> None:
        if self._word is None:
            super()._serve(plan, paths, tell)
            return
        from dispatcher.core.events.monitor_events import SamplesWanted, StacksWanted
        from dispatcher.jobs.control_server import ControlServer
        from dispatcher.output.monitor.run_picture import encode_picture, picture_of, snapshot_of
        from dispatcher.runner.loop import Stop

        assert self._folder is not None
        self._server = self.control = ControlServer(
            self._folder,
            Stop(tell, "dispatch stop").ordered,
            lambda: encode_picture(picture_of(self._state)),
            heads=self._options.log_merge,
            table=lambda: snapshot_of(self._state, self._slow()).plain(),
            sample=lambda seconds: tell(SamplesWanted(seconds)),
            gather=lambda: tell(StacksWanted()),
            restart=self._order_restart,
        )  # fmt: skip
        stacks = stacks_sink(plan, paths, self.control.stacks, self.control.say)
        self.sinks += [stacks, self.control, self._word]

    def _program(self, words: tuple[str, ...]) -> Program:
        from dispatcher.cli.run.request import program_of

        folder = cwd_of(self._options.chdir if self._options.sync is None else None)
        self._check_script(self._options.words[0], words, folder)
        return program_of(replace(self._options, words=words), is_typed=False)

    def _unrecorded(self, error: OSError | DispatchError) -> None:
        if self._word is not None:
            why = error.message if isinstance(error, DispatchError) else reason(error)
            refused = FileUnusable(
                f"--detach: the job cannot be recorded in {state_folder()}: {why}",
                hint="XDG_STATE_HOME=DIR dispatch ...  # your own folder on a disk with room",
            )
            self.__exit__(None, refused, None)
            raise refused from None
        super()._unrecorded(error)

    def shown_to_viewers(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """``say``, but attached callers get the lines as well."""
        control = self.control
        if control is None:
            return say

        def both(line: str) -> None:
            say(line)
            control.say(line)

        return both
