"""``request``: the request of a program, completed from this machine as on the command line.

The ranks get this process's folder, environment and Python unless the program says something else;
without hosts it takes those of the batch job. ``.deepspeed_env`` is not read.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from dispatcher.model.arguments import check_names, check_types
from dispatcher.model.errors import FileUnusable, NoHosts, UsageError, WrongArgument, reason
from dispatcher.model.host import Hostlist
from dispatcher.plan.hosts.hostfile import MOST_BYTES, parse_inline, read_hosts
from dispatcher.plan.job.binding import BindTo, MemBind
from dispatcher.plan.job.parts import Part, Program
from dispatcher.plan.job.request import Limits, Nproc, Request, Restarts, SignalTo, Stdin

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dispatcher.plan.job.job_plan import JobPlan


#: a hostfile, or a list as for -H; names; hosts that were read; None: those of the batch job
Hosts = str | Path | Sequence[str] | Hostlist | None


class Fields(TypedDict, total=False):
    """The further fields of a ``Request``; each is the option of that name."""

    cwd: str
    np: int | None
    nnodes: int | None
    nproc_per_node: Nproc | None
    include: str | None
    exclude: str | None
    map_by: str
    rank_by: Literal["slot", "node"] | None
    report_bindings: bool
    rankfile: tuple[str, bytes | str] | None
    oversubscribe: bool
    python: str
    user: str | None
    port: int | None
    environ: Mapping[str, str]
    exports: tuple[str, ...]
    env_files: tuple[tuple[str, bytes | str], ...]
    devices: str
    omp: int | Literal["auto", "keep"]
    master_addr: str | None
    master_port: int | None
    iface: str | None
    mpi: Literal["auto", "pmi1", "none"]
    pmi_port: bool
    stdin: Stdin
    limits: Limits
    signal_to: SignalTo
    restarts: Restarts
    spares: int | None
    local_rank_arg: str | None
    per_node: bool
    bind_to: BindTo
    mem_bind: MemBind
    near_hca: bool
    allow_different_code: bool
    parts: tuple[Part, ...]


def request(
    hosts: Hosts,
    argv: Sequence[str] = (),
    *,
    kind: Literal["script", "module", "command"] = "script",
    **fields: Unpack[Fields],
) -> Request:
    """The request to run ``argv`` as ranks on ``hosts``.

    kind: what argv[0] is. parts: in place of argv, where the job has several programs: as in
    ``parts=[Part(["actor.py"], np=1), Part(["learner.py"], np=7)]``. Raises: UsageError,
    WrongArgument for a name or a type that this does not take; HostfileError for the text of a
    hostfile.
    """
    check_words(argv)
    check_names("request", ("hosts", "argv", "kind", *Fields.__annotations__), fields)
    check_types("request", Program, {"kind": kind})
    check_types("request", Fields, fields)
    environ = fields.get("environ", dict(os.environ))
    own: Fields = {"environ": environ, "python": python_of(environ)}
    if fields.get("per_node"):  # launchers of their own kind look after these themselves
        own.update({"nproc_per_node": 1, "omp": "keep", "mpi": "none"})
    given: dict[str, Any] = {**own, **fields, "cwd": cwd_of(fields.get("cwd"))}
    program = Program(kind, tuple(argv))
    if parts := given.get("parts"):
        if argv:
            raise WrongArgument("request: argv and parts: the programs are those of parts alone")
        program = parts[0].program
        given["parts"] = tuple(parts)
    return Request(granted_here(hosts_of(hosts), environ), program, **given)


def check_words(argv: object) -> None:
    """Nothing, if ``argv`` is a list of texts. Raises: UsageError."""
    if isinstance(argv, str):
        raise UsageError("argv: a list of words, not a text", hint=f"{argv.split()!r}")
    if not isinstance(argv, Sequence):
        raise WrongArgument(f"argv: takes a list of texts, not {argv!r}")
    for at, word in enumerate(argv):
        if not isinstance(word, str):
            raise WrongArgument(f"argv[{at}]: takes a text, not {word!r}", hint=repr(str(word)))


def granted_here(hosts: Hostlist, environ: Mapping[str, str]) -> Hostlist:
    """``hosts`` with the GPUs that Slurm has given to the job around us on this machine.

    They count for localhost, which somebody typed within the job, as for a host of the allocation.
    On a login node, where salloc leaves its variables, they are those of another machine.
    """
    if not (environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")):
        return hosts
    from dispatcher.api.transports import is_local
    from dispatcher.plan.hosts.allocation import slurm_gpus

    own = environ.get("SLURMD_NODENAME")
    given = slurm_gpus(environ) if own else None
    found = (
        replace(host, granted=given)
        if host.granted is None and (is_local(host) or host.name == own)
        else host
        for host in hosts.hosts
    )
    return replace(hosts, hosts=tuple(found))


def hosts_of(hosts: Hosts) -> Hostlist:
    """The hosts that are meant. Raises: UsageError, HostfileError."""
    if hosts is None:
        found = allocated()
        if found is None:
            raise NoHosts("no hosts given", hint="hosts='localhost:2'")
        return found
    if isinstance(hosts, Hostlist):
        return hosts
    if isinstance(hosts, Path):
        return read_hosts(os.path.join(".", hosts), bytes)
    if isinstance(hosts, str):
        if hosts == "-":
            raise UsageError("hosts: standard input is not read here", hint="hosts='hostfile'")
        return read_hosts(hosts, bytes)
    if not isinstance(hosts, Sequence) or not all(isinstance(host, str) for host in hosts):
        raise WrongArgument(f"hosts: takes a hostfile or names of hosts, not {hosts!r}")
    return parse_inline(",".join(hosts), "hosts")


def plan_job(request: Request, run_id: str | None = None) -> JobPlan:
    """The plan for ``request``, before any host is touched. run_id: by default a new one.

    Raises: UsageError; PlanError when these hosts cannot satisfy it.
    """
    from dispatcher.model.paths import new_run_id
    from dispatcher.plan.job import job_plan

    return job_plan.plan_job(request, run_id or new_run_id())


def cwd_of(chdir: str | None) -> str:
    """The folder the ranks start in, by the name the user's shell gives it.

    A home directory may be a link that leads elsewhere on other hosts, so the
    logical path is kept where it is this folder. Raises: FileUnusable when the folder is gone.
    """
    if chdir is not None and os.path.isabs(chdir):
        return chdir
    try:
        here = os.getcwd()
    except OSError as error:
        why = reason(error)
        raise FileUnusable(
            f"the current folder: {why}", hint="cd DIR  # one that is there"
        ) from None
    logical = os.environ.get("PWD", "")
    if logical.startswith("/") and os.path.realpath(logical) == os.path.realpath(here):
        here = logical
    return here if chdir is None else os.path.join(here, chdir)


def is_program(path: str) -> bool:
    """Whether the file ``path`` is what Python cannot run: machine code, or a shell's script.

    False in doubt: it may be no file of this machine, and what is a script of Python to some
    begins as one of a shell.
    """
    head = _head(path)
    return head is not None and (head[:4] == b"\x7fELF" or path.endswith((".sh", ".bash")))


def names_other(path: str) -> bool:
    """Whether the file ``path``, no ``.py``, says in its first line that no Python runs it."""
    words = (_head(path) or b"").partition(b"\n")[0].split()
    if path.endswith(".py") or not words or not words[0].startswith(b"#!"):
        return False
    words = [word for word in (words[0][2:], *words[1:]) if word]
    if words and words[0].endswith(b"/env"):
        words = [word for word in words[1:] if not (word.startswith(b"-") or b"=" in word)]
    return bool(words) and not os.path.basename(words[0]).startswith((b"python", b"pypy"))


def _head(path: str) -> bytes | None:
    """How the file ``path`` begins; None for none of this machine. No pipe is waited for."""
    try:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(256)
    except OSError:
        pass
    return None


#: what pipx and ``uv tool`` put into an environment that they made for one program alone
_TOOL_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
#: how the folder begins in which uvx keeps such environments, which have no mark
_UVX = "archive-v"


def python_of(environ: Mapping[str, str]) -> str:
    """The ranks' Python: the active environment's, else the one dispatch runs in.

    pipx and uv give dispatch an environment that holds nothing for ranks, and that no other host
    has; there it is ``python3``, which every host looks for by itself.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = environ.get(name)
        if folder and os.access(path := os.path.join(folder, "bin", "python"), os.X_OK):
            return path
    by_uvx = os.path.basename(os.path.dirname(sys.prefix)).startswith(_UVX)
    if by_uvx or any(os.path.exists(os.path.join(sys.prefix, mark)) for mark in _TOOL_MARKS):
        return "python3"
    return sys.executable or "python3"


#: seconds for a batch system's own program to answer
_ANSWER = 10.0


def allocated() -> Hostlist | None:
    """The hosts of the allocation we run in, None outside any. Raises: UsageError."""
    from dispatcher.plan.hosts.allocation import Surroundings, discover

    return discover(Surroundings(os.environ, _read, _ask))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)


def _ask(argv: Sequence[str]) -> str:
    import subprocess  # for few commands; most would load it for nothing

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER, check=True
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"no answer in {_ANSWER:.0f} s") from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode("utf-8", "replace").strip().splitlines()
        answer = "".join(c for c in words[-1] if c.isprintable())[:200] if words else ""
        raise OSError(errno.EIO, answer or f"exit code {error.returncode}") from None
    return done.stdout[:MOST_BYTES].decode("utf-8", "replace")
