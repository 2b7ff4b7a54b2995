"""The keys to log in with (``Identities.candidates``), and why no login worked (``login_refused``).

Order, as in ssh: keys named in the config that the agent signs for, other keys of the agent, key
files. A key that worked for another host of this run goes first, so that a fan-out makes one
attempt a host: sshd counts them. A key file is read when its turn comes, and dispatch asks for its
passphrase once.
"""

from __future__ import annotations

import base64
import io
import os
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatcher.model.failure import Failure, Kind
from dispatcher.model.paths import open_regular
from dispatcher.transport.ssh_auth.known_hosts import (
    Reader,
    fingerprint,
    key_algorithms,
    kind_of,
    plain_key,
    rsa_bits,
)
from dispatcher.transport.ssh_auth.ssh_agent import AgentKey, SshAgent
from dispatcher.transport.ssh_config.host_config import TYPED, HostConfig

_PASSPHRASES = 3

#: Asks the user for a secret; ``None`` when the user gives none.
Ask = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Candidate:
    """A key that a host may take; ``load`` gives the object that paramiko signs with."""

    label: str  # for messages: a path or "agent: comment"
    load: Callable[[], Any]  # a paramiko.PKey, an AgentKey, or None when it cannot serve
    path: str | None = None  # of the key's file
    blob: bytes | None = None  # the public half or certificate, where it is known unlocked


class Identities:
    """All keys of a run, shared by all hosts and threads."""

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._agents: dict[str, SshAgent] = {}
        self._files: dict[tuple[str, str], _KeyFile] = {}
        self._worked: list[str] = []
        self._asking = threading.Lock()
        self.notices: list[str] = []

    def candidates(self, config: HostConfig) -> list[Candidate]:
        """The keys to try for a host, best first."""
        held = {key.blob: key for key in self._agent_keys(config)}
        named: dict[bytes, AgentKey] = {}
        files: list[Candidate] = []
        for path in config.identity_files:
            exists, public = os.path.exists(path), _public_half(path)
            beside = path + "-cert.pub"
            for name in (*config.certificate_files, beside):
                blob = _public_blob(name)
                if (key := _signing(held, blob)) is not None:
                    named[key.blob] = key
                elif exists and _is_for(blob, public, name == beside):
                    files.append(self._from_file(path, name, blob, config))
            if (key := _signing(held, public)) is not None:
                named[key.blob] = key
            elif exists:
                files.append(self._from_file(path, "", public, config))
        others = [] if config.identities_only else [held[one] for one in held if one not in named]
        agents = [self._from_agent(key) for key in (*named.values(), *others)]
        found = [one for one in agents + files if one.blob is None or _allows(config, one.blob)]
        with self._lock:
            rank = {label: place for place, label in enumerate(self._worked)}
        return sorted(found, key=lambda candidate: rank.get(candidate.label, len(rank)))

    def missing(self, config: HostConfig) -> str:
        """Why there is no key: an agent without one, files that do not exist."""
        found = "no ssh-agent"
        if config.identity_agent:
            agent = self._agents.get(config.identity_agent)
            found = "the ssh-agent holds none"
            if agent is None or agent.silent:
                found = "the ssh-agent does not answer"
            elif agent.keys():
                found += " that ssh_config allows"
        parts = [found]
        files = config.identity_files[:3]
        if excluded := [path for path in files if os.path.exists(path)]:
            parts.append(f"ssh_config excludes {', '.join(excluded)}")
        if absent := [path for path in files if path not in excluded]:
            parts.append(f"there is no {', '.join(absent)}")
        return ", and ".join(parts)

    def load_first(self, config: HostConfig) -> None:
        """Load the key that will be tried first; the user may have to type its passphrase."""
        for candidate in self.candidates(config):
            if candidate.load() is not None:
                break

    def worked(self, candidate: Candidate) -> None:
        """Try this key first from now on."""
        with self._lock:
            if candidate.label not in self._worked:
                self._worked.append(candidate.label)

    def close(self) -> None:
        """Close the agent connections; idempotent."""
        with self._lock:
            agents = list(self._agents.values())
        for agent in agents:
            agent.close()

    def _agent_keys(self, config: HostConfig) -> tuple[AgentKey, ...]:
        path = config.identity_agent
        if not path:
            return ()
        with self._lock:
            agent = self._agents.setdefault(path, SshAgent(path))
        return agent.keys()

    def _from_agent(self, key: AgentKey) -> Candidate:
        return Candidate(_agent_label(key.blob), lambda: key, blob=key.blob)

    def _from_file(
        self, path: str, certificate: str, blob: bytes | None, config: HostConfig
    ) -> Candidate:
        with self._lock:
            if (path, certificate) not in self._files:
                self._files[path, certificate] = _KeyFile(path, certificate, self)
            file = self._files[path, certificate]

        def load() -> Any:
            key = file.load()
            return key if key is None or blob or _allows(config, key.asbytes()) else None

        return Candidate(certificate or path, load, path, blob)

    def ask_passphrase(self, path: str, attempt: int) -> str | None:
        """The user's passphrase for a key file; ``None`` when there is no user to ask."""
        if self._ask is None:
            return None
        again = "wrong, try again: " if attempt else ""
        with self._asking:  # one prompt on the terminal at a time
            return self._ask(f"{again}passphrase for {path}: ")


