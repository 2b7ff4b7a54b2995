"""Hosts from the surroundings: what each batch system's words become, and who disagrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import DispatchError
from dispatcher.model.host import Hostlist
from dispatcher.plan.hosts.allocation import Surroundings, discover
from dispatcher.plan.hosts.hostfile import MOST_BYTES

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}
#: what srun -n1 sets besides, in a job of whatever size
STEP = {
    "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_TASKS_PER_NODE": "1",
}  # fmt: skip


def surroundings(
    environ: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    answers: Mapping[str, str] | None = None,
) -> Surroundings:
    def read(path: str) -> bytes:
        if files is None or path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path].encode()

    def ask(argv: Sequence[str]) -> str:
        if answers is None or " ".join(argv) not in answers:
            raise FileNotFoundError(2, "No such file or directory", argv[0])
        return answers[" ".join(argv)]

    return Surroundings(environ, read, ask)


def slots(found: Hostlist | None) -> dict[str, int | None]:
    assert found is not None
    return {host.name: host.slots for host in found.hosts}


GIVEN: list[tuple[str, Surroundings, dict[str, int | None], str]] = [
    ("slurm: one task a node is no slot count",
     surroundings({**SLURM, "SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_NTASKS": "3"}),
     {"n1": None, "n2": None, "n3": None},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], a slot per GPU"),
    ("slurm: then the GPUs count",
     surroundings({**SLURM, "SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_GPUS_ON_NODE": "8"}),
     {"n1": 8, "n2": 8, "n3": 8},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], 8 slots each (SLURM_GPUS_ON_NODE)"),
    (
        "slurm: tasks asked for count before GPUs",
        surroundings(
            {
                **SLURM,
                "SLURM_TASKS_PER_NODE": "4(x2),2",
                "SLURM_NTASKS": "10",
                "SLURM_GPUS_ON_NODE": "8",
            }
        ),
        {"n1": 4, "n2": 4, "n3": 2},
        "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], 10 slots (SLURM_TASKS_PER_NODE)",
    ),
    ("slurm: CPUs are no tasks, with --exclusive",
     surroundings({**SLURM, "SLURM_TASKS_PER_NODE": "128(x3)", "SLURM_GPUS_ON_NODE": "8"}),
     {"n1": 8, "n2": 8, "n3": 8},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], 8 slots each (SLURM_GPUS_ON_NODE)"),
    ("slurm: tasks a node",
     surroundings({**SLURM, "SLURM_TASKS_PER_NODE": "2(x3)", "SLURM_NTASKS_PER_NODE": "2"}),
     {"n1": 2, "n2": 2, "n3": 2},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], 2 slots each (SLURM_TASKS_PER_NODE)"),
    ("slurm: an old name of the list, nested ranges",
     surroundings({"SLURM_JOBID": "9", "SLURM_NODELIST": "r[1-2]n[01-02],gpu1"}),
     {"r1n01": None, "r1n02": None, "r2n01": None, "r2n02": None, "gpu1": None},
     "hosts of Slurm job 9 (SLURM_NODELIST): gpu1,r1n[01-02],r2n[01-02], a slot per GPU"),
    (
        "slurm: a job of two groups",
        surroundings(
            {
                "SLURM_JOB_ID": "7",
                "SLURM_HET_SIZE": "2",
                "SLURM_JOB_NODELIST_HET_GROUP_0": "a1",
                "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
                "SLURM_NTASKS_HET_GROUP_0": "2",
                "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-2]",
                "SLURM_TASKS_PER_NODE_HET_GROUP_1": "4(x2)",
                "SLURM_NTASKS_HET_GROUP_1": "8",
            }
        ),
        {"a1": 2, "b1": 4, "b2": 4},
        "hosts of Slurm job 7 (SLURM_JOB_NODELIST_HET_GROUP_1): a1,b[1-2], 10 slots "
        "(SLURM_TASKS_PER_NODE_HET_GROUP_1)",
    ),
    ("slurm: one task started by srun is the one dispatch", surroundings({**SLURM, **STEP}),
     {"n1": None, "n2": None, "n3": None},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], a slot per GPU"),
    ("slurm: such a step in a job with tasks",
     surroundings({**SLURM, **STEP, "SLURM_NTASKS_PER_NODE": "2"}), {"n1": 2, "n2": 2, "n3": 2},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], 2 slots each (SLURM_NTASKS_PER_NODE)"),
    (
        "slurm: the shell of srun --pty on several nodes",
        surroundings(
            {
                **SLURM,
                **STEP,
                "SLURM_PTY_PORT": "40001",
                "SLURM_NTASKS": "3",
                "SLURM_STEP_NUM_TASKS": "3",
                "SLURM_TASKS_PER_NODE": "1(x3)",
                "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
            }
        ),
        {"n1": None, "n2": None, "n3": None},
        "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], a slot per GPU",
    ),
    (
        "pbs: a line a slot",
        surroundings(
            {"PBS_NODEFILE": "/var/nodes", "PBS_JOBID": "12.srv"}, {"/var/nodes": "a\na\nb\nb\n"}
        ),
        {"a": 2, "b": 2},
        "hosts of PBS job 12.srv (/var/nodes): a,b, 2 slots each",
    ),
    ("pbs: a line a host is no slot count",
     surroundings({"PBS_NODEFILE": "/var/nodes"}, {"/var/nodes": "a\nb\n"}), {"a": None, "b": None},
     "hosts of PBS (/var/nodes): a,b, a slot per GPU"),
    (
        "lsf: both of its words",
        surroundings(
            {"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "a 2 b 1", "LSB_DJOB_HOSTFILE": "/l"},
            {"/l": "a\na\nb\n"},
        ),
        {"a": 2, "b": 1},
        "hosts of LSF job 5 (/l): a,b, 3 slots; the same in LSB_MCPU_HOSTS",
    ),
    (
        "grid engine",
        surroundings(
            {"PE_HOSTFILE": "/pe", "JOB_ID": "3"},
            {"/pe": "a.x 4 all.q@a.x <NULL>\nb.x 4 all.q@b.x <NULL>\n"},
        ),
        {"a.x": 4, "b.x": 4},
        "hosts of Grid Engine job 3 (/pe): a.x,b.x, 4 slots each",
    ),
    ("flux",
     surroundings({"FLUX_URI": "local:///x"}, answers={"flux getattr hostlist": "f[1-2]\n"}),
     {"f1": None, "f2": None}, "hosts of Flux (flux getattr hostlist): f[1-2], a slot per GPU"),
    (
        "mpi-operator, its variable pointing at the same file",
        surroundings(
            {"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
            {"/etc/mpi/hostfile": "j-worker-0.j.ns.svc slots=8\nj-worker-1.j.ns.svc slots=8\n"},
        ),
        {"j-worker-0.j.ns.svc": 8, "j-worker-1.j.ns.svc": 8},
        "hosts of Kubernetes MPIJob (/etc/mpi/hostfile): j-worker-[0-1].j.ns.svc, 8 slots each",
    ),
    ("mpi-operator, with MPICH's spelling", surroundings({}, {"/etc/mpi/hostfile": "w0:2\nw1:2\n"}),
     {"w0": 2, "w1": 2}, "hosts of Kubernetes MPIJob (/etc/mpi/hostfile): w[0-1], 2 slots each"),
    (
        "mpi-operator, by its script",
        surroundings(
            {"K_MPI_JOB_ROLE": "launcher"}, answers={"/etc/mpi/discover_hosts.sh": "w0:4\nw1:4\n"}
        ),
        {"w0": 4, "w1": 4},
        "hosts of Kubernetes MPIJob (/etc/mpi/discover_hosts.sh): w[0-1], 4 slots each",
    ),
    ("a hostfile by variable", surroundings({"HYDRA_HOST_FILE": "/h"}, {"/h": "a:2\nb:2\n"}),
     {"a": 2, "b": 2}, "hosts of HYDRA_HOST_FILE (/h): a,b, 2 slots each"),
    ("deepspeed", surroundings({}, {"/job/hostfile": "w-1 slots=8\nw-2 slots=8\n"}),
     {"w-1": 8, "w-2": 8},
     "hosts of DeepSpeed's default hostfile (/job/hostfile): w-[1-2], 8 slots each"),
    ("slurm: an empty id is none, its old name counts",
     surroundings({"SLURM_JOB_ID": "", "SLURM_JOBID": "9", "SLURM_JOB_NODELIST": "a"}), {"a": None},
     "hosts of Slurm job 9 (SLURM_JOB_NODELIST): a, a slot per GPU"),
    ("slurm: the variables of a step in which dispatch is no task",
     surroundings({**SLURM, "SLURM_STEP_NUM_TASKS": "4"}), {"n1": None, "n2": None, "n3": None},
     "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], a slot per GPU"),
    (
        "slurm: one group is none, and numbers that are none say nothing",
        surroundings(
            {
                **SLURM,
                "SLURM_HET_SIZE": "1",
                "SLURM_GPUS_ON_NODE": "12345678",
                "SLURM_STEP_NUM_TASKS": "\u0664",
                "SLURM_PROCID": "0",
            }
        ),
        {"n1": None, "n2": None, "n3": None},
        "hosts of Slurm job 7 (SLURM_JOB_NODELIST): n[1-3], a slot per GPU",
    ),
    (
        "slurm: a host in two groups has the slots of both",
        surroundings(
            {
                "SLURM_JOB_ID": "7",
                "SLURM_HET_SIZE": "2",
                "SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2]",
                "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2(x2)",
                "SLURM_NTASKS_HET_GROUP_0": "4",
                "SLURM_JOB_NODELIST_HET_GROUP_1": "a[2-3]",
                "SLURM_TASKS_PER_NODE_HET_GROUP_1": "3,4",
                "SLURM_NTASKS_HET_GROUP_1": "7",
            }
        ),
        {"a1": 2, "a2": 5, "a3": 4},
        "hosts of Slurm job 7 (SLURM_JOB_NODELIST_HET_GROUP_1): a[1-3], 11 slots "
        "(SLURM_TASKS_PER_NODE_HET_GROUP_1)",
    ),
    ("slurm: an id that is no plain word is quoted",
     surroundings({"SLURM_JOB_ID": "7;x", "SLURM_JOB_NODELIST": "a"}), {"a": None},
     "hosts of Slurm job '7;x' (SLURM_JOB_NODELIST): a, a slot per GPU"),
    ("lsf: words without a host",
     surroundings({"LSB_MCPU_HOSTS": "  "}, {"/job/hostfile": "a slots=2\n"}), {"a": 2},
     "hosts of DeepSpeed's default hostfile (/job/hostfile): a, 2 slots each"),
    ("grid engine: blank lines are none",
     surroundings({"PE_HOSTFILE": "/pe"}, {"/pe": "a 4 q\n\n  \nb 2 q\n"}), {"a": 4, "b": 2},
     "hosts of Grid Engine (/pe): a,b, 6 slots"),
    ("grid engine: a host has the slots of all its queues",
     surroundings({"PE_HOSTFILE": "/pe"}, {"/pe": "a 4 all.q@a\nb 1 all.q@b\na 2 gpu.q@a\n"}),
     {"a": 6, "b": 1}, "hosts of Grid Engine (/pe): a,b, 7 slots"),
    ("an empty file of the mpi-operator is not there",
     surroundings({}, {"/etc/mpi/hostfile": " \n", "/job/hostfile": "a slots=2\nb slots=2\n"}),
     {"a": 2, "b": 2}, "hosts of DeepSpeed's default hostfile (/job/hostfile): a,b, 2 slots each"),
    (
        "addresses are no names with domains",
        surroundings(
            {"HYDRA_HOST_FILE": "/h", "I_MPI_HYDRA_HOST_FILE": "/i"},
            {"/h": "10.0.0.1\n10.0.0.2\n[::1]\n", "/i": "::1\n10.0.0.2\n10.0.0.1\n"},
        ),
        {"10.0.0.1": None, "10.0.0.2": None, "::1": None},
        "hosts of HYDRA_HOST_FILE (/h): 10.0.0.[1-2],::1, a slot per GPU; the same in /i",
    ),
    ("slots of one host, of the others none",
     surroundings({"HYDRA_HOST_FILE": "/h"}, {"/h": "a:2\nb\n"}), {"a": 2, "b": None},
     "hosts of HYDRA_HOST_FILE (/h): a,b, 2 slots"),
    (
        "of two that count the first is taken",
        surroundings(
            {"HYDRA_HOST_FILE": "/h", "I_MPI_HYDRA_HOST_FILE": "/i"}, {"/h": "a:2\n", "/i": "a:2\n"}
        ),
        {"a": 2},
        "hosts of HYDRA_HOST_FILE (/h): a, 2 slots each; the same in /i",
    ),
    (
        "agreeing sources: domains aside, and the one with slots counts",
        surroundings(
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "w[1-2]"},
            {"/job/hostfile": "w1.site slots=8\nw2.site slots=8\n"},
        ),
        {"w1.site": 8, "w2.site": 8},
        "hosts of DeepSpeed's default hostfile (/job/hostfile): w[1-2].site, 8 slots each; "
        "the same in SLURM_JOB_NODELIST",
    ),
]  # fmt: skip


@cases(("place", "hosts", "notice"), [row[1:] for row in GIVEN], ids=[row[0] for row in GIVEN])
def test_given(place: Surroundings, hosts: dict[str, int | None], notice: str) -> None:
    found = discover(place)
    assert slots(found) == hosts
    assert list(slots(found)) == list(hosts)  # in the source's own order
    assert found is not None
    assert found.notices == (notice,)


def test_what_is_said_of_repeated_hosts_is_no_news_here() -> None:
    files = {"/h": "a\na\nu@b:8\n"}
    found = discover(surroundings({"HYDRA_HOST_FILE": "/h"}, files))
    assert found is not None
    assert [text.split(":")[0] for text in found.notices] == ["hosts of HYDRA_HOST_FILE (/h)", "/h"]
    assert "read as port 8" in found.notices[1]


def test_a_file_of_just_so_many_bytes_is_read() -> None:
    text = "a\n" + ("#".ljust(1 << 16, ".")[:-1] + "\n") * (MOST_BYTES >> 16)
    text = text[: MOST_BYTES - 1] + "\n"
    assert slots(discover(surroundings({"HYDRA_HOST_FILE": "/h"}, {"/h": text}))) == {"a": None}


def test_a_variable_may_spell_the_operator_s_file_in_another_way() -> None:
    place = surroundings({"HYDRA_HOST_FILE": "/etc/mpi/../mpi/hostfile"})
    assert discover(place) is None


def test_nowhere() -> None:
    assert discover(surroundings({"HOME": "/root", "SLURM_CONF": "/etc/slurm.conf"})) is None
    assert discover(surroundings({"K_MPI_JOB_ROLE": "worker"}, {"/etc/mpi/hostfile": "a"})) is None


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=6))
def test_slurm_tasks_are_read_back(groups: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{times})" if times > 1 else str(n) for n, times in groups)
    wanted = [n for n, times in groups for _ in range(times)]
    names = f"n[1-{len(wanted)}]" if len(wanted) > 1 else "n1"
    found = discover(
        surroundings({
            "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": names, "SLURM_TASKS_PER_NODE": text,
            "SLURM_NTASKS": str(sum(wanted)),
        })
    )  # fmt: skip
    got = list(slots(found).values())
    assert got == (wanted if max(wanted) > 1 else [None] * len(wanted))


@cases(
    ("environ", "files", "granted"),
    [
        ({**SLURM, "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "4,5"}, {}, {"n1": ("4", "5")}),
        ({**SLURM, "SLURMD_NODENAME": "n2", "SLURM_JOB_GPUS": "4,5", "SLURM_STEP_GPUS": "5"}, {},
         {"n2": ("5",)}),
        ({**SLURM, "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "gpu:2"}, {}, {}),
        ({**SLURM, "SLURMD_NODENAME": "n1"}, {}, {}),
        ({**SLURM, "SLURM_JOB_GPUS": "4,5"}, {}, {}),  # on the login node: of which host?
        ({"PBS_NODEFILE": "/n", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {"/n": "n1\nn1\nn2\nn2\n"},
         {"n1": ("GPU-a", "GPU-b")}),
        ({"LSB_MCPU_HOSTS": "n1 2 n2 2", "CUDA_VISIBLE_DEVICES": "2,3"}, {}, {"n1": ("2", "3")}),
        ({"LSB_MCPU_HOSTS": "n1 2 n2 2", "CUDA_VISIBLE_DEVICES": "-1"}, {}, {}),
    ],
)  # fmt: skip
def test_gpus_of_the_host_where_the_script_runs(
    environ: dict[str, str], files: dict[str, str], granted: dict[str, tuple[str, ...]]
) -> None:
    found = discover(surroundings(environ, files))
    assert found is not None
    assert {h.name: h.granted for h in found.hosts if h.granted is not None} == granted


VALUES = st.text(max_size=30)


@given(
    st.dictionaries(
        st.sampled_from([
            "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_HET_SIZE",
            "SLURM_GPUS_ON_NODE", "SLURMD_NODENAME", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES",
            "LSB_MCPU_HOSTS", "PE_HOSTFILE", "FLUX_URI", "PBS_JOBID",
        ]),
        VALUES,
    ),
    VALUES,
)  # fmt: skip
def test_any_words_give_hosts_or_a_clear_error(environ: dict[str, str], text: str) -> None:
    place = Surroundings(environ, lambda path: text.encode(), lambda argv: text)
    try:
        found = discover(place)
    except DispatchError:
        return
    assert found is None or found.hosts
