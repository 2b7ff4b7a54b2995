"""Readings of many hosts, collected: what was answered, and what the second visit asks."""

from __future__ import annotations

import base64
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.checks.check import Asked, Check, Finding, Reading, Seen, ok
from dispatcher.checks.pair_ranking import Pair
from dispatcher.checks.report import Want, second_readings
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.remote.protocol.packing import pack, unpack
from dispatcher.runner import surveys
from dispatcher.runner.surveys import HostAnswer, examine, find_addresses, meeting_place, play_round
from dispatcher.transport.base import Link, Target, Transport, Window
from runner.played import Command

#: what a host is asked, reading by reading -> (what it writes, its errors, its exit code)
Spoken = tuple[bytes, bytes, int]
Answers = Callable[[str, list[Any]], "Spoken | Failure | None"]


def readings_in(opening: bytes) -> list[Any]:
    """What a survey was asked for."""
    text = opening.decode().partition("\n")[2].partition("set -- ")[2]
    found = unpack(base64.b64decode(shlex.split(text)[-1]))
    assert isinstance(found, list)
    return found


class Played(Transport):
    """Hosts that answer a survey by ``answers``; ``asked``: by the host's name, each visit."""

    name = "played"

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.asked: dict[str, list[list[Any]]] = {}
        self.connect: list[float] = []  # seconds there were for each

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        self.connect.append(deadline - time.monotonic())
        failure = self._answers(target.host, [])
        if isinstance(failure, Failure):
            return failure

        def answer(opening: bytes) -> Spoken | None:
            asked = readings_in(opening)
            self.asked.setdefault(target.host, []).append(asked)
            said = self._answers(target.host, asked)
            assert not isinstance(said, Failure)
            return said

        link = Command(answer)
        link.address = f"10.0.0.{target.host[1:]}"
        return link


def packed(readings: Mapping[str, Any], now: float = 1000.0) -> Spoken:
    return b"%r\n" % now + pack(dict(readings)), b"", 0


def good(value: Any) -> list[Any]:
    return [0, pack(value), False]


def survey(answers: Answers, count: int = 1, **how: Any) -> tuple[HostAnswer, ...]:
    hosts = [Host(f"n{number}") for number in range(count)]
    played = Played(answers)
    how.setdefault("seconds", 30.0)
    return surveys.survey(hosts, [["a", "call", ["x"], 1.0, 99]], lambda host: played, **how)


# -- one survey -------------------------------------------------------------------------


def test_each_host_answers_what_it_was_asked() -> None:
    def answers(host: str, asked: list[Any]) -> Spoken:
        return packed({"a": [3, host.encode(), True], "b": [None, b"", False]})

    found = survey(answers, 3)
    for number, one in enumerate(found):
        assert one.readings == {
            "a": Reading(3, b"n%d" % number, cut=True), "b": Reading(None, b""),
        }  # fmt: skip
        assert (one.problem, one.lost, one.hint) == ("", False, None)
        assert one.address == f"10.0.0.{number}"


def test_a_clock_is_ahead_by_no_more_than_the_answer_took() -> None:
    times: list[float] = []

    def clock() -> float:
        times.append(103.0 if times else 100.0)
        return times[-1]

    def answers(host: str, asked: list[Any]) -> Spoken:
        if asked:
            wait_for(lambda: times, 30, "the host is known to be reached")
        return packed({}, 102.0)

    (one,) = survey(answers, clock=clock)
    assert one.ahead == (-1.0, 2.0)


