"""Where ranks are, with whoever is asked played; real agents and ranks: ``test_real_stacks``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from cases import cases
from open_files import open_files
from rig import wait_for

from dispatcher.remote.probe import nccl_state, stack_dump, usage
from remote.driver import Os, noting


class TestWhoIsAsked:
    """Which process stands for a rank; of made-up trees."""

    TABLE: ClassVar[usage.Table] = {
        # state, parent, session, ticks, threads, pages, born
        10: ("S", 1, 10, 0, 1, 1, 5),
        12: ("S", 11, 10, 0, 1, 1, 7),
        11: ("S", 10, 10, 0, 1, 1, 6),
        13: ("Z", 10, 10, 0, 1, 1, 8),
        20: ("S", 1, 20, 0, 1, 1, 5),
        21: ("S", 20, 20, 0, 1, 1, 9),
        30: ("Z", 1, 30, 0, 1, 1, 5),
        40: ("S", 1, 40, 0, 1, 1, 5),
    }

    @cases(
        ("pythons", "trees"),
        [
            (set(), {0: (10, [10, 11, 12]), 1: (20, [20, 21])}),
            ({10, 11, 12, 21}, {0: (10, [10, 11, 12]), 1: (21, [21, 20])}),
            ({11, 12, 40}, {0: (11, [11, 10, 12]), 1: (20, [20, 21])}),
            ({13, 12}, {0: (12, [12, 10, 11]), 1: (20, [20, 21])}),
        ],
    )
    def test_the_oldest_python_of_a_tree(
        self, monkeypatch: pytest.MonkeyPatch, pythons: set[int], trees: nccl_state.Trees
    ) -> None:
        monkeypatch.setattr(usage, "process_table", lambda: self.TABLE)
        monkeypatch.setattr(
            stack_dump, "is_python", lambda pid, folder: folder == "/f" and pid in pythons
        )
        assert stack_dump.trees_of({0: 10, 1: 20, 2: 30, 3: 99}, "/f") == trees

    def test_a_python_is_known_by_its_program_or_by_its_file(self, tmp_path: Path) -> None:
        with subprocess.Popen(["sleep", "300"]) as child:
            pid = child.pid
            wait_for(lambda: os.readlink(f"/proc/{pid}/exe").endswith("sleep"))
            assert not stack_dump.is_python(pid, None)
            assert not stack_dump.is_python(pid, str(tmp_path))
            (tmp_path / f"stack-{pid}").touch()
            assert stack_dump.is_python(pid, str(tmp_path))
            child.kill()
        assert not stack_dump.is_python(pid, None)
        assert stack_dump.is_python(os.getpid(), None)


class TestBySpy:
    def test_which_one_is_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for folder, mode in (("a", 0o644), ("b", 0o755), ("own", 0o755)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "py-spy").touch()
            (tmp_path / folder / "py-spy").chmod(mode)
        (tmp_path / "own/python").symlink_to(sys.executable)
        program = [str(tmp_path / "own/python"), "-c", "print(flush=True); input()"]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            pid = child.pid
            monkeypatch.chdir(tmp_path / "b")
            monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b")
            assert stack_dump.spy_of(pid) == f"{tmp_path}/b/py-spy"
            monkeypatch.setenv("PATH", f":.:{tmp_path}/a")  # nothing of where we happen to be
            assert stack_dump.spy_of(pid) == f"{tmp_path}/own/py-spy"
            with monkeypatch.context() as another:
                another.setattr(os, "geteuid", lambda: 12345)  # who says where it is
                assert stack_dump.spy_of(pid) is None
            (tmp_path / "own/py-spy").unlink()
            assert stack_dump.spy_of(pid) is None
            child.kill()
        assert stack_dump.spy_of(pid) is None
        with subprocess.Popen(["/bin/sleep", "300"]) as other:
            monkeypatch.setenv("PATH", f"{tmp_path}/b")
            wait_for(lambda: os.readlink(f"/proc/{other.pid}/exe").endswith("sleep"))
            assert stack_dump.spy_of(other.pid) is None  # no Python
            other.kill()

    def test_what_it_says_counts_if_it_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the pid that it is asked for: three that say something, in two cases to no avail."""
        texts = {
            50: "echo Thread 1; echo $*", 51: "echo Thread 1; exit 1", 52: "echo nothing",
            53: "printf 'Thread %099d' 1", 54: "echo Thread 1; exec sleep 300", 55: None,
        }  # fmt: skip
        for pid, text in texts.items():
            (tmp_path / f"{pid}").write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / f"{pid}").chmod(0o755)
        monkeypatch.setattr(
            stack_dump, "spy_of", lambda pid: str(tmp_path / f"{pid}") if texts[pid] else None
        )
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        before, there = open_files(), children.read_text().split()
        trees = {pid - 50: (pid, [pid]) for pid in texts if pid != 54}
        found = stack_dump.by_spy(trees, time.monotonic() + 30.0, 80)
        asked = b"dump --nonblocking --full-filenames --pid 50"
        assert found == {0: b"Thread 1\n" + asked + b"\n", 3: b"Thread " + b"0" * 73}
        assert not {*children.read_text().split()} - {*there}
        # one that is late has said nothing, and is killed
        assert stack_dump.by_spy({4: (54, [54])}, time.monotonic() + 0.3, 80) == {}
        assert not open_files() - before
        (late,) = {*children.read_text().split()} - {*there}
        assert os.waitstatus_to_exitcode(os.waitpid(int(late), 0)[1]) == -signal.SIGKILL


