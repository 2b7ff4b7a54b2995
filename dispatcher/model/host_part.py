"""``Host``: one place ranks may run, and all the user said about it. Facts, no behaviour."""

from __future__ import annotations

from dispatcher.model.frozen import Value, value


@value
class Host(Value):
    """A host as the user named it.

    slots: ranks it has room for; None when not said (then one per GPU).
    max_slots: the most it takes even when over-subscribed. user, port, python:
    None means the run's own. env: names and values for ranks on this host only.
    gpus: CUDA's words for the devices behind the slots, in slot order; None when
    not said. granted: those that a batch system told us of, by its own numbers. spare:
    waits until another host is lost. origin: where it was named, ``hostfile:3`` or ``-H``.

    Two hosts with one name are two places only if their ports differ.
    """

    name: str
    slots: int | None = None
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    python: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    gpus: tuple[str, ...] | None = None
    granted: tuple[str, ...] | None = None
    spare: bool = False
    origin: str = "-H"

    @property
    def place(self) -> tuple[str, int | None]:
        """What makes two mentions the same place: the name and the port."""
        return self.name, self.port


@value
class Hostlist(Value):
    """Hosts in written order, each place once, never none; notices are for the user to read."""

    hosts: tuple[Host, ...]
    notices: tuple[str, ...] = ()
