"""Names as one short text: ClusterShell's, and quickly."""

from __future__ import annotations

import random
import time

from cases import cases
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.hostset import expand
from dispatcher.model.hostset_fold import fold

RACKS = [f"r{rack:02}c{cell:02}" for rack in range(4, 23) for cell in range(4, 21)]


@cases(
    ("names", "short"),
    [
        ("n03 n04 n05 n07", "n[03-05,07]"),
        ("n01 n02 n10", "n[01-02,10]"),
        ("a1b1 a2b2", "a1b1,a2b2"),
        ("a1b1 a1b2 a2b1 a2b2", "a[1-2]b[1-2]"),
        ("n1.x.org n2.x.org", "n[1-2].x.org"),
        ("10.0.0.1 10.0.0.2 10.0.1.1", "10.0.0.[1-2],10.0.1.1"),
        ("web db web1", "db,web,web1"),
        ("x[1] n2 n1 @g n1", "n[1-2],x[1],@g"),
        ("b a", "a,b"),
        ("b x[1]", "b,x[1]"),
        (f"n{'1' * 18} n{'1' * 19} n{'1' * 17}2", f"n[{'1' * 18}-{'1' * 17}2],n{'1' * 19}"),
        ("n1", "n1"),
        ("n1 n1", "n1"),
        ("", ""),
        # more than 256, all of them and less one
        (" ".join(RACKS), "r[04-22]c[04-20]"),
        (" ".join(name for name in RACKS if name != "r10c12"),
         "r[04-09,11-22]c[04-20],r10c[04-11,13-20]"),
        (" ".join(f"10.0.{i // 200}.{i % 200}" for i in range(400)), "10.0.[0-1].[0-199]"),
    ],
)  # fmt: skip
def test_folds(names: str, short: str) -> None:
    assert fold(names.split()) == short


@given(st.lists(st.text(max_size=20), max_size=8))
def test_folding_never_fails(names: list[str]) -> None:
    assert isinstance(fold(names), str)


def _rows(seed: int) -> list[str]:
    """Names as a site may have them: of one to four numbers, padded or not, dense or with holes."""
    chance = random.Random(seed)
    found: set[str] = set()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        texts = [chance.choice(("n", "r", "rack-", "")) if not at else chance.choice("c.-xn")
                 for at in range(chance.choice((1, 2, 2, 2, 3, 4)))]  # fmt: skip
        tail = chance.choice(("", "", "-ib", ".org"))
        width = chance.choice((0, 0, 1, 2, 3))
        axes = [
            chance.sample(range(low := chance.randrange(110), low + 14), chance.randrange(1, 9))
            for _ in texts
        ]
        names = [""]
        for text, axis in zip(texts, axes, strict=True):
            names = [f"{name}{text}{number:0{width if chance.random() < 0.9 else 2}}"
                     for name in names for number in axis][:600]  # fmt: skip
        share = chance.choice((0.3, 0.8, 0.95, 1.0))
        found |= {name + tail for name in names if chance.random() < share}
    return sorted(found)


@given(st.integers(0, 2**32))
def test_it_is_what_clustershell_makes_of_the_names(seed: int) -> None:
    names = _rows(seed)[:120]
    if len(names) > 1:
        assert fold(names) == str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
        assert set(expand(fold(names))) == set(names)


@given(
    st.sets(
        st.from_regex(r"[a-z]{1,2}[0-9]{1,4}([.-][a-z]{1,2}[0-9]{0,3})?", fullmatch=True),
        min_size=2,
        max_size=30,
    )
)
def test_so_it_is_of_any_names(names: set[str]) -> None:
    assert fold(names) == str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def test_many_names_of_several_numbers_fold_fast_and_whole() -> None:
    names = [f"r{i % 37}c{i % 41}n{i % 43:02}-ib" for i in range(10_000)]
    wide = [f"r{i // 700}n{i:05}" for i in range(21_000)]
    started = time.process_time()
    short = fold([*names, "login", "x y"])
    rows = fold(wide)
    assert time.process_time() - started < 10.0
    assert short.endswith(",x y")
    assert set(expand(short.removesuffix(",x y"))) == {*names, "login"}
    assert rows.startswith("r0n[00000-00699],r1n[00700-01399],")
    assert set(expand(rows)) == set(wide)
