"""The command line with which each launcher runs a program on hosts."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

NAMES = ("dispatch", "hydra", "openmpi", "pdsh", "clush", "deepspeed")
#: the name of dispatch of another checkout
BESIDE = "dispatch, beside"
CHECKOUT = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))


def command(
    launcher: str,
    hosts: Sequence[str],
    ranks: int,
    program: Sequence[str],
    place: str,
    beside: str | None = None,
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
        "dispatch": [*dispatch(beside and CHECKOUT), "-H", slots, "--no-python"],
        BESIDE: [*dispatch(beside), "-H", slots, "--no-python"],
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
    return launcher.startswith("dispatch") or shutil.which(binary) is not None


def dispatch(checkout: str | None = None) -> list[str]:
    """The ``dispatch`` of ``checkout``, or the one that this Python has installed.

    A checkout runs in its own folder, so that nothing that is installed comes before it.
    """
    if checkout:
        place = os.path.realpath(checkout)
        return ["env", "-C", place, f"PYTHONPATH={place}", sys.executable, "-m", "dispatcher"]
    beside = os.path.join(os.path.dirname(sys.executable), "dispatch")
    return [beside] if os.path.exists(beside) else [sys.executable, "-m", "dispatcher"]
