"""From flags to a run: settings, plan, transports, sinks, runner, verdict, exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dispatcher.errors import UsageError
from dispatcher.plan.hostfile import read_hosts
from dispatcher.plan.job import JobPlan, plan_job
from dispatcher.plan.request import (
    Limits,
    Nproc,
    Program,
    Request,
    Stdin,
    parse_count,
    parse_nproc,
    parse_stdin,
)
from dispatcher.plan.restarts import Restarts

if TYPE_CHECKING:
    from dispatcher.cli.detach import Word
    from dispatcher.cli.showing import Showing
    from dispatcher.paths import RunPaths

MOST_ENV_FILE = 1 << 20

#: descriptors that one host may take (--transport ssh: three pipes and a process)
FILES_PER_HOST = 4


def launch(flags: Mapping[str, Any]) -> int:
    """Plan and run what the flags say; the exit code.

    Raises: UsageError before any host is touched.
    """
    plan = plan_job(request(flags), _run_id())
    for notice in plan.notices:
        say(f"note: {notice}")
    if flags["dry_run"]:
        from dispatcher.cli.dryrun import show

        show(plan, as_json=flags["as_json"])
        return 0
    if flags["as_json"]:
        raise UsageError("--json goes with --dry-run")
    from dispatcher import bootstrap
    from dispatcher.cli.showing import settings
    from dispatcher.paths import RunPaths

    allow_open_files(len(plan.nodes) + len(plan.spares))
    if flags["agent_python"] is not None:
        bootstrap.command(first=[flags["agent_python"]])  # judge it while no host is touched
    if flags["detach"]:
        from dispatcher.cli.detach import detach

        return detach(plan, flags, _run)
    showing = settings(flags, None if plan.is_open else plan.world_size)
    paths = RunPaths.create(flags["log_dir"], plan.run_id) if flags["log_dir"] else None
    return _run(plan, flags, showing, paths)


def say(line: str) -> None:
    """One line on standard error, in one write."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _run_id() -> str:
    from dispatcher.paths import new_run_id

    return new_run_id()


# -- flags to request ---------------------------------------------------------------------


def request(flags: Mapping[str, Any]) -> Request:
    """What the user asked for. Raises: UsageError for the first flag that is wrong."""
    if not flags["hosts"]:
        raise UsageError(
            "no hosts: where should the ranks run?",
            hint="dispatch -H hostfile train.py, or on this machine: dispatch -H localhost:2 ...",
        )
    if flags["python"] == "":
        raise UsageError("--python: an empty name")
    if flags["include"] is not None and flags["exclude"] is not None:
        raise UsageError("--include and --exclude exclude each other")
    program = _program(flags)
    stdin = _stdin(flags)
    environ = dict(os.environ)
    return Request(
        hosts=read_hosts(flags["hosts"], sys.stdin.buffer.read),
        program=program,
        cwd=_cwd(flags["chdir"]),
        np=_count(flags, "np", "--np"),
        nnodes=_count(flags, "nnodes", "--nnodes"),
        nproc_per_node=_nproc(flags["nproc_per_node"]),
        include=flags["include"],
        exclude=flags["exclude"],
        map_by={"slot": "block", "node": "node"}[flags["map_by"]],
        oversubscribe=flags["oversubscribe"],
        python=flags["python"] or _python(environ),
        user=flags["user"],
        port=_count(flags, "ssh_port", "--ssh-port", 65535),
        environ=environ,
        exports=flags["exports"],
        env_files=_env_files(flags["env_files"], environ),
        devices=flags["devices"],
        omp=_omp(flags["omp"]),
        master_addr=flags["master_addr"],
        master_port=_count(flags, "master_port", "--master-port", 65535),
        iface=flags["iface"],
        mpi=flags["mpi"],
        pmi_port=_pmi_port(flags),
        stdin=stdin,
        limits=_limits(flags),
        restarts=_restarts(flags),
        spares=_count(flags, "spares", "--spares"),
    )


def _program(flags: Mapping[str, Any]) -> Program:
    words = flags["words"]
    if flags["module"] and flags["no_python"]:
        raise UsageError("--module and --no-python exclude each other")
    if not words or not words[0]:
        raise UsageError(
            "no program: what should the ranks run?",
            hint="dispatch -H hostfile train.py, or --no-python hostname",
        )
    kind: Literal["script", "module", "command"] = "script"
    if flags["module"]:
        kind = "module"
    elif flags["no_python"]:
        kind = "command"
    return Program(kind, tuple(words))


def _cwd(chdir: str | None) -> str:
    """The folder the ranks start in, by the name the user's shell gives it.

    A home directory may be a link that leads elsewhere on other hosts, so the
    logical path is kept where it is this folder.
    """
    here = os.getcwd()
    logical = os.environ.get("PWD", "")
    if logical.startswith("/") and os.path.realpath(logical) == os.path.realpath(here):
        here = logical
    return here if chdir is None else os.path.join(here, chdir)


