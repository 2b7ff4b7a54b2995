"""Descendants as /proc shows them: who is found, who gets a signal, and who is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import cases
from rig import gone, wait_for

from dispatcher.remote.host import process, proctree
from remote.driver import Os

HOUSE = str(Path(proctree.__file__).parents[3])

#: has three children, the first and second of one group, and does what it is told about them
PARENT = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from dispatcher.remote.host import proctree
first = subprocess.Popen(["sleep", "300"], preexec_fn=os.setpgrp)
second = subprocess.Popen(["sleep", "300"], preexec_fn=lambda: os.setpgid(0, first.pid))
other = subprocess.Popen(["sh", "-c", "sleep 300 & wait"], preexec_fn=os.setsid)
print(first.pid, second.pid, other.pid, flush=True)
def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
for line in sys.stdin:
    word, *values = line.split()
    if word == "tree":
        print(*proctree.descendants(os.getpid()), flush=True)
    elif word == "leftovers":
        proctree.signal_leftovers(int(values[0]), signal.SIGTERM)
        print("done", flush=True)
    else:
        killed, left = proctree.kill_all(reap)
        print(len(killed), len(left), flush=True)
"""


class Parent:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, HOUSE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.first, self.second, self.other = map(int, self._line().split())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def told(self, words: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return self._line().split()

    def tree(self) -> list[int]:
        return [int(word) for word in self.told("tree")]


@pytest.fixture
def parent() -> Iterator[Parent]:
    made = Parent()
    wait_for(lambda: len(made.tree()) == 4)
    yield made
    made.told("kill")
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.process.wait(60)
    assert made.process.stdout is not None
    made.process.stdout.close()


def test_parents_stand_before_their_children(parent: Parent) -> None:
    tree = parent.tree()
    assert {parent.first, parent.second, parent.other} < set(tree)
    (grandchild,) = set(tree) - {parent.first, parent.second, parent.other}
    assert tree.index(parent.other) < tree.index(grandchild)


def test_a_signal_to_leftovers_is_for_one_group_alone(parent: Parent) -> None:
    parent.told(f"leftovers {parent.first}")
    wait_for(lambda: not {parent.first, parent.second} & set(parent.tree()))
    assert len(parent.tree()) == 2
    assert parent.other in parent.tree()
    parent.told("leftovers 1")  # nobody of ours
    assert len(parent.tree()) == 2


def test_who_ended_is_no_descendant_any_more(parent: Parent) -> None:
    os.kill(parent.second, signal.SIGKILL)
    wait_for(lambda: parent.second not in parent.tree())  # a zombie, since nobody has reaped it
    assert os.path.exists(f"/proc/{parent.second}")


def test_all_are_killed(parent: Parent) -> None:
    assert parent.told("kill") == ["4", "0"]
    assert parent.tree() == []
    assert parent.told("kill") == ["0", "0"]


@cases(
    ("status", "code"),
    [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, -9), (15, -15), (11 | 0x80, -11)],
)
def test_how_a_process_ended(status: int, code: int) -> None:
    """The last one left a core behind."""
    assert proctree.exit_status(status) == code


def test_a_signal_to_nobody() -> None:
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    assert proctree.send_signal(child.pid, 0)
    assert proctree.send_signal(-child.pid, signal.SIGKILL)
    child.wait(60)
    assert not proctree.send_signal(child.pid, 0)
    assert not proctree.send_signal(-child.pid, 0)


def test_all_that_have_ended_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[tuple[int, int] | Exception] = [(7, 0), (8, 256), (0, 0), (9, 0)]

    def wait(pid: int, options: int) -> tuple[int, int]:
        assert (pid, options) == (-1, os.WNOHANG)
        found = waiting.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(proctree, "os", Os(waitpid=wait))
    assert list(proctree.reaped()) == [(7, 0), (8, 256)]
    waiting.append(ChildProcessError())
    assert list(proctree.reaped()) == [(9, 0)]


