"""Floods over real sshd: every byte arrives, in order, and the launcher stays small.

The sizes are those of seconds; ``--nightly`` takes those that the promises are made for (1 GB).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import Cluster, Peak

DISPATCH = [sys.executable, "-m", "dispatcher"]
ALL = "FLOOD_ALL" in os.environ
#: what the launcher may take of memory at most
MOST_MIB = 128


def block(size: int) -> bytes:
    """``size`` bytes that look like nothing and hold no line end."""
    return random.Random(size).randbytes(size).hex().encode()[:size]


def write_program(cluster: Cluster, text: str) -> str:
    path = Path(cluster.shared, "flood.py")
    path.write_text(
        "import os, random\n\ndef put(data, size=1 << 20):\n    at = 0\n"
        "    while at < len(data):\n        at += os.write(1, data[at : at + size])\n\n" + text
    )
    return str(path)


@pytest.mark.timeout(400)
def test_a_line_without_an_end(cluster: Cluster, tmp_path: Path) -> None:
    size, piece = 100_000_000, block(1_000_000)
    program = write_program(
        cluster,
        f"piece = random.Random({len(piece)}).randbytes({len(piece)}).hex().encode()\n"
        f"for _ in range({size // len(piece)}):\n    put(piece[:{len(piece)}])\n",
    )
    hosts = cluster.hostfile(slots=1, hosts=["n1"])
    with open(tmp_path / "out", "wb") as out:
        process = cluster.popen(
            [*DISPATCH, "--log-dir", str(tmp_path / "logs"), "-H", hosts, program],
            stdout=out, stderr=subprocess.PIPE,
        )  # fmt: skip
        peak = Peak(process)
        _, err = process.communicate(timeout=380)
    assert process.returncode == 0, err
    whole = hashlib.sha256(piece * (size // len(piece))).hexdigest()
    kept = (tmp_path / "logs/latest/rank-00000.out").read_bytes()
    assert hashlib.sha256(kept).hexdigest() == whole
    shown = (tmp_path / "out").read_bytes()
    assert (shown[:4], shown[-1:], len(shown)) == (b"[0] ", b"\n", size + 5)
    assert hashlib.sha256(memoryview(shown)[4:-1]).hexdigest() == whole
    assert 0 < peak.mib() < MOST_MIB


#: bytes that others stumble over, at the sizes at which they do
ODD = """
sizes = [s + d for s in (1, 1024, 4096, 8192, 16384, 32768, 65536, 131072) for d in (-1, 0, 1)]
dice, data = random.Random(7), bytearray()
for size in sizes:
    data += bytes(dice.choice(b"\\0\\xff\\xc3\\x1b\\r\\t ax\\x80") for _ in range(size)) + b"\\n"
data += bytes(range(256)) + b"\\xe2\\x82"  # no line end, and half of a character
"""
#: writes them in pieces of any size
PIECES = """
for at in range(0, len(data), 200_000):
    put(bytes(data[at : at + 200_000]), dice.choice((4095, 4096, 4097, 1 << 20)))
"""


def test_bytes_that_others_stumble_over(cluster: Cluster, tmp_path: Path) -> None:
    program = write_program(cluster, ODD + PIECES)
    hosts = cluster.hostfile(slots=1, hosts=["n1"])
    words = [*DISPATCH, "--log-dir", str(tmp_path / "logs"), "-H", hosts, program]
    done = cluster.run(words, text=False)
    assert done.returncode == 0, done.stderr
    known: dict[str, bytes] = {}
    exec("import random\n" + ODD, known)
    assert (tmp_path / "logs/latest/rank-00000.out").read_bytes() == known["data"]
    lines = done.stdout.split(b"\n")
    assert all(line.startswith(b"[0] ") for line in lines[:-1])
    assert lines[-1] == b""
    whole = {
        line for line in bytes(known["data"]).split(b"\n") if b"\r" not in line
    }  # others are bars
    assert whole <= {line.removeprefix(b"[0] ") for line in lines}


@pytest.fixture
def slow(new_cluster: Callable[..., Cluster]) -> Cluster:
    """A host whose sshd wants new keys every few megabytes, behind a line of 50 MB/s."""
    every = "64M" if ALL else "8M"
    cluster = new_cluster(1, "--sshd", f"RekeyLimit {every}", "--sshd", "LogLevel DEBUG1")
    line = "tc qdisc add dev eth0 root tbf rate 400mbit burst 256kb latency 50ms"
    with contextlib.suppress(AssertionError, OSError):  # a kernel without it: then it is fast
        cluster.run(line.split(), host="n1", root=True)
    return cluster


@pytest.mark.timeout(900 if ALL else 400)
def test_a_reader_that_stalls_behind_a_slow_link_that_changes_its_keys(slow: Cluster) -> None:
    size, piece = (1_000_000_000 if ALL else 64_000_000), 1_000_000
    text = f"""
import hashlib
dice, digest = random.Random(1), hashlib.sha256()
for _ in range({size // piece}):
    data = b"".join(dice.randbytes(50).hex().encode()[:-1] + b"\\n" for _ in range({piece // 100}))
    digest.update(data)
    put(data, dice.choice((100, 4096, 70_000, 1 << 20)))
with open({slow.shared + "/digest"!r}, "w") as file:
    file.write(digest.hexdigest())
"""
    words = [*DISPATCH, "--label", "none", "-H", slow.hostfile(slots=1)]
    process = slow.popen(
        [*words, write_program(slow, text)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    peak = Peak(process)
    assert process.stdout is not None
    assert process.stderr is not None
    digest, taken, stall = hashlib.sha256(), 0, size // 5
    with process:
        while data := os.read(process.stdout.fileno(), 1 << 20):
            digest.update(data)
            taken += len(data)
            if taken > stall:
                stall += size // 5
                time.sleep(0.5)
        err = process.stderr.read()
    assert process.returncode == 0, err
    assert taken == size
    assert digest.hexdigest() == Path(slow.shared, "digest").read_text()
    assert 0 < peak.mib() < MOST_MIB
    assert slow.log("n1").count("SSH2_MSG_NEWKEYS received") > 4
