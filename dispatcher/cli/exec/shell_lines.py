"""What a line typed into ``dispatch shell`` means; pure, but for looking up host groups.

::

    uptime -p         a command for the hosts, as shell text
    !ls               a command of this machine
    +n05  -n07        more hosts, fewer hosts
    @gpu  =n[1-4]     only these hosts;  =all those of the start
    ?                 who they are, and these lines
    :gather :live     how output is shown
    quit              or Ctrl-D
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Host
from dispatcher.plan.hosts.hostfile import parse_inline

HELP = (__doc__ or "").partition("::\n\n")[2].rstrip()
WORDS = ("quit", "exit", ":gather", ":live", ":quit", "=all", "?")


@dataclass(frozen=True)
class Command:
    """Run ``text`` on the hosts; here, if ``local``."""

    text: str
    local: bool = False


@dataclass(frozen=True)
class Aim:
    """From now on the hosts are these."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class Show:
    """Gather equal output, or show lines as they come."""

    gather: bool


@dataclass(frozen=True)
class Help:
    """Say who the hosts are and what can be typed."""


@dataclass(frozen=True)
class Quit:
    """Leave."""


Order = Command | Aim | Show | Help | Quit


def order(line: str, hosts: Sequence[Host], first: Sequence[Host]) -> Order | None:
    """What ``line`` orders; None if it is empty.

    hosts: those of now; first: those of the start. Raises: UsageError.
    """
    text = line.strip()
    if not text:
        return None
    mark, rest = text[0], text[1:].strip()
    if text in ("quit", "exit", ":quit", ":exit"):
        return Quit()
    if text == "?":
        return Help()
    if mark == "!":
        return Command(rest, local=True) if rest else None
    if mark == ":":
        if rest not in ("gather", "live"):
            raise UsageError(f"{text}: there is no such word", hint=":gather, :live, :quit or ?")
        return Show(rest == "gather")
    if mark in "+-=@":
        return Aim(_aimed(mark, rest, hosts, first))
    return Command(text)


def _aimed(mark: str, rest: str, hosts: Sequence[Host], first: Sequence[Host]) -> tuple[Host, ...]:
    if mark == "=" and rest == "all":
        return tuple(first)
    if not rest:
        raise UsageError(f"{mark}: which hosts?", hint=f"{mark}n[1-4], or ? for help")
    named = parse_inline("@" + rest if mark == "@" else rest, "", slots=False).hosts
    # a host that was there before is reached as it was: with its user and its port
    known = {host.name: host for host in (*first, *hosts)}
    named = tuple(known.get(host.name, host) for host in named)
    names = {host.name for host in named}
    if mark == "-":
        left = tuple(host for host in hosts if host.name not in names)
        if not left:
            raise UsageError("no host would be left")
        return left
    if mark == "+":
        there = {host.name for host in hosts}
        return (*hosts, *(host for host in named if host.name not in there))
    return named
