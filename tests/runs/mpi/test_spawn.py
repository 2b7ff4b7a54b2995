"""MPI_Comm_spawn and its relatives through dispatch alone, with real libraries."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from rig import Cluster

from runs.conftest import PROGRAM, Desk, script, words_of
from runs.mpi.test_mpi import SPEAK, mpi

#: with libfabric MPICH 5.0.2 hangs at times when worlds of several hosts connect, whoever
#: the process manager is
NETMOD = ("-x", "MPIR_CVAR_CH4_NETMOD=ucx")

#: what parents begin with; ``child(text, n)`` spawns a Python that runs ``text``, and
#: ``failing(how)`` two, of which rank 1 does ``how`` once all have met
PARENT = """
import os, signal, socket, sys
from mpi4py import MPI
W, SELF, EXE = MPI.COMM_WORLD, MPI.COMM_SELF, sys.executable
CHILD = '''
import os, signal, socket, sys
from mpi4py import MPI
W, P, SELF = MPI.COMM_WORLD, MPI.Comm.Get_parent(), MPI.COMM_SELF
'''
def child(text, n=1, comm=SELF, **info):
    known = MPI.Info.Create()
    for key, value in info.items():
        known[key] = value
    return comm.Spawn(EXE, ["-c", CHILD + text], n, info=known)
def failing(how, **info):
    # who still connects to it, or waits for it in MPI, may fail as well, and be told first
    c = child(f"P.Barrier()\\nif W.rank == 1: {how}\\nsignal.pause()", 2, W, **info)
    c.Barrier()
    signal.pause()
"""

ASK = "P.gather((W.rank, W.size, socket.gethostname()), root=0); P.Disconnect()"


class TestOneHost:
    @mpi
    def test_each_world_has_its_label_files_and_place_in_the_report(self, desk: Desk) -> None:
        text = """
for _ in range(2):
    c = child("print('out', W.rank, W.size, flush=True); P.Barrier(); P.Disconnect()", 2, W)
    c.Barrier(); c.Disconnect()
"""
        done = desk.run(
            "-H", "localhost:2", "--log-dir", "logs", script(desk.folder, PARENT + text)
        )
        assert done.returncode == 0, done.stderr
        worlds = [(world, rank) for world in (1, 2) for rank in (0, 1)]
        assert words_of(done.stdout) == [f"[{w}.{r}] out {r} 2" for w, r in worlds]
        run = desk.folder / "logs/latest"
        for world, rank in worlds:
            assert (run / f"rank-{world}.{rank:05d}.out").read_text() == f"out {rank} 2\n"
        report = json.loads((run / "report.json").read_text())
        names = ["0", "1", *(f"{w}.{r}" for w, r in worlds)]
        assert report["statuses"] == dict.fromkeys(names, 0)
        hosts = ["localhost", "localhost"]
        assert report["spawned"] == [{"world": w, "by": "0", "hosts": hosts} for w in (1, 2)]
        events = [
            json.loads(line)["name"] for line in (run / "dispatch.jsonl").read_text().splitlines()
        ]
        assert events.count("world.placed") == 2
        assert events.count("rank.exited") == 6

    @mpi
    def test_several_programs_with_folder_and_path(self, desk: Desk) -> None:
        text = """
there = MPI.Info.Create(); there["wdir"] = sys.argv[1]
by_path = MPI.Info.Create(); by_path["path"] = os.path.dirname(EXE)
ask = CHILD + '''
P.gather((W.rank, W.Get_attr(MPI.APPNUM), os.getcwd(), os.environ["PWD"]), root=0)
P.Disconnect()
'''
c = SELF.Spawn_multiple([EXE, "python"], [["-c", ask]] * 2, [2, 1], [there, by_path])
found = c.gather(None, root=MPI.ROOT)
here, other = os.getcwd(), os.path.join(os.getcwd(), "sub")
assert found == [(0, 0, other, other), (1, 0, other, other), (2, 1, here, here)], found
c.Disconnect()
"""
        (desk.folder / "sub").mkdir()
        done = desk.run("-H", "localhost", script(desk.folder, PARENT + text), "sub")
        assert done.returncode == 0, done.stderr

    @mpi
    def test_what_spawned_ranks_find_in_their_environment(self, desk: Desk) -> None:
        text = """
c = child("P.send((dict(os.environ), sys.path), 0); P.Disconnect()")
env, path = c.recv(source=0)
c.Disconnect()
lies = [n for n in env if n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "DISPATCH_HOSTS")
        or n.startswith(("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_"))]
