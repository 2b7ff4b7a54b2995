"""``exec`` over this machine by three of its names: what is run, on whom again, and returned."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.api import exec_session
from dispatcher.cli.exec import run_exec
from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.exec.run_exec import limits, read
from dispatcher.cli.options.connect_options import WINDOW
from dispatcher.cli.options.host_options import LimitOptions
from dispatcher.core.events.exec_events import Exited
from dispatcher.model.errors import UsageError
from dispatcher.output.terminal import asking
from dispatcher.plan.exec_plan import ExecLimits

from ..conftest import Given, Parsed, Terminal

ON_THREE = ["exec", "-w", "localhost,127.0.0.1", "-H", "::1"]


@pytest.fixture(autouse=True)
def _here(nothing_around: Path) -> None:
    """No batch job, an empty folder."""


@cases(
    ("words", "said"),
    [
        (["--json", "-b"], "--json cannot be used with -b"),
        (["-o", ""], "-o: an empty folder name"),
        (["-e", ""], "-e: an empty folder name"),
        (["-o", "-o BatchMode=yes"], "-o: '-o BatchMode=yes' looks like an option, not a folder"),
        (["-o", "x", "-e", "./x"], "-o and -e: both name the same folder"),
        (["--events", "no/file"], "--events no/file: no such file or directory"),
        (["-I", "-n"], "-I and -n exclude each other"),
        (["-I", "--pty"], "-I and --pty exclude each other: a terminal"),
        (["--fanout-tree", "--pty"], "--fanout-tree and --pty exclude each other"),
        (["--plain", "--pty"], "--plain and --pty exclude each other"),
        (["--plain", "--sudo"], "--plain and --sudo exclude each other"),
        (["--plain", "--env", "A=1"], "--plain and --env exclude each other"),
        (["--plain", "--fanout-tree"], "--plain and --fanout-tree exclude each other"),
        (["--ask-sudo-password"], "--ask-sudo-password needs --sudo"),
        (["--retry-failed", "none"], "--retry-failed names the hosts"),
        (["--keep=0"], "--keep=0"),
        (["--shell", "x"], "--shell"),
        (["--script", "x", "--shell", "x"], "--script and --shell exclude each other"),
        (["--script", "none"], "--script: none: no such file or directory"),
        (["--serial", "0"], "--serial: 0 is not between"),
        (["--serial", "1,101%"], "--serial: 101 is not between 1 and 100"),
        (["--serial", "1,"], "--serial: not a whole number: ''"),
        (["--max-fail", "1,2"], "--max-fail: not a whole number: '1,2'"),
        (["--delay", "5"], "--delay needs --serial"),
        (["--grace", "x"], "--grace: not a number of seconds"),
        (["--env", "NOT_SET_HERE"], "--env NOT_SET_HERE: not set here"),
        (["--env", "=x"], "--env: '' is nothing that can be set"),
        (["--env", "A.B=x"], "--env: 'A.B' is nothing that can be set"),
        (["--env", "UID=0"], "--env: 'UID' is nothing that can be set"),
        (["--env", "DISPATCH_HOST=x"], "--env: 'DISPATCH_HOST' is nothing that can be set"),
    ],
)
def test_refusals(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    for dry in ([], ["--dry-run"]) if words[0] in ("--json", "-o", "-e") else ([],):
        assert cli.main([*ON_THREE, *dry, *words, "true"]) == 2
        assert capfd.readouterr().err.startswith(f"error: {said}")


@cases("words", [[], ["--shell", " "], ["--", ""]])
def test_no_command(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exec", "-w", "localhost", *words]) == 2
    assert capfd.readouterr().err.startswith("error: ")


@cases(
    ("words", "text", "code"),
    [
        ([], "exit 3", 1),
        (["-S"], "exit 3", 3),
        (["-S"], "kill -9 $$", 137),
        ([], "exit 0", 0),
        (["-S"], "exit 0", 0),
        (["-u", "0.2"], "exec sleep 50", 124),
        (["--deadline", "0.2"], "exec sleep 50", 124),
    ],
)
def test_the_exit_code(
    words: list[str], text: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["exec", "-w", "localhost", *words, "--shell", text]) == code
    assert ("error: 1 of 1 host failed [hosts-failed]" in capfd.readouterr().err) == (code != 0)


def test_standard_input_is_for_each(given: Given, capfd: pytest.CaptureFixture[str]) -> None:
    given(b"typed\n")
    assert cli.main([*ON_THREE, "-I", "cat"]) == 0
    assert capfd.readouterr().out.count(": typed\n") == 3
    given(b"typed\n")
    assert cli.main(["exec", "-w", "localhost", "cat"]) == 0
    assert capfd.readouterr().out == ""


def test_no_more_hosts_at_once_than_that(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each says how many there are; and after the first failure nobody is begun."""
    text = "mkdir here && sleep 0.05 && rmdir here"
    assert cli.main([*ON_THREE, "--serial", "1", "--shell", text]) == 0
    capfd.readouterr()
    words = ["--serial", "1", "--max-fail", "1", "--failed-to", "a b", "--shell", "echo x; exit 3"]
    assert cli.main([*ON_THREE, *words]) == 3
    out, err = capfd.readouterr()
    assert out == "::1: x\n"
    assert err.splitlines() == [
        "error: 1 of 3 hosts failed, 2 not started [hosts-failed]",
        "  ::1                  exit code 3",
        "  127.0.0.1,localhost  not started: stopped after 1 failed",
        "  hint: --retry-failed 'a b'  # in place of the hosts: goes on with these",
    ]
    assert (tmp_path / "a b").read_text().splitlines()[1:] == [
        "::1  # exit code 3",
        "localhost  # not started: stopped after 1 failed",
        "127.0.0.1  # not started: stopped after 1 failed",
    ]


