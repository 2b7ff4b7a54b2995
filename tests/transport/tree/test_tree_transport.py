"""What an inner host is told of the keys of one below it."""

from __future__ import annotations

import base64
from pathlib import Path

from dispatcher.transport.base import Target
from dispatcher.transport.tree.tree_transport import Trust, Trusted


def key(number: int) -> str:
    fields = (b"ssh-ed25519", number.to_bytes(32, "big"))
    blob = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


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