class _KeyFile:
    """One private key file (with a certificate), read at most once."""

    def __init__(self, path: str, certificate: str, owner: Identities) -> None:
        self._path = path
        self._certificate = certificate
        self._owner = owner
        self._lock = threading.Lock()
        self._loaded = False
        self._key: Any = None

    def load(self) -> Any:
        """The key, or ``None`` when it cannot serve; the reason is then in the notices."""
        with self._lock:
            if not self._loaded:
                self._key = self._read()
                self._loaded = True
            return self._key

    def _read(self) -> Any:
        import paramiko

        passphrase: str | None = None
        for attempt in range(_PASSPHRASES + 1):
            try:
                return self._parse(passphrase)
            except paramiko.PasswordRequiredException:
                pass
            except (paramiko.SSHException, ValueError, OSError) as error:
                if passphrase is None:
                    return self._unusable(str(error))
            if attempt < _PASSPHRASES:
                passphrase = self._owner.ask_passphrase(self._path, attempt)
            if passphrase is None:
                return self._unusable("it has a passphrase, and none was typed")
        return self._unusable("wrong passphrase")

    def _parse(self, passphrase: str | None) -> Any:
        import paramiko

        text = _text(self._path)
        if "PRIVATE KEY" not in text:
            is_public = _public_blob(self._path) is not None
            agents = "a public key, and no ssh-agent holds its private half"
            raise ValueError(agents if is_public else "not a private key")
        found = os.stat(self._path)
        if found.st_uid == os.geteuid() and found.st_mode & 0o077:  # ssh refuses it, too
            raise ValueError(f"others may read it: chmod 600 {self._path}")
        if _OPENSSH not in text:
            text, passphrase = _from_pem(text, passphrase), None
        kind = kind_of(_stored_half(text))
        if kind.startswith("sk-"):
            raise ValueError("a security key: only an ssh-agent or --transport ssh can use it")
        classes = {"ssh-ed25519": paramiko.Ed25519Key, "ssh-rsa": paramiko.RSAKey}
        key = classes.get(kind, paramiko.ECDSAKey)(file_obj=io.StringIO(text), password=passphrase)
        if self._certificate:
            key.load_certificate(self._certificate)
        return key

    def _unusable(self, why: str) -> None:
        self._owner.notices.append(f"{self._certificate or self._path}: {why}")


_OPENSSH = "BEGIN OPENSSH PRIVATE KEY"


def _allows(config: HostConfig, blob: bytes) -> bool:
    """Whether the config lets us log in with this key or certificate."""
    try:
        bits, kind = rsa_bits(blob), kind_of(blob)
    except ValueError:
        return False
    if bits is not None and bits < config.rsa_bits:
        return False
    return bool(config.allowed("pubkeyacceptedalgorithms", key_algorithms(kind)))


def _signing(held: dict[bytes, AgentKey], blob: bytes | None) -> AgentKey | None:
    """The agent's key for a public half; for a certificate also the plain key that it certifies."""
    if blob is None:
        return None
    try:
        plain = plain_key(blob)
    except ValueError:
        return held.get(blob)
    if blob in held or plain not in held:
        return held.get(blob)
    return replace(held[plain], blob=blob, signer=plain)


def _agent_label(blob: bytes) -> str:
    return f"agent: {fingerprint(blob)}"


