"""How each launcher is told to run a program on hosts: the command lines we compare."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

NAMES = ("dispatch", "hydra", "openmpi", "pdsh", "clush", "deepspeed")


def command(
    launcher: str, hosts: Sequence[str], ranks: int, program: Sequence[str], place: str
) -> list[str]:
    """The argv that runs ``program`` as ``ranks`` processes on each host.

    Hostfiles are written into ``place``. pdsh and clush know no ranks: they get a shell line that
    starts ``ranks`` copies and waits.
    """
    slots, colon = os.path.join(place, "hosts-slots"), os.path.join(place, "hosts-colon")
    with open(slots, "w") as file:
        file.writelines(f"{host} slots={ranks}\n" for host in hosts)
    with open(colon, "w") as file:
        file.writelines(f"{host}:{ranks}\n" for host in hosts)
    count, names = str(len(hosts) * ranks), ",".join(hosts)
    copies = " ".join(f"{shlex.join(program)} &" for _ in range(ranks)) + " wait"
    lines = {
        "dispatch": [*dispatch(), "-H", slots, "--no-python"],
        "hydra": ["mpiexec.hydra", "-launcher", "ssh", "-f", colon, "-n", count],
        "openmpi": [
            *("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"),
            *("--hostfile", slots, "-n", count),
        ],
        "deepspeed": ["deepspeed", "-H", slots, "--no_python", "--no_local_rank"],
    }
    if launcher in lines:
        return [*lines[launcher], *program]
    return {"pdsh": ["pdsh", "-R", "ssh"], "clush": ["clush"]}[launcher] + ["-w", names, copies]


def installed(launcher: str) -> bool:
    binary = {"hydra": "mpiexec.hydra", "openmpi": "mpirun.openmpi"}.get(launcher, launcher)
    return launcher == "dispatch" or shutil.which(binary) is not None


def dispatch() -> list[str]:
    """The ``dispatch`` of the Python that runs us, however it is installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "dispatch")
    start = [beside] if os.path.exists(beside) else [sys.executable, "-m", "dispatcher"]
    return start + shlex.split(os.environ.get("BENCH_DISPATCH_FLAGS", ""))
