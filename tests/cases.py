"""``cases``: a rule and the table of its cases, as one test. ``examples``: as many for a property.

Written like ``pytest.mark.parametrize``, for rules that a function call can try: a case costs what
the call costs, not a test's set-up, its reports and its place in every worker's collection. All
rows are gone over, and each that fails is named.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings

#: examples of a property that does not say how many
USUAL = 100
_SHOWN = 200  # characters of a row that has no name


def cases(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Sequence[str] | Callable[[Any], str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each of ``rows``.

    ``monkeypatch`` and ``tmp_path`` begin anew with every row, ``capsys`` and ``capfd`` are empty;
    other fixtures are one for all.
    """
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)
    table = [_case(values, words) for values in rows]
    assert table, "a table without rows tests nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def over_all(*args: Any, **fixtures: Any) -> None:
            wrong: list[tuple[str, BaseException]] = []
            for n, (name, values) in enumerate(table):
                with _anew(fixtures, n) as own:
                    try:
                        test(*args, **own, **values)
                    except (Exception, pytest.fail.Exception) as error:
                        wrong.append((name or _name(values, n, ids), error))
            if wrong:
                told = [f"row {name}: {type(error).__name__}: {error}" for name, error in wrong]
                raise AssertionError("\n".join(told)) from wrong[0][1]

        left = [one for name, one in signature.parameters.items() if name not in words]
        over_all.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return over_all

    return decorate


def _case(values: Any, words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The name it was given, and the value of each word."""
    name = None
    if hasattr(values, "marks"):  # pytest.param
        values, name = values.values, values.id
    elif len(words) == 1:
        values = (values,)
    return name, dict(zip(words, values, strict=True))


def _name(values: dict[str, Any], n: int, ids: Sequence[str] | Callable[[Any], str] | None) -> str:
    """That of a row without one of its own. Only a row that failed needs it."""
    if ids is None:
        return f"{n}: {tuple(values.values())!r:.{_SHOWN}}"
    return "-".join(str(ids(value)) for value in values.values()) if callable(ids) else ids[n]


def examples(count: int) -> settings:
    """``count`` examples, and in the tiers that try fewer or more than ``USUAL``, as they do."""
    return settings(max_examples=-(-count * settings().max_examples // USUAL), deadline=None)


@contextmanager
def _anew(fixtures: dict[str, Any], n: int) -> Iterator[dict[str, Any]]:
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / str(n)
        own["tmp_path"].mkdir()
    for name in ("capsys", "capfd"):
        if name in own:
            own[name].readouterr()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        yield own
