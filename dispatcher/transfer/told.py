"""What is known of the copy to or from one host, while it goes on and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Told:
    """Written by the thread that talks with the host, read by others.

    python: whether its Python does the work; None until it is known. bytes: copied, of
    ``wanted``; ``found`` more were there from an interrupted copy. sent, equal: files,
    once it is done; error: why it is not, ``hostile`` when the host broke the rules.
    left_out: what could not be copied, and why. relay_error: why the host above it
    in a tree did not serve it.
    """

    python: bool | None = None
    bytes: int = 0
    wanted: int = 0
    found: int = 0
    sent: int | None = None
    equal: int = 0
    error: str | None = None
    hostile: bool = False
    left_out: list[str] = field(default_factory=list)
    relay_error: str | None = None
