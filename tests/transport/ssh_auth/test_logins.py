"""Logging in over a real connection: key files, certificates, passphrases, the agent."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from cases import cases

from dispatcher.model.failure import Kind
from dispatcher.transport.base import Link, Target
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.ssh_auth.passwords import Passwords

from ..conftest import accepted, open_all, refused
from ..sshd import Sshd, keygen, start_sshd
from .test_host_keys import certify, ssh_goes_in


def accept(sshd: Sshd, key: Path) -> None:
    """Let one more key in."""
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(key.with_suffix(".pub").read_text())


@pytest.mark.parametrize(
    "options",
    [
        ("-t", "rsa", "-b", "2048"),
        ("-t", "rsa", "-b", "2048", "-m", "PEM"),
        ("-t", "ecdsa"),
        ("-t", "ecdsa", "-b", "521", "-m", "PEM"),
        ("-t", "ed25519"),
    ],
)
def test_kinds_of_keys(sshd: Sshd, tmp_path: Path, options: tuple[str, ...]) -> None:
    key = keygen(tmp_path / "key", *options)
    accept(sshd, key)
    accepted(sshd.config(key=key))
    key.with_suffix(".pub").unlink()  # only needed for the agent and certificates
    accepted(sshd.config(key=key))


@cases("kind", ["ed25519", "rsa"])
def test_user_certificate(tmp_path: Path, kind: str) -> None:
    authority = keygen(tmp_path / "authority")
    public = authority.with_suffix(".pub")
    with start_sshd(tmp_path / "trusting", f"TrustedUserCAKeys {public}") as server:
        key = keygen(tmp_path / "key", "-t", kind)
        refused(server.config(key=key), Kind.AUTH)
        certificate = certify(authority, key, "-n", server.user)
        accepted(server.config(key=key))
        elsewhere = certificate.rename(tmp_path / "elsewhere")
        config = server.config(key=key, extra=f"CertificateFile {elsewhere}")
        accepted(config)


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize(
    ("listed", "who"),
    [
        ("+ssh-rsa", {"ed25519", "rsa", "certified"}),
        ("-ssh-rsa", {"ed25519", "rsa", "certified"}),
        ("ssh-ed25519", {"ed25519"}),
        ("-ssh-ed25519,*-cert-*", {"rsa"}),
        ("rsa-sha2-512", {"rsa"}),
        ("-rsa-sha2-512", {"ed25519", "rsa", "certified"}),
        (
            "ssh-ed25519-cert-v01@openssh.com,rsa-sha2-256-cert-v01@openssh.com",
            {"certified"},
        ),
        ("sk-ssh-ed25519@openssh.com", set()),
    ],
)
def test_keys_that_may_be_used_as_ssh_has_it(
    tmp_path: Path, kind: str, listed: str, who: set[str]
) -> None:
    authority, key = keygen(tmp_path / "authority"), keygen(tmp_path / "key", "-t", kind)
    line = f"TrustedUserCAKeys {authority.with_suffix('.pub')}"
    with start_sshd(tmp_path / "trusting", line) as server:
        accept(server, key)
        config = server.config(key=key, extra=f"PubkeyAcceptedAlgorithms {listed}")
        for certified in (False, True):
            if certified:
                certify(authority, key, "-n", server.user)
                (server.folder / "authorized_keys").write_text("")
            expected = ("certified" if certified else kind) in who
            assert ssh_goes_in(config) == expected, "ssh has it otherwise"
            if expected:
                accepted(config)
            else:
                refused(config, Kind.AUTH)


def test_passphrase_is_asked_once_for_all_hosts(sshd: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "locked", "-N", "secret")
    accept(sshd, key)
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "secret"

    transport = ParamikoTransport(config=sshd.config(key=key), passwords=Passwords(ask))
    for link in open_all(transport, ["node"] * 6):
        assert isinstance(link, Link)
        link.close()
    transport.close()
    assert len(asked) == 1
    assert str(key) in asked[0]


def add(agent: str, key: Path) -> None:
    environment = {"SSH_AUTH_SOCK": agent, "PATH": "/usr/bin:/bin"}
    subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, capture_output=True)


def with_agent(sshd: Sshd, agent: str, extra: str = "", key: Path | None = None) -> str:
    return sshd.config(extra=f"IdentityAgent {agent}\n{extra}", key=key)


def test_key_only_in_the_agent(sshd: Sshd, agent: str, tmp_path: Path) -> None:
    key = keygen(tmp_path / "held", "-t", "rsa", "-b", "2048")
    accept(sshd, key)
    add(agent, key)
    key.unlink()
    # named by its public half, although only keys of the config may be used
    for name in (key, key.with_suffix(".pub")):
        accepted(with_agent(sshd, agent, key=name))
    missing = tmp_path / "missing"
    accepted(with_agent(sshd, agent, "IdentitiesOnly no", key=missing))
    refused(with_agent(sshd, agent, "IdentitiesOnly yes", key=missing), Kind.AUTH)


@cases("kind", ["ed25519", "rsa"])
def test_user_certificate_of_a_key_in_the_agent(agent: str, tmp_path: Path, kind: str) -> None:
    """As Vault and step-ca leave it: the certificate is a file, its key is in the agent alone."""
    authority = keygen(tmp_path / "authority")
    line = f"TrustedUserCAKeys {authority.with_suffix('.pub')}"
    with start_sshd(tmp_path / "trusting", line, "MaxAuthTries 2") as server:
        key = keygen(tmp_path / "held", "-t", kind)
        add(agent, key)
        key.unlink()
        refused(with_agent(server, agent, key=key), Kind.AUTH)
        certificate = certify(authority, key, "-n", server.user)
        accepted(with_agent(server, agent, key=key))
        elsewhere = certificate.rename(tmp_path / "elsewhere")
        accepted(with_agent(server, agent, f"CertificateFile {elsewhere}", key=key))


def test_full_agent_does_not_lock_us_out(own: Sshd, agent: str, tmp_path: Path) -> None:
    for number in range(8):
        add(agent, keygen(tmp_path / f"stranger{number}"))
    key = keygen(tmp_path / "named")
    accept(own, key)
    add(agent, key)
    before = len(own.log)
    accepted(with_agent(own, agent, "IdentitiesOnly no", key=key))
    assert not [line for line in own.log[before:] if "Failed" in line]
    missing = tmp_path / "missing"
    failure = refused(with_agent(own, agent, "IdentitiesOnly no", key=missing), Kind.AUTH)
    assert failure.why.count("SHA256:") == 5  # and not one more


def test_agent_shared_by_many_hosts(own: Sshd, agent: str, tmp_path: Path) -> None:
    strangers = [keygen(tmp_path / f"stranger{n}") for n in range(2)]
    key = keygen(tmp_path / "held")
    accept(own, key)
    for one in (*strangers, key):
        add(agent, one)
    config = with_agent(own, agent, "IdentitiesOnly no", key=tmp_path / "missing")
    transport = ParamikoTransport(config=config)
    first = transport.open(Target("node"), "true", time.monotonic() + 40)
    assert isinstance(first, Link)
    first.close()
    before = len(own.log)
    for link in open_all(transport, ["node"] * 10):
        assert isinstance(link, Link), link
        link.close()
    transport.close()
    # what worked for the first goes first for the others
    assert not [line for line in own.log[before:] if "Failed publickey" in line]
