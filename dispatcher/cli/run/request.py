"""From the options of ``run`` to a ``Request``, most of whose fields are options of the same name.

The list of ``request`` has the others, whose text needs judging.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dispatcher.api.request import completed, cwd_of, names_other
from dispatcher.cli import named_files, say
from dispatcher.cli.options import config_file
from dispatcher.cli.options.connect_options import WINDOW
from dispatcher.cli.options.declaration import carried
from dispatcher.cli.options.host_options import (
    hosts_typed,
    image_environ,
    named_hosts,
    only_typed,
)
from dispatcher.cli.options.option_defaults import WITHOUT, origin, typed, value_origin
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import (
    ConfigNotTrusted,
    ConflictingOptions,
    MissingArgument,
    NoHosts,
    UsageError,
)
from dispatcher.model.host import Hostlist
from dispatcher.model.names import decoded, numbered_lines, parse_count, quoted
from dispatcher.plan import variables
from dispatcher.plan.hosts.filters import choose_hosts, fitting
from dispatcher.plan.job.node_launchers import LAUNCHERS, start_words, with_slots
from dispatcher.plan.job.parts import Part
from dispatcher.plan.job.request import (
    Limits,
    Nproc,
    Program,
    Request,
    Restarts,
    Stdin,
    parse_nproc,
    parse_seconds,
    parse_signal,
    parse_stdin,
    parse_time,
    parse_warning,
)
from dispatcher.plan.variables import EnvFileError, check_folders_variable, parse_env_file

if TYPE_CHECKING:
    from dispatcher.cli.run.parts import PartLine

MOST_ENV_FILE = 1 << 20
MOST_RANKFILE = 16 << 20


def request(options: RunOptions) -> Request:
    """The user's request. Raises: UsageError for the first flag that is wrong."""
    options = only_typed(options)
    lines: tuple[PartLine, ...] = ()
    if options.app is not None or ":" in options.words:
        from dispatcher.cli.run import parts

        options, lines = parts.split(options, program_of)
    hosts = None if options.hostfile or options.lists else _allocated(options.words)
    # check the program first: it explains `-w n1, n2` better, and stdin is not read in vain
    program, stdin = program_of(lines[0].options if lines else options), _stdin(options)
    if hosts is None:
        hosts = _together(named_hosts(options, slots=True))
    if lines:
        hosts, lines = parts.with_hosts(hosts, lines)
    _check_exports(options.exports, hosts)
    if options.python == "":
        raise UsageError("--python: an empty name")
    include, exclude = _filters(options, hosts)
    launcher = _launcher(options)
    if lines and launcher is not None:
        raise ConflictingOptions(f"--launcher {launcher}: starts one program, not several")
    if options.per_node and options.nproc_per_node is not None:
        raise ConflictingOptions(
            "--per-node starts one process a host: it excludes --nproc-per-node"
        )
    if launcher is not None:
        hosts = with_slots(launcher, hosts, _nproc_of_launcher(options, launcher))
    if options.pmi_port and options.mpi == "none":
        raise ConflictingOptions("--pmi-port and --mpi none exclude each other")
    environ = image_environ(options.exports) if options.container_image else dict(os.environ)
    nnodes, least = _nnodes(options)
    by_hand: dict[str, Any] = {
        "cwd": _cwd(options),
        "np": None if lines else options.np,
        "nnodes": nnodes,
        "nproc_per_node": None if lines or launcher else _nproc(options.nproc_per_node),
        "include": include,
        "exclude": exclude,
        "map_by": "block" if options.map_by == "slot" else options.map_by,
        "rankfile": _rankfile(options.rankfile),
        "port": options.ssh_port,
        "environ": environ,
        "exports": (*(LAUNCHERS[launcher].env if launcher else ()), *options.exports),
        "env_files": _env_files(options.env_files, environ),
        "omp": _omp(options.omp),
        "stdin": stdin,
        "limits": _limits(options),
        "restarts": _restarts(options, least),
        "per_node": options.per_node or launcher is not None,
        "parts": tuple(map(_part, lines)),
    }
    if options.container_image is not None:
        by_hand["python"] = options.python or "python3"  # the image's
    return completed(hosts, program, {**carried(options, Request), **by_hand})


def _part(line: PartLine) -> Part:
    """One program of several. Raises: UsageError."""
    options, own = line.options, line.own
    nproc = _nproc(options.nproc_per_node)
    if nproc == "gpu":
        raise UsageError(
            "--nproc-per-node gpu: one program of several takes a number", hint="--nproc-per-node 8"
        )
    program = program_of(options, is_typed=False)
    return Part(
        program.argv,
        program.kind,
        options.np,
        nproc if isinstance(nproc, int) else None,
        tuple((host.name, host.slots) for host in line.hosts or ()),
        own.get("chdir"),
        own.get("python"),
        own.get("exports", ()),
        _named_env_files(own.get("env_files", ())),
    )


