"""One launcher that has called the daemon, and the commands it runs over pooled connections.

One thread reads the client's orders and never waits for a host; one hands back the hosts' output
and waits for the client alone. Work that has to wait gets its own thread: a connection or channel
that must be opened first, and input that its host does not take at once.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from dispatcher.model.failure import Failure
from dispatcher.remote.protocol import mux
from dispatcher.transport.base import Link, LinkClosed, Window
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import DROP, LET_END, LIST, OPENING, fields, json_frame

#: seconds after a command's end until the client gets that end though the output has not ended
HELD_OPEN = 0.1
#: seconds that commands may take to end by themselves when their launcher has gone
LAST_END = 5.0
#: bytes handed back of one command before it is another's turn
_TURN = 256 << 10
_CHUNK = mux.LARGEST
_CREDIT_OF = {mux.MORE_OUTPUT: mux.OUTPUT, mux.MORE_ERRORS: mux.ERRORS}


#: asks the launcher something; its answer, None where it has gone
Ask = Callable[..., Any]


class Hosts(Protocol):
    """The part of ``Daemon`` that a client uses; see there. ask: as ``Client.ask``."""

    def at_hand(self, order: dict[str, Any], ask: Ask) -> Link | None: ...
    def open(self, order: dict[str, Any], ask: Ask) -> Link | Failure | None: ...
    def listed(self) -> dict[str, Any]: ...
    def drop(self, names: set[str] | None) -> None: ...


class Client:
    """Serves the dispatch at the other end of ``link`` until it hangs up."""

    def __init__(self, link: socket.socket, hosts: Hosts) -> None:
        self._link = link
        self._hosts = hosts
        self._lock = threading.Lock()  # of the table
        self._channels: dict[int, Channel | None] = {}  # None: being opened, or there is none
        self._ending: list[Channel] = []  # those that end by themselves, without a listener
        self._over = False
        self._asked: dict[int, queue.SimpleQueue[Any]] = {}
        self._numbers = itertools.count(1)
        # for the thread that hands back: frames, channels that rang, None at the end
        self._out: queue.SimpleQueue[bytes | int | None] = queue.SimpleQueue()

    def serve(self) -> None:
        """Do what the client wants; returns when it is gone and its commands have ended."""
        writer = threading.Thread(target=self._hand_back, name="hand back", daemon=True)
        writer.start()
        frames = mux.Decoder(daemon_socket.LARGEST)
        try:
            while data := self._link.recv(_CHUNK):
                for number, kind, body in frames.feed(data):
                    self._obey(number, kind, body)
        except (OSError, mux.Malformed):
            pass  # the client is gone, or no client of ours
        finally:
            with self._lock:
                self._over = True
                left = [channel for channel in self._channels.values() if channel is not None]
                unanswered = list(self._asked.values())
            for one in unanswered:
                one.put(None)
            for channel in left:
                channel.leave()
            self._out.put(None)
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)  # a blocked writer ends, too
            writer.join()
            self._link.close()
            until = time.monotonic() + LAST_END
            for channel in self._ending:
                channel.link.ending(until - time.monotonic())
                channel.leave()

    # -- what it wants, on the thread that reads ------------------------------------------------

    def _obey(self, number: int, kind: int, body: bytes) -> None:
        if kind == mux.OPEN:
            self._open(number, fields(body))
        elif kind in (LIST, DROP):
            if kind == DROP:
                names = fields(body).get("hosts")
                self._hosts.drop(None if names is None else set(names))
            self._out.put(json_frame(LIST, **self._hosts.listed()))
        elif kind == daemon_socket.ANSWER:
            answer = fields(body)
            with self._lock:
                asked = self._asked.pop(answer.get("number"), None)  # type: ignore[arg-type]
            if asked is not None:
                asked.put(answer.get("answer"))
        elif kind in (mux.CLOSE, LET_END):
            with self._lock:  # a thread that is opening it will find it unwanted
                channel = self._channels.pop(number, None)
            if channel is not None and kind == LET_END:
                self._ending.append(channel)
            elif channel is not None:
                channel.leave()
        elif (channel := self._channels.get(number)) is not None:
            channel.obey(kind, body)

    def ask(self, **question: Any) -> Any:
        """The launcher's answer to ``question``, waited for; None when it has gone."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        number = next(self._numbers)
        with self._lock:
            if self._over:
                return None
            self._asked[number] = answer
        self._out.put(json_frame(daemon_socket.ASK, number=number, **question))
        return answer.get()

    def _open(self, number: int, order: dict[str, Any]) -> None:
        link = self._hosts.at_hand(order, self.ask)
        with self._lock:
            self._channels[number] = None
        if link is not None:
            self._opened(number, link, order)
            return
        threading.Thread(
            target=lambda: self._opened(number, self._hosts.open(order, self.ask), order),
            name="opening",
            daemon=True,
        ).start()

    def _opened(self, number: int, found: Link | Failure | None, order: dict[str, Any]) -> None:
        channel = Channel(number, found, self._out.put) if isinstance(found, Link) else None
        with self._lock:
            wanted = number in self._channels and not self._over
            if wanted:
                self._channels[number] = channel
        if isinstance(found, Failure):
            failure: dict[str, Any] = {"kind": found.kind.value, "why": found.why}
            failure |= {"hint": found.hint, "retryable": found.retryable}
            self._out.put(json_frame(daemon_socket.FAILED, number, **failure))
        elif channel is None:
            self._out.put(json_frame(daemon_socket.NOT_POOLED, number))
        elif wanted:
            channel.begin(order["opening"].encode("latin-1")[:OPENING])
            self._out.put(json_frame(daemon_socket.ACCEPTED, number, address=channel.link.address))
            channel.link.watch(lambda: self._out.put(number))
        else:
            channel.leave()

    # -- what it gets, on the other thread -------------------------------------------------------

    def _hand_back(self) -> None:
        """Send the client all output of its commands, and their ends, until it has gone."""
        late: dict[int, float] = {}  # when to look again at commands that ended before their output
        while True:
            wait = min(late.values()) - time.monotonic() if late else None
            out: list[bytes] = []
            rung: set[int] = set()
            try:
                items = [self._out.get(timeout=None if wait is None else max(0.0, wait))]
            except queue.Empty:
                items = []
            items += [self._out.get() for _ in range(self._out.qsize())]
            for item in items:
                if item is None:
                    return
                if isinstance(item, bytes):
                    out.append(item)
                else:
                    rung.add(item)
            now = time.monotonic()
            rung |= {number for number, when in late.items() if when <= now}
            for number in rung:
                late.pop(number, None)
                channel = self._channels.get(number)
                if channel is not None:
                    out += channel.output_frames()
                    if channel.look_at is not None:
                        late[number] = channel.look_at
                    if channel.over:
                        with self._lock:
                            self._channels.pop(number, None)
            try:
                self._link.sendall(b"".join(out))
            except OSError:
                return  # it has left; the thread that reads closes its channels


