"""What of a list is needed, and where it goes: beside what stands there already."""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from devices import make_device
from open_files import open_files

from dispatcher.remote.copy import disk
from dispatcher.remote.copy.arriving import WORTH, OpenFolder
from dispatcher.remote.copy.disk import PART, STAGE, NotTaken
from dispatcher.remote.copy.receiver import Receiver, owner_of
from dispatcher.remote.protocol.copy_frames import BROKEN, DATA, END, START, Entry
from dispatcher.remote.protocol.mux import Malformed

NS = 1_000_000_007


def file(path: str, data: bytes = b"new", mode: int = 0o640, more: str = "") -> Entry:
    return Entry(f"0/{path}", "f", mode, len(data), NS, more)


def folder(path: str, mode: int = 0o750) -> Entry:
    return Entry(f"0/{path}", "d", mode, 0, NS)


def link(path: str, target: str) -> Entry:
    return Entry(f"0/{path}", "l", 0o777, 0, NS, target)


def receiver(dest: str, entries: list[Entry], **how: Any) -> Receiver:
    names = sorted({entry.path.split("/")[1] for entry in entries})
    checksum, resume = how.get("checksum", False), how.get("resume", True)
    more = how.get("owner", ""), how.get("alone", False), how.get("fixed", False)
    return Receiver(entries, [[dest, names]], checksum, resume, *more)


def put(dest: str, entries: list[Entry], data: bytes = b"new", **how: Any) -> dict[str, Any]:
    """All of ``entries`` to ``dest``, each file with ``data``."""
    one = receiver(dest, entries, **how)
    try:
        complete(one, data)
        one.commit()
    finally:
        one.close(keep=False)
    return one.report()


def complete(one: Receiver, data: bytes = b"new") -> None:
    """Let it have all files that it needs."""
    one.needs()
    while not one.done:
        one.take(DATA, data)
        one.take(END, hashlib.sha256(data).digest())


def names(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


class TestDestination:
    """dest as the user wrote it, and where one file ``f`` goes then."""

    @cases(
        ("dest", "place"),
        [("new", "new"), ("there", "there/f"), ("new/", "new/f"), ("a/b/new", "a/b/new"),
         ("a/b/", "a/b/f"), ("old", "old")],
    )  # fmt: skip
    def test_a_file(self, tmp_path: Path, dest: str, place: str) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "old").write_text("x")
        put(f"{tmp_path}/{dest}", [file("f")])
        assert (tmp_path / place).read_bytes() == b"new"
        assert not [name for name in names(tmp_path) if ".dispatch" in name]

    def test_several_go_to_a_folder(self, tmp_path: Path) -> None:
        put(f"{tmp_path}/new", [file("f"), file("g")])
        assert names(tmp_path) == ["new", "new/f", "new/g"]

    def test_a_name_without_a_folder_is_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        put("new", [file("f")])
        assert names(tmp_path) == ["new"]

    @cases(("umask", "mode"), [(0, 0o775), (0o002, 0o775), (0o022, 0o755), (0o077, 0o700)])
    def test_folders_on_the_way_are_open_to_nobody_else(
        self, tmp_path: Path, umask: int, mode: int
    ) -> None:
        before = os.umask(umask)
        try:
            put(f"{tmp_path}/a/b/", [file("f")])
        finally:
            assert os.umask(before) == umask
        assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")} == {mode}

    def test_groups_have_a_destination_each(self, tmp_path: Path) -> None:
        entries = [Entry(f"{n}/f", "f", 0o640, 3, NS) for n in (0, 1)]
        groups = [[f"{tmp_path}/{n}/", ["f"]] for n in (0, 1)]
        one = Receiver(entries, groups, checksum=False, resume=True)
        assert one.needs()["need"] == b"\1\1"
        for data in (b"one", b"two"):
            one.take(DATA, data)
            one.take(END, hashlib.sha256(data).digest())
        one.commit()
        one.close(keep=False)
        assert [(tmp_path / str(n) / "f").read_bytes() for n in (0, 1)] == [b"one", b"two"]