def _cwd(options: RunOptions) -> str:
    """The folder of the ranks: that of --sync=DIR, else the current one; then --chdir."""
    if options.sync is None:
        return cwd_of(options.chdir)
    from dispatcher.cli.run.sync import dest_of

    return os.path.join(dest_of(options) or "", options.chdir or "").rstrip("/") or "/"


def _allocated(words: tuple[str, ...]) -> Hostlist:
    from dispatcher.api.request import allocated

    found = allocated()
    if found is None:
        from dispatcher.cli.mistakes import no_hosts

        raise no_hosts(words) or NoHosts(
            "no hosts given",
            hint="dispatch -H hostfile train.py, or on this machine: dispatch -H localhost:2 ...",
        )
    return found


def _together(lists: Sequence[Hostlist]) -> Hostlist:
    """The hosts of all ``lists``. Raises: UsageError for a host that is in two of them."""
    hosts = [host for one in lists for host in one.hosts]
    seen: set[tuple[str, int | None]] = set()
    for host in hosts:
        if host.place in seen:
            raise UsageError(
                f"{host.origin}: {host.name} is named twice", hint="name it once: -H or -w n1:SLOTS"
            )
        seen.add(host.place)
    return Hostlist(tuple(hosts), tuple(notice for one in lists for notice in one.notices))


def _check_exports(exports: Sequence[str], hosts: Hostlist) -> None:
    """Raises: UsageError for ``-x HOST``, which leaves a host out in other commands."""
    names = {host.name for host in hosts.hosts}
    for export in exports:
        if export in names and export not in os.environ:
            raise UsageError(
                f"-x {export}: a host, but in a run -x exports a variable",
                hint=f"to leave the host out: --exclude {export}",
            )


def _filters(options: RunOptions, hosts: Hostlist) -> tuple[str | None, str | None]:
    """The values of --include and --exclude for ``hosts``; a file's stays when hosts are typed.
    Raises: UsageError.
    """
    texts = {"include": options.include, "exclude": options.exclude}
    given = {name: text for name, text in texts.items() if text is not None}
    if len(given) == 2 and all(map(typed, given)):
        raise ConflictingOptions("--include and --exclude exclude each other")
    found: dict[str, str | None] = {**given}
    for name in filter(origin, given):
        option = value_origin(name, f"--{name}")
        found[name] = fitting(given[name], hosts.hosts, option, strict=not hosts_typed())
    include, exclude = found.get("include"), found.get("exclude")
    if any(map(origin, given)):
        nobody = "include" in given and include is None
        if nobody or not choose_hosts(hosts.hosts, include, exclude):
            filters = " and ".join(value_origin(name, f"--{name}") for name in given)
            raise NoHosts(f"no host is left after {filters}", hint=WITHOUT)
    return include, exclude


def program_of(options: RunOptions, *, is_typed: bool = True) -> Program:
    """The ranks' program. is_typed: by our own command line. Raises: UsageError if none."""
    words = options.words
    if options.module and options.no_python:
        raise ConflictingOptions("--module and --no-python exclude each other")
    if not words or not words[0]:
        raise MissingArgument(
            "no program given", hint="dispatch -H hostfile train.py, or --no-python hostname"
        )
    launcher = _launcher(options)
    if launcher is not None:
        _nproc(options.nproc_per_node)  # torchrun takes the same words
        nproc = options.nproc_per_node
        return Program("module", start_words(launcher, words, _kind(options), nproc))
    from dispatcher.cli import mistakes

    match _kind(options) if is_typed else "":
        case "script":
            mistakes.script(words, options)
        case "module":
            mistakes.module(words)
        case "command":
            mistakes.command(words)
    kind, first = _kind(options), words[0]
    is_beside = kind == "command" and not options.no_python and "/" not in first
    return Program(kind, (f"./{first}" if is_beside else first, *words[1:]))


def _launcher(options: RunOptions) -> str | None:
    """The framework's launcher to start on each host; None for none."""
    return options.launcher if options.launcher in LAUNCHERS else None


def _nproc_of_launcher(options: RunOptions, launcher: str) -> int | None:
    """The slots that every host will have; torchrun gets the text itself. Raises: UsageError."""
    nproc = None if launcher == "torchrun" else _nproc(options.nproc_per_node)
    if nproc == "gpu":
        raise UsageError(
            f"--nproc-per-node gpu: --launcher {launcher} must know how many before the start",
            hint="--nproc-per-node N",
        )
    return nproc if isinstance(nproc, int) else None


def _kind(options: RunOptions) -> Literal["script", "module", "command"]:
    if options.module:
        return "module"
    path = os.path.join(options.chdir or "", options.words[0])
    is_other = options.python is None and names_other(path)
    return "command" if options.no_python or is_other else "script"


def _nproc(text: str | None) -> Nproc | None:
    return None if text is None else parse_nproc(text)


