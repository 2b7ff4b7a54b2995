"""The known_hosts index against ``ssh-keygen -F``, and how it is written to."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from cases import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.model.failure import Kind
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck
from dispatcher.transport.ssh_auth.known_hosts import (
    KeysOf,
    KnownHosts,
    _hash_name,
    fingerprint,
    lookup_name,
)
from dispatcher.transport.ssh_config.host_config import HostConfig

from ..sshd import keygen

needs_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


def blob(number: int) -> bytes:
    kind = b"ssh-ed25519"
    key = number.to_bytes(32, "big")
    return len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + key


def key(number: int) -> str:
    return "ssh-ed25519 " + base64.b64encode(blob(number)).decode()


def index(tmp_path: Path, *lines: str) -> KnownHosts:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return KnownHosts([str(path)])


def numbers(found: KnownHosts, name: str, part: str = "keys") -> list[int]:
    return [int.from_bytes(entry.blob[-32:], "big") for entry in getattr(found.keys_of(name), part)]


def test_forms_of_a_line(tmp_path: Path) -> None:
    found = index(
        tmp_path,
        f"a,b {key(1)}",
        f"[c]:2222 {key(2)} comment with words",
        f"*.lab,!bad.lab {key(3)}",
        f"{_hash_name('secret')} {key(4)}",
        f"@revoked * {key(5)}",
        f"@cert-authority *.lab {key(6)}",
        f"  UPPER {key(7)}",
        "# comment",
        "",
    )
    assert numbers(found, "a") == numbers(found, "b") == [1]
    assert numbers(found, "[c]:2222") == [2]
    assert numbers(found, "c") == []
    assert numbers(found, "x.lab") == [3]
    assert numbers(found, "bad.lab") == []
    assert numbers(found, "secret") == [4]
    assert numbers(found, "upper") == [7]
    assert numbers(found, "anything", "revoked") == [5]
    assert numbers(found, "x.lab", "authorities") == [6]


@cases(
    "line",
    [
        "host",
        "host ssh-ed25519",
        "host ssh-ed25519 !!!!",
        f"host ssh-rsa {key(1).split()[1]}",
        "host ssh-ed25519 AAAA",
        f"@strange host {key(1)}",
        f"|1|bad {key(1)}",
        f"|1|{base64.b64encode(b'x' * 20).decode()}|AAAA {key(1)}",
        "host 1024 35 1234567890",
        f"host {key(1)[:-8]}",
        f"host {key(1)[:-1]}",
        f"host {key(1)[:20]}!{key(1)[21:]}",
        f"host {key(1)}=",
        f"host {key(1)}AAAA",
        f"host ssh-ed25519 {base64.b64encode(blob(1)[:-1]).decode()}",
        f"host ssh-unknown {key(1).split()[1]}",
        f"host ssh-ed25519-cert-v01@openssh.com {key(1).split()[1]}",
        f"*,!other {key(1)[:-8]}",
        f"@cert-authority * {key(1)[:-8]}",
        f"@revoked {_hash_name('host')} {key(1)[:-8]}",
        f"host\0 {key(1)}",
    ],
)
def test_bad_lines_are_skipped(tmp_path: Path, line: str) -> None:
    found = index(tmp_path, line, f"host {key(2)}")
    assert numbers(found, "host") == [2]


def test_lines_that_end_as_on_windows(tmp_path: Path) -> None:
    found = index(tmp_path, "\r", "# note\r", f"host {key(2)}\r", " \t\r")
    assert numbers(found, "host") == [2]


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # whose writer is not waited for
    found = KnownHosts([str(tmp_path / "no"), str(tmp_path), str(tmp_path / "pipe")])
    assert found.keys_of("host") == KeysOf()


def test_names_of_a_host() -> None:
    assert lookup_name("h", 22) == "h"
    assert lookup_name("h", 23) == "[h]:23"
    assert lookup_name("h", 23, "alias") == "alias"


@cases(
    ("lines", "port", "known_as", "found"),
    [
        (["h {1}", "[h]:23 {2}"], 22, None, ([1], [])),
        (["h {1}", "[h]:23 {2}"], 23, None, ([2], [])),
        (["h {1}", "[h]:23 {2}"], 24, None, ([], [1])),
        (["h {1}", "@cert-authority * {2}"], 24, None, ([], [1])),  # an authority is no key
        (["h {1}", "@revoked [h]:24 {2}"], 24, None, ([], [1])),
        (["h {1}", "other {2}"], 24, "other", ([2], [])),
        (["h {1}"], 24, "other", ([], [])),
    ],
)
def test_a_key_of_the_bare_name_serves_every_port(
    tmp_path: Path,
    lines: list[str],
    port: int,
    known_as: str | None,
    found: tuple[list[int], list[int]],
) -> None:
    keys = index(tmp_path, *(line.format(None, key(1), key(2)) for line in lines))
    both = keys.keys_of_host("h", port, known_as)
    assert tuple([int.from_bytes(e.blob[-32:], "big") for e in of.keys] for of in both) == found


_NAME = st.sampled_from(["a", "b", "node1", "node2", "x.lab", "[a]:22", "[a]:2222", "10.0.0.1"])
_PATTERN = st.one_of(_NAME, st.sampled_from(["*", "node?", "!node1", "*.lab", "[*]:2222", "!a"]))
_FIELD = st.one_of(st.lists(_PATTERN, min_size=1, max_size=3).map(",".join), _NAME.map(_hash_name))


@needs_keygen
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=st.lists(_FIELD, max_size=6), name=_NAME)
def test_same_lines_as_ssh_keygen(
    fields: list[str], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("known")
    path = folder / "known_hosts"
    path.write_text("".join(f"{field} {key(n)}\n" for n, field in enumerate(fields, 1)))
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, text=True, check=False
    )
    theirs = [line.split()[2] for line in done.stdout.splitlines() if not line.startswith("#")]
    mine = [entry.text for entry in KnownHosts([str(path)]).keys_of(name).keys]
    assert sorted(mine) == sorted(theirs)


_LINE = st.builds(
    lambda marker, field, number, comment: f"{marker}{field} {key(number)}{comment}".encode(),
    st.sampled_from(["", "", "", "@revoked ", "@cert-authority "]),
    _FIELD,
    st.integers(1, 9),
    st.sampled_from(["", " comment", "\r"]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(_LINE, min_size=1, max_size=5),
    nth=st.integers(0, 4),
    at=st.integers(0, 150),
    cut=st.integers(0, 20),
    instead=st.binary(max_size=6).map(lambda junk: junk.replace(b"\n", b" ")),
)
def test_a_damaged_line_costs_only_itself(
    lines: list[bytes],
    nth: int,
    at: int,
    cut: int,
    instead: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever becomes of one line, the others say what they said."""
    path = tmp_path_factory.getbasetemp() / "damaged_known_hosts"
    nth %= len(lines)
    damaged = lines[nth][:at] + instead + lines[nth][at + cut :]
    others = {}
    for name, content in (("before", b""), ("after", damaged)):
        path.write_bytes(b"\n".join([*lines[:nth], content, *lines[nth + 1 :]]))
        found = KnownHosts([str(path)])
        others[name] = [
            [
                (entry.text, entry.place)
                for part in ("keys", "authorities", "revoked")
                for entry in getattr(found.keys_of(host), part)
                if entry.blob and not entry.place.endswith(f":{nth + 1}")
            ]
            for host in ("a", "node1", "x.lab", "[a]:2222")
        ]
    assert others["before"] == others["after"]


