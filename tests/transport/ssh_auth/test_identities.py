"""Which keys are tried, in which order, and what is said where none of them lets us in."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from cases import cases

from dispatcher.model.failure import Kind
from dispatcher.transport.ssh.paramiko_transport import preload
from dispatcher.transport.ssh_auth import identities as module
from dispatcher.transport.ssh_auth.identities import (
    ASK,
    ASK_NOT_BY_SSH,
    Candidate,
    Identities,
    login_refused,
    methods,
    refused_key,
    takes_no_key,
)
from dispatcher.transport.ssh_auth.known_hosts import fingerprint, kind_of, ssh_string
from dispatcher.transport.ssh_auth.ssh_agent import AgentKey
from dispatcher.transport.ssh_config.host_config import HostConfig

from ..sshd import keygen

preload()


def blob(number: int) -> bytes:
    return ssh_string(b"ssh-ed25519") + ssh_string(number.to_bytes(32, "big"))


def rsa(bits: int) -> bytes:
    modulus = ssh_string((1 << bits - 1).to_bytes(bits // 8 + 1, "big"))
    return ssh_string(b"ssh-rsa") + ssh_string(b"\3") + modulus


def certificate_of(key: bytes) -> bytes:
    """As far as it is looked at: its type, a nonce, and the key's own field."""
    return ssh_string(b"ssh-ed25519-cert-v01@openssh.com") + ssh_string(b"nonce") + key[15:]


SECURITY_KEY = ssh_string(b"sk-ssh-ed25519@openssh.com") + ssh_string(b"p") + ssh_string(b"ssh:")
SECURITY_CERTIFICATE = (
    ssh_string(b"sk-ssh-ed25519-cert-v01@openssh.com") + ssh_string(b"nonce") + SECURITY_KEY[30:]
)


def public(path: Path, key: bytes) -> None:
    path.write_text(f"{kind_of(key)} {base64.b64encode(key).decode()} me\n")


class Agent:
    """An agent that holds these keys; which of them is asked for is noted by nobody."""

    def __init__(self, *blobs: bytes, silent: bool = False) -> None:
        self.blobs, self.silent, self.closed = blobs, silent, 0

    def keys(self) -> tuple[Any, ...]:
        return tuple(AgentKey(cast(Any, self), one, "me") for one in self.blobs)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> dict[str, Agent]:
    """By the paths of their sockets."""
    made: dict[str, Agent] = {}
    monkeypatch.setattr(module, "SshAgent", made.__getitem__)
    return made


def config(*files: Path | str, **more: Any) -> HostConfig:
    return HostConfig("n1", "n1", "me", identity_files=tuple(map(str, files)), **more)


def labels(found: list[Candidate]) -> list[str]:
    return [one.label for one in found]


def held(number: int) -> str:
    return f"agent: {fingerprint(blob(number))}"


# -- which ----------------------------------------------------------------------------------


def test_the_order(agents: dict[str, Agent], tmp_path: Path) -> None:
    """Keys of the config that the agent holds, its others, key files."""
    agents["a"] = Agent(blob(1), blob(2), blob(3))
    files = [tmp_path / name for name in ("one", "two", "three")]
    for number, file in zip((9, 3, 4), files, strict=True):
        file.write_text("a key")
        public(Path(f"{file}.pub"), blob(number))
    usual = config(*files, identity_agent="a")
    found = Identities().candidates(usual)
    assert labels(found) == [held(3), held(1), held(2), str(files[0]), str(files[2])]
    assert [one.path for one in found] == [None, None, None, str(files[0]), str(files[2])]
    only = config(*files, identity_agent="a", identities_only=True)
    assert labels(Identities().candidates(only)) == [held(3), str(files[0]), str(files[2])]


@cases(
    ("options", "known"),
    [
        (("-N", "secret", "-a", "1"), True),
        ((), True),
        (("-t", "ecdsa"), True),
        (("-t", "ecdsa", "-m", "PEM"), False),  # has no public half that can be read unlocked
    ],
)
def test_a_key_that_the_agent_holds_needs_no_passphrase(
    agents: dict[str, Agent], tmp_path: Path, options: tuple[str, ...], known: bool
) -> None:
    """A file of OpenSSH's own format has its public half inside, in the clear."""
    file = keygen(tmp_path / "locked", *options)
    kind, text, _ = (tmp_path / "locked.pub").read_text().split()
    (tmp_path / "locked.pub").unlink()
    agents["a"] = Agent(blob(1), base64.b64decode(text))
    only = config(file, identity_agent="a", identities_only=True)
    label = f"agent: {fingerprint(base64.b64decode(text))}" if known else str(file)
    assert labels(Identities().candidates(only)) == [label], kind


