"""What NCCL and torch are asked on a host, with both played."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from cases import cases

from dispatcher.remote.host import tcp_peer
from dispatcher.remote.probe import nccl_state, usage
from remote.driver import Os


class TestNccl:
    """What is asked at a port of this host, and what files are taken for dumps."""

    @pytest.fixture
    def known(self, monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, str]]:
        known: dict[int, dict[str, str]] = {}
        monkeypatch.setattr(usage, "environ", lambda pid: known.get(pid, {}))
        return known

    TREES: ClassVar[nccl_state.Trees] = {0: (50, [50]), 1: (51, [51])}

    @pytest.mark.parametrize(
        ("address", "asked"),
        [("localhost:PORT", True), ("127.0.0.1:PORT", True), ("[localhost]:PORT", True),
         ("10.0.0.7:PORT", False), ("PORT", False), ("localhost:x", False), ("", False)],
    )  # fmt: skip
    def test_only_this_host_is_asked(
        self, known: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch, address: str,
        asked: bool,
    ) -> None:  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            monkeypatch.setattr(nccl_state, "RAS_ADDRESS", "elsewhere:1")
            known[50] = {"NCCL_RAS_ADDR": address.replace("PORT", port)}
            known[51] = {"NCCL_RAS_ADDR": "localhost:1"}

            def answer() -> bytes:
                link, _ = server.accept()
                with link:
                    heard = link.recv(99)
                    link.sendall(b"all ")
                    while not heard.endswith(b"verbose status\n"):
                        heard += link.recv(99)
                    link.sendall(b"is well\n")
                return heard

            with ThreadPoolExecutor(1) as beside:
                heard = beside.submit(answer) if asked else None
                said = nccl_state.ask_ras([50, 51], time.monotonic() + 20.0)
        assert said == (b"all is well\n" if asked else b"")
        if heard is not None:
            assert heard.result() == b"client protocol 2\ntimeout 1\nverbose status\n"

    def test_without_a_choice_it_is_nccl_s_own_place(
        self, known: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            monkeypatch.setattr(nccl_state, "RAS_ADDRESS", f"localhost:{server.getsockname()[1]}")
            monkeypatch.setattr(nccl_state, "RAS", 6)
            with ThreadPoolExecutor(1) as beside:
                said = beside.submit(nccl_state.ask_ras, [], time.monotonic() + 20.0)
                link, _ = server.accept()
                with link:
                    link.sendall(b"0123456789")
                    assert said.result() == b"012345"

    def test_one_that_says_nothing_is_left_in_time(
        self, known: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            monkeypatch.setattr(nccl_state, "RAS_ADDRESS", f"localhost:{server.getsockname()[1]}")
            assert nccl_state.ask_ras([], time.monotonic() + 0.2) == b""
            port = server.getsockname()[1]
        monkeypatch.setattr(nccl_state, "RAS_ADDRESS", f"localhost:{port}")
        assert nccl_state.ask_ras([], time.monotonic() + 20.0) == b""  # nobody

    @cases(
        ("user", "said"),
        [(os.geteuid(), b"well"), (0, b"well"), (os.geteuid() + 1, b""), (-1, b"")],
    )
    def test_another_user_s_answer_is_none(
        self, known: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch, user: int,
        said: bytes,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(tcp_peer, "user_of", lambda fd: user)
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
            monkeypatch.setattr(nccl_state, "RAS_ADDRESS", f"localhost:{server.getsockname()[1]}")
            monkeypatch.setattr(nccl_state, "RAS", 4)
            answer = beside.submit(nccl_state.ask_ras, [], time.monotonic() + 20.0)
            link, _ = server.accept()
            with link:
                link.sendall(b"well")
                assert answer.result() == said

    def test_torch_is_asked_where_it_listens(
        self, known: dict[int, dict[str, str]], tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "p1.pipe")
        known[50] = known[51] = {nccl_state.FLIGHT_PIPE: str(tmp_path / "p")}
        reader = os.open(tmp_path / "p1.pipe", os.O_RDONLY | os.O_NONBLOCK)
        nccl_state.ask_flights(self.TREES)
        assert os.read(reader, 99) == b"1\n"
        os.close(reader)
        nccl_state.ask_flights(self.TREES)  # nobody reads now
        known.clear()
        nccl_state.ask_flights(self.TREES)
        assert os.listdir(tmp_path) == ["p1.pipe"]

    @cases("place", [lambda at, own: at.symlink_to(own), lambda at, own: os.link(own, at)])
    def test_what_is_no_pipe_is_not_written_to(
        self, known: dict[int, dict[str, str]], tmp_path: Path, place: Callable[[Path, Path], None]
    ) -> None:
        """Others may have put it there, if the user has named a folder like /tmp."""
        own = tmp_path / "own"
        own.write_bytes(b"a file")
        place(tmp_path / "p1.pipe", own)
        known[51] = {nccl_state.FLIGHT_PIPE: str(tmp_path / "p")}
        nccl_state.ask_flights(self.TREES)
        assert own.read_bytes() == b"a file"

    @pytest.fixture
    def born(self, monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
        """pid -> seconds since the boot; the host was booted a thousand seconds ago."""
        born = {50: 100.0, 51: 900.0}
        tick = os.sysconf("SC_CLK_TCK")
        put = monkeypatch.setattr
        put(nccl_state, "clock_gettime", lambda clock: 1000.0)
        put(nccl_state, "time", lambda: 5000.0)
        put(
            usage, "stat_of",
            lambda pid: ("S", 1, 1, 0, 1, 1, int(born[pid] * tick)) if pid in born else None,
        )  # fmt: skip
        return born

    @pytest.mark.parametrize(
        ("written", "ranks"),
        [(4899.5, [0, 1]), (4898.5, [0]), (4099.5, [0]), (4098.5, [])],
    )
    def test_a_dump_that_is_older_than_its_rank_is_another_s(
        self, known: dict[int, dict[str, str]], born: dict[int, float], tmp_path: Path,
        written: float, ranks: list[int],
    ) -> None:  # fmt: skip
        known[50] = {nccl_state.FLIGHT_VARIABLES[1]: str(tmp_path / "t")}
        known[51] = {
            nccl_state.FLIGHT_VARIABLES[0]: str(tmp_path / "t"),
            nccl_state.FLIGHT_VARIABLES[1]: "/nowhere",
        }
        for rank in (0, 1):
            (tmp_path / f"t{rank}").write_bytes(b"dump")
            os.utime(tmp_path / f"t{rank}", (written, written))
        found = nccl_state.flights(self.TREES)
        assert found == [[rank, str(tmp_path / f"t{rank}"), 4, b"dump"] for rank in ranks]

    def test_dumps_are_bounded_and_files_of_ours(
        self, known: dict[int, dict[str, str]], born: dict[int, float], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(nccl_state, "FLIGHT", str(tmp_path / "t"))
        monkeypatch.setattr(nccl_state, "FLIGHTS", 10)
        trees = {rank: (50, [50]) for rank in range(6)}
        for rank, size in ((0, 6), (1, 5), (2, 4), (3, 1)):
            (tmp_path / f"t{rank}").write_bytes(b"x" * size)
        (tmp_path / "t4").symlink_to(tmp_path / "t0")
        found = nccl_state.flights(trees)
        # the second is told of, and what it would have taken is left to the others
        assert [(rank, size, len(data)) for rank, _, size, data in found] == [
            (0, 6, 6), (1, 5, 0), (2, 4, 4), (3, 1, 0),
        ]  # fmt: skip
        born.clear()  # nobody knows how old it is
        assert len(nccl_state.flights(trees)) == 4
        monkeypatch.setattr(nccl_state, "os", Os(geteuid=lambda: 4242))
        assert nccl_state.flights(trees) == []


def test_one_that_is_stopped_is_asked_once_more() -> None:
    """All ranks of a host listen at one address; the kernel chooses who is asked."""
    with socket.create_server(("127.77.1.2", 0)) as server:

        def answer() -> None:
            links = [server.accept()[0] for _ in range(2)]
            links[1].sendall(b"SERVER PROTOCOL 2\n")
            while not links[1].recv(99).endswith(b"status\n"):
                pass
            links[1].sendall(b"all is well\n")
            for link in links:
                link.close()

        beside = threading.Thread(target=answer)
        beside.start()
        usage_environ = {"NCCL_RAS_ADDR": f"127.77.1.2:{server.getsockname()[1]}"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(usage, "environ", lambda pid: usage_environ)
            said = nccl_state.ask_ras([50], time.monotonic() + 20.0)
        beside.join()
    assert said.endswith(b"all is well\n")


class TestRecorders:
    """Pipes ``flight-PID`` in the ranks' folder, and the files that come by them."""

    TREES: ClassVar[nccl_state.Trees] = {rank: (50 + rank, [50 + rank]) for rank in range(5)}

    def test_who_is_asked_and_what_comes(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "flight-50")
        os.mkfifo(tmp_path / "flight-51")  # nobody reads
        (tmp_path / "flight-52").touch()  # no pipe
        (tmp_path / "flight-53").symlink_to(tmp_path / "flight-50")
        (tmp_path / "flight-50.json").write_text("of another time")
        reader = os.open(tmp_path / "flight-50", os.O_RDONLY | os.O_NONBLOCK)
        asked = nccl_state.ask_recorders(self.TREES, str(tmp_path))
        assert [*asked] == [0]
        assert os.read(reader, 9) == b"1"
        os.close(reader)
        assert nccl_state.recorders(asked, time.monotonic() + 0.1) == []
        (tmp_path / "new").write_text("{}")
        (tmp_path / "new").rename(tmp_path / "flight-50.json")
        assert nccl_state.recorders(asked, time.monotonic() + 20.0) == [[0, b"{}"]]
        assert nccl_state.ask_recorders(self.TREES, None) == {}

    @cases(("size", "fits"), [(nccl_state.RECORDER, True), (nccl_state.RECORDER + 1, False)])
    def test_what_comes_is_bounded(self, tmp_path: Path, size: int, fits: bool) -> None:
        (tmp_path / "a").write_bytes(b"x" * size)
        (tmp_path / "b").symlink_to(tmp_path / "a")
        asked = {0: (str(tmp_path / "a"), 0), 1: (str(tmp_path / "b"), 0)}
        found = nccl_state.recorders(asked, time.monotonic())
        assert [(rank, len(data)) for rank, data in found] == [(0, size)] * fits
