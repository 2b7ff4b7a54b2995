"""What is read of /proc and of GPUs: recorded texts, made-up trees, programs of our own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from open_files import open_files

from dispatcher.remote.probe import usage
from dispatcher.remote.probe.usage import (
    MOST_GPUS,
    MOST_TEXT,
    Usage,
    gpus_of,
    output,
    owner,
    parse,
    parse_stat,
    started_with,
)
from remote.driver import Os, noting

STAT = (
    b"4711 (a) b (c) R 17 4711 4700 0 -1 4194304 100 200 0 0 50 25 10 5 20 0 7 0 123456 "
    b"10000000 321 18446744073709551615 1 1 0 0 0 0 0 0 0\n"
)
#: driver 550 on two GPUs; then what others say in the place of numbers
SMI = (
    b"0, 97, 41234, 81559, 612.37, 63, 700.00, 54, GPU-8f6c1a2e-0000-1111-2222-333344445555\n"
    b"1, 0, 4, 81559, 71.05, 31, 350.00, 0, GPU-9a7d0b3f-0000-1111-2222-333344445555\n"
)
ODD = (
    b"0, [N/A], [N/A], 81559, [Not Supported], ERR!, [N/A], [N/A], [Unknown Error]\n"
    b"1, [Unknown Error], 4, 81559, 71.05, 31, [Not Supported], 0, GPU-9a\n"
)


def test_what_a_stat_says() -> None:
    assert parse_stat(STAT) == ("R", 17, 4700, 90, 7, 321, 123456)


@cases("times", [b" -1 25 10 5 ", b" 50 25 10 -5 "])
def test_no_time_is_negative(times: bytes) -> None:
    assert parse_stat(STAT.replace(b" 50 25 10 5 ", times)) is None


@cases("cut", [0, 1, 10, 17, 60, 80])
def test_a_stat_that_is_not_whole(cut: int) -> None:
    assert parse_stat(STAT[:cut]) is None


@given(st.binary(max_size=200))
def test_a_name_of_any_bytes_hides_nothing(name: bytes) -> None:
    """A process calls itself what it likes; what it is otherwise is the kernel's to say."""
    first, last = STAT.index(b"("), STAT.rindex(b")")
    assert parse_stat(name) is None
    assert parse_stat(STAT[: first + 1] + name + STAT[last:]) == parse_stat(STAT)


@given(st.integers(0, len(STAT)), st.binary(max_size=3))
def test_a_stat_damaged_anywhere(at: int, text: bytes) -> None:
    found = parse_stat(STAT[:at] + text + STAT[at + len(text) :])
    assert found is None or (found[3] >= 0 and found[4] >= 0 and found[5] >= 0)


def test_what_nvidia_smi_says() -> None:
    mib = 1 << 20
    assert parse(SMI) == [
        [0, 97.0, 41234 * mib, 81559 * mib, 612.37, 63.0, 700.0, 54.0,
         "GPU-8f6c1a2e-0000-1111-2222-333344445555", None, []],
        [1, 0.0, 4 * mib, 81559 * mib, 71.05, 31.0, 350.0, 0.0,
         "GPU-9a7d0b3f-0000-1111-2222-333344445555", None, []],
    ]  # fmt: skip
    assert parse(ODD) == [
        [0, None, None, 81559 * mib, None, None, None, None, "[Unknown Error]", None, []],
        [1, None, 4 * mib, 81559 * mib, 71.05, 31.0, None, 0.0, "GPU-9a", None, []],
    ]


@cases(
    "text",
    [
        b"",
        b"No devices were found\n",
        b"Failed to initialize NVML: Driver/library version mismatch\n",
        b"Unable to determine the device handle for GPU 0000:4D:00.0: Unknown Error\n",
    ],
)
def test_nvidia_smi_that_knows_nothing(text: bytes) -> None:
    assert parse(text) == []


