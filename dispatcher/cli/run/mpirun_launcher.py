"""``--launcher``: who starts the ranks, dispatch or an ``mpirun`` of this machine.

mpirun reaches hosts by a script that this writes, for as long as it runs: the command of
``--rsh`` or ``--transport slurm``, else the system's ssh with the options that concern it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dispatcher.cli.options.host_options import ways
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import ConflictingOptions, MpirunCannot
from dispatcher.model.host import Host
from dispatcher.model.names import plural
from dispatcher.model.paths import create, write_all
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.node_launchers import LAUNCHERS, check_even
from dispatcher.transport.base import Transport

if TYPE_CHECKING:
    from dispatcher.plan.job.mpirun_plan import Launcher

#: what is no mpirun: dispatch itself, and what it starts once a host
OURS = ("dispatch", *LAUNCHERS)
#: seconds to say a version in
_ANSWER = 20.0


class MpirunLauncher:
    """plan: what dispatch itself carries out. hosts: those that are left to another launcher.

    notes: what the user should know of that. As a context: the script is there for so long.
    Raises: UsageError.
    """

    def __init__(self, plan: JobPlan, options: RunOptions) -> None:
        self.plan = plan
        self.hosts: tuple[Host, ...] = ()
        self.notes: list[str] = []
        self._script: tuple[Path, str] | None = None
        if options.launcher in OURS:
            return
        from dispatcher.model.hostset import fold
        from dispatcher.plan.job import mpirun_plan

        launcher = _checked(plan, options)
        self.hosts = tuple(node.host for node in plan.nodes)
        path = _folder() / f"rsh-{plan.run_id}"
        self._script = path, mpirun_plan.agent_script(self.hosts, _argv_of(options))
        words = mpirun_plan.words(
            plan, launcher, str(path), labels=options.label == "rank", root=os.geteuid() == 0
        )
        self.plan = mpirun_plan.delegated(plan, words)
        where = fold(host.name for host in self.hosts)
        is_left = "is" if plan.world_size == 1 else "are"
        self.notes.append(
            f"note: {plural(plan.world_size, 'rank')} on {where} {is_left} left to "
            f"{launcher.program} ({launcher.version}): rank 0 here is mpirun itself"
        )

    def way(self, transport_for: Callable[[Host], Transport]) -> Callable[[Host], Transport]:
        """``transport_for``, but for mpirun itself: it is started here."""
        if not self.hosts:
            return transport_for
        from dispatcher.transport.process.command import LocalTransport

        here, local = self.plan.nodes[0].host, LocalTransport()
        return lambda host: local if host is here else transport_for(host)

    def __enter__(self) -> MpirunLauncher:
        if self._script is not None:
            path, text = self._script
            try:
                write_all(fd := create(path), text.encode("utf-8", "surrogateescape"))
                os.fchmod(fd, 0o700)
                os.close(fd)
            except OSError as error:
                why = (error.strerror or "").lower()
                raise MpirunCannot(f"--launcher: {path.parent}: {why}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._script is not None:
            self._script[0].unlink(missing_ok=True)


def check(plan: JobPlan, options: RunOptions) -> None:
    """Nothing, if the launcher of ``options`` is there and can do it. Raises: UsageError."""
    if options.launcher in LAUNCHERS:
        check_even(options.launcher, plan.nodes)
    if options.launcher not in OURS:
        _checked(plan, options)


def _checked(plan: JobPlan, options: RunOptions) -> Launcher:
    from dispatcher.plan.job import mpirun_plan

    for option, given in (
        ("--only-ranks", options.only_ranks),
        ("--rank0", options.rank0),
        ("--fold", options.fold),
        ("--fold-numbers", options.fold_numbers),
        ("--watch", options.watch),
    ):
        if given:
            raise MpirunCannot(
                f"{option}: dispatch does not know whose line is whose with --launcher"
            )
    if options.label == "host":
        raise MpirunCannot("--label host: mpirun labels by rank", hint="--label none")
    if options.fanout_tree is not None:
        raise ConflictingOptions("--fanout-tree and --launcher exclude each other")
    mpirun_plan.check(plan)
    return _found(options.launcher)


def _found(name: str) -> Launcher:
    """The launcher that the user means. Raises: UsageError if there is none, or of unknown make."""
    from dispatcher.plan.job.mpirun_plan import Launcher, family

    program = shutil.which(name)
    if program is None:
        raise MpirunCannot(f"--launcher {name}: not found on this machine")
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_ANSWER, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpirunCannot(f"--launcher {name}: {error}") from None
    text = done.stdout.decode("utf-8", "replace")
    kind = family(text)
    if kind is None:
        raise MpirunCannot(f"--launcher {name}: neither Open MPI's, MPICH's nor Intel MPI's mpirun")
    number = re.search(r"[0-9]+(\.[0-9]+)+[^\s,]*", text)
    who = "Hydra" if kind == "hydra" else "Open MPI"
    return Launcher(os.path.abspath(program), kind, f"{who} {number[0]}" if number else who)


def _argv_of(options: RunOptions) -> Any:
    """What reaches one host, as words; see ``mpirun.agent_script``."""
    template = ways(options).template()
    if template is not None:
        from dispatcher.transport.process.command import CommandTransport

        CommandTransport(template).close()  # judges it

    def by_command(host: Host, name: str, command: str) -> Sequence[str]:
        fields = {"host": name, "user": host.user, "port": host.port, "command": command}
        return [word.format_map(fields) for word in template or ()]

    def by_ssh(host: Host, name: str, command: str) -> Sequence[str]:
        from dispatcher.transport.base import Target
        from dispatcher.transport.process.openssh import SshTransport

        keys, seconds = options.host_keys == "accept-new", options.connect_timeout or 10.0
        ssh = SshTransport(config=options.ssh_config, accept_new=keys)
        try:
            return ssh.argv(Target(name, host.user, host.port), command, seconds)
        finally:
            ssh.close()

    return by_command if template is not None else by_ssh


def _folder() -> Path:
    """Where the script lies: ours alone, and seldom mounted noexec. Raises: UsageError."""
    from dispatcher.model.paths import private, state_folder

    folder = private(state_folder())
    if any(char.isspace() or char in ":,;" for char in str(folder)):  # mpirun takes it apart
        raise MpirunCannot(
            f"--launcher: {folder}: mpirun cannot be told of such a path",
            hint="XDG_STATE_HOME=/a/plain/path",
        )
    return folder
