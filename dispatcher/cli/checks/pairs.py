"""``dispatch check --pairs``: the host, or the link, that makes the others wait.

The rates host by host are drawn on the screen, and as SVG. A row sends, a column receives. The
shade is the share of the usual rate: as fast as usual, or faster, is full.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Literal

from dispatcher.api.request import python_of
from dispatcher.api.transports import allow_open_files
from dispatcher.checks import pair_ranking
from dispatcher.checks.check import Level
from dispatcher.checks.pair_ranking import (
    InsideHost,
    Pair,
    PairRanking,
    below,
    rank_pairs,
    slow_rails,
)
from dispatcher.cli import named_files, print_json, print_lines, say
from dispatcher.cli.checks.check import CheckOptions
from dispatcher.cli.checks.check_table import told
from dispatcher.cli.options.connect_options import LoginTransports, show_only
from dispatcher.cli.options.host_options import find_hosts
from dispatcher.model import errors
from dispatcher.model.errors import UsageError
from dispatcher.model.frozen import Document, Value, value
from dispatcher.model.host import Host
from dispatcher.model.names import parse_count, plural
from dispatcher.plan.exec_plan import ExecPlan

SHADES = " ░▒▓█"
FAILED, NOT_MEASURED = "x", "·"
#: hosts that fit on a screen; an SVG takes any number
MOST_SHOWN = 64
CELL, MARGIN = 18, 90


def rates(pairs: Sequence[Pair]) -> dict[tuple[int, int], float | None]:
    """(sender, receiver) -> bytes/s, None where it failed."""
    found: dict[tuple[int, int], float | None] = {}
    for pair in pairs:
        found[pair.a, pair.b] = pair.there
        found[pair.b, pair.a] = pair.back
    return found


def text(names: Sequence[str], pairs: Sequence[Pair], ranking: PairRanking) -> list[str]:
    """The map in lines; [] for too many hosts."""
    if len(names) > MOST_SHOWN:
        return []
    there = rates(pairs)
    wide = max(map(len, names))
    lines = []
    for row, name in enumerate(names):
        cells = [_shade(there, row, column, ranking.median) for column in range(len(names))]
        mark = " <" if row in ranking.culprits else ""
        lines.append(f"{name.rjust(wide)} {''.join(cells)}{mark}")
    return lines


def _shade(there: dict[tuple[int, int], float | None], row: int, column: int, median: float) -> str:
    if row == column:
        return " "
    if (row, column) not in there:
        return NOT_MEASURED
    rate = there[row, column]
    if rate is None:
        return FAILED
    share = min(1.0, rate / median) if median else 0.0
    return SHADES[max(1, round(share * (len(SHADES) - 1)))]


def svg(names: Sequence[str], pairs: Sequence[Pair], ranking: PairRanking) -> str:
    """The map as an SVG that needs no other file; each cell shows its rate when pointed at."""
    there = rates(pairs)
    side = CELL * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side + 2 * MARGIN}" '
        f'height="{side + 2 * MARGIN}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="16">rows send, columns receive; usual: '
        f"{rate_words(ranking.median)}</text>",
    ]
    for at, name in enumerate(names):
        middle = MARGIN + CELL * at + CELL * 0.7
        style = ' font-weight="bold" fill="#c00"' if at in ranking.culprits else ""
        edge = MARGIN - 6
        parts.append(
            f'<text x="{edge}" y="{middle:.0f}" text-anchor="end"{style}>{escape(name)}</text>'
        )
        parts.append(
            f'<text x="{middle:.0f}" y="{edge}"{style} '
            f'transform="rotate(-60 {middle:.0f} {edge})">{escape(name)}</text>'
        )
    for (row, column), rate in sorted(there.items()):
        rate_text = "failed" if rate is None else rate_words(rate)
        parts.append(
            f'<rect x="{MARGIN + CELL * column}" y="{MARGIN + CELL * row}" width="{CELL - 1}" '
            f'height="{CELL - 1}" fill="{_colour(rate, ranking.median)}">'
            f"<title>{escape(names[row])} to {escape(names[column])}: {rate_text}</title></rect>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _colour(rate: float | None, median: float) -> str:
    """From red (nothing) over yellow to green (as usual); black for a failure."""
    if rate is None:
        return "#000"
    share = min(1.0, rate / median) if median else 0.0
    return f"hsl({120 * share:.0f},75%,50%)"


def rate_words(rate: float) -> str:
    """``1.2 GB/s``, ``340 kB/s``."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6)):
        if rate >= factor:
            return f"{rate / factor:.1f} {unit}"
    return f"{rate / 1e3:.0f} kB/s"


#: seconds a pair may take, and the share of the usual rate below which it is bad
LIMIT, SLOW = 6.0, 0.5
#: rounds at most; after two it goes on only while a host is in doubt
ROUNDS = 4
#: hosts at most: each gets the partners of all, in one word of its command line
MOST_HOSTS = 1024
#: pairs that are listed for one culprit
MOST_NAMED = 3


