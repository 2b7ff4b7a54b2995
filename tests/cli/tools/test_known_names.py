"""Names that this machine knows, from files that anybody may have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.cli.tools import completion
from dispatcher.jobs import registry

KNOWN_HOSTS = """\
# a comment
gpu01,10.0.0.1 ssh-ed25519 AAAA
[gpu02]:2222 ssh-ed25519 AAAA
|1|abc=|def= ssh-ed25519 AAAA
@cert-authority *.site,gate ssh-ed25519 AAAA

"""
CONFIG = "Host login web-?\n    HostName 10.0.0.9\nhost=store !web\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DISPATCH_SSH_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(names: list[str]) -> list[str]:
    """Less those of this machine's own files."""
    system = "/etc/ssh/ssh_known_hosts"
    text = Path(system).read_text() if os.path.exists(system) else ""
    return [name for name in names if name not in text]


def test_hosts_of_ssh(home: Path) -> None:
    assert own(completion.known_hosts()) == []
    (home / ".ssh" / "known_hosts").write_text(KNOWN_HOSTS)
    (home / ".ssh" / "config").write_text(CONFIG)
    assert own(completion.known_hosts()) == ["10.0.0.1", "gate", "gpu01", "gpu02", "login", "store"]


def test_another_ssh_config(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("named", "typed"):
        (home / name).write_text(f"Host {name}\n")
    (home / ".ssh" / "config").write_text(CONFIG)
    monkeypatch.setenv("DISPATCH_SSH_CONFIG", "named")
    assert own(completion.known_hosts()) == ["named"]
    assert own(completion.known_hosts("typed")) == ["typed"]
    (home / "typed").write_bytes(b"Host \xff\nHost good\n")
    assert own(completion.known_hosts("typed")) == ["good"]
    assert own(completion.known_hosts("a\0b")) == []


def test_hosts_of_a_hostfile(home: Path) -> None:
    text = "# all\nn1 slots=8\n  me@n2:4\n\nn3  # spare\n-\n[::1]\n"
    (home / "hostfile").write_text(text)
    assert completion.hosts_of("hostfile") == ["n1", "n2", "n3"]
    assert completion.hosts_of("absent") == []


def test_jobs_the_newest_first(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert completion.jobs() == []
    for run_id, name in (("20260131-142501-k3f9x2", "old-one"), ("20260131-142502-aaaaaa", None)):
        registry.enroll(
            run_id, program=["train.py", "--x\x1b[2J"], hosts=[], ranks=2, logs=None,
            detached=True, reach={}, name=name,
        )  # fmt: skip
    (first, _, told), (second, name, _) = completion.jobs()
    assert (first, second) == ("20260131-142502-aaaaaa", "20260131-142501-k3f9x2")
    assert name == "old-one"
    assert "train.py --x" in told
    assert "\x1b" not in told
