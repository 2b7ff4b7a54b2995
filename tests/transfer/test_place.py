"""A folder that a host fills which may mean harm: names, folders, links, stages and parts."""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from open_files import open_files

from dispatcher.model.errors import CannotCopy, UsageError
from dispatcher.remote.copy import arriving, disk
from dispatcher.remote.copy.disk import STAGE_HERE, open_part
from dispatcher.transfer import dest_dir
from dispatcher.transfer.dest_dir import MOST_DEPTH, SECOND, BadArchive, Place, set_time
from dispatcher.transfer.tars import names_of


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(str(tmp_path / "in" / "n1"), {"a", "b"})
    yield place
    place.close()


def made(place: Place, parts: list[str], kind: str) -> None:
    """Make an empty file, a folder or a link there."""
    if kind == "folder":
        return place.folder(parts, 0o700, 0)
    if kind == "link":
        return place.link(parts, ".")
    fd, name = place.create()
    with open(fd, "wb"):
        return place.finish(fd, name, parts, 0o600, 0)


class FoldingOs:
    """``os`` on a file system to which ``A`` is ``a``, and an accent has one spelling."""

    def __getattr__(self, name: str) -> Any:
        really = getattr(os, name)
        if name not in ("open", "mkdir", "rmdir", "stat", "rename", "unlink", "symlink"):
            return really

        def folded(*words: Any, **how: Any) -> Any:
            if any(key.endswith("dir_fd") for key in how):
                count = {"rename": (0, 1), "symlink": (1,)}.get(name, (0,))
                words = tuple(
                    unicodedata.normalize("NFC", word.casefold()) if at in count else word
                    for at, word in enumerate(words)
                )
            return really(*words, **how)

        return folded


