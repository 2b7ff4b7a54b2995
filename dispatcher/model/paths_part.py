"""Every file name of a run in one place.

``--log-dir DIR`` gets one folder a run, mode 0700, and a link to the newest::

    DIR/latest -> 20260131-142501-k3f9
    DIR/20260131-142501-k3f9/rank-00012.out, .err    what that rank wrote, exactly
                             rank-00012.out.1, .2    its first pieces, with --log-size
                             merged.log              instead of these, with --log-merge
                             restart-1/rank-...      the same of ranks started again
                             dispatch.jsonl          the journal
                             plan.json               what was planned, secrets hidden
                             report.json             how it ended
                             launcher.log            with --detach: what it would have shown
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from dispatcher.model.errors import UsageError
from dispatcher.model.frozen import Value, value


def new_run_id() -> str:
    """A run id that sorts by time and that nobody else has: ``20260131-142501-k3f9x2``."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 letters, none like another
    tail = "".join(alphabet[byte % 32] for byte in os.urandom(6))
    return time.strftime("%Y%m%d-%H%M%S-") + tail


@value
class RunPaths(Value):
    """The folder of one run."""

    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "dispatch.jsonl"

    @property
    def merged(self) -> Path:
        return self.folder / "merged.log"

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def launcher(self) -> Path:
        return self.folder / "launcher.log"

    @classmethod
    def create(cls, log_dir: str, run_id: str) -> RunPaths:
        """Make the run's folder below ``log_dir`` and point ``latest`` at it.

        Raises: UsageError when that cannot be done.
        """
        base = Path(log_dir)
        folder = base / run_id
        try:
            base.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise UsageError(f"--log-dir {log_dir}: {(error.strerror or '').lower()}") from None
        link = base / f".latest-{run_id}"
        with contextlib.suppress(OSError):  # a file system without links still has the folder
            link.symlink_to(run_id)
            os.replace(link, base / "latest")
        return cls(folder)