def _stdin(options: RunOptions) -> Stdin:
    """The ranks that read standard input. Raises: UsageError if it cannot be read."""
    chosen = parse_stdin(options.stdin)
    if chosen == "none" or options.dry_run:
        return chosen
    if "-" in (*options.hostfile, *options.lists):
        option = "-H" if "-" in options.hostfile else "-w"
        why = f"--stdin {chosen}: {option} - takes the hosts from standard input"
        raise ConflictingOptions(why, hint="-H FILE")
    if sys.stdin is None:
        raise UsageError(f"--stdin {chosen}: standard input is closed")
    return chosen


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
    name = variables.deepspeeds(environ)
    own = os.path.join(environ.get("HOME", "/"), name)
    places = [own]
    if os.path.lexists(name):  # not in a folder that is gone, where no path is real
        trusted = {os.path.realpath(path) for path in (own, *named)}
        places += [name] if os.path.realpath(name) not in trusted else []
    elif "DS_ENV_FILE" in environ and not os.path.lexists(own):
        say(f"note: DS_ENV_FILE: {quoted(name)}: no such file")
    for path in places:
        text = config_file.read(path)
        if text is None:
            continue
        if path != own:
            _check_text(text, path)
        found[path] = text
        say(f"note: environment from {path}")
        for number, line in numbered_lines(decoded(text)):
            if variables.UNMET.search(line) and line.lstrip()[0] != "#":
                say(f"note: {path}:{number}: no command is run for `...`, $(...), ${{A:-...}}")
    return (*found.items(), *_named_env_files(named))


def _rankfile(path: str | None) -> tuple[str, bytes] | None:
    if path is None:
        return None
    return path, named_files.read(f"--rankfile {path}", path, MOST_RANKFILE)


def _named_env_files(paths: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (path, named_files.read(f"--env-file {path}", path, MOST_ENV_FILE))
        for path in dict.fromkeys(paths)
    )


def _check_text(text: bytes, path: str) -> None:
    """Check that a file of the current folder may set its variables. Raises: UsageError."""
    try:
        parse_env_file(text, path, check_folders_variable)
    except EnvFileError as error:
        hint = f"if you trust it: --env-file {path}; or ~/{path}"
        raise ConfigNotTrusted(error.message, hint=hint) from None


def _limits(options: RunOptions) -> Limits:
    """The options that have the names of limits, and those that depend on them."""
    found = {**carried(options, Limits), **_end_of_time(options)}
    if options.stop_signal is not None:
        found["stop_signal"] = parse_signal(options.stop_signal, "--stop-signal")
    if options.fanout_tree is not None:
        found.setdefault("fanout", WINDOW)
    # slower heartbeats need a lease that still outlives the missed ones
    beat = found.get("heartbeat", Limits.heartbeat)
    silence = beat * found.get("max_missed_heartbeats", Limits.max_missed_heartbeats)
    return Limits(**{"lease": max(Limits.lease, 2 * silence), **found})


def _end_of_time(options: RunOptions) -> dict[str, Any]:
    """The limits about the end of the run's time. Raises: UsageError."""
    found: dict[str, Any] = {}
    known = os.environ.get("MPIEXEC_TIMEOUT", "")
    if options.time_limit is not None:
        found["time_limit"] = parse_time(options.time_limit, "--time-limit")
    elif known.removeprefix("-").isdecimal() and int(known) <= 0:
        pass  # no limit: 0 for Open MPI 5, less for MPICH
    elif known:
        found["time_limit"] = parse_seconds(known, "MPIEXEC_TIMEOUT")
        say(f"note: time limit of {found['time_limit']:g} s, from MPIEXEC_TIMEOUT")
    if options.warning is None:
        return found
    if not found.get("time_limit"):
        raise MissingArgument(
            "--signal needs --time-limit",
            hint="--time-limit 04:00:00",
        )
    found["warn_signal"], before = parse_warning(options.warning, "--signal")
    before = Limits.warn_before if before is None else before
    if not 0 < before < found["time_limit"]:
        raise ConflictingOptions(
            f"--signal: {before:g} s must be more than 0 and less than the time limit of "
            f"{found['time_limit']:g} s"
        )
    return found | {"warn_before": before}


def _nnodes(options: RunOptions) -> tuple[int | None, int | None]:
    """How many hosts at most and at least; None where no option sets it. Raises: UsageError."""
    if options.nnodes is None:
        return None, options.min_nodes
    least, colon, most = options.nnodes.partition(":")
    if not colon:
        return parse_count(least, "--nnodes"), options.min_nodes
    if options.min_nodes is not None:
        raise ConflictingOptions(
            f"--nnodes {options.nnodes} sets how few hosts are enough: --min-nodes contradicts it"
        )
    found = parse_count(most, "--nnodes"), parse_count(least, "--nnodes")
    if found[0] < found[1]:
        raise UsageError(f"--nnodes {options.nnodes}: MIN is more than MAX", hint="--nnodes 2:4")
    return found


def _restarts(options: RunOptions, least: int | None) -> Restarts:
    found = {**carried(options, Restarts), "min_nodes": least}
    if options.max_restarts is not None:
        most = options.max_restarts
        found["most"] = 0 if most == "0" else parse_count(most, "--max-restarts")
    if options.restart_delay is not None:
        found["delay"] = options.restart_delay
    return Restarts(**found)
