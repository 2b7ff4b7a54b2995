"""One end of a pair measured by torch, with the other end, the clock and torch played.

The other half of ``pair``, which is ``test_pair``'s too.
"""

from __future__ import annotations

import json
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.rank import pair
from remote.driver import noting
from remote.rank.conftest import Clock


class Tensor:
    def __init__(self, size: int, value: float, device: str) -> None:
        self.size, self.value, self.device = size, value, device

    def __eq__(self, other: object) -> Any:
        return SimpleNamespace(all=lambda: self.value == other)

    __hash__ = None  # type: ignore[assignment]

    def zero_(self) -> None:
        self.value = 0.0

    def item(self) -> float:
        return self.value


class Torch:
    """As much of torch as a pair needs; an element takes ``slow`` seconds, the other rank
    ``other`` times as long, and adds ``adds``."""

    float64 = "float64"
    __version__ = "2.9"
    version = SimpleNamespace(cuda="13.0")

    def __init__(self, clock: Clock, slow: float = 1e-6, other: float = 1.0) -> None:
        self.clock, self.slow, self.other, self.adds = clock, slow, other, 2.0
        self.reduced: list[int] = []
        self.groups: set[object] = set()
        self.synced = 0
        self.gpus, self.has_nccl = True, True
        self.distributed = SimpleNamespace(
            all_reduce=self.all_reduce, ReduceOp=SimpleNamespace(MAX="max"),
            is_nccl_available=lambda: self.has_nccl,
        )  # fmt: skip
        self.cuda = SimpleNamespace(synchronize=self.sync, is_available=lambda: self.gpus)

    def sync(self) -> None:
        self.synced += 1

    def all_reduce(self, data: Tensor, op: str | None = None, group: object = None) -> None:
        self.groups.add(group)
        if op == "max":
            data.value *= self.other
            return
        self.reduced.append(data.size)
        self.clock.now += data.size * self.slow
        data.value += self.adds

    def zeros(self, size: int, device: str) -> Tensor:
        return Tensor(size, 0.0, device)

    def full(self, shape: tuple[int], value: float, device: str) -> Tensor:
        return Tensor(shape[0], value, device)

    def tensor(self, values: list[float], dtype: str, device: str) -> Tensor:
        assert (dtype, len(values)) == ("float64", 1)
        return Tensor(1, values[0], device)


def torch_end(torch: Torch, backend: str = "gloo") -> pair.TorchEnd:
    job = SimpleNamespace(backend=backend, device="cpu", rank=0, size=2)
    return pair.TorchEnd(torch, job)


