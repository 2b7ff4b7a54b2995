"""What an agent finds on its host before a start, and what is wrong there."""

from __future__ import annotations

import errno
import io
import os
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.host import host_facts
from remote.driver import Os, noting

ELF = b"\x7fELF"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, mode, content in (
        ("tool", 0o755, b"#!/bin/sh\n"),
        ("plain", 0o644, b"text"),
        ("train.py", 0o644, b"print()"),
        ("ompi", 0o755, ELF + bytes(100) + b"\0libmpi.so.40\0"),
        ("mpich", 0o755, ELF + bytes(100) + b"\0libmpi.so.12\0"),
        ("moved", 0o755, b"#! /no/python\t-u\nprint()\n"),
        ("windows", 0o755, b"#!/bin/sh\r\nls\r\n"),
        ("none", 0o755, b"#!\n"),
        ("about", 0o755, b"#!/bin/sh\n# \0libmpi.so.40\0"),
    ):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize(
    ("check", "problems"),
    [
        ({}, []),
        ({"program": b"tool"}, []),
        ({"program": b"./tool", "script": b"train.py"}, []),
        ({"program": b"absent"}, [["missing", "absent: not found"]]),
        ({"program": b"./absent"}, [["missing", "./absent: not found"]]),
        ({"program": b"plain"}, [["not executable", "HERE/plain: not executable"]]),
        (
            {"program": b"./moved"},
            [["no interpreter", "./moved: its interpreter /no/python: not found"]],
        ),
        (
            {"program": b"windows"},
            [["no interpreter", "windows: its interpreter /bin/sh\r: not found"]],
        ),
        ({"program": b"none"}, []),
        ({"program": b"folder"}, [["missing", "folder: not found"]]),
        ({"script": b"absent.py"}, [["no script", "HERE/absent.py: no such file"]]),
        ({"script": b"/no/such.py"}, [["no script", "/no/such.py: no such file"]]),
        ({"program": b"", "script": b""}, []),
        ({"program": b"ompi"}, []),
        (
            {"program": b"ompi", "mpi": b"pmi1"},
            [["open mpi", "ompi: Open MPI does not speak PMI-1"]],
        ),
        ({"program": b"mpich", "mpi": b"pmi1"}, []),
        ({"iface": b"lo"}, []),
        ({"program": b"about", "mpi": b"pmi1"}, []),
        (
            {"program": b"absent", "script": b"absent.py"},
            [["missing", "absent: not found"], ["no script", "HERE/absent.py: no such file"]],
        ),
    ],
)
def test_what_would_keep_ranks_from_starting(
    folder: Path, check: dict[str, Any], problems: list[Any]
) -> None:
    (folder / "folder").mkdir()
    found = host_facts.find_problems(check, os.fsencode(folder), os.fsencode(folder))
    assert found == [[what, why.replace("HERE", str(folder))] for what, why in problems]


@cases(
    ("place", "check", "cwd", "watched", "home"),
    [
        ("/dead", {}, "/dead", b"", ""), ("/dead/a", {"script": b"dead/a"}, "", b"", ""),
        ("/dead/b", {"program": b"dead/b"}, "", b"", ""), ("/dead/mark", {}, "", b"dead/mark", ""),
        ("/dead/python", {"program": b"./itp"}, "", b"", ""), ("/dead/me", {}, "", b"", "/dead/me"),
        ("/dead.py", {"code": b""}, "", b"", ""),
    ],
)  # fmt: skip
def test_a_place_that_does_not_answer_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, check: dict[str, bytes], cwd: str,
    watched: bytes, home: str,
) -> None:  # fmt: skip
    """A dead NFS server, say. All that may be mounted is looked at by a child, for a time."""
    real = os.stat

    def hang(path: Any, **kwargs: Any) -> Any:
        return time.sleep(60) if b"/dead" in os.fsencode(path) else real(path, **kwargs)

    monkeypatch.setattr("os.stat", hang)
    monkeypatch.setattr(host_facts, "may_hang", lambda: True)
    monkeypatch.setattr(host_facts, "ANSWER", 0.3)
    monkeypatch.setenv("HOME", f"{folder}{home}")
    (folder / "itp").write_text(f"#!{folder}/dead/python\n")
    (folder / "itp").chmod(0o755)
    (folder / "dead.py").write_text("")
    where = os.fsencode(f"{folder}{cwd}")
    facts, problems = host_facts.judged([(check, where, None)], watched)
    assert problems == [["silent", f"{folder}{place}: its file system does not answer"]]
    assert facts == {"script": None, "code": [], "room": [None, None]}


