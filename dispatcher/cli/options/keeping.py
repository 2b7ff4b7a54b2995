"""Whether connections are shared with other runs of dispatch: ``--keep``, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dispatcher.model.errors import UsageError
from dispatcher.plan.job.request import parse_seconds
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
        from dispatcher.transport.pool import socket_path

        if seconds(flags) is not None or socket_path.there():
            socket_path.folder()


def transport(flags: Mapping[str, Any], direct: Callable[[], Transport]) -> Transport:
    """What reaches hosts by SSH: over kept connections where that may be, else ``direct()``."""
    if "keep" not in flags:
        return direct()
    from dispatcher.transport.pool import socket_path

    keep = seconds(flags)
    if keep is None and not socket_path.there():
        return direct()
    from dispatcher.transport.pool.pool_transport import KeptTransport

    if keep is not None:
        socket_path.call().close()
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
