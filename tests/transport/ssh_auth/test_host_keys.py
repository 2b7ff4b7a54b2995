"""Trusting hosts over a real connection: policies, aliases, several keys, certificates."""

from __future__ import annotations

import shutil
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from string import Template

import pytest
from cases import cases

from dispatcher.model.failure import Kind
from dispatcher.transport.base import Link
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.ssh_auth.host_keys import certificate_problem
from dispatcher.transport.ssh_auth.known_hosts import _hash_name, kind_of, ssh_string

from ..conftest import accepted, open_all, refused
from ..sshd import ADDRESS, Sshd, keygen, start_sshd


def test_accept_new_writes_the_key_down_once(own: Sshd) -> None:
    own.known_hosts.unlink()
    accepted(own.config(), host_keys="accept-new")
    assert own.known_hosts.read_text() == f"{own.known_name} {own.public()}\n"
    assert own.known_hosts.stat().st_mode & 0o777 == 0o600
    accepted(own.config(), host_keys="strict")


def test_accept_new_from_many_threads(own: Sshd) -> None:
    own.known_hosts.write_text("")
    transport = ParamikoTransport(config=own.config(), host_keys="accept-new")
    for link in open_all(transport, ["node"] * 12):
        assert isinstance(link, Link), link
        link.close()
    transport.close()
    lines = set(own.known_hosts.read_text().splitlines())
    assert lines == {f"{own.known_name} {own.public()}"}
    assert len(own.known_hosts.read_text().splitlines()) == 1


def test_host_key_alias(own: Sshd) -> None:
    own.known_hosts.write_text(f"alias {own.public()}\n")
    accepted(own.config(extra="HostKeyAlias alias"))
    refused(own.config(extra="HostKeyAlias another"), Kind.HOST_KEY_UNKNOWN)


