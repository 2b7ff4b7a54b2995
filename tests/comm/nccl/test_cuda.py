"""Which GPU a rank uses, with drivers that are not there, see no GPU, or some."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cases import cases

from dispatcher.comm import CommError
from dispatcher.comm.nccl import library
from dispatcher.comm.nccl.library import make_current


class Driver:
    """The calls of libcuda that ``find`` makes. start: what cuInit answers. count: GPUs."""

    def __init__(self, start: int, count: int) -> None:
        self.start, self.count = start, count

    def cuInit(self, flags: int) -> int:
        return self.start

    def cuDeviceGetCount(self, found: Any) -> int:
        found._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetUuid_v2(self, found: Any, device: Any) -> int:
        found._obj[0] = device.value
        return 0

    def cuDriverGetVersion(self, found: Any) -> int:
        found._obj.value = 12080
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"out of order" if code == 999 else None
        return 0


MISSING, NO_DEVICE, HIDDEN, TWO = None, Driver(100, 0), Driver(0, 0), Driver(0, 2)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(driver: Driver | None) -> None:
        def opened(name: str) -> Driver:
            assert name == "libcuda.so.1"
            if driver is None:
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        monkeypatch.setattr(ctypes, "CDLL", opened)

    return use


@pytest.mark.parametrize("driver", [MISSING, NO_DEVICE, HIDDEN])
def test_who_wants_any_gpu_goes_without_where_there_is_none(load: Any, driver: Any) -> None:
    load(driver)
    assert library.find_gpu(None, 0) is None


@cases(
    ("driver", "index", "words"),
    [
        (MISSING, None, "comm: gpu: no cuda driver here: libcuda.so.1: cannot open"),
        (HIDDEN, None, "comm: gpu: the cuda driver sees none (CUDA_VISIBLE_DEVICES='')"),
        (MISSING, 0, "comm: gpu 0: no cuda driver here: libcuda.so.1: cannot open"),
        (NO_DEVICE, 1, "comm: gpu 1: the cuda driver sees none"),
        (HIDDEN, 0, "comm: gpu 0: the cuda driver sees none (CUDA_VISIBLE_DEVICES='')"),
        (TWO, 2, "comm: gpu 2: this rank sees 2"),
    ],
)
def test_who_wants_a_certain_gpu_or_needs_one_is_refused_without_it(
    load: Any, driver: Any, index: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if "VISIBLE" in words:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    load(driver)
    with pytest.raises(CommError) as caught:
        library.find_gpu(index, 0, required=index is None)
    assert caught.value.message.startswith(words)
    ways = ("comm.init() without require_gpu", "comm.init(device='cpu')")
    usual = f"nvidia-smi; or {ways[index is not None]}"
    assert caught.value.hint == (
        usual if "this rank sees" not in words else "echo $CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(("index", "local", "found"), [(None, 1, 1), (0, 1, 0), (1, 0, 1)])
def test_the_gpu_of_a_rank(load: Any, index: int | None, local: int, found: int) -> None:
    load(TWO)
    gpu = library.find_gpu(index, local)
    assert gpu is not None
    assert (gpu.index, gpu.uuid, gpu.driver) == (
        found, f"GPU-0{found}000000-0000-0000-0000-000000000000", 12080,
    )  # fmt: skip


class Context(Driver):
    """A driver that notes what was made current."""

    def __init__(self) -> None:
        super().__init__(0, 4)
        self.calls: list[tuple[str, int]] = []

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.calls.append(("retain", device.value))
        context._obj.value = 7000
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.calls.append(("set", context.value))
        return 0


def test_a_gpu_is_made_current_by_its_primary_context(load: Any) -> None:
    driver = Context()
    load(driver)
    make_current(3)
    assert driver.calls == [("retain", 3), ("set", 7000)]


FIND = ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDriverGetVersion")
SET = ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent")


@cases("code, why", [(999, "out of order"), (3, "unknown error")])
def test_a_driver_that_is_broken_says_so(load: Any, code: int, why: str) -> None:
    acts: tuple[tuple[tuple[str, ...], Any], ...] = (
        (FIND, lambda: library.find_gpu(None, 1)), (SET, lambda: make_current(0)),
    )  # fmt: skip
    for calls, act in acts:
        for call in calls:
            driver = Context()
            setattr(driver, call, lambda *arguments: code)
            load(driver)
            with pytest.raises(CommError) as caught:
                act()
            name = call.removesuffix("_v2")
            assert caught.value.message == f"comm: gpu: {name}: {why} ({code})"
            assert caught.value.hint == "nvidia-smi"


def test_an_old_driver_tells_the_whole_gpus_identity(load: Any) -> None:
    class Old(Driver):
        cuDeviceGetUuid_v2 = None  # type: ignore[assignment]

        def cuDeviceGetUuid(self, found: Any, device: Any) -> int:
            found._obj[15] = 7
            return 0

    load(Old(0, 2))
    gpu = library.find_gpu(None, 1)
    assert gpu is not None
    assert gpu.uuid.endswith("000000000007")
