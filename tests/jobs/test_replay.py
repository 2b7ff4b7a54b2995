"""attach --from-start: files up to the call, the stream from there on, and no seam between."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.cli.jobs import attach
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Counts, Entry, Sink
from dispatcher.jobs.control_server import StreamPositions
from dispatcher.jobs.registry import Job, Process
from dispatcher.model.paths import Rotation
from dispatcher.output.files.rank_logs import MergedLog, RankFiles
from dispatcher.plan.job.placement import FIRST

#: of lines that are read, put aside, or known to a caller by their end only; smaller here than
#: in life, see ``small``
LONG, HEAD = 16, 12
#: of what stands before a line in that log, and its beginning
MERGED_HEAD = 64

PARTS = [b"\n", b"a", b"0123456789", b"x" * MERGED_HEAD]
Chunk = tuple[int, int, bytes]
CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, FIRST]),
        st.sampled_from([1, 2]),
        st.lists(st.sampled_from([b"\n", b"a", b"0123456789", b"x" * MERGED_HEAD]), min_size=1).map(
            b"".join
        ),
    ),
    max_size=12,
)


class Heard(Sink):
    """What a screen got, by stream, with what it was told to be missing."""

    def __init__(self) -> None:
        self.got: dict[tuple[int, int], bytes] = defaultdict(bytes)
        self.missing: dict[tuple[int, int], int] = defaultdict(int)
        self.said: list[str] = []

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.got[rank, stream] += data

    def gap(self, missing: Counts) -> None:
        for key, count in missing.items():
            self.missing[key] += count

    def say(self, line: str) -> None:
        self.said.append(line)


def job_of(folder: Path) -> Job:
    return Job(
        folder=folder, run_id="20260131-142501-k3f9x2", node="here", launcher=Process(1, 1, ""),
        program=(), hosts=(), ranks=2, began=0.0, logs=folder, detached=True, reach={}, end=None,
    )  # fmt: skip


def merged(folder: Path, rotation: Rotation) -> Sink:
    return MergedLog(folder / "merged.log", lambda _: None, rotation)


def by_rank(folder: Path, rotation: Rotation) -> Sink:
    return RankFiles(folder, lambda _: None, rotation)


@pytest.fixture(scope="module", autouse=True)
def small() -> object:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("files.rank_logs.PART", "text.lines.BLOCK", "files.log_reader.CHUNK"):
            patch.setattr(f"dispatcher.output.{name}", LONG)
        patch.setattr("dispatcher.output.files.log_reader.LONG", MERGED_HEAD)
        patch.setattr("dispatcher.jobs.control_server.HEAD", HEAD)
        patch.setattr(attach, "BEHIND", 0.0)
        yield


def run(
    make: Callable[[Path, Rotation], Sink],
    chunks: list[Chunk],
    called: int,
    looked: int,
    rotation: Rotation,
    restarts: frozenset[int] = frozenset(),
) -> tuple[Heard, dict[tuple[int, int], bytes]]:
    """A run whose caller comes before chunk ``called`` and reads the files before ``looked``.

    restarts: chunks before which the ranks are started again. What was heard, what was written.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        files, positions = make(folder, rotation), StreamPositions(make is merged)
        heard = Heard()
        wrote: dict[tuple[int, int], bytes] = defaultdict(bytes)
        hello: dict[str, Any] = {}
        rests: dict[tuple[int, int], bytes] = {}
        live: list[tuple[int, int, bytes]] = []
        for number in range(len(chunks) + 1):
            if number in restarts:
                placed = ev.RanksPlaced(2, "", 0, sorted(restarts).index(number) + 1)
                files.event(Entry(0, 0.0, placed))
                positions.placed(2)
            if number == called:
                hello = positions.hello()
                rests = {(rank, stream): rest for rank, stream, rest in positions.rests()}
            if number == max(called, looked) and (chunks[:number] or make is merged):
                attach.replay(job_of(folder), heard, hello, rests)
                for chunk in live:
                    heard.output(*chunk)
                live.clear()
            if number == len(chunks):
                break
            rank, stream, data = chunks[number]
            files.output(rank, stream, data)
            positions.output(rank, stream, data)
            wrote[rank, stream] += data
            if number >= called:
                live.append((rank, stream, data))
                if number >= max(called, looked):
                    heard.output(*live.pop())
        files.close()
        return heard, wrote


@pytest.mark.parametrize("make", [by_rank, merged])
@examples(60)
@given(
    chunks=CHUNKS,
    called=st.integers(0, 12),
    looked=st.integers(0, 12),
    size=st.none() | st.integers(20, 120),
    restarts=st.frozensets(st.integers(1, 12), max_size=2),
)
def test_nothing_twice_and_nothing_left_out(
    make: Callable[[Path, Rotation], Sink],
    chunks: list[Chunk],
    called: int,
    looked: int,
    size: int | None,
    restarts: frozenset[int],
) -> None:
    called, looked = min(called, len(chunks)), min(looked, len(chunks))
    heard, wrote = run(make, chunks, called, looked, Rotation(size), restarts)
    for key, data in wrote.items():  # of a line that is merged later its last bytes are known
        got, missing = heard.got[key], heard.missing[key]
        if make is by_rank:
            assert not missing
            if restarts:  # a line may have been ended there
                assert len(data) <= len(got) <= len(data) + len(restarts)
                got, data = got.replace(b"\n", b""), data.replace(b"\n", b"")
        assert len(got) + missing == len(data)
        head, tail = data[: len(got)], data[len(data) - len(got) :]
        cut = next((n for n in range(len(got)) if got[n] != head[n]), len(got))
        assert got[cut:] == tail[cut:]
        assert b"\n" not in data[cut : cut + missing]


@examples(60)
@given(chunks=CHUNKS, called=st.integers(0, 12), looked=st.integers(0, 12))
def test_what_was_removed_is_counted(chunks: list[Chunk], called: int, looked: int) -> None:
    called, looked = min(called, len(chunks)), min(looked, len(chunks))
    heard, wrote = run(by_rank, chunks, called, looked, Rotation(20, keep=1))
    for key, data in wrote.items():
        got = heard.got[key]
        assert len(got) + heard.missing[key] == len(data)
        assert data.endswith(got)


def test_a_merged_log_without_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can count from where it begins; the time of arrival makes the seam."""
    now = iter(float(n) for n in range(10_000))
    monkeypatch.setattr(time, "time", lambda: next(now))
    monkeypatch.setattr(StreamPositions.__init__, "__defaults__", (False, time.time))
    monkeypatch.setattr(MergedLog.__init__, "__defaults__", (None, time.time))
    chunks = [(n % 2, 1, b"line %d\nhalf" % n) for n in range(40)]
    heard, wrote = run(merged, chunks, 30, 35, Rotation(400, keep=1))
    assert "removed" in heard.said[0]
    for key, data in wrote.items():
        assert heard.got[key]
        assert data.endswith(heard.got[key])


def test_files_that_stay_behind_are_told(tmp_path: Path) -> None:
    (tmp_path / "rank-00000.out").write_bytes(b"abc")
    heard = Heard()
    attach.replay(job_of(tmp_path), heard, {"passed": [[0, 1, 5], [1, 2, 7]]}, {})
    assert heard.got == {(0, 1): b"abc"}
    assert heard.missing == {(0, 1): 2, (1, 2): 7}
