"""What a host can tell of a failure: recorded kernel messages, odd error files, a real OOM kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events import stack_frames
from dispatcher.remote.host import failure_info, proctree
from remote.driver import Agent, Os, noting

#: as Linux 6.1 and NVIDIA's driver 535 wrote them
LOG = [
    "usb 1-1: new device",
    "Memory cgroup out of memory: Killed process 812 (python) total-vm:9kB, anon-rss:8kB",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=811, name=python, MMU Fault",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
]


def test_the_kernel_names_the_very_process() -> None:
    assert failure_info.out_of_memory(LOG, 812, 0) == f"the kernel's OOM killer: {LOG[1]}"


def test_the_count_of_the_cgroup() -> None:
    assert "oom_kill rose by 2" in failure_info.out_of_memory([], 812, 2)


def test_another_process_is_said_to_be_another() -> None:
    assert failure_info.out_of_memory(LOG, 81, 0).startswith("the OOM killer struck on this host: ")
    assert failure_info.out_of_memory(LOG[2:], 812, 0) == ""


CAUSE = "NVRM: Xid (PCI:0000:18:00): 94, pid=42, name=python3, Contained: SM (0x1). RST: No"
ECHO = "NVRM: Xid (PCI:0000:18:00): 45, pid=42, name=python3, Ch 00000008"
CAUSED = "NVRM: Xid (PCI:0000:18:00): 13, pid=42, name=python3, caused by previous Xid 94"
INSTANCE = "NVRM: Xid (PCI:0000:18:00 GPU-I:05): 95, pid='<unknown>', name=<unknown>, Uncontained"
OTHER = "NVRM: Xid (PCI:0000:9a:00): 79, pid=777, name=other, GPU has fallen off the bus."


@cases(
    ("log", "pid", "told"),
    [
        (LOG, 0, LOG[3]), (LOG, 811, LOG[3]),  # a line of the rank's GPU need not name it
        ([CAUSE, ECHO, CAUSED], 42, CAUSE), ([CAUSE, ECHO, OTHER], 42, CAUSE),
        ([CAUSE, INSTANCE, ECHO], 42, INSTANCE), ([ECHO, OTHER], 42, ECHO),
        ([CAUSE, ECHO, OTHER], 7, OTHER),  # in a container pids are others: the last
    ],
)  # fmt: skip
def test_the_xid_that_says_most_of_a_rank(log: list[str], pid: int, told: str) -> None:
    assert failure_info.gpu_trouble(log, pid) == f"the GPU driver reported {told}"


def test_no_xid() -> None:
    assert failure_info.gpu_trouble(LOG[:2]) == ""


class TestExamine:
    """What is asked, and which answer counts for more."""

    @pytest.fixture
    def host(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        host = SimpleNamespace(driver=False, log=LOG, kills=0, since=[])
        path = SimpleNamespace(exists=lambda path: host.driver and path == "/proc/driver/nvidia")
        monkeypatch.setattr(failure_info, "os", Os(path=path))
        put = monkeypatch.setattr
        put(failure_info, "kernel_log", lambda since: noting(host.since, host.log)(since))
        put(failure_info, "oom_kills", lambda: host.kills)
        return host

    @pytest.mark.parametrize(
        ("status", "driver", "log", "kills", "hint"),
        [
            (1, False, LOG, 9, None),  # nothing of it is looked at
            (1, True, LOG, 9, f"the GPU driver reported {LOG[3]}"),
            (1, True, LOG[:2], 9, None),
            (-9, False, LOG, 4, f"the kernel's OOM killer: {LOG[1]}"),
            (-9, True, LOG, 4, f"the kernel's OOM killer: {LOG[1]}"),
            (-9, True, LOG[2:], 4, f"the GPU driver reported {LOG[3]}"),
            (-9, False, [], 6, "the OOM killer struck in this host's cgroup (oom_kill rose by 2)"),
            (-9, False, [], 4, None),
            (-15, False, LOG, 9, None),
        ],
    )
    def test_what_is_hinted_at(
        self, host: SimpleNamespace, status: int, driver: bool, log: list[str], kills: int,
        hint: str | None,
    ) -> None:  # fmt: skip
        host.driver, host.log, host.kills = driver, log, kills
        found = failure_info.exit_fields(0, 812, status, None, 4, 55.5)
        assert found == ({} if hint is None else {"hint": hint})
        assert host.since == ([55.5] if driver or status == -9 else [])

    def test_the_error_file_comes_with_it(self, host: SimpleNamespace, tmp_path: Path) -> None:
        (tmp_path / "rank-7.json").write_bytes(b"{}")
        found = failure_info.exit_fields(7, 812, -9, str(tmp_path), 0, 1.0)
        assert found == {"error": b"{}", "hint": f"the kernel's OOM killer: {LOG[1]}"}


class TestKernelLog:
    """Records as /dev/kmsg gives them, one a read."""

    @pytest.fixture
    def records(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes | OSError]:
        records: list[bytes | OSError] = []

        def opened(path: str, flags: int) -> int:
            assert (path, flags) == ("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            if records and isinstance(records[0], PermissionError):
                raise records[0]
            return 77

        def read(fd: int, size: int) -> bytes:
            record = records.pop(0) if records else BlockingIOError()
            if isinstance(record, OSError):
                raise record
            return record[:size]

        def close(fd: int) -> None:
            records.append(b"closed")

        own = Os(open=opened, read=read, close=close)
        monkeypatch.setattr(failure_info, "os", own)
        return records

    def test_those_since_then_by_their_text(self, records: list[bytes | OSError]) -> None:
        records += [
            b"6,339,4999999,-;before\n", b"6,340,5000000,-;just then\n SUBSYSTEM=usb\n",
            BrokenPipeError(), b"4,341,5000001,c,more;after; with \xff\n", b"no record",
            b"6,342,x,-;no time\n", b"6,343;few fields\n", b"6,9000000;two fields\n",
        ]  # fmt: skip
        assert failure_info.kernel_log(5.0) == ["just then", "after; with \ufffd"]
        assert records == [b"closed"]

    def test_a_log_that_may_not_be_read(self, records: list[bytes | OSError]) -> None:
        records.append(PermissionError())
        assert failure_info.kernel_log(0.0) == []

    def test_a_log_that_never_ends(self, records: list[bytes | OSError]) -> None:
        records += [b"6,1,1,-;x\n"] * (failure_info.LOG_LIMIT + 5)
        assert len(failure_info.kernel_log(0.0)) == failure_info.LOG_LIMIT
        assert records[5:] == [b"closed"]


def test_what_is_quoted_is_bounded() -> None:
    long = "Out of memory: Killed process 5 " + "x" * 5000
    for pid in (5, 6):
        _, _, quoted = failure_info.out_of_memory([long], pid, 0).partition(": ")
        assert quoted == long[: failure_info.QUOTE_LIMIT]
    xid = "NVRM: Xid " + "x" * 5000
    assert failure_info.gpu_trouble([xid]).endswith(" " + xid[: failure_info.QUOTE_LIMIT])


class TestErrorFile:
    def test_it_is_bounded(self, tmp_path: Path) -> None:
        (tmp_path / "rank-3.json").write_bytes(b"x" * 100_000)
        error = b"x" * failure_info.ERROR_LIMIT
        assert failure_info.error_of(str(tmp_path), 3) == {"error": error}

    def test_what_is_no_file_is_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        os.symlink(tmp_path / "secret", tmp_path / "rank-0.json")
        os.mkfifo(tmp_path / "rank-1.json")
        (tmp_path / "rank-2.json").mkdir()
        for rank in range(4):
            assert failure_info.error_of(str(tmp_path), rank) == {}
        assert failure_info.error_of(None, 0) == {}

    def test_only_the_first_failures_is_sent(self, agent: Agent) -> None:
        folder = agent.prepare()["facts"]["error_folder"]
        write = f"while [ ! -e {folder}/go ]; do sleep 0.02; done; echo mine > {folder}/rank-"
        agent.start(
            ["sh", "-c", f"echo first > {folder}/rank-0.json; exit 3"],
            ["sh", "-c", f"{write}1.json; exit 4"],
        )
        assert agent.report("rank.exited", rank=0)["error"] == b"first\n"
        Path(folder, "go").touch()
        assert "error" not in agent.report("rank.exited", rank=1)

    def test_none_is_sent_of_a_rank_that_was_told_to_end(self, agent: Agent) -> None:
        folder = agent.prepare()["facts"]["error_folder"]
        agent.start(["sh", "-c", f"echo x > {folder}/rank-0.json; echo up; exec sleep 300"])
        agent.until(lambda: agent.output)
        agent.order("signal_ranks", ranks=None, signum=int(signal.SIGTERM))
        assert agent.report("rank.exited") == {"type": "rank.exited", "rank": 0, "status": -15}


class TestWhereItHangs:
    def test_from_a_made_up_proc(self, tmp_path: Path) -> None:
        (tmp_path / "7").mkdir()
        machine = os.uname().machine
        assert proctree.where_stuck(7, str(tmp_path)) == f"- - - {machine}"
        for name, text in (
            ("stat", "7 (a D) x) D 1 7 7"),
            ("wchan", "nfs_wait_on_request"),
            ("syscall", "74 0x5 0x0 0x0 0x7ffe 0x7f1\n"),
        ):
            (tmp_path / "7" / name).write_text(text)
        assert proctree.where_stuck(7, str(tmp_path)) == f"D nfs_wait_on_request 74 {machine}"
        (tmp_path / "7" / "wchan").write_text("")
        assert proctree.where_stuck(7, str(tmp_path)) == f"D - 74 {machine}"

    def test_of_a_process_that_waits_for_its_vfork(self, tmp_path: Path) -> None:
        """Its child opens a pipe nobody writes to before it becomes another program."""
        os.mkfifo(tmp_path / "pipe")
        spawn = "import os, sys\nos.posix_spawn('/bin/true', ['true'], {}, file_actions="
        spawn += "[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])"
        parent = subprocess.Popen([sys.executable, "-c", spawn, str(tmp_path / "pipe")])
        try:

            def waits() -> str:
                found = proctree.where_stuck(parent.pid)
                return found if found.startswith("D ") else ""

            # in one look: reading its own files it waits so for a moment, too
            where = wait_for(waits, 60, lambda: f"it hangs: {proctree.where_stuck(parent.pid)}")
            assert stack_frames.in_words(where).startswith("state D")
        finally:
            lets_go = os.open(tmp_path / "pipe", os.O_RDWR)  # whenever the child comes to it
            code = parent.wait(timeout=60)
            os.close(lets_go)
        assert code == 0


@cases(
    ("text", "words"),
    [
        ("D nfs_wait 74 x86_64", "state D in nfs_wait, system call fsync"),
        ("D nfs_wait 82 aarch64", "state D in nfs_wait, system call fsync"),
        ("D nfs_wait 9999 x86_64", "state D in nfs_wait, system call 9999"),
        ("D nfs_wait 74 riscv64", "state D in nfs_wait, system call 74"),
        ("D 0 running x86_64", "state D"),
        ("D - - x86_64", "state D"),
        ("- - - x86_64", ""),
        ("D x", ""),
        ("", ""),
    ],
)
def test_where_it_hangs_in_words(text: str, words: str) -> None:
    assert stack_frames.in_words(text) == words


@pytest.fixture
def small_group() -> Iterator[str]:
    """The tasks file of a memory cgroup (version 1) of 60 MB."""
    group = Path(f"/sys/fs/cgroup/memory/dispatch-{uuid.uuid4().hex}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("60M")
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield str(group / "tasks")
    group.rmdir()


def test_the_oom_killer_is_named(boot: Callable[..., Agent], small_group: str) -> None:
    agent = boot(stage=["/bin/sh", "-c", f'echo $$ > {small_group}; eval "$0"'])
    agent.prepare()
    agent.start(["tail", "/dev/zero"])
    exited = agent.report("rank.exited")
    assert exited["status"] == -signal.SIGKILL
    assert "OOM killer" in exited["hint"]
    agent.finish()
