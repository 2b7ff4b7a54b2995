"""The sinks of a run, opened as its options say.

Who may hold the ranks back? A rank that cannot write stops computing, so nobody
should, but then bytes that find no room must be left out somewhere. The rule:

* files (``--log-dir``) never lose a byte, unless ``--log-overflow drop`` allows it;
* a terminal never holds the ranks back: Ctrl-S, or a slow line, must not cost
  an hour of a cluster; what it did not show is counted where it is missing;
* a pipe never loses a byte where it is the only place that gets them, because its
  reader is a program (``| tee``, ``| grep``) that cannot know better; where
  files keep everything, a reader that pauses (``| less``) is treated as a terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from dispatcher.agent.wire import STDERR, STDOUT
from dispatcher.cli.showing import Showing
from dispatcher.sinks.base import Sink
from dispatcher.sinks.outlet import Outlet, can_pause
from dispatcher.sinks.screen import PARTIAL_ELSEWHERE, PARTIAL_TERMINAL, Screen, View

if TYPE_CHECKING:
    from dispatcher.paths import RunPaths


def open_screen(
    showing: Showing,
    label: Callable[[int], str],
    hue: Callable[[int], int],
    *,
    on_broken: Callable[[], None],
    files_keep_all: bool,
) -> Sink:
    """The sink that shows the ranks' output; its ``say`` is the run's word to the user."""
    terminals = frozenset(stream for stream in (STDOUT, STDERR) if os.isatty(stream))
    view = View(
        label,
        hue,
        coloured=frozenset() if os.environ.get("NO_COLOR") else terminals,
        timestamps=showing.timestamps,
        grep=showing.grep,
        partial_after=_partial_after(showing, bool(terminals)),
    )
    sink: Sink = Screen(view, Outlet(on_broken=on_broken))
    if _may_drop(showing.screen_overflow, files_keep_all):
        from dispatcher.sinks.behind import Behind

        sink = Behind(sink, "screen")
    if showing.only is not None:
        from dispatcher.sinks.choice import OnlyRanks

        sink = OnlyRanks(sink, showing.only)
    return sink


def open_files(showing: Showing, paths: RunPaths, say: Callable[[str], None]) -> list[Sink]:
    """Journal and the ranks' output. Raises: OSError."""
    from dispatcher.sinks.journal import Journal

    files: Sink
    if showing.log_merge:
        from dispatcher.sinks.merged import Merged

        files = Merged(paths.merged, say, showing.rotation)
    else:
        from dispatcher.sinks.logs import RankFiles

        files = RankFiles(paths.folder, say, showing.rotation)
    if showing.log_overflow != "block":
        from dispatcher.sinks.behind import Behind
        from dispatcher.sinks.spool import Spool

        files = Behind(files, "files", spool=Spool() if showing.log_overflow == "spool" else None)
    return [Journal(paths.journal, say), files]


def files_keep_all(showing: Showing, paths: RunPaths | None) -> bool:
    """Whether every byte of the ranks will be found in a file."""
    bounded = showing.log_overflow == "drop" or showing.rotation.keep is not None
    return paths is not None and not bounded


def _partial_after(showing: Showing, terminal: bool) -> float:
    if showing.partial_after is not None:
        return showing.partial_after
    return PARTIAL_TERMINAL if terminal else PARTIAL_ELSEWHERE


def _may_drop(overflow: str, kept: bool) -> bool:
    """Whether the screen may leave bytes out when its reader is slow."""
    if overflow == "auto":
        return os.isatty(1) or (kept and can_pause(1))
    return overflow == "drop"
