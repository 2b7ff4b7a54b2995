"""Whether a host's key is the one we know: ``HostKeyCheck``.

Before the key exchange it says which key types to ask the server for (a type we
know, so that a host with three keys shows the one on file); during the exchange
it judges the key that came, before anything of ours is sent under it.

Policy ``strict``: only keys on file. ``accept-new``: a host without any key on
file is trusted at first sight and written down; a *changed* key is refused all
the same. There is no policy that accepts everything.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from dispatcher.transport.base import Failure, Kind
from dispatcher.transport.host_config import HostConfig
from dispatcher.transport.known_hosts import KeysOf, KnownHosts, fingerprint, lookup_name

_CERT = "-cert-v01@openssh.com"
_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class HostKeyCheck:
    """The judgement of one host's key.

    verify_certificate: called with (certificate, authority keys, host name);
    returns why the certificate is not good, or ``None``.
    """

    def __init__(
        self,
        config: HostConfig,
        index: KnownHosts,
        policy: str,
        verify_certificate: Callable[[bytes, tuple[bytes, ...], str], str | None],
    ) -> None:
        self._config = config
        self._index = index
        self._policy = policy
        self._verify_certificate = verify_certificate
        self._name = lookup_name(config.host, config.port, config.known_as)
        self._known = index.keys_of(self._name)
        self._portless: KeysOf | None = None
        if not self._known and config.known_as is None and config.port != 22:
            # A key on file for the bare name serves every port, as in ssh.
            self._portless = index.keys_of(config.host)

    def wanted(self, ours: tuple[str, ...]) -> tuple[str, ...]:
        """Our host key algorithms, in order, narrowed to what can be checked.

        With keys on file: only their types (a certificate where an authority is
        on file). Without: all plain ones, for the fingerprint in the message.
        """
        known = self._known or self._portless or KeysOf()
        kinds = {entry.kind for entry in known.keys}
        plain = tuple(name for name in ours if _kind_of(name) in kinds)
        certified = tuple(name + _CERT for name in ours) if known.authorities else ()
        return (certified + plain) or ours

    def judge(self, blob: bytes, kind: str) -> Failure | None:
        """Why the key must not be trusted, or ``None``.

        kind: the type inside the key, such as ``ssh-ed25519`` or its ``-cert`` form.
        """
        known = self._known
        if any(entry.blob == blob for entry in known.revoked):
            return self._revoked(blob)
        if kind.endswith(_CERT):
            return self._judge_certificate(blob)
        if any(entry.blob == blob for entry in known.keys):
            return None
        if self._portless is not None:
            if any(entry.blob == blob for entry in self._portless.revoked):
                return self._revoked(blob)
            if any(entry.blob == blob for entry in self._portless.keys):
                return None
        if known.keys:
            return self._changed(blob, kind)
        if self._policy == "accept-new" and not known:
            return self._learn(blob, kind)
        return self._unknown(blob, kind)

    def _judge_certificate(self, blob: bytes) -> Failure | None:
        known = self._known or self._portless or KeysOf()
        revoked = {entry.blob for entry in known.revoked}
        authorities = tuple(entry.blob for entry in known.authorities if entry.blob not in revoked)
        why = self._verify_certificate(
            blob, authorities, self._config.known_as or self._config.host
        )
        if why is None:
            return None
        return Failure(
            Kind.HOST_KEY_UNKNOWN,
            f"the host's certificate is not accepted: {why}",
            hint=f"ssh -v {shlex.quote(self._config.name)} true",
        )

    def _learn(self, blob: bytes, kind: str) -> Failure | None:
        if not self._config.user_known_hosts:
            return self._unknown(blob, kind)
        path = self._config.user_known_hosts[0]
        try:
            self._index.learn(path, self._name, kind, blob, hashed=self._config.hash_known_hosts)
        except OSError as error:
            return Failure(
                Kind.HOST_KEY_UNKNOWN,
                f"new {kind} key {fingerprint(blob)} could not be added to {path}: "
                f"{error.strerror}",
            )
        self._known = self._index.keys_of(self._name)
        if not any(entry.blob == blob for entry in self._known.keys):
            return self._changed(blob, kind)  # two machines answer to one name
        return None

    def _unknown(self, blob: bytes, kind: str) -> Failure:
        port = "" if self._config.port == 22 else f"-p {self._config.port} "
        file = (self._config.user_known_hosts or ("~/.ssh/known_hosts",))[0]
        return Failure(
            Kind.HOST_KEY_UNKNOWN,
            f"no key of {self._name} is on file; it shows {kind} {fingerprint(blob)}",
            hint=f"ssh-keyscan {port}{self._config.host} >> {shlex.quote(file)}"
            "  # after checking the fingerprint",
        )

    def _changed(self, blob: bytes, kind: str) -> Failure:
        on_file = self._known.keys[0]
        file = on_file.place.rpartition(":")[0]
        return Failure(
            Kind.HOST_KEY_CHANGED,
            f"it shows {kind} {fingerprint(blob)}, but {on_file.place} "
            f"has {on_file.kind} {fingerprint(on_file.blob)}",
            hint=f"ssh-keygen -R {shlex.quote(self._name)} -f {shlex.quote(file)}"
            "  # if you know why the key changed",
        )

    def _revoked(self, blob: bytes) -> Failure:
        return Failure(
            Kind.HOST_KEY_REVOKED,
            f"the key {fingerprint(blob)} it shows is marked @revoked",
            hint="give the host a new key: this one is not to be trusted",
        )


def _kind_of(algorithm: str) -> str:
    return "ssh-rsa" if algorithm in _RSA else algorithm
