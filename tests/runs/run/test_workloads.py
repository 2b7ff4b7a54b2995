"""Programs as people have them, unchanged, on two hosts with one or two ranks each.

What needs DeepSpeed runs where that can be imported; PYTHONPATH may name a folder that has it.
The recipes of frameworks are in test_frameworks.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rig import Cluster

DISPATCH = [sys.executable, "-m", "dispatcher"]
HERE = Path(__file__).parent / "workloads"
RECIPES = Path(__file__).parents[3] / "examples" / "frameworks"


def run(cluster: Cluster, *words: str, limit: float = 220) -> subprocess.CompletedProcess[str]:
    return cluster.run([*DISPATCH, "-H", "n1:2,n2:2", "--label", "none", *words], timeout=limit)


def torch_run(
    cluster: Cluster, name: str, *words: str, each: int = 2
) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    ways = ["--iface", "eth0", "--nproc-per-node", str(each)]
    script = next(path for path in (HERE / name, RECIPES / name) if path.exists())
    return run(cluster, *ways, str(script), *words)


def test_groups_in_megatrons_order_and_a_recorded_error(cluster: Cluster) -> None:
    done = torch_run(cluster, "groups.py", "fail")
    assert sorted(done.stdout.splitlines()) == [
        "rank 0: tp 1 dp 2", "rank 1: tp 1 dp 4", "rank 2: tp 5 dp 2", "rank 3: tp 5 dp 4",
    ]  # fmt: skip
    assert done.returncode in (1, 134)  # gloo may abort on its way out
    assert "error: rank 3 on n2" in done.stderr
    assert "ValueError: planted in rank 3" in done.stderr


def test_a_sharded_model_on_a_mesh(cluster: Cluster) -> None:
    done = torch_run(cluster, "mesh.py", each=1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("learnt True on 2\n") == 2


def test_teacher_and_student(cluster: Cluster) -> None:
    done = torch_run(cluster, "torch_rpc.py", each=1)
    assert (done.returncode, done.stdout) == (0, "student 1 heard 2\n"), done.stderr


def needs(package: str) -> None:
    pytest.importorskip("torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install {package}")


@pytest.mark.nightly
@pytest.mark.timeout(400)  # the first time it compiles its operators
def test_deepspeed(cluster: Cluster) -> None:
    needs("deepspeed")
    home = Path(cluster.shared, "home")
    home.mkdir(exist_ok=True)
    settings = "DS_ACCELERATOR=cpu\nFROM_DEEPSPEED_ENV=heard\n"
    home.joinpath(".deepspeed_env").write_text(settings)
    words = ["--iface", "eth0", "--env-file", str(home / ".deepspeed_env"), "--local-rank-arg"]
    done = run(cluster, *words, "--local_rank", str(HERE / "deepened.py"), limit=380)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        f"rank {rank} of 4, local {rank % 2}: 4, heard" for rank in range(4)
    ]


def test_a_launcher_of_launchers(cluster: Cluster) -> None:
    """Which meet; that ranks of such launchers meet, too, is in test_per_node."""
    needs("torch")
    script = Path(cluster.shared, "place.py")
    names = "RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "MASTER_ADDR"
    script.write_text(
        f"import os, sys\nsys.stdout.write(' '.join(map(os.environ.get, {names})) + '\\n')\n"
    )
    words = ["--per-node", "--iface", "eth0", "--no-python", "sh", str(HERE / "factory.sh")]
    done = run(cluster, *words, sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    head = cluster.address("n1")
    expected = [f"{rank} 4 {rank // 2} {rank % 2} {head}" for rank in range(4)]
    assert sorted(done.stdout.splitlines()) == expected


def test_no_python_at_all(cluster: Cluster) -> None:
    done = run(cluster, "--no-python", "bash", "-c", "echo $((RANK * 10)) of ${WORLD_SIZE}")
    assert sorted(done.stdout.splitlines()) == ["0 of 4", "10 of 4", "20 of 4", "30 of 4"]


def test_a_c_program_with_mpi(cluster: Cluster) -> None:
    compiler = Path(sys.executable).with_name("mpicc")
    if not compiler.exists() or shutil.which("gcc") is None:
        pytest.skip("needs gcc, and the mpicc of the mpich package")
    binary = Path(cluster.shared, "sum")
    subprocess.run([compiler, "-o", binary, HERE / "sum.c"], check=True, timeout=60)
    network = ("MPIR_CVAR_CH4_NETMOD=ofi", "FI_PROVIDER=tcp")
    words = [f"-x{word}" for word in (*network, f"LD_LIBRARY_PATH={Path(sys.prefix, 'lib')}")]
    done = run(cluster, *words, "--no-python", str(binary))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 4: sum 6" for rank in range(4)]
    assert run(cluster, *words, "--no-python", str(binary), "fail").returncode == 7


def test_a_script_that_wants_its_local_rank(cluster: Cluster) -> None:
    script = Path(cluster.shared, "wants.py")
    script.write_text(
        "import argparse, sys\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int, required=True)\n"
        "parser.add_argument('--lr')\n"
        "found = parser.parse_args()\n"
        "sys.stdout.write(f'{found.local_rank} {found.lr}\\n')\n"
    )
    done = run(cluster, "--local-rank-arg", "--local_rank", str(script), "--lr", "3e-4")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 3e-4", "0 3e-4", "1 3e-4", "1 3e-4"]
