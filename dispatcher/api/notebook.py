"""Show a run in a notebook: its progress below the cell, and the verdict at its end.

IPython is never loaded here; a notebook has loaded it. One ``display`` is replaced at most twice a
second, from the thread of the run's sinks, which ipykernel allows. All text is escaped.
"""

from __future__ import annotations

import html
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.core.events.run_events import Sink
from dispatcher.output.monitor.run_picture import picture_of
from dispatcher.output.run_state import RunState
from dispatcher.output.text.sanitize import sanitize_text

#: seconds between two updates at least
EVERY = 0.5
#: columns of a line of progress; notes that are kept
COLUMNS, MOST_NOTES = 110, 6
#: colours, which sanitizing keeps and a notebook does not need
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
#: colours that can be read on white and on black
_STYLES = (
    ("error:", "color:#d73a49;font-weight:bold"),
    ("hint:", "color:#0598bc"),
    ("note:", "color:#b08800"),
)


def display_here() -> Callable[..., Any] | None:
    """IPython's ``display``, if this process is the kernel of a notebook, else None."""
    if "ipykernel" not in sys.modules:
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    found: Callable[..., Any] = import_module("IPython.display").display
    return found


class Cell(Sink):
    """The output below a cell; ``begin`` shows it. display: IPython's function."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._lock = threading.Lock()  # notes come from several threads
        self._last = 0.0
        self._ended = False

    def begin(self, state: RunState) -> None:
        """Show the run that ``state`` follows."""
        from dispatcher.output.terminal.footer import Footer  # loads rich

        self._state, self._footer = state, Footer(state.hosts)
        self._handle = self._display(_Shown(self._now()), display_id=True)

    def tick(self, now: float) -> bool:
        if now - self._last >= EVERY and not self._ended:
            self._last = now
            self._show(self._now())
        return not self._ended

    def say(self, line: str) -> None:
        """Show dispatch's own line above the progress; from any thread."""
        with self._lock:
            self._notes.append(line)

    def conclude(self, lines: Sequence[str]) -> None:
        """Show ``lines``, the verdict, in place of the progress."""
        self._ended = True
        with self._lock:
            notes = [line for line in self._notes if line not in lines]
        self._show([*notes, *lines])

    def _now(self) -> list[str]:
        lines = [line.plain for line in self._footer.lines(picture_of(self._state), (), COLUMNS)]
        with self._lock:
            return [*self._notes, *lines]

    def _show(self, lines: Sequence[str]) -> None:
        if self._handle is not None:
            self._handle.update(_Shown(lines))


def as_html(lines: Sequence[str]) -> str:
    """``lines`` as HTML, in which they are only text."""
    rows = []
    for line in lines:
        text = html.escape(_COLOUR.sub("", sanitize_text(line)))
        for word, style in _STYLES:
            if text.lstrip().startswith(word):
                text = text.replace(word, f'<span style="{style}">{word}</span>', 1)
                break
        rows.append(text)
    style = "white-space:pre-wrap;line-height:1.3;margin:0"
    return f'<pre style="{style}">' + "\n".join(rows) + "</pre>"


class _Shown:
    """Lines that a notebook shows as HTML, and other front ends as text."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def _repr_html_(self) -> str:
        return as_html(self._lines)

    def __repr__(self) -> str:
        return _COLOUR.sub("", "\n".join(map(sanitize_text, self._lines)))
