"""What a user may ask for: every bound, and what is said beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host, Hostlist
from dispatcher.model.names import MOST_RANKS
from dispatcher.plan.job.parts import WRAP
from dispatcher.plan.job.request import (
    LONGEST,
    Limits,
    Program,
    Request,
    Restarts,
    check_request,
    parse_nproc,
    parse_seconds,
    parse_signal,
    parse_stdin,
    parse_time,
    parse_warning,
)


def request(**fields: Any) -> Request:
    own: dict[str, Any] = {"hosts": Hostlist((Host("n1"),)), "cwd": "/w"}
    return Request(**{**own, "program": Program("script", ("t.py",)), **fields})


@cases(
    ("field", "flag", "high"),
    [
        ("np", "--np", MOST_RANKS),
        ("nnodes", "--nnodes", MOST_RANKS),
        ("spares", "--spares", MOST_RANKS),
        ("nproc_per_node", "--nproc-per-node", MOST_RANKS),
        ("omp", "--omp", 1 << 16), ("port", "--ssh-port", 65535),
        ("master_port", "--master-port", 65535), ("min_nodes", "--min-nodes", MOST_RANKS),
        ("max_host_failures", "--max-host-failures", MOST_RANKS),
    ],
)  # fmt: skip
def test_numbers_are_from_1_to_what_makes_sense(field: str, flag: str, high: int) -> None:
    def asked(number: int) -> Request:
        if field in ("min_nodes", "max_host_failures"):
            rules: dict[str, Any] = {field: number}
            return request(restarts=Restarts(**rules))
        return request(**{field: number})

    for number in (1, high):
        assert check_request(asked(number), "run") is None  # type: ignore[func-returns-value]
    for number in (0, high + 1, -1):
        with pytest.raises(UsageError) as caught:
            check_request(asked(number), "run")
        assert caught.value.message == f"{flag}: {number} is not between 1 and {high}"


@cases(
    ("field", "flag", "known"),
    [
        ("nproc_per_node", "--nproc-per-node", ["auto", "gpu"]),
        ("omp", "--omp", ["auto", "keep"]),
        ("rank_by", "--rank-by", ["slot", "node"]),
        ("devices", "--devices", ["auto", "node", "rank", "none"]),
        ("bind_to", "--bind-to", ["auto", "none", "core", "socket", "numa", "gpu"]),
        ("mem_bind", "--mem-bind", ["none", "local"]),
    ],
)
def test_words_are_among_the_known(field: str, flag: str, known: list[str]) -> None:
    for word in known:
        assert check_request(request(**{field: word}), "run") is None  # type: ignore[func-returns-value]
    with pytest.raises(UsageError) as caught:
        check_request(request(**{field: "board"}), "run")
    assert caught.value.message == f"{flag}: 'board' is not one of {', '.join(known)}"


@cases(
    ("fields", "run_id", "said", "hint"),
    [
        ({}, "", "run id: letters, digits and -_. only: ''", None),
        ({}, "a/b", "run id: letters, digits and -_. only: 'a/b'", None),
        ({}, "\u00e4", "run id: letters, digits and -_. only: '\\xe4'", None),
        ({"program": Program("script", ())}, "r", "no program to run",
         "dispatch -H hostfile train.py"),
        ({"program": Program("script", ("",))}, "r", "no program to run",
         "dispatch -H hostfile train.py"),
        ({"program": Program("script", ("a", "\0"))}, "r",
         "a NUL byte in '\\x00': no program can be given one", None),
        ({"python": "p\0"}, "r", "a NUL byte in 'p\\x00': no program can be given one", None),
        ({"cwd": "/\0"}, "r", "a NUL byte in '/\\x00': no program can be given one", None),
        ({"python": ""}, "r", "--python: not a program: ''", None),
        ({"python": "-u"}, "r", "--python: not a program: '-u'", None),
        ({"stdin": "all", "restarts": Restarts(most=1)}, "r",
         "--stdin all: input is read once, so ranks cannot be started again",
         "leave out --max-restarts, or have the ranks read a file"),
        ({"stdin": 0, "restarts": Restarts(most=1)}, "r",
         "--stdin 0: input is read once, so ranks cannot be started again",
         "leave out --max-restarts, or have the ranks read a file"),
        ({"bind_to": "gpu", "per_node": True}, "r",
         "--bind-to gpu: with one process a host, the ranks are not dispatch's",
         "bind by what PROGRAM offers: torchrun --numa-binding node"),
        ({"bind_to": "none", "mem_bind": "local"}, "r",
         "--mem-bind local needs ranks that are bound, not --bind-to none", None),
        ({"user": ""}, "r", "--user: empty user name", "write user@host"),
        ({"master_addr": "n{1}"}, "r", "--master-addr: '{' has no place in a host name: 'n{1}'",
         "ranges are written n[1-3]"),
        ({"local_rank_arg": ""}, "r", "--local-rank-arg: not the name of an argument: ''",
         "--local-rank-arg --local_rank"),
        ({"local_rank_arg": "a=b"}, "r", "--local-rank-arg: not the name of an argument: 'a=b'",
         "--local-rank-arg --local_rank"),
        ({"wraps": ("nsys",)}, "r", "--wrap: not RANKS:COMMAND: 'nsys'", WRAP),
        ({"wraps": ("0: ",)}, "r", "--wrap: not RANKS:COMMAND: '0: '", WRAP),
        ({"wraps": ("0:''",)}, "r", "--wrap: not RANKS:COMMAND: \"0:''\"", WRAP),
        ({"wraps": ("0:'a",)}, "r", "--wrap: \"0:'a\": No closing quotation", WRAP),
        ({"wraps": ("0:a", "x:b")}, "r", "--wrap: not a list of ranks: 'x'", WRAP),
        ({"wraps": ("0:a\0",)}, "r", "a NUL byte in '0:a\\x00': no program can be given one", None),
        ({"iface": "a b"}, "r", "--iface: ' ' has no place in an interface name: 'a b'", None),
        ({"name": "-x"}, "r", "--name: not the name of a job: '-x'",
         "letters, digits and -_. (not first: - and .), at most 64"),
    ],
)  # fmt: skip
def test_what_no_hosts_could_honour(
    fields: dict[str, Any], run_id: str, said: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        check_request(request(**fields), run_id)
    assert (caught.value.message, caught.value.hint) == (said, hint)


@cases(
    "fields",
    [
        {"stdin": "none", "restarts": Restarts(most=1)},
        {"stdin": "all"},
        {"bind_to": "none", "per_node": True},
        {"user": "me", "master_addr": "::1", "iface": "eth0", "name": "lr-3e-4"},
        {"python": "/opt/py -x"},
        {"program": Program("command", ("a", "", "\n"))},
    ],
)
def test_what_some_could(fields: dict[str, Any]) -> None:
    assert check_request(request(**fields), "20260131-142501-k3f9x2_A.b") is None  # type: ignore[func-returns-value]


def test_what_nobody_said() -> None:
    asked = vars(request())
    for name, default in {
        "map_by": "block", "oversubscribe": False, "python": "python3", "devices": "auto",
        "omp": "auto", "mpi": "auto", "pmi_port": False, "stdin": "none",
        "limits": Limits(), "restarts": Restarts(), "per_node": False, "exports": (),
        "env_files": (), "environ": {},
    }.items():  # fmt: skip
        assert asked.pop(name) == default
    assert {name for name, given in asked.items() if given is None} == {
        "np", "nnodes", "nproc_per_node", "include", "exclude", "rank_by", "rankfile", "user",
        "port", "master_addr", "master_port", "iface", "spares", "local_rank_arg",
        "name",
    }  # fmt: skip
    assert vars(Limits()) == {
        "connect_timeout": 10.0, "boot_timeout": 30.0, "heartbeat": 5.0, "heartbeat_rate": 400.0,
        "max_missed_heartbeats": 3, "unreachable": 0.0,
        "lease": 30.0, "grace": 10.0, "lifeline_grace": 1.0, "mpi_stall_warning": 30.0,
        "hang_timeout": 0.0, "time_limit": 0.0, "warn_signal": 0, "warn_before": 60.0,
        "stop_signal": 0, "fanout": 64,
    }  # fmt: skip
    assert vars(Restarts()) == {
        "most": 0, "delay": 1.0, "min_nodes": None, "max_host_failures": 3, "progress_file": None,
        "progress_line": None,
    }  # fmt: skip


@cases(
    ("fields", "refused"),
    [
        ({"grace": 0}, None), ({"lifeline_grace": 0}, None), ({"hang_timeout": 0}, None),
        ({"hang_timeout": 1}, None),
        ({"hang_timeout": 0.9}, "hang_timeout: 0.9 s: every job is silent for that long"),
        ({"connect_timeout": 0}, "connect_timeout: 0 is not a sensible limit"),
        ({"mpi_stall_warning": 0}, "mpi_stall_warning: 0 is not"),
        ({"grace": -0.1}, "grace: -0.1 is not"),
        ({"grace": LONGEST - 1}, None),
        ({"grace": LONGEST}, f"grace: {LONGEST} is not"),
        ({"grace": float("nan")}, "grace: nan is not"), ({"fanout": 1}, None),
        ({"fanout": 0.5}, "fanout: 0.5 is not"), ({"max_missed_heartbeats": 1}, None),
        ({"max_missed_heartbeats": 0.5}, "max_missed_heartbeats: 0.5 is not"),
        ({"heartbeat": 0.2, "lease": 0.6}, None),  # 3 x 0.2 is above 0.6
        ({"heartbeat": 5.0, "lease": 15.0}, None),
        ({"heartbeat": 5.0, "lease": 14.9},
         "lease of 14.9 s is shorter than 3 heartbeats of 5.0 s"),
    ],
)  # fmt: skip
def test_limits(fields: dict[str, Any], refused: str | None) -> None:
    if refused is None:
        assert vars(Limits(**fields)).items() >= fields.items()
        return
    with pytest.raises(UsageError) as caught:
        Limits(**fields)
    assert caught.value.message.startswith(refused)
    assert caught.value.hint == ("--hang-timeout 600" if "every job" in refused else None)


@cases(
    ("fields", "hosts", "beat", "lease"),
    [
        ({}, 2000, 5.0, 30.0), ({}, 4000, 10.0, 60.0), ({}, 10_000, 25.0, 150.0),
        ({"lease": 400.0}, 10_000, 25.0, 400.0),
        ({"heartbeat": 30.0, "lease": 90.0}, 10_000, 30.0, 90.0),
        ({"heartbeat": 0.5}, 100, 0.5, 30.0), ({"heartbeat": 0.5}, 400, 1.0, 30.0),
        ({"max_missed_heartbeats": 5}, 4000, 10.0, 100.0),
    ],
)  # fmt: skip
def test_many_hosts_give_heartbeats_more_seldom(
    fields: dict[str, Any], hosts: int, beat: float, lease: float
) -> None:
    limits = Limits(**fields)
    found = limits.for_hosts(hosts)
    assert (found.heartbeat, found.lease) == (beat, lease)
    assert found.kernel_silence == limits.kernel_silence  # which costs nobody a beat
    assert replace(limits, heartbeat_rate=1e6).for_hosts(hosts) == replace(
        limits, heartbeat_rate=1e6
    )


def test_silence_is_so_many_heartbeats() -> None:
    limits = Limits(heartbeat=2.0, max_missed_heartbeats=4)
    assert (limits.silence, limits.silence_text) == (10.0, "no heartbeat for 10 s")


@cases(
    ("fields", "said"),
    [
        ({"delay": -0.1}, "--restart-delay: -0.1 is not a sensible time"),
        ({"delay": 1e7}, "--restart-delay: 10000000.0 is not a sensible time"),
        ({"progress_line": "("}, "--progress-line: not a pattern: "),
        ({"progress_file": ""}, "--progress-file: not a file name"),
        ({"progress_file": "a\0"}, "--progress-file: not a file name"),
    ],
)
def test_rules_of_restarts(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Restarts(**fields)
    assert caught.value.message.startswith(said)


@cases(
    ("fields", "shows"),
    [({}, False), ({"progress_file": "x"}, True), ({"progress_line": "\udcff"}, True)],
)
def test_whether_progress_is_shown(fields: dict[str, Any], shows: bool) -> None:
    assert Restarts(**fields).shows_progress is shows


@cases(
    ("delay", "pauses"),
    [
        (0.0, [0, 0, 0, 0]), (1.0, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]),
        (7.0, [0, 0, 7, 14, 28, 56, 60]), (99.0, [0, 0, 60, 60]),
    ],
)  # fmt: skip
def test_pauses(delay: float, pauses: list[float]) -> None:
    rules = Restarts(delay=delay)
    assert [rules.pause(row) for row in range(len(pauses))] == pauses
    assert Restarts(delay=1e-9).pause(10**6) == 2**30 * 1e-9


@cases(
    ("text", "found"), [("auto", "auto"), ("gpu", "gpu"), ("1", 1), (str(MOST_RANKS), MOST_RANKS)]
)
def test_nproc(text: str, found: int | str) -> None:
    assert parse_nproc(text) == found


@cases(
    ("text", "found"),
    [("none", "none"), ("all", "all"), ("0", 0), (str(MOST_RANKS - 1), MOST_RANKS - 1)],
)
def test_stdin(text: str, found: int | str) -> None:
    assert parse_stdin(text) == found


@cases(
    ("text", "said", "hint"),
    [
        ("0", "--nproc-per-node: 0 is not between 1 and 1000000",
         "--nproc-per-node takes a number, gpu or auto"),
        ("1000001", "--nproc-per-node: 1000001 is not between 1 and 1000000",
         "--nproc-per-node takes a number, gpu or auto"),
    ],
)  # fmt: skip
def test_nproc_that_is_none(text: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_nproc(text)
    assert (caught.value.message, caught.value.hint) == (said, hint)
    with pytest.raises(UsageError) as caught:
        parse_stdin("1000000")
    assert caught.value.message == "--stdin: 1000000 is not between 0 and 999999"
    assert caught.value.hint == "--stdin takes none, all or the number of a rank"


@cases(
    ("text", "seconds"),
    [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0), (" 2 ", 2.0), ("9999999", 9999999.0)],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--grace") == seconds


@cases(
    ("text", "seconds"),
    [
        ("90", 90.0), ("1.5", 1.5), ("90s", 90.0), ("90m", 5400.0), ("2h", 7200.0), ("1d", 86400.0),
        ("1.5h", 5400.0), ("90:00", 5400.0), ("04:00:00", 14400.0), ("1-12", 129600.0),
        ("1-0:30", 88200.0), ("2-01:00:01", 176401.0),
    ],
)  # fmt: skip
def test_time(text: str, seconds: float) -> None:
    assert parse_time(text, "--time-limit") == seconds


@cases(
    "text",
    ["", "h", "-1", "1-", "-12", "1:", ":1", "1:x", "1:2:3:4", "1-1:2:3:4", "9d9", "nan",
     "\u0660:\u0661", "000000001:00"],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, "--time-limit")
    assert caught.value.message == f"--time-limit: not a time: {text!r}"


@cases(("text", "number"), [("USR1", 10), ("sigterm", 15), ("10", 10), ("INT", 2)])
def test_signal(text: str, number: int) -> None:
    assert parse_signal(text, "--signal") == number
    assert parse_warning(f"B:{text}@30", "--signal") == (number, 30.0)
    assert parse_warning(text, "--signal") == (number, None)


@cases("text", ["", "KILL", "9", "STOP", "0", "99", "USR3", "\u0661"])
def test_what_is_no_signal(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_signal(text, "--signal")
    assert caught.value.message.startswith("--signal: not a signal that a program can handle")


@cases("text", ["", "x", "-1", "nan", "inf", "1_0", "\u0661", str(LONGEST)])
def test_what_is_no_number_of_seconds(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_seconds(text, "--grace")
    assert caught.value.message == f"--grace: not a number of seconds: {text!r}"
    assert caught.value.hint == "--grace 10"


@cases(
    ("text", "hint"),
    [
        ("5s", "--grace 5"), ("1.5m", "--grace 90"), ("2h", "--grace 7200"),
        ("115d", "--grace 9936000"), ("116d", None), ("1_0s", "--grace 10"),
        ("5ms", "--grace 10"), ("s", "--grace 10"),
    ],
)  # fmt: skip
def test_the_hint_has_what_was_meant_in_seconds(text: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_seconds(text, "--grace")
    assert caught.value.hint == hint