@cases(
    ("said", "problem"),
    [
        ((b"", b"warning\nTraceback: no\n", 1), "the survey failed; it said: Traceback: no"),
        ((b"", b"x" * 500, 1), "the survey failed; it said: " + "x" * 400),
        ((b"", b"", 9), "the survey failed; it said: nothing"),
        ((b"", b"sh\n" + payload.NO_PYTHON_MARK.encode() + b"python3 p9\n", 127),
         "no python on the host; looked for python3 p9"),
        ((b"soon\n" + pack({}), b"", 0), "a malformed answer: could not convert string to float*"),
        ((b"1.0\nnoise", b"", 0), "a malformed answer: *"),
        ((b"1.0\n" + pack([1]), b"", 0), "a malformed answer: not a dict"),
        ((b"1.0\n" + pack({"a": 1}), b"", 0), "a malformed answer: 'a': not a reading"),
        ((b"1.0\n" + pack({"a": [0, b"", False, 1]}), b"", 0), "* 'a': not a reading"),
        ((b"1.0\n" + pack({"a": ["0", b"", False]}), b"", 0), "* 'a': not a reading"),
        ((b"1.0\n" + pack({"a": [True, b"", False]}), b"", 0), "* 'a': not a reading"),
        ((b"1.0\n" + pack({"a": [0, "", False]}), b"", 0), "* 'a': not a reading"),
        ((b"1.0\n" + pack({"a": [0, b"", None]}), b"", 0), "* 'a': not a reading"),
    ],
)  # fmt: skip
def test_a_host_that_gives_no_readings_says_why(said: Spoken, problem: str) -> None:
    (one,) = survey(lambda host, asked: said)
    assert fnmatchcase(one.problem, problem)
    assert (one.readings, one.lost, one.ahead) == ({}, False, None)


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "MOST", 1 << 20)
    big = {"a": [0, bytes(1 << 20), False]}
    (one,) = survey(lambda host, asked: packed(big))
    assert one.problem == "a malformed answer: more than 1 MiB"


def test_hosts_that_are_not_reached_are_lost() -> None:
    failure = Failure(Kind.REFUSED, "nobody listens", "is it up?")

    def answers(host: str, asked: list[Any]) -> Spoken | Failure:
        return failure if host == "n0" else packed({})

    refused, well = survey(answers, 2)
    assert (refused.problem, refused.lost, refused.hint) == (
        "connection refused: nobody listens", True, "is it up?",
    )  # fmt: skip
    assert (well.problem, well.lost) == ("", False)
    (silent,) = survey(lambda host, asked: None, seconds=0.6)
    assert (silent.problem, silent.lost) == ("no answer within 1 s", True)


def test_who_stops_dispatch_gets_no_half_answer() -> None:
    def answers(host: str, asked: list[Any]) -> Spoken | None:
        if asked and host == "n1":
            os.kill(os.getpid(), signal.SIGTERM)
            return None
        return packed({})

    with pytest.raises(surveys.Stopped, match="SIGTERM came") as stopped:
        survey(answers, 2)
    assert stopped.value.exit_code == 128 + 15


# -- two visits -------------------------------------------------------------------------


class Cluster:
    """Hosts of which some are lost, or silent; what the check saw of them."""

    def __init__(self, **odd: Spoken | Failure) -> None:
        self.odd = odd
        self.played = Played(self._answer)
        self.seen: Mapping[str, Seen] = {}

    def _answer(self, host: str, asked: list[Any]) -> Spoken | Failure:
        if host in self.odd:
            return self.odd[host]
        if any(one[0] == "meet" for one in asked):
            return packed({"meet": good([["10.0.0.0", ""]])})
        return packed(
            {"netdevs": good("netdev eth0 flags=1043 addresses=10.0.0.7,10.9.0.7"),
             "port": good(4711)}
        )  # fmt: skip

    def _look(self, hosts: Mapping[str, Seen]) -> dict[str, Finding]:
        self.seen = hosts
        return {name: ok() for name in hosts}

    def examine(self, count: int, *names: str, full: bool = False, **how: Any) -> Any:
        hosts = [Host(f"n{number}", slots=number + 1) for number in range(count)]
        checks = [Check(name, "", self._look) for name in names or ("any",)]
        want = Want(Asked("/w", iface=how.pop("iface", None)), "python3", {}, 9.0, full)
        how.setdefault("seconds", 60.0)
        return examine(hosts, want, checks, lambda host: self.played, **how)


def test_all_hosts_are_visited_twice() -> None:
    cluster = Cluster()
    report = cluster.examine(2, clock=lambda: 999.0)
    assert {name: host.problem for name, host in report.hosts.items()} == {"n0": None, "n1": None}
    first, second = (cluster.seen[name] for name in ("n0", "n1"))
    assert (first.slots, second.slots, second.head, second.name) == (1, 2, "n0", "n1")
    assert (second.ahead, second.asked.cwd) == ((1.0, 1.0), "/w")
    assert second.value("port") == 4711
    assert second.value("meet", later=True) == [["10.0.0.0", ""]]
    names = [one[2] for one in cluster.played.asked["n1"][0] if one[0] == "names"]
    assert names == [["resolve", ["n0"]]]
    want = Want(Asked("/w"), "python3", {}, 9.0)  # half of the three tenths
    later = second_readings(want, ["10.0.0.0", "10.0.0.7", "10.9.0.7"], 4711)
    for name in ("n0", "n1"):
        assert cluster.played.asked[name][1] == unpack(pack(later))


