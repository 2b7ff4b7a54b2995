"""``--sync``: where to, what is said of it, and what becomes of a host that does not take it."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from transport.far_link import FarLink

from dispatcher.api import exec_session
from dispatcher.api.request import plan_job
from dispatcher.api.transports import TransportPool, Ways
from dispatcher.cli.run import sync
from dispatcher.cli.run.request import request
from dispatcher.cli.run.run_sinks import RunFooter
from dispatcher.core.events import exec_events
from dispatcher.model.errors import CannotCopy
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor.run_picture import picture_of
from dispatcher.output.run_state import RunState
from dispatcher.transfer.host_copy import FrameReader, HostCopy
from dispatcher.transfer.put_files import Sending

from ..conftest import Parsed


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "sub").mkdir()


def words(given: str | None, chdir: str | None = None) -> list[str]:
    sync = [] if given is None else ["--sync"] if given == "." else [f"--sync={given}"]
    return [
        "run",
        "-w",
        "n1,n2,localhost",
        *sync,
        *(["--chdir", chdir] if chdir else []),
        "train.py",
    ]


@cases(
    ("given", "chdir", "dest", "cwd"),
    [
        (None, None, None, "{here}"),
        (".", None, "{here}", "{here}"),
        (".", "sub", "{here}", "{here}/sub"),
        ("/opt/job/", None, "/opt/job", "/opt/job"),
        ("/opt//job", "sub", "/opt/job", "/opt/job/sub"),
        ("/opt/job", "/else", "/opt/job", "/else"),
        ("/", None, "/", "/"),
    ],
)
def test_where_to(
    parsed: Parsed, given: str | None, chdir: str | None, dest: str | None, cwd: str
) -> None:
    one = parsed(*words(given, chdir))
    assert sync.dest_of(one) == (None if dest is None else dest.format(here=Path.cwd()))
    assert request(one).cwd == cwd.format(here=Path.cwd())


@cases("given", ["job", "~/job", "", "./job"])
def test_a_folder_is_written_from_the_root(parsed: Parsed, given: str) -> None:
    with pytest.raises(CannotCopy, match="must be an absolute path on the hosts"):
        request(parsed(*words(given)))


@cases(
    ("given", "said"),
    [
        (".", "at most 1 file (8 B) of {here} to {here} on n[1-2]"),
        ("/opt", "at most 1 file (8 B) of {here} to /opt on localhost,n[1-2]"),
    ],
)
def test_what_a_dry_run_says(parsed: Parsed, given: str, said: str) -> None:
    one = parsed(*words(given))
    assert sync.describe(one, plan_job(request(one))) == said.format(here=Path.cwd())


def test_where_everything_is_here_nothing_is_sent(parsed: Parsed, tmp_path: Path) -> None:
    one = parsed("run", "-w", "localhost", "--sync", "train.py")
    plan = plan_job(request(one))
    assert sync.describe(one, plan) == f"nothing: {tmp_path} is here already"
    folder = sync.working_folder(one)
    assert folder is not None
    reach, told = None, None
    assert sync.send(folder, plan, reach, told) is None  # type: ignore[arg-type]


@cases(
    ("sent", "said"),
    [
        ((0, 0), "--sync: the only file is the same on n[1-2]"),
        ((1, 0), "--sync: 1 of 1 file (8 B) sent to n1"),
    ],
)
def test_what_is_said_of_it(parsed: Parsed, sent: tuple[int, int], said: str) -> None:
    folder = sync.working_folder(parsed(*words(".")))
    assert folder is not None
    with closing(folder):
        copies = [HostCopy(sent=count, bytes=8 * count) for count in sent]
        assert sync._summary(folder, ["n1", "n2"], copies) == said


def test_the_footer_shows_the_copy_until_it_is_over(
    parsed: Parsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here Ctrl-C ends it, and with it the run."""
    drawn: list[str] = []
    state = RunState(["n1", "n2", "localhost"])
    draw = RunFooter(state.hosts, lambda: picture_of(state))

    class Played:
        def __init__(self, *what: object, **more: object) -> None:
            self.tell = lambda what: None

        def run(self, handled: object) -> list[exec_events.Outcome]:
            drawn.extend(line.decode() for line, _ in draw([], 80))
            return [exec_events.Interrupted(signal.SIGINT)] * 2

    monkeypatch.setattr(exec_session, "ExecRunner", Played)
    one = parsed(*words("."))
    folder = sync.working_folder(one)
    assert folder is not None
    reach = TransportPool(Ways())
    verdict = sync.send(folder, plan_job(request(one)), reach, drawn.append, footer=draw)  # type: ignore[arg-type]
    assert verdict is not None
    assert verdict.exit_code == 130
    assert len(drawn) == 1
    assert "0 of 2 hosts" in drawn[0]
    assert "0 B of 16 B" in drawn[0]
    assert draw.instead is None
    assert "0 of 2 hosts" not in draw([], 80)[0][0].decode()


LOST = Failure(Kind.LOST, "gone")


@cases(
    ("outcome", "copy", "failure"),
    [
        (exec_events.Exited(0), HostCopy(sent=0), None),
        (exec_events.Failed(LOST), HostCopy(), LOST),
        (exec_events.Exited(1), HostCopy(error="full\x1b"), (Kind.CHECK, "--sync: full\\x1b")),
        (exec_events.Exited(1), HostCopy(error="x", hostile=True), (Kind.PROTOCOL, "--sync: x")),
        (exec_events.Exited(255), HostCopy(error="x", late=True), (Kind.LOST, "--sync: x")),
        (exec_events.Exited(0), HostCopy(), (Kind.CHECK, "--sync: the copy ended early")),
        (exec_events.Exited(7), HostCopy(), (Kind.CHECK, "--sync: exit code 7")),
    ],
)
def test_why_a_host_does_not_have_the_files(
    outcome: exec_events.Outcome, copy: HostCopy, failure: Failure | tuple[Kind, str] | None
) -> None:
    want = Failure(*failure) if isinstance(failure, tuple) else failure
    assert sync._failure(outcome, copy) == want


def test_a_host_with_which_nothing_moves_is_given_up_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Host 0 takes bytes, 1 says some, 2 neither; 3 is as late as 2, and begins later."""
    monkeypatch.setattr(sync, "MOST_STILL", 3)
    copies = [HostCopy() for _ in range(4)]
    sources: Any = SimpleNamespace(entries=[], n_read=0)
    sending = Sending([(sources, ())] * 4, checksum=False, resume=True, copies=copies)
    links = [FarLink() for _ in copies]
    monkeypatch.setattr(FrameReader, "talk", lambda *what: None)
    for node in (0, 1, 2):
        sending.start(node, links[node])
    given_up: list[list[int]] = []

    class Seconds(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            given_up.append([node for node, copy in enumerate(copies) if copy.late])
            copies[0].bytes += 1
            sending.take_output(1, b"x")
            if len(given_up) == 3:
                sending.start(3, links[3])
            return len(given_up) == 8

    sync._watch(sending, Seconds(), (), lambda order: None)
    assert given_up == [[], [], [], [], [2], [2], [2, 3], [2, 3]]
    assert [link.closed for link in links] == [False, False, True, True]
    assert copies[2].error == "nothing moves for 3 s; its disk may hang"