class TestList:
    """One that no sender makes is refused before anything is made of it."""

    @cases(
        "entries",
        [
            [file("../f")], [file("..")], [file(".")], [file("")], [file("/f")],
            [file("d/f")], [folder("d"), file("d/../f")], [folder("d"), file("d/.")],
            [folder("d"), file("d/")], [folder("d"), folder("d/.."), file("d/../f")],
            [link("d", "/"), file("d/f")], [link("d", "/"), folder("d"), file("d/f")],
            [folder("d"), file("d/f"), link("d", "/")], [file("f"), file("f/g")],
            [file("f", mode=-1)], [file("f", mode=0o10000)], [link("l", "a\0b")],
            [Entry("0/f", "?", 0, 0, 0)], [Entry("0/f", "f", 0, -1, 0)],
            [Entry("0/f", "f", 0, 0, 1 << 66)], [Entry("1/f", "f", 0, 0, 0)],
            [Entry("-1/f", "f", 0, 0, 0)], [Entry("\u0661/f", "f", 0, 0, 0)],
            [Entry("/f", "f", 0, 0, 0)], [Entry("000000000/f", "f", 0, 0, 0)],
        ],
    )  # fmt: skip
    def test_is_refused(self, tmp_path: Path, entries: list[Entry]) -> None:
        with pytest.raises(NotTaken, match=r"^a list of files that cannot be$"):
            Receiver(entries, [[f"{tmp_path}/new/", ["d", "f", "l"]]], False, True)
        assert names(tmp_path) == []

    def test_names_that_the_order_does_not_have(self, tmp_path: Path) -> None:
        with pytest.raises(NotTaken):
            Receiver([file("g")], [[f"{tmp_path}/", ["f"]]], False, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
class TestWay:
    """Whom the folders and links on the way to a destination belong to: 4711 is another user."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """links of ours and of another, folders open to all, with and without the sticky bit."""
        for name, owner, mode in [
            ("real", 0, 0o755), ("theirs", 4711, 0o755), ("theirs/in", 0, 0o755),
            ("tmp", 0, 0o1777), ("tmp/theirs", 4711, 0o755), ("tmp/theirs/in", 0, 0o755),
            ("tmp/ours", 0, 0o755), ("open", 0, 0o777), ("open/in", 0, 0o755),
        ]:  # fmt: skip
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(mode)
            os.chown(tmp_path / name, owner, -1)
        for name, target, owner in [
            ("link", "real", 0), ("chain", f"{tmp_path}/bad", 0), ("bad", "real/", 4711),
            ("up", "theirs/../real", 0), ("loop", "loop", 0),
        ]:  # fmt: skip
            (tmp_path / name).symlink_to(target)
            os.lchown(tmp_path / name, owner, -1)
        return tmp_path

    @cases(
        ("dest", "why", "alone"),
        [
            ("real", "", ""), ("link/new/", "", ""), ("up/new/", "", ""), ("theirs/in", "", ""),
            ("bad", "bad: belongs to 4711: such", "bad: belongs to 4711: such"),
            ("bad/new/", "bad: belongs to 4711: such", "bad: belongs to 4711: such"),
            ("./chain/in/", "bad: belongs to 4711: such", "bad: belongs to 4711: such"),
            ("loop/", "loop/: Too many levels", "loop/: Too many levels"),
            ("theirs", "", "theirs: belongs to 4711: its owner could exchange"),
            ("theirs/new/", "", ""),  # root has given them that folder
            ("tmp/theirs/in", "", "tmp/theirs: belongs to 4711: its owner could exchange"),
            ("tmp/ours", "", ""), ("tmp/new/", "", ""),
            ("open/in", "", "open: all users may exchange what is in it"),
        ],
    )  # fmt: skip
    def test_is_followed_or_refused(self, place: Path, dest: str, why: str, alone: str) -> None:
        for expected, how in ((why, False), (alone, True)):
            before = names(place)
            try:
                put(f"{place}/{dest}", [file("f")], alone=how)
            except (NotTaken, OSError) as error:
                found = str(error) if isinstance(error, NotTaken) else f"{dest}: {error.strerror}"
                assert expected
                assert expected in found
                assert names(place) == before
            else:
                assert not expected

    def test_a_folder_of_the_tree_that_another_has_made(self, place: Path) -> None:
        entries = [folder("theirs"), file("theirs/f")]
        with pytest.raises(NotTaken, match="theirs: belongs to 4711: its owner"):
            put(f"{place}/tmp/", entries, alone=True)
        assert put(f"{place}/tmp/", entries)["sent"] == 1


ME = pwd.getpwuid(os.getuid()).pw_name
OWN, GROUP = pwd.getpwnam(ME).pw_gid, grp.getgrgid(0)


class TestOwner:
    @cases(
        ("text", "ids"),
        [
            ("", (-1, -1)), (ME, (os.getuid(), -1)), (f"{ME}:", (os.getuid(), OWN)),
            (f":{GROUP.gr_name}", (-1, 0)), (f"{ME}:{GROUP.gr_name}", (os.getuid(), 0)),
            ("12345", (12345, -1)), ("12345:6", (12345, 6)), ("12345:", (12345, -1)),
            (":7", (-1, 7)),
        ],
    )  # fmt: skip
    def test_who_is_meant(self, text: str, ids: tuple[int, int]) -> None:
        assert owner_of(text) == ids

    @cases(
        ("text", "why"),
        [("nobody-is-called-so", "no such user"), (f"{ME}:no-group-is", "no such group")],
    )
    def test_whom_nobody_knows(self, tmp_path: Path, text: str, why: str) -> None:
        with pytest.raises(NotTaken, match=f"^--owner {text}: {why}$"):
            receiver(f"{tmp_path}/", [file("f")], owner=text)
        assert names(tmp_path) == []

    def test_who_may_not_give_files_away(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(path: object, uid: int, gid: int) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "fchown", refused)
        with pytest.raises(NotTaken, match=r"^--owner: only root may give"):
            put(f"{tmp_path}/", [file("f")], owner="12345")
        assert names(tmp_path) == []

    def test_what_is_made_and_what_is_equal_gets_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[tuple[str, int, int]] = []

        def change(path: Any, uid: int, gid: int, **how: Any) -> None:
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            else:
                assert not how["follow_symlinks"]
                path = os.path.join(os.readlink(f"/proc/self/fd/{how['dir_fd']}"), path)
            kind = "d" if os.path.isdir(path) else "l" if os.path.islink(path) else "f"
            given.append((kind, uid, gid))

        monkeypatch.setattr(os, "fchown", change)
        monkeypatch.setattr(os, "chown", change)
        entries = [folder("d"), file("d/f"), link("d/l", "f")]
        put(f"{tmp_path}/", entries, owner="12345:678")
        assert given == [("f", 12345, 678), ("l", 12345, 678), ("d", 12345, 678)]
        given.clear()
        (tmp_path / "d" / "f").chmod(0o4640)
        put(f"{tmp_path}/", entries, owner="12345:678")  # a folder that is there stays as it is
        assert given == [("f", 12345, 678), ("l", 12345, 678)]
        assert (tmp_path / "d" / "f").stat().st_mode & 0o7777 == 0o640
        given.clear()
        put(f"{tmp_path}/", [folder("d"), file("d/f")], owner=ME)
        assert given == []

    def test_what_is_copied_to_another_file_system_gets_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[tuple[str, int, int]] = []
        really = os.rename

        def change(fd: int, uid: int, gid: int) -> None:
            given.append((os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")), uid, gid))

        def over(name: str, target: str, **folders: int) -> None:
            if folders["src_dir_fd"] != folders["dst_dir_fd"]:
                raise OSError(errno.EXDEV, "cross-device")
            really(name, target, **folders)

        monkeypatch.setattr(os, "fchown", change)
        monkeypatch.setattr(os, "rename", over)
        put(f"{tmp_path}/", [file("f")], owner="12345:678")
        assert given[1:] == [(str(tmp_path), 12345, 678)]


@pytest.fixture
def somewhere() -> Iterator[Path]:
    """A folder of an ordinary user, who we are until the test ends."""
    with tempfile.TemporaryDirectory(prefix="copied-", dir="/tmp") as place:
        ordinary = os.getuid() or 65534
        os.chown(place, ordinary, -1)
        os.seteuid(ordinary)
        try:
            yield Path(place)
        finally:
            os.seteuid(os.getuid())


@cases("swap", [os.symlink, os.link])
def test_what_took_the_name_meanwhile_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path, Path], None]
) -> None:
    """Others may write to the folder, and we may be root."""
    place, other = tmp_path / "f", tmp_path / "other"
    for path in (place, other):
        path.write_bytes(b"new")
        path.chmod(0o600)
        os.utime(path, ns=(NS, NS))

    def swapped(there: int, here: int) -> bool:
        place.unlink()
        swap(other, place)
        return True

    monkeypatch.setattr(disk, "same_time", swapped)
    one = receiver(f"{tmp_path}/", [file("f")], fixed=True)
    with pytest.raises((OSError, NotTaken)):
        one.needs()
    one.close(keep=False)
    assert other.stat().st_mode & 0o7777 == 0o600


def test_one_that_we_may_not_open_is_sent_anew(
    somewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name the mode might go to what has taken it meanwhile."""
    place, other = somewhere / "f", somewhere / "other"
    for path in (place, other):
        path.write_bytes(b"new")
        path.chmod(0)
        os.utime(path, ns=(NS, NS))

    really = OpenFolder.read_again

    def late(group: OpenFolder, parts: list[str], about: os.stat_result) -> int:
        try:
            return really(group, parts, about)
        finally:
            place.unlink()
            place.symlink_to(other)

    monkeypatch.setattr(OpenFolder, "read_again", late)
    assert put(f"{somewhere}/", [file("f")], fixed=True)["sent"] == 1
    assert (place.lstat().st_mode & 0o7777, other.lstat().st_mode & 0o7777) == (0o640, 0)
    assert put(f"{somewhere}/", [file("other", mode=0)])["equal"] == 1


def test_a_folder_that_may_not_be_written_to_is_told_as_it_is(somewhere: Path) -> None:
    somewhere.chmod(0o500)
    one = receiver(f"{somewhere}/", [file("f")])
    one.needs()
    with pytest.raises(PermissionError) as refused:
        one.take(DATA, b"new")
    one.close(keep=False)  # of nothing that was made
    assert refused.value.filename == str(somewhere)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
def test_a_file_that_may_not_be_replaced_is_told_by_its_name(somewhere: Path) -> None:
    os.seteuid(0)
    somewhere.chmod(0o1777)  # as /tmp, with a file of another user
    os.chown(somewhere, 0, -1)
    (somewhere / "f").write_bytes(b"bad")
    os.seteuid(65534)
    with pytest.raises(PermissionError) as refused:
        put(f"{somewhere}/", [file("f")])
    assert refused.value.filename == f"{somewhere}/f"


class TestNeeded:
    @cases(
        ("data", "mtime", "checksum", "needed"),
        [
            (b"new", NS, False, False), (b"old", NS, False, False),  # size and time are enough
            (b"new", NS + 1, False, True), (b"older", NS, False, True), (b"no", NS, False, True),
            (b"new", 5, True, False), (b"old", NS, True, True), (b"older", NS, True, True),
        ],
    )  # fmt: skip
    def test_by_size_and_time_or_by_contents(
        self, tmp_path: Path, data: bytes, mtime: int, checksum: bool, needed: bool
    ) -> None:
        place = tmp_path / "f"
        place.write_bytes(data)
        place.chmod(0o604)
        os.utime(place, ns=(mtime, mtime))
        entry = file("f", more=hashlib.sha256(b"new").hexdigest())
        before = open_files()
        one = receiver(f"{tmp_path}/", [entry], checksum=checksum, fixed=checksum)
        assert one.needs()["need"] == bytes([needed])
        one.close(keep=False)
        assert not open_files() - before
        found = place.stat()
        if not needed:
            mode = 0o640 if checksum else 0o604  # its own, unless modes are given
            assert (found.st_mode & 0o7777, found.st_mtime_ns) == (mode, NS)
        assert place.read_bytes() == data

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
    @cases(
        ("owner", "mine", "data", "how", "sent"),
        [
            (4711, 0, b"bad", {}, 1), (4711, 0, b"new", {}, 0),
            (4711, 0, b"new", {"alone": True}, 1), (4711, 65534, b"new", {}, 1),
            (4711, 65534, b"new", {"checksum": True}, 1), (0, 65534, b"new", {"checksum": True}, 1),
            (0, 65534, b"old", {}, 0), (65534, 65534, b"old", {}, 0),
            (4711, 0, b"old", {"owner": "4711"}, 0),
        ],
    )  # fmt: skip
    def test_a_file_of_another_user_is_not_equal_by_its_time(
        self, somewhere: Path, owner: int, mine: int, data: bytes, how: dict[str, Any], sent: int
    ) -> None:
        """mine: who copies. Only root compares the contents: others could not set its mode."""
        os.seteuid(0)
        place, known = somewhere / "f", hashlib.sha256(b"new").hexdigest()
        place.write_bytes(data)
        place.chmod(0o640)
        os.utime(place, ns=(NS, NS))
        os.chown(place, owner, -1)
        os.chown(somewhere, mine, -1)
        os.seteuid(mine)
        one = receiver(f"{somewhere}/", [file("f", more=known if "checksum" in how else "")], **how)
        is_offered = known in one.needs()["seen"]
        if not (one.done or is_offered):
            one.take(DATA, b"new")
        if not one.done:
            one.take(END, bytes.fromhex(known))
        one.close(keep=False)
        assert one.report()["sent"] == sent

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
    @cases(
        ("there", "entry", "how", "found"),
        [
            ((12, 34, 0o600), 0o644, {}, (12, 34, 0o600)),
            ((12, 34, 0o4711), 0o644, {}, (12, 34, 0o711)),
            ((12, 34, 0o640), 0o755, {}, (12, 34, 0o750)),
            ((12, 34, 0o600), 0o644, {"fixed": True}, (12, 34, 0o644)),
            ((12, 34, 0o600), 0o644, {"owner": "56"}, (56, 34, 0o600)),
            ((12, 34, 0o600), 0o644, {"alone": True}, (0, 0, 0o644)),
            ((0, 34, 0o660), 0o644, {"place": 0o1777}, (0, 34, 0o660)),
            ((12, 34, 0o666), 0o644, {"place": 0o1777}, (0, 0, 0o644)),
            ((65534, 34, 0o600), 0o644, {"me": 65534}, (65534, 0, 0o600)),
            ((12, 34, 0o666), 0o644, {"me": 65534}, (65534, 0, 0o644)),
        ],
    )  # fmt: skip
    def test_a_file_gets_owner_and_mode_of_the_one_that_it_replaces(
        self, tmp_path: Path, there: tuple[int, int, int], entry: int, how: dict[str, Any],
        found: tuple[int, int, int],
    ) -> None:  # fmt: skip
        """But for those of a file that another user may have put in our way."""
        place, me = tmp_path / "to" / "f", how.get("me", 0)
        place.parent.mkdir()
        place.parent.chmod(how.get("place", 0o755))
        place.write_bytes(b"old one")
        os.chown(place, *there[:2])
        place.chmod(there[2])
        os.chown(place.parent, me, -1)
        before = os.getcwd()
        os.chdir(place.parent)
        os.seteuid(me)
        try:
            put("./", [file("f", mode=entry), file("new", mode=0o631)], **how)
        finally:
            os.seteuid(0)
            os.chdir(before)
        about, new = place.stat(), (place.parent / "new").stat()
        assert (about.st_uid, about.st_gid, about.st_mode & 0o7777) == found
        assert (new.st_uid, new.st_mode & 0o7777) == (56 if "owner" in how else me, 0o631)
        assert place.read_bytes() == b"new"

    @cases("kind", ["link", "fifo"])
    def test_what_is_no_file_is_replaced(self, tmp_path: Path, kind: str) -> None:
        place = tmp_path / "f"
        if kind == "link":
            (tmp_path / "other").write_text("kept")
            place.symlink_to("other")
        else:
            os.mkfifo(place)
        assert put(f"{tmp_path}/", [file("f")])["sent"] == 1
        assert not place.is_symlink()
        assert place.read_bytes() == b"new"
        if kind == "link":
            assert (tmp_path / "other").read_text() == "kept"

    def test_a_link_to_a_folder_may_lead_to_another(self, tmp_path: Path) -> None:
        for name in ("v1", "v2"):
            (tmp_path / name).mkdir()
        (tmp_path / "now").symlink_to("v1")
        put(f"{tmp_path}/", [link("now", "v2")])
        assert os.readlink(tmp_path / "now") == "v2"
        assert names(tmp_path) == ["now", "v1", "v2"]

    @cases(
        ("there", "entries", "why"),
        [
            ("folder", [file("t")], "t: is a directory"),
            ("folder", [link("t", "x")], "t: is a directory"),
            ("file", [folder("t")], "t: is not a folder"),
            ("device", [file("t")], "t: is a device"),
            ("device", [link("t", "x")], "t: is a device"),
            ("device", [folder("t")], "t: is not a folder"),
        ],
    )
    def test_what_has_no_place_is_refused_before_anything_comes(
        self, tmp_path: Path, there: str, entries: list[Entry], why: str
    ) -> None:
        if there == "device":
            make_device(tmp_path / "t")
        else:
            (tmp_path / "t").mkdir() if there == "folder" else (tmp_path / "t").touch()
        one = receiver(f"{tmp_path}/", entries)
        with pytest.raises(NotTaken, match=f"^{tmp_path}/{why}$"):
            one.needs()
        one.close(keep=False)

    def test_only_what_is_missing_in_a_tree(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        for name in ("same", "other"):
            (tmp_path / "t" / name).write_bytes(b"new")
            os.utime(tmp_path / "t" / name, ns=(NS, NS + (name == "other")))
        entries = [folder("t"), file("t/new"), file("t/other"), file("t/same")]
        report = put(f"{tmp_path}/", entries)
        assert report == {"sent": 2, "equal": 1, "bytes": 6, "found": 0}
        assert names(tmp_path) == ["t", "t/new", "t/other", "t/same"]

    def test_a_tree_that_is_new_is_not_looked_at_file_by_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[str] = []
        really = os.stat

        def stat(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
            assert not follow_symlinks
            looked.append(name)
            return really(name, dir_fd=dir_fd, follow_symlinks=False)

        one = receiver(
            f"{tmp_path}/", [folder("t"), *(file(f"t/{n}") for n in range(5)), file("u")]
        )
        monkeypatch.setattr(os, "stat", stat)
        assert one.needs()["need"] == b"\0" + b"\1" * 6
        monkeypatch.undo()
        one.close(keep=False)
        assert looked == ["t", "u"]

    def test_parts_only_of_large_files(self, tmp_path: Path) -> None:
        entries = [Entry(f"0/{n}", "f", 0o640, WORTH - 1 + n, NS) for n in (0, 1)]
        one = receiver(f"{tmp_path}/", entries)
        one.needs()
        assert os.listdir(tmp_path) == []  # opened when its turn comes
        one.take(DATA, bytes(WORTH - 1))
        one.take(END, hashlib.sha256(bytes(WORTH - 1)).digest())
        one.take(START, bytes(8))
        assert sum(name.startswith(PART) for name in os.listdir(tmp_path)) == 1
        one.close(keep=True)
        assert os.listdir(tmp_path) == []  # an empty one is worth nothing


class TestArriving:
    def test_more_files_than_were_asked_for(self, tmp_path: Path) -> None:
        one = receiver(f"{tmp_path}/", [file("f", b"")])
        one.needs()
        one.take(END, hashlib.sha256(b"").digest())
        assert one.done
        with pytest.raises(Malformed, match="more files came than were asked for"):
            one.take(DATA, b"x")
        one.close(keep=False)

    def test_why_the_other_end_cannot_go_on(self, tmp_path: Path) -> None:
        one = receiver(f"{tmp_path}/", [file("f")])
        one.needs()
        with pytest.raises(NotTaken, match=r"^/x/f: changed \udcff$"):
            one.take(BROKEN, b"/x/f: changed \xff")
        with pytest.raises(Malformed, match="a frame of kind 99"):
            one.take(99, b"")
        one.close(keep=False)
        assert os.listdir(tmp_path) == []

    @cases(("data", "digest"), [(b"ne", b"ne"), (b"new", b"old"), (b"old", b"old")])
    def test_what_is_not_what_was_listed(self, tmp_path: Path, data: bytes, digest: bytes) -> None:
        known = hashlib.sha256(b"new").hexdigest()
        one = receiver(f"{tmp_path}/", [file("f", more=known)])
        one.needs()
        one.take(DATA, data)
        with pytest.raises(NotTaken, match="0/f: came damaged"):
            one.take(END, hashlib.sha256(digest).digest())
        one.close(keep=True)
        assert os.listdir(tmp_path) == []

    def test_what_may_be_passed_on_of_a_part(self, tmp_path: Path) -> None:
        data = bytes(WORTH)
        entries = [file("a", data), file("b", data)]
        first = receiver(f"{tmp_path}/", entries)
        first.needs()
        first.take(DATA, data[:1000])
        first.close(keep=True)
        one = receiver(f"{tmp_path}/", entries)
        assert one.needs()["start"] == "0 1000"
        assert one.available(0) == -1  # who knows whether it is of this file
        one.take(START, (1000).to_bytes(8, "big"))
        assert (one.available(0), one.available(1)) == (1000, -1)
        path, size = one.source(0)
        assert (os.path.getsize(path), size) == (1000, WORTH)
        one.take(DATA, data[1000:])
        one.take(END, hashlib.sha256(data).digest())
        assert (one.available(0), one.available(1)) == (WORTH, -1)
        assert os.path.samefile(one.source(0)[0], path)  # whom it is passed on to reads on
        assert one.source(1) == ("", WORTH)
        one.take(START, bytes(8))
        assert one.available(1) == 0
        one.close(keep=False)
        assert os.listdir(tmp_path) == []

    @cases("commits", [True, False])
    def test_a_large_file_that_is_whole_costs_no_descriptor(
        self, tmp_path: Path, commits: bool
    ) -> None:
        data = bytes(WORTH)
        one = receiver(f"{tmp_path}/", [folder("t"), *(file(f"t/{n}", data) for n in range(9))])
        one.needs()
        before = open_files()
        while not one.done:
            one.take(DATA, data)
            one.take(END, hashlib.sha256(data).digest())
        assert len(open_files() - before) == 1  # the stage
        if commits:
            one.commit()
        one.close(keep=False)
        assert names(tmp_path) == (["t", *(f"t/{n}" for n in range(9))] if commits else [])

    def test_what_was_not_needed_is_where_it_stands(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "f").write_bytes(b"new")
        os.utime(tmp_path / "t" / "f", ns=(NS, NS))
        one = receiver(f"{tmp_path}/", [folder("t"), file("t/f")])
        one.needs()
        assert one.available(1) == 3
        assert one.source(1) == (f"{tmp_path}/t/f", 3)
        one.close(keep=False)

    def test_what_was_found_of_a_part_is_reported(self, tmp_path: Path) -> None:
        data = bytes(WORTH)
        first = receiver(f"{tmp_path}/", [file("a", data)])
        first.needs()
        first.take(DATA, data[:1000])
        first.close(keep=True)
        one = receiver(f"{tmp_path}/", [file("a", data)])
        one.needs()
        assert one.now.path == "0/a"
        one.take(START, (1000).to_bytes(8, "big"))
        one.take(DATA, data[1000:])
        one.take(END, hashlib.sha256(data).digest())
        one.commit()
        one.close(keep=False)
        assert one.report() == {"sent": 1, "equal": 0, "bytes": WORTH - 1000, "found": 1000}
        assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o640
        assert (tmp_path / "a").stat().st_mtime_ns == NS


class TestNames:
    def test_modes_and_times_of_a_new_tree(self, tmp_path: Path) -> None:
        entries = [
            folder("t", 0o500),
            folder("t/in", 0o755),
            file("t/in/f", mode=0o4511),
            file("t/none", mode=0),
        ]
        put(f"{tmp_path}/", entries)
        tree = tmp_path / "t"
        found = [(p.stat().st_mode & 0o7777, p.stat().st_mtime_ns) for p in (
            tree, tree / "in", tree / "in" / "f", tree / "none")]  # fmt: skip
        assert found == [(0o500, NS), (0o755, NS), (0o4511, NS), (0, NS)]

    def test_links_that_lead_elsewhere_are_led_anew(self, tmp_path: Path) -> None:
        (tmp_path / "same").symlink_to("x")
        (tmp_path / "other").symlink_to("y")
        before = (tmp_path / "same").lstat().st_ino
        put(f"{tmp_path}/", [link("same", "x"), link("other", "x"), link("new", "x")])
        assert {name: os.readlink(tmp_path / name) for name in os.listdir(tmp_path)} == {
            "same": "x", "other": "x", "new": "x",
        }  # fmt: skip
        assert (tmp_path / "same").lstat().st_ino == before

    def test_a_folder_that_is_there_keeps_its_mode(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir(0o711)
        put(f"{tmp_path}/", [folder("t", 0o700), file("t/f")])
        assert (tmp_path / "t").stat().st_mode & 0o777 == 0o711
        assert (tmp_path / "t" / "f").exists()

    def test_a_new_folder_in_one_that_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        put(f"{tmp_path}/", [folder("t"), folder("t/in", 0o500), file("t/in/f"), link("t/l", "in")])
        assert names(tmp_path) == ["t", "t/in", "t/in/f", "t/l"]
        assert (tmp_path / "t" / "in").stat().st_mode & 0o777 == 0o500

    def test_a_folder_that_was_sent_without_write_permission_is_written_to_again(
        self, somewhere: Path
    ) -> None:
        entries = [folder("t", 0o500), folder("t/in", 0o555), file("t/in/a")]
        put(f"{somewhere}/", entries)
        tree = somewhere / "t"
        put(f"{somewhere}/", [*entries, file("t/in/b"), folder("t/new", 0o500), file("t/new/c")])
        assert names(tree) == ["in", "in/a", "in/b", "new", "new/c"]
        modes = [path.stat().st_mode & 0o777 for path in (tree, tree / "in", tree / "new")]
        assert modes == [0o500, 0o555, 0o500]

    def test_its_mode_comes_back_also_when_that_fails(self, somewhere: Path) -> None:
        tree = somewhere / "t"
        tree.mkdir()
        tree.chmod(0o500)
        one = receiver(f"{somewhere}/", [folder("t"), file("t/a"), file("t/b")])
        complete(one)
        tree.chmod(0o700)
        (tree / "b").mkdir()
        tree.chmod(0o500)
        with pytest.raises(NotTaken, match=f"^{tree}/b: is a directory$"):
            one.commit()
        one.close(keep=False)
        assert tree.stat().st_mode & 0o777 == 0o500
        assert names(tree) == ["a", "b"]

    @cases("deep", [False, True])
    def test_a_link_in_the_place_of_a_folder_is_replaced(self, tmp_path: Path, deep: bool) -> None:
        """It may be of an earlier copy, and lead out of the destination; also to what is equal."""
        dest, other, above = tmp_path / "dest", tmp_path / "other", "t/" if deep else ""
        (other / "in").mkdir(parents=True)
        (other / "in" / "f").write_bytes(b"new")
        os.utime(other / "in" / "f", ns=(NS, NS))
        (other / "in" / "l").symlink_to("f")
        folders = [folder("t")] if deep else []
        put(f"{dest}/", [*folders, link(f"{above}data", "../" * (1 + deep) + "other")])
        inner = [folder("data"), folder("data/in"), file("data/in/f"), link("data/in/l", "f")]
        for one in inner:
            one.path = f"0/{above}{one.path[2:]}"
        before = names(other)
        for sent in (1, 0):
            assert put(f"{dest}/", [*folders, *inner])["sent"] == sent
            assert not (dest / above / "data").is_symlink()
            assert names(dest / above / "data") == names(other) == before
            assert (dest / above / "data" / "in").stat().st_mode & 0o777 == 0o750

    def test_a_large_file_of_a_tree_goes_with_it(self, tmp_path: Path) -> None:
        data = os.urandom(WORTH)
        put(f"{tmp_path}/", [folder("t"), folder("t/in"), file("t/in/f", data)], data)
        assert (tmp_path / "t" / "in" / "f").read_bytes() == data
        assert names(tmp_path) == ["t", "t/in", "t/in/f"]

    def test_a_new_tree_gets_its_name_in_one_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named: list[str] = []
        really = os.rename

        def rename(name: str, to: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            if STAGE not in os.readlink(f"/proc/self/fd/{dst_dir_fd}"):
                named.append(to)
            really(name, to, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        monkeypatch.setattr(os, "rename", rename)
        (tmp_path / "t").mkdir()
        tree = [folder("t/new"), file("t/new/f"), folder("t/new/in"), link("t/new/in/l", "x")]
        put(f"{tmp_path}/", [folder("t"), file("t/a"), *tree, file("t/z")])
        assert named == ["a", "new", "z"]
        assert names(tmp_path / "t") == ["a", "new", "new/f", "new/in", "new/in/l", "z"]

    def test_what_comes_to_a_name_between_the_list_and_the_end(self, tmp_path: Path) -> None:
        ways: list[Callable[[Path], object]] = [Path.mkdir, make_device]
        for name, make, why in zip("fl", ways, ("a directory", "a device"), strict=True):
            place = tmp_path / name / "t"
            place.mkdir(parents=True)
            one = receiver(f"{tmp_path}/{name}/", [folder("t"), file("t/f"), link("t/l", "x")])
            complete(one)
            make(place / name)
            with pytest.raises(NotTaken, match=f"^{place}/{name}: is {why}$"):
                one.commit()
            one.close(keep=False)

    def test_a_tree_that_another_copy_has_just_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        really = os.rename

        def late(name: str, to: str, **folders: int) -> None:
            if to == "t":
                (tmp_path / "t" / "in").mkdir(parents=True)
                (tmp_path / "t" / "in" / "other").touch()
            really(name, to, **folders)

        monkeypatch.setattr(os, "rename", late)
        inner = [folder("t/in", 0o500), file("t/in/f"), folder("t/new", 0o500), file("t/new/f")]
        put(f"{tmp_path}/", [folder("t", 0o500), *inner, link("t/l", "x"), file("u")])
        assert names(tmp_path) == [
            "t", "t/in", "t/in/f", "t/in/other", "t/l", "t/new", "t/new/f", "u",
        ]  # fmt: skip
        modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("t", "t/in", "t/new")]
        assert modes == [0o755, 0o755, 0o500]


class TestExchanged:
    """Names that others have exchanged meanwhile: they may write to the folder."""

    @pytest.mark.parametrize("name", ["", "/t", "/t/in"])
    @pytest.mark.parametrize("step", [(OpenFolder, "read_again"), (Receiver, "commit")])
    def test_a_folder_that_becomes_a_link_leads_nowhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: tuple[Any, str]
    ) -> None:
        other, dest = tmp_path / "other", f"{tmp_path}/dest"
        for path in [Path(f"{top}/t/{inner}") for top in (other, dest) for inner in ("f", "in/f")]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"old")
            path.chmod(0o600)
            os.utime(path, ns=(NS, NS))
        before = [(path, path.stat()) for path in sorted(other.rglob("*"))]
        really = getattr(*step)

        def late(*args: Any) -> Any:
            if not os.path.islink(dest + name):
                os.rename(dest + name, tmp_path / "aside")
                os.symlink(f"{other}{name}", dest + name)
            return really(*args)

        monkeypatch.setattr(*step, late)
        inner = [folder("t"), file("t/f"), folder("t/in"), file("t/in/f"), file("t/in/g")]
        with suppress(OSError, NotTaken):
            put(f"{dest}/", inner, fixed=True)
        assert (tmp_path / "aside").exists()
        assert [(path, path.stat()) for path in sorted(other.rglob("*"))] == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
    def test_a_stage_that_another_user_has_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its owner could exchange the files in it for links to ours."""
        really = os.mkdir

        def late(name: str, mode: int = 0o777, **folder: int) -> None:
            really(name, mode, **folder)
            if name.startswith(STAGE):
                os.chown(tmp_path / name, 4711, -1)

        monkeypatch.setattr(os, "mkdir", late)
        with pytest.raises(PermissionError, match="another user's folder"):
            put(f"{tmp_path}/", [file("f")])
        (stage,) = tmp_path.iterdir()  # not ours to remove
        assert (stage.stat().st_uid, os.listdir(stage)) == (4711, [])

    def test_a_part_whose_name_leads_elsewhere(self, tmp_path: Path) -> None:
        data, other = bytes(WORTH), tmp_path / "other"
        other.write_bytes(b"old")
        one = receiver(f"{tmp_path}/dest/", [file("f", data)])
        one.needs()
        one.take(DATA, data)
        (part,) = (tmp_path / "dest").iterdir()
        part.unlink()
        part.symlink_to(other)
        with pytest.raises(NotTaken, match="came damaged"):
            one.take(END, hashlib.sha256(data).digest())
        one.close(keep=False)
        assert names(tmp_path / "dest") == []

    def test_a_link_on_the_way_to_it_that_becomes_anothers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was checked is what is followed: the link that was opened, not its name."""
        (tmp_path / "real").mkdir()
        (tmp_path / "bad").mkdir()
        (tmp_path / "way").symlink_to("real")
        really = disk.check_owner

        def late(place: str, about: os.stat_result, why: str) -> None:
            really(place, about, why)
            (tmp_path / "way").unlink()
            (tmp_path / "way").symlink_to("bad")

        monkeypatch.setattr(disk, "check_owner", late)
        put(f"{tmp_path}/way/", [file("f")])
        assert (os.listdir(tmp_path / "real"), os.listdir(tmp_path / "bad")) == (["f"], [])

    def test_nothing_is_made_where_a_link_leads_to_nothing(self, tmp_path: Path) -> None:
        """The file system that is mounted there may be missing."""
        (tmp_path / "data").symlink_to("disk/data")
        with pytest.raises(FileNotFoundError):
            put(f"{tmp_path}/data/new/", [file("f")])
        assert os.listdir(tmp_path) == ["data"]
