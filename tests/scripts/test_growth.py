"""A soak of scripts/chaos: which round is next, and which numbers have grown."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import rig  # noqa: F401 - makes scripts/ known
from cases import cases
from chaos.growth import count, grown, order, trend

KINDS = ["run", "exec", "connect", "attach"]


def test_a_seed_is_an_order_in_which_none_comes_again_before_all() -> None:
    one, same, other = (list(itertools.islice(order(KINDS, seed), 40)) for seed in (1, 1, 2))
    assert one == same != other
    for first in range(0, 40, len(KINDS)):
        assert sorted(one[first : first + len(KINDS)]) == sorted(KINDS)
    assert len({tuple(one[first : first + 4]) for first in range(0, 40, 4)}) > 1


STEADY = [50.0] * 40
JUMPY = [50.0, 53.0, 47.0, 50.0] * 10


@cases(
    "values, name, most, grew",
    [
        (STEADY, "a: descriptors", 0, False),
        (JUMPY, "a: descriptors", 0, False),
        ([5.0] + STEADY[1:], "a: descriptors", 0, False),  # what one round has is no trend
        ([*STEADY[:-1], 500.0], "a: descriptors", 0, False),
        (STEADY[:20] + [51.0] * 20, "a: threads", 0, False),
        (STEADY[:20] + [52.0] * 20, "a: threads", 0, True),
        ([float(n) for n in range(40)], "hosts: files", 0, True),
        ([float(-n) for n in range(40)], "hosts: files", 0, False),
        ([float(n) for n in range(40)], "own state: records", 100, False),
        ([float(3 * n) for n in range(40)], "own state: records", 100, True),
        ([50_000.0 + 200 * n for n in range(40)], "a: KiB", 0, False),
        ([50_000.0 + 220 * n for n in range(40)], "a: KiB", 0, True),
        ([*range(30_000, 50_000, 1000), *[50_000.0] * 20], "a: KiB", 0, False),  # it has settled
        ([9000.0], "a: KiB", 0, False),
        ([30_000.0 + 9 * n for n in range(40)], "a: objects", 0, False),
        ([30_000.0 + 11 * n for n in range(40)], "a: objects", 0, True),
        ([1.0], "hosts: files", 0, False),
    ],
)
def test_growth_is_the_last_quarter_above_an_earlier_one(
    values: list[float], name: str, most: float, grew: bool
) -> None:
    first, last, allowed = trend(values, name, most)
    assert (last - first > allowed) == grew


def test_every_number_of_any_round_is_in_the_table() -> None:
    samples = [{"a: KiB": 9000.0}] * 7 + [{"a: KiB": 9000.0, "hosts: files": 8.0}] * 5
    lines, grew = grown(samples, {})
    assert [line.split()[-1] for line in lines[1:]] == ["flat", "GREW"]
    assert "hosts: files" in lines[2]
    assert grew == 1


def test_what_is_below_a_folder_less_the_rigs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    (tmp_path / "dispatch-rig-0").mkdir()
    (tmp_path / "dispatch-rig-0" / "c").touch()
    os.mkfifo(tmp_path / "d")
    assert count(str(tmp_path)) == 3
    assert count(str(tmp_path), stat.S_ISFIFO) == 1
    assert count(str(tmp_path / "missing")) == 0
