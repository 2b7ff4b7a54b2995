"""The account of the attempts that failed: how long to pause, when to stop trying. Pure."""

from __future__ import annotations

from dispatcher.plan.job.restarts import LONG_LIFE, MOST_FRUITLESS, Restarts


class Account:
    """Counts failures in a row, by ``rules``.

    began: when the ranks of the present attempt were started; None while they are not.
    """

    def __init__(self, rules: Restarts) -> None:
        self.began: float | None = None
        self.progressed = False  # in the present attempt
        self._rules = rules
        self._mark: int | None = None  # of the progress file, when last looked at
        self._in_a_row = 0
        self._fruitless = 0

    def start_from(self, mark: int | None) -> None:
        """The progress file as it is before the ranks start."""
        self._mark = mark

    def see(self, mark: int | None) -> None:
        """The progress file was looked at again; a change is progress."""
        self.progressed = self.progressed or (mark is not None and mark != self._mark)

    def failed(self, now: float) -> None:
        """The present attempt has ended. One that started no rank does not count."""
        if self.began is None:
            return
        if self.progressed or now - self.began >= LONG_LIFE:
            self._in_a_row = 0
        self._in_a_row += 1
        if self._rules.shows_progress:
            self._fruitless = 0 if self.progressed else self._fruitless + 1

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        return 0.0 if self.began is None else self._rules.pause(self._in_a_row)

    @property
    def verdict(self) -> str | None:
        """Why to try no more; None while there is hope."""
        if self._fruitless < MOST_FRUITLESS:
            return None
        return f"{MOST_FRUITLESS} attempts without progress"

    def next(self) -> None:
        """Another attempt begins."""
        self.began = None
        self.progressed = False
