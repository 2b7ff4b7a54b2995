"""The files of a run, who may read them, and what ``{host}`` and ``{rank}`` become in names."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases
from open_files import open_files

from dispatcher.model import paths
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.model.paths import (
    RunPaths,
    fill,
    groups,
    is_run_id,
    new_run_id,
    open_anew,
    private_folder,
    replace_file,
    state_folder,
    write_all,
    write_new,
)

HOSTS = (Host("n1", slots=2), Host("n2", slots=1))


@cases(
    ("sources", "dest", "wanted"),
    [
        (["a"], "/x", [(("/x", ("a",)),), (("/x", ("a",)),)]),
        (["a-{host}"], "/{host}/", [(("/n1/", ("a-n1",)),), (("/n2/", ("a-n2",)),)]),
        (["a-{rank}", "b"], "/x/", [(("/x/", ("a-0", "a-1", "b")),), (("/x/", ("a-2", "b")),)]),
        (["a-{rank}"], "/x-{rank}",
         [(("/x-0", ("a-0",)), ("/x-1", ("a-1",))), (("/x-2", ("a-2",)),)]),
        (["{{host}}", "{}", "{a,b}"], "/{{x}}", [(("/{x}", ("{host}", "{}", "{a,b}")),)] * 2),
    ],
)  # fmt: skip
def test_what_goes_where(sources: list[str], dest: str, wanted: list[object]) -> None:
    assert groups(sources, dest, HOSTS) == wanted


@cases("text", ["{user}", "/x/{Host}", "{rank}{_x}"])
def test_an_unknown_placeholder(text: str) -> None:
    with pytest.raises(UsageError, match="unknown placeholder") as caught:
        groups(["a"], text, HOSTS)
    assert "{{" in (caught.value.hint or "")


def test_ranks_must_be_known() -> None:
    with pytest.raises(UsageError, match="how many ranks has n3") as caught:
        groups(["{rank}"], "/x", [*HOSTS, Host("n3")])
    assert "n3:1" in (caught.value.hint or "")


@cases("name", ["..", ".", "", "a/b", "a\0b"])
def test_no_host_name_leads_elsewhere(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be part of a path"):
        fill("/data/{host}/x", name)


def test_a_placeholder_that_is_known_is_looked_for_by_name() -> None:
    assert paths.uses("a-{host}", "host")
    assert not paths.uses("a-{host}", "rank")
    assert not paths.uses("a-{{rank}}", "rank")
    assert fill("{host}-{rank}-{{rank}}", "n1", 7) == "n1-7-{rank}"


def test_a_host_with_no_rank_takes_nothing_by_rank() -> None:
    ranges = paths.ranks_of([Host("a", slots=2), Host("b", slots=0), Host("c", slots=1)])
    assert ranges == [range(2), range(2, 2), range(2, 3)]


@cases(
    ("text", "is_one"),
    [
        ("20260131-142501-k3f9x2", True), ("20260131-142501-k3f9x", False),
        ("20260131-142501-K3F9X2", False), ("20260131-142501-k3f9x2\n", False),
        ("../20260131-142501-k3f9x2", False), ("", False),
    ],
)  # fmt: skip
def test_run_ids(text: str, is_one: bool) -> None:
    assert is_run_id(text) is is_one


def test_a_new_run_id_is_one_that_nobody_has() -> None:
    found = {new_run_id() for _ in range(200)}
    assert len(found) == 200
    assert all(map(is_run_id, found))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_mask() -> Iterator[None]:
    """A umask that takes nothing away, so that modes are those that were asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_mask")
def test_a_run_has_a_folder_of_its_own_and_latest_is_the_newest(tmp_path: Path) -> None:
    base = tmp_path / "deep" / "logs"
    first = RunPaths.create(str(base), "run-1")
    assert first.folder == base / "run-1"
    assert mode(first.folder) == 0o700
    assert os.readlink(base / "latest") == "run-1"
    RunPaths.create(str(base), "run-2")
    assert os.readlink(base / "latest") == "run-2"
    assert sorted(os.listdir(base)) == ["latest", "run-1", "run-2"]


