"""``HostKeyCheck``: whether a host's key or certificate is one that we know.

``strict``: only keys on file. ``accept-new``: a host without any key on file is trusted at first
sight; a changed key is still refused. paramiko never looks at who signed a certificate, so this
file does (OpenSSH's ``PROTOCOL.certkeys``). A bad certificate counts as a plain key.
"""

from __future__ import annotations

import shlex
import time
from hashlib import sha256

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.ssh_auth.known_hosts import (
    CERT,
    PLAIN,
    KnownHosts,
    KnownKey,
    Reader,
    authority_of,
    certified_key,
    fingerprint,
    key_algorithms,
    key_problem,
    kind_of,
    lookup_name,
    plain_key,
    rsa_bits,
    ssh_string,
)
from dispatcher.transport.ssh_config.host_config import HostConfig

#: the algorithms that an authority may sign by
SIGNATURES = (*PLAIN, "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
_HOST = 2
_FOREVER = 2**63


def certificate_problem(
    certificate: bytes,
    authorities: tuple[bytes, ...],
    host: str,
    now: float | None = None,
    signatures: tuple[str, ...] = SIGNATURES,
) -> str | None:
    """Why the certificate does not vouch for ``host``, or ``None`` when it does.

    signatures: the algorithms that an authority may sign by.
    """
    try:
        reader = Reader(certificate)
        certified_key(reader)
        reader.number(8)  # serial
        role = reader.number(4)
        reader.string()  # key id
        names = _strings(reader.string())
        after, before = reader.number(8), reader.number(8)
        options = reader.string()
        reader.string()  # extensions
        reader.string()  # reserved
        authority = reader.string()
        signed = certificate[: reader.at]
        signature = reader.string()
        algorithm = kind_of(signature)
    except ValueError as error:
        return f"it cannot be read: {error}"
    if not reader.ended:
        return "bytes follow its end"
    if role != _HOST:
        return "it is not a host certificate"
    if options:
        return "it has critical options"
    if authority not in authorities:
        return "its authority is not on file"
    if algorithm not in signatures:
        return f"its authority signs by {algorithm[:40]!r}, which is not allowed"
    # Before the names: until it is proved, whatever they say comes from a stranger.
    if not _verify(authority, signed, signature):
        return "its signature is wrong"
    if not after <= (time.time() if now is None else now) < min(before, _FOREVER):
        return "it is not valid at this time"
    # A certificate without names would vouch for every host there is. As in ssh: no wildcards.
    if host not in (name.decode("utf-8", "replace").lower() for name in names):
        return f"it is not for {host}"
    return None


def _strings(blob: bytes) -> list[bytes]:
    reader, found = Reader(blob), []
    while not reader.ended:
        found.append(reader.string())
    return found


def _verify(authority: bytes, signed: bytes, signature: bytes) -> bool:
    from paramiko import Message, PKey, SSHException
    from paramiko.pkey import UnknownKeyType

    kind = kind_of(authority)
    if kind.endswith(CERT):
        return False  # an authority is a plain key
    try:
        if kind.startswith("sk-"):
            kind, authority, signed, signature = _of_security_key(authority, signed, signature)
        key = PKey.from_type_string(kind, authority)
        return bool(key.verify_ssh_sig(signed, Message(signature)))
    except (SSHException, UnknownKeyType, ValueError):
        return False


def _of_security_key(
    key: bytes, signed: bytes, signature: bytes
) -> tuple[str, bytes, bytes, bytes]:
    """A plain key's type and blob, the data that it signed, its signature: see PROTOCOL.u2f.

    Raises: ValueError.
    """
    reader, proof = Reader(key), Reader(signature)
    name, *point = (reader.string() for _ in range(3 if "ecdsa" in kind_of(key) else 2))
    application = reader.string()
    plain = name.removeprefix(b"sk-").removesuffix(b"@openssh.com")
    other = proof.string() != name
    by_plain = ssh_string(plain) + ssh_string(proof.string())
    touched = proof.take(1 + 4)  # flags, a counter
    if other or not proof.ended:
        raise ValueError("not a signature of this type")
    hashed = sha256(application).digest() + touched + sha256(signed).digest()
    return plain.decode(), b"".join(map(ssh_string, (plain, *point))), hashed, by_plain


class HostKeyCheck:
    """Checks one host's key. policy: ``strict`` or ``accept-new``.

    address: the host's; None for a host behind a jump host or a proxy.
    """

    def __init__(
        self, config: HostConfig, index: KnownHosts, policy: str, address: str | None = None
    ) -> None:
        self._config = config
        self._index = index
        self._policy = policy
        self._name = lookup_name(config.host, config.port, config.known_as)
        self._known, self._portless = index.keys_of_host(config.host, config.port, config.known_as)
        authorities = (*self._known.authorities, *self._portless.authorities)
        self._authorities = tuple(entry.blob for entry in authorities)
        self._address = ""
        self._of_address: tuple[KnownKey, ...] = ()
        # as in ssh, many names may lead to this machine's own address
        if config.check_address and address and not address.startswith(("127.", "::1")):
            self._address = lookup_name(address, config.port)
            self._of_address = index.keys_of(self._address).keys

    def wanted_types(self, offered: tuple[str, ...]) -> tuple[str, ...]:
        """Our host key algorithms, in order, narrowed to those that can be checked.

        With keys on file: only their types. Without: all plain ones, to be learned or for the
        fingerprint in the message. Certificates go first, where an authority is on file; if
        ssh_config allows nothing else, they are treated as plain keys.
        """
        keys = self._known.keys or self._portless.keys
        known = {name for entry in keys for name in key_algorithms(entry.kind)}
        certified = tuple(n for n in offered if n.endswith(CERT)) if self._authorities else ()
        plain = tuple(name for name in offered if not name.endswith(CERT))
        return certified + (tuple(n for n in plain if n in known) or plain) or offered

    def verify(self, blob: bytes, kind: str) -> Failure | None:
        """Why the key must not be trusted, or ``None``.

        kind: the type inside the key, such as ``ssh-ed25519`` or its ``-cert`` form.
        """
        certified = kind.endswith(CERT)
        try:
            key = plain_key(blob)
            authority = authority_of(blob) if certified else key
            bits = rsa_bits(key)
        except ValueError as error:
            return self._bad_certificate(f"it cannot be read: {error}")
        if problem := key_problem(key, kind.removesuffix(CERT)):
            return Failure(Kind.HOST_KEY_UNKNOWN, f"its host key cannot be read: {problem}")
        if bits is not None and bits < self._config.rsa_bits:
            return Failure(
                Kind.HOST_KEY_UNKNOWN,
                f"its RSA key has {bits} bits, and fewer than {self._config.rsa_bits} are not "
                "allowed (RequiredRSASize)",
            )
        for entry in (*self._known.revoked, *self._portless.revoked):
            if plain_key(entry.blob) in (key, authority):
                return self._revoked(entry, certified, key)
        why = None
        if certified:
            host = self._config.known_as or self._config.host
            signatures = self._config.allowed("casignaturealgorithms", SIGNATURES)
            why = certificate_problem(blob, self._authorities, host, signatures=signatures)
            if why is None:
                return None
        elsewhere = self._of_address
        if elsewhere and not certified and not any(entry.blob == key for entry in elsewhere):
            return self._changed(blob, kind, self._address, elsewhere[0])
        if any(entry.blob == key for entry in (*self._known.keys, *self._portless.keys)):
            return None
        if self._policy == "accept-new" and not self._known.keys:
            return self._learn(key, kind.removesuffix(CERT))
        if why is not None:
            return self._bad_certificate(why)
        if self._known.keys:
            return self._changed(blob, kind, self._name, self._known.keys[0])
        return self._unknown(blob, kind)

    def _bad_certificate(self, why: str) -> Failure:
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
            # two machines answer to one name
            return self._changed(blob, kind, self._name, self._known.keys[0])
        return None

    def _unknown(self, blob: bytes, kind: str) -> Failure:
        files = self._config.user_known_hosts
        return Failure(
            Kind.HOST_KEY_UNKNOWN,
            f"no key of {self._name} is on file{self._damaged()}; "
            f"it shows {kind} {fingerprint(blob)}",
            hint=unknown_key(
                self._config.host,
                self._config.port,
                shlex.quote(files[0]) if files else "~/.ssh/known_hosts",
                choice=self._policy != "accept-new",
            ),
        )

    def _damaged(self) -> str:
        lines = dict.fromkeys((*self._known.damaged, *self._portless.damaged))
        return f" ({'; '.join(list(lines)[:3])})" if lines else ""

    def _changed(self, blob: bytes, kind: str, name: str, on_file: KnownKey) -> Failure:
        file = on_file.place.rpartition(":")[0]
        return Failure(
            Kind.HOST_KEY_CHANGED,
            f"it shows {kind} {fingerprint(blob)}, but {on_file.place} "
            f"has {on_file.kind} {fingerprint(on_file.blob)}",
            hint=f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(file)}"
            "  # if you know why the key changed",
        )

    def _revoked(self, entry: KnownKey, certified: bool, key: bytes) -> Failure:
        revoked = plain_key(entry.blob)
        whose = "it shows"
        if certified:
            whose = "in its certificate" if revoked == key else "that signed its certificate"
        return Failure(
            Kind.HOST_KEY_REVOKED,
            f"the key {fingerprint(revoked)} {whose} is marked @revoked ({entry.place})",
            hint="give the host a new key: this one must not be trusted",
        )


def unknown_key(host: str, port: int | None, file: str, *, choice: bool = True) -> str:
    """A hint for a host without a key in ``file``. choice: offer to take new keys on trust."""
    where = "" if port in (None, 22) else f"-p {port} "
    scan = f"ssh-keyscan {where}{host} >> {file}"
    if not choice:
        return f"{scan}  # after checking the fingerprint"
    return (
        "--host-keys accept-new  # trusts the key shown now and refuses others later; "
        f"or check the fingerprint, then: {scan}"
    )
