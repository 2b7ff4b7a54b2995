"""``put``: by a tree or from here, whom the tree could not serve, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.exec import put as command
from dispatcher.cli.exec.put import PutOptions, Putting
from dispatcher.core.events.exec_events import (
    Exited,
    Outcome,
)
from dispatcher.model.errors import UsageError
from dispatcher.transfer.put_files import BRANCHES

GIB = 1 << 30
MANY = 64


@cases(
    ("given", "hosts", "size", "branches"),
    [
        ({}, MANY, 8 * GIB, BRANCHES),
        ({}, MANY, 1, 0),
        ({}, 2, 8 * GIB, 0),
        ({}, MANY, None, 0),
        ({"serial": 1}, MANY, 8 * GIB, 0),
        ({"max_fail": 1}, MANY, 8 * GIB, 0),
        ({"branches": ""}, 2, 1, BRANCHES),
        ({"branches": "3"}, 2, 1, 3),
        ({"branches": "1"}, 2, 1, 1),
        ({"branches": "3"}, 1, 1, 0),
        ({"sudo": "root"}, MANY, 8 * GIB, 0),
    ],
)
def test_how_many_branches(
    given: dict[str, Any], hosts: int, size: int | None, branches: int
) -> None:
    assert command._branches(PutOptions(**given), hosts, size) == branches


@cases(
    ("given", "size", "said"),
    [
        ({"branches": "2", "serial": 1}, 1, "--fanout-tree serves all hosts at once"),
        ({"branches": "2", "max_fail": 1}, 1, "--fanout-tree serves all hosts at once"),
        ({"branches": "2"}, None, "--fanout-tree: every host must get the same files"),
        ({"branches": "0"}, 1, "--fanout-tree"),
        ({"branches": "x"}, 1, "--fanout-tree"),
        ({"branches": "2", "sudo": "root"}, 1, "--fanout-tree and --sudo exclude each other"),
    ],
)
def test_no_tree(given: dict[str, Any], size: int | None, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        command._branches(PutOptions(**given), 9, size)
    assert caught.value.message.startswith(said)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f"


# -- over this machine ------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "shard-0").write_text("zero\n")
    (tmp_path / "shard-1").write_text("first\n")
    (tmp_path / "to").mkdir()
    return tmp_path


def found(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_rank_s_file_goes_to_its_own_host(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts = ["-w", "localhost:1,127.0.0.1:1"]
    words = ["put", *hosts, "shard-{rank}", "a", str(folder / "to" / "{host}") + "/"]
    assert cli.main(words) == 0
    assert found(folder / "to") == {
        "localhost/a": "one\n", "localhost/shard-0": "zero\n",
        "127.0.0.1/a": "one\n", "127.0.0.1/shard-1": "first\n",
    }  # fmt: skip
    assert "127.0.0.1,localhost: 2 files sent, 0 equal" in capfd.readouterr().err


def test_what_is_there_already_is_not_sent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["put", "-w", "localhost", "a", f"{folder}/to/"]
    said = []
    for more in ([], [], ["--checksum"]):
        assert cli.main([*words, *more]) == 0
        said.append(capfd.readouterr().err)
    assert said[0] != said[1]
    (folder / "to" / "a").write_text("two\n")
    os.utime(folder / "to" / "a", ns=(0, (folder / "a").stat().st_mtime_ns))
    assert cli.main(words) == 0  # of the same size and time
    assert found(folder / "to") == {"a": "two\n"}
    assert cli.main([*words, "--checksum"]) == 0
    assert found(folder / "to") == {"a": "one\n"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["put", "-w", "localhost", "a"], 2, "put: needs a source, and a destination"),
        (["put", "-w", "localhost", "a", ""], 2, "put: an empty destination"),
        (["put", "-w", "localhost", "a", "x\0y"], 2, "put: an empty destination"),
        (["put", "-w", "localhost", "none", "to/"], 2, ""),
        (["put", "-w", "localhost", "a", "~$x/"], 2, "~$x/: no valid user name after ~"),
        (["put", "-w", "localhost", "a", "/{what}/"], 2, ""),
        (["put", "-w", "localhost,127.0.0.1", "--fanout-tree", "a", "to/"], 2, "--fanout-tree: "),
        (["put", "-w", "localhost", "a", "/proc/none/"], 1, ""),
        (["put", "-w", "localhost", "--ignore", "[ab]", "a", "to/"], 2, "--ignore leaves nothing"),
        (["put", "-w", "localhost", "-x", "*.o", "a", "to/"], 2, "--exclude *.o: it leaves hosts"),
        (["put", "-w", "localhost", "--mode", "u+x", "a", "to/"], 2, "--mode: not a mode in octal"),
        (["put", "-w", "localhost", "--mode", "10000", "a", "to/"], 2, "--mode: not a mode"),
        (["put", "-w", "localhost", "--mode", "64", "a", "to/"], 2, "--mode: not a mode"),
        (["put", "-w", "localhost", "--owner", ":", "a", "to/"], 2, "--owner: not USER[:GROUP]"),
        (["put", "-w", "localhost", "--owner", "a:b:c", "a", "to/"], 2, "--owner: not USER"),
        (["put", "-w", "localhost", "--owner", "nobody-is-called-so", "a", "to/"], 1, ""),
    ],
)
def test_refusals(
    folder: Path, words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == code
    assert capfd.readouterr().err.startswith(f"error: {said}")
    assert found(folder / "to") == {}


@cases(
    ("excluded", "means_files"),
    [
        ("*.o", True),
        ("cache/", True),
        ("*.[ch]", True),
        ("n1,@gpu,*.o", True),
        ("n[0-14/2]", False),
        ("r[1-4]n[0-6/2],n9", False),
        ("@*", False),
        ("n1,@rack:*!n2", False),
        ("^lists/broken", False),
    ],
)
def test_what_leaves_out_hosts(excluded: str, means_files: bool) -> None:
    assert command._means_files(excluded) == means_files


def test_what_is_ignored_or_odd_stays_here(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("pipe", "queue", "x.fifo"):
        os.mkfifo(folder / name)
    (folder / "sub").mkdir()
    (folder / "sub" / "b.o").write_text("object")
    words = ["put", "-w", "localhost", "--json", "--mode", "640", "--ignore", "*.o"]
    words += ["--ignore", "/sub/keep", "sub", "a", "pipe", "queue", "x.fifo"]
    (folder / "sub" / "keep").write_text("")
    assert cli.main([*words, f"{folder}/to/"]) == 0
    assert found(folder / "to") == {"a": "one\n"}
    assert (folder / "to" / "a").stat().st_mode & 0o7777 == 0o640
    assert (folder / "to" / "sub").stat().st_mode & 0o7777 == 0o750
    out, err = capfd.readouterr()
    said = "3 entries are not sent: pipe, queue and others are not files, folders or links"
    assert f"note: {said}\n" in err
    told = promises.told(out)
    assert told["left_out"] == [f"'{name}': not a file, folder or link" for name in
                                ("pipe", "queue", "x.fifo")]  # fmt: skip
    (folder / "to" / "a").chmod(0o600)
    assert cli.main(["put", "-w", "localhost", "--mode", "0644", "a", f"{folder}/to/"]) == 0
    assert "0 files sent, 1 equal" in capfd.readouterr().err
    assert (folder / "to" / "a").stat().st_mode & 0o7777 == 0o644


def test_what_goes_to_which_host_by_a_tree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree is only for what all hosts get alike, and not for this machine."""
    seen: list[Any] = []

    def by_tree(job: Putting, branches: int) -> dict[int, Outcome]:
        seen.append((branches, [host.name for host in job._hosts]))
        for copy in job._copies:
            copy.sent = copy.wanted
        return dict.fromkeys(range(len(job._hosts)), Exited(0))

    monkeypatch.setattr(Putting, "by_tree", by_tree)
    assert cli.main(["put", "-w", "n[1-3]", "--fanout-tree=2", "a", "/to/"]) == 0
    assert seen == [(2, ["n1", "n2", "n3"])]
    words = ["put", "-w", "n1:1,n2:1", "--fanout-tree", "shard-{rank}", "/to/"]
    assert cli.main(words) == 2
    assert len(seen) == 1
