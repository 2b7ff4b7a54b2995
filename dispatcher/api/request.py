"""``request``: makes a program's ``Request``, with the defaults of the command line.

The ranks get this process's folder, environment and Python unless the program gives others;
without hosts it takes those of the batch job. ``.deepspeed_env`` is not read.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from dispatcher.model.arguments import check_names, check_types
from dispatcher.model.errors import FileUnusable, NoHosts, UsageError, WrongArgument, reason
from dispatcher.model.frozen import value
from dispatcher.model.host import Hostlist
from dispatcher.plan.hosts.hostfile import MOST_BYTES, parse_inline, read_hosts
from dispatcher.plan.job.parts import Program
from dispatcher.plan.job.request import Request

if TYPE_CHECKING:
    from dispatcher.plan.job.job_plan import JobPlan

P = ParamSpec("P")
T = TypeVar("T")

#: a hostfile, or a list as for -H; names; hosts that were read; None: those of the batch job
Hosts = str | Path | Sequence[str] | Hostlist | None


if TYPE_CHECKING:

    @value
    class _Call(Request):
        """The arguments of ``request``: the fields of its result, but for these."""

        hosts: Hosts  # type: ignore[assignment]
        argv: Sequence[str] = ()
        program: Program = field(init=False)
        cwd: str = field(default="", kw_only=True)
        kind: Literal["script", "module", "command"] = field(default="script", kw_only=True)

    def _taking(call: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]: ...

    takes_fields = _taking(_Call)
else:

    def takes_fields(function: T) -> T:
        """``function``; type checkers know the names and types of all its arguments."""
        return function


@takes_fields
def request(
    hosts: Hosts,
    argv: Sequence[str] = (),
    *,
    kind: Literal["script", "module", "command"] = "script",
    **given: Any,
) -> Request:
    """Make the request to run ``argv`` as ranks on ``hosts``.

    kind: the kind of argv[0]. parts: in place of argv, where the job has several programs: as in
    ``parts=[Part(["actor.py"], np=1), Part(["learner.py"], np=7)]``. Raises: UsageError;
    WrongArgument for an unknown name or a wrong type; HostfileError for the text of a hostfile.
    """
    check_words(argv)
    known = {one.name for one in fields(Request)} - {"program"}
    check_names("request", ("argv", "kind", *known), given)
    check_types("request", Program, {"kind": kind})
    check_types("request", Request, given)
    program = Program(kind, tuple(argv))
    if parts := given.get("parts"):
        if argv:
            raise WrongArgument("request: argv and parts exclude each other")
        program = parts[0].program
        given["parts"] = tuple(parts)
    return completed(hosts_of(hosts), program, given)


def completed(hosts: Hostlist, program: Program, given: Mapping[str, Any]) -> Request:
    """The request of the fields ``given``, with this process's folder, environment and Python."""
    environ = given.get("environ", dict(os.environ))
    found = {"environ": environ, "python": python_of(environ), **given}
    found["cwd"] = cwd_of(given.get("cwd"))
    if given.get("per_node") and not given.get("parts"):
        # launchers such as torchrun do these themselves
        for name, value in (("nproc_per_node", 1), ("omp", "keep"), ("mpi", "none")):
            if given.get(name) in (None, "auto"):
                found[name] = value
    return Request(granted_here(hosts, environ), program, **found)


def check_words(argv: object) -> None:
    """Check that ``argv`` is a list of texts. Raises: UsageError."""
    if isinstance(argv, str):
        raise UsageError("argv: a list of words, not a text", hint=f"{argv.split()!r}")
    if not isinstance(argv, Sequence):
        raise WrongArgument(f"argv: takes a list of texts, not {argv!r}")
    for at, word in enumerate(argv):
        if not isinstance(word, str):
            raise WrongArgument(f"argv[{at}]: takes a text, not {word!r}", hint=repr(str(word)))


def granted_here(hosts: Hostlist, environ: Mapping[str, str]) -> Hostlist:
    """``hosts`` with the GPUs that Slurm gave to the surrounding job on this machine.

    localhost, typed inside the job, gets them as a host of the allocation does. On a login node,
    where salloc leaves its variables, they belong to another machine, so they are not used.
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
    """Read ``hosts`` in any of its forms. Raises: UsageError, HostfileError."""
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
            raise UsageError("hosts: - is for the command line only", hint="hosts='hostfile'")
        return read_hosts(hosts, bytes)
    if not isinstance(hosts, Sequence) or not all(isinstance(host, str) for host in hosts):
        raise WrongArgument(f"hosts: takes a hostfile or names of hosts, not {hosts!r}")
    return parse_inline(",".join(hosts), "hosts")


def plan_job(request: Request, run_id: str | None = None) -> JobPlan:
    """Plan ``request``, before any host is touched. run_id: by default a new one.

    Raises: UsageError; PlanError when these hosts cannot satisfy it.
    """
    from dispatcher.model.paths import new_run_id
    from dispatcher.plan.job import job_plan

    return job_plan.plan_job(request, run_id or new_run_id())


def cwd_of(chdir: str | None) -> str:
    """The folder where the ranks start, by its name in the user's shell.

    A home directory may be a link that leads elsewhere on other hosts, so the
    logical path is kept where it is this folder. Raises: FileUnusable when the folder is gone.
    """
    if chdir is not None and os.path.isabs(chdir):
        return chdir
    try:
        here = os.getcwd()
    except OSError as error:
        why = reason(error)
        raise FileUnusable(f"the current folder: {why}", hint="cd DIR  # one that exists") from None
    logical = os.environ.get("PWD", "")
    if logical.startswith("/") and os.path.realpath(logical) == os.path.realpath(here):
        here = logical
    return here if chdir is None else os.path.join(here, chdir)


def is_program(path: str) -> bool:
    """Whether Python cannot run the file ``path``: machine code, or a shell's script.

    False in doubt: it may be a file of other hosts only, and some scripts of Python begin as a
    shell's.
    """
    head = _head(path)
    return head is not None and (head[:4] == b"\x7fELF" or path.endswith((".sh", ".bash")))


def names_other(path: str) -> bool:
    """Whether the first line of the file ``path``, unless it is a ``.py``, names no Python."""
    words = (_head(path) or b"").partition(b"\n")[0].split()
    if path.endswith(".py") or not words or not words[0].startswith(b"#!"):
        return False
    words = [word for word in (words[0][2:], *words[1:]) if word]
    if words and words[0].endswith(b"/env"):
        words = [word for word in words[1:] if not (word.startswith(b"-") or b"=" in word)]
    return bool(words) and not os.path.basename(words[0]).startswith((b"python", b"pypy"))


def _head(path: str) -> bytes | None:
    """The beginning of the file ``path``; None if it is not a regular file of this machine."""
    try:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(256)
    except OSError:
        pass
    return None


#: files that pipx and ``uv tool`` put into an environment for a single program
_TOOL_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
#: the prefix of folders in which uvx keeps such environments, which have no mark
_UVX = "archive-v"


def python_of(environ: Mapping[str, str]) -> str:
    """The ranks' Python: the active environment's, else the one that runs dispatch.

    pipx and uv give dispatch an environment without the ranks' packages, which no other host has;
    then it is ``python3``, which every host looks for by itself.
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
    """The hosts of the surrounding allocation, None outside any. Raises: UsageError."""
    from dispatcher.plan.hosts.allocation import Surroundings, discover

    return discover(Surroundings(os.environ, _read, _ask))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)


def _ask(argv: Sequence[str]) -> str:
    import subprocess  # few commands need it

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
