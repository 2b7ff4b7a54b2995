"""One end of a pair measured over MPI, with the other end, the clock and MPI played."""

from __future__ import annotations

import json
import sys
import threading
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.remote.rank import pair
from remote.driver import Os
from remote.rank.conftest import Clock


class Request:
    def __init__(self, world: World, looks: float) -> None:
        self.world, self.looks = world, looks

    def Test(self) -> bool:
        if self.looks <= 0 and self in self.world.under_way:
            self.world.under_way.remove(self)
        self.looks -= 1
        return self.looks < 0


class World:
    """Rank ``rank`` of two; what is sent is noted, and ``answers`` are what comes.

    A byte takes ``slow`` seconds, there or back; a request is done at the ``looks``th look.
    """

    def __init__(self, clock: Clock, rank: int = 0, slow: float = 0.0) -> None:
        self.clock, self.rank, self.slow = clock, rank, slow
        self.steps: list[Any] = []
        self.answers: list[int] = []
        self.looks = 1.0
        self.under_way: list[Request] = []
        self.most = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return 2

    def _begin(self) -> Request:
        request = Request(self, self.looks)
        self.under_way.append(request)
        self.most = max(self.most, len(self.under_way))
        return request

    def Isend(self, data: Any, dest: int) -> Request:
        assert dest == 1 - self.rank
        self.steps.append(("send", data[0] if isinstance(data, array) else len(data) * 1j))
        if not isinstance(data, array):
            self.clock.now += len(data) * self.slow
        return self._begin()

    def Irecv(self, data: Any, source: int) -> Request:
        assert source == 1 - self.rank
        if isinstance(data, array):
            data[0] = self.answers.pop(0)
            self.steps.append(("take", data[0]))
        else:
            self.steps.append(("take", len(data) * 1j))
        return self._begin()


def numbers(world: World, what: str) -> list[Any]:
    """The numbers that it sent or took, which are no data."""
    return [n for step, n in world.steps if step == what and not isinstance(n, complex)]


