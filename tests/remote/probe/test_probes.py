"""Calls of a survey, one by one in this process: what they read.

Those between hosts: ``test_probe_lines``.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.host import host_facts
from dispatcher.remote.probe import probes
from remote.driver import Os, noting

#: what a call opens goes with the process that a survey makes for it
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


class TestReadings:
    @cases(
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
        monkeypatch.setattr(probes, "os", Os(statvfs=noting(looked, there)))
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
        monkeypatch.setattr("_socket.getaddrinfo", look_up)
        assert probes.resolve(["absent", "n1"]) == [
            [own, ["10.0.0.1", "10.0.0.2"], 0.5], ["absent", [], 0.0],
            ["n1", ["10.0.0.1", "10.0.0.2"], 4.0],
        ]  # fmt: skip
        assert [name for name, *_ in asked] == [own.encode(), b"absent", b"n1"]
        assert [what[1:] for what in asked] == [(None, 0, socket.SOCK_STREAM)] * 3

    def test_network_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the kernel has them, here of a host with three, of which one tells little."""
        files = {
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
                (b"ib0", probes.SIOCGIFFLAGS): bytes(16) + b"\x03\x00" + bytes(22),
            }
            answer = answers.get((name.rstrip(b"\0"), request))
            if answer is None:
                raise OSError(errno.EADDRNOTAVAIL, "none")
            return answer

        folders = {"/sys/class/net/ib0": ["upper_br0", "mtu", "lower_e1", "lower_e0"],
                   "/sys/class/net/lo": ["mtu"]}  # fmt: skip

        def listed(path: str) -> list[str]:
            if path not in folders:
                raise OSError(errno.ENOENT, "gone")
            return folders[path]

        monkeypatch.setattr(probes, "open", opened, raising=False)
        monkeypatch.setattr("os.listdir", listed)
        monkeypatch.setattr(probes, "ioctl", asked)
        known = {b"lo": ["127.0.0.1"], b"ib0": ["10.0.0.1", "fd::1"]}
        monkeypatch.setattr(host_facts, "addresses_of", lambda name: known.get(name, []))
        devices = [(1, "lo"), (5, "ib0"), (3, "eth9")]
        monkeypatch.setattr("_socket.if_nameindex", lambda: devices)
        assert probes.netdevs().splitlines() == [
            "netdev lo flags=1049 mtu=65536 type=772 addresses=127.0.0.1",
            "netdev ib0 flags=3 mtu=4092 speed=200000 type=32 lower=e0,e1 addresses=10.0.0.1,fd::1",
            "netdev eth9 flags=0 addresses=",
        ]
        files.clear()
        devices[:] = [(n, f"e{n}") for n in range(300)]
        assert len(probes.netdevs().splitlines()) == 256

    def test_gpus_are_counted_as_a_run_counts_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_facts, "count_gpus", lambda: 2)
        assert probes.count_gpus() == 2

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
        known = Os(
            listdir=listed, readlink=link, path=SimpleNamespace(
                exists=lambda path: driver[0] and path == "/proc/driver/nvidia"
            ), stat=lambda path: SimpleNamespace(st_uid=1000 + int(path.split("/")[2])),
        )  # fmt: skip
        put(probes, "os", known)
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


def test_every_call_has_its_name() -> None:
    assert {name: call.__name__ for name, call in probes.CALLS.items()} == {
        name: name for name in probes.CALLS
    }
