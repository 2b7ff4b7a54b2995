"""``dispatch check`` and the check before a run on real hosts with planted defects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import promises
import pytest
from rig import Cluster

DISPATCH = [sys.executable, "-m", "dispatcher"]
#: seconds that its clock seems to be ahead: hosts of the rig share one, so Python there lies
AHEAD = 64.0
#: a Python that reads the clock wrongly and runs what it was given
LIAR = """\
#!/bin/sh
exec %s -I -S -c 'import sys, time
real = time.time
time.time = lambda: real() + %s
sys.argv = sys.argv[sys.argv.index("-c", 1) + 1:]
exec(sys.argv[0])' "$@"
"""
#: nobody waits that long; a loaded machine may need some of it
ENOUGH = "--check-timeout", "200", "--connect-timeout", "100"


def dispatch(cluster: Cluster, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    script = f'cd "{cwd}" && exec "$@"'
    return cluster.run(["sh", "-c", script, "sh", *DISPATCH, *words], timeout=300)


def fill_tmp(cluster: Cluster, host: str) -> None:
    # ignore: the size alone, not the options that /proc shows, in the numbers of other users
    order = "mount --options-mode ignore -o remount,size=64k /tmp"
    order += " && ! head -c 99999 /dev/zero 2>&- >/tmp/x"
    done = cluster.run(["sh", "-c", order], host=host, root=True)
    assert done.returncode == 0, done


def hide(cluster: Cluster, host: str, folder: Path) -> None:
    """An empty folder in the place of ``folder``."""
    done = cluster.run(["mount", "-t", "tmpfs", "none", str(folder)], host=host, root=True)
    assert done.returncode == 0, done


def lie_about_time(cluster: Cluster, host: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "python3").write_text(LIAR % (sys.executable, AHEAD))
    (folder / "python3").chmod(0o755)
    # where sshd has every login shell look before /usr/bin
    mount = ["mount", "--bind", str(folder), "/usr/local/bin"]
    done = cluster.run(mount, host=host, root=True)
    assert done.returncode == 0, done


def test_three_defects_among_sixteen_hosts_are_named(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(16)
    folder = Path(cluster.shared) / "job"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    fill_tmp(cluster, "n5")
    lie_about_time(cluster, "n9", Path(cluster.shared) / "liar")
    hide(cluster, "n11", folder)
    done = dispatch(cluster, "check", "-H", cluster.hostfile(), *ENOUGH, "train.py", cwd=folder)
    shown = done.stdout.splitlines()
    assert done.returncode == 1, done
    assert shown[0].startswith("13 of 16 hosts fit, 16 checks, ")
    assert shown[0].endswith(": not n[5,9,11]")
    columns = shown[1].split()
    assert [column for column in ("script", "tmp", "clock") if column in columns] == [
        "script", "tmp", "clock",
    ]  # fmt: skip
    bad = {
        row.split()[0]: [
            c for c, cell in zip(columns, row.split()[1:], strict=True) if cell == "FAIL"
        ]
        for row in shown[2:5]
    }
    assert bad == {"n5": ["tmp"], "n9": ["clock"], "n11": ["script"]}
    text = done.stdout
    assert f"critical: n11: script: {folder}/train.py: no such file or directory" in text
    assert "critical: n5: tmp: the folder for temporary files: full: 0 B of 64 KiB free" in text
    assert re.search(
        r"^critical: n9: clock: 6\d\.\d s ahead of this machine's clock", text, re.M
    ), text
    some = "n[4-5,9-11]:2"
    said = promises.told(
        dispatch(cluster, "check", "-H", some, *ENOUGH, "train.py", "--json", cwd=folder).stdout
    )
    unfit = [name for name, host in said["hosts"].items() if host["level"] == "CRITICAL"]
    assert (said["fit"], sorted(unfit)) == (False, ["n11", "n5", "n9"])


def test_a_closed_port_is_found(new_cluster: Callable[..., Cluster]) -> None:
    """n2's packets to n1 are lost but for those to sshd."""
    cluster = new_cluster(3)
    rule = "ip route add blackhole " + cluster.address("n1")
    done = cluster.run(["sh", "-c", rule], host="n2", root=True)
    if done.returncode != 0:
        pytest.skip(f"no routes here: {done.stderr}")
    # an eighth of it is what n2 waits in vain
    words = ("check", "-H", cluster.hostfile(), "--check-timeout", "80")
    done = dispatch(cluster, *words, cwd=Path("/"))
    assert "critical: n2: reach: cannot reach n1 at " in done.stdout, done
    assert (done.returncode, "n3: reach" in done.stdout) == (1, False)


