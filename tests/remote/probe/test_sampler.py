"""Samples of ranks and GPUs: what is read, and what becomes of a reader that hangs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.remote.host import proctree
from dispatcher.remote.probe import sampler
from dispatcher.remote.probe.usage import MOST_GPUS, Usage, owner, parse, parse_stat
from dispatcher.remote.probe.usage import given as given_gpus
from remote.driver import Agent

PARTS = ("probe.sampler", "probe.usage")

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


@pytest.mark.parametrize("cut", [0, 1, 10, 17, 60, 80])
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
         "GPU-8f6c1a2e-0000-1111-2222-333344445555"],
        [1, 0.0, 4 * mib, 81559 * mib, 71.05, 31.0, 350.0, 0.0,
         "GPU-9a7d0b3f-0000-1111-2222-333344445555"],
    ]  # fmt: skip
    assert parse(ODD) == [
        [0, None, None, 81559 * mib, None, None, None, None, "[Unknown Error]"],
        [1, None, 4 * mib, 81559 * mib, 71.05, 31.0, None, 0.0, "GPU-9a"],
    ]


@pytest.mark.parametrize(
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
        assert all(len(gpu) == 9 for gpu in found)


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


@pytest.mark.parametrize(
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
    assert given_gpus(place, GPUS) == [own, every]  # type: ignore[arg-type]
    assert given_gpus(place, []) == [None, None]  # type: ignore[arg-type]


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


def sample(agent: Agent, seconds: float = 0.2) -> None:
    agent.order("sample", seconds=seconds, parts=payload.parts(PARTS))


BUSY = "while :; do :; done"


def test_samples_of_real_ranks(agent: Agent) -> None:
    agent.prepare()
    agent.start(["sleep", "1000"], ["sh", "-c", f"sh -c '{BUSY}' & wait"])
    sample(agent)

    def busy() -> bool:
        seen = [s["ranks"] for s in agent.reports if s["type"] == "sample"]
        return bool(seen) and any(rank == 1 and cpu > 0.05 for rank, _, cpu, *_ in seen[-1])

    agent.until(busy)
    ranks = [s for s in agent.reports if s["type"] == "sample"][-1]["ranks"]
    (_, state, idle, rss, threads, processes) = ranks[0][:6]
    assert (state, threads, processes) == ("S", 1, 1)
    assert idle <= 0.05
    assert rss > 0
    assert ranks[1][5] == 2
    assert agent.finish()["killed"] == 1  # the loop in the background


def test_what_takes_samples_is_not_left_behind(agent: Agent) -> None:
    agent.prepare()
    agent.start(["sleep", "0.5"])
    sample(agent)
    agent.report("sample")
    assert agent.status() == 0
    assert agent.finish()["killed"] == 0


def test_a_sampler_that_has_ended_is_not_taken_for_something_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not be reaped yet when the sweep counts what it killed."""
    monkeypatch.setattr(sampler, "become", lambda *_: os._exit(0))
    with select.epoll() as poll:
        one = sampler.Sampler(poll)
        one.begin({"seconds": 0.0}, {})
        assert poll.poll(10.0)
        assert one.read(False) == []
        assert one.pid in one.stop()
    os.waitpid(one.pid, 0)


def test_what_a_sampler_was_just_starting_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that had begun when the group was stopped ends later, and was counted as a rank's."""
    looks = iter([[], [4001], [4001]])
    killed: list[int] = []
    monkeypatch.setattr(proctree, "descendants", lambda pid: next(looks))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    with select.epoll() as poll:
        one = sampler.Sampler(poll)
        one.fd, end = os.pipe()
        one.pid = 4000
        poll.register(one.fd)
        assert one.stop() == {4000, 4001} == set(map(abs, killed))
        os.close(end)


def test_a_sampler_that_is_killed_is_told_and_harms_nobody() -> None:
    agent = Agent(sys.executable)
    try:
        agent.prepare()
        (rank,) = agent.start(["sleep", "1000"]).values()
        sample(agent)
        agent.report("sample")
        guarded = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]
        children = Path(f"/proc/{guarded}/task/{guarded}/children").read_text().split()
        (sampler,) = {int(pid) for pid in children} - {rank}
        os.kill(sampler, signal.SIGKILL)
        assert "nothing is sampled any more" in agent.report("notice")["text"]
        agent.finish()
    finally:
        agent.close()


def test_nobody_samples_before_the_start() -> None:
    agent = Agent(sys.executable)
    try:
        agent.prepare()
        sample(agent)
        assert "'sample' ignored while prepared" in agent.report("notice")["text"]
        agent.finish()
    finally:
        agent.close()


def smi(folder: Path, text: str) -> str:
    """A PATH with an ``nvidia-smi`` of this text."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_gpus_through_a_program(tmp_path: Path, boot: Callable[..., Agent]) -> None:
    agent = boot(env={"PATH": smi(tmp_path, f"printf '{SMI.decode()}'")})
    agent.prepare()
    chosen = [
        [b"CUDA_VISIBLE_DEVICES=1,GPU-8f6c", b"MPI_LOCALRANKID=2", b"MPI_LOCALNRANKS=3"],
        [b"CUDA_VISIBLE_DEVICES=0", b"MPI_LOCALRANKID=1", b"MPI_LOCALNRANKS=3"],
    ]
    envs = {rank: [item.split(b"=") for item in items] for rank, items in enumerate(chosen)}
    agent.start(*[["sleep", "1000"]] * 3, envs=envs)
    sample(agent)
    agent.until(lambda: any(r.get("gpus") for r in agent.reports))
    (gpus,) = {str(r["gpus"]) for r in agent.reports if r.get("gpus")}
    assert gpus == str([gpu[:8] for gpu in parse(SMI)])
    ranks = [r["ranks"] for r in agent.reports if r.get("gpus")]
    assert [rank[6:] for rank in ranks[-1]] == [[[1], [1, 0]], [[0], [0]], [None, None]]
    assert agent.finish()["killed"] == 0


def test_gpus_that_hang_hold_nobody(tmp_path: Path) -> None:
    agent = Agent(sys.executable, env={"PATH": smi(tmp_path, "sleep 1000 & wait")})
    try:
        agent.prepare()
        agent.start(["sleep", "1000"])
        sample(agent)
        agent.until(lambda: sum(r["type"] == "sample" for r in agent.reports) >= 3)
        assert not any(r.get("gpus") for r in agent.reports)
        assert agent.finish()["killed"] == 0
    finally:
        agent.close()


LATE = """
import sys
from dispatcher.remote.probe import sampler
sampler.LATE = 0.2
gpus = sampler.Gpus(0.1)
now = sampler.monotonic()
gpus.latest(now)
assert not gpus.late
pid = gpus.pid
gpus.wait(now + 0.5)
assert gpus.latest(sampler.monotonic()) == []
assert gpus.late and gpus.fd < 0
print(pid)
"""


def test_gpus_that_hang_are_late_and_killed(tmp_path: Path) -> None:
    path = smi(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    done = subprocess.run(
        [sys.executable, "-c", LATE], env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    asking = int(done.stdout)
    wait_for(lambda: not Path(f"/proc/{asking}").exists(), what="its end")
    hanging = (tmp_path / "pid").read_text().strip()
    if hanging:
        wait_for(lambda: not Path(f"/proc/{hanging}").exists(), what="nvidia-smi's end")
