"""Host keys on file, for those who reach hosts through hosts."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest


def key(number: int) -> str:
    fields = (b"ssh-ed25519", number.to_bytes(32, "big"))
    blob = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """A config whose known_hosts has these lines."""

    def write(*lines: str, extra: str = "") -> str:
        (tmp_path / "known_hosts").write_text("".join(f"{line}\n" for line in lines))
        path = tmp_path / "config"
        path.write_text(
            f"{extra}\nHost *\n  UserKnownHostsFile {tmp_path / 'known_hosts'}\n"
            "  GlobalKnownHostsFile none\n"
        )
        return str(path)

    return write
