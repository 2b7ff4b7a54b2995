"""libnccl's calls as they are made: types, arguments, versions; the library itself is played."""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.comm import EnvironmentMissing, NcclError, UniqueId
from dispatcher.comm.nccl import library
from dispatcher.comm.nccl.library import IN_PROGRESS, Library, load_library

RAW = bytes(range(128))


class Call:
    """One call of the library; as ctypes', it takes types."""

    argtypes: Any = None
    restype: Any = None

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def __call__(self, *arguments: Any) -> Any:
        return self.act(*arguments)


class Nccl:
    """libnccl as ``ctypes`` gives it; lacks: names of calls it does not have."""

    def __init__(self, version: int = 23007, lacks: tuple[str, ...] = (), code: int = 0) -> None:
        self.version, self.code = version, code
        self.made: list[tuple[str, Any]] = []
        self.last: bytes | None = b" a cable is out\n"
        for name in [*library._SIGNATURES, "ncclGetErrorString", "ncclGetLastError"]:
            if name not in lacks:
                act = getattr(self, "_" + name, None) or self._any(name)
                setattr(self, name, Call(act))

    def _any(self, name: str) -> Callable[..., int]:
        def act(*arguments: Any) -> int:
            self.made.append((name, arguments))
            return self.code

        return act

    def _ncclGetVersion(self, number: Any) -> int:
        number._obj.value = self.version
        return 0

    def _ncclGetUniqueId(self, raw: Any) -> int:
        ctypes.memmove(raw._obj.internal, RAW, 128)
        return self.code

    def _ncclCommGetAsyncError(self, handle: Any, state: Any) -> int:
        state._obj.value = 6
        return self.code

    def _ncclCommUserRank(self, handle: Any, rank: Any) -> int:
        rank._obj.value = 3
        return self.code

    def _ncclCommCount(self, handle: Any, size: Any) -> int:
        size._obj.value = 8
        return 0 if self.code < 9 else self.code

    def _ncclGetErrorString(self, code: int) -> bytes | None:
        return {98: b"odd \xff", 99: None}.get(code, b"error %d" % code)

    def _ncclGetLastError(self, handle: object) -> bytes | None:
        assert handle is None
        return self.last


