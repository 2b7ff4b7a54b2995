"""Another user of the login node, who knows every path, pid and job id, and really tries.

The victim is who runs the tests, careless: with a umask of 000, in a folder that everybody may
write to, where the neighbour has been before. Sudo's password is looked for in
``tests/runs/exec/test_sudo.py``; who may call a socket that can be reached, in
``tests/jobs/test_registry.py`` and ``tests/transport/pool/test_pool.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from cases import cases
from rig import wait_for

from dispatcher.jobs import registry
from dispatcher.model.errors import UnsafeFolder
from dispatcher.model.paths import private_folder
from dispatcher.transport.pool import daemon_socket

from ..conftest import PROGRAM

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")

NEIGHBOUR = 65534
SECRET = "zz-secret-zz"
RANK = 'echo "$TOKEN o$PLANTED"; echo "$TOKEN" >&2; touch "$1/up"; exec sleep 1000'


def as_neighbour(attack: Callable[[], list[str]]) -> list[str]:
    """What ``attack`` gains in a process of the neighbour's."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        gained = ["the attack itself failed"]
        try:
            os.setgroups([])
            os.setgid(NEIGHBOUR)
            os.setuid(NEIGHBOUR)
            gained = attack()
        except BaseException as error:
            gained = [f"the attack itself failed: {error!r}"]
        finally:
            os.write(theirs, json.dumps(gained[:20]).encode())
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        told: list[str] = json.loads(pipe.read())
    os.waitpid(child, 0)
    return told


