"""Whether connections are shared with other runs of dispatch: ``--keep``, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dispatcher.errors import UsageError
from dispatcher.plan.request import parse_seconds
from dispatcher.transport.base import Transport
from dispatcher.transport.keepalive import INTERVAL, UNLESS_CONFIGURED, Alive


def seconds(flags: Mapping[str, Any]) -> float | None:
    """How long new connections are to be kept idle; None without ``--keep``.

    Raises: UsageError.
    """
    text = flags.get("keep")
    if text is None:
        return None
    if flags["transport"] not in ("auto", "paramiko") or flags.get("rsh") is not None:
        raise UsageError(
            "--keep is for SSH in process", hint="ControlPersist of ssh_config keeps ssh's own"
        )
    found = parse_seconds(text, "--keep")
    if found <= 0:
        raise UsageError("--keep=0: for how long?", hint="dispatch connect --close ends them")
    return found


def judge(flags: Mapping[str, Any]) -> None:
    """Nothing, if connections can be kept as ``flags`` say. Raises: UsageError."""
    if "keep" in flags:
        from dispatcher.kept import place

        if seconds(flags) is not None or place.there():
            place.folder()


def transport(flags: Mapping[str, Any], direct: Callable[[], Transport]) -> Transport:
    """What reaches hosts by SSH: over kept connections where that may be, else ``direct()``."""
    if "keep" not in flags:
        return direct()
    from dispatcher.kept import place

    keep = seconds(flags)
    if keep is None and not place.there():
        return direct()
    from dispatcher.kept.transport import KeptTransport

    if keep is not None:
        place.call().close()
    return KeptTransport(
        direct,
        keep=keep,
        config=flags["ssh_config"],
        host_keys=flags["host_keys"],
        alive=alive(flags),
    )


def alive(flags: Mapping[str, Any]) -> Alive:
    """When a silent host is asked whether it lives. Raises: UsageError.

    In a run only if ssh_config says so: there the agents' heartbeats decide who is lost.
    """
    if "alive" not in flags:
        return UNLESS_CONFIGURED
    if flags["alive"] is None:
        return Alive(otherwise=INTERVAL)
    return Alive(parse_seconds(flags["alive"], "--alive"))
