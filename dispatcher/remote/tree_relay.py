"""Runs on an inner host of a connection tree and opens the hosts below it for the launcher.

It is sent only where there is a tree, is installed nowhere, and ends with its link and with every
``ssh`` that it started. It knows nothing of trees, agents or users: it starts the commands that it
gets, each in its own session, and carries their bytes unread. It is the far end of
``protocol.mux``. An OPEN holds the lines for known_hosts and then the words of the command, with
NUL between them; an ENDED holds 4 bytes, the exit code, or -n for signal n. A CLOSE kills a
command that leads to another host.

While the link takes nothing, no output is read. ENDED and MORE_INPUT pass all output. It imports
little: every inner host waits for its start.
"""

from __future__ import annotations

import os
import select
import sys
from _collections import deque  # type: ignore[import-not-found]
from _signal import SIG_DFL, SIGKILL, SIGPIPE  # type: ignore[import-not-found]
from _signal import signal as on_signal
from _struct import Struct

from dispatcher.remote.host.poll import Poll, read_ready
from dispatcher.remote.protocol import mux

STATUS = Struct("!i")

_PR_SET_PDEATHSIG = 1
#: bytes that may wait for the link before no more output is read
_WAITING = 256 << 10

#: the word that is followed by the name of the file with the lines for known_hosts
KNOWN = b"UserKnownHostsFile="


class Output:
    """One output of a command: the descriptor it is read from, and the credit it has."""

    def __init__(self, fd: int, kind: int, end: int) -> None:
        self.fd, self.kind, self.end = fd, kind, end
        self.credit = mux.Credit(mux.OUTPUT_WINDOW if kind == mux.OUTPUT else mux.ERRORS_WINDOW)


class Command:
    """One command: its pipes, and the bytes that wait to be written to it.

    number: of its stream. known: the descriptor of its known hosts, or -1.
    """

    def __init__(self, number: int, pid: int, stdin: int, known: int, *outputs: Output) -> None:
        self.number = number
        self.pid = pid
        self.input = stdin
        self.waiting = b""  # for its input
        self.room = mux.Credit(mux.INPUT_WINDOW)  # of its input
        self.input_ends = False
        self.outputs = outputs
        self.known = known

    @property
    def over(self) -> bool:
        """Whether the command has ended and all its output was read."""
        return self.pid < 0 and all(output.fd < 0 for output in self.outputs)

    def kill(self) -> None:
        """Kill a command that leads to another host; other commands get end of input."""
        if self.known >= 0 and self.pid > 0:
            try:
                os.killpg(self.pid, SIGKILL)
            except OSError:
                os.kill(self.pid, SIGKILL)  # it has no group yet; it was not waited for


def in_memory(lines: bytes) -> tuple[int, bytes]:
    """A descriptor of a file without a place that holds ``lines``, and the name that opens it."""
    try:
        fd = os.memfd_create("known_hosts")
    except (AttributeError, OSError):  # Linux before 3.17
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108 - it has no name
    while lines:
        lines = lines[os.write(fd, lines) :]
    return fd, b"/proc/%d/fd/%d" % (os.getpid(), fd)


def start(words: list[bytes]) -> tuple[int, tuple[int, int, int]]:
    """Run ``words`` in their own session; its pid and our ends of its three pipes.

    Raises: OSError when there is no room for one more.
    """
    near: list[int] = []
    far: list[int] = []
    try:
        for number in range(3):
            read, write = os.pipe()
            near.append(read if number else write)
            far.append(write if number else read)
        pid = os.fork()
    except OSError:
        for fd in near + far:
            os.close(fd)
        raise
    if not pid:
        try:
            os.setsid()
            for number, fd in enumerate(far):
                os.dup2(fd, number)
            on_signal(SIGPIPE, SIG_DFL)  # Python ignores it, and that would outlast execve
            os.execvp(words[0], words)  # noqa: S606 - which would be one more process
        except BaseException as error:  # noqa: BLE001 - this is its only report
            os.write(2, os.fsencode("%s: %s\n" % (words[0].decode("utf-8", "replace"), error)))
        finally:
            os._exit(127)
    for fd in far:
        os.close(fd)
    for fd in near:
        os.set_blocking(fd, False)
    return pid, (near[0], near[1], near[2])


