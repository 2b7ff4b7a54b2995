"""``put`` and ``get`` by their parts, and over this machine without SSH."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from dispatcher import cli
from dispatcher.cli.exec import get
from dispatcher.cli.exec.run_copy import here, there
from dispatcher.model.errors import UsageError
from dispatcher.transfer.get_files import Group


@pytest.mark.parametrize(
    ("path", "named"),
    [("a/b", "a/b"), ("-r", "./-r"), ("~/x", "~/x"), ("~", "~"), ("~ml/x", "~ml/x"), ("/a", "/a")],
)
def test_a_path_there(path: str, named: str) -> None:
    assert there(path) == named


@pytest.mark.parametrize("path", ["~1/x", "~a b", "~$HOME"])
def test_no_user_has_that_name(path: str) -> None:
    with pytest.raises(UsageError, match="what follows ~ is no user's name"):
        there(path)


def test_a_path_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert (here("~/x"), here("a"), here("-a")) == ("/home/me/x", "a", "./-a")
    with pytest.raises(UsageError):
        here("~nobody-of-that-name/x")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("3k", 3 << 10), ("3K", 3 << 10), ("2M", 2 << 20), ("16G", 16 << 30),
     ("1T", 1 << 40), ("999999999999", 999999999999)],
)  # fmt: skip
def test_a_size(text: str, size: int) -> None:
    assert get._size(text) == size


@pytest.mark.parametrize("text", ["", "K", "1.5G", "-1", "1P", "1KB", "9999999999999", "\u0663"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--max-size: not a size"):
        get._size(text)


@pytest.mark.parametrize(
    ("path", "named"),
    [("/a/b", ("/a/b", "b")), ("c", ("c", "c")), ("-c", ("./-c", "-c")), ("~/d", ("~/d", "d"))],
)
def test_what_is_fetched_has_its_last_name(path: str, named: tuple[str, str]) -> None:
    assert get._named(path) == named


@pytest.mark.parametrize("path", ["~", "~ml", "/", "a/..", ".", "", "a\0b"])
def test_what_has_no_name_cannot_be_fetched(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be fetched as a whole"):
        get._named(path)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([Group("in/n1", (("/a/x", "x"), ("/b/x", "x")))], "two of the same name"),
        ([Group("in/n1", (("/a", "a"),)), Group("./in/n1", (("/a", "a"),))], "two hosts"),
        ([Group("in/n1", (("/a", "a"),)), Group("in/n2", (("/a", "a"),))], ""),
    ],
)
def test_two_things_never_lie_in_one_place(groups: list[Group], why: str) -> None:
    if why:
        with pytest.raises(UsageError, match=why):
            get._check_places(groups)
    else:
        get._check_places(groups)
        assert len({group.place for group in groups}) == 2


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("one\n")
    folder = tmp_path / "to"
    folder.mkdir()
    assert cli.main(["put", "-w", "localhost", str(tmp_path / "a"), f"{folder}/"]) == 0
    assert (folder / "a").read_text() == "one\n"
    gc.collect()  # a file that nobody closed would be an error now
    assert cli.main(["get", "-w", "localhost", str(folder / "a"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "localhost" / "a").read_text() == "one\n"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", "-w", "localhost", "/a"], "get: needs what to fetch, and a folder"),
        (["get", "-w", "localhost", "/a", "/b/a", "in"], "get: two of the same name"),
        (["get", "-w", "localhost", "~", "in"], "get: '~': a home folder"),
        (["get", "-w", "localhost", "/a", "/dev/null/x"], "get: /dev/null/x: not a directory"),
        (["put", "-w", "localhost", "a"], "put: "),
    ],
)
def test_refusals(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_what_a_host_lacks_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent, folder = str(tmp_path / "absent"), str(tmp_path / "in")
    assert cli.main(["get", "-w", "localhost", absent, folder]) != 0
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "in" / "localhost" / "absent").exists()
