"""What runs on an inner host of a connection tree: opens the hosts below it for the root.

It is sent only where there is a tree, is installed nowhere and ends with its link: the end
of its standard input ends it and every ``ssh`` it started. It knows nothing of trees,
agents or users. The root names commands, this starts them, each in its own session, and
carries their bytes over the one link, without looking into them: the far end of
``protocol.mux``, whose OPEN holds the lines for known_hosts and then the words of the command, NUL
between them, and whose ENDED 4 bytes: its exit code, or -n for signal n. A CLOSE kills a
command that leads to another host. Besides that they say:

=====  ====  ===============================================================
KEEP   down  bytes that many commands will read; their place stands for the channel
KEPT   down  4 bytes: the place of what is a channel's next input
PULSE  down  the size and the bytes of a ping, then the channels it is for, 4 bytes each;
       up    the channels that have answered with a NUL as an error, 4 bytes each
=====  ====  ===============================================================

While the link takes nothing no output is read. What is short and urgent (ENDED, MORE_INPUT, PULSE)
passes all output. What waits for the link goes in few writes, so that many short answers are not as
many packets. It imports little: every inner host waits for its start.
"""

from __future__ import annotations

import os
import select
import sys
from _collections import deque  # type: ignore[import-not-found]
from _signal import SIGCHLD, set_wakeup_fd  # type: ignore
from _signal import signal as on_signal
from _struct import Struct
from time import monotonic

from dispatcher.remote.protocol.mux import (  # fmt: skip
    CLOSE,
    COUNT,
    ENDED,
    ERRORS,
    ERRORS_END,
    HEADER,
    INPUT,
    INPUT_END,
    INPUT_WINDOW,
    LARGEST,
    MORE_ERRORS,
    MORE_INPUT,
    MORE_OUTPUT,
    OPEN,
    OUTPUT,
    OUTPUT_END,
    OWN,
    Frames,
    Malformed,
    frame,
)  # fmt: skip
from dispatcher.remote.tree_command import Command, Output, die_with_parent, in_memory, read, start

STATUS = Struct("!i")
KEEP, KEPT, PULSE = range(OWN, OWN + 3)

#: seconds in which answers to a pulse are gathered, to be told together
_GATHER = 0.2
#: bytes that may wait for the link before no more output is read
_WAITING = 256 << 10

