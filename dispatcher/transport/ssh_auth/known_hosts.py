"""The user's ``known_hosts`` files as one index: ``KnownHosts.keys_of(name)``.

Files are read once and shared by all hosts; a key is decoded when its host is asked for. A line
that cannot be read is skipped: one bad line must not lock a user out of a thousand hosts. A
certificate wraps a key of the same kind, so callers ask for both: ``plain_key``,
``authority_of``.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatcher.model.paths import open_regular
from dispatcher.transport.ssh_config.config_lines import matches_list

CERT = "-cert-v01@openssh.com"

#: How many fields follow the type in a key.
_FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ssh-dss": 4,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}


class Reader:
    """Fields off the front of a blob. Raises: ValueError past its end."""

    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if self.at + size > len(self._blob):
            raise ValueError("cut short")
        data = self._blob[self.at : self.at + size]
        self.at += size
        return data

    def number(self, size: int) -> int:
        """The next ``size`` bytes as a number, big endian."""
        return int.from_bytes(self.take(size), "big")

    def string(self) -> bytes:
        """The next field with its length before it (RFC 4251, section 5)."""
        return self.take(self.number(4))

    @property
    def ended(self) -> bool:
        return self.at == len(self._blob)


def ssh_string(data: bytes) -> bytes:
    """``data`` with its length before it, as ``Reader.string`` reads it."""
    return len(data).to_bytes(4, "big") + data


def kind_of(blob: bytes) -> str:
    """The type inside a key or certificate. Raises: ValueError."""
    return Reader(blob).string().decode("ascii", "replace")


_RSA = ("rsa-sha2-512", "rsa-sha2-256")
#: algorithms of keys, the best first; ssh-rsa, which is RSA with SHA-1, is not among them
PLAIN = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", *_RSA)


def key_algorithms(kind: str) -> tuple[str, ...]:
    """The algorithms by which keys or certificates of a type sign; RSA has one for each hash."""
    bare = kind.removesuffix(CERT)
    return tuple(name + kind[len(bare) :] for name in (_RSA if bare == "ssh-rsa" else (bare,)))


def rsa_bits(blob: bytes) -> int | None:
    """The size of an RSA key or certificate, None for any other. Raises: ValueError."""
    if kind_of(blob).removesuffix(CERT) != "ssh-rsa":
        return None
    reader = Reader(plain_key(blob))
    for _ in range(2):
        reader.string()  # the type, the exponent
    return int.from_bytes(reader.string(), "big").bit_length()


def certified_key(reader: Reader) -> bytes:
    """The key that a certificate certifies; ``reader`` goes from its start to after that key.

    Raises: ValueError for a type we do not know.
    """
    kind = reader.string().decode("ascii", "replace").removesuffix(CERT)
    if kind.startswith("sk-"):
        kind += "@openssh.com"  # which is once in the name of either
    reader.string()  # nonce
    if kind not in _FIELDS:
        raise ValueError("an unknown type of key")
    fields = [kind.encode(), *(reader.string() for _ in range(_FIELDS[kind]))]
    return b"".join(map(ssh_string, fields))


def plain_key(blob: bytes) -> bytes:
    """The plain key: of a certificate, the key that it certifies. Raises: ValueError."""
    return certified_key(Reader(blob)) if kind_of(blob).endswith(CERT) else blob


def authority_of(certificate: bytes) -> bytes:
    """The key that the certificate names as its signer. Raises: ValueError."""
    reader = Reader(certificate)
    certified_key(reader)
    reader.take(8 + 4)  # serial, role
    for _ in range(2):
        reader.string()  # key id, names
    reader.take(8 + 8)  # validity
    for _ in range(3):
        reader.string()  # options, extensions, reserved
    return reader.string()


def key_problem(blob: bytes, kind: str) -> str | None:
    """Why this is not a whole key of type ``kind``, or ``None``."""
    bare = kind.removesuffix(CERT)
    if bare not in _FIELDS:
        return f"no type of key: {kind[:40]!r}"
    try:
        if kind_of(blob) != kind:
            return "not a key of the type it names"
        if kind != bare:
            authority_of(blob)
            return None
        reader = Reader(blob)
        last = [reader.string() for _ in range(1 + _FIELDS[bare])][-1]
    except ValueError as error:
        return str(error)
    if not reader.ended:
        return "bytes follow its end"
    return "cut short" if bare == "ssh-ed25519" and len(last) != 32 else None


#: white space that ssh skips inside base64, in addition to the separators of words
_IN_BASE64 = "\r\v\f"
_NOTHING = dict.fromkeys(map(ord, _IN_BASE64))
_HASHED = "|1|"
_REVOKED = "@revoked"
_AUTHORITY = "@cert-authority"
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
_sha1 = functools.partial(hashlib.sha1, usedforsecurity=False)  # the file format's, not ours


@dataclass(frozen=True)
class KnownKey:
    """One line: a key, its purpose (its marker), and its place in the file."""

    marker: str  # "", "@revoked" or "@cert-authority"
    kind: str  # "ssh-ed25519", ...
    text: str  # the key in base64; decoded only when it is compared
    place: str  # "file:line"

    @property
    def blob(self) -> bytes:
        """The key. Raises: ValueError for base64 that is not canonical."""
        blob = base64.b64decode(self.text, validate=True)
        if base64.b64encode(blob).decode() != self.text:  # padded too much, loose bits
            raise ValueError("not canonical")
        return blob

    def key_problem(self) -> str | None:
        """Why the line has no key to compare with, or ``None``."""
        try:
            return key_problem(self.blob, self.kind)
        except ValueError:
            return "bad base64"


@dataclass(frozen=True)
class KeysOf:
    """All entries of the files about one host."""

    keys: tuple[KnownKey, ...] = ()
    authorities: tuple[KnownKey, ...] = ()
    revoked: tuple[KnownKey, ...] = ()
    damaged: tuple[str, ...] = ()  # lines that name the host and cannot be read


def lookup_name(host: str, port: int, known_as: str | None = None) -> str:
    """The name a host has in known_hosts files."""
    if known_as is not None:
        return known_as
    return host if port == 22 else f"[{host}]:{port}"


class KnownHosts:
    """An index over some files; a missing file is an empty one."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._plain: dict[str, list[KnownKey]] = {}
        self._learned: set[str] = set()
        self._patterns: list[tuple[str, KnownKey]] = []
        # inner and outer HMAC pads, the digest, the entry
        self._hashed: list[tuple[bytes, bytes, bytes, KnownKey]] = []
        for path in paths:
            self._load(path)

    def keys_of(self, name: str) -> KeysOf:
        """The keys, authorities and revoked keys on the lines that name this host."""
        with self._lock:
            found = list(self._plain.get(name, ()))
        found += [e for pattern, e in self._patterns if matches_list(name, pattern, lower=True)]
        found += self._unhashed(name.encode())
        damaged = {entry: why for entry in found if (why := entry.key_problem())}
        skipped = tuple(f"{entry.place}: skipped: {why}" for entry, why in damaged.items())
        marked: dict[str, list[KnownKey]] = {"": [], _AUTHORITY: [], _REVOKED: []}
        for entry in found:
            if entry not in damaged:
                marked[entry.marker].append(entry)
        keys, authorities, revoked = (tuple(entries) for entries in marked.values())
        return KeysOf(keys, authorities, revoked, skipped)

    def keys_of_host(
        self, host: str, port: int, known_as: str | None = None
    ) -> tuple[KeysOf, KeysOf]:
        """The entries under the host's name, and those of the bare name if that has no key.

        A key of the bare name serves every port, as in ssh. An authority does not count as a key:
        the host may have no certificate.
        """
        named = self.keys_of(lookup_name(host, port, known_as))
        bare = not named.keys and known_as is None and port != 22
        return named, self.keys_of(host) if bare else KeysOf()

    def learn(self, path: str, name: str, kind: str, blob: bytes, *, hashed: bool) -> None:
        """Trust a new key from now on and append it to ``path`` (0600, synced to disk).

        Does nothing when another thread has learned a key of that name first: the first one
        counts, and the caller has to look again.

        Raises: OSError when the file cannot be written; the key is not trusted then.
        """
        text = base64.b64encode(blob).decode()
        with self._lock:
            if name in self._learned:
                return
            _append(path, f"{_hash_name(name) if hashed else name} {kind} {text}\n")
            entry = KnownKey("", kind, text, f"{path}: just added")
            self._plain.setdefault(name, []).append(entry)
            self._learned.add(name)

    def _unhashed(self, name: bytes) -> list[KnownKey]:
        # HMAC-SHA1 by hand: the two pads are made once at load, so an entry
        # costs two hashes; half of what hmac.digest takes.
        sha1 = _sha1
        return [
            entry
            for inner, outer, digest, entry in self._hashed
            if sha1(outer + sha1(inner + name).digest()).digest() == digest
        ]

    def _load(self, path: str) -> None:
        try:
            with open(open_regular(path), "rb") as file:
                content = file.read().decode("utf-8", "replace")
        except OSError:
            return
        for number, line in enumerate(content.split("\n"), 1):
            line = line.partition("\0")[0].rstrip(_IN_BASE64).replace("\t", " ")
            words = [word for word in line.split(" ") if word]  # nothing else parts them in ssh
            if words and not words[0].startswith("#"):
                self._add(words, f"{path}:{number}")

    def _add(self, words: list[str], place: str) -> None:
        """Index one line, if it can be."""
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker not in ("", _REVOKED, _AUTHORITY) or len(words) < 3:
            return
        hosts, kind, text = words[:3]
        if kind.isdigit():
            return  # an ssh-1 key
        entry = KnownKey(marker, kind, text.translate(_NOTHING), place)
        if hosts.startswith(_HASHED):
            self._add_hashed(hosts, entry)
        elif any(char in hosts for char in "*?!"):
            self._patterns.append((hosts, entry))
        else:
            for name in dict.fromkeys(hosts.lower().split(",")):
                self._plain.setdefault(name, []).append(entry)

    def _add_hashed(self, hosts: str, entry: KnownKey) -> None:
        try:
            salt, digest = (
                base64.b64decode(part, validate=True) for part in hosts[len(_HASHED) :].split("|")
            )
        except ValueError:
            return
        if len(digest) == 20 and len(salt) <= 64:
            padded = salt.ljust(64, b"\0")
            self._hashed.append((padded.translate(_INNER), padded.translate(_OUTER), digest, entry))


def _hash_name(name: str) -> str:
    import hmac  # few have us write names hashed

    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, digest))


def _append(path: str, line: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # another dispatch may be at it too
        found = os.fstat(descriptor)
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            line = "\n" + line  # an editor left the last line open
        os.write(descriptor, line.encode())
        if stat.S_ISREG(found.st_mode):  # /dev/null keeps nothing
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(blob: bytes) -> str:
    """``SHA256:...`` as ``ssh-keygen -l`` prints it."""
    digest = hashlib.sha256(blob).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class KnownHostsFiles:
    """Indexes by their set of files: hosts with equal settings share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._indexes: dict[tuple[str, ...], KnownHosts] = {}

    def index(self, paths: Iterable[str]) -> KnownHosts:
        """The index over these files, read at the first call."""
        key = tuple(paths)
        with self._lock:
            if key not in self._indexes:
                self._indexes[key] = KnownHosts(key)
            return self._indexes[key]
