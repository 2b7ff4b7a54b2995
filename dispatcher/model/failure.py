"""Why a host cannot be used, and how a command ended: values, not exceptions."""

from __future__ import annotations

import enum

from dispatcher.model.frozen import Value, value

#: what helps where a network, or this machine, is away for longer than a run waits
AWAY = "--heartbeat 20 --lease 600  # on a shaky network or a laptop; or --detach on the login node"


class Kind(str, enum.Enum):
    """Why a host could not be used; the text that users see in the table of failed hosts."""

    DNS = "name not found"
    UNREACHABLE = "unreachable"
    REFUSED = "connection refused"
    TIMEOUT = "timeout"
    DROPPED = "connection dropped"
    AUTH = "authentication failed"
    SUDO = "sudo refused"
    HOST_KEY_UNKNOWN = "host key unknown"
    HOST_KEY_CHANGED = "host key changed"
    HOST_KEY_REVOKED = "host key revoked"
    CONFIG = "bad ssh configuration"
    NO_PYTHON = "no usable python"
    BOOT = "agent did not start"
    START = "command did not start"
    CONTAINER = "container did not start"
    CHECK = "check failed"
    IN_USE = "host in use"
    PROTOCOL = "protocol error"
    LOST = "host lost"

    @property
    def code(self) -> str:
        """Of its message, see ``model.messages``: ``host-key-unknown``."""
        return self.value.replace(" ", "-")


@value
class Failure(Value):
    """A host that could not be reached or used.

    why: lower-case text without a full stop; may quote the host's own words,
    already bounded in length. retryable: the same attempt may succeed soon
    (sshd's MaxStartups drops connections at random).
    """

    kind: Kind
    why: str
    hint: str | None = None
    retryable: bool = False


@value
class Ending(Value):
    """How the far side's command ended: code >= 0, or None when no status arrived."""

    code: int | None
    signal: str | None = None