@needs_keygen
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["ed25519", "ecdsa", "rsa"]),
    at=st.integers(0, 600),
    cut=st.integers(0, 9),
    instead=st.text(st.sampled_from("AZaz09+/=!"), max_size=6),
)
def test_the_same_keys_are_damaged_to_ssh_keygen(
    kind: str, at: int, cut: int, instead: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = tmp_path_factory.getbasetemp() / f"sound_{kind}"
    if not made.exists():
        keygen(made, "-t", kind)
    sort, text = made.with_suffix(".pub").read_text().split()[:2]
    at %= len(text)
    path = tmp_path_factory.getbasetemp() / "known_hosts_as_ssh"
    path.write_text(f"host {sort} {text[:at]}{instead}{text[at + cut :]}\n")
    theirs = subprocess.run(
        ["ssh-keygen", "-l", "-F", "host", "-f", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    mine = [fingerprint(entry.blob) for entry in KnownHosts([str(path)]).keys_of("host").keys]
    if not (kind == "ecdsa" and mine and not theirs):  # whether a point is on its curve
        assert mine == [word for word in theirs if word.startswith("SHA256:")]


@needs_keygen
def test_hashed_by_ssh_keygen(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"node1 {key(1)}\n[node2]:22022 {key(2)}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "node" not in path.read_text()
    found = KnownHosts([str(path)])
    assert numbers(found, "node1") == [1]
    assert numbers(found, "[node2]:22022") == [2]
    assert numbers(found, "node3") == []


@needs_keygen
def test_fingerprint_as_ssh_keygen_prints_it(tmp_path: Path) -> None:
    made = keygen(tmp_path / "k")
    public = made.with_suffix(".pub")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(public)], capture_output=True, text=True, check=True
    )
    text = public.read_text().split()[1]
    assert fingerprint(base64.b64decode(text)) == shown.stdout.split()[1]


def test_learning_from_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "known_hosts"
    found = KnownHosts([str(path)])
    threads = [
        threading.Thread(
            target=found.learn,
            args=(str(path), f"host{n}", "ssh-ed25519", blob(n)),
            kwargs={"hashed": bool(n % 2)},
        )
        for n in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    again = KnownHosts([str(path)])
    for n in range(64):
        assert numbers(again, f"host{n}") == numbers(found, f"host{n}") == [n]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path.parent).st_mode & 0o777 == 0o700


def test_two_machines_under_one_name(tmp_path: Path) -> None:
    """Both are met before either was on file: the first counts, and the second is told apart."""
    path = tmp_path / "known_hosts"
    found = KnownHosts([str(path)])
    config = HostConfig("n1", "n1", "me", user_known_hosts=(str(path),))
    first, second, same = (HostKeyCheck(config, found, "accept-new") for _ in range(3))
    assert first.verify(blob(1), "ssh-ed25519") is None
    refused = second.verify(blob(2), "ssh-ed25519")
    assert refused is not None
    assert refused.kind is Kind.HOST_KEY_CHANGED
    assert same.verify(blob(1), "ssh-ed25519") is None
    assert numbers(KnownHosts([str(path)]), "n1") == [1]


def test_learning_after_an_open_last_line(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"old {key(1)}")
    KnownHosts([str(path)]).learn(str(path), "new", "ssh-ed25519", blob(2), hashed=False)
    again = KnownHosts([str(path)])
    assert numbers(again, "old") == [1]
    assert numbers(again, "new") == [2]


def test_what_is_learned_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "known_hosts", list[str]()
    see = lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").read_text())  # noqa: E731
    monkeypatch.setattr(os, "fsync", see)
    KnownHosts([]).learn(str(path), "new", "ssh-ed25519", blob(2), hashed=False)
    assert synced == [path.read_text()] == [f"new {key(2)}\n"]
    with path.open("a") as file:
        file.write("somebody else\n")
    KnownHosts([]).learn(str(path), "newer", "ssh-ed25519", blob(3), hashed=False)
    assert path.read_text() == f"new {key(2)}\nsomebody else\nnewer {key(3)}\n"


def test_a_key_is_known_for_this_run_where_the_file_keeps_nothing() -> None:
    """``UserKnownHostsFile /dev/null``, as vagrant has it."""
    found = KnownHosts(["/dev/null"])
    found.learn("/dev/null", "new", "ssh-ed25519", blob(2), hashed=False)
    assert numbers(found, "new") == [2]
    assert numbers(KnownHosts(["/dev/null"]), "new") == []


def test_another_who_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    learn = KnownHosts([]).learn
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        learning = threading.Thread(
            target=learn, args=(str(path), "new", "ssh-ed25519", blob(2)), kwargs={"hashed": False}
        )
        learning.start()
        learning.join(0.1)
        assert learning.is_alive()
        assert path.read_text() == ""
    learning.join(60)
    assert path.read_text() == f"new {key(2)}\n"


def test_what_cannot_be_written_is_not_trusted(tmp_path: Path) -> None:
    found = KnownHosts([])
    with pytest.raises(OSError):
        found.learn(str(tmp_path), "host", "ssh-ed25519", blob(1), hashed=False)
    assert found.keys_of("host") == KeysOf()
