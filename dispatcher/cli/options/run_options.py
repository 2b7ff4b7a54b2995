"""From the flags of ``run`` to a ``Request``: each flag's text becomes what it means."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dispatcher.api.request import cwd_of, python_of
from dispatcher.cli.options import config_trust
from dispatcher.cli.options.connect_options import WINDOW
from dispatcher.cli.options.host_options import hosts_typed, named_hosts, only_typed
from dispatcher.cli.options.option_defaults import WITHOUT, origin, said_by, typed
from dispatcher.cli.say import say
from dispatcher.model.errors import PlanError, UsageError
from dispatcher.model.host import Hostlist
from dispatcher.model.names import parse_count
from dispatcher.plan.hosts.filters import choose, fitting
from dispatcher.plan.job.rank_environment import torchrun
from dispatcher.plan.job.request import (
    Limits,
    Nproc,
    Program,
    Request,
    Restarts,
    Stdin,
    parse_nproc,
    parse_seconds,
    parse_stdin,
)
from dispatcher.plan.variables import EnvFileError, check_folders_variable, parse_env_file

MOST_ENV_FILE = 1 << 20
_DEEPSPEEDS = ".deepspeed_env"


def request(flags: Mapping[str, Any]) -> Request:
    """What the user asked for. Raises: UsageError for the first flag that is wrong."""
    flags = only_typed(flags)
    hosts = None if flags["hostfile"] or flags["lists"] else _allocated(flags["words"])
    # before hosts are read: "n1, n2" is not only a wrong list, "-" not read for nothing
    program, stdin = _program(flags), _stdin(flags)
    if hosts is None:
        hosts = _together(named_hosts(flags, slots=True))
    _judge_exports(flags["exports"], hosts)
    if flags["python"] == "":
        raise UsageError("--python: an empty name")
    include, exclude = _filters(flags, hosts)
    per_node = flags["per_node"] or flags["rdzv"]
    if flags["per_node"] and flags["nproc_per_node"] is not None:
        raise UsageError("--per-node is one process a host: --nproc-per-node contradicts it")
    environ = dict(os.environ)
    return Request(
        hosts=hosts,
        program=program,
        cwd=cwd_of(flags["chdir"]),
        np=_count(flags, "np", "--np"),
        nnodes=_count(flags, "nnodes", "--nnodes"),
        nproc_per_node=1 if per_node else _nproc(flags["nproc_per_node"]),
        include=include,
        exclude=exclude,
        map_by={"slot": "block", "node": "node"}[flags["map_by"]],
        oversubscribe=flags["oversubscribe"],
        python=flags["python"] or python_of(environ),
        user=flags["user"],
        port=_count(flags, "ssh_port", "--ssh-port", 65535),
        environ=environ,
        exports=flags["exports"],
        env_files=_env_files(flags["env_files"], environ),
        devices=flags["devices"],
        omp="keep" if per_node and flags["omp"] == "auto" else _omp(flags["omp"]),
        master_addr=flags["master_addr"],
        master_port=_count(flags, "master_port", "--master-port", 65535),
        iface=flags["iface"],
        mpi="none" if per_node and flags["mpi"] == "auto" else flags["mpi"],
        pmi_port=_pmi_port(flags),
        stdin=stdin,
        send_equal_once=flags["dedup_output"],
        limits=_limits(flags),
        restarts=_restarts(flags),
        spares=_count(flags, "spares", "--spares"),
        local_rank_arg=_local_rank_arg(flags["local_rank_arg"]),
        per_node=per_node,
    )


def _allocated(words: tuple[str, ...]) -> Hostlist:
    from dispatcher.api.request import allocated

    found = allocated()
    if found is None:
        from dispatcher.cli.options.mistakes import no_hosts

        raise no_hosts(words) or UsageError(
            "no hosts: where should the ranks run?",
            hint="dispatch -H hostfile train.py, or on this machine: dispatch -H localhost:2 ...",
        )
    return found


def _together(lists: Sequence[Hostlist]) -> Hostlist:
    """The hosts of all ``lists``. Raises: UsageError for one that stands in two of them."""
    hosts = [host for one in lists for host in one.hosts]
    seen: set[tuple[str, int | None]] = set()
    for host in hosts:
        if host.place in seen:
            raise UsageError(
                f"{host.origin}: {host.name} is named twice", hint="name it once: -H or -w n1:SLOTS"
            )
        seen.add(host.place)
    return Hostlist(tuple(hosts), tuple(notice for one in lists for notice in one.notices))


def _judge_exports(exports: Sequence[str], hosts: Hostlist) -> None:
    """Raises: UsageError for ``-x`` with a host, which other commands leave out by it."""
    names = {host.name for host in hosts.hosts}
    for export in exports:
        if export in names and export not in os.environ:
            raise UsageError(
                f"-x {export}: a host, and in a run -x exports a variable",
                hint=f"to leave the host out: --exclude {export}",
            )


def _filters(flags: Mapping[str, Any], hosts: Hostlist) -> tuple[str | None, str | None]:
    """The values of --include and --exclude for ``hosts``. Raises: UsageError.

    A filter of a file stays when hosts are typed: fewer do less harm. Yet it may name
    others than these.
    """
    given = [name for name in ("include", "exclude") if flags[name] is not None]
    if len(given) == 2 and all(map(typed, given)):
        raise UsageError("--include and --exclude exclude each other")
    found: dict[str, str | None] = {name: flags[name] for name in given}
    for name in filter(origin, given):
        said = said_by(name, f"--{name}")
        found[name] = fitting(flags[name], hosts.hosts, said, strict=not hosts_typed())
    include, exclude = found.get("include"), found.get("exclude")
    if any(map(origin, given)):
        nobody = "include" in given and include is None
        if nobody or not choose(hosts.hosts, include, exclude):
            said = " and ".join(said_by(name, f"--{name}") for name in given)
            raise PlanError(f"no host is left after {said}", hint=WITHOUT)
    return include, exclude


def _program(flags: Mapping[str, Any]) -> Program:
    words = flags["words"]
    if flags["module"] and flags["no_python"]:
        raise UsageError("--module and --no-python exclude each other")
    if not words or not words[0]:
        raise UsageError(
            "no program: what should the ranks run?",
            hint="dispatch -H hostfile train.py, or --no-python hostname",
        )
    if flags["rdzv"]:
        _nproc(flags["nproc_per_node"])  # torchrun takes the same words
        return Program("module", torchrun(words, flags["nproc_per_node"], _kind(flags)))
    from dispatcher.cli.options import mistakes

    match _kind(flags):
        case "script":
            mistakes.script(words, flags)
        case "module":
            mistakes.module(words)
        case "command":
            mistakes.command(words)
    return Program(_kind(flags), tuple(words))


def _local_rank_arg(text: str | None) -> str | None:
    if text is not None and (not text or "=" in text or "\0" in text):
        raise UsageError(
            f"--local-rank-arg: not the name of an argument: {text!r}",
            hint="--local-rank-arg --local_rank",
        )
    return text


def _kind(flags: Mapping[str, Any]) -> Literal["script", "module", "command"]:
    if flags["module"]:
        return "module"
    return "command" if flags["no_python"] else "script"


def _count(flags: Mapping[str, Any], name: str, flag: str, high: int | None = None) -> int | None:
    text = flags[name]
    if text is None:
        return None
    return parse_count(text, flag) if high is None else parse_count(text, flag, high)


def _nproc(text: str | None) -> Nproc | None:
    return None if text is None else parse_nproc(text)


def _stdin(flags: Mapping[str, Any]) -> Stdin:
    """Who reads standard input. Raises: UsageError if it is not there to be read."""
    chosen = parse_stdin(flags["stdin"])
    if chosen == "none" or flags["dry_run"]:
        return chosen
    if flags["hostfile"] == "-":
        raise UsageError(
            f"--stdin {chosen}: -H - takes the hosts from standard input",
            hint="-H FILE",
        )
    if sys.stdin is None:
        raise UsageError(f"--stdin {chosen}: standard input is closed")
    return chosen


def _pmi_port(flags: Mapping[str, Any]) -> bool:
    if flags["pmi_port"] and flags["mpi"] == "none":
        raise UsageError("--pmi-port and --mpi none exclude each other")
    return bool(flags["pmi_port"])


def _omp(text: str) -> int | Literal["auto", "keep"]:
    if text == "auto":
        return "auto"
    if text == "keep":
        return "keep"
    return parse_count(text, "--omp")


def _env_files(
    named: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[tuple[str, bytes | str], ...]:
    """The texts of the environment files, DeepSpeed's two usual places first."""
    found: dict[str, bytes] = {}
    own = os.path.join(environ.get("HOME", "/"), _DEEPSPEEDS)
    trusted = {os.path.realpath(path) for path in (own, *named)}
    for path in (own, _DEEPSPEEDS):
        if path != own and os.path.realpath(path) in trusted:
            continue
        text = config_trust.read(path)
        if text is None:
            continue
        if path != own:
            _judge(text, path)
        found[path] = text
        say(f"note: environment from {path}")
    for path in named:
        found[path] = _text(path, f"--env-file {path}")
    return tuple(found.items())


