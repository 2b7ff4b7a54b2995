"""What the user allows when an attempt fails: how often, how fast, with how few hosts.

Numbers and patterns only, judged alone; what follows from them is ``core.run.run_machine``'s.
"""

from __future__ import annotations

import re

from dispatcher.model.errors import UsageError
from dispatcher.model.frozen import Value, value

#: seconds between two attempts at most
LONGEST_DELAY = 60.0
#: an attempt that lived this many seconds was no part of a crash loop
LONG_LIFE = 300.0
#: attempts in a row without progress that end a run which shows its progress
MOST_FRUITLESS = 3


@value
class Restarts(Value):
    """The rules of starting again.

    most: restarts at most, TORCHELASTIC_MAX_RESTARTS. delay: seconds before the
    second restart in a row; the first comes at once, each further one waits twice
    as long. min_nodes: hosts to go on with at least when others are lost; None: all
    are needed. host_faults: attempts that may end on one host before it is left out.
    progress_file: on host 0, changed by an attempt that came further. progress_line:
    a pattern that some line of such an attempt contains.
    """

    most: int = 0
    delay: float = 1.0
    min_nodes: int | None = None
    host_faults: int = 3
    progress_file: str | None = None
    progress_line: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay < 1e7:  # also refuses nan
            raise UsageError(f"--restart-delay: {self.delay} is not a sensible time")
        if self.progress_line is not None:
            try:
                re.compile(self.progress_line.encode("utf-8", "surrogateescape"))
            except re.error as error:
                raise UsageError(f"--progress-line: not a pattern: {error}") from None
        if self.progress_file is not None and (
            not self.progress_file or "\0" in self.progress_file
        ):
            raise UsageError("--progress-file: not a file name")

    @property
    def shows_progress(self) -> bool:
        """Whether the user said how progress can be seen."""
        return self.progress_file is not None or self.progress_line is not None

    def pause(self, in_a_row: int) -> float:
        """Seconds before the next start after ``in_a_row`` (>= 1) attempts that came to nothing."""
        if in_a_row <= 1:
            return 0.0
        return float(min(LONGEST_DELAY, self.delay * 2.0 ** min(in_a_row - 2, 30)))
