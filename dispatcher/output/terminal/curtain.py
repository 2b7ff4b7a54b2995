"""The terminal that is drawn on is also where secrets are asked for: never both at once.

Who asks waits until what is drawn was taken away; until the answer nothing is drawn. Lines are
shown all the same. A process has one terminal, so there is one curtain, ``OURS``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

#: seconds that whoever asks waits for a painter who may be stuck in a paused terminal
PATIENCE = 1.0


class Curtain:
    """Between those who ask, on any threads, and the painter on its own."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._asking = 0
        self._drawn = False

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Nothing is drawn below the lines, and nothing will be, in this context."""
        with self._state:
            self._asking += 1
            self._state.wait_for(lambda: not self._drawn, PATIENCE)
        try:
            yield
        finally:
            with self._state:
                self._asking -= 1

    def draws(self) -> bool:
        """Whether the painter may draw; if so, something is drawn from now on."""
        with self._state:
            self._drawn = self._drawn or not self._asking
            return not self._asking

    def taken_away(self) -> None:
        """Nothing is drawn any more."""
        with self._state:
            self._drawn = False
            self._state.notify_all()


OURS = Curtain()
