"""What one reading of a survey gave: the bytes, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dispatcher.remote.protocol.packing import PackError, unpack

#: statuses of ``remote.probe.survey``
NOT_FOUND, NOT_EXECUTABLE, CRASHED = 127, 126, 125


@dataclass(frozen=True)
class Reading:
    """status: exit status, None when it hung until its deadline; cut: more was there than kept."""

    status: int | None
    output: bytes
    cut: bool = False

    @property
    def hung(self) -> bool:
        return self.status is None

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "backslashreplace")

    def value(self) -> Any:
        """The packed value that a ``file`` or ``call`` reading holds, bytes in it as text.

        None when it failed or is no such value.
        """
        if self.status != 0 or self.cut:
            return None
        try:
            return _as_text(unpack(self.output))
        except PackError:
            return None

    def why(self) -> str:
        """Why it gave nothing, in words."""
        if self.hung:
            return "no answer in time"
        if self.status == NOT_FOUND:
            return "not installed"
        last = self.text.strip().splitlines()[-1][:200] if self.text.strip() else ""
        return f"exit code {self.status}" + (f": {last}" if last else "")


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_text(item) for name, item in value.items()}
    return value
