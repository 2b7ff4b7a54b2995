"""Finds the processes that compute on the GPUs of a host, in the output of a script. Pure.

The script asks nvidia-smi and /proc. It reads the names of programs and users, and no arguments,
which may hold secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dispatcher.model.frozen import Value, value
from dispatcher.model.host import visible
from dispatcher.model.hostset import fold
from dispatcher.model.names import fold_numbers

#: a line for each GPU, and each process that computes. $1: a process; later ones do not count
SCRIPT = r"""
exec 2>/dev/null
export PATH="$PATH:/usr/bin:/bin" LC_ALL=C
q() { nvidia-smi --query-"$1" --format=csv,noheader,nounits; }
used=$(q compute-apps=gpu_uuid,pid)
[ "$used" ] || exit 0
q gpu=index,uuid | sed 's/^/gpu /'
echo "visible $CUDA_VISIBLE_DEVICES"
[ ! "$1" ] || echo "born $(cat "/proc/$1/stat")"
echo "$used" | head -n 256 | while IFS=', ' read -r uuid pid; do
  echo "use $uuid $pid $(stat -c %U "/proc/$pid") $(tr -s '\n' ' ' <"/proc/$pid/stat")"
done
"""
#: groups in a line
MOST_SHOWN = 4

_GPU = re.compile(r"gpu (\d{1,4}), (GPU-[\w-]{1,80})")
_USE = re.compile(r"use (GPU-[\w-]{1,80}) (\d{1,10}) (\S{1,64}) \d+ \((.{0,64})\) (.{1,1000})")
_BORN = re.compile(r"born \d+ \(.{0,64}\) (.{1,1000})")


@value
class GpuUser(Value):
    """A process that computes on ``gpus``, of a ``user`` of its host."""

    pid: int
    user: str
    program: str
    gpus: tuple[int, ...]


def users(said: bytes, chosen: Sequence[str] | None) -> list[GpuUser]:
    """The users of the ``chosen`` GPUs in the answer to ``SCRIPT``.

    chosen: as in CUDA_VISIBLE_DEVICES; None: all that the host's own variable leaves. Users of
    parts of GPUs (MIG) are not found, and neither are processes that /proc does not show: these
    may be ranks in a container.
    """
    lines = said.decode("utf-8", "replace").splitlines()
    gpus = {found[2]: int(found[1]) for line in lines if (found := _GPU.fullmatch(line))}
    if chosen is None:
        own = "".join(line[8:] for line in lines if line.startswith("visible "))
        chosen = visible(own, len(gpus)) if own else [*gpus]
    ours = [_born(found[1]) for line in lines if (found := _BORN.fullmatch(line))]
    of: dict[tuple[int, str, str], list[int]] = {}
    for found in filter(None, map(_USE.fullmatch, lines)):
        uuid, pid, user, program, stat = found.groups()
        is_ours = any(name == str(gpus.get(uuid)) or uuid.startswith(name) for name in chosen)
        if uuid in gpus and is_ours and (not ours or _born(stat) < ours[0]):
            of.setdefault((int(pid), user, program), []).append(gpus[uuid])
    return [GpuUser(*one, tuple(sorted(set(on)))) for one, on in of.items()]


def _born(stat: str) -> int:
    """When it was started, of the words of /proc/PID/stat after the name; 0 if that is unknown."""
    words = stat.split()
    return int(words[19]) if len(words) > 19 and words[19].isdecimal() else 0


def users_text(found: Mapping[str, Sequence[GpuUser]]) -> str:
    """``n[1-2]: python3 of anna (GPUs 0-3, pid 4711 on n1)``: by program and user. found: by host.

    It is not sanitized.
    """
    groups: dict[tuple[str, str], list[tuple[str, GpuUser]]] = {}
    for host, each in found.items():
        for one in each:
            groups.setdefault((one.program, one.user), []).append((host, one))
    shown = []
    for (program, user), those in [*groups.items()][:MOST_SHOWN]:
        hosts = list(dict.fromkeys(host for host, _ in those))
        gpus = sorted({gpu for _, one in those for gpu in one.gpus})
        where = f" on {hosts[0]}" if len(hosts) > 1 else ""
        pid = f"pid {those[0][1].pid}{where}"
        text = f"GPU{'s' if len(gpus) > 1 else ''} {fold_numbers(gpus)}, {pid}"
        shown.append(f"{fold(hosts)}: {program} of {user} ({text})")
    more = len(groups) - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else [])])