assert not lies, lies
assert env["MINE"] == "yes" and env["PYTHONPATH"] == "/some/where" and env["CUDA_VISIBLE_DEVICES"]
assert (env["PMI_RANK"], env["PMI_SIZE"], env["PMI_SPAWNED"]) == ("0", "1", "1")
assert env["DISPATCH_RUN_ID"] == os.environ["DISPATCH_RUN_ID"]
assert not [place for place in path if "dispatch-" in place]
assert W.Get_attr(MPI.UNIVERSE_SIZE) == 3
"""
        name = script(desk.folder, PARENT + text)
        done = desk.run(
            "-H", "localhost:3", "--np", "1", "-x", "MINE=yes", name,
            env={"PYTHONPATH": "/some/where"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def test_sixty_in_a_row_leave_nothing_behind(self, desk: Desk) -> None:
        text = (
            SPEAK
            + """
import time
agent = os.getppid()
def held():
    rss = [line.split()[1] for line in open(f"/proc/{agent}/status") if line.startswith("VmRSS")]
    return len(os.listdir(f"/proc/{agent}/fd")), int(rss[0])
REQUEST = b"mcmd=spawn nprocs=2 execname=true totspawns=1 spawnssofar=1 argcnt=0 endcmd"
before = held()
for turn in range(60):
    assert ask(REQUEST.replace(b" ", b"\\n")) == b"cmd=spawn_result rc=0\\n"
end = time.monotonic() + 60
while (after := held())[0] > before[0] and time.monotonic() < end:
    time.sleep(0.01)
assert after[0] <= before[0], (before, after)
assert after[1] < before[1] + 4096, (before, after)
"""
        )
        done = desk.run("-H", "localhost", "--log-dir", "logs", script(desk.folder, text))
        assert done.returncode == 0, done.stderr
        statuses = json.loads((desk.folder / "logs/latest/report.json").read_text())["statuses"]
        assert len(statuses) == 121
        assert set(statuses.values()) == {0}

    @mpi
    def test_two_in_flight_and_spawned_ranks_that_spawn(self, desk: Desk) -> None:
        text = """
deeper = CHILD + "P.send('deep', 0); P.Disconnect()"
c = child(f'''
k = SELF.Spawn(sys.executable, ["-c", {deeper!r}], 1)
P.gather(k.recv(source=0), root=0); k.Disconnect(); P.Disconnect()
''', 2)
print(c.gather(None, root=MPI.ROOT), flush=True)
c.Disconnect()
"""
        done = desk.run("-H", "localhost:2", script(desk.folder, PARENT + text))
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == [f"[{rank}] ['deep', 'deep']" for rank in (0, 1)]

    @mpi
    def test_a_name_that_a_child_published(self, desk: Desk) -> None:
        text = """
c = child('''
port = MPI.Open_port(); MPI.Publish_name("door", port); P.Barrier()
k = SELF.Accept(port); k.send("hello", 0); k.Disconnect()
MPI.Unpublish_name("door", port); MPI.Close_port(port); P.Disconnect()
''')
c.Barrier()
k = SELF.Connect(MPI.Lookup_name("door"))
print(k.recv(source=0)); k.Disconnect(); c.Disconnect()
"""
        done = desk.run("-H", "localhost", script(desk.folder, PARENT + text))
        assert (done.returncode, done.stdout) == (0, "[0] hello\n"), done.stderr

    @mpi
    def test_a_pool_of_processes(self, desk: Desk) -> None:
        text = """
from mpi4py.futures import MPIPoolExecutor
if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=3) as pool:
        print(list(pool.map(pow, range(6), [2] * 6)))
"""
        done = desk.run("-H", "localhost", script(desk.folder, text))
        assert (done.returncode, done.stdout) == (0, "[0] [0, 1, 4, 9, 16, 25]\n"), done.stderr

    @mpi
    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            ("raise RuntimeError('it is broken')", 1, "RuntimeError: it is broken"),
            ("os._exit(4)", 4, "exit code 4"),
            ("W.Abort(7)", 7, "called MPI_Abort(7)"),
            ("os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ],
    )
    def test_a_child_that_fails_ends_the_job(
        self, desk: Desk, how: str, code: int, words: str
    ) -> None:
        text = f"failing({how!r})"
        done = desk.run("-H", "localhost:2", script(desk.folder, PARENT + text))
        assert done.returncode == code, done.stderr
        assert "error: rank 1.1 on localhost" in done.stderr
        assert words in done.stderr

    @mpi
    def test_what_cannot_be_spawned_is_told_and_the_job_goes_on(self, desk: Desk) -> None:
        text = """
