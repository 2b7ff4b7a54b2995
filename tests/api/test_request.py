"""What a program asks for, completed from this machine; no host is touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.api.request import (
    allocated,
    cwd_of,
    granted_here,
    hosts_of,
    is_program,
    names_other,
    python_of,
    request,
)
from dispatcher.model.errors import UsageError, WrongArgument
from dispatcher.model.host import Host, Hostlist


@pytest.fixture(autouse=True)
def _no_batch_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("SLURM", "PBS", "LSB", "PE_", "FLUX"))]:
        monkeypatch.delenv(name)


@cases(
    ("hosts", "names"),
    [
        ("n1,n2:3", [("n1", None), ("n2", 3)]),
        ("n[1-3]", [("n1", None), ("n2", None), ("n3", None)]),
        (["n1", "n2"], [("n1", None), ("n2", None)]), (Path("file"), [("n7", 2)]),
        (Path("nested/file"), [("n8", None)]), ("file", [("n7", 2)]),
        (Hostlist((Host("n9"),)), [("n9", None)]),
    ],
)  # fmt: skip
def test_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: Any, names: list[tuple[str, int | None]]
) -> None:
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "file").write_text("n8\n")
    (tmp_path / "file").write_text("n7 slots=2\n")
    monkeypatch.chdir(tmp_path)
    assert [(host.name, host.slots) for host in hosts_of(hosts).hosts] == names


@cases(
    ("hosts", "said"),
    [
        (None, "no hosts given"),
        ("-", "hosts: - is for the command line only"),
        (Path("absent"), "-H: './absent': no such file"),
        (["n1", ""], "hosts: "),
    ],
)
def test_hosts_that_are_none(hosts: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosts_of(hosts)
    assert caught.value.message.startswith(said)


def test_a_batch_job_s_hosts_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert allocated() is None
    (tmp_path / "nodes").write_text("n4\nn4\nn5\n")
    monkeypatch.setenv("PBS_JOBID", "7")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert [(host.name, host.slots) for host in hosts_of(None).hosts] == [("n4", 2), ("n5", 1)]


@cases(
    ("environ", "granted"),
    [
        ({"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "4,5"}, {"localhost": ("4", "5"),
                                                              "n1": ("4", "5")}),
        ({"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "4,5", "SLURM_STEP_GPUS": "5"},
         {"localhost": ("5",), "n1": ("5",)}),
        ({"SLURM_JOB_GPUS": "4,5"}, {}),  # after salloc, on the login node
        ({"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "?"}, {}),
        ({"SLURMD_NODENAME": "n1"}, {}),
    ],
)  # fmt: skip
def test_localhost_within_a_job_of_slurm_has_the_job_s_gpus(
    environ: dict[str, str], granted: dict[str, tuple[str, ...]]
) -> None:
    names = ["localhost", "n1", "n2"]
    found = request(names, ["train.py"], environ=environ).hosts.hosts
    assert [host.name for host in found] == names
    assert {host.name: host.granted for host in found if host.granted is not None} == granted
    kept = Hostlist((Host("localhost", granted=("7",)),))
    assert granted_here(kept, environ) == kept


def test_a_request_is_completed_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", "1")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    found = request("n1", ["train.py", "x"])
    assert (found.cwd, found.python) == (str(tmp_path), sys.executable)
    assert found.environ["HERE"] == "1"
    assert (found.program.kind, found.program.argv) == ("script", ("train.py", "x"))
    assert (found.nproc_per_node, found.omp, found.mpi, found.per_node) == (
        None, "auto", "auto", False,
    )  # fmt: skip


def test_what_is_said_wins(tmp_path: Path) -> None:
    found = request("n1", ["a"], kind="command", cwd="/w", python="py", environ={"A": "1"}, np=2)
    assert (found.cwd, found.python, found.environ, found.np) == ("/w", "py", {"A": "1"}, 2)
    assert request("n1", ["a"], cwd="sub").cwd == cwd_of("sub")  # as --chdir has it
    assert found.program.kind == "command"


def test_a_launcher_of_its_own_kind_looks_after_the_rest_itself() -> None:
    found = request("n1", ["a"], per_node=True)
    assert (found.nproc_per_node, found.omp, found.mpi) == (1, "keep", "none")
    assert request("n1", ["a"], per_node=True, omp=4).omp == 4
    assert request("n1", ["a"], per_node=True, omp="auto").omp == "keep"
    assert request("n1", ["a"], per_node=False).omp == "auto"


def test_words_are_a_list() -> None:
    with pytest.raises(UsageError) as caught:
        request("n1", "train.py x")
    assert caught.value.hint == "['train.py', 'x']"


@cases(
    ("environ", "wanted"),
    [
        ({}, sys.executable),
        ({"VIRTUAL_ENV": "/nowhere"}, sys.executable),
        ({"VIRTUAL_ENV": "{venv}"}, "{venv}/bin/python"),
        ({"CONDA_PREFIX": "{venv}"}, "{venv}/bin/python"),
        ({"VIRTUAL_ENV": "{dull}", "CONDA_PREFIX": "{venv}"}, "{venv}/bin/python"),
        ({"VIRTUAL_ENV": "", "CONDA_PREFIX": ""}, sys.executable),
    ],
)
def test_the_ranks_python(tmp_path: Path, environ: dict[str, str], wanted: str) -> None:
    for name, mode in (("venv", 0o755), ("dull", 0o644)):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").write_text("")
        (tmp_path / name / "bin" / "python").chmod(mode)
    folders = {"venv": str(tmp_path / "venv"), "dull": str(tmp_path / "dull")}
    told = {name: text.format(**folders) for name, text in environ.items()}
    assert python_of(told) == wanted.format(**folders)


@cases(
    ("mark", "wanted"),
    [("pipx_metadata.json", "python3"), ("uv-receipt.toml", "python3"), ("x", sys.executable),
     ("archive-v0/x", "python3")],
)  # fmt: skip
def test_an_environment_for_dispatch_alone_is_not_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, wanted: str
) -> None:
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).write_text("")
    prefix = tmp_path / mark if "/" in mark else tmp_path
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert python_of({}) == wanted
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert python_of({"CONDA_PREFIX": str(tmp_path)}) == str(tmp_path / "bin" / "python")


def test_the_folder_keeps_the_name_that_the_shell_has_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    for pwd, wanted in (
        (tmp_path / "link", "link"), (tmp_path, "real"), ("real", "real"), ("", "real"),
    ):  # fmt: skip
        monkeypatch.setenv("PWD", str(pwd))
        assert cwd_of(None) == str(tmp_path / wanted)
        assert cwd_of("sub") == str(tmp_path / wanted / "sub")
        assert cwd_of("/abs") == "/abs"


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert cwd_of("/abs") == request("n1", ["a"], cwd="/abs").cwd == "/abs"
    with pytest.raises(UsageError) as caught:
        cwd_of(None)
    assert caught.value.message == "the current folder: no such file or directory"
    assert caught.value.hint == "cd DIR  # one that exists"


@cases(
    ("name", "content", "is_one"),
    [
        ("a.sh", b"echo", True), ("a.bash", b"", True), ("a.py", b"#!/bin/sh\n", False),
        ("prog", b"\x7fELF\x02", True), ("prog", b"\x7fEL", False),
    ],
)  # fmt: skip
def test_what_python_cannot_run(tmp_path: Path, name: str, content: bytes, is_one: bool) -> None:
    (tmp_path / name).write_bytes(content)
    assert is_program(str(tmp_path / name)) is is_one
    assert is_program(str(tmp_path / "absent.sh")) is False


@cases(
    ("name", "content", "other"),
    [
        ("job", b"#!/bin/bash\n", True), ("job", b"#! /bin/sh -e", True),
        ("job.v2", b"#!/usr/bin/env -S uv run", True), ("job", b"#!/usr/bin/env\n", False),
        ("job", b"#!/usr/bin/env -S A=1 node\n", True), ("job.sh", b"#!/bin/sh\n", True),
        ("job", b"#!/usr/bin/env python3\n", False), ("job", b"#!/opt/bin/python3.12 -u\n", False),
        ("job.py", b"#!/bin/sh\n", False), ("job", b"#!\n/bin/sh", False),
        ("job", b"import os\n#!/bin/sh", False), ("job", b"", False),
    ],
)  # fmt: skip
def test_whom_a_first_line_names(tmp_path: Path, name: str, content: bytes, other: bool) -> None:
    (tmp_path / name).write_bytes(content)
    assert names_other(str(tmp_path / name)) is other
    assert names_other(str(tmp_path)) is names_other(str(tmp_path / "absent")) is False
    os.mkfifo(tmp_path / "pipe")
    assert names_other(str(tmp_path / "pipe")) is is_program(str(tmp_path / "pipe")) is False


@cases(
    ("fields", "said", "hint"),
    [
        ({"nodes": 9}, "request: takes no argument 'nodes'", "nnodes=...  # did you mean this?"),
        ({"np": "4"}, "request: np takes a whole number or None, not '4'", None),
        ({"kind": "scribe"}, "request: kind takes 'script' or 'module' or 'command', not 'scribe'",
         None),
        ({"argv": ["a", 3]}, "argv[1]: takes a text, not 3", "'3'"),
        ({"argv": 3}, "argv: takes a list of texts, not 3", None),
        ({"hosts": 3}, "hosts: takes a hostfile or names of hosts, not 3", None),
        ({"hosts": [3]}, "hosts: takes a hostfile or names of hosts, not [3]", None),
    ],
)  # fmt: skip
def test_a_wrong_argument_names_itself(fields: dict[str, Any], said: str, hint: str | None) -> None:
    with pytest.raises(WrongArgument) as caught:
        request(**{"hosts": "n1:2", "argv": ["a"], **fields})
    assert (caught.value.message, caught.value.hint) == (said, hint)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, TypeError)


def test_a_type_checker_knows_names_and_types() -> None:
    """mypy reports a comment here that it does not need."""
    with pytest.raises(WrongArgument):
        request("n1:2", ["a"], nodes=9)  # type: ignore[call-arg]
    with pytest.raises(WrongArgument):
        request("n1:2", ["a"], np="4")  # type: ignore[arg-type]
