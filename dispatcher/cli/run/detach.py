"""``--detach``: the launcher moves to the background, and the foreground waits for the start.

docs/design/detach.md has the processes and the reasons. Until the ranks run, the launcher reports
to the foreground over a socket, and asks there for passwords and passphrases; later it cannot
ask. Both forks happen before any thread is started, since a fork keeps only one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dispatcher.cli import harmless, say
from dispatcher.cli.options.declaration import replace
from dispatcher.cli.options.output_options import OutputSettings, settings
from dispatcher.cli.run.run import RunOptions
from dispatcher.model import errors
from dispatcher.model.errors import ConflictingOptions, DispatchError, LauncherKilled, UsageError
from dispatcher.model.paths import RunPaths, private_folder, state_folder
from dispatcher.plan.job.job_plan import JobPlan

#: bytes of the launcher's own output that the foreground shows when the start fails
MOST_SHOWN = 64 << 10


def detach(
    plan: JobPlan,
    options: RunOptions,
    run: Callable[[JobPlan, RunOptions, OutputSettings, RunPaths, ForegroundLink], int],
) -> int:
    """Run the plan in the background; the exit code of its start. Raises: UsageError."""
    check(options)
    log_dir = options.log_dir or str(private_folder(state_folder()))
    # the ranks' output is in the files; the launcher's own log needs no copy of it
    quiet = replace(options, log_dir=log_dir, only_ranks="none")
    output = settings(quiet, None if plan.is_open else plan.world_size)
    paths = RunPaths.create(log_dir, plan.run_id)
    return background(
        lambda word: run(plan, quiet, output, paths, word), paths, plan.run_id, plan.name
    )


def check(options: RunOptions) -> None:
    """Raises: UsageError for options that do not work in the background."""
    if options.stdin != "none":
        raise ConflictingOptions(
            "--stdin: a job in the background reads no standard input", hint="< FILE"
        )
    for option, given in (
        ("--only-ranks", options.only_ranks),
        ("--grep", options.grep),
        ("--timestamps", options.timestamps),
        ("--rank0", options.rank0),
    ):
        if given:
            raise ConflictingOptions(
                f"{option} needs a screen, and --detach has none",
                hint="dispatch attach JOB shows every rank; dispatch logs JOB --rank N one",
            )


def background(
    launcher: Callable[[ForegroundLink], int], paths: RunPaths, run_id: str, name: str | None = None
) -> int:
    """Run ``launcher`` in the background; in the foreground, the exit code of the start."""
    if threading.active_count() != 1:
        raise DispatchError("cannot detach: threads are running already")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        log = os.open(paths.launcher, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except OSError as error:
        raise errors.FileUnusable(f"{paths.launcher}: {errors.reason(error)}") from None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                ours.close()
                _become_background(log)
                _end(launcher, ForegroundLink(theirs))
        finally:
            os._exit(0)
    theirs.close()
    os.close(log)
    os.waitpid(child, 0)
    with ours:
        return _Foreground(ours, paths, run_id, name).wait()


class ForegroundLink:
    """Reports to the foreground: our pid, that the ranks run, or how it ended; and asks it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._asking = threading.Lock()
        self.tell(pid=os.getpid())

    def started(self, ranks: int) -> None:
        """Report that all ranks run."""
        self.tell(running=ranks)

    def tell(self, **fields: int | str) -> None:
        """Send one line; the foreground may have left."""
        with contextlib.suppress(OSError):  # the foreground has left, the job goes on
            self._link.sendall(json.dumps(fields).encode() + b"\n")

    def ask(self, prompt: str) -> str | None:
        """The user's answer in the foreground; None if there is none. From any thread."""
        with self._asking, contextlib.suppress(OSError, ValueError):
            self.tell(ask=prompt)
            with self._link.makefile("rb") as lines:
                answer = json.loads(lines.readline())["answer"]
            return None if answer is None else str(answer)
        return None


