"""What is sent, listed before any host is touched; who passes it on; what hosts may want of it."""

from __future__ import annotations

import hashlib
import itertools
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from open_files import open_files

from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.copy_frames import END, Entry, frames
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.remote.protocol.packing import unpack
from dispatcher.transfer.ignore_rules import Rules
from dispatcher.transfer.put_files import (
    MANY_BYTES,
    MANY_HOSTS,
    SMALL,
    Branch,
    Sources,
    branches_of,
    instructions,
    needs_of,
    pays,
)


class TestSources:
    def sources(self, tmp_path: Path, *paths: str, checksum: bool = False) -> Sources:
        names = tuple(str(tmp_path / path) for path in paths)
        return Sources([("/x/", names)], checksum=checksum)

    def tree(self, tmp_path: Path) -> dict[str, bytes]:
        """Small files and large ones, in the order of their names."""
        (tmp_path / "t").mkdir()
        sizes = {"a": 5, "b": SMALL, "c": SMALL + 1, "d": 0, "e": 7, "f": 3 * SMALL}
        data = {name: os.urandom(size) for name, size in sizes.items()}
        for name, content in data.items():
            (tmp_path / "t" / name).write_bytes(content)
        (tmp_path / "t" / "g").symlink_to("a")
        return data

    def given(self, sources: Sources, needed: list[int], starts: Any = None) -> dict[int, bytes]:
        """What comes of each file ``needed``; its digest is right."""
        come = frames(1 << 20)
        found, bodies, left = {}, [b""], list(needed)
        for piece in sources.pieces(needed, starts or {}):
            for _, kind, body in come.feed(piece):
                if kind == END:
                    found[left.pop(0)] = b"".join(bodies)
                    bodies = []
                else:
                    bodies.append(body)
        assert left == []
        return found

    def test_any_of_the_files_in_their_order(self, tmp_path: Path) -> None:
        data = self.tree(tmp_path)
        sources = self.sources(tmp_path, "t")
        assert [e.path for e in sources.entries] == ["0/t", *(f"0/t/{name}" for name in "abcdefg")]
        every = dict(enumerate(data.values(), 1))
        for needed in ([1, 2, 3, 4, 5, 6], [1], [1, 2], [2, 4, 5], [3], [1, 3, 6], [4, 5, 6], []):
            assert self.given(sources, needed) == {index: every[index] for index in needed}
        assert sources.size == sum(map(len, data.values()))
        sources.close()

    def test_small_files_are_read_before_and_large_ones_as_they_are_sent(
        self, tmp_path: Path
    ) -> None:
        data = self.tree(tmp_path)
        sources = self.sources(tmp_path, "t")
        for name in "abde":
            (tmp_path / "t" / name).unlink()
        assert self.given(sources, [1, 2, 4, 5])[1] == data["a"]
        (tmp_path / "t" / "c").write_bytes(b"other")
        come = frames(1 << 20)
        pieces = [kind for p in sources.pieces([3], {}) for _, kind, _ in come.feed(p)]
        assert pieces[-1] == copy_frames.BROKEN
        sources.close()

    def test_what_is_there_of_a_large_one_is_not_sent(self, tmp_path: Path) -> None:
        data = self.tree(tmp_path)["f"]
        sources = self.sources(tmp_path, "t")
        start = (SMALL, hashlib.sha256(data[:SMALL]).hexdigest())
        (rest,) = self.given(sources, [6], {6: start}).values()
        assert rest == SMALL.to_bytes(8, "big") + data[SMALL:]
        sources.close()

    def test_what_is_read_for_many_is_hashed_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashed: list[int] = []

        class Counted:
            def __init__(self) -> None:
                self._known = hashlib.sha256()
                self.digest = self._known.digest

            def update(self, data: bytes) -> None:
                hashed.append(len(data))
                self._known.update(data)

        data = self.tree(tmp_path)["f"]
        sources = self.sources(tmp_path, "t")
        monkeypatch.setattr(copy_frames, "sha256", Counted)
        many = [sources.pieces([6], {}) for _ in range(3)]
        come: list[list[bytes]] = [[] for _ in many]
        for turn in (0, 0, 1, 2, 2, 2, 2, 1, 0, 1, 0, 1):  # whoever is ahead hashes
            come[turn] += list(itertools.islice(many[turn], 1))
        for pieces in come:
            *bodies, end = [body for p in pieces for _, _, body in frames(1 << 20).feed(p)]
            assert b"".join(bodies) == data
            assert end == hashlib.sha256(data).digest()
        assert sum(hashed) == len(data)
        sources.close()

    @cases("checksum", [False, True])
    def test_digests_if_they_are_wanted(self, tmp_path: Path, checksum: bool) -> None:
        data = self.tree(tmp_path)
        sources = self.sources(tmp_path, "t", checksum=checksum)
        for entry, name in zip(sources.entries[1:], "abcdefg", strict=True):
            if name == "g":
                assert entry.more == "a"
            else:
                known = hashlib.sha256(data[name]).hexdigest()
                assert entry.more == (known if checksum else "")
        sources.close()

    def test_several_groups_are_told_apart_by_their_numbers(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).write_text(name)
        groups = [(f"/{name}/", (str(tmp_path / name),)) for name in "ab"]
        sources = Sources(groups, checksum=False)
        assert [entry.path for entry in sources.entries] == ["0/a", "1/b"]
        theirs = [("/there/", groups[0][1]), ("/here", groups[1][1])]
        (order,) = frames(1 << 20).feed(
            sources.order(theirs, checksum=True, resume=False, more={"extra": 1})
        )
        told = unpack(order[2])
        assert told.pop("list")["paths"] == "0/a\0" + "1/b\0"
        assert told == {
            "do": "put", "checksum": True, "resume": False, "extra": 1,
            "groups": [["/there/", ["a"]], ["/here", ["b"]]],
        }  # fmt: skip
        sources.close()

    @cases(
        ("path", "why"),
        [("absent", "no such file or directory"), ("fifo", "not a file, a folder or a link")],
    )
    @cases("checksum", [False, True])
    def test_what_cannot_be_sent_is_said_before(
        self, tmp_path: Path, path: str, why: str, checksum: bool
    ) -> None:
        os.mkfifo(tmp_path / "fifo")
        before = open_files()
        with pytest.raises(UsageError, match=f"^{tmp_path}/{path}: {why}$"):
            self.sources(tmp_path, path, checksum=checksum)
        assert open_files() <= before

    def test_what_copies_have_left_in_a_tree_is_not_sent(self, tmp_path: Path) -> None:
        left = [f".dispatch-{what}-12" for what in ("put", "get", "part")]
        for name in left:
            (tmp_path / "t" / name).mkdir(parents=True)
            (tmp_path / "t" / name / "f").touch()
        (tmp_path / "t" / "sub").mkdir()
        (tmp_path / "t" / "sub" / left[2]).touch()
        (tmp_path / left[2]).touch()
        sources = self.sources(tmp_path, "t", left[2])  # by its own name it is
        assert [entry.path for entry in sources.entries] == ["0/t", "0/t/sub", f"0/{left[2]}"]
        assert (sources.ignored, sources.odd) == (0, [])
        sources.close()

    @cases(
        ("rules", "sent"),
        [
            ((), "t t/a t/b.o t/sub t/sub/a t/sub/c.o"), (("*.o",), "t t/a t/sub t/sub/a"),
            (("a",), "t t/b.o t/sub t/sub/c.o"),
            (("/a", "/sub"), "t t/a t/b.o t/sub t/sub/a t/sub/c.o"),
            (("t/a",), "t t/b.o t/sub t/sub/a t/sub/c.o"), (("sub/",), "t t/a t/b.o"),
            (("t/**/a", "!t/a"), "t t/a t/b.o t/sub t/sub/c.o"), (("*", "!t", "!*.o"), "t t/b.o"),
            (("*.o", "!/t/sub/c.o"), "t t/a t/sub t/sub/a t/sub/c.o"),
        ],
    )  # fmt: skip
    def test_what_is_ignored_is_not_sent_and_counted(
        self, tmp_path: Path, rules: tuple[str, ...], sent: str
    ) -> None:
        (tmp_path / "t" / "sub").mkdir(parents=True)
        for name in ("a", "b.o", "sub/a", "sub/c.o"):
            (tmp_path / "t" / name).write_text(name)
        ignore = Rules(*(rule.encode() for rule in rules))
        one = Sources([("/x/", (str(tmp_path / "t"),))], checksum=True, ignore=ignore)
        assert " ".join(entry.path[2:] for entry in one.entries) == sent
        assert bool(one.ignored) is (len(one.entries) < 6)
        tar = one.tar()
        tar.seek(0)
        with tarfile.open(fileobj=tar) as archive:
            assert " ".join(archive.getnames()) == sent
        one.close()

    @cases(
        ("mode", "file", "folder"),
        [(0o640, 0o640, 0o750), (0o400, 0o400, 0o500), (0o4755, 0o4755, 0o4755), (0, 0, 0)],
    )
    def test_a_mode_for_all(self, tmp_path: Path, mode: int, file: int, folder: int) -> None:
        self.tree(tmp_path)
        one = Sources([("/x/", (str(tmp_path / "t"),))], checksum=False, mode=mode)
        assert [one.entries[0].mode, one.entries[1].mode] == [folder, file]
        assert one.entries[7].mode == 0o777  # a link has none of its own
        one.close()

    @cases("size", [5, SMALL + 1])
    def test_what_cannot_be_read_is_said_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        (tmp_path / "f").write_bytes(bytes(size))
        really = os.open

        def refused(path: Any, *words: Any, **more: Any) -> int:
            if path == str(tmp_path / "f"):
                raise PermissionError(13, "Permission denied", path)
            return really(path, *words, **more)

        monkeypatch.setattr(os, "open", refused)
        with pytest.raises(UsageError, match=f"^{tmp_path}/f: permission denied$"):
            self.sources(tmp_path, "f")
        with pytest.raises(UsageError, match=f"^{tmp_path}/f: permission denied$"):
            self.sources(tmp_path, "f", checksum=True)

    def test_a_current_folder_that_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        with pytest.raises(UsageError, match=r"^the current folder: no such file or directory$"):
            Sources([("/to/", ("x",))], checksum=False)

    def test_a_tar_is_made_once(self, tmp_path: Path) -> None:
        self.tree(tmp_path)
        sources = self.sources(tmp_path, "t")
        tar = sources.tar()
        assert sources.tar() is tar
        tar.seek(0)
        with tarfile.open(fileobj=tar) as archive:
            assert archive.getnames() == ["t", *(f"t/{name}" for name in "abcdefg")]
        sources.close()
        assert tar.closed