class TestTorch:
    def test_latency_is_the_middle_of_small_all_reduces(self, clock: Clock) -> None:
        torch = Torch(clock, slow=0.5)
        assert torch_end(torch).latency() == pytest.approx(1.0)
        assert torch.reduced == [2] * (1 + pair.PINGS)  # the first one builds what others use
        assert torch.synced == 0
        torch_end(torch, "nccl").latency()
        assert torch.synced == 2 * (1 + pair.PINGS)
        torch.reduced.clear()
        durations = iter([9.0] + [1.0] * 10 + [2.0] + [7.0] * 9)
        usual = torch.all_reduce

        def slower(data: Tensor, op: str | None = None, group: object = None) -> None:
            torch.slow = next(durations) / 2
            usual(data, op, group)

        torch.distributed.all_reduce = slower
        assert torch_end(torch).latency() == pytest.approx(2.0)

    def test_a_wrong_sum_is_a_failure(self, clock: Clock) -> None:
        torch = Torch(clock)
        torch.adds = 2.5
        with pytest.raises(ArithmeticError, match="wrong sums in an all-reduce of 65536 bytes"):
            torch_end(torch).rate(0.5)

    @cases(("n", "factor"), [(2, 1.0), (8, 1.75), (16, 1.875)])
    def test_bandwidth_is_busbw_of_a_group(self, clock: Clock, n: int, factor: float) -> None:
        """As nccl-tests' PERFORMANCE.md has it for an all-reduce: 2 (n - 1) / n."""
        torch = Torch(clock, slow=1e-4)
        torch.adds = float(sum(range(2, n + 1)))
        job = SimpleNamespace(backend="gloo", device="cpu", rank=0, size=64)
        rate = pair.TorchEnd(torch, job, range(n), "group").rate(0.5)
        assert rate == pytest.approx(4 / 1e-4 * factor)
        assert torch.groups == {"group"}

    @pytest.mark.parametrize(
        ("backend", "state", "lack"),
        [
            ("nccl", {}, ""),
            ("gloo", {"gpus": False, "has_nccl": False}, ""),
            ("nccl", {"gpus": False}, "torch 2.9 sees no GPU; ask nvidia-smi why, "
                                      "or --backend gloo"),
            ("nccl", {"gpus": False, "version": SimpleNamespace(cuda=None)},
             "torch 2.9 is built for the CPU alone; a torch for CUDA, or --backend gloo"),
            ("nccl", {"has_nccl": False},
             "torch 2.9 is built without NCCL; another torch, or --backend gloo"),
        ],
    )  # fmt: skip
    def test_what_a_host_lacks(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, backend: str, state: dict[str, Any],
        lack: str,
    ) -> None:  # fmt: skip
        torch = Torch(clock)
        for name, value in state.items():
            setattr(torch, name, value)
        monkeypatch.setitem(sys.modules, "torch", torch)
        asked: list[str] = []
        monkeypatch.setattr(pair, "import_module", noting(asked))
        assert pair.lack(backend) == lack
        assert asked == ["torch", "torch.distributed", "mpi4py", "dispatcher.comm"]


class Comm:
    """In the place of ``dispatcher.comm``: a job of ``size`` ranks, which may fail anywhere."""

    class EnvironmentMissing(Exception):
        shared = False

    def __init__(self) -> None:
        self.size, self.backend = 2, "gloo"
        self.steps: list[Any] = []
        self.fails: dict[str, Exception] = {}

    def __getattr__(self, name: str) -> Any:
        def step(**words: Any) -> Comm:
            self.steps.append((name, words))
            if name in self.fails:
                raise self.fails[name]
            return self

        return step


