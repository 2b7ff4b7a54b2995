"""``--dedup-output``: the link carries it once, and whoever keeps or shows it cannot tell."""

from __future__ import annotations

from pathlib import Path

from ..conftest import Desk

#: a remote shell that keeps what comes back
RSH = """#!/bin/sh
shift
/bin/sh -c "$*" | tee -a "$LINK"
"""


def test_it_crosses_once_and_is_whole(desk: Desk, tmp_path: Path) -> None:
    rsh, link = tmp_path / "rsh", tmp_path / "link"
    rsh.write_text(RSH)
    rsh.chmod(0o755)
    done = desk.run(
        "--dedup-output", "--rsh", str(rsh), "-H", "far:4", "--log-dir", "logs", "--check",
        "none", "--no-python", "sh", "-c",
        "seq 10000 19999; echo rank $RANK; seq 10000 12999 >&2; seq 30000 34999",
        env={"LINK": str(link)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers = {n: b"%d\n" % n for n in range(10000, 35000)}
    err = b"".join(numbers[n] for n in range(10000, 13000))
    for rank in range(4):
        out = b"".join(numbers[n] for n in range(10000, 20000)) + b"rank %d\n" % rank
        out += b"".join(numbers[n] for n in range(30000, 35000))
        kept = tmp_path / "logs/latest" / f"rank-{rank:05d}"
        assert kept.with_suffix(".out").read_bytes() == out
        assert kept.with_suffix(".err").read_bytes() == err
        lines = done.stdout.splitlines()
        shown = [line.partition(" ")[2] for line in lines if line.startswith(f"[{rank}] ")]
        assert "\n".join([*shown, ""]).encode() == out
    assert link.stat().st_size < 2 * len(out + err)
