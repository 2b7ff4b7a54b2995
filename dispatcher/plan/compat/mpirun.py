"""``mpirun`` and ``mpiexec``: Open MPI's (also PRRTE's) and Hydra's (MPICH, Intel MPI) flags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dispatcher.model.errors import UsageError
from dispatcher.plan.compat.flag_table import Flag, Line, flag, gone, program, read, refuse, to

WHO = "mpirun"
_BINDING = "dispatch binds no cores"
_PORT = re.compile(r"-p\s*([0-9]+)\Z")


def _map_by(value: str) -> Sequence[str] | None:
    if match := re.match(r"ppr:([0-9]+):node", value):
        return ("--nproc-per-node", match[1])
    word = value.partition(":")[0]
    return ("--map-by", word) if word in ("slot", "node") else None


def _mca(name: str, value: str) -> Sequence[str] | None:
    if name in ("plm_rsh_agent", "plm_ssh_agent"):
        return ("--rsh", value)
    if name in ("plm_rsh_args", "plm_ssh_args") and (match := _PORT.match(value)):
        return ("--ssh-port", match[1])
    if name in ("btl_tcp_if_include", "oob_tcp_if_include") and "/" not in value:
        return ("--iface", value.partition(",")[0])
    return ("-x", f"OMPI_MCA_{name}={value}")


def _variable(name: str, value: str) -> Sequence[str]:
    return ("-x", f"{name}={value}")


def _list(value: str) -> Sequence[str]:
    return [word for name in value.split(",") if name for word in ("-x", name)]


TABLE: dict[str, Flag] = {}
flag(TABLE, "-n -np --n --np -c", to("--np"))
flag(TABLE, "-hostfile --hostfile -machinefile --machinefile -f", to("-H"))
flag(TABLE, "-H -host --host -hosts --hosts", to("-H"))
flag(TABLE, "-x", to("-x"))
flag(TABLE, "-genv -env", _variable, values=2)
flag(TABLE, "-genvlist -envlist", _list)
flag(TABLE, "-genvall -envall", gone, "exports are named one by one", values=0)
flag(TABLE, "-genvnone -envnone", gone, "only what dispatch sets and -x names", values=0)
flag(TABLE, "-npernode --npernode -N -ppn -perhost --ppn", to("--nproc-per-node"))
flag(TABLE, "-pernode --pernode", to("--nproc-per-node", "1"), values=0)
flag(TABLE, "-map-by --map-by", _map_by, "ppr:N:node, slot and node are known")
flag(TABLE, "-bynode --bynode", to("--map-by", "node"), values=0)
flag(TABLE, "-byslot --byslot", to("--map-by", "slot"), values=0)
flag(TABLE, "-rank-by --rank-by", gone, "ranks count along the hosts")
flag(TABLE, "-bind-to --bind-to", gone, _BINDING)
flag(TABLE, "-report-bindings --report-bindings", gone, _BINDING, values=0)
flag(TABLE, "-oversubscribe --oversubscribe", to("--oversubscribe"), values=0)
flag(TABLE, "-mca --mca --gmca -gmca --prtemca", _mca, "a variable for the library", values=2)
flag(TABLE, "--allow-run-as-root -allow-run-as-root", gone, "nobody asks", values=0)
flag(TABLE, "-tag-output --tag-output -l -prepend-rank", gone, "as dispatch does", values=0)
flag(TABLE, "-timestamp-output --timestamp-output", to("--timestamps"), values=0)
flag(TABLE, "-output-filename --output-filename", to("--log-dir"))
flag(TABLE, "-wdir --wdir -wd", to("--chdir"))
flag(TABLE, "-iface", to("--iface"))
flag(TABLE, "-launcher -bootstrap -rmk", gone, "dispatch is the launcher")
flag(TABLE, "-launcher-exec -bootstrap-exec", to("--rsh"))
flag(TABLE, "-q -quiet --quiet", to("--quiet"), values=0)
flag(TABLE, "-v -verbose --verbose -d --debug-daemons", to("--verbose"), values=0)
flag(TABLE, "--prefix -prefix -path", gone, "the ranks' PATH is the login node's; see -x PATH")
flag(TABLE, "-stdin --stdin -s", to("--stdin"))
flag(TABLE, "-configfile --app -app", refuse("one program a job; give it on the command line"))


def translate(words: Sequence[str]) -> Line:
    """The line for ``mpirun``'s ``words``. Raises: UsageError."""
    if ":" in words:
        raise UsageError(f"{WHO}: more than one program (:): dispatch runs one", hint="two jobs")
    options, rest, reasons = read(words, TABLE, WHO)
    how, what = program(rest, WHO)
    return Line((*options, *how), tuple(what), tuple(reasons))
