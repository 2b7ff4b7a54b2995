"""``CommandTransport``: any program that gives a byte stream to a host.

``srun``, ``kubectl exec``, ``docker exec``, ``lxc exec``, a site's own wrapper:
an argv template with ``{host}``, ``{user}``, ``{port}`` and ``{command}``; without
``{command}`` the command follows as one last argument, as with ``ssh``. No shell
takes part on this side: a host name cannot become more than one argument.
"""

from __future__ import annotations

import string
import time
from collections.abc import Sequence

from dispatcher.model.errors import UsageError
from dispatcher.transport.base import Failure, Kind, Link, Target, Transport, Window
from dispatcher.transport.host_names import bad_target
from dispatcher.transport.process.child import start
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
        values = {
            "host": target.host,
            "user": target.user,
            "port": None if target.port is None else str(target.port),
            "command": command,
        }
        for field in sorted(self._fields):
            if values[field] is None:
                return Failure(
                    Kind.CONFIG, f"the transport command wants {{{field}}}, which is not given"
                )
        for field, said in (("user", target.user), ("port", target.port)):
            if said is not None and field not in self._fields:
                return Failure(
                    Kind.CONFIG,
                    f"{field} {said} is asked for, and the transport command has no {{{field}}}",
                )
        return start([word.format_map(values) for word in self._template], self._pump)

    def close(self) -> None:
        self._pump.close()


def _fields_of(word: str) -> list[str]:
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
