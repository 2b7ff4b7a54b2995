"""What may follow on a line; real shells ask for it in tests/runs/cli/test_tab_key.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher.cli import COMMANDS
from dispatcher.cli.tools import completion_words
from dispatcher.cli.tools.completion_words import HOSTS, Item, following


@pytest.fixture(autouse=True)
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hosts, groups, jobs and profiles, and a hostfile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf").write_text("n1\nn2 slots=8\n")
    hosts = {None: ["gpu01", "login"], "own": ["mine"]}
    jobs = [("20260131-142501-k3f9x2", "running: train.py")]
    monkeypatch.setattr(completion_words, "known_hosts", lambda config=None: hosts[config])
    monkeypatch.setattr(completion_words, "groups", lambda typed: ["@gpu", "@all"])
    monkeypatch.setattr(completion_words, "jobs", lambda: jobs)
    monkeypatch.setattr(completion_words, "profiles", lambda: ["day", "night"])


FILES = "<file>"
DIRS = "<dir>"


def offered(line: str) -> list[str]:
    """The words that may follow; the last of ``line`` is the one that is being typed."""
    *words, typed = line.split(" ")
    found = following(words, typed)
    return [{"file": FILES, "dir": DIRS}.get(one.kind, one.value) for one in found]


@cases(
    ("line", "wanted"),
    [
        ("exe", [FILES, "exec"]),
        ("he", [FILES, "help"]),
        ("help exe", ["exec"]),
        ("help exec ", []),
        ("config exe", ["exec"]),
        ("man ", [name for name in COMMANDS if name]),
        ("man exec ", []),
        # names of options, each once unless it may be repeated
        ("--max_r", ["--max-restarts"]),
        ("-n", ["-n"]),
        ("--np 2 --np", ["--nproc-per-node"]),
        ("--env-file a --env-f", ["--env-file"]),
        ("jobs --", ["--all", "--json", "--profile", "--help"]),
        # their values
        ("--map-by ", ["core", "gpu", "node", "numa", "slot", "socket"]),
        ("--map-by=s", ["--map-by=slot", "--map-by=socket"]),
        ("--watch=", []),
        ("--nosuch=", []),
        ("--stdin ", ["none", "all"]),
        ("--nproc-per-node ", ["auto", "gpu"]),
        ("--launcher a", ["accelerate"]),
        ("--omp k", ["keep"]),
        ("--np ", []),
        ("--log-dir ", [DIRS]),
        ("exec -o ", [DIRS]),
        ("check --rounds ", ["all"]),
        ("--profile ", ["day", "night"]),
        # an old name, letters together, a value that may be left out
        ("exec --fan-out 3 --max-f", ["--max-fail"]),
        ("exec -vw lo", ["login"]),
        ("exec --sudo ls", [FILES]),
        ("exec --keep --seri", ["--serial"]),
        # hosts
        ("-H ", [FILES, "gpu01", "login"]),
        ("-w gpu01,", ["gpu01,login"]),
        ("-w gpu01!l", ["gpu01!login"]),
        ("-w @a", ["@all"]),
        ("-w @", ["@gpu", "@all"]),
        ("exec -x gpu01,@", ["gpu01,@gpu", "gpu01,@all"]),
        ("exec -F own -w ", ["mine"]),
        ("exec --hostfile=hf -x n", ["n1", "n2"]),
        ("-H hf --include n1@", ["n1@n2", "n1@gpu01", "n1@login"]),
        ("hosts lo", ["login"]),
        ("hosts --nosuch=own m", []),
        # jobs
        ("logs ", ["k3f9x2", "latest"]),
        ("logs k3f9x2 ", []),
        ("logs --rank 0 k", ["k3f9x2"]),
        ("sweep ", ["20260131-142501-k3f9x2"]),
        ("restart ", ["k3f9x2", "latest"]),
        ("restart k3f9x2 -- ", [FILES]),
        ("restart -- tr", [FILES]),
        # programs and files
        ("-H hf tr", [FILES]),
        ("-H hf train.py --np", [FILES]),
        ("exec -w n1 -- --np", [FILES]),
        ("put -w n1 a ", [FILES]),
        ("completion z", ["zsh"]),
        ("completion zsh ", []),
        ("import -- t", [FILES, "torchrun"]),
        ("import -- torchrun t", [FILES]),
        ("report ", [FILES, "k3f9x2", "latest"]),
        ("explain rank-f", ["rank-failed"]),
        ("explain rank-failed ", []),
        ("connect x", []),
    ],
)
def test_what_may_follow(line: str, wanted: list[str]) -> None:
    assert sorted(offered(line)) == sorted(wanted)


def test_what_is_said_beside_a_word() -> None:
    (item,) = following([], "exec")[1:]
    assert item == Item("exec", told="Run a command once on every host.")
    (job, _) = following(["stop"], "")
    assert job.told == "running: train.py"


def test_options_that_take_hosts_are_there() -> None:
    from dispatcher.cli.entry import load

    fields = {one.name for name in COMMANDS for one in load(name).params}
    assert set(HOSTS) <= fields
