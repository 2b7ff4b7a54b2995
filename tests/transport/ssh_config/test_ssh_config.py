"""Our reading of ssh_config against ``ssh -G``, and where we refuse instead of guessing."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport import base
from dispatcher.transport.base import Target
from dispatcher.transport.ssh_config.config_lines import Local
from dispatcher.transport.ssh_config.host_config import HostConfig, jump_list
from dispatcher.transport.ssh_config.ssh_config import SshConfig

Resolve = Callable[..., HostConfig | Failure]


@pytest.fixture
def resolve(tmp_path: Path) -> Resolve:
    """Resolves a host with a config text; further files as keyword arguments."""

    def run(text: str, host: str = "node", **target: object) -> HostConfig | Failure:
        path = tmp_path / "config"
        path.write_text(text)
        return SshConfig(str(path)).resolve(Target(host, **target))  # type: ignore[arg-type]

    return run


def good(result: HostConfig | Failure) -> HostConfig:
    assert isinstance(result, HostConfig), result
    return result


# -- the oracle -------------------------------------------------------------------

COMPARED = (
    "hostname",
    "user",
    "port",
    "identityfile",
    "certificatefile",
    "identitiesonly",
    "identityagent",
    "hostkeyalias",
    "stricthostkeychecking",
    "connecttimeout",
    "serveraliveinterval",
    "serveralivecountmax",
    "addressfamily",
    "bindaddress",
    "hashknownhosts",
    "pubkeyauthentication",
    "proxyjump",
    "proxycommand",
    "userknownhostsfile",
)

DEFAULTS = {
    "identitiesonly": "no",
    "stricthostkeychecking": "ask",
    "connecttimeout": "none",
    "serveraliveinterval": "0",
    "serveralivecountmax": "3",
    "addressfamily": "any",
    "hashknownhosts": "no",
    "pubkeyauthentication": "true",
}
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
        [*argv, "--", target.host], capture_output=True, text=True, check=False, timeout=20
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
    raw = config.raw(target)
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
        plain = key in ("identityfile", "certificatefile", "hostname", "user", "proxycommand")
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
    "",
    "Port 2222",
    "port=2222",
    "Port = 2222",
    'Port "2222"',
    "Port\t2222  # comment",
    "Port 22 22",
    "Port",
    "Port x",
    "Port 0",
    "Port 70000",
    "User a\nUser b",
    "  User   a   ",
    'User "a b"',
    "Host node\nUser a\nHost *\nUser b",
    "Host other\nUser a\nHost *\nUser b",
    "Host * !node\nUser a\nHost *\nUser b",
    "Host !other\nUser a",
    "Host !other *\nUser a",
    "Host n?de\nUser a",
    "Host NODE\nUser a",
    'Host "node" other # c\nUser a',
    "Host node # other\nUser a",
    "Host no* # !node\nUser a",
    "HostName %h.example.com",
    "HostName %%h",
    "HostName %n",
    "HostName UPPER.example",
    "Host node\nHostName real\nHost real\nUser a",
    "HostName real\nMatch host real\nUser a",
    "HostName real\nMatch originalhost node\nUser a",
    "HostName real\nMatch host node\nUser a",
    "Match host NODE\nUser a",
    "Match host n*,!node\nUser a",
    "Match !host other\nUser a",
    "Match all\nUser a",
    "Match !all\nUser a",
    "Match host node all\nUser a",
    "Match all host node\nUser a",
    "Match canonical\nUser a",
    "Match canonical all\nUser a",
    "Match !canonical\nUser a",
    "Match final\nUser a",
    "Match final all\nUser a",
    "Match !final\nUser a",
    "User x\nMatch final user x\nPort 3",
    "HostName real\nHost real\nUser seen\nMatch final\nPort 3",
    "HostName real\nMatch final host real\nUser a",
    "Match user root\nPort 3",
    "User bob\nMatch user bob\nPort 3",
    "Match user b*,!bob\nPort 3\nUser x",
    "Match localuser root\nPort 3",
    "Match localuser nobody\nPort 3",
    "Match exec true\nPort 3",
    'Match exec "test %h = node"\nPort 3',
    "Match exec false\nPort 3",
    "Match !exec false\nPort 3",
    'Match exec "exit 0; false"\nPort 3',
    "Match host other exec true\nPort 3",
    'Match exec "test %p.%r.%n.%% = 22.root.node.%"\nPort 3',
    "Match unknown x\nUser a",
    "Match host\nUser a",
    "Match\nUser a",
    "NoSuchOption x",
    "IgnoreUnknown NoSuch*\nNoSuchOption x\nUser a",
    "NoSuchOption x\nIgnoreUnknown NoSuch*",
    "Host other\nNoSuchOption x",
    "IdentityFile ~/a\nIdentityFile ~/b\nIdentityFile ~/a",
    'IdentityFile "~/a b/c"',
    "IdentityFile ~/a\\ b",
    "IdentityFile 'q\\'uote'",
    'IdentityFile "open',
    "IdentityFile none",
    "IdentityFile a b",
    "CertificateFile ~/c\nCertificateFile ~/c\nCertificateFile ~/d",
    "IdentitiesOnly yes",
    "IdentitiesOnly TRUE",
    "IdentitiesOnly maybe",
    "IdentityAgent none",
    "IdentityAgent SSH_AUTH_SOCK",
    "IdentityAgent $FOO",
    "IdentityAgent ~/agent.sock",
    "ProxyJump j",
    "ProxyJump u@j:33,[::1]:44,ssh://v@k:55",
    "ProxyJump none\nProxyCommand nc %h %p",
    "ProxyJump j\nProxyCommand nc %h %p",
    "ProxyCommand nc %h %p\nProxyJump j",
    "ProxyCommand none\nProxyJump j",
    "ProxyJump j # comment",
    "ProxyJump j,",
    "ProxyJump j k",
    "ProxyJump u@",
    "ProxyJump j:x",
    "ProxyCommand sh -c 'nc %h %p' # not a comment",
    "ProxyCommand=nc %h %p",
    "ProxyCommand nc %x",
    "HostKeyAlias alias",
    "StrictHostKeyChecking accept-new",
    "StrictHostKeyChecking no",
    "StrictHostKeyChecking perhaps",
    "ConnectTimeout 5",
    "ConnectTimeout 1m30s",
    "ConnectTimeout none",
    "ConnectTimeout 5x",
    "ServerAliveInterval 15",
    "ServerAliveInterval 1m30s",
    "ServerAliveInterval none",
    "ServerAliveInterval soon",
    "ServerAliveCountMax 0",
    "ServerAliveCountMax 5",
    "ServerAliveCountMax -1",
    "ServerAliveCountMax 5s",
    "AddressFamily inet6",
    "AddressFamily ipx",
    "BindAddress 127.0.0.2",
    "HashKnownHosts yes",
    "UserKnownHostsFile ~/a ~/b # c",
    "UserKnownHostsFile ~/a\nUserKnownHostsFile ~/b",
    "UserKnownHostsFile none",
    "UserKnownHostsFile /x/%h/%p/%%",
    "UserKnownHostsFile ${HOME}/x",
    "PubkeyAuthentication no",
    "CanonicalizeHostname yes",
    "CanonicalizeHostname no",
    "Compression yes\nForwardAgent yes\nSendEnv A B\nLocalForward 1 h:2\nUser a",
    "\tHost node\n\t\tUser a",
    "#Host node\nUser a",
    "Host node\r\nUser a\r\n",
    "User a\x0c",
    '"User" a',
    "User=a",
    "User = a",
    "User == a",
    "Include",
    "PreferredAuthentications publickey,password",
]


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


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=200))
def test_any_text_ends_in_a_value(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "config"
    path.write_bytes(b"Host node\n  Port 2222\n" + text.encode("utf-8", "surrogatepass"))
    result = SshConfig(str(path)).resolve(Target("node"))
    assert isinstance(result, Failure) or result.port == 2222


# -- files ------------------------------------------------------------------------


def test_include_is_relative_to_the_users_folder(tmp_path: Path) -> None:
    local = _local(tmp_path)
    folder = tmp_path / ".ssh"
    (folder / "d").mkdir(parents=True)
    _write(folder / "config", "Host node\nInclude d/*.conf\nPort 7\nHost *\nUser last\n")
    _write(folder / "d" / "1.conf", "Host other\nUser wrong\nHost node\nIdentityFile ~/one\n")
    _write(folder / "d" / "2.conf", "IdentityFile ~/two\n")
    config = SshConfig(local=local, system_dir=str(tmp_path / "none"))
    found = good(config.resolve(Target("node")))
    assert found.identity_files == (f"{tmp_path}/one", f"{tmp_path}/two")
    assert (found.port, found.user) == (7, "last")  # the file's own Host block goes on
    assert good(config.resolve(Target("elsewhere"))).identity_files != found.identity_files


def test_included_block_in_a_block_that_does_not_apply(tmp_path: Path) -> None:
    local = _local(tmp_path)
    folder = tmp_path / ".ssh"
    folder.mkdir()
    _write(folder / "config", "Host other\nInclude more\nHost *\nPort 7\n")
    _write(folder / "more", "Host *\nUser wrong\nMatch all\nUser wrong\n")
    config = SshConfig(local=local, system_dir=str(tmp_path / "none"))
    assert good(config.resolve(Target("node"))).user == local.user


def test_files_that_include_each_other(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"Include {path}\n")
    path.chmod(0o600)
    failure = SshConfig(str(path)).resolve(Target("node"))
    assert isinstance(failure, Failure)
    assert "include each other" in failure.why


def test_users_file_before_the_systems(tmp_path: Path) -> None:
    local = _local(tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "etc").mkdir()
    _write(tmp_path / ".ssh" / "config", "User mine\n")
    _write(tmp_path / "etc" / "ssh_config", "User theirs\nPort 9\nInclude conf.d/*\n")
    config = SshConfig(local=local, system_dir=str(tmp_path / "etc"))
    found = good(config.resolve(Target("node")))
    assert (found.user, found.port) == ("mine", 9)


def test_file_others_can_write(tmp_path: Path) -> None:
    local = _local(tmp_path)
    (tmp_path / ".ssh").mkdir()
    _write(tmp_path / ".ssh" / "config", "User mine\n")
    (tmp_path / ".ssh" / "config").chmod(0o666)
    failure = SshConfig(local=local, system_dir="/nonexistent").resolve(Target("node"))
    assert isinstance(failure, Failure)
    assert "permissions" in failure.why


def test_no_files_at_all(tmp_path: Path) -> None:
    local = _local(tmp_path)
    found = good(SshConfig(local=local, system_dir="/nonexistent").resolve(Target("Node")))
    assert (found.host, found.port, found.user) == ("node", 22, local.user)
    assert found.identity_files[0] == f"{tmp_path}/.ssh/id_ed25519"


def test_missing_file_is_told(tmp_path: Path) -> None:
    failure = SshConfig(str(tmp_path / "no")).resolve(Target("node"))
    assert isinstance(failure, Failure)
    assert "no such file" in failure.why


def _local(home: Path) -> Local:
    return replace(Local.here(), home=str(home))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


# -- values -------------------------------------------------------------------------


def test_tokens_and_variables(resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    found = good(
        resolve(
            "HostName %h.org\nPort 7\nUser bob\nHostKeyAlias al\n"
            "IdentityFile ${KEYS}/%h-%n-%p-%r-%k-%%\n"
            "ProxyCommand nc %h %p %n %r\n"
        )
    )
    assert found.identity_files == ("/keys/node.org-node-7-bob-al-%",)
    assert found.proxy_command == "nc node.org 7 node bob"


def test_final_pass_sees_the_real_name(resolve: Resolve) -> None:
    found = good(resolve("Host node\nHostName real\nMatch final host real\nPort 3\n"))
    assert (found.host, found.port) == ("real", 3)


def test_match_tagged(resolve: Resolve) -> None:
    found = good(resolve("Host node\nTag gpu\nMatch tagged g*\nPort 3\nMatch tagged cpu\nUser x\n"))
    assert found.port == 3
    assert found.user != "x"


LOCALNETWORK = """\
Match localnetwork 127.0.0.0/8
  Port 3
