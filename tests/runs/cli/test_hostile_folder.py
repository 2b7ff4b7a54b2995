"""A folder that somebody else filled: its files run nothing, here or on hosts, and choose nothing.

``canary`` is a folder outside of the clone in which all that lies in the clone leaves a file as
soon as it is run or loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: as the console script is started: what lies in the folder is not looked at for modules
PROGRAM = [sys.executable, "-I", "-m", "dispatcher"]
MODULES = ("click", "dispatcher", "json", "paramiko", "sitecustomize", "struct", "torch", "zlib")
PROGRAMS = ("bash", "env", "mpirun", "nvidia-smi", "python3", "sh", "srun", "ssh", "sudo", "true")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)
    monkeypatch.delenv("DISPATCH_SSH_CONFIG", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    folder = tmp_path / "canary"
    folder.mkdir()
    return folder


@pytest.fixture
def clone(home: Path, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of ours, full of what wants to be run; it has no settings yet."""
    folder = tmp_path / "clone"
    (folder / "checks").mkdir(parents=True)
    for name in ("evil", "checks/evil", *PROGRAMS):
        path = folder / name
        path.write_text(f"#!/bin/sh\n/usr/bin/touch {canary}/{path.name}\n")
        path.chmod(0o755)
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open('{canary}/{name}.py', 'w').close()\n")
    (folder / "ssh_config").write_text(
        f"Match exec {folder}/evil\nHost *\n  ProxyCommand {folder}/evil\n"
    )
    (folder / "evil.env").write_text(f"PATH={folder}\n")
    monkeypatch.chdir(folder)
    return folder


def dispatch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "setting",
    [
        "rsh = './evil {host}'", "agent-python = './evil'", "agent_python = './evil'",
        "python = './evil'", "launcher = './evil'", "ssh-config = 'ssh_config'",
        "env-file = ['evil.env']", "transport = 'ssh'", "export = ['LD_PRELOAD=./evil']",
        "export = ['NCCL_DEBUG=INFO', 'PATH=.']", "export = ['BASH_ENV']",
        "hostfile = 'localhost python=evil'",
    ],
)  # fmt: skip
def test_a_clone_is_told_of_and_runs_nothing(clone: Path, canary: Path, setting: str) -> None:
    (clone / "dispatch.toml").write_text(f"[run]\nno-python = true\n{setting}\n[exec]\n{setting}\n")
    hosts = [] if setting.startswith("hostfile") else ["-H", "localhost"]
    done = dispatch(*hosts, "/bin/true")
    assert done.returncode == 2
    assert done.stderr.startswith("error: dispatch.toml")
    name = setting.partition(" ")[0].replace("_", "-")
    assert name in done.stderr
    assert "a folder's file may not" in done.stderr
    if name in ("rsh", "ssh-config", "transport"):
        done = dispatch("exec", "-w", "n1", "/bin/true")
        assert done.returncode == 2
        assert f"dispatch.toml:5: {name}: " in done.stderr
    assert not list(canary.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "-w", "localhost", "/bin/echo", "in"],
        ["-H", "localhost", "--no-python", "/bin/echo", "in"],
        ["-H", "localhost", "--python", "/usr/bin/python3", "/dev/null"],
        ["check", "-H", "localhost", "--python", "/usr/bin/python3"],
        ["hosts", "-w", "n[1-3]"],
        ["put", "-w", "localhost", "evil.env", "/dev/null/"],
        ["sweep", "-w", "localhost"],
        ["config"],
        ["jobs"],
    ],
)
def test_what_lies_in_the_folder_is_not_loaded(clone: Path, canary: Path, words: list[str]) -> None:
    dispatch(*words)
    assert not list(canary.iterdir())


def test_harmless_settings_of_a_folder_count(clone: Path) -> None:
    (clone / "nodes").write_text("localhost slots=2 env=NCCL_DEBUG=INFO env=UCX_TLS=rc\n")
    (clone / "dispatch.toml").write_text(
        "[run]\nhostfile = 'nodes'\nno-python = true\n"
        "export = ['NCCL_ALGO=Ring', 'NCCL_IB_HCA=mlx5']\n"
    )
    done = dispatch("/bin/sh", "-c", "echo $NCCL_DEBUG $UCX_TLS $NCCL_ALGO $NCCL_IB_HCA")
    assert sorted(done.stdout.splitlines()) == ["[0] INFO rc Ring mlx5", "[1] INFO rc Ring mlx5"]


@pytest.mark.parametrize(
    ("column", "why"),
    [("python=./evil", "python: a folder's file"), ("env=LD_PRELOAD=./evil", "env: LD_PRELOAD: ")],
)
def test_a_hostfile_that_the_folder_names(
    clone: Path, canary: Path, home: Path, column: str, why: str
) -> None:
    (clone / "nodes").write_text(f"# two\nlocalhost {column}\n")
    (clone / "dispatch.toml").write_text("[all]\nhostfile = 'nodes'\n")
    for words in (["--no-python", "/bin/true"], ["exec", "/bin/true"], ["check"]):
        done = dispatch(*words)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: nodes:2: {why}")
        assert "dispatch.toml [all] names it" in done.stderr
    # who types it means it, and who says it in a file of one's own means a file of every folder
    assert dispatch("-H", "nodes", "--no-python", "--dry-run", "/bin/true").returncode == 0
    (clone / "dispatch.toml").unlink()
    (home / ".config" / "dispatch").mkdir(parents=True)
    (home / ".config" / "dispatch" / "dispatch.toml").write_text("[run]\nhostfile = 'nodes'\n")
    assert dispatch("--no-python", "/bin/true").returncode == 2
    assert not list(canary.iterdir())


