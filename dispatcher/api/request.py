"""``request``: what a program asks for, completed as the command line would.

The folder, the environment and the Python of this process are the ranks' ones unless
something else is said. Unlike the command line, no ``.deepspeed_env`` is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from dispatcher.api.here import cwd_of, python_of
from dispatcher.model.errors import UsageError
from dispatcher.model.host_part import Hostlist
from dispatcher.plan.hosts.hostfile import parse_inline, read_hosts
from dispatcher.plan.job import job_plan
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.request import Limits, Nproc, Program, Request, Stdin
from dispatcher.plan.job.restarts import Restarts

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    send_equal_once: bool
    limits: Limits
    restarts: Restarts
    spares: int | None
    local_rank_arg: str | None
    per_node: bool


def request(
    hosts: Hosts,
    argv: Sequence[str],
    *,
    kind: Literal["script", "module", "command"] = "script",
    **fields: Unpack[Fields],
) -> Request:
    """The request to run ``argv`` as ranks on ``hosts``.

    kind: what argv[0] is. Raises: UsageError; HostfileError for the text of a hostfile.
    """
    if isinstance(argv, str):
        raise UsageError("argv: a list of words, not a text", hint=f"{argv.split()!r}")
    environ = fields.get("environ", dict(os.environ))
    own: Fields = {"cwd": cwd_of(None), "environ": environ, "python": python_of(environ)}
    if fields.get("per_node"):  # launchers of their own kind look after these themselves
        own.update({"nproc_per_node": 1, "omp": "keep", "mpi": "none"})
    own.update(fields)
    return Request(hosts_of(hosts), Program(kind, tuple(argv)), **own)


def hosts_of(hosts: Hosts) -> Hostlist:
    """The hosts that are meant. Raises: UsageError, HostfileError."""
    if hosts is None:
        from dispatcher.api.surroundings import allocated

        found = allocated()
        if found is None:
            raise UsageError("no hosts: where should it run?", hint="hosts='localhost:2'")
        return found
    if isinstance(hosts, Hostlist):
        return hosts
    if isinstance(hosts, Path):
        return read_hosts(os.path.join(".", hosts), bytes)
    if isinstance(hosts, str):
        if hosts == "-":
            raise UsageError("hosts: standard input is not read here", hint="hosts='hostfile'")
        return read_hosts(hosts, bytes)
    return parse_inline(",".join(hosts), "hosts")


def plan_job(request: Request, run_id: str | None = None) -> JobPlan:
    """The plan for ``request``, before any host is touched. run_id: by default a new one.

    Raises: UsageError; PlanError when these hosts cannot satisfy it.
    """
    from dispatcher.model.paths_part import new_run_id

    return job_plan.plan_job(request, run_id or new_run_id())
