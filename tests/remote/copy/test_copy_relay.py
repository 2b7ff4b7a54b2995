"""What an inner host passes on: real hosts' ends as processes here, and children that misbehave."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.bootstrap import payload, shell
from dispatcher.remote.copy import copy_relay
from dispatcher.remote.copy.copy_relay import Child, Relay
from dispatcher.remote.copy.receiver import Receiver
from dispatcher.remote.protocol.copy_frames import entry_columns, frames, message, rows
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.transfer.put_files import Sources, needs_of

LIMIT = 60.0
DATA = os.urandom(600_000)
#: what a host's end is started by
REAL = ["sh", "-c", shell.COMMAND]


class Files:
    """In the place of a ``Receiver``: one file, of which ``size`` bytes are here."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = str(path), size

    def available(self, index: int) -> int:
        return self.size

    def source(self, index: int) -> tuple[str, int]:
        return self.path, len(DATA)


def order(below: list[Any], branches: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "do": "put", "checksum": False, "resume": True, "below": below, "branches": branches,
        "opening": shell.opening(payload.copy_command("exit 1"), stdin=True), "marker": SYNC,
        **more,
    }  # fmt: skip


LEAVES = "import os; os.close(1); sys.stdin.buffer.read()"


def played(*said: bytes, first: str = "", then: str = "sys.stdin.buffer.read()") -> list[str]:
    """A host's end that says ``said``, whatever it is told. first, then: what it does besides."""
    text = f"import sys, time; {first}\n"
    text += f"sys.stdout.buffer.write({b''.join(said)!r}); sys.stdout.flush()\n{then}\n"
    return [sys.executable, "-I", "-S", "-c", text]


READY = SYNC + payload.PYTHON
NEEDS = message({"need": b"\1", "start": "", "seen": ""})
NOTHING = message({"need": b"\0", "start": "", "seen": ""})
DONE = {"sent": 0, "equal": 1, "bytes": 0, "found": 0}


@pytest.fixture
def file(tmp_path: Path) -> Files:
    (tmp_path / "f").write_bytes(DATA)
    return Files(tmp_path / "f", len(DATA))


def ended(child: Child) -> bool:
    return child.ended


def fed(child: Child) -> bool:
    return child.fed


def through(file: Files, argv: list[str], *others: int) -> list[dict[str, Any]]:
    """What the root is told by a relay with one child that speaks for 5 and ``others``."""
    told: list[dict[str, Any]] = []
    below = [[5, argv, []], *([other, argv, []] for other in others)]
    relay = Relay(order(below, 1), b"program", file, told.append)  # type: ignore[arg-type]
    relay.start()
    relay.wait(ended)
    return told


class Root:
    """Ours is an inner host; the root sends it one tree."""

    def __init__(self, tmp_path: Path, hosts: int, branches: int) -> None:
        tree = tmp_path / "tree"
        (tree / "in").mkdir(parents=True)
        (tree / "in" / "big").write_bytes(DATA)
        (tree / "small").write_text("hello")
        (tree / "link").symlink_to("small")
        self.dests = [tmp_path / f"dest{number}" for number in range(hosts)]
        self.sources = Sources([(f"{self.dests[0]}/", (str(tree),))], checksum=False)
        self.sources.add_digests()
        groups = [[[f"{dest}/", ["tree"]]] for dest in self.dests]
        below = [[node, REAL, groups[node]] for node in range(1, hosts)]
        listed = entry_columns(self.sources.entries)
        self.told: list[dict[str, Any]] = []
        self.receiver = Receiver(rows(listed), groups[0], checksum=False, resume=True)
        full = order(below, branches, list=listed, groups=groups[0])
        program = payload.copy_payload(True)
        self.relay = Relay(full, program, self.receiver, self.told.append)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        needed, starts = needs_of(self.receiver.needs(), self.sources.entries)
        self.relay.start()
        come = frames(1 << 20)
        for piece in self.sources.pieces(needed, starts):
            for _, kind, body in come.feed(piece):
                yield kind, body

    def take(self, kind: int, body: bytes) -> None:
        with self.relay.grown:
            self.receiver.take(kind, body)
            self.relay.grown.notify_all()

    def close(self) -> None:
        self.receiver.close(keep=False)
        self.sources.close()


