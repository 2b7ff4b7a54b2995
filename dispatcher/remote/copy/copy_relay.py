"""An inner host of a tree: passes the files on to the hosts below it, by the system's ssh.

Sent only when there is a tree. Each child gets the same program and list, says what it needs,
and is fed from our own files as they grow. The list holds the sender's SHA-256 of every file, so a
child takes nothing from us that the root did not have. A child that cannot be reached, fails or
makes no progress is reported, with all hosts below it; the root serves them itself.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time

from dispatcher.remote.copy.disk import file_frames
from dispatcher.remote.protocol.copy_frames import (  # fmt: skip
    MOST_SAID,
    frames,
    host_branches,
    message,
    needed_of,
    starts_of,
    value_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

    from dispatcher.remote.copy.receiver import Receiver

#: seconds without any progress after which a child is given up
STALLED = 30.0
_NOISE = 64 << 10
_LARGEST = 64 << 20
_READY, _NOT_READY = b"P", b"S\n"


class Relay:
    """Serves the hosts below. order, program: as they were sent to us; send: sends to the root."""

    def __init__(
        self, order: dict[str, Any], program: bytes, receiver: Receiver, send: Callable[[Any], None]
    ) -> None:
        self._order = order
        self._program = program
        self._receiver = receiver
        self._send = send
        self.grown = threading.Condition()
        self.marker: bytes = order["marker"]
        self.opening: bytes = order["opening"]
        self._one = threading.Lock()  # one message at a time
        self._failed = False
        self._children = [
            Child(self, branch) for branch in host_branches(order["below"], order["branches"])
        ]

    def start(self) -> None:
        """Start the hosts below."""
        for child in self._children:
            child.thread.start()

    def wait(self, over: Callable[[Child], bool]) -> None:
        """Wait until all children are ``over`` (fed, or ended); kill children without progress."""
        while not all(map(over, self._children)):
            with self.grown:
                self.grown.wait(1.0)
            now = time.monotonic()
            for child in self._children:
                if not child.ended and now - child.moved > STALLED:
                    child.kill()

    def abandon(self) -> None:
        """End the children: our own part has failed."""
        self._failed = True
        for child in self._children:
            child.kill()

    # -- for the children's threads -----------------------------------------------------

    def introduction(self, branch: list[Any]) -> bytes:
        """The program, and the order for the head of ``branch``."""
        order = dict(self._order)
        order["groups"] = branch[0][2]
        order["below"] = branch[1:]
        return self._program + message(order)

    def tell(self, value: dict[str, Any]) -> None:
        """Report to the root, unless our own part has failed: then it serves them itself."""
        with self._one:
            if not self._failed:
                self._send(value)

    def _wait(self, index: int, size: int) -> bool:
        """Wait until ``size`` bytes of a file are here; False if they never will be."""
        with self.grown:
            while not self._failed:
                if self._receiver.available(index) >= size:
                    return True
                self.grown.wait(1.0)
        return False

    def pieces(self, needed: list[int], starts: dict[int, tuple[int, str]]) -> Iterator[bytes]:
        """Frames of our files, as they come."""
        for index in needed:
            if not self._wait(index, 0):
                return
            path, size = self._receiver.source(index)
            at, seen = starts.get(index, (0, ""))

            def more(at: int, index: int = index) -> bool:
                return self._wait(index, at + 1)

            yield from file_frames(path, size, at, seen, more)


class Child:
    """The head of ``branch``: [index, argv, groups] of it and of all below it."""

    def __init__(self, relay: Relay, branch: list[Any]) -> None:
        self._relay = relay
        self._branch = branch
        self._process: Any = None
        self._unheard = {entry[0] for entry in branch}
        self.fed = self.ended = False
        self.moved = time.monotonic()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def kill(self) -> None:
        """Kill the relay. The root serves the hosts that it has not reported yet."""
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        try:
            self._serve_or_tell()
        finally:  # in every case, do not let others wait for it
            self.fed = self.ended = True
            with self._relay.grown:
                self._relay.grown.notify_all()

    def _serve_or_tell(self) -> None:
        why = "it ended early"
        try:
            self._serve()
        except BrokenPipeError:
            pass  # it ended before it was sent all: its last output gives the reason
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = str(error)
        finally:
            self.kill()
            if self._process is not None:
                self._process.wait()
                stderr = self._process.stderr
                os.set_blocking(stderr.fileno(), False)  # a child of ssh may hold it open
                output = (stderr.read(400) or b"").decode("utf-8", "replace").strip()
                why = output.splitlines()[-1] if output else why
                for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                    pipe.close()
            if self._unheard:
                self._relay.tell({"of": sorted(self._unheard), "failed": why})

    def _serve(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._branch[0][1], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0,
        )  # fmt: skip
        write = self._write
        write(self._relay.opening)
        rest = self._started()
        write(self._relay.introduction(self._branch))
        incoming = self._values(rest)
        answer = next(incoming)
        if "error" in answer:
            raise ValueError(str(answer["error"])[:400])
        for piece in self._relay.pieces(needed_of(answer), starts_of(answer)):
            write(piece)
        self.fed = True
        with self._relay.grown:
            self._relay.grown.notify_all()
        for value in incoming:
            if "error" in value:
                raise ValueError(str(value["error"])[:400])
            if "of" not in value:
                value["of"] = [self._branch[0][0]]
            reported = self._unheard.intersection(value["of"])
            self._unheard -= reported
            self._relay.tell({**value, "of": sorted(reported)})
            if not self._unheard:
                return

    def _started(self) -> bytes:
        """The output after the line that shows that Python reads on. Raises: ValueError."""
        output = b""
        marker = self._relay.marker
        while True:
            output = (output + self._read())[-_NOISE:]
            _, found, said = output.partition(marker)
            if found and said.startswith(_NOT_READY):
                raise ValueError("no python3 there")
            line, end, rest = said.partition(b"\n")
            if end and line.startswith(_READY):
                return rest

    def _values(self, rest: bytes) -> Iterator[dict[str, Any]]:
        incoming = frames(_LARGEST)
        while True:
            for _, kind, body in incoming.feed(rest):
                yield value_of(kind, body, MOST_SAID)
            rest = self._read()

    def _read(self) -> bytes:
        data = os.read(self._process.stdout.fileno(), 64 << 10)
        if not data:
            raise ValueError("it ended early")
        self.moved = time.monotonic()
        return data

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._process.stdin.fileno(), view) :]
            self.moved = time.monotonic()
