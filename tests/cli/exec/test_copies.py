"""``put`` and ``get`` by their parts, and over this machine without SSH."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.api import exec_session
from dispatcher.cli.exec import get, run_copy
from dispatcher.cli.exec.get import GetOptions
from dispatcher.cli.exec.put import PutOptions
from dispatcher.cli.exec.run_copy import here, there
from dispatcher.core.events.exec_events import (
    Exited,
    Failed,
    HostDone,
    Interrupted,
    NotCopied,
    Outcome,
    TimedOut,
)
from dispatcher.core.events.run_events import Entry
from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.output.exec.host_results import outcome_text
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.transfer.get_files import HostPaths
from dispatcher.transfer.host_copy import HostCopy

from ..conftest import Terminal


@cases(
    ("path", "named"),
    [("a/b", "a/b"), ("-r", "./-r"), ("~/x", "~/x"), ("~", "~"), ("~ml/x", "~ml/x"), ("/a", "/a")],
)
def test_a_path_there(path: str, named: str) -> None:
    assert there(path) == named


@cases("path", ["~1/x", "~a b", "~$HOME"])
def test_no_user_has_that_name(path: str) -> None:
    with pytest.raises(UsageError, match="no valid user name after ~"):
        there(path)


def test_a_path_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert (here("~/x"), here("a"), here("-a")) == ("/home/me/x", "a", "./-a")
    with pytest.raises(UsageError):
        here("~nobody-of-that-name/x")


@cases(
    ("path", "named"),
    [
        ("/a/b", ("/a/b", "b")),
        ("c", ("c", "c")),
        ("-c", ("./-c", "-c")),
        ("~/d", ("~/d", "d")),
        ("/a/b//", ("/a/b/", "b")),
        ("-c/", ("./-c/", "-c")),
    ],
)
def test_what_is_fetched_has_its_last_name(path: str, named: tuple[str, str]) -> None:
    assert get._named(path) == named


@cases("path", ["~", "~ml", "~/", "/", "//", "a/../", "a/..", ".", "", "a\0b"])
def test_what_has_no_name_cannot_be_fetched(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be fetched as a whole"):
        get._named(path)


@cases(
    ("groups", "why"),
    [
        ([HostPaths("in/n1", (("/a/x", "x"), ("/b/x", "x")))], "two sources have the same"),
        ([HostPaths("in/n1", (("/a", "a"),)), HostPaths("./in/n1", (("/a", "a"),))], "two hosts"),
        ([HostPaths("in/n1", (("/a", "a"),)), HostPaths("in/n2", (("/a", "a"),))], ""),
    ],
)
def test_two_things_never_lie_in_one_place(groups: list[HostPaths], why: str) -> None:
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


@cases(
    ("words", "said"),
    [
        (["get", "-w", "localhost", "/a"], "get: needs a remote path, and a folder"),
        (["get", "-w", "localhost", "/a", "/b/a", "in"], "get: two sources have the same"),
        (["get", "-w", "localhost", "~", "in"], "get: '~': a home folder"),
        (["get", "-w", "localhost", "/a", "/dev/null/x"], "get: /dev/null/x: not a directory"),
        (["put", "-w", "localhost", "a"], "put: "),
    ],
)
def test_refusals(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_a_file_with_holes_arrives_with_holes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(tmp_path / "image", "wb") as file:
        file.truncate(8 << 20)
        file.seek(5 << 20)
        file.write(b"words")
    assert cli.main(["put", "-w", "localhost", f"{tmp_path}/image", f"{tmp_path}/to/"]) == 0
    assert cli.main(["get", "-w", "localhost", f"{tmp_path}/to/image", str(tmp_path / "in")]) == 0
    assert capsys.readouterr().err.count("8 MiB in") == 2
    for place in ("to/image", "in/localhost/image"):
        assert (tmp_path / place).read_bytes() == (tmp_path / "image").read_bytes()
        assert (tmp_path / place).stat().st_blocks * 512 < 1 << 20


def test_what_a_host_lacks_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent, folder = str(tmp_path / "absent"), str(tmp_path / "in")
    assert cli.main(["get", "-w", "localhost", absent, folder]) != 0
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "in" / "localhost" / "absent").exists()


# -- what became of which hosts --------------------------------------------------------------


BAD = Failed(Failure(Kind.LOST, "gone"))


@cases(
    ("outcome", "copy", "became", "code"),
    [
        (Exited(0), HostCopy(python=True, sent=1), Exited(0), 0),
        (Exited(0), HostCopy(python=False), Exited(0), 0),
        (Exited(0), HostCopy(python=True), NotCopied("it ended before all was copied"), 1),
        (Exited(0), HostCopy(), NotCopied("it ended before all was copied"), 1),
        (Exited(0), HostCopy(python=True, sent=1, error="full"), NotCopied("full"), 1),
        (Exited(3), HostCopy(python=True, error="full"), NotCopied("full"), 1),
        (Exited(0), HostCopy(error="bad\x1b", hostile=True),
         Failed(Failure(Kind.PROTOCOL, "bad\x1b")), 125),
        (BAD, HostCopy(python=True), BAD, 125),
        (Interrupted(2), HostCopy(error="full"), Interrupted(2), 130),
        (TimedOut("total", 3.0), HostCopy(error="full"), TimedOut("total", 3.0), 124),
    ],
)  # fmt: skip
def test_what_a_copy_ends_with(
    outcome: Outcome, copy: HostCopy, became: Outcome, code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    outcomes = (outcome, Exited(0))
    copies = [copy, HostCopy(python=True, sent=2, bytes=2048)]
    options = GetOptions(lists=("n1",))
    hosts = (Host("n1"), Host("n2"))
    assert run_copy.conclude(hosts, outcomes, copies, 2.0, "fetched", options) == code
    err = capsys.readouterr().err
    assert (f"  n1  {outcome_text(became)}\n" in err) is (code != 0)
    assert ("error: 1 of 2 hosts failed [hosts-failed]" in err) is (code != 0)
    assert "n2: 2 files fetched, 0 equal" in err
    assert "2 KiB in 2.0 s" in err
    assert "\x1b" not in err


@cases(
    ("verb", "why", "sudo", "hint"),
    [
        ("put", "/etc: permission denied", None, True),
        ("put", "/etc: permission denied", "munge", False),
        ("put", "/etc: read-only file system", None, False),
        ("get", "in/n1: permission denied", None, False),  # it may be our own folder
    ],
)
def test_what_root_may_do_is_told(
    verb: str, why: str, sudo: str | None, hint: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = PutOptions if verb == "put" else GetOptions
    run_copy.conclude(
        (Host("n1"),), [Exited(1)], [HostCopy(error=why)], 2.0,
        "sent" if verb == "put" else "fetched",
        kind(lists=("n1",), sudo=sudo),
    )  # fmt: skip
    err = capsys.readouterr().err
    assert f"  n1  {why}\n" in err
    assert ("  hint: --sudo  # as root on the host, if you may\n" in err) is hint


# -- get, over this machine --------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there" / "sub").mkdir(parents=True)
    for name in ("a", "0.log", "1.log", "localhost", "127.0.0.1", "sub/deep"):
        (tmp_path / "there" / name).write_text(f"{name}\n")
    return tmp_path / "there"


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["{there}/a", "in"], {"localhost/a": "a\n", "127.0.0.1/a": "a\n"}),
        (["{there}/[0-9].log", "{there}/s*/./d?ep", "in/of-{{host}}"],
         {f"of-{host}/{name}": f"{name}\n" for host in ("localhost", "127.0.0.1")
          for name in ("0.log", "1.log", "sub/deep")}),
        (["{there}/sub/", "in"], {"localhost/sub/deep": "sub/deep\n",
                                  "127.0.0.1/sub/deep": "sub/deep\n"}),
        (["{there}/{{host}}", "{there}/a", "in/of-{{host}}"],
         {"of-localhost/localhost": "localhost\n", "of-localhost/a": "a\n",
          "of-127.0.0.1/127.0.0.1": "127.0.0.1\n", "of-127.0.0.1/a": "a\n"}),
        (["{there}/{{rank}}.log", "in/rank-{{rank}}"],
         {"rank-0/0.log": "0.log\n", "rank-1/1.log": "1.log\n"}),
    ],
)  # fmt: skip
def test_each_host_s_into_a_folder_of_its_own(
    sources: Path, words: list[str], found: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [word.format(there=sources) for word in words]
    assert cli.main(["get", "-w", "localhost:1,127.0.0.1:1", *paths]) == 0
    assert files(sources.parent / "in") == found
    assert "127.0.0.1,localhost: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["get", "{there}/a", "{there}/a", "in"], 2, "error: get: two sources have the same"),
        (["get", "{there}/a", "in/{{rank}}"], 2, "error: {{rank}}: how many ranks has"),
        (["get", "{there}/a", "{there}/a/x"], 2, "error: get: "),
        (["get", "--max-size", "1X", "{there}/a", "in"], 2, "error: --max-size: not a size"),
        (["get", "--max-size", "3", "{there}/localhost", "in"], 1, ""),
        (["get", "{there}/*/../a", "in"], 2, "error: get: "),
        (["get", "{there}/none", "in"], 1, ""),
        (["get", "{there}/*.txt", "in"], 1, "error: 1 of 1 host failed"),
    ],
)
def test_what_is_not_fetched(
    sources: Path, words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = [word.format(there=sources) for word in words]
    found = cli.main([line[0], "-w", "localhost", *line[1:]])
    assert found == code
    assert capfd.readouterr().err.startswith(said.format())
    assert files(sources.parent / "in") == {}


def test_what_is_here_already_is_not_fetched(
    sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["get", "-w", "localhost", f"{sources}/a", "in"]
    said = []
    for more in ([], [], ["--checksum"], ["--no-resume", "-v"]):
        assert cli.main([*words, *more]) == 0
        said.append(capfd.readouterr().err)
    assert "1 file fetched, 0 equal" in said[0]
    assert "0 files fetched, 1 equal" in said[1]
    assert "0 files fetched, 1 equal" in said[2]
    assert len(said[3].splitlines()) > 1


def test_what_cannot_be_copied_is_told(sources: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(sources / "pipe")
    assert cli.main(["get", "-w", "localhost", str(sources), "in"]) == 0
    assert "note: localhost: left out " in capfd.readouterr().err
    assert "pipe" not in "".join(files(sources.parent / "in"))


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_stands_on_a_terminal_alone(
    quiet: bool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a host copies counts, and lines of hosts stand above it."""
    copies = [HostCopy(bytes=1 << 20, wanted=4 << 20), HostCopy(wanted=4 << 20)]
    asked: list[Any] = []

    class Runner:
        tell = staticmethod(lambda event: None)

        def __init__(self, plan: Any, transport_for: Any, sinks: Any, **more: Any) -> None:
            asked.append((plan, more["stdio"]))
            self._sinks = sinks

        def run(self, handled: Any) -> Any:
            for sink in self._sinks:
                sink.event(Entry(1, 0.0, HostDone(0, Exited(0))))
                sink.output(1, 2, b"a line\n")
            for _ in range(200):
                for sink in self._sinks:
                    sink.tick(time.monotonic())
                if "1 MiB of 8 MiB" in terminal.plain:
                    break
                time.sleep(0.02)
            return [Exited(0), Exited(3)]

    monkeypatch.setattr(exec_session, "ExecRunner", Runner)
    if quiet:
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
    terminal.take()
    plan = ExecPlan((Host("n1"), Host("n2")), ("true",))
    talk: Any = object()
    outcomes: Any = run_copy.run_copy(plan, GetOptions(), talk, copies)
    terminal.leave()
    assert outcomes == [Exited(0), Exited(3)]
    assert asked == [(plan, talk)]
    assert "n2: a line" in terminal.plain
    assert ("1 MiB of 8 MiB" in terminal.plain) is not quiet