Match localnetwork 203.0.113.0/24,!127.0.0.0/8
  User x
"""

#: an ssh that knows the criterion; the real one does since 9.4
NEW_SSH = """\
#!/bin/sh
echo "$*" >> "$0.calls"
read -r match criterion value
read -r user name
case "$value" in 127.*) echo "user $name" ;; *) echo "user root" ;; esac
"""

#: and one that does not
OLD_SSH = """\
#!/bin/sh
echo "Unsupported Match attribute localnetwork" >&2
exit 255
"""


def put_ssh(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``ssh`` of ours, the only program on PATH but for the system's."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def test_match_localnetwork_is_asked_of_ssh_once_for_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = put_ssh(tmp_path, NEW_SSH, monkeypatch)
    (tmp_path / "config").write_text(LOCALNETWORK)
    config = SshConfig(str(tmp_path / "config"))
    for number in range(5):
        found = good(config.resolve(Target(f"n{number}")))
        assert found.port == 3
        assert found.user != "x"
    calls = (tmp_path / "bin" / "ssh.calls").read_text().splitlines()
    assert calls == ["-G -F /dev/stdin -- host"] * 2, program


def test_match_localnetwork_where_ssh_does_not_know_it(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, OLD_SSH, monkeypatch)
    failure = resolve(LOCALNETWORK)
    assert isinstance(failure, Failure)
    assert "config:1: Match localnetwork: not understood by the ssh of this machine" in failure.why


def test_match_localnetwork_without_any_ssh(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    failure = resolve(LOCALNETWORK)
    assert isinstance(failure, Failure)
    assert "ssh: no such file" in failure.why.lower()
    assert good(resolve("Match host other localnetwork 127.0.0.0/8\nPort 3\n")).port == 22


@needs_ssh
def test_match_localnetwork_as_the_ssh_of_this_machine_has_it(
    resolve: Resolve, tmp_path: Path
) -> None:
    theirs = oracle_of(LOCALNETWORK, tmp_path)
    mine = resolve(LOCALNETWORK)
    assert isinstance(mine, Failure) == (theirs is None)
    if isinstance(mine, HostConfig) and theirs is not None:
        assert (str(mine.port), mine.user) == (theirs["port"][0], theirs["user"][0])


def oracle_of(text: str, folder: Path) -> dict[str, list[str]] | None:
    (folder / "theirs").write_text(text)
    return oracle(str(folder / "theirs"), Target("node"))


@pytest.mark.parametrize("value", ["127.0.0.0/8;x", "$(x)", '"1 2"', "1#2", "a\\"])
def test_what_is_asked_of_ssh_stays_one_word(
    resolve: Resolve, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = put_ssh(tmp_path, NEW_SSH, monkeypatch)
    failure = resolve(f"Match localnetwork {value}\nPort 3\n")
    assert isinstance(failure, Failure)
    assert "bad value" in failure.why
    assert not program.with_name("ssh.calls").exists()


def test_match_exec_runs_once_for_all(tmp_path: Path, resolve: Resolve) -> None:
    mark = tmp_path / "runs"
    path = tmp_path / "config"
    path.write_text(f'Match exec "echo x >> {mark}"\nPort 3\n')
    config = SshConfig(str(path))
    for number in range(5):
        assert good(config.resolve(Target(f"n{number}"))).port == 3
    assert mark.read_text() == "x\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("PKCS11Provider /usr/lib/x.so", "pkcs11provider"),
        ("SecurityKeyProvider /usr/lib/x.so", "securitykeyprovider"),
        ("CanonicalizeHostname always", "canonicalizehostname"),
        ("RemoteCommand tmux", "remotecommand"),
        ("KnownHostsCommand /bin/x", "knownhostscommand"),
        ("RevokedHostKeys /x", "revokedhostkeys"),
        ("PreferredAuthentications gssapi-with-mic,hostbased", "publickey"),
        ("BatchMode yes\nPubkeyAuthentication no", "none of the ways to log in"),
        ("Match sessiontype shell\nUser a", "sessiontype"),
        ("Match version 10*\nUser a", "version"),
        ("IdentityFile /x/%T", "%T"),
        ("IdentityFile ${NO_SUCH_VARIABLE_HERE}/x", "NO_SUCH_VARIABLE_HERE"),
        ("IdentityFile ~nosuchuserhere/x", "nosuchuserhere"),
        ("NoSuchOption 1", "nosuchoption"),
        ("IdentityFile ~a\0b/x", "config:1: a NUL byte"),
        ("Host other\nInclude ~a\0b/*", "config:2: a NUL byte"),
    ],
)
def test_refused_and_named(resolve: Resolve, text: str, why: str) -> None:
    failure = resolve(text)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.CONFIG
    assert why in failure.why
    assert "--transport ssh" in (failure.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "HostName -oProxyCommand=x",
        'HostName "a b"',
        "HostName a;b",
        "HostName $(x)",
        'User "-l"',
        'User "$(touch x)"',
        "User `x`",
        "ProxyJump -oProxyCommand=x",
        "ProxyJump a;b",
        "ProxyJump $(x)@h",
        "HostKeyAlias a/../b",
    ],
)
def test_hostile_values(resolve: Resolve, text: str) -> None:
    failure = resolve(text)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.CONFIG


def test_no_token_becomes_a_shell_word(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "config"
    path.write_text('Match exec "test -n %r"\nUser x\n')
    for user in ("a;touch " + str(mark), "$(touch x)", "a\\", "a'b", "a b"):
        failure = SshConfig(str(path)).resolve(Target("node", user=user))
        assert isinstance(failure, Failure)
    # allowed in a name, but not plain in a shell
    failure = SshConfig(str(path)).resolve(Target("node", user="dom\\user"))
    assert isinstance(failure, Failure)
    assert not mark.exists()


def test_jump_lists() -> None:
    assert jump_list("none", "p") == ()
    assert jump_list("a,b@c:3,[::1]:4,ssh://d:5", "p") == (
        Target("a"),
        Target("c", "b", 3),
        Target("::1", None, 4),
        Target("d", None, 5),
    )


def test_a_thousand_hosts_take_no_time(resolve: Resolve, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "\n".join(f"Host gpu{n}\n  Port {n + 1}" for n in range(50)) + "\nHost *\nUser a"
    )
    config = SshConfig(str(path))
    started = time.process_time()
    for number in range(1000):
        good(config.resolve(Target(f"gpu{number}")))
    assert time.process_time() - started < 3
