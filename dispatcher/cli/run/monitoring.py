"""What follows the ranks of a run if an option wants it: samples, steps, metrics, the trace.

Nothing of it is loaded unless an option wants it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.cli.options.output_options import OutputSettings
from dispatcher.core.events.run_events import TICK, Event, Sink
from dispatcher.model.errors import DispatchError, FileUnusable
from dispatcher.model.paths import anew
from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.model.paths import RunPaths
    from dispatcher.output.monitor.live_table import Table
    from dispatcher.output.monitor.outliers import StepLines


def open_table(plan: JobPlan, slow: Callable[[], tuple[str, ...]]) -> Table:
    """The fold behind the table of ``plan``; slow: see there."""
    from dispatcher.output.monitor.live_table import Table

    nodes = (*plan.nodes, *plan.spares)
    return Table([node.host.name for node in nodes], time.monotonic, slow)


class Monitoring:
    """Nothing, and nothing loaded, unless ``output`` wants something.

    sinks: who is to be told of the run. tell: takes what they find out.
    """

    def __init__(
        self,
        plan: JobPlan,
        output: OutputSettings,
        hosts: Sequence[str],
        tell: Callable[[Event], None],
    ) -> None:
        self.sinks: list[Sink] = []
        self._table: Table | None = None
        self._output = output
        self._run_id = plan.run_id
        self._steps: StepLines | None = None
        pattern = output.step_line
        if pattern is not None:
            from dispatcher.output.monitor.outliers import StepLines

            self._steps = StepLines(pattern, hosts, time.monotonic)
            self.sinks.append(self._steps)
        if output.sample is not None:
            from dispatcher.output.monitor.outliers import SampleOutliers

            self.sinks.append(SampleOutliers(tell))
        if output.metrics is not None:
            self._table = open_table(plan, self.slow)
            self.sinks.append(self._table)

    def slow(self) -> tuple[str, ...]:
        """Ranks that are slower than the others, in words."""
        return () if self._steps is None else self._steps.words()

    def metrics(self, warn: Callable[[str], None]) -> list[Sink]:
        """What writes them down, if anything does. Raises: UsageError if that cannot be begun."""
        table, path = self._table, self._output.metrics
        if table is None or path is None:
            return []
        from dispatcher.output.buffered import BufferedSink
        from dispatcher.output.monitor.metrics import Metrics, exposition

        every = self._output.sample or TICK
        try:
            sink = Metrics(lambda: exposition(table.snapshot(), self._run_id), warn, every, path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise FileUnusable(f"--metrics {path}: {why}") from None
        return [BufferedSink(sink, "metrics")]  # a slow disk or caller holds nobody


class TraceFile:
    """What ``--trace`` writes at the end, from the journal of the run: at ``paths``, or its own.

    path: None for no trace. before: seconds from the start of the process to that of the run.
    Its own journal has no name, so nothing is left of it. Raises: UsageError.
    """

    def __init__(
        self, path: str | None, paths: RunPaths | None, before: float, say: Callable[[str], None]
    ) -> None:
        self.sinks: list[Sink] = []
        self._path, self._before, self._say = path, before, say
        self._journal = None if paths is None else paths.journal
        if path is None:
            return
        try:
            self._file = open(anew(path), "w")  # noqa: SIM115
            if paths is None:
                self._keep_journal()
        except OSError as error:
            raise FileUnusable(f"--trace {path}: {error.strerror}") from None

    def _keep_journal(self) -> None:
        from tempfile import TemporaryDirectory

        from dispatcher.output.files.journal import Journal

        with TemporaryDirectory(prefix="dispatch-") as place:
            self.sinks.append(Journal(Path(place, "journal"), self._say))
            fd = os.open(Path(place, "journal"), os.O_RDONLY | os.O_CLOEXEC)
        self._journal = Path(f"/proc/self/fd/{fd}")

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is None or self._journal is None:
            return
        import json

        from dispatcher.output.files import journal
        from dispatcher.output.timeline import History, chrome

        history = History()
        try:
            for entry in journal.read(self._journal, may_break_off=True):
                history.event(entry)
            with self._file as file:
                for number, element in enumerate(chrome(history, self._before)):
                    file.write((",\n" if number else "[\n") + json.dumps(element))
                file.write("\n]\n")
        except DispatchError as error:
            self._say(f"error: --trace {self._path}: {error.message}")
        except OSError as error:
            why = (error.strerror or "").lower()
            self._say(f"error: {self._path}: trace cannot be written: {why}")
