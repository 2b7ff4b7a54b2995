"""A job in one process: what a rank is told of its place, what it builds, and how it leaves."""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.comm import (
    CommWarning,
    GroupError,
    NcclError,
    RollCallError,
    UniqueId,
    job,
    mpi,
    torch_bridge,
)
from dispatcher.comm.exchange import Exchange
from dispatcher.comm.groups import AXES
from dispatcher.comm.job import Job
from dispatcher.comm.nccl import start
from dispatcher.comm.nccl.library import IN_PROGRESS
from dispatcher.comm.roll_call import RankInfo

from .fake_mpi import LIMIT, Aborted, Mpi, together


class Nccl:
    """In the place of ``Library``; codes: what each call answers, 0 if it is not there."""

    on_host, version = True, 23007

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.stuck, self.aborted = False, threading.Event()
        self.ways: list[bool] = []  # blocking or not, of each start
        self.calls: list[str] = []
        self.ids: list[UniqueId] = []
        self.splits: list[tuple[int, int]] = []

    def unique_id(self) -> UniqueId:
        self.calls.append("unique_id")
        return UniqueId(b"%03d" % len(self.calls) + bytes(125))

    def init_rank(self, handle: ctypes.c_void_p, *world: Any, blocking: bool = True) -> int:
        _size, self.ids, _rank = world
        handle.value = 1000
        self.ways.append(blocking)
        if self.stuck:
            self.aborted.wait(LIMIT)  # as a call that blocks: an abort ends it
            return 3
        return self.codes.get("init_rank", 0 if blocking else IN_PROGRESS)

    def state(self, handle: object) -> int:
        return self.codes.get("state", 0)

    def split(self, parent: object, color: int, key: int, child: ctypes.c_void_p) -> int:
        self.splits.append((color, key))
        child.value = 2000 + len(self.splits)
        return IN_PROGRESS

    def place(self, handle: object) -> tuple[int, int]:
        return 0, 1

    def why(self, code: int) -> str:
        return f"reason {code}"

    def call(self, name: str, *arguments: Any) -> int:
        self.calls.append(name)
        if name == "ncclCommAbort":
            self.aborted.set()
        return self.codes.get(name, 0)


def info(rank: int, host: str = "h", **fields: Any) -> RankInfo:
    return RankInfo(rank, host, fields.pop("host_key", host), rank % 2, 2, **fields)


def made(*infos: RankInfo, rank: int = 0, timeout: float = 20.0) -> Job:
    """The job of ``rank``; with several ranks nothing collective can be called."""
    fake = Mpi(len(infos) or 1)
    exchange = Exchange(fake, fake.rank(rank), f"rank {rank} on h")
    return Job(exchange, infos or [info(0)], timeout)


def with_nccl(job: Job, nccl: Nccl) -> Job:
    job._library = nccl  # type: ignore[assignment]
    return job


def test_a_rank_on_the_cpu() -> None:
    one = made(info(0), info(1), info(2, "h2"), info(3, "h", host_key="container"), rank=1)
    assert (one.rank, one.size, one.local_rank, one.local_size, one.host) == (1, 4, 1, 2, "h")
    assert (one.gpu, one.device, one.backend) == (None, "cpu", "gloo")
    assert repr(one) == "Job(rank 1 of 4 on h, gloo)"
    assert one.me is one.ranks[1]
    assert one.mpi.Get_rank() == 1


def test_a_rank_with_a_gpu() -> None:
    one = made(info(0, gpu="GPU-1", gpu_index=3))
    assert (one.gpu, one.device, one.backend) == (3, "cuda:3", "nccl")
    unknown = made(replace(info(0), local_rank=None))
    assert unknown.local_rank == 0


