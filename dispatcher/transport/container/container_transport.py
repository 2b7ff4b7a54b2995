"""A transport that reaches hosts by another one, and runs each command in a container."""

from __future__ import annotations

from dispatcher.bootstrap.shell import COMMAND
from dispatcher.model.failure import Failure
from dispatcher.transport.base import Link, Target, Transport, Window
from dispatcher.transport.container.engines import Container, explained


class ContainerTransport(Transport):
    """``inner``, with the engine's words around each command. ``inner``'s owner closes it."""

    name = "container"

    def __init__(self, inner: Transport, container: Container) -> None:
        self._inner = inner
        self._container = container

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        terminal = window is not None
        watches = terminal or command == COMMAND
        wrapped = self._container.command(command, terminal=terminal, parent=watches)
        return self._inner.open(target, wrapped, deadline, window)

    def by_hand(self, target: Target, command: str) -> str:
        return f"dispatch exec -w {target.host} --container-image {self._container.image} {command}"

    def explain(self, target: Target, failure: Failure) -> Failure:
        return explained(failure, self._container, target.host)