#: the word that is followed by the name of the file with the lines for known_hosts
KNOWN = b"UserKnownHostsFile="

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Relay:
    """Serves the link of descriptors ``come`` and ``go``."""

    def __init__(self, come: int, go: int) -> None:
        self._come = come
        self._go = go
        self._frames = Frames()
        self._streams: dict[int, Command] = {}
        self._kept: dict[int, bytes] = {}  # place -> what lies there
        self._urgent: deque[bytes] = deque()
        self._going: deque[bytes] = deque()
        self._piece = memoryview(b"")  # what is being written
        self._waiting = 0  # bytes of all three
        self._full = False
        self._heard: list[int] = []  # streams with signs of life that were not told yet
        self._due = 0.0  # when they are
        self._poller = select.poll()
        self._ready: dict[int, Callable[[], None]] = {}  # descriptor -> what to do when it is
        self._linked = True
        for fd in (come, go):
            os.set_blocking(fd, False)

    def run(self) -> None:
        """Serve until the link ends."""
        wake_in, wake_out = os.pipe()
        for fd in (wake_in, wake_out):
            os.set_blocking(fd, False)
        on_signal(SIGCHLD, lambda *_: None)
        set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        self._watch(wake_in, lambda: self._reap(wake_in))
        self._watch(self._come, self._obey)
        try:
            while self._linked:
                wait = max(0.0, self._due - monotonic()) * 1000 if self._heard else None
                for fd, _ in self._poller.poll(wait):
                    act = self._ready.get(fd)  # what came before in this round may have closed it
                    if act is not None:
                        act()
                if self._heard and monotonic() >= self._due:
                    self._send(0, PULSE, b"".join(map(COUNT.pack, self._heard)))
                    self._heard = []
                self._write()
        finally:  # the link may also have said what it must not
            for stream in self._streams.values():
                stream.kill()

    def _watch(self, fd: int, act: Callable[[], None], events: int = select.POLLIN) -> None:
        self._ready[fd] = act
        self._poller.register(fd, events)

    def _unwatch(self, fd: int) -> None:
        if self._ready.pop(fd, None) is not None:
            self._poller.unregister(fd)

    # -- orders -----------------------------------------------------------------------------

    def _obey(self) -> None:
        data = read(self._come, LARGEST)
        if data is None:
            return
        if not data:
            self._linked = False
            return
        for number, kind, body in self._frames.feed(data):
            if kind == OPEN:
                self._open(number, body)
                continue
            if kind == KEEP:
                self._kept[number] = body
                continue
            if kind == PULSE:
                self._pulse(body)
                continue
            stream = self._streams.get(number)
            if stream is None:
                continue  # it has ended meanwhile
            if kind in (INPUT, KEPT):
                body = self._kept[COUNT.unpack(body)[0]] if kind == KEPT else body
                stream.room.use(len(body))
                stream.waiting += body
                self._feed(stream)
            elif kind == INPUT_END:
                stream.input_ends = True
                self._feed(stream)
            elif kind == CLOSE:
                self._close(stream)
            elif kind in (MORE_OUTPUT, MORE_ERRORS):
                output = stream.outputs[kind - MORE_OUTPUT]
                output.credit.grant(body)
                self._listen(stream, output)

    def _open(self, number: int, body: bytes) -> None:
        lines, *words = body.split(b"\0")
        known = -1
        try:
            if lines:
                known, name = in_memory(lines)
                words = [word + name if word == KNOWN else word for word in words]
            pid, fds = start(words)
        except OSError as error:
            self._send(number, ERRORS, os.fsencode("%s\n" % error))
            for kind in (OUTPUT_END, ERRORS_END):
                self._send(number, kind)
            self._send(number, ENDED, STATUS.pack(126))
            if known >= 0:
                os.close(known)
            return
        outputs = (
            Output(fds[1], OUTPUT, OUTPUT_END),
            Output(fds[2], ERRORS, ERRORS_END),
        )
        stream = self._streams[number] = Command(number, pid, fds[0], known, *outputs)
        for output in stream.outputs:
            self._listen(stream, output)

    def _close(self, stream: Command) -> None:
        stream.kill()
        self._end_input(stream)
        for output in stream.outputs:
            self._end_output(output)
        self._forget(stream)

    def _forget(self, stream: Command) -> None:
        if stream.known >= 0:
            os.close(stream.known)
        del self._streams[stream.number]

    # -- input ------------------------------------------------------------------------------

    def _feed(self, stream: Command) -> None:
        """Write what waits, as far as the command takes it."""
        before = len(stream.waiting)
        if stream.input < 0:
            stream.waiting = b""  # it reads no more; who writes on is told of its end
        while stream.waiting:
            try:
                written = os.write(stream.input, stream.waiting)
            except BlockingIOError:
                break
            except OSError:
                self._end_input(stream)
                stream.waiting = b""
                break
            stream.waiting = stream.waiting[written:]
        more = stream.room.taken(before - len(stream.waiting))
        if more:
            self._send(stream.number, MORE_INPUT, more)
        if stream.waiting:
            if stream.input not in self._ready:
                self._watch(stream.input, lambda: self._feed(stream), select.POLLOUT)
            return
        self._unwatch(stream.input)
        if stream.input_ends:
            self._end_input(stream)

    def _end_input(self, stream: Command) -> None:
        if stream.input >= 0:
            self._unwatch(stream.input)
            os.close(stream.input)
            stream.input = -1

    def _pulse(self, body: bytes) -> None:
        """Show commands that the root lives; each that does says so."""
        end = COUNT.size + COUNT.unpack_from(body)[0]
        for (number,) in COUNT.iter_unpack(body[end:]):
            stream = self._streams.get(number)
            if stream is None or len(stream.waiting) > INPUT_WINDOW:
                continue  # it has ended, or does not read what it was told before
            stream.beats = True
            stream.waiting += body[COUNT.size : end]
            stream.room.taken(COUNT.size - end)  # which was no input that wants room
            self._feed(stream)

    # -- output -----------------------------------------------------------------------------

    def _listen(self, stream: Command, output: Output) -> None:
        """Read an output, or not, as its credit and the link allow."""
        if output.fd < 0:
            return
        if self._full or output.credit.left <= 0:
            self._unwatch(output.fd)
        elif output.fd not in self._ready:
            self._watch(output.fd, lambda: self._take(stream, output))

    def _take(self, stream: Command, output: Output) -> None:
        data = read(output.fd, min(LARGEST, output.credit.left))
        if data is None:
            return
        if stream.beats and output.kind == ERRORS and data and not data.strip(b"\0"):
            if not self._heard:
                self._due = monotonic() + _GATHER
            self._heard.append(stream.number)
            return
        if data:
            output.credit.use(len(data))
            self._send(stream.number, output.kind, data)
            self._listen(stream, output)
            return
        self._end_output(output)
        self._send(stream.number, output.end)
        if stream.over:
            self._forget(stream)

    def _end_output(self, output: Output) -> None:
        if output.fd >= 0:
            self._unwatch(output.fd)
            os.close(output.fd)
            output.fd = -1

    # -- the ends of commands -----------------------------------------------------------------

    def _reap(self, wake_in: int) -> None:
        read(wake_in, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for stream in self._streams.values():
                if stream.pid == pid:
                    stream.pid = -1
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
                    self._send(stream.number, ENDED, STATUS.pack(code))
                    self._end_input(stream)
                    if stream.over:
                        self._forget(stream)
                    break

    # -- the link, upwards ----------------------------------------------------------------------

    def _send(self, number: int, kind: int, body: bytes = b"") -> None:
        lane = self._urgent if kind in (ENDED, MORE_INPUT, PULSE) else self._going
        lane.append(frame(number, kind, body))
        self._waiting += HEADER.size + len(body)
        self._throttle()

    def _throttle(self) -> None:
        full = self._waiting >= (_WAITING // 2 if self._full else _WAITING)
        if full != self._full:
            self._full = full
            for stream in self._streams.values():
                for output in stream.outputs:
                    self._listen(stream, output)

    def _write(self) -> None:
        while True:
            if not self._piece:
                self._piece = memoryview(self._next())
            if not self._piece:
                self._unwatch(self._go)
                return
            try:
                written = os.write(self._go, self._piece)
            except BlockingIOError:
                if self._go not in self._ready:
                    self._watch(self._go, lambda: None, select.POLLOUT)
                return
            except OSError:
                self._linked = False
                return
            self._piece = self._piece[written:]
            self._waiting -= written
            self._throttle()

    def _next(self) -> bytes:
        """Frames for one write, what is urgent first."""
        frames: list[bytes] = []
        size = 0
        while lane := self._urgent or self._going:
            size += len(lane[0])
            if frames and size > LARGEST:
                break
            frames.append(lane.popleft())
        return b"".join(frames)


def serve(sync: bytes) -> None:
    """Serve standard input and output, having said ``sync``."""
    die_with_parent()
    come, go = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.write(go, sync)
    relay = Relay(come, go)
    try:
        relay.run()
    except Malformed:
        sys.exit("malformed frames")
