"""A plan as ``--dry-run`` and ``plan.json`` show it, and what only hosts or spawned ranks have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.plan.hosts.hostfile import parse_hostfile
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.rank_environment import (
    Bound,
    describe_plan,
    rank_environment,
    ras_address,
    spawned_environment,
)
from dispatcher.plan.job.request import Limits, Program, Request, Restarts

BOUND = Bound("10.0.0.1", 29400)


def planned(hosts: str = "n1 slots=2\nn2 slots=1", **flags: Any) -> JobPlan:
    program = Program("script", ("t.py", "--x"))
    return plan_job(Request(parse_hostfile(hosts, "hf"), program, "/w", **flags), "run-1")


def test_a_whole_plan() -> None:
    plan = planned(
        "n1 slots=2 user=me port=22 env=API_KEY=s env=A=2\nn2 slots=1\nn3 slots=1 spare",
        exports=("A=1", "B_TOKEN=s"),
    )
    shown: dict[str, Any] = {**describe_plan(plan)}
    ranks = shown.pop("ranks")
    assert (
        shown.pop("limits").items() >= {"beats_lost": 3, "connect_window": 64, "grace": 10}.items()
    )
    assert shown.pop("restarts").items() >= {"most": 0, "host_faults": 3}.items()
    assert shown == {
        "schema": "plan/1",
        "run_id": "run-1", "name": None,
        "world_size": 3,
        "cwd": "/w",
        "nodes": [
            {
                "index": 0, "host": "n1", "user": "me", "port": 22, "origin": "hf:1",
                "slots": ["0", "1"], "ranks": [0, 1],
                "environment": {"API_KEY": "<hidden>", "A": "2"},
            },
            {
                "index": 1, "host": "n2", "user": None, "port": None, "origin": "hf:2",
                "slots": ["0"], "ranks": [2], "environment": {},
            },
        ],
        "spares": [{"host": "n3", "slots": ["0"]}],
        "exports": {"A": "1", "B_TOKEN": "<hidden>", "DISPATCH_HOSTS": "n1:2,n2:1"},
        "bind_to": "auto",
        "mem_bind": "none",
        "notices": [],
    }  # fmt: skip
    assert [(one["rank"], one["host"], one["local_rank"]) for one in ranks] == [
        (0, "n1", 0), (1, "n1", 1), (2, "n2", 0),
    ]  # fmt: skip
    assert ranks[0]["argv"] == ["python3", "-u", "t.py", "--x"]
    # what all ranks have alike stands once, above
    assert [one["environment"].get("A") for one in ranks] == ["2", "2", None]
    assert ranks[0]["environment"]["API_KEY"] == "<hidden>"
    assert ranks[2]["environment"]["MASTER_PORT"] == "<free port on n1>"


def test_an_open_plan() -> None:
    shown = describe_plan(planned("n[1-2]\nn3 spare"))
    assert (shown["world_size"], shown["ranks"]) == (None, [])
    assert [node["slots"] for node in shown["nodes"]] == [None, None]
    assert shown["spares"] == [{"host": "n3", "slots": None}]


@cases(
    ("bound", "limits", "found"),
    [
        (BOUND, Limits(), {}),
        (BOUND, Limits(hang_timeout=60), {}),
        (replace(BOUND, error_file="/run/e/1"), Limits(), {"TORCHELASTIC_ERROR_FILE": "/run/e/1"}),
        (replace(BOUND, error_file="/run/e/1"), Limits(hang_timeout=60),
         {"TORCHELASTIC_ERROR_FILE": "/run/e/1", "DISPATCH_STACKS": "/run/e"}),
        (replace(BOUND, hostname="10.0.0.2"), Limits(), {"PMI_HOSTNAME": "10.0.0.2"}),
        (replace(BOUND, gpus=4), Limits(), {"DISPATCH_GPUS": "4"}),
        (replace(BOUND, omp_threads=3), Limits(), {"OMP_NUM_THREADS": "3"}),
        (
            None, Limits(hang_timeout=60),
            {"TORCHELASTIC_ERROR_FILE": "<chosen on the host>",
             "OMP_NUM_THREADS": "<cores / local ranks>"},
        ),
    ],
)  # fmt: skip
def test_what_only_the_host_knows(
    bound: Bound | None, limits: Limits, found: dict[str, str]
) -> None:
    env = rank_environment(planned(limits=limits), 0, bound)
    names = ("TORCHELASTIC_ERROR_FILE", "DISPATCH_STACKS", "PMI_HOSTNAME", "DISPATCH_GPUS",
             "OMP_NUM_THREADS")  # fmt: skip
    assert {name: env[name] for name in names if name in env} == found


@cases(
    "plan, gloo, tensorpipe",
    [
        ({}, "eth1", "eth1"),
        ({"exports": ("GLOO_SOCKET_IFNAME=ib0",)}, "ib0", "eth1"),
        ({"iface": "eth0"}, "eth0", "eth0"),
    ],
)
def test_gloo_takes_the_interface_that_others_reach(
    plan: dict[str, Any], gloo: str, tensorpipe: str
) -> None:
    env = rank_environment(planned(**plan), 0, replace(BOUND, iface="eth1"))
    assert (env["GLOO_SOCKET_IFNAME"], env["TP_SOCKET_IFNAME"]) == (gloo, tensorpipe)


def test_nccl_s_ras_listens_at_a_place_of_the_run_s_own() -> None:
    assert "NCCL_RAS_ADDR" not in rank_environment(planned(), 0, BOUND)
    hung = Limits(hang_timeout=60)
    env = rank_environment(planned(limits=hung), 0, BOUND)
    assert env["NCCL_RAS_ADDR"] == ras_address(env["DISPATCH_RUN_ID"])
    chosen = planned(limits=hung, exports=("NCCL_RAS_ADDR=localhost:1",))
    assert rank_environment(chosen, 0, BOUND)["NCCL_RAS_ADDR"] == "localhost:1"
    places = {ras_address(f"run-{n}") for n in range(1000)}
    assert len(places) == 1000
    numbers = [[*map(int, place.partition(":")[0].split("."))] for place in places]
    assert all(len(n) == 4 and n[0] == 127 and max(n) < 256 and n[3] > 0 for n in numbers)


def test_without_mpi_nobody_needs_a_name_for_it() -> None:
    bound = replace(BOUND, hostname="10.0.0.2")
    assert "PMI_HOSTNAME" not in rank_environment(planned(mpi="none"), 0, bound)
    assert "PMI_HOSTNAME" in rank_environment(planned(mpi="pmi1"), 0, bound)


def test_restarts_are_counted_for_the_ranks() -> None:
    plan = planned(restarts=Restarts(most=3))
    env = rank_environment(plan, 0, BOUND, restart=2)
    assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("2", "3")
    assert rank_environment(plan, 0, BOUND)["TORCHELASTIC_RESTART_COUNT"] == "0"


def test_hosts_that_are_too_many_are_not_named() -> None:
    assert rank_environment(planned(), 2, BOUND)["DISPATCH_HOSTS"] == "n1:2,n2:1"
    ranks = describe_plan(planned("n[1-99] slots=2"))["ranks"]
    assert not any("DISPATCH_HOSTS" in one["environment"] for one in ranks)  # it stands once
    many = planned("n[10001-12000] slots=1")
    assert "DISPATCH_HOSTS" not in rank_environment(many, 0, BOUND)


def test_a_spawned_rank_has_the_host_s_and_nothing_of_the_world() -> None:
    plan = planned(
        "n1 slots=2\nn2 slots=1 env=X=host", exports=("X=all", "Y=1"), iface="eth0", omp=2
    )
    env = spawned_environment(plan, 1, 3, 5, replace(BOUND, hostname="10.0.0.2", gpus=1))
    assert {name: text for name, text in env.items() if text != "eth0"} == {
        "X": "host", "Y": "1", "NCCL_SOCKET_IFNAME": "=eth0", "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "5",
        "DISPATCH_RUN_ID": "run-1", "DISPATCH_HOST": "n2", "DISPATCH_GPUS": "1",
        "PMI_HOSTNAME": "10.0.0.2",
    }  # fmt: skip
    assert {name for name, text in env.items() if text == "eth0"} == {
        "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "FI_SOCKETS_IFACE",
        "UCX_NET_DEVICES", "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE", "OMPI_MCA_btl_tcp_if_include",
    }  # fmt: skip