def _from_pem(text: str, passphrase: str | None) -> str:
    """Convert a PKCS#8 or older PEM key to OpenSSH's format. Raises: PasswordRequiredException."""
    from cryptography.hazmat.primitives import serialization as pem
    from paramiko import PasswordRequiredException

    secret = None if passphrase is None else passphrase.encode()
    try:
        key: Any = pem.load_pem_private_key(text.encode(), secret)
    except TypeError as error:  # it has a passphrase
        raise PasswordRequiredException(str(error)) from None
    except Exception:  # noqa: BLE001 - of its own kinds, some without a common base
        raise ValueError("not a private key that can be read") from None
    form = (pem.Encoding.PEM, pem.PrivateFormat.OpenSSH, pem.NoEncryption())
    return str(key.private_bytes(*form), "ascii")


def _stored_half(text: str) -> bytes:
    """The public half that OpenSSH's own format keeps unlocked. Raises: ValueError."""
    if _OPENSSH not in text:
        raise ValueError("another format")
    body = "".join(line for line in text.splitlines() if "-----" not in line)
    data = base64.b64decode(body + "=" * (-len(body) % 4))
    reader = Reader(data.removeprefix(b"openssh-key-v1\0"))
    for _ in range(3):
        reader.string()  # cipher, key derivation, its options
    reader.number(4)  # how many keys
    return reader.string()


def _text(path: str) -> str:
    with open(open_regular(path), encoding="ascii", errors="replace") as file:
        return file.read(1 << 16)


def _public_half(path: str) -> bytes | None:
    """The public key for an IdentityFile: that file, the ``.pub`` beside it, or its inner half."""
    for name in (path, path + ".pub"):
        if (found := _public_blob(name)) is not None:
            return found
    try:
        found = _stored_half(_text(path))
        kind_of(found)
    except (OSError, ValueError):
        return None
    return found


def _public_blob(path: str) -> bytes | None:
    """The key or certificate in a ``.pub`` file; None for any other file."""
    try:
        with open(open_regular(path), encoding="ascii", errors="replace") as file:
            kind, text = file.readline(1 << 16).split()[:2]
        blob = base64.b64decode(text)
        return blob if kind_of(blob) == kind else None
    except (OSError, ValueError):
        return None


def _is_for(certificate: bytes | None, public: bytes | None, beside: bool) -> bool:
    """True when the certificate certifies this key; if one is unreadable, when it is ``beside``."""
    if certificate is None or public is None:
        return certificate is not None and beside
    try:
        return plain_key(certificate) == public
    except ValueError:
        return False


_ONE_KEY = "IdentitiesOnly yes  # in ssh_config, below an IdentityFile that this host takes"
_KEYS_ALONE = "AuthenticationMethods publickey  # in its sshd_config"
_KERBEROS = "--transport ssh  # the system's ssh can log in by Kerberos"
#: the options that let dispatch ask for a password, each with its effect
ASK = "--ask-pass  # to type the password, once for all hosts, and answer their questions"
ASK_NOT_BY_SSH = "--ask-pass  # without --transport ssh, which cannot ask"
_HOSTBASED = "--transport ssh  # with HostbasedAuthentication yes in ssh_config"
_NOT_ASKED = "BatchMode no  # in ssh_config, which forbids the prompts that this host needs"

#: methods that a message names of a host, letters of each; keys that a message names
_MOST, _LONGEST = 8, 40


def methods(offered: Sequence[str]) -> tuple[str, ...]:
    """The ways to log in that a host has ``offered``, cut for a message."""
    named = ("".join(c for c in name if c.isascii() and c.isprintable()) for name in offered)
    return tuple(name[:_LONGEST] for name in named if name)[:_MOST]


