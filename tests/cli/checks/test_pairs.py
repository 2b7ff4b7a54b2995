"""The map of rates between hosts, in lines and as a picture; rounds, and who is to blame."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.api import rank_pairs
from dispatcher.checks.pair_ranking import InsideHost, Pair, PairRanking
from dispatcher.cli.checks import pairs
from dispatcher.cli.checks.pairs import MOST_SHOWN, Measured, rate_words, rates, svg, text
from dispatcher.model.frozen import json_of
from dispatcher.runner import surveys

NAMES = ["n1", "n<2>", "node3"]
PAIRS = [Pair(0, 1, 1e-5, 4e9, 2e9), Pair(0, 2, 1e-5, 1e9, 8e9), Pair(1, 2, why="refused")]
RANKING = PairRanking((1,), (), frozenset({(0, 1)}), 4e9)


def test_a_row_sends_and_a_column_receives() -> None:
    assert rates(PAIRS[:1]) == {(0, 1): 4e9, (1, 0): 2e9}
    assert text(NAMES, PAIRS, RANKING) == ["   n1  █░", " n<2> ▒ x <", "node3 █x "]
    assert text(NAMES, PAIRS[:1], RANKING) == ["   n1  █·", " n<2> ▒ · <", "node3 ·· "]


@cases("usual", [0.0, 1e12])
def test_the_least_shade_is_still_a_shade(usual: float) -> None:
    assert text(["a", "b"], PAIRS[:1], PairRanking((), (), frozenset(), usual)) == ["a  ░", "b ░ "]


@cases(("count", "lines"), [(MOST_SHOWN, MOST_SHOWN), (MOST_SHOWN + 1, 0)])
def test_a_screen_holds_so_many(count: int, lines: int) -> None:
    assert len(text([f"n{i}" for i in range(count)], [], RANKING)) == lines


def test_the_picture() -> None:
    drawn = svg(NAMES, PAIRS, RANKING)
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg" width="234" height="234"')
    assert drawn.endswith("</svg>\n")
    assert "usual: 4.0 GB/s" in drawn
    for name in ("n1", "n&lt;2&gt;", "node3"):
        assert len(re.findall(f">{name}</text>", drawn)) == 2
    names = re.findall(r'<text x="(\d+)" y="(\d+)"[^>]*>(n1|n&lt;2&gt;|node3)</text>', drawn)
    assert names == [
        ("84", "103", "n1"), ("103", "84", "n1"), ("84", "121", "n&lt;2&gt;"),
        ("121", "84", "n&lt;2&gt;"), ("84", "139", "node3"), ("139", "84", "node3"),
    ]  # fmt: skip
    assert 'transform="rotate(-60 121 84)"' in drawn
    assert drawn.count('font-weight="bold"') == 2  # the culprit's name, twice
    cells = re.findall(
        r'<rect x="(\d+)" y="(\d+)" width="17" height="17" fill="([^"]*)"><title>(.*?)</title>',
        drawn,
    )
    assert cells == [
        ("108", "90", "hsl(120,75%,50%)", "n1 to n&lt;2&gt;: 4.0 GB/s"),
        ("126", "90", "hsl(30,75%,50%)", "n1 to node3: 1.0 GB/s"),
        ("90", "108", "hsl(60,75%,50%)", "n&lt;2&gt; to n1: 2.0 GB/s"),
        ("126", "108", "#000", "n&lt;2&gt; to node3: failed"),
        ("90", "126", "hsl(120,75%,50%)", "node3 to n1: 8.0 GB/s"),
        ("108", "126", "#000", "node3 to n&lt;2&gt;: failed"),
    ]


@cases(
    ("rate", "words"),
    [(1e9, "1.0 GB/s"), (999e6, "999.0 MB/s"), (1e6, "1.0 MB/s"), (999e3, "999 kB/s"),
     (0, "0 kB/s")],
)  # fmt: skip
def test_a_rate_in_words(rate: float, words: str) -> None:
    assert rate_words(rate) == words


# -- in words ------------------------------------------------------------------------------


HOSTS = ["n1", "n2", "n3", "n4"]
GOOD = Pair(0, 1, 1e-3, 4e9, 4e9)
SLOW = Pair(0, 2, 1e-3, 1e9, 4e9)
FAILED = Pair(1, 2, why="Refused\x1b")
MUTE = Pair(2, 3)


@cases(
    ("pair", "words"),
    [
        (GOOD, "n1-n2 4.0 GB/s, back 4.0 GB/s, 1.0 ms"),
        (Pair(0, 1, None, 4e9, 2e9), "n1-n2 4.0 GB/s, back 2.0 GB/s"),
        (FAILED, "n2-n3 failed (refused\x1b)"),
        (MUTE, "n3-n4 failed (no answer)"),
    ],
)
def test_a_pair_in_words(pair: Pair, words: str) -> None:
    assert pairs._words(HOSTS, pair) == words


def found_with(ranking: PairRanking, *words: Any) -> Measured:
    found = Measured(*words)
    found.__dict__["ranking"] = ranking
    return found


def blamed(ranking: PairRanking, *words: Any) -> list[str]:
    return pairs.lines(found_with(ranking, *words))


def test_who_is_to_blame() -> None:
    measured = [GOOD, SLOW, FAILED, MUTE, Pair(0, 3, 1e-3, 4e9, 4e9), Pair(1, 3, 1e-3, 1e9, 1e9)]
    ranking = PairRanking((2,), ((1, 3),), frozenset({(0, 2), (1, 2), (2, 3), (1, 3)}), 4e9)
    shown = blamed(ranking, HOSTS, measured, {}, 3, 1.26)
    assert shown[0] == "4 hosts, 6 pairs in 3 rounds, 1.3 s; usual: 4.0 GB/s"
    assert len(shown) == 8
    assert [line[-2:] == " <" for line in shown[1:5]] == [False, False, True, False]
    assert shown[5:] == [
        "critical: n3: bad with most partners: n1-n3 1.0 GB/s, back 4.0 GB/s, 1.0 ms; "
        "n2-n3 failed (refused\\x1b); n3-n4 failed (no answer)",
        "  hint: look at its cable, port and routes; until then --exclude it",
        "critical: n2 and n4: bad together: n2-n4 1.0 GB/s, back 1.0 GB/s, 1.0 ms",
    ]


def test_only_some_pairs_of_one_host_are_told() -> None:
    names = [f"n{number}" for number in range(6)]
    measured = [Pair(0, other) for other in range(1, 6)]
    ranking = PairRanking((0,), (), frozenset((0, other) for other in range(1, 6)), 0.0)
    shown = blamed(ranking, names, measured, {}, 1)
    (line,) = (one for one in shown if "bad with" in one)
    assert line.count("failed") == 3
    assert line.endswith("; and 2 more")


def test_hosts_that_were_not_measured() -> None:
    ranking = PairRanking((), (), frozenset(), 4e9)
    problems = {2: "no\x1b route", 3: "no\x1b route"}
    shown = blamed(ranking, HOSTS, [GOOD], problems, 1)
    assert shown[-1] == "critical: n[3-4]: not measured: no\\x1b route"
    many = [f"n{number}" for number in range(MOST_SHOWN + 1)]
    assert blamed(ranking, many, [GOOD], {}, 1)[1:] == ["all pairs are equally fast"]


def told(found: Measured) -> Any:
    return promises.told(json.dumps(json_of(pairs.pairs_document(found))))


def test_for_programs() -> None:
    ranking = PairRanking((2,), ((0, 2),), frozenset({(0, 2)}), 4e9)
    found = told(found_with(ranking, HOSTS, [GOOD, SLOW, FAILED], {3: "x"}, 2, 1.23456))
    assert found == {
        "schema": "check-pairs/1", "format": 1, "seconds": 1.235, "rounds": 2, "usual": 4e9,
        "culprits": ["n3"],
        "links": [["n1", "n3"]], "problems": {"n4": "x"},
        "pairs": [
            {"hosts": ["n1", "n2"], "latency": 1e-3, "there": 4e9, "back": 4e9, "why": "",
             "bad": False, "rails": []},
            {"hosts": ["n1", "n3"], "latency": 1e-3, "there": 1e9, "back": 4e9, "why": "",
             "bad": True, "rails": []},
            {"hosts": ["n2", "n3"], "latency": None, "there": None, "back": None,
             "why": "Refused\x1b", "bad": False, "rails": []},
        ],
        "slow_rails": [], "inside": {},
    }  # fmt: skip


RAILS = (48e9, 47e9)
SLOW_RAIL = [Pair(0, 1, 1e-5, 4e11, 4e11, rails=RAILS), Pair(2, 3, 1e-5, 4e11, 4e11, rails=RAILS),
             Pair(0, 2, 1e-5, 4e11, 4e11, rails=(48e9, 12e9)),
             Pair(1, 2, 1e-5, 4e11, 4e11, rails=(48e9, 11e9))]  # fmt: skip
H100 = "NVIDIA H100 80GB HBM3"


def test_rails_and_hosts_by_themselves_are_told() -> None:
    ranking = PairRanking((), (), frozenset(), 4e11)
    inside = {host: InsideHost(4.78e11, H100, 8) for host in range(4)}
    measured = SLOW_RAIL[:1] + SLOW_RAIL[2:]
    shown = blamed(ranking, HOSTS, measured, {}, 2, 1.0, inside)
    assert shown[1] == "inside 4 hosts: usual 478.0 GB/s"
    assert shown[6:] == [
        "critical: n3: rail 1: 12.0 GB/s at best, usual is 48.0 GB/s",
        "  hint: the card near its GPU 1, by nvidia-smi topo -m, and its cable",
    ]
    inside[1] = InsideHost(3.1e11, H100, 8)
    shown = blamed(ranking, HOSTS, SLOW_RAIL, {}, 2, 1.0, inside)
    assert shown[6:] == [
        f"critical: n2: 310.0 GB/s among its 8 GPUs ({H100}), at least 460.0 GB/s is usual",
        "  hint: dispatch check --full looks at its NVLinks, clocks and power",
    ]
    found = told(found_with(ranking, HOSTS, measured, {}, 2, 1.0, inside))
    assert found["slow_rails"] == [["n3", 1]]
    assert found["inside"]["n1"] == {"rate": 4.78e11, "gpu": H100, "gpus": 8, "below": None}
    assert found["inside"]["n2"]["below"] == 4.6e11
    assert found["pairs"][0]["rails"] == [48e9, 47e9]


# -- rounds --------------------------------------------------------------------------------


class Played:
    """In the place of hosts: where they can be called, and what rounds of them measure."""

    def __init__(self) -> None:
        self.problems: dict[int, str] = {}
        self.rounds: list[list[tuple[int, int]]] = []
        self.slow: set[int] = set()
        self.limits: dict[str, Any] = {}

    def find_addresses(
        self, hosts: Any, iface: str | None, transport_for: Any, **limits: float
    ) -> Any:
        self.limits = {"iface": iface, **limits}
        there = {at: (f"10.0.0.{at}", 5) for at in range(len(hosts)) if at not in self.problems}
        return there, dict(self.problems)

    def play_round(
        self, hosts: Any, places: Any, chosen: Any, transport_for: Any, **limits: float
    ) -> list[Pair]:
        assert transport_for(hosts[0]).name == "paramiko"
        assert limits == {"limit": pairs.LIMIT, "connect": self.limits["connect"]}
        self.rounds.append(list(chosen))
        rate = {at: 1e8 if at in self.slow else 4e9 for at in range(len(hosts))}
        return [Pair(a, b, 1e-4, min(rate[a], rate[b]), min(rate[a], rate[b])) for a, b in chosen]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(surveys, "find_addresses", played.find_addresses)
    monkeypatch.setattr(surveys, "play_round", played.play_round)
    return played


def test_hosts_that_are_alike_need_two_rounds(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "--pairs", "-w", "n[1-4]", "--iface", "ib0", "-t", "3"]
    assert cli.main(words) == 0
    assert len(played.rounds) == 2
    assert all(len(chosen) == 2 for chosen in played.rounds)
    assert len({frozenset(pair) for chosen in played.rounds for pair in chosen}) == 4
    assert played.limits == {"iface": "ib0", "seconds": pairs.LIMIT, "connect": 3.0}
    out = capsys.readouterr().out
    assert re.match(r"4 hosts, 4 pairs in 2 rounds, [0-9.]+ s; usual: 4.0 GB/s\n", out)


def test_a_slow_host_is_found(
    played: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played.slow = {2}
    words = ["check", "--pairs", "-w", "n[1-4]", "--svg", str(tmp_path / "map.svg")]
    assert cli.main(words) == 1
    assert "critical: n3: bad with most partners" in capsys.readouterr().out
    assert (tmp_path / "map.svg").read_text().startswith("<svg")
    # what is a tenth of the usual may be good enough
    assert cli.main(["check", "--pairs", "-w", "n[1-4]", "--slow", "0.01"]) == 0


@pytest.mark.parametrize(("rounds", "played_"), [("1", 1), ("2", 2), ("all", 3), ("9", 2)])
def test_how_many_rounds(
    played: Played, rounds: str, played_: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--pairs", "-w", "n[1-4]", "--rounds", rounds, "--json"]) == 0
    found = promises.told(capsys.readouterr().out)
    assert (found["rounds"], len(played.rounds)) == (played_, played_)
    if rounds == "all":
        assert len(found["pairs"]) == 6


def test_all_pairs_of_an_odd_number(played: Played) -> None:
    assert cli.main(["check", "--pairs", "-w", "n[1-5]", "--rounds", "all"]) == 0
    assert len(played.rounds) == 5
    assert len({frozenset(pair) for chosen in played.rounds for pair in chosen}) == 10


def test_hosts_that_cannot_take_part(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.problems = {1: "no route"}
    assert cli.main(["check", "--pairs", "-w", "n[1-2]"]) == 125
    out = capsys.readouterr().out
    assert "critical: n2: not measured: no route\n" in out
    assert "critical: n1: not measured: no partner was left for it\n" in out
    assert played.rounds == []


def test_a_picture_that_cannot_be_written_in_the_end_costs_no_result(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--pairs", "-w", "n[1-4]", "--svg", "/dev/full"]) == 2
    shown = capsys.readouterr()
    assert "usual: 4.0 GB/s" in shown.out
    assert shown.err == "error: --svg /dev/full: no space left on device [file-unusable]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-w", "n1"], "--pairs needs at least two hosts"),
        (["-w", "n[1-1025]"], "--pairs: 1025 hosts, 1024 at most at once"),
        (["-w", "n[1-2]", "--rounds", "0"], "--rounds"),
        (["-w", "n[1-2]", "--rounds", "x"], "--rounds"),
        (["-w", "n[1-2]", "--svg", "no/where"], "--svg no/where: no such file or directory"),
    ],
)
def test_refusals(
    played: Played, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--pairs", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert (played.limits, played.rounds) == ({}, [])  # before any host is touched


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_rounds_by_ranks(
    played: Played, backend: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A host that lacks what ranks need is not chosen again."""
    made: list[Any] = []

    class Pairs:
        def __init__(self, hosts: Any, transport_for: Any, **how: Any) -> None:
            self.problems: dict[int, str] = {}
            self.inside: dict[int, InsideHost] = {}
            made.append((len(hosts), how))

        def play(self, chosen: Any) -> list[Pair]:
            played.rounds.append(list(chosen))
            self.problems[3] = "no mpi4py"
            return [Pair(a, b, 1e-4, 4e9, 4e9) for a, b in chosen if 3 not in (a, b)]

    monkeypatch.setattr(rank_pairs, "RankPairs", Pairs)
    words = ["--backend", backend, "--python", "/py", "--iface", "ib0", "-t", "3"]
    assert cli.main(["check", "--pairs", "-w", "n[1-4]", *words]) == 125
    how = {"over": backend, "python": "/py", "iface": "ib0", "connect": 3.0}
    assert made == [(4, how)]
    assert all(3 not in pair for chosen in played.rounds[1:] for pair in chosen)
    assert len(played.rounds) > 1
    assert "critical: n4: not measured: no mpi4py\n" in capsys.readouterr().out
