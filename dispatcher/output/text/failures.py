"""Hosts with the same trouble, told once with one hint; who is to blame for those behind others.

200 hosts that refuse a connection differ in their names and addresses only. What differs by
host stands as ``{host}``, ``{address}``, ``{fingerprint}`` or ``{line}`` where hosts with
different texts share a row; each one's own text is told by ``-v``.

A host that goes takes along all that is reached through it, and which is missed first is
chance. So where a lost host stands above the first one, it is the cause, and those behind
it are told in one line. Pure.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from dispatcher.core.events.verdicts import NodeFailed, Verdict
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import sanitize_text


def blamed(verdict: Verdict, above: Mapping[int, Sequence[int]]) -> tuple[Verdict, list[int]]:
    """``verdict`` with the host to blame as its cause, and those that were lost behind it.

    above: node -> those it was reached through, nearest first.
    """
    cause = verdict.cause
    if not isinstance(cause, NodeFailed):
        return verdict, []
    lost = {**verdict.lost, cause.node: cause.failure}
    top = next((node for node in reversed(above.get(cause.node, ())) if node in lost), cause.node)
    behind = sorted(node for node in lost if top in above.get(node, ()))
    left = {node: failure for node, failure in lost.items() if node not in behind}
    found = NodeFailed(top, lost[top])
    return dataclasses.replace(verdict, cause=found, lost=left), behind


def behind_lines(verdict: Verdict, names: Sequence[str], behind: Sequence[int]) -> list[str]:
    """The line about those ``behind`` the cause. names: of all nodes."""
    if not behind or not isinstance(verdict.cause, NodeFailed):
        return []
    where = fold(names[node] for node in behind)
    return [f"  then {where}: lost with {names[verdict.cause.node]}, which leads to them"]


#: trouble -> what the launcher's own machine knows to do about it, or None
Advise = Callable[[str], "str | None"]

_OWN_PREFIX = re.compile(r"\A\{host\}: |(?<=: )\{host\}: ")
_PORT = re.compile(r"(?<=[^:]):[0-9]+\Z")
#: hints that are told at most
MOST_HINTS = 5

_OWN = (
    (re.compile(r"(?<![\w.:])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"), "{address}"),
    (re.compile(r"(?<![\w:.])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){7})[0-9a-fA-F]{0,4}"
                r"(?::[0-9a-fA-F]{0,4}){2,7}(?:(?<=::)|(?<!:))(?!\w)"), "{address}"),
    (re.compile(r"SHA256:[A-Za-z0-9+/]{43}"), "{fingerprint}"),
    (re.compile(r"(?<=/known_hosts:)\d+|(?<=/known_hosts2:)\d+"), "{line}"),
)  # fmt: skip


def no_advice(trouble: str) -> None:
    """For callers that know nothing more."""


@value
class Trouble(Value):
    """What is wrong with one host: ``kind`` in a word, ``why`` in more; what to do about it.

    about: what to ask for advice; "" for nothing.
    """

    host: str
    kind: str
    why: str
    hint: str | None = None
    about: str = ""


def grouped(troubles: Iterable[Trouble]) -> list[tuple[list[str], Trouble]]:
    """(hosts, what is wrong with them all), in the order of each group's first host."""
    groups: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in troubles:
        why = sanitize_text(one.why)
        groups.setdefault((one.kind, one.about, in_common(why, one.host)), []).append(one)
    found = []
    for (kind, about, common), members in groups.items():
        texts = {sanitize_text(one.why) for one in members}
        why = texts.pop() if len(texts) == 1 else _OWN_PREFIX.sub("", common)
        # one host's hint stands for its group
        hint = next((one.hint for one in members if one.hint), None)
        found.append(
            ([one.host for one in members], Trouble(members[0].host, kind, why, hint, about))
        )
    return found


def hints(groups: Sequence[tuple[list[str], Trouble]], advise: Advise = no_advice) -> list[str]:
    """What to do about ``groups``: each remedy once, though it be for another host."""
    found: dict[str, str] = {}
    for _, one in groups:
        hint = advise(one.about or one.kind) or one.hint
        if hint:
            found.setdefault(in_common(hint, one.host), f"  hint: {sanitize_text(hint)}")
    return list(found.values())[:MOST_HINTS]


def in_common(text: str, host: str) -> str:
    """``text`` without what is ``host``'s own in it."""
    for name in (host, _PORT.sub("", host)):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "{host}", text)
    for pattern, word in _OWN:
        text = pattern.sub(word, text)
    return text
