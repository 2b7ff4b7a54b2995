"""Hosts with the same trouble, told once with one hint, whatever each puts of its own into it.

200 hosts that refuse a connection differ in their names and addresses only. What differs by
host stands as ``{host}``, ``{address}``, ``{fingerprint}`` or ``{line}`` where hosts with
different texts share a row; each one's own text is told by ``-v``. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from dispatcher.model.frozen import Value, value
from dispatcher.output.text.sanitize import harmless_text

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
        why = harmless_text(one.why)
        groups.setdefault((one.kind, one.about, in_common(why, one.host)), []).append(one)
    found = []
    for (kind, about, common), members in groups.items():
        texts = {harmless_text(one.why) for one in members}
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
            found.setdefault(in_common(hint, one.host), f"  hint: {harmless_text(hint)}")
    return list(found.values())[:MOST_HINTS]


def in_common(text: str, host: str) -> str:
    """``text`` without what is ``host``'s own in it."""
    for name in (host, _PORT.sub("", host)):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "{host}", text)
    for pattern, word in _OWN:
        text = pattern.sub(word, text)
    return text
