"""``dispatch check --nccl``: the network that NCCL will use on every host, and settings for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dispatcher.api.transports import allow_open_files
from dispatcher.checks.check import Level, Seen
from dispatcher.checks.nccl_advice import NcclAdvice, advise
from dispatcher.checks.nccl_model import READINGS, HostNet, NcclMessage, host_net
from dispatcher.cli import named_files, print_json, print_lines, say
from dispatcher.cli.checks.check import CheckOptions
from dispatcher.cli.checks.check_table import told
from dispatcher.cli.options.host_options import find_hosts
from dispatcher.model.errors import FileUnusable
from dispatcher.model.frozen import Document, Value, value
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.plan.variables import crosses

#: seconds for all readings of one host
REPLY_TIMEOUT = 15.0


@value
class NcclHost(Value):
    """A host. settings: for it alone. now, then: the network that NCCL uses, as text."""

    settings: Mapping[str, str]
    now: str
    then: str


@value
class CheckNccl(Document):
    """``dispatch check --nccl --json``. settings: variables for all hosts."""

    schema = "check-nccl/1"
    settings: Mapping[str, str]
    hosts: Mapping[str, NcclHost]
    messages: tuple[NcclMessage, ...]


def run(options: CheckOptions) -> int:
    """Advise on what the options name; the exit code. Raises: UsageError."""
    if options.apply is not None:
        named_files.expect(f"--apply {options.apply}", options.apply)
    if options.dry_run:
        from dispatcher.cli.options.connect_options import show_only

        does = "read network interfaces, InfiniBand, GPUs and variables of NCCL"
        show_only(options, "check", ((host, does) for host in find_hosts(options, say)))
        return 0
    hosts = _asked(options)
    advice = advise(hosts)
    if options.as_json:
        print_json(nccl_document(advice))
    else:
        print_lines(lines(advice))
    if options.apply is not None:
        _write(options.apply, advice)
    if any(host.unread.startswith("lost: ") for host in hosts.values()):
        return 125
    return 1 if any(message.level > Level.WARN for message in advice.messages) else 0


def _asked(options: CheckOptions) -> dict[str, HostNet]:
    from dispatcher.cli.options.connect_options import LoginTransports
    from dispatcher.runner.surveys import survey

    # variables that cross to the ranks by themselves go before those of the hosts
    ours = {n: v for n, v in os.environ.items() if n.startswith(("NCCL_", "GLOO_")) and crosses(n)}
    targets = find_hosts(options, say)
    allow_open_files(len(targets))
    names = ExecPlan(targets, ("true",)).names
    connect = options.connect_timeout
    with LoginTransports(options) as reach:
        answers = survey(
            targets, READINGS, reach.transport_for, seconds=REPLY_TIMEOUT, connect=connect
        )
    found = {}
    for host, name, answer in zip(targets, names, answers, strict=True):
        if answer.problem:
            why = ("lost: " if answer.lost else "") + answer.problem
            found[name] = HostNet(unread=sanitize_text(why))
            continue
        found[name] = host_net(Seen(name, answer.readings), {**ours, **dict(host.env)})
    return found


def _write(path: str, advice: NcclAdvice) -> None:
    """The advice as a file for ``--env-file``. Raises: UsageError."""
    if advice.own:
        some = next(iter(advice.own))
        words = " ".join(f"env={name}={value}" for name, value in advice.own[some].items())
        raise FileUnusable(
            f"--apply {path}: the hosts need different settings; put them into the hostfile",
            hint=f"{some} {words}",
        )
    text = "".join(f"{name}={value}\n" for name, value in advice.settings.items())
    named_files.write(f"--apply {path}", path, text)


def lines(advice: NcclAdvice) -> list[str]:
    """The advice for people."""
    found = [
        *_block("now", advice.now),
        *(_block("then", advice.then) if advice.then != advice.now else []),
        "advice:" if advice.settings or advice.own else "advice: none",
        *(f"  {name}={value}" for name, value in advice.settings.items()),
    ]
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, own in advice.own.items():
        alike.setdefault(tuple(own.items()), []).append(host)
    for values, hosts in alike.items():
        found.append(f"  on {fold(hosts)}:")
        found += [f"    {name}={value}" for name, value in values]
    for message in advice.messages:
        found += told(message.level, message.hosts, message.text, message.remedy)
    return found


def _block(title: str, predictions: Mapping[str, Any]) -> list[str]:
    groups: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for host, will in predictions.items():
        used = [f"{p.name}/{p.layer}/{p.gbps or 0:.0f}" for p in will.ports]
        used += [] if used else [d.name for d in will.interfaces]
        meet = will.bootstrap.name if will.bootstrap else ""
        key = will.fatal or f"{will.net} {' '.join(used)} {meet}"
        groups.setdefault(key, []).append(host)
        first.setdefault(key, sanitize_text(will.line()))
    return [f"{title}: {fold(hosts)}: {first[key]}" for key, hosts in groups.items()]


def nccl_document(advice: NcclAdvice) -> CheckNccl:
    """The advice for programs."""
    hosts = {
        name: NcclHost(advice.own.get(name, {}), now.line(), advice.then[name].line())
        for name, now in advice.now.items()
    }
    return CheckNccl(advice.settings, hosts, advice.messages)