def login_refused(
    config: HostConfig,
    identities: Identities,
    tried: Sequence[Candidate],
    offered: tuple[str, ...],
    *,
    more: bool,
    typed: str = "",
    unable: Sequence[str] = (),
    untried: Sequence[str] | None = None,
) -> Failure:
    """The failure of a login with the keys ``tried`` on a host that takes what it ``offered``.

    more: a key was right, but not enough. typed: how the typed answer failed, if one was typed.
    unable: keys that did not sign, and why. untried: those left when the host hung up, if it did.
    """
    user, login, port = config.user, f"{config.user}@{config.name}", config.port
    named = ", ".join(offered)
    if typed:
        hint = "--user NAME  # or is it another user there?"
        return Failure(Kind.AUTH, f"{user}: {typed}; the host takes {named}", hint)
    wants_typed = TYPED.intersection(offered)
    ask = ASK if wants_typed.intersection(config.methods) else _NOT_ASKED
    if more:
        why = f"{user}: a key is not enough for this host: it wants {named} as well"
        other = _by_ssh(offered, ask) or _KEYS_ALONE
        return Failure(Kind.AUTH, why, ask if wants_typed else other)
    if offered and "publickey" not in offered:
        why = f"{user}: this host takes no keys, only {named}"
        return Failure(Kind.AUTH, why, takes_no_key(offered, ask))
    unusable = {
        path: notice
        for notice in identities.notices
        for path in config.identity_files
        if notice.startswith((f"{path}:", f"{path}-cert.pub:"))
    }
    reasons = [f"refused: {_some([one.label for one in tried])}"] if tried else []
    reasons += [*unable, *unusable.values()][:3]
    if untried is not None:
        reasons.append("the host hung up: Too many authentication failures")
        reasons += [f"not tried: {_some(untried)}"] if untried else []
    if wants_typed:
        ways = ", ".join(name for name in offered if name in wants_typed)
        reasons.append(f"the host also takes {ways}")
    why = f"{user}: {'; '.join(reasons)}"
    for path, notice in unusable.items():
        if "passphrase" in notice:
            return Failure(Kind.AUTH, why, f"ssh-add {shlex.quote(path)}")
    if config.hostbased and "hostbased" in offered:
        return Failure(Kind.AUTH, why, _HOSTBASED)
    if untried:
        return Failure(Kind.AUTH, why, _ONE_KEY)
    if tried:
        files = [one.path for one in tried if one.path is not None]
        hint = refused_key(login, port, offered, files[0] if files else "", ask)
        return Failure(Kind.AUTH, why, hint)
    if unusable or unable:
        return Failure(Kind.AUTH, why, f"ssh -v {shlex.quote(config.name)} true")
    missing = f"there is no key to log in with: {identities.missing(config)}"
    why = f"{user}: {'; '.join([missing, *reasons])}"
    hint = "ssh-keygen -t ed25519"
    if any(map(os.path.exists, config.identity_files)):
        hint = f"ssh -v {shlex.quote(config.name)} true  # it says by which option"
    elif wants_typed:
        hint += f" && {shlex.join(['ssh-copy-id', *_port(port), login])}  # or {_short(ask)}"
    else:
        hint += "  # and have its public half put into authorized_keys on the host"
    return Failure(Kind.AUTH, why, hint)


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MOST} more" if len(labels) > _MOST else ""
    return ", ".join(labels[:_MOST]) + more


def refused_key(
    login: str, port: int | None, offered: Sequence[str], file: str = "", ask: str = ASK
) -> str:
    """A hint for when all our keys were refused. login: ``me@n1``; file: of one of them."""
    user, _, host = login.rpartition("@")
    other = "or is it another user there? --user NAME"
    public = f"{file}.pub" if file and os.path.exists(f"{file}.pub") else ""
    if TYPED.intersection(offered):  # ssh-copy-id asks for the password
        words = ["ssh-copy-id", *(("-i", public) if public else ()), *_port(port), login]
        return f"{shlex.join(words)}  # or {_short(ask)}; {other}"
    if public:
        where = f"~{user}/.ssh/authorized_keys" if user else "authorized_keys"
        return f"cat {shlex.quote(public)}  # has to be a line of {where} on the host; {other}"
    return f"ssh -v {shlex.quote(host)} true  # {other}"


def takes_no_key(offered: Sequence[str], ask: str = ASK) -> str:
    """A hint for a host that takes no keys."""
    if TYPED.intersection(offered):
        return ask
    return _by_ssh(offered, ask) or "PubkeyAuthentication yes  # in its sshd_config"


def _short(ask: str) -> str:
    """``ask`` for a hint that has another remark."""
    option, _, remark = ask.partition("  # ")
    return f"{option} {remark.partition(',')[0]}" if ask == ASK_NOT_BY_SSH else option


def _by_ssh(offered: Sequence[str], ask: str = ASK) -> str:
    """The hint for a login that the system's ssh can do and this client cannot."""
    by_ssh = ask == ASK_NOT_BY_SSH  # the system's ssh tried this login
    if any(name.startswith("gssapi") for name in offered):
        return "kinit  # for a ticket of Kerberos" if by_ssh else _KERBEROS
    if "hostbased" in offered:
        return "HostbasedAuthentication yes  # in ssh_config" if by_ssh else _HOSTBASED
    return ""


def _port(port: int | None) -> tuple[str, ...]:
    return () if port in (None, 22) else ("-p", str(port))
