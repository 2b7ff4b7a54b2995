"""``dispatch diff``: what counts as a difference, how it is shown, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.jobs.diff import Difference, compared, facts
from dispatcher.jobs import registry

from ..conftest import OnRecord

LINE = "-w n1,n2 --np 2 --np 1 -x A -x B -m --name one"


def typed(options: str = LINE, words: str = "t.py --lr 1 data --lr 2", folder: str = "/w") -> Any:
    return registry.Typed(tuple(options.split()), tuple(words.split()), folder)


def pair(on_record: OnRecord, **about: Any) -> tuple[Path, Path]:
    """Two jobs on record that are equal but for ``about`` of the second: a, and b."""
    usual = {"typed": typed(), "variables": ["A", "B"]}
    first = on_record("20260131-142501-aaaaaa", name="one", **usual)
    return first, on_record("20260131-142502-bbbbbb", **{**usual, **about})


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({}, []),
        ({"typed": typed("--hosts=n1,n2 --np=1 --export A -xB -x A --module")}, []),
        ({"typed": typed("-w n1,n2 --np 2 -x A -x B -m")}, [("option", "--np", "1", "2")]),
        ({"typed": typed(LINE + " -x C --detach --")},
         [("option", "--export", "A B", "A B C"), ("option", "--detach", None, "given")]),
        ({"typed": typed(words="u.py --lr 1 --lr 3")},
         [("program", "", "t.py", "u.py"), ("argument", "--lr", "1 data 2", "1 3")]),
        ({"typed": typed(words="t.py data --lr=1 data --lr 2 lr=3")},
         [("argument", "#1", None, "data"), ("argument", "lr=", None, "3")]),
        ({"typed": typed(words="a.py : b.py")},
         [("program", "", "t.py", "a.py : b.py"), ("argument", "--lr", "1 data 2", None)]),
        ({"typed": None, "program": ("t.py", "--lr", "1", "data", "--lr", "2")},
         [("option", "--hosts", "n1,n2", None), ("option", "--np", "1", None),
          ("option", "--export", "A B", None), ("option", "--module", "given", None),
          ("folder", "", "/w", None)]),
        ({"typed": typed(folder="/v"), "variables": ["B", "C"], "ranks": 4,
          "hosts": [("n3", None, 1)]},
         [("folder", "", "/w", "/v"), ("variable", "A", "given", None),
          ("hosts", "", "n[1-2]", "n3"), ("ranks", "", "2", "4"),
          ("variable", "C", None, "given")]),
    ],
)  # fmt: skip
def test_what_differs(
    on_record: OnRecord, about: dict[str, Any], found: list[tuple[str, str, str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pair(on_record, **about)
    assert cli.main(["diff", "a", "b", "--json"]) == int(bool(found))
    told = promises.told(capsys.readouterr().out)
    assert (told["a"], told["b"]) == ("20260131-142501-aaaaaa", "20260131-142502-bbbbbb")
    assert [tuple(one.values()) for one in told["differences"]] == found


@cases(
    ("what", "a", "b", "differs"),
    [
        ("seconds", "100.0", "109.0", False), ("seconds", "100.0", "112.0", True),
        ("seconds", "0.2", "1.1", False), ("seconds", None, "3.0", True),
        ("rate", "10", "9.5", False), ("rate", "0.1", "0.2", True),
        ("verdict", "n2 (pid 12): exit code 1", "n2 (pid 9): exit code 1", False),
        ("verdict", "n2 (pid 12): exit code 1", "n2 (pid 12): exit code 3", True),
    ],
)  # fmt: skip
def test_the_same_but_for_noise(what: str, a: str | None, b: str, differs: bool) -> None:
    found = compared({} if a is None else {(what, ""): a}, {(what, ""): b})
    assert found == ([Difference(what, "", a, b)] if differs else [])


def test_versions_that_are_not_known_of_a_job_are_no_difference() -> None:
    known = {("version", "torch"): "2.9", ("version", "nccl"): "2.28"}
    assert compared(known, {}) == compared({}, known) == []
    assert compared(known, {("version", "torch"): "2.8"}) == [
        Difference("version", "torch", "2.9", "2.8"),
        Difference("version", "nccl", "2.28", None),
    ]


def test_code_end_and_speed_for_people(
    on_record: OnRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = pair(on_record)
    for folder, commit, cut in ((one, "a" * 40, True), (other, "b" * 40, False)):
        record = {"commit": commit, "dirty": True, "cut": cut}
        (folder / "commit.json").write_text(json.dumps(record))
    (one / registry.PATCH).write_bytes(b"+one\x1b[2J\n")
    registry.conclude(one, 0, [], rate=2.0)
    registry.conclude(other, 3, ["rank 1: exit code 3\x1b[2J", "more"], rate=4.0)
    assert cli.main(["diff", "one", "b"]) == 1
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "one (20260131-142501-aaaaaa) 20260131-142502-bbbbbb",
        f"commit {'a' * 40} {'b' * 40}",
        "changes 1 lines, CRC aa4642c9 -",
        "exit code 0 3",
        "verdict success rank 1: exit code 3\\x1b[2J",
        "rate 2 4",
        "",
        "uncommitted changes of one (20260131-142501-aaaaaa), cut:",
        "+one\\x1b[2J",
    ]
    assert ("rate", "") in dict(facts(registry.find("one")))


def test_nothing_and_trouble(on_record: OnRecord, capsys: pytest.CaptureFixture[str]) -> None:
    pair(on_record)
    assert cli.main(["diff", "one", "b"]) == 0
    assert capsys.readouterr() == ("", "note: no difference\n")
    for words in (["one", "nope"], ["one"], ["one", "b", "x"]):
        assert cli.main(["diff", *words]) == 2
        assert "  hint: " in capsys.readouterr().err