class TestTree:
    def test_when_it_pays(self) -> None:
        each = MANY_BYTES // MANY_HOSTS
        assert pays(MANY_HOSTS, each)
        assert not pays(MANY_HOSTS - 1, MANY_BYTES)
        assert not pays(MANY_HOSTS, each - 1)

    def test_branches_have_a_head_each(self) -> None:
        assert branches_of([3, 4, 5, 9, 7], 2) == [
            Branch(3, (4,), 2), Branch(5, (9, 7), 2),
        ]  # fmt: skip
        assert branches_of([3], 8) == [Branch(3, (), 8)]

    def test_what_a_head_is_told(self) -> None:
        hosts = [Host("n0"), Host("n1", user="u", port=2222), Host("n2")]
        groups = [((f"/x{n}/", ("/home/me/f",)),) for n in range(3)]
        told = instructions(Branch(0, (1, 2), 5), hosts, groups)
        (first, argv, where), (second, other, _) = told["below"]
        assert (first, second, told["branches"], told["marker"]) == (1, 2, 5, SYNC)
        assert where == [["/x1/", ["f"]]]
        assert argv[:2] == other[:2] == ["ssh", "-Tax"]  # nobody's agent nor screen
        assert argv[argv.index("-l") : argv.index("--") + 2] == [
            "-l", "u", "-p", "2222", "--", "n1",
        ]  # fmt: skip
        assert other[other.index("--") + 1] == "n2"
        assert not {"-l", "-p"} & set(other)
        assert b"exit 1" in told["opening"]