MOUNTS = "/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"


@cases(
    ("line", "hangs"),
    [("", False), ("systemd-1 /proc/sys/fs/binfmt_misc autofs rw 0 0\n", False),
     ("nas:/home /home nfs4 rw 0 0\n", True), ("x /run/user/0/doc fuse.portal rw 0 0\n", True)],
)  # fmt: skip
def test_a_child_looks_only_where_a_file_system_may_hang(
    tmp_path: Path, line: str, hangs: bool
) -> None:
    (tmp_path / "mounts").write_text(MOUNTS + line)
    assert host_facts.may_hang(str(tmp_path / "mounts")) == hangs


@pytest.mark.parametrize("hangs", [True, False])
def test_what_answers_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setattr(host_facts, "may_hang", lambda: hangs)
    os.mkfifo(folder / "helper.py")
    os.mkfifo(folder / "pipe")
    check, here = {"script": b"train.py", "code": b""}, os.fsencode(folder)
    facts, problems = host_facts.judged(
        [(check, here, None), ({"script": b"pipe"}, here, None)], b""
    )
    assert facts["script"] == host_facts.summed(here + b"/train.py")
    assert [name for name, _ in facts["code"]] == ["train.py"]  # no writer is waited for
    assert problems == [["no script", f"{folder}/pipe: a pipe, not a file"]]
    if not hangs:
        return
    with monkeypatch.context() as full:  # no process more: the start of a rank will say so
        full.setattr("os.fork", lambda: os.read(-1, 1))
        assert host_facts.judged([({"script": b"pipe"}, here, None)], b"")[1] == problems
    with monkeypatch.context() as slow:  # so busy that nothing was looked at yet
        slow.setattr("dispatcher.remote.host.child.work_within", lambda *_: b"")
        silent = f"{folder}: its file system does not answer"
        assert host_facts.judged([(check, here, None)], b"")[1] == [["silent", silent]]
    monkeypatch.setattr(host_facts, "free_space", lambda path: 1 // 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        host_facts.judged([(check, here, None)], b"")


def test_one_that_can_be_run_is_enough(folder: Path) -> None:
    """As for a shell, which goes on in PATH; and for ``ls`` where nobody has set one."""
    (folder / "first").mkdir()
    (folder / "first" / "tool").write_text("not to be run")
    (folder / "second").mkdir()
    (folder / "moved").rename(folder / "second" / "tool")
    path = os.fsencode(f"{folder}/first:{folder}/second:{folder}:/nowhere")
    assert host_facts.find_problems({"program": b"tool"}, b"/", path) == []
    assert host_facts.find_problems({"program": b"ls"}, b"/", None) == []


def test_a_script_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, int]] = []
    monkeypatch.setattr(host_facts, "os", Os(access=noting(asked, False)))
    found = host_facts.find_problems({"script": b"train.py"}, os.fsencode(folder), None)
    assert found == [["not executable", f"{folder}/train.py: cannot be read"]]
    assert asked == [(os.fsencode(folder / "train.py"), os.R_OK)]


def test_a_library_is_looked_for_only_near_the_start(folder: Path) -> None:
    for gap, needs in ((bytes(4 << 20), False), (bytes(4_000_000), True)):
        (folder / "big").write_bytes(ELF + gap + b"\0libmpi.so.40\0")
        (folder / "big").chmod(0o755)
        here = os.fsencode(folder)
        found = host_facts.find_problems({"program": b"big", "mpi": b"pmi1"}, here, here)
        assert bool(found) == needs
    assert not host_facts._needs_open_mpi(b"/no/such/file")