def test_a_port_that_the_user_has_chosen_goes_before_a_free_one() -> None:
    cluster = Cluster()
    cluster.examine(2, port=29500)
    assert cluster.played.asked["n1"][1][0][2][2] == 29500


@cases(("connect", "seconds"), [(100.0, [100.0, 54.0]), (300.0, [180.0, 54.0])])
def test_time_is_divided_between_the_visits(connect: float, seconds: list[float]) -> None:
    cluster = Cluster()
    cluster.examine(2, connect=connect, seconds=600.0)
    found = sorted(cluster.played.connect, reverse=True)
    assert all(
        low <= high + 0.001
        for low, high in zip(found, sorted(seconds * 2, reverse=True), strict=True)
    )
    assert found[1] > seconds[0] - 20
    assert found[-1] > seconds[1] - 20
    assert surveys.readings_limit(20.0) == pytest.approx(6.0)


def test_who_is_lost_or_unread_is_told_with_what_helps() -> None:
    refused = Failure(Kind.REFUSED, "no", "is it up?")
    cluster = Cluster(n1=refused, n2=(b"", b"oops", 1))
    report = cluster.examine(4)
    assert {n: (h.problem, h.lost, h.remedy) for n, h in report.hosts.items() if h.problem} == {
        "n1": ("connection refused: no", True, "is it up?"),
        "n2": ("the survey failed; it said: oops", False, None),
    }
    assert list(cluster.seen) == ["n0", "n3"]
    assert cluster.seen["n3"].later.keys() == {"meet"}
    assert len(cluster.played.asked["n3"]) == 2


def test_one_host_alone_meets_nobody() -> None:
    cluster = Cluster()
    report = cluster.examine(1, "any", "reach", "errors", full=True)
    assert report.checks == ("any",)
    assert len(cluster.played.asked["n0"]) == 1


def test_without_the_first_host_the_others_meet_on_the_next() -> None:
    cluster = Cluster(n0=Failure(Kind.REFUSED, "no"))
    report = cluster.examine(3, "any", "reach")
    assert report.checks == ("any", "reach")
    assert {name: seen.head for name, seen in cluster.seen.items()} == {"n1": "n1", "n2": "n1"}
    assert cluster.seen["n2"].value("meet", later=True) == [["10.0.0.0", ""]]
    for name in ("n1", "n2"):
        (meet,) = cluster.played.asked[name][1]
        assert meet[2] == ["meet", ["10.0.0.1", "10.0.0.7", "10.9.0.7"], 4711, 7.2]


def test_one_host_that_is_left_meets_nobody() -> None:
    cluster = Cluster(n0=Failure(Kind.REFUSED, "no"))
    assert cluster.examine(2, "any", "reach").checks == ("any",)
    assert len(cluster.played.asked["n1"]) == 1
    assert Cluster(n0=Failure(Kind.REFUSED, "no")).examine(1).hosts["n0"].lost


NETDEVS = """\
netdev lo flags=49 addresses=127.0.0.1,::1
netdev eth0 flags=1043 addresses=10.0.0.7,fe80::7
netdev eth1 flags=1002 addresses=10.1.0.7
netdev ib0 flags=1043 addresses=10.2.0.7,fd00::7
"""


@cases(
    ("reached", "iface", "addresses"),
    [
        (None, None, ["10.0.0.7", "10.2.0.7", "fd00::7"]),
        ("10.2.0.7", None, ["10.2.0.7", "10.0.0.7", "fd00::7"]),
        ("127.0.0.1", None, ["10.0.0.7", "10.2.0.7", "fd00::7"]),
        ("10.0.0.7", "ib0", ["10.2.0.7", "fd00::7"]),
        ("10.0.0.7", "eth9", []),
    ],
)
def test_where_ranks_would_meet(
    reached: str | None, iface: str | None, addresses: list[str]
) -> None:
    readings = {name: Reading(*good(v)) for name, v in (("netdevs", NETDEVS), ("port", 99))}
    head = Seen("n0", readings, asked=Asked(iface=iface))
    assert meeting_place(head, reached) == (addresses, 99)


