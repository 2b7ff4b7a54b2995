"""Descendants as /proc shows them: who is found, who gets a signal, and who is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rig import wait_for

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
        house = os.path.join(os.path.dirname(__file__), "..", "..", "..")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, os.path.abspath(house)],
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
    made.process.wait(10)
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