def refused(what, *args, **info):
    try:
        child(what, *args, **info)
    except MPI.Exception:
        return
    raise AssertionError("it was spawned")
EXE = "/no/such/program"
refused("")
EXE = sys.executable
refused("", host="mars")
refused("", 5000)
refused("", wdir="/no/such/folder")
c = child("P.Barrier(); P.Disconnect()"); c.Barrier(); c.Disconnect()
print("fine")
"""
        done = desk.run("-H", "localhost", script(desk.folder, PARENT + text))
        assert (done.returncode, done.stdout) == (0, "[0] fine\n"), done.stderr
        for words in (
            "localhost: exec /no/such/program: no such file or directory",
            "mars: not a host of this job, which has localhost",
            "5000 processes wanted: at most 4096 at the same time",
            "localhost: chdir /no/such/folder: no such file or directory",
        ):
            assert f"note: rank 0 on localhost: MPI_Comm_spawn: {words}" in done.stderr

    @pytest.mark.parametrize("bad", ["b'nonsense\\n'", "b'x' * (10 << 20)", "b'arg1=\\0\\n'"])
    def test_garbage_within_a_request_ends_that_rank(self, desk: Desk, bad: str) -> None:
        text = (
            SPEAK
            + f"""
import time
if rank == 1:
    data = memoryview(b"mcmd=spawn\\nnprocs=1\\n" + {bad})
    while data:
        data = data[os.write(fd, data):]
time.sleep(60)
"""
        )
        done = desk.run("-H", "localhost:2", script(desk.folder, text))
        assert done.returncode == 137
        assert "note: localhost: rank 1 was killed: MPI:" in done.stderr
        assert "error: rank 1 on localhost" in done.stderr
        assert "host lost" not in done.stderr


@pytest.mark.cluster
class TestHosts:
    def run(self, cluster: Cluster, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        folder = Path(cluster.shared)
        name = script(folder, text, f"{uuid.uuid4().hex}.py")
        return cluster.run([*PROGRAM, *NETMOD, *words, str(folder / name)])

    @mpi
    def test_spawned_ranks_go_where_there_is_room_or_where_they_are_sent(
        self, cluster: Cluster
    ) -> None:
        text = f"""
def where(n, **info):
    c = child({ASK!r}, n, W, **info)
    found = c.gather(None, root=MPI.ROOT if W.rank == 0 else MPI.PROC_NULL)
    c.Disconnect()
    if W.rank == 0:
        assert [f[:2] for f in found] == [(r, n) for r in range(n)]
        print(*(f[2] for f in found), flush=True)
where(4)
where(2, host="n3")
where(3, hosts="n2,n4")
"""
        done = self.run(cluster, PARENT + text, "-H", "n1:1,n2:1,n3:1,n4:1")
        assert done.returncode == 0, done.stderr
        # UCX writes warnings of its own in the children
        told = [line for line in done.stdout.splitlines() if line.startswith("[0] ")]
        assert told == ["[0] n1 n2 n3 n4", "[0] n3 n3", "[0] n2 n2 n4"]

    @mpi
    def test_a_child_on_another_host_ends_the_job(self, cluster: Cluster) -> None:
        text = "failing('os._exit(5)', host='n3,n4')"
        done = self.run(cluster, PARENT + text, "-H", "n[1-4]:1", "--label", "host")
        assert done.returncode == 5, done.stderr
        assert "error: rank 1.1 on n4" in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize(("n_hosts", "slots"), [(2, 1), (2, 4), (4, 1), (4, 4)])
def test_a_barrier_costs_two_messages_a_host(cluster: Cluster, n_hosts: int, slots: int) -> None:
    """Reports up are in the journal; each of them is answered by one order at most."""
    folder = Path(cluster.shared) / uuid.uuid4().hex
    folder.mkdir()
    script(
        folder,
        SPEAK
        + "ask(b'cmd=init pmi_version=1 pmi_subversion=1')\n"
        + "ask(b'cmd=barrier_in')\n" * 5,
    )
    done = cluster.run(
        [*PROGRAM, "--log-dir", str(folder), "-H", f"n[1-{n_hosts}]:{slots}", "--no-python",
         sys.executable, str(folder / "prog.py")]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [
        json.loads(line) for line in (folder / "latest/dispatch.jsonl").read_text().splitlines()
    ]
    told = [event["context"]["epoch"] for event in events if event["name"].startswith("pmi.")]
    assert sorted(told) == sorted(list(range(5)) * n_hosts)
