"""What becomes of the values of one host: defaults, units, files, tokens, and words that are bad.

What ``ssh -G`` says as well is compared in ``test_same_as_ssh``; this is what it does not tell.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import pwd
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Target
from dispatcher.transport.ssh_config.config_lines import (
    FILES,
    HOSTNAME,
    PROXY,
    ConfigProblem,
    Local,
    expand,
    expand_home,
    expand_variables,
    matches,
    token_values,
)
from dispatcher.transport.ssh_config.host_config import HostConfig, jump_list
from dispatcher.transport.ssh_config.ssh_config import SshConfig

HERE = Local("me", 1000, "/home/me/", "login.example.org")
ENVIRON = {"SSH_AUTH_SOCK": "/run/agent", "MINE": "/run/mine", "EMPTY": ""}

Read = Callable[..., HostConfig | Failure]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(text: str, target: Target | None = None, **environ: str) -> HostConfig | Failure:
        path = tmp_path / "config"
        path.write_text(text)
        config = SshConfig(str(path), environ=environ or ENVIRON, local=HERE)
        return config.resolve(target or Target("Node"))

    return run


def test_a_host_of_which_nothing_is_said(read: Read) -> None:
    assert read("") == HostConfig(
        name="Node",
        host="node",
        user="me",
        identity_files=tuple(f"/home/me/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")),
        identity_agent="/run/agent",
        user_known_hosts=("/home/me/.ssh/known_hosts", "/home/me/.ssh/known_hosts2"),
        global_known_hosts=("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
    )


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("HostKeyAlias ALIAS", "known_as", "alias"),
        ("HostName Real.%h.%%", "host", None),
        ("HostName Real.%h", "host", "real.node"),
        ("User you", "user", "you"),
        ("Port 2222", "port", 2222),
        ("IdentityFile none", "identity_files", ()),
        ("IdentityFile ~/%u-%n-%h-%p-%r", "identity_files", ("/home/me/me-Node-node-22-me",)),
        ("IdentityFile ${MINE}/key", "identity_files", ("/run/mine/key",)),
        ("CertificateFile %d/c", "certificate_files", ("/home/me//c",)),
        ("IdentitiesOnly true", "identities_only", True),
        ("IdentitiesOnly no", "identities_only", False),
        ("IdentityAgent none", "identity_agent", ""),
        ("IdentityAgent SSH_AUTH_SOCK", "identity_agent", "/run/agent"),
        ("IdentityAgent $MINE", "identity_agent", "/run/mine"),
        ("IdentityAgent $MISSING", "identity_agent", ""),
        ("IdentityAgent ${MINE}.sock", "identity_agent", "/run/mine.sock"),
        ("IdentityAgent ~/%i.sock", "identity_agent", "/home/me/1000.sock"),
        ("ProxyJump you@a:23,b", "jumps", (Target("a", "you", 23), Target("b"))),
        ("ProxyJump gate-%h", "jumps", (Target("gate-node"),)),
        ("ProxyJump none", "jumps", ()),
        ("ProxyCommand nc %h %p %n %r", "proxy_command", "nc node 22 Node me"),
        ("ProxyCommand none", "proxy_command", None),
        ("UserKnownHostsFile ~/a %k none", "user_known_hosts", ("/home/me/a", "Node")),
        ("UserKnownHostsFile none", "user_known_hosts", ()),
        ("GlobalKnownHostsFile ~/a none /b/~", "global_known_hosts", ("/home/me/a", "/b/~")),
        ("GlobalKnownHostsFile /%h ${MINE}", "global_known_hosts", ("/%h", "${MINE}")),
        ("StrictHostKeyChecking yes", "host_keys", "strict"),
        ("StrictHostKeyChecking ask", "host_keys", "strict"),
        ("StrictHostKeyChecking accept-new", "host_keys", "accept-new"),
        ("StrictHostKeyChecking off", "host_keys", "accept-new"),
        ("HashKnownHosts yes", "hash_known_hosts", True),
        ("CheckHostIP yes", "check_address", True),
        ("RequiredRSASize 3072", "rsa_bits", 3072),
        ("RequiredRSASize 512", "rsa_bits", 1024),
        ("CASignatureAlgorithms -rsa-*", "algorithms", (("casignaturealgorithms", "-rsa-*"),)),
        ("ConnectTimeout 90", "connect_timeout", 90.0),
        ("ConnectTimeout 1234567890", "connect_timeout", 1234567890.0),
        ("ConnectTimeout 1m30", "connect_timeout", 90.0),
        ("ConnectTimeout 0", "connect_timeout", None),
        ("ConnectTimeout none", "connect_timeout", None),
        ("ConnectTimeout 1w2D3h4m5s", "connect_timeout", 604800 + 2 * 86400 + 10800 + 245.0),
        ("ServerAliveInterval 0", "alive_interval", 0.0),
        ("ServerAliveInterval none", "alive_interval", 0.0),
        ("ServerAliveInterval 7", "alive_interval", 7.0),
        ("ServerAliveCountMax 0", "alive_count", 0),
        ("AddressFamily inet", "family", socket.AF_INET),
        ("AddressFamily inet6", "family", socket.AF_INET6),
        ("AddressFamily any", "family", socket.AF_UNSPEC),
        ("BindAddress 10.0.0.1", "bind_address", "10.0.0.1"),
        ("MACs a,b\nCiphers c\nSendEnv X", "algorithms", (("ciphers", "c"), ("macs", "a,b"))),
        ("PubkeyAuthentication unbound", "user", "me"),
        ("", "methods", ("publickey", "keyboard-interactive", "password")),
        ("PreferredAuthentications password,x,publickey", "methods", ("password", "publickey")),
        ("PubkeyAuthentication no", "methods", ("keyboard-interactive", "password")),
        ("ChallengeResponseAuthentication no", "methods", ("publickey", "password")),
        ("PasswordAuthentication no", "methods", ("publickey", "keyboard-interactive")),
        ("BatchMode yes", "methods", ("publickey",)),
        ("NumberOfPasswordPrompts 1", "second_try", False),
        ("NumberOfPasswordPrompts 3", "second_try", True),
    ],
)
def test_a_value(read: Read, text: str, field: str, value: Any) -> None:
    config = read(text)
    if value is None and field == "host":  # a name with a percent sign is none
        config = read(text.replace(".%%", ""))
        value = "real.node"
    assert isinstance(config, HostConfig), config
    assert getattr(config, field) == value


def test_without_an_agent_in_the_environment(read: Read) -> None:
    for environ in ({"OTHER": "x"}, {"SSH_AUTH_SOCK": ""}):
        config = read("", **environ)
        assert isinstance(config, HostConfig)
        assert config.identity_agent == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Port 0", "config:1: port: bad port '0'"),
        ("Port 65536", "config:1: port: bad port '65536'"),
        ("Port 1234567", "config:1: port: bad port '1234567'"),
        ("\nHostName a/b", "config:2: hostname: bad host name 'a/b'"),
        ("User a;b", "config:1: user: bad user name 'a;b'"),
        ("User %u", "config:1: user: bad user name '%u'"),
        ("HostKeyAlias -x", "config:1: hostkeyalias: bad name '-x'"),
        ("HashKnownHosts maybe", "config:1: hashknownhosts: bad value 'maybe'"),
        ("ConnectTimeout 5x", "config:1: connecttimeout: bad time '5x'"),
        ("ConnectTimeout 12345678901", "config:1: connecttimeout: bad time '12345678901'"),
        ("ConnectTimeout " + "9" * 5000, "config:1: connecttimeout: bad time '99999999999999"),
        ("ConnectTimeout " + "1" * 40 + "x", "config:1: connecttimeout: bad time '11111111"),
        ("ConnectTimeout 5ss", "config:1: connecttimeout: bad time '5ss'"),
        ("ServerAliveCountMax x", "config:1: serveralivecountmax: bad number 'x'"),
        ("IdentityFile %x", "config:1: identityfile: token %x is not allowed here"),
        ("IdentityFile ${MISSING}", "config:1: identityfile: ${MISSING} is not set"),
        ("IdentityFile ~nobody-here/x", "config:1: identityfile: ~nobody-here: no such user"),
        ("ProxyJump a b", "config:1: ProxyJump: needs one comma-separated list"),
        ("BatchMode yes\nPubkeyAuthentication no",
         "config:2: pubkeyauthentication: allows no way to log in"),
        ("PreferredAuthentications hostbased",
         "config:1: preferredauthentications: allows no way to log in"),
        ("NumberOfPasswordPrompts x", "config:1: numberofpasswordprompts: bad number 'x'"),
        ("RemoteCommand x", "config:1: remotecommand: the built-in ssh client cannot do this"),
        ("RevokedHostKeys /x", "config:1: revokedhostkeys: the built-in ssh client cannot"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed(read: Read, text: str, why: str) -> None:
    failure = read(text)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.CONFIG
    assert why in failure.why
    assert "--transport ssh" in (failure.hint or "")


@pytest.mark.parametrize(
    "text",
    ["RemoteCommand none", "RevokedHostKeys none", "SessionType default", "ProxyUseFdpass no",
     "SecurityKeyProvider internal", "CanonicalizeHostname False", "BindInterface NONE"],
)  # fmt: skip
def test_what_is_refused_is_harmless_with_some_values(read: Read, text: str) -> None:
    assert isinstance(read(text), HostConfig)


def test_the_command_line_is_where_a_bad_name_comes_from(read: Read) -> None:
    failure = read("", Target("n1", "50%"))
    assert isinstance(failure, Failure)
    assert failure.why == "command line: user: bad user name '50%'"


@cases(
    ("text", "jumps"),
    [
        ("none", ()),
        ("NONE", ()),
        ("a", (Target("a"),)),
        ("u@a:1,ssh://v@[::1]:22/,[fe80::1]",
         (Target("a", "u", 1), Target("::1", "v", 22), Target("fe80::1"))),
    ],
)  # fmt: skip
def test_jumps(text: str, jumps: tuple[Target, ...]) -> None:
    assert jump_list(text, "here") == jumps


@cases("text", ["", "a b", "a,", "u@", "a:x", "a:0", "a:70000", "-a", "u;v@a"])
def test_no_jumps(text: str) -> None:
    with pytest.raises(ConfigProblem, match=r"^here: "):
        jump_list(text, "here")


# -- tokens, variables, homes -----------------------------------------------------------------

VALUES = token_values(
    HERE, original="Node", host="real", port="23", user="you", alias=None, jump="gate"
)


def test_tokens() -> None:
    seen = b"login.example.orgreal23yougate"
    assert {
        "C": hashlib.sha1(seen).hexdigest(), "d": "/home/me/", "h": "real", "i": "1000",
        "j": "gate", "k": "Node", "L": "login", "l": "login.example.org", "n": "Node",
        "p": "23", "r": "you", "u": "me",
    } == VALUES  # fmt: skip
    named = token_values(HERE, original="n", host="h", port="1", user="u", alias="as", jump="")
    assert named["k"] == "as"


@cases(
    ("text", "allowed", "expanded"),
    [
        ("", FILES, ""), ("plain", FILES, "plain"), ("%%", HOSTNAME, "%"),
        ("a%hb%nc", PROXY, "arealbNodec"),
        ("%%h", HOSTNAME, "%h"), ("%h%h", HOSTNAME, "realreal"), ("x%p", PROXY, "x23"),
    ],
)  # fmt: skip
def test_expansion(text: str, allowed: str, expanded: str) -> None:
    assert expand(text, VALUES, allowed, "here") == expanded


@cases(
    ("text", "allowed"),
    [("%n", HOSTNAME), ("%u", PROXY), ("%", FILES), ("a%", FILES), ("% h", FILES)],
)
def test_tokens_that_are_not_allowed(text: str, allowed: str) -> None:
    with pytest.raises(ConfigProblem, match=r"^here: token %"):
        expand(text, VALUES, allowed, "here")


def test_a_token_for_a_shell_stays_one_word() -> None:
    values = {**VALUES, "h": "a b" + "c" * 100}
    assert expand("%h", values, HOSTNAME, "here") == values["h"]
    with pytest.raises(ConfigProblem, match=r"^here: %h stands for 'a b") as caught:
        expand("nc %h", values, HOSTNAME, "here", for_shell=True)
    assert len(str(caught.value)) < 160
    assert expand("nc %p", values, PROXY, "here", for_shell=True) == "nc 23"


def test_variables() -> None:
    assert expand_variables("a${MINE}b${EMPTY}c$MINE", ENVIRON, "here") == "a/run/minebc$MINE"
    with pytest.raises(ConfigProblem, match=r"^here: \$\{NONE\} is not set"):
        expand_variables("${NONE}", ENVIRON, "here")


@cases(
    ("path", "expanded"),
    [
        ("a/~", "a/~"), ("~", "/home/me/"), ("~/", "/home/me/"), ("~/x", "/home/me/x"),
        ("~root/x", pwd.getpwnam("root").pw_dir.rstrip("/") + "/x"),
        ("~root", pwd.getpwnam("root").pw_dir),
    ],
)  # fmt: skip
def test_homes(path: str, expanded: str) -> None:
    assert expand_home(path, HERE, "here") == expanded


def test_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwuid(os.getuid())
    here = Local.here()
    assert here == Local(entry.pw_name, os.getuid(), entry.pw_dir, socket.gethostname())
    monkeypatch.setenv("HOME", "/elsewhere")
    assert Local.here() == here  # the account's home, as in ssh
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # whom nobody knows: a container's user
    monkeypatch.setenv("USER", "guest")
    assert Local.here() == Local("guest", 4_000_000, "/elsewhere", socket.gethostname())
    monkeypatch.delenv("USER")
    assert Local.here().user == "4000000"


@given(text=st.text("ab.\n", max_size=9), pattern=st.text("ab.*?", max_size=9))
def test_as_fnmatch(text: str, pattern: str) -> None:
    assert matches(text, pattern) == fnmatch.fnmatchcase(text, pattern)


def test_no_pattern_is_slow() -> None:
    started = time.process_time()
    assert not matches("node" * 15, "*?" * 30 + "x")
    assert not matches("a" * 255, "*a" * 100 + "b")
    assert matches("a" * 255, "*a" * 100)
    assert time.process_time() - started < 1
