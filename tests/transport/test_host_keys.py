"""Trusting hosts over a real connection: policies, aliases, several keys, certificates."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.transport.base import Failure, Kind, Link, Target
from dispatcher.transport.host_certificate import why_not
from dispatcher.transport.paramiko_ import ParamikoTransport

from .conftest import gather
from .sshd import ADDRESS, Sshd, keygen, start_sshd


def attempt(config: str, **options: str) -> Link | Failure:
    transport = ParamikoTransport(config=config, **options)  # type: ignore[arg-type]
    opened = transport.open(Target("node"), "echo in", time.monotonic() + 20)
    if isinstance(opened, Link):
        assert gather(opened)[0] == b"in\n"
        opened.close()
    transport.close()
    return opened


def refused(config: str, kind: Kind, **options: str) -> Failure:
    failure = attempt(config, **options)
    assert isinstance(failure, Failure), "the host was trusted"
    assert failure.kind is kind, failure
    return failure


def accepted(config: str, **options: str) -> None:
    opened = attempt(config, **options)
    assert isinstance(opened, Link), opened


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Sshd]:
    server = start_sshd(tmp_path / "own")
    yield server
    server.stop()


def test_accept_new_writes_the_key_down_once(own: Sshd) -> None:
    own.known_hosts.unlink()
    accepted(own.config(), host_keys="accept-new")
    assert own.known_hosts.read_text() == f"{own.known_name} {own.public()}\n"
    assert own.known_hosts.stat().st_mode & 0o777 == 0o600
    accepted(own.config(), host_keys="strict")


def test_accept_new_from_the_config(own: Sshd) -> None:
    own.known_hosts.write_text("")
    refused(own.config(), Kind.HOST_KEY_UNKNOWN)
    config = own.config(extra="StrictHostKeyChecking accept-new\nHashKnownHosts yes")
    refused(config, Kind.HOST_KEY_UNKNOWN, host_keys="strict")
    accepted(config)
    assert own.known_hosts.read_text().startswith("|1|")
    accepted(own.config())


def test_accept_new_from_many_threads(own: Sshd) -> None:
    own.known_hosts.write_text("")
    transport = ParamikoTransport(config=own.config(), host_keys="accept-new")
    opened: list[Link | Failure] = []

    def one() -> None:
        opened.append(transport.open(Target("node"), "true", time.monotonic() + 30))

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for link in opened:
        assert isinstance(link, Link), link
        link.close()
    transport.close()
    lines = set(own.known_hosts.read_text().splitlines())
    assert lines == {f"{own.known_name} {own.public()}"}
    assert len(own.known_hosts.read_text().splitlines()) == 1


def test_a_key_for_the_bare_name_serves_every_port(own: Sshd, tmp_path: Path) -> None:
    own.known_hosts.write_text(f"{ADDRESS} {own.public()}\n")
    accepted(own.config())
    other = keygen(tmp_path / "other")
    own.known_hosts.write_text(f"{ADDRESS} {own.public(other)}\n")
    refused(own.config(), Kind.HOST_KEY_UNKNOWN)


def test_host_key_alias(own: Sshd) -> None:
    own.known_hosts.write_text(f"alias {own.public()}\n")
    accepted(own.config(extra="HostKeyAlias alias"))
    refused(own.config(extra="HostKeyAlias another"), Kind.HOST_KEY_UNKNOWN)


def test_asks_for_the_type_on_file(tmp_path: Path) -> None:
    rsa = keygen(tmp_path / "rsa", "-t", "rsa", "-b", "2048")
    server = start_sshd(tmp_path / "two", f"HostKey {rsa}")
    try:
        server.known_hosts.write_text(f"{server.known_name} {server.public(rsa)}\n")
        accepted(server.config())
        ecdsa = keygen(tmp_path / "ecdsa", "-t", "ecdsa")
        server.known_hosts.write_text(f"{server.known_name} {server.public(ecdsa)}\n")
        failure = refused(server.config(), Kind.HOST_KEY_UNKNOWN)
        assert "nistp256" in failure.why
    finally:
        server.stop()


# -- certificates -------------------------------------------------------------------


def certify(authority: Path, key: Path, *options: str) -> Path:
    """Sign a public key; the certificate's path."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", *options]
    subprocess.run([*command, str(key.with_suffix(".pub"))], check=True, capture_output=True)
    return key.with_name(key.name + "-cert.pub")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_host_certificate(tmp_path: Path, kind: str) -> None:
    authority = keygen(tmp_path / "authority", "-t", kind)
    host_key = keygen(tmp_path / "host", "-t", kind)
    certificate = certify(authority, host_key, "-h", "-n", f"other,{ADDRESS}")
    server = start_sshd(tmp_path / "certified", f"HostCertificate {certificate}", host_key=host_key)
    try:
        ours = server.public(authority)
        server.known_hosts.write_text(f"@cert-authority {server.known_name} {ours}\n")
        accepted(server.config())
        server.known_hosts.write_text(
            f"@cert-authority * {ours}\n@revoked * {server.public(authority)}\n"
        )
        refused(server.config(), Kind.HOST_KEY_UNKNOWN)
        stranger = keygen(tmp_path / "stranger", "-t", kind)
        server.known_hosts.write_text(f"@cert-authority * {server.public(stranger)}\n")
        failure = refused(server.config(), Kind.HOST_KEY_UNKNOWN)
        assert "authority is not on file" in failure.why
    finally:
        server.stop()


def test_authority_only_and_a_host_without_certificate(own: Sshd, tmp_path: Path) -> None:
    authority = keygen(tmp_path / "authority")
    own.known_hosts.write_text(f"@cert-authority * {own.public(authority)}\n")
    for policy in ("strict", "accept-new"):
        failure = refused(own.config(), Kind.HOST_KEY_UNKNOWN, host_keys=policy)
        assert "cert" in failure.why


def test_what_makes_a_certificate_bad(tmp_path: Path) -> None:
    from base64 import b64decode

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
    assert why_not(good, trusted, "n1") is None
    assert why_not(good, trusted, "x.lab") is None
    assert "not for" in (why_not(good, trusted, "n2") or "")
    assert "not on file" in (why_not(good, (), "n1") or "")
    assert "not valid" in (why_not(good, trusted, "n1", now=time.time() + 7200) or "")
    assert "not valid" in (why_not(good, trusted, "n1", now=0) or "")
    assert "not a host certificate" in (why_not(made("-n", "n1"), trusted, "n1") or "")
    assert "not for" in (why_not(made("-h"), trusted, "n1") or "")
    for at in range(0, len(good), 7):
        changed = good[:at] + bytes((good[at] ^ 1,)) + good[at + 1 :]
        assert why_not(changed, trusted, "n1") is not None
        assert why_not(good[:at], trusted, "n1") is not None
    assert why_not(good + b"x", trusted, "n1") is not None