def certify(authority: Path, key: Path, *options: str) -> Path:
    """Sign a public key; the certificate's path."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", *options]
    subprocess.run([*command, str(key.with_suffix(".pub"))], check=True, capture_output=True)
    return key.with_name(key.name + "-cert.pub")


@cases("kind", ["ed25519", "ecdsa", "rsa"])
def test_host_certificate(tmp_path: Path, kind: str) -> None:
    authority = keygen(tmp_path / "authority", "-t", kind)
    host_key = keygen(tmp_path / "host", "-t", kind)
    certificate = certify(authority, host_key, "-h", "-n", f"other,{ADDRESS}")
    line = f"HostCertificate {certificate}"
    with start_sshd(tmp_path / "certified", line, host_key=host_key) as server:
        ours = server.public(authority)
        server.known_hosts.write_text(f"@cert-authority {server.known_name} {ours}\n")
        accepted(server.config())
        server.known_hosts.write_text(
            f"@cert-authority * {ours}\n@revoked * {server.public(authority)}\n"
        )
        refused(server.config(), Kind.HOST_KEY_REVOKED, "that signed its certificate")
        stranger = keygen(tmp_path / "stranger", "-t", kind)
        server.known_hosts.write_text(f"@cert-authority * {server.public(stranger)}\n")
        refused(server.config(), Kind.HOST_KEY_UNKNOWN, "authority is not on file")


@pytest.mark.parametrize(
    ("host", "authority", "option", "why"),
    [
        ("ed25519", "ed25519", "CASignatureAlgorithms ssh-ed25519", ""),
        ("ed25519", "ecdsa", "CASignatureAlgorithms ssh-ed25519", "signs by 'ecdsa-sha2-nistp256'"),
        ("ed25519", "ecdsa", "CASignatureAlgorithms -rsa-*", ""),
        ("ed25519", "ecdsa", "CASignatureAlgorithms -ecdsa-*", "signs by"),
        ("ed25519", "rsa", "CASignatureAlgorithms +ssh-rsa", ""),
        ("ed25519", "rsa", "CASignatureAlgorithms rsa-sha2-256", "signs by 'rsa-sha2-512'"),
        ("ed25519", "ed25519", "RequiredRSASize 4096", ""),
        ("rsa", "ed25519", "RequiredRSASize 2048", ""),
        ("rsa", "ed25519", "RequiredRSASize 2049", "its RSA key has 2048 bits"),
    ],
)
def test_what_the_config_wants_of_keys_as_ssh_has_it(
    tmp_path: Path, host: str, authority: str, option: str, why: str
) -> None:
    bits = ("-b", "2048")
    signer = keygen(tmp_path / "authority", "-t", authority, *(bits if authority == "rsa" else ()))
    key = keygen(tmp_path / "host", "-t", host, *(bits if host == "rsa" else ()))
    line = f"HostCertificate {certify(signer, key, '-h', '-n', ADDRESS)}"
    with start_sshd(tmp_path / "certified", line, host_key=key) as server:
        config = server.config(extra=option)
        lines = [f"@cert-authority * {server.public(signer)}\n"]
        if option.startswith("RequiredRSASize"):  # of a key on file as well
            lines.append(f"{server.known_name} {server.public()}\n")
        for line in lines:
            server.known_hosts.write_text(line)
            assert ssh_goes_in(config) == (not why), "ssh has it otherwise"
            if why:
                refused(config, Kind.HOST_KEY_UNKNOWN, why)
            else:
                accepted(config)


# -- as ssh decides -----------------------------------------------------------------


@contextmanager
def judged(folder: Path, *, shows_certificate: bool) -> Iterator[Sshd]:
    """A host with files beside it for the words of ``lines_of``."""
    authority = keygen(folder / "authority")
    keygen(folder / "stranger")
    certificate = certify(authority, keygen(folder / "host"), "-h", "-n", ADDRESS)
    lines = [f"HostCertificate {certificate}"] if shows_certificate else []
    with start_sshd(folder, *lines, host_key=folder / "host") as server:
        yield server


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with judged(tmp_path_factory.mktemp("certified"), shows_certificate=True) as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with judged(tmp_path_factory.mktemp("plain"), shows_certificate=False) as server:
        yield server


def lines_of(server: Sshd, text: str) -> bytes:
    """``text`` with names and keys for ``$words``."""
    key = server.public()
    certificate = (server.folder / "host-cert.pub").read_text()
    words = {
        "name": server.known_name,
        "bare": ADDRESS,
        "hashed": _hash_name(server.known_name),
        "key": key,
        "base64": key.split()[1],
        "head": key.split()[1][:20],
        "tail": key.split()[1][20:],
        "cut": key[:-8],
        "halved": key[: len(key) * 2 // 3],
        "ca": server.public(server.folder / "authority"),
        "other": server.public(server.folder / "stranger"),
        "certificate": " ".join(certificate.split()[:2]),
    }
    return Template(text).substitute(words).encode("latin-1") + b"\n"


def ssh_goes_in(config: str, policy: str = "strict") -> bool:
    if shutil.which("ssh") is None:
        pytest.skip("needs the ssh program")
    options = ["-F", config, "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]
    options += ["-o", f"StrictHostKeyChecking={'yes' if policy == 'strict' else policy}"]
    done = subprocess.run(
        ["ssh", *options, "node", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 255), done.stderr
    return done.returncode == 0


REVOKED, UNKNOWN, CHANGED = Kind.HOST_KEY_REVOKED, Kind.HOST_KEY_UNKNOWN, Kind.HOST_KEY_CHANGED

#: lines of known_hosts -> what becomes of a host, if it has a certificate as well;
#: a pair is for strict and accept-new
FILES: dict[str, Kind | tuple[Kind | None, Kind | None] | None] = {
    "@cert-authority $name $ca": None,
    "@cert-authority $hashed $ca": None,
    "@cert-authority $name $ca\n@revoked * $key": REVOKED,
    "@cert-authority $name $ca\n@revoked $hashed $key": REVOKED,
    "@cert-authority $name $ca\n@revoked * $ca": REVOKED,
    "@cert-authority $name $ca\n@revoked $name $certificate": REVOKED,
    "@cert-authority $name $ca\n@revoked * $other": None,
    "@cert-authority $bare $ca\n@revoked $name $ca": REVOKED,
    "@cert-authority $name $ca\n$name $key\n@revoked $name $ca": REVOKED,
    "@cert-authority $name $other": (UNKNOWN, None),
    "@cert-authority $name $other\n$name $key": None,
    "@cert-authority $name $other\n$bare $key": None,
    "@cert-authority $name $other\n$name $key\n@revoked * $key": REVOKED,
    "$name $key": None,
    "$hashed $key\n@revoked $hashed $key": REVOKED,
    "$name $key\n@revoked $hashed $other": None,
    "$name $other": CHANGED,
    "@revoked $name $other": (UNKNOWN, None),
    "@revoked $hashed $other": (UNKNOWN, None),
    "@revoked * $other": (UNKNOWN, None),
    "@revoked $name $key": REVOKED,
    "@revoked $name $key\n@revoked $name $other": REVOKED,
    # a damaged line is no line
    "$name $cut": (UNKNOWN, None),
    "$name $halved": (UNKNOWN, None),
    "$name ssh-ed25519 $${base64}": (UNKNOWN, None),
    "$name ssh-ed25519 A$base64": (UNKNOWN, None),
    "$name ssh-rsa $base64": (UNKNOWN, None),
    "$name ssh-future $base64": (UNKNOWN, None),
    "@revoked $name $cut": (UNKNOWN, None),
    "$name ssh-ed25519 $base64=": (UNKNOWN, None),
    "$name $key\0": None,
    "$name $key \xe9\xff": None,
    "\xe9\xff,$name $key": None,
    # blanks and tabs part words, and nothing else
    " \t$name\t $key\t": None,
    "$name\x0b$key": (UNKNOWN, None),
    "$name\xc2\xa0$key": (UNKNOWN, None),
    "\x0c$name $key": (UNKNOWN, None),
    "\r\n$name $key\r": None,
    "$name ssh-ed25519 $head\x0b$tail": None,
    "$name $key\n@revoked $name ssh-ed25519 $head\x0c$tail\r": REVOKED,
    "$name $cut\n$name $key": None,
    "* $cut\n? ssh-ed25519 AAAA====\n* ssh-ed25519\n$hashed $key": None,
    "@cert-authority * $cut\n@cert-authority $name $ca": None,
    "@nonsense $name $other\n|1|$name $other\n\0\n@\n$name $key": None,
}

#: the same of a host that has no certificate: authorities say nothing of it
PLAIN: dict[str, Kind | tuple[Kind | None, Kind | None] | None] = {
    "@cert-authority * $ca": (UNKNOWN, None),
    "@cert-authority $name $ca\n@revoked * $other": (UNKNOWN, None),
    "@cert-authority $name $ca\n$name $key": None,
    "@cert-authority * $ca\n$bare $key": None,
    "@cert-authority $name $ca\n$bare $other": (UNKNOWN, None),
    "@cert-authority * $ca\n$name $other": CHANGED,
    "@cert-authority * $ca\n@revoked * $key": REVOKED,
    "@cert-authority * $ca\n$bare $key\n@revoked $name $key": REVOKED,
}


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
@pytest.mark.parametrize(
    ("host", "text"), [*(("certified", one) for one in FILES), *(("plain", one) for one in PLAIN)]
)
def test_decides_as_ssh(host: str, text: str, policy: str, request: pytest.FixtureRequest) -> None:
    server: Sshd = request.getfixturevalue(host)
    content = lines_of(server, text)
    server.known_hosts.write_bytes(content)
    became = (PLAIN if host == "plain" else FILES)[text]
    expected = became[policy == "accept-new"] if isinstance(became, tuple) else became
    assert ssh_goes_in(server.config(), policy) == (expected is None), "ssh has it otherwise"
    by_ssh = server.known_hosts.read_bytes()  # it may have learned
    server.known_hosts.write_bytes(content)
    if expected is None:
        accepted(server.config(), host_keys=policy)
    else:
        refused(server.config(), expected, host_keys=policy)
    assert server.known_hosts.read_bytes() == by_ssh


#: what may be asked for, lines of known_hosts -> what becomes of a host that has a certificate
NARROWED: dict[tuple[str, str], Kind | None] = {
    ("ssh-ed25519", "@cert-authority $name $ca"): UNKNOWN,
    ("ssh-ed25519", "@cert-authority $name $ca\n$name $key"): None,
    ("-*-cert-v01@openssh.com", "@cert-authority $name $ca"): UNKNOWN,
    ("-ssh-ed25519", "@cert-authority $name $ca"): None,
    ("*-cert-v01@openssh.com", "@cert-authority $name $ca"): None,
    ("*-cert-v01@openssh.com", "@cert-authority $name $other"): UNKNOWN,
    ("*-cert-v01@openssh.com", "$name $key"): None,
    ("ssh-ed25519-cert-v01@openssh.com", "@cert-authority $name $ca"): None,
    ("+ssh-rsa", "@cert-authority $name $ca"): None,
}


@pytest.mark.parametrize(("listed", "text"), NARROWED)
def test_asks_for_no_type_that_the_config_excludes(certified: Sshd, listed: str, text: str) -> None:
    certified.known_hosts.write_bytes(lines_of(certified, text))
    config = certified.config(extra=f"HostKeyAlgorithms {listed}")
    expected = NARROWED[listed, text]
    assert ssh_goes_in(config) == (expected is None), "ssh has it otherwise"
    if expected is None:
        accepted(config)
    else:
        refused(config, expected)


def test_a_damaged_line_is_named_where_its_host_is_unknown(own: Sshd) -> None:
    own.known_hosts.write_text(f"# note\n{own.known_name} {own.public()[:-8]}\n")
    words = f"({own.known_hosts}:2: skipped: cut short)"
    refused(own.config(), Kind.HOST_KEY_UNKNOWN, words)


def test_learned_beside_a_revoked_key(own: Sshd, tmp_path: Path) -> None:
    other = keygen(tmp_path / "other")
    own.known_hosts.write_text(f"@revoked {own.known_name} {own.public(other)}\n")
    accepted(own.config(), host_keys="accept-new")
    assert f"\n{own.known_name} {own.public()}\n" in own.known_hosts.read_text()
    accepted(own.config())


# -- certificates -------------------------------------------------------------------


def test_what_makes_a_certificate_bad(tmp_path: Path) -> None:
    def read(path: Path) -> bytes:
        return b64decode(path.read_text().split()[1])

    authority = keygen(tmp_path / "authority")
    trusted = (read(authority.with_suffix(".pub")),)

    def made(*options: str) -> bytes:
        return read(certify(authority, keygen_once(), *options))

    def keygen_once() -> Path:
        path = tmp_path / "host"
        return path if path.exists() else keygen(path)

    good = made("-h", "-n", "n1,*.lab", "-V", "+1h")
    assert certificate_problem(good, trusted, "n1") is None
    assert "not for" in (certificate_problem(good, trusted, "x.lab") or "")  # no wildcards
    assert "not for" in (certificate_problem(good, trusted, "n2") or "")
    assert "not on file" in (certificate_problem(good, (), "n1") or "")
    assert "not valid" in (certificate_problem(good, trusted, "n1", now=time.time() + 7200) or "")
    assert "not valid" in (certificate_problem(good, trusted, "n1", now=0) or "")
    assert "not a host certificate" in (certificate_problem(made("-n", "n1"), trusted, "n1") or "")
    assert "not for" in (certificate_problem(made("-h"), trusted, "n1") or "")
    binding = made("-h", "-n", "n1", "-O", "critical:who=knows")
    assert certificate_problem(binding, trusted, "n1") == "it has critical options"
    by_sha1 = ssh_string(ssh_string(b"ssh-rsa") + ssh_string(b"x"))
    old = good[: good.rindex(trusted[0]) + len(trusted[0])] + by_sha1
    assert certificate_problem(old, trusted, "n1") == (
        "its authority signs by 'ssh-rsa', which is not allowed"
    )
    for at in range(0, len(good), 7):
        changed = good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :]
        assert certificate_problem(changed, trusted, "n1") is not None
        assert certificate_problem(good[:at], trusted, "n1") is not None
    assert certificate_problem(good + b"x", trusted, "n1") is not None


def by_security_key(kind: str, host_key: bytes) -> tuple[bytes, bytes]:
    """A certificate for ADDRESS by an authority on a security key, and that authority.

    Laid out as OpenSSH's PROTOCOL.certkeys and PROTOCOL.u2f have it.
    """
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils

    if kind == "ed25519":
        token = ed25519.Ed25519PrivateKey.generate()
        name, fields = b"sk-ssh-ed25519@openssh.com", [token.public_key().public_bytes_raw()]
    else:
        ecdsa = ec.generate_private_key(ec.SECP256R1())
        name = b"sk-ecdsa-sha2-nistp256@openssh.com"
        point = ecdsa.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        fields = [b"nistp256", point]
    authority = b"".join(map(ssh_string, (name, *fields, b"ssh:")))
    body = (
        ssh_string(b"ssh-ed25519-cert-v01@openssh.com") + ssh_string(bytes(32)) + host_key[15:]
        + bytes(8) + (2).to_bytes(4, "big") + ssh_string(b"id")
        + ssh_string(ssh_string(ADDRESS.encode())) + bytes(8) + b"\xff" * 8
        + 3 * ssh_string(b"") + ssh_string(authority)
    )  # fmt: skip
    touched = b"\1" + (7).to_bytes(4, "big")
    hashed = sha256(b"ssh:").digest() + touched + sha256(body).digest()
    if kind == "ed25519":
        proof = token.sign(hashed)
    else:
        numbers = utils.decode_dss_signature(ecdsa.sign(hashed, ec.ECDSA(hashes.SHA256())))
        sized = ((one, one.bit_length() // 8 + 1) for one in numbers)
        proof = b"".join(ssh_string(one.to_bytes(size, "big")) for one, size in sized)
    return body + ssh_string(ssh_string(name) + ssh_string(proof) + touched), authority


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_an_authority_on_a_security_key_as_ssh_has_it(tmp_path: Path, kind: str) -> None:
    key = keygen(tmp_path / "host")
    public = b64decode(key.with_suffix(".pub").read_text().split()[1])
    certificate, authority = by_security_key(kind, public)
    assert certificate_problem(certificate, (authority,), ADDRESS) is None
    signed, size = certificate.rindex(authority) + len(authority), len(certificate)
    for at in (*range(0, signed, 5), *range(size - 5, size)):
        changed = certificate[:at] + bytes((certificate[at] ^ 1,)) + certificate[at + 1 :]
        assert certificate_problem(changed, (authority,), ADDRESS) is not None
    longer = certificate[signed + 4 :] + b"x"
    changed = certificate[:signed] + ssh_string(longer)
    assert certificate_problem(changed, (authority,), ADDRESS) == "its signature is wrong"
    file = tmp_path / "host-cert.pub"
    file.write_text(f"ssh-ed25519-cert-v01@openssh.com {b64encode(certificate).decode()}\n")
    with start_sshd(tmp_path / "certified", f"HostCertificate {file}", host_key=key) as server:
        line = f"{kind_of(authority)} {b64encode(authority).decode()}\n"
        server.known_hosts.write_text(f"@cert-authority * {line}")
        for option, goes_in in (("", True), ("CASignatureAlgorithms -sk-*", False)):
            config = server.config(extra=option)
            assert ssh_goes_in(config) == goes_in, "ssh has it otherwise"
            if goes_in:
                accepted(config)
            else:
                refused(config, Kind.HOST_KEY_UNKNOWN, "signs by 'sk-")