def test_where_it_stopped_it_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The canary fails; when it is mended, the file has who is left, and then nobody."""
    text = "echo $DISPATCH_INDEX >> ran; [ -e mended ]"
    words = ["--serial", "1,2", "-v", "--failed-to", "left", "--shell", text]
    assert cli.main([*ON_THREE, *words]) == 3
    assert (tmp_path / "ran").read_text() == "0\n"
    assert ": batch 1 of 2: ::1\n" in (err := capfd.readouterr().err)
    assert "127.0.0.1,localhost  not started: all of batch 1 failed" in err
    (tmp_path / "mended").touch()
    words[2:] = ["--delay", "0.01", "--retry-failed", "left", "--shell", text]
    assert cli.main(["exec", *words]) == 0
    assert (tmp_path / "ran").read_text().split() in (["0", "0", "1", "2"], ["0", "0", "2", "1"])
    assert cli.main(["exec", *words]) == 0
    assert capfd.readouterr().err == "note: left: no host failed the last time\n"


def test_variables_for_the_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERE", "it's")
    given = ["--env", "HERE", "--env", "p=a b=c", "--env", "NO=", "--env", "p=5"]
    show = "echo $HERE,$p,${NO-none}"
    for command in ("exec", "dsx"):
        assert cli.main([command, "-N", "-w", "localhost", *given, show]) == 0
        assert capfd.readouterr().out == "it's,5,\n"


def test_a_script_of_ours(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its arguments are its own, whatever they look like; %h is the host's name in them alone."""
    (tmp_path / "large").write_bytes(bytes(range(256)) * 1025)
    assert cli.main(["exec", "-w", "localhost", "--script", "large"]) == 2
    assert "--script: large: larger than 256 KiB" in capfd.readouterr().err
    (tmp_path / "%h").write_text('echo "${0##*/} $*"; exit $3')
    words = ["-S", "-P", "--script", "%h", "--", "a|b", "%h", "0"]
    assert cli.main(["exec", "-w", "localhost", *words]) == 0
    assert capfd.readouterr().out == "localhost: %h a|b localhost 0\n"
    assert cli.main(["exec", "-w", "localhost", "--dry-run", *words]) == 0
    does = "send %h and run /bin/sh %h 'a|b' localhost 0"
    assert capfd.readouterr().out == f"localhost (1): {does}\n"
    words[-1] = "127"  # which says nothing about our command line
    assert cli.main(["exec", "-w", "localhost", *words]) == 127
    assert "hint" not in capfd.readouterr().err
    assert cli.main(["dsx", "-w", "localhost", *words]) == 127
    assert cli.main(["dsx", "-w", "localhost", "--copy", *words]) == 2


