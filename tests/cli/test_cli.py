"""Lines on standard error, and the code an error ends with."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.cli import complain, say
from dispatcher.model.errors import DispatchError, UsageError


@cases(
    ("error", "said", "code"),
    [
        (UsageError("who: what"), "error: who: what [bad-value]\n", 2),
        (
            UsageError("who: what", hint="do this"),
            "error: who: what [bad-value]\n  hint: do this\n",
            2,
        ),
        (DispatchError("lost"), "error: lost [dispatch-failed]\n", 125),
    ],
)
def test_an_error_in_words_and_its_code(
    error: DispatchError, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complain(error) == code
    say("more")
    out, err = capsys.readouterr()
    assert (out, err) == ("", said + "more\n")