def test_a_file_without_its_public_half_may_be_any(
    agents: dict[str, Agent], tmp_path: Path
) -> None:
    agents["a"] = Agent(blob(1))
    file = tmp_path / "one"
    file.write_text("a key")
    found = Identities().candidates(config(file, tmp_path / "missing", identity_agent="a"))
    assert labels(found) == [held(1), str(file)]


@cases("named", ["one", "one.pub"])
def test_a_public_half_alone_names_a_key_of_the_agent(
    agents: dict[str, Agent], tmp_path: Path, named: str
) -> None:
    """Be it beside the file of the config, or that file itself: then nothing is read from it."""
    agents["a"] = Agent(blob(1), blob(2), blob(3))
    public(tmp_path / "one.pub", blob(2))
    usual = config(tmp_path / named, identity_agent="a")
    assert labels(Identities().candidates(usual)) == [held(2), held(1), held(3)]
    only = replace(usual, identities_only=True)
    assert labels(Identities().candidates(only)) == [held(2)]


def test_a_public_half_whose_key_nobody_holds(agents: dict[str, Agent], tmp_path: Path) -> None:
    agents["a"] = Agent(blob(1))
    file = tmp_path / "one.pub"
    public(file, blob(2))
    keys = Identities()
    (only,) = keys.candidates(config(file, identity_agent="a", identities_only=True))
    assert only.load() is None
    assert keys.notices == [f"{file}: a public key, and no ssh-agent holds its private half"]


