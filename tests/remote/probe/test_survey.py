"""Surveys as a host runs them, under every Python: hung, missing and talkative readings too."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.remote.probe import probes
from dispatcher.remote.protocol.packing import pack, unpack
from dispatcher.runner.surveys import NEEDS

SOURCE = payload.standalone("probe.survey", NEEDS)


def argv(python: str, requests: list[list[Any]]) -> list[str]:
    asked = base64.b64encode(pack(requests)).decode()
    return [python, "-I", "-S", "-c", SOURCE, asked]


def survey(python: str, *requests: list[Any]) -> dict[str, list[Any]]:
    done = subprocess.run(argv(python, list(requests)), capture_output=True, timeout=30, check=True)
    assert done.stderr == b""
    clock, _, packed = done.stdout.partition(b"\n")
    assert abs(float(clock) - time.time()) < 60
    found = unpack(packed)
    assert isinstance(found, dict)
    return found


def test_commands_files_and_calls(python: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "state").write_text("4: ACTIVE\n")
    (tmp_path / "b").mkdir()
    here = os.fsencode(tmp_path)
    found = survey(
        python,
        ["echo", "run", [b"sh", b"-c", b"echo out; echo err >&2; exit 3"], 20.0, 100],
        ["signal", "run", [b"sh", b"-c", b"kill -9 $$"], 20.0, 100],
        ["missing", "run", [b"no-such-tool"], 20.0, 100],
        ["files", "file", [here + b"/*/state", here + b"/nowhere", here + b"/a/"], 20.0, 1000],
        ["other", "run", {"n7": [b"echo", b"n7"], "": [b"echo", b"any"]}, 20.0, 100],
        ["space", "call", ["space", here], 20.0, 1000],
        ["tmp", "call", ["space", b""], 20.0, 1000],
        ["nowhere", "call", ["space", b"/no/where"], 20.0, 1000],
        ["script", "call", ["summed", here + b"/a/state"], 20.0, 1000],
        ["netdevs", "call", ["netdevs"], 20.0, 100000],
        ["crash", "call", ["no such call"], 20.0, 1000],
    )
    assert found["echo"] == [3, b"out\nerr\n", False]
    assert found["signal"][0] == 128 + 9
    assert found["missing"][0] == 127
    assert unpack(found["files"][1]) == [
        [here + b"/a/state", b"4: ACTIVE\n"], [here + b"/a/", b"state"],
    ]  # fmt: skip
    assert found["other"] == [0, b"any\n", False]
    assert len(unpack(found["space"][1])) == len(unpack(found["tmp"][1])) == 4
    assert found["nowhere"][0] == 125
    assert b"No such file or directory" in found["nowhere"][1]
    assert unpack(found["script"][1]) == [10, hashlib.sha256(b"4: ACTIVE\n").hexdigest()]
    assert unpack(found["netdevs"][1]).startswith("netdev lo flags=")
    assert found["crash"][0] == 125


def test_a_reading_that_hangs_costs_its_own_time_only(python: str) -> None:
    began = time.monotonic()
    found = survey(
        python,
        ["hung", "run", [b"sh", b"-c", b"echo begun; sleep 1000 & wait"], 1.0, 100],
        ["closed", "run", [b"sh", b"-c", b"exec >&- 2>&-; sleep 1000"], 0.3, 100],
        ["good", "run", [b"echo", b"x"], 20.0, 100],
    )
    assert time.monotonic() - began < 10
    assert found["hung"][0] is None
    assert found["hung"][1] == b"begun\n"
    assert found["closed"] == [None, b"", False]
    assert found["good"] == [0, b"x\n", False]


def test_a_reading_that_never_stops_talking_is_cut(python: str) -> None:
    found = survey(python, ["yes", "run", [b"yes"], 20.0, 10])
    assert found["yes"][1:] == [b"y\n" * 5, True]


def test_a_site_s_executables_are_readings_of_their_own(python: str, tmp_path: Path) -> None:
    for name, text in {"good": "#!/bin/sh\necho '{}'\n", "hung": "#!/bin/sh\nsleep 1000\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "README").write_text("no executable")
    found = survey(
        python,
        ["site", "site", os.fsencode(tmp_path), 0.5, 1000],
        ["none", "site", b"/nowhere/at/all", 0.5, 1000],
    )
    assert set(found) == {"site", "none", "site/good", "site/hung"}
    assert found["site/good"] == [0, b"{}\n", False]
    assert found["site/hung"][0] is None
    assert unpack(found["none"][1]) == []


def test_a_survey_that_is_told_to_end_takes_its_readings_along(python: str, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    text = b"echo $$ > %s; sleep 1000 & wait" % os.fsencode(mark)
    process = subprocess.Popen(
        argv(python, [["hung", "run", [b"sh", b"-c", text], 100.0, 100]]), stdout=subprocess.PIPE
    )
    try:
        group = int(wait_for(lambda: mark.exists() and mark.read_text().strip(), what="the child"))
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)

        def is_gone() -> bool:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            return False

        wait_for(is_gone, what="the end of its group")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("pattern", [b"~/x", b"/*", b"/nowhere/*/x"])
def test_patterns(pattern: bytes, python: str) -> None:
    found = survey(python, ["files", "file", [pattern], 20.0, 1 << 20])
    assert found["files"][0] == 0


def test_hosts_call_the_one_that_listens(python: str) -> None:
    port = unpack(survey(python, ["port", "call", ["free_port"], 20.0, 100])["port"][1])
    asked = [["meet", "call", ["meet", ["127.0.0.1", "::1"], port, 20.0], 30.0, 1000]]

    def start(index: int) -> subprocess.Popen[bytes]:
        env = {"DISPATCH_HOST": f"n{index + 1}", "DISPATCH_INDEX": str(index)}
        return subprocess.Popen(
            argv(python, asked), stdout=subprocess.PIPE, env={**env, "DISPATCH_COUNT": "3"}
        )

    hosts = [start(index) for index in (2, 1, 0)]  # whoever listens comes last
    found = [unpack(host.communicate(timeout=60)[0].partition(b"\n")[2]) for host in hosts]
    there = [unpack(one["meet"][1]) for one in found]
    assert there == [[["127.0.0.1", ""]], [["127.0.0.1", ""]], []]


def test_a_host_that_does_not_listen_is_told_of(python: str) -> None:
    asked = ["meet", "call", ["meet", ["127.0.0.1", "0.0.0.0"], 1, 0.3], 30.0, 1000]
    found = survey(python, asked)["meet"]
    assert found[0] == 0
    assert unpack(found[1])[0] == ["127.0.0.1", "Connection refused"]


def test_two_hosts_measure_each_other(python: str) -> None:
    port = unpack(survey(python, ["port", "call", ["free_port"], 20.0, 100])["port"][1])
    table = {"0": ["call", "127.0.0.1", port], "1": ["listen", "127.0.0.1", port]}
    asked = [["pair", "call", ["pair", table, 0.1, 20.0], 30.0, 1000]]

    def start(index: int) -> subprocess.Popen[bytes]:
        words = [python, "-I", "-S", "-c", SOURCE, base64.b64encode(pack(asked)).decode()]
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, env={"DISPATCH_INDEX": str(index)}
        )  # fmt: skip

    hosts = [start(index) for index in (0, 1, 2)]
    said = [unpack(host.communicate(timeout=60)[0].partition(b"\n")[2]) for host in hosts]
    caller, listener, idle = (unpack(one["pair"][1]) for one in said)
    assert (caller[2], listener[2], idle) == ("", "", [])
    assert 0 < caller[0] < 10
    assert listener[0] is None
    assert min(caller[1], listener[1]) > 1000


@pytest.mark.parametrize("seconds", [0.10, 0.11, 0.12, 0.13])
def test_the_end_of_a_measurement_is_no_failure(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it comes between two looks at the clock."""
    clock = itertools.count(step=0.03)
    monkeypatch.setattr(probes, "monotonic", lambda: next(clock))
    line = SimpleNamespace(
        settimeout=lambda seconds: None, gettimeout=lambda: 1.0, recv=lambda size: b"x"
    )
    assert probes.receive(line, seconds, until=1e9) > 0  # type: ignore[arg-type]


def test_a_partner_that_is_not_there_is_a_failure(python: str) -> None:
    table = {"0": ["call", "127.0.0.1", 1]}
    asked = [["pair", "call", ["pair", table, 0.1, 0.3], 30.0, 1000]]
    words = [python, "-I", "-S", "-c", SOURCE, base64.b64encode(pack(asked)).decode()]
    done = subprocess.run(
        words, capture_output=True, timeout=60, check=True, env={"DISPATCH_INDEX": "0"}
    )
    found = unpack(unpack(done.stdout.partition(b"\n")[2])["pair"][1])
    assert found[:2] == [None, None]
    assert found[2] in ("Connection refused", "no answer in time")
