"""Open MPI's ranks without mpirun: PMIx from the host's own libpmix, where there is one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from rig import Cluster, wait_for

from runs.conftest import PROGRAM, Desk, script, words_of
from runs.mpi.test_mpi import (
    COLLECTIVES,
    ENDING,
    LEAVING,
    PROGRAMS,
    TOLD,
    expected,
    ranks_of,
    tells_who_left,
)

#: mpi4py's wheel takes any library; this one chooses
OPEN_MPI = ("-x", "MPI4PY_MPIABI=openmpi")


#: makes groups as MPI-4's sessions do: with all ranks, and with the first and the last
GROUPS = """
import ctypes, os
class Proc(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]
class Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint64),
                ("type", ctypes.c_uint64), ("content", ctypes.c_uint64 * 3)]
pmix, me, none = ctypes.CDLL("libpmix.so.2", ctypes.RTLD_GLOBAL), Proc(), ctypes.c_size_t(0)
assert pmix.PMIx_Init(ctypes.byref(me), None, none) == 0
n = int(os.environ["PMI_SIZE"])
for name, ranks in ((b"all", range(n)), (b"ends", (0, n - 1)), (b"all", range(n))):
    if me.rank not in ranks:
        continue
    procs = (Proc * len(ranks))(*(Proc(me.namespace, rank) for rank in ranks))
    numbered = Info(b"pmix.grp.actxid", 0, 1, (ctypes.c_uint64 * 3)(1))
    found, size = ctypes.POINTER(Info)(), ctypes.c_size_t()
    status = pmix.PMIx_Group_construct(
        name, procs, ctypes.c_size_t(len(ranks)), ctypes.byref(numbered), ctypes.c_size_t(1),
        ctypes.byref(found), ctypes.byref(size))
    number = [info.content[0] for info in found[:size.value] if info.key == b"pmix.grp.ctxid"]
    print(name.decode(), status, *number, pmix.PMIx_Group_destruct(name, None, none), flush=True)
assert pmix.PMIx_Finalize(None, none) == 0
"""


#: a world that cannot be, one of two programs, a name, and two halves that meet by it
DYNAMIC = """
import os, sys
from mpi4py import MPI
W, P = MPI.COMM_WORLD, MPI.Comm.Get_parent()
if P != MPI.COMM_NULL:
    union = P.Merge(True)
    print("child", W.Get_attr(MPI.APPNUM), *sys.argv[2:], os.environ.get("WHICH"),
          os.getcwd() == "/usr", os.environ["DISPATCH_HOST"], union.allreduce(1), flush=True)
    union.Free(); P.Disconnect()
    sys.exit()
try:
    W.Get_rank() or MPI.COMM_SELF.Spawn("/no/such")
except MPI.Exception as error:
    print("refused", error.Get_error_class() == MPI.ERR_SPAWN, flush=True)
known = [MPI.Info.Create({"env": "WHICH=one", "wdir": "/usr"}), MPI.Info.Create()]
if sys.argv[1:]:
    known[1]["host"] = sys.argv[1]
name = os.path.abspath(sys.argv[0])
words = [[name, "-", "a"], [name, "-", "b c"]]
children = W.Spawn_multiple([sys.executable] * 2, words, [1, 1], info=known)
union = children.Merge(False)
union.allreduce(1)
union.Free(); children.Disconnect()
port = None
half = W.Split(W.rank % 2)
if W.rank == 0:
    port = MPI.Open_port(); MPI.Publish_name("door", port)
W.Barrier()
if W.rank == 1:
    port = MPI.Lookup_name("door")
other = half.Connect(port) if W.rank % 2 else half.Accept(port)
print("met", other.remote_size, flush=True)
other.Disconnect()
if W.rank == 0:
    MPI.Unpublish_name("door", port)
    try:
        MPI.Lookup_name("door")
    except MPI.Exception:
        print("gone", flush=True)
