"""``HostConfig``: the checked facts about one host, and how raw values become them."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dispatcher.transport.base import Target, valid_host, valid_user
from dispatcher.transport.ssh_config import config_lines
from dispatcher.transport.ssh_config.config_lines import REFUSED, ConfigProblem, split_words

DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_HINT = "--transport ssh  # the system's ssh follows its own configuration"
_HINT_LOGIN = "--transport ssh  # the system's ssh can log in by Kerberos"
#: ways to log in, in ssh's usual order, and the options that turn each off
METHODS = {
    "publickey": "pubkeyauthentication",
    "keyboard-interactive": "kbdinteractiveauthentication",
    "password": "passwordauthentication",
}
#: those for which the user types
TYPED = frozenset({"keyboard-interactive", "password"})
_TRUE = ("yes", "true")
_FALSE = ("no", "false")
# "no" means "add new keys unasked" as well as "go on when a key changed"; the
# second is never done here. A fan-out cannot "ask".
_POLICIES = {(*_TRUE, "ask"): "strict", (*_FALSE, "off", "accept-new"): "accept-new"}
_FAMILIES: dict[tuple[str, ...], socket.AddressFamily] = {
    ("any",): socket.AF_UNSPEC, ("inet",): socket.AF_INET, ("inet6",): socket.AF_INET6,
}  # fmt: skip
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_ALGORITHMS = (
    "ciphers", "macs", "kexalgorithms", "hostkeyalgorithms", "pubkeyacceptedalgorithms",
    "casignaturealgorithms",
)  # fmt: skip
_RSA_BITS = 1024  # ssh's own least
Variables = tuple[tuple[str, str], ...]


T = TypeVar("T")


@dataclass(frozen=True)
class HostConfig:
    """Where and how to connect to one host.

    name: the user's name for it; host: the name to look up and dial.
    known_as: the name in known_hosts where it is another (HostKeyAlias).
    methods: ways to log in, best first. hostbased: ssh would log in by the key of this machine,
    which is not done here. second_try: whether a second password may be tried.
    identity_agent: socket path; ``None`` for the usual one, ``""`` for none.
    jumps: hosts to go through, first hop first.
    host_keys: ``strict`` or ``accept-new``. check_address: a key on file for the host's address
    has to be its key, too (CheckHostIP).
    alive_interval, alive_count: see ``base.Keepalive``; ``None`` where the config sets nothing.
    algorithms: the config's lists of ciphers, macs and so on, unparsed; see ``allowed``.
    rsa_bits: the least size of an RSA key, for hosts' keys and our own. environment: variables that
    the host should set for commands (SendEnv, SetEnv); sshd drops those that AcceptEnv lacks.
    """

    name: str
    host: str
    user: str
    port: int = 22
    known_as: str | None = None
    methods: tuple[str, ...] = tuple(METHODS)
    hostbased: bool = False
    second_try: bool = True
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    jumps: tuple[Target, ...] = ()
    proxy_command: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_keys: str = "strict"
    check_address: bool = False
    hash_known_hosts: bool = False
    connect_timeout: float | None = None
    alive_interval: float | None = None
    alive_count: int | None = None
    family: socket.AddressFamily = socket.AF_UNSPEC
    bind_address: str | None = None
    algorithms: tuple[tuple[str, str], ...] = ()
    rsa_bits: int = _RSA_BITS
    environment: Variables = ()

    def allowed(self, option: str, names: Sequence[str]) -> tuple[str, ...]:
        """The algorithms of ``names`` that the option allows, as ``pubkeyacceptedalgorithms``."""
        return config_lines.narrow(names, dict(self.algorithms).get(option))


class _Values:
    def __init__(self, raw: Mapping[str, Sequence[str]], origins: Mapping[str, str]) -> None:
        self.raw = raw
        self._origins = origins

    def place(self, keyword: str) -> str:
        return f"{self._origins.get(keyword, 'command line')}: {keyword}"

    def text(self, keyword: str) -> str | None:
        words = self.raw.get(keyword)
        return words[0] if words else None

    def optional(self, keyword: str) -> str | None:
        """Do as ``text``, but read the word ``none`` as no value."""
        value = self.text(keyword)
        return None if value is None or value.lower() == "none" else value

    def flag(self, keyword: str, default: bool) -> bool:
        return self.choice(keyword, {_TRUE: True, _FALSE: False}, default)

    def choice(self, keyword: str, choices: Mapping[tuple[str, ...], T], default: T) -> T:
        value = self.text(keyword)
        if value is None:
            return default
        for spellings, meaning in choices.items():
            if value.lower() in spellings:
                return meaning
        raise ConfigProblem(f"{self.place(keyword)}: bad value {value[:40]!r}")


def check(
    name: str,
    raw: Mapping[str, Sequence[str]],
    origins: Mapping[str, str],
    local: config_lines.Local,
    environ: Mapping[str, str],
) -> HostConfig:
    """The host's facts. Raises: ConfigProblem for a bad value, or one that cannot be followed."""
    values = _Values(raw, origins)
    _refuse(values)
    written, place = values.text("hostname") or "%h", values.place("hostname")
    host = config_lines.expand(written, {"h": name}, config_lines.HOSTNAME, place).lower()
    user = values.text("user") or local.user
    _check_names(host, user, values)
    port = _port(values.text("port"), values.place("port"))
    known_as = values.text("hostkeyalias")
    jump_text = values.optional("proxyjump")
    jump = jump_text or ""
    tokens = config_lines.token_values(
        local, original=name, host=host, port=str(port), user=user, alias=known_as, jump=jump
    )

    def file_name(text: str, keyword: str) -> str:
        place = values.place(keyword)
        path = config_lines.expand_home(text, local, place)
        path = config_lines.expand(path, tokens, config_lines.FILES, place)
        return config_lines.expand_variables(path, environ, place)

    jumps: tuple[Target, ...] = ()
    if jump_text is not None:
        place = values.place("proxyjump")
        jump_text = config_lines.expand(jump_text, tokens, config_lines.PROXY, place)
        jumps = jump_list(jump_text, place)
    command = values.optional("proxycommand")
    if command is not None:
        place = values.place("proxycommand")
        command = config_lines.expand(command, tokens, config_lines.PROXY, place, for_shell=True)
    return HostConfig(
        name=name,
        host=host,
        user=user,
        port=port,
        known_as=known_as.lower() if known_as else None,
        methods=_methods(values),
        hostbased=values.flag("hostbasedauthentication", False),
        second_try=_count(values, "numberofpasswordprompts") not in (0, 1),
        identity_files=_paths(
            raw.get("identityfile") or DEFAULT_IDENTITIES, "identityfile", file_name
        ),
        certificate_files=_paths(raw.get("certificatefile", ()), "certificatefile", file_name),
        identities_only=values.flag("identitiesonly", False),
        identity_agent=_agent(values, environ, file_name),
        jumps=jumps,
        proxy_command=command,
        user_known_hosts=_paths(
            raw.get("userknownhostsfile", _USER_KNOWN_HOSTS), "userknownhostsfile", file_name
        ),
        global_known_hosts=_paths(  # of these ssh expands ~ alone: no tokens, no variables
            raw.get("globalknownhostsfile", _GLOBAL_KNOWN_HOSTS),
            "globalknownhostsfile",
            lambda text, keyword: config_lines.expand_home(text, local, values.place(keyword)),
        ),
        host_keys=values.choice("stricthostkeychecking", _POLICIES, "strict"),
        check_address=values.flag("checkhostip", False),
        hash_known_hosts=values.flag("hashknownhosts", False),
        connect_timeout=_seconds(values, "connecttimeout") or None,
        alive_interval=_seconds(values, "serveraliveinterval"),
        alive_count=_count(values, "serveralivecountmax"),
        family=values.choice("addressfamily", _FAMILIES, socket.AF_UNSPEC),
        bind_address=values.text("bindaddress"),
        algorithms=tuple((key, raw[key][0]) for key in _ALGORITHMS if key in raw),
        rsa_bits=max(_RSA_BITS, _count(values, "requiredrsasize") or 0),
    )


