"""What an agent finds on its host before a start, and what is wrong there."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from dispatcher.remote.host import host_facts

ELF = b"\x7fELF"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, mode, content in (
        ("tool", 0o755, b"#!/bin/sh\n"),
        ("plain", 0o644, b"text"),
        ("train.py", 0o644, b"print()"),
        ("ompi", 0o755, ELF + bytes(100) + b"\0libmpi.so.40\0"),
        ("mpich", 0o755, ELF + bytes(100) + b"\0libmpi.so.12\0"),
        ("about", 0o755, b"#!/bin/sh\n# \0libmpi.so.40\0"),
    ):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize(
    ("check", "problems"),
    [
        ({}, []),
        ({"program": b"tool"}, []),
        ({"program": b"./tool", "script": b"train.py"}, []),
        ({"program": b"absent"}, [["missing", "absent: not found"]]),
        ({"program": b"./absent"}, [["missing", "./absent: not found"]]),
        ({"program": b"plain"}, ["not executable"]),
        ({"script": b"absent.py"}, ["no script"]),
        ({"program": b"ompi"}, []),
        ({"program": b"ompi", "mpi": b"pmi1"}, ["open mpi"]),
        ({"program": b"mpich", "mpi": b"pmi1"}, []),
        ({"iface": b"lo"}, []),
        ({"iface": b"eth99"}, ["iface"]),
        ({"program": b"about", "mpi": b"pmi1"}, []),
    ],
)
def test_what_would_keep_ranks_from_starting(
    folder: Path, check: dict[str, Any], problems: list[Any]
) -> None:
    found = host_facts.find_problems(check, os.fsencode(folder), os.fsencode(folder))
    for expected, problem in zip(problems, found, strict=True):
        assert expected in (problem, problem[0])


def test_addresses_of_one_interface() -> None:
    assert host_facts.gather({"iface": b"lo"}, b"/")["addresses"][0] == "127.0.0.1"
    assert host_facts.gather({"iface": b"eth99"}, b"/")["addresses"] == []
    [[_, why]] = host_facts.find_problems({"iface": b"eth99"}, b"/", None)
    assert why.startswith("no interface eth99 with an address; there is: ")
    assert " lo" in why


def test_a_folder_that_is_not_there_is_all_that_is_said() -> None:
    found = host_facts.find_problems({"program": b"absent"}, b"/no/such/folder", None)
    assert found == [["cwd", "/no/such/folder: no such directory"]]


def test_a_name_that_is_no_text_is_shown_all_the_same(folder: Path) -> None:
    [[what, why]] = host_facts.find_problems({"program": b"\xff"}, os.fsencode(folder), b"/nowhere")
    assert (what, why) == ("missing", "\\xff: not found")


def test_the_script_and_the_room_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    found = host_facts.gather({"script": b"train.py"}, os.fsencode(tmp_path))
    assert found["script"] == zlib.crc32(b"pass")
    assert found["tmp"] > 0
    assert host_facts.gather({"script": b"no.py"}, os.fsencode(tmp_path))["script"] is None
    assert host_facts.gather({}, b"/")["script"] is None
    assert host_facts.free_space(b"/no/where") is None


def test_gpus_that_may_not_be_opened_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch system denies a job by a cgroup is still listed in /dev."""
    names = ["null", "nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(8))]
    monkeypatch.setattr("os.listdir", lambda path: names)
    allowed = {"/dev/nvidia4", "/dev/nvidia5", "/dev/nvidiactl"}
    monkeypatch.setattr("os.access", lambda path, mode: path in allowed)
    assert host_facts.count_gpus() == 2
