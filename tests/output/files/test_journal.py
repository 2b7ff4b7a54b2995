"""The journal: every event once, in order, and what cannot be read named by its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases import cases

from dispatcher.core.events import codec
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.errors import DispatchError
from dispatcher.output.files import journal
from dispatcher.output.files.journal import Journal, JournalState, append_entry, read

ENTRIES = [
    Entry(1, 0.0, ev.NodeConnecting(0)), Entry(2, 0.5, ev.RankSpawned(0, 1, 77)),
    Entry(3, 1.5, ev.RunFinished(0, "ok")),
]  # fmt: skip


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path, said = tmp_path / "dispatch.jsonl", list[str]()
    writing = Journal(path, said.append)
    for entry in ENTRIES[:2]:
        writing.event(entry)
    assert list(read(path)) == ENTRIES[:2]  # nothing waits in memory
    writing.close()
    append_entry(path, ENTRIES[2])
    assert list(read(path)) == ENTRIES
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().count(b"\n") == 3
    assert said == []
    with pytest.raises(FileExistsError):
        Journal(path, said.append)


def test_a_disk_that_refuses_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    writing = Journal(tmp_path / "x", said.append)
    monkeypatch.setattr(journal, "write_all", refuse)
    for entry in ENTRIES:
        writing.event(entry)
    writing.close()
    assert said == [f"{tmp_path / 'x'}: journal cannot be written: no space left on device"]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dispatch.jsonl"
    writing = Journal(path, list[str]().append)
    writing.event(ENTRIES[0])

    def fill(fd: int, data: bytes) -> None:
        os.write(fd, data[:9])
        refuse(fd, data)

    with monkeypatch.context() as full:
        full.setattr(journal, "write_all", fill)
        writing.event(ENTRIES[1])
        writing.close()
        with pytest.raises(OSError):
            append_entry(path, ENTRIES[2])
    append_entry(path, ENTRIES[2])  # there is room again
    assert list(read(path)) == [ENTRIES[0], ENTRIES[2]]


def test_a_line_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.jsonl"
    path.write_bytes(codec.encode(ENTRIES[0]) + codec.encode(ENTRIES[1])[:-1])
    assert list(read(path, may_break_off=True)) == ENTRIES[:1]


def refuse(fd: int, data: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_added_later_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    for name in ("link", "absent"):
        with pytest.raises(OSError):
            append_entry(tmp_path / name, ENTRIES[0])
    assert (tmp_path / "real").read_bytes() == b""


@cases("bad", [b"noise\n", b"{}\n", b'{"seq": 1\n', b"x" * (codec.LINE_LIMIT + 9)])
def test_what_is_no_event_is_named_by_its_line(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "dispatch.jsonl"
    path.write_bytes(codec.encode(ENTRIES[0]) + codec.encode(ENTRIES[1]) + bad)
    reading = read(path)
    assert [next(reading), next(reading)] == ENTRIES[:2]
    with pytest.raises(DispatchError) as told:
        next(reading)
    assert told.value.message.startswith(f"{path}:3: ")


def test_a_journal_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DispatchError) as told:
        list(read(tmp_path / "absent"))
    assert told.value.message == f"{tmp_path / 'absent'}: no such file or directory"


def line(event: ev.Event) -> bytes:
    return codec.encode(Entry(1, 0.0, event))


def test_where_ranks_are_as_far_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.jsonl"
    state = JournalState(path, ["n1", "n2", "n3"])
    assert list(state.news()) == []  # there is no journal yet
    placed = ev.RanksPlaced(4, "n1", 1, parts=(("a\x1b", 4),))
    half = line(ev.RankSpawned(1, 3, 7))
    path.write_bytes(
        line(placed) + line(ev.RankSpawned(0, 0, 7)) + b'"name": "rank.spawned" of no JSON\n'
        + line(ev.RankSpawned(1, 2, 7)) + line(ev.NodeConnecting(2))
        + line(ev.OutputEnded(0, 0, 1, 5, 5)) + half[:40]
    )  # fmt: skip
    assert [entry.event.name for entry in state.news()] == [
        "ranks.placed", "rank.spawned", "rank.spawned", "output.ended",
    ]  # fmt: skip
    assert (state.home(2), state.host_of(2), state.host_of(3)) == ((1, 0), "n2", "?")
    assert state.program_of(2) == "a\\x1b"
    with path.open("ab") as file:
        file.write(half[40:] + line(ev.RankSpawned(9, 1, 7)))
    assert len(list(state.news())) == 2
    assert (state.home(3), state.host_of(1)) == ((1, 1), "?")
    with path.open("ab") as file:
        file.write(line(ev.RanksPlaced(4, "n1", 1, 1)) + line(ev.RankSpawned(2, 2, 7)))
    list(state.news())
    assert (state.home(2), state.host_of(2), state.host_of(0)) == ((2, 0), "n3", "?")
