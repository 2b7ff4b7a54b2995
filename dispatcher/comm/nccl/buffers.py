"""What NCCL is given: an address, a count and a type, out of whatever holds device memory.

``as_buffer`` takes torch tensors, anything with ``__cuda_array_interface__`` (cupy,
numba), and ``Buffer`` itself for raw pointers. torch is not imported: a tensor is
known by its attributes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

#: ncclDataType_t and bytes an element, by torch's name of the type.
_TYPES = {
    "int8": (0, 1),
    "uint8": (1, 1),
    "bool": (1, 1),
    "int32": (2, 4),
    "uint32": (3, 4),
    "int64": (4, 8),
    "uint64": (5, 8),
    "float16": (6, 2),
    "float32": (7, 4),
    "float64": (8, 8),
    "bfloat16": (9, 2),
    "float8_e4m3fn": (10, 1),
    "float8_e5m2": (11, 1),
}
#: numpy's names of those that it has: ``f4``
_BY_TYPESTR = {
    f"{dtype[0]}{size}": dtype
    for dtype, (_, size) in _TYPES.items()
    if dtype.rstrip("0123456789") in ("int", "uint", "float", "bool")
}

#: ncclRedOp_t by name.
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


@dataclass(frozen=True)
class Buffer:
    """``count`` elements of ``dtype`` (torch's name, as ``float32``) at device ``address``.

    device is the GPU's number if known: torch has a current stream for each.
    """

    address: int
    count: int
    dtype: str = "float32"
    device: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            raise TypeError(f"nccl has no type {self.dtype!r}: one of {', '.join(_TYPES)}")
        if self.count < 0 or (self.count and not self.address):
            raise ValueError(f"no buffer: {self.count} elements at address {self.address:#x}")

    @property
    def code(self) -> int:
        """Its ncclDataType_t."""
        return _TYPES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        return self.count * _TYPES[self.dtype][1]


def as_buffer(thing: Any, *, on_host: bool = False) -> Buffer:
    """The memory of a tensor, array or Buffer; on_host allows CPU memory (for a test's NCCL).

    Raises TypeError for what holds no device memory or a type NCCL has not, ValueError
    for memory with gaps.
    """
    if isinstance(thing, Buffer):
        return thing
    if hasattr(thing, "data_ptr") and hasattr(thing, "is_contiguous"):
        return _of_tensor(thing, on_host)
    interface = getattr(thing, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        return _of_interface(interface)
    raise TypeError(f"no device memory: {type(thing).__name__}")


def _of_tensor(tensor: Any, on_host: bool) -> Buffer:
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: give tensor.contiguous()")
    if not tensor.is_cuda and not on_host:
        raise TypeError(f"the tensor is on {tensor.device}, nccl needs it on a gpu")
    dtype = str(tensor.dtype).removeprefix("torch.")
    device = tensor.device.index if tensor.is_cuda else None
    return Buffer(int(tensor.data_ptr()), int(tensor.numel()), dtype, device)


def _of_interface(interface: dict[str, Any]) -> Buffer:
    if interface.get("strides") is not None:
        raise ValueError("the array is not contiguous")
    count = 1
    for length in interface["shape"]:
        count *= int(length)
    kind = str(interface["typestr"])[1:]
    if kind not in _BY_TYPESTR:
        raise TypeError(f"nccl has no type {interface['typestr']!r}")
    return Buffer(int(interface["data"][0]), count, _BY_TYPESTR[kind])


def current_stream(device: int | None) -> int:
    """torch's current stream of this device (None: of the current one), else 0, CUDA's default."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)
