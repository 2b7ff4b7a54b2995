"""Refused logins: what is said, and what can be done about it; the host's own words decide."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import cases

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.process.openssh import classify

from .. import conftest
from ..sshd import Sshd, keygen, start_sshd
from ..test_failures import attempt, kind  # noqa: F401 - fixtures

ME = getpass.getuser()
Try = Callable[..., Failure]


def refused(config: str) -> Failure:
    return conftest.refused(config, Kind.AUTH)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Sshd]:
    """Takes keys, and passwords as well."""
    with start_sshd(tmp_path / "asking", "PasswordAuthentication yes") as server:
        yield server


@pytest.fixture
def keyless(tmp_path: Path) -> Iterator[Sshd]:
    """Takes passwords alone."""
    options = ("PasswordAuthentication yes", "PubkeyAuthentication no")
    with start_sshd(tmp_path / "keyless", *options) as server:
        yield server


def test_a_refused_key_where_a_password_is_taken(asking: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "stranger")
    failure = refused(asking.config(key=key))
    assert failure.why == f"{ME}: refused: {key}; the host also takes password"
    assert failure.hint == (
        f"ssh-copy-id -i {key}.pub -p {asking.port} {ME}@node"
        "  # or --ask-pass; or is it another user there? --user NAME"
    )


def test_a_refused_key_where_nothing_else_is_taken(sshd: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "stranger")
    hint = refused(sshd.config(key=key)).hint or ""
    assert hint.startswith(f"cat {key}.pub  # has to be a line of ~{ME}/.ssh/authorized_keys on")
    key.with_suffix(".pub").unlink()
    assert (refused(sshd.config(key=key)).hint or "").startswith("ssh -v node true")


def test_passwords_alone_are_no_fault_of_the_key(keyless: Sshd, attempt: Try, kind: str) -> None:  # noqa: F811
    failure = attempt(keyless.config())
    assert failure.kind is Kind.AUTH
    assert "password" in failure.why
    assert str(keyless.user_key) not in failure.why
    assert (failure.hint or "").startswith("--ask-pass  # ")
    assert ("--transport ssh" in (failure.hint or "")) is (kind == "ssh")
    if kind == "paramiko":
        assert failure.why == f"{ME}: this host takes no keys, only password"


def test_no_key_learns_what_the_host_takes(asking: Sshd, keyless: Sshd, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    failure = refused(asking.config(key=missing))
    none = f"{ME}: there is no key to log in with: no ssh-agent, and there is no {missing}"
    assert failure.why == f"{none}; the host also takes password"
    copy = f"ssh-copy-id -p {asking.port} {ME}@node"
    assert failure.hint == f"ssh-keygen -t ed25519 && {copy}  # or --ask-pass"
    assert "this host takes no keys, only password" in refused(keyless.config(key=missing)).why


def with_agent(sshd: Sshd, agent: Path) -> str:
    config = Path(sshd.config(key=sshd.folder / "missing"))
    config.write_text(config.read_text().replace("IdentityAgent none", f"IdentityAgent {agent}"))
    return str(config)


@cases(
    ("offered", "hint"),
    [
        ("publickey,password", "ssh-copy-id me@n1  # or --ask-pass without --transport ssh; or"),
        ("publickey", "ssh -v n1 true  # or is it another user there? --user NAME"),
        ("gssapi-with-mic", "kinit  # for a ticket of Kerberos"),
        ("hostbased", "HostbasedAuthentication yes  # in ssh_config"),
        ("keyboard-interactive", "--ask-pass  # without --transport ssh, which cannot ask"),
    ],
)
def test_words_of_ssh(offered: str, hint: str) -> None:
    failure = classify(f"me@10.0.0.1: Permission denied ({offered}).", "n1")
    assert (failure.hint or "").startswith(hint)
