"""A cluster from Python: ``Cluster``, and ``wait_for`` to wait for what happens on it.

Files under ``Cluster.shared`` are the same on every host, as are the checkout and the Python that
runs us; a host's ``/tmp`` is its own.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import layout
from .census import Process, census
from .entry import roots_path

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster")
RUN_LIMIT = 100.0

Found = TypeVar("Found")
_numbers = itertools.count(1)


def why_not() -> str | None:
    """Why no cluster can be made here; None when it can."""
    for tool in ("sshd", "ssh", "ssh-keygen"):
        if shutil.which(tool, path=roots_path()) is None:
            return f"the rig needs {tool}: apt-get install openssh-server openssh-client"
    if os.getuid() == 0 and shutil.which("ip", path=roots_path()) is None:
        return "the rig needs ip: apt-get install iproute2"
    refused = subprocess.run(
        [sys.executable, "-IS", PROGRAM, "may"], capture_output=True, text=True, check=False
    ).stderr
    return refused.removeprefix("cluster: ").strip() or None


def hear_signals() -> None:
    """Under nohup, or behind a script's ``&``, our children would be deaf to what we send them."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(
    condition: Callable[[], Found], limit: float = 20.0, what: str | Callable[[], object] = "it"
) -> Found:
    """The first true value of ``condition()``, asked again and again for ``limit`` seconds.

    Raises: AssertionError that says ``what`` did not happen; a callable is asked at the end.
    """
    end = time.monotonic() + limit
    pause = 0.002
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not in {limit} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return found


def gone(pid: int) -> bool:
    """Whether process ``pid`` of this machine has ended; a zombie has."""
    return layout.birth(pid) is None


class Cluster:
    """``count`` hosts ``n1..nN`` and ``login``; as a context manager, up inside and gone after.

    The cluster also goes when this process dies, however it dies. ``options`` are those of
    ``scripts/cluster up``, e.g. ``"--max-startups", "2:100:2"``.
    """

    def __init__(self, count: int, *options: str, width: int = 1, name: str | None = None) -> None:
        self.name = name or f"t{os.getpid()}-{next(_numbers)}"
        self._options = [str(count), "--width", str(width), *options]
        self._hostfiles = itertools.count(1)
        self.hosts: list[str] = []

    def __enter__(self) -> Cluster:
        self.command("up", *self._options, "--owner", str(os.getpid()), "--quiet", limit=120)
        self._record = layout.load(self.name)
        self.hosts = [member.name for member in self._record.hosts]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.command("down", limit=60)

    @property
    def shared(self) -> str:
        """A directory that is the same on ``login`` and all hosts."""
        return os.path.join(self._record.directory, "shared")

    def address(self, host: str) -> str:
        return self._record.member(host).address

    def log(self, host: str) -> str:
        """What the host's sshd has said so far."""
        path = os.path.join(self._record.directory, "hosts", host + ".log")
        with open(path, errors="replace") as file:
            return file.read()

    def hostfile(self, slots: int | None = 2, hosts: Sequence[str] | None = None) -> str:
        """Path of a new hostfile of ``hosts`` (default: all), visible everywhere."""
        path = os.path.join(self.shared, f"hostfile-{next(self._hostfiles)}")
        with open(path, "w") as file:
            for host in self.hosts if hosts is None else hosts:
                file.write(f"{host}\n" if slots is None else f"{host} slots={slots}\n")
        return path

    def argv(self, argv: Sequence[str], host: str = "login", *, root: bool = False) -> list[str]:
        """The command line that runs ``argv`` on ``host``, for a ``Popen`` of one's own.

        root: as one who may mount and route there, which a user who made the cluster may not.

        The process of this command line behaves as the one inside: same exit, and signals sent
        to it arrive there, SIGKILL too.
        """
        words = ["enter", "--name", self.name, *(["--root"] if root else []), host, "--"]
        if layout.alive(self._record):
            for member in self._record.members:  # the same without a parser and a look at the disk
                if member.name == host:
                    words = ["_enter", host, str(member.pid), "root" if root else "user"]
        return [sys.executable, "-IS", PROGRAM, *words, *argv]

    def popen(
        self,
        argv: Sequence[str],
        host: str = "login",
        *,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start ``argv`` on ``host``; ``env`` is added to ours. Standard input is empty."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.argv(argv, host), env={**os.environ, **(env or {})}, **options)

    def run(
        self,
        argv: Sequence[str],
        host: str = "login",
        *,
        root: bool = False,
        timeout: float = RUN_LIMIT,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        text: bool = True,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run ``argv`` on ``host`` and collect its output, text unless ``text=False``."""
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.argv(argv, host, root=root),
            env={**os.environ, **(env or {})},
            capture_output=True,
            timeout=timeout,
            check=check,
            text=text,
            **options,
        )

    def census(
        self, hosts: Sequence[str] | None = None, *, run_id: str | None = None
    ) -> list[Process]:
        """All that runs on ``hosts`` (default: everywhere), with both numbers of each process.

        The rig's own (init, sshd and its sessions) are left out; zombies are in.
        """
        return census(self._record, hosts, run_id)

    def processes(
        self, host: str | None = None, *, run_id: str | None = None
    ) -> list[tuple[int, str]]:
        """``(pid as the host counts, command line)`` of all that runs on ``host``, or anywhere."""
        found = self.census(None if host is None else [host], run_id=run_id)
        return [(process.pid, process.command) for process in found]

    def on_hosts(self) -> list[tuple[str, int, str]]:
        """``(host, pid, command line)`` of all that runs on the hosts, login left out."""
        found = self.census(self.hosts)
        return [(process.host, process.pid, process.command) for process in found]

    def signal(self, host: str, pid: int, number: int) -> None:
        """Send a signal to the process that ``host`` knows as ``pid``."""
        for process in self.census([host]):
            if process.pid == pid:
                os.kill(process.outer, number)
                return
        raise ProcessLookupError(f"{host} has no process {pid}")

    def set_login_shell(self, host: str, shell: str) -> None:
        """Have whoever logs in to ``host`` get ``shell``, which is a path."""
        name = pwd.getpwuid(os.getuid()).pw_name
        path = os.path.join(self.shared, f"passwd-{host}")
        text = self.run(["cat", "/etc/passwd"], host, check=True).stdout
        with open(path, "w") as file:
            file.write(re.sub(rf"^({re.escape(name)}:.*:).*$", rf"\g<1>{shell}", text, flags=re.M))
        bind = ["mount", "--bind", path, "/etc/passwd"]
        self.run(bind, host, root=True, check=True)

    def cut(self, host: str, way: str = "both") -> None:
        """Lose every packet ``to`` or ``from`` the host or ``both``; nobody is told."""
        self.command("cut", host, "--way", way)

    def mend(self, host: str) -> None:
        self.command("mend", host)

    def power_off(self, host: str) -> None:
        """End the host at once, without a word on the network; it stays off."""
        self.command("power-off", host)

    def command(self, word: str, *arguments: str, limit: float = 60.0) -> str:
        """Run ``scripts/cluster word ...`` on this cluster and return its output.

        Raises: AssertionError with what it complained of.
        """
        argv = [sys.executable, "-IS", PROGRAM, word, "--name", self.name, *arguments]
        ended = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        assert ended.returncode == 0, f"cluster {word}: {ended.stderr.strip()}"
        return ended.stdout
