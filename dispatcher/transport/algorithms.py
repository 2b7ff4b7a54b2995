"""Which ciphers and so on we offer, and how the user's config narrows them.

Order is by cost at equal safety, measured on one core between this client and
OpenSSH 9.2 (``docs/design`` has the figures): AES-GCM receives 40 MB in 0.06 s of
CPU, AES-CTR with HMAC-SHA2 in 0.16 s. Key exchange: a handshake with
curve25519 and one with mlkem768x25519 cost the same within the noise at our end
(an ML-KEM decapsulation takes some 0.05 ms of about 4 ms), so the one that
also resists a later quantum computer goes first. Group exchange and the large
groups cost ten to a hundred times more and come last.

Never offered: CBC and 3DES, HMAC with MD5 or SHA-1. Terrapin (CVE-2023-48795)
needs ChaCha20 or CBC-EtM, which are not here, and strict key exchange is on.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.transport.patterns import matches

CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
MACS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
)
KEX = (
    "mlkem768x25519-sha256",
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group14-sha256",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group-exchange-sha256",
)
HOST_KEYS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)

#: The same method under the name it got when it became a standard.
_ALSO = {"curve25519-sha256@libssh.org": "curve25519-sha256"}
_SIGNS = "+-^"


def narrow(ours: Sequence[str], config: str | None) -> tuple[str, ...]:
    """Our algorithms, in our order, less what the config's list excludes.

    ``+`` and ``^`` lists add and move; they exclude nothing. ``-`` removes.
    """
    if not config or config[0] in "+^":
        return tuple(ours)
    listed = config.lstrip(_SIGNS).split(",")

    def named(name: str) -> bool:
        return any(matches(name, item) or _ALSO.get(name) == item for item in listed)

    return tuple(name for name in ours if named(name) != (config[0] == "-"))