def test_standard_input_that_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    kept, folder = os.dup(0), os.open(".", os.O_RDONLY)
    os.dup2(folder, 0)
    try:
        assert cli.main(["exec", "-w", "localhost", "-I", "cat"]) == 1
        assert cli.main(["exec", "-w", "localhost", "-I", "-S", "--shell", "cat; exit 7"]) == 7
    finally:
        os.dup2(kept, 0)
        for fd in (kept, folder):
            os.close(fd)
    assert capfd.readouterr().err.count("is a directory") == 2


def test_a_password_is_asked_for_where_sudo_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the progress stands still while it is typed."""
    seen: list[Any] = []

    class Runner:
        tell = staticmethod(lambda event: None)

        def __init__(self, plan: Any, transport_for: Any, sinks: Any, **more: Any) -> None:
            seen.append((plan, more))

        def run(self, handled: Any) -> Any:
            return [Exited(0)]

    monkeypatch.setattr(exec_session, "ExecRunner", Runner)
    monkeypatch.setattr(asking, "Asking", lambda: Ask(seen))
    assert cli.main(["exec", "-w", "localhost", "--sudo", "-l", "ml", "-N", "true"]) == 0
    [(plan, more)] = seen
    assert (plan.sudo, more["ask"](False), more["stdio"]) == ("root", b"secret", None)
    assert seen[1:] == ["password of ml for sudo: "]


class Ask:
    """In the place of a terminal."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def ask(self, prompt: str) -> str:
        self.seen.append(prompt)
        return "secret"

    def close(self) -> None: ...


# -- lists of hosts that failed ------------------------


def test_the_hosts_that_failed_are_written_and_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = '[ "$(mktemp -u)" ] && mkdir one 2>/dev/null && exit 3; exit 0'
    assert cli.main([*ON_THREE, "--serial", "1", "--failed-to", "failed", "--shell", text]) == 1
    assert (tmp_path / "failed").read_text() == (
        "# hosts that failed, or were not started, by dispatch exec\n::1  # exit code 3\n"
    )
    capfd.readouterr()
    assert cli.main(["exec", "--retry-failed", "failed", "--shell", "echo again"]) == 0
    assert capfd.readouterr().out == "::1: again\n"
    assert (tmp_path / "failed").read_text() == (
        "# hosts that failed, or were not started, by dispatch exec\n"
    )
    assert cli.main(["exec", "--retry-failed", "failed", "--shell", "echo again"]) == 0
    assert capfd.readouterr() == ("", "note: failed: no host failed the last time\n")


def test_who_is_left_out_this_time_stays_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "left"
    file.write_text("127.0.0.1 port=2222\nlocalhost\n::1\n")
    words = ["exec", "--retry-failed", "left", "--failed-to", "now", "-x"]
    assert cli.main([*words, "127.0.0.1", "sh", "-c", "[ $DISPATCH_HOST = ::1 ]"]) == 1
    failed = "localhost  # exit code 1\n"
    assert file.read_text().partition("\n")[2] == failed + "127.0.0.1 port=2222  # not done\n"
    assert (tmp_path / "now").read_text().partition("\n")[2] == failed


