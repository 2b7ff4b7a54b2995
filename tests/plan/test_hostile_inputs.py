"""Every hostile input is a usage error with the message the table promises."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cases import cases

from dispatcher.model import errors
from dispatcher.model.errors import UsageError
from dispatcher.model.names import parse_count
from dispatcher.plan.hosts.hostfile import parse_hostfile, read_hosts
from dispatcher.plan.job.job_plan import plan_job
from dispatcher.plan.job.request import Program, Request, parse_nproc

from .hostile_inputs import HOSTILE, POOL, Hostile


def give(hostile: Hostile) -> None:
    """Hand the input to the part that takes it, as the command line does."""
    kind, value = hostile.kind, hostile.value
    program = Program("script", ("train.py",))
    if kind == "hosts":
        assert isinstance(value, str)
        read_hosts(value, lambda: b"")
        return
    if kind == "hostfile":
        parse_hostfile(value, "hostfile")
        return
    hosts = parse_hostfile(POOL, "hostfile")
    if kind == "env-file":
        request = Request(hosts, program, "/", env_files=((".env", value),))
    else:
        assert isinstance(value, str)
        if kind == "np":
            request = Request(hosts, program, "/", np=parse_count(value, "--np"))
        elif kind == "nnodes":
            request = Request(hosts, program, "/", nnodes=parse_count(value, "--nnodes"))
        elif kind == "nproc":
            request = Request(hosts, program, "/", nproc_per_node=parse_nproc(value))
        elif kind == "export":
            request = Request(hosts, program, "/", exports=(value,), environ={"HOME": "/root"})
        elif kind == "include":
            request = Request(hosts, program, "/", include=value)
        else:
            request = Request(hosts, program, "/", exclude=value)
    plan_job(request, "run")


@cases("hostile", HOSTILE, ids=[f"{h.kind}-{ascii(h.value)[:40]}" for h in HOSTILE])
def test_ends_as_a_usage_error_that_says_why(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # so that no value names a file
    started = time.process_time()
    with pytest.raises(UsageError) as caught:
        give(hostile)
    assert time.process_time() - started < 20.0  # it must not explode
    assert caught.value.exit_code == errors.USAGE
    assert hostile.expected in caught.value.message
    shown = caught.value.message + (caught.value.hint or "")
    assert len(shown) < 40000
    assert all(len(line) < 600 for line in shown.split("\n")), "fits a screen"
    assert not any(char in shown for char in "\x00\x07\x1b\x7f\x9b"), "a terminal would act on it"


def test_the_table_is_large_and_has_every_kind() -> None:
    assert len(HOSTILE) >= 200
    assert {h.kind for h in HOSTILE} == {
        "hosts", "hostfile", "include", "exclude", "export", "env-file", "np", "nnodes", "nproc",
    }  # fmt: skip
