"""The agent's one loop: bytes in and out, ranks reaped, deadlines kept.

Control frames always go before output frames. Output is read from the ranks only while there is
credit and little of it waits, so a slow launcher holds the ranks back through their own pipes.
Longer than other modules because every descriptor and every action of the agent meets in it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import select
import sys
from _collections import deque  # type: ignore[import-not-found]
from errno import EIO
from time import monotonic

from dispatcher.remote.agent.node import Node
from dispatcher.remote.host import host_facts, own_folder, process, proctree
from dispatcher.remote.host.poll import Poll, read_ready
from dispatcher.remote.protocol import frames
from dispatcher.remote.protocol.packing import PackError, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dispatcher.remote.agent.guardian import GuardianPipe
    from dispatcher.remote.agent.node import Action
    from dispatcher.remote.agent.rank_stdin import Stdin
    from dispatcher.remote.agent.rendezvous_port import RendezvousPort
    from dispatcher.remote.host.process import Process
    from dispatcher.remote.host.ssh_peer import SilenceWatch, SshPeer
    from dispatcher.remote.pmi.pmi_connections import PmiConnections
    from dispatcher.remote.probe.sampler import Sampler

#: bytes of output that may wait for the link before the ranks' pipes are left unread
LANE_LIMIT = 256 << 10
#: the most bytes that a pipe can hold (pipe-max-size of pipe(7))
PIPE_LIMIT = 1 << 20
#: the most bytes of the lanes in one write
BURST = 64 << 10


class Loop:
    """Joins the link (two descriptors), the ranks and the ``Node`` that decides.

    later: gives the function for an action that has no method here, by its name.
    """

    def __init__(
        self,
        link_in: int,
        link_out: int,
        guardian: GuardianPipe,
        later: Callable[[str], Callable[..., None]],
    ) -> None:
        self.later = later
        self.link_in = link_in
        self.link_out = link_out
        self.guardian = guardian
        self.node = Node(monotonic())
        self.decoder = frames.Decoder()
        self.first: deque[bytes] = deque()  # control frames
        self.second: deque[bytes] = deque()  # output frames
        self.second_size = 0
        self.sending = b""  # the rest of a frame that is half written
        self.credit = 0
        self.ranks: dict[int, Process] = {}  # rank -> Process
        self.by_pid: dict[int, Process] = {}
        # the ranks' pipes: fd -> (Process, stream)
        self.readable: dict[int, tuple[Process, int]] = {}
        self.cuts: deque[Process] = deque()  # ranks whose pipes must be closed
        self.reading = True
        self.cwd = b"/"
        self.token = b""  # of the run
        self.error_folder: str | None = None
        self.watched = b""
        self.no_failure_yet = True  # no rank has failed, and dispatch has ended none
        self.before_start = (0, 0.0)  # the OOM killer's count, and when
        self.rendezvous: RendezvousPort | None = None
        self.pmi: PmiConnections | None = None
        self.stdin: Stdin | None = None
        self.bind: dict[int, list[list[int]]] = {}  # rank -> its CPUs, and NUMA nodes
        self.sampler: Sampler | None = None
        self.peer: SshPeer | None = None  # the launcher's machine, if its answers can be seen
        self.question: SilenceWatch | None = None
        self.exit_code: int | None = None
        self.poll = Poll(self.act)

    def run(self) -> int:
        """Serve until the job is over; returns the agent's exit code."""
        self.poll.on_child(self.reap)
        lost: list[int] = []
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda number, _: lost.append(number))
        os.set_blocking(self.link_in, False)
        os.set_blocking(self.link_out, False)
        self.poll.add(self.link_in, lambda *_: self.read_link())
        # the process that started the agent may have blocked signals that the agent needs
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        while True:
            self.act(self.node.tick(monotonic()))
            if self.pmi is not None:
                self.act(self.pmi.tick(monotonic()))
            if lost:
                self.tell(("lifeline", self.guardian.why(lost.pop())))
            self.flush()
            self.let_go()
            if self.exit_code is not None:
                self.drain()
                return self.exit_code
            when = self.node.next_deadline()
            if self.pmi is not None:
                when = min(when, self.pmi.next_deadline())
            self.poll.turn(max(0.0, min(when - monotonic(), 1e6)))  # it takes no infinity

    # -- the machine ----------------------------------------------------------

    def tell(self, event: tuple[Any, ...]) -> None:
        """Give the node an event, and do its actions."""
        self.act(self.node.handle(event, monotonic()))

    def act(self, actions: list[Action] | None) -> None:
        """Do each action by the method of its name, or else by the function of ``later``."""
        for name, *words in actions or ():
            do = getattr(self, "do_" + name, None)
            if do is not None:
                do(*words)
            else:
                self.later(name)(self, *words)

    def do_send(self, type: str, fields: dict[str, Any]) -> None:
        """Queue a report, ahead of all output."""
        self.first.append(frames.control(type, **fields))

    def do_alive(self) -> None:
        """Show the guardian that we live."""
        self.guardian.alive()

    def do_credit(self, count: int) -> None:
        """``count`` more bytes of output may be sent."""
        self.credit += count
        self.pace()

    def do_taken(self, count: int) -> None:
        """``count`` more bytes of input may come."""
        self.first.append(frames.encode(frames.TAKEN, frames.COUNT.pack(count)))

    def do_prepare(self, message: dict[str, Any]) -> None:
        """Look at the host, reserve the port, report the host's facts."""
        self.cwd, self.token = message["cwd"], message["token"]
        if self.error_folder:  # of an earlier attempt, whose ranks are dead
            own_folder.remove(self.error_folder)
        expect = self.guardian.expect
        lease, grace = message["lease"], message["lifeline_grace"]
        beat = 0.0
        if self.peer is not None:
            beat = message["heartbeat"]
            self.node.watches = True
        self.no_failure_yet = True
        if passed_over := os.environ.pop("DISPATCH_AGENT_PYTHON", ""):
            text = "--agent-python %s does not work on this host; the agent runs on %s"
            self.do_send("node.noticed", {"text": text % (passed_over, sys.executable)})
        if self.pmi is not None:
            self.pmi.close_ports()
        self.pmi = None
        self.watched = message.get("watch") or b""
        programs = [(self.cwd, message["path"], message["check"]), *(message.get("more") or ())]
        own = os.environb.get(b"PATH")  # which ranks get unless the order sets a PATH
        asked = [
            (check, cwd, own if path is None else process.expand(path))
            for cwd, path, check in programs
        ]
        facts, problems = host_facts.judged(asked, self.watched)
        self.error_folder = None
        if any(what == "silent" for what, _ in problems):
            expect(lease, grace, beat, "")  # on a silent disk the agent would have to wait, too
        else:
            facts["mark"] = self.mark()
            self.error_folder = own_folder.make(
                message["run_id"], lambda path: expect(lease, grace, beat, path)
            )
        found = {**host_facts.gather(message["check"]), **facts}
        found["error_folder"] = self.error_folder
        found["self_fencing"] = self.peer is not None
        wanted = message["reserve"]
        before, self.rendezvous = self.rendezvous, None
        if before is not None:
            self.poll.remove(before.fileno())
        if wanted is not None:
            from dispatcher.remote.agent.rendezvous_port import RendezvousPort

            if before is not None and wanted:
                before.close()  # it has claimed the same port
            try:
                self.rendezvous = port = RendezvousPort(self.token, wanted)
                self.poll.add(port.fileno(), lambda *_: port.greet())
                found["port"] = port.port
            except OSError as error:
                which = "port %d" % wanted if wanted else "any port"
                problems.append(["port", "%s cannot be kept free: %s" % (which, error.strerror)])
        if before is not None:
            before.close()  # only now, so that a port of the kernel's choice is another
        self.do_send(
            "node.ready",
            {"attempt": message.get("attempt", 0), "facts": found, "problems": problems},
        )
        self.flush()
        self.guardian.alive()

    def do_watch(self) -> None:
        """Begin to watch whether the launcher's machine answers, as far as the kernel shows it."""
        from dispatcher.remote.host.ssh_peer import SshPeer

        try:
            self.peer = SshPeer()
        except (OSError, ValueError, KeyError):
            pass  # not started by sshd, or the kernel does not show it

    def mark(self) -> int | None:
        """When the file that shows progress was changed, in ns; None if there is no such file."""
        if not self.watched:
            return None
        try:
            return os.stat(os.path.join(self.cwd, self.watched)).st_mtime_ns
        except OSError:
            return None

    def do_probe(self, message: dict[str, Any]) -> None:
        """Try the addresses of the order; this may take its ``seconds``."""
        from dispatcher.remote.agent.rendezvous_port import probe

        reached = probe(message["addresses"], message["port"], self.token, message["seconds"])
        self.do_send("node.probed", {"reached": reached})

    def do_start_ranks(self, message: dict[str, Any]) -> None:
        """Start the ranks of the plan."""
        self.before_start = (host_facts.oom_kills(), monotonic())
        if self.rendezvous is not None:
            self.poll.remove(self.rendezvous.fileno())
            self.rendezvous.close_listener()
        if message.get("stdin"):
            from dispatcher.remote.agent.rank_stdin import Stdin

            self.stdin = Stdin(self.poll, message["stdin"])
        self.bind = {rank: where for rank, *where in message.get("bind") or ()}
        self.do_spawn_ranks(message)

    def do_spawn_ranks(self, message: dict[str, Any]) -> None:
        """Start the ranks of a world; the launcher hears about each of them."""
        base = process.scrubbed(os.environb.items(), message["scrub"])
        base.update(message["common"])
        pmi = message.get("pmi")
        if pmi is not None:
            from dispatcher.remote.pmi.pmi_connections import PmiConnections

            self.pmi = self.pmi or PmiConnections(self.poll)
            self.pmi.add(pmi, [rank for rank, *_ in message["ranks"]])
        pairs, seen = [], monotonic()
        for rank, argv, env, *where in message["ranks"]:
            if monotonic() >= seen + self.node.heartbeat:
                seen = self.show_life()  # a hundred ranks take long to start where all is busy
            own = dict(base)
            own.update(env)
            own.update({name: process.expand(text) for name, text in own.items() if b"\0" in text})
            if pmi is not None and self.pmi is not None:  # each may have its own PYTHONPATH
                self.pmi.place_hook(self.error_folder, own, pmi.get("hook"))
            cwd = os.path.join(self.cwd, *filter(None, where[:1]))
            own[b"PWD"] = cwd
            try:
                started = self.spawn(rank, process.locate(argv, *where[1:]), own, cwd)
            except process.SpawnError as error:
                self.do_send(
                    "rank.failed_to_start",
                    {"rank": rank, "errno": error.errno, "step": error.step, "what": error.what},
                )
                continue
            self.ranks[rank] = started
            self.by_pid[started.pid] = started
            for stream, fd in started.pipes.items():
                self.readable[fd] = (started, stream)
                if self.reading:
                    self.listen(fd)
            pairs.append([rank, started.pid])
        self.tell(("spawned", pairs))
        if self.sampler is not None:
            self.act([("sample", {"seconds": self.sampler.seconds})])

    def show_life(self) -> float:
        """Tell the launcher and the guardian, in the middle of long work; the time now."""
        self.do_send("node.heard", {})
        self.flush()
        self.guardian.alive()
        return monotonic()

    def spawn(self, rank: int, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> Process:
        """Start one rank, with its PMI connection and its input. Raises: SpawnError."""
        keep = stdin = -1
        try:
            if self.pmi is not None:
                keep, known = self.pmi.open(rank)
                env.update(known)
            if self.stdin is not None and rank in self.stdin.readers:
                stdin = self.stdin.open(rank)
            if rank not in self.bind:
                return process.spawn(rank, argv, env, cwd, keep, stdin)
            from dispatcher.remote.host.binding import Bound

            with Bound(*self.bind[rank]) as bound:
                if bound.refused:
                    text = "rank %d is not bound as planned: %s" % (rank, bound.refused)
                    self.do_send("node.noticed", {"text": text})
                return process.spawn(rank, argv, env, cwd, keep, stdin)
        except (process.SpawnError, OSError) as error:
            if self.pmi is not None:
                self.pmi.leave(rank)
            if self.stdin is not None:
                self.stdin.close(rank)
            if isinstance(error, process.SpawnError):
                raise
            raise process.SpawnError("fork", error.errno or EIO, "rank %d" % rank) from None
        finally:
            for fd in (keep, stdin):
                if fd >= 0:
                    os.close(fd)

    def do_sweep(self) -> None:
        """Kill all processes below the agent, and report how many there were."""
        self.no_failure_yet = False
        if self.pmi is not None:
            self.pmi.note_segments()
        ended = {member.pid for member in self.ranks.values()}  # a rank had its grace period
        if self.sampler is not None:
            ended |= self.sampler.stop()
            self.sampler = None
        if self.pmi is not None:
            ended.add(self.pmi.serving())
        killed, left = proctree.kill_all(self.reap, at_once=ended)
        if self.pmi is not None and not left:
            self.pmi.remove_segments()
        stuck = [proctree.where_stuck(pid) for pid in left[:16]]
        self.tell(("swept", len(killed - ended), left, self.mark(), stuck))

    def do_cut(self, rank: int) -> None:
        """Queue a rank whose pipes are open after its exit; ``let_go`` closes them in turn."""
        self.cuts.append(self.ranks[rank])

    def let_go(self) -> None:
        """Close the queued pipes. Data read here needs no credit; the next rank waits for some."""
        while self.cuts and not self.node.held_back:
            member = self.cuts.popleft()
            for stream, fd in list(member.pipes.items()):
                size = 0  # read up to a full pipe: nothing that the rank itself wrote is lost
                while size < PIPE_LIMIT and (data := read_ready(fd, frames.OUTPUT_LIMIT)):
                    size += len(data)
                    self.take_output(member, stream, data)
                self.end_stream(member, stream)
            self.flush()

    def do_exit(self, code: int) -> None:
        """End the loop once the last frames are sent; the agent does not read on."""
        self.exit_code = code
        if self.error_folder:
            own_folder.remove(self.error_folder)

    # -- ranks ----------------------------------------------------------------

    def reap(self) -> None:
        """Collect all that have ended, and report the ranks among them."""
        for pid, status in proctree.reaped():
            member = self.by_pid.pop(pid, None)
            if member is not None:
                member.status = proctree.exit_status(status)
                if member.told_alone:  # now it is the turn of the others
                    proctree.signal_leftovers(member.pid, signal.SIGTERM)
                if self.pmi is not None:
                    self.act(self.pmi.ended(member.rank, member.status, monotonic()))
                if self.stdin is not None:
                    self.act(self.stdin.ended(member.rank))
                why = self.examine(member)
                if self.pmi is not None and self.pmi.way:
                    why["mpi"] = self.pmi.way
                self.tell(("exited", member.rank, member.status, why))
                if not member.pipes:  # it had closed them before
                    self.forget(member)

    def examine(self, member: Process) -> dict[str, Any]:
        """Evidence for the cause of the first failure on this host that dispatch did not cause."""
        if not member.status or not self.no_failure_yet:
            return {}
        self.no_failure_yet = False
        from dispatcher.remote.host.failure_info import exit_fields

        return exit_fields(
            member.rank, member.pid, member.status, self.error_folder, *self.before_start
        )

    def read_sampler(self) -> list[Action]:
        """Take the sampler's messages, without samples while the launcher does not read."""
        drop = self.node.paused or len(self.first) > 64
        return [] if self.sampler is None else self.sampler.read(drop)

    def listen(self, fd: int) -> None:
        """Read this output of a rank as soon as there is some."""
        self.poll.add(fd, lambda *_: self.read_rank(fd))

    def read_rank(self, fd: int) -> None:
        """Take output of a rank, as much as there is credit for."""
        member, stream = self.readable[fd]
        if self.credit <= 0 or self.second_size > LANE_LIMIT:
            return  # another was read just before: ``flush`` leaves the pipes alone
        data = read_ready(fd, min(frames.OUTPUT_LIMIT, self.credit))
        if data is None:
            return
        if not data:
            self.end_stream(member, stream)
            return
        # last in the order of ``pace``, so that small credit is shared by all ranks
        self.readable[fd] = self.readable.pop(fd)
        self.take_output(member, stream, data)
        self.pace()

    def take_output(self, member: Process, stream: int, data: bytes) -> None:
        """Count and queue what a rank has written."""
        member.counts[stream] += len(data)
        member.wrote = monotonic()
        self.credit -= len(data)
        self.queue_output(frames.encode(frames.OUTPUT, data, member.rank, stream))

    def do_output(self, rank: int, stream: int, data: bytes) -> None:
        """Queue output of MPI for ``rank`` as the rank's own; beyond a limit only count it."""
        member = self.ranks.get(rank)
        if member is None:
            return
        has_room = self.second_size <= LANE_LIMIT and self.credit > -PIPE_LIMIT
        if stream in member.pipes and has_room:
            self.take_output(member, stream, data)
        else:
            member.left_out += len(data)

    def silence(self, rank: int) -> float | None:
        """Seconds since ``rank`` wrote, began or was last held back; None when it is over."""
        if rank not in self.ranks:
            return None
        return 0.0 if self.node.held_back else round(monotonic() - self.ranks[rank].wrote, 1)

    def end_stream(self, member: Process, stream: int) -> None:
        """An output of a rank has ended: close it, and say how long it was."""
        fd = member.pipes.pop(stream)
        del self.readable[fd]
        self.poll.remove(fd)
        os.close(fd)
        count = frames.COUNT.pack(member.counts[stream])
        self.queue_output(frames.encode(frames.ENDED, count, member.rank, stream))
        if not member.pipes and member.status is not None:
            self.forget(member)

    def forget(self, member: Process) -> None:
        """Drop a rank that has exited and whose output was read to the end."""
        del self.ranks[member.rank]
        if member.left_out:
            text = "rank %d: %d bytes that its MPI logged are left out"
            self.do_send("node.noticed", {"text": text % (member.rank, member.left_out)})
        self.tell(("drained", member.rank))

    def queue_output(self, frame: bytes) -> None:
        """Queue a frame of output, which is sent after all control frames."""
        self.second.append(frame)
        self.second_size += len(frame)

    def pace(self) -> None:
        """Read the ranks' pipes only while their output may be sent on."""
        wanted = self.credit > 0 and self.second_size <= LANE_LIMIT
        self.node.held_back = not wanted
        if wanted == self.reading:
            return
        self.reading = wanted
        for fd in self.readable:
            (self.listen if wanted else self.poll.remove)(fd)

    # -- the link -------------------------------------------------------------

    def read_link(self) -> None:
        """Carry out the launcher's frames; end of file or an invalid frame ends the link."""
        data = read_ready(self.link_in, 1 << 20)
        if data is None:
            return
        if not data:
            self.lose_link()
            return
        try:
            for frame in self.decoder.feed(data):
                if frame.kind == frames.CONTROL:
                    order = unpack(frame.body)
                    # an agent that runs from files has them all
                    getattr(__spec__.loader, "sources", {}).update(order.get("parts", ()))
                    self.tell(("order", order))
                elif frame.kind != frames.INPUT:
                    raise frames.WireError("output from the launcher")  # noqa: TRY301
                elif self.stdin is not None:
                    self.act(self.stdin.feed(frame.body))
        except (frames.WireError, PackError) as error:
            self.do_send("node.noticed", {"text": "bad order: %s" % error})
            self.lose_link()

    def lose_link(self) -> None:
        """The link has ended: the ranks follow."""
        self.poll.remove(self.link_in)
        self.tell(("lifeline", self.guardian.why()))

    def flush(self) -> None:
        """Write what the link takes now; wait for it in the poll when something is left."""
        try:
            while self.sending or self.first or self.second:
                if not self.sending:
                    self.sending = self.next_burst()
                size = os.write(self.link_out, self.sending)
                self.sending = self.sending[size:]
        except BlockingIOError:
            pass
        except OSError:  # the reader is gone; the end of link_in shows the same
            self.sending = b""
            self.first.clear()
            self.second.clear()
            self.second_size = 0
        self.pace()
        if not self.sending:
            self.poll.remove(self.link_out)
        elif self.link_out not in self.poll.calls:
            self.poll.add(self.link_out, lambda *_: None, select.EPOLLOUT)

    def next_burst(self) -> bytes:
        """Whole frames for one write: all control first, then some output."""
        parts = list(self.first)
        self.first.clear()
        size = sum(map(len, parts))
        while self.second and size < BURST:
            frame = self.second.popleft()
            self.second_size -= len(frame)
            size += len(frame)
            parts.append(frame)
        return b"".join(parts)

    def drain(self) -> None:
        """Give the last frames a bounded time to leave."""
        if self.rendezvous is not None:
            self.rendezvous.close()
        self.guardian.leave()
        end = monotonic() + 2.0
        while (self.sending or self.first or self.second) and monotonic() < end:
            self.flush()
            if self.sending:
                select.select([], [self.link_out], [], 0.1)
