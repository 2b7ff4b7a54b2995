"""The recipes of examples/frameworks, on hosts: directly, and by their framework's own launcher.

They run where their packages can be imported (``scripts/frameworks``); PYTHONPATH may
name a folder that has them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rig import Cluster, wait_for

DISPATCH = [sys.executable, "-m", "dispatcher", "--label", "none", "--iface", "eth0"]
RECIPES = Path(__file__).parents[3] / "examples" / "frameworks"
#: on the hosts: no name is looked up elsewhere, and their own Python's programs are found
QUIET = ("-x", "OMP_NUM_THREADS=1", "-x", "HF_HUB_OFFLINE=1", "-x", "DS_ACCELERATOR=cpu")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def needs(package: str) -> None:
    for one in ("torch", package):
        if importlib.util.find_spec(one) is None:
            pytest.skip(f"needs {package}: scripts/frameworks")


def ranks(of: int, said: str) -> list[str]:
    return [said.format(rank=rank) for rank in range(of)]


STEPS = ranks(4, "process {rank} of 4: 4 steps")
SUMS = ranks(4, "process {rank} of 4: sum 4, learnt True")
ZERO = ranks(4, "rank {rank} of 4: ZeRO 2, learnt True")
FITTED = ranks(4, "rank {rank} of 4 took 3 steps")
#: tensor parallel ranks are neighbours, then come data and pipeline parallel ones
MEGATRON = [
    f"rank {rank}: tp {rank % 2} pp {rank // 4} dp {rank // 2 % 2}, sum in tp {rank // 2 * 4 + 1}"
    for rank in range(8)
]


@pytest.mark.parametrize(
    ("package", "words", "script", "said"),
    [
        ("torch", [], "ddp.py", ranks(4, "rank {rank} of 4: learnt True")),
        ("torch", ["--launcher", "torchrun"], "ddp.py", ranks(4, "rank {rank} of 4: learnt True")),
        ("torch", [], "torch_rpc.py", [f"student {n} heard {2 * n}" for n in (1, 2, 3)]),
        ("transformers", [], "hf_trainer.py", STEPS),
        ("accelerate", [], "accelerate_loop.py", SUMS),
        ("accelerate", ["--launcher", "accelerate", "--", "--multi_gpu"], "accelerate_loop.py",
         SUMS),
        ("deepspeed", ["--launcher", "deepspeed"], "deepspeed_zero.py", ZERO),
        ("deepspeed", ["--local-rank-arg", "--local_rank"], "deepspeed_zero.py", ZERO),
        ("lightning", [], "lightning_fit.py", FITTED),
        ("lightning", ["--launcher", "lightning", "--", "--accelerator", "cpu"], "lightning_fit.py",
         FITTED),
        ("megatron", ["--nproc-per-node", "4", "--oversubscribe"], "megatron_groups.py", MEGATRON),
    ],
)  # fmt: skip
def test_recipe(
    cluster: Cluster, package: str, words: Sequence[str], script: str, said: list[str]
) -> None:
    needs(package)
    line = [*DISPATCH, "-H", "n1:2,n2:2", *QUIET, *words, str(RECIPES / script)]
    done = cluster.run(line, timeout=550)
    assert done.returncode == 0, done.stderr
    found = {one for one in said if any(one in line for line in done.stdout.splitlines())}
    assert found == set(said), done.stdout


@pytest.mark.parametrize(
    "words", [["--launcher", "llamafactory-cli", "train"], ["-m", "llamafactory.launcher"]]
)
def test_llamafactory_tunes_a_model_made_on_the_spot(cluster: Cluster, words: list[str]) -> None:
    needs("llamafactory")
    folder = Path(cluster.shared, "sft")
    subprocess.run([sys.executable, RECIPES / "llamafactory_files.py", folder], check=True)
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"  # it calls torchrun
    line = [*DISPATCH, "-H", "n1:2,n2:2", *QUIET, "-x", path, *words, str(folder / "sft.yaml")]
    done = cluster.run(line, timeout=550)
    assert done.returncode == 0, done.stderr
    assert "train_loss" in (folder / "out/all_results.json").read_text()


def test_a_sharded_model_survives_its_host(new_cluster: Callable[..., Cluster]) -> None:
    """A host is cut while FSDP2 trains; its spare takes over and goes on after the last step."""
    needs("torch")
    cluster = new_cluster(3)
    ckpt = Path(cluster.shared, "ckpt")
    line = [*DISPATCH, "-H", "n1:2,n2:2,n3:2", "--nnodes", "2", "--spares", "1", *QUIET]
    line += ["--heartbeat", "2", "--lease", "8", "--grace", "2", "--max-restarts", "2"]
    run = cluster.popen(
        [*line, str(RECIPES / "fsdp_checkpoint.py"), str(ckpt), "12", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: (ckpt / "step-3/.metadata").exists(), 200, "the third step")
        cluster.cut("n2")
        out, err = run.communicate(timeout=300)
    finally:
        run.send_signal(signal.SIGKILL)
    assert run.returncode == 0, err
    begun = re.search(r"goes on after step (\d+)", out)
    assert begun is not None
    assert 3 <= int(begun[1]) < 12
    assert all(f"rank {rank} of 4 done" in out for rank in range(4))
    assert "n3 takes the place of n2" in err