def _refuse(values: _Values) -> None:
    if (why := values.text("refuseconnection")) is not None:
        place = values.place("refuseconnection")
        raise ConfigProblem(f"{place}: {why}", hint="-F FILE  # reads another config")
    for keyword, harmless in REFUSED.items():
        value = values.text(keyword)
        if value is not None and value.lower() not in harmless:
            why = "the built-in ssh client cannot do this"
            raise ConfigProblem(f"{values.place(keyword)}: {why}", _HINT)


def _methods(values: _Values) -> tuple[str, ...]:
    """The ways to log in, in the order that the config prefers. Raises: ConfigProblem for none."""
    preferred = (values.text("preferredauthentications") or ",".join(METHODS)).split(",")
    batch = values.flag("batchmode", False)
    found = tuple(
        dict.fromkeys(
            name
            for name in preferred
            if name in METHODS and _allows(values, name) and not (batch and name in TYPED)
        )
    )
    if not found:
        said = ("preferredauthentications", *METHODS.values(), "batchmode")
        raise ConfigProblem(
            f"{values.place(next(name for name in said if name in values.raw))}: "
            f"allows no way to log in that the built-in ssh client has: {', '.join(METHODS)}",
            hint=_HINT_LOGIN,
        )
    return found


def _allows(values: _Values, method: str) -> bool:
    spellings = {(*_TRUE, "unbound", "host-bound"): True, _FALSE: False}
    return values.choice(METHODS[method], spellings, True)