@pytest.mark.usefixtures("open_mask")
def test_not_everybody_may_write_in_folders_that_are_made(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b" / "c"
    paths.make_folders(made, 0o700)
    paths.make_folders(made)  # is there
    found = [oct(folder.stat().st_mode & 0o777) for folder in (made.parents[1], made.parent, made)]
    assert found == ["0o775", "0o775", "0o700"]


def test_a_folder_that_is_there_is_not_taken(tmp_path: Path) -> None:
    RunPaths.create(str(tmp_path), "run-1")
    with pytest.raises(UsageError, match=f"--log-dir {tmp_path}: file exists"):
        RunPaths.create(str(tmp_path), "run-1")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--log-dir .*: not a directory"):
        RunPaths.create(str(tmp_path / "file" / "logs"), "run-1")


def test_without_links_there_still_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert RunPaths.create(str(tmp_path), "run-1").folder.is_dir()
    assert os.listdir(tmp_path) == ["run-1"]


def test_the_files_of_a_run() -> None:
    run = RunPaths(Path("/x"))
    names = {
        "journal": "dispatch.jsonl", "merged": "merged.log", "plan": "plan.json",
        "report": "report.json", "launcher": "launcher.log",
    }  # fmt: skip
    assert {name: getattr(run, name) for name in names} == {
        name: Path("/x", file) for name, file in names.items()
    }


@cases(
    ("base", "folder"),
    [
        ("/var/state", "/var/state/dispatch"),
        ("below/here", "/home/me/.local/state/dispatch"),
        ("", "/home/me/.local/state/dispatch"),
        (None, "/home/me/.local/state/dispatch"),
    ],
)
def test_where_state_is_kept(
    monkeypatch: pytest.MonkeyPatch, base: str | None, folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    if base is None:
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_STATE_HOME", base)
    assert state_folder() == Path(folder)


@pytest.mark.usefixtures("open_mask")
def test_a_private_folder_is_made_and_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert private_folder(folder) == private_folder(folder) == folder
    assert mode(folder) == 0o700


@cases(("rights", "refused"), [
    (0o700, False), (0o755, False), (0o500, False), (0o720, True), (0o702, True), (0o777, True),
])  # fmt: skip
def test_a_folder_that_others_may_write_to_is_not_private(
    tmp_path: Path, rights: int, refused: bool
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(rights)
    if not refused:
        assert private_folder(folder) == folder
        return
    with pytest.raises(UsageError, match="others may write to it") as caught:
        private_folder(folder)
    assert caught.value.hint == f"chmod 700 {folder}"


def test_what_is_no_folder_of_ours_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_text("")
    for name, why in (("link", "is not your own folder"), ("file", "file exists")):
        with pytest.raises(UsageError, match=why):
            private_folder(tmp_path / name)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="is not your own folder"):
        private_folder(tmp_path / "real")


@pytest.mark.usefixtures("open_mask")
def test_a_new_file_is_ours_alone_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new"
    open_before = os.listdir("/proc/self/fd")
    write_new(path, b"data")
    assert path.read_bytes() == b"data"
    assert mode(path) == 0o600
    (tmp_path / "link").symlink_to("nowhere")
    for taken in ("new", "link"):
        with pytest.raises(FileExistsError):
            write_new(tmp_path / taken, b"other")
    assert path.read_bytes() == b"data"
    assert not (tmp_path / "nowhere").exists()
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


@pytest.mark.usefixtures("open_mask")
def test_a_file_is_replaced_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"first")
    assert (path.read_bytes(), mode(path)) == (b"first", 0o600)
    replace_file(str(path), b"second", 0o644)
    assert (path.read_bytes(), mode(path)) == (b"second", 0o644)
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path, b"third")

    def is_full(fd: int, data: bytes) -> None:
        os.write(fd, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths, "write_all", is_full)
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"third")
    assert len(os.listdir("/proc/self/fd")) == len(open_before)
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["file"]
    assert not [name for name in os.listdir(tmp_path.parent) if name.endswith(".new")]


def open_to_all(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_file_that_is_named_is_made_or_emptied(tmp_path: Path) -> None:
    path = open_to_all(tmp_path / "open") / "f"
    for text in (b"first", b"2nd"):
        fd = open_anew(str(path))
        os.write(fd, text)
        os.close(fd)
        assert path.read_bytes() == text
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"  # where not everybody may write it is the user's own, or meant so
    link.symlink_to(path)
    os.close(open_anew(str(link)))
    assert path.read_bytes() == b""
    os.close(open_anew("/dev/null"))


def test_what_others_have_put_where_everybody_may_write_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = open_to_all(tmp_path / "open"), open_files()
    own = folder / "own"
    own.write_bytes(b"kept")
    (folder / "link").symlink_to(own)
    with pytest.raises(OSError, match="Too many levels"):
        open_anew(str(folder / "link"))
    about = SimpleNamespace(st_uid=777, st_mode=own.stat().st_mode)
    with monkeypatch.context() as theirs:
        theirs.setattr(os, "geteuid", lambda: 12345)
        theirs.setattr(os, "fstat", lambda fd: about)
        with pytest.raises(PermissionError, match="another user's"):
            open_anew(str(own))
        assert own.stat().st_size == 4
        assert open_files() == before
    with monkeypatch.context() as theirs:
        theirs.setattr(os, "fstat", lambda fd: about)
        folder.chmod(0o770)  # a group that works together
        os.close(open_anew(str(own)))
        assert own.stat().st_size == 0


def test_what_is_looked_for_is_a_file_or_nothing(tmp_path: Path) -> None:
    """Where the user has named it, a pipe is as good."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("text")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        for opened in (paths.open_regular, paths.open_owned):
            with pytest.raises(OSError, match="Not a regular file"):
                opened(place)
    with open(paths.open_regular(tmp_path / "file")) as file:
        assert file.read() == "text"


def test_all_is_written_however_little_is_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    fd = paths.create_file(tmp_path / "new")
    write_all(fd, b"0123456789")
    write_all(fd, b"")
    os.close(fd)
    assert (tmp_path / "new").read_bytes() == b"0123456789"


def test_a_pipe_that_others_made_non_blocking_is_waited_for() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(reader, True)
    data = os.urandom(1 << 20)

    def write() -> None:
        with open(writer, "wb"):
            write_all(writer, data)

    thread = threading.Thread(target=write)
    thread.start()
    with open(reader, "rb") as file:
        assert file.read() == data
    thread.join()
