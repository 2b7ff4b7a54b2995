"""Device memory is taken from tensors, arrays and raw pointers, and nothing else."""

from __future__ import annotations

import pytest

from dispatcher.comm import Buffer
from dispatcher.comm.nccl.buffers import as_buffer


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