@cases(("hosts", "branches"), [(3, 8), (4, 1)])
def test_all_below_get_the_files_while_they_come(tmp_path: Path, hosts: int, branches: int) -> None:
    root = Root(tmp_path, hosts, branches)
    for kind, body in root.frames():
        root.take(kind, body)
    root.relay.wait(fed)
    root.receiver.commit()
    root.relay.wait(ended)
    root.close()
    for dest in root.dests:
        assert (dest / "tree" / "in" / "big").read_bytes() == DATA
        assert (dest / "tree" / "small").read_text() == "hello"
        assert os.readlink(dest / "tree" / "link") == "small"
        assert os.listdir(dest) == ["tree"]
    assert sorted(node for told in root.told for node in told["of"]) == list(range(1, hosts))
    for told in root.told:
        assert (told["sent"], told["bytes"]) == (2, len(DATA) + 5), told


def test_what_a_host_has_is_not_passed_on(tmp_path: Path) -> None:
    root = Root(tmp_path, 2, 8)
    for dest in root.dests:  # they have it all, as a copy before left it
        shutil.copytree(tmp_path / "tree", dest / "tree", symlinks=True)
    assert list(root.frames()) == []
    root.relay.wait(fed)
    root.receiver.commit()
    root.relay.wait(ended)
    assert [(told["of"], told["sent"], told["equal"]) for told in root.told] == [([1], 0, 2)]
    root.close()


def test_an_inner_host_that_fails_tells_no_more(tmp_path: Path) -> None:
    root = Root(tmp_path, 2, 8)
    come = root.frames()
    root.take(*next(come))
    children = root.relay._children
    wait_for(lambda: all(child._process is not None for child in children))
    root.relay.abandon()
    root.relay.wait(ended)
    assert root.told == []
    assert all(child._process.returncode is not None for child in children)
    root.close()
    assert not (root.dests[1] / "tree").exists()


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["sh", "-c", "echo first >&2; echo no route >&2; exit 3"], "no route"),
        (["sh", "-c", "exec >&-; exec cat >/dev/null"], "it ended early"),
        (["/nowhere/ssh"], "/nowhere/ssh"),
        (played(SYNC, b"S\n"), "no python3 there"),
        (played(READY, message({"error": "disk full"})), "disk full"),
        (played(READY, message({"error": "x" * 900})), "x" * 400),
        (played(READY, message({"need": b"\1"})), "a broken answer"),
        (played(READY, message({})), "a broken answer"),
        (played(READY, b"x" * 99), "a frame of"),
        (played(READY, NEEDS, message({"error": "late"})), "late"),
        (played(READY, NOTHING, then=LEAVES), "it ended early"),
    ],
)
def test_a_child_that_fails_is_told_of_with_all_below_it(
    file: Files, argv: list[str], why: str
) -> None:
    (told,) = through(file, argv, 7, 6)
    assert told["of"] == [5, 6, 7]
    assert why in told["failed"]
    assert len(told["failed"]) <= 400
    assert set(told) == {"of", "failed"}


@pytest.mark.parametrize(("says", "why"), [("no route", "no route"), ("", "it ended early")])
def test_what_ssh_has_started_may_outlive_it(
    file: Files, tmp_path: Path, says: str, why: str
) -> None:
    """As the program of a ProxyCommand may, which has ssh's standard error."""
    os.mkfifo(tmp_path / "fifo")
    argv = ["sh", "-c", f"cat {tmp_path}/fifo >/dev/null & printf '{says}' >&2; exit 3"]
    told: list[dict[str, Any]] = []
    going = threading.Thread(target=lambda: told.extend(through(file, argv)), daemon=True)
    with open(tmp_path / "fifo", "r+b", buffering=0):
        going.start()
        going.join(LIMIT)
        assert told == [{"of": [5], "failed": why}]


