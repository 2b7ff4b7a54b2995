"""GPUs that are slower than their peers, or calculate wrongly; and what times them, on CPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import cases

from checks.samples import call, host, kernel
from dispatcher.checks.check import Level, Reading, Seen, Unread
from dispatcher.checks.hardware import speed
from dispatcher.remote.rank import gpu_speed

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL
H100 = "NVIDIA H100 80GB HBM3"
GPU = {"name": H100, "product": 700.0, "same": True, "to": 50.0, "from": 50.0}


def said(*gpus: dict[str, Any], status: int | None = 0, **more: Any) -> Seen:
    """A host whose GPUs differ from ``GPU`` in that; of eight the others are as usual."""
    every = [GPU | gpu for gpu in (*gpus, *[{}] * (8 - len(gpus)))]
    line = json.dumps({"torch": "2.8", "why": "", "all_reduce": 470.0, "gpus": every, **more})
    return host(gpus=call(8), speed=Reading(status, b"a warning\n{}\n" + line.encode() + b"\n"))


def found(check: Any, *seen: Seen) -> list[tuple[Level, str]]:
    hosts = {f"n{at}": Seen(f"n{at}", one.readings) for at, one in enumerate(seen)}
    return [(one.level, one.text) for one in check(hosts).values()]


@cases(
    ("check", "odd", "level", "text"),
    [
        (speed.products, said(), OK, ""), (speed.products, said({"product": 631.0}), OK, ""),
        (speed.products, said({}, {"product": 629.0}), CRITICAL,
         "gpu 1: 629 TFLOP/s, 700 is usual"),
        (speed.products, said({"same": False}), CRITICAL, "gpu 0: two equal products differ"),
        (speed.copies, said(), OK, ""), (speed.copies, said({"to": 36.0}), OK, ""),
        (speed.copies, said({"to": 12.0}), WARN, "gpu 0: 12.0 GB/s to, 50.0 is usual"),
        (speed.copies, said({"from": 12.0}), WARN, "gpu 0: 12.0 GB/s back, 50.0 is usual"),
        (speed.all_reduce(0.5), said(), OK, ""),
        (speed.all_reduce(0.5), said(all_reduce=400.0), CRITICAL,
         "400 GB/s, at least 460 is usual"),
        (speed.all_reduce(0.5), said(all_reduce=None), OK, ""),
        (speed.all_reduce(0.5), said(all_reduce=None, status=None), CRITICAL, "it hangs"),
        # a kind of its own is not compared with the others
        (speed.products, said(*[{"name": "L4", "product": 90.0}] * 8), OK, ""),
    ],
)  # fmt: skip
def test_one_host_of_three(check: Any, odd: Seen, level: Level, text: str) -> None:
    assert found(check, said(), odd, said()) == [(OK, ""), (level, text), (OK, "")]


@cases(
    ("seen", "level", "text"),
    [
        (said(why="no torch in /usr/bin/python3"), INCOMPLETE, "no torch in /usr/bin/python3"),
        (host(gpus=call(8), speed=Reading(1, b"boom\n")), INCOMPLETE, "exit code 1: boom"),
        (host(gpus=call(8), speed=Reading(0, b"")), INCOMPLETE, "nothing was measured"),
        (said({"product": "fast"}), INCOMPLETE, "it stopped before all was measured"),
        (said({"product": float("nan")}), INCOMPLETE, "it stopped before all was measured"),
        (host(gpus=call(8), speed=Reading(None, b'{"gpus": [{"name": "L4"}], "why": ""}')),
         INCOMPLETE, "it stopped before all was measured"),
        (host(kernel=kernel(version=None)), OK, ""),
    ],
)  # fmt: skip
def test_a_host_that_says_nothing_of_use(seen: Seen, level: Level, text: str) -> None:
    """It costs itself an answer, and the others nothing."""
    for check in (speed.products, speed.copies, speed.all_reduce(0.5)):
        (good, one) = found(check, said(), seen)
        assert good == (OK, "")
        assert (one[0], text in one[1]) == (level, True), one


@pytest.mark.torch
def test_what_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch on a CPU in place of a GPU; there is no all-reduce then."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu_speed, "SECONDS", 0.01)
    gpu_speed.main(torch, ["cpu", "cpu"], 32)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    seen = host(gpus=call(2), speed=Reading(0, lines[-1].encode()))
    measured = speed.speeds(seen)
    assert [(gpu.name, gpu.same) for gpu in measured.gpus] == [("CPU", True)] * 2
    assert all(min(gpu.product, gpu.to, gpu.back) > 0 for gpu in measured.gpus)
    with pytest.raises(Unread, match="it stopped before all was measured"):
        speed.speeds(host(gpus=call(2), speed=Reading(None, lines[0].encode())))