@dataclass
class Victim:
    """folder: has all of its files but ``beside``, those in /tmp; pids: of its processes."""

    folder: Path
    beside: list[Path]
    pids: list[int]

    @property
    def paths(self) -> list[Path]:
        """Every path, found by one who may look everywhere; not those of everybody."""
        tops = [*(self.folder / name for name in ("home", "logs", "run", "out")), *self.beside]
        found = [*tops, self.folder / "failed"]
        for top in tops:
            found += [Path(at, name) for at, dirs, files in os.walk(top) for name in dirs + files]
        return found


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    """With a job in the background whose rank is up, and a socket of kept connections."""
    # not below TMPDIR, which may be ours alone: nobody could try anything there
    folder = Path(tempfile.mkdtemp(prefix="dispatch-neighbours-", dir="/tmp"))
    folder.chmod(0o755)
    shared, patch = folder / "shared", pytest.MonkeyPatch()
    for name, mode in (("home", 0o755), ("run", 0o755), ("shared", 0o1777)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    as_neighbour(lambda: plant(shared))
    patch.setenv("HOME", str(folder / "home"))
    patch.setenv("TOKEN", SECRET)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DISPATCH_CONFIG"):
        patch.delenv(name, raising=False)
    listener = None

    def dispatch(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words], cwd=shared, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=60, check=False, umask=0,
        )  # fmt: skip

    umask = os.umask(0)
    try:
        done = dispatch(
            "--detach", "-H", "localhost:1", "--no-python", "-x", "TOKEN", "--log-dir",
            f"{folder}/logs", "sh", "-c", RANK, "sh", str(folder),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for name in ("dispatch.toml", ".deepspeed_env"):
            assert f"note: {name} is not read: another user could have written it" in done.stderr
        wait_for((folder / "up").exists, 60)
        where = ("-w", "localhost", "--output-dir", f"{folder}/out", "--failed-to")
        done = dispatch("exec", *where, f"{folder}/failed", "--", "echo", SECRET)
        assert done.returncode == 0, done.stderr
        patch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
        listener = daemon_socket.listen()
        (job,) = registry.jobs()
        beside = list(Path(tempfile.gettempdir()).glob(f"dispatch-{job.run_id}-*"))
        assert beside  # the agent's
        yield Victim(folder, beside, pids_of(str(folder)))
    finally:
        os.umask(umask)
        if listener is not None:
            listener.close()
        for job in registry.jobs():
            with suppress(ProcessLookupError):
                os.kill(job.launcher.pid, signal.SIGTERM)
            wait_for(partial(ended, job.run_id), 60)
        patch.undo()
        shutil.rmtree(folder)


def plant(shared: Path) -> list[str]:
    """What the neighbour leaves where the victim will work."""
    (shared / "dispatch.toml").write_text("[run]\nnproc-per-node = 3\n")
    (shared / ".deepspeed_env").write_text("PLANTED=1\n")
    (shared / "own").mkdir()
    (shared / "own").chmod(0o700)
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    (shared / "link").symlink_to(shared.parent / "home")
    return []


def ended(run_id: str) -> bool:
    return registry.find(run_id).state != registry.RUNNING


def pids_of(mark: str) -> list[int]:
    """Processes with ``mark`` in their environment: launcher, agent, guardian, rank."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if f"HOME={mark}/home".encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def gains(tries: dict[str, Callable[[], object]]) -> list[str]:
    """What did not fail."""
    gained = []
    for name, one in tries.items():
        with suppress(OSError):
            one()
            gained.append(name)
    return gained


def known(victim: Victim) -> Iterator[tuple[Path, os.stat_result]]:
    """The victim's paths, with what they are; some may go at any moment."""
    for path in victim.paths:
        with suppress(FileNotFoundError):
            yield path, path.lstat()


def reading(victim: Victim) -> dict[str, Callable[[], object]]:
    """Files, and folders that are not there for everybody: state, runs, an agent's."""
    public = {"home", "run", "out", "logs", "failed", ".local", "state", "share", ".cache"}
    tries: dict[str, Callable[[], object]] = {}
    for path, about in known(victim):
        if stat.S_ISREG(about.st_mode) and path.name != "failed":
            tries[f"read {path}"] = path.read_bytes
        elif stat.S_ISDIR(about.st_mode) and path.name not in public:
            tries[f"list {path}"] = partial(os.listdir, path)
    return tries


def changing(victim: Victim) -> dict[str, Callable[[], object]]:
    tries: dict[str, Callable[[], object]] = {}
    for path, about in known(victim):
        if stat.S_ISLNK(about.st_mode):
            tries[f"replace {path}"] = path.unlink
            continue
        tries[f"rename {path}"] = partial(path.rename, f"{path}.mine")
        tries[f"open up {path}"] = partial(path.chmod, 0o777)
        if stat.S_ISDIR(about.st_mode):
            tries[f"create in {path}"] = (path / "mine").touch
        else:
            tries[f"write {path}"] = partial(os.open, path, os.O_WRONLY | os.O_NONBLOCK)
            tries[f"remove {path}"] = path.unlink
    return tries


def calling(victim: Victim) -> dict[str, Callable[[], object]]:
    """Every socket that the kernel names, abstract ones and those on the network, too."""

    def connect(family: int, address: str | tuple[str, int]) -> None:
        with socket.socket(family) as link:
            link.settimeout(5)
            link.connect(address)
            if family == socket.AF_INET:  # the kernel lets anybody come; we say who is heard
                link.settimeout(60)
                with suppress(TimeoutError):
                    if not link.recv(1):
                        raise ConnectionRefusedError("sent away")

    tries: dict[str, Callable[[], object]] = {}
    for path, about in known(victim):
        if stat.S_ISSOCK(about.st_mode):
            tries[f"call {path}"] = partial(connect, socket.AF_UNIX, str(path))
    held = set()
    for pid in victim.pids:
        with suppress(FileNotFoundError):  # it ended
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # it was closed
                    name = os.readlink(link)
                    held.update([name[8:-1]] if name.startswith("socket:") else [])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[6] in held and words[7:] and words[7].startswith("@"):
            tries[f"call {words[7]}"] = partial(connect, socket.AF_UNIX, "\0" + words[7][1:])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[9] in held and words[3] == "0A":
            port = int(words[1].partition(":")[2], 16)
            tries[f"call port {port}"] = partial(connect, socket.AF_INET, ("127.0.0.1", port))
    return tries


def processes(victim: Victim) -> dict[str, Callable[[], object]]:
    """Their environment and memory, and signals; a command line is there for everybody."""

    def told(pid: int) -> None:
        if SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise PermissionError

    tries: dict[str, Callable[[], object]] = {}
    for pid in victim.pids:
        for name in ("environ", "mem", "maps"):
            tries[f"{name} of {pid}"] = Path(f"/proc/{pid}/{name}").read_bytes
        tries[f"files of {pid}"] = partial(os.listdir, f"/proc/{pid}/fd")
        tries[f"folder of {pid}"] = partial(os.readlink, f"/proc/{pid}/cwd")
        tries[f"signal to {pid}"] = partial(os.kill, pid, 0)
        tries[f"words of {pid}"] = partial(told, pid)
    return tries


@cases(
    ("attack", "least"), [(reading, 12), (changing, 50), (calling, 2), (processes, 18)],
    ids=["reading", "changing", "calling", "processes"],
)  # fmt: skip
def test_a_neighbour_learns_nothing_and_changes_nothing(
    victim: Victim, attack: Callable[[Victim], dict[str, Callable[[], object]]], least: int
) -> None:
    tries = attack(victim)
    assert len(tries) >= least, sorted(tries)
    assert as_neighbour(lambda: gains(tries)) == []


def test_what_a_neighbour_has_left_is_not_taken(victim: Victim) -> None:

    def kept() -> list[str]:
        return [path.read_text() for path in (victim.folder / "logs").glob("2*/rank-*.out")]

    wait_for(lambda: any(kept()), 60, "what it said is kept")
    assert kept() == [f"{SECRET} o\n"]  # one rank, and nothing of .deepspeed_env
    for name in ("own", "open", "link"):
        with pytest.raises(UnsafeFolder, match="not your own folder"):
            private_folder(victim.folder / "shared" / name)


def welcome(server: socket.socket) -> None:
    with server.accept()[0] as link:
        link.sendall(b"come in")


def test_a_neighbour_who_may_is_seen(victim: Victim) -> None:
    """The attacks are real: what is open to everybody they do find."""
    (victim.folder / "shared" / "careless").write_text(SECRET)
    open_one = Victim(victim.folder, [victim.folder / "shared"], [os.getpid()])
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=welcome, args=(server,), daemon=True).start()
        call = f"call port {server.getsockname()[1]}"
        tries = reading(open_one) | changing(open_one) | {call: calling(open_one)[call]}
        gained = as_neighbour(lambda: gains(tries))
    assert call in gained
    assert f"read {victim.folder}/shared/careless" in gained
    assert f"create in {victim.folder}/shared" in gained
