"""``--on-end``: runs the user's command when a run ends, hangs, or restarts after a failure.

It is a sink, so a slow or wrong command does not change the run. A command runs on this machine, in
its own session, so that Ctrl-C and the end of the terminal do not reach it.
docs/guides/notifications.md lists its variables and its standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dispatcher.core.events import codec, verdicts
from dispatcher.core.events.monitor_events import RanksHung, StacksGathered
from dispatcher.core.events.run_events import TICK, Entry, JobStopping, RunRestarting, Sink
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError, reason
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.text.story import status_words
from dispatcher.output.text.verdict_text import headline
from dispatcher.runner.loop import signals_to
from dispatcher.runner.run.run_loop import HANDLED

if TYPE_CHECKING:
    from typing_extensions import Self

    from dispatcher.api.report import Report
    from dispatcher.model.paths import RunPaths
    from dispatcher.plan.job.job_plan import JobPlan

#: seconds for which a command may run
LIMIT = 30.0
#: characters of the verdict that it gets; bytes of its output that are kept, to say why it failed
MOST_TEXT = 1000


class _Call(threading.Thread):
    """Runs ``command`` once. trouble: why it failed; "" if it did not.

    document: its standard input. until: when it is killed, by the monotonic clock.
    """

    def __init__(
        self, event: str, command: str, environment: Mapping[bytes, bytes], document: bytes
    ) -> None:
        super().__init__(name="on-end", daemon=True)
        self.event, self.trouble = event, ""
        self.began = time.monotonic()
        self.until = self.began + LIMIT
        self._command, self._environment, self._document = command, environment, document

    def run(self) -> None:
        try:
            # a file in memory, since a command need not read what it gets
            with open(os.memfd_create("on-end"), "w+b") as file:
                file.write(self._document)
                file.seek(0)
                process = subprocess.Popen(
                    ["/bin/sh", "-c", self._command], env=self._environment, stdin=file,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError) as error:  # a file may set a command with a null byte
            self.trouble = reason(error) if isinstance(error, OSError) else str(error)
            return
        with process:
            self._watch(process)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the command and its output end, or kill its group."""
        assert process.stdout is not None
        said, is_open, poll = b"", True, select.poll()
        poll.register(process.stdout, select.POLLIN)
        # not reaped while its output is open: its number is the group's until then
        while is_open or process.poll() is None:
            if time.monotonic() >= self.until:
                os.killpg(process.pid, signal.SIGKILL)
                self.trouble = f"killed after {time.monotonic() - self.began:.0f} s"
                return
            if not is_open:
                time.sleep(TICK)
            elif poll.poll(1000 * TICK):
                data = os.read(process.stdout.fileno(), MOST_TEXT)
                said, is_open = (said + data)[-MOST_TEXT:], bool(data)
        if process.returncode:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            self.trouble = ": ".join(filter(None, (status_words(process.returncode), last)))


class OnEnd(Sink):
    """Runs ``command`` for the events of the run of ``plan``, and for its ``end``.

    paths: of the run's files. error_of: a failed rank's own reason. say: prints a note. As a
    context manager it also counts an error as the end.
    """

    def __init__(
        self,
        command: str,
        plan: JobPlan,
        paths: RunPaths | None,
        error_of: Callable[[verdicts.Cause], str],
        say: Callable[[str], None],
    ) -> None:
        self._command, self._error_of, self._say = command, error_of, say
        self._hosts = [one.host.name for one in (*plan.nodes, *plan.spares)]
        # not DISPATCH_RUN_ID, by which the leftovers of a run are found, and killed
        self._known = {
            "DISPATCH_JOB": plan.run_id,
            "DISPATCH_NAME": plan.name or "",
            "DISPATCH_PROGRAM": plan.command[0],
            "DISPATCH_LOG_DIR": "" if paths is None else os.path.abspath(paths.folder),
        }
        self._calls: list[_Call] = []
        self._silence = 0.0
        self._stacks: Entry | None = None

    def event(self, entry: Entry) -> None:
        match entry.event:
            case RanksHung(seconds):
                self._silence = seconds
            case StacksGathered():
                self._stacks = entry
            case JobStopping("Hung") if self._stacks is not None:
                hung = verdicts.Hung(self._silence)
                text = headline(hung, self._hosts)
                self._call("hang", hung.exit_code, text, codec.encode(self._stacks))
            case RunRestarting(cause, number, most, asked=asked):
                if not isinstance(cause, verdicts.RestartAsked):
                    why = headline(cause, self._hosts, self._error_of(cause))
                    text = f"{why}; restart {number - asked} of {most}"
                    self._call("restart", cause.exit_code, text, codec.encode(entry))

    def tick(self, now: float) -> bool:
        return self._look()

    def end(self, exit_code: int, report: Report) -> None:
        """Run the command for the end of the run, and wait for it."""
        if report.cause is None:
            text = report.closing()[-1]
        else:
            mark = f"[{report.cause.message_code}]"
            text = next(line for line in report.verdict if line.endswith(mark))
        self._end(exit_code, text, report.plain())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        code, text = errors.CLUSTER, f"{type(error).__name__}: {error}"
        if isinstance(error, DispatchError):
            code, text = error.exit_code, f"{error.message} [{error.code}]"
        elif isinstance(error, KeyboardInterrupt):
            code = errors.SIGNAL_BASE + signal.SIGINT
        if code != errors.USAGE:
            record = {"exit_code": code, "verdict": [f"error: {text}"], "ended": time.time()}
            self._end(code, f"error: {text}", record)

    def _end(self, exit_code: int, text: str, document: Mapping[str, Any]) -> None:
        """Run the command for the end after all others; a key kills those that run."""

        def hurry(signum: int) -> None:
            if signum in (signal.SIGINT, signal.SIGQUIT):
                for call in self._calls:
                    call.until = 0.0

        with signals_to(hurry, HANDLED):
            while self._look():
                time.sleep(TICK)
            self._call("end", exit_code, text, json.dumps(document).encode() + b"\n")
            while self._look():
                time.sleep(TICK)

    def _call(self, event: str, exit_code: int, text: str, document: bytes) -> None:
        known = {
            **self._known, "DISPATCH_EVENT": event, "DISPATCH_EXIT_CODE": str(exit_code),
            "DISPATCH_VERDICT": sanitize_text(text)[:MOST_TEXT],
        }  # fmt: skip
        # bytes: the locale's encoding may lack characters of the verdict
        environment = {
            name.encode(): value.encode("utf-8", "surrogateescape") for name, value in known.items()
        }
        call = _Call(event, self._command, {**os.environb, **environment}, document)
        self._calls.append(call)
        call.start()

    def _look(self) -> bool:
        """Print why commands that are over failed; whether one still runs."""
        for call in [one for one in self._calls if not one.is_alive()]:
            self._calls.remove(call)
            if call.trouble:
                self._say(f"note: --on-end ({call.event}): {call.trouble}")
        return bool(self._calls)
