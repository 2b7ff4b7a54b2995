"""Which transport reaches which host: the flags' choice, each made once and shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from dispatcher.cli import keeping
from dispatcher.errors import UsageError
from dispatcher.plan.host import Host
from dispatcher.transport import rsh
from dispatcher.transport.base import Transport

#: names that mean this machine; reached without SSH unless the user says how
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

#: prompt -> the secret, None where there is nobody to ask
Ask = Callable[[str], str | None]


class Reach:
    """Transports by host; closes them all at the end of the context.

    ask: asks for a secret; by default at our terminal. keep: connections are used
    again by the next command.
    """

    def __init__(
        self, flags: Mapping[str, Any], ask: Ask | None = None, *, keep: bool = False
    ) -> None:
        self._flags = flags
        self._keep = keep
        keeping.judge(flags)
        self._ask = ask or ask_here
        self._template = _template(flags)
        self._chosen = "rsh" if flags.get("rsh") is not None else flags["transport"]
        self._made: dict[str, Transport] = {}

    def transport_for(self, host: Host) -> Transport:
        choice = self._chosen
        local = host.name in LOCAL_NAMES and host.user is None and host.port is None
        name = choice if choice != "auto" else ("local" if local else "paramiko")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Transport:
        config, keys = self._flags["ssh_config"], self._flags["host_keys"]
        if name == "local":
            from dispatcher.transport.local import LocalTransport

            return LocalTransport()
        if name == "ssh":
            from dispatcher.transport.openssh import SshTransport

            return SshTransport(config=config, accept_new=keys == "accept-new")
        if self._template is not None:
            from dispatcher.transport.command import CommandTransport

            return CommandTransport(self._template, name)
        from dispatcher.transport.paramiko_ import ParamikoTransport

        def direct() -> Transport:
            return ParamikoTransport(config=config, host_keys=keys, ask=self._ask, keep=self._keep)

        return keeping.transport(self._flags, direct)

    def __enter__(self) -> Reach:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for transport in self._made.values():
            transport.close()


def judge(flags: Mapping[str, Any], hosts: Iterable[Host]) -> None:
    """Nothing, if the flags can reach ``hosts`` as these want it. Raises: UsageError."""
    template = _template(flags)
    if template is None:
        return
    flag = "--rsh" if flags.get("rsh") is not None else "--transport slurm"
    if flags["host_keys"] is not None:
        raise UsageError(f"--host-keys is for SSH: {flag} has its own ways")
    for host in hosts:
        for field, said in (("user", host.user), ("port", host.port)):
            if said is not None and not any(f"{{{field}}}" in word for word in template):
                raise UsageError(
                    f"{host.name}: {field} {said} is asked for, which {flag} does not use",
                    hint=f"--rsh '... {{{field}}} ... {{host}}'",
                )


def _template(flags: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The command that reaches hosts, if the flags want one."""
    if flags.get("rsh") is None:
        return rsh.SRUN if flags["transport"] == "slurm" else None
    if flags["transport"] != "auto":
        raise UsageError("--rsh and --transport exclude each other")
    return rsh.template(flags["rsh"])


def ask_here(prompt: str) -> str | None:
    """Ask the person at the terminal for a secret; None where there is nobody to ask."""
    import getpass
    import os

    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return getpass.getpass(prompt)
    except (OSError, EOFError):
        return None
