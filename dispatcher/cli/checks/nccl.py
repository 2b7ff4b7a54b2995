"""``dispatch check --nccl``: what NCCL will use on every host, and what it should be told."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.api.transports import allow_open_files
from dispatcher.checks import nccl_log
from dispatcher.checks.check import Level
from dispatcher.checks.nccl_advice import Advice, advise
from dispatcher.checks.nccl_model import READINGS, HostNet, Message, from_text, text_of
from dispatcher.cli import named_files, print_lines, say, tell
from dispatcher.cli.checks.check import CheckOptions
from dispatcher.cli.options.host_options import find_hosts, hosts_typed
from dispatcher.model.errors import ConflictingOptions, FileUnusable
from dispatcher.model.host import LOCAL_NAMES
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.plan.variables import crosses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model import formats

#: bytes of a pasted text, and of a log
MOST_TEXT, MOST_LOG = 4 << 20, 1 << 30
#: seconds for all readings of one host
REPLY_TIMEOUT = 15.0


def run(options: CheckOptions) -> int:
    """Advise on what the options name; the exit code. Raises: UsageError."""
    if options.texts and hosts_typed():
        raise ConflictingOptions(
            "--from has the texts of all hosts: -H and -w cannot be given as well"
        )
    # what crosses to the ranks by itself goes before what the hosts have
    ours = {n: v for n, v in os.environ.items() if n.startswith(("NCCL_", "GLOO_")) and crosses(n)}
    logged = {} if options.log is None else _logged(options.log)
    if options.apply is not None:
        named_files.expect(f"--apply {options.apply}", options.apply)
    if options.texts:
        if options.dry_run:
            raise ConflictingOptions("--from touches no host: --dry-run is for asking them")
        hosts = _pasted(options.texts)
    elif options.dry_run:
        from dispatcher.cli.options.connect_options import show_only

        does = "read network interfaces, InfiniBand, GPUs and variables of NCCL"
        show_only(options, "check", ((host, does) for host in find_hosts(options, say)))
        return 0
    else:
        hosts = _asked(options, ours)
    advice = advise(hosts)
    messages = list(advice.messages)
    if options.log is not None:
        messages += _compared(options.log, logged, advice, hosts)
    if options.as_json:
        tell(record(advice, messages))
    else:
        print_lines(lines(advice, messages))
    if options.apply is not None:
        _write(options.apply, advice)
    if any(host.unread.startswith("lost: ") for host in hosts.values()):
        return 125
    return 1 if any(message.level > Level.WARN for message in messages) else 0


def _pasted(paths: Sequence[str]) -> dict[str, HostNet]:
    hosts: dict[str, HostNet] = {}
    for path in paths:
        name = os.path.basename(path)
        name = name.partition(".")[0] or name
        if name in hosts:
            raise FileUnusable(f"--from {path}: there is a text of {name} already")
        hosts[name] = from_text(_read(path, "--from", MOST_TEXT))
    return hosts


def _read(path: str, flag: str, most: int) -> str:
    return named_files.read(f"{flag} {path}", path, most).decode("utf-8", "backslashreplace")


def _asked(options: CheckOptions, ours: Mapping[str, str]) -> dict[str, HostNet]:
    """What the hosts themselves say."""
    from dispatcher.cli.options.connect_options import TransportPool
    from dispatcher.runner.surveys import survey

    targets = find_hosts(options, say)
    allow_open_files(len(targets))
    names = ExecPlan(targets, ("true",)).names
    connect = options.connect_timeout
    with TransportPool(options) as reach:
        answers = survey(
            targets, READINGS, reach.transport_for, seconds=REPLY_TIMEOUT, connect=connect
        )
    found = {}
    for host, name, answer in zip(targets, names, answers, strict=True):
        if answer.problem:
            why = ("lost: " if answer.lost else "") + answer.problem
            found[name] = HostNet(unread=sanitize_text(why))
            continue
        readings = {
            key: reading.value() if key != "libnccl" else reading.text
            for key, reading in answer.readings.items()
        }
        found[name] = from_text(text_of(readings), {**ours, **dict(host.env)})
    return found


def _logged(path: str) -> dict[str, nccl_log.NetworkUse]:
    """What a log says of each host. Raises: UsageError."""
    logged = nccl_log.read(_read(path, "--log", MOST_LOG).splitlines())
    if not logged:
        raise FileUnusable(f"--log {path}: no lines of NCCL in it", hint="-x NCCL_DEBUG=INFO")
    return logged


def _compared(
    path: str,
    logged: dict[str, nccl_log.NetworkUse],
    advice: Advice,
    hosts: Mapping[str, HostNet],
) -> list[Message]:
    """What a log says that was not to be expected, and of whom it says nothing."""
    places = {
        name: [address for netdev in host.netdevs for address in netdev.addresses]
        for name, host in hosts.items()
    }
    for name in LOCAL_NAMES & places.keys() - logged.keys():
        if own := logged.get(socket.gethostname().partition(".")[0]):
            logged[name] = own  # NCCL writes the name that this machine has for others
    known = nccl_log.by_host(logged, places)
    if not known:
        raise FileUnusable(f"--log {path}: it is of other hosts: {fold(list(logged))}")
    expected = {
        name: (will.net or "", tuple(port.name for port in will.ports))
        for name, will in advice.now.items()
    }
    groups: dict[str, list[str]] = {}
    for host, what in nccl_log.differences(expected, known):
        groups.setdefault(what, []).append(host)
    found = [Message(Level.CRITICAL, tuple(hosts), what) for what, hosts in groups.items()]
    silent = tuple(name for name in expected if name not in known)
    return [*found, Message(Level.WARN, silent, f"not in {path}")] if silent else found


def _write(path: str, advice: Advice) -> None:
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


def lines(advice: Advice, messages: Sequence[Message]) -> list[str]:
    """The advice for people."""
    found = [
        *_block("now", advice.now),
        *(_block("then", advice.then) if advice.then != advice.now else []),
        "advice:" if advice.settings or advice.own else "advice: none",
        *(f"  {name}={value}" for name, value in advice.settings.items()),
    ]
    for values, hosts in _alike(advice.own).items():
        found.append(f"  on {fold(hosts)}:")
        found += [f"    {name}={value}" for name, value in values]
    for message in sorted(messages, key=lambda m: -m.level):
        where = fold(message.hosts)
        found.append(f"{message.level.name.lower()}: {where}: {sanitize_text(message.text)}")
        if message.remedy:
            found.append(f"  hint: {sanitize_text(message.remedy)}")
    return found


def _alike(own: Mapping[str, Mapping[str, str]]) -> dict[tuple[tuple[str, str], ...], list[str]]:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, values in own.items():
        groups.setdefault(tuple(values.items()), []).append(host)
    return groups


def _block(title: str, predictions: Mapping[str, Any]) -> list[str]:
    """What NCCL uses, hosts with the same devices on one line."""
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


def record(advice: Advice, messages: Sequence[Message]) -> formats.CheckNccl:
    """The advice for programs."""
    return {
        "schema": "check-nccl/1",
        "settings": dict(advice.settings),
        "hosts": {
            name: {
                "settings": dict(advice.own.get(name, {})),
                "now": advice.now[name].line(),
                "then": advice.then[name].line(),
            }
            for name in advice.now
        },
        "messages": [
            {
                "level": message.level.name,
                "hosts": list(message.hosts),
                "text": message.text,
                "remedy": message.remedy,
            }
            for message in messages
        ],
    }
