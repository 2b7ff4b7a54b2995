"""The transport for each host: through which others, and over which kept connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from dispatcher.api import transports
from dispatcher.api.transports import Ask
from dispatcher.cli import print_json, say
from dispatcher.cli.options.declaration import Options
from dispatcher.cli.options.host_options import (
    ContainerOptions,
    KeepOptions,
    LimitOptions,
    LoginOptions,
    TreeOptions,
    login_ways,
)
from dispatcher.model.errors import ConflictingOptions, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.request import parse_seconds
from dispatcher.transport.base import (
    ALIVE_INTERVAL,
    UNLESS_CONFIGURED,
    Keepalive,
    Target,
    Transport,
)

if TYPE_CHECKING:
    from dispatcher.model import formats
    from dispatcher.plan.exec_plan import ExecLimits
    from dispatcher.transport.ssh_auth.passwords import Passwords
    from dispatcher.transport.tree.topology import HostTree


def keep_seconds(options: LoginOptions) -> float | None:
    """How long to keep new connections idle; None without ``--keep``. Raises: UsageError."""
    if not isinstance(options, KeepOptions) or options.keep is None:
        return None
    if options.transport not in ("auto", "paramiko") or options.rsh is not None:
        raise ConflictingOptions(
            "--keep needs the built-in ssh client",
            hint="ControlPersist of ssh_config keeps ssh's own",
        )
    found = parse_seconds(options.keep, "--keep")
    if found <= 0:
        raise UsageError(
            "--keep=0: connections cannot be kept for 0 s",
            hint="dispatch connect --close ends them",
        )
    return found


def check_keep(options: LoginOptions) -> None:
    """Check that connections can be kept by ``options``. Raises: UsageError."""
    if isinstance(options, KeepOptions):
        from dispatcher.transport.pool import daemon_socket

        if keep_seconds(options) is not None or daemon_socket.seems_up():
            daemon_socket.folder()


def alive(options: LoginOptions) -> Keepalive:
    """When a silent host is asked whether it lives. A run has heartbeats, so only if ssh_config
    sets it. Raises: UsageError.
    """
    if not isinstance(options, LimitOptions):
        return UNLESS_CONFIGURED
    if options.server_alive_interval is None:
        return Keepalive(otherwise=ALIVE_INTERVAL)
    return Keepalive(options.server_alive_interval)


#: hosts of a tree that may connect at once by default: inner hosts do most of the work
WINDOW = 1024


@value
class Fanout(Value):
    """The hosts of a tree and the host that opens each, by index. run_id: for the relays."""

    hosts: tuple[Host, ...]
    topology: HostTree
    ssh_config: str | None = None
    python: str | None = None
    run_id: str | None = None

    def lines(self) -> list[str]:
        """The tree as text, a line for each host that opens others."""
        names = [host.name for host in self.hosts]
        tree = self.topology
        levels = f"{tree.depth} levels" if tree.depth > 1 else "none with so few hosts"
        return [
            f"tree        {levels}; from here {fold(names[i] for i in tree.heads)}",
            *(
                f"            {names[i]} opens {fold(names[child] for child in children)}"
                for i, children in enumerate(tree.children)
                if children
            ),
        ]

    def parents(self) -> dict[str, str]:
        """Host -> the host that opens it, by name, for all that are not opened from here."""
        names = [host.name for host in self.hosts]
        pairs = zip(names, self.topology.parents, strict=True)
        return {name: names[parent] for name, parent in pairs if parent is not None}

    def transport(self, direct: Transport, say: Callable[[str], None]) -> Transport:
        """The way through other hosts. direct: how the first are reached; say: takes notes."""
        from dispatcher.bootstrap import payload
        from dispatcher.transport.tree.tree_transport import TreeTransport

        first = self.python
        return TreeTransport(
            [Target(host.name, host.user, host.port) for host in self.hosts],
            self.topology,
            direct,
            command=payload.command(first=[first] if first else [], run_id=self.run_id),
            config=self.ssh_config,
            say=say,
        )


def fanout_tree(
    options: LoginOptions, hosts: Sequence[Host], run_id: str | None = None
) -> Fanout | None:
    """The tree that the options set, without spares and this machine. Raises: UsageError."""
    if not isinstance(options, TreeOptions) or options.fanout_tree is None:
        return None
    from dispatcher.transport.tree.topology import (  # for those who want a tree
        parse_branches,
        plan_tree,
    )

    branches = parse_branches(options.fanout_tree)
    if options.rsh is not None or options.transport == "slurm":
        raise ConflictingOptions("--fanout-tree needs SSH: hosts connect to each other by ssh")
    if isinstance(options, KeepOptions) and options.keep:
        raise ConflictingOptions("--fanout-tree and --keep exclude each other")
    from dispatcher.api.transports import is_local

    remote = tuple(host for host in hosts if not is_local(host))
    return Fanout(
        remote, plan_tree(len(remote), branches), options.ssh_config, options.agent_python, run_id
    )


#: batches that a dry run names one by one
MOST_BATCHES = 10


def _rolling_lines(limits: ExecLimits | None, names: Sequence[str]) -> list[str]:
    """The steps in which hosts would be served, and the limits that would end that, as text."""
    if limits is None:
        return []
    lines, begun, total = [], 0, len(names)
    batches = limits.batches(total)
    if len(batches) > 1:
        for number, size in enumerate(batches[:MOST_BATCHES], 1):
            hosts = fold(names[begun : begun + size])
            begun += size
            lines.append(f"batch {number} of {len(batches)}: {hosts} ({size})")
        if begun < total:
            lines.append(
                f"and so on: {plural(len(batches) - MOST_BATCHES, 'batch', 'batches')} more"
            )
    elif limits.serial is not None:
        most = limits.at_once(total)
        which = f"at most {most} of {total}" if most < total else f"all {plural(total, 'host')}"
        lines.append(f"on {which} at a time (--serial {limits.serial})")
    if limits.delay:
        lines.append(f"{limits.delay:g} s after each batch (--delay)")
    if canaries := limits.canaries(total):
        first = "batch 1" if canaries == 1 else f"one of batches 1-{canaries}"
        which = "one" if limits.max_fail is None else first
        lines.append(f"no more batches once all hosts of {which} failed (--serial)")
    if (failed := limits.most_failures(total)) is not None:
        lines.append(f"no more hosts once {failed} failed (--max-fail)")
    return lines


def show_only(
    options: Options,
    command: str,
    deeds: Iterable[tuple[Host, str]],
    tree: Fanout | None = None,
    limits: ExecLimits | None = None,
) -> bool:
    """Whether this is a dry run; then print what ``command`` would do on each host.

    limits: how many hosts at once, for a fan-out command.
    """
    if not getattr(options, "dry_run", False):
        return False
    deeds = list(deeds)
    if getattr(options, "as_json", False):
        shown: formats.DryRun = {
            "schema": "dry-run/1",
            "command": command,
            "hosts": [
                {"host": host.name, "user": host.user, "port": host.port, "does": does}
                for host, does in deeds
            ],
            "parents": {} if tree is None else tree.parents(),
        }
        if limits is not None:
            shown["batches"] = list(limits.batches(len(deeds)))
            shown["at_once"] = limits.at_once(len(deeds))
            shown["delay"] = limits.delay
            shown["max_fail"] = limits.most_failures(len(deeds))
        print_json(shown)
        return True
    groups: dict[str, list[str]] = {}
    for host, does in deeds:
        groups.setdefault(does, []).append(host.name)
    for does, names in groups.items():
        print(f"{fold(names)} ({len(names)}): {sanitize_text(does)}")
    for line in tree.lines() if tree is not None else ():
        print(line)
    for line in _rolling_lines(limits, [host.name for host, _ in deeds]):
        print(line)
    say("note: a dry run: no host was contacted")
    return True


class LoginTransports(transports.TransportPool):
    """Transports by host, closed at the end of the context. Raises: UsageError.

    ask: asks for a secret, by default at our terminal. keep: the next command uses the
    connections again. alone: there is one host. passwords: those of an earlier pool. A run
    gives ``run_id`` and ``folders`` for its containers.
    """

    def __init__(
        self,
        options: LoginOptions,
        ask: Ask | None = None,
        *,
        keep: bool = False,
        tree: Fanout | None = None,
        say: Callable[[str], None] = say,
        alone: bool = False,
        passwords: Passwords | None = None,
        run_id: str | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        from dispatcher.output.terminal.asking import Asking

        assert not options.dry_run, "a dry run contacts no host"
        check_keep(options)
        self._asking = Asking()
        container = None
        if isinstance(options, ContainerOptions) and options.has_any:
            from dispatcher.cli.options.container_options import container_of

            container = container_of(options, run_id, folders)
        # a limit that was typed is for login and start as well
        reach = getattr(options, "connect_timeout", None) or 10.0
        super().__init__(
            login_ways(options), ask or self._asking.ask, alive(options),
            alone=alone, passwords=passwords, reach=reach,
            container=container,
        )  # fmt: skip
        self._options = options
        self._keep = keep
        self._tree = tree
        self._say = say

    def outside_for(self, host: Host) -> Transport:
        direct = super().outside_for(host)
        if self._tree is None or direct.name == "local":
            return direct
        if "tree" not in self._made:
            self._made["tree"] = self._tree.transport(direct, self._say)
        return self._made["tree"]

    def __exit__(self, *_: object) -> None:
        self._asking.close()  # cancel open prompts
        super().__exit__()

    def in_process(self, *, keep: bool = False) -> Transport:
        """A transport over kept connections where that may be, else over our own."""

        def direct() -> Transport:
            return super(LoginTransports, self).in_process(keep=keep or self._keep)

        options = self._options
        if not isinstance(options, KeepOptions):
            return direct()
        from dispatcher.transport.pool import daemon_socket

        seconds = keep_seconds(options)
        if seconds is None and not daemon_socket.seems_up():
            return direct()
        from dispatcher.transport.pool.pool_transport import PoolTransport

        if seconds is not None:
            daemon_socket.dial_or_start().close()
        return PoolTransport(
            direct, keep=seconds, config=options.ssh_config, host_keys=options.host_keys,
            alive=alive(options), passwords=self._passwords, say=self._say, reach=self._reach,
        )  # fmt: skip
