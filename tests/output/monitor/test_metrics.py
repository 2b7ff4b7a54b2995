"""The text for Prometheus: what it says, and where it is to be had."""

from __future__ import annotations

import re
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.output.monitor.metrics import Metrics, exposition
from dispatcher.output.monitor.run_picture import Picture, Snapshot, TopRank
from dispatcher.output.run_state import RUNNING

GIB = 1 << 30
ROWS = (
    TopRank("0", "n0", 0, 77, "runs", True, 99.5, GIB, 97.0, 2.0 * GIB, None, 1.5, "x"),
    TopRank("1", "n0", 1, 78, "exit 1"),
)
SHOT = Snapshot(Picture({RUNNING: 1}, (), {"running": 1}, 42, 12.25, 1.0), ROWS)

#: a sample line of the format
LINE = re.compile(r'dispatch_[a-z_]+\{([a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+\} [0-9.e+-]+')


def test_what_it_says() -> None:
    text = exposition(SHOT, "r1")
    where = 'run="r1",rank="0",host="n0",local_rank="0"'
    for line in (
        'dispatch_lines{run="r1"} 42',
        'dispatch_hosts{run="r1",state="running"} 1',
        f"dispatch_rank_up{{{where}}} 1",
        f"dispatch_rank_cpu_percent{{{where}}} 99.5",
        f"dispatch_rank_resident_bytes{{{where}}} 1073741824",
        f"dispatch_rank_gpu_memory_bytes{{{where}}} 2147483648",
        'dispatch_rank_up{run="r1",rank="1",host="n0",local_rank="1"} 0',
        "# TYPE dispatch_rank_up gauge",
    ):
        assert line in text.splitlines()
    assert "power" not in text  # nobody has told
    assert 'dispatch_lines{run="r1",name="lr-3"} 42' in exposition(SHOT, "r1", "lr-3")


@given(st.text())
def test_any_host_name_is_one_label(host: str) -> None:
    row = TopRank("0", host, 0, 1, "runs", alive=True)
    lines = exposition(Snapshot(SHOT.picture, (row,)), "r").split("\n")[:-1]
    plain = exposition(Snapshot(SHOT.picture, (replace(row, host="n0"),)), "r").split("\n")[:-1]
    assert len(lines) == len(plain) > 5
    for line in lines:
        assert line.startswith("# ") or LINE.fullmatch(line)


def test_a_file_is_replaced_and_tells_the_end(tmp_path: Path) -> None:
    path, said = tmp_path / "dispatch.prom", list[str]()
    texts = iter(["one\n", "two\n", "three\n"])
    metrics = Metrics(lambda: next(texts), said.append, 5.0, str(path))
    assert path.read_text() == "one\n"
    assert metrics.tick(100.0)
    assert path.read_text() == "two\n"
    metrics.tick(104.9)
    assert path.read_text() == "two\n"
    metrics.close()
    assert path.read_text() == "three\n"
    assert [file.name for file in tmp_path.iterdir()] == ["dispatch.prom"]
    assert said == []


def test_a_disk_that_refuses_is_told_once(tmp_path: Path) -> None:
    folder, said = tmp_path / "folder", list[str]()
    folder.mkdir()
    metrics = Metrics(lambda: "x\n", said.append, 1.0, str(folder / "file"))
    (folder / "file").unlink()
    folder.rmdir()
    for now in (1.0, 2.0, 3.0):
        metrics.tick(now)
    assert len(said) == 1
    with pytest.raises(FileNotFoundError):
        Metrics(lambda: "x\n", said.append, 1.0, str(folder / "file"))


def ask(path: Path, metrics: Metrics) -> bytes:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        caller.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        metrics.tick(1.0)
        caller.settimeout(60)
        answer = b""
        while data := caller.recv(1 << 16):
            answer += data
        return answer


def test_a_socket_answers(tmp_path: Path) -> None:
    path = tmp_path / "s"
    metrics = Metrics(lambda: "much\n" * 20_000, lambda line: None, 1.0, f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as silent:  # calls, says nothing, reads nothing
        silent.connect(str(path))
        metrics.tick(1.0)
    head, _, body = ask(path, metrics).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert body == b"much\n" * 20_000
    with pytest.raises(OSError):
        Metrics(lambda: "", lambda line: None, 1.0, f"unix:{path}")
    metrics.close()
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    metrics = Metrics(lambda: "x\n", lambda line: None, 1.0, f"unix:{path}")
    assert ask(path, metrics).endswith(b"x\n")
    metrics.close()
