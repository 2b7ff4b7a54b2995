"""Copies that go wrong: nothing half written has a final name, nothing of ours is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from rig import Cluster, wait_for

from dispatcher.remote.copy.disk import PART, STAGE
from dispatcher.remote.copy.receiver import Receiver
from dispatcher.remote.protocol.copy_frames import frames
from dispatcher.transfer.put_files import Sources

DISPATCH = [sys.executable, "-m", "dispatcher"]
PUT = [*DISPATCH, "put", "-w", "localhost"]


@contextmanager
def start(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A copy that is killed at the latest when the block is over."""
    with subprocess.Popen(
        [*DISPATCH, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def size_of(folder: Path, prefix: str) -> int:
    """Bytes of the first file in ``folder`` whose name starts with ``prefix``."""
    for path in folder.glob(prefix + "*"):
        return path.stat().st_size
    return 0


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A file that takes longer to copy than any test waits before it ends the copy."""
    path = tmp_path / "endless"
    path.touch()
    os.truncate(path, 64 << 30)
    return path


@pytest.mark.parametrize("flags", [(), ("--no-resume",)])
def test_ctrl_c_leaves_a_part_or_nothing(
    endless: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    there = tmp_path / "there"
    with start("put", "-w", "localhost", *flags, str(endless), f"{there}/") as process:
        if flags:
            stage = STAGE + "*/*"
            wait_for(lambda: any(p.stat().st_size for p in there.glob(stage)), 60, "bytes there")
        else:
            wait_for(lambda: size_of(there, PART), 60, "bytes there")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted by SIGINT" in errors
    wait_for(lambda: not list(there.glob(STAGE + "*")), 60, "the stage is swept")
    assert [path.name[: len(PART)] for path in there.iterdir()] == ([] if flags else [PART])


def test_ctrl_c_of_get(endless: Path, tmp_path: Path) -> None:
    here = tmp_path / "in" / "localhost"
    words = ("--max-size", "1T", str(endless), f"{tmp_path}/in")
    with start("get", "-w", "localhost", *words) as process:
        wait_for(lambda: size_of(here, PART), 60, "bytes here")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert [path.name[: len(PART)] for path in here.iterdir()] == [PART]


def test_an_interrupted_copy_goes_on(tmp_path: Path) -> None:
    source, there = tmp_path / "big", tmp_path / "there"
    source.write_bytes(os.urandom(5 << 20))
    sources = Sources([(f"{there}/", (str(source),))], checksum=False)
    receiver = Receiver(sources.entries, [[f"{there}/", ["big"]]], checksum=False, resume=True)
    receiver.needs()
    found = (one for piece in sources.pieces([0], {}) for one in frames(1).feed(piece))
    for _ in range(8):
        _, kind, body = next(found)
        receiver.take(kind, body)
    receiver.close(keep=True)
    sources.close()
    done = subprocess.run(
        [*PUT, str(source), f"{there}/"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "1 file sent, 0 equal, 2 MiB were there from an interrupted copy" in done.stderr
    assert "3 MiB in" in done.stderr
    assert os.listdir(there) == ["big"]
    assert (there / "big").read_bytes() == source.read_bytes()


def test_two_puts_at_once(tmp_path: Path) -> None:
    tree, there = tmp_path / "tree", tmp_path / "there"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(3 << 20))
    for i in range(50):
        (tree / f"f{i}").write_text(str(i))
    words = ("put", "-w", "localhost", str(tree), f"{there}/")
    with start(*words) as one, start(*words) as other:
        for process in (one, other):
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
    assert os.listdir(there) == ["tree"]
    assert {p.name: p.read_bytes() for p in (there / "tree").iterdir()} == {
        p.name: p.read_bytes() for p in tree.iterdir()
    }


def test_a_full_disk_and_a_read_only_one(cluster: Cluster, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 << 20))
    there, where = "/tmp/faults", ("-t", "60", "-w", "n[1-4]")
    bad = {"n2": "size=2m", "n3": "size=9m,ro", "n4": "size=2m"}
    try:
        for host, options in bad.items():
            mount = f"mkdir -p {there} && mount -t tmpfs -o {options} none {there}"
            cluster.run(["sh", "-c", mount], host, root=True, check=True)
        done = cluster.run([*DISPATCH, "put", *where, str(big), f"{there}/"])
        assert done.returncode == 1
        lines = done.stderr.splitlines()
        assert "error: 3 of 4 hosts failed [hosts-failed]" in lines
        (full,) = [line for line in lines if "no space left on device" in line]
        assert full.split()[0] == "n[2,4]"
        (fixed,) = [line for line in lines if "read-only file system" in line]
        assert fixed.split()[0] == "n3"
        assert any(line.startswith("n1: 1 file sent, 0 equal; ") for line in lines)
        said = cluster.run([*DISPATCH, "exec", *where, "--", "ls", "-A", there])
        assert said.stdout == "n1: big\n"
    finally:
        for host in bad:
            cluster.run(["umount", there], host, root=True)
        cluster.run(["rm", "-r", there], "n1")


def test_a_host_that_is_lost_in_the_middle(cluster: Cluster, endless: Path) -> None:
    there = "/tmp/lost"

    def parts(host: str) -> bool:
        words = ["find", there, "-name", PART + "*", "-size", "+0"]
        return bool(cluster.run(words, host).stdout)

    def idle(host: str) -> bool:
        return not cluster.processes(host)

    words = ["put", "-t", "60", "-w", "n[1-2]", str(endless), f"{there}/"]
    with cluster.popen([*DISPATCH, *words], stderr=subprocess.PIPE, text=True) as process:
        for host in ("n1", "n2"):
            wait_for(partial(parts, host), 60, f"bytes on {host}")
        # the session's end is that of the connection: all below it goes
        (pid,) = [pid for pid, command in cluster.processes("n2") if "python3 -I" in command]
        cluster.signal("n2", pid, signal.SIGKILL)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (125, 130), errors
    assert "error: 2 of 2 hosts failed [hosts-failed]" in errors
    for host in ("n1", "n2"):
        wait_for(partial(idle, host), 60, f"{host} is idle")
        names = cluster.run(["ls", "-A", there], host).stdout.split()
        assert [name[: len(PART)] for name in names] == [PART]
        cluster.run(["rm", "-r", there], host)


def test_a_host_that_cannot_be_reached_fails_alone(cluster: Cluster, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_text("small")
    done = cluster.run([*DISPATCH, "put", "-t", "60", "-w", "n[1-2],nosuch", str(small), "/tmp/"])
    assert done.returncode == 125
    assert "nosuch  name not found" in done.stderr
    assert "n[1-2]: 1 file sent, 0 equal" in done.stderr