@dataclass
class Measured:
    """The result of rounds of pairs; hosts are numbers in ``names``.

    problems: why a host took no part. inside: the rate among the GPUs of a host. slow: a share of
    the usual rate. by_kind: whether GPUs of a known kind have their own rates.
    """

    names: Sequence[str]
    pairs: list[Pair] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0
    inside: dict[int, InsideHost] = field(default_factory=dict)
    slow: float = SLOW
    by_kind: bool = True

    @cached_property
    def short(self) -> dict[int, float]:
        """Hosts whose GPUs are slow among themselves, and the least that they should reach."""
        return below(self.inside, self.slow, by_kind=self.by_kind)

    @cached_property
    def ranking(self) -> PairRanking:
        return rank_pairs(self.pairs, self.slow)


def run(options: CheckOptions) -> int:
    """Measure the pairs of the hosts in ``options``; the exit code. Raises: UsageError."""
    targets = find_hosts(options, say, slots=options.backend == "nccl")
    if len(targets) < 2:
        raise UsageError("--pairs needs at least two hosts")
    if len(targets) > MOST_HOSTS:
        raise UsageError(f"--pairs: {len(targets)} hosts, {MOST_HOSTS} at most at once")
    most = len(targets) - 1 + len(targets) % 2  # rounds of a whole pair_ranking.tournament
    if options.rounds != "all":
        most = ROUNDS if options.rounds is None else parse_count(options.rounds, "--rounds")
    does = f"measure the network by {options.backend or 'tcp'} with one partner after the other"
    if show_only(options, "check", ((host, does) for host in targets)):
        return 0
    if options.svg is not None:
        named_files.expect(f"--svg {options.svg}", options.svg)
    allow_open_files(len(targets))
    began = time.monotonic()
    found = Measured(ExecPlan(targets, ("true",)).names)
    if options.slow is not None:
        found.slow, found.by_kind = options.slow, False
    _measure(found, targets, options, most)
    if found.problems:
        met = {host for pair in found.pairs for host in (pair.a, pair.b)}
        for host in set(range(len(targets))) - met - found.problems.keys():
            found.problems[host] = "no partner was left for it"
    found.seconds = time.monotonic() - began
    if options.as_json:
        print_json(pairs_document(found))
    else:
        print_lines(lines(found))
    if options.svg is not None:
        drawn = svg(found.names, found.pairs, found.ranking)
        named_files.write(f"--svg {options.svg}", options.svg, drawn)
    if found.problems:
        return errors.CLUSTER
    slow = slow_rails(found.pairs, found.slow) or found.short
    return 1 if found.ranking.bad or slow else 0


def _measure(found: Measured, targets: Sequence[Host], options: CheckOptions, most: int) -> None:
    """Play ``most`` rounds at most, and add their results to ``found``."""
    from dispatcher.runner.surveys import find_addresses, play_round

    connect = options.connect_timeout
    with LoginTransports(options) as reach:
        places, found.problems = find_addresses(
            targets, options.iface, reach.transport_for, seconds=LIMIT, connect=connect
        )
        play = _by_ranks(targets, options, reach, found)
        if play is None:

            def play(chosen: Sequence[tuple[int, int]]) -> list[Pair]:
                return play_round(
                    targets, places, chosen, reach.transport_for, limit=LIMIT, connect=connect
                )

        for found.rounds in range(most):
            hosts = [host for host in sorted(places) if host not in found.problems]
            nth = found.rounds
            if options.rounds == "all":
                chosen = pair_ranking.tournament(hosts, nth)
            elif nth > 1 and not pair_ranking.doubtful(hosts, rank_pairs(found.pairs, found.slow)):
                return
            else:
                chosen = pair_ranking.next_round(hosts, found.pairs, nth, found.slow)
            if not chosen:
                return
            found.pairs += play(chosen)
    found.rounds = most


def _by_ranks(
    targets: Sequence[Host], options: CheckOptions, reach: LoginTransports, found: Measured
) -> Callable[[Sequence[tuple[int, int]]], list[Pair]] | None:
    if options.backend in (None, "tcp"):
        return None
    from dispatcher.api.rank_pairs import RankPairs

    played = RankPairs(
        targets, reach.transport_for, over=options.backend, iface=options.iface,
        python=options.python or ("python3" if options.container_image else python_of(os.environ)),
        connect=options.connect_timeout,
    )  # fmt: skip

    def play(chosen: Sequence[tuple[int, int]]) -> list[Pair]:
        pairs = played.play(chosen)
        found.problems.update(played.problems)
        found.inside.update(played.inside)
        return pairs

    return play


