"""``--dry-run``: the plan as a table for people, or as JSON for programs. No host is touched."""

from __future__ import annotations

import io
import json
import shlex
import sys
from typing import TYPE_CHECKING

from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.cli.options.connect_options import Fanout


def show(plan: JobPlan, tree: Fanout | None = None, *, as_json: bool) -> None:
    """Print the plan on standard output, secrets hidden. tree: who is reached through whom."""
    if as_json:
        told = plan.describe()
        if tree is not None:
            told["parents"] = tree.parents()
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    if isinstance(sys.stdout, io.TextIOWrapper):  # arguments may hold bytes that are no text
        sys.stdout.reconfigure(errors="backslashreplace")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=f"run {plan.run_id}", title_justify="left", box=None, pad_edge=False)
    for heading in ("node", "host", "user", "port", "slots", "ranks"):
        table.add_column(heading, justify="right" if heading in ("node", "port") else "left")
    for node in plan.nodes:
        table.add_row(
            str(node.index),
            escape(node.host.name),
            escape(node.host.user or ""),
            str(node.host.port or ""),
            ",".join(node.slots) or "counted at the start",
            _spans(node.ranks) or "one per GPU, else 1",
        )
    for spare in plan.spares:
        table.add_row(
            "",
            escape(spare.host.name),
            escape(spare.host.user or ""),
            str(spare.host.port or ""),
            ",".join(spare.slots),
            "spare",
        )
    console.print(table)
    size = plan.world_size or "counted at the start"
    console.print(f"world size  {size}")
    for line in tree.lines() if tree is not None else ():
        console.print(escape(line))
    console.print(f"folder      {escape(plan.cwd)}")
    if plan.ranks:
        console.print(f"rank 0      {escape(shlex.join(plan.argv(0)))}")
        environment = plan.describe()["ranks"][0]["environment"]
        for name, value in sorted(environment.items()):
            console.print(f"            {escape(name)}={escape(value)}")


def _spans(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