def _check_names(host: str, user: str, values: _Values) -> None:
    if not valid_host(host):
        raise ConfigProblem(f"{values.place('hostname')}: bad host name {host[:80]!r}")
    if not valid_user(user) or "%" in user:
        # Newer ssh expands tokens in User, older does not: the two mean different accounts.
        raise ConfigProblem(f"{values.place('user')}: bad user name {user[:80]!r}")
    alias = values.text("hostkeyalias")
    if alias is not None and not valid_host(alias):
        raise ConfigProblem(f"{values.place('hostkeyalias')}: bad name {alias[:80]!r}")


def _paths(
    words: Sequence[str], keyword: str, file_name: Callable[[str, str], str]
) -> tuple[str, ...]:
    return tuple(file_name(word, keyword) for word in words if word.lower() != "none")


def _agent(
    values: _Values, environ: Mapping[str, str], file_name: Callable[[str, str], str]
) -> str | None:
    written = values.text("identityagent")
    if written is None or written == "SSH_AUTH_SOCK":
        return environ.get("SSH_AUTH_SOCK") or ""
    if written.lower() == "none":
        return ""
    if written.startswith("$") and not written.startswith("${"):
        return environ.get(written[1:], "")
    return file_name(written, "identityagent")


def _seconds(values: _Values, keyword: str) -> float | None:
    """The option in seconds: 0 for ``none``, ``None`` where it is not set."""
    text = values.text(keyword)
    if text is None:
        return None
    if text.lower() == "none":
        return 0.0
    place = values.place(keyword)
    # each unit ends its number, so there is one way to match, however long the text is
    if not text or not re.fullmatch(r"(?:[0-9]{1,10}[smhdwSMHDW])*(?:[0-9]{1,10})?", text):
        raise ConfigProblem(f"{place}: bad time {text[:40]!r}")
    parts = re.findall(r"([0-9]+)([smhdwSMHDW]?)", text)
    return float(sum(int(number) * _SECONDS[unit.lower()] for number, unit in parts))


def _count(values: _Values, keyword: str) -> int | None:
    text = values.text(keyword)
    if text is not None and not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigProblem(f"{values.place(keyword)}: bad number {text[:40]!r}")
    return None if text is None else int(text)


def _port(text: str | None, place: str) -> int:
    if text is None:
        return 22
    if re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) < 65536:
        return int(text)
    raise ConfigProblem(f"{place}: bad port {text[:40]!r}")


def jump_list(text: str, place: str) -> tuple[Target, ...]:
    """The hosts of a ``ProxyJump`` value, first hop first; empty for ``none``.

    Raises: ConfigProblem for a hop that is not ``[user@]host[:port]`` or a URI of it.
    """
    words = split_words(text, place)
    if len(words) != 1:
        raise ConfigProblem(f"{place}: ProxyJump: needs one comma-separated list")
    if words[0].lower() == "none":
        return ()
    return tuple(_hop(hop, place) for hop in words[0].split(","))


_HOP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<address>[^\]]+)\]|(?P<host>[^:\[\]]+))"
    r"(?::(?P<port>\d{1,5}))?/?"
)


def _hop(text: str, place: str) -> Target:
    match = _HOP.fullmatch(text)
    user = host = ""
    if match is not None:
        host = match["address"] or match["host"]
        user = match["user"] or ""
    # Tokens are expanded later; the result is checked again then.
    if match is None or not valid_host(host) or (user and not valid_user(user)):
        raise ConfigProblem(f"{place}: ProxyJump: bad hop {text[:80]!r}")
    return Target(host, user or None, _port(match["port"], place) if match["port"] else None)