class Undying:
    """Processes, a clock and signals in the place of the kernel's: ``left`` at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: list[int]) -> None:
        self.now, self.looks, self.reaps = 100.0, list(looks), 0
        self.patience = 0.0
        self.sent: list[tuple[int, int]] = []
        self.pauses: list[float] = []
        put = monkeypatch.setattr
        put(proctree, "descendants", self._look)
        put(proctree, "look", lambda pid: (self.patience, pid))  # all lead a session
        put(proctree, "send_signal", self._send)
        put(proctree, "monotonic", lambda: self.now)
        put(proctree, "sleep", self._sleep)

    def _look(self, root: int) -> list[int]:
        assert root == os.getpid()
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def _send(self, pid: int, signum: int) -> bool:
        self.sent.append((pid, signum))
        return pid < 90

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        assert len(self.pauses) < 5000
        self.now += seconds

    def kill(self, limit: float = 5.0, at_once: range = range(100)) -> tuple[set[int], list[int]]:
        return proctree.kill_all(self._reap, limit, at_once)

    def _reap(self) -> None:
        self.reaps += 1


def test_who_is_started_meanwhile_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Undying(monkeypatch, [5, 6], [6, 7], [91], [])
    assert kernel.kill() == ({5, 6, 7}, [])  # 91 ended by itself
    assert kernel.sent == [(pid, signal.SIGKILL) for pid in (5, 6, 6, 7, 91)]
    assert kernel.reaps == 4


def test_who_cannot_be_killed_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ((), (2.0,)):
        kernel = Undying(monkeypatch, [5, 6], [6])
        assert kernel.kill(*limit) == ({5, 6}, [6])
        seconds = limit[0] if limit else 5.0
        assert seconds < kernel.now - 100.0 < seconds + 0.1
        # looks are close at first, since most die at once, and far apart later
        assert kernel.pauses[0] < 0.01
        assert kernel.pauses == sorted(kernel.pauses)
        assert kernel.pauses[-1] <= 0.05
        assert len(kernel.pauses) < 1000


def test_who_may_end_by_itself_is_waited_for_while_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for patience, least in ((0.0, 0.05), (1.0, 1.0), (3.0, 3.0)):
        kernel = Undying(monkeypatch, [5, 6])
        kernel.patience = patience
        assert kernel.kill(4.0, at_once=range(6, 7)) == ({5, 6}, [5, 6])
        late = next(n for n, (pid, _) in enumerate(kernel.sent) if pid == 5)
        assert kernel.sent[:late] == [(6, signal.SIGKILL)] * late
        assert least <= sum(kernel.pauses[:late]) <= least + 0.06
    kernel = Undying(monkeypatch, *([5, *range(6, n)] for n in range(10, 5, -1)), [])
    assert kernel.kill(at_once=range(0)) == (set(), [])


#: leads a session, in which it leaves one that uses the shared file and one that removes it then
LEADER = """
import subprocess, sys
tidy = subprocess.Popen(
    ["sh", "-c", "trap '' TERM; echo up; cat; rm shared"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
tidy.stdout.readline()
subprocess.Popen(["sleep", "300"], stdout=tidy.stdin)
"""
SWEEP = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from dispatcher.remote.host import proctree
proctree.become_subreaper()
subprocess.run([sys.executable, "-c", sys.argv[2]], start_new_session=True, check=True)
print(proctree.kill_all(lambda: [*proctree.reaped()])[1])
"""


def test_what_removes_shared_memory_ends_by_itself(tmp_path: Path) -> None:
    """As Python's resource_tracker does: it ignores TERM, and waits until nobody has its pipe."""
    (tmp_path / "shared").write_text("")
    words = [sys.executable, "-c", SWEEP, HOUSE, LEADER]
    done = subprocess.run(words, capture_output=True, timeout=60, cwd=tmp_path, check=True)
    assert done.stdout == b"[]\n"
    assert not (tmp_path / "shared").exists()


def test_how_long_a_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proctree.look(os.getpid()) == (1.0, os.getsid(0))  # it runs
    assert proctree.look(2**22 + 1) == (1.0, 2**22 + 1)  # it has just ended
    monkeypatch.setattr(proctree, "SHM_MANAGER", Path("/proc/self/comm").read_bytes().strip())
    assert proctree.look(os.getpid()) == (3.0, os.getpid())


def test_a_child_whose_parent_has_gone_is_told_so() -> None:
    assert proctree.signal_with_parent(os.getppid(), 0)
    assert not proctree.signal_with_parent(os.getppid() + 1, 0)


def test_a_rank_lets_the_agent_look_into_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which of no Linux without Yama can be read back, so the call itself is noted."""
    noted = tmp_path / "noted"

    def note(*words: int) -> None:
        with noted.open("a") as file:
            print(*words, file=file)

    monkeypatch.setattr(proctree, "_prctl", note)
    rank = process.spawn(0, [b"/bin/true"], {}, b"/")
    os.waitpid(rank.pid, 0)
    assert f"{0x59616D61} {os.getpid()} 0 0 0" in noted.read_text().splitlines()


@cases("what", ["dies", "lives"])
def test_a_child_may_follow_its_parent(what: str) -> None:
    """The signal it asks for at its parent's death, and none if it does not ask."""
    ask = "proctree.signal_with_parent(parent, 9)" if what == "dies" else "pass"
    text = (
        "import os, time\nfrom dispatcher.remote.host import proctree\nparent = os.getpid()\n"
        f"pid = os.fork()\nif pid == 0:\n    {ask}\n    print(os.getpid(), flush=True)\n"
        "    time.sleep(300)\ntime.sleep(300)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": HOUSE},
    )  # fmt: skip
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait(60)
    if what == "dies":
        wait_for(lambda: gone(child), 30, "the child's end")
    else:
        assert not gone(child)
        os.kill(child, signal.SIGKILL)
    process.stdout.close()


def test_where_it_hangs_is_short(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "wchan").write_text("w" * 200)
    assert proctree.where_stuck(7, str(tmp_path)).split()[1] == "w" * 64