def test_without_an_agent_there_are_files(agents: dict[str, Agent], tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("a key")
    for path in (None, ""):
        assert labels(Identities().candidates(config(file, identity_agent=path))) == [str(file)]
    assert Identities().candidates(config(tmp_path / "missing")) == []


def test_certificates_of_files(tmp_path: Path) -> None:
    """Each goes with the key that it is about."""
    file, other = tmp_path / "one", tmp_path / "other"
    beside, far, stranger = tmp_path / "one-cert.pub", tmp_path / "far", tmp_path / "stranger"
    for path in (file, other):
        path.write_text("a key")
    public(tmp_path / "one.pub", blob(1))
    public(beside, certificate_of(blob(1)))
    public(far, certificate_of(blob(1)))
    public(stranger, certificate_of(blob(7)))
    files = config(file, other, certificate_files=(str(far), str(stranger), "missing"))
    found = Identities().candidates(files)
    assert labels(found) == [str(far), str(beside), str(file), str(other)]
    assert [one.path for one in found] == [str(file)] * 3 + [str(other)]


@cases(
    ("certificate", "asked"),
    [
        (certificate_of(blob(1)), [certificate_of(blob(1)), blob(1)]),  # it holds the plain key
        (certificate_of(blob(2)), [certificate_of(blob(2)), blob(1)]),  # of a key that no file has
        (certificate_of(blob(3)), [certificate_of(blob(3)), blob(1)]),  # it holds the certificate
        (certificate_of(blob(4)), [blob(1)]),
        (SECURITY_CERTIFICATE, [SECURITY_CERTIFICATE, blob(1)]),
    ],
)
def test_a_certificate_for_a_key_that_the_agent_holds(
    agents: dict[str, Agent], tmp_path: Path, certificate: bytes, asked: list[bytes]
) -> None:
    agents["a"] = Agent(blob(1), blob(2), certificate_of(blob(3)), SECURITY_KEY)
    file = tmp_path / "one"
    file.write_text("a key")
    public(tmp_path / "one.pub", blob(1))
    usual = config(file, identity_agent="a", identities_only=True)
    named = replace(usual, certificate_files=(str(tmp_path / "far"),))
    for path, only in ((tmp_path / "far", named), (tmp_path / "one-cert.pub", usual)):
        public(path, certificate)
        labels_found = labels(Identities().candidates(only))
        assert labels_found == [f"agent: {fingerprint(one)}" for one in asked]


def test_a_certificate_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("a key")
    public(tmp_path / "one.pub", blob(1))
    for content in ("", "one-word", "ssh-x !!", "ssh-x " + base64.b64encode(b"\0").decode()):
        (tmp_path / "one-cert.pub").write_text(content)
        assert labels(Identities().candidates(config(file))) == [str(file)]


def test_a_certificate_beside_a_key_without_public_half_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("a key")
    public(tmp_path / "one-cert.pub", certificate_of(blob(1)))
    public(tmp_path / "far", certificate_of(blob(1)))
    found = Identities().candidates(config(file, certificate_files=(str(tmp_path / "far"),)))
    assert labels(found) == [f"{file}-cert.pub", str(file)]


#: an agent's keys by what they are called here
HELD = {
    "ed": blob(1),
    "cert": certificate_of(blob(2)),
    "rsa": rsa(1024),
    "sk": SECURITY_KEY,
    "broken": b"",
}


@cases(
    ("listed", "names"),
    [
        ("+ssh-rsa", "ed cert rsa sk"),
        ("ssh-ed25519", "ed"),
        ("-ssh-ed25519", "cert rsa sk"),
        ("rsa-sha2-256", "rsa"),
        ("-rsa-sha2-512", "ed cert rsa sk"),
        ("-rsa-sha2-*", "ed cert sk"),
        ("*-cert-v01@openssh.com", "cert"),
        ("sk-*", "sk"),
        ("ecdsa-*", ""),
    ],
)
def test_keys_that_the_config_allows(agents: dict[str, Agent], listed: str, names: str) -> None:
    agents["a"] = Agent(*HELD.values())
    usual = config(identity_agent="a", algorithms=(("pubkeyacceptedalgorithms", listed),))
    found = Identities().candidates(usual)
    assert [one.blob for one in found] == [HELD[name] for name in names.split()]


@cases(("least", "sizes"), [(1024, [1024, 2048]), (1025, [2048]), (2048, [2048]), (2049, [])])
def test_the_least_size_of_an_rsa_key(
    agents: dict[str, Agent], least: int, sizes: list[int]
) -> None:
    agents["a"] = Agent(rsa(1016), rsa(1024), rsa(2048), blob(1))
    found = Identities().candidates(config(identity_agent="a", rsa_bits=least))
    assert [one.blob for one in found] == [*(rsa(size) for size in sizes), blob(1)]


@cases("options", [("-t", "ecdsa"), ("-t", "ecdsa", "-m", "PEM")])
def test_a_file_that_the_config_does_not_allow(tmp_path: Path, options: tuple[str, ...]) -> None:
    """One whose type is not known before it is read is read, and not used."""
    file = keygen(tmp_path / "one", *options)
    (tmp_path / "one.pub").unlink()
    for listed, allowed in (("ssh-ed25519", False), ("ecdsa-*", True)):
        usual = config(file, algorithms=(("pubkeyacceptedalgorithms", listed),))
        keys = Identities()
        loaded = [one.load() for one in keys.candidates(usual)]
        assert any(loaded) == allowed
        assert keys.missing(usual) == f"no ssh-agent, and ssh_config excludes {file}"


def test_what_has_worked_goes_first(agents: dict[str, Agent], tmp_path: Path) -> None:
    agents["a"] = Agent(blob(1), blob(2), blob(3))
    keys, usual = Identities(), config(identity_agent="a")
    first, second, third = keys.candidates(usual)
    for one in (third, second, third):
        keys.worked(one)
    assert labels(keys.candidates(usual)) == [third.label, second.label, first.label]


def test_one_agent_for_all_hosts_until_the_end(agents: dict[str, Agent]) -> None:
    agents["a"], agents["b"] = Agent(blob(1)), Agent(blob(2))
    keys = Identities()
    for path in ("a", "b", "a"):
        assert labels(keys.candidates(config(identity_agent=path))) == [
            held(1 if path == "a" else 2)
        ]
    kept, agents["a"] = agents["a"], Agent(blob(3))
    assert labels(keys.candidates(config(identity_agent="a"))) == [held(1)]
    keys.close()
    assert (kept.closed, agents["b"].closed) == (1, 1)


# -- loading ----------------------------------------------------------------------------------


def test_a_file_is_read_once_for_all_hosts(tmp_path: Path) -> None:
    file = keygen(tmp_path / "one")
    keys = Identities()
    (first,), (second,) = keys.candidates(config(file)), keys.candidates(config(file))
    key = first.load()
    assert key.get_name() == "ssh-ed25519"
    file.unlink()
    assert second.load() is key
    assert keys.notices == []


@cases(
    ("answers", "asked", "notice"),
    [
        (["secret"], 1, None),
        (["wrong", "secret"], 2, None),
        (["wrong", "wrong", "secret"], 3, None),
        (["wrong"] * 9, 3, "wrong passphrase"),
        ([None], 1, "it has a passphrase, and none was typed"),
        (["wrong", None], 2, "it has a passphrase, and none was typed"),
        (None, 0, "it has a passphrase, and none was typed"),
    ],
)
@pytest.mark.parametrize(
    "options", [(), ("-t", "ecdsa", "-m", "PKCS8"), ("-t", "ecdsa", "-m", "PEM")], ids="".join
)
def test_a_passphrase(
    tmp_path: Path, answers: list[str | None] | None, asked: int, notice: str | None,
    options: tuple[str, ...],
) -> None:  # fmt: skip
    file = keygen(tmp_path / "locked", "-N", "secret", "-a", "1", *options)  # quick to try
    prompts: list[str] = []

    def ask(prompt: str) -> str | None:
        prompts.append(prompt)
        assert answers is not None
        return answers[len(prompts) - 1]

    keys = Identities(None if answers is None else ask)
    (candidate,) = keys.candidates(config(file))
    for _ in range(2):  # nobody is asked again
        assert (candidate.load() is None) is (notice is not None)
    again = f"wrong, try again: passphrase for {file}: "
    assert prompts == [f"passphrase for {file}: ", again, again][:asked]
    assert keys.notices == ([] if notice is None else [f"{file}: {notice}"])


@cases(
    ("text", "why"),
    [
        ("", "not a private key"),
        ("no key", "not a private key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "cut short"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n", "not a private key that can be read"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
            "not a private key that can be read",
        ),
    ],
)
def test_a_file_that_is_no_key(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "one"
    file.write_text(text)
    file.chmod(0o600)
    keys = Identities()
    (candidate,) = keys.candidates(config(file))
    assert candidate.load() is None
    assert keys.notices == [f"{file}: {why}"]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o640])
