"""This rank's GPU as the driver sees it: its number, identity and the driver's version.

ctypes on ``libcuda.so.1``, so it works before, without and beside torch. NVML would
not do: it ignores ``CUDA_VISIBLE_DEVICES`` and so counts other devices than CUDA.
``make_current`` uses the device's primary context, the one the CUDA runtime, torch
and NCCL use too. Source: CUDA driver API reference (cuDeviceGetUuid_v2 gives a MIG
instance's own uuid, cuDeviceGetUuid that of the whole GPU).

No driver or no GPU is no error (``find`` gives None) unless one was asked for.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from dataclasses import dataclass

from dispatcher.comm.errors import CommError

_NO_DEVICE = 100


@dataclass(frozen=True)
class Gpu:
    """One visible GPU: ``index`` counts among the visible ones, ``uuid`` is the device's own."""

    index: int
    uuid: str
    driver: int  # CUDA version of the driver, 1000 * major + 10 * minor


def find(index: int | None, local_rank: int, *, required: bool = False) -> Gpu | None:
    """The GPU this rank is to use, or None where there is no driver or no visible GPU.

    index None means: the local rank's, or the only one if just one is visible.
    Raises CommError if the driver is broken, GPU ``index`` is not to be had, or one is required.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _without(index, required, f"no cuda driver here: {error}")
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return _without(index, required, "the cuda driver sees none")
    _check(driver, code, "cuInit")
    count = ctypes.c_int()
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    if count.value == 0:
        return _without(index, required, "the cuda driver sees none")
    if index is None:
        index = 0 if count.value == 1 else local_rank
    if not 0 <= index < count.value:
        raise CommError(
            f"comm: gpu {index}: {count.value} visible here", hint="echo $CUDA_VISIBLE_DEVICES"
        )
    device, identity, version = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_int()
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    _check(driver, get_uuid(ctypes.byref(identity), device), "cuDeviceGetUuid")
    _check(driver, driver.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    return Gpu(index, f"GPU-{uuid.UUID(bytes=bytes(identity))}", version.value)


def _without(index: int | None, required: bool, why: str) -> Gpu | None:
    """None, for a rank that takes what there is; CommError for one that wants a GPU."""
    if index is None and not required:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        why += f" (CUDA_VISIBLE_DEVICES={visible!r})"
    which = "gpu" if index is None else f"gpu {index}"
    without = "comm.init(device='cpu')" if index is not None else "comm.init() without require_gpu"
    raise CommError(f"comm: {which}: {why}", hint=f"nvidia-smi; or {without}")


def make_current(index: int) -> None:
    """This thread's CUDA calls, and the NCCL communicators it makes, use GPU ``index``."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver, driver.cuInit(0), "cuInit")
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    retain = driver.cuDevicePrimaryCtxRetain
    _check(driver, retain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    _check(driver, driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def _check(driver: ctypes.CDLL, code: int, call: str) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        why = (text.value or b"unknown error").decode(errors="replace")
        raise CommError(f"comm: gpu: {call}: {why} ({code})", hint="nvidia-smi")
