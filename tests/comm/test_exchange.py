"""A record brings its payload, or raises what the other rank said; all ranks get one verdict."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm import CommError, NcclError, RollCallError, errors, exchange
from dispatcher.comm.exchange import Aside, Exchange, Pause

from .fake_mpi import LIMIT, Mpi, together


@given(st.binary(max_size=300))
def test_a_payload_comes_back(payload: bytes) -> None:
    text = exchange.ok(payload)
    assert exchange.open_record(text) == payload
    assert not exchange.failed(text)
    assert exchange.length(text[: exchange.HEADER.size]) == len(payload)


@given(
    st.text(max_size=50),
    st.none() | st.text(max_size=20),
    st.sampled_from(
        [
            kind
            for kind in vars(errors).values()
            if isinstance(kind, type) and issubclass(kind, CommError)
        ]
    ),
)
def test_an_error_comes_back_as_its_kind(
    message: str, hint: str | None, kind: type[CommError]
) -> None:
    text = exchange.err(kind(message, hint=hint, code=5, missing=(3, 4)))
    assert exchange.failed(text)
    with pytest.raises(kind) as caught:
        exchange.open_record(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert (caught.value.shared, caught.value.code, caught.value.missing) == (True, 5, (3, 4))


def test_the_rank_it_is_about_is_named_once() -> None:
    for message in ("comm: gpu: gone", "gpu: gone", "rank 3 on h: gpu: gone"):
        with pytest.raises(CommError, match=r"^rank 3 on h: gpu: gone$"):
            exchange.open_record(exchange.err(CommError(message), "rank 3 on h"))


@given(st.binary(max_size=40))
def test_garbage_is_no_record(text: bytes) -> None:
    with pytest.raises(CommError):
        exchange.open_record(text)


@pytest.mark.parametrize("change", [(0, b"x"), (4, b"\2"), (5, b"\2"), (9, b"\1")])
def test_another_head_is_no_record(change: tuple[int, bytes]) -> None:
    at, byte = change
    text = exchange.ok(b"")
    with pytest.raises(CommError):
        exchange.open_record(text[:at] + byte + text[at + 1 :])
    assert exchange.open_record(text) == b""
    with pytest.raises(CommError, match="2 bytes came of 3"):
        exchange.open_record(exchange.ok(b"abc")[:-1])
    for size in range(exchange.HEADER.size):
        with pytest.raises(CommError, match=f"{size} bytes are not a header"):
            exchange.length(text[:size])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are not there are not waited for long, rank 0's word is."""
    monkeypatch.setattr(exchange, "_SETTLE", 0.1)
    monkeypatch.setattr(exchange, "_MARGIN", 20.0)


def until_sent(mpi: Mpi, to: int, count: int = 1) -> None:
    """Wait until ``count`` messages were sent to a rank."""
    end = time.monotonic() + 20
    while len([one for one in mpi.tags if one[1] == to]) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def verdicts(results: list[Any]) -> set[tuple[Any, ...]]:
    """The errors that ranks raised, as what they say."""
    assert all(isinstance(error, CommError) and error.shared for error in results), results
    return {(type(e), e.message, e.hint, e.code, e.missing) for e in results}


