"""The user's ssh-agent: one connection for the whole run, one signature at a time.

A thousand clients with a connection each make agents drop some; here all hosts
share one, under a lock. Hosts are offered the public halves of the agent's keys;
the agent signs, whatever the key is (security keys too).
"""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass

from dispatcher.transport.ssh_auth.known_hosts import CERT, Reader, kind_of, ssh_string

_REQUEST_IDENTITIES, _IDENTITIES = 11, 12
_SIGN_REQUEST, _SIGN_RESPONSE = 13, 14
_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
_MAX_REPLY = 1 << 20


class AgentError(Exception):
    """The agent does not answer or will not sign."""


@dataclass(frozen=True)
class AgentKey:
    """A key that the agent holds; has the attributes and methods that paramiko calls on a key.

    signer: the key that the agent holds, where ``blob`` is our certificate for it.
    """

    agent: SshAgent
    blob: bytes
    comment: str
    signer: bytes = b""

    public_blob = None  # paramiko: no certificate beside the key
    #: it signs only where the host takes it: signing may ask the user to touch or to confirm
    asks_first = True

    def get_name(self) -> str:
        """The key's type, ``ssh-ed25519``."""
        return kind_of(self.blob)

    def asbytes(self) -> bytes:
        """Its public half, as SSH sends it."""
        return self.blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        """The signature in SSH form. Raises: AgentError."""
        return self.agent.sign(self.signer or self.blob, data, (algorithm or "").removesuffix(CERT))


class SshAgent:
    """A connection to the agent at a socket path, made when first needed."""

    def __init__(self, path: str, timeout: float = 60.0) -> None:
        self._path = path
        self._timeout = timeout
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._keys: tuple[AgentKey, ...] | None = None
        self.silent = False  # it was asked for its keys, and did not answer
        self._silent_on: set[bytes] = set()  # keys that it is not asked to sign with again

    def keys(self) -> tuple[AgentKey, ...]:
        """The keys it holds, asked for once; empty when no agent answers."""
        with self._lock:
            if self._keys is None:
                try:
                    self._keys = self._list()
                except (AgentError, OSError, ValueError):
                    self._keys, self.silent = (), True
            return self._keys

    def sign(self, blob: bytes, data: bytes, algorithm: str) -> bytes:
        """A signature over ``data`` by the key ``blob``.

        Raises: AgentError when the agent refuses, is gone or does not answer.
        """
        body = ssh_string(blob) + ssh_string(data) + struct.pack(">I", _FLAGS.get(algorithm, 0))
        with self._lock:
            try:
                if blob in self._silent_on:
                    raise TimeoutError("timed out before")
                kind, reply = self._ask(_SIGN_REQUEST, body)
            except OSError as error:
                self._drop()
                if isinstance(error, TimeoutError):
                    self._silent_on.add(blob)
                raise AgentError(f"ssh-agent: {error}") from None
        if kind != _SIGN_RESPONSE:
            raise AgentError("ssh-agent refuses to sign")
        try:
            return Reader(reply).string()
        except ValueError as error:
            raise AgentError(f"ssh-agent: answer {error}") from None

    def close(self) -> None:
        """Close the connection; idempotent."""
        with self._lock:
            self._drop()

    def _list(self) -> tuple[AgentKey, ...]:
        kind, reply = self._ask(_REQUEST_IDENTITIES, b"")
        if kind != _IDENTITIES:
            raise AgentError("ssh-agent: unexpected answer")
        reader = Reader(reply)
        return tuple(
            AgentKey(self, reader.string(), reader.string().decode("utf-8", "replace"))
            for _ in range(reader.number(4))
        )

    def _ask(self, kind: int, body: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(self._timeout)
            try:
                link.connect(self._path)
            except OSError:
                link.close()
                raise
            self._socket = link
        self._socket.sendall(struct.pack(">IB", len(body) + 1, kind) + body)
        size = int.from_bytes(self._receive(4), "big")
        if not 0 < size <= _MAX_REPLY:
            raise ConnectionError("answer of a bad size")
        reply = self._receive(size)
        return reply[0], reply[1:]

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the agent closed the connection")
            data += more
        return data

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
