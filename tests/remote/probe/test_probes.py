"""Calls of a survey, one by one in this process: what they read, and how long they wait."""

from __future__ import annotations

import errno
import gc
import hashlib
import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.remote.probe import probes
from remote.driver import noting

#: what a call opens goes with the process that a survey makes for it
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def sockets() -> Iterator[None]:
    """What was left open goes now, not in another test, which would be warned."""
    yield
    gc.collect()


def soon(seconds: float = 30.0) -> float:
    """A deadline that nobody should meet."""
    return time.monotonic() + seconds


class TestReadings:
    @pytest.mark.parametrize(
        ("folder", "temporary", "asked"),
        [(b"/data", "/scratch", b"/data"), (b"", "/scratch", b"/scratch"), (b"", "", b"/tmp")],
    )
    def test_space(
        self, monkeypatch: pytest.MonkeyPatch, folder: bytes, temporary: str, asked: bytes
    ) -> None:
        there = SimpleNamespace(
            f_frsize=512, f_blocks=100, f_bavail=7, f_bfree=9, f_files=50, f_favail=4, f_ffree=6
        )
        looked: list[bytes] = []
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr(os, "statvfs", noting(looked, there))
        assert probes.space(folder) == [51200, 3584, 50, 4]
        assert looked == [asked]

    def test_a_sum_is_of_the_beginning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = os.urandom(5 << 20)
        path = tmp_path / "data"
        path.write_bytes(data)
        whole = [len(data), hashlib.sha256(data).hexdigest()]
        assert probes.summed(os.fsencode(path)) == whole
        monkeypatch.setattr(probes, "SUM_LIMIT", 2 << 20)
        head = hashlib.sha256(data[: 2 << 20]).hexdigest()
        assert probes.summed(os.fsencode(path)) == [len(data), head]
        path.write_bytes(b"")
        assert probes.summed(os.fsencode(path)) == [0, hashlib.sha256(b"").hexdigest()]
        with pytest.raises(FileNotFoundError):
            probes.summed(b"/no/such/file")

    def test_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(os.environ):
            if name.startswith(("NCCL_", "UCX_")):
                monkeypatch.delenv(name)
        for name, value in {
            "UCX_B": "=", "NCCL_A": "1 2", "NCCL_Z": "two\nlines", "MY_NCCL_": "x", "UCX_A": "",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        assert probes.environment(["NCCL_", "UCX_"]) == "NCCL_A=1 2\nUCX_A=\nUCX_B=="
        assert probes.environment([]) == ""

    def test_names_and_our_own_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = os.uname().nodename
        clock = iter([1.0, 1.5, 2.0, 2.0, 3.0, 7.0])
        asked: list[Any] = []

        def look_up(name: bytes, *what: Any) -> list[Any]:
            asked.append((name, *what))
            if name == b"absent":
                raise OSError(-2, "Name or service not known")
            return [(2, 1, 6, "", (address, 0)) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.2")]

        monkeypatch.setattr(probes, "monotonic", lambda: next(clock))
        monkeypatch.setattr(probes, "getaddrinfo", look_up)
        assert probes.resolve(["absent", "n1"]) == [
            [own, ["10.0.0.1", "10.0.0.2"], 0.5], ["absent", [], 0.0],
            ["n1", ["10.0.0.1", "10.0.0.2"], 4.0],
        ]  # fmt: skip
        assert [name for name, *_ in asked] == [own.encode(), b"absent", b"n1"]
        assert [what[1:] for what in asked] == [(None, 0, socket.SOCK_STREAM)] * 3

    def test_network_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the kernel has them, here of a host with three, of which one tells little."""
        files = {
            "/proc/net/if_inet6": (
                "fd000000000000000000000000000010 03 40 00 80 ib0\n"
                "fe80000000000000021122fffe334455 03 20 20 80 ib0\n"
            ),
            "/sys/class/net/lo/mtu": "65536\n", "/sys/class/net/lo/type": "772\n",
            "/sys/class/net/ib0/mtu": "4092\n", "/sys/class/net/ib0/speed": "200000\n",
            "/sys/class/net/ib0/type": "32\n",
        }  # fmt: skip

        def opened(path: str) -> io.StringIO:
            if path not in files:
                raise OSError(errno.EINVAL, "it does not tell")
            return io.StringIO(files[path])

        def asked(fd: int, request: int, name: bytes) -> bytes:
            assert len(name) == 40
            answers = {
                (b"lo", probes.SIOCGIFFLAGS): bytes(16) + b"\x49\x10" + bytes(22),
                (b"lo", probes.SIOCGIFADDR): bytes(20) + b"\x7f\0\0\1" + bytes(16),
                (b"ib0", probes.SIOCGIFFLAGS): bytes(16) + b"\x03\x00" + bytes(22),
            }
            answer = answers.get((name.rstrip(b"\0"), request))
            if answer is None:
                raise OSError(errno.EADDRNOTAVAIL, "none")
            return answer

        monkeypatch.setattr(probes, "open", opened, raising=False)
        monkeypatch.setattr(probes, "ioctl", asked)
        devices = [(1, "lo"), (5, "ib0"), (3, "eth9")]
        monkeypatch.setattr(probes, "if_nameindex", lambda: devices)
        assert probes.netdevs().splitlines() == [
            "netdev lo flags=1049 mtu=65536 type=772 addresses=127.0.0.1",
            "netdev ib0 flags=3 mtu=4092 speed=200000 type=32 addresses="
            "fd00:0000:0000:0000:0000:0000:0000:0010,fe80:0000:0000:0000:0211:22ff:fe33:4455",
            "netdev eth9 flags=0 addresses=",
        ]
        files.clear()
        devices[:] = [(n, f"e{n}") for n in range(300)]
        assert len(probes.netdevs().splitlines()) == 256

    def test_who_has_a_gpu_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        open_files = {
            "10": ["/dev/null", "/dev/nvidiactl", "/dev/nvidia0"], "11": ["/dev/nvidia-uvm"],
            "12": ["/dev/nvidia13"], "self": ["/dev/nvidia0"], "13": None, "14": [None],
        }  # fmt: skip

        def listed(path: str) -> list[str]:
            if path == "/proc":
                return list(open_files)
            fds = open_files[path.split("/")[2]]
            if fds is None:
                raise PermissionError
            return [str(n) for n in range(len(fds))]

        def link(path: str) -> str:
            _, _, pid, _, fd = path.split("/")
            target = (open_files[pid] or [])[int(fd)]
            if target is None:
                raise FileNotFoundError  # it was closed meanwhile
            return target

        put = monkeypatch.setattr
        driver = [True]
        put(os.path, "exists", lambda path: driver[0] and path == "/proc/driver/nvidia")
        put(os, "listdir", listed)
        put(os, "readlink", link)
        put(os, "stat", lambda path: SimpleNamespace(st_uid=1000 + int(path.split("/")[2])))
        put(
            probes, "open",
            lambda path: io.StringIO(f"name of {path.split('/')[2]}{'x' * 99}\n"), raising=False,
        )  # fmt: skip
        found = probes.gpu_users()
        assert [row[:2] for row in found] == [[10, 1010], [12, 1012]]
        assert found[0][2] == ("name of 10" + "x" * 99)[:64]
        open_files.update({str(n): ["/dev/nvidia0"] for n in range(100, 200)})
        assert len(probes.gpu_users()) == 64
        driver[0] = False
        assert probes.gpu_users() == []


@pytest.fixture
def port() -> int:
    return probes.free_port()


def test_a_free_port_can_be_had(port: int) -> None:
    assert probes.free_port() > 1023
    with socket.socket() as sock:
        sock.bind(("", port))


class Beside:
    """A function in a thread of its own; ``result`` waits for its answer."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(
            target=lambda: self._found.append(function(*arguments)), daemon=True
        )
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(30)
        assert self._found
        return self._found[0]


@pytest.mark.usefixtures("sockets")
class TestMeeting:
    @pytest.fixture(autouse=True)
    def name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DISPATCH_INDEX", "2")

    def test_callers_are_counted_once(self, port: int) -> None:
        """By what they say: one that calls twice, or says nothing, is nobody more."""
        waits = Beside(probes.await_calls, port, 2, soon())
        for word in (b"1", b"1", b"", b"2"):
            with closing(probes.connect("127.0.0.1", port, soon())) as caller:
                caller.send(word)
                if word:
                    caller.recv(1)
        assert waits.result() == []

    def test_it_is_over_when_time_is_up_or_nobody_is_to_come(self, port: int) -> None:
        assert probes.await_calls(port, 0, soon()) == []
        assert probes.await_calls(port, 1, soon(0.2)) == []

    def test_who_cannot_listen_says_why(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def refuse(address: str, port: int) -> None:
            asked.append(address)
            raise OSError(errno.EADDRINUSE, "Address already in use" if address else "")

        monkeypatch.setattr(probes, "listener", refuse)
        assert probes.await_calls(port, 1, soon()) == [["", "cannot listen"]]
        assert asked == ["::", ""]

    def test_a_caller_says_who_it_is(self, port: int) -> None:
        with closing(probes.listener("127.0.0.1", port)) as door:
            calls = Beside(probes.announce, "127.0.0.1", port, soon())
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(9) == b"2"
            line.close()
            assert calls.result() == ""
        assert probes.announce("127.0.0.1", port, soon(0.1)) == "Connection refused"
        assert probes.announce("no address", port, soon()) != ""

    def test_addresses_are_tried_in_turn(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first has two thirds of the time, each further one a second at most."""
        asked: list[tuple[str, float]] = []
        answers: dict[str, str] = {}
        now = [100.0]

        def announce(address: str, number: int, until: float) -> str:
            assert number == port
            asked.append((address, round(until - 100.0, 3)))
            now[0] += 5.0
            return answers.get(address, "no answer")

        monkeypatch.setattr(probes, "announce", announce)
        monkeypatch.setattr(probes, "monotonic", lambda: now[0])
        assert probes.meet(["a", "b", "c"], port, 30.0) == [
            ["a", "no answer"], ["b", "no answer"], ["c", "no answer"],
        ]  # fmt: skip
        assert asked == [("a", 20.0), ("b", 6.0), ("c", 11.0)]
        answers["b"] = ""
        now[0] = 100.0
        assert probes.meet(["a", "b", "c"], port, 30.0)[1:] == [["b", ""]]
        now[0] = 100.0
        assert probes.meet(["a", "c"], port, 5.0) == [["a", "no answer"]]  # time is up

    def test_the_first_host_waits_for_the_others(
        self, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited: list[Any] = []
        monkeypatch.setenv("DISPATCH_INDEX", "0")
        monkeypatch.setenv("DISPATCH_COUNT", "5")
        monkeypatch.setattr(probes, "monotonic", lambda: 100.0)
        monkeypatch.setattr(probes, "await_calls", noting(waited, [["", "x"]]))
        assert probes.meet(["a"], port, 30.0) == [["", "x"]]
        assert waited == [(port, 4, 130.0)]


class Line:
    """A connection that the test plays: what it receives, and when its time is up."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = list(pieces)
        self.limits: list[float] = []
        self.sent: list[int] = []

    def settimeout(self, seconds: float) -> None:
        self.limits.append(seconds)

    def gettimeout(self) -> float:
        return self.limits[-1]

    def setsockopt(self, *_: int) -> None:
        pass

    def recv(self, size: int) -> bytes:
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def send(self, data: bytes) -> int:
        self.sent.append(len(data))
        return len(self.recv(0))


@pytest.mark.usefixtures("sockets")
class TestPair:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
        """Each look takes what is in the list, which the test may set."""
        times = [100.0]

        def look() -> float:
            return times.pop(0) if len(times) > 1 else times[0]

        monkeypatch.setattr(probes, "monotonic", look)
        yield times
        monkeypatch.undo()

    def test_nobody_waits_longer_than_so(self, clock: list[float]) -> None:
        line = Line()
        probes.left(line, 103.5)  # type: ignore[arg-type]
        assert line.limits == [3.5]
        for until in (100.0, 99.0):
            with pytest.raises(OSError, match="no answer in time"):
                probes.left(line, until)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("last", "raised"),
        [
            (b"", None),
            (TimeoutError(errno.ETIMEDOUT, "late"), None),
            (OSError("late"), None),  # before Python 3.10
            (OSError(errno.ECONNRESET, "reset"), errno.ECONNRESET),
        ],
    )
    def test_the_rate_of_what_arrived(
        self, clock: list[float], last: bytes | Exception, raised: int | None
    ) -> None:
        # began; left over, deadline, twice; left over and deadline before the last; the end
        clock[:] = [100.0, 100.5, 100.5, 101.0, 101.0, 101.5, 101.5, 102.0]
        line = Line(b"x" * 600, b"y" * 400, last)
        if raised is None:
            assert probes.receive(line, 5.0, 103.0) == 500.0  # type: ignore[arg-type]
            # its own time, or that of all, whatever comes first
            assert line.limits == [2.5, 2.5, 2.0, 2.0, 1.5, 1.5]
        else:
            with pytest.raises(OSError, match="reset"):
                probes.receive(line, 5.0, 103.0)  # type: ignore[arg-type]

    def test_nothing_is_received_beyond_its_time(self, clock: list[float]) -> None:
        clock[:] = [100.0, 101.9, 101.9, 102.0, 102.0]
        line = Line(b"x" * 600)
        assert probes.receive(line, 2.0, 200.0) == 300.0  # type: ignore[arg-type]
        assert line.limits[-1] == pytest.approx(0.1)
        clock[:] = [100.0, 100.0, 100.0]
        assert probes.receive(Line(), 0.0, 200.0) == 0.0  # type: ignore[arg-type]

    @pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
    def test_a_sender_stops_when_the_other_end_hangs_up(
        self, clock: list[float], error: Exception
    ) -> None:
        line = Line(b"x", b"x", error)
        probes.send(line, 103.0)  # type: ignore[arg-type]
        assert line.sent == [probes.CHUNK] * 3
        with pytest.raises(OSError, match="no answer in time"):
            probes.send(Line(b"x"), 100.0)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="no way"):
            probes.send(Line(OSError(errno.EHOSTUNREACH, "no way")), 103.0)  # type: ignore[arg-type]

    def test_both_ends_over_a_real_line(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        table = {"0": ["call", "127.0.0.1", port], "1": ["listen", "127.0.0.1", port]}
        found: list[Any] = [None, None, ""]
        listens = Beside(probes.listen, "127.0.0.1", port, 0.1, soon(), found)
        monkeypatch.setenv("DISPATCH_INDEX", "0")
        latency, rate, why = probes.pair(table, 0.1, 20.0)
        listens.result()
        assert 0 < latency < 10
        assert min(rate, found[1]) > 1000
        assert (found[0], found[2], why) == (None, "", "")
        monkeypatch.setenv("DISPATCH_INDEX", "9")
        assert probes.pair(table, 0.1, 20.0) == []

    def test_round_trips_end_with_the_other_end(self, port: int) -> None:
        """The one who listens hangs up after three: the middle one of the times counts."""
        found: list[Any] = [None, None, ""]
        with closing(probes.listener("127.0.0.1", port)) as door:
            calls = Beside(attempt, probes.call, "127.0.0.1", port, 0.1, soon(5.0), found)
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(1) == probes.PING
            for pause in (0.0, 0.3, 0.0):
                line.recv(1)
                time.sleep(pause)
                line.send(b"x")
            line.recv(1)
            line.close()
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(1) == probes.SEND
            line.close()
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(1) == probes.RECEIVE
            line.sendall(b"x" * 1000)
            line.close()
            assert calls.result() is None
        assert 0 < found[0] < 0.3
        assert found[1] > 0

    def test_without_one_round_trip_there_is_no_latency(self, port: int) -> None:
        found: list[Any] = [None, None, ""]
        with closing(probes.listener("127.0.0.1", port)) as door:
            calls = Beside(attempt, probes.call, "127.0.0.1", port, 0.1, soon(5.0), found)
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            line.recv(2)
            line.close()
            for _ in range(2):
                socket.socket(fileno=door._accept()[0]).close()  # type: ignore[attr-defined]
            calls.result()
        assert found[0] is None

    @pytest.mark.parametrize(
        ("address", "others"), [("127.0.0.1", ()), ("::", ("127.0.0.1", "::1"))]
    )
    def test_where_one_listens(self, port: int, address: str, others: tuple[str, ...]) -> None:
        if ":" in address and not os.path.exists("/proc/net/if_inet6"):
            pytest.skip("no IPv6 on this machine")
        for _ in range(2):  # at once again, though connections of the first time linger
            with closing(probes.listener(address, port)):
                for other in others or (address,):
                    with closing(probes.connect(other, port, soon())) as line:
                        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                        assert 20 < (line.gettimeout() or 0) <= 30

    def test_who_listens_later_is_waited_for(self, port: int) -> None:
        calls = Beside(probes.connect, "127.0.0.1", port, soon())
        time.sleep(0.1)
        with closing(probes.listener("127.0.0.1", port)):
            calls.result().close()
        with pytest.raises(ConnectionRefusedError):
            probes.connect("127.0.0.1", port, soon(0.1))


def attempt(function: Any, *arguments: Any) -> Exception | None:
    """What the function raises."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def test_every_call_has_its_name() -> None:
    assert {name: call.__name__ for name, call in probes.CALLS.items()} == {
        name: name for name in probes.CALLS
    }
