"""The words of a command line by option, to compare lines and to change one. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPTION = re.compile(r"(--?(?!\.?\d)[^=]+)(?:=(.*))?", re.S)
_SETTING = re.compile(r"([+~]{0,2}[A-Za-z_][\w.@/-]*=)(.*)", re.S)


def grouped(words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """(key, words) of each option with the words up to the next; other words alone, with key "".

    ``--lr 3`` and ``--lr=3`` have the key ``--lr``, and ``lr=3`` alone has ``lr=``. A negative
    number counts as a value, and so does any word after ``--``.
    """
    groups: list[tuple[str, tuple[str, ...]]] = []
    for at, word in enumerate(words):
        if word == "--":
            return [*groups, *(("", (rest,)) for rest in words[at:])]
        if found := _OPTION.fullmatch(word) or _SETTING.fullmatch(word):
            groups.append((found[1], (word,)))
        elif groups and groups[-1][0].startswith("-"):
            groups[-1] = groups[-1][0], (*groups[-1][1], word)
        else:
            groups.append(("", (word,)))
    return groups


def values_of(group: tuple[str, ...]) -> tuple[str, ...]:
    """The values in the words of an option or a setting."""
    found = _OPTION.fullmatch(group[0]) or _SETTING.fullmatch(group[0])
    inside = found and found[2]
    return group[1:] if inside is None else (inside, *group[1:])


def changed(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The arguments ``words`` with ``changes``: options that are there get the new values.

    As many values are replaced as are given, and ``--lr=3`` keeps its form. If an option is there
    several times, the change is for its last place. All else is added: at the end, or before a
    ``--``.
    """
    found, new = grouped(words), grouped(changes)
    end = next((at for at, (_, group) in enumerate(found) if group == ("--",)), len(found))
    added: list[tuple[str, ...]] = []
    for key in dict.fromkeys(key for key, _ in new):
        groups = [group for one, group in new if one == key]
        there = [at for at in range(end) if key and found[at][0] == key][-len(groups) :]
        for at, group in zip(there, groups, strict=False):
            given, old = values_of(group), found[at][1]
            if len(given) == 1 and values_of(old):  # spelled as before, which the program took
                group = (key, *given) if old[0] == key else (f"{key.rstrip('=')}={given[0]}",)
            if given:
                found[at] = key, (*group, *values_of(old)[len(given) :])
        added += groups[len(there) :]
    kept = [group for _, group in found]
    return [word for group in (*kept[:end], *added, *kept[end:]) for word in group]
