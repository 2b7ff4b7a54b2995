"""Where ranks run, from a journal that is still being written."""

from __future__ import annotations

import json
from pathlib import Path

from dispatcher.cli.jobs.stacks import JournalLocations


def line(name: str, **context: object) -> str:
    return json.dumps({"seq": 1, "t": 0.0, "name": name, "context": context}) + "\n"


def test_ranks_are_counted_on_each_host_and_anew_after_a_restart(tmp_path: Path) -> None:
    journal = tmp_path / "dispatch.jsonl"
    homes = JournalLocations(journal, ["n1", "n2", "n3"])
    assert (homes.home(0), homes.host_of(0)) == ((3, 0), "?")  # there is no journal yet
    first = line("ranks.placed") + line("rank.spawned", node=0, rank=0)
    second = line("rank.spawned", node=1, rank=2) + line("rank.spawned", node=0, rank=1)
    half = line("rank.spawned", node=1, rank=3)
    journal.write_text(first + "no JSON of a rank\n" + second + half[:20])
    assert [homes.home(rank) for rank in (0, 1, 2)] == [(0, 0), (0, 1), (1, 0)]
    assert homes.host_of(3) == "?"
    with journal.open("a") as file:
        file.write(half[20:] + line("rank.spawned", node=9, rank=5))
    assert homes.home(3) == (1, 1)
    assert homes.host_of(5) == "?"
    with journal.open("a") as file:
        file.write(line("ranks.placed") + line("rank.spawned", node=2, rank=2))
    homes.forget()
    assert (homes.home(2), homes.host_of(2)) == ((2, 0), "n3")