class TestMpi:
    def test_a_request_is_looked_at_until_it_is_done_or_late(self, clock: Clock) -> None:
        world = World(clock)
        end = pair.MpiEnd(world, clock.now + 5.0)
        world.looks = 5
        end.send_number(7)
        assert clock.now == 105.0  # the fifth look is in time
        with pytest.raises(TimeoutError, match="no answer in time"):
            end.send_number(8)
        world.looks = 0
        end.send_number(9)  # what is done needs no time
        assert numbers(world, "send") == [7, 8, 9]

    def test_round_trips(self, clock: Clock) -> None:
        """The middle one counts."""
        world = World(clock)
        world.answers = [1] * pair.PINGS
        end = pair.MpiEnd(world, clock.now + 1e6)
        durations = iter([1.0] * 10 + [3.0] + [7.0] * 9)
        usual = end.receive_number

        def receive() -> int:
            clock.now += next(durations)
            return usual()

        end.receive_number = receive  # type: ignore[method-assign]
        world.looks = 0
        assert end.ping() == 3.0
        assert world.steps == [("send", 1), ("take", 1)] * pair.PINGS

    def test_the_other_end_of_round_trips(self, clock: Clock) -> None:
        world = World(clock, rank=1)
        world.answers = [1] * pair.PINGS
        pair.MpiEnd(world, 1e9).pong()
        assert world.steps == [("take", 1), ("send", 1)] * pair.PINGS

    @pytest.mark.parametrize(("slow", "last"), [(1e-6, 524288), (1e-4, 65536), (0.0, 1 << 20)])
    def test_rounds_double_until_one_takes_long_enough(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, slow: float, last: int
    ) -> None:
        """Half of the seconds, or the most bytes that a round may have."""
        monkeypatch.setattr(pair, "MOST", 1 << 20)
        monkeypatch.setattr(pair, "PIECE", 100_000)
        world = World(clock, slow=slow)
        world.looks = 0
        world.answers = [1] * 20
        rate = pair.MpiEnd(world, 1e9).send(1.0)
        rounds = [size for n in range(16, 40) if (size := 1 << n) <= last]
        assert numbers(world, "send") == [*rounds, 0]
        assert rate == pytest.approx(last / max(last * slow, 1e-6))
        pieces = [int(n.imag) for _, n in world.steps if isinstance(n, complex)]
        assert sum(pieces) == sum(rounds)
        assert max(pieces) == min(100_000, last)

    def test_few_messages_are_under_way_and_all_of_them_have_arrived(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pair, "PIECE", 10_000)
        monkeypatch.setattr(pair, "MOST", 1 << 16)
        world = World(clock, slow=1e-9)
        world.answers = [1]
        pair.MpiEnd(world, 1e9).send(9e9)
        assert world.most == pair.AHEAD
        assert world.under_way == []

    def test_the_other_end_takes_just_what_is_announced(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pair, "PIECE", 1000)
        world = World(clock, rank=1)
        world.answers = [2500, 1000, 0, 99]
        pair.MpiEnd(world, 1e9).receive()
        assert world.steps == [
            ("take", 2500), ("take", 1000j), ("take", 1000j), ("take", 500j), ("send", 1),
            ("take", 1000), ("take", 1000j), ("send", 1), ("take", 0),
        ]  # fmt: skip

    @pytest.mark.parametrize("size", [pair.MOST + 1, -1])
    def test_a_size_that_nobody_would_send_ends_it(self, clock: Clock, size: int) -> None:
        world = World(clock, rank=1)
        world.answers = [size]
        pair.MpiEnd(world, 1e9).receive()
        assert world.steps == [("take", size)]

    @pytest.mark.parametrize(
        ("rank", "steps", "found"),
        [
            (0, ["ping", "send 0.5", "receive"], (0.25, 77.0)),
            (1, ["pong", "receive", "send 0.5"], (None, 77.0)),
        ],
    )
    def test_who_does_what_when(
        self, monkeypatch: pytest.MonkeyPatch, clock: Clock, rank: int, steps: list[str],
        found: tuple[object, object],
    ) -> None:  # fmt: skip
        done: list[str] = []

        class End:
            def __init__(self, world: object, until: float) -> None:
                assert until == 104.0

            def ping(self) -> float:
                done.append("ping")
                return 0.25

            def send(self, seconds: float) -> float:
                done.append(f"send {seconds}")
                return 77.0

            def __getattr__(self, name: str) -> Callable[[], None]:
                return lambda: done.append(name)

        monkeypatch.setattr(pair, "MpiEnd", End)
        mpi(monkeypatch, World(clock, rank))
        result = pair.Result()
        pair.measure_mpi(result.found, 0.5, 4.0)
        assert done == steps
        assert result.found == {"latency": found[0], "rate": found[1], "why": "", "lack": ""}

    @pytest.mark.parametrize(
        ("error", "why"),
        [
            (TimeoutError("no answer in time"), "no answer in time"),
            ("first\nsecond", "first"),
            ("", "MPI failed"),
            ("x" * 999, "x" * 400),
        ],
    )
    def test_what_goes_wrong_is_told_by_its_first_line(
        self, monkeypatch: pytest.MonkeyPatch, clock: Clock, error: object, why: str
    ) -> None:
        module = mpi(monkeypatch, World(clock))
        raised = error if isinstance(error, Exception) else module.Exception(error)

        def fail(self: object) -> None:
            raise raised

        monkeypatch.setattr(pair.MpiEnd, "ping", fail)
        result = pair.Result()
        pair.measure_mpi(result.found, 0.5, 4.0)
        assert result.found == {"latency": None, "rate": None, "why": why, "lack": ""}

    def test_what_a_host_lacks(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        world = World(clock)
        mpi(monkeypatch, world)
        monkeypatch.setattr(world, "Get_size", lambda: 1)
        result = pair.Result()
        pair.measure_mpi(result.found, 0.5, 4.0)
        assert result.found["lack"] == "MPI has made a world of 1"

        def lacks(name: str) -> None:
            raise ImportError("none here" + "x" * 999)

        monkeypatch.setattr(pair, "import_module", lacks)
        pair.measure_mpi(result.found, 0.5, 4.0)
        assert result.found["lack"].startswith(f"{sys.executable}: none here")
        assert len(result.found["lack"]) == 400
        assert (result.found["why"], world.steps) == ("", [])


def mpi(monkeypatch: pytest.MonkeyPatch, world: World) -> Any:
    """The stand-in for ``mpi4py.MPI``."""

    class Failure(Exception):
        pass

    module = SimpleNamespace(COMM_WORLD=world, Exception=Failure)
    monkeypatch.setattr(pair, "import_module", {"mpi4py.MPI": module}.__getitem__)
    return module


class TestResult:
    def test_it_is_said_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = pair.Result()
        result.found["rate"] = 5.0
        result.tell()
        result.found["rate"] = 6.0
        result.tell()
        mark, text = capsys.readouterr().out.split(": ", 1)
        assert mark + ": " == pair.MARK
        assert json.loads(text) == {"latency": None, "rate": 5.0, "why": "", "lack": ""}

    def test_late_is_told_with_what_was_done(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        codes: list[int] = []
        timers: list[Any] = []

        class Timer:
            daemon = False

            def __init__(self, seconds: float, call: Callable[[], None]) -> None:
                self.seconds, self.call = seconds, call

            def start(self) -> None:
                timers.append((self.seconds, self.daemon, self.call))

        monkeypatch.setattr(pair, "os", Os(_exit=codes.append))
        monkeypatch.setattr(pair, "threading", SimpleNamespace(Timer=Timer, Lock=threading.Lock))
        result = pair.Result()
        result.doing = "small all-reduces"
        result.until(7.5)
        ((seconds, is_daemon, call),) = timers
        assert (seconds, is_daemon, codes) == (7.5, True, [])
        call()
        assert codes == [1]
        assert '"why": "no answer in time: small all-reduces"' in capsys.readouterr().out
