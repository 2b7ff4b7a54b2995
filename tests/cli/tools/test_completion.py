"""What a shell is told may follow; real shells ask for it in tests/runs/cli/test_tab_key.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load_command
from dispatcher.cli.tools import completion
from dispatcher.model import hostset

FILES = "<file>"
DIRS = "<dir>"


@pytest.fixture(autouse=True)
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hosts, groups, jobs and profiles, and a hostfile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)
    monkeypatch.delenv("DISPATCH_HOSTFILE", raising=False)
    (tmp_path / "hf").write_text("n1\nn2 slots=8\n")
    (tmp_path / "dispatch.toml").write_text(
        "[profile.night.run]\nnp = 2\n[profile.day]\n"
        "[profile.'fast;touch hit;#'.run]\n[profile.'$(touch hit)']\n"  # Enter would run these
    )
    hosts = {None: ["gpu01", "login"], "own": ["mine"]}
    jobs = [("20260131-142501-k3f9x2", "lr-3", "running: train.py")]
    monkeypatch.setattr(completion, "known_hosts", lambda config=None: hosts[config])
    monkeypatch.setattr(hostset, "group_names", lambda typed: ["@gpu", "@all"])
    monkeypatch.setattr(completion, "jobs", lambda: jobs)


def offered(line: str) -> list[str]:
    """The words that may follow; the last of ``line`` is the one that is being typed."""
    *words, typed = line.split(" ")
    found = completion.asked_by("fish").get_completions(words, typed)
    return [{"file": FILES, "dir": DIRS}.get(one.type, one.value) for one in found]


@cases(
    ("line", "wanted"),
    [
        ("exe", [FILES, "exec"]), ("he", [FILES, "help"]), ("help exe", ["exec"]),
        ("help exec ", []), ("config exe", ["exec"]),
        # names of options, each once unless it may be repeated
        ("--max_r", ["--max-restarts"]), ("-n", ["-n"]), ("--np 2 --np", ["--nproc-per-node"]),
        ("--env-file a --env-f", ["--env-file"]),
        ("jobs --", ["--all", "--json", "--profile", "--help"]),
        # their values
        ("--map-by ", ["core", "gpu", "node", "numa", "slot", "socket"]),
        ("--map-by=s", ["--map-by=slot", "--map-by=socket"]), ("--stdin ", ["none", "all"]),
        ("--nproc-per-node ", ["auto", "gpu"]), ("--launcher a", ["accelerate"]),
        ("--omp k", ["keep"]), ("--np ", []), ("--log-dir ", [DIRS]), ("exec -o ", [DIRS]),
        ("check --rounds ", ["all"]), ("--profile ", ["day", "night"]),
        # a value that may be left out
        ("exec --sudo ls", [FILES]), ("exec --keep --seri", ["--serial"]),
        # hosts
        ("-H ", [FILES, "gpu01", "login"]), ("-w gpu01,", ["gpu01,login"]),
        ("-w gpu01!l", ["gpu01!login"]), ("-w @a", ["@all"]), ("-w @", ["@gpu", "@all"]),
        ("exec -x gpu01,@", ["gpu01,@gpu", "gpu01,@all"]), ("exec -F own -w ", ["mine"]),
        ("exec --hostfile=hf -x n", ["n1", "n2"]),
        ("-H hf --include n1@", ["n1@n2", "n1@gpu01", "n1@login"]), ("hosts lo", ["login"]),
        # jobs
        ("logs ", ["k3f9x2", "latest", "lr-3"]), ("logs k3f9x2 ", []),
        ("logs --rank 0 k", ["k3f9x2"]), ("sweep ", ["20260131-142501-k3f9x2"]),
        ("restart ", ["k3f9x2", "latest", "lr-3"]), ("restart k3f9x2 -- ", [FILES]),
        ("stop lr", ["lr-3"]),
        # programs and files
        ("-H hf tr", [FILES]), ("-H hf train.py --np", [FILES]), ("exec -w n1 -- --np", [FILES]),
        ("put -w n1 a ", [FILES]), ("completion z", ["zsh"]), ("completion zsh ", []),
        ("import -- t", [FILES, "torchrun"]), ("import -- torchrun t", [FILES]),
        ("report ", [FILES, "k3f9x2", "latest", "lr-3"]), ("explain rank-f", ["rank-failed"]),
        ("explain rank-failed ", []), ("connect x", []),
    ],
)  # fmt: skip
def test_what_may_follow(line: str, wanted: list[str]) -> None:
    assert sorted(offered(line)) == sorted(wanted)


def test_options_that_take_hosts_are_there() -> None:
    fields = {one.name for name in COMMANDS for one in load_command(name).params}
    assert set(completion.HOSTS) <= fields


@cases(
    ("shell", "line", "word", "printed"),
    [
        ("bash", "dispatch exe", "exe", ["file,exe", "plain,exec"]),
        ("bash", "dispatch --map-by=no", "no", ["plain,node"]),  # bash leaves what stands before
        ("bash", "dispatch --map-by=no", "--map-by=no", ["plain,--map-by=node"]),
        ("bash", "dispatch exec -w 'logi", "'logi", ["plain,login"]),
        ("bash", "dispatch exec -w gpu01,lo", "elsewhere", ["plain,gpu01,login"]),
        ("bash", "/usr/bin/dsx -w gpu01,@al", "al", ["plain,all"]),
        ("bash", "dispatch -n ", "", [""]),
        ("zsh", "dispatch config exe", "",
         ["plain", "exec", "Run a command once on every host."]),
        ("zsh", "dispatch --map-by no", "", ["plain", "node", "_"]),
        ("fish", "dispatch stop k", "", ["plain,k3f9x2\trunning: train.py"]),
    ],
)  # fmt: skip
def test_each_shell_asks_with_the_line(
    shell: str, line: str, word: str, printed: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("_DISPATCH_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("_DISPATCH_LINE", line)
    monkeypatch.setenv("_DISPATCH_WORD", word)
    assert cli.main([]) == 0
    assert capsys.readouterr().out.splitlines() == printed


@cases(
    ("shell", "words", "at"),
    [
        ("bash", "dispatch exe -w n1", "1"),  # what stands behind the cursor is not asked
        ("zsh", "dispatch exe", "1"),
        ("fish", "dispatch exe", "exe"),
    ],
)
def test_or_with_words_as_scripts_of_click_do(
    shell: str, words: str, at: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("_DISPATCH_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", at)
    assert cli.main([]) == 0
    out, err = capsys.readouterr()
    assert "exec" in out
    assert err == ""


@cases("instruction", ["tcsh_complete", "bash_sing", "bash", "", "bash_complete"])
def test_an_instruction_that_is_none(
    instruction: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DISPATCH_COMPLETE", instruction)
    assert cli.main([]) == 1
    assert capsys.readouterr().out == ""


@cases("shell", ["bash", "zsh", "fish"])
def test_a_shell_may_ask_for_its_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert f"_DISPATCH_COMPLETE={shell}_complete" in printed
    assert "dsx" in printed
    monkeypatch.setenv("_DISPATCH_COMPLETE", f"{shell}_source")
    assert cli.main([]) == 0
    assert capsys.readouterr().out == printed
