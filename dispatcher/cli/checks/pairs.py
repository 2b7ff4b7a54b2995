"""``dispatch check --pairs``: which host, or which link, makes the others wait.

The rates host by host are drawn on the screen, and as SVG. A row sends, a column receives. A shade
stands for the share of the usual rate: what is as fast as usual, or faster, is full; what was not
measured is left empty; what failed is marked.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from types import MappingProxyType

from dispatcher.api.request import python_of
from dispatcher.api.transports import allow_open_files
from dispatcher.checks.pair_ranking import (
    Inside,
    Pair,
    PairRanking,
    below,
    doubtful,
    next_round,
    rank_pairs,
    slow_rails,
    tournament,
)
from dispatcher.cli import named_files, print_lines, say, tell
from dispatcher.cli.checks.check import CheckOptions
from dispatcher.cli.options.connect_options import TransportPool, show_only
from dispatcher.cli.options.host_options import find_hosts
from dispatcher.model import errors
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold
from dispatcher.model.names import parse_count, plural
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.exec_plan import ExecPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model import formats

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
    """The map as a picture that needs nothing else; each cell tells its rate when pointed at."""
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
        style, edge = _style(at in ranking.culprits), MARGIN - 6
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


def _style(is_culprit: bool) -> str:
    return ' font-weight="bold" fill="#c00"' if is_culprit else ""


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


def named(names: Sequence[str], hosts: Collection[int]) -> list[str]:
    """The names of hosts given by number, in the order of the list."""
    return [names[host] for host in sorted(hosts)]


#: seconds a pair may take, and the share of the usual rate below which it is bad
LIMIT, SLOW = 6.0, 0.5
#: rounds at most; after two it goes on only while somebody is in doubt
ROUNDS = 4
#: hosts at most: each is told the partners of all, in one word of its command line
MOST_HOSTS = 1024
#: pairs that are told of one culprit
MOST_NAMED = 3


def run(options: CheckOptions) -> int:
    """Measure the pairs of what the options name; the exit code. Raises: UsageError."""
    targets = find_hosts(options, say, slots=options.backend == "nccl")
    names = ExecPlan(targets, ("true",)).names
    if len(targets) < 2:
        raise UsageError("--pairs: one host makes no pair")
    if len(targets) > MOST_HOSTS:
        raise UsageError(f"--pairs: {len(targets)} hosts, {MOST_HOSTS} at most at once")
    slow = SLOW if options.slow is None else options.slow
    rounds = _rounds(options.rounds)
    does = f"measure the network by {options.backend or 'tcp'} with one partner after the other"
    if show_only(options, "check", ((host, does) for host in targets)):
        return 0
    if options.svg is not None:
        named_files.expect(f"--svg {options.svg}", options.svg)
    allow_open_files(len(targets))
    connect = options.connect_timeout
    began = time.monotonic()
    pairs, problems, played, inside = _measured(targets, options, rounds, slow, connect)
    if problems:
        met = {host for pair in pairs for host in (pair.a, pair.b)}
        for host in set(range(len(targets))) - met - problems.keys():
            problems[host] = "no partner was left for it"
    ranking = rank_pairs(pairs, slow)
    took = time.monotonic() - began
    if options.as_json:
        tell(record(names, pairs, problems, ranking, played, took, inside, slow))
    else:
        shown = lines(names, pairs, problems, ranking, played, took, inside, slow)
        print_lines(shown)
    if options.svg is not None:
        named_files.write(f"--svg {options.svg}", options.svg, svg(names, pairs, ranking))
    if problems:
        return errors.CLUSTER
    return 1 if ranking.bad or slow_rails(pairs, slow) or below(inside, slow) else 0


def _rounds(text: str | None) -> int | None:
    """Rounds at most; None for a whole tournament."""
    if text == "all":
        return None
    return ROUNDS if text is None else parse_count(text, "--rounds")


def _measured(
    targets: Sequence[Host],
    options: CheckOptions,
    rounds: int | None,
    slow: float,
    connect: float,
) -> tuple[list[Pair], dict[int, str], int, dict[int, Inside]]:
    """The pairs, who could not take part and why, how many rounds there were, and what was
    measured inside hosts."""
    from dispatcher.runner.surveys import find_addresses, play_round

    pairs: list[Pair] = []
    with TransportPool(options) as reach:
        places, problems = find_addresses(
            targets, options.iface, reach.transport_for, seconds=LIMIT, connect=connect
        )
        inside: dict[int, Inside] = {}
        play = _by_ranks(targets, options, reach, problems, inside, connect)
        hosts = sorted(places)
        most = len(hosts) - 1 + len(hosts) % 2 if rounds is None else rounds
        for nth in range(most):
            hosts = [host for host in hosts if host not in problems]
            if rounds is None:
                chosen = tournament(hosts, nth)
            elif nth > 1 and not doubtful(hosts, rank_pairs(pairs, slow)):
                return pairs, problems, nth, inside
            else:
                chosen = next_round(hosts, pairs, nth, slow)
            if not chosen:
                return pairs, problems, nth, inside
            pairs += play(chosen) if play is not None else play_round(
                targets, places, chosen, reach.transport_for, limit=LIMIT, connect=connect
            )  # fmt: skip
    return pairs, problems, most, inside


def _by_ranks(
    targets: Sequence[Host],
    options: CheckOptions,
    reach: TransportPool,
    problems: dict[int, str],
    inside: dict[int, Inside],
    connect: float,
) -> Callable[[Sequence[tuple[int, int]]], list[Pair]] | None:
    """What plays a round by ranks, if that is wanted; ``problems`` and ``inside`` grow by it."""
    if options.backend in (None, "tcp"):
        return None
    from dispatcher.api.rank_pairs import RankPairs

    python = options.python or python_of(os.environ)
    played = RankPairs(
        targets, reach.transport_for,
        over=options.backend, python=python, iface=options.iface, connect=connect,
    )  # fmt: skip

    def play(chosen: Sequence[tuple[int, int]]) -> list[Pair]:
        found = played.play(chosen)
        problems.update(played.problems)
        inside.update(played.inside)
        return found

    return play


def lines(
    names: Sequence[str],
    pairs: Sequence[Pair],
    problems: Mapping[int, str],
    ranking: PairRanking,
    rounds: int,
    seconds: float,
    inside: Mapping[int, Inside] = MappingProxyType({}),
    slow: float = SLOW,
) -> list[str]:
    """What was found, for people: the map, then who is to blame."""
    median = rate_words(ranking.median)
    what = f"{len(names)} hosts, {plural(len(pairs), 'pair')} in {plural(rounds, 'round')}"
    out = [f"{what}, {seconds:.1f} s; usual: {median}"]
    out += text(names, pairs, ranking)
    groups: dict[str, list[str]] = {}
    for host, why in problems.items():
        groups.setdefault(sanitize_text(why), []).append(names[host])
    out += [f"critical: {fold(hosts)}: not measured: {why}" for why, hosts in groups.items()]
    for host in ranking.culprits:
        slow_pairs = [_words(names, p) for p in pairs if host in (p.a, p.b)]
        more = f"; and {len(slow_pairs) - MOST_NAMED} more" if len(slow_pairs) > MOST_NAMED else ""
        shown = "; ".join(slow_pairs[:MOST_NAMED])
        out.append(f"critical: {names[host]}: bad with most partners: {shown}{more}")
        out.append("  hint: look at its cable, port and routes; --exclude it meanwhile")
    for a, b in ranking.links:
        pair = next(p for p in pairs if (p.a, p.b) == (a, b))
        out.append(f"critical: {names[a]} and {names[b]}: bad together: {_words(names, pair)}")
    for host, rail, rate, usual in slow_rails(pairs, slow):
        words = f"rail {rail}: {rate_words(rate)} at best, usual is {rate_words(usual)}"
        out.append(f"critical: {names[host]}: {words}")
        out.append(f"  hint: the card near its GPU {rail}, by nvidia-smi topo -m, and its cable")
    for host, due in below(inside, slow).items():
        one = inside[host]
        words = f"{rate_words(one.rate)} among its {one.gpus} GPUs ({one.gpu or 'CPU'})"
        out.append(f"critical: {names[host]}: {words}, at least {rate_words(due)} is usual")
        out.append("  hint: dispatch check --full looks at its NVLinks, clocks and power")
    alike = len(out) == 1 and not ranking.bad
    if inside:
        middle = statistics.median_high(one.rate for one in inside.values())
        out.insert(1, f"inside {plural(len(inside), 'host')}: usual {rate_words(middle)}")
    return [*out, "all pairs are alike"] if alike else out


def _words(names: Sequence[str], pair: Pair) -> str:
    who = f"{names[pair.a]}-{names[pair.b]}"
    if pair.rate is None:
        return f"{who} failed ({sanitize_text(pair.why).lower() or 'no answer'})"
    late = f", {pair.latency * 1e3:.1f} ms" if pair.latency is not None else ""
    there, back = (rate_words(rate or 0.0) for rate in (pair.there, pair.back))
    return f"{who} {there}, back {back}{late}"


def record(
    names: Sequence[str],
    pairs: Sequence[Pair],
    problems: Mapping[int, str],
    ranking: PairRanking,
    rounds: int,
    seconds: float,
    inside: Mapping[int, Inside] = MappingProxyType({}),
    slow: float = SLOW,
) -> formats.CheckPairs:
    """What was found, for programs."""
    short = below(inside, slow)
    return {
        "schema": "check-pairs/1",
        "format": 1,
        "seconds": round(seconds, 3),
        "rounds": rounds,
        "usual": ranking.median,
        "culprits": named(names, ranking.culprits),
        "links": [[names[a], names[b]] for a, b in ranking.links],
        "problems": {names[host]: why for host, why in problems.items()},
        "pairs": [
            {
                "hosts": [names[pair.a], names[pair.b]],
                "latency": pair.latency,
                "there": pair.there,
                "back": pair.back,
                "why": pair.why,
                "bad": (pair.a, pair.b) in ranking.bad,
                "rails": list(pair.rails),
            }
            for pair in pairs
        ],
        "slow_rails": [[names[host], rail] for host, rail, *_ in slow_rails(pairs, slow)],
        "inside": {
            names[host]: {
                "rate": one.rate,
                "gpu": one.gpu,
                "gpus": one.gpus,
                "below": short.get(host),
            }
            for host, one in sorted(inside.items())
        },
    }