"""


def dynamic(first: str, last: str, n: int) -> list[str]:
    """What ``DYNAMIC`` prints with ``n`` ranks, its children on ``first`` and ``last``."""
    met = [f"[{rank}] met {n // 2}" for rank in range(n)]
    children = [f"0 a one True {first} {n + 2}", f"1 b c None False {last} {n + 2}"]
    born = [f"[2.{rank}] child {said}" for rank, said in enumerate(children)]
    return sorted([*born, *met, "[0] refused True", "[0] gone"])


#: its rank 0 asks for a rank on the host that is named
ASKS = """
import sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    try:
        host = MPI.Info.Create({"host": sys.argv[1]})
        MPI.COMM_SELF.Spawn("/bin/true", [], 1, host)
    except MPI.Exception:
        print("refused", flush=True)
MPI.COMM_WORLD.Barrier()
"""


#: a lone rank: one that it starts, and that comes back by a name once they have parted
LONE = """
import os, sys
from mpi4py import MPI
W, P = MPI.COMM_WORLD, MPI.Comm.Get_parent()
if P != MPI.COMM_NULL:
    P.Barrier(); P.Disconnect()
    door = W.Connect(MPI.Lookup_name("door"))
    print("back", door.remote_size, flush=True)
    door.Disconnect()
    sys.exit()
print("room", W.Get_attr(MPI.UNIVERSE_SIZE), flush=True)
port = MPI.Open_port(); MPI.Publish_name("door", port)
child = MPI.COMM_SELF.Spawn(sys.executable, [os.path.abspath(sys.argv[0])], 1)
child.Barrier(); child.Disconnect()
door = W.Accept(port)
print("met", door.remote_size, flush=True)
door.Disconnect(); MPI.Unpublish_name("door", port)
"""
BOTH = ["[0] met 1", "[0] room 4", "[1.0] back 1"]


#: has PMIx show a text, as Open MPI 5 does with what it has to explain, and leaves at once
SHOWS = """
import ctypes, os
class Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint64),
                ("type", ctypes.c_uint64), ("content", ctypes.c_uint64 * 3)]
pmix, me, none = ctypes.CDLL("libpmix.so.2", ctypes.RTLD_GLOBAL), (ctypes.c_char * 260)(), 0
assert pmix.PMIx_Init(me, None, ctypes.c_size_t(0)) == 0
text = ctypes.create_string_buffer(b"it says why\\n")
shown = Info(b"pmix.log.stderr", 0, 3, (ctypes.c_uint64 * 3)(ctypes.addressof(text)))
status = pmix.PMIx_Log(ctypes.byref(shown), ctypes.c_size_t(1), None, ctypes.c_size_t(0))
print("status", status, flush=True)
os._exit(3)
"""


#: PMIx without an MPI; ``on_events(*codes)`` of what is ``heard``
EVENTS = """
import ctypes, threading
class Proc(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]
class Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("content", ctypes.c_uint64 * 3)]
class Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", Value)]
pmix, me, none = ctypes.CDLL("libpmix.so.2", ctypes.RTLD_GLOBAL), Proc(), ctypes.c_size_t(0)
assert pmix.PMIx_Init(ctypes.byref(me), None, none) == 0
P, S, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
words, last = [], threading.Event()
@ctypes.CFUNCTYPE(None, S, I, ctypes.POINTER(Proc), ctypes.POINTER(Info), S, P, S, P, P)
def heard(id, status, source, infos, n, results, n_results, then, argument):
    found = [info for info in infos[:n] if info.key in (b"word", b"pmix.grp.id")]
    words.extend(ctypes.string_at(info.value.content[0]).decode() for info in found)
    words.append(source[0].rank)
    if status == LAST:
        last.set()
    ctypes.CFUNCTYPE(None, I, P, S, P, P, P)(then)(-334, None, 0, None, None, argument)
def on_events(*codes):
    n, codes = S(len(codes)), (I * len(codes))(*codes)
    assert pmix.PMIx_Register_event_handler(codes, n, None, none, heard, None, None) == 0
def fence():
    assert pmix.PMIx_Fence(None, none, None, none) == 0
"""

#: rank 0 notifies the others; it and rank 1 wait until they have heard of it, and of what
NOTIFIES = (
    EVENTS
    + """
LAST = -4001
on_events(LAST)
fence()
if me.rank == 0:
    text = ctypes.create_string_buffer(b"hi")
    job, info = ctypes.c_uint8(3), Info(b"word", 0, Value(3))
    info.value.content[0] = ctypes.addressof(text)
    told = I(LAST), ctypes.byref(me), job, ctypes.byref(info), S(1), None, None
    print("notified", pmix.PMIx_Notify_event(*told))
