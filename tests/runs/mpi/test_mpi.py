"""MPI through dispatch alone: real libraries where they are installed, hostile ranks everywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from rig import Cluster, wait_for

from runs.conftest import PROGRAM, Desk, script, words_of

#: over plain TCP between hosts MPICH's default module (UCX) may stall, and so may libfabric's
#: provider "sockets", which MPICH prefers
NETMOD = ("-x", "MPIR_CVAR_CH4_NETMOD=ofi", "-x", "FI_PROVIDER=tcp")
#: seconds that a loaded machine may take beyond a bound
SLACK = 12.0


mpi = pytest.mark.usefixtures("mpich")

COLLECTIVES = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
data = bytearray(bytes(range(128)) if rank == 0 else 128)
comm.Bcast(data)
assert data == bytes(range(128))
token = comm.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
assert token == (rank - 1) % size
local = comm.Split_type(MPI.COMM_TYPE_SHARED)
print(rank, size, local.size, comm.allreduce(rank), flush=True)
"""

ENDING = """
import os, signal, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 1:
    with open("/proc/self/maps") as maps, open(__file__ + ".ends", "w") as ends:
        ends.writelines(line[line.index("/"):] for line in maps if "/dev/shm/mpich_shm_" in line)
    how = sys.argv[1]
    if how == "raise": raise RuntimeError("it is broken")
    if how == "abort": comm.Abort(7)
    if how == "_exit": os._exit(4)
    if how == "sys.exit": sys.exit(5)
    if how == "exit": exit("no data here")
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "collective":
    comm.Barrier()
"""

#: rank argv[2] leaves before the others do, by argv[1]
LEAVING = """
import os, sys, time
how, leaves = sys.argv[1], os.environ["RANK"] == sys.argv[2]
if how == "never" and leaves: os._exit(0)
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if how in ("finalized", "on"): MPI.Finalize()
if how == "on" and not leaves:
    time.sleep(4)
    print("went on")
    sys.stdout.flush()
if leaves or how in ("all", "finalized"): os._exit(0)
if how == "on": sys.exit(0)
if how == "spin":
    request = comm.Irecv(bytearray(1), source=int(sys.argv[2]))
    while not request.Test(): pass
comm.Barrier()
"""

NEVER = r"rank {rank} on {host} exited 0 without MPI_Init; (ranks? [\d,-]+) waits? in it"
UNFINISHED = (
    r"rank {rank} on {host} exited 0 without MPI_Finalize; (ranks [\d,-]+) are still in MPI"
)
LEFT = {"never": NEVER, "collective": UNFINISHED, "spin": UNFINISHED}

#: two programs, one world: which of them a rank is, and that all meet
PROGRAMS = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(sys.argv[1], comm.Get_attr(MPI.APPNUM), comm.rank, comm.size, comm.allreduce(1), flush=True)
"""
TOLD = ["[prog 0] a 0 0 3 3", "[prog#2 1] b 1 1 3 3", "[prog#2 2] b 1 2 3 3"]

#: speaks the protocol itself, so it needs no MPI
SPEAK = """
import os, sys
def ask(line):
    os.write(fd, line + b"\\n")
    return os.read(fd, 4096)
fd = int(os.environ["PMI_FD"])
rank = int(os.environ["PMI_RANK"])
"""


def expected(ranks: int, per_host: int) -> list[str]:
    total = ranks * (ranks - 1) // 2
    return sorted(f"[{rank}] {rank} {ranks} {per_host} {total}" for rank in range(ranks))


def tells_who_left(said: str, how: str, rank: int, host: str, others: str) -> bool:
    """Whether ``said`` names the rank that left, and the others; of one that has never called
    MPI_Init is told when the first of them wait in it, whoever is yet to come.
    """
    found = re.search(LEFT[how].format(rank=rank, host=host), said)
    if found is None:
        return False
    waiting, known = (ranks_of(text) for text in (found[1], f"ranks {others}"))
    return waiting <= known if how == "never" else waiting == known


def ranks_of(words: str) -> set[int]:
    """``ranks 0-2,4`` as numbers."""
    spans = [part.partition("-") for part in words.split()[1].split(",")]
    return {rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)}


def until_told(run: subprocess.Popen[str], words: str) -> str:
    """Read what ``run`` says on standard error up to the line with ``words``."""
    assert run.stderr is not None
    said = ""
    while words not in said:
        said += (line := run.stderr.readline())
        assert line, said
    return said


#: a package that looks like mpi4py on a library which found nobody
LONELY = """
class COMM_WORLD:
    Get_size = staticmethod(lambda: 1)
