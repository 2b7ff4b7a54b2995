"""``--launcher``: what another launcher cannot do, which it is, and its script."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.api.request import plan_job
from dispatcher.api.request import request as asked
from dispatcher.cli.run import mpirun_launcher as module
from dispatcher.cli.run.mpirun_launcher import MpirunLauncher, check
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host, Hostlist

HOSTS = Hostlist((Host("n1", slots=2), Host("n2", slots=1, user="me")))
PLAN = plan_job(asked(HOSTS, ["prog"], kind="command"))
OPEN_MPI = "mpirun (Open MPI) 4.1.6\n\nReport bugs to ...\n"
HYDRA = "HYDRA build details:\n    Version:                                 4.0.3\n"


@pytest.fixture
def mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``mpirun(text)``: the path of a program that says that of its version."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(text: str) -> str:
        path = tmp_path / "mpirun"
        (tmp_path / "words").write_text(text)
        path.write_text(f'#!/bin/sh\n[ "$*" = --version ] && cat {tmp_path}/words\n')
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        (OPEN_MPI, "openmpi", "Open MPI 4.1.6"),
        ("mpirun (Open MPI) 5.0.3rc1, x\n", "prrte", "Open MPI 5.0.3rc1"),
        (HYDRA, "hydra", "Hydra 4.0.3"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build\n", "hydra", "Hydra 2021.11"),
        ("HYDRA\n", "hydra", "Hydra"),
    ],
)
def test_which_it_is(mpirun: Any, text: str, family: str, version: str) -> None:
    path = mpirun(text)
    found = module._found(path)
    assert (found.program, found.family, found.version) == (path, family, version)


def test_it_is_looked_for_as_a_shell_does(
    mpirun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mpirun(HYDRA)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert module._found("mpirun").program == path
    monkeypatch.chdir(tmp_path)
    assert module._found("./mpirun").program == path


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("/no/such", "", "--launcher /no/such: not found on this machine"),
        ("{path}", "srun 1.0\n", "--launcher {path}: neither Open MPI's, MPICH's nor Intel MPI's"),
    ],
)
def test_which_it_is_not(mpirun: Any, name: str, text: str, said: str) -> None:
    path = mpirun(text)
    with pytest.raises(UsageError) as caught:
        module._found(name.format(path=path))
    assert caught.value.message.startswith(said.format(path=path))


def test_one_that_does_not_answer(mpirun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def run(argv: Any, **more: Any) -> Any:
        limits.append(more["timeout"])
        raise subprocess.TimeoutExpired(argv, more["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    path = mpirun(HYDRA)
    with pytest.raises(UsageError, match=f"--launcher {path}: .*timed out"):
        module._found(path)
    assert limits == [module._ANSWER]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"only_ranks": "0"}, "--only-ranks: dispatch does not know whose line is whose"),
        ({"rank0": True}, "--rank0: dispatch does not know"),
        ({"fold": True}, "--fold: dispatch does not know"),
        ({"fold_numbers": True}, "--fold-numbers: dispatch does not know"),
        ({"watch": True}, "--watch: dispatch does not know"),
        ({"label": "host"}, "--label host: mpirun labels by rank"),
        ({"fanout_tree": "2"}, "--fanout-tree and --launcher exclude each other"),
    ],
)
def test_what_it_cannot_do(mpirun: Any, given: dict[str, Any], said: str) -> None:
    options = RunOptions(launcher=mpirun(HYDRA), **given)
    with pytest.raises(UsageError) as caught:
        check(PLAN, options)
    assert caught.value.message.startswith(said)
    if "label" in given:
        assert caught.value.hint == "--label none"


def test_plans_it_cannot_carry_out(mpirun: Any) -> None:
    options = RunOptions(launcher=mpirun(HYDRA))
    assert check(PLAN, options) is None  # type: ignore[func-returns-value]
    unsaid = plan_job(asked("n1,n2", ["prog"], kind="command"))
    with pytest.raises(UsageError, match="--launcher: how many ranks on"):
        check(unsaid, options)


def test_without_it_nothing_is_another_s() -> None:
    options = RunOptions()
    assert check(PLAN, options) is None  # type: ignore[func-returns-value]
    with MpirunLauncher(PLAN, options) as own:
        assert (own.plan, own.hosts, own.notes) == (PLAN, (), [])
        way: Any = object()
        assert own.way(way) is way


@pytest.mark.parametrize("label", ["rank", "none"])
def test_what_is_started_in_its_place(mpirun: Any, label: Any) -> None:
    path = mpirun(HYDRA)
    launcher = MpirunLauncher(PLAN, RunOptions(launcher=path, label=label))
    (node,) = launcher.plan.nodes
    assert (node.host.name, launcher.plan.world_size) == ("localhost", 1)
    assert launcher.hosts == tuple(node.host for node in PLAN.nodes)
    assert launcher.notes == [
        f"note: 3 ranks on n[1-2] are left to {path} (Hydra 4.0.3): rank 0 here is mpirun itself"
    ]
    words = launcher.plan.program.argv
    assert words[0] == path
    assert ("-prepend-rank" in words) is (label == "rank")
    (script,) = (Path(word) for word in words if "rsh-" in word)
    assert not script.exists()
    with launcher:
        assert stat.S_IMODE(script.stat().st_mode) == 0o700
        assert script.name == f"rsh-{PLAN.run_id}"
        text = script.read_text()
        assert "me" in text
        assert text.startswith("#!/bin/sh")
    assert not script.exists()
    with launcher:
        script.unlink()  # somebody tidied up

    def there(host: Host) -> Any:
        return f"way to {host.name}"

    way = launcher.way(there)
    assert way(node.host).name == "local"
    assert way(Host("n2")) == "way to n2"  # type: ignore[comparison-overlap]


@cases(
    ("given", "words"),
    [
        ({"rsh": "hop -p {port} {user}@{host}"}, ["hop", "-p", "22", "me@NAME", "COMMAND"]),
        ({"rsh": "hop {host} -- {command}"}, ["hop", "NAME", "--", "COMMAND"]),
    ],
)
def test_hosts_are_reached_by_the_user_s_command(given: dict[str, Any], words: list[str]) -> None:
    argv_of = module._argv_of(RunOptions(**given))
    assert argv_of(Host("n1", user="me", port=22), "NAME", "COMMAND") == words


@cases(
    ("given", "has", "lacks"),
    [
        ({}, ["ConnectTimeout=10"], ["accept-new", "-F"]),
        ({"connect_timeout": 3.0}, ["ConnectTimeout=3"], []),
        ({"host_keys": "accept-new"}, ["accept-new"], []),
        ({"host_keys": "strict"}, [], ["accept-new"]),
        ({"ssh_config": "/c"}, ["-F", "/c"], []),
    ],
)
def test_hosts_are_reached_by_ssh(given: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    argv = module._argv_of(RunOptions(**given))(Host("n1", user="me", port=7), "NAME", "COMMAND")
    text = " ".join(argv)
    assert argv[0].endswith("ssh")
    assert argv[-1] == "COMMAND"
    for word in (*has, "NAME", "me", "7"):
        assert word in text
    for word in lacks:
        assert word not in text


def test_a_command_that_cannot_be_one() -> None:
    with pytest.raises(UsageError, match="unknown field"):
        module._argv_of(RunOptions(rsh="hop no placeholder {what}"))


@cases("name", ["a b", "a:b", "a,b", "a;b"])
def test_a_folder_that_mpirun_would_take_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
    with pytest.raises(UsageError) as caught:
        module._folder()
    assert "mpirun cannot be told of such a path" in caught.value.message
    assert caught.value.hint == "XDG_STATE_HOME=/a/plain/path"


def test_a_script_that_cannot_be_written(mpirun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = MpirunLauncher(PLAN, RunOptions(launcher=mpirun(HYDRA)))

    def create(path: Path) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, "create", create)
    with pytest.raises(UsageError, match=r"--launcher: .*/dispatch: no space left on device"):
        launcher.__enter__()