def _python(environ: Mapping[str, str]) -> str:
    """The ranks' Python: the active environment's, else the one dispatch runs in."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = environ.get(name)
        if folder and os.access(path := os.path.join(folder, "bin", "python"), os.X_OK):
            return path
    return sys.executable or "python3"


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
    if flags["hosts"] == "-":
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
    for path in (os.path.join(environ.get("HOME", "/"), ".deepspeed_env"), ".deepspeed_env"):
        real = os.path.realpath(path)
        if os.path.isfile(real) and not any(os.path.realpath(seen) == real for seen in found):
            found[path] = _text(path, path)
            say(f"note: environment from {path}")
    for path in named:
        found[path] = _text(path, f"--env-file {path}")
    return tuple(found.items())


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
    for name in ("connect_timeout", "boot_timeout", "grace", "heartbeat", "lease", "mpi_patience"):
        if flags[name] is not None:
            given[name] = parse_seconds(flags[name], "--" + name.replace("_", "-"))
    for name, field in (("beats_lost", "beats_lost"), ("fan_out", "connect_window")):
        count = _count(flags, name, "--" + name.replace("_", "-"))
        if count is not None:
            given[field] = count
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
        "host_faults": _count(flags, "host_faults", "--host-faults"),
        "progress_file": flags["progress_file"],
        "progress_line": flags["progress_line"],
    }
    if flags["restart_delay"] is not None:
        given["delay"] = parse_seconds(flags["restart_delay"], "--restart-delay")
    return Restarts(**{name: value for name, value in given.items() if value is not None})


def parse_seconds(text: str, flag: str) -> float:
    """The value of a duration ``flag``, in seconds. Raises: UsageError."""
    try:
        value = float(text) if text.isascii() and "_" not in text else float("nan")
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e7:
        raise UsageError(f"{flag}: not a number of seconds: {text!r}", hint=f"{flag} 10")
    return value


# -- the run --------------------------------------------------------------------------------


def _run(
    plan: JobPlan,
    flags: Mapping[str, Any],
    showing: Showing,
    paths: RunPaths | None,
    word: Word | None = None,
) -> int:
    """Carry out the plan; the exit code. word: to the foreground, if we are in the background."""
    import signal

    from dispatcher.cli import sinks as told
    from dispatcher.cli.enrolled import Enrolled
    from dispatcher.cli.labels import RankLabels
    from dispatcher.cli.reach import Reach
    from dispatcher.core.events import SignalReceived
    from dispatcher.runner.loop import Runner
    from dispatcher.sinks.attempts import history
    from dispatcher.sinks.base import Sink
    from dispatcher.sinks.notes import Notes
    from dispatcher.sinks.report import Pids, report, write_json
    from dispatcher.sinks.tail import Tail
    from dispatcher.sinks.verdict import describe

    tail, pids = Tail(), Pids()
    hosts = [node.host.name for node in (*plan.nodes, *plan.spares)]

    def nobody_reads() -> None:
        if paths is None:  # with files the run is worth going on
            runner.tell(SignalReceived(signal.SIGPIPE))

    screen, progress = told.open_screen(
        showing, RankLabels(showing.label, lambda: runner), hosts, on_broken=nobody_reads,
        files_keep_all=told.files_keep_all(showing, paths),
    )  # fmt: skip
    sinks: list[Sink] = [tail, pids]
    if progress is not None:
        sinks.append(progress)
    if showing.stall_after is not None:
        from dispatcher.sinks.progress import Silence

        sinks.append(Silence(showing.stall_after, lambda event: runner.tell(event), time.monotonic))
    if paths is not None:
        try:
            write_json(paths.plan, plan.describe())
            sinks += told.open_files(showing, paths, screen.say)
        except OSError as error:
            raise UsageError(f"--log-dir {flags['log_dir']}: {error.strerror}") from None
        if not showing.quiet:
            say(f"note: logs in {paths.folder}")
    if flags["trace"] is not None:
        from dispatcher.sinks.trace import Trace

        try:
            sinks.append(Trace(flags["trace"], hosts, _age(), screen.say))
        except OSError as error:
            raise UsageError(f"--trace {flags['trace']}: {error.strerror}") from None
    # from here on nothing is wrong with what the user typed: the run is worth a record
    enrolled = Enrolled(plan, flags, paths, word, lambda event: runner.tell(event))
    if not showing.quiet:
        sinks.append(Notes(hosts, enrolled.also_told(screen.say), verbose=showing.verbose))
    sinks += [screen, *enrolled.sinks]

    began = time.monotonic()
    with enrolled, Reach(flags) as reach:
        runner = Runner(
            plan,
            reach.transport_for,
            sinks,
            check=flags["check"] != "none",
            agent_python=flags["agent_python"],
            sink_failed=lambda sink, error: (say if sink is screen else screen.say)(
                f"error: {type(sink).__name__}: {error}"
            ),
        )
        # whoever presses Ctrl-C again while the verdict is being told wants no traceback
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
        verdict = runner.run()
    lines = history(verdict) + describe(verdict, runner.plan, pids.by_rank, tail.last)
    if paths is not None:
        seconds = time.monotonic() - began
        try:
            write_json(
                paths.report, report(verdict, runner.plan, lines, seconds, pids, tail.last, hosts)
            )
        except OSError as error:  # the exit code is worth more than the file
            say(f"error: {paths.report}: {(error.strerror or '').lower()}")
    enrolled.conclude(verdict.exit_code, lines)
    if progress is not None:
        told.close_on_terminal(lines, verdict, plan, time.monotonic() - began)
        return verdict.exit_code
    for line in lines:
        say(line)
    return verdict.exit_code


def _age() -> float:
    """Seconds since this process started, to a hundredth: what loading and planning took."""
    with open("/proc/self/stat") as file:
        # the command name in parentheses may itself hold spaces and parentheses: proc(5)
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def allow_open_files(n_hosts: int) -> None:
    """Make room for the descriptors of ``n_hosts`` links, if the soft limit is too low.

    Only then: the limit is inherited, and programs that use select(2) rely on
    the usual one. Raises: UsageError if the hard limit is too low as well.
    """
    import resource

    needed = FILES_PER_HOST * n_hosts + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(
            f"{n_hosts} hosts need {needed} open files, at most {hard} are allowed",
            hint=f"ulimit -n {needed}  # or ask who set the limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