def test_nvidia_smi_cut_short() -> None:
    for cut in range(len(SMI)):
        found = parse(SMI[:cut])
        whole = SMI[:cut].count(b"\n")
        assert whole <= len(found) <= whole + 1
        assert all(len(gpu) == 11 for gpu in found)


@given(st.binary(max_size=300) | st.text("0123456789., \n[]/NA", max_size=300).map(str.encode))
def test_any_bytes_of_nvidia_smi(text: bytes) -> None:
    found = parse(text)
    if text.count(b"\n") < MOST_GPUS - 2:
        assert parse(text + b"\n" + SMI)[-2:] == parse(SMI)
    assert len(found) <= MOST_GPUS
    for index, *rest, _ in found:
        assert 0 <= index < 1 << 10
        assert all(value is None or 0 <= value <= 1e7 * (1 << 20) for value in rest)


GPUS = [
    [0, *[None] * 7, "GPU-8f6c1a2e-0000"],
    [1, *[None] * 7, "GPU-8f7d0b3f-0000"],
    [4, *[None] * 7, None],
]


@cases(
    ("place", "own", "every"),
    [
        (None, None, None),
        ((None, 0, 1), [0, 1, 4], [0, 1, 4]),  # alone it may drive all
        ((None, 1, 2), [1], [0, 1, 4]),
        (("4,1", 0, 2), [4], [4, 1]),
        (("4, 1", 3, 4), [1], [4, 1]),
        (("GPU-8f7,GPU-8f6c1a2e-0000", 0, 2), [1], [1, 0]),
        (("MIG-GPU-8f7d0b3f-0000/1/0", 0, 1), [1], [1]),
        (("", 0, 1), [], []),
        (("-1", 0, 2), [], []),
        (("1,-1,0", 0, 2), [1], [1]),
        (("NoDevFiles", 0, 1), [], []),
        (("GPU-8f", 0, 1), None, None),  # two GPUs are called so
        (("2", 0, 1), None, None),  # nobody is
        (("MIG-5ea8e4c1", 0, 1), None, None),
        (("GPU-", 0, 1), None, None),
        (("\u0661", 0, 1), None, None),
    ],
)
def test_which_gpus_a_rank_was_given(place: object, own: object, every: object) -> None:
    assert gpus_of(place, GPUS) == [own, every]  # type: ignore[arg-type]
    assert gpus_of(place, []) == [None, None]  # type: ignore[arg-type]


def test_a_rank_is_its_whole_tree() -> None:
    #      state, parent, session, ticks, threads, pages, born
    table = {
        10: ("S", 1, 10, 100, 1, 5, 7),  # the rank: a shell that waits
        11: ("R", 10, 10, 300, 4, 50, 8),  # what it runs
        12: ("R", 1, 10, 50, 1, 5, 9),  # its parent died
        13: ("S", 11, 13, 25, 1, 5, 9),  # in a session of its own
        14: ("Z", 11, 10, 1, 1, 0, 9),
        20: ("D", 1, 20, 7, 1, 1, 9),
        30: ("R", 1, 30, 9, 1, 1, 9),  # a stranger
    }
    usage = Usage({3: 10, 4: 20, 5: 99})
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert usage.of(table) == [
        [3, "S", 475 / tick, 65 * page, 7, 4],
        [4, "D", 7 / tick, page, 1, 1],
    ]
    table[20] = ("R", 1, 20, 7, 1, 1, 77)  # the number was given away again
    assert [sample[0] for sample in usage.of(table)] == [3]


