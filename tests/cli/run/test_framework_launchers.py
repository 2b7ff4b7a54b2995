"""``--launcher accelerate`` and its like: what each host is told, from the line that was typed."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cases import cases

from dispatcher.cli.run.request import request
from dispatcher.core.events.run_events import Facts
from dispatcher.model.errors import UsageError
from dispatcher.plan.job.job_plan import plan_job
from dispatcher.remote.protocol.frames import Decoder
from dispatcher.remote.protocol.packing import unpack
from dispatcher.runner.run import orders

from ..conftest import Parsed

WORLD = base64.urlsafe_b64encode(b'{"n1": [0, 1], "n2": [0, 1]}').decode()


def told(parsed: Parsed, node: int, *words: str) -> tuple[str, dict[str, str]]:
    """The words, behind ``python -u``, and variables of the process on ``node`` of two like it."""
    plan = plan_job(request(parsed("run", "-H", "n1:2,n2:2", *words)), "id")
    facts = Facts("h", 1, "3.11", 8, 0, (f"10.0.0.{node + 1}",), "m")
    (frame,) = Decoder().feed(orders.start_order(plan, node, facts, "10.0.0.1", 4000, "kvs"))
    order = unpack(frame.body)
    ((_, argv, own),) = order["ranks"]
    pairs = [*order["common"], *own]
    return (
        " ".join(word.decode() for word in argv[2:]),
        {name.decode(): text.decode() for name, text in pairs},
    )


TORCHRUN = (
    "-m torch.distributed.run --nnodes 2 --nproc-per-node {n} --rdzv-backend c10d --rdzv-endpoint "
    "10.0.0.1:4000 --rdzv-id id-0 --rdzv-conf is_host={first} --local-addr 10.0.0.{own} train.py"
)


@cases(
    ("line", "node", "words"),
    [
        ("--launcher torchrun train.py", 0, TORCHRUN.format(n=2, first=1, own=1)),
        ("--launcher torchrun --nproc-per-node 4 train.py", 1,
         TORCHRUN.format(n=4, first=0, own=2)),
        ("--launcher accelerate train.py --lr 1", 1,
         "-m accelerate.commands.launch --num_machines 2 --num_processes 4 --machine_rank 1 "
         "--main_process_ip 10.0.0.1 --main_process_port 4000 train.py --lr 1"),
        ("--launcher accelerate --nproc-per-node 8 -- --mixed_precision bf16 train.py", 0,
         "-m accelerate.commands.launch --num_machines 2 --num_processes 16 --machine_rank 0 "
         "--main_process_ip 10.0.0.1 --main_process_port 4000 --mixed_precision bf16 train.py"),
        ("--launcher deepspeed train.py --deepspeed ds.json", 1,
         f"-m deepspeed.launcher.launch --world_info {WORLD} --node_rank 1 "
         "--master_addr 10.0.0.1 --master_port 4000 train.py --deepspeed ds.json"),
        ("--launcher deepspeed -m pkg.train", 0,
         f"-m deepspeed.launcher.launch --world_info {WORLD} --node_rank 0 "
         "--master_addr 10.0.0.1 --master_port 4000 --module pkg.train"),
        ("--launcher lightning -- --accelerator cpu fit.py", 1,
         "-m lightning.fabric.cli --num-nodes 2 --node-rank 1 --devices 2 --main-address 10.0.0.1 "
         "--main-port 4000 --accelerator cpu fit.py"),
        ("--launcher llamafactory-cli train sft.yaml", 1, "-m llamafactory.cli train sft.yaml"),
    ],
)  # fmt: skip
def test_what_a_host_is_told(
    parsed: Parsed, nothing_around: Path, line: str, node: int, words: str
) -> None:
    found, env = told(parsed, node, *line.split())
    assert found == words
    count = "8" if "per-node 8" in line else "2"
    place = {"NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": "10.0.0.1",
             "MASTER_PORT": "4000", "NPROC_PER_NODE": count}  # fmt: skip
    assert {name: env[name] for name in place} == place
    assert env.get("FORCE_TORCHRUN") == ("1" if "llamafactory" in line else None)
    assert "OMP_NUM_THREADS" not in env


def test_the_users_own_variable_wins(parsed: Parsed, nothing_around: Path) -> None:
    words = ["-x", "FORCE_TORCHRUN=0", "--launcher", "llamafactory-cli", "train", "sft.yaml"]
    assert told(parsed, 0, *words)[1]["FORCE_TORCHRUN"] == "0"


@cases(
    ("line", "said"),
    [
        ("--launcher deepspeed --nproc-per-node gpu a.py", "--nproc-per-node gpu: --launcher deep"),
        ("--launcher lightning -m pkg", "--launcher lightning starts scripts only, not what --mod"),
        ("--launcher accelerate -w n3 a.py", "--launcher accelerate: how many ranks on n3?"),
        ("--launcher accelerate", "no program given"),
    ],
)
def test_refusals(parsed: Parsed, nothing_around: Path, line: str, said: str) -> None:
    hosts = [] if "-w" in line else ["-H", "n1:2"]
    with pytest.raises(UsageError) as caught:
        request(parsed("run", *hosts, *line.split()))
    assert caught.value.message.startswith(said)
