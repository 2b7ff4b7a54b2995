"""``--ask-pass`` over a real sshd with PAM, for a user who exists in a mount namespace alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for
from transport.conftest import end_daemon
from transport.sshd import Sshd, start_sshd
from typist import Typist

PASSWORD = "geheim wort"
#: /etc of the namespace in $1, with a user whose password is $2
PREPARE = """
set -e
cp -a /etc "$1"
mount --bind "$1" /etc
useradd -M -d /tmp -s /bin/sh login-asker
echo "login-asker:$2" | chpasswd
printf '%s\\n' 'auth required pam_unix.so' 'account required pam_unix.so' \\
  'session required pam_permit.so' > /etc/pam.d/sshd
"""
WRAPPER = """#!/bin/sh
exec unshare --mount sh -c 'mount --bind "$0" /etc && exec {program} "$@"' {etc} "$@"
"""
HOSTS = ("-w", "node,other")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Takes passwords and asks for them, but no keys."""
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    if os.getuid() != 0 or not all(map(shutil.which, ("unshare", "useradd", "chpasswd"))):
        pytest.skip("needs root")
    folder = tmp_path_factory.mktemp("logging-in")
    etc = str(folder / "etc")
    made = subprocess.run(
        ["unshare", "--mount", "sh", "-c", PREPARE, "sh", etc, PASSWORD],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"needs root, to make a user: {made.stderr}")
    (folder / "sshd").write_text(WRAPPER.format(program=program, etc=etc))
    (folder / "sshd").chmod(0o755)
    options = ("UsePAM yes", "PubkeyAuthentication no", "KbdInteractiveAuthentication yes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        server = start_sshd(folder / "server", *options, "PasswordAuthentication yes")
    server.user = "login-asker"
    with server:
        yield server


@pytest.fixture
def sit(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``sit("exec", ...)``: somebody at a terminal, whose connections are kept by a daemon here."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made: list[Typist] = []
    config = sshd.config("node other")

    def start(command: str, *words: str) -> Typist:
        argv = [sys.executable, "-m", "dispatcher", command, "-t", "60", "-F", config, *words]
        made.append(Typist(argv, size=(120, 24)))
        return made[-1]

    yield start
    for one in made:
        one.close()
    end_daemon()


def test_a_password_once_for_all(sit: Any, sshd: Sshd) -> None:
    one = sit("exec", "--ask-pass", *HOSTS, "id", "-un")
    for prompt, typed in (("password of all", "wrong"), ("wrong, try again: ", PASSWORD)):
        one.until(prompt)
        one.type(f"{typed}\n")
    assert one.wait() == 0
    shown = "\n".join(one.screen.lines())
    assert "node: login-asker" in shown
    assert "other: login-asker" in shown
    assert PASSWORD not in shown

    def refused() -> int:
        return sum("Failed keyboard-interactive" in line for line in sshd.log)

    wait_for(refused, 60, "the wrong one is in the log")  # written once the client knows of it
    assert refused() == 1


def test_later_commands_find_the_connections(sit: Any) -> None:
    one = sit("connect", "-k", *HOSTS)
    one.until("password of all hosts: ")
    one.type(f"{PASSWORD}\n")
    assert one.wait() == 0
    two = sit("exec", *HOSTS, "id", "-un")
    assert two.wait() == 0
    assert two.screen.lines()[0] in ("node: login-asker", "other: login-asker")


def test_many_hosts_do_not_ask_and_say_what_would(sit: Any) -> None:
    one = sit("exec", *HOSTS, "true")
    assert one.wait() == 125
    shown = " ".join(one.screen.lines())
    assert "this host takes no keys, only password, keyboard-interactive" in shown
    assert "hint: --ask-pass  # " in shown
