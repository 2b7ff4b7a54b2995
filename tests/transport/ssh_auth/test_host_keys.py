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
from typing import Any

import pytest
from cases import cases

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck, certificate_problem, unknown_key
from dispatcher.transport.ssh_auth.known_hosts import (
    CERT,
    KnownHosts,
    _hash_name,
    fingerprint,
    kind_of,
    ssh_string,
)
from dispatcher.transport.ssh_config.host_config import HostConfig

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


def key(number: int, kind: bytes = b"ssh-ed25519") -> bytes:
    return ssh_string(kind) + ssh_string(number.to_bytes(32, "big"))


def line(name: str, number: int, marker: str = "") -> str:
    return f"{marker} {name} ssh-ed25519 {b64encode(key(number)).decode()}\n".lstrip()


class Judge:
    """The check of one host by files with these lines."""

    def __init__(
        self,
        folder: Path,
        text: str,
        policy: str = "strict",
        address: str | None = None,
        **config: Any,
    ) -> None:
        self.file = folder / "known_hosts"
        self.file.write_text(text)
        config = {"port": 2222, "user_known_hosts": (str(self.file),), **config}
        self.config = HostConfig("n1", "n1.org", "me", **config)
        self.check = HostKeyCheck(self.config, KnownHosts([str(self.file)]), policy, address)

    def says(self, number: int) -> Failure | None:
        return self.check.verify(key(number), "ssh-ed25519")


def test_a_key_with_bytes_behind_its_end_is_refused(tmp_path: Path) -> None:
    """It was written down under accept-new, a line more with each run."""
    judge = Judge(tmp_path, "", "accept-new")
    failure = judge.check.verify(key(1) + ssh_string(b"evil"), "ssh-ed25519")
    assert failure is not None
    assert failure.why == "its host key cannot be read: bytes follow its end"
    assert judge.file.read_text() == ""


OFFERED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
CERTIFIED = tuple(name + CERT for name in OFFERED)
AUTHORITY = line("*", 1, "@cert-authority")
RSA_LINE = (
    "n1.org ssh-rsa "
    + b64encode(ssh_string(b"ssh-rsa") + ssh_string(b"e") + ssh_string(b"n")).decode()
)


@cases(
    ("text", "port", "wanted"),
    [
        ("", 22, OFFERED),
        (line("n1.org", 1), 22, OFFERED[:1]),
        (line("n1.org", 1), 2222, OFFERED[:1]),  # a key of the bare name serves every port
        (RSA_LINE, 22, OFFERED[2:]),
        (line("n1.org", 1) + RSA_LINE, 22, (OFFERED[0], *OFFERED[2:])),
        (line("[n1.org]:2222", 1) + RSA_LINE, 2222, OFFERED[:1]),
        # a host may have no certificate, although an authority could sign one
        (AUTHORITY, 22, (*CERTIFIED, *OFFERED)),
        (AUTHORITY + line("n1.org", 2), 22, (*CERTIFIED, OFFERED[0])),
        (AUTHORITY + line("n1.org", 2), 2222, (*CERTIFIED, OFFERED[0])),
        (line("n1.org", 1, "@revoked"), 22, OFFERED),
    ],
)  # fmt: skip
def test_the_types_that_are_asked_for(
    tmp_path: Path, text: str, port: int, wanted: tuple[str, ...]
) -> None:
    check = Judge(tmp_path, text, port=port).check
    assert check.wanted_types((*OFFERED, *CERTIFIED)) == wanted


