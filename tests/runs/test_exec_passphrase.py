"""A key with a passphrase: who takes long to type it does not lose the hosts meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from transport.sshd import start_sshd
from typist import Typist


def test_typing_costs_no_host_its_time(tmp_path: Path) -> None:
    sshd = start_sshd(tmp_path / "sshd")
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "sesame", "-f", str(sshd.user_key)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    words = ["exec", "-t", "5", "-F", sshd.config(), "-w", "node", "echo", "here"]
    one = Typist([sys.executable, "-m", "dispatcher", *words])
    try:
        one.until("passphrase for ")
        time.sleep(7.5)  # more than the limit, and what it may be late
        one.type("sesame\n")
        one.until("node:")
        one.until("here")
        assert one.wait() == 0
    finally:
        one.close()
        sshd.stop()
