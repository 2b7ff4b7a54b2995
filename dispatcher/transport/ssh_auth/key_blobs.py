"""Keys as SSH sends and files them: fields with their lengths, the first naming the type.

A certificate wraps a key of the same kind, so whoever asks after a key by its bytes
(is it revoked?) has to ask for both: ``plain_key`` and ``authority_of``.
"""

from __future__ import annotations

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
        if self.at + size > len(self._blob):
            raise ValueError("cut short")
        data = self._blob[self.at : self.at + size]
        self.at += size
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def string(self) -> bytes:
        return self.take(self.number(4))

    @property
    def ended(self) -> bool:
        return self.at == len(self._blob)


def kind_of(blob: bytes) -> str:
    """The type inside a key or certificate. Raises: ValueError."""
    return Reader(blob).string().decode("ascii", "replace")


def certified_key(reader: Reader) -> bytes:
    """The key a certificate is about; ``reader`` is at its start, and then after the key.

    Raises: ValueError for a type we do not know.
    """
    kind = reader.string().decode("ascii", "replace").removesuffix(CERT)
    reader.string()  # nonce
    if kind not in _FIELDS:
        raise ValueError("a type nobody knows")
    fields = [kind.encode(), *(reader.string() for _ in range(_FIELDS[kind]))]
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def plain_key(blob: bytes) -> bytes:
    """The key alone: of a certificate the one it is about. Raises: ValueError."""
    return certified_key(Reader(blob)) if kind_of(blob).endswith(CERT) else blob


def authority_of(certificate: bytes) -> bytes:
    """The key that is said to have signed it. Raises: ValueError."""
    reader = Reader(certificate)
    certified_key(reader)
    reader.take(8 + 4)  # serial, role
    for _ in range(2):
        reader.string()  # key id, names
    reader.take(8 + 8)  # validity
    for _ in range(3):
        reader.string()  # options, extensions, reserved
    return reader.string()


def why_damaged(blob: bytes, kind: str) -> str | None:
    """Why this is no whole key of type ``kind``, or ``None``."""
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