def lines(found: Measured) -> list[str]:
    """The result in lines: the map, then the hosts and links to blame."""
    names, pairs, ranking = found.names, found.pairs, found.ranking
    what = f"{len(names)} hosts, {plural(len(pairs), 'pair')} in {plural(found.rounds, 'round')}"
    out = [f"{what}, {found.seconds:.1f} s; usual: {rate_words(ranking.median)}"]
    if found.inside:
        middle = statistics.median_high(one.rate for one in found.inside.values())
        out.append(f"inside {plural(len(found.inside), 'host')}: usual {rate_words(middle)}")
    drawn = text(names, pairs, ranking)
    out += drawn
    before = len(out)

    def blame(hosts: Sequence[str], words: str, remedy: str | None = None) -> None:
        out.extend(told(Level.CRITICAL, hosts, words, remedy))

    groups: dict[str, list[str]] = {}
    for host, why in found.problems.items():
        groups.setdefault(why, []).append(names[host])
    for why, hosts in groups.items():
        blame(hosts, f"not measured: {why}")
    for host in ranking.culprits:
        slow_pairs = [_words(names, p) for p in pairs if host in (p.a, p.b)]
        more = f"; and {len(slow_pairs) - MOST_NAMED} more" if len(slow_pairs) > MOST_NAMED else ""
        shown = "; ".join(slow_pairs[:MOST_NAMED])
        remedy = "look at its cable, port and routes; until then --exclude it"
        blame([names[host]], f"bad with most partners: {shown}{more}", remedy)
    for a, b in ranking.links:
        pair = next(p for p in pairs if (p.a, p.b) == (a, b))
        blame([f"{names[a]} and {names[b]}"], f"bad together: {_words(names, pair)}")
    for host, rail, rate, usual in slow_rails(pairs, found.slow):
        words = f"rail {rail}: {rate_words(rate)} at best, usual is {rate_words(usual)}"
        remedy = f"the card near its GPU {rail}, by nvidia-smi topo -m, and its cable"
        blame([names[host]], words, remedy)
    for host, due in found.short.items():
        one = found.inside[host]
        words = f"{rate_words(one.rate)} among its {one.gpus} GPUs ({one.gpu or 'CPU'})"
        remedy = "dispatch check --full looks at its NVLinks, clocks and power"
        blame([names[host]], f"{words}, at least {rate_words(due)} is usual", remedy)
    alike = not drawn and len(out) == before and not ranking.bad
    return [*out, "all pairs are equally fast"] if alike else out


def _words(names: Sequence[str], pair: Pair) -> str:
    who = f"{names[pair.a]}-{names[pair.b]}"
    if pair.rate is None:
        return f"{who} failed ({pair.why.lower() or 'no answer'})"
    late = f", {pair.latency * 1e3:.1f} ms" if pair.latency is not None else ""
    there, back = (rate_words(rate or 0.0) for rate in (pair.there, pair.back))
    return f"{who} {there}, back {back}{late}"


@value
class MeasuredPair(Value):
    """Two hosts. latency: seconds there and back. there, back: bytes per second, null if it failed.

    why: it failed. bad: whether it is far below the usual. rails: bytes per second between their
    first GPUs, their second GPUs and so on, all at once; empty for one GPU each.
    """

    hosts: tuple[str, ...]
    latency: float | None
    there: float | None
    back: float | None
    why: str
    bad: bool
    rails: tuple[float | None, ...]


@value
class CheckPairs(Document):
    """``dispatch check --pairs --json``. format: the version, as in schema.

    usual: bytes per second. culprits: hosts that are bad with most. links: pairs of good hosts that
    are bad together. problems: host -> why it was not measured. slow_rails: host and number of
    those far below the usual. inside: by host, where it has several GPUs.
    """

    schema = "check-pairs/1"
    format: Literal[1]
    seconds: float
    rounds: int
    usual: float
    culprits: list[str]
    links: list[tuple[str, ...]]
    problems: Mapping[str, str]
    pairs: list[MeasuredPair]
    slow_rails: list[tuple[str | int, ...]]
    inside: Mapping[str, InsideHost]


def pairs_document(found: Measured) -> CheckPairs:
    """The result for programs."""
    names, ranking, inside = found.names, found.ranking, sorted(found.inside.items())
    return CheckPairs(
        format=1, seconds=round(found.seconds, 3), rounds=found.rounds, usual=ranking.median,
        culprits=[names[host] for host in ranking.culprits],
        links=[(names[a], names[b]) for a, b in ranking.links],
        problems={names[host]: why for host, why in found.problems.items()},
        pairs=[
            MeasuredPair((names[one.a], names[one.b]), one.latency, one.there, one.back, one.why,
                         (one.a, one.b) in ranking.bad, one.rails)
            for one in found.pairs
        ],
        slow_rails=[(names[at], rail) for at, rail, *_ in slow_rails(found.pairs, found.slow)],
        inside={names[host]: replace(one, below=found.short.get(host)) for host, one in inside},
    )  # fmt: skip
