"""Hosts that mean harm: what they may list, send and say, and what comes of it here."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from open_files import open_files
from transport.far_link import FarLink

from dispatcher.bootstrap import payload
from dispatcher.remote.copy import arriving
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.copy_frames import Entry
from dispatcher.remote.protocol.mux import HEADER, Malformed, frame
from dispatcher.transfer import get_files
from dispatcher.transfer.dest_dir import BadArchive
from dispatcher.transfer.get_files import Fetching, HostPaths, Receiving
from dispatcher.transfer.host_copy import HostCopy

LIMIT = 1 << 20


BOTH = (("/x/a", "a"), ("/x/b", "b"))


def fetch(
    folder: Path, said: bytes, cut: int = 100_000, paths: tuple[tuple[str, str], ...] = BOTH
) -> tuple[HostCopy, FarLink]:
    """What becomes of a host that says ``said``, asked for /x/a and /x/b, or ``paths``."""
    group = HostPaths(str(folder / "in" / "n1"), paths)
    fetching = Fetching([(group,)], limit=LIMIT, checksum=False, resume=True)
    wire = FarLink()
    fetching.start(0, wire)
    for at in range(0, len(said), cut):
        fetching.take_output(0, said[at : at + cut])
    fetching.finish(0)
    fetching.close()
    return fetching.copies[0], wire


def offered(*entries: Entry) -> dict[str, Any]:
    """A list in one piece."""
    return {"list": copy_frames.entry_columns(entries)}


def listing(*entries: Entry) -> bytes:
    return payload.PYTHON + copy_frames.message(offered(*entries))


def file(name: str, size: int = 1, kind: str = "f", more: str = "") -> Entry:
    return Entry(f"0/{name}", kind, 0o644, size, 10**9, more)


def sent(data: bytes) -> bytes:
    known = copy_frames.sha256()
    known.update(data)
    pieces = frame(0, copy_frames.DATA, data) if data else b""
    return pieces + frame(0, copy_frames.END, known.digest())


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


LOGS = (("/var/*.log", "*.log"), ("/d/*/out", "out"))


@cases(
    ("entry", "taken"),
    [
        (file("x.log"), True), (file("*.log"), True), (file("n/out"), True), (file("out"), True),
        (file("n/out/deep"), False), (file("x.log/deep"), False), (file(".x.log"), False),
        (file("x.txt"), False), (file("n/other"), False), (file(".n/out"), False),
        (file("../x.log"), False), (file("n/../x.log"), False), (file("x.log/../../y"), False),
        (file("/x.log"), False), (file("n//out"), False), (file("x\0.log"), False),
        (file("n" * 252 + ".log"), False), (file("./../x.log"), False), (file("\udcff/out"), True),
    ],
)  # fmt: skip
def test_what_wildcards_let_a_host_send(tmp_path: Path, entry: Entry, taken: bool) -> None:
    told, wire = fetch(tmp_path, listing(entry) + sent(b"x"), paths=LOGS)
    found = {name for name in names(tmp_path) if not name.startswith("in/n1/")}
    assert found == {"in", "in/n1"}
    assert (told.sent == 1) is taken, told.error
    assert told.hostile is wire.closed is not taken
    assert bool(os.listdir(tmp_path / "in" / "n1")) is taken


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("owner", [0, 1234])
def test_an_equal_file_of_another_user_is_fetched_again(tmp_path: Path, owner: int) -> None:
    """Its owner may have written anything, and set its size and time."""
    there = tmp_path / "in" / "n1" / "a"
    there.parent.mkdir(parents=True)
    there.write_text("HELLO")
    os.utime(there, ns=(10**9, 10**9))
    os.chown(there, owner, -1)
    told, _ = fetch(tmp_path, listing(file("a", 5)) + sent(b"hello"))
    assert (told.sent, told.equal) == ((1, 0) if owner else (0, 1))
    assert there.read_text() == ("hello" if owner else "HELLO")


def test_what_is_honest_comes_whole(tmp_path: Path) -> None:
    said = listing(file("a", 5), file("b", 0, "d"), file("b/l", 0, "l", "../a")) + sent(b"hello")
    told, wire = fetch(tmp_path, said, cut=7)
    assert (told.error, told.sent, told.equal, told.left_out) == (None, 1, 0, [])
    place = tmp_path / "in" / "n1"
    assert (place / "b" / "l").read_text() == "hello"
    assert names(place) == {"a", "b", "b/l"}
    assert not wire.closed


@cases(
    "entries",
    [
        [Entry("0//etc/x", "f", 0o644, 1, 1)],
        [file("../x")],
        [file("/etc/x")],
        [file("a/../../x")],
        [file("c")],
        [file("a//x")],
        [file(".")],
        [file("")],
        [Entry("1/a", "f", 0o644, 1, 1)],
        [Entry("-1/a", "f", 0o644, 1, 1)],
        [Entry("a", "f", 0o644, 1, 1)],
        [file("a/" + "n" * 300)],
        [file("a", -1)],
        [file("a", 0, "l", "b"), file("a/x")],
        [file("a", 0, "d"), file("a/l", 0, "l", ".."), file("a/l/x")],
    ],
)
def test_a_list_that_leads_elsewhere(entries: list[Entry], tmp_path: Path) -> None:
    told, wire = fetch(tmp_path, listing(*entries) + sent(b"x") * len(entries))
    assert told.hostile
    assert told.sent is None
    assert wire.closed
    assert {name for name in names(tmp_path) if not name.startswith("in/n1")} <= {"in"}
    assert not [name for name in names(tmp_path) if ".dispatch" in name]


@cases(
    ("entries", "why"),
    [
        ([file("a/" + "d/" * 70 + "x")], "/d/d/': more than 64 folders deep"),
        ([file("a", LIMIT + 1)], "more than 1 MiB (--max-size)"),
        ([file("a", LIMIT), file("b", LIMIT)], "more than 1 MiB (--max-size)"),
        ([file("a", 10**30)], "more than 1 MiB (--max-size)"),
        ([file("a"), file("a/x")], "/in/n1/a: not a directory"),
        ([file("a", 0, "d"), file("a")], "/in/n1/a: is a directory"),
        ([file("b", 0, "d"), file("b/x", 0, "d")], "/in/n1/b: not a directory"),
        ([file("b")], "/in/n1/b: is a directory"),
        ([file("b", 0, "l", "a")], "/in/n1/b: is a directory"),
    ],
)
def test_what_is_too_much_or_has_no_place_here(
    entries: list[Entry], why: str, tmp_path: Path
) -> None:
    """Of an honest host, too: what stands here may be of another time."""
    place = tmp_path / "in" / "n1"
    place.mkdir(parents=True)
    if "b: not" in why:
        (place / "b").touch()
    elif "b: is" in why:
        (place / "b").mkdir()
    told, wire = fetch(tmp_path, listing(*entries) + sent(b"x") * len(entries))
    assert (told.error or "").endswith(why), told.error
    assert (told.hostile, told.sent) == (False, None)
    assert wire.closed
    assert not [name for name in names(tmp_path) if ".dispatch" in name]


def test_the_name_of_what_cannot_be_read_is_told_as_it_is(tmp_path: Path) -> None:
    said = frame(0, copy_frames.BROKEN, b"/Data/README: permission denied")
    told, _ = fetch(tmp_path, listing(file("a")) + said)
    assert (told.error, told.hostile) == ("/Data/README: permission denied", False)


@pytest.mark.parametrize("worth", [1, 2])
def test_what_cannot_be_read_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    """worth: bytes of a file that comes into a part."""
    monkeypatch.setattr(arriving, "WORTH", worth)
    entries = [
        file("a", 0, "d"), file("a/1"), file("a/2"), file("a/3", 0, "d"),
        file("a/3", 0, "u", "permission denied" + "x" * 900), file("a/4"),
        file("a/l", 0, "l", "4"),
    ]  # fmt: skip
    said = frame(0, copy_frames.BROKEN, b"/x/a/2: permission denied")
    told, _ = fetch(tmp_path, listing(*entries) + sent(b"x") + said + sent(b"y"))
    assert names(tmp_path / "in" / "n1") == {"a", "a/1", "a/3", "a/4", "a/l"}
    assert (tmp_path / "in" / "n1" / "a" / "4").read_text() == "y"
    assert (told.error, told.hostile) == ("2 names could not be read; the rest is here", False)
    assert (told.sent, told.left_out[1]) == (2, "'a/2': permission denied")
    assert told.left_out[0].startswith("'a/3': permission denied")
    assert len(told.left_out[0]) < 300


@pytest.mark.parametrize("call", ["rename", "write", "fchmod"])
def test_our_own_disk_is_told_by_a_path_that_the_user_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    really = os.fchmod

    def refuse(*words: Any, **how: object) -> None:
        if call == "fchmod" and os.path.isdir(words[0]):
            return really(*words)  # of the stage, which goes
        inner = () if call == "write" else ("4b798f3a2c69",)
        raise OSError(errno.EXDEV, "Invalid cross-device link", *inner)

    place = str(tmp_path / "in" / "n1")
    os.makedirs(place)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        told, _ = fetch(tmp_path, listing(file("a")) + sent(b"x"))
    path = place if call == "write" else f"{place}/a"
    assert told.error == f"{path}: invalid cross-device link"


def test_devices_and_links_outside_are_left_out(tmp_path: Path) -> None:
    links = [file("a/l", 0, "l", "/etc/passwd"), file("a/m", 0, "l", "../../n2")]
    tree = [file("a", 0, "d"), file("a/o", 0, "o"), file("a/p", 0, "?"), *links]
    told, _ = fetch(tmp_path, listing(*tree))
    assert (told.error, told.sent, len(told.left_out)) == (None, 0, 4)
    assert names(tmp_path) == {"in", "in/n1", "in/n1/a"}


@cases(
    ("entry", "why"),
    [
        (file("a", 0, "o"), "'a': not a file, folder or link"),
        (file("a", 0, "l", "/etc"), "'a': a link that leads outside"),
        (file("x.log", 0, "o"), None), (file("x.log", 0, "l", "/etc"), None),
    ],
)  # fmt: skip
def test_what_was_named_itself_is_not_left_out(
    tmp_path: Path, entry: Entry, why: str | None
) -> None:
    told, _ = fetch(tmp_path, listing(entry), paths=(*BOTH, *LOGS))
    assert (told.error, told.hostile, len(told.left_out)) == (why, False, int(why is None))
    assert names(tmp_path) == {"in", "in/n1"}


def test_links_that_are_here_are_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "in" / "n1"
    place.mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "file").write_text("precious")
    (place / "a").symlink_to(tmp_path / "victim")
    (place / "b").symlink_to(tmp_path / "file")
    told, _ = fetch(tmp_path, listing(file("a/x")) + sent(b"x"))
    assert told.error == f"{place}/a: not a directory"
    told, _ = fetch(tmp_path, listing(file("a", 0, "d"), file("a/x")) + sent(b"x"))
    assert told.error == f"{place}/a: not a directory"
    fetch(tmp_path, listing(file("b")) + sent(b"x"))
    assert list((tmp_path / "victim").iterdir()) == []
    assert (tmp_path / "file").read_text() == "precious"
    assert (place / "b").read_bytes() == b"x"


def test_the_place_may_be_no_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "in" / "n1").symlink_to(tmp_path / "victim")
    told, _ = fetch(tmp_path, listing(file("a")) + sent(b"x"))
    assert told.error is not None
    assert list((tmp_path / "victim").iterdir()) == []


@cases(
    ("said", "why"),
    [
        (
            frame(0, copy_frames.DATA, b"xx") + frame(0, copy_frames.END, b"?" * 32),
            "more bytes came",
        ),
        (frame(0, copy_frames.DATA, b"x") + frame(0, copy_frames.END, b"?" * 32), "damaged"),
        (frame(0, copy_frames.END, b""), "damaged"),
        (frame(0, copy_frames.VALUE, b"N"), "a frame of kind"),
        (frame(0, copy_frames.BROKEN, b"/x/a: changed\n\x1b[2J"), "changed"),
        (HEADER.pack(0, copy_frames.DATA, 1 << 31), "a frame of"),
        (frame(0, copy_frames.START, b""), "damaged"),
        (frame(0, copy_frames.START, bytes(8)) * 2, "a frame of kind"),
        (frame(0, copy_frames.DATA, b""), "a frame of nothing"),
        (frame(0, copy_frames.HOLE, bytes(8)), "a frame of nothing"),
        (frame(0, copy_frames.HOLE, b"\1"), "a frame of nothing"),
        (frame(0, copy_frames.HOLE, (1 << 20).to_bytes(8, "big")), "a frame of nothing"),
        (frame(0, copy_frames.HOLE, (2).to_bytes(8, "big")), "more bytes came"),
    ],
)
def test_a_file_that_is_not_what_was_listed(said: bytes, why: str, tmp_path: Path) -> None:
    told, _ = fetch(tmp_path, listing(file("a")) + said + frame(0, copy_frames.END, b"?" * 32))
    assert why in (told.error or "")
    assert names(tmp_path) <= {"in", "in/n1"}


@cases(
    "said",
    [
        b"HTTP/1.1 200",
        payload.PYTHON + HEADER.pack(0, copy_frames.VALUE, 0xFFFFFFFF),
        payload.PYTHON + frame(0, copy_frames.VALUE, b"i7;"),
        payload.PYTHON + frame(0, copy_frames.VALUE, b"{}"),
        payload.PYTHON + copy_frames.message({"list": 7}),
        payload.PYTHON + copy_frames.message({"list": {}}),
        payload.PYTHON
        + copy_frames.message({"list": {**copy_frames.entry_columns([file("a")]), "kinds": ""}}),
        payload.PYTHON
        + copy_frames.message({"list": {**copy_frames.entry_columns([file("a")]), "sizes": "x"}}),
        payload.PYTHON
        + copy_frames.message({"list": {**copy_frames.entry_columns([file("a")]), "kinds": 10**9}}),
        payload.PYTHON + copy_frames.message({}),
    ],
)
def test_what_makes_no_sense_is_an_error(said: bytes, tmp_path: Path) -> None:
    told, wire = fetch(tmp_path, said)
    assert told.error
    assert wire.closed
    assert names(tmp_path) <= {"in", "in/n1"}


def test_a_list_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_files, "_IN_MEMORY", 100)
    tree = [file("a", 0, "d"), *(file(f"a/{n}", n % 2) for n in range(900)), file("b", 2)]
    pieces = list(copy_frames.pieces(tree))
    assert [piece["more"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    said = b"".join(map(copy_frames.message, pieces))
    data = b"".join(sent(b"x" * (n % 2)) for n in range(900)) + sent(b"hi")
    told, _ = fetch(tmp_path, payload.PYTHON + said + data)
    assert (told.error, told.sent, told.bytes) == (None, 901, 452)
    assert len(os.listdir(tmp_path / "in" / "n1" / "a")) == 900
    assert names(tmp_path / "in" / "n1") >= {"a/0", "a/899", "b"}
    empty = [file("a", 0, "d"), *(file(f"a/{n}") for n in range(1, 900, 2))]
    for entry in empty:
        entry.mtime = 10**9
    said = b"".join(map(copy_frames.message, copy_frames.pieces(empty)))
    told, _ = fetch(tmp_path, payload.PYTHON + said)
    assert (told.error, told.sent, told.equal) == (None, 0, 450)


@cases(
    ("pieces", "error"),
    [
        ([{**offered(file("a", 0, "d")), "more": True}] * 11, "more than 10 files"),
        ([{**offered(), "more": True}], "a list that never ends"),
        ([{**offered(file("a")), "more": True}, {"list": 7}], "no list"),
        ([{**offered(*[file("a/" + "n" * 200)] * 9), "junk": "x" * 200_000}], "a frame of"),
    ],
)
def test_one_list_cannot_fill_our_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[Any], error: str
) -> None:
    monkeypatch.setattr(get_files, "MOST_MEMBERS", 10)
    told, wire = fetch(tmp_path, payload.PYTHON + b"".join(map(copy_frames.message, pieces)))
    assert error in (told.error or "")
    assert told.hostile is ("files" not in error)
    assert wire.closed


def test_what_a_long_list_takes(tmp_path: Path) -> None:
    """A list as long as any may be, each file large enough for a part of its own."""

    def piece(at: int) -> dict[str, Any]:
        deep = "/".join(["d" * 40] * 20)
        return {
            **offered(*(file(f"a/{deep}/{n}", 1 << 20) for n in range(at, at + 100))),
            "more": True,
        }

    group = HostPaths(str(tmp_path / "n1"), (("/a", "a"),))
    before = open_files()
    tracemalloc.start()
    one = Receiving([group], limit=1 << 60, checksum=False, resume=True)
    with contextlib.closing(one):
        for at in range(0, 2000, 100):
            one.offer(piece(at))
        one.needs()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
        assert one.sent == 2000
        one.take(copy_frames.DATA, b"x")
        assert len(open_files() - before) < 9


def test_an_odd_name_is_a_name(tmp_path: Path) -> None:
    fetch(tmp_path, listing(file("a", 0, "d"), file("a/\n\x1b[2J\udcff")) + sent(b"x"))
    assert os.listdir(os.fsencode(tmp_path / "in" / "n1" / "a")) == [b"\n\x1b[2J\xff"]


def test_a_file_goes_on_where_it_stopped(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    group = HostPaths(str(tmp_path / "n1"), (("/a", "a"),))
    entry = file("a", len(data))

    def receiving(resume: bool = True) -> Receiving:
        one = Receiving([group], limit=2 << 20, checksum=False, resume=resume)
        assert not one.offer(offered(entry))
        return one

    first = receiving()
    assert first.needs() == {"need": b"\1", "start": "", "seen": ""}
    first.take(copy_frames.DATA, data[:300_000])
    first.close()
    (part,) = os.listdir(tmp_path / "n1")
    second = receiving()
    assert second.needs()["start"] == "0 300000"
    second.take(copy_frames.START, (300_000).to_bytes(8, "big"))
    second.take(copy_frames.DATA, data[300_000:])
    known = copy_frames.sha256()
    known.update(data)
    second.take(copy_frames.END, known.digest())
    second.settle()
    second.close()
    assert (second.found, second.bytes) == (300_000, len(data) - 300_000)
    assert os.listdir(tmp_path / "n1") == ["a"]
    assert (tmp_path / "n1" / "a").read_bytes() == data
    (tmp_path / "n1" / "a").rename(tmp_path / "n1" / part)  # as if interrupted
    third = receiving(resume=False)
    assert third.needs()["start"] == ""
    third.close()
    assert os.listdir(tmp_path / "n1") == []


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 700))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    folder = tmp_path_factory.mktemp("any")
    whole = bytearray(listing(file("a", 300), file("b", 0, "l", "a")) + sent(b"y" * 300))
    whole[at : at + len(noise)] = noise
    told, _ = fetch(folder, bytes(whole))
    assert {name for name in names(folder) if not name.startswith("in/n1")} <= {"in"}
    if told.sent == 1:
        assert told.error is None


def test_bounds_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_files, "MOST_MEMBERS", 2)
    told, _ = fetch(tmp_path, listing(file("a", 0, "d"), file("b", 0, "d")))
    assert told.error is None
    told, _ = fetch(tmp_path, listing(file("a", LIMIT), file("b", 1)))
    assert told.error == "more than 1 MiB (--max-size)"
    told, _ = fetch(tmp_path, listing(file("a", LIMIT + 1), file("b", -1)))
    assert told.error == "a member of negative size"


@cases("number", ["0123456789", "٣", "", "x", "2"])
def test_a_group_that_was_not_asked_for(tmp_path: Path, number: str) -> None:
    groups = [HostPaths(str(tmp_path / place), (("/a", "a"),)) for place in ("n1", "n2")]
    receiving = Receiving(groups, limit=LIMIT, checksum=False, resume=True)
    with contextlib.closing(receiving), pytest.raises(BadArchive, match="not asked for"):
        receiving.offer(offered(Entry(f"{number}/a", "f", 0o644, 1, 1)))


def test_places_of_many_ranks_are_open_one_by_one(tmp_path: Path) -> None:
    ranks = range(50)
    groups = [HostPaths(str(tmp_path / f"rank-{rank}"), BOTH) for rank in ranks]
    tree = (("a", "d", 0), ("a/f", "f", 1), ("a/l", "l", 0), ("a/o", "o", 0), ("b", "f", 1))
    listed = [
        Entry(f"{rank}/{name}", kind, 0o755, size, 7 * 10**9, "f" if kind == "l" else "")
        for rank in ranks
        for name, kind, size in tree
    ]
    before = open_files()
    one = Receiving(groups, limit=LIMIT, checksum=False, resume=True)
    with contextlib.closing(one):
        assert not one.offer(offered(*listed))
        one.needs()
        while not one.done:
            one.take(copy_frames.DATA, b"x")
            assert len(open_files() - before) < 7
            one.take(copy_frames.END, hashlib.sha256(b"x").digest())
        one.settle()
        assert len(one.left_out) == 50
    assert open_files() <= before
    for rank in ranks:
        place = tmp_path / f"rank-{rank}"
        assert names(place) == {"a", "a/f", "a/l", "b"}
        assert (place / "a").stat().st_mtime == 7


def test_a_list_that_goes_back_to_another_rank(tmp_path: Path) -> None:
    groups = [HostPaths(str(tmp_path / place), BOTH) for place in ("n1", "n2")]
    one = Receiving(groups, limit=LIMIT, checksum=False, resume=True)
    listed = [Entry(f"{rank}/a", "f", 0o644, 1, 1) for rank in (0, 1)]
    with contextlib.closing(one):
        assert one.offer({**offered(*listed), "more": True})
        with pytest.raises(Malformed, match="a list that goes back"):
            one.offer(offered(file("b")))
