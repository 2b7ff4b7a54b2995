"""One spelling for one thing over all commands; an older one is still taken, with a note."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import click
import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load
from dispatcher.cli.help import page, sections
from dispatcher.cli.options.spelling import RENAMED, filled, respelled

#: words -> exit code, standard output, standard error
Dispatch = Callable[..., "tuple[int, str, str]"]


def names(about: click.Command) -> set[str]:
    return {name.lstrip("-") for parameter in about.params for name in parameter.opts}


#: (command, old name, new name), of all commands that have the option
OLD = [
    (name, old, new)
    for name in COMMANDS
    for old, new in RENAMED.items()
    if new in names(load(name))
]


@pytest.fixture
def dispatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Dispatch:
    """dispatch.toml of the current folder, that of the test, is read, and no other."""
    monkeypatch.delenv("DISPATCH_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@cases(
    ("name", "words", "wanted"),
    [
        ("run", ["-np", "4", "--tree", "a.py", "-np", "5"],
         ["--np", "4", "--fanout-tree", "a.py", "-np", "5"]),
        ("run", ["-x", "-np", "a.py"], ["-x", "-np", "a.py"]),  # the value of an option
        ("run", ["-H", "n1", "--", "-np"], ["-H", "n1", "--", "-np"]),
        ("exec", ["-np", "22", "true"], ["-np", "22", "true"]),  # -n and -p 22
        ("exec", ["-wdir", "true"], ["-wdir", "true"]),  # a host
        ("run", ["-wdira", "-n16", "a.py", "-ppn"], ["-wdira", "-n16", "a.py", "-ppn"]),
    ],
)  # fmt: skip
def test_mpirun_s_own_spelling(name: str, words: list[str], wanted: list[str]) -> None:
    assert respelled(load(name), words) == wanted


def test_a_name_is_old_or_in_use() -> None:
    assert {old for _, old, _ in OLD} == set(RENAMED)
    for name in COMMANDS:
        assert not names(load(name)) & set(RENAMED), name


@cases(("name", "old", "new"), OLD)
def test_an_old_name_is_taken_with_a_note(
    name: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about = load(name)
    option = next(one for one in about.params if f"--{new}" in one.opts)
    assert isinstance(option, click.Option)
    value = [] if option.is_flag else ["7"]
    for spelled in (f"--{old}", f"--{old}".replace("-", "_").replace("__", "--", 1)):
        assert respelled(about, [spelled, *value]) == [f"--{new}", *value]
        assert capsys.readouterr().err == f"note: {spelled} is now --{new}\n"
    if value:
        assert respelled(about, [f"--{old}=7"]) == [f"--{new}=7"]
        capsys.readouterr()
    assert respelled(about, [f"--{new}", *value]) == [f"--{new}", *value]
    assert capsys.readouterr().err == ""


def test_an_old_name_may_lack_its_value_as_the_new_one_may() -> None:
    put = load("put")
    words = respelled(put, ["--tree", "a", "--tree=2", "b"])
    assert words == ["--fanout-tree", "a", "--fanout-tree=2", "b"]
    assert filled(put, words) == ["--fanout-tree=", "a", "--fanout-tree=2", "b"]


def test_what_follows_the_program_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (
        ("run", ["-x", "--alive", "train.py", "--alive", "3", "--tree"]),
        ("exec", ["-w", "n1", "--", "--alive", "3"]),
        ("exec", ["-w", "--alive", "echo", "--alive", "-w"]),
    ):
        assert respelled(load(name), words) == words
        assert filled(load(name), words)[-3:] == words[-3:]
    assert capsys.readouterr().err == ""


def test_options_behind_words_where_they_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert respelled(load("check"), ["train.py", "--over", "nccl", "--", "--over"]) == [
        "train.py", "--backend", "nccl", "--", "--over",
    ]  # fmt: skip
    assert capsys.readouterr().err == "note: --over is now --backend\n"


def test_a_command_by_an_old_name_does_the_same(dispatch: Dispatch) -> None:
    words = ("--alive", "5", "--fan-out=3", "-w", "localhost", "echo", "--alive")
    code, out, err = dispatch("exec", *words)
    assert (code, out) == (0, "localhost: --alive\n")
    notes = ["note: --alive is now --server-alive-interval", "note: --fan-out is now --fanout"]
    assert err.splitlines() == notes


def test_an_old_word_of_the_shell(dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(":live\necho same\n"))
    monkeypatch.setattr("os.isatty", lambda fd: False)
    assert dispatch("shell", "-w", "localhost") == (
        0, "localhost: same\n", "note: :live is now :no-gather\n",
    )  # fmt: skip


@pytest.mark.parametrize("key", ["beats-lost", "beats_lost"])
def test_an_old_key_of_a_file(key: str, tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "dispatch.toml").write_text(f"[run]\n{key} = 0\n[all]\nfan-out = 4\n")
    code, _, err = dispatch("-H", "localhost:1", "--dry-run", "--no-python", "true")
    assert f"note: dispatch.toml [run]: {key} is now max-missed-heartbeats\n" in err
    assert "note: dispatch.toml [all]: fan-out is now fanout\n" in err
    assert code == 2
    assert f"error: dispatch.toml [run]: {key}: 0 is not between" in err
    # where a command has no such option, nothing is said of it
    assert "note" not in dispatch("hosts", "n1")[2]


def test_an_old_key_wins_or_loses_as_the_new_one_would(tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "dispatch.toml").write_text("[all]\nfanout = 4\n[exec]\nfan-out = 5\n")
    assert dispatch("config", "exec")[1] == '--fanout  "5"  dispatch.toml [exec]\n'


def test_a_folders_file_may_say_no_more_by_an_old_name() -> None:
    from dispatcher.cli.options import config_trust

    classified = config_trust.ALLOWED | set(config_trust.REFUSED)
    assert set(RENAMED.values()) <= classified
    assert not set(RENAMED) & classified


@cases("name", COMMANDS)
def test_no_help_shows_an_old_name(name: str) -> None:
    about = load(name)
    context = click.Context(about, info_name=name, **about.context_settings)
    shown = page(context, brief=False).split()
    assert not {f"--{old}" for old in RENAMED} & {word.strip(".,;:()") for word in shown}


def test_help_shows_options_by_subject() -> None:
    """In so many that a reader looks for the subject first; in the manual as well."""
    about = load("run")
    found = sections(about, click.Context(about, **about.context_settings))
    assert list(found)[:4] == ["Hosts", "Program", "Ranks", "Environment"]
    assert max(map(len, found.values())) <= 13
    assert {names.split()[0] for names, _ in found["Other"]} <= {
        "--version",
        "--profile",
        "-h",
        "--help",
    }
    context = click.Context(about, info_name="dispatch run", **about.context_settings)
    lines = page(context, brief=False).splitlines()
    assert [line[:-1] for line in lines if line[:1].strip() and line[-1:] == ":"] == (
        ["Examples", *found]
    )


# -- -H and -w ------------------------


def hosts_of_run(dispatch: Dispatch, *words: str) -> tuple[list[str], str]:
    code, out, err = dispatch(*words, "--dry-run", "--json", "--no-python", "true")
    plan = promises.told(out) if code == 0 else {"nodes": []}
    return [f"{node['host']}:{len(node['ranks'])}" for node in plan["nodes"]], err


def test_hosts_of_a_run_by_list_and_by_file(tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "hostfile").write_text("n1 slots=2\n")
    (tmp_path / "n3").write_text("output of n3\n")
    for words, wanted in (
        (["-w", "n[1-2]:2,n4:1"], ["n1:2", "n2:2", "n4:1"]),
        (["-w", "n1:1", "--hosts=n4:1"], ["n1:1", "n4:1"]),
        (["-H", "hostfile", "-w", "n2:1"], ["n1:2", "n2:1"]),
        (["-w", "n3:1"], ["n3:1"]),
    ):
        assert hosts_of_run(dispatch, *words) == (wanted, ""), words
    found, said = hosts_of_run(dispatch, "-H", "hostfile", "-w", "n1:1")
    assert found == []
    assert "n1 is named twice" in said


def test_a_list_is_never_a_file(tmp_path: Path, dispatch: Dispatch) -> None:
    """Files of that name are in every folder that ``exec --output-dir`` wrote."""
    (tmp_path / "localhost").write_text("n1 slots=2\n")
    assert dispatch("exec", "-w", "localhost", "echo", "x")[1] == "localhost: x\n"
    found, _ = hosts_of_run(dispatch, "-w", "localhost", "--nproc-per-node", "1")
    assert found == ["localhost:1"]


def test_a_run_takes_a_file_by_hosts_as_it_did(tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "mine").write_text("n1 slots=2\n")
    for words in (["--hosts", "mine"], ["--hosts=mine"]):
        found, said = hosts_of_run(dispatch, *words)
        assert found == ["n1:2"]
        assert said == "note: --hosts mine is now --hostfile mine\n"
    (tmp_path / "dispatch.toml").write_text("[run]\nhosts = 'mine'\n")
    assert hosts_of_run(dispatch) == (["n1:2"], "")


def test_a_file_may_have_one_list_as_a_text(tmp_path: Path, dispatch: Dispatch) -> None:
    (tmp_path / "dispatch.toml").write_text("[all]\nhosts = 'n[1-2]:1'\n")
    assert dispatch("hosts", "-f")[1] == "n[1-2]\n"
    assert hosts_of_run(dispatch)[0] == ["n1:1", "n2:1"]


# -- -x: exports in a run, leaves hosts out elsewhere ------------------------


def test_who_confuses_the_two_meanings_of_x_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["-H", "n[1-3]:1", "--dry-run", "--no-python", "true"]
    assert cli.main(["-x", "n2", *run]) == 2
    said = capsys.readouterr().err
    assert "-x n2: a host, and in a run -x exports a variable" in said
    assert "hint: to leave the host out: --exclude n2" in said
    monkeypatch.setenv("n2", "a variable of that name")
    assert cli.main(["-x", "n2", *run]) == 0
    capsys.readouterr()
    assert cli.main(["exec", "-w", "n[1-3]", "-x", "DEBUG=1", "env"]) == 2
    assert "hint: a variable goes before the command: -- env NAME=VALUE COMMAND" in (
        capsys.readouterr().err
    )
