"""Ranks and commands in containers, by podman on two hosts: whatever ends them leaves none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import Cluster, wait_for

pytestmark = pytest.mark.cluster

TOOLS = ("sh", "dash", "sleep", "cat", "id", "env", "setsid", "rm", "mkdir", "kill", "wc", "stty")
DISPATCH = (sys.executable, "-m", "dispatcher")
VENV = Path(sys.prefix)
WAITS = """
import os, sys, time
print("rank", os.environ["RANK"], "in", os.getcwd(), os.path.exists("/image"), flush=True)
time.sleep(600)
"""


def libraries(*programs: Path) -> set[str]:
    """The files that the loader needs for the programs."""
    found = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {word for word in found.split() if word.startswith("/") and not word.endswith(":")}


def image(place: Path, *, python: bool) -> Path:
    """The archive of a root file system of this machine's programs; python: with its Python."""
    tools = [Path(found) for name in TOOLS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    files, programs = {str(tool) for tool in tools}, list(tools)
    root = place / "root"
    for name in ("bin", "tmp", "etc", "usr/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "image").touch()
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "bin/sh").symlink_to("../usr/bin/sh")
    if python:
        base = Path(sys.base_prefix)
        version = f"python3.{sys.version_info[1]}"
        real, library = base / "bin" / version, base / "lib" / version
        files |= {str(real), str(library)}
        mpi = (VENV / "lib").glob("libmpi*.so*")
        programs += [
            real,
            *library.glob("lib-dynload/[!_]*.so"),
            *library.glob("lib-dynload/_[!t]*.so"),
            *mpi,
        ]
        (root / "usr/bin/python3").symlink_to(real)
        if base != Path("/usr"):
            own = root / str(base / "bin").lstrip("/")
            own.mkdir(parents=True)
            (own / "python3").symlink_to(version)
    files |= libraries(*programs)
    left = (
        "test idlelib tkinter lib2to3 pydoc_data ensurepip site-packages __pycache__ config-* *.a"
    )
    packed = place / "image.tar"
    excludes = [f"--exclude={name}" for name in left.split()]
    packing: list[str | Path] = ["tar", "-C", "/", "-chf", packed, *excludes]
    packing += sorted(name.lstrip("/") for name in files if not name.startswith(str(VENV)))
    subprocess.run(packing, check=True)
    subprocess.run(["tar", "-C", root, "-rf", packed, *os.listdir(root)], check=True)
    return packed


class Boxes:
    """Two hosts whose podman has the images ``py``, ``entry`` (an entrypoint) and ``bare``."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.shared = Path(cluster.shared)
        self.hostfile = cluster.hostfile(slots=2)
        self.started: list[subprocess.Popen[Any]] = []
        self.of_py = ("--container-image", "localhost/py")
        first, second = cluster.hosts
        small, whole = (image(folder / str(python), python=python) for python in (False, True))
        for archive in (small, whole):
            shutil.move(archive, self.shared / f"{archive.parent.name}.tar")
        for host in cluster.hosts:  # else they would share one store, and not its locks
            self.on(host, "mkdir -p /var/lib/containers")
            self.on(host, "mount -t tmpfs none /var/lib/containers")
            self.on(host, f"podman import -q {self.shared}/True.tar py")
        self.on(first, f"podman import -q {self.shared}/False.tar bare")
        change = """--change 'ENTRYPOINT ["/bin/false"]'"""
        self.on(first, f"podman import -q {change} {self.shared}/False.tar entry")
        try:
            self.on(second, "podman run --rm --ulimit=host --network=host py /bin/sh -c :")
        except AssertionError as error:
            pytest.skip(f"no container can be run here: {error}")

    def on(self, host: str, text: str) -> str:
        """The output of a shell's text on the host, as one who may mount."""
        ended = self.cluster.run(["sh", "-c", text], host, root=True)
        assert ended.returncode == 0, ended.stderr
        return str(ended.stdout)

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            ["sh", "-c", 'cd "$0"; exec "$@"', str(self.shared), *DISPATCH, *words], **options
        )

    def start(self, *words: str) -> subprocess.Popen[Any]:
        process = self.cluster.popen(
            ["sh", "-c", 'cd "$0"; exec "$@"', str(self.shared), *DISPATCH, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def wait(self, *words: str) -> subprocess.Popen[Any]:
        """A run of four ranks that wait, once all of them have written."""
        (self.shared / "waits.py").write_text(WAITS)
        process = self.start("-H", self.hostfile, *self.of_py, *words, "waits.py")
        assert sorted(self.lines(process)) == [
            f"[{n}] rank {n} in {self.shared} True\n" for n in range(4)
        ]
        return process

    def lines(self, process: subprocess.Popen[Any]) -> list[str]:
        """The next four lines of ranks."""
        assert process.stdout is not None
        found = (line for line in process.stdout if line[4:9] == "rank ")
        return [next(found) for _ in range(4)]

    def containers(self, hosts: Sequence[str] = ()) -> list[str]:
        listed = "podman ps -a --format '{{.Names}}'"
        return [
            name for host in hosts or self.cluster.hosts for name in self.on(host, listed).split()
        ]


@pytest.fixture(scope="module")
def _boxes(rig: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxes]:
    if os.getuid() != 0:
        pytest.skip("needs root: it mounts")
    for name in ("podman", "runc"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    with Cluster(2) as cluster:
        yield Boxes(cluster, tmp_path_factory.mktemp("images"))


@pytest.fixture
def boxes(_boxes: Boxes) -> Iterator[Boxes]:
    """The two hosts, on which nothing may be left after the test."""
    yield _boxes
    while _boxes.started:
        with _boxes.started.pop() as process:
            process.kill()
    wait_for(lambda: not _boxes.cluster.on_hosts(), 20, _boxes.cluster.on_hosts)
    assert _boxes.containers() == []


def test_ranks_run_in_the_image_as_the_user_in_the_folder(boxes: Boxes) -> None:
    (boxes.shared / "ranks.py").write_text(
        "import os, sys\n"
        "words = os.getcwd(), os.path.exists('/image'), os.getuid(), os.environ['PATH']\n"
        "os.write(1, f'{words} {sys.executable}\\n'.encode())\n"
        "sys.exit(7 if os.environ['RANK'] == '3' else 0)\n"
    )
    ended = boxes.run("-H", boxes.hostfile, *boxes.of_py, "ranks.py")
    assert ended.returncode == 7
    lines = {line.partition("] ")[2] for line in ended.stdout.splitlines()}
    usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert lines == {f"{(str(boxes.shared), True, 0, usual)} /usr/bin/python3"}, ended.stderr
    assert "rank 3 on n2" in ended.stderr


def test_mpi_without_mpirun_over_two_hosts(boxes: Boxes, mpich: None) -> None:
    ring = Path(__file__).parents[3] / "examples" / "mpi_ring.py"
    shutil.copy(ring, boxes.shared)
    ended = boxes.run(
        "-H", boxes.hostfile, *boxes.of_py, "--mount", f"{VENV}:{VENV}:ro",
        "--python", sys.executable, "mpi_ring.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "the token came back as 6, right" in ended.stdout
    assert "rank 3 of 4 on n2" in ended.stdout


@cases(
    ("victim", "code"),
    [("launcher", -signal.SIGKILL), ("agent", 125), ("podman run", 125)],
)
def test_no_end_leaves_a_container(boxes: Boxes, victim: str, code: int) -> None:
    process = boxes.wait()
    names = boxes.containers()
    assert len(names) == 2
    assert len({name.rpartition("-")[0] for name in names}) == 1
    on_n2 = boxes.cluster.processes("n2")
    match victim:
        case "launcher":
            process.send_signal(signal.SIGKILL)
        case "agent":  # the guardian's child
            _, agent = sorted(pid for pid, line in on_n2 if line.startswith("python3 -I"))
            boxes.cluster.signal("n2", agent, signal.SIGKILL)
        case client:
            pid = next(pid for pid, line in on_n2 if line.startswith(client))
            boxes.cluster.signal("n2", pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code, out


def test_commands_reach_ranks_in_containers(boxes: Boxes) -> None:
    process = boxes.wait("--max-restarts", "1")
    assert boxes.run("stacks").stdout.startswith("ranks 0-3 on n[1-2]")
    lines = boxes.run("debug", "--rank", "1", input="p 40 + 2\nc\n").stdout
    assert "42" in lines
    before = boxes.containers()
    assert boxes.run("restart").returncode == 0
    assert len(boxes.lines(process)) == 4
    assert boxes.containers() == before
    found = boxes.run("sweep", "-H", boxes.hostfile).stdout
    assert "1 container of podman" in found
    assert boxes.run("kill", before[0][9:31]).returncode == 0
    process.wait(30)


def test_sweep_removes_a_container_whose_processes_are_gone(boxes: Boxes) -> None:
    run_id = "20260131-142501-k3f9x2"
    labels = f"--label=dispatch.run={run_id} --label=dispatch.uid=0"
    boxes.on("n1", f"podman create --name dispatch-{run_id}-7 {labels} bare /bin/sh")
    ended = boxes.run("sweep", run_id, "-H", boxes.hostfile, "--kill")
    assert "n1: removed 1 container of podman" in ended.stdout + ended.stderr
    assert boxes.containers() == []


def test_exec_in_a_container(boxes: Boxes) -> None:
    of_entry = ("exec", "-w", "n1", "-N", "--container-image", "localhost/entry")
    assert (
        boxes.run(*of_entry, "--", "cat", "/image", "/proc/sys/kernel/ostype").stdout == "Linux\n"
    )
    assert boxes.run(*of_entry, "-I", "--", "cat", input="typed").stdout == "typed"
    assert boxes.run(*of_entry, "--pty", "test -t 0 && echo yes").stdout.split() == ["yes"]
    ended = boxes.run("exec", "-H", boxes.hostfile, *boxes.of_py, "exit 5")
    assert (ended.returncode, "exit code 5" in ended.stderr) == (1, True)
    # a command that reads nothing ends with the launcher's connection
    process = boxes.start(*of_entry, "-I", "--", "sleep", "600")
    wait_for(lambda: "sleep 600" in {line for _, line in boxes.cluster.processes("n1")})
    process.kill()


def test_check_reads_the_image(boxes: Boxes) -> None:
    check = ("check", "-H", boxes.hostfile, "/image")
    assert boxes.run(*check).returncode == 1
    ended = boxes.run(*check, *boxes.of_py)
    assert (ended.returncode, ended.stdout[:15]) == (0, "2 of 2 hosts fi")


@cases(
    ("words", "why", "hint"),
    [
        (
            ("--container-image", "localhost/none"),
            "the host has no image localhost/none",
            "pull localhost/none",
        ),
        (
            ("--container-image", "localhost/bare"),
            "looked for python3",
            "an image with the whole of Python",
        ),
        (
            ("--container-image", "py", "--container-engine", "nerdctl"),
            "no engine: looked for nerdctl",
            "--container-engine",
        ),
        (("--container-image", "/data/py.sif"), "no engine: looked for apptainer singularity", ""),
        (
            ("--container-image", "py", "--mount", "/nowhere:/data"),
            "no such file: --mount /nowhere",
            "",
        ),
        (("--container-image", "py", "--container-arg=--nonsense"), "unknown flag: --nonsense", ""),
    ],
)
def test_what_is_missing_is_said_before_the_start(
    boxes: Boxes, words: tuple[str, ...], why: str, hint: str
) -> None:
    engine = (
        ()
        if "--container-engine" in words or ".sif" in str(words)
        else ("--container-engine", "podman")
    )
    (boxes.shared / "ranks.py").write_text("print('began')")
    ended = boxes.run("-w", "n1", *words, *engine, "ranks.py")
    assert (ended.returncode, ended.stdout) == (125, "")
    assert "n1" in ended.stderr
    assert why in ended.stderr, ended.stderr
    assert hint in ended.stderr, ended.stderr
