"""What the options of the screen and of log files mean, and which contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

from dispatcher.cli.options.output_options import ShowOptions, parse_size, settings
from dispatcher.model.errors import UsageError
from dispatcher.model.paths import Rotation


def shown(world_size: int | None = None, **given: Any) -> Any:
    return settings(ShowOptions(**given), world_size)


@cases(
    ("field", "usual", "given", "meant"),
    [
        ("label", "rank", {"label": "host"}, "host"),
        ("timestamps", False, {"timestamps": True}, True),
        ("fold", False, {"fold": True}, True),
        ("fold", False, {"fold_numbers": True}, True),
        ("fold_numbers", False, {"fold_numbers": True}, True),
        ("fold_numbers", False, {"fold": True}, False),
        ("stall_after", None, {"stall_after": 3.0}, 3.0),
        ("stall_after", None, {"stall_after": 0.0}, None),
        ("metrics", None, {"metrics": "unix:/s"}, "unix:/s"),
        ("partial_after", None, {"partial_after": 0.0}, 0.0),
        ("screen_overflow", "auto", {"screen_overflow": "drop"}, "drop"),
        ("log_overflow", "block", {"log_overflow": "drop", "log_dir": "d"}, "drop"),
        ("log_merge", False, {"log_merge": True, "log_dir": "d"}, True),
        ("quiet", False, {"quiet": True}, True),
        ("verbose", False, {"verbose": True}, True),
        ("sample", None, {"sample": 0.2}, 0.2),
        ("sample", None, {"metrics": "f"}, 5.0),
        ("rotation", Rotation(), {"log_size": "64K", "log_dir": "d"}, Rotation(65536)),
        ("rotation", Rotation(), {"log_size": "64K", "log_keep": "0", "log_dir": "d"},
         Rotation(65536, 0)),
        ("rotation", Rotation(), {"log_size": "64K", "log_keep": "999999", "log_dir": "d"},
         Rotation(65536, 999999)),
    ],
)  # fmt: skip
def test_what_an_option_means(field: str, usual: Any, given: dict[str, Any], meant: Any) -> None:
    assert getattr(shown(), field) == usual
    assert getattr(shown(**given), field) == meant


@cases(
    ("given", "world_size", "ranks"),
    [
        ({}, 4, None), ({"rank0": True}, 4, [0]), ({"only_ranks": "1,3"}, 4, [1, 3]),
        ({"only_ranks": "0-1"}, 4, [0, 1]), ({"only_ranks": "none"}, 4, []),
        ({"only_ranks": "3"}, None, [3]),
    ],
)  # fmt: skip
def test_which_ranks(given: dict[str, Any], world_size: int, ranks: list[int] | None) -> None:
    only = shown(world_size, **given).only
    assert (only if only is None else [rank for rank in range(9) if rank in only]) == ranks


def test_patterns_are_of_bytes() -> None:
    found = shown(grep="f\u00fcr|\udcff", step_line=r"step \d+: ([\d.]+)")
    assert found.pattern.search("f\u00fcr".encode())
    assert found.pattern.search(b"\xff")
    assert not found.pattern.search(b"for")
    assert found.steps.search(b"step 7: 0.5")[1] == b"0.5"


@cases(
    ("given", "world_size", "said"),
    [
        ({"quiet": True, "verbose": True}, None, "--quiet and --verbose exclude each other"),
        ({"rank0": True, "only_ranks": "1"}, None, "--rank0 and --only-ranks exclude each other"),
        ({"only_ranks": "4"}, 4, "--only-ranks: 4: the world's ranks are 0-3"),
        ({"only_ranks": "x"}, None, "--only-ranks: not a list of ranks: 'x'"),
        ({"grep": "("}, None, "--grep: "),
        ({"step_line": "("}, None, "--step-line: "),
        ({"sample": 0.1}, None, "--sample: every 0.1 s is too often"),
        ({"log_overflow": "drop"}, None, "--log-overflow needs --log-dir"),
        ({"log_merge": True}, None, "--log-merge needs --log-dir"),
        ({"log_size": "1M"}, None, "--log-size needs --log-dir"),
        ({"log_keep": "1"}, None, "--log-keep needs --log-dir"),
        ({"log_keep": "1", "log_dir": "d"}, None, "--log-keep needs --log-size"),
        ({"log_keep": "x", "log_size": "1M", "log_dir": "d"}, None, "--log-keep: not a count: 'x'"),
        ({"log_keep": "-1", "log_size": "1M", "log_dir": "d"}, None, "--log-keep: not a count"),
        ({"log_keep": "1000000", "log_size": "1M", "log_dir": "d"}, None, "--log-keep: not a cou"),
        ({"log_keep": "\u0663", "log_size": "1M", "log_dir": "d"}, None, "--log-keep: not a count"),
        ({"log_size": "4095", "log_dir": "d"}, None, "--log-size: not a size of at least 4096 b"),
    ],
)
def test_refusals(given: dict[str, Any], world_size: int | None, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        shown(world_size, **given)
    assert caught.value.message.startswith(said)


@cases(
    ("given", "hint"),
    [
        ({"sample": 0.1}, "--sample 0.2"),
        ({"log_keep": "x", "log_size": "1M", "log_dir": "d"}, "--log-keep 4"),
        ({"log_size": "x", "log_dir": "d"}, "--log-size 64M"),
    ],
)
def test_hints(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        shown(**given)
    assert caught.value.hint == hint


@cases(
    ("text", "size"),
    [("4096", 4096), ("4k", 4096), ("4K", 4096), ("4KB", 4096), ("4KiB", 4096), ("4096B", 4096),
     ("10M", 10 << 20), ("1g", 1 << 30), ("2T", 2 << 40), ("1" * 15, int("1" * 15))],
)  # fmt: skip
def test_a_size(text: str, size: int) -> None:
    assert parse_size(text, "--size") == size


@cases("text", ["", "0", "4095", "3K", "1P", "-5M", "1.5M", "M", "5 M", "1" * 16, "\u0665M", "5MM"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--size: not a size of at least 4096 bytes"):
        parse_size(text, "--size")
    assert parse_size("0", "--size", least=0) == 0
    with pytest.raises(UsageError, match="--size: not a size: "):
        parse_size("K", "--size", least=0)