class TestPlace:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("a", ["a"]), ("./a/./x", ["a", "x"]), ("b/...", ["b", "..."]),
            ("a/" + "n" * 255, ["a", "n" * 255]), ("a/" + "é" * 127, ["a", "é" * 127]),
            ("/".join(["a"] * MOST_DEPTH), ["a"] * MOST_DEPTH),
        ],
    )  # fmt: skip
    def test_names_that_lead_inside(self, place: Place, name: str, parts: list[str]) -> None:
        assert place.parts(name) == parts

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("", "not asked for"), ("c/a", "not asked for"), ("/a", "not asked for"),
            ("..", "not asked for"), ("a/..", "a bad name"), ("a//x", "a bad name"),
            ("a/", "a bad name"), ("a/x\0", "a bad name"), ("a/" + "n" * 256, "a bad name"),
            ("a/" + "é" * 128, "a bad name"), ("a/\ud800", "a bad name"),
        ],
    )  # fmt: skip
    def test_names_that_do_not(self, place: Place, name: str, why: str) -> None:
        with pytest.raises(BadArchive, match=why) as caught:
            place.parts(name)
        assert len(str(caught.value)) < 500

    def test_a_name_too_deep_is_no_lie(self, place: Place) -> None:
        with pytest.raises(CannotCopy, match=f"a/': more than {MOST_DEPTH} folders deep") as caught:
            place.parts("/".join(["a"] * (MOST_DEPTH + 1)))
        assert len(str(caught.value)) < 500

    def test_folders_are_entered_or_made(self, tmp_path: Path, place: Place) -> None:
        with pytest.raises(FileNotFoundError, match=f"{tmp_path}/in/n1/a'"):
            place.enter(["a", "x"])
        made = place.enter(["a", "x"], make=True)
        assert place.enter(["a", "x"]) == made
        inner = tmp_path / "in" / "n1" / "a" / "x"
        assert os.path.samestat(os.fstat(made), inner.stat())
        assert inner.stat().st_mode & 0o777 == 0o700
        assert os.path.samestat(os.fstat(place.enter(["a"])), inner.parent.stat())
        assert os.path.samestat(os.fstat(place.enter([])), inner.parent.parent.stat())
        (inner / "file").touch()
        (inner / "link").symlink_to("..")
        for name in ("file", "link"):
            with pytest.raises(NotADirectoryError, match=f"{inner}/{name}'"):
                place.enter(["a", "x", name], make=True)

    def test_modes_and_times_of_folders_are_set_when_all_is_in_them(
        self, tmp_path: Path, place: Place
    ) -> None:
        place.folder(["a"], 0o40500, 7 * SECOND)
        place.folder(["a", "x"], 0o4077, 9 * SECOND)
        fd, name = place.create()
        place.finish(fd, name, ["a", "x", "f"], 0o6755, 5 * SECOND)
        os.close(fd)
        place.settle()
        outer, inner = tmp_path / "in" / "n1" / "a", tmp_path / "in" / "n1" / "a" / "x"
        assert [(p.stat().st_mode & 0o7777, p.stat().st_mtime) for p in (outer, inner)] == [
            (0o700, 7), (0o755, 9),  # less the umask
        ]  # fmt: skip
        found = (inner / "f").stat()
        assert (found.st_mode & 0o7777, found.st_mtime) == (0o755, 5)

    @cases("name", ["a/x/f", "a/x/y/f", "c/x/f", "c/x/log/y/f", "a/log/f"])
    @pytest.mark.parametrize("kind", ["file", "folder", "link"])
    def test_what_is_in_no_folder_that_was_listed(
        self, tmp_path: Path, name: str, kind: str
    ) -> None:
        parts = name.split("/")
        root = tmp_path / "n1"
        with contextlib.closing(Place(str(root), {"a"}, [["*", "*", "log"]])) as place:
            place.folder(["a"], 0o700, 0)
            with pytest.raises(BadArchive, match="in no folder that was listed"):
                made(place, parts, kind)
        assert os.listdir(root) == ["a"]
        assert os.listdir(root / "a") == []

    @pytest.mark.parametrize("kind", ["file", "folder", "link"])
    def test_folders_above_what_wildcards_stand_for_are_made(
        self, tmp_path: Path, kind: str
    ) -> None:
        with contextlib.closing(Place(str(tmp_path), {"a"}, [["*", "*", "log"], ["*"]])) as place:
            for name in ("a", "a/x/log", "c/x/log", "d", "c/y/log"):
                made(place, name.split("/"), kind if "/" in name else "folder")
        assert len(list(tmp_path.glob("*/*/log"))) == 3

    def test_its_stage_goes_with_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "n1"
        before = open_files()
        place = Place(str(folder), {"a"})
        assert len(open_files() - before) == 1
        fds = [place.create() for _ in range(2)]
        (stage,) = os.listdir(folder)
        assert stage.startswith(STAGE_HERE)
        assert (folder / stage).stat().st_mode & 0o777 == 0o700
        os.utime(folder / stage, (1, 1))  # old, and locked
        other = Place(str(folder), {"a"})
        assert os.listdir(folder) == [stage]
        other.close()
        for fd, _ in fds:
            os.close(fd)
        place.close()
        assert os.listdir(folder) == []
        assert open_files() <= before

    def test_a_link_takes_the_place_of_what_was_there(self, tmp_path: Path, place: Place) -> None:
        folder = tmp_path / "in" / "n1"
        (folder / "a").write_text("x")
        place.link(["a"], "b")
        assert os.readlink(folder / "a") == "b"
        place.folder(["b"], 0o700, 0)
        place.link(["b", "x"], "../a")
        assert os.readlink(folder / "b" / "x") == "../a"
        with pytest.raises(IsADirectoryError, match=f"{folder}/b'"):
            place.link(["b"], "a")
        assert place.left_out == []

    @cases(
        ("at", "target", "taken"),
        [
            ("a", "/a", False), ("a", "..", False), ("a", "../n2", False), ("a", "a\0b", False),
            ("a", "no/../../n2", False), ("a", "no/../b", False), ("a", "b/x/../../../n2", False),
            ("a", "b/x/../y", True), ("a", "b/./x//", True), ("a", "b/..", True),
            ("b/x/l", "../../a", True), ("b/x/l", "../../..", False), ("b/x/l", "..", True),
            # chains: what a link leads to has another way back
            ("a", "b/up/../secret", False), ("b/x/l", "../up/../../secret", False),
            ("a", "b/up/b/up/..", False), ("a", "b/up/b", True), ("a", "b/f/../..", False),
        ],
    )  # fmt: skip
    def test_a_link_leads_inside_or_is_left_out(
        self, tmp_path: Path, at: str, target: str, taken: bool
    ) -> None:
        root = tmp_path / str(len(os.listdir(tmp_path)))
        with contextlib.closing(Place(str(root), {"a", "b"})) as place:
            for folder in (["b"], ["b", "x"], ["b", "y"]):
                place.folder(folder, 0o700, 0)
            place.link(["b", "up"], "..")
            fd, name = place.create()
            place.finish(fd, name, ["b", "f"], 0o600, 0)
            os.close(fd)
            why = f"{at!r}: a link that leads outside"
            if taken or "/" in at:
                place.link(at.split("/"), target)
            else:  # it was named itself
                with pytest.raises(CannotCopy, match=f"^{why}$"):
                    place.link([at], target)
        assert place.left_out == ([] if taken or at == "a" else [why])
        assert (root / at).is_symlink() is taken
        if taken:
            assert (root / at).resolve().is_relative_to(root)

    @pytest.mark.parametrize("other", ["A/F", "a/e\u0301"])
    def test_two_names_that_are_one_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
    ) -> None:
        """As macOS and Windows have it; played by turning each name into one of its kind."""
        for module in (disk, arriving, dest_dir):
            monkeypatch.setattr(module, "os", FoldingOs())
        root = tmp_path / "n1"
        for sizes in ((5, 7), (5, 9)):  # a second time finds what the first has left
            with contextlib.closing(Place(str(root), {"a", "A", "\u00e9"})) as place:
                place.folder(["a"], 0o700, 0)
                for name, size in zip(("a/f", "a/\u00e9", other), (5, 5, sizes[1]), strict=True):
                    parts = name.split("/")
                    there = place.status(parts)
                    if there is not None and there.st_size == size:
                        place.keep(there)
                        continue
                    fd, staged = place.create()
                    os.write(fd, bytes(size))
                    place.finish(fd, staged, parts, 0o600, 0)
                    os.close(fd)
                place.link(["a", "F"], "f")
            (clash, link) = place.left_out
            assert clash.startswith(repr(other))
            assert "treats its name as another file's" in link
            assert sorted(p.stat().st_size for p in (root / "a").iterdir()) == [5, 5]
        assert sorted(os.listdir(root)) == ["a"]

    def test_a_few_of_those_left_out_are_named(self, place: Place) -> None:
        for number in range(9):
            place.leave_out(f"{number}" * 99, "why")
        some = [f"{str(number) * 80!r}: why" for number in range(5)]
        assert place.left_out == [*some, "and 4 more"]

    def test_parts_stay_in_the_place_itself(self, tmp_path: Path, place: Place) -> None:
        fd = open_part("p", place.root, make=True)
        assert fd is not None
        place.finish(fd, "p", ["a"], 0o600, 0, part=True)
        os.close(fd)
        assert os.listdir(tmp_path / "in" / "n1") == ["a"]
        place.drop_part("a")
        place.drop_part("a")
        assert os.listdir(tmp_path / "in" / "n1") == []


@cases(
    ("given", "kept"),
    [(5, 5), (-5, 0), (0, 0), (2**33 * SECOND, 2**33), (2**33 * SECOND + SECOND, 2**33)],
)
def test_times_that_make_no_sense_are_not_believed(tmp_path: Path, given: int, kept: int) -> None:
    fd = os.open(tmp_path / "f", os.O_CREAT | os.O_WRONLY)
    set_time(fd, given)
    found = os.fstat(fd)
    os.close(fd)
    assert found.st_mtime_ns == (kept if kept < 2**33 else kept * SECOND)
    assert found.st_atime_ns == found.st_mtime_ns


class TestNames:
    def test_the_last_part_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert names_of(["/x/a", "b/", "."]) == ["a", "b", tmp_path.name]

    @cases(
        ("paths", "why"),
        [
            (["/"], "/: cannot be sent as a whole"),
            (["/x/a", "/y/a"], "/y/a: two sources have that"),
        ],
    )
    def test_what_has_no_name_of_its_own(self, paths: list[str], why: str) -> None:
        with pytest.raises(UsageError, match=why):
            names_of(paths)
