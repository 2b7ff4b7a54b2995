"""A key with a passphrase: who takes long to type it does not lose the hosts meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from transport.sshd import Sshd, start_sshd
from typist import Typist


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """One whose user has a key with the passphrase ``sesame``."""
    made = start_sshd(tmp_path / "sshd")
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "sesame", "-f", str(made.user_key)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    yield made
    made.stop()


def test_typing_costs_no_host_its_time(sshd: Sshd) -> None:
    words = ["exec", "-t", "10", "-F", sshd.config(), "-w", "node", "echo", "here"]
    one = Typist([sys.executable, "-m", "dispatcher", *words])
    try:
        one.until("passphrase for ")
        time.sleep(12.5)  # more than the limit, and what it may be late
        one.type("sesame\n")
        one.until("node:")
        one.until("here")
        assert one.wait() == 0
    finally:
        one.close()


def test_nothing_is_drawn_where_it_is_typed(sshd: Sshd, tmp_path: Path) -> None:
    words = ["put", "-F", sshd.config(), "-w", "node", str(tmp_path / "some"), f"{tmp_path}/here"]
    (tmp_path / "some").write_bytes(bytes(1000))
    one = Typist([sys.executable, "-m", "dispatcher", *words])
    try:
        one.until(f"passphrase for {sshd.user_key}: ")
        with pytest.raises(AssertionError, match="not shown"):
            one.until("host", seconds=1.0)  # a picture would come after less than half of that
        assert one.seen == b""
        one.type("sesame\n")
        one.until("1 file sent")
        assert one.wait() == 0
    finally:
        one.close()
