"""A plan in the words of other launchers, and the script by which they reach hosts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.plan.hosts.hostfile import parse_hostfile, parse_inline
from dispatcher.plan.job import mpirun_plan
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.mpirun_plan import Launcher
from dispatcher.plan.job.request import Program, Request, Restarts


def planned(hosts: str = "n1:2,n2:2", **fields: Any) -> JobPlan:
    program = Program("command", ("hello", "a b"))
    return plan_job(Request(parse_inline(hosts), program, "/work", **fields), "run-1")


def told(plan: JobPlan, family: Any, **how: Any) -> list[str]:
    """The words up to the ranks' own; the shell text of the latter is told apart."""
    launcher = Launcher("/opt/bin/mpirun", family, "x")
    words = mpirun_plan.words(plan, launcher, "/a/rsh", **{"labels": True, "root": False, **how})
    assert words[0] == "/opt/bin/mpirun"
    at = words.index("sh")
    assert (words[at + 1], words[at + 3 :]) == ("-c", ("sh", "hello", "a b"))
    return list(words[1:at])


@cases(
    ("said", "family"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs", "openmpi"),
        ("mpirun.openmpi (OpenRTE) 4.1.4\n", "openmpi"),
        ("mpirun (Open MPI) 5.0.11\n", "prrte"),
        ("prterun (PRRTE) 3.0.2\n", "prrte"),
        ("HYDRA build details:\n    Version: 5.0.2", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14", "hydra"),
        ("jsrun 1.0", None),
        ("", None),
    ],
)
def test_family(said: str, family: str | None) -> None:
    assert mpirun_plan.family(said) == family


def test_openmpi() -> None:
    plan = planned(exports=("TOKEN=secret", "OMPI_MCA_x=1"), iface="eth1")
    words = told(plan, "openmpi", root=True)
    text = " ".join(words)
    for part in (
        "--mca plm_rsh_agent sh /a/rsh --mca plm_rsh_no_tree_spawn 1",
        "-H n1:2,n2:2 --map-by slot --bind-to none --wdir /work",
        "--mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1",
        "--allow-run-as-root -x DISPATCH_RUN_ID -x NCCL_SOCKET_IFNAME",
        "-x TOKEN --tag-output -n 4",
    ):
        assert part in text
    assert "secret" not in text
    assert "OMPI_MCA_x" not in words


def test_prrte() -> None:
    text = " ".join(told(planned(map_by="node"), "prrte"))
    assert "--prtemca plm_ssh_agent sh /a/rsh" in text
    assert "--map-by node" in text
    assert "--output tag" in text
    assert "root" not in text


def test_hydra() -> None:
    text = " ".join(told(planned(exports=("A=1",)), "hydra"))
    assert text == (
        "-launcher ssh -launcher-exec /a/rsh -hosts n1:2,n2:2 -genvlist DISPATCH_RUN_ID,A "
        "-wdir /work -prepend-rank -n 4"
    )
    assert "-hosts n1:1,n2:1 " in " ".join(told(planned(map_by="node"), "hydra", labels=False))
    with pytest.raises(UsageError, match="equal hosts only"):
        told(planned("n1:3,n2:1", map_by="node"), "hydra")


def test_prrte_has_other_words_for_the_same() -> None:
    words = told(planned(iface="eth1", exports=("PRTE_X=1", "OMPI_MCA_y=1")), "prrte", labels=False)
    assert " ".join(words) == (
        "--prtemca plm_ssh_agent sh /a/rsh --prtemca plm_ssh_no_tree_spawn 1 "
        "--prtemca prte_keep_fqdn_hostnames 1 --leave-session-attached -H n1:2,n2:2 --map-by slot "
        "--bind-to none --wdir /work --prtemca prte_if_include eth1 --mca btl_tcp_if_include eth1 "
        "-x DISPATCH_RUN_ID -x NCCL_SOCKET_IFNAME -x GLOO_SOCKET_IFNAME -x TP_SOCKET_IFNAME "
        "-x FI_TCP_IFACE -x FI_SOCKETS_IFACE -x UCX_NET_DEVICES "
        "-x MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE -n 4"
    )


@cases("family", ["openmpi", "prrte", "hydra"])
def test_mpirun_binds_to_what_was_asked(family: Any) -> None:
    for asked, word in (("core", "core"), ("numa", "numa"), ("none", "none"), ("auto", "none")):
        words = " ".join(told(planned(bind_to=asked), family))
        by_default = family == "hydra" and word == "none"  # it binds nothing by itself
        assert (f"-bind-to {word} " in words) != by_default


def test_a_name_is_told_once() -> None:
    plan = planned(iface="eth1", exports=("GLOO_SOCKET_IFNAME=eth2", "A=1"))
    assert told(plan, "openmpi").count("GLOO_SOCKET_IFNAME") == 1
    words = told(plan, "hydra")
    names = words[words.index("-genvlist") + 1].split(",")
    assert sorted(names) == sorted(set(names))
    assert (names[0], names[-1]) == ("DISPATCH_RUN_ID", "A")
    assert words[words.index("-iface") + 1] == "eth1"
    for family in ("openmpi", "prrte", "hydra"):
        bare = told(planned(), family, labels=False)
        assert not {"-iface", "-prepend-rank", "--tag-output", "--output", "eth1"} & set(bare)
        assert "btl_tcp_if_include" not in bare


def test_map_by_node_with_equal_hosts_is_a_round_a_host_for_hydra() -> None:
    assert "-hosts n1:1,n2:1 " in " ".join(told(planned("n1:3,n2:3", map_by="node"), "hydra"))


@cases(
    ("family", "fields", "variables"),
    [
        ("openmpi", {}, {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
                         "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),
        ("hydra", {"master_addr": "10.0.0.1", "master_port": 7},
         {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}),
    ],
)  # fmt: skip
def test_a_rank_finds_what_torch_wants(
    family: Any, fields: dict[str, Any], variables: dict[str, str]
) -> None:
    """The shell text is run as mpirun would run it."""
    plan = replace(planned(**fields), program=Program("command", ("env",)))
    words = mpirun_plan.words(plan, Launcher("m", family, "x"), "/a", labels=True, root=False)
    shim = words[words.index("sh") :] if family == "hydra" else words[words.index("-c") - 1 :]
    mine = {"NODE_RANK": "9", "ROLE_NAME": "x", "DISPATCH_HOSTS": "y", "DISPATCH_RUN_ID": "run-1"}
    done = subprocess.run(
        shim, env={**variables, **mine, "PATH": os.environ["PATH"]}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    wanted = {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": fields.get("master_addr", "n1"),
        "MASTER_PORT": str(fields.get("master_port", mpirun_plan.PORT)), "DISPATCH_RUN_ID": "run-1",
    }  # fmt: skip
    assert found.items() >= wanted.items()
    assert not {"NODE_RANK", "ROLE_NAME", "DISPATCH_HOSTS"} & found.keys()


def test_ranks_that_are_not_used_are_not_told() -> None:
    assert "-H n1:2,n2:2 " in " ".join(told(planned("n1:2,n2:2,n3:2", np=3), "openmpi"))


@cases(
    ("hosts", "fields", "why"),
    [
        ("n1,n2", {}, "how many ranks on n"),
        ("n1:2", {"per_node": True, "nproc_per_node": 1}, "--per-node"),
        ("n1:2,n2:2", {"spares": 1}, "--spares"),
        ("n1:2", {"devices": "rank"}, "--devices rank"),
        ("n1:2", {"stdin": "all"}, "--stdin all"),
        ("n1:2", {"mpi": "pmi1"}, "--mpi pmi1"),
        ("n1:2", {"restarts": Restarts(most=1, min_nodes=1)}, "--min-nodes"),
        ("n1:2", {"restarts": Restarts(most=1, progress_file="x")}, "--progress-file"),
        ("n1:2", {"local_rank_arg": "--local_rank"}, "--local-rank-arg"),
        ("n1:2", {"stdin": 1}, "--stdin 1"),
        ("n1:2", {"bind_to": "gpu"}, "--bind-to gpu"),
        ("n1:2", {"mem_bind": "local"}, "--mem-bind and --near-hca"),
        ("n1:2", {"near_hca": True}, "--mem-bind and --near-hca"),
        ("n1 slots=2 env=A=1", {}, "n1: env=: mpirun treats all hosts alike"),
        ("n1 slots=2 python=/p", {}, "n1: python=: mpirun treats all hosts alike"),
        ("[::1]:1,[::1]:2 slots=1", {}, "::1: two ports of one name"),
    ],
)
def test_what_it_cannot_do(hosts: str, fields: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        mpirun_plan.check(planned(hosts, **fields))


def test_gpus_are_not_counted_and_only_those_hosts_are_named() -> None:
    with pytest.raises(UsageError, match=r"how many ranks on n\[1,3\]\?") as caught:
        mpirun_plan.check(
            plan_job(
                Request(
                    parse_hostfile("n1\nn2 slots=2\nn3", "hf"), Program("command", ("x",)), "/w"
                ),
                "run-1",
            )
        )
    assert caught.value.hint == "slots=N in the hostfile, or --nproc-per-node N"


@cases(
    "fields",
    [
        {},
        {"mpi": "none"},
        {"stdin": 0},
        {"stdin": "none"},
        {"restarts": Restarts(most=2)},
        {"devices": "node"},
        {"map_by": "node", "iface": "eth0"},
    ],
)
def test_what_it_can_do(fields: Any) -> None:
    assert mpirun_plan.check(planned(**fields)) is None  # type: ignore[func-returns-value]


@cases(
    ("restarts", "left"),
    [
        (Restarts(), Restarts()),
        (Restarts(delay=5.0, max_host_failures=9), Restarts()),
        (Restarts(most=2, delay=5.0, min_nodes=1), Restarts(most=2, delay=5.0)),
    ],
)
def test_what_is_left_to_us_is_one_process_here(restarts: Restarts, left: Restarts) -> None:
    before = planned(
        "n1:2,n2:2,n3:2,n4:2", spares=1, np=5, map_by="node", oversubscribe=True, omp=4,
        devices="node", mpi="pmi1", pmi_port=True, dedup_output=True, master_addr="n1",
        master_port=7, exports=("A=1",), restarts=restarts,
    )  # fmt: skip
    before = replace(before, notices=("odd",), nproc_per_node=2)
    plan = mpirun_plan.delegated(before, ["mpirun", "x"])
    assert [(n.index, n.host.name, n.slots, n.ranks) for n in plan.nodes] == [
        (0, "localhost", ("0",), (0,))
    ]
    assert (plan.argv(0), plan.world_size, plan.mpi) == (("mpirun", "x"), 1, "none")
    assert (plan.np, plan.nproc_per_node, plan.map_by) == (1, 1, "block")
    assert (plan.devices, plan.omp, plan.pmi_port, plan.dedup_output) == (
        "none",
        "keep",
        False,
        False,
    )
    assert (plan.master_addr, plan.master_port, plan.spares, plan.notices) == (None, None, (), ())
    assert plan.restarts == left
    assert (plan.run_id, plan.exports, plan.cwd) == ("run-1", (("A", "1"),), "/work")


def test_the_agent_gives_each_host_its_command(tmp_path: Path) -> None:
    """Options before the host are no business of ours; the rest is one text for a shell."""

    def argv_of(host: Host, name: str, command: str) -> list[str]:
        return ["printf", "%s|", f"{host.user} it's", f"to:{name}", f"-c={command}", command]

    hosts = [Host("n1"), Host("n2.a", user="me"), Host("n3"), Host("n4", port=22)]
    script = tmp_path / "agent"
    script.write_text(mpirun_plan.agent_script(hosts, argv_of))
    for words, said in (
        (["n1", "echo hi"], "None it's|to:n1|-c=echo hi|echo hi|"),
        (["-x", "-q", "n3", "a", "b;", "c"], "None it's|to:n3|-c=a b; c|a b; c|"),
        (["n2.a", "$(no)", "*"], "me it's|to:n2.a|-c=$(no) *|$(no) *|"),
    ):
        done = subprocess.run(
            ["sh", str(script), *words], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == said
    done = subprocess.run(
        ["sh", str(script), "n9", "x"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (255, "")
    assert "n9" in done.stderr


@cases(
    ("hosts", "flags", "family", "said"),
    [
        # slots that ranks have not taken are there for those that they spawn
        ("n1:4", {"np": 1}, "openmpi", "-H n1:4 --map-by slot --bind-to none"),
        ("n1:4,n2:4", {"np": 5}, "prrte", "-H n1:4,n2:4 --map-by slot"),
        ("n1:4,n2:4", {"np": 2, "map_by": "node"}, "prrte", "-H n1:4,n2:4 --map-by node"),
        ("n1:4,n2:4", {"nproc_per_node": 2}, "prrte", "-H n1:4,n2:4 --map-by ppr:2:node"),
        ("n1:4,n2:4", {"nproc_per_node": 2, "np": 3}, "prrte", "-H n1:2,n2:1 --map-by slot"),
        ("n1:2,n2:2", {"map_by": "socket"}, "prrte", "--map-by package --bind-to package"),
        ("n1:2,n2:2", {"map_by": "socket"}, "openmpi", "--map-by socket --bind-to socket"),
        ("n1:2", {"map_by": "numa", "bind_to": "core"}, "prrte", "--map-by numa --bind-to core"),
    ],
)
def test_ranks_are_where_they_are_planned(
    hosts: str, flags: dict[str, Any], family: Any, said: str
) -> None:
    assert said in " ".join(told(planned(hosts, **flags), family))


@cases(
    ("flags", "family", "why"),
    [
        ({"map_by": "ppr:1:core"}, "prrte", "--map-by ppr:1:core"),
        ({"map_by": "gpu"}, "prrte", "--map-by gpu"),
        ({"rank_by": "node"}, "prrte", "--rank-by and --report-bindings"),
        ({"rankfile": ("rf", "rank 0=n1")}, "prrte", "--rankfile"),
        ({"map_by": "numa"}, "hydra", "Hydra does not deal"),
    ],
)
def test_mappings_that_it_cannot_be_told(flags: dict[str, Any], family: Any, why: str) -> None:
    plan = planned(**flags)
    with pytest.raises(UsageError, match=why):
        told(plan, family) if family == "hydra" else mpirun_plan.check(plan)
