"""The hosts that are still to be served: the file that ``--retry-failed`` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.cli.exec.run_exec import read
from dispatcher.core.events.exec_events import Exited, Failed, HostDone, Killed, NotStarted, Outcome
from dispatcher.core.events.run_events import Entry
from dispatcher.model.errors import FileUnusable
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.output.files.hosts_left import HostsLeft, write_hosts

HEAD = "# hosts that failed, or were not started, by dispatch exec"


def test_each_line_of_a_list_says_why(tmp_path: Path) -> None:
    hosts = [Host("n1"), Host("n2", user="me", port=22), Host("n3"), Host("n4", port=7)]
    failure = Failure(Kind.UNREACHABLE, "no route  to it")
    outcomes: list[Outcome] = [Exited(0), Failed(failure), Exited(3), Killed("SEGV")]
    path = str(tmp_path / "failed")
    write_hosts(path, hosts, dict(enumerate(outcomes)))
    lines = (tmp_path / "failed").read_text().splitlines()
    assert lines[1].startswith("n2 user=me port=22  # unreachable: no route to it")
    assert lines[2] == "n3  # exit code 3"
    assert lines[3].startswith("n4 port=7  # ")
    found = read(path, "--retry-failed")
    assert found is not None
    assert [(host.name, host.user, host.port) for host in found.hosts] == [
        ("n2", "me", 22), ("n3", None, None), ("n4", None, 7),
    ]  # fmt: skip
    assert [one.name for one in tmp_path.iterdir()] == ["failed"]


def test_it_is_right_at_every_moment(tmp_path: Path) -> None:
    """Also when nobody is there any more to write it at the end; and writing takes a share only."""
    file = tmp_path / "left"
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01  # what a write takes
        return now[0]

    sink = HostsLeft({str(file): [Host("n1"), Host("n2"), Host("n3")]}, clock)
    assert file.read_text().splitlines() == [
        HEAD, "n1  # not done", "n2  # not done", "n3  # not done",
    ]  # fmt: skip
    assert not sink.tick(0.0)
    sink.event(Entry(1, 0.0, HostDone(1, Exited(0))))
    assert not sink.tick(1.0)
    assert file.read_text().splitlines() == [HEAD, "n1  # not done", "n3  # not done"]
    sink.event(Entry(2, 0.0, HostDone(0, Exited(3))))
    assert sink.tick(1.1)  # a moment later, it says
    assert not sink.tick(1.3)
    sink.event(Entry(3, 0.0, HostDone(2, NotStarted("x"))))
    assert not sink.tick(2.0)
    assert file.read_text().splitlines() == [HEAD, "n1  # exit code 3", "n3  # not started: x"]


def test_a_folder_that_goes_meanwhile_is_told_by_who_writes_last(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = str(tmp_path / "a" / "left")
    sink = HostsLeft({path: [Host("n1")]})
    (tmp_path / "a" / "left").unlink()
    (tmp_path / "a").rmdir()
    sink.event(Entry(1, 0.0, HostDone(0, Exited(3))))
    assert not sink.tick(1.0)
    with pytest.raises(FileUnusable, match="left: no such file or directory"):
        HostsLeft({path: [Host("n1")]})