def die_with_parent() -> None:
    """Ask for SIGKILL when sshd's session ends, since a stopped process sees no end of input."""
    try:
        from ctypes import CDLL

        CDLL(None).prctl(_PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # a Python without it: who stops a relay has to continue it


class TreeRelay:
    """Serves the link of descriptors ``come`` and ``go``."""

    def __init__(self, come: int, go: int) -> None:
        self._come = come
        self._go = go
        self._frames = mux.Decoder()
        self._streams: dict[int, Command] = {}
        self._urgent: deque[bytes] = deque()
        self._going: deque[bytes] = deque()
        self._piece = memoryview(b"")  # bytes that are being written
        self._waiting = 0  # bytes of all three
        self._full = False
        self._poll = Poll()
        self._linked = True
        for fd in (come, go):
            os.set_blocking(fd, False)

    def run(self) -> None:
        """Serve until the link ends."""
        self._poll.on_child(self._reap)
        self._poll.add(self._come, lambda *_: self._obey())
        try:
            while self._linked:
                self._poll.turn()
                self._write()
        finally:  # the link may also have said what it must not
            for stream in self._streams.values():
                stream.kill()

    # -- orders -----------------------------------------------------------------------------

    def _obey(self) -> None:
        data = read_ready(self._come, mux.LARGEST)
        if data is None:
            return
        if not data:
            self._linked = False
            return
        for number, kind, body in self._frames.feed(data):
            if kind == mux.OPEN:
                self._open(number, body)
                continue
            stream = self._streams.get(number)
            if stream is None:
                continue  # it has ended by now
            if kind == mux.INPUT:
                stream.room.use(len(body))
                stream.waiting += body
                self._feed(stream)
            elif kind == mux.INPUT_END:
                stream.input_ends = True
                self._feed(stream)
            elif kind == mux.CLOSE:
                self._close(stream)
            elif kind in (mux.MORE_OUTPUT, mux.MORE_ERRORS):
                output = stream.outputs[kind - mux.MORE_OUTPUT]
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
            self._send(number, mux.ERRORS, os.fsencode("%s\n" % error))
            for kind in (mux.OUTPUT_END, mux.ERRORS_END):
                self._send(number, kind)
            self._send(number, mux.ENDED, STATUS.pack(126))
            if known >= 0:
                os.close(known)
            return
        out = Output(fds[1], mux.OUTPUT, mux.OUTPUT_END)
        err = Output(fds[2], mux.ERRORS, mux.ERRORS_END)
        stream = self._streams[number] = Command(number, pid, fds[0], known, out, err)
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
        """Write waiting input, as much as the command takes."""
        before = len(stream.waiting)
        if stream.input < 0:
            stream.waiting = b""  # it reads no more; the launcher gets its end
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
            self._send(stream.number, mux.MORE_INPUT, more)
        if stream.waiting:
            if stream.input not in self._poll.calls:
                self._poll.add(stream.input, lambda *_: self._feed(stream), select.EPOLLOUT)
            return
        self._poll.remove(stream.input)
        if stream.input_ends:
            self._end_input(stream)

    def _end_input(self, stream: Command) -> None:
        if stream.input >= 0:
            self._poll.remove(stream.input)
            os.close(stream.input)
            stream.input = -1

    # -- output -----------------------------------------------------------------------------

    def _listen(self, stream: Command, output: Output) -> None:
        """Read an output, or not, as its credit and the link allow."""
        if output.fd < 0:
            return
        if self._full or output.credit.left <= 0:
            self._poll.remove(output.fd)
        elif output.fd not in self._poll.calls:
            self._poll.add(output.fd, lambda *_: self._take(stream, output))

    def _take(self, stream: Command, output: Output) -> None:
        data = read_ready(output.fd, min(mux.LARGEST, output.credit.left))
        if data is None:
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
            self._poll.remove(output.fd)
            os.close(output.fd)
            output.fd = -1

    # -- the ends of commands -----------------------------------------------------------------

    def _reap(self) -> None:
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
                    self._send(stream.number, mux.ENDED, STATUS.pack(code))
                    self._end_input(stream)
                    if stream.over:
                        self._forget(stream)
                    break

    # -- the link, upwards ----------------------------------------------------------------------

    def _send(self, number: int, kind: int, body: bytes = b"") -> None:
        lane = self._urgent if kind in (mux.ENDED, mux.MORE_INPUT) else self._going
        lane.append(mux.frame(number, kind, body))
        self._waiting += mux.HEADER.size + len(body)
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
                self._poll.remove(self._go)
                return
            try:
                written = os.write(self._go, self._piece)
            except BlockingIOError:
                if self._go not in self._poll.calls:
                    self._poll.add(self._go, lambda *_: None, select.EPOLLOUT)
                return
            except OSError:
                self._linked = False
                return
            self._piece = self._piece[written:]
            self._waiting -= written
            self._throttle()

    def _next(self) -> bytes:
        """Frames for one write, urgent frames first."""
        frames: list[bytes] = []
        size = 0
        while lane := self._urgent or self._going:
            size += len(lane[0])
            if frames and size > mux.LARGEST:
                break
            frames.append(lane.popleft())
        return b"".join(frames)


def serve(sync: bytes) -> None:
    """Write ``sync``, then serve standard input and output."""
    die_with_parent()
    come, go = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.write(go, sync)
    relay = TreeRelay(come, go)
    try:
        relay.run()
    except mux.Malformed:
        sys.exit("malformed frames")
