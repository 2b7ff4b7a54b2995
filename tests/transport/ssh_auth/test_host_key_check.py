"""The judgement of a host's key by itself: no host, files of a few lines."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from cases import cases

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck, unknown_key
from dispatcher.transport.ssh_auth.known_hosts import CERT, KnownHosts, fingerprint, ssh_string
from dispatcher.transport.ssh_config.host_config import HostConfig


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
        "--host-keys accept-new  # takes the key it shows now on trust, and no other later; "
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
            "give the host a new key: this one is not to be trusted",
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
