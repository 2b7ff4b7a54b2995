"""Whom an inner host is to trust, and the words by which it reaches one below it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from dispatcher.bootstrap import shell
from dispatcher.model.failure import Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.transport.base import Target
from dispatcher.transport.tree import tree_transport
from dispatcher.transport.tree.tree_transport import (
    Trust,
    Trusted,
)

from .conftest import key

EXCHANGE = "^curve25519-sha256"


def test_keys_of_the_bare_name_and_what_is_revoked_at_the_port(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(
        f"leaf {key(1)}\nleaf {key(2)[:-8]}\n@revoked [leaf]:2222 {key(3)}\n@revoked * {key(4)}\n"
    )
    config = tmp_path / "config"
    config.write_text(f"Host *\n  UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n")
    trusted = Trust(str(config)).of(Target("leaf", port=2222))
    assert isinstance(trusted, Trusted)
    assert set(trusted.lines.splitlines()) == {
        f"leaf {key(1)}",
        f"@revoked leaf {key(3)}",
        f"@revoked leaf {key(4)}",
    }


@pytest.mark.parametrize(
    ("lines", "extra", "target", "known"),
    [
        ([f"leaf {key(1)}"], "", Target("leaf"), Trusted("leaf", f"leaf {key(1)}\n", EXCHANGE)),
        ([f"leaf {key(1)}"], "", Target("leaf", None, 22),
         Trusted("leaf", f"leaf {key(1)}\n", EXCHANGE)),
        ([f"[leaf]:23 {key(1)}", f"leaf {key(2)}"], "", Target("leaf", None, 23),
         Trusted("leaf", f"leaf {key(1)}\n", EXCHANGE)),
        ([f"leaf {key(2)}", f"other {key(1)}"], "HostKeyAlias other", Target("leaf", None, 23),
         Trusted("other", f"other {key(1)}\n", EXCHANGE)),
        ([f"real {key(1)}"], "HostName real", Target("leaf"),
         Trusted("real", f"real {key(1)}\n", EXCHANGE)),
        ([f"leaf {key(1)}"], "KexAlgorithms ecdh-sha2-nistp256", Target("leaf"),
         Trusted("leaf", f"leaf {key(1)}\n", None)),
        # what is revoked and who may sign stand before the keys
        ([f"* {key(1)}", f"@cert-authority * {key(2)}", f"@revoked * {key(3)}"], "", Target("a"),
         Trusted("a", f"@revoked a {key(3)}\n@cert-authority a {key(2)}\na {key(1)}\n",
                 EXCHANGE)),
        # an authority is no key: the bare name's is there for every port
        ([f"leaf {key(1)}", f"@cert-authority * {key(2)}"], "", Target("leaf", None, 23),
         Trusted("leaf", f"@cert-authority leaf {key(2)}\nleaf {key(1)}\n", EXCHANGE)),
        ([f"@cert-authority [leaf]:23 {key(1)}", f"@cert-authority leaf {key(2)}"], "",
         Target("leaf", None, 23),
         Trusted("leaf", f"@cert-authority leaf {key(1)}\n@cert-authority leaf {key(2)}\n",
                 EXCHANGE)),
    ],
)  # fmt: skip
def test_what_is_known_of_a_host(
    config: Callable[..., str], lines: list[str], extra: str, target: Target, known: Trusted
) -> None:
    assert Trust(config(*lines, extra=extra)).of(target) == known


@pytest.mark.parametrize(
    ("lines", "extra", "target", "why"),
    [
        ([], "", Target("leaf"), "no key of leaf is on file here"),
        ([f"leaf {key(1)}"], "HostKeyAlias other", Target("leaf", None, 23),
         "no key of other is on file here"),
        ([f"@revoked leaf {key(1)}"], "", Target("leaf", None, 23),
         "no key of [leaf]:23 is on file here"),
    ],
)  # fmt: skip
def test_a_host_of_which_nothing_is_known(
    config: Callable[..., str], lines: list[str], extra: str, target: Target, why: str
) -> None:
    trusted = Trust(config(*lines, extra=extra)).of(target)
    assert trusted == Failure(Kind.HOST_KEY_UNKNOWN, why)


def test_a_configuration_that_cannot_be_followed(config: Callable[..., str]) -> None:
    trusted = Trust(config(extra="Port nowhere")).of(Target("leaf"))
    assert isinstance(trusted, Failure)
    assert trusted.kind is Kind.CONFIG


def test_an_ssh_that_trusts_nobody_but_who_is_known_here() -> None:
    known = Trusted("alias", "lines", "^curve25519-sha256")
    argv = tree_transport.ssh(Target("n2", "me", 2222), known, 4.2, ("ssh", "-x"))
    assert argv[:4] == ["ssh", "-x", "-T", "-o"]
    options = [word for before, word in pairwise(argv) if before == "-o"]
    said = dict(option.split("=", 1) for option in options)
    assert said["HostKeyAlias"] == "alias"
    assert said["ConnectTimeout"] == "5"
    assert said["KexAlgorithms"] == "^curve25519-sha256"
    assert said["StrictHostKeyChecking"] == "yes"
    assert said["GlobalKnownHostsFile"] == "/dev/null"
    assert options[0] == tree_relay.KNOWN.decode()
    assert argv[-7:] == ["-l", "me", "-p", "2222", "--", "n2", shell.COMMAND]
    other = tree_transport.ssh(Target("n2"), Trusted("n2", "", None), 0.0, ("ssh",))
    assert not any(word.startswith("KexAlgorithms") for word in other)
    assert "ConnectTimeout=1" in other


#: of an inner host, each with what shall hold of it
OWN_FILE = {
    "KnownHostsCommand": ("/bin/echo %H", "none"), "RemoteCommand": ("tmux", "none"),
    "UserKnownHostsFile": ("/etc/own", "/ours"), "GlobalKnownHostsFile": ("/etc/own", "/dev/null"),
    "NoHostAuthenticationForLocalhost": ("yes", "no"), "StrictHostKeyChecking": ("no", "true"),
    "VerifyHostKeyDNS": ("yes", "false"), "ForwardAgent": ("yes", "no"), "Tunnel": ("yes", "false"),
    "ForwardX11": ("yes", "no"), "OfALaterRelease": ("yes", "none"),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh program")
def test_what_the_file_of_an_inner_host_says_does_not_count(tmp_path: Path) -> None:
    own = tmp_path / "config"
    own.write_text("".join(f"{name} {value}\n" for name, (value, _) in OWN_FILE.items()))
    argv = tree_transport.ssh(Target("n2"), Trusted("n2", "", None), 9.0, ("ssh", "-GF", str(own)))
    argv[argv.index(tree_relay.KNOWN.decode())] += "/ours"
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for name, (_, holds) in OWN_FILE.items():
        assert said.get(name.lower(), "none") == holds, name


def test_a_shell_says_that_it_is_there_and_runs_the_command() -> None:
    command = "echo \"a  b\" ${s-unset}; printf '\\303\\244'; cat"
    done = subprocess.run(
        ["/bin/sh", "-c", 'IFS= read -r s;eval "$s"'],
        input=tree_transport.opening(command) + b"rest",
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == SYNC + b"a  b unset\n\xc3\xa4rest"