class TestByNative:
    """Frames of C, of ranks that may be halted for it."""

    @pytest.fixture
    def gdb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What stands for gdb, beside nothing else; two ranks, of which the second is stopped."""
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/nowhere")
        monkeypatch.setattr(stack_dump, "where_stuck", lambda pid: "T" if pid == 51 else "S")
        monkeypatch.setattr(stack_dump, "spy_of", lambda pid: None)
        return tmp_path / "gdb"

    TREES: ClassVar[nccl_state.Trees] = {0: (50, [50]), 1: (51, [51])}

    def test_by_gdb(self, gdb: Path) -> None:
        assert stack_dump.by_native(self.TREES, time.monotonic() + 30.0) == []  # there is none
        gdb.write_text("#!/bin/sh\necho $*\n")
        gdb.chmod(0o755)
        ((rank, said),) = stack_dump.by_native(self.TREES, time.monotonic() + 30.0)
        assert rank == 0
        assert said.startswith(b"-nx -batch -iex set debuginfod enabled off")
        assert said.endswith(b"-p 50 -ex bt 32\n")

    def test_a_few_of_many(self, gdb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many as there are cores, and never more than some: each halts its rank."""
        gdb.write_text("#!/bin/sh\n")
        gdb.chmod(0o755)
        asked: list[int] = []

        def where(pid: int) -> str:
            asked.append(pid)
            return "T"

        monkeypatch.setattr(stack_dump, "where_stuck", where)
        many = {rank: (100 + rank, [100 + rank]) for rank in range(99)}
        for cores, some in ((2, 2), (99, stack_dump.NATIVES), (None, 1)):
            monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
            assert stack_dump.by_native(many, time.monotonic() + 30.0) == []
            assert asked == [*range(100, 100 + some)]
            asked.clear()

    def test_by_py_spy_where_it_is(self, gdb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stack_dump, "spy_of", lambda pid: "/bin/echo")
        found = stack_dump.by_native(self.TREES, time.monotonic() + 30.0)
        assert found == [[0, b"dump --native --pid 50\n"]]

    def test_who_died_over_it_is_sent_on(self, gdb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[tuple[int, int]] = []
        monkeypatch.setattr(stack_dump, "os", Os(kill=noting(sent)))
        gdb.write_text("#!/bin/sh\nexit 1\n")
        gdb.chmod(0o755)
        assert stack_dump.by_native(self.TREES, time.monotonic() + 30.0) == []
        assert sent == [(50, signal.SIGCONT)]


class TestBySignal:
    @pytest.fixture
    def ranks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[bytes]]:
        """pid -> what it writes next, a piece in each pause; all listen but 53, and 54 is stopped.

        A pid without a list has no file.
        """
        writes: dict[int, list[bytes]] = {}
        self.now = 100.0
        self.asked: list[tuple[int, int]] = []

        def sleep(seconds: float) -> None:
            self.now += seconds
            for pid, _ in self.asked:
                if writes.get(pid):
                    with (tmp_path / f"stack-{pid}").open("ab") as file:
                        file.write(writes[pid].pop(0))

        put = monkeypatch.setattr
        put(stack_dump, "sleep", sleep)
        put(stack_dump, "monotonic", lambda: self.now)
        put(stack_dump, "where_stuck", lambda pid: "T" if pid == 54 else "S")
        put(stack_dump, "listens", lambda pid, path: pid != 53)
        put(stack_dump, "os", Os(kill=noting(self.asked)))
        return writes

    def heard(
        self, folder: Path, writes: dict[int, list[bytes]], most: int = 99, **before: bytes
    ) -> dict[int, bytes]:
        for pid in writes:
            (folder / f"stack-{pid}").write_bytes(before.get(f"p{pid}", b""))
        fds = open_files()
        trees = {pid - 50: (pid, [pid]) for pid in range(50, 56)}
        found = stack_dump.by_signal(trees, str(folder), 102.0, most)
        assert not open_files() - fds
        return found

    def test_who_is_asked(self, tmp_path: Path, ranks: dict[int, list[bytes]]) -> None:
        ranks.update({pid: [b"x"] for pid in (50, 51, 53, 54)})
        assert self.heard(tmp_path, ranks) == {0: b"x", 1: b"x"}
        assert self.asked == [(50, 62), (51, 62)]
        assert stack_dump.by_signal({0: (50, [50])}, None, 102.0, 99) == {}

    def test_all_of_it_and_nothing_that_was_there(
        self, tmp_path: Path, ranks: dict[int, list[bytes]]
    ) -> None:
        ranks.update({50: [b"one ", b"two ", b"three"], 51: [b"", b"", b"late"], 52: []})
        found = self.heard(tmp_path, ranks, p50=b"before", p52=b"before")
        assert found == {0: b"one two three", 1: b"late"}
        assert self.now == pytest.approx(102.0, abs=0.15)  # the third says nothing

    def test_nobody_is_waited_for_when_all_have_spoken(
        self, tmp_path: Path, ranks: dict[int, list[bytes]]
    ) -> None:
        ranks.update({50: [b"one"], 51: [b"two"]})
        assert len(self.heard(tmp_path, ranks)) == 2
        assert self.now < 101.0

    def test_of_much_the_end_counts(self, tmp_path: Path, ranks: dict[int, list[bytes]]) -> None:
        """The main thread comes last."""
        ranks.update({50: [b"0123456789"], 51: [b"0123"]})
        assert self.heard(tmp_path, ranks, most=4, p50=b"before", p51=b"b") == {
            0: b"6789", 1: b"0123",
        }  # fmt: skip

    def test_a_link_is_not_followed(self, tmp_path: Path, ranks: dict[int, list[bytes]]) -> None:
        (tmp_path / "other").write_text("x")
        (tmp_path / "stack-50").symlink_to(tmp_path / "other")
        assert self.heard(tmp_path, ranks) == {}
        assert self.asked == []

    def test_who_listens(self, tmp_path: Path) -> None:
        path = tmp_path / "stack"
        path.touch()
        me = os.getpid()
        before = signal.signal(62, lambda *_: None)
        try:
            assert not stack_dump.listens(me, str(path))
            assert not stack_dump.listens(me, "no\0path")
            with path.open("ab"):
                assert stack_dump.listens(me, str(path))
                (tmp_path / "link").symlink_to(path)
                assert stack_dump.listens(me, str(tmp_path / "link"))
                signal.signal(62, signal.SIG_DFL)
                signal.signal(61, before if callable(before) else signal.SIG_DFL)
                assert not stack_dump.listens(me, str(path))
        finally:
            signal.signal(62, before)
        assert not stack_dump.listens(1 << 23, str(path))
