"""``dispatch check`` as users call it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import promises
import pytest

HOST = """\
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eno1
link mlx5_1/1 lid 12 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP
eno1             UP             10.0.0.{n}/24
default via 10.0.0.1 dev eno1
"""
#: seconds of which a loaded machine may need some
ENOUGH = "--check-timeout", "80"


def check(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatcher", "check", *words],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def pasted(folder: Path, count: int = 2, more: str = "") -> list[str]:
    words = []
    for n in range(1, count + 1):
        (folder / f"b{n}.txt").write_text(HOST.format(n=n) + (more if n == count else ""))
        words += ["--from", f"b{n}.txt"]
    return words


def test_advice_from_pasted_texts_is_an_env_file(tmp_path: Path) -> None:
    done = check("--nccl", *pasted(tmp_path), "--apply", "nccl.env", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NET/IB : Using [0]mlx5_1:1/IB; OOB eno1:10.0.0.1" in done.stdout
    assert (tmp_path / "nccl.env").read_text().splitlines() == [
        "NCCL_NET=IB", "NCCL_IB_HCA==mlx5_1", "NCCL_SOCKET_IFNAME==eno1", "GLOO_SOCKET_IFNAME=eno1",
    ]  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-m", "dispatcher", "-H", "localhost", "--env-file", "nccl.env",
         "--label", "none", "--no-python", "printenv", "NCCL_IB_HCA"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.stdout == "=mlx5_1\n"


def test_json_and_a_fatal_setting(tmp_path: Path) -> None:
    words = pasted(tmp_path, 3, "NCCL_SOCKET_IFNAME=eth9\n")
    done = check("--nccl", *words, "--json", cwd=tmp_path)
    found = promises.told(done.stdout)
    assert done.returncode == 1
    assert found["messages"][0] == {
        "level": "CRITICAL",
        "hosts": ["b3"],
        "text": "NCCL does not start: NCCL_SOCKET_IFNAME=eth9: no socket interface found",
        "remedy": "name one that is up with an address; there is: eno1",
    }


def test_a_log_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[0] b2:1:2 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.2\n")
    done = check("--nccl", *pasted(tmp_path), "--log", "log", cwd=tmp_path)
    assert done.returncode == 1
    assert "critical: b2: fell back to Socket\n" in done.stdout


def test_this_machine(tmp_path: Path) -> None:
    """Also in a log, where NCCL gives it the name that it has for others."""
    name = socket.gethostname().partition(".")[0]
    (tmp_path / "log").write_text(f"{name}:1:2 [0] NCCL INFO Using network IB\n")
    done = check("--nccl", "-w", "localhost", "--log", "log", cwd=tmp_path)
    assert "now: localhost: NET/" in done.stdout, done.stderr
    assert "not in log" not in done.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "error: no hosts given"),
        (["-w", "n1", "a.py", "b"], "error: one script at most: 'b' is a second word"),
        (["-w", "n1", "--check-timeout", "0.5"], "error: --check-timeout 0.5: less than a second"),
        (["-w", "n1", "--log", "b1.txt"], "error: --log needs --nccl"),
        (["-w", "n1", "--site-checks", "/x"], "error: --site-checks needs the full check"),
        (["-w", "n1", "--full", "--xid-table", "no"], "error: --xid-table no: no such file"),
        (["-w", "n1", "--full", "--xid-table", "b1.txt"], "--xid-table b1.txt:1: not a number"),
        (["-w", "n1", "--pairs", "--nccl"], "error: --pairs and --nccl exclude each other"),
        (["-w", "n1", "--pairs", "--full"], "error: --full and --pairs exclude each other"),
        (["-w", "n1", "--pairs", "a.py"], "error: --pairs looks at no script"),
        (["-w", "n1", "--pairs", "--from", "b1.txt"], "error: --from needs --nccl"),
        (["--nccl"], "error: no hosts given"),
        (["--nccl", "--from", "nowhere"], "error: --from nowhere: no such file or directory"),
        (["--nccl", "--from", "b1.txt", "-w", "n1"], "error: --from has the texts of all hosts"),
        (["--nccl", "--from", "b1.txt", "--from", "./b1.txt"], "there is a text of b1 already"),
        (["--nccl", "--from", "b1.txt", "--log", "b1.txt"], "no lines of NCCL in it"),
        (["--nccl", "--from", "b1.txt", "--apply", "no/where"], "error: --apply no/where: no such"),
    ],
)
def test_usage(tmp_path: Path, words: list[str], error: str) -> None:
    pasted(tmp_path)
    done = check(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert error in done.stderr


def test_different_settings_do_not_fit_into_one_file(tmp_path: Path) -> None:
    words = pasted(tmp_path)
    text = (tmp_path / "b2.txt").read_text()
    (tmp_path / "b2.txt").write_text(text.replace("mlx5", "rocep"))
    done = check("--nccl", *words, "--apply", "nccl.env", cwd=tmp_path)
    assert done.returncode == 2
    assert "hint: b1 env=NCCL_IB_HCA==mlx5_1" in done.stderr
    done = check("--nccl", *words, cwd=tmp_path)
    assert "  on b2:\n    NCCL_IB_HCA==rocep_1\n" in done.stdout


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    done = check("-w", "localhost", "train.py", "--json", *ENOUGH, cwd=tmp_path)
    said = promises.told(done.stdout)
    here = said["hosts"]["localhost"]
    assert set(said) == {"schema", "format", "fit", "seconds", "checks", "hosts"}
    assert set(here) == {"level", "problem", "lost", "checks"}
    assert set(here["checks"]["script"]) == {"level", "text", "value", "remedy"}
    assert list(here["checks"]) == said["checks"]
    for name in ("python", "script", "cwd", "clock"):
        assert here["checks"][name]["level"] == "OK", here["checks"][name]
    assert done.returncode == (0 if said["fit"] else 1)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = check("-w", "localhost", "no.py", *ENOUGH, cwd=tmp_path)
    assert done.returncode == 1
    assert f"critical: localhost: script: {tmp_path}/no.py: no such file" in done.stdout
    assert "  hint: copy it there" in done.stdout


def test_a_site_s_own_check(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "fw").write_text('#!/bin/sh\necho \'{"level": "CRITICAL", "text": "old"}\'\n')
    (mine / "fw").chmod(0o755)
    words = ("-w", "localhost", "--full", "--site-checks", str(mine), "--json", *ENOUGH)
    done = check(*words, cwd=tmp_path)
    found = promises.told(done.stdout)["hosts"]["localhost"]["checks"]["site"]
    assert (done.returncode, found["level"], found["text"]) == (1, "CRITICAL", "fw: old")


def test_a_host_that_is_not_reached(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host nowhere\n  HostName 127.0.0.1\n  Port 1\n")
    done = check("-w", "nowhere", "-F", str(config), "--json", cwd=tmp_path)
    found = promises.told(done.stdout)["hosts"]["nowhere"]
    assert (done.returncode, found["lost"], found["level"]) == (125, True, "CRITICAL")
    assert "connection refused" in found["problem"]