class TestMeasured:
    @pytest.fixture
    def comm(self, monkeypatch: pytest.MonkeyPatch) -> Comm:
        comm = Comm()
        put = monkeypatch.setattr
        put(pair, "import_module", {"dispatcher.comm": comm}.__getitem__)
        put(pair, "lack", lambda backend: "")
        put(pair.TorchEnd, "__init__", lambda self, torch, job: None)
        for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
            monkeypatch.delenv(name, raising=False)
        put(pair.TorchEnd, "latency", lambda self: 0.25)
        put(pair.TorchEnd, "rate", lambda self, seconds: 100.0 * seconds)
        put(pair.Result, "until", lambda self, limit: comm.steps.append(("until", limit)))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
        return comm

    def measured(self, backend: str = "gloo") -> pair.Result:
        result = pair.Result()
        pair.measure_torch(result, backend, 2.0, 9.0)
        return result

    @pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("nccl", 0)])
    def test_all_is_well(
        self, comm: Comm, capsys: pytest.CaptureFixture[str], backend: str, device: object
    ) -> None:
        comm.backend = backend
        result = self.measured(backend)
        assert result.found == {
            "latency": 0.25, "rate": 200.0, "why": "", "lack": "", "node": 0, "local": 0, "gpus": 1,
        }  # fmt: skip
        assert comm.steps == [
            ("init", {"timeout": 9.0, "device": device, "abort_on_exception": False}),
            ("until", 9.0), ("init_torch", {"timeout": 9.0}), ("close", {}),
        ]  # fmt: skip
        assert capsys.readouterr().out == pair.MARK + json.dumps(result.found) + "\n"
        assert result.doing == "large all-reduces"

    def test_what_lacks_is_told_at_once_and_nothing_is_begun(
        self, comm: Comm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Also while the other end's failure ends this one: both are to be told."""
        held: list[bool] = []

        def lack(backend: str) -> str:
            held.append(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            return "no torch" + "x" * 999

        monkeypatch.setattr(pair, "lack", lack)
        result = self.measured()
        assert result.found["lack"] == ("no torch" + "x" * 999)[:400]
        assert '"lack": "no torch' in capsys.readouterr().out
        assert (held, comm.steps) == ([True], [])
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    @pytest.mark.parametrize(
        ("size", "backend", "lack"),
        [
            (1, "gloo", "1 rank has met for gloo, not 2 for gloo"),
            (2, "nccl", "2 ranks have met for nccl, not 2 for gloo"),
        ],
    )
    def test_it_takes_two(self, comm: Comm, size: int, backend: str, lack: str) -> None:
        comm.size, comm.backend = size, backend
        assert self.measured().found["lack"] == lack
        assert [step for step, _ in comm.steps] == ["init", "until"]

    @pytest.mark.parametrize(
        ("where", "shared", "field"),
        [("init", False, "lack"), ("init", True, "why"), ("init_torch", None, "why"),
         ("close", None, "why")],
    )  # fmt: skip
    def test_what_goes_wrong(self, comm: Comm, where: str, shared: bool | None, field: str) -> None:
        """What an environment lacks on one host is that host's; on both, it is the pair's."""
        lacks = comm.EnvironmentMissing("broken")
        lacks.shared = shared is True
        comm.fails = {where: RuntimeError("broken\nmore") if shared is None else lacks}
        found = self.measured().found
        assert {name: found[name] for name in ("why", "lack")} == {
            "why": "", "lack": "", field: "broken",
        }  # fmt: skip


@cases(
    ("env", "size", "found"),
    [
        ({}, 2, (0, 0, [[0], [1]])),
        ({"NODE_RANK": "1"}, 2, (1, 0, [[0], [1]])),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 4, (0, 1, [[0, 1], [2, 3]])),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3", "NODE_RANK": "1"}, 5,
         (1, 2, [[0, 1], [2, 3, 4]])),
        ({"LOCAL_WORLD_SIZE": "4"}, 4, (0, 0, [[0, 1, 2, 3], []])),
    ],
)  # fmt: skip
def test_where_a_rank_is(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], size: int, found: object
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert pair.place(size) == found


@cases(
    ("node", "local", "backend", "found"),
    [
        (0, 1, "nccl", {"gpu": "NVIDIA H200", "inside": [0, 1], "rail": [1, 3]}),
        (1, 0, "gloo", {"inside": [2, 3, 4], "rail": [0, 2]}),
        (1, 2, "gloo", {"inside": [2, 3, 4]}),  # nobody on the other host is its counterpart
    ],
)
def test_a_host_by_itself_and_then_its_rail(
    monkeypatch: pytest.MonkeyPatch, node: int, local: int, backend: str, found: dict[str, Any]
) -> None:
    """Every rank makes all groups, as torch asks for it, and measures in its own two."""
    made: list[list[int]] = []

    class End:
        def __init__(self, torch: Any, job: Any, ranks: Any = None, group: Any = None) -> None:
            self.ranks = None if ranks is None else list(ranks)
            assert group == self.ranks

        def huge(self) -> int:
            return 9

        def latency(self) -> float:
            assert self.ranks is None
            return 1.0

        def rate(self, seconds: float, largest: int = 0) -> Any:
            return self.ranks

    def new_group(ranks: list[int]) -> list[int]:
        made.append(ranks)
        return ranks

    torch = SimpleNamespace(
        distributed=SimpleNamespace(new_group=new_group),
        cuda=SimpleNamespace(get_device_name=lambda: "NVIDIA H200"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(pair, "TorchEnd", End)
    result = pair.Result()
    job = SimpleNamespace(backend=backend)
    pair.measure_several(result, job, [[0, 1], [2, 3, 4]], (node, local), 0.4)
    assert made == [[0, 1], [2, 3, 4], [0, 2], [1, 3]]
    nothing = {"latency": None, "rate": None, "why": "", "lack": ""}
    assert result.found == {**nothing, **found}
    assert result.doing == "all rails at once"
