"""Short notes to the user on standard error while the run goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from dispatcher.core.events import monitor_events, mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.core.events.verdicts import Cause, RestartAsked
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.output.text.fold import fold_ranks
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.text.story import status_words
from dispatcher.output.text.verdict_text import headline
from dispatcher.plan.job.placement import rank_name

#: hosts of a rank map that are shown one by one
MOST_MAPPED = 32


class Notes(Sink):
    """Prints a note for important events at once; with ``verbose``, for every step of a host.

    hosts: node -> name. say: writes one line. error_of: a failed rank's own reason. reached: the
    progress of the ranks, as ``--progress-line`` found it.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        say: Callable[[str], None],
        *,
        verbose: bool,
        error_of: Callable[[Cause], str] = lambda cause: "",
        reached: Callable[[], str] = str,
    ) -> None:
        self._hosts = hosts
        self._tell = say
        self._verbose = verbose
        self._error_of = error_of
        self._reached = reached
        self._restart = ""  # the last, as text
        self._unbound: set[frozenset[str]] = set()  # reasons not to bind, by host
        # a notice of one host, which was shown -> the others that sent the same
        self._others: dict[str, list[str]] = {}

    def _say(self, line: str) -> None:
        self._tell(sanitize_text(line))  # most of them have text from hosts

    def event(self, entry: Entry) -> None:
        match entry.event:
            case ev.NodeNoticed(node, notice):
                if notice in self._others and not self._verbose:
                    self._others[notice].append(self._hosts[node])
                    return
                self._others[notice] = []
            case ev.RanksPlaced() | monitor_events.RunClosed():
                for same, hosts in self._others.items():
                    if hosts:
                        self._say(f"note: {fold(hosts)}: {same}")
                        hosts.clear()
        text = self._always(entry.event)
        if text is None and self._verbose:
            text = self._detail(entry.event)
            if text is not None:
                text = f"{entry.t:.3f} s: {text}"
        if text is not None:
            self._say(f"note: {text}")
        if isinstance(entry.event, monitor_events.NetworksDiffer):
            from dispatcher.output.monitor.nccl_listener import network_text

            note, hint = network_text(entry.event, self._hosts)
            self._say(f"note: {note}")
            self._say(f"  hint: {hint}")

    def _always(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeNoticed(node, text):
                return f"{self._hosts[node]}: {text}"
            case ev.HostsNoted(_, text):
                return text
            case ev.RanksBound(in_full=True):
                return self._detail(event)
            case ev.RanksBound(node, bound, unbound, is_asked) if unbound and is_asked:
                reasons = frozenset(why for why, _ in unbound)
                if reasons in self._unbound:
                    return None
                self._unbound.add(reasons)
                parts = [f"{fold_ranks(ranks)}: {why}" for why, ranks in unbound[:MOST_MAPPED]]
                rest = " (the others are)" if bound else ""
                more = " (-v shows other hosts, too)" if len(self._hosts) > 1 else ""
                return f"{self._hosts[node]}: not bound{rest}: {'; '.join(parts)}{more}"
            case ev.RankLeaked(node, rank):
                return (
                    f"rank {rank_name(rank)} on {self._hosts[node]} ended, but a process it "
                    "started held its output open; later output of that process is not shown"
                )
            case ev.InputLeft(ranks, most, total):
                return (
                    f"{fold_ranks(ranks)} did not take all of standard input: "
                    f"{most} of {total} bytes were left"
                )
            case ev.InputBroken(why):
                return f"standard input: {why}; the ranks got its end at that point"
            case mpi_events.PmiWaiting(node, never, absent, seconds, some):
                where = self._hosts[node]
                parts = [f"{fold_ranks(never)} on {where} (never called MPI_Init)"] if never else []
                these = "some of " if some else ""
                parts += [f"{these}{fold_ranks(absent)} on {where}"] if absent else []
                return f"MPI: waiting for {' and '.join(parts)} since {seconds:.0f} s"
            case monitor_events.RanksStalled(ranks, seconds):
                return f"{fold_ranks(ranks)}: no output for {seconds:g} s"
            case monitor_events.GpuTroubled():
                from dispatcher.output.monitor.notices import gpu_text

                return gpu_text(event, self._hosts)
            case monitor_events.RanksApart():
                from dispatcher.output.monitor.outliers import outlier_text

                return outlier_text(event, self._hosts)
            case monitor_events.RanksHung(seconds, writing):
                if writing:
                    return f"ranks write, but nothing else has happened for {seconds:.0f} s"
                return f"no activity on any rank for {seconds:.0f} s; looking where they are"
            case ev.TimeShort(signum, seconds):
                return f"{seconds:g} s are left: all ranks get {signal.Signals(signum).name}"
            case ev.RanksAwaited(ranks, seconds, sooner):
                they, them = ("they are", "them") if ranks[1:] else ("it is", "it")
                now = f"; {sooner} kills {them} now" if sooner else ""
                wait = f"in {seconds:.0f} s {they} killed{now}"
                return f"waiting for {fold_ranks(ranks)} to end; {wait}"
            case monitor_events.RanksWait(seconds, still, busy):
                return (
                    f"no output for {seconds:.0f} s; {fold_ranks(still)}: no CPU; "
                    f"{fold_ranks(busy)}: busy, which may be a wait that spins "
                    "(--progress-line REGEX shows which), so the job is not ended"
                )
            case mpi_events.SpawnRefused(node, rank, why):
                who = f"rank {rank_name(rank)} on {self._hosts[node]}"
                return f"{who}: MPI_Comm_spawn: {why}"
            case ev.NodeConnecting(node, attempt) if attempt > 1:
                return f"{self._hosts[node]}: connection was dropped, attempt {attempt}"
            case ev.RunRestarting(cause, number, most, seconds, asked):
                when = f" in {seconds:.0f} s" if seconds >= 1 else ""
                why = headline(cause, self._hosts, self._error_of(cause))
                self._restart = f"restart {number - asked} of {most}"
                if isinstance(cause, RestartAsked):
                    self._restart = f"attempt {number + 1}"
                reached = sanitize_text(self._reached())
                return f"{why}; {self._restart}{when}{reached and f', after {reached}'}"
            case ev.FolderSent(notes=notes) if notes:
                return "; ".join(notes)
            case ev.RestartRefused(why):
                return f"not restarted, as dispatch restart asked: {why}"
            case ev.RanksProgressed(what=what) if what and self._restart:
                return f"{self._restart} goes on at {sanitize_text(what)}"
            case ev.NodeCleared(node, killed):
                left = f", {killed} were killed" if killed else ""
                return f"{self._hosts[node]}: checked again: no process of the run is left{left}"
            case ev.HostReplaced(node, by, ranks, why):
                place = f" with {fold_ranks(ranks)}" if ranks else ""
                old, new = self._hosts[node], self._hosts[by]
                return f"{new} takes the place of {old}{place} ({why})"
            case ev.HostLeftOut(node, why):
                return f"{self._hosts[node]}: not used any more: {why}"
            case ev.HostsSilent(nodes, seconds, limit):
                who, some = fold(self._hosts[node] for node in nodes), len(nodes) > 1
                if not limit:
                    return f"{who} respond{'' if some else 's'} again after {seconds:.0f} s"
                then = f"after {limit:.0f} s {'they are' if some else 'it is'} lost (--heartbeat)"
                return f"{who} {'have' if some else 'has'} been silent for {seconds:.0f} s; {then}"
            case ev.LauncherSlept(seconds):
                return f"this machine slept or was stopped for {seconds:.0f} s"
            case ev.HostReturned(node):
                return f"{self._hosts[node]}: is back, and can be used at the next restart"
            case ev.WorldShrunk(nodes, counts) | ev.WorldGrown(nodes, counts):
                each = [f"{self._hosts[n]}:{count}" for n, count in zip(nodes, counts, strict=True)]
                left = f"{plural(len(nodes), 'host')} and {plural(sum(counts), 'rank')}"
                more = ", ..." if len(each) > MOST_MAPPED else ""
                return f"{left} go on: {', '.join(each[:MOST_MAPPED])}{more}"
        return None

    def _detail(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeConnected(node, address, transport, _):
                return f"{self._hosts[node]}: connected to {address or 'it'} by {transport}"
            case ev.NodeBooted(node, noise):
                after = f" after {plural(noise, 'byte')} of noise" if noise else ""
                return f"{self._hosts[node]}: agent is up{after}"
            case ev.NodeReady(node, facts):
                return (
                    f"{self._hosts[node]}: {facts.hostname}, python {facts.python}, "
                    f"{plural(facts.cores, 'core')}, {plural(facts.gpus, 'GPU')}"
                )
            case ev.RanksPlaced(size, addr, port, parts=programs):
                of = ", ".join(f"{count} of {program}" for program, count in programs)
                who = f"{plural(size, 'rank')}{of and f' ({of})'}"
                return f"{who} {'starts' if size == 1 else 'start'}, meeting at {addr}:{port}"
            case mpi_events.WorldPlaced(world, by, _, nodes):
                where = fold(dict.fromkeys(self._hosts[node] for node in nodes))
                ranks = plural(len(nodes), "rank")
                return f"rank {rank_name(by)} spawns world {world}: {ranks} on {where}"
            case mpi_events.MpiFound(node, library, served):
                what = library or "not known from the rank's libraries"
                return f"{self._hosts[node]}: MPI is {what}, served by {served}"
            case ev.RanksBound(node, bound, unbound):
                parts = [f"{fold_ranks(ranks)} on {where}" for where, ranks in bound]
                parts += [f"{fold_ranks(ranks)} not bound: {why}" for why, ranks in unbound]
                most = len(parts) if event.in_full else MOST_MAPPED
                more = "; ..." if len(parts) > most else ""
                return f"{self._hosts[node]}: {'; '.join(parts[:most])}{more}"
            case ev.RankSpawned(node, rank, pid):
                return f"rank {rank_name(rank)} on {self._hosts[node]}: started, pid {pid}"
            case ev.RankExited(node, rank, status):
                return f"rank {rank_name(rank)} on {self._hosts[node]}: {status_words(status)}"
            case ev.NodeLost(node, failure):
                return f"{self._hosts[node]}: {failure.kind.value}: {failure.why}"
            case ev.NodeDying(node, why):
                return f"{self._hosts[node]}: {why}"
            case ev.JobStopping(why):
                return f"ending the job: {why}"
        return None
