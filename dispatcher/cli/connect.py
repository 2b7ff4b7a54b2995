"""``dispatch connect``: connections that later commands find open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.door import MIXED, enter
from dispatcher.cli.targets import how_options, time_options, where_options
from dispatcher.errors import UsageError

EPILOG = """\b
Examples:
  dispatch connect -H hostfile          # then dispatch exec is quick, for ten idle minutes
  dispatch connect --list
  dispatch connect --close [-w n07]
One process of yours in the background has them; it ends when they do. Keys with a
passphrase must be in an SSH agent.
"""


@click.command("connect", context_settings=MIXED, epilog=EPILOG)
@where_options
@click.option("--keep", metavar="S", default="600", help="Idle seconds until they close [600].")
@click.option("--list", "listing", is_flag=True, help="Say to which hosts there are connections.")
@click.option("--close", "closing", is_flag=True, help="Close them, or those to -H and -w.")
@time_options
@click.option("-v", "--verbose", is_flag=True, help="Say every step on standard error.")
@how_options
def command(**flags: Any) -> int:
    """Connect to all hosts, and keep the connections for the commands to come."""
    if flags["listing"] or flags["closing"]:
        return _ask(flags)
    from dispatcher.api.here import allow_open_files
    from dispatcher.cli.door import say
    from dispatcher.cli.errand import carry_out, limits
    from dispatcher.cli.prompt import UNASKED
    from dispatcher.cli.reach import Reach
    from dispatcher.cli.targets import find_hosts
    from dispatcher.plan.errand import Errand

    hosts = find_hosts(flags, say)
    allow_open_files(len(hosts))
    flags = {**UNASKED, "sudo": None, "ask_sudo_password": False, "gather": True, **flags}
    with Reach(flags) as reach:
        return carry_out(Errand(hosts, ("true",), limits=limits(flags)), flags, reach)


def _ask(flags: dict[str, Any]) -> int:
    """List, or close; prints the hosts to which connections are open."""
    from dispatcher.cli.door import say
    from dispatcher.cli.targets import find_hosts
    from dispatcher.kept import place
    from dispatcher.kept.frames import Frames, fields, frame, told
    from dispatcher.plan.hostset import fold

    if flags["listing"] and flags["closing"]:
        raise UsageError("--list and --close exclude each other")
    named = bool(flags["hostfile"] or flags["lists"])
    order = frame(b"L")
    if flags["closing"]:
        hosts = [host.name for host in find_hosts(flags, say)] if named else None
        order = told(b"C", hosts=hosts)
    caller = place.dial()
    if caller is None:
        say("note: no connection is kept")
        return 0
    with caller:
        caller.settimeout(10.0)
        caller.sendall(order)
        frames = Frames()
        answers: list[tuple[bytes, bytes]] = []
        while not answers and (data := caller.recv(1 << 16)):
            answers += frames.feed(data)
    if answers and flags["listing"]:
        said = fields(answers[0][1])
        names = sorted(map(str, said["hosts"]))
        if names:
            print(f"{fold(names)} ({len(names)}), for {said['idle']:g} idle seconds")
        else:
            say("note: no connection is kept")
    return os.EX_OK if answers else 1


def main(words: Sequence[str]) -> int:
    """Run ``dispatch connect`` with ``words``; the exit code."""
    return enter(command, words, "dispatch connect")
