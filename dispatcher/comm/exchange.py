"""Messages between the ranks that always end, each a status and its payload.

Anything important crosses MPI as a record. It is ``ok`` with bytes, or ``err`` with a reason: a
rank that fails ends all ranks with its words. Nothing here waits without a limit, and all ranks
come to the same verdict. ``assemble``: each rank reports once to rank 0, which answers each once.
``share``: all ranks get rank 0's bytes. ``gather``: all ranks get the bytes of all. The last two
are collectives, for ranks that have met in an ``assemble``. Rank 0 sends O(ranks) small messages.

    magic "dspc" | version u8 | status u8 | length u32 big-endian | payload
"""

from __future__ import annotations

import json
import struct
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

from dispatcher.comm.errors import CommError, RollCallError, describe

T = TypeVar("T")

HEADER = struct.Struct("!4sBBI")
_MAGIC = b"dspc"
_VERSION = 1
_OK, _ERR = 0, 1

_KINDS = {kind.__name__: kind for kind in CommError.__subclasses__()}


def ok(payload: bytes = b"") -> bytes:
    """The record of a success."""
    return HEADER.pack(_MAGIC, _VERSION, _OK, len(payload)) + payload


def err(error: CommError, who: str = "") -> bytes:
    """The record of a failure: its kind, words (``who`` is the rank it is about), hint, numbers."""
    message = error.message
    if not message.startswith(who):
        message = f"{who}: {message.removeprefix('comm: ')}"
    fields = {
        "kind": type(error).__name__,
        "message": message,
        "hint": error.hint,
        "code": error.code,
        "missing": error.missing,
    }
    payload = json.dumps(fields).encode()
    return HEADER.pack(_MAGIC, _VERSION, _ERR, len(payload)) + payload


def failed(record: bytes) -> bool:
    """True for a record of a failure, without raising it."""
    return len(record) > 5 and record[:4] == _MAGIC and record[5] == _ERR


def length(header: bytes) -> int:
    """Payload bytes that follow this header; CommError if it is not a header."""
    if len(header) < HEADER.size:
        raise CommError(f"comm: record: {len(header)} bytes are not a header")
    magic, version, status, size = HEADER.unpack(header[: HEADER.size])
    if magic != _MAGIC or version != _VERSION or status not in (_OK, _ERR):
        raise CommError(
            "comm: record: not in this version's form: the ranks run different versions of dispatch"
        )
    return int(size)


def open_record(record: bytes) -> bytes:
    """The payload of a success; raises the shared error that a failure carries."""
    size = length(record)
    payload = record[HEADER.size :]
    if len(payload) != size:
        raise CommError(f"comm: record: {len(payload)} bytes came of {size}")
    if not failed(record):
        return payload
    fields = json.loads(payload)
    kind = _KINDS.get(str(fields.get("kind")), CommError)
    raise kind(
        str(fields.get("message")),
        hint=None if fields.get("hint") is None else str(fields["hint"]),
        shared=True,
        code=int(fields.get("code", 0)),
        missing=tuple(map(int, fields.get("missing", ()))),
    )


#: A step: called again and again until it gives its report; raising CommError is a failure.
Step = Callable[[], "bytes | None"]
#: What rank 0 answers, by rank, once it has every report.
Answer = Callable[["list[bytes]"], "list[bytes]"]
#: Words for the ranks that did not report, given the reports that came.
Missing = Callable[["list[int]", "dict[int, bytes]"], str]

#: Tags: two for each assembly, so that a late message never counts in the next.
_FIRST_TAG, _TAGS = 7300, 8192
#: How much longer than rank 0 the others wait, for its verdict to arrive.
_MARGIN = 5.0
#: How long rank 0 waits until the others know about a failure.
_SETTLE = 2.0
#: The same after a deadline: the others wait no longer for rank 0 than ``mpi._TOGETHER``.
_LATE = 0.2

#: How long rank 0 takes what came while it was at its own step, if that took longer than the limit.
_CATCH_UP = 1.0