def test_deepspeeds_file_of_a_folder(clone: Path, canary: Path, home: Path) -> None:
    path = clone / ".deepspeed_env"
    shell = ("/bin/sh", "-c", "echo $NCCL_DEBUG $NCCL_ALGO $HF_HOME")
    words = ["-H", "localhost", "--no-python", *shell]
    path.write_text("NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\n")
    assert dispatch(*words).stdout == "[0] INFO Ring\n"
    for line in (
        f"LD_PRELOAD={clone}/evil", f"export PATH={clone}", f"PYTHONPATH={clone}", "HF_HOME=.",
        "BASH_ENV=./evil", "NCCL_NET_PLUGIN=./evil", "OMP_TOOL_LIBRARIES=./evil", "MY_OWN=1",
    ):  # fmt: skip
        path.write_text(f"NCCL_DEBUG=INFO\n{line}\n")
        done = dispatch(*words)
        assert done.returncode == 2
        assert done.stderr.startswith("error: .deepspeed_env:2:")
        assert "a folder's file may not set it" in done.stderr
        assert "hint: if you trust it: --env-file .deepspeed_env" in done.stderr
    assert not list(canary.iterdir())
    path.write_text("NCCL_DEBUG=INFO\nHF_HOME=/h\n")
    assert dispatch("--env-file", ".deepspeed_env", *words).stdout == "[0] INFO /h\n"
    path.rename(home / ".deepspeed_env")
    assert dispatch(*words).stdout == "[0] INFO /h\n"


@pytest.mark.parametrize("place", ["clone", "home"])
def test_deepspeeds_file_that_others_could_write(
    clone: Path, home: Path, place: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(place) / ".deepspeed_env"
    path.write_text("LD_PRELOAD=./evil\nOWN=1\n")
    path.chmod(0o666)
    words = ["-H", "localhost", "--no-python", "/bin/sh", "-c", "echo o$OWN"]
    done = dispatch(*words)
    assert done.stdout == "[0] o\n"
    assert ".deepspeed_env is not read: another user could have written it: chmod" in done.stderr
    if os.getuid() == 0:
        path.chmod(0o644)
        os.chown(path, 65534, 65534)
        done = dispatch(*words)
        assert done.stdout == "[0] o\n"
        assert "is not read: another user could have written it: it is of user 65534" in done.stderr


@pytest.mark.parametrize("name", ["dispatch.toml", ".deepspeed_env"])
def test_what_is_no_file_is_not_waited_for(clone: Path, name: str) -> None:
    os.mkfifo(clone / name)
    done = dispatch("-H", "localhost", "--no-python", "/bin/echo", "in")
    assert done.stdout == "[0] in\n"
    assert f"note: {name} is not read: it is not a file" in done.stderr


def test_ones_own_file(
    clone: Path, canary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say everything; but not by a name that means another file in every folder."""
    folder = home / ".config" / "dispatch"
    folder.mkdir(parents=True)
    own = folder / "dispatch.toml"
    for setting in ("ssh-config = 'ssh_config'", "rsh = './evil {host}'"):
        own.write_text(f"[exec]\n{setting}\n")
        done = dispatch("exec", "-w", "n1", "/bin/true")
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {own}:2: {setting.partition(' ')[0]}: ")
        assert "would be another file in every folder" in done.stderr
    assert not list(canary.iterdir())
    (folder / "hop").write_text('#!/bin/sh\nshift; exec sh -c "$*"\n')
    (folder / "hop").chmod(0o755)
    own.write_text(f"[exec]\nrsh = '{folder}/hop {{host}}'\n")
    assert dispatch("exec", "-w", "n1", "/bin/echo", "in").stdout == "n1: in\n"
    os.chdir(folder)  # where it is the folder's, too
    assert dispatch("exec", "-w", "n1", "/bin/echo", "in").stdout == "n1: in\n"
    os.chdir(clone)  # where it has been looked at
    own.rename(clone / "dispatch.toml")
    assert dispatch("exec", "-w", "n1", "/bin/echo", "in").returncode == 2
    monkeypatch.setenv("DISPATCH_CONFIG", "dispatch.toml")
    assert dispatch("exec", "-w", "n1", "/bin/echo", "in").stdout == "n1: in\n"


def test_a_config_folder_that_is_relative_is_none(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "dispatch").mkdir()
    (clone / "dispatch" / "dispatch.toml").write_text("[exec]\nrsh = './evil {host}'\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    assert dispatch("exec", "-w", "localhost", "/bin/echo", "in").stdout == "localhost: in\n"