print("heard", last.wait(60 if me.rank < 2 else 0), *words, flush=True)
fence()
assert pmix.PMIx_Finalize(None, none) == 0
"""
)

#: rank 0 invites all to a group; they join it, and hear when it is complete
INVITES = (
    EVENTS
    + """
import os
INVITED, LAST, ACCEPT = -159, -166, 1
results, n = P(), S()
made, leader = (ctypes.byref(results), ctypes.byref(n)), Proc(me.namespace, 0)
if me.rank:
    on_events(INVITED, LAST)
fence()
if me.rank == 0:
    size = int(os.environ["WORLD_SIZE"])
    all = (Proc * size)(*(Proc(me.namespace, rank) for rank in range(size)))
    asked = b"group", all, S(size), None, none, *made
    print("invited", pmix.PMIx_Group_invite(*asked), flush=True)
else:
    while not words:
        threading.Event().wait(0.01)
    asked = b"group", ctypes.byref(leader), I(ACCEPT), None, none, *made
    print("joined", pmix.PMIx_Group_join(*asked), last.wait(60), *words, flush=True)
fence()
assert pmix.PMIx_Finalize(None, none) == 0
"""
)


def groups_made(stdout: str) -> list[tuple[str, int]]:
    """Each group that was made, in order of its number, and by how many ranks."""
    lines = [line.split()[1:] for line in stdout.splitlines()]
    assert {(status, over) for _, status, _, over in lines} == {("0", "0")}
    made = Counter((int(number), name) for name, _, number, _ in lines)
    return [(name, count) for (_, name), count in sorted(made.items())]


open_mpi = pytest.mark.usefixtures("openmpi")


def left(folder: Path, run_id: str = "") -> list[str]:
    """What runs have left in their folder for temporary files, and one of them in shared memory."""
    names = [path.name for path in folder.iterdir()]
    shared = [name for name in os.listdir("/dev/shm") if run_id and run_id in name]
    return names + shared


@open_mpi
class TestOneHost:
    def test_programs_of_one_world(self, desk: Desk) -> None:
        name = script(desk.folder, PROGRAMS)
        line = ("-H", "localhost:3", *OPEN_MPI, ":", "-n", "1", name, "a", ":", name, "b")
        done = desk.run(*line)
        assert (done.returncode, words_of(done.stdout)) == (0, TOLD), done.stderr

    def test_collectives_and_what_is_said_of_them(self, desk: Desk, tmp_path: Path) -> None:
        folder = tmp_path / "tmp"
        folder.mkdir()
        name = script(desk.folder, COLLECTIVES)
        done = desk.run(
            *OPEN_MPI, "--log-dir", "logs", "-H", "localhost:3", name, env={"TMPDIR": str(folder)}
        )
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == expected(3, 3)
        report = json.loads((desk.folder / "logs" / "latest" / "report.json").read_text())
        said = report["mpi"]["localhost"]
        assert "libmpi.so" in said["library"]
        assert "PMIx" in said["served"]
        wait_for(lambda: not left(folder, report["run_id"]), 60, "the agent to tidy up")

    def test_ranks_of_one_host_join_a_group_they_are_invited_to(self, desk: Desk) -> None:
        done = desk.run(*OPEN_MPI, "-H", "localhost:4", script(desk.folder, INVITES))
        assert (done.returncode, done.stderr) == (0, "")
        joined = [f"[{rank}] joined 0 True group 0 group 0" for rank in range(1, 4)]
        assert words_of(done.stdout) == ["[0] invited 0", *joined]

    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            ("raise", 1, "RuntimeError: it is broken"),
            ("abort", 7, "called MPI_Abort(7)"),
            ("_exit", 4, "exit code 4"),
            ("kill", 137, "SIGKILL"),
        ],
    )
    def test_one_rank_ends_badly(
        self, desk: Desk, tmp_path: Path, how: str, code: int, words: str
    ) -> None:
        folder = tmp_path / "tmp"
        folder.mkdir()
        name = script(desk.folder, ENDING)
        done = desk.run(
            *OPEN_MPI, "-H", "localhost:3", name, how, "collective", env={"TMPDIR": str(folder)}
        )
        assert done.returncode == code, done.stderr
        assert "error: rank 1 on localhost" in done.stderr
        assert words in done.stderr
        wait_for(lambda: not left(folder), 60, "the agent to tidy up")

    @pytest.mark.parametrize("how", ["never", "collective", "spin"])
    def test_one_that_leaves_half_way_is_named(self, desk: Desk, how: str) -> None:
        name = script(desk.folder, LEAVING)
        done = desk.run(*OPEN_MPI, "-H", "localhost:3", name, how, "1")
        assert done.returncode == 1, done.stderr
        assert tells_who_left(done.stderr, how, 1, "localhost", "0,2"), done.stderr

    def test_all_that_leave_half_way_are_named(self, desk: Desk) -> None:
        done = desk.run(*OPEN_MPI, "-H", "localhost:3", script(desk.folder, LEAVING), "all", "1")
        assert done.returncode == 1, done.stderr
        # a second after the first, when others may not have got there
        left = r"(ranks? [\d,-]+) on localhost exited 0 without MPI_Finalize"
        found = re.search(left + r"(?:; (ranks? [\d,-]+) (?:is|are) still in MPI)?", done.stderr)
        assert found is not None, done.stderr
        assert set().union(*map(ranks_of, filter(None, found.groups()))) == {0, 1, 2}

    @pytest.mark.parametrize("how", ["finalized", "on"])
    def test_who_has_finalized_is_let_go(self, desk: Desk, how: str) -> None:
        done = desk.run(*OPEN_MPI, "-H", "localhost:3", script(desk.folder, LEAVING), how, "1")
        assert (done.returncode, done.stderr) == (0, "")

    def test_groups_are_made_and_numbered(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:3", script(desk.folder, GROUPS))
        assert done.returncode == 0, done.stderr
        assert groups_made(done.stdout) == [("all", 3), ("ends", 2), ("all", 3)]

    def test_ranks_of_a_host_hear_of_events(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:2", script(desk.folder, NOTIFIES))
        assert (done.returncode, done.stderr) == (0, "")
        assert words_of(done.stdout) == [
            "[0] heard True hi 0",
            "[0] notified 0",
            "[1] heard True hi 0",
        ]

    def test_what_mpi_has_pmix_explain_is_read_at_the_launcher(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:1", script(desk.folder, SHOWS))
        assert done.returncode == 3
        assert "[0] status 0\n" in done.stdout
        assert "[0] it says why\n" in done.stderr

    def test_worlds_are_spawned_meet_and_part(self, desk: Desk) -> None:
        name = script(desk.folder, DYNAMIC)
        # Open MPI's worlds speak with each other by TCP, and it does without this on its own
        local = ("-x", "OMPI_MCA_btl_tcp_if_include=lo")
        done = desk.run(*OPEN_MPI, *local, "-H", "localhost:4", "--np", "2", name)
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == dynamic("localhost", "localhost", 2)
        assert "MPI_Comm_spawn: localhost: exec /no/such: no such file or directory" in done.stderr

    def test_a_lone_rank_starts_another_and_meets_it(self, desk: Desk) -> None:
        local = ("-x", "OMPI_MCA_btl_tcp_if_include=lo")
        name = script(desk.folder, LONE)
        done = desk.run(*OPEN_MPI, *local, "-H", "localhost:4", "--np", "1", name)
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == BOTH

    def test_a_library_that_dies_ends_the_job(self, desk: Desk) -> None:
        text = """
