"""Whether the machine at the other end of our SSH connection answers: the kernel knows.

``SSH_CONNECTION`` names the connection, and the kernel reports when it was last acknowledged
(sock_diag(7)). A launcher that is stopped still acknowledges; a machine without power does not.
"""

from __future__ import annotations

import _socket
import os
from _struct import Struct, pack

#: heartbeats for which nothing that we send must be acknowledged, the least of it in seconds, and
#: seconds between two looks
DOUBT, LEAST_DOUBT, LOOK = 2.0, 4.0, 1.0

_NETLINK, _SOCK_DIAG, _BY_FAMILY, _REQUEST, _TCP, _INFO = 16, 4, 20, 1, 6, 2
_ANY = 0xFFFFFFFF
_HEAD, _ATTRIBUTE, _LAST_ACK = Struct("=IHHII"), Struct("=HH"), Struct("=I")
#: bytes before the attributes of an answer; of tcp_info, the place of the milliseconds
_ANSWER, _AT = _HEAD.size + 72, 56


class SshPeer:
    """The other end of the connection that this process was started over.

    Raises: OSError, ValueError, KeyError if it cannot be found.
    """

    def __init__(self) -> None:
        theirs, their_port, ours, our_port = os.environ["SSH_CONNECTION"].split()
        family = _socket.AF_INET6 if ":" in theirs else _socket.AF_INET
        us, them = (_socket.inet_pton(family, text).ljust(16, b"\0") for text in (ours, theirs))
        ports = pack("!HH", int(our_port), int(their_port))
        what = pack("=BBBBI", family, _TCP, 1 << (_INFO - 1), 0, _ANY)
        body = what + ports + us + them + pack("=III", 0, _ANY, _ANY)
        head = _HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
        self._question = head + body
        self.silence()

    def silence(self) -> float:
        """Seconds since it acknowledged anything. Raises: OSError, ValueError."""
        kernel = _socket.socket(_NETLINK, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, _SOCK_DIAG)
        try:
            kernel.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, pack("@ll", 1, 0))
            kernel.sendto(self._question, (0, 0))
            answer = kernel.recv(4096)
        finally:
            kernel.close()
        _, kind, *_ = _HEAD.unpack_from(answer)
        at = _ANSWER
        while kind == _BY_FAMILY and at + _ATTRIBUTE.size <= len(answer):
            size, name = _ATTRIBUTE.unpack_from(answer, at)
            if name == _INFO and size >= _ATTRIBUTE.size + _AT + _LAST_ACK.size:
                (ago,) = _LAST_ACK.unpack_from(answer, at + _ATTRIBUTE.size + _AT)
                return float(ago) / 1000
            at += (max(size, _ATTRIBUTE.size) + 3) & ~3
        raise ValueError("the kernel does not know this connection")


class SilenceWatch:
    """Finds out whether the peer still answers: call ``look`` every ``LOOK`` seconds.

    The peer should acknowledge the data that is sent between two calls.
    """

    def __init__(self, peer: SshPeer, now: float, heartbeat: float) -> None:
        self._peer = peer
        self._began = now
        self._doubt = max(LEAST_DOUBT, DOUBT * heartbeat)

    def look(self, now: float) -> bool:
        """Whether nothing was acknowledged since the question was put, for long enough."""
        waited = now - self._began
        try:
            return waited >= self._doubt and self._peer.silence() >= waited
        except (OSError, ValueError):
            return False  # it has ended, which others see
