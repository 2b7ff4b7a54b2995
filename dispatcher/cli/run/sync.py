"""``--sync``: send the working folder to all hosts of a run before its ranks start.

Sent as with ``dispatch put``, over the run's own connections: files that differ by size or time
are sent, and each gets its name when all of it has arrived. Nothing is removed on hosts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from dispatcher.api import transports
from dispatcher.api.exec_session import ExecSession
from dispatcher.api.request import cwd_of
from dispatcher.bootstrap import payload, shell
from dispatcher.core.events import exec_events, verdicts
from dispatcher.core.events.run_events import FolderSent
from dispatcher.model import errors
from dispatcher.model.errors import CannotCopy, DispatchError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import LOCAL_NAMES
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural, size
from dispatcher.output.exec.exec_progress import CopyProgress, ExecNotes
from dispatcher.output.exec.host_results import outcome_text
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.runner.exec.exec_loop import HANDLED
from dispatcher.transfer.host_copy import CopyHandler, HostCopy
from dispatcher.transfer.put_files import Sending
from dispatcher.transfer.working_folder import WorkingFolder

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from dispatcher.cli.options.connect_options import LoginTransports
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.cli.run.run_sinks import RunFooter
    from dispatcher.core.events.run_events import SignalReceived, Sink
    from dispatcher.plan.job.job_plan import NodePlan

#: the value of ``--sync`` without a folder: the path that the working folder has here
SAME = "."
#: seconds without any byte to or from a host after which it is given up: a slow disk lists its
#: files in less, and a disk that hangs never answers
MOST_STILL = 300


def dest_of(options: RunOptions) -> str | None:
    """The folder on the hosts that the working folder is sent to, if any. Raises: UsageError."""
    if options.sync is None:
        return None
    if options.sync == SAME:
        return cwd_of(None)
    if not options.sync.startswith("/"):
        raise CannotCopy(
            f"--sync={options.sync}: must be an absolute path on the hosts",
            hint="--sync for this folder's own path",
        )
    return os.path.normpath(options.sync)


def working_folder(options: RunOptions) -> WorkingFolder | None:
    """The folder to send, listed; the caller closes it; None: there is none. Raises: UsageError."""
    dest = dest_of(options)
    return None if dest is None else WorkingFolder(cwd_of(None), dest)


def describe(options: RunOptions, plan: JobPlan) -> str:
    """The text of ``--dry-run`` about it. Raises: UsageError."""
    folder = working_folder(options)
    if folder is None:
        return "nothing"
    with closing(folder):
        hosts = fold(node.host.name for node in _places(folder, plan))
        what = f"{plural(folder.files, 'file')} ({size(folder.size)}) of {folder.source}"
        to = f"to {folder.dest} on {hosts}"
    return f"at most {what} {to}" if hosts else f"nothing: {folder.source} is here already"


def send(
    folder: WorkingFolder,
    plan: JobPlan,
    reach: LoginTransports,
    tell: Callable[[str], None],
    orders: Sequence[SignalReceived] = (),
    *,
    footer: RunFooter | None = None,
) -> verdicts.Verdict | None:
    """Send ``folder`` to the hosts of ``plan``, and close it; the verdict if not all have it.

    orders: gets more when another shell ends the run. footer: the run's, if it has one.
    """
    with closing(folder):
        failures = _sent(folder, plan, reach, tell, orders, footer)
    if isinstance(failures, exec_events.Interrupted):
        cause = verdicts.Interrupted(failures.signum, orders[0].by if orders else "")
        return verdicts.Verdict(cause, cause.exit_code, plan.world_size)
    if failures:
        rejected = verdicts.Rejected(failures, errors.CLUSTER)
        return verdicts.Verdict(rejected, errors.CLUSTER, plan.world_size)
    return None


class SendAgain:
    """Sends the working folder, in its present state, to the hosts of a run that goes on.

    tell: takes the result. n_hosts: how many the run itself has.
    """

    def __init__(
        self,
        options: RunOptions,
        plan: JobPlan,
        reach: LoginTransports,
        tell: Callable[[FolderSent], None],
        n_hosts: int,
    ) -> None:
        self._options, self._plan, self._reach = options, plan, reach
        self._tell, self._n_hosts = tell, n_hosts

    def __call__(self) -> None:
        """Begin to send; returns at once."""
        threading.Thread(target=self._run, name="sync", daemon=True).start()

    def _run(self) -> None:
        notes: list[str] = []
        try:
            folder = working_folder(self._options)
            assert folder is not None, "else nothing would be sent again"
            with closing(folder):
                failures = _sent(folder, self._plan, self._reach, notes.append, handled=())
            assert isinstance(failures, dict), "no signal arrives in this thread"
        except Exception as error:  # noqa: BLE001 - the run waits for an answer
            why = error.message if isinstance(error, DispatchError) else str(error)
            failure = Failure(Kind.CHECK, f"--sync: {why or type(error).__name__}")
            failures = dict.fromkeys(range(self._n_hosts), failure)
        known = {min(node, self._n_hosts - 1): why for node, why in failures.items()}
        self._tell(FolderSent(known, tuple(line.removeprefix("note: ") for line in notes)))


def _sent(
    folder: WorkingFolder,
    plan: JobPlan,
    reach: LoginTransports,
    tell: Callable[[str], None],
    orders: Sequence[SignalReceived] = (),
    footer: RunFooter | None = None,
    handled: Sequence[signal.Signals] = HANDLED,
) -> dict[int, Failure] | exec_events.Interrupted:
    """Why hosts, by number, do not have the files of ``folder``. handled: see ``ExecRunner``."""
    places = _places(folder, plan)
    if not places:
        return {}
    began = time.monotonic()
    copies = [HostCopy(wanted=folder.size) for _ in places]
    groups = tuple(folder.groups)
    exec_plan = ExecPlan(
        tuple(node.host for node in places),
        payload.copy_command(shell.PUT),
        stdin=True,
        limits=ExecLimits(connect=plan.limits.connect_timeout, fanout=plan.limits.fanout),
        tails=((groups[0][0], SAME),) * len(places),
    )
    sinks: list[Sink] = [ExecNotes(exec_plan.names, tell, verbose=False)]
    if footer is not None:
        copying = CopyProgress(copies)
        sinks.append(copying)
        footer.instead = copying.lines
    sending = Sending([(folder, groups)] * len(places), checksum=False, resume=True, copies=copies)
    session = ExecSession(
        exec_plan,
        lambda host: transports.TransportPool.outside_for(reach, host),  # not by a tree
        sinks,
        stdio=sending,
    )
    over = threading.Event()
    watched = (sending, over, orders, session.tell)
    threading.Thread(target=_watch, args=watched, name="sync-watch", daemon=True).start()
    try:
        results = session.run(handled)
    finally:
        over.set()
    if footer is not None:
        footer.instead = None
    failures = {}
    for node, one, copy in zip(places, results, copies, strict=True):
        if isinstance(one.outcome, exec_events.Interrupted):
            return one.outcome
        if (failure := _failure(one.outcome, copy)) is not None:
            failures[node.index] = failure
    if not failures:
        what = _summary(folder, exec_plan.names, copies)
        tell(f"note: {what}, {time.monotonic() - began:.2f} s")
    return failures


def _watch(
    sending: CopyHandler,
    over: threading.Event,
    orders: Sequence[SignalReceived],
    tell: Callable[[SignalReceived], None],
) -> None:
    """Give up hosts with which nothing moves for ``MOST_STILL`` seconds, until ``over``."""
    still: dict[int, tuple[int, int]] = {}  # host -> bytes, and seconds since there were so many
    n_told = 0
    while not over.wait(1):  # counts seconds while we run: stopped, no byte moves
        for order in orders[n_told:]:
            tell(order)
            n_told += 1
        for node, moved in sending.moved().items():
            before, seconds = still.get(node, (-1, 0))
            still[node] = moved, seconds + 1 if moved == before else 0
            if still[node][1] >= MOST_STILL:
                sending.give_up(node, f"nothing moves for {MOST_STILL} s; its disk may hang")


def _places(folder: WorkingFolder, plan: JobPlan) -> Sequence[NodePlan]:
    """The nodes of all hosts to send to, without this one if its folder is the very same."""
    same = os.path.realpath(folder.dest) == os.path.realpath(folder.source)
    every = (*plan.nodes, *plan.spares)
    return [node for node in every if not (same and node.host.name in LOCAL_NAMES)]


def _failure(outcome: exec_events.Outcome, copy: HostCopy) -> Failure | None:
    """Why a host does not have the files, or None."""
    if copy.error is not None:
        kind = Kind.PROTOCOL if copy.hostile else Kind.LOST if copy.late else Kind.CHECK
        return Failure(kind, f"--sync: {sanitize_text(copy.error)}")
    if isinstance(outcome, exec_events.Failed):
        return outcome.failure
    if not exec_events.is_good(outcome):
        return Failure(Kind.CHECK, f"--sync: {outcome_text(outcome)}")
    return None if copy.sent is not None else Failure(Kind.CHECK, "--sync: the copy ended early")


def _summary(folder: WorkingFolder, names: Sequence[str], copies: Sequence[HostCopy]) -> str:
    """``sync: 3 of 2000 files (4.1 KiB) sent to n[1-4]``."""
    changed = [name for name, copy in zip(names, copies, strict=True) if copy.sent]
    if not changed:
        same = f"all {folder.files} files are" if folder.files > 1 else "the only file is"
        return f"--sync: {same} the same on {fold(names)}"
    most, every = max(copies, key=lambda copy: copy.bytes), plural(folder.files, "file")
    what = f"{max(copy.sent or 0 for copy in copies)} of {every} ({size(most.bytes)})"
    return f"--sync: {what} sent to {fold(changed)}"