def Get_library_version(): return "Open MPI v9.8.7, package: Open MPI somebody"
def Is_initialized(): return {initialized}
def Is_finalized(): return False
"""


class TestOneHost:
    @mpi
    def test_collectives(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:4", script(desk.folder, COLLECTIVES))
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == expected(4, 4)
        assert done.stderr == ""

    @mpi
    def test_programs_of_one_world(self, desk: Desk) -> None:
        name = script(desk.folder, PROGRAMS)
        done = desk.run("-H", "localhost:3", "-n", "1", name, "a", ":", name, "b")
        assert (done.returncode, words_of(done.stdout)) == (0, TOLD), done.stderr

    @mpi
    def test_two_jobs_at_once(self, desk: Desk) -> None:
        name = script(desk.folder, COLLECTIVES)
        runs = [desk.start("-H", "localhost:3", name) for _ in range(2)]
        for run in runs:
            out, err = run.communicate(timeout=100)
            assert run.returncode == 0, err
            assert words_of(out) == expected(3, 3)

    @mpi
    @pytest.mark.parametrize("where", ["collective", "finalize"])
    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            ("raise", 1, "RuntimeError: it is broken"),
            ("abort", 7, "called MPI_Abort(7)"),
            ("_exit", 4, "exit code 4"),
            ("sys.exit", 5, "exit code 5"),
            ("exit", 1, "no data here"),
            ("kill", 137, "SIGKILL"),
        ],
    )
    def test_one_rank_ends_badly_while_others_wait(
        self, desk: Desk, how: str, code: int, words: str, where: str
    ) -> None:
        name = script(desk.folder, ENDING)
        # who waits for the grace to be over is seen by the bound
        done = desk.run("--grace", "60", "-H", "localhost:3", name, how, where)
        ends = desk.folder / f"{name}.ends"
        assert time.time() - ends.stat().st_mtime < 2 + SLACK
        assert done.returncode == code, done.stderr
        assert "error: rank 1 on localhost" in done.stderr
        assert words in done.stderr
        shared = set(ends.read_text().split())
        assert shared  # what MPICH keeps from MPI_Init to MPI_Finalize
        wait_for(lambda: not any(map(os.path.exists, shared)), 30, "shared memory to be removed")

    @mpi
    @pytest.mark.parametrize("how", ["never", "collective", "spin"])
    def test_one_that_leaves_half_way_is_named(self, desk: Desk, how: str) -> None:
        name = script(desk.folder, LEAVING)
        words = ("-H", "localhost:3", "--log-dir", "logs", *NETMOD, name, how, "1")
        done = desk.run(*words)
        assert done.returncode == 1, done.stderr
        assert tells_who_left(done.stderr, how, 1, "localhost", "0,2"), done.stderr
        assert done.stdout == ""
        report = json.loads((desk.folder / "logs" / "latest" / "report.json").read_text())
        failure = report["cause"]
        assert (failure["kind"], failure["host"]) == ("LeftMpi", "localhost")
        assert failure["ranks"] == ["1"]
        assert failure["waiting"] == ["0", "2"] or (how == "never" and failure["waiting"])

    @mpi
    @pytest.mark.parametrize("how", ["all", "finalized", "on"])
    def test_those_that_leave_nobody_waiting_are_let_go(self, desk: Desk, how: str) -> None:
        done = desk.run("-H", "localhost:3", *NETMOD, script(desk.folder, LEAVING), how, "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert words_of(done.stdout) == (["[0] went on", "[2] went on"] if how == "on" else [])

    def test_a_rank_without_mpi_is_let_go_until_others_wait_for_it(self, desk: Desk) -> None:
        text = (
            SPEAK
            + """
