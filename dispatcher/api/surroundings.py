"""``allocated()``: the hosts that the surroundings of this process speak of."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence

from dispatcher.model.host_part import Hostlist
from dispatcher.plan.hosts.allocation import Surroundings
from dispatcher.plan.hosts.allocation_part import discover
from dispatcher.plan.hosts.hostfile import MOST_BYTES

#: seconds for a batch system's own program to answer
_ANSWER = 10.0


def allocated() -> Hostlist | None:
    """The hosts of the allocation we run in, None outside any. Raises: UsageError."""
    return discover(Surroundings(os.environ, _read, _ask))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)


def _ask(argv: Sequence[str]) -> str:
    try:
        told = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER, check=True
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"no answer in {_ANSWER:.0f} s") from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode("utf-8", "replace").strip().splitlines()
        said = "".join(c for c in words[-1] if c.isprintable())[:200] if words else ""
        raise OSError(errno.EIO, said or f"exit code {error.returncode}") from None
    return told.stdout[:MOST_BYTES].decode("utf-8", "replace")