def _judge(text: bytes, path: str) -> None:
    """Nothing, if a file of the current folder may say so. Raises: UsageError."""
    try:
        parse_env_file(text, path, check_folders_variable)
    except EnvFileError as error:
        raise UsageError(
            error.message, hint=f"if you trust it: --env-file {path}; or ~/{path}"
        ) from None


def _text(path: str, who: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_ENV_FILE + 1)
    except (OSError, ValueError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{who}: {why}") from None
    if len(text) > MOST_ENV_FILE:
        raise UsageError(f"{who}: larger than {MOST_ENV_FILE >> 20} MiB")
    return text


def _limits(flags: Mapping[str, Any]) -> Limits:
    given: dict[str, Any] = {}
    for name in (
        "connect_timeout", "boot_timeout", "grace", "heartbeat", "lease", "mpi_stall_warning",
        "hang_timeout",
    ):  # fmt: skip
        if flags[name] is not None:
            field = "mpi_patience" if name == "mpi_stall_warning" else name
            given[field] = parse_seconds(flags[name], "--" + name.replace("_", "-"))
    for name, field in (("max_missed_heartbeats", "beats_lost"), ("fanout", "connect_window")):
        count = _count(flags, name, "--" + name.replace("_", "-"))
        if count is not None:
            given[field] = count
    if flags["fanout_tree"] is not None:
        given.setdefault("connect_window", WINDOW)
    if "lease" not in given:
        # slower heartbeats need a lease that still outlives the missed ones
        lost = given.get("heartbeat", Limits.heartbeat) * given.get("beats_lost", Limits.beats_lost)
        given["lease"] = max(Limits.lease, 2 * lost)
    return Limits(**given)


def _restarts(flags: Mapping[str, Any]) -> Restarts:
    given: dict[str, Any] = {
        "most": _count(flags, "max_restarts", "--max-restarts")
        if flags["max_restarts"] != "0"
        else 0,
        "min_nodes": _count(flags, "min_nodes", "--min-nodes"),
        "host_faults": _count(flags, "max_host_failures", "--max-host-failures"),
        "progress_file": flags["progress_file"],
        "progress_line": flags["progress_line"],
    }
    if flags["restart_delay"] is not None:
        given["delay"] = parse_seconds(flags["restart_delay"], "--restart-delay")
    return Restarts(**{name: value for name, value in given.items() if value is not None})
