"""--detach with a key that has a passphrase: asked for in the foreground, at its terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from transport.sshd import Sshd, start_sshd

from ..background import WAITS, dispatch, go, jobs
from ..conftest import Desk, script


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Sshd]:
    """An sshd whose only accepted key has the passphrase ``sesame``."""
    sshd = start_sshd(tmp_path / "sshd")
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "sesame", "-f", str(sshd.user_key)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    yield sshd
    sshd.stop()


class Typist:
    """``dispatch --detach`` on a terminal of its own, and who types there."""

    def __init__(self, desk: Desk, sshd: Sshd) -> None:
        self._master, slave = pty.openpty()
        self.said = b""

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        words = ("--detach", "-F", sshd.config(), "-H", "node:1", script(desk.folder, WAITS), "0")
        self.process = subprocess.Popen(desk.argv(*words), cwd=desk.folder, stdin=slave,
                                        stdout=slave, stderr=slave,
                                        preexec_fn=take_terminal)  # fmt: skip
        desk._started.append(self.process)
        os.close(slave)

    def until(self, word: bytes) -> None:
        """Read on until ``word`` has been said."""
        end = time.monotonic() + 60
        before = len(self.said)
        while word not in self.said[before:]:
            assert time.monotonic() < end, self.said
            if select.select([self._master], [], [], 0.1)[0]:
                self.said += os.read(self._master, 4096)

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def end(self) -> int:
        return self.process.wait(timeout=60)


def test_it_is_asked_for_once_it_is_wanted(desk: Desk, state: Path, locked: Sshd) -> None:
    typist = Typist(desk, locked)
    typist.until(b"passphrase for ")
    typist.type(b"abracadabra\n")
    typist.until(b"wrong, try again: ")
    typist.type(b"sesame\n")
    typist.until(b"1 rank runs")
    assert typist.end() == 0
    assert jobs()[-1]["state"] == "running"
    go(desk)
    assert dispatch("attach").returncode == 0
    for secret in (b"sesame", b"abracadabra"):
        assert secret not in typist.said
        for path in state.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # the launcher ends just now
                assert not path.is_file() or secret not in path.read_bytes()


def test_ctrl_c_is_an_answer(desk: Desk, state: Path, locked: Sshd) -> None:
    typist = Typist(desk, locked)
    typist.until(b"passphrase for ")
    typist.type(b"\x03")
    assert typist.end() == 130
    assert jobs()[-1]["state"] == "ended"


def test_nobody_to_ask(desk: Desk, state: Path, locked: Sshd) -> None:
    words = ("--detach", "-F", locked.config(), "-H", "node:1", "--no-python", "true")
    done = desk.run(*words, start_new_session=True)
    assert done.returncode == 2
    assert f"there is no terminal to ask for the passphrase for {locked.user_key}" in done.stderr
    assert "ssh-add" in done.stderr
    assert jobs()[-1]["state"] == "ended"
