"""Our reading of ssh_config against ``ssh -G``: the same, or a refusal."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.model.failure import Failure
from dispatcher.transport import base
from dispatcher.transport.base import Target
from dispatcher.transport.ssh_config.host_config import HostConfig
from dispatcher.transport.ssh_config.ssh_config import SshConfig

COMPARED = (
    "hostname", "user", "port", "identityfile", "certificatefile", "identitiesonly",
    "identityagent", "hostkeyalias", "stricthostkeychecking", "connecttimeout",
    "serveraliveinterval", "serveralivecountmax", "addressfamily", "bindaddress", "hashknownhosts",
    "pubkeyauthentication", "proxyjump", "proxycommand", "userknownhostsfile", "sendenv", "setenv",
)  # fmt: skip

DEFAULTS = {
    "identitiesonly": "no", "stricthostkeychecking": "ask", "connecttimeout": "none",
    "serveraliveinterval": "0", "serveralivecountmax": "3", "addressfamily": "any",
    "hashknownhosts": "no", "pubkeyauthentication": "true",
}  # fmt: skip
#: Where we refuse what ``ssh -G`` lets pass (ssh itself fails later, or connects elsewhere).
STRICTER = ("built-in", "bad user", "one comma-separated list", "token %")
SAME = {"true": "yes", "false": "no", "off": "no", "host-bound": "host-bound"}


def oracle(path: str, target: Target) -> dict[str, list[str]] | None:
    """What ``ssh -G`` says; ``None`` when it refuses the config."""
    argv = ["ssh", "-G", "-F", path]
    if target.user:
        argv += ["-l", target.user]
    if target.port:
        argv += ["-p", str(target.port)]
    done = subprocess.run(
        [*argv, "--", target.host], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        return None
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        if keyword in COMPARED:
            found.setdefault(keyword, []).append(value)
    return found


def ours(path: str, target: Target) -> dict[str, list[str]] | None:
    """The same, by our reading."""
    config = SshConfig(path)
    checked = config.resolve(target)
    if isinstance(checked, Failure):
        return None
    raw = config._read(target).raw
    jumps = []
    for jump in checked.jumps:
        port = f":{jump.port}" if jump.port else ""
        host = f"[{jump.host}]" if ":" in jump.host else jump.host
        jumps.append((f"{jump.user}@" if jump.user else "") + host + port)
    found = {key: raw[key] for key in COMPARED if key in raw}
    found["hostname"] = [checked.host]
    found["user"] = [checked.user]
    found["port"] = [str(checked.port)]
    found["userknownhostsfile"] = [" ".join(checked.user_known_hosts)]
    if "identityagent" in raw and raw["identityagent"][0].startswith("~"):
        found["identityagent"] = [checked.identity_agent or "none"]
    if jumps:
        found["proxyjump"] = [",".join(jumps)]
    timeout = checked.connect_timeout
    found["connecttimeout"] = [str(int(timeout)) if timeout else "none"]
    interval, count = base.Keepalive().limits(checked.alive_interval, checked.alive_count)
    found["serveraliveinterval"], found["serveralivecountmax"] = [str(int(interval))], [str(count)]
    return found


def normal(values: dict[str, list[str]]) -> dict[str, list[str]]:
    """Spellings made equal."""
    result = {}
    for key in COMPARED:
        words = values.get(key) or ([DEFAULTS[key]] if key in DEFAULTS else [])
        if key == "identityfile" and any(word.endswith("id_dsa") for word in words):
            words = []  # ssh's own list of defaults
        if key in ("proxyjump", "proxycommand", "userknownhostsfile"):
            words = [word for word in words if word.lower() not in ("none", "")]
        if key == "userknownhostsfile":
            words = [" ".join(os.path.basename(p) for p in word.split()) for word in words]
            words = [word for word in words if word != "known_hosts known_hosts2"]
        if key == "proxyjump":
            words = (
                [",".join(hop.removesuffix(":22") for hop in words[0].split(","))] if words else []
            )
        plain = key in ("identityfile", "certificatefile", "hostname", "user", "proxycommand",
                        "sendenv", "setenv")  # fmt: skip
        if key == "setenv":  # of a name that stands there twice, ssh -G has the first
            words = sorted({word.partition("=")[0]: word for word in reversed(words)}.values())
        result[key] = [word if plain else SAME.get(word.lower(), word.lower()) for word in words]
    return result


def compare(text: str, folder: Path, target: Target) -> None:
    path = folder / "config"
    path.write_text(text)
    theirs, mine = oracle(str(path), target), ours(str(path), target)
    if mine is None:
        # We may refuse more than ssh, never less.
        if theirs is not None:
            failure = SshConfig(str(path)).resolve(target)
            assert isinstance(failure, Failure)
            assert any(reason in failure.why for reason in STRICTER), (failure, text)
        return
    assert theirs is not None, f"ssh refuses, we do not:\n{text}"
    assert normal(mine) == normal(theirs), text


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh program")

TABLE = [
    "", "Port 2222", "port=2222", "Port = 2222", 'Port "2222"', "Port\t2222  # comment",
    "Port 22 22", "Port", "Port x", "Port 0", "Port 70000", "User a\nUser b", "  User   a   ",
    'User "a b"', "Host node\nUser a\nHost *\nUser b", "Host other\nUser a\nHost *\nUser b",
    "Host * !node\nUser a\nHost *\nUser b", "Host !other\nUser a", "Host !other *\nUser a",
    "Host n?de\nUser a", "Host NODE\nUser a", 'Host "node" other # c\nUser a',
    "Host node # other\nUser a", "Host no* # !node\nUser a", "HostName %h.example.com",
    "HostName %%h", "HostName %n", "HostName UPPER.example",
    "Host node\nHostName real\nHost real\nUser a", "HostName real\nMatch host real\nUser a",
    "HostName real\nMatch originalhost node\nUser a", "HostName real\nMatch host node\nUser a",
    "Match host NODE\nUser a", "Match host n*,!node\nUser a", "Match !host other\nUser a",
    "Match all\nUser a", "Match !all\nUser a", "Match host node all\nUser a",
    "Match all host node\nUser a", "Match canonical\nUser a", "Match canonical all\nUser a",
    "Match !canonical\nUser a", "Match final\nUser a", "Match final all\nUser a",
    "Match !final\nUser a", "User x\nMatch final user x\nPort 3",
    "HostName real\nHost real\nUser seen\nMatch final\nPort 3",
    "HostName real\nMatch final host real\nUser a", "Match user root\nPort 3",
    "User bob\nMatch user bob\nPort 3", "Match user b*,!bob\nPort 3\nUser x",
    "Match localuser root\nPort 3", "Match localuser nobody\nPort 3", "Match exec true\nPort 3",
    'Match exec "test %h = node"\nPort 3', "Match exec false\nPort 3", "Match !exec false\nPort 3",
    'Match exec "exit 0; false"\nPort 3', "Match host other exec true\nPort 3",
    'Match exec "test %p.%r.%n.%% = 22.root.node.%"\nPort 3', "Match host=node\nUser a",
    "Match host = node\nUser a", "Match host =other\nUser a", 'Match host= "node"\nUser a',
    "Match !host=other user=root # user=bob\nPort 3", "Match host=node user=bob\nPort 3",
    'Match exec="test a = a"\nPort 3', "Match exec=false\nPort 3", "Match !final=\nPort 3",
    "Match final=yes\nPort 3", "Match all all\nPort 3", "Match host==node\nUser a",
    "Match host=\nUser a", "Match host = # node\nUser a", 'Match host ""\nUser a',
    'Match host "=node"\nUser a', '"Match" "host" node\nUser a', 'Match "host=node"\nUser a',
    "Match unknown x\nUser a", "Match host\nUser a", "Match\nUser a", "NoSuchOption x",
    "IgnoreUnknown NoSuch*\nNoSuchOption x\nUser a", "NoSuchOption x\nIgnoreUnknown NoSuch*",
    "Host other\nNoSuchOption x", "IdentityFile ~/a\nIdentityFile ~/b\nIdentityFile ~/a",
    'IdentityFile "~/a b/c"', "IdentityFile ~/a\\ b", "IdentityFile 'q\\'uote'",
    'IdentityFile "open', "IdentityFile none", "IdentityFile a b",
    "CertificateFile ~/c\nCertificateFile ~/c\nCertificateFile ~/d", "IdentitiesOnly yes",
    "IdentitiesOnly TRUE", "IdentitiesOnly maybe", "IdentityAgent none",
    "IdentityAgent SSH_AUTH_SOCK", "IdentityAgent $FOO", "IdentityAgent ~/agent.sock",
    "ProxyJump j", "ProxyJump u@j:33,[::1]:44,ssh://v@k:55",
    "ProxyJump none\nProxyCommand nc %h %p", "ProxyJump j\nProxyCommand nc %h %p",
    "ProxyCommand nc %h %p\nProxyJump j", "ProxyCommand none\nProxyJump j", "ProxyJump j # comment",
    "ProxyJump j,", "ProxyJump j k", "ProxyJump u@", "ProxyJump j:x",
    "ProxyCommand sh -c 'nc %h %p' # not a comment", "ProxyCommand=nc %h %p", "ProxyCommand nc %x",
    "HostKeyAlias alias", "SetEnv A=b", "SetEnv A=b=c 'B=d e' C= A=z\nSetEnv D=e", "SetEnv A",
    "SetEnv", "SetEnv A=b C", "Host other\nSetEnv A=b\nHost *\nSetEnv C=d", "Host other\nSetEnv A",
    "SendEnv LANG LC_*\nSendEnv X", "SendEnv LANG LC_* LX\nSendEnv -L?_*\nSendEnv -LANG Y",
    "SendEnv A=b", "SendEnv", "Host other\nSendEnv A\nHost *\nSendEnv B\nSendEnv A",
    "StrictHostKeyChecking accept-new", "StrictHostKeyChecking no", "StrictHostKeyChecking perhaps",
    "ConnectTimeout 5", "ConnectTimeout 1m30s", "ConnectTimeout none", "ConnectTimeout 5x",
    "ServerAliveInterval 15", "ServerAliveInterval 1m30s", "ServerAliveInterval none",
    "ServerAliveInterval soon", "ServerAliveCountMax 0", "ServerAliveCountMax 5",
    "ServerAliveCountMax -1", "ServerAliveCountMax 5s", "AddressFamily inet6", "AddressFamily ipx",
    "BindAddress 127.0.0.2", "HashKnownHosts yes", "UserKnownHostsFile ~/a ~/b # c",
    "UserKnownHostsFile ~/a\nUserKnownHostsFile ~/b", "UserKnownHostsFile none",
    "UserKnownHostsFile /x/%h/%p/%%", "UserKnownHostsFile ${HOME}/x", "PubkeyAuthentication no",
    "CanonicalizeHostname yes", "CanonicalizeHostname no",
    "Compression yes\nForwardAgent yes\nSendEnv A B\nLocalForward 1 h:2\nUser a",
    "\tHost node\n\t\tUser a", "#Host node\nUser a", "Host node\r\nUser a\r\n", "User a\x0c",
    '"User" a', "User=a", "User = a", "User == a", "Include",
    "PreferredAuthentications publickey,password",
]  # fmt: skip


@needs_ssh
@pytest.mark.parametrize("text", TABLE)
def test_same_as_ssh(text: str, tmp_path: Path) -> None:
    compare(text, tmp_path, Target("node"))


@needs_ssh
@pytest.mark.parametrize(
    "target",
    [Target("node", user="bob"), Target("node", port=99), Target("NODE"), Target("::1")],
)
def test_command_line_first(target: Target, tmp_path: Path) -> None:
    compare(
        "Match user bob\nPort 3\nHost node\nUser a\nPort 7\nIdentityFile ~/%u\n", tmp_path, target
    )


_PATTERNS = st.sampled_from(["node", "n*", "!node", "other", "*", "real", "!real", "?ode"])
_HOST = st.lists(_PATTERNS, min_size=1, max_size=3).map(lambda p: "Host " + " ".join(p))
_CRITERIA = st.sampled_from(
    [
        "all",
        "final",
        "canonical",
        "!final",
        "host node",
        "host real",
        "host n*,!node",
        "originalhost node",
        "!originalhost node",
        "user bob",
        "user root",
        "!user bob",
        "localuser root",
        "exec true",
        "exec false",
        "host=node",
        "!user = bob",
        "bogus x",
    ]
)
_MATCH = st.lists(_CRITERIA, min_size=1, max_size=3).map(lambda c: "Match " + " ".join(c))
_OPTION = st.sampled_from(
    [
        "User bob",
        "User alice",
        "Port 1001",
        "Port 1002",
        "HostName real",
        "HostName %h.org",
        "IdentityFile ~/k1",
        "IdentityFile ~/k2",
        "ProxyJump j1",
        "ProxyJump none",
        "ProxyCommand nc %h %p",
        "HostKeyAlias al",
        "IdentitiesOnly yes",
        "IdentitiesOnly no",
        "ConnectTimeout 3",
        "UserKnownHostsFile ~/x ~/y",
        "Include extra-*.conf",
        "# nothing",
        "",
    ]
)
_TEXT = st.lists(st.one_of(_OPTION, _OPTION, _HOST, _MATCH), max_size=12).map("\n".join)


@needs_ssh
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=_TEXT)
def test_random_configs_are_read_as_ssh_reads_them(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    compare(text, tmp_path_factory.mktemp("config"), Target("node"))


@needs_ssh
def test_match_localnetwork_as_the_ssh_of_this_machine_has_it(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "Match localnetwork 127.0.0.0/8\n  Port 3\n"
        "Match localnetwork 203.0.113.0/24,!127.0.0.0/8\n  User x\n"
    )
    config, target = str(tmp_path / "config"), Target("node")
    theirs, mine = oracle(config, target), SshConfig(config).resolve(target)
    assert isinstance(mine, Failure) == (theirs is None)
    if isinstance(mine, HostConfig) and theirs is not None:
        assert (str(mine.port), mine.user) == (theirs["port"][0], theirs["user"][0])