class Host:
    """A host made of ``files`` (path -> text), ``folders`` and ``links``; nothing else is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, str] = {}
        self.folders: dict[str, list[str]] = {}
        self.links: dict[str, str] = {}
        monkeypatch.setattr(host_facts, "open", self._open, raising=False)
        own = Os(
            listdir=lambda path: self._of(self.folders, path),
            readlink=lambda path: self._of(self.links, path),
            access=lambda path, mode: mode == os.R_OK | os.W_OK,
        )
        monkeypatch.setattr(host_facts, "os", own)

    def _open(self, path: str) -> io.StringIO:
        return io.StringIO(self._of(self.files, path))

    @staticmethod
    def _of(those: dict[str, Any], path: str) -> Any:
        if path not in those:
            raise OSError(errno.ENOENT, "nothing there")
        return those[path]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
EVENTS = "low 0\noom 9\noom_kill 3\noom_group_kill 8\n"
CONTROL = "oom_kill_disable 1\nunder_oom 2\noom_kill 7\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "kills"),
    [
        (None, {}, 0),
        ("", {}, 0),
        ("0::/a/b\n", {f"{V2}/a/b/memory.events": EVENTS}, 3),
        ("0::/a/b\n", {f"{V2}/memory.events": EVENTS}, 3),
        ("0::/a\n", {f"{V2}/a/memory.events": EVENTS, f"{V2}/memory.events": CONTROL}, 3),
        ("0::/a:b\n", {f"{V2}/a:b/memory.events": EVENTS}, 3),
        ("5:cpu,cpuacct:/c\n4:memory:/m\n0::/u\n", {f"{V1}/m/memory.oom_control": CONTROL}, 7),
        ("4:memory:/m\n", {f"{V1}/memory.oom_control": CONTROL}, 7),
        ("5:cpu:/c\n", {f"{V2}/c/memory.events": EVENTS, f"{V1}/c/memory.oom_control": EVENTS}, 0),
        ("0::/a\n", {f"{V2}/a/memory.events": "oom_kill x\n", f"{V2}/memory.events": EVENTS}, 3),
        ("0::/a\n", {f"{V2}/a/memory.events": "low 0\n", f"{V2}/memory.events": EVENTS}, 3),
        ("0::/a\n4:memory:/m\n", {f"{V1}/m/memory.oom_control": CONTROL}, 7),
        ("0::/a\n", {}, 0),
    ],
)
def test_what_the_oom_killer_has_counted(
    host: Host, cgroup: str | None, files: dict[str, str], kills: int
) -> None:
    host.files = dict(files)
    if cgroup is not None:
        host.files["/proc/self/cgroup"] = cgroup
    assert host_facts.oom_kills() == kills


TRIE = """
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
        |-- 10.0.0.7
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
Local:
        |-- 10.0.0.7
           /32 host LOCAL
        |-- 192.168.3.4
           /32 host LOCAL
"""
INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000a07 02 40 00 00     eth0
fe80000000000000021122fffe334455 02 40 20 80     eth0
fd000000000000000000000000000010 03 40 00 80      ib0
"""
SIX = "2001:db8:0:0:0:0:0:a07"


@pytest.mark.parametrize(
    ("connection", "addresses"),
    [
        ("", ["10.0.0.7", "192.168.3.4", SIX, "fd00:0:0:0:0:0:0:10"]),
        ("1.2.3.4 5 192.168.3.4 22", ["192.168.3.4", "10.0.0.7", SIX, "fd00:0:0:0:0:0:0:10"]),
        ("1.2.3.4 5 9.9.9.9%eth0 22", ["9.9.9.9", "10.0.0.7", "192.168.3.4", SIX,
                                       "fd00:0:0:0:0:0:0:10"]),
        ("fe80::2 5 fe80::1%eth0 22", ["10.0.0.7", "192.168.3.4", SIX, "fd00:0:0:0:0:0:0:10"]),
        ("::1 5 ::1 22", ["10.0.0.7", "192.168.3.4", SIX, "fd00:0:0:0:0:0:0:10"]),
        ("UNKNOWN 65535 UNKNOWN 65535", ["10.0.0.7", "192.168.3.4", SIX,
                                         "fd00:0:0:0:0:0:0:10"]),
        ("1.2.3.4 5 9.9.9.9", ["10.0.0.7", "192.168.3.4", SIX, "fd00:0:0:0:0:0:0:10"]),
    ],
)  # fmt: skip
def test_addresses_that_others_may_reach(
    host: Host, monkeypatch: pytest.MonkeyPatch, connection: str, addresses: list[str]
) -> None:
    host.files = {"/proc/net/fib_trie": TRIE, "/proc/net/if_inet6": INET6}
    monkeypatch.setenv("SSH_CONNECTION", connection)
    assert host_facts.addresses() == addresses


