"""Who uses the GPUs of a host: what the script says there, and what is made of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cases import cases

from dispatcher.checks.hardware.gpu_users import SCRIPT, GpuUser, users, users_text


def use(gpu: str, pid: object, name: str = "python3", born: object = 500) -> str:
    words = " ".join(["S", *["0"] * 18, str(born), "0"])
    return f"use GPU-{gpu} {pid} anna {pid} ({name}) {words}"


HEAD = ["gpu 0, GPU-aa", "gpu 1, GPU-bb", "gpu 2, GPU-cc"]
ANNA = GpuUser(71, "anna", "python3", (1,))


@cases(
    ("chosen", "lines", "found"),
    [
        (None, [], []),
        (None, [use("bb", 71)], [ANNA]),
        (("1",), [use("bb", 71)], [ANNA]),
        (("GPU-b",), [use("bb", 71)], [ANNA]),
        (("0", "2"), [use("bb", 71)], []),
        ((), [use("bb", 71)], []),
        (("MIG-1",), [use("bb", 71)], []),
        (("0", "1"), [use("bb", 71), use("aa", 71)], [GpuUser(71, "anna", "python3", (0, 1))]),
        # the host's own variable counts where nothing else is chosen
        (None, ["visible 0", use("bb", 71)], []),
        (None, ["visible 0,1", use("bb", 71)], [ANNA]),
        (None, ["visible ", use("bb", 71)], [ANNA]),
        # processes that were there before: ours came later
        (None, [use("bb", 71, born=500).replace("use GPU-bb 71 anna", "born"), use("bb", 71)], []),
        (None, ["born 9 (py) S" + " 0" * 18 + " 501", use("bb", 71)], [ANNA]),
        # names are data; what /proc does not show, and other lines, are left out
        (None, [use("bb", 71, "a) b (c")], [GpuUser(71, "anna", "a) b (c", (1,))]),
        (None, [use("bb", 71, "x" * 65)], []),
        (None, ["use GPU-bb 71  "], []),
        (None, [use("dd", 71), use("bb", "x"), "use", "No devices were found", "\x1b[2J"], []),
    ],
)  # fmt: skip
def test_who_counts(chosen: tuple[str, ...] | None, lines: list[str], found: list[GpuUser]) -> None:
    assert users("\n".join([*HEAD, *lines]).encode(), chosen) == found


@cases(
    ("found", "text"),
    [
        ({"n4": [ANNA]}, "n4: python3 of anna (GPU 1, pid 71)"),
        ({"n1": [GpuUser(7, "anna", "python3", (0, 1))], "n2": [ANNA]},
         "n[1-2]: python3 of anna (GPUs 0-1, pid 7 on n1)"),
        ({"n1": [ANNA, GpuUser(8, "root", "x", (0,))]},
         "n1: python3 of anna (GPU 1, pid 71); n1: x of root (GPU 0, pid 8)"),
        ({"n1": [GpuUser(n, "a", f"p{n}", (0,)) for n in range(6)]},
         "; ".join(f"n1: p{n} of a (GPU 0, pid {n})" for n in range(4)) + "; 2 more"),
        ({}, ""),
    ],
)  # fmt: skip
def test_users_are_told_in_one_line(found: dict[str, list[GpuUser]], text: str) -> None:
    assert users_text(found) == text


def smi(folder: Path, apps: str) -> dict[str, str]:
    """An environment with an ``nvidia-smi`` that reports two GPUs and ``apps``."""
    path = folder / "nvidia-smi"
    path.write_text(
        "#!/bin/sh\ncase $1 in\n--query-gpu=*) echo '0, GPU-aa'; echo '1, GPU-bb';;\n"
        f"*) printf '{apps}';;\nesac\n"
    )
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize("apps", ["", "GPU-bb, {pid}\n", "GPU-aa, {pid}\n", "No\nN/A, [N/A]\n"])
def test_what_the_script_says(tmp_path: Path, apps: str) -> None:
    env = smi(tmp_path, apps.format(pid=os.getpid()))
    argv = ["/bin/sh", "-c", SCRIPT, "sh"]
    said = [
        subprocess.run(words, env=env, capture_output=True, check=True, timeout=30).stdout
        for words in (argv, [*argv, str(os.getpid())])
    ]
    found, none = (users(one, None) for one in said)
    here = [(one.pid, one.gpus) for one in found]
    assert here == ([(os.getpid(), (1,))] if "bb" in apps else [])
    assert none == []  # it is not older than itself
    assert bool(said[0]) == bool(apps)


def test_without_the_driver_it_says_nothing(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    done = subprocess.run(["/bin/sh", "-c", SCRIPT], env=env, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
