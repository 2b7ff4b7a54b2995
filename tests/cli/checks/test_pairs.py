"""The map of rates between hosts: in lines and as a picture."""

from __future__ import annotations

import re

import pytest

from dispatcher.checks.pair_ranking import Pair, PairRanking
from dispatcher.cli.checks.pairs import MOST_SHOWN, rate_words, rates, svg, text

NAMES = ["n1", "n<2>", "node3"]
PAIRS = [Pair(0, 1, 1e-5, 4e9, 2e9), Pair(0, 2, 1e-5, 1e9, 8e9), Pair(1, 2, why="refused")]
RANKING = PairRanking((1,), (), frozenset({(0, 1)}), 4e9)


def test_a_row_sends_and_a_column_receives() -> None:
    assert rates(PAIRS[:1]) == {(0, 1): 4e9, (1, 0): 2e9}
    assert text(NAMES, PAIRS, RANKING) == ["   n1  █░", " n<2> ▒ x <", "node3 █x "]
    assert text(NAMES, PAIRS[:1], RANKING) == ["   n1  █·", " n<2> ▒ · <", "node3 ·· "]


@pytest.mark.parametrize("usual", [0.0, 1e12])
def test_the_least_shade_is_still_a_shade(usual: float) -> None:
    assert text(["a", "b"], PAIRS[:1], PairRanking((), (), frozenset(), usual)) == ["a  ░", "b ░ "]


@pytest.mark.parametrize(("count", "lines"), [(MOST_SHOWN, MOST_SHOWN), (MOST_SHOWN + 1, 0)])
def test_a_screen_holds_so_many(count: int, lines: int) -> None:
    assert len(text([f"n{i}" for i in range(count)], [], RANKING)) == lines


def test_the_picture() -> None:
    drawn = svg(NAMES, PAIRS, RANKING)
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg" width="234" height="234"')
    assert drawn.endswith("</svg>\n")
    assert "usual: 4.0 GB/s" in drawn
    for name in ("n1", "n&lt;2&gt;", "node3"):
        assert len(re.findall(f">{name}</text>", drawn)) == 2
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


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1e9, "1.0 GB/s"), (999e6, "999.0 MB/s"), (1e6, "1.0 MB/s"), (999e3, "999 kB/s"),
     (0, "0 kB/s")],
)  # fmt: skip
def test_a_rate_in_words(rate: float, words: str) -> None:
    assert rate_words(rate) == words
