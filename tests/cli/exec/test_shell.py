"""What a line of ``dispatch shell`` orders."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.exec import shell
from dispatcher.cli.exec.shell import aimed
from dispatcher.core.events.exec_events import Exited
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.output.exec.host_results import HostResult
from dispatcher.plan.exec_plan import ExecLimits

from ..conftest import Parsed

N1, N2, N3 = Host("n1", user="ml"), Host("n2"), Host("n3")
FIRST, NOW = (N1, N2), (N2, N3)


@cases(
    ("line", "hosts"),
    [
        ("=all", FIRST),
        ("=n3", (N3,)),
        ("=n1", (N1,)),  # reached as it was at the start
        ("+n1", (N2, N3, N1)),
        ("+n3,n1", (N2, N3, N1)),
        ("-n3", (N2,)),
        ("-n9", (N2, N3)),
    ],
)
def test_which_hosts_are_meant(line: str, hosts: tuple[Host, ...]) -> None:
    assert aimed(line[0], line[1:], NOW, FIRST) == hosts


@cases(
    ("line", "said"),
    [
        ("+", "+: which hosts?"),
        ("-", "-: which hosts?"),
        ("=", "=: which hosts?"),
        ("-n[2-3]", "no host would be left"),
        ("=n[3-1]", ""),
    ],
)
def test_hosts_that_cannot_be_meant(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        aimed(line[0], line[1:], NOW, FIRST)
    assert caught.value.message.startswith(said)


class TestObey:
    @pytest.fixture
    def one(self, parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> shell.Shell:
        self.ran: list[tuple[Any, ...]] = []

        def carry_out(plan: Any, options: Any, reach: Any, streams: Any) -> Any:
            self.ran.append(([h.name for h in plan.hosts], plan.words, options.gather))
            assert (plan.sudo, plan.limits) == ("ml", ExecLimits(login=120.0, command=5.0))
            assert (reach, options.lists, options.verbose) == ("reach", ("n1",), True)
            return 7, ()

        monkeypatch.setattr(shell, "carry_out", carry_out)
        options = parsed("shell", "-w", "n1", "--sudo=ml", "-u", "5", "-v")
        return shell.Shell(FIRST, options, reach="reach")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("line", "goes_on"),
        [("quit", False), ("exit", False), (":quit", False), (" :exit", False),
         ("", True), (" ", True), ("! ", True), ("=n2", True)],
    )  # fmt: skip
    def test_it_goes_on_until_quit(self, one: shell.Shell, line: str, goes_on: bool) -> None:
        assert one.obey(line) is goes_on

    def test_a_command_is_shell_text_for_the_hosts_of_now(self, one: shell.Shell) -> None:
        for line in ("=n2", " uptime | wc ", ": no-gather", "+n3", "quit now", "= all", "? x",
                     "cd /tmp; ls", "cdrecord x"):  # fmt: skip
            assert one.obey(line)
        assert self.ran == [
            (["n2"], ("/bin/sh", "-c", "uptime | wc"), True),
            (["n2", "n3"], ("/bin/sh", "-c", "quit now"), False),
            *(
                (["n1", "n2"], ("/bin/sh", "-c", text), False)
                for text in ("? x", "cd /tmp; ls", "cdrecord x")
            ),
        ]
        assert one.code == 7

    def test_options_of_exec_hold_here_too(
        self, parsed: Parsed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[Any] = []

        def carry_out(*given: Any) -> tuple[int, tuple[()]]:
            ran.append(given[:2])
            return 7, ()

        monkeypatch.setattr(shell, "carry_out", carry_out)
        options = parsed("shell", "-w", "n1", "-PNS")
        one = shell.Shell(FIRST, options, reach="reach")  # type: ignore[arg-type]
        one.obey("echo %h %n")
        one._places = {host.place: ("/a/%h", "") for host in FIRST}
        one.obey("echo %h")
        (plan, shown), (there, _) = ran
        assert [plan.words_for(node)[2:] for node in (0, 1)] == [("echo n1 0",), ("echo n2 1",)]
        assert there.words_for(1)[3:] == ("sh", "/a/%h", "")
        assert there.words_for(1)[2].endswith("\necho n2")
        assert (shown.no_label, shown.max_code, shown.gather) == (True, True, False)
        for words, gather in (("-T", False), ("-L", False), ("-bL", True), ("-B", True)):
            options = parsed("shell", "-w", "n1", words)
            assert shell.Shell(FIRST, options, reach="reach")._gather is gather  # type: ignore[arg-type]

    def test_a_local_command_and_a_mistake_give_their_codes(
        self, one: shell.Shell, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert one.obey("!exit 5")
        assert one.code == 5
        assert one.obey("!kill -9 $$")
        assert one.code == 137
        assert one.obey(":frob")
        assert one.code == 2
        assert "unknown word" in capsys.readouterr().err
        assert self.ran == []

    def test_help_names_the_hosts(
        self, one: shell.Shell, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert one.obey("?")
        out = capsys.readouterr().out
        assert out.startswith("n[1-2] (2)\n    uptime -p ")
        assert out.endswith("    quit              the end, like Ctrl-D\n")

    def test_the_prompt_and_what_completes_a_word(self, one: shell.Shell) -> None:
        assert one._prompt() == "n[1-2]> "
        one.obey("=" + ",".join(f"{c}-{c * 3}" for c in "abcdefghi"))
        assert one._prompt() == "9 hosts> "
        words = one.words()
        assert {"n1", "+n1", "-n1", "=n1", "b-bbb", "quit", "=all"} <= set(words)
        assert words == sorted(set(words))

    def test_each_host_is_asked_once_where_a_folder_is(
        self, parsed: Parsed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ran: list[tuple[str, dict[str, tuple[str, ...]]]] = []
        said = iter(["/n1/a\n", "/n2/a\n", "/n1/a/b\n", "", "/n2/b\n", "/n1/y\n", "y\n"])

        def carry_out(plan: Any, options: Any, reach: Any, streams: Any) -> Any:
            text = "cd" if plan.words[2].endswith(shell._GO) else plan.words[2].split("\n")[-1]
            tails = plan.tails or ((),) * len(plan.hosts)
            ran.append((text, {h.name: t for h, t in zip(plan.hosts, tails, strict=True)}))
            answers = [next(said).encode() for _ in plan.hosts if streams]
            results = [HostResult("", n, Exited(0), 0.0, one) for n, one in enumerate(answers)]
            return 0 if all(answers) else 1, results

        monkeypatch.setattr(shell, "carry_out", carry_out)
        reach: Any = None
        one = shell.Shell(FIRST, parsed("shell", "-w", "n1"), reach)
        for line in ("cd $(mktemp -d)", "=n1", "cd b # c", "ls", "=all", "=all", "ls", "cd y"):
            assert one.obey(line)
        new = ("", "")
        assert ran == [
            ("cd", {"n1": (*new, "cd $(mktemp -d)"), "n2": (*new, "cd $(mktemp -d)")}),
            ("cd", {"n1": ("/n1/a", "", "cd b # c")}),
            ("ls", {"n1": ("/n1/a/b", "/n1/a")}),
            ("cd", {"n2": (*new, "cd $(mktemp -d)", "cd b # c")}),  # it cannot, and stays away
            ("cd", {"n2": (*new, "cd $(mktemp -d)", "cd b # c")}),
            ("ls", {"n1": ("/n1/a/b", "/n1/a"), "n2": ("/n2/b", "")}),
            ("cd", {"n1": ("/n1/a/b", "/n1/a", "cd y"), "n2": ("/n2/b", "", "cd y")}),
        ]
        assert "n2: it did not report its folder after cd y" in capsys.readouterr().err
        assert one._places["n2", None] == ("/n2/b", "")

    def test_ctrl_c_is_a_local_command_s_own(
        self, one: shell.Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Process:
            def __init__(self, argv: list[str]) -> None:
                assert argv == ["/bin/sh", "-c", "sleep 9"]
                self.codes: list[int | None] = [None, None, 4]

            def wait(self) -> int:
                code = self.codes.pop(0)
                if code is None:
                    raise KeyboardInterrupt
                return code

        monkeypatch.setattr(shell.subprocess, "Popen", Process)  # type: ignore[attr-defined]
        assert one.obey("!sleep 9")
        assert one.code == 4


# -- at a terminal ------------------------------------------------------------------------


@pytest.fixture
def readline(monkeypatch: pytest.MonkeyPatch) -> Any:
    """In the place of Python's: what is told to it, what it was asked to remember."""
    module: Any = ModuleType("readline")
    module.told = []
    module.completer = None
    module.buffer, module.begin = "", 0

    def read_history_file(path: Path) -> None:
        module.told.append(("read", Path(path).read_text()))

    def write_history_file(path: Path) -> None:
        with open(path, "a") as file:
            file.write("line\n")

    def set_completer(function: Any) -> None:
        module.completer = function

    module.read_history_file = read_history_file
    module.write_history_file = write_history_file
    module.set_completer = set_completer
    for name in ("set_history_length", "set_completer_delims", "parse_and_bind"):
        setattr(module, name, lambda value, name=name: module.told.append((name, value)))
    module.get_line_buffer = lambda: module.buffer
    module.get_begidx = lambda: module.begin
    monkeypatch.setitem(sys.modules, "readline", module)
    return module