def test_a_list_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody is touched; and where that is seen at the end only, it is said then."""
    words = ["exec", "-w", "localhost", "-S", "--failed-to", "no/where", "--shell"]
    assert cli.main([*words, "touch here"]) == 2
    assert capfd.readouterr().err.startswith("error: no/where: no such file or directory")
    assert not (tmp_path / "here").exists()
    (tmp_path / "no").mkdir()
    assert cli.main([*words, "rm -r no"]) == 1
    (tmp_path / "no").mkdir()
    assert cli.main([*words, "rm -r no; exit 3"]) == 3
    said = capfd.readouterr().err
    assert said.splitlines()[-1] == "error: no/where: no such file or directory"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("# a\n\n  # b\n", None), ("# a\nn1\n", ["n1"]), ("n1 # why\n\nn2\n", ["n1", "n2"])],
)
def test_a_list_is_read(tmp_path: Path, text: str, hosts: list[str] | None) -> None:
    (tmp_path / "f").write_text(text)
    found = read("f", "--retry-failed")
    assert (found if found is None else [host.name for host in found.hosts]) == hosts


@pytest.mark.parametrize(
    ("text", "said"),
    [("", ""), (None, "--retry-failed: f: no such file or directory"), ("n[", "f:1:")],
)
def test_a_list_that_is_none(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "f").write_text(text)
    with pytest.raises(UsageError) as caught:
        read("f", "--retry-failed")
    assert caught.value.message.startswith(said)


# -- what the options mean ------------------------


@cases(
    ("options", "meant"),
    [
        (LimitOptions(), ExecLimits(login=120.0)),
        (LimitOptions(connect_timeout=3.0), ExecLimits(connect=3.0)),
        (LimitOptions(command_timeout=3.0), ExecLimits(login=120.0, command=3.0)),
        (LimitOptions(deadline=3.0), ExecLimits(login=120.0, total=3.0)),
        (LimitOptions(grace=0.0), ExecLimits(login=120.0, grace=0.0)),
        (LimitOptions(fanout=3), ExecLimits(login=120.0, fanout=3)),
        (LimitOptions(serial="3"), ExecLimits(login=120.0, serial="3")),
        (LimitOptions(max_fail="3%"), ExecLimits(login=120.0, max_fail="3%")),
        (LimitOptions(serial="1,5%", delay=2.0), ExecLimits(login=120.0, serial="1,5%", delay=2.0)),
        (ExecOptions(fanout_tree="auto"), ExecLimits(fanout=WINDOW)),
        (ExecOptions(fanout_tree="auto", fanout=5), ExecLimits(fanout=5)),
    ],
)
def test_limits(options: Any, meant: ExecLimits) -> None:
    assert limits(options) == meant


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["echo", "a b"], ("echo", "a b")),
        (["--", "-x"], ("-x",)),
        (["--shell", "echo $A"], ("/bin/sh", "-c", "echo $A")),
        (["echo $A"], ("/bin/sh", "-c", "echo $A")), (["~/x"], ("/bin/sh", "-c", "~/x")),
        (["echo", "$A"], ("echo", "$A")), (["/bin/x-1.2_3"], ("/bin/x-1.2_3",)),
        (["-P", "echo %h-%n %u %% %d %%h"],
         ("/bin/sh", "-c", "echo localhost-0 me % %d %h")),
        (["-P", "echo", "%h"], ("echo", "localhost")),
        (["-P", "/opt/fix-%h.sh", "%n"], ("/opt/fix-localhost.sh", "0")),
    ],
)  # fmt: skip
def test_what_is_run(
    parsed: Parsed, words: list[str], argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def carry_out(*given: Any, stay: Any) -> Any:
        seen.append(given)
        return 7, ()

    monkeypatch.setattr(run_exec, "carry_out", carry_out)
    options = parsed("exec", "-w", "localhost:3", "--sudo=ml", "-u", "5", *words)
    monkeypatch.setenv("LOGNAME", "me")
    assert run_exec.run(options) == 7
    ((plan, shown, reach, *_),) = seen
    assert plan.words_for(0) == argv
    assert (plan.sudo, plan.stdin, plan.terminal) == ("ml", False, None)
    assert plan.limits == ExecLimits(login=120.0, command=5.0)
    assert plan.names == ["localhost"]
    assert shown.sudo == "ml"
    assert reach.transport_for(plan.hosts[0]).name == "local"


def test_a_command_on_the_user_s_terminal(terminal: Terminal) -> None:
    terminal.take()
    text = "printf '\\033[2J'; stty size; printf '> '; read -r a; echo got $a"
    text += "; [ -t 0 ] && [ -t 1 ] && exit 5"

    def answer() -> None:
        terminal.until("24 80")
        terminal.until("> ")  # no whole line
        terminal.type("words\r")

    typist = threading.Thread(target=answer, daemon=True)
    typist.start()
    words = ["exec", "--pty", "-w", "localhost", "-S", "-u", "20", "--shell", text]
    assert cli.main(words) == 5
    typist.join(40)
    shown = terminal.leave()
    assert "\x1b[2J24 80" in shown  # whoever asked for the terminal gets what moves on it
    assert "got words" in shown
    assert "localhost:" not in shown