def test_a_key_that_others_may_read_is_not_used(tmp_path: Path, mode: int) -> None:
    file = keygen(tmp_path / "one")
    file.chmod(mode)
    keys = Identities()
    (candidate,) = keys.candidates(config(file))
    if mode & 0o077:
        assert candidate.load() is None
        assert keys.notices == [f"{file}: others may read it: chmod 600 {file}"]
    else:
        assert candidate.load() is not None


def test_a_security_key_is_for_others(tmp_path: Path) -> None:
    inside = ssh_string(b"sk-ssh-ed25519@openssh.com") + ssh_string(b"x")
    data = b"openssh-key-v1\0" + 3 * ssh_string(b"none") + b"\0\0\0\1" + ssh_string(inside)
    text = base64.b64encode(data).decode().rstrip("=")
    file = tmp_path / "sk"
    file.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{text}\n-----END-----\n")
    file.chmod(0o600)
    keys = Identities()
    assert keys.candidates(config(file))[0].load() is None
    assert keys.notices[0].startswith(f"{file}: a security key: only an ssh-agent or --transport")


def test_the_first_key_that_serves_is_loaded_ahead(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no key")
    good, later = keygen(tmp_path / "good"), tmp_path / "later"
    later.write_text("not looked at")
    keys = Identities()
    keys.load_first(config(tmp_path / "broken", good, later))
    assert keys.notices == [f"{tmp_path / 'broken'}: not a private key"]


# -- why nobody was let in ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "agent", "said"),
    [
        ((), None, "no ssh-agent"),
        (("/a", "/b"), None, "no ssh-agent, and there is no /a, /b"),
        (("/a", "/b", "/c", "/d"), None, "no ssh-agent, and there is no /a, /b, /c"),
        ((), Agent(), "the ssh-agent holds none"),
        (("/a",), Agent(silent=True), "the ssh-agent does not answer, and there is no /a"),
    ],
)
def test_what_there_is_instead_of_a_key(
    agents: dict[str, Agent], files: tuple[str, ...], agent: Agent | None, said: str
) -> None:
    keys = Identities()
    usual = config(*files, identity_agent=None if agent is None else "a")
    if agent is not None:
        agents["a"] = agent
        keys.candidates(usual)
    assert keys.missing(usual) == said
    if agent is not None:
        assert "does not answer" in Identities().missing(usual)  # nobody has asked it


