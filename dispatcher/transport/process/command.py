"""Commands that give a byte stream: any program (``--rsh``), and this machine.

A template is an argv with ``{host}``, ``{user}``, ``{port}`` and ``{command}``. dispatch starts it
without a shell, so a host name cannot become more than one argument. ``ssh`` and every launch agent
made for ``mpirun`` give their last arguments to a shell on the host; ``kubectl exec`` and its kind
start a program from them as they are. ``template`` recognises known programs by name.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence

from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link, Target, Transport, Window, bad_target
from dispatcher.transport.process.child import on_terminal, start
from dispatcher.transport.process.pump import Pump

_FIELDS = ("host", "user", "port", "command")


class CommandTransport(Transport):
    """Runs the template's program, once a host.

    Raises: UsageError when the template is empty or names an unknown field.
    """

    name = "command"

    def __init__(self, template: Sequence[str], name: str = "command") -> None:
        if not template:
            raise UsageError("transport command: the template is empty")
        self.name = name
        self._template = tuple(template)
        self._fields = {field for word in self._template for field in _fields_of(word)}
        if "command" not in self._fields:
            self._template += ("{command}",)
        self._pump = Pump("transport:command:read")

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        if window is not None:
            return Failure(Kind.CONFIG, "the transport command gives no terminal")
        if time.monotonic() >= deadline:
            return Failure(Kind.TIMEOUT, "no time left to start the command")
        problem = bad_target(target)
        if problem is not None:
            return problem
        values = _values(target, command)
        for field in sorted(self._fields):
            if values[field] is None:
                why = f"the transport command wants {{{field}}}, which is not given"
                return Failure(Kind.CONFIG, why)
        for field, said in (("user", target.user), ("port", target.port)):
            if said is not None and field not in self._fields:
                why = f"{field} {said} is set, and the transport command has no {{{field}}}"
                return Failure(Kind.CONFIG, why)
        return start([word.format_map(values) for word in self._template], self._pump)

    def by_hand(self, target: Target, command: str) -> str:
        values = _values(target, command)
        return shlex.join(word.format_map(values) for word in self._template)

    def close(self) -> None:
        self._pump.close()


def _values(target: Target, command: str) -> dict[str, str | None]:
    port = None if target.port is None else str(target.port)
    return {"host": target.host, "user": target.user, "port": port, "command": command}


def _fields_of(word: str) -> list[str]:
    import string  # a run on this machine has no template

    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        raise UsageError(f"transport command: {word!r}: {error}") from None
    fields = [name for _, name, _, _ in parts if name is not None]
    for field in fields:
        if field not in _FIELDS:
            known = ", ".join("{" + name + "}" for name in _FIELDS)
            raise UsageError(f"transport command: unknown field {{{field}}}; known: {known}")
    return fields


class LocalTransport(Transport):
    """Runs ``/bin/sh -c command`` in its own session."""

    name = "local"

    def __init__(self) -> None:
        self._pump = Pump("transport:local:read")

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        if time.monotonic() >= deadline:
            return Failure(Kind.TIMEOUT, "no time left to start the command")
        argv = ("/bin/sh", "-c", command)
        pump = self._pump
        opened = start(argv, pump) if window is None else on_terminal(argv, pump, window)
        if isinstance(opened, Link):
            opened.address = "127.0.0.1"
        return opened

    def by_hand(self, target: Target, command: str) -> str:
        return command

    def close(self) -> None:
        self._pump.close()


#: programs that start what they are given without a shell
_EXEC = frozenset({
    "apptainer", "chroot", "crictl", "docker", "incus", "ip", "kubectl", "lxc", "lxc-attach",
    "machinectl", "microk8s", "nerdctl", "nsenter", "oc", "podman", "singularity", "srun",
    "systemd-run",
})  # fmt: skip

#: programs that start another; that one decides how the arguments are understood
_BEFORE = frozenset({"doas", "env", "sudo"})

#: One step a host beside whatever else runs in the job; the agent lives in it, and
#: Slurm ends all of the step when srun's connection or the job ends. srun(1).
SRUN = (
    "srun", "--nodes=1", "--ntasks=1", "--nodelist={host}", "--overlap", "--cpu-bind=none",
    "--mpi=none", "--unbuffered", "--quiet", "--job-name=dispatch", "sh", "-c", "{command}",
)  # fmt: skip


def template(text: str, flag: str = "--rsh") -> tuple[str, ...]:
    """The argv template of a remote-shell command as a user writes it.

    Without ``{host}`` the host comes after the words, as with ``mpirun``.

    Raises: UsageError when there are no words or a quote is left open.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {str(error).lower()}: {text!r}") from None
    if not words:
        raise UsageError(f"{flag}: an empty command", hint=f"{flag} 'kubectl exec -i {{host}} --'")
    if not any("{host}" in word for word in words):
        words.append("{host}")
    if any("{command}" in word for word in words):
        return tuple(words)
    names = [os.path.basename(word) for word in words]
    if names[0] not in _BEFORE:
        del names[1:]
    if not _EXEC.isdisjoint(names) or words[-1] == "--":
        return (*words, "sh", "-c", "{command}")
    return (*words, "{command}")