class Channel:
    """One command of a client, over ``link``; see ``daemon_socket`` for its messages.

    put: takes frames for the client, or our number when we want our turn.
    """

    def __init__(self, number: int, link: Link, put: Callable[[bytes | int], None]) -> None:
        self.link = link
        #: when our turn is though nothing rings: the command has ended, but not its output
        self.look_at: float | None = None
        #: whether the client has got all
        self.over = False
        self._number = number
        self._put = put
        # credit is granted by the thread that reads and used by the one that hands back
        self._credit = {
            mux.OUTPUT: mux.Credit(mux.OUTPUT_WINDOW),
            mux.ERRORS: mux.Credit(mux.ERRORS_WINDOW),
        }
        self._input = mux.Credit(mux.INPUT_WINDOW)
        self._output = self._errors = self._end = False  # the ends that the client has got
        self._closing = threading.Lock()
        self._fed = 0
        self._feeding: queue.SimpleQueue[tuple[int, bytes] | None] | None = None

    def leave(self) -> None:
        """Close the link, and so end the command if it runs."""
        if self._feeding is not None:
            self._feeding.put(None)
        with self._closing:
            self.link.close()

    # -- what the client says, on the thread that reads ------------------------------------------

    def begin(self, opening: bytes) -> None:
        """Hand on the input that came with the order; on the thread that opened the link."""
        try:
            self.link.write(opening)
        except LinkClosed:
            pass  # the client is about to read why

    def obey(self, kind: int, body: bytes) -> None:
        """Hand on one frame from the client. Raises: Malformed."""
        if kind in _CREDIT_OF:
            self._credit[_CREDIT_OF[kind]].grant(body)
            self._put(self._number)
            return
        if kind == daemon_socket.RESIZE:
            self.link.resize(Window(**fields(body)))
            return
        self._input.use(len(body))
        if self._feeding is not None:
            self._feeding.put((kind, body))
        elif self._fed + len(body) <= OPENING:
            self._hand_on(kind, body)
        else:
            self._feeding = queue.SimpleQueue()
            self._feeding.put((kind, body))
            threading.Thread(target=self._feed, name="feed", daemon=True).start()

    def _feed(self) -> None:
        """Hand on input that the host may be slow to take; our credit for it limits it."""
        assert self._feeding is not None
        while (one := self._feeding.get()) is not None:
            self._hand_on(*one)

    def _hand_on(self, kind: int, body: bytes) -> None:
        try:
            if kind == mux.INPUT:
                self.link.write(body)
            elif kind == mux.INPUT_END:
                self.link.end_input()
        except LinkClosed:
            pass  # the client is about to read why
        self._fed += len(body)
        more = self._input.taken(len(body))
        if more:
            self._put(mux.frame(self._number, mux.MORE_INPUT, more))

    # -- what the host says, on the thread that hands back ---------------------------------------

    def output_frames(self) -> list[bytes]:
        """Frames of the output that has come, as far as the client has credit."""
        frames: list[bytes] = []
        left = _TURN
        while (size := self._most(mux.ERRORS, left)) and (data := self.link.read_errors(size)):
            frames.append(self._passed_on(mux.ERRORS, data))
            left -= len(data)
        while not self._output and (size := self._most(mux.OUTPUT, left)):
            data_or_none = self.link.read(size)
            if data_or_none is None:
                break
            if not data_or_none:
                self._output = True
                frames.append(mux.frame(self._number, mux.OUTPUT_END))
                break
            frames.append(self._passed_on(mux.OUTPUT, data_or_none))
            left -= len(data_or_none)
        if left == 0:
            self._put(self._number)  # there may be more; a grant rings by itself
        if not self._errors and self.link.errors_ended():
            self._errors = True
            frames.append(mux.frame(self._number, mux.ERRORS_END))
        return frames + self._ending()

    def _most(self, kind: int, left: int) -> int:
        return min(_CHUNK, left, self._credit[kind].left)

    def _passed_on(self, kind: int, data: bytes) -> bytes:
        self._credit[kind].use(len(data))
        return mux.frame(self._number, kind, data)

    def _ending(self) -> list[bytes]:
        """The frame of the end, once: after all output, or when that stays open for too long.

        The connection is free again before the client gets it: the next command may come at once.
        """
        complete = self._output and self._errors
        frames: list[bytes] = []
        if not self._end and self.link.gone():
            now = time.monotonic()
            if not complete and self.look_at is None:
                self.look_at = now + HELD_OPEN
            if complete or (self.look_at is not None and now >= self.look_at):
                self._end, self.look_at = True, None
                ending = self.link.ending(0.0)
                lost = self.link.failure(0.0)
                told = {"code": ending.code, "signal": ending.signal}
                silence = None if lost is None else lost.why
                frames = [json_frame(mux.ENDED, self._number, **told, silence=silence)]
        if self._end and complete and not self.over:
            self.over = True
            self.leave()
        return frames
