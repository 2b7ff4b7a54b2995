"""Lines on standard error: what a command says beside its output."""

from __future__ import annotations

import sys

from dispatcher.model.errors import DispatchError


def complain(error: DispatchError) -> int:
    """Tell ``error`` on standard error; its exit code."""
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
    return error.exit_code


def say(line: str) -> None:
    """One line on standard error, in one write."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