def test_a_host_of_which_nothing_is_known_is_called_where_it_was_reached() -> None:
    port = Reading(*good(99))
    for readings in ({}, {"port": port}, {"netdevs": Reading(0, b"?"), "port": port},
                     {"netdevs": Reading(*good(NETDEVS))},
                     {"netdevs": Reading(*good(NETDEVS)),
                      "port": Reading(*good("x"))}):  # fmt: skip
        seen = Seen("n0", readings)
        assert meeting_place(seen, "10.0.0.7") == (["10.0.0.7"], 0)
        assert meeting_place(seen, None) == ([], 0)


def test_so_many_addresses_are_tried() -> None:
    text = "netdev e flags=1043 addresses=" + ",".join(f"10.0.0.{n}" for n in range(1, 20))
    readings = {"netdevs": Reading(*good(text)), "port": Reading(*good(1))}
    assert meeting_place(Seen("n0", readings), None)[0] == [f"10.0.0.{n}" for n in range(1, 9)]


# -- pairs ------------------------------------------------------------------------------


def test_where_hosts_can_be_called() -> None:
    def answers(host: str, asked: list[Any]) -> Spoken | Failure:
        if host == "n1":
            return Failure(Kind.REFUSED, "no")
        devices = f"netdev ib0 flags=1043 addresses=10.2.0.{host[1:]}" if host != "n2" else ""
        port = 0 if host == "n3" else 4000
        return packed({"netdevs": good(devices), "port": good(port)})

    hosts = [Host(f"n{number}") for number in range(5)]
    played = Played(answers)
    found, problems = find_addresses(hosts, "ib0", lambda host: played, seconds=20.0, connect=50.0)
    assert found == {0: ("10.2.0.0", 4000), 4: ("10.2.0.4", 4000)}
    assert problems == {
        1: "connection refused: no", 2: "no address on ib0", 3: "no address on ib0",
    }  # fmt: skip
    assert played.asked["n0"] == [
        [
            ["netdevs", "call", ["netdevs"], 20.0, 64 << 10],
            ["port", "call", ["free_port"], 20.0, 4096],
        ]
    ]
    silent = Played(lambda host, asked: None)
    _, problems = find_addresses(hosts[:1], None, lambda host: silent, seconds=0.2, connect=50.0)
    assert problems == {0: "no answer within 0 s"}  # twice as long as one reading
    assert all(30 < seconds <= 50 for seconds in played.connect)
    _, problems = find_addresses(hosts[3:4], None, lambda host: played, seconds=20.0, connect=50.0)
    assert problems == {0: "no address to call"}


def test_all_pairs_of_a_round_measure_at_once() -> None:
    said: dict[str, Any] = {
        "n1": good([0.001, 5e9, ""]), "n4": good([0.002, 7e9, ""]),
        "n2": good([None, -1.0, "cut off"]), "n3": good([0.1, None, "later"]),
        "n5": [125, b"Traceback\nKeyError", False], "n6": good(["x", 1.0, ""]),
    }  # fmt: skip

    def answers(host: str, asked: list[Any]) -> Spoken | Failure:
        if host == "n7":
            return Failure(Kind.REFUSED, "no")
        return packed({"pair": said[host]} if host in said else {})

    hosts = [Host(f"n{number}") for number in range(9)]
    played = Played(answers)
    where = {number: (f"10.0.0.{number}", 4000 + number) for number in range(9)}
    pairs = play_round(
        hosts, where, [(4, 1), (2, 3), (5, 6), (7, 8)], lambda host: played,
        limit=30.0, connect=50.0,
    )  # fmt: skip
    assert pairs == [
        Pair(4, 1, 0.002, 5e9, 7e9, ""),
        Pair(2, 3, None, None, None, "cut off"),
        Pair(5, 6, None, 1.0, None, "exit code 125: KeyError"),
        Pair(7, 8, None, None, None, "connection refused: no"),
    ]
    assert "n0" not in played.asked
    assert all(30 < seconds <= 50 for seconds in played.connect)
    (asked,) = played.asked["n4"]
    table = {
        "3": ["call", "10.0.0.1", 4001], "0": ["listen", "10.0.0.1", 4001],
        "1": ["call", "10.0.0.3", 4003], "2": ["listen", "10.0.0.3", 4003],
        "4": ["call", "10.0.0.6", 4006], "5": ["listen", "10.0.0.6", 4006],
        "6": ["call", "10.0.0.8", 4008], "7": ["listen", "10.0.0.8", 4008],
    }  # fmt: skip
    assert asked == [["pair", "call", ["pair", table, surveys.SECONDS, 30.0], 31.0, 4096]]
