"""What our reading of ssh_config makes of files, values and criteria, or refuses to guess at."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Target
from dispatcher.transport.ssh_config.config_lines import Local
from dispatcher.transport.ssh_config.host_config import HostConfig
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


def test_users_file_before_the_systems(tmp_path: Path) -> None:
    local = _local(tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "etc").mkdir()
    _write(tmp_path / ".ssh" / "config", "User mine\n")
    _write(tmp_path / "etc" / "ssh_config", "User theirs\nPort 9\nInclude conf.d/*\n")
    config = SshConfig(local=local, system_dir=str(tmp_path / "etc"))
    found = good(config.resolve(Target("node")))
    assert (found.user, found.port) == ("mine", 9)


def _local(home: Path) -> Local:
    return replace(Local.here(), home=str(home))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


# -- values -------------------------------------------------------------------------


#: an ssh that knows the criterion; the real one does since 9.4
NEW_SSH = """\
#!/bin/sh
echo "$*" >> "$0.calls"
read -r match criterion value
read -r user name
case "$value" in 127.*) echo "user $name" ;; *) echo "user root" ;; esac
"""


def put_ssh(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``ssh`` of ours, the only program on PATH but for the system's."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.mark.parametrize("value", ["127.0.0.0/8;x", "$(x)", '"1 2"', "1#2", "a\\"])
def test_what_is_asked_of_ssh_stays_one_word(
    resolve: Resolve, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = put_ssh(tmp_path, NEW_SSH, monkeypatch)
    failure = resolve(f"Match localnetwork {value}\nPort 3\n")
    assert isinstance(failure, Failure)
    assert "bad value" in failure.why
    assert not program.with_name("ssh.calls").exists()


def test_no_program_is_run_where_nobody_may_wait(tmp_path: Path) -> None:
    """The daemon of kept connections asks so on the thread that serves all of a client's orders."""
    mark = tmp_path / "runs"
    path = tmp_path / "config"
    path.write_text(f'Match exec "touch {mark}"\nPort 3\n')
    config = SshConfig(str(path))
    failed = config.resolve(Target("n1"), runs=False)
    assert isinstance(failed, Failure)
    assert failed.why.endswith("Match exec: not run now")
    assert not mark.exists()
    assert good(config.resolve(Target("n1"))).port == 3


def test_a_program_that_hangs_holds_up_its_own_hosts_alone(tmp_path: Path) -> None:
    wait, path = tmp_path / "wait", tmp_path / "config"
    os.mkfifo(wait)
    path.write_text(f'Match exec "test %n != slow || read x < {wait}"\nPort 3\n')
    config = SshConfig(str(path))
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(config.resolve, Target("slow"))
        try:
            with open(wait, "w") as let_go:  # opens when the program reads
                assert good(config.resolve(Target("quick"))).port == 3
                assert not slow.done()
                let_go.write("x\n")
            assert good(slow.result(60)).port == 3
        finally:
            os.close(os.open(wait, os.O_RDWR | os.O_NONBLOCK))


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


def test_a_host_that_the_config_refuses(resolve: Resolve) -> None:
    failure = resolve("Host other\nRefuseConnection no\nHost *\nRefuseConnection not from here")
    assert isinstance(failure, Failure)
    assert failure.why.endswith("config:4: refuseconnection: not from here")


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
