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
from cases import cases
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.remote.probe import probes
from dispatcher.remote.probe import survey as survey_code
from dispatcher.remote.protocol.packing import pack, unpack
from dispatcher.runner.surveys import NEEDS
from remote.driver import Os, noting

SOURCE = payload.standalone("probe.survey", NEEDS)


class TestReading:
    def test_nobody_is_killed_for_a_child_that_was_never_started(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed: list[Any] = []
        monkeypatch.setattr(survey_code, "os", Os(killpg=noting(killed)))
        survey_code.kill(0)
        survey_code.kill(5)
        assert killed == [(5, signal.SIGKILL)]


class TestFiles:
    def test_a_star_stands_for_one_part(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("b/x/state", "a/x/state", "a/y/state", "a/state", "c"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        here = os.fsencode(tmp_path)
        names = [here + b"/" + name + b"/x/state" for name in (b"a", b"b", b"c")]
        assert survey_code.expand(here + b"/*/x/state") == names
        assert survey_code.expand(b"/no/such/*/x") == []
        monkeypatch.setenv("HOME", str(tmp_path))
        found = survey_code.files([b"~/a/*/state", here + b"/a/", b"/no/such", here + b"/c"])
        assert found == [
            [here + b"/a/x/state", b"a/x/state"], [here + b"/a/y/state", b"a/y/state"],
            [here + b"/a/", b"state\nx\ny"], [here + b"/c", b"c"],
        ]  # fmt: skip

    def test_they_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(survey_code, "FILES", 3)
        monkeypatch.setattr(survey_code, "FILE_LIMIT", 4)
        for name in "abcde":
            (tmp_path / name).write_text(name * 9)
        here = os.fsencode(tmp_path)
        assert len(survey_code.expand(here + b"/*")) == 3
        found = survey_code.files([here + b"/e", here + b"/*", here + b"/d"])
        assert [content for _, content in found] == [b"eeee", b"aaaa", b"bbbb"]

    def test_a_site_s_programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, mode in (("b", 0o755), ("a", 0o755), ("plain", 0o644), ("c\udcff", 0o755)):
            (tmp_path / name).write_text("")
            (tmp_path / name).chmod(mode)
        (tmp_path / "folder").mkdir()
        here = os.fsencode(tmp_path)
        asked = [["x", "run", [b"x"], 1.0, 2], ["s", "site", here + b"/", 3.0, 4]]
        assert survey_code.spread(asked) == [
            asked[0], ["s", "file", [here + b"/"], 3.0, 4],
            ["s/a", "run", [here + b"/a"], 3.0, 4], ["s/b", "run", [here + b"/b"], 3.0, 4],
            ["s/c\\xff", "run", [here + b"/c\xff"], 3.0, 4],
        ]  # fmt: skip
        monkeypatch.setattr(survey_code, "SITES", 2)
        assert [name for name, *_ in survey_code.spread(asked[1:])] == ["s", "s/a", "s/b"]
        none = [["s", "site", b"/no/such", 3.0, 4], asked[0]]
        assert survey_code.spread(none) == [["s", "file", [b"/no/such/"], 3.0, 4], asked[0]]


@cases(
    ("argument", "error", "status", "said"),
    [
        ([b"tool", b"x"], FileNotFoundError(2, "none"), 127, b""),
        ([b"tool", b"x"], PermissionError(13, "no"), 126, b"[Errno 13] no"),
        ({"n7": [b"tool", b"x"], "": [b"any"]}, FileNotFoundError(), 127, b""),
        ({"n8": [b"other"], "": [b"tool", b"x"]}, FileNotFoundError(), 127, b""),
    ],
)
def test_which_command_is_run_where(
    monkeypatch: pytest.MonkeyPatch, argument: Any, error: OSError, status: int, said: bytes
) -> None:
    asked: list[Any] = []
    written: list[bytes] = []

    def refuse(*what: Any) -> None:
        asked.append(what)
        raise error

    monkeypatch.setenv("DISPATCH_HOST", "n7")
    monkeypatch.setenv("PATH", "/mine")
    monkeypatch.setattr(survey_code, "os", Os(execvpe=refuse))
    monkeypatch.setattr(survey_code, "write", noting(written))
    assert survey_code.execute(argument) == status
    ((program, words, env),) = asked
    assert (program, words, b"".join(written)) == (b"tool", [b"tool", b"x"], said)
    assert env["PATH"].split(":") == [
        "/mine", "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin",
    ]  # fmt: skip
    assert (env["LC_ALL"], env["DISPATCH_HOST"]) == ("C", "n7")


def argv(python: str, requests: list[list[Any]]) -> list[str]:
    asked = base64.b64encode(pack(requests)).decode()
    return [python, "-I", "-S", "-c", SOURCE, asked]


def survey(python: str, *requests: list[Any]) -> dict[str, list[Any]]:
    done = subprocess.run(argv(python, list(requests)), capture_output=True, timeout=60, check=True)
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
        ["gpus", "call", ["count_gpus"], 20.0, 1000],
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
    assert unpack(found["gpus"][1]) >= 0
    assert found["crash"][0] == 125


def test_a_reading_that_hangs_costs_its_own_time_only(python: str) -> None:
    began = time.monotonic()
    found = survey(
        python,
        ["hung", "run", [b"sh", b"-c", b"echo begun; sleep 1000 & wait"], 6.0, 100],
        ["closed", "run", [b"sh", b"-c", b"exec >&- 2>&-; sleep 1000"], 0.3, 100],
        ["good", "run", [b"echo", b"x"], 20.0, 100],
    )
    assert time.monotonic() - began < 60
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
        ["site", "site", os.fsencode(tmp_path), 6.0, 1000],
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
        process.wait(timeout=60)

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
    asked = ["meet", "call", ["meet", ["127.0.0.1", "0.0.0.0"], 1, 1.5], 30.0, 1000]
    found = survey(python, asked)["meet"]
    assert found[0] == 0
    assert unpack(found[1])[0] == ["127.0.0.1", "Connection refused"]


def test_two_hosts_measure_each_other(python: str) -> None:
    port = unpack(survey(python, ["port", "call", ["free_port"], 20.0, 100])["port"][1])
    table = {"0": ["call", "127.0.0.1", port], "1": ["listen", "127.0.0.1", port]}
    asked = [["pair", "call", ["pair", table, 1.0, 20.0], 30.0, 1000]]

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


@cases("seconds", [0.10, 0.11, 0.12, 0.13])
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