def test_what_a_child_says_of_those_below_it_is_passed_on(file: Files) -> None:
    said = [
        message({**DONE, "of": [6]}), message({"of": [7, 6, 99], "failed": "gone"}), message(DONE),
    ]  # fmt: skip
    told = through(file, played(READY, NOTHING, *said), 6, 7)
    assert told == [{**DONE, "of": [6]}, {"of": [7], "failed": "gone"}, {**DONE, "of": [5]}]


def test_whom_a_child_has_not_told_of_it_has_not_served(file: Files) -> None:
    (done, failed) = through(file, played(READY, NOTHING, message(DONE), then=LEAVES), 6)
    assert done["of"] == [5]
    assert failed == {"of": [6], "failed": "it ended early"}


def test_login_noise_is_passed_over(file: Files) -> None:
    noise = "print('Welcome!' * 20_000, flush=True)"
    (told,) = through(file, played(READY, NOTHING, message(DONE), first=noise))
    assert told == {**DONE, "of": [5]}


CHECKS = """
data = sys.stdin.buffer.read({size})
import hashlib
sys.stdout.buffer.write({done!r}) if hashlib.sha256(data).hexdigest() == {known!r} else 0
"""


def test_a_child_is_told_its_own_part_of_the_order(file: Files) -> None:
    groups, rest = [["/x/", ["f"]]], [[6, ["ssh", "n6"], [["/y/", ["f"]]]]]
    full = order([], 1, groups="ours", list={"paths": "f"})
    wanted = full["opening"] + b"program" + message({**full, "groups": groups, "below": rest})
    known = hashlib.sha256(wanted).hexdigest()
    checks = CHECKS.format(size=len(wanted), done=message(DONE), known=known)
    full["below"] = [[5, played(READY, NOTHING, then=checks), groups], *rest]
    told: list[dict[str, Any]] = []
    relay = Relay(full, b"program", file, told.append)  # type: ignore[arg-type]
    relay.start()
    relay.wait(ended)
    assert told[0] == {**DONE, "of": [5]}


def test_a_child_that_makes_no_progress_is_given_up(
    file: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_relay, "STALLED", 0.3)
    (told,) = through(file, played(READY, NEEDS, then="time.sleep(600)"))
    assert (told["of"], set(told)) == ([5], {"of", "failed"})


def test_a_child_waits_for_what_is_not_here_yet(file: Files) -> None:
    told: list[dict[str, Any]] = []
    size, file.size = file.size, -1
    argv = played(READY, NEEDS, then="time.sleep(600)")
    relay = Relay(order([[5, argv, []]]), b"", file, told.append)  # type: ignore[arg-type]
    given: list[bytes] = []

    def pass_on() -> None:
        given.extend(relay.pieces([0], {}))

    passing = threading.Thread(target=pass_on, daemon=True)
    passing.start()
    for step in (0, 1000, size):
        assert passing.is_alive()
        with relay.grown:
            file.size = step
            relay.grown.notify_all()
    passing.join(LIMIT)
    assert not passing.is_alive()
    come = frames(1 << 20)
    bodies = [body for piece in given for _, _, body in come.feed(piece)]
    assert b"".join(bodies[:-1]) == DATA
    assert bodies[-1] == hashlib.sha256(DATA).digest()


def test_what_a_child_has_already_is_not_passed_on(file: Files) -> None:
    relay = Relay(order([]), b"", file, lambda told: None)  # type: ignore[arg-type]
    at = 500_000
    start = {0: (at, hashlib.sha256(DATA[:at]).hexdigest())}
    come = frames(1 << 20)
    bodies = [body for piece in relay.pieces([0], start) for _, _, body in come.feed(piece)]
    assert bodies[0] == at.to_bytes(8, "big")
    assert b"".join(bodies[1:-1]) == DATA[at:]


def test_nothing_more_comes_of_what_has_failed(file: Files) -> None:
    relay = Relay(order([]), b"", file, lambda told: None)  # type: ignore[arg-type]
    file.size = -1
    began = time.monotonic()
    relay.abandon()
    assert list(relay.pieces([0], {})) == []
    assert time.monotonic() - began < LIMIT