def test_a_host_without_addresses(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert host_facts.addresses() == []
    lines = [f"   |-- 10.0.{n}.1\n      /32 host LOCAL\n" for n in range(40)]
    host.files["/proc/net/fib_trie"] = "".join(lines)
    assert host_facts.addresses() == [f"10.0.{n}.1" for n in range(32)]


def test_ipv6_addresses_of_one_interface(host: Host) -> None:
    host.files["/proc/net/if_inet6"] = INET6
    assert host_facts.addresses_of(b"eth0" + b"x" * 9) == []
    assert host_facts.addresses_of(b"ib0") == ["fd00:0:0:0:0:0:0:10"]
    assert host_facts._ipv6("lo") == ["::1"]


def test_which_machine_it_is(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.files["/proc/sys/kernel/random/boot_id"] = "b00t-1d\n"
    host.links = {"/proc/self/ns/net": "net:[1]", "/proc/self/ns/pid": "pid:[2]"}
    assert host_facts.identity() == "b00t-1d net:[1] pid:[2]"
    del host.links["/proc/self/ns/net"]
    assert host_facts.identity() == "b00t-1d pid:[2]"
    host.files.clear()
    assert host_facts.identity() == f"{os.uname().nodename} pid:[2]"


@pytest.mark.parametrize(
    ("devices", "driver", "count"),
    [
        (None, None, 0),
        (["null", "nvidiactl", "nvidia-caps", "xnvidia0", "nvidia"], None, 0),
        (["null"], ["0000:3b:00.0", "0000:86:00.0"], 2),
        (None, ["0000:3b:00.0"], 1),
        (["nvidia0", "nvidia11"], ["0000:3b:00.0"], 2),
    ],
)
def test_gpus_of_the_driver(
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    devices: list[str] | None,
    driver: list[str] | None,
    count: int,
) -> None:
    folders = {"/dev": devices, "/proc/driver/nvidia/gpus": driver}
    host.folders = {path: names for path, names in folders.items() if names is not None}
    assert host_facts.count_gpus() == count


def test_room_is_what_a_usual_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(f_bavail=3, f_bfree=5, f_frsize=512, f_blocks=9)
    asked: list[bytes] = []
    monkeypatch.setattr(host_facts, "os", Os(statvfs=noting(asked, there)))
    assert host_facts.free_space(b"/x") == 3 * 512
    there.f_bavail = 0
    assert host_facts.free_space(b"/x") == 0
    there.f_blocks = 0  # not a file system of bytes
    assert host_facts.free_space(b"/x") is None
    for folder, looked in (("/scratch", b"/scratch"), ("", b"/tmp")):
        asked.clear()
        monkeypatch.setenv("TMPDIR", folder)
        host_facts.places({}, b"/")
        assert asked == [looked, b"/dev/shm"]


def test_addresses_of_one_interface() -> None:
    assert host_facts.find_problems({"iface": b"lo"}, b"/", None) == []
    assert host_facts.gather({"iface": b"lo"})["addresses"][0] == "127.0.0.1"
    assert host_facts.gather({"iface": b"eth99"})["addresses"] == []
    [[_, why]] = host_facts.find_problems({"iface": b"eth99"}, b"/", None)
    names = " ".join(sorted(os.listdir("/sys/class/net")))
    assert why == f"no interface eth99 with an address; there is: {names}"


def test_a_folder_that_is_not_there_is_all_that_is_said() -> None:
    found = host_facts.find_problems({"program": b"absent"}, b"/no/such/folder", None)
    assert found == [["cwd", "/no/such/folder: no such directory"]]


def test_a_name_that_is_no_text_is_shown_all_the_same(folder: Path) -> None:
    [[what, why]] = host_facts.find_problems({"program": b"\xff"}, os.fsencode(folder), b"/nowhere")
    assert (what, why) == ("missing", "\\xff: not found")


@cases(
    "text, found",
    [
        ("127.0.0.1 localhost\n127.0.1.1 x {me}  # Debian\n10.0.0.1 {me}\n", True),
        ("127.0.0.1 localhost {me}\n", True),
        ("::1 {me}\n", True),
        ("10.0.0.1 {me}\n127.0.1.1 {me}\n", False),
        ("#127.0.1.1 {me}\n127.0.1.1 {me}x\n127.0.0.1 localhost\n", False),
        ("", False),
    ],
)
def test_interfaces_are_told_where_the_hosts_own_name_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, found: bool
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(text.format(me=os.uname().nodename))
    monkeypatch.delitem(os.environb, b"GLOO_SOCKET_IFNAME", raising=False)
    told = host_facts.ifaces(str(hosts))
    assert (["127.0.0.1", "lo"] in told) == found
    assert host_facts.ifaces(str(tmp_path / "no")) == []
    monkeypatch.setitem(os.environb, b"GLOO_SOCKET_IFNAME", b"ib0")  # the host's own choice
    assert host_facts.ifaces(str(hosts)) == []


def test_the_script_and_the_room_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    found = host_facts.places({"script": b"train.py"}, os.fsencode(tmp_path))
    assert found["script"] == zlib.crc32(b"pass")
    assert found["room"][0] > 0
    assert host_facts.places({"script": b"no.py"}, os.fsencode(tmp_path))["script"] is None
    assert host_facts.places({}, b"/")["script"] is None
    assert host_facts.free_space(b"/no/where") is None
    (tmp_path / "long.py").write_bytes(b"x" * (1 << 20) + b"what follows does not count")
    long = host_facts.places({"script": b"long.py"}, os.fsencode(tmp_path))["script"]
    assert long == zlib.crc32(b"x" * (1 << 20))


def test_the_code_beside_the_script_is_told(tmp_path: Path) -> None:
    def told() -> dict[str, int]:
        found = host_facts.places({"code": b"src"}, os.fsencode(tmp_path))["code"]
        assert found == sorted(found)
        return dict(found)

    src = tmp_path / "src"
    assert told() == {}  # no such folder: others say that
    for name in ("lib/__init__.py", "lib/deep/a.py", "data/a.py", "lib/__pycache__/x.py", "b.py"):
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text(name)
    (src / "lib" / "notes.txt").write_text("")
    first = told()
    assert set(first) == {"b.py", "lib"}
    assert first["b.py"] == zlib.crc32(b"b.py")
    (src / "lib" / "notes.txt").write_text("changed")
    (src / "lib" / "__pycache__" / "x.py").write_text("changed")
    assert told() == first
    (src / "lib" / "deep" / "a.py").write_text("changed")
    changed = told()
    assert (changed["b.py"], changed["lib"] != first["lib"]) == (first["b.py"], True)
    (src / "lib" / "deep" / "a.py").rename(src / "lib" / "deep" / "b.py")
    assert told()["lib"] not in (first["lib"], changed["lib"])


def test_no_more_code_is_told_than_there_is_time_and_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / f"m{number}.py").write_text("")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text("")
    monkeypatch.setattr(host_facts, "MOST_CODE", 3)
    folder = os.fsencode(tmp_path)
    assert [name for name, _ in host_facts.code(folder)] == ["a", "m0.py", "m1.py"]
    assert host_facts._package(folder, 0, 0.0) is None  # all of a package, or none
    monkeypatch.setattr(host_facts, "CODE_SECONDS", -1.0)
    assert host_facts.code(folder) == []


def test_gpus_that_may_not_be_opened_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch system denies a job by a cgroup is still listed in /dev."""
    names = ["null", "nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(8))]
    monkeypatch.setattr("os.listdir", lambda path: names)
    allowed = {"/dev/nvidia4", "/dev/nvidia5", "/dev/nvidiactl"}
    monkeypatch.setattr("os.access", lambda path, mode: path in allowed)
    assert host_facts.count_gpus() == 2