def loaded(nccl: Any, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(ctypes, "CDLL", lambda path: nccl)
    return Library("/lib/libnccl.so.2")


def test_every_call_has_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Nccl()
    one = loaded(nccl, monkeypatch)
    assert (one.path, one.version) == ("/lib/libnccl.so.2", 23007)
    for name, arguments in library._SIGNATURES.items():
        call = getattr(nccl, name)
        assert (tuple(call.argtypes), call.restype) == (arguments, ctypes.c_int)
    for name in ("ncclGetErrorString", "ncclGetLastError"):
        assert getattr(nccl, name).restype is ctypes.c_char_p


@pytest.mark.parametrize("version", [21400, 21399])
def test_an_old_library_is_refused(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Nccl(version, lacks=library._NEWER)
    if version == 21400:
        assert loaded(nccl, monkeypatch).version == version
        return
    with pytest.raises(EnvironmentMissing, match=r"is 2.13.99, 2.14 or later is needed") as caught:
        loaded(nccl, monkeypatch)
    assert caught.value.hint


def test_another_library_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentMissing, match="has no ncclAllReduce"):
        loaded(Nccl(lacks=("ncclAllReduce",)), monkeypatch)


def test_an_id_is_made_or_nccls_reason_told(monkeypatch: pytest.MonkeyPatch) -> None:
    one = loaded(Nccl(), monkeypatch)
    assert one.unique_id() == UniqueId(RAW)
    broken = loaded(Nccl(code=2), monkeypatch)
    with pytest.raises(NcclError, match=r"ncclGetUniqueId: error 2: a cable is out$") as caught:
        broken.unique_id()
    assert caught.value.code == 2


def test_an_id_is_a_secret() -> None:
    one = UniqueId(RAW)
    assert (bytes(one), f"{one} {one!r}") == (RAW, " ".join(["UniqueId(sha256 471fb943)"] * 2))
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(one)
    with pytest.raises(ValueError, match="128 bytes, not 127"):
        UniqueId(RAW[:-1])


@pytest.mark.parametrize(
    ("code", "last", "why"),
    [(2, b" x\n", "error 2: x"), (2, b"", "error 2"), (2, None, "error 2"), (99, b"x", ": x"),
     (98, b"\xfe\n", "odd \ufffd: \ufffd")],
)  # fmt: skip
def test_nccls_own_words(
    code: int, last: bytes | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl = Nccl()
    nccl.last = last
    assert loaded(nccl, monkeypatch).why(code) == why


@cases(("count", "way"), [(1, {}), (2, {}), (1, {"blocking": False}), (2, {"blocking": True})])
def test_a_start_is_of_the_way_asked_for(
    count: int, way: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl = Nccl(code=IN_PROGRESS)
    handle = ctypes.c_void_p()
    ids = [UniqueId(RAW), UniqueId(RAW[::-1])][:count]
    assert loaded(nccl, monkeypatch).init_rank(handle, 8, ids, 3, **way) == IN_PROGRESS
    ((name, arguments),) = nccl.made
    if count == 1:
        into, size, raw, rank, how = arguments
        assert name == "ncclCommInitRankConfig"
        assert bytes(raw.internal) == RAW
    else:
        into, size, rank, number, array, how = arguments
        assert (name, number) == ("ncclCommInitRankScalable", 2)
        assert [bytes(raw.internal) for raw in array] == [RAW, RAW[::-1]]
    assert into._obj is handle
    assert (size, rank) == (8, 3)
    config = how._obj
    # nccl.h of 2.14: size_t, two unsigned, and ``blocking``, the last field there is
    assert (config.size, config.magic, config.version, config.blocking) == (
        20, 0xCAFEBEEF, 21400, int(way.get("blocking", True)),
    )  # fmt: skip


def test_a_split_is_in_the_parents_way(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Nccl(21800, code=IN_PROGRESS)
    parent, child = ctypes.c_void_p(7), ctypes.c_void_p()
    assert loaded(nccl, monkeypatch).split(parent, 2, 5, child) == IN_PROGRESS
    ((name, (given, color, key, into, how)),) = nccl.made
    assert (name, given, color, key) == ("ncclCommSplit", parent, 2, 5)
    assert into._obj is child
    assert how is None
    older = loaded(Nccl(21799), monkeypatch)
    with pytest.raises(EnvironmentMissing, match=r"is 2.17.99, groups need 2.18 or later"):
        older.split(parent, 0, 0, child)


def test_the_state_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    one = loaded(Nccl(), monkeypatch)
    assert one.state(ctypes.c_void_p(7)) == 6
    assert one.place(ctypes.c_void_p(7)) == (3, 8)
    assert loaded(Nccl(code=4), monkeypatch).state(ctypes.c_void_p(7)) == 4
    for code, call in ((4, "ncclCommUserRank"), (9, "ncclCommUserRank")):
        with pytest.raises(NcclError, match=f"{call}: error {code}"):
            loaded(Nccl(code=code), monkeypatch).place(ctypes.c_void_p(7))


class TestLoad:
    """roots: folders where Python finds packages."""

    @pytest.fixture(autouse=True)
    def search(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("DISPATCH_NCCL_LIB", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        self.wheel = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        self.wheel.parent.mkdir(parents=True)
        self.mapped: list[str] = []
        monkeypatch.setattr(library, "_mapped", lambda: iter(self.mapped))

    def test_the_first_that_is_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []

        def open_it(path: str) -> Nccl:
            opened.append(path)
            return Nccl()

        monkeypatch.setattr(ctypes, "CDLL", open_it)
        self.mapped = ["/gone/libnccl.so.2 (deleted)"]
        assert load_library().path == "libnccl.so.2"
        self.wheel.touch()
        assert load_library().path == str(self.wheel)
        assert opened == ["libnccl.so.2", str(self.wheel)]

    def test_where_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(path: str) -> Nccl:
            raise OSError("no such file")

        monkeypatch.setattr(ctypes, "CDLL", fail)
        self.mapped = ["/gone/libnccl.so.2"]
        words = "no libnccl.so.2 found, looked for /gone/libnccl.so.2, libnccl.so.2"
        with pytest.raises(EnvironmentMissing, match=words) as caught:
            load_library()
        assert caught.value.hint == "pip install nvidia-nccl-cu13"
        self.wheel.touch()
        with pytest.raises(EnvironmentMissing, match=f"{self.wheel}: cannot be loaded"):
            load_library()  # one that is there and cannot be used is not passed over

    @cases(
        "built, beside, named, order",
        [
            ("libtorch_cuda.so", True, False, ["beside"]),
            # its libnccl is elsewhere, or the user wants another: it gets its own first
            ("libtorch_cuda.so", False, False, ["torch", "wheel"]),
            ("libtorch_cuda.so", True, True, ["torch", "named"]),
            ("libtorch_cpu.so", True, False, ["wheel"]),  # needs none
        ],
    )
    def test_torch_gets_the_library_it_was_built_for(
        self,
        built: str,
        beside: bool,
        named: bool,
        order: list[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        site, loaded = tmp_path / "site", list[str]()
        library = Path("nvidia/nccl/lib/libnccl.so.2")
        names = {tmp_path / library: "wheel", tmp_path / "mine.so": "named"}
        names |= {site / library: "beside"} if beside else {}
        for path in (*names, site / "torch" / "lib" / built):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (site / "torch" / "__init__.py").write_text("raise RuntimeError('it is broken')")
        really = importlib.import_module

        def load_it(name: str) -> None:
            loaded.append(name)
            really(name)

        def open_it(path: str) -> Nccl:
            loaded.append(names[Path(path)])
            return Nccl()

        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path), str(site)])
        monkeypatch.setattr(ctypes, "CDLL", open_it)
        monkeypatch.setattr(importlib, "import_module", load_it)
        if named:
            monkeypatch.setenv("DISPATCH_NCCL_LIB", str(tmp_path / "mine.so"))
        load_library()
        assert loaded == order
        monkeypatch.setitem(sys.modules, "torch", object())  # which has its own by now
        load_library()
        assert loaded[len(order) :] == ["named" if named else "wheel"]

    @pytest.mark.parametrize("name", ["libmine.so", "/nowhere/libmine.so"])
    def test_one_that_was_named_is_the_only_one(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        def fail(path: str) -> Nccl:
            assert path == name
            raise OSError("no such file")

        monkeypatch.setattr(ctypes, "CDLL", fail)
        monkeypatch.setenv("DISPATCH_NCCL_LIB", name)
        self.wheel.touch()
        with pytest.raises(EnvironmentMissing, match=name):
            load_library()


def test_what_this_process_has_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = "7f00-7f01 r-xp 00000000 08:01 123                        %s\n"
    maps = tmp_path / "maps"
    maps.write_text(
        line % "/usr/lib/libc.so.6" + line % "/a b/libnccl.so.2" * 2 + line % "/c/libnccl.so.2.30"
    )
    really = open

    def opened(path: str, *words: Any, **more: Any) -> Any:
        return really(maps if path == "/proc/self/maps" else path, *words, **more)

    monkeypatch.setattr("builtins.open", opened)
    assert list(library._mapped()) == ["/a b/libnccl.so.2", "/c/libnccl.so.2.30"]
    maps.unlink()
    assert list(library._mapped()) == []