@cases(
    ("offered", "named"),
    [
        (["publickey", "password"], ("publickey", "password")),
        (["a\x1b[0m\nb", "", "ü", "x" * 50], ("a[0mb", "x" * 40)),
        ([str(number) for number in range(12)], tuple(map(str, range(8)))),
    ],
)
def test_ways_to_log_in_are_fit_for_a_message(offered: list[str], named: tuple[str, ...]) -> None:
    assert methods(offered) == named


HOSTBASED = "--transport ssh  # with HostbasedAuthentication yes in ssh_config"
KERBEROS = "--transport ssh  # the system's ssh can log in by Kerberos"
ALONE = "AuthenticationMethods publickey  # in its sshd_config"
OTHER = "or is it another user there? --user NAME"
OR = f"or --ask-pass; {OTHER}"


@cases(
    ("offered", "more", "why", "hint"),
    [
        (("password",), True, "me: a key is not enough for this host: it wants password as well",
         ASK),
        (("hostbased",), True, "me: a key is not enough for this host: it wants hostbased as well",
         HOSTBASED),
        (("hostbased",), False, "me: this host takes no keys, only hostbased", HOSTBASED),
        (("keyboard",), True, "me: a key is not enough for this host: it wants keyboard as well",
         ALONE),
        (("gssapi-with-mic",), True,
         "me: a key is not enough for this host: it wants gssapi-with-mic as well", KERBEROS),
        (("password", "hostbased"), False,
         "me: this host takes no keys, only password, hostbased", ASK),
        (("gssapi-keyex", "password"), False,
         "me: this host takes no keys, only gssapi-keyex, password", ASK),
        (("publickey",), False,
         "me: there is no key to log in with: no ssh-agent, and there is no /missing",
         "ssh-keygen -t ed25519  # and have its public half put into authorized_keys on the host"),
        ((), False,
         "me: there is no key to log in with: no ssh-agent, and there is no /missing",
         "ssh-keygen -t ed25519  # and have its public half put into authorized_keys on the host"),
        (("publickey", "keyboard-interactive"), False,
         "me: there is no key to log in with: no ssh-agent, and there is no /missing; the host "
         "also takes keyboard-interactive",
         "ssh-keygen -t ed25519 && ssh-copy-id -p 2222 me@n1  # or --ask-pass"),
    ],
)  # fmt: skip
def test_a_login_without_a_key(offered: tuple[str, ...], more: bool, why: str, hint: str) -> None:
    failure = login_refused(config("/missing", port=2222), Identities(), [], offered, more=more)
    assert (failure.kind, failure.why, failure.hint) == (Kind.AUTH, why, hint)


def test_a_login_with_a_key_that_ssh_config_excludes(
    agents: dict[str, Agent], tmp_path: Path
) -> None:
    agents["a"] = Agent(blob(1))
    file = tmp_path / "one"
    file.write_text("a key")
    excludes = (("pubkeyacceptedalgorithms", "rsa-*"),)
    usual = config(file, "/missing", identity_agent="a", algorithms=excludes)
    keys = Identities()
    keys.candidates(usual)
    failure = login_refused(usual, keys, [], ("publickey",), more=False)
    assert failure.why == (
        "me: there is no key to log in with: the ssh-agent holds none that ssh_config allows, "
        f"and ssh_config excludes {file}, and there is no /missing"
    )
    assert failure.hint == "ssh -v n1 true  # it says by which option"


