"""The C libraries of a rank's GPU, through ctypes: NCCL's, its unique id, and CUDA's driver.

An id is 128 bytes made by ``ncclGetUniqueId``: an address of the process that made it and a random
number. A process that knows the bytes can join, so text of any kind has a hash of them only.

``load()`` finds the NCCL that torch has or will load (``docs/guides/comm.md`` has the order): two
ranks with two versions cannot talk. Another than torch's own is loaded after torch, since the first
``libnccl.so.2`` of a process serves all of it, and one older than torch was built for breaks its
import. Only the stable part of NCCL is declared, and its configuration is sent in its first form
(2.14), which later libraries fill up with their own defaults. All of it works without a GPU, up to
the start of a communicator.

The GPU comes from ``libcuda.so.1``: NVML ignores ``CUDA_VISIBLE_DEVICES``. Sources: nccl.h; CUDA's
driver API reference (cuDeviceGetUuid_v2 gives a MIG instance's own uuid).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dispatcher.comm.errors import CommError, EnvironmentMissing, NcclError

SIZE = 128


@dataclass(frozen=True, repr=False)
class UniqueId:
    """An id for one communicator, once; ``bytes(id)`` is the secret itself."""

    as_bytes: bytes

    def __post_init__(self) -> None:
        if len(self.as_bytes) != SIZE:
            raise ValueError(f"a unique id has {SIZE} bytes, not {len(self.as_bytes)}")

    def __bytes__(self) -> bytes:
        return self.as_bytes

    @property
    def digest(self) -> str:
        """Eight hex digits that distinguish two ids and reveal neither."""
        return hashlib.sha256(self.as_bytes).hexdigest()[:8]

    def __repr__(self) -> str:
        return f"UniqueId(sha256 {self.digest})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a unique id is a secret and is not pickled: send bytes(id) over MPI")


_IN_WHEELS = os.path.join("nvidia", "nccl", "lib", "libnccl.so.2")
IN_PROGRESS = 7
NO_COLOR = -1
_OLDEST = 21400
_SPLIT = 21800
#: From this version on a communicator can start from several ids.
SCALABLE = 22300

_Pointer = ctypes.c_void_p
_Int = ctypes.c_int
_Size = ctypes.c_size_t


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * SIZE),)


class _Config(ctypes.Structure):
    """ncclConfig_t as of NCCL 2.14; ``size`` says that no later field follows."""

    _fields_ = (
        ("size", _Size),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", _Int),
    )


def _config(blocking: bool) -> _Config:
    used = _Config.blocking.offset + ctypes.sizeof(_Int)
    return _Config(used, 0xCAFEBEEF, _OLDEST, int(blocking))


_SIGNATURES: dict[str, tuple[object, ...]] = {
    "ncclGetVersion": (ctypes.POINTER(_Int),),
    "ncclGetUniqueId": (ctypes.POINTER(_Id),),
    "ncclCommInitRankConfig": (_Pointer, _Int, _Id, _Int, _Pointer),
    "ncclCommInitRankScalable": (_Pointer, _Int, _Int, _Int, ctypes.POINTER(_Id), _Pointer),
    "ncclCommGetAsyncError": (_Pointer, ctypes.POINTER(_Int)),
    "ncclCommSplit": (_Pointer, _Int, _Int, _Pointer, _Pointer),
    "ncclCommCount": (_Pointer, ctypes.POINTER(_Int)),
    "ncclCommUserRank": (_Pointer, ctypes.POINTER(_Int)),
    "ncclCommFinalize": (_Pointer,),
    "ncclCommDestroy": (_Pointer,),
    "ncclCommAbort": (_Pointer,),
    "ncclAllReduce": (_Pointer, _Pointer, _Size, _Int, _Int, _Pointer, _Pointer),
}
_NEWER = ("ncclCommInitRankScalable", "ncclCommSplit")


class Library:
    """The calls of one libnccl; each returns an ncclResult_t unless said otherwise.

    A communicator's handle is a ``ctypes.c_void_p`` that must stay alive while NCCL
    may still write it, which is until the communicator's asynchronous state is no
    longer "in progress".
    """

    on_host = False  # whether it works on CPU memory, as a test's does

    def __init__(self, path: str) -> None:
        try:
            self._calls = ctypes.CDLL(path)
        except OSError as error:
            raise EnvironmentMissing(f"comm: nccl: {path}: cannot be loaded: {error}") from error
        for name, arguments in _SIGNATURES.items():
            try:
                call = getattr(self._calls, name)
            except AttributeError:
                if name in _NEWER:
                    continue
                raise EnvironmentMissing(f"comm: nccl: {path}: has no {name}") from None
            call.argtypes, call.restype = list(arguments), _Int
        self._calls.ncclGetErrorString.argtypes = [_Int]
        self._calls.ncclGetErrorString.restype = ctypes.c_char_p
        self._calls.ncclGetLastError.argtypes = [_Pointer]
        self._calls.ncclGetLastError.restype = ctypes.c_char_p
        self.path = path
        number = _Int()
        self.check(self._calls.ncclGetVersion(ctypes.byref(number)), "ncclGetVersion")
        self.version = int(number.value)
        if self.version < _OLDEST:
            raise EnvironmentMissing(
                f"comm: nccl: {path}: is {version_text(self.version)}, 2.14 or later is needed",
                hint="pip install nvidia-nccl-cu13",
            )

    def unique_id(self) -> UniqueId:
        """A new id. This process then listens on a port until all ranks have used the id.

        Raises NcclError with NCCL's own reason, as for an interface that is not there.
        """
        raw = _Id()
        self.check(self._calls.ncclGetUniqueId(ctypes.byref(raw)), "ncclGetUniqueId")
        return UniqueId(bytes(raw.internal))

    def init_rank(
        self,
        handle: ctypes.c_void_p,
        size: int,
        ids: Iterable[UniqueId],
        rank: int,
        *,
        blocking: bool = True,
    ) -> int:
        """Starts a communicator; several ids need NCCL >= 2.23.

        blocking: its calls return when they are done, this one when all ranks are in; else with
        ``IN_PROGRESS``. ``NCCL_COMM_BLOCKING`` in the environment has the last word.
        """
        raw = [_Id.from_buffer_copy(bytes(each)) for each in ids]
        config = _config(blocking)
        into, how = ctypes.byref(handle), ctypes.byref(config)
        if len(raw) == 1:
            return int(self._calls.ncclCommInitRankConfig(into, size, raw[0], rank, how))
        array = (_Id * len(raw))(*raw)
        scalable = self._calls.ncclCommInitRankScalable
        return int(scalable(into, size, rank, len(raw), array, how))

    def split(self, parent: ctypes.c_void_p, color: int, key: int, child: ctypes.c_void_p) -> int:
        """Splits, in the parent's way; ``child`` stays null for ``NO_COLOR``. NCCL >= 2.18."""
        if self.version < _SPLIT:
            raise EnvironmentMissing(
                f"nccl: {self.path}: is {version_text(self.version)}, groups need 2.18 or later",
                hint="pip install nvidia-nccl-cu13",
            )
        return int(self._calls.ncclCommSplit(parent, color, key, ctypes.byref(child), None))

    def state(self, handle: ctypes.c_void_p) -> int:
        """The communicator's asynchronous state: 0 well, ``IN_PROGRESS``, else what broke."""
        state = _Int()
        code = int(self._calls.ncclCommGetAsyncError(handle, ctypes.byref(state)))
        return code or int(state.value)

    def place(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        """(rank, size) of this process in a communicator that is ready."""
        rank, size = _Int(), _Int()
        self.check(self._calls.ncclCommUserRank(handle, ctypes.byref(rank)), "ncclCommUserRank")
        self.check(self._calls.ncclCommCount(handle, ctypes.byref(size)), "ncclCommCount")
        return int(rank.value), int(size.value)

    def call(self, name: str, *arguments: object) -> int:
        """Any call of the table above, by its C name."""
        return int(getattr(self._calls, name)(*arguments))

    def check(self, code: int, call: str) -> None:
        """Raises NcclError, in NCCL's own words, unless the code is success."""
        if code:
            raise NcclError(f"comm: nccl: {call}: {self.why(code)}", code=code)

    def why(self, code: int) -> str:
        """NCCL's name for a code and, if it left one, its last error in this process."""
        name = (self._calls.ncclGetErrorString(code) or b"").decode(errors="replace")
        last = (self._calls.ncclGetLastError(None) or b"").decode(errors="replace").strip()
        return f"{name}: {last}" if last else name


def version_text(version: int) -> str:
    """``2.30.7`` for 23007."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def load_library() -> Library:
    """The first libnccl that the search finds; EnvironmentMissing if it finds none."""
    tried: list[str] = []
    roots = [*_before_torch(), *sys.path]
    for path in candidates(os.environ, _mapped(), roots):
        tried.append(path)
        if os.path.sep in path and not os.path.exists(path):
            continue
        try:
            return Library(path)
        except EnvironmentMissing:
            if path == os.environ.get("DISPATCH_NCCL_LIB") or os.path.sep in path:
                raise
    raise EnvironmentMissing(
        f"comm: nccl: no libnccl.so.2 found, looked for {', '.join(tried)}",
        hint="pip install nvidia-nccl-cu13",
    )


def candidates(
    env: Mapping[str, str], mapped: Iterable[str], roots: Iterable[str]
) -> Iterator[str]:
    """The paths to try, best first; a path that the user has named is the only candidate."""
    named = env.get("DISPATCH_NCCL_LIB")
    if named:
        yield named
        return
    yield from mapped
    for root in roots:
        path = os.path.join(root, _IN_WHEELS)
        if os.path.exists(path):
            yield path
    yield "libnccl.so.2"


def _before_torch() -> list[str]:
    """Where torch has its NCCL, if it will be imported later and would use that library.

    Else it is imported here, so that it finds its own before another is loaded.
    """
    spec = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    home = os.path.dirname(spec.origin or "") if spec else ""
    if not os.path.exists(os.path.join(home, "lib", "libtorch_cuda.so")):
        return []  # it is loaded, is not there, or is one for the CPU, which has no NCCL
    root = os.path.dirname(home)
    if "DISPATCH_NCCL_LIB" not in os.environ and os.path.exists(os.path.join(root, _IN_WHEELS)):
        return [root]
    with contextlib.suppress(Exception):  # a broken torch raises again when it is used
        importlib.import_module("torch")
    return []


def _mapped() -> Iterator[str]:
    """Every libnccl this process has mapped already."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            paths = [line.split(None, 5)[-1].strip() for line in lines if "libnccl.so" in line]
    except OSError:
        return
    yield from dict.fromkeys(paths)


_NO_DEVICE = 100


@dataclass(frozen=True)
class Gpu:
    """One visible GPU: ``index`` counts among the visible GPUs, ``uuid`` is the device's own."""

    index: int
    uuid: str
    driver: int  # CUDA version of the driver, 1000 * major + 10 * minor


def find_gpu(index: int | None, local_rank: int, *, required: bool = False) -> Gpu | None:
    """The GPU for this rank, or None if there is no driver or no visible GPU.

    index None means: the local rank's, or the only visible GPU if there is just one.
    Raises CommError if the driver is broken, or GPU ``index`` or a required GPU is missing.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _without(index, required, f"no cuda driver here: {error}")
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return _without(index, required, "the cuda driver sees none")
    _check_cuda(driver, code, "cuInit")
    count = ctypes.c_int()
    _check_cuda(driver, driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    if count.value == 0:
        return _without(index, required, "the cuda driver sees none")
    if index is None:
        index = 0 if count.value == 1 else local_rank
    if not 0 <= index < count.value:
        raise CommError(
            f"comm: gpu {index}: this rank sees {count.value}", hint="echo $CUDA_VISIBLE_DEVICES"
        )
    device, identity, version = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_int()
    _check_cuda(driver, driver.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    _check_cuda(driver, get_uuid(ctypes.byref(identity), device), "cuDeviceGetUuid")
    _check_cuda(driver, driver.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    return Gpu(index, f"GPU-{uuid.UUID(bytes=bytes(identity))}", version.value)


def _without(index: int | None, required: bool, why: str) -> Gpu | None:
    """None, for a rank that can do without; CommError for a rank that needs a GPU."""
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
    _check_cuda(driver, driver.cuInit(0), "cuInit")
    _check_cuda(driver, driver.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    retain = driver.cuDevicePrimaryCtxRetain
    _check_cuda(driver, retain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    _check_cuda(driver, driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def _check_cuda(driver: ctypes.CDLL, code: int, call: str) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        why = (text.value or b"unknown error").decode(errors="replace")
        raise CommError(f"comm: gpu: {call}: {why} ({code})", hint="nvidia-smi")
