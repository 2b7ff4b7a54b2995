"""Which transport reaches which host: as the flags say it, over kept connections where it may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dispatcher.api import transports
from dispatcher.api.transports import Ask, Ways
from dispatcher.cli.entry import say
from dispatcher.cli.options import keeping
from dispatcher.model.host_part import Host
from dispatcher.transport.base import Transport

if TYPE_CHECKING:
    from dispatcher.cli.options.connect_options import Fanout


class Reach(transports.Reach):
    """Transports by host; closes them all at the end of the context.

    ask: asks for a secret; by default at our terminal. keep: connections are used
    again by the next command. tree: who is reached through whom, if not all from here;
    say: shows a line about it. Raises: UsageError.
    """

    def __init__(
        self,
        flags: Mapping[str, Any],
        ask: Ask | None = None,
        *,
        keep: bool = False,
        tree: Fanout | None = None,
        say: Callable[[str], None] = say,
    ) -> None:
        keeping.judge(flags)
        super().__init__(ways(flags), ask or ask_here, keeping.alive(flags))
        self._flags = flags
        self._keep = keep
        self._tree = tree
        self._say = say
        self._by_tree: Transport | None = None

    def transport_for(self, host: Host) -> Transport:
        direct = super().transport_for(host)
        if self._tree is None or direct.name == "local":
            return direct
        if self._by_tree is None:
            self._by_tree = self._tree.transport(self._flags, direct, self._say)
        return self._by_tree

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._by_tree is not None:
            self._by_tree.close()
        super().__exit__(kind, error, trace)

    def in_process(self, *, keep: bool = False) -> Transport:
        return keeping.transport(
            self._flags, lambda: super(Reach, self).in_process(keep=keep or self._keep)
        )


def ways(flags: Mapping[str, Any]) -> Ways:
    """What the flags say of reaching hosts. Raises: UsageError."""
    return Ways(flags["transport"], flags.get("rsh"), flags["ssh_config"], flags["host_keys"])


def judge(flags: Mapping[str, Any], hosts: Iterable[Host]) -> None:
    """Nothing, if the flags can reach ``hosts`` as these want it. Raises: UsageError."""
    transports.judge(ways(flags), hosts)


def ask_here(prompt: str) -> str | None:
    """Ask the person at the terminal for a secret; None where there is nobody to ask."""
    import getpass
    import os

    from dispatcher.output.terminal import curtain

    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        with curtain.OURS.asking():
            return getpass.getpass(prompt)
    except (OSError, EOFError):
        return None
