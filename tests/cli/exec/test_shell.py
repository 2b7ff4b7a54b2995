"""What a line of ``dispatch shell`` orders."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.cli.exec import shell
from dispatcher.cli.exec.shell import Aim, Command, Help, Order, Quit, Show, order
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host

from ..conftest import Parsed

N1, N2, N3 = Host("n1", user="ml"), Host("n2"), Host("n3")
FIRST, NOW = (N1, N2), (N2, N3)


@pytest.mark.parametrize(
    ("line", "ordered"),
    [
        ("", None),
        ("  ", None),
        (" uptime | wc ", Command("uptime | wc")),
        ("!ls -l", Command("ls -l", local=True)),
        ("! ", None),
        ("quit", Quit()),
        ("exit", Quit()),
        (":quit", Quit()),
        (":exit", Quit()),
        ("quit now", Command("quit now")),
        ("?", Help()),
        ("? x", Command("? x")),
        (":gather", Show(True)),
        (": no-gather", Show(False)),
        (":live", Show(False)),  # as it was called before
        ("=all", Aim(FIRST)),
        ("= all", Aim(FIRST)),
        ("=n3", Aim((N3,))),
        ("=n1", Aim((N1,))),  # reached as it was at the start
        ("+n1", Aim((N2, N3, N1))),
        ("+n3,n1", Aim((N2, N3, N1))),
        ("-n3", Aim((N2,))),
        ("-n9", Aim((N2, N3))),
    ],
)
def test_orders(line: str, ordered: Order | None) -> None:
    assert order(line, NOW, FIRST) == ordered


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (":frob", ":frob: there is no such word"),
        ("+", "+: which hosts?"),
        ("-", "-: which hosts?"),
        ("=", "=: which hosts?"),
        ("-n[2-3]", "no host would be left"),
        ("=n[3-1]", ""),
    ],
)
def test_no_orders(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        order(line, NOW, FIRST)
    assert caught.value.message.startswith(said)


class TestObey:
    @pytest.fixture
    def one(self, parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> shell.Shell:
        self.ran: list[tuple[Any, ...]] = []

        def carry_out(plan: Any, options: Any, reach: Any) -> int:
            self.ran.append(([h.name for h in plan.hosts], plan.words, options.gather))
            return 7

        monkeypatch.setattr(shell, "carry_out", carry_out)
        return shell.Shell(FIRST, parsed("shell", "-w", "n1"), reach=None)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("line", "goes_on"), [("quit", False), ("", True), ("=n2", True)])
    def test_it_goes_on_until_quit(self, one: shell.Shell, line: str, goes_on: bool) -> None:
        assert one.obey(line) is goes_on

    def test_a_command_is_shell_text_for_the_hosts_of_now(self, one: shell.Shell) -> None:
        for line in ("=n2", "uptime", ":no-gather", "+n3", "date"):
            assert one.obey(line)
        assert self.ran == [
            (["n2"], ("/bin/sh", "-c", "uptime"), True),
            (["n2", "n3"], ("/bin/sh", "-c", "date"), False),
        ]
        assert one.code == 7

    def test_a_local_command_and_a_mistake_give_their_codes(
        self, one: shell.Shell, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert one.obey("!exit 5")
        assert one.code == 5
        assert one.obey("!kill -9 $$")
        assert one.code == 137
        assert one.obey(":frob")
        assert one.code == 2
        assert "no such word" in capsys.readouterr().err
        assert self.ran == []

    def test_help_names_the_hosts(
        self, one: shell.Shell, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert one.obey("?")
        assert capsys.readouterr().out.startswith("n[1-2] (2)\n")

    def test_the_prompt_and_what_completes_a_word(self, one: shell.Shell) -> None:
        assert one._prompt() == "n[1-2]> "
        one.obey("=" + ",".join(f"{c}-{c * 3}" for c in "abcdefghi"))
        assert one._prompt() == "9 hosts> "
        words = one.words()
        assert {"n1", "+n1", "-n1", "=n1", "b-bbb", "quit", "=all"} <= set(words)
        assert words == sorted(set(words))
