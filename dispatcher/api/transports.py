"""Chooses how hosts are reached: the options (``Ways``), and the transports, each made once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from dispatcher.model.errors import ConflictingOptions, NoPassword, TooFewOpenFiles
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import LOCAL_NAMES, Host
from dispatcher.transport.base import UNLESS_CONFIGURED, Keepalive, Transport

if TYPE_CHECKING:
    from typing_extensions import Self

    from dispatcher.transport.container.engines import Container
    from dispatcher.transport.ssh_auth.passwords import Passwords

AT_A_TERMINAL = "run it at a terminal, or log in by a key: ssh-copy-id HOST"

#: prompt -> the secret, None if the user cannot be asked
Ask = Callable[[str], str | None]


def nobody(prompt: str) -> str | None:
    """An ``Ask`` that never asks."""
    return None


@value
class Ways(Value):
    """The options of the same names; None means as in ssh_config.

    ask_pass: ask for a password before any host is touched, and pass on the hosts' own questions.
    Raises: UsageError for options that contradict each other.
    """

    transport: Literal["auto", "paramiko", "ssh", "slurm"] = "auto"
    rsh: str | None = None
    ssh_config: str | None = None
    host_keys: Literal["strict", "accept-new"] | None = None
    ask_pass: bool = False

    def __post_init__(self) -> None:
        if self.rsh is not None and self.transport != "auto":
            raise ConflictingOptions("--rsh and --transport exclude each other")
        if self.ask_pass and self.chosen not in ("auto", "paramiko"):
            way = "--rsh" if self.rsh is not None else f"--transport {self.transport}"
            raise ConflictingOptions(
                f"--ask-pass is for SSH in this process, not for {way}", hint="--ask-pass alone"
            )

    @property
    def chosen(self) -> str:
        """The chosen transport: ``rsh``, or the value of --transport."""
        return "rsh" if self.rsh is not None else self.transport

    def template(self) -> tuple[str, ...] | None:
        """The command that reaches hosts, if there is one. Raises: UsageError."""
        if self.rsh is None and self.transport != "slurm":
            return None
        from dispatcher.transport.process.command import SRUN, template  # loads subprocess

        return SRUN if self.rsh is None else template(self.rsh)


class TransportPool:
    """Transports by host; closes them all at the end of the context.

    ask: asks for secrets to log in; called on the thread of a link. alive: when a silent host is
    asked whether it lives. alone: there is only one host, whose password is asked for without
    ``ask_pass``, as ssh does. passwords: of another pool that has asked for them. reach: seconds
    for the steps before a login. If there is a ``container``, hosts run commands in it.
    """

    def __init__(
        self,
        ways: Ways,
        ask: Ask = nobody,
        alive: Keepalive = UNLESS_CONFIGURED,
        *,
        alone: bool = False,
        passwords: Passwords | None = None,
        reach: float = math.inf,
        container: Container | None = None,
    ) -> None:
        self._reach = reach
        self._container = container
        if passwords is None:
            from dispatcher.transport.ssh_auth.passwords import Passwords

            passwords = Passwords()
        self.ways = ways
        self._passwords = passwords
        passwords.serve(self._ask, "all" if ways.ask_pass else "one" if alone else "nobody")
        self._ask_whom = ask
        self._alive = alive
        self._template = ways.template()
        self._made: dict[str, Transport] = {}

    def transport_for(self, host: Host) -> Transport:
        """The transport for ``host``, and into its container if there is one."""
        outside = self.outside_for(host)
        if self._container is None:
            return outside
        from dispatcher.transport.container.container_transport import ContainerTransport

        name = f"container by {outside.name}"
        if name not in self._made:
            self._made[name] = ContainerTransport(outside, self._container)
        return self._made[name]

    def outside_for(self, host: Host) -> Transport:
        """The transport for ``host`` itself."""
        choice = self.ways.chosen
        name = choice if choice != "auto" else ("local" if is_local(host) else "paramiko")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Transport:
        ways = self.ways
        if name == "local":
            from dispatcher.transport.process.command import LocalTransport

            return LocalTransport()
        if name == "ssh":
            from dispatcher.transport.process.openssh import SshTransport

            return SshTransport(
                config=ways.ssh_config, accept_new=ways.host_keys == "accept-new",
                alive=self._alive, reach=self._reach,
            )  # fmt: skip
        if self._template is not None:
            from dispatcher.transport.process.command import CommandTransport

            return CommandTransport(self._template, name)
        return self.in_process()

    def prepare(self, command: str) -> None:
        """Start ``command`` ahead over pooled connections; see ``Transport``."""
        for transport in self._made.values():
            transport.prepare(command)

    def _ask(self, prompt: str) -> str | None:
        told = {transport.typing for transport in tuple(self._made.values())}
        for typing in told:
            typing(True)
        try:
            return self._ask_whom(prompt)
        finally:
            for typing in told:
                typing(False)

    def in_process(self, *, keep: bool = False) -> Transport:
        """The transport with SSH in this process. keep: connections stay for later commands."""
        from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport

        return ParamikoTransport(
            config=self.ways.ssh_config,
            host_keys=self.ways.host_keys,
            passwords=self._passwords,
            keep=keep,
            alive=self._alive,
            reach=self._reach,
        )

    def __enter__(self) -> Self:
        """Ask for the password of ``ask_pass``. Raises: NoPassword."""
        if not self._passwords.begin():
            raise NoPassword("--ask-pass: no password was given", hint=AT_A_TERMINAL)
        return self

    def __exit__(self, *_: object) -> None:
        for transport in reversed(self._made.values()):
            transport.close()


def is_local(host: Host) -> bool:
    """Whether ``host`` is this machine, by a name that needs no SSH."""
    return host.name in LOCAL_NAMES and host.user is None and host.port is None


def check_reachable(ways: Ways, hosts: Iterable[Host]) -> None:
    """Check that ``ways`` can reach ``hosts`` with their users and ports. Raises: UsageError."""
    template = ways.template()
    if template is None:
        return
    flag = "--rsh" if ways.rsh is not None else "--transport slurm"
    if ways.host_keys is not None:
        raise ConflictingOptions(f"--host-keys is for SSH, not for {flag}")
    for host in hosts:
        for field, asked in (("user", host.user), ("port", host.port)):
            if asked is not None and not any(f"{{{field}}}" in word for word in template):
                raise ConflictingOptions(
                    f"{host.name}: {field} {asked} is set, which {flag} does not use",
                    hint=f"--rsh '... {{{field}}} ... {{host}}'",
                )


#: descriptors that one host may take (--transport ssh: three pipes and a process)
FILES_PER_HOST = 4


def allow_open_files(n_hosts: int) -> None:
    """Raise the soft limit of open files, if it is too low for ``n_hosts`` links.

    A sufficient limit stays, because child processes inherit it, and programs that use select(2)
    rely on the usual one. Raises: UsageError if the hard limit is too low as well.
    """
    import resource

    needed = FILES_PER_HOST * n_hosts + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise TooFewOpenFiles(
            f"{n_hosts} hosts need {needed} open files, at most {hard} are allowed",
            hint=f"ulimit -n {needed}  # or ask who set the limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