@cases(
    ("text", "offered", "wanted"),
    [
        (AUTHORITY, OFFERED, OFFERED),
        (AUTHORITY, CERTIFIED, CERTIFIED),
        (AUTHORITY, (OFFERED[1], *CERTIFIED[:1]), (*CERTIFIED[:1], OFFERED[1])),
        (AUTHORITY + line("*", 2), OFFERED, OFFERED[:1]),
        (AUTHORITY + line("*", 2), CERTIFIED, CERTIFIED),
        # the key on file may be inside a certificate whose authority nobody knows
        (line("*", 2), CERTIFIED, CERTIFIED),
        ("", CERTIFIED, CERTIFIED),
    ],
)
def test_the_types_that_are_asked_for_where_the_config_narrows_them(
    tmp_path: Path, text: str, offered: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    assert Judge(tmp_path, text).check.wanted_types(offered) == wanted


def test_an_unknown_host(tmp_path: Path) -> None:
    judge = Judge(tmp_path, "n1.org broken\n[n1.org]:2222 ssh-ed25519 AAAA\n")
    failure = judge.says(1)
    shown = fingerprint(key(1))
    assert failure == Failure(
        Kind.HOST_KEY_UNKNOWN,
        f"no key of [n1.org]:2222 is on file ({judge.file}:2: skipped: cut short); "
        f"it shows ssh-ed25519 {shown}",
        "--host-keys accept-new  # trusts the key shown now and refuses others later; "
        f"or check the fingerprint, then: ssh-keyscan -p 2222 n1.org >> {judge.file}",
    )
    assert judge.file.read_text().count("\n") == 2  # nothing is learned


@cases("files", [(), ("~/my hosts",)])
def test_where_a_key_is_to_be_put(tmp_path: Path, files: tuple[str, ...]) -> None:
    judge = Judge(tmp_path, "", user_known_hosts=files, port=22)
    failure = judge.says(1)
    assert failure is not None
    where = "'~/my hosts'" if files else "~/.ssh/known_hosts"
    assert (failure.hint or "").endswith(f"then: ssh-keyscan n1.org >> {where}")


def test_a_key_that_is_learned_counts_from_then_on(tmp_path: Path) -> None:
    judge = Judge(tmp_path, "", "accept-new")
    assert [judge.says(1), judge.says(1)] == [None, None]
    assert judge.file.read_text() == line("[n1.org]:2222", 1)
    failure = judge.says(2)
    assert failure is not None
    assert failure.kind is Kind.HOST_KEY_CHANGED
    hashed = Judge(tmp_path, "", "accept-new", hash_known_hosts=True)
    assert hashed.says(1) is None
    assert hashed.file.read_text().startswith("|1|")


def test_a_key_that_cannot_be_learned(tmp_path: Path) -> None:
    nowhere = Judge(tmp_path, "", "accept-new", user_known_hosts=())
    failure = nowhere.says(1)
    assert failure is not None
    assert (failure.kind, failure.hint) == (
        Kind.HOST_KEY_UNKNOWN,
        "ssh-keyscan -p 2222 n1.org >> ~/.ssh/known_hosts  # after checking the fingerprint",
    )
    folder = Judge(tmp_path, "", "accept-new", user_known_hosts=(str(tmp_path),))
    assert folder.says(1) == Failure(
        Kind.HOST_KEY_UNKNOWN,
        f"new ssh-ed25519 key {fingerprint(key(1))} could not be added to {tmp_path}: "
        "Is a directory",
    )


def test_a_changed_key(tmp_path: Path) -> None:
    for policy in ("strict", "accept-new"):
        judge = Judge(tmp_path, line("other", 9) + line("[n1.org]:2222", 1), policy)
        assert judge.says(1) is None
        assert judge.says(2) == Failure(
            Kind.HOST_KEY_CHANGED,
            f"it shows ssh-ed25519 {fingerprint(key(2))}, but {judge.file}:2 has ssh-ed25519 "
            f"{fingerprint(key(1))}",
            f"ssh-keygen -R '[n1.org]:2222' -f {judge.file}  # if you know why the key changed",
        )


@cases(
    ("text", "address", "policy", "changed"),
    [
        (line("[n1.org]:2222", 1), "10.0.0.1", "strict", False),
        (line("[n1.org]:2222", 1) + line("[10.0.0.1]:2222", 1), "10.0.0.1", "strict", False),
        (line("[n1.org]:2222", 1) + line("[10.0.0.1]:2222", 2), "10.0.0.1", "strict", True),
        (line("[n1.org]:2222", 1) + line("[10.0.0.1]:2222", 2), None, "strict", False),
        (line("[n1.org]:2222", 1) + line("[127.0.0.1]:2222", 2), "127.0.0.1", "strict", False),
        (line("[n1.org]:2222", 1) + line("[::1]:2222", 2), "::1", "strict", False),
        (line("[n1.org]:2222", 1) + line("10.0.0.1", 2), "10.0.0.1", "strict", False),
        (line("[10.0.0.1]:2222", 2), "10.0.0.1", "accept-new", True),  # and nothing is learned
    ],
)
def test_another_key_under_the_address(
    tmp_path: Path, text: str, address: str | None, policy: str, changed: bool
) -> None:
    """As ssh 9.2 has it with CheckHostIP."""
    for check_address in (False, True):
        judge = Judge(tmp_path, text, policy, address, check_address=check_address)
        failure = judge.says(1)
        if not (changed and check_address):
            assert failure is None
            continue
        assert judge.file.read_text() == text
        assert failure is not None
        assert failure.kind is Kind.HOST_KEY_CHANGED
        assert (failure.hint or "").startswith("ssh-keygen -R '[10.0.0.1]:2222' -f ")


def test_a_revoked_key(tmp_path: Path) -> None:
    for name in ("[n1.org]:2222", "n1.org", "*"):
        judge = Judge(tmp_path, line("[n1.org]:23", 1) + line(name, 2, "@revoked"), "accept-new")
        assert judge.says(2) == Failure(
            Kind.HOST_KEY_REVOKED,
            f"the key {fingerprint(key(2))} it shows is marked @revoked ({judge.file}:2)",
            "give the host a new key: this one must not be trusted",
        )
        assert judge.says(1) is None


@cases("blob", [b"", key(1)[:-1], ssh_string(b"x-cert-v01@openssh.com")])
def test_a_certificate_that_cannot_be_read(tmp_path: Path, blob: bytes) -> None:
    judge = Judge(tmp_path, line("*", 1, "@cert-authority"))
    failure = judge.check.verify(blob, "ssh-ed25519-cert-v01@openssh.com")
    assert failure is not None
    assert (failure.kind, failure.hint) == (Kind.HOST_KEY_UNKNOWN, "ssh -v n1 true")
    assert failure.why.startswith("the host's certificate is not accepted: it cannot be read: ")


@cases(
    ("port", "choice", "hint"),
    [
        (None, False, "ssh-keyscan n1 >> f  # after checking the fingerprint"),
        (22, False, "ssh-keyscan n1 >> f  # after checking the fingerprint"),
        (23, False, "ssh-keyscan -p 23 n1 >> f  # after checking the fingerprint"),
    ],
)
def test_how_a_key_is_fetched(port: int | None, choice: bool, hint: str) -> None:
    assert unknown_key("n1", port, "f", choice=choice) == hint