def test_a_login_with_keys_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "my key"
    file.write_text("x")
    public(tmp_path / "my key.pub", blob(1))
    tried = [Candidate("agent: x", lambda: None), Candidate("label", lambda: None, str(file))]
    failure = login_refused(config(file), Identities(), tried, ("publickey",), more=False)
    assert failure.why == "me: refused: agent: x, label"
    where = "has to be a line of ~me/.ssh/authorized_keys on the host"
    assert failure.hint == f"cat '{file}.pub'  # {where}; {OTHER}"
    failure = login_refused(config(), Identities(), tried[:1], ("publickey",), more=False)
    assert failure.hint == f"ssh -v n1 true  # {OTHER}"


def test_a_login_with_keys_that_cannot_be_used(tmp_path: Path) -> None:
    keys = Identities()
    keys.notices = ["/other: broken", "/a: broken", "/b-cert.pub: broken too", "/ab: is no /a"]
    failure = login_refused(config("/a", "/b"), keys, [], (), more=False)
    assert (failure.why, failure.hint) == (
        "me: /a: broken; /b-cert.pub: broken too", "ssh -v n1 true",
    )  # fmt: skip
    keys.notices.append("/c d: it has a passphrase, and none was typed")
    tried = [Candidate("/x", lambda: None, "/x")]
    failure = login_refused(config("/a", "/b", "/c d"), keys, tried, (), more=False)
    assert failure.why.startswith("me: refused: /x; /a: broken; /b-cert.pub: broken too; /c d: it")
    assert failure.hint == "ssh-add '/c d'"
    keys.notices += [f"/{number}: broken" for number in range(5)]
    many = login_refused(config(*(f"/{n}" for n in range(5))), keys, [], (), more=False)
    assert many.why == "me: /0: broken; /1: broken; /2: broken"


@cases(
    ("login", "port", "offered", "file", "hint"),
    [
        ("me@n1", None, ("publickey", "password"), "", f"ssh-copy-id me@n1  # {OR}"),
        ("me@n1", 22, ("keyboard-interactive",), "", f"ssh-copy-id me@n1  # {OR}"),
        ("me@n1", 23, ("password",), "key",
         f"ssh-copy-id -i {{key}}.pub -p 23 me@n1  # {OR}"),
        ("me@n1", 23, ("publickey",), "key",
         f"cat {{key}}.pub  # has to be a line of ~me/.ssh/authorized_keys on the host; {OTHER}"),
        ("n1", 23, ("publickey",), "key",
         f"cat {{key}}.pub  # has to be a line of authorized_keys on the host; {OTHER}"),
        ("me@realm@n1", 23, ("publickey",), "missing", f"ssh -v n1 true  # {OTHER}"),
        ("me@n1", 23, ("publickey",), "", f"ssh -v n1 true  # {OTHER}"),
    ],
)  # fmt: skip
def test_what_to_do_about_refused_keys(
    tmp_path: Path, login: str, port: int | None, offered: tuple[str, ...], file: str, hint: str
) -> None:
    public(tmp_path / "key.pub", blob(1))
    key = str(tmp_path / file) if file else ""
    assert refused_key(login, port, offered, key) == hint.format(key=key)


def test_what_to_do_about_a_host_that_takes_no_keys() -> None:
    assert takes_no_key(("password", "gssapi-with-mic")) == ASK
    assert takes_no_key(("hostbased", "gssapi-with-mic")) == KERBEROS
    assert takes_no_key(()) == "PubkeyAuthentication yes  # in its sshd_config"
    assert takes_no_key(("gssapi-with-mic",), ASK_NOT_BY_SSH).startswith("kinit  # ")
    assert takes_no_key(("hostbased",), ASK_NOT_BY_SSH).startswith("HostbasedAuthentication yes  #")


@pytest.mark.parametrize("wanted", [True, False])
def test_a_host_that_ssh_would_log_in_to_by_the_key_of_this_machine(wanted: bool) -> None:
    usual = replace(config("/missing"), hostbased=wanted)
    for tried in ([], [Candidate("label", lambda: None)]):
        failure = login_refused(usual, Identities(), tried, ("publickey", "hostbased"), more=False)
        assert (failure.hint == HOSTBASED) is wanted


def test_a_host_that_ssh_config_lets_nobody_type_for() -> None:
    quiet = replace(config("/missing"), methods=("publickey",))
    for more in (False, True):
        failure = login_refused(quiet, Identities(), [], ("password",), more=more)
        assert (failure.hint or "").startswith("BatchMode no  # in ssh_config")
