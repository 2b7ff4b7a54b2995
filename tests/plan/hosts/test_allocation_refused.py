"""Surroundings that name no hosts, or two sets of them: what is said, and what would do."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.plan.hosts.allocation import Surroundings, discover
from dispatcher.plan.hosts.hostfile import MOST_BYTES

from .test_allocation import SLURM, surroundings

WRONG: list[tuple[str, Surroundings, list[str]]] = [
    (
        "two sources, other hosts",
        surroundings(SLURM, {"/job/hostfile": "w-1 slots=8\nn2 slots=8\n"}),
        [
            "two sources of hosts disagree",
            "DeepSpeed's default hostfile (/job/hostfile) and Slurm job 7 (SLURM_JOB_NODELIST)",
            "only /job/hostfile has w-1",
            "-H 'n2:8,w-1:8', or -H 'n[1-3]'",
        ],
    ),
    (
        "two sources, other slots",
        surroundings(
            {"LSB_MCPU_HOSTS": "a 2 b 2", "LSB_DJOB_HOSTFILE": "/l"}, {"/l": "a\na\nb\nb\nb\n"}
        ),
        ["disagree", "b has 3 slots in one and 2 in the other", "-H 'a:2,b:3', or -H 'a:2,b:2'"],
    ),
    ("srun started many", surroundings({**SLURM, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}),
     ["Slurm job 7: srun started dispatch 4 times: once is enough", "without srun"]),
    (
        "srun --pty started many: those without the terminal",
        surroundings(
            {**SLURM, "SLURM_PTY_PORT": "40001", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}
        ),
        ["Slurm job 7: srun started dispatch 4 times: once is enough", "without srun"],
    ),
    ("no list in a job", surroundings({"SLURM_JOB_ID": "7"}),
     ["SLURM_JOB_NODELIST is not set", '-H "$(squeue -h -j $SLURM_JOB_ID -o %N)"']),
    (
        "no list of a group",
        surroundings(
            {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "a"}
        ),
        ["SLURM_JOB_NODELIST_HET_GROUP_1 is not set"],
    ),
    (
        "two sources, other addresses",
        surroundings(
            {"HYDRA_HOST_FILE": "/h", "I_MPI_HYDRA_HOST_FILE": "/i"},
            {"/h": "10.0.0.1\n", "/i": "10.0.0.1\n10.0.0.2\n"},
        ),
        ["HYDRA_HOST_FILE (/h) and I_MPI_HYDRA_HOST_FILE (/i)", "only /i has 10.0.0.2"],
    ),
    ("lsf: names for numbers", surroundings({"LSB_MCPU_HOSTS": "a 2 b c"}),
     ["LSB_MCPU_HOSTS: not names and numbers in turn: 'a 2 b c'"]),
    ("no file of hosts", surroundings({"HYDRA_HOST_FILE": "/h"}, {"/h": "#" * (MOST_BYTES + 1)}),
     ["hostfile: '/h': more than 16 MiB, not a hostfile"]),
    (
        "two lists that must be written as lists",
        surroundings(
            {"HYDRA_HOST_FILE": "/h", "I_MPI_HYDRA_HOST_FILE": "/i"},
            {"/h": "n1:2\nn2:2\nn4:2\nm1:4\n", "/i": "x\n"},
        ),
        ["-H 'n[1-2,4]:2,m1:4', or -H 'x'"],
    ),
    (
        "tasks for other nodes",
        surroundings({**SLURM, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "8(x2)"}),
        [
            "SLURM_TASKS_PER_NODE is for 2 nodes, the node list has 3",
            '-H "$SLURM_JOB_NODELIST" --nproc-per-node 8',
        ],
    ),
    ("tasks of no form",
     surroundings({**SLURM, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "8(3)"}),
     ["not of the form 8(x3),4: '8(3)'"]),
    ("tasks without end",
     surroundings({**SLURM, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "1(x9999999)"}),
     ["not of the form"]),
    ("a bad node list", surroundings({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[3-1]"}),
     ["Slurm job 7: SLURM_JOB_NODELIST: a range that runs backwards"]),
    ("a bad node list, with what would do",
     surroundings({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[]"}),
     ["SLURM_JOB_NODELIST: an empty range", "a range is 1-16"]),
    ("a file that is not there", surroundings({"PBS_NODEFILE": "/gone"}),
     ["PBS: PBS_NODEFILE: '/gone': No such file or directory", "env -u PBS_NODEFILE"]),
    ("lsf: an odd number of words", surroundings({"LSB_MCPU_HOSTS": "a 2 b"}),
     ["not names and numbers in turn: 'a 2 b'"]),
    ("grid engine: no number", surroundings({"PE_HOSTFILE": "/pe"}, {"/pe": "a\n"}), ["/pe:1:"]),
    ("flux that cannot be asked", surroundings({"FLUX_URI": "x"}),
     ["flux getattr hostlist: No such", "name the hosts with -H, or: env -u FLUX_URI"]),
    ("a pod without any host", surroundings({"K_MPI_JOB_ROLE": "launcher"}),
     ["neither /etc/mpi/hostfile nor /etc/mpi/discover_hosts.sh names a host"]),
    ("an empty file", surroundings({"HYDRA_HOST_FILE": "/h"}, {"/h": "\n"}), ["/h"]),
]  # fmt: skip


@cases(("place", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong(place: Surroundings, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        discover(place)
    told = f"{caught.value.message}\n{caught.value.hint}"
    for text in words:
        assert text in told
    assert caught.value.exit_code == 2