def test_lines_are_remembered_for_the_user_alone(
    readline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = tmp_path / "dispatch" / "shell_history"
    for known in (False, True):
        with shell.edited(lambda: ["n1"]) as save:
            assert (("read", "line\n") in readline.told) is known
            assert readline.completer is not None
            save()
        assert readline.completer is None
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert history.read_text() == "line\nline\n"
    assert ("set_history_length", shell.MOST_LINES) in readline.told
    assert ("parse_and_bind", "tab: complete") in readline.told
    with pytest.raises(ZeroDivisionError), shell.edited(list):
        raise ZeroDivisionError
    assert readline.completer is None


def test_a_history_that_cannot_be_kept_is_none(
    readline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / "dispatch").mkdir(mode=0o700)
    (tmp_path / "dispatch" / "shell_history").symlink_to(tmp_path / "elsewhere")
    with shell.edited(list) as save:
        save()
    assert (tmp_path / "elsewhere").read_text() == "mine\n"


def test_without_readline_lines_are_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "readline", None)
    with shell.edited(list) as save:
        assert callable(save)
        save()


# -- over this machine ----------------------------------------------------------------------


Typed = Callable[[str], "tuple[int, str, str]"]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Typed:
    """``piped(text)``: the shell reads that, and not from a terminal."""

    def call(text: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        monkeypatch.setattr(os, "isatty", lambda fd: False)
        code = cli.main(["shell", "-w", "localhost,127.0.0.1"])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_lines_of_a_pipe_are_commands(piped: Typed) -> None:
    code, out, err = piped("echo x\n:no-gather\n=localhost\necho y; exit 5\n")
    assert code == 1
    assert out.endswith("127.0.0.1,localhost (2)\n---------------\nx\nlocalhost: y\n")
    assert "localhost" in err


def test_the_last_command_counts_and_quit_leaves(piped: Typed) -> None:
    assert piped("exit 3\ntrue\nquit\nexit 4\n")[0] == 0
    assert piped("")[0] == 0


def test_a_closed_standard_input_has_no_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of ``dispatch shell <&-``."""
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    assert cli.main(["shell", "-w", "localhost"]) == 0
    assert capfd.readouterr() == ("", "")


@cases("words", [["-u", "x"], ["--sudo=a b"], ["--keep=0"], []])
def test_refusals(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    where = ["-w", "localhost"] if words else []
    assert cli.main(["shell", *where, *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
