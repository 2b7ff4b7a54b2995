"""A plan in the words of other launchers, and the script by which they reach hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.plan.hosts.hostfile import parse_inline
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


@pytest.mark.parametrize(
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


def test_ranks_that_are_not_used_are_not_told() -> None:
    assert "-H n1:2,n2:1 " in " ".join(told(planned("n1:2,n2:2,n3:2", np=3), "openmpi"))


@pytest.mark.parametrize(
    ("hosts", "fields", "why"),
    [
        ("n1,n2", {}, "how many ranks on n"),
        ("n1:2", {"per_node": True, "nproc_per_node": 1}, "--per-node"),
        ("n1:2,n2:2", {"spares": 1}, "--spares"),
        ("n1:2", {"devices": "rank"}, "--devices rank"),
        ("n1:2", {"stdin": "all"}, "--stdin all"),
        ("n1:2", {"mpi": "pmi1"}, "--mpi pmi1"),
        ("n1:2", {"restarts": Restarts(most=1, min_nodes=1)}, "--min-nodes"),
    ],
)
def test_what_it_cannot_do(hosts: str, fields: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        mpirun_plan.check(planned(hosts, **fields))


def test_what_is_left_to_us_is_one_process_here() -> None:
    plan = mpirun_plan.delegated(planned(), ["mpirun", "x"])
    assert [(node.host.name, node.ranks) for node in plan.nodes] == [("localhost", (0,))]
    assert (plan.argv(0), plan.world_size, plan.mpi) == (("mpirun", "x"), 1, "none")


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
            ["sh", str(script), *words], capture_output=True, text=True, timeout=20, check=True
        )
        assert done.stdout == said
    done = subprocess.run(
        ["sh", str(script), "n9", "x"], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (255, "")
    assert "n9" in done.stderr
