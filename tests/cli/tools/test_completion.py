"""What a shell is told may follow, asked as the shells ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.tools import completion
from dispatcher.cli.tools.completion_words import Item

KNOWN_HOSTS = """\
# a comment
gpu01,10.0.0.1 ssh-ed25519 AAAA
[gpu02]:2222 ssh-ed25519 AAAA
|1|abc=|def= ssh-ed25519 AAAA
@cert-authority *.site ssh-ed25519 AAAA
"""
CONFIG = """\
Host login web-?
    HostName 10.0.0.9
host=store !web
"""


@pytest.fixture
def asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> object:
    """Ask as bash does: the words, and the number of the one at the cursor."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(KNOWN_HOSTS)
    (tmp_path / ".ssh" / "config").write_text(CONFIG)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DISPATCH_SSH_CONFIG", raising=False)

    def ask(words: str, at: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv("_DISPATCH_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", at)
        assert cli.main([]) == 0
        return capsys.readouterr().out.splitlines()

    return ask


@pytest.mark.parametrize(
    ("words", "at", "wanted"),
    [
        ("dispatch exe", "1", ["file,exe", "plain,exec"]),
        ("dispatch tr", "1", ["file,tr"]),
        ("dispatch --max-r", "1", ["plain,--max-restarts"]),
        ("dispatch run --max-r", "2", ["plain,--max-restarts"]),
        (
            "dispatch -H hosts --map-by ",
            "4",
            [f"plain,{word}" for word in ("slot", "node", "numa", "socket", "core", "gpu")],
        ),
        ("dispatch exec --command-t", "2", ["plain,--command-timeout"]),
        ("dispatch -H gpu", "2", ["file,gpu", "plain,gpu01", "plain,gpu02"]),
        ("dispatch -H gpu01,st", "2", ["file,gpu01,st", "plain,gpu01,store"]),
        ("dispatch exec -w l", "3", ["plain,login"]),
    ],
)
def test_bash(asked: object, words: str, at: str, wanted: list[str]) -> None:
    assert callable(asked)
    found = asked(words, at)
    assert [line for line in found if "10.0" not in line] == wanted


def test_fish_names_the_word_itself(asked: object) -> None:
    assert callable(asked)
    assert [line.partition("\t")[0] for line in asked("dispatch exe", "exe", "fish")] == [
        "file,exe",
        "plain,exec",
    ]


@cases("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_loads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_DISPATCH_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "word", "wanted"),
    [
        ("dispatch --map-by=no", "no", ["plain,node"]),  # bash leaves what stands before
        ("dispatch --map-by=no", "--map-by=no", ["plain,--map-by=node"]),
        ("dispatch exec -w 'logi", "'logi", ["plain,login"]),
        ("dispatch exec -w gpu01,st", "elsewhere", ["plain,gpu01,store"]),
        ("dispatch", "", ["file,"]),
        ("", "", ["file,"]),
    ],
)
def test_bash_gives_the_line_and_what_it_will_replace(
    asked: object, monkeypatch: pytest.MonkeyPatch, line: str, word: str, wanted: list[str]
) -> None:
    assert callable(asked)
    monkeypatch.setenv("_DISPATCH_LINE", line)
    monkeypatch.setenv("_DISPATCH_WORD", word)
    assert asked("", "")[: len(wanted)] == wanted


def test_zsh_gets_three_lines_a_word(asked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(asked)
    monkeypatch.setenv("_DISPATCH_LINE", "dispatch man exe")
    assert asked("", "", "zsh") == ["plain", "exec", "Run a command once on every host."]
    monkeypatch.setenv("_DISPATCH_LINE", "dispatch --per-n")
    text = asked("", "", "zsh")[2]
    assert text.startswith("Start one process per host, for a program")
    assert len(text) == 78
    monkeypatch.setenv("_DISPATCH_LINE", "dispatch --map-by no")
    assert asked("", "", "zsh") == ["plain", "node", "_"]


@cases("instruction", ["tcsh_complete", "bash_sing", "bash", ""])
def test_an_instruction_that_is_none(
    instruction: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DISPATCH_COMPLETE", instruction)
    assert cli.main([]) == 1
    assert capsys.readouterr().out == ""


@cases(
    ("text", "words"),
    [
        ("a b", ["a", "b"]),
        ("a 'b c", ["a", "b c"]),
        ('a "b\\"c', ["a", 'b"c']),
        ("a b\\ c", ["a", "b c"]),
        ("a #b", ["a", "#b"]),
        ("", []),
    ],
)
def test_words_as_a_shell_sees_them(text: str, words: list[str]) -> None:
    assert completion.split(text) == words


@cases(
    ("words", "cursor", "shell", "before", "typed"),
    [
        ("dispatch ex -w n1", "1", "bash", [], "ex"),  # what stands behind the cursor is not asked
        ("dispatch exec -w n1", "3", "zsh", ["exec", "-w"], "n1"),
        ("dispatch exec ", "2", "bash", ["exec"], ""),
        ("dispatch exec", "x", "bash", ["exec"], ""),
        ("dispatch exec", "", "bash", ["exec"], ""),
        ("", "", "bash", [], ""),
        ("dispatch exec -w", "-w", "fish", ["exec"], "-w"),
        ("dispatch exec ", "", "fish", ["exec"], ""),
        ("dispatch exec -w", "n1", "fish", ["exec", "-w"], "n1"),
    ],
)
def test_how_older_scripts_ask(
    words: str, cursor: str, shell: str, before: list[str], typed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", cursor)
    monkeypatch.delenv("_DISPATCH_LINE", raising=False)
    assert completion._line(shell) == (before, typed, 0)


@cases(
    ("line", "word", "found"),
    [
        ("dispatch exec -w n1", None, (["exec", "-w"], "n1", 0)),
        ("dispatch exec ", None, (["exec"], "", 0)),
        ("dispatch", None, ([], "", 0)),
        ("dispatch --map-by=no", "no", (["--map-by=no"][:0], "--map-by=no", 9)),
        ("dispatch -w 'a,b", "'a,b", (["-w"], "a,b", 0)),
        ("dispatch -w a,b", "other", (["-w"], "a,b", 0)),
        ("dispatch -w a,b", "", (["-w"], "a,b", 3)),
    ],
)
def test_what_stands_before_the_cursor(
    line: str, word: str | None, found: tuple[list[str], str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("_DISPATCH_LINE", line)
    if word is None:
        monkeypatch.delenv("_DISPATCH_WORD", raising=False)
    else:
        monkeypatch.setenv("_DISPATCH_WORD", word)
    assert completion._line("bash") == found


@cases(
    ("shell", "item", "shown"),
    [
        ("bash", Item("a:b", told="Words."), "plain,a:b"),
        ("fish", Item("a:b", told="Some\n  words."), "plain,a:b\tSome words."),
        ("fish", Item("a"), "plain,a"),
        ("zsh", Item("a:b", told="Words."), "plain\na\\:b\nWords."),
        ("zsh", Item("a:b"), "plain\na:b\n_"),
        ("zsh", Item("x", "dir"), "dir\nx\n_"),
        ("fish", Item("a", told="x" * 78), "plain,a\t" + "x" * 78),
        ("fish", Item("a", told="x" * 79), "plain,a\t" + "x" * 75 + "..."),
    ],
)
def test_a_word_in_each_shell_s_way(shell: str, item: Item, shown: str) -> None:
    assert completion._shown(shell, item) == shown


@cases("shell", ["bash", "zsh", "fish"])
def test_a_shell_may_ask_for_its_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    monkeypatch.setenv("_DISPATCH_COMPLETE", f"{shell}_source")
    assert cli.main([]) == 0
    assert capsys.readouterr().out == printed