@pytest.mark.parametrize("check", ["quick", "full"])
def test_unhealthy_hosts_are_left_out(new_cluster: Callable[..., Cluster], check: str) -> None:
    cluster = new_cluster(4)
    if check == "full" and cluster.run(["dmesg"], "n1").returncode:
        pytest.skip("the kernel's log is closed to this user: kernel.dmesg_restrict")
    fill_tmp(cluster, "n2")
    logs = Path(cluster.shared) / "logs"
    words = ("--check", check, *ENOUGH, "--no-python", "sh", "-c", "echo $RANK $(hostname)")
    rejected = dispatch(
        cluster, "-H", "n1,n2,n3", "--log-dir", str(logs / "a"), "--exclude-unhealthy",
        "--min-nodes", "3", *words, cwd=Path("/"),
    )  # fmt: skip
    assert rejected.returncode == 125, rejected
    assert rejected.stdout == ""
    assert "error: 1 host of 3 cannot be used; nothing was started" in rejected.stderr
    assert "n2  check failed  tmp: the folder for temporary files: full" in rejected.stderr
    assert "hint: remove old files, or set TMPDIR" in rejected.stderr
    report = json.loads((logs / "a" / "latest" / "report.json").read_text())
    assert (report["ok"], report["cause"]["kind"]) == (False, "Rejected")

    spared = dispatch(
        cluster, "-H", "n1,n2,n3,n4", "--spares", "1", "--log-dir", str(logs / "b"),
        "--exclude-unhealthy", *words, "--label", "none", cwd=Path("/"),
    )  # fmt: skip
    assert spared.returncode == 0, spared
    assert sorted(line.split("] ")[-1] for line in spared.stdout.splitlines()) == [
        "0 n1", "1 n4", "2 n3",
    ]  # fmt: skip
    told = "note: n2: left out, unhealthy: tmp: the folder for temporary files: full"
    assert spared.stderr.count(told) == 2  # at the start and in the verdict
    assert "; n4 takes its place" in spared.stderr
    report = json.loads((logs / "b" / "latest" / "report.json").read_text())
    assert [(one["host"], one["by"]) for one in report["excluded"]] == [("n2", "n4")]
    assert any("n2: left out" in line for line in report["verdict"])
    promises.keep_run(logs / "b" / "latest")
    journal = (logs / "b" / "latest" / "dispatch.jsonl").read_text()
    assert '"host.excluded"' in journal

    fewer = dispatch(
        cluster, "-H", "n1,n2,n3", "--exclude-unhealthy", *words, cwd=Path("/")
    )  # fmt: skip
    assert fewer.returncode == 0, fewer
    assert sorted(line.split("] ")[-1] for line in fewer.stdout.splitlines()) == ["0 n1", "1 n3"]


def test_a_check_that_contradicts_itself() -> None:
    for words, error in (
        (("--exclude-unhealthy", "--check", "none"), "--exclude-unhealthy needs a check"),
        (("--check-timeout", "3"), "--check-timeout needs --check full"),
        (("--check", "full", "--check-timeout", "0"), "less than a second"),
    ):
        done = subprocess.run(
            [*DISPATCH, "-H", "localhost", *words, "--no-python", "true"],
            capture_output=True, text=True, check=False, timeout=60, env={**os.environ},
        )  # fmt: skip
        assert (done.returncode, error in done.stderr) == (2, True), done.stderr


def test_the_throttled_host_and_the_cut_one_are_found(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(8)
    throttle = "tc qdisc add dev eth0 root tbf rate 4mbit burst 32k latency 50ms"
    if cluster.run(["sh", "-c", throttle], host="n3", root=True).returncode != 0:
        pytest.skip("no traffic control here")
    # n5 does not reach its peers, but login does reach it
    ways = [f"ip route add blackhole {cluster.address(f'n{n}')}" for n in (1, 2, 3, 4, 6, 7, 8)]
    assert cluster.run(["sh", "-ec", "\n".join(ways)], host="n5", root=True).returncode == 0
    picture = Path(cluster.shared) / "map.svg"
    # far below any noise of a loaded machine, far above 4 Mbit/s of hundreds of MB/s
    words = ("check", "-H", cluster.hostfile(), *ENOUGH[2:], "--pairs", "--slow", "0.05", "--json")
    done = dispatch(cluster, *words, "--svg", str(picture), cwd=Path("/"))
    said = promises.told(done.stdout)
    assert (done.returncode, said["problems"]) == (1, {}), done
    assert {"n3", "n5"} <= set(said["culprits"]), said
    best: dict[str, float] = {}  # what each reaches with its best partner
    for pair in said["pairs"]:
        for host in pair["hosts"]:
            best[host] = max(best.get(host, 0.0), min(pair["there"] or 0.0, pair["back"] or 0.0))
    # on a loaded machine others may be late and so be named too, but nobody else is as slow
    slow, cut = best.pop("n3"), best.pop("n5")
    assert (cut, slow * 10 < min(best.values())) == (0.0, True), said
    assert picture.read_text().startswith("<svg ")


def test_a_run_itself_refuses_a_stale_script(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(3)
    folder = Path(cluster.shared) / "job"
    folder.mkdir()
    (folder / "train.py").write_text("print('new')\n")
    hide(cluster, "n3", folder)
    stale = f"echo \"print('old')\" > {folder}/train.py"
    assert cluster.run(["sh", "-c", stale], host="n3").returncode == 0
    refused = dispatch(cluster, "-H", "n1,n2,n3", "train.py", cwd=folder)
    assert (refused.returncode, refused.stdout) == (125, ""), refused
    assert "n3  check failed  'train.py': not the same as on n[1-2]" in refused.stderr
    assert "hint: --sync" in refused.stderr
    done = dispatch(cluster, "-H", "n1,n2,n3", "--allow-different-code", "train.py", cwd=folder)
    assert sorted(done.stdout.split()[1::2]) == ["new", "new", "old"], done
    assert done.stderr == "note: n3: its script differs from most hosts' script\n"
