"""How torch_bridge starts torch: what it is told, over which address; torch itself is played."""

from __future__ import annotations

import atexit
import datetime
import importlib
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.comm import CommError, EnvironmentMissing, RollCallError, torch_bridge
from dispatcher.comm import exchange as exchange_module
from dispatcher.comm.exchange import Exchange
from dispatcher.comm.torch_bridge import candidates, init_torch, load_torch

from .fake_mpi import LIMIT, together


class Store:
    """torch's TCPStore: the master's own, or one that has come to it. ``pairs`` are shared."""

    def __init__(self, torch: Torch, *words: Any, **more: Any) -> None:
        address, _, world, is_master, timeout = words
        torch.stores.append((address, world, is_master, timeout, more["wait_for_workers"]))
        if is_master:
            listener = socket.socket(fileno=more["master_listen_fd"])
            torch.listening.append((listener.family, listener.getsockname()[0]))
            torch.listeners.append(listener)
        elif torch.refuses:
            raise RuntimeError("connect timed out\nat file.cpp")
        self.torch = torch

    def set(self, key: str, value: str) -> None:
        self.torch.pairs[key] = value

    def get(self, key: str) -> bytes:
        return self.torch.pairs[key].encode()


class Torch:
    """The module torch of all ranks; joined: what ``init_process_group`` was told."""

    __version__ = "2.9"

    def __init__(self, *, gpus: bool = True, nccl: bool = True, started: bool = False) -> None:
        self.stores: list[Any] = []
        self.listening: list[Any] = []
        self.listeners: list[socket.socket] = []
        self.pairs: dict[str, str] = {}
        self.refuses = False
        self.fails: str | None = None
        self.hangs: tuple[int, ...] = ()  # ranks whose NCCL waits for ever
        self.end = threading.Event()
        self.joined: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.current: list[Any] = []
        self.at_exit: list[Any] = []
        self.cuda = SimpleNamespace(is_available=lambda: gpus, set_device=self.current.append)
        self.distributed = SimpleNamespace(
            TCPStore=lambda *words, **more: Store(self, *words, **more),
            PrefixStore=lambda name, store: (name, store),
            is_initialized=lambda: started,
            is_nccl_available=lambda: nccl,
            init_process_group=self.join,
        )

    def device(self, kind: str, number: int) -> str:
        return f"{kind}:{number}"

    def join(self, backend: str, **options: Any) -> None:
        if self.fails:
            raise RuntimeError(self.fails)
        if options["rank"] in self.hangs:
            assert self.end.wait(LIMIT)
        self.joined[options["rank"]] = (backend, options)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    played = Torch()
    monkeypatch.setattr(torch_bridge, "load_torch", lambda backend: played)
    monkeypatch.setattr(atexit, "register", lambda *call: played.at_exit.append(call))
    monkeypatch.setattr(exchange_module, "_SETTLE", 0.1)
    monkeypatch.setattr(exchange_module, "_MARGIN", 20.0)
    monkeypatch.setattr(torch_bridge, "_CONNECT", 30.0)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    yield played
    played.close()
    os.environ.pop("GLOO_SOCKET_IFNAME", None)


def started(count: int, **options: Any) -> list[Any]:
    asked = {"backend": "gloo", "device": None, "one_host": True, "timeout": 20.0, **options}
    return together(count, lambda ranks: init_torch(ranks, **asked))


def test_a_group_is_taken_down_once() -> None:
    torch, taken = Torch(started=True), []
    torch.distributed.destroy_process_group = lambda: taken.append(1)
    torch_bridge.leave(torch.distributed)
    torch.distributed.is_initialized = lambda: False
    torch_bridge.leave(torch.distributed)
    assert taken == [1]


