"""Whether an OpenSSH host certificate is good: ``why_not(certificate, authorities, host)``.

paramiko negotiates host certificates and proves that the server holds the
key, but never looks at who signed it. Here: the signature by an authority on
file, the kind (host), the names, the time and that there is no critical option
(none is defined for hosts). Layout: OpenSSH's ``PROTOCOL.certkeys``.
"""

from __future__ import annotations

import time

from dispatcher.transport.ssh_auth.key_blobs import CERT, Reader, certified_key, kind_of
from dispatcher.transport.ssh_config.patterns import matches

_HOST = 2
_KEPT_TIME = 2**63


def why_not(
    certificate: bytes, authorities: tuple[bytes, ...], host: str, now: float | None = None
) -> str | None:
    """Why the certificate does not vouch for ``host``, or ``None`` when it does."""
    try:
        return _why_not(certificate, authorities, host, time.time() if now is None else now)
    except ValueError as error:
        return f"it cannot be read: {error}"


def _why_not(
    certificate: bytes, authorities: tuple[bytes, ...], host: str, now: float
) -> str | None:
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
    if not reader.ended:
        return "bytes follow its end"
    if role != _HOST:
        return "it is not a host certificate"
    if options:
        return "it has critical options"
    if authority not in authorities:
        return "its authority is not on file"
    # Before the names: until it is proved, whatever they say comes from a stranger.
    if not _verify(authority, signed, signature):
        return "its signature is wrong"
    if not after <= now < min(before, _KEPT_TIME):
        return "it is not valid at this time"
    # A certificate without names would vouch for every host there is.
    if not any(matches(host, name.decode("utf-8", "replace").lower()) for name in names):
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
        key = PKey.from_type_string(kind, authority)
        return bool(key.verify_ssh_sig(signed, Message(signature)))
    except (SSHException, UnknownKeyType, ValueError):
        return False