@given(st.dictionaries(st.integers(1, 9), st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_a_table_that_makes_no_sense_ends_all_the_same(links: dict[int, tuple[int, int]]) -> None:
    table = {pid: ("S", parent, sid, 0, 0, 0, 0) for pid, (parent, sid) in links.items()}
    known: dict[int, int] = {}
    for pid in table:
        assert owner(pid, table, {1: [], 2: []}, known) in (0, 1, 2)


def test_processes_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as child:
        try:
            assert usage.process_table()[child.pid][1:3] == (os.getpid(), child.pid)
            # what it has used grows until it sleeps, so both are asked of one moment
            stat = usage.stat_of(child.pid)
            monkeypatch.setattr(usage, "stat_of", {child.pid: stat}.get)
            assert usage.process_table() == {child.pid: stat}
        finally:
            child.kill()
    monkeypatch.undo()
    assert usage.stat_of(child.pid) is None
    assert child.pid not in usage.process_table()


@cases(
    ("words", "place"),
    [
        ({"MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}, (None, 2, 4)),
        (
            {"MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4", "CUDA_VISIBLE_DEVICES": ""},
            ("", 2, 4),
        ),
        ({"MPI_LOCALRANKID": "2"}, None),
        ({"MPI_LOCALNRANKS": "4"}, None),
        ({"MPI_LOCALRANKID": "x", "MPI_LOCALNRANKS": "4"}, None),
        ({}, None),
    ],
)
def test_which_rank_a_process_is(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, str], place: object
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(usage, "environ", noting(asked, words))
    assert started_with(77) == place
    of = Usage({5: 77})
    assert of.place(5) == of.place(5) == place
    assert asked == [77, 77]  # once by ``of``, however often it is asked


def test_a_tree_is_known_by_parents_and_by_the_session() -> None:
    table = {
        10: ("S", 1, 10, 0, 0, 0, 0), 11: ("S", 10, 99, 0, 0, 0, 0), 12: ("S", 11, 99, 0, 0, 0, 0),
        13: ("S", 1, 10, 0, 0, 0, 0), 20: ("S", 1, 20, 0, 0, 0, 0), 21: ("S", 77, 20, 0, 0, 0, 0),
        30: ("S", 12, 30, 0, 0, 0, 0),
    }  # fmt: skip
    known: dict[int, int] = {}
    assert owner(12, table, {10: 0, 30: 1}, known) == 10
    assert known == {12: 10, 11: 10, 10: 10}
    assert [owner(pid, table, {10: 0, 30: 1}, known) for pid in (10, 13, 20, 21, 30, 99)] == [
        10, 10, 0, 0, 30, 0,
    ]  # fmt: skip
    assert known[21] == known[20] == 0


# -- GPUs --------------------------------------------------------------------------------


def test_where_nvidia_smi_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, mode in (("a", 0o644), ("b", 0o755), ("c", 0o755)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nvidia-smi").write_text(f"#!/bin/sh\necho {folder} $*\n")
        (tmp_path / folder / "nvidia-smi").chmod(mode)
    asked: list[list[str]] = []
    monkeypatch.setattr(usage, "output", noting(asked, SMI))
    monkeypatch.setenv("PATH", f":{tmp_path}/none:{tmp_path}/a:{tmp_path}/b:{tmp_path}/c")
    monkeypatch.chdir(tmp_path / "c")  # an empty folder of PATH is no place to run things from
    read = usage.program()
    assert read is not None
    assert read() == parse(SMI)
    assert asked == [[f"{tmp_path}/b/nvidia-smi", *usage.QUERY]]
    there = ["/usr/bin/nvidia-smi"]
    monkeypatch.setattr(usage, "os", Os(access=lambda path, mode: path in there))
    assert usage.program() is not None
    there.clear()
    assert usage.program() is None


def test_what_a_program_writes_is_taken_as_far_as_it_may(
    capfd: pytest.CaptureFixture[str],
) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    fds, before = open_files(), children.read_text().split()
    text = "cat; echo out; echo err >&2; sleep 0.05; echo more"
    assert output(["/bin/sh", "-c", text]) == b"out\nmore\n"
    assert output(["/bin/sh", "-c", "exit 3"]) == output(["/no/such/program"]) == b""
    most = output(["/bin/sh", "-c", "head -c 1000000 /dev/zero"])
    assert MOST_TEXT <= len(most) < 2 * MOST_TEXT
    assert not open_files() - fds
    assert not {*children.read_text().split()} - {*before}  # all were waited for
    assert capfd.readouterr().err == ""
