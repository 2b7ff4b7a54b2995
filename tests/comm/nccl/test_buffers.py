"""Device memory is taken from tensors, arrays and raw pointers, and nothing else."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dispatcher.comm import Buffer
from dispatcher.comm.nccl.buffers import as_buffer, current_stream


class Array:
    def __init__(self, **interface: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            **interface,
        }


def test_arrays() -> None:
    assert as_buffer(Array()) == Buffer(4096, 6, "float32")
    assert as_buffer(Array(typestr="<i8", shape=())) == Buffer(4096, 1, "int64")
    with pytest.raises(ValueError, match="not contiguous"):
        as_buffer(Array(strides=(4, 8)))
    with pytest.raises(TypeError, match="c16"):
        as_buffer(Array(typestr="<c16"))


def test_pointers() -> None:
    assert as_buffer(Buffer(4096, 6, "bfloat16")).nbytes == 12
    with pytest.raises(TypeError, match="no type 'complex64'"):
        Buffer(4096, 6, "complex64")
    with pytest.raises(ValueError, match="6 elements at address 0x0"):
        Buffer(0, 6)
    with pytest.raises(TypeError, match="no device memory: list"):
        as_buffer([1.0])


@pytest.mark.torch
def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, 4, dtype=torch.float64)
    assert as_buffer(tensor, on_host=True) == Buffer(tensor.data_ptr(), 12, "float64")
    with pytest.raises(TypeError, match="on cpu, nccl needs it on a gpu"):
        as_buffer(tensor)
    with pytest.raises(ValueError, match=r"give tensor.contiguous\(\)"):
        as_buffer(tensor.T, on_host=True)
    with pytest.raises(TypeError, match="no type 'complex64'"):
        as_buffer(torch.zeros(2, dtype=torch.complex64), on_host=True)


@pytest.mark.parametrize(
    ("dtype", "code", "size"),
    [
        ("int8", 0, 1), ("uint8", 1, 1), ("bool", 1, 1), ("int32", 2, 4), ("uint32", 3, 4),
        ("int64", 4, 8), ("uint64", 5, 8), ("float16", 6, 2), ("float32", 7, 4),
        ("float64", 8, 8), ("bfloat16", 9, 2), ("float8_e4m3fn", 10, 1), ("float8_e5m2", 11, 1),
    ],
)  # fmt: skip
def test_types_are_those_of_nccl_h(dtype: str, code: int, size: int) -> None:
    buffer = Buffer(4096, 3, dtype)
    assert (buffer.code, buffer.nbytes) == (code, 3 * size)


@pytest.mark.parametrize(
    ("typestr", "dtype"),
    [
        ("<f2", "float16"), ("<f8", "float64"), ("|i1", "int8"), ("<i4", "int32"),
        ("|u1", "uint8"), ("<u4", "uint32"), ("<u8", "uint64"), ("|b1", "bool"),
    ],
)  # fmt: skip
def test_types_of_arrays(typestr: str, dtype: str) -> None:
    assert as_buffer(Array(typestr=typestr)).dtype == dtype


def test_a_buffer_of_nothing_needs_no_address() -> None:
    assert Buffer(0, 0).nbytes == 0
    with pytest.raises(ValueError, match="-1 elements"):
        Buffer(4096, -1)
    assert as_buffer(Array(shape=(3, 0, 2))).count == 0


class Tensor:
    """As torch's: on a GPU unless told otherwise."""

    is_cuda, dtype = True, "torch.bfloat16"

    def __init__(self, *, cuda: bool = True) -> None:
        self.is_cuda = cuda
        self.device = SimpleNamespace(index=2)

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return 4096

    def numel(self) -> int:
        return 7


def test_a_tensor_has_a_device() -> None:
    assert as_buffer(Tensor()) == Buffer(4096, 7, "bfloat16", 2)
    assert as_buffer(Tensor(cuda=False), on_host=True) == Buffer(4096, 7, "bfloat16", None)
    with pytest.raises(TypeError, match="nccl needs it on a gpu"):
        as_buffer(Tensor(cuda=False))


@pytest.mark.parametrize(("torch", "stream"), [(None, 0), (False, 0), (True, 77)])
def test_the_current_stream_is_torchs(
    torch: bool | None, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def current(device: int | None) -> SimpleNamespace:
        assert device == 2
        return SimpleNamespace(cuda_stream=77)

    cuda = SimpleNamespace(is_available=lambda: torch, current_stream=current)
    module = None if torch is None else SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", module)
    assert current_stream(2) == stream
