"""Finding what a run left on a host by its id: a few lines of POSIX sh, and what they answer.

Every process of a run carries ``DISPATCH_RUN_ID`` in the environment it was started
with, and /proc shows that to its owner. So nothing is ever found by a name: only
processes that are ours (the owner of /proc/PID is the uid we log in as) and
whose run id is one of those asked for. Just before a kill both are looked at again,
since a pid may have got a new owner. Who asks is spared: this script, its
parents and what they start carry another run id, or none.

An agent's private folder has the run id in its name, and goes with the processes where agent and
guardian were killed at once: only folders of ours, in the places where agents make them.

The answer is one line a process: ``found PID RUN_ID NAME`` and ``killed PID RUN_ID NAME``;
``left PID ...`` for one that was still there after the last round. Of folders in the folder
NAME: ``found - RUN_ID NAME``, ``removed - ...``, ``kept - ...`` for one that could not be removed.

Not covered: processes that cleared their environment, or overwrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.jobs.registry import is_run_id

#: rounds of looking and killing: a process may fork while it is looked for
ROUNDS = 5
#: processes of one host that are told
MOST = 10_000

_SCRIPT = r"""
kill=$1; shift
exec 2>/dev/null
field() { sed -n "s/^$1:[[:space:]]*//p" /proc/$2/status; }
mine=" $$ "; p=$PPID
while [ "${p:-0}" -gt 1 ]; do
  mine="$mine$p "; p=$(field PPid $p)
done
tag() {
  r=; [ -O /proc/$1 ] || return 1
  r=$(cat /proc/$1/environ | tr '\n\000' ' \n' | sed -n 's/^DISPATCH_RUN_ID=//p') || return 1
  shift; asked "$@"
}
asked() {
  case $r in ''|*[!0-9a-z-]*) return 1;; esac
  [ $# -eq 0 ] && return
  i=$r; for w do [ "$w" = "$i" ] && return; done; return 1
}
folders() {
  t=${TMPDIR%/}; case $t in /tmp|/dev/shm|[!/]*) t=;; esac
  n='dispatch-*-????????'  # as the agent's ``folder`` has it
  for d in ${t:+"$t"/$n} /tmp/$n /dev/shm/$n; do
    [ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ] || continue
    case ${d##*-} in *[!0-9a-f]*) continue;; esac
    r=${d##*/dispatch-}; r=${r%-*}
    asked "$@" || continue
    word=found
    [ $kill = 0 ] || { rm -rf "$d"; word=removed; [ -d "$d" ] && word=kept; }
    echo "$word - $r ${d%/*}"
  done
}
look() {
  word=$1; shift; any=
  for f in $(grep -ls DISPATCH_RUN_ID= /proc/[0-9]*/environ); do
    p=${f#/proc/}; p=${p%/environ}
    case $mine in *" $p "*) continue;; esac
    tag $p "$@" || continue
    case $(field State $p) in ''|Z*|X*) continue;; esac
    n=$(field Name $p)
    any=1
    case $word in
    found|left) echo "$word $p $r $n";;
    killed) tag $p "$@" && kill -KILL $p && echo "killed $p $r $n";;
    esac
  done
  [ "$any" ]
}
[ $kill = 0 ] && { look found "$@"; folders "$@"; exit 0; }
round=0; while look killed "$@"; do
  round=$((round+1)); [ $round -ge ROUNDS ] && break; [ $round -gt 1 ] && sleep 1
done
[ $round -lt ROUNDS ] || look left "$@"
folders "$@"
exit 0
""".replace("ROUNDS", str(ROUNDS))


def words(run_ids: Sequence[str], *, kill: bool) -> tuple[str, ...]:
    """The command that finds what is left of ``run_ids``, of any run if there are none."""
    assert all(map(is_run_id, run_ids))
    assert run_ids or not kill  # never kill what nobody has named
    return ("/bin/sh", "-c", _SCRIPT, "sh", "1" if kill else "0", *run_ids)


@dataclass(frozen=True)
class Tagged:
    """A process of a run on a host, or a folder in the folder ``name`` (``pid`` None).

    what: ``found``, ``killed`` or ``left``; of a folder ``found``, ``removed`` or ``kept``.
    """

    what: str
    pid: int | None
    run_id: str
    name: str


def parse(text: bytes) -> list[Tagged]:
    """What a host's answer tells of; other lines are passed over."""
    found = []
    for line in text.decode("utf-8", "replace").splitlines():
        what, _, rest = line.partition(" ")
        pid, _, rest = rest.partition(" ")
        run_id, _, name = rest.partition(" ")
        is_pid = pid.isascii() and pid.isdigit() and len(pid) < 11
        if not is_run_id(run_id):
            continue
        if is_pid and what in ("found", "killed", "left"):
            found.append(Tagged(what, int(pid), run_id, name[:15]))
        elif pid == "-" and what in ("found", "removed", "kept"):
            found.append(Tagged(what, None, run_id, name[:255]))
    return found[:MOST]
