"""Logging in over a real connection: key files, certificates, passphrases, the agent."""

from __future__ import annotations

import base64
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cases import cases
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dispatcher.model.failure import Kind
from dispatcher.transport.base import Link, Target
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.ssh_auth.known_hosts import Reader, ssh_string
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
        ("-t", "rsa", "-b", "2048", "-m", "PKCS8"),
        ("-t", "ecdsa", "-b", "521", "-m", "PEM"),
        ("-t", "ecdsa", "-m", "PKCS8"),
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


def test_a_key_of_openssl(sshd: Sshd, tmp_path: Path) -> None:
    """Ed25519 in PKCS#8, which ssh-keygen does not write, with a comment above and CRLF."""
    made = Ed25519PrivateKey.generate()
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key = tmp_path / "key"
    text = "# a comment\n" + made.private_bytes(*plain).decode()
    key.write_text(text.replace("\n", "\r\n"), newline="")
    key.chmod(0o600)
    public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with (sshd.folder / "authorized_keys").open("ab") as file:
        file.write(public + b"\n")
    accepted(sshd.config(key=key))


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


def add(agent: str, key: Path | str) -> None:
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
    refused_ones, _, untried = failure.why.partition("not tried: ")
    assert (refused_ones.count("SHA256:"), untried.count("SHA256:")) == (6, 3)


class Picky:
    """An ssh-agent before another: does not sign with the keys in ``refused``; counts the rest."""

    def __init__(self, path: Path, real: str) -> None:
        self.path, self.refused, self.asked = str(path), list[bytes](), list[bytes]()
        self._real = real
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(5)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                client, _ = self._listener.accept()
                with client, socket.socket(socket.AF_UNIX) as real, suppress(EOFError, OSError):
                    real.connect(self._real)
                    while True:
                        body = message_of(client)
                        if body[0] == 13:  # sign
                            self.asked.append(Reader(body[1:]).string())
                        refuses = body[0] == 13 and self.asked[-1] in self.refused
                        real.sendall(ssh_string(body))
                        answer = message_of(real)
                        client.sendall(ssh_string(b"\x05" if refuses else answer))


def message_of(link: socket.socket) -> bytes:
    def take(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = link.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    return take(int.from_bytes(take(4), "big"))


@cases(
    ("refuses", "takes", "asked"),
    [
        ("", "b", "b"),  # the host takes one of three: no other is asked to sign
        ("a", "b", "b"),
        ("b", "bc", "bc"),  # that one cannot: the next
        ("abc", "abc+", "abc"),  # nor any of them: the file
        ("abc", "abc", "abc"),
    ],
)
def test_an_agent_signs_for_a_host_that_takes_the_key(
    own: Sshd, agent: str, tmp_path: Path, refuses: str, takes: str, asked: str
) -> None:
    keys = {name: keygen(tmp_path / name) for name in "abc"}
    blobs = {
        name: base64.b64decode(key.with_suffix(".pub").read_text().split()[1])
        for name, key in keys.items()
    }
    add(agent, "-D")
    for key in keys.values():
        add(agent, key)
    (own.folder / "authorized_keys").write_text("")
    file = keygen(tmp_path / "file")
    for name in takes:
        accept(own, keys.get(name, file))
    picky = Picky(tmp_path / "picky", agent)
    picky.refused = [blobs[name] for name in refuses]
    config = with_agent(own, picky.path, "IdentitiesOnly no", key=file)
    if "+" in takes or set(takes) - set(refuses):
        accepted(config)
    else:
        failure = refused(config, Kind.AUTH)
        assert failure.why.count(": ssh-agent refuses to sign") == 3
        assert f"refused: {file}" in failure.why
    assert picky.asked == [blobs[name] for name in asked]


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
