"""Pairs of hosts measured by MPI ranks: real ones, one that is late, and what nobody would say."""

from __future__ import annotations

import sys

import pytest
from rig import Cluster

from dispatcher.api.rank_pairs import MOST, PairOutput
from dispatcher.remote.rank import pair as program

from ..conftest import Desk
from .test_torch_pairs import check

MARK = program.MARK.encode()


def test_two_hosts(cluster: Cluster, isolated: None) -> None:
    pytest.importorskip("mpi4py")
    code, found = check(cluster, "--backend", "mpi")
    (pair,) = found["pairs"]
    assert (code, pair["hosts"], pair["why"]) == (0, ["n1", "n2"], "")
    assert all(pair[figure] > 0 for figure in ("latency", "there", "back"))


def test_a_rank_that_is_late_waits_for_nobody(desk: Desk) -> None:
    pytest.importorskip("mpi4py")
    with open(program.__file__) as file:
        text = file.read()
    words = "--label", "none", "-H", "localhost:2", "--grace", "60", "--no-python"
    # the one that ends first has the other told to end, which is to speak all the same
    deaf = "sh", "-c", 'trap "" TERM; exec "$@"', "sh"
    done = desk.run(*words, *deaf, sys.executable, "-c", text, "mpi", "0.1", "0")
    assert done.returncode == 1, done
    output = PairOutput()
    output.output(0, 1, done.stdout.encode())
    assert output.of(0) == {"latency": None, "rate": None, "why": "no answer in time", "lack": ""}


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"[" * 9999, b"[1]", b'{"rate": true, "latency": -1, "why": null}',
        b'{"rate": NaN, "latency": "1", "lack": []}', b'{"rate": 1e99, "why": 0}', b"\xff{}",
    ],
)  # fmt: skip
def test_what_is_no_result(line: bytes) -> None:
    output = PairOutput()
    output.output(0, 1, b"warning: " + MARK + b'{"rate": 5}\n' + MARK + line + b"\n")
    output.output(0, 2, MARK + b'{"rate": 5}\n')
    assert output.of(0) == {"latency": None, "rate": None, "why": "", "lack": ""}
    output.output(0, 1, b"x" * 2 * MOST)
    assert len(output._text[0]) == MOST
