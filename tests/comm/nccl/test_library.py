"""NCCL itself, without a GPU: it is found, makes ids, and says why it cannot start."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from dispatcher.comm import EnvironmentMissing, NcclError
from dispatcher.comm.nccl.library import candidates, load, spell


def test_the_search_goes_from_named_to_system(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    roots = [str(tmp_path / "other"), str(tmp_path)]
    found = list(candidates({}, ["/mapped/libnccl.so.2"], roots))
    assert found == ["/mapped/libnccl.so.2", str(wheel), "libnccl.so.2"]
    named = {"DISPATCH_NCCL_LIB": "/mine.so"}
    assert list(candidates(named, ["/mapped/libnccl.so.2"], roots)) == ["/mine.so"]


def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libnccl.so.2"
    broken.write_text("not a library")
    monkeypatch.setenv("DISPATCH_NCCL_LIB", str(broken))
    with pytest.raises(EnvironmentMissing, match="cannot be loaded"):
        load()


def test_a_named_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_NCCL_LIB", "/nowhere/libnccl.so.2")
    with pytest.raises(EnvironmentMissing, match=r"/nowhere/libnccl.so.2"):
        load()


def test_versions_are_spelled() -> None:
    assert [spell(23203), spell(21805)] == ["2.32.3", "2.18.5"]


@pytest.mark.usefixtures("nccl")
class TestReal:
    def test_ids_are_made_without_a_gpu(self) -> None:
        library = load()
        assert re.fullmatch(r"2\.\d+\.\d+", spell(library.version))
        one, two = library.unique_id(), library.unique_id()
        assert one != two
        assert len(bytes(one)) == 128

    def test_a_second_load_is_of_the_same_file(self) -> None:
        assert load().path == load().path

    def test_a_start_that_fails_says_so_in_nccls_words(self) -> None:
        library = load()
        handle = ctypes.c_void_p()
        code = library.init_rank(handle, 1, [library.unique_id()], 0)
        if code in (0, 7):  # a machine with a GPU
            pytest.skip("needs a machine without a GPU")
        with pytest.raises(NcclError, match="ncclCommInitRank: unhandled cuda error"):
            library.check(code, "ncclCommInitRank")
        many = [library.unique_id(), library.unique_id()]
        assert library.init_rank(handle, 2, many, 0) == code