class Pause:
    """Sleeps a little longer each time, from 20 us to 2 ms; ``again()`` starts over."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def again(self) -> None:
        """Begin with the shortest pause: something has come."""
        self._seconds = 0.0

    def __call__(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(0.002, self._seconds * 1.5 + 0.00002)


class Aside(Generic[T]):
    """Work that may block, in its own thread. Called, it gives the result; None till then.

    So it is a step, during which the other ranks' failures and the deadline are seen. The call
    raises an error of the work. Work that never ends does not even hold up the exit.
    """

    _threads: ClassVar[WeakSet[threading.Thread]] = WeakSet()

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._threads.add(self._thread)
        self._thread.start()

    @classmethod
    def any_at_work(cls) -> bool:
        """Whether work that was begun, here or anywhere, has not ended."""
        return any(thread.is_alive() for thread in cls._threads)

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised by the thread that asks
            self._error = error

    def __call__(self) -> T | None:
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, seconds: float) -> None:
        """Until it has ended, but not longer than that."""
        self._thread.join(seconds)


class Exchange:
    """The ranks of one MPI communicator; ``mpi`` is the module ``mpi4py.MPI``.

    ``who`` names this rank in the errors it causes, as ``rank 3 on gpu01``; ``hosts`` has the
    hosts of all ranks once they are known.
    """

    def __init__(self, mpi: Any, communicator: Any, who: str = "") -> None:
        self._mpi = mpi
        self.communicator = communicator  # mpi4py's
        self.rank = int(communicator.Get_rank())
        self.size = int(communicator.Get_size())
        self.who = who or f"rank {self.rank}"
        self.hosts: Mapping[int, str] = {}
        self._assemblies = 0
        self._sends: list[tuple[Any, bytes]] = []  # MPI reads the bytes until the send is done

    def duplicate(self, seconds: float) -> Exchange:
        """The same ranks with their own messages, so no tag can meet the user's."""
        communicator, request = self.communicator.Idup()
        self._wait(request, time.monotonic() + seconds, "duplicating the communicator")
        return Exchange(self._mpi, communicator, self.who)

    def assemble(
        self,
        what: str,
        seconds: float,
        *,
        step: Step = lambda: b"",
        answer: Answer | None = None,
        missing: Missing | None = None,
        hint: str | None = None,
    ) -> bytes:
        """This rank's answer from rank 0, once every rank has reported that its step is done.

        what names the step in messages; answer (called on rank 0) maps all reports to
        one answer each, empty without it. Raises on every rank the error of the first
        rank that failed, or RollCallError naming those that did not report in time.
        """
        deadline = time.monotonic() + seconds
        self._assemblies += 1
        if self.rank == 0:
            verdict = self._preside(what, deadline, seconds, step, answer, missing, hint)
        else:
            verdict = self._attend(what, deadline, seconds, step, missing, hint)
        self._complete_sends()
        return open_record(verdict)

    def _attend(
        self,
        what: str,
        deadline: float,
        seconds: float,
        step: Step,
        missing: Missing | None,
        hint: str | None,
    ) -> bytes:
        pause, report = Pause(), None
        while True:
            if report is None:
                report = self._attempt(step)
                if report is not None:
                    self._send(report, 0, self._report)
                    pause.again()
            found = self._take(0, self._verdict)
            if found is not None:
                if report is None:  # rank 0 counts one report from each rank, always
                    self._send(ok(), 0, self._report)
                return found[1]
            if time.monotonic() > deadline + _MARGIN:
                mine = {} if report is None or failed(report) else {self.rank: open_record(report)}
                raise RollCallError(
                    f"comm: {what}: {self._name([0], mine, missing)} gave no verdict within"
                    f" {seconds:g} s",
                    hint=hint,
                    missing=(0,),
                )
            pause()

    def _preside(
        self,
        what: str,
        deadline: float,
        seconds: float,
        step: Step,
        answer: Answer | None,
        missing: Missing | None,
        hint: str | None,
    ) -> bytes:
        pause = Pause()
        reports: dict[int, bytes] = {}
        while len(reports) < self.size:
            came: list[tuple[int, bytes]] = []
            if 0 not in reports and (mine := self._attempt(step)) is not None:
                came.append((0, mine))
                deadline = max(deadline, time.monotonic() + _CATCH_UP)
            if found := self._take(self._mpi.ANY_SOURCE, self._report):
                came.append(found)
            reports.update(came)
            for _, text in came:
                if failed(text):
                    return self._dismiss(text, reports)
            if came:
                pause.again()
            if found:
                continue  # a rank that has come is not late, however many wait to be read
            if time.monotonic() > deadline:
                absent = [rank for rank in range(self.size) if rank not in reports]
                reported = {rank: open_record(text) for rank, text in reports.items()}
                names = self._name(absent, reported, missing)
                late = RollCallError(
                    f"comm: {what}: {names} did not come within {seconds:g} s",
                    hint=hint,
                    missing=tuple(absent),
                )
                return self._dismiss(err(late), reports, _LATE)
            pause()
        try:
            bodies = [open_record(reports[rank]) for rank in range(self.size)]
            answers = answer(bodies) if answer else [b""] * self.size
        except CommError as error:
            return self._dismiss(err(error), reports)
        for rank in range(1, self.size):
            self._send(ok(answers[rank]), rank, self._verdict)
        return ok(answers[0])

    def _dismiss(
        self, verdict: bytes, reports: dict[int, bytes], seconds: float | None = None
    ) -> bytes:
        """Tell the failure to all, and take the reports still under way, for a moment."""
        for rank in range(1, self.size):
            self._send(verdict, rank, self._verdict)
        reports[0] = verdict
        limit = _SETTLE if seconds is None else seconds
        deadline, pause = time.monotonic() + limit, Pause()
        while len(reports) < self.size and time.monotonic() < deadline:
            found = self._take(self._mpi.ANY_SOURCE, self._report)
            if found is None:
                pause()
            else:
                reports[found[0]] = found[1]
        return verdict

    def share(self, make: Callable[[], bytes], what: str, seconds: float) -> bytes:
        """The result of ``make`` on rank 0; its CommError is raised on all ranks."""
        mine = (self._attempt(make) or b"") if self.rank == 0 else b""
        deadline = time.monotonic() + seconds
        header = bytearray(mine[: HEADER.size].ljust(HEADER.size, b"\0"))
        self._wait(self.communicator.Ibcast(self._bytes(header), 0), deadline, what)
        body = bytearray(mine[HEADER.size :] or bytes(length(bytes(header))))
        if body:
            self._wait(self.communicator.Ibcast(self._bytes(body), 0), deadline, what)
        return open_record(bytes(header + body))

    def gather(self, make: Callable[[], bytes], what: str, seconds: float) -> list[bytes]:
        """The results of ``make`` of every rank, in rank order; all raise the first error."""
        mine = self._attempt(make) or b""
        deadline = time.monotonic() + seconds
        size = array("q", [len(mine)])
        sizes = array("q", [0]) * self.size
        long = self._mpi.INT64_T
        self._wait(self.communicator.Iallgather([size, long], [sizes, long]), deadline, what)
        total = bytearray(sum(sizes))
        counts = list(sizes)
        target = [total, counts, self._mpi.BYTE]
        self._wait(self.communicator.Iallgatherv(self._bytes(mine), target), deadline, what)
        parts, start = [], 0
        for count in counts:
            parts.append(bytes(total[start : start + count]))
            start += count
        return [open_record(part) for part in parts]

    def barrier(self, seconds: float) -> bool:
        """True if every rank came within this time; for leaving: after a False MPI is unusable."""
        try:
            self._wait(self.communicator.Ibarrier(), time.monotonic() + seconds, "barrier")
        except RollCallError:
            return False
        return True

    def _name(self, absent: list[int], reports: dict[int, bytes], missing: Missing | None) -> str:
        return missing(absent, reports) if missing else describe(absent, self.hosts)

    @property
    def _report(self) -> int:
        return _FIRST_TAG + 2 * self._assemblies % _TAGS

    @property
    def _verdict(self) -> int:
        return self._report + 1

    def _bytes(self, buffer: bytes | bytearray) -> list[Any]:
        return [buffer, self._mpi.BYTE]

    def _send(self, data: bytes, to: int, tag: int) -> None:
        request = self.communicator.Isend(self._bytes(data), to, tag)
        self._sends.append((request, data))

    def _complete_sends(self) -> None:
        """Wait a moment until the others have taken what was sent to them.

        A long message left behind by a process that ends would be read from freed memory.
        """
        deadline, pause = time.monotonic() + _SETTLE, Pause()
        while True:
            self._sends = [(request, data) for request, data in self._sends if not request.Test()]
            if not self._sends or time.monotonic() > deadline:
                return
            pause()

    def _take(self, source: int, tag: int) -> tuple[int, bytes] | None:
        """(sender, bytes) of a message that has arrived, or None; drives MPI's progress."""
        status = self._mpi.Status()
        message = self.communicator.Improbe(source, tag, status)
        if message is None:
            return None
        data = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv(self._bytes(data))
        return int(status.Get_source()), bytes(data)

    def _wait(self, request: Any, deadline: float, what: str) -> None:
        pause = Pause()
        while not request.Test():
            if time.monotonic() > deadline:
                raise RollCallError(f"comm: {what}: rank {self.rank} waited past its deadline")
            pause()

    def _attempt(self, step: Step) -> bytes | None:
        """The record of a step's report, None while it is not done; only CommError is a report."""
        try:
            report = step()
        except CommError as error:
            return err(error, self.who)
        return None if report is None else ok(report)