def _become_background(log: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


def _end(launcher: Callable[[ForegroundLink], int], word: ForegroundLink) -> None:
    """Run the job to its end and leave the process, whatever happens."""
    code, why = errors.CLUSTER, ""
    try:
        try:
            code = launcher(word)
        except DispatchError as error:
            from dispatcher.cli import print_error

            with contextlib.redirect_stderr(io.StringIO()) as said:
                code = print_error(error)
            why = said.getvalue()
        except KeyboardInterrupt:  # before the loop took signals
            code = errors.SIGNAL_BASE + signal.SIGINT
        except BaseException:  # noqa: BLE001 - there is no caller to raise to
            import traceback

            why = traceback.format_exc()
        with contextlib.suppress(OSError):
            sys.stderr.write(why)
            sys.stderr.flush()
            sys.stdout.flush()
        word.tell(ended=code, why=why)
    finally:
        os._exit(code)


class _Foreground:
    """Waits for the ranks to run, or for the end, and asks the user on the launcher's behalf."""

    def __init__(
        self, link: socket.socket, paths: RunPaths, run_id: str, name: str | None = None
    ) -> None:
        self._link = link
        self._paths = paths
        self._run_id = run_id
        self._title = f"{name} ({run_id})" if name else run_id
        self._hints = (f"  logs: {paths.folder}", f"  dispatch attach {run_id}")
        self._pid = 0
        self._unasked = ""  # a question that needed a terminal
        self._refused = False  # Ctrl-C was the answer

    def wait(self) -> int:
        """The foreground's exit code. Raises: UsageError for an open question, LauncherKilled."""
        with self._link.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline()
                except KeyboardInterrupt:
                    self._interrupt()
                    continue
                if not line and self._pid:  # it would have said how it ended
                    sys.stderr.write(_log(self._paths.launcher))
                    raise LauncherKilled(
                        f"job {self._run_id}: its launcher (pid {self._pid}) was killed",
                        hint=f"dispatch kill {self._run_id}  # ends what it may have left",
                    )
                message = json.loads(line) if line else {"ended": errors.CLUSTER}
                if "pid" in message:
                    self._pid = message["pid"]
                elif "ask" in message:
                    self._ask(str(message["ask"]))
                elif "waiting" in message:
                    _say([f"job {self._title}: waits for {message['waiting']}", *self._hints])
                    return 0
                elif "running" in message:
                    return self._runs(message["running"])
                elif "ended" in message:
                    return self._ended(int(message["ended"]), str(message.get("why", "")))

    def _ask(self, prompt: str) -> None:
        from dispatcher.output.terminal.asking import Asking

        answer = None
        try:
            answer = Asking().ask(prompt)
            if answer is None:
                self._unasked = prompt.rstrip(": ")
        except KeyboardInterrupt:
            say("")
            self._refused = True
            self._interrupt()
        with contextlib.suppress(OSError):
            self._link.sendall(json.dumps({"answer": answer}).encode() + b"\n")

    def _interrupt(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGINT)  # the launcher ends its work, and reports it

    def _runs(self, ranks: int) -> int:
        noun = "rank runs" if ranks == 1 else "ranks run"
        _say([f"job {self._title}: {ranks} {noun} (launcher: pid {self._pid})", *self._hints])
        return 0

    def _ended(self, code: int, why: str) -> int:
        text = _log(self._paths.launcher)
        text += "" if text.endswith(why) else why  # the log's disk is full
        gone = f"note: job {self._run_id} ended during startup, exit code {code}\n"
        sys.stderr.write(text or gone)
        sys.stderr.flush()
        if self._unasked and code:
            raise UsageError(
                f"--detach: there is no terminal to ask for the {self._unasked}", hint="ssh-add"
            )
        return errors.SIGNAL_BASE + signal.SIGINT if self._refused and code else code


def _log(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read()[-MOST_SHOWN:].decode(errors="replace")
    except OSError as error:
        return f"error: {path}: {error.strerror}\n"


def _say(lines: Sequence[str]) -> None:
    """Write on standard output or, if that fails, on standard error: the job runs anyway."""
    text = harmless("\n".join(lines) + "\n")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - else it is tried again at the end
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