def entries(*kinds: str) -> list[Entry]:
    return [Entry(f"0/{n}", kind, 0o644, 7, 1) for n, kind in enumerate(kinds)]


@cases(
    ("answer", "needed", "starts"),
    [
        ({"need": b"\0\0\0", "start": "", "seen": ""}, [], {}),
        ({"need": b"\1\0\1", "start": "", "seen": ""}, [0, 2], {}),
        (
            {"need": b"\1\0\7", "start": "2 7 0 0", "seen": "a b"},
            [0, 2],
            {2: (7, "a"), 0: (0, "b")},
        ),
    ],
)
def test_what_a_host_may_want(
    answer: dict[str, Any], needed: list[int], starts: dict[int, tuple[int, str]]
) -> None:
    assert needs_of(answer, entries("f", "d", "f")) == (needed, starts)


@cases(
    "answer",
    [
        {"need": b"\1\1\0", "start": "", "seen": ""},
        {"need": b"\1\0", "start": "", "seen": ""},
        {"need": b"\1\0\0\0", "start": "", "seen": ""},
        {"need": "101", "start": "", "seen": ""},
        {"need": b"\1\0\0", "start": "0 8", "seen": "a"},
        {"need": b"\1\0\0", "start": "0 -1", "seen": "a"},
        {"need": b"\1\0\0", "start": "2 1", "seen": "a"},
        {"need": b"\1\0\0", "start": "0", "seen": "a"},
    ],
)
def test_what_it_may_not_want(answer: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        needs_of(answer, entries("f", "d", "f"))