class TestAssemble:
    def test_each_gets_its_answer_once_all_have_reported(self) -> None:
        def work(ranks: Exchange) -> bytes:
            mine = b"%d" % ranks.rank * 3
            return ranks.assemble("x", 20, step=lambda: mine, answer=lambda all: all[::-1])

        assert together(4, work) == [b"333", b"222", b"111", b"000"]

    @pytest.mark.parametrize("slow", [0, 1])
    def test_a_step_is_called_until_it_reports(self, slow: int) -> None:
        calls = [0, 0]

        def work(ranks: Exchange) -> bytes:
            def step() -> bytes | None:
                calls[ranks.rank] += 1
                late = ranks.rank == slow and calls[slow] < 5
                return None if late else b"%d" % ranks.rank

            return ranks.assemble("x", 20, step=step, answer=lambda all: [b",".join(all)] * 2)

        assert together(2, work) == [b"0,1"] * 2
        assert calls[slow] == 5
        assert calls[1 - slow] == 1

    @pytest.mark.parametrize("bad", [0, 1, 2])
    def test_the_first_failure_is_everybodys_while_others_are_at_their_step(self, bad: int) -> None:
        def work(ranks: Exchange) -> bytes:
            def step() -> bytes | None:
                if ranks.rank == bad:
                    raise NcclError("comm: nccl: broken", code=3, hint="mend it")
                return None  # for ever

            return ranks.assemble("x", 60, step=step)

        message = f"rank {bad} on h: nccl: broken"
        assert verdicts(together(3, work)) == {(NcclError, message, "mend it", 3, ())}

    def test_an_answer_that_fails_is_everybodys_reason(self) -> None:
        def answer(reports: list[bytes]) -> list[bytes]:
            raise errors.GroupError(f"comm: {reports}")

        def work(ranks: Exchange) -> bytes:
            return ranks.assemble("x", 20, step=lambda: b"%d" % ranks.rank, answer=answer)

        wanted = (errors.GroupError, "comm: [b'0', b'1', b'2']", None, 0, ())
        assert verdicts(together(3, work)) == {wanted}

    def test_those_who_do_not_come_are_named_by_those_who_did(self) -> None:
        mpi = Mpi(4)

        def work(ranks: Exchange) -> bytes:
            ranks.hosts = {1: "h1", 3: "h3"}
            if ranks.rank in (1, 3):
                return b"absent"
            if ranks.rank == 0:
                until_sent(mpi, 0)
            return ranks.assemble("roll call", 0.05, step=lambda: b"x", hint="look there")

        first, _, third, _ = together(4, work, mpi)
        message = "comm: roll call: rank 1 on h1; rank 3 on h3 did not come within 0.05 s"
        assert verdicts([first, third]) == {(RollCallError, message, "look there", 0, (1, 3))}

    def test_who_came_in_time_is_not_blamed_for_a_slow_rank_0(self) -> None:
        mpi = Mpi(4)

        def work(ranks: Exchange) -> bytes:
            def step() -> bytes:
                if ranks.rank == 0:
                    until_sent(mpi, 0, 3)
                return b""

            return ranks.assemble("x", 0.0, step=step)

        assert together(4, work, mpi) == [b""] * 4

    def test_one_that_is_late_hears_the_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exchange, "_LATE", 20.0)

        mpi = Mpi(2)

        def work(ranks: Exchange) -> bytes:
            if ranks.rank == 1:
                until_sent(mpi, 1)
            return ranks.assemble("x", 0.05)

        message = "comm: x: rank 1 on an unknown host did not come within 0.05 s"
        began = time.monotonic()
        assert verdicts(together(2, work, mpi)) == {(RollCallError, message, None, 0, (1,))}
        assert time.monotonic() - began < 15  # once it has heard, nobody waits on

    def test_without_rank_0_there_is_no_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exchange, "_MARGIN", 0.1)

        def work(ranks: Exchange) -> bytes:
            ranks.hosts = {0: "h0"}
            return ranks.assemble("x", 0.05, hint="look there") if ranks.rank else b""

        for error in together(3, work)[1:]:
            assert isinstance(error, RollCallError)
            assert error.message == "comm: x: rank 0 on h0 gave no verdict within 0.05 s"
            assert (error.missing, error.shared, error.hint) == ((0,), False, "look there")

    def test_a_late_word_of_one_step_is_none_of_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A failure is everybody's at once, so reports of it may still come in the next."""
        monkeypatch.setattr(exchange, "_SETTLE", 20.0)

        def work(ranks: Exchange) -> list[bytes]:
            found = []
            for turn in range(6):
                try:
                    found.append(ranks.assemble("x", 20, step=partial(step, turn)))
                except NcclError as error:
                    found.append(error.message.encode())
            return found

        def step(turn: int) -> bytes:
            if turn % 2:
                raise NcclError("rank: bad")
            return b"%d" % turn

        mpi = Mpi(3)
        for found in together(3, work, mpi):
            assert [text[-3:] for text in found] == [b"", b"bad"] * 3
        reports = {tag for _, to, tag in mpi.tags if not to}
        assert len(reports) == 6
        assert not reports & {tag for _, to, tag in mpi.tags if to}
        assert all(box == [] for box in mpi.boxes.values())  # each has taken all of it

    def test_a_verdict_that_nobody_takes_holds_nobody_up(self) -> None:
        def work(ranks: Exchange) -> bytes:
            return b"" if ranks.rank else ranks.assemble("x", 0.01)

        began = time.monotonic()
        assert isinstance(together(2, work)[0], RollCallError)
        assert time.monotonic() - began < 25

    def test_each_report_is_looked_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or rank 0 of 80,000 would take minutes."""
        looked: list[bytes] = []
        really = exchange.failed

        def failed(text: bytes) -> bool:
            looked.append(text)
            return really(text)

        monkeypatch.setattr(exchange, "failed", failed)
        together(16, lambda ranks: ranks.assemble("x", 20))
        assert len([text for text in looked if text == exchange.ok()]) <= 16 + 2 * 16


class TestShare:
    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5])
    def test_all_get_what_rank_0_made(self, data: bytes) -> None:
        def work(ranks: Exchange) -> bytes:
            def make() -> bytes:
                assert ranks.rank == 0
                return data

            return ranks.share(make, "x", 20)

        assert together(3, work) == [data] * 3

    def test_all_get_its_reason(self) -> None:
        def make() -> bytes:
            raise CommError("comm: no", hint="do")

        results = together(3, lambda ranks: ranks.share(make, "x", 20))
        assert verdicts(results) == {(CommError, "rank 0 on h: no", "do", 0, ())}

    def test_without_rank_0_the_others_end(self) -> None:
        def work(ranks: Exchange) -> bytes:
            return ranks.share(lambda: b"x", "the id", 0.05) if ranks.rank else b""

        error = together(2, work)[1]
        assert isinstance(error, RollCallError)
        assert error.message == "comm: the id: rank 1 waited past its deadline"


class TestGather:
    def test_all_get_all_in_rank_order(self) -> None:
        def work(ranks: Exchange) -> list[bytes]:
            return ranks.gather(lambda: b"%d" % ranks.rank * ranks.rank, "x", 20)

        assert together(4, work) == [[b"", b"1", b"22", b"333"]] * 4

    def test_all_raise_what_the_first_raised(self) -> None:
        def work(ranks: Exchange) -> list[bytes]:
            def make() -> bytes:
                if ranks.rank:
                    raise CommError(f"no {ranks.rank}")
                return b""

            return ranks.gather(make, "x", 20)

        assert verdicts(together(3, work)) == {(CommError, "rank 1 on h: no 1", None, 0, ())}

    def test_without_all_of_them_it_ends(self) -> None:
        def work(ranks: Exchange) -> list[bytes]:
            return [] if ranks.rank == 1 else ranks.gather(lambda: b"", "comparing", 0.05)

        first, _, third = together(3, work)
        for rank, error in ((0, first), (2, third)):
            assert isinstance(error, RollCallError)
            assert error.message == f"comm: comparing: rank {rank} waited past its deadline"


@pytest.mark.parametrize("absent", [None, 0, 1])
def test_a_barrier_says_whether_all_came(absent: int | None) -> None:
    def work(ranks: Exchange) -> bool:
        return ranks.barrier(20 if absent is None else 0.05) if ranks.rank != absent else False

    assert together(2, work) == [absent is None] * 2


def test_a_duplicate_has_messages_of_its_own() -> None:
    mpi = Mpi(2)

    def work(ranks: Exchange) -> str:
        other = ranks.duplicate(20)
        assert (other.rank, other.size) == (ranks.rank, 2)
        other.assemble("x", 20)
        return other.who

    assert together(2, work, mpi) == ["rank 0 on h", "rank 1 on h"]
    assert {number for number, _, _ in mpi.tags} == {1}
    error = together(2, lambda ranks: ranks.rank or ranks.duplicate(0.05))[0]
    assert isinstance(error, RollCallError)
    assert "duplicating the communicator" in error.message


def test_pauses_grow_to_two_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    played = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
    monkeypatch.setattr(exchange, "time", played)  # not that of other threads
    pause = Pause()
    for _ in range(20):
        pause()
    assert slept[:2] == [0.0, 0.00002]
    assert slept == sorted(slept)
    assert slept[-1] == 0.002
    pause.again()
    pause()
    assert slept[-1] == 0.0


def test_work_aside_is_a_step_that_others_need_not_wait_for() -> None:
    go, refused = threading.Event(), CommError("no")

    def work() -> bytes:
        assert go.wait(LIMIT)
        return b"done"

    def fail() -> bytes:
        raise refused

    step, failing = Aside(work, "work"), Aside(fail, "fail")
    assert step() is None
    go.set()
    step.wait(LIMIT)
    failing.wait(LIMIT)
    assert (step(), step()) == (b"done", b"done")
    with pytest.raises(CommError) as caught:
        failing()
    assert caught.value is refused