class TestNccl:
    def test_it_is_built_once_and_anew_when_it_was_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nccl, one = Nccl(), made()
        libraries = iter([nccl])  # it is loaded once
        monkeypatch.setattr(job, "load_library", lambda: next(libraries))
        first = one.nccl_communicator(timeout=7)
        assert one.nccl_communicator() is first
        assert (first.timeout, nccl.calls) == (7, ["unique_id"])
        first.close()
        second = one.nccl_communicator()
        assert second is not first
        assert second.timeout == 20.0
        assert nccl.calls.count("unique_id") == 2

    def test_it_blocks_as_nccls_do_unless_asked_otherwise(self) -> None:
        nccl = Nccl()
        with_nccl(made(), nccl).nccl_communicator()
        one = with_nccl(made(), nccl)
        one.nccl_communicator(blocking=False)
        assert nccl.ways == [True, False]

    def test_a_start_that_blocks_for_ever_is_named_and_aborted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dispatcher.comm.exchange._MARGIN", 20.0)
        monkeypatch.setattr("dispatcher.comm.nccl.start._ABORT", 60.0)

        def work(exchange: Exchange) -> tuple[Any, list[str]]:
            one = with_nccl(Job(exchange, [info(0), info(1)], 20.0), nccl := Nccl())
            nccl.stuck = exchange.rank == 1
            with pytest.raises(RollCallError) as caught:
                one.nccl_communicator(timeout=8)
            return caught.value.missing, nccl.calls

        ended = [((1,), ["unique_id", "ncclCommAbort"]), ((1,), ["ncclCommAbort"])]
        assert together(2, work) == ended

    @pytest.mark.parametrize(("per_id", "count"), [(None, 1), (1, 2), (2, 1)])
    def test_as_many_ids_as_ranks_need(self, per_id: int | None, count: int) -> None:
        def work(exchange: Exchange) -> int:
            one = with_nccl(Job(exchange, [info(0), info(1)], 20.0), nccl := Nccl())
            one.nccl_communicator(ranks_per_id=per_id)
            return len(nccl.ids)

        assert together(2, work) == [count] * 2

    def test_an_id_for_other_bindings_is_the_same_on_all_ranks(self) -> None:
        def work(exchange: Exchange) -> tuple[UniqueId, list[str]]:
            one = with_nccl(Job(exchange, [info(0), info(1)], 20.0), nccl := Nccl())
            return one.nccl_id(), nccl.calls

        made_by = [["unique_id"], []]
        assert together(2, work) == [(UniqueId(b"001" + bytes(125)), calls) for calls in made_by]

    @pytest.mark.parametrize(
        ("gpu", "hint"), [(None, "job.init_torch() then uses gloo"), (0, "export NCCL_DEBUG=INFO")]
    )
    def test_a_start_that_fails_says_what_to_do(
        self, gpu: int | None, hint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (job, start):
            monkeypatch.setattr(module, "make_current", lambda index: None)
        monkeypatch.setattr("dispatcher.comm.nccl.start._ABORT", 60.0)
        monkeypatch.setitem(sys.modules, "torch", None)
        nccl = Nccl(init_rank=2)
        one = with_nccl(made(info(0, gpu="G", gpu_index=gpu)), nccl)
        with pytest.raises(NcclError, match="nccl: ncclCommInitRank: reason 2") as caught:
            one.nccl_communicator()
        assert hint in (caught.value.hint or "")
        assert caught.value.code == 2
        assert nccl.calls == ["unique_id", "ncclCommAbort"]

    def test_its_gpu_is_the_current_one_for_cuda_and_torch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        current: list[Any] = []
        for module in (job, start):
            monkeypatch.setattr(module, "make_current", current.append)
        torch = SimpleNamespace(cuda=SimpleNamespace(set_device=lambda i: current.append(f"t{i}")))
        monkeypatch.setitem(sys.modules, "torch", torch)
        with_nccl(made(info(0, gpu="G", gpu_index=3)), Nccl()).nccl_communicator()
        assert current == [3, "t3", 3]  # NCCL's start has a thread of its own
        with_nccl(made(), Nccl()).nccl_communicator()
        assert len(current) == 3


def test_torch_is_told_what_the_job_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def init_torch(exchange: Exchange, **options: Any) -> Any:
        asked.append(options)
        return "torch"

    monkeypatch.setattr(torch_bridge, "init_torch", init_torch)
    made().init_torch()
    one = made(info(0, gpu="G", gpu_index=1), info(1, "h2"))
    one.init_torch(timeout=5)
    one.init_torch(backend="cpu:gloo,cuda:nccl")
    assert asked == [
        {"backend": "gloo", "device": None, "one_host": True, "timeout": 600.0},
        {"backend": "nccl", "device": 1, "one_host": False, "timeout": 5},
        {"backend": "cpu:gloo,cuda:nccl", "device": 1, "one_host": False, "timeout": 600.0},
    ]


class TestParallel:
    def test_groups_of_every_axis_and_those_asked_for(self) -> None:
        one = made()
        groups = one.parallel(also=["tp-dp", "tp"])
        assert {name: groups[name].ranks for name in (*AXES, "tp-dp")} == dict.fromkeys(
            (*AXES, "tp-dp"), (0,)
        )
        assert groups.tp.nccl is None
        with pytest.raises(GroupError, match="'cp-tp': was not built"):
            groups["cp-tp"]

    @pytest.mark.parametrize(
        "asked",
        [
            {"tp": 2}, {"pp": 2}, {"dp": 2}, {"cp": 2}, {"ep": 2}, {"expert_tp": 2},
            {"order": "pp-dp-ep-cp-tp"}, {"also": ["tp-dp"]},
        ],
    )  # fmt: skip
    def test_ranks_must_ask_for_the_same(self, asked: dict[str, Any]) -> None:
        def work(exchange: Exchange) -> Any:
            one = Job(exchange, [info(0), info(1)], 20.0)
            return one.parallel(**(asked if exchange.rank else {}))

        for error in together(2, work):
            assert isinstance(error, GroupError)
            assert error.shared
            (name,) = asked
            assert error.message.startswith("comm: groups: rank 1 asks for {")
            assert f'"{name}": ' in error.message

    def test_sizes_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(GroupError, match="dp=2: does not fit a world of 1") as refused:
            made().parallel(dp=2)
        assert refused.value.shared

    def test_rank_0_alone_warns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        warned: list[tuple[threading.Thread, type[Warning]]] = []

        def warn(text: str, kind: type[Warning], stacklevel: int) -> None:
            warned.append((threading.current_thread(), kind))

        def work(exchange: Exchange) -> threading.Thread:
            Job(exchange, [info(0, "h1"), info(1, "h2")], 20.0).parallel(tp=2)
            return threading.current_thread()

        monkeypatch.setattr(job, "warnings", SimpleNamespace(warn=warn))
        ranks = together(2, work)
        assert warned == [(ranks[0], CommWarning)]

    def test_all_axes_of_one_rank_share_a_split(self) -> None:
        one = with_nccl(made(), nccl := Nccl())
        one.nccl_communicator()
        groups = one.parallel()
        assert (nccl.splits, groups.tp.nccl) == ([(0, 0)], groups.pp.nccl)

    def test_torchs_groups_have_the_time_of_its_start(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[float] = []
        monkeypatch.setattr(torch_bridge, "init_torch", lambda exchange, **options: "torch")
        monkeypatch.setattr(
            torch_bridge, "process_group", lambda torch, all, rank, time: given.append(time)
        )
        one = made()
        one.init_torch(timeout=3600)
        one.parallel()
        assert given == [3600]

    def test_the_mesh_is_of_the_ranks_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds: list[str] = []

        def build(*_: Any, device_type: str, **__: Any) -> Any:
            kinds.append(device_type)

        monkeypatch.setattr("dispatcher.comm.groups.build", build)
        made().parallel()
        made(info(0, gpu="G", gpu_index=0)).parallel()
        assert kinds == ["cpu", "cuda"]


class Distributed:
    """torch.distributed as far as it is ended."""

    def __init__(self, started: bool) -> None:
        self.started, self.ended = started, 0

    def is_initialized(self) -> bool:
        return self.started

    def destroy_process_group(self) -> None:
        self.started = False
        self.ended += 1


@pytest.mark.parametrize("started", [True, False])
def test_torch_is_ended_if_nobody_did_before(started: bool) -> None:
    one, distributed = made(), Distributed(started)
    one._torch = SimpleNamespace(distributed=distributed)
    one.close()
    one.close()
    assert distributed.ended == started


class TestLeaving:
    def test_well_it_is_closed(self) -> None:
        nccl = Nccl()
        with with_nccl(made(), nccl) as one:
            one.nccl_communicator()
        assert nccl.calls[1:] == ["ncclCommFinalize", "ncclCommDestroy"]

    def test_by_an_exception_it_is_aborted(self) -> None:
        one = with_nccl(made(), nccl := Nccl())
        one.nccl_communicator()
        with pytest.raises(KeyError), one:
            raise KeyError
        assert nccl.calls[1:] == ["ncclCommAbort"]
        with pytest.raises(KeyError), made():
            raise KeyError

    def test_all_that_came_of_the_world_ends_with_the_job(self) -> None:
        def build(one: Job) -> list[Any]:
            world = one.nccl_communicator()
            half = world.split(0)
            assert half is not None
            one.parallel()
            return [world, half, half.split(0)]

        one = with_nccl(made(), nccl := Nccl())
        members = build(one)
        with pytest.raises(KeyError), one:
            raise KeyError
        assert all(member.closed for member in members)
        assert nccl.calls.count("ncclCommAbort") == len(nccl.splits) + 1
        again = build(one)
        again[1].close()
        one.close()
        assert all(member.closed for member in again)
        assert nccl.calls.count("ncclCommDestroy") == nccl.calls.count("ncclCommFinalize")
        assert nccl.calls.count("ncclCommAbort") == len(nccl.splits) // 2 + 1
        assert one._communicators == []

    def test_an_exit_ends_the_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = Mpi(1)
        monkeypatch.setattr(mpi._Ways, "mpi", fake)
        monkeypatch.setattr(mpi._Ways, "exchange", Exchange(fake, fake.rank(0)))
        with pytest.raises(Aborted), made():
            sys.exit(3)
        assert fake.aborted == [3]
        with pytest.raises(SystemExit), made():
            sys.exit(0)
