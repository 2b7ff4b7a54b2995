"""NCCL itself, without a GPU: it is found, makes ids, and says why it cannot start."""

from __future__ import annotations

import ctypes
import re

import pytest

from dispatcher.comm import NcclError
from dispatcher.comm.nccl.library import load_library, version_text


def test_versions_are_spelled() -> None:
    assert [version_text(23203), version_text(21805)] == ["2.32.3", "2.18.5"]


@pytest.mark.usefixtures("nccl")
class TestReal:
    def test_ids_are_made_without_a_gpu(self) -> None:
        library = load_library()
        assert re.fullmatch(r"2\.\d+\.\d+", version_text(library.version))
        one, two = library.unique_id(), library.unique_id()
        assert one != two
        assert len(bytes(one)) == 128

    def test_a_start_that_fails_says_so_in_nccls_words(self) -> None:
        library = load_library()
        handle = ctypes.c_void_p()
        code = library.init_rank(handle, 1, [library.unique_id()], 0)
        if code in (0, 7):  # a machine with a GPU
            pytest.skip("needs a machine without a GPU")
        with pytest.raises(NcclError, match="ncclCommInitRank: unhandled cuda error"):
            library.check(code, "ncclCommInitRank")
        many = [library.unique_id(), library.unique_id()]
        assert library.init_rank(handle, 2, many, 0) == code