import os, signal, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    agent = os.getppid()
    children = open(f"/proc/{agent}/task/{agent}/children").read().split()
    for pid in map(int, children):  # which are this rank, the other, and who serves them
        try:
            if os.getpgid(pid) == pid and b"mpi4py" not in open(f"/proc/{pid}/maps", "rb").read():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # one that ends meanwhile
time.sleep(60)
"""
        done = desk.run(*OPEN_MPI, "-H", "localhost:2", script(desk.folder, text))
        assert done.returncode == 125, done.stderr
        assert "libpmix, which served its MPI ranks, has ended" in done.stderr


@open_mpi
@pytest.mark.cluster
class TestHosts:
    def argv(self, cluster: Cluster, text: str, *words: str) -> list[str]:
        name = script(Path(cluster.shared), text, "open_mpi.py")
        place = str(Path(cluster.shared) / name)
        return [*PROGRAM, *OPEN_MPI, "-H", "n[1-4]:2", "--iface", "eth0", place, *words]

    def test_collectives(self, cluster: Cluster) -> None:
        done = cluster.run(self.argv(cluster, COLLECTIVES))
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == expected(8, 2)

    def test_worlds_are_spawned_meet_and_part(self, cluster: Cluster) -> None:
        done = cluster.run(self.argv(cluster, DYNAMIC, "n3"))
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == dynamic("n1", "n3", 8)

    def test_a_lone_rank_starts_another_and_meets_it(self, cluster: Cluster) -> None:
        place = str(Path(cluster.shared) / script(Path(cluster.shared), LONE, "open_mpi.py"))
        line = [*PROGRAM, *OPEN_MPI, "-H", "n2:4", "--np", "1", "--iface", "eth0", place]
        done = cluster.run(line)
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == BOTH

    def test_no_other_host_starts_anything_on_the_launchers_machine(self, cluster: Cluster) -> None:
        """By its own name it did."""
        place = str(Path(cluster.shared) / script(Path(cluster.shared), ASKS, "open_mpi.py"))
        hosts = f"n1:1,{cluster.address('login')}:2"
        words = ["--check", "none", "-H", hosts, place, hosts.split(",")[1][:-2]]
        done = cluster.run([*PROGRAM, *OPEN_MPI, "--iface", "eth0", *words])
        assert done.returncode == 0, done.stderr
        assert words_of(done.stdout) == ["[0] refused"]
        assert "another host may start nothing on this machine" in done.stderr

    def test_ranks_of_the_same_host_hear_of_events(self, cluster: Cluster) -> None:
        done = cluster.run(self.argv(cluster, NOTIFIES))
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("ranks on other hosts do not get it") == 1
        heard = [f"[{rank}] heard " + ("True hi 0" if rank < 2 else "False") for rank in range(8)]
        assert words_of(done.stdout) == sorted([*heard, "[0] notified 0"])

    def test_groups(self, cluster: Cluster) -> None:
        done = cluster.run(self.argv(cluster, GROUPS))
        assert done.returncode == 0, done.stderr
        assert groups_made(done.stdout) == [("all", 8), ("ends", 2), ("all", 8)]

    @pytest.mark.parametrize("how", ["never", "collective", "spin"])
    def test_one_that_leaves_half_way_is_named(self, cluster: Cluster, how: str) -> None:
        done = cluster.run(self.argv(cluster, LEAVING, how, "3"))
        assert done.returncode == 1, done.stderr
        assert tells_who_left(done.stderr, how, 3, "n2", "0-2,4-7"), done.stderr

    @pytest.mark.parametrize(("how", "code"), [("_exit", 4), ("abort", 7)])
    def test_the_first_to_fail_is_named(self, cluster: Cluster, how: str, code: int) -> None:
        done = cluster.run(self.argv(cluster, ENDING, how, "collective"))
        assert done.returncode == code, done.stderr
        assert "error: rank 1 on n1" in done.stderr

    def test_a_killed_launcher_leaves_nothing(self, cluster: Cluster) -> None:
        text = COLLECTIVES + "\nimport time\ntime.sleep(600)\n"
        look = ["sh", "-c", "ls -d /tmp/dispatch-2* /dev/shm/dispatch-*; pgrep -f '[o]pen_mpi.py'"]

        def seen() -> set[str]:
            found = (cluster.run(look, host).stdout.splitlines() for host in ("n1", "n4"))
            return set().union(*found)

        before = seen()  # others may have left theirs, on purpose
        run = cluster.popen(self.argv(cluster, text), stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        for _ in range(8):
            run.stdout.readline()
        run.send_signal(signal.SIGKILL)
        run.wait(30)
        run.stdout.close()
        wait_for(lambda: seen() <= before, 60, lambda: f"only {before} is there, not {seen()}")