class TestStart:
    def test_all_ranks_join_over_rank_0s_store(self, torch: Torch) -> None:
        assert started(3) == [torch] * 3
        limit = datetime.timedelta(seconds=20)
        for rank in range(3):
            backend, options = torch.joined[rank]
            name, store = options.pop("store")
            assert (backend, name, store.torch) == ("gloo", "default_pg", torch)
            assert options == {"rank": rank, "world_size": 3, "timeout": limit}
        master, *others = torch.stores
        assert master == ("127.0.0.1", None, True, limit, False)
        assert others == [("127.0.0.1", None, False, limit, False)] * 2
        assert torch.listening == [(socket.AF_INET, "127.0.0.1")]
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert torch.current == []
        assert torch.at_exit == [(torch_bridge.leave, torch.distributed)] * 3

    def test_a_gpu_is_the_current_one_and_the_groups(self, torch: Torch) -> None:
        assert started(1, backend="nccl", device=3) == [torch]
        backend, options = torch.joined[0]
        assert (backend, options["device_id"]) == ("nccl", "cuda:3")
        assert torch.current == [3, 3]  # of the thread that joins, too
        assert torch.at_exit == []  # NCCL's own would wait for ranks that have ended

    @cases("backend", ["nccl", "cpu:gloo,cuda:nccl"])
    def test_nccl_without_a_gpu_is_refused(self, backend: str) -> None:
        for error in started(2, backend=backend):
            assert isinstance(error, EnvironmentMissing)
            assert f"backend {backend!r}: needs gpus, and no rank has one" in error.message

    @pytest.mark.usefixtures("torch")
    def test_ranks_must_want_the_same_backend(self) -> None:
        def start(ranks: Exchange) -> Any:
            backend = "cpu:gloo" if ranks.rank else "gloo"
            return init_torch(ranks, backend=backend, device=None, one_host=True, timeout=20.0)

        for error in together(2, start):
            assert isinstance(error, CommError)
            assert "rank 1 asks for the backend 'cpu:gloo', rank 0 for 'gloo'" in error.message

    def test_a_join_that_hangs_is_named_by_all(self, torch: Torch) -> None:
        torch.hangs = (1,)
        errors = started(2, timeout=8.0)
        torch.end.set()
        for error in errors:
            assert isinstance(error, RollCallError)
            assert error.missing == (1,)
            assert "joining the process group: rank 1 on an unknown host" in error.message

    def test_over_hosts_it_is_reached_from_outside(
        self, torch: Torch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch_bridge, "candidates", lambda env, one_host: ["127.0.0.1"])
        assert started(2, one_host=False) == [torch] * 2
        ((family, address),) = torch.listening
        dual = socket.has_dualstack_ipv6()
        assert (family, address) == (
            (socket.AF_INET6, "::") if dual else (socket.AF_INET, "0.0.0.0")
        )

    def test_the_users_interface_stays(self, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
        started(2)
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"

    def test_another_service_at_that_address_is_not_taken(self, torch: Torch) -> None:
        class Other(dict[str, str]):
            def __getitem__(self, key: str) -> str:
                return "another"

        torch.pairs = Other()
        for error in started(2):
            assert isinstance(error, CommError)
            assert error.message.startswith("rank 1 on h: 127.0.0.1 port ")
            assert error.message.endswith(": another service than rank 0's store")
            assert "MASTER_ADDR" in (error.hint or "")

    def test_a_store_that_refuses(self, torch: Torch) -> None:
        torch.refuses = True
        for error in started(2):
            assert isinstance(error, CommError)
            assert error.message.startswith("rank 1 on h: torch store at 127.0.0.1 port ")
            assert error.message.endswith(": connect timed out")

    def test_a_group_that_cannot_be_joined(self, torch: Torch) -> None:
        torch.fails = "connectFullMesh failed\nat file.cpp"
        for error in started(2):
            assert isinstance(error, CommError)
            assert error.message.endswith("torch: process group: connectFullMesh failed")

    def test_a_group_that_is_there_already(self, monkeypatch: pytest.MonkeyPatch) -> None:
        played = Torch(started=True)
        monkeypatch.setattr(torch_bridge, "load_torch", lambda backend: played)
        (error,) = started(1)
        assert isinstance(error, CommError)
        assert "the process group exists already" in error.message
        played.close()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``import`` gives; an exception is raised."""
    given: dict[str, Any] = {}

    def load(name: str) -> Any:
        if isinstance(given[name], Exception):
            raise given[name]
        return given[name]

    monkeypatch.setattr(importlib, "import_module", load)
    return given


@pytest.mark.parametrize(
    ("gpus", "nccl", "backend", "works"),
    [
        (True, True, "nccl", True), (True, False, "nccl", False), (False, True, "nccl", False),
        (False, False, "gloo", True),
    ],
)  # fmt: skip
def test_torch_must_be_able_to(
    modules: dict[str, Any], gpus: bool, nccl: bool, backend: str, works: bool
) -> None:
    torch = Torch(gpus=gpus, nccl=nccl)
    modules.update({"torch": torch, "torch.distributed": torch.distributed})
    if works:
        assert load_torch(backend) is torch
        return
    with pytest.raises(EnvironmentMissing, match=r"torch: version 2\.9 sees no gpu") as caught:
        load_torch(backend)
    assert "comm.init(device='cpu')" in (caught.value.hint or "")


@pytest.mark.parametrize("error", [ImportError("libtorch.so"), OSError("libtorch.so")])
@pytest.mark.parametrize("name", ["torch", "torch.distributed"])
def test_without_torch(modules: dict[str, Any], name: str, error: Exception) -> None:
    modules.update({"torch": Torch(), "torch.distributed": None, name: error})
    with pytest.raises(EnvironmentMissing, match=r"cannot be imported: libtorch\.so") as caught:
        load_torch("gloo")
    assert caught.value.hint == "pip install torch"


class TestAddresses:
    @pytest.fixture(autouse=True)
    def found(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        found = {"virbr0": "10.1.0.1", "lo": "127.0.0.1", "ib0": "10.0.0.1", "eth0": "10.0.0.2"}
        monkeypatch.setattr(torch_bridge, "interfaces", lambda: found)
        return found

    def test_bridges_of_the_host_alone_come_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch_bridge, "_addresses_v6", lambda: ["fd00::1", "10.0.0.1"])
        all_of_them = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "fd00::1"]
        assert candidates({}, one_host=False) == all_of_them
        assert candidates({"MASTER_ADDR": ""}, one_host=False) == all_of_them
        first = candidates({"MASTER_ADDR": "10.0.0.2"}, one_host=False)
        assert first == ["10.0.0.2", "10.0.0.1", "10.1.0.1", "fd00::1"]
        assert candidates({}, one_host=True) == ["127.0.0.1"]

    def test_global_addresses_of_ipv6(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = tmp_path / "if_inet6"
        table.write_text(
            "00000000000000000000000000000001 01 80 10 80       lo\n"
            "fd000000000000000000000000000007 02 40 00 80     eth0\n"
            "fe800000000000000000000000000007 02 40 20 80     eth0\n"
            "short line\n"
        )
        really = open

        def opened(path: str, *words: Any, **more: Any) -> Any:
            return really(table if path == "/proc/net/if_inet6" else path, *words, **more)

        monkeypatch.setattr("builtins.open", opened)
        assert torch_bridge._addresses_v6() == ["fd00::7"]
        table.unlink()
        assert torch_bridge._addresses_v6() == []

    @pytest.mark.parametrize(
        ("address", "name"), [("10.0.0.2", "eth0"), ("10.0.0.1", "ib0"), ("10.9.9.9", None)]
    )
    def test_whose_address_it_is(self, address: str, name: str | None) -> None:
        assert torch_bridge.interface_of(address) == name

    @cases(
        "used, ours, name",
        [
            ("10.0.0.2", "127.0.0.1", "eth0"),  # beside rank 0, reached by a name that is 127.0.1.1
            ("10.0.0.9", "10.0.0.1", "ib0"),  # on another host
            ("127.0.0.1", "127.0.0.1", "lo"),
            ("", "127.0.0.1", "lo"),
            ("10.0.0.9", "fd00::7", None),
        ],
    )  # fmt: skip
    def test_gloo_uses_the_interface_that_others_come_by(
        self, used: str, ours: str, name: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environ: dict[str, str] = {}
        monkeypatch.setattr(os, "environ", environ)
        torch_bridge._tell_gloo(used, ours)
        assert environ.get("GLOO_SOCKET_IFNAME") == name


def test_interfaces_without_an_address_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def ioctl(fd: int, request: int, words: bytes) -> bytes:
        asked.append(words.rstrip(b"\0"))
        if asked[-1] == b"down0":
            raise OSError
        return words[:20] + socket.inet_aton("10.0.0.7") + bytes(232)

    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "down0"), (2, "a-very-long-name0")])
    monkeypatch.setattr("fcntl.ioctl", ioctl)
    assert torch_bridge.interfaces() == {"a-very-long-name0": "10.0.0.7"}
    assert asked == [b"down0", b"a-very-long-nam"]


@cases(
    "reports, used",
    [
        ([b"", b"a", b"b", b"b"], b"b"), ([b"", b"a", b"b"], b"a"), ([b"", b""], b""), ([b""], b""),
        # three ranks beside rank 0, whose host has its own name as 127.0.1.1, and one elsewhere
        ([b"", b"127.0.1.1", b"127.0.1.1", b"::1", b"10.0.0.1"], b"10.0.0.1"),
        ([b"", b"127.0.0.1"], b"127.0.0.1"),
    ],
)  # fmt: skip
def test_rank_0_goes_by_what_most_ranks_took(reports: list[bytes], used: bytes) -> None:
    assert torch_bridge._most_used(reports) == [used] * len(reports)
