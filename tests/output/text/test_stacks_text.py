"""Where the ranks are: in words, and in the files of a gathering."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import cases

from dispatcher.core.events.collectives import Collective
from dispatcher.core.events.monitor_events import (
    Flight,
    NodeStacks,
    RankStack,
    RankText,
    StacksGathered,
)
from dispatcher.core.events.run_events import Entry, Event
from dispatcher.core.events.stack_frames import Frame, Group
from dispatcher.core.events.verdicts import Signal
from dispatcher.output.text.stacks_text import (
    MOST_FRAMES,
    MOST_GROUPS,
    StackFiles,
    collective_line,
    signals_line,
    stack_lines,
)

HOSTS = ["n0", "n1"]
DEEP = tuple(Frame(f"f{i}", "/src/a.py", i) for i in range(MOST_FRAMES + 2))


def group(
    *ranks: int, odd: bool = False, state: str = "S", frames: tuple[Frame, ...] = DEEP
) -> Group:
    return Group(ranks, "py-spy", state, frames, odd)


@cases(
    ("one", "lines"),
    [
        (group(1), ["rank 1 on n1 is in f0 at a.py"]),
        (group(0, 1), ["ranks 0-1 on n[0-1] are in f0 at a.py"]),
        (group(0, state="T"), ["rank 0 on n0 is in f0 at a.py (stopped)"]),
        (group(0, state="t"), ["rank 0 on n0 is in f0 at a.py (stopped)"]),
        (group(0, odd=True, frames=DEEP[:1]), ["rank 0 on n0 is in f0 at a.py"]),
        (group(0, odd=True, frames=DEEP[:2]),
         ["rank 0 on n0 is in f0 at a.py", "  f0 at a.py", "  f1 at a.py:1"]),
    ],
)  # fmt: skip
def test_a_group_in_words(one: Group, lines: list[str]) -> None:
    assert stack_lines([one], lambda rank: HOSTS[rank]) == lines


LATE = Collective("group 0", 4, "all_reduce Float[8]", (0, 2), (1,))
CALLED = "all_reduce Float[8], number 4 of group 0"


@cases(
    ("one", "line"),
    [
        (LATE, f"rank 1 on n1 has not called {CALLED}; ranks 0,2 wait in it"),
        (replace(LATE, entered=(2,), missing=(0, 1)),
         f"ranks 0-1 on n[0-1] have not called {CALLED}; rank 2 waits in it"),
        (replace(LATE, unknown=(3,)), f"rank 1 on n1 has not called {CALLED}; "
         "ranks 0,2 wait in it; no record from rank 3 on n3"),
        (replace(LATE, missing=(), unknown=(1,)),
         f"ranks 0,2 wait in {CALLED}; no record from rank 1 on n1"),
        (replace(LATE, missing=()), f"all of ranks 0,2 are in {CALLED}, which does not end"),
        (replace(LATE, missing=(), differing=(("barrier\x1b", (2,)),)),
         f"ranks have called different collectives: {CALLED}, but rank 2 on n2: barrier\\x1b"),
    ],
)  # fmt: skip
def test_a_collective_in_words(one: Collective, line: str) -> None:
    assert collective_line(one, lambda rank: f"n{rank}") == line


def test_of_a_stopped_rank_enough_is_known() -> None:
    one = replace(LATE, missing=(), unknown=(1, 3))
    line = collective_line(one, lambda rank: f"n{rank}", [group(3, state="T"), group(1)])
    assert line == f"ranks 0,2 wait in {CALLED}; no record from rank 1 on n1"


@cases(
    ("signals", "line"),
    [
        ([("flight recorder", 1), ("RAS", 1), ("stacks", 1)],
         "flight recorder, RAS and stacks agree"),
        ([("RAS", 1), ("stacks", 2), ("GPUs", 1)], "RAS and GPUs agree; stacks point at rank 2"),
        ([("stacks", 2), ("GPUs", 1)], "known from: stacks; GPUs point at rank 1"),
    ],
)  # fmt: skip
def test_who_agrees(signals: list[tuple[str, int]], line: str) -> None:
    assert signals_line([Signal(name, (rank,)) for name, rank in signals]) == line


def test_user_s_code_and_the_innermost_of_c_stand_beside_the_wait() -> None:
    frames = (Frame("barrier", "/x/site-packages/d.py", 3), Frame("step", "/h/t.py", 4))
    one = replace(group(0, frames=frames), native="ncclAllReduce")
    assert stack_lines([one], lambda rank: "n0") == [
        "rank 0 on n0 is in barrier at d.py:3, called in step at t.py:4; innermost ncclAllReduce"
    ]


def test_so_much_is_told() -> None:
    assert len(stack_lines([group(0, odd=True)], lambda rank: "n0")) == 1 + MOST_FRAMES
    many = [group(rank) for rank in range(MOST_GROUPS)]
    assert len(stack_lines(many, lambda rank: "n0")) == MOST_GROUPS
    lines = stack_lines([*many, group(7, 8), group(9)], lambda rank: "n0")
    assert len(lines) == MOST_GROUPS + 1
    assert lines[-1] == "3 ranks elsewhere, in 2 places"


class Gathering:
    def __init__(self, folder: Path | None) -> None:
        self.answers: list[tuple[int, list[str]]] = []
        self.found: list[Any] = []
        self.warnings: list[str] = []
        self.sink = StackFiles(HOSTS, folder, self._answer, self.warnings.append)

    def _answer(self, number: int, lines: list[str], found: Any) -> None:
        self.answers.append((number, lines))
        self.found.append(found)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.sink.event(Entry(1, 0.0, event))


HERE = NodeStacks(
    0, 2, (RankStack(0, 70, "S", "py-spy", b"Thread 1\n\n"),), ras=b"ras",
    flights=(Flight(0, "/tmp/f", 3, b"\x80ab"), Flight(5, "/tmp/g", 1, b"")),
)  # fmt: skip


def test_the_files_of_a_gathering(tmp_path: Path) -> None:
    gathering = Gathering(tmp_path)
    old = NodeStacks(1, 1, (RankStack(1, 71, "R", "proc", b"old"),))
    gathering.tell(old, HERE, StacksGathered(2, (group(0, frames=DEEP[:2]),), (1,)))
    lines = ["rank 0 on n0 is in f0 at a.py", "n1: no answer in time"]
    assert gathering.answers == [(2, lines)]
    assert [gathering.found[0][key] for key in ("hosts", "late")] == [{"0": "n0"}, ["n1"]]
    assert gathering.found[0]["groups"] == [group(0, frames=DEEP[:2]).plain()]
    assert (tmp_path / "stacks-2.txt").read_text() == (
        "\n".join(lines) + "\n\n== rank 0, by py-spy, state S\n  f0 at a.py\n  f1 at a.py:1\n"
        "-- rank 0 on n0, pid 70, state S, by py-spy\nThread 1\n\n"
        "-- torch's dump of rank 0: n0:/tmp/f, 3 bytes\n"
        "-- torch's dump of rank 5: n0:/tmp/g, 1 byte\n"
    )
    assert (tmp_path / "ras-2.txt").read_bytes() == b"ras"
    assert (tmp_path / "flight-2-rank-00000.bin").read_bytes() == b"\x80ab"
    assert len(list(tmp_path.iterdir())) == 3
    assert {stat.S_IMODE(file.stat().st_mode) & 0o077 for file in tmp_path.iterdir()} == {0}
    gathering.tell(StacksGathered(3, ()))  # what was told of the second is forgotten
    assert gathering.answers[-1] == (3, ["no rank is running"])


def test_the_collective_comes_first_and_what_told_it_is_kept(tmp_path: Path) -> None:
    gathering = Gathering(tmp_path)
    here = replace(HERE, recorders=(RankText(0, b"{}"),), natives=(RankText(0, b"#0 f ()"),))
    gathering.tell(here, StacksGathered(2, (), collective=LATE))
    (first,) = gathering.answers[0][1][:1]
    assert first == f"rank 1 on another host has not called {CALLED}; ranks 0,2 wait in it"
    assert gathering.found[0]["collective"] == LATE.plain()
    kept = (tmp_path / "stacks-2.txt").read_text()
    assert "-- flight recorder of rank 0\n{}\n\n-- frames of C of rank 0\n#0 f ()\n\n" in kept


def test_without_a_folder_there_are_words_only() -> None:
    gathering = Gathering(None)
    gathering.tell(HERE, StacksGathered(2, (group(0, frames=DEEP[:1]),)))
    assert gathering.answers == [(2, ["rank 0 on n0 is in f0 at a.py"])]
    assert gathering.warnings == []


def test_a_disk_that_refuses_is_told_and_the_words_come_all_the_same(tmp_path: Path) -> None:
    gathering = Gathering(tmp_path / "absent")
    gathering.tell(HERE, StacksGathered(2, (), (0, 1)))
    assert gathering.answers == [(2, ["n[0-1]: no answer in time"])]
    (warning,) = gathering.warnings
    assert "stacks cannot be written: no such file" in warning