import time
if rank == 1: sys.exit(0)
time.sleep(1.5)
if sys.argv[1] == "speak": ask(b"cmd=get_maxes")
if sys.argv[1] == "init": ask(b"cmd=init pmi_version=1 pmi_subversion=1"); ask(b"cmd=barrier_in")
time.sleep(2.5)
print("went on")
"""
        )
        name = script(desk.folder, text)
        for how in ("none", "speak"):
            done = desk.run("-H", "localhost:3", name, how)
            assert (done.returncode, done.stderr) == (0, "")
            assert words_of(done.stdout) == ["[0] went on", "[2] went on"]
        done = desk.run("-H", "localhost:3", name, "init")
        assert done.returncode == 1
        assert tells_who_left(done.stderr, "never", 1, "localhost", "0,2"), done.stderr

    @mpi
    def test_restarts_follow_one_that_left_half_way(self, desk: Desk) -> None:
        text = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1": os._exit(0)
from mpi4py import MPI
print(MPI.COMM_WORLD.size)
"""
        name = script(desk.folder, text)
        done = desk.run("-H", "localhost:2", *NETMOD, "--max-restarts", "1", name)
        assert done.returncode == 0, done.stderr
        assert "exited 0 without MPI_Init; rank 0 waits in it; restart 1 of 1" in done.stderr
        assert words_of(done.stdout) == ["[0] 2", "[1] 2"]

    @mpi
    def test_an_exit_that_is_caught_is_none(self, desk: Desk) -> None:
        text = """
import sys
from mpi4py import MPI
for code in (3, "words", (1, 2), None, ValueError()):
    try:
        sys.exit(code)
    except SystemExit as error:
        assert error.code == code or error.code is code, (code, error.code)
        error.code = 9
try:
    exit(4)
except SystemExit:
    pass
MPI.COMM_WORLD.Barrier()
print("to the end", flush=True)
sys.exit()
"""
        done = desk.run("-H", "localhost:2", script(desk.folder, text))
        assert (done.returncode, done.stderr) == (0, "")
        assert words_of(done.stdout) == ["[0] to the end", "[1] to the end"]

    @pytest.mark.parametrize("initialized", [True, False])
    def test_ranks_that_would_be_alone_are_refused(self, desk: Desk, initialized: bool) -> None:
        (desk.folder / "mpi4py").mkdir()
        script(desk.folder, "", "mpi4py/__init__.py")
        script(desk.folder, LONELY.format(initialized=initialized), "mpi4py/MPI.py")
        name = script(desk.folder, "from mpi4py import MPI; print('in')")
        done = desk.run("-H", "localhost:2", "--mpi", "pmi1", name)
        assert done.returncode == 1
        assert "in" not in done.stdout.splitlines()
        said = "MPI: Open MPI v9.8.7 does not speak PMI-1, so each of the 2 ranks would be alone"
        assert said in done.stderr
        assert "hint: --mpi auto" in done.stderr
        if initialized:  # and found nobody, though PMIx was offered
            done = desk.run("-H", "localhost:2", name)
            assert done.returncode == 1
            assert "does not speak PMI-1 or PMIx" in done.stderr
        for words in (("-H", "localhost"), ("-H", "localhost:2", "--mpi", "none")):
            done = desk.run(*words, name)
            assert (done.returncode, done.stderr) == (0, "")

    def test_a_program_built_for_another_mpi_is_refused(self, desk: Desk) -> None:
        program = desk.folder / "solver"
        program.write_bytes(b"\x7fELF" + bytes(5000) + b"\0libmpi.so.40\0libc.so.6\0")
        program.chmod(0o755)
        done = desk.run("-H", "localhost:2", "--mpi", "pmi1", "--no-python", "./solver")
        assert done.returncode == 125
        assert "./solver: Open MPI does not speak PMI-1" in done.stderr
        assert "hint: leave --mpi pmi1 out" in done.stderr

    @mpi
    def test_without_a_process_manager_each_rank_is_alone(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:2", "--mpi", "none", script(desk.folder, COLLECTIVES))
        assert words_of(done.stdout) == ["[0] 0 1 1 0", "[1] 0 1 1 0"]

    def test_a_rank_that_never_comes_is_named(self, desk: Desk) -> None:
        text = (
            SPEAK
            + """
if rank == 0:
    ask(b"cmd=init pmi_version=1 pmi_subversion=1")
    print(ask(b"cmd=barrier_in"))
else:
    sys.stdin.read()
    import time
    while not os.path.exists("told"): time.sleep(0.02)
    ask(b"cmd=init pmi_version=1 pmi_subversion=1")
    ask(b"cmd=barrier_in")
"""
        )
        name = script(desk.folder, text)
        run = desk.start("-H", "localhost:2", "--mpi-stall-warning", "0.3", name)
        told = until_told(run, "MPI: waiting for rank 1 on localhost (never called MPI_Init)")
        (desk.folder / "told").touch()
        out, err = run.communicate(timeout=100)
        assert run.returncode == 0, told + err
        assert "[0] b'cmd=barrier_out tag=0\\n'" in out

    @pytest.mark.parametrize(
        "bad", ['b"nonsense\\n"', 'b"x" * (10 << 20)', 'b"\\0\\xff\\n" * 1000', 'b"cmd=\\n"']
    )
    def test_garbage_ends_that_rank_and_is_told(self, desk: Desk, bad: str) -> None:
        text = (
            SPEAK
            + f"""
if rank == 1:
    data = memoryview({bad})
    while data:
        data = data[os.write(fd, data):]
import time
time.sleep(60)
"""
        )
        done = desk.run("-H", "localhost:2", script(desk.folder, text))
        assert done.returncode == 137
        assert "rank 1 was killed: MPI:" in done.stderr
        assert "error: rank 1 on localhost" in done.stderr

    def test_a_rank_inherits_one_descriptor_and_no_trace(self, desk: Desk) -> None:
        text = """
import os, sys
fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
fds = [fd for fd in fds if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") or fd < 3]
kept = [fd for fd in fds if fd > 2 and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")]
assert kept == [int(os.environ["PMI_FD"])], kept
assert not [place for place in sys.path if "dispatch-" in place]
assert os.environ.get("PYTHONPATH") == "/some/where", os.environ.get("PYTHONPATH")
"""
        name = script(desk.folder, text)
        done = desk.run("-H", "localhost:3", name, env={"PYTHONPATH": "/some/where"})
        assert done.returncode == 0, done.stderr


@pytest.mark.cluster
class TestHosts:
    HOSTS = ("-H", "n1:2,n2:2,n3:2,n4:2", "--iface", "eth0", *NETMOD)

    def start(self, cluster: Cluster, text: str, *words: str) -> subprocess.Popen[str]:
        folder = Path(cluster.shared)
        name = script(folder, text, f"{uuid.uuid4().hex}.py")
        return cluster.popen(
            [*PROGRAM, *self.HOSTS, str(folder / name), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    @mpi
    def test_collectives_in_two_jobs_at_once(self, cluster: Cluster) -> None:
        runs = [self.start(cluster, COLLECTIVES) for _ in range(2)]
        for run in runs:
            out, err = run.communicate(timeout=100)
            assert run.returncode == 0, err
            assert words_of(out) == expected(8, 2)

    @mpi
    @pytest.mark.parametrize("how", ["never", "collective", "spin"])
    def test_one_that_leaves_half_way_is_named(self, cluster: Cluster, how: str) -> None:
        _, err = (run := self.start(cluster, LEAVING, how, "3")).communicate(timeout=100)
        assert run.returncode == 1, err
        assert tells_who_left(err, how, 3, "n2", "0-2,4-7"), err

    @mpi
    @pytest.mark.parametrize(("how", "code"), [("raise", 1), ("abort", 7), ("kill", 137)])
    def test_one_rank_ends_badly(self, cluster: Cluster, how: str, code: int) -> None:
        run = self.start(cluster, ENDING, how, "collective")
        _, err = run.communicate(timeout=100)
        assert run.returncode == code, err
        assert "error: rank 1 on n1" in err

    def test_names_and_keys_cross_hosts(self, cluster: Cluster) -> None:
        text = (
            SPEAK
            + """
ask(b"cmd=init pmi_version=1 pmi_subversion=1")
kvs = ask(b"cmd=get_my_kvsname").split(b"kvsname=")[1].strip()
ask(b"cmd=put kvsname=%s key=k%d value=v%d" % (kvs, rank, rank))
if rank == 3:
    assert b"rc=0" in ask(b"cmd=publish_name service=door port=here#7")
ask(b"cmd=barrier_in")
for other in range(8):
    found = ask(b"cmd=get kvsname=%s key=k%d" % (kvs, other))
    assert found == b"cmd=get_result rc=0 value=v%d\\n" % other, found
assert b"port=here#7" in ask(b"cmd=lookup_name service=door")
assert b"rc=1" in ask(b"cmd=lookup_name service=nowhere")
ask(b"cmd=barrier_in")
print(ask(b"cmd=finalize"))
"""
        )
        out, err = self.start(cluster, text).communicate(timeout=100)
        expected = sorted(f"[{rank}] b'cmd=finalize_ack rc=0\\n'" for rank in range(8))
        assert words_of(out) == expected, err

    def test_ranks_on_another_host_are_named(self, cluster: Cluster) -> None:
        told = Path(cluster.shared, uuid.uuid4().hex)
        text = (
            SPEAK
            + f"""
if os.environ["NODE_RANK"] == "2":
    import time
    while not os.path.exists({str(told)!r}): time.sleep(0.02)
else:
    ask(b"cmd=init pmi_version=1 pmi_subversion=1")
ask(b"cmd=barrier_in")
"""
        )
        run = cluster.popen(
            [*PROGRAM, *self.HOSTS, "--mpi-stall-warning", "0.5", "--no-python", sys.executable,
             "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said = until_told(run, "MPI: waiting for ranks 4-5 on n3 (never called MPI_Init)")
            told.touch()
            _, err = run.communicate(timeout=100)
        finally:
            run.kill()
        assert run.returncode == 0, said + err


#: a wrapper as there are many: its child has the environment, but not the descriptors
WRAPPER = """
import os, subprocess, sys
if "knock" in sys.argv:
    import socket
    host, port = os.environ["PMI_PORT"].split(":")
    for said in (b"GET / HTTP/1.0\\r\\n\\r\\n", b"cmd=initack pmiid=9\\n"):
        with socket.create_connection((host, int(port))) as other:
            other.sendall(said)
            try: other.recv(99)
            except OSError: pass
sys.exit(subprocess.run([sys.executable, "collectives.py"]).returncode)
"""


class TestPort:
    @mpi
    def test_mpi_behind_a_wrapper(self, desk: Desk) -> None:
        script(desk.folder, COLLECTIVES, "collectives.py")
        words = ("-H", "localhost:3", "--no-python", sys.executable, script(desk.folder, WRAPPER))
        done = desk.run("--pmi-port", *words)
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == expected(3, 3)
        assert done.stderr == ""
        knocked = desk.run("--pmi-port", *words, "knock")
        assert knocked.returncode == 0, knocked.stderr
        assert words_of(knocked.stdout) == expected(3, 3)
        assert "refused: no rank is expected as PMI_ID 9" in knocked.stderr
        assert desk.run(*words).returncode != 0  # which is why there is --pmi-port

    def test_it_goes_with_mpi_only(self, desk: Desk) -> None:
        done = desk.run("--pmi-port", "--mpi", "none", "-H", "localhost", "x.py")
        assert done.returncode == 2
        assert "--pmi-port and --mpi none exclude each other" in done.stderr

    @mpi
    def test_over_two_hosts(self, cluster: Cluster) -> None:
        folder = Path(cluster.shared)
        script(folder, COLLECTIVES, "collectives.py")
        script(folder, WRAPPER, "wrapper.py")
        done = cluster.run(
            [*PROGRAM, "--pmi-port", *NETMOD, "--chdir", cluster.shared, "-H", "n[1-2]:2",
             "--no-python", sys.executable, "wrapper.py"]
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == expected(4, 2)
