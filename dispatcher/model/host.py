"""``Host``: one place where ranks may run, with the user's settings for it, GPUs too; only data.

``gpus=`` takes ``0,1``, ``4-7``, and names like ``GPU-...`` and ``MIG-...``. They go to
``CUDA_VISIBLE_DEVICES`` as they are. Whether such a GPU exists is for the host to say.
"""

from __future__ import annotations

import re

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import BadName, quoted


@value
class Host(Value):
    """A host as the user named it.

    slots: ranks it has room for; None if unset (then one per GPU). max_slots: the most it
    takes even when over-subscribed. user, port, python: None means the run's own. env: names and
    values for ranks on this host only. gpus: CUDA's names for the slots' devices, in slot
    order; None if unset. granted: devices that a batch system granted, by its own numbers.
    spare: waits until another host is lost. origin: where it was named, ``hostfile:3`` or ``-H``.
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
        """The name and the port; two mentions with both equal are the same place."""
        return self.name, self.port


@value
class Hostlist(Value):
    """Hosts in written order, each place once, never none; notices are for the user to read."""

    hosts: tuple[Host, ...]
    notices: tuple[str, ...] = ()


#: names that mean this machine; reached without SSH unless the user says how
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_GPU = re.compile(r"(?:[0-9]{1,4}|(?:GPU|MIG)-[A-Za-z0-9][A-Za-z0-9/-]{0,99})\Z")
#: as CUDA takes them, a unique beginning is enough
_NAME = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9/-]{1,99}\Z", re.ASCII)
_GPU_RANGE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})\Z")


def parse_gpus(value: str, most: int) -> tuple[str, ...]:
    """GPU names in the order given: numbers in plain decimal, or UUIDs unchanged.

    Raises: BadName for a word that is not a GPU, a GPU named twice, numbers mixed with
    names (CUDA takes only one kind), or more than ``most``.
    """
    gpus: list[str] = []
    for name in value.split(","):
        span = _GPU_RANGE.match(name)
        if span and int(span[1]) <= int(span[2]):
            gpus += [str(number) for number in range(int(span[1]), int(span[2]) + 1)]
        elif _GPU.match(name) and name.isascii():
            gpus.append(str(int(name)) if name.isdigit() else name)
        else:
            raise BadName(
                f"gpus: not a GPU: {quoted(name)}",
                0,
                "write numbers (0,1 or 0-3), or names as nvidia-smi -L shows them",
            )
    if len(set(gpus)) < len(gpus):
        raise BadName(f"gpus: a GPU twice: {quoted(value)}")
    if len({gpu.isdigit() for gpu in gpus}) > 1:
        raise BadName("gpus: numbers and names do not mix")
    if len(gpus) > most:
        raise BadName(f"gpus: {len(gpus)} of them (at most {most})")
    return tuple(gpus)


def visible(text: str, count: int) -> tuple[str, ...]:
    """The devices of ``count`` that ``CUDA_VISIBLE_DEVICES=text`` leaves, in its order.

    As CUDA reads it: up to the first word that is not a device (``-1``, and batch systems'
    words for none), and none at all if one is named twice.
    """
    found: list[str] = []
    for word in map(str.strip, text.split(",") if count else ()):
        if word.isascii() and word.isdigit() and len(word) < 5 and int(word) < count:
            found.append(str(int(word)))
        elif _NAME.match(word):
            found.append(word)
        else:
            break
    return tuple(found) if len(set(found)) == len(found) else ()
