#!/usr/bin/env python3
"""Command lines of pdsh, clush and parallel-ssh beside what dsx wants for each, run on a cluster.

    scripts/bench/lines.py             # a table: both lines, their letters, output, exit codes
    scripts/bench/lines.py --only 9    # one row, with what both printed

A row is good when both print the same lines, in any order, and leave the same files, and the exit
code is the same, or tells of a failure that the other passes over. What is meant to be different
says how. The row of a peer that is not installed says so; Ansible's is the program ``ansible`` in
PATH, or at ``ANSIBLE=``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import turns

HOSTS = 3


class Row(NamedTuple):
    """peer, ours: command lines. look: shell text that shows the files that they left.

    change: (pattern, text) pairs that make the peer's output ours. differs: what is meant to.
    """

    peer: str
    ours: str
    look: str = ""
    change: tuple[tuple[str, str], ...] = ()
    differs: str = ""


#: pssh's heading of each host, above its lines
_PSSH = ((r"\[\d+\] [\d:]+ \[\w+\] (\w+)\n(\w[^\n]*)", r"\1: \2"),)
#: Ansible's heading of each host, above its line
_ANSIBLE = ((r"(\w+) \| CHANGED \| rc=0 >>\n", r"\1: "),)
#: its record of a host has the line, the last of a terminal there
_RECORD = (
    (r'(?s)(\w+) \| CHANGED => \{.*?"stdout": "(?:[^"]*\\n)?([^"\\]+)(?:\\r)?\\n".*?\n\}',
     r"\1: \2"),
)  # fmt: skip
_COUNT = "the heading tells how many hosts"
_LABELS = "each line has its host's name"
ROWS = (
    Row("pdsh -w n[1-3] hostname", "dsx -w n[1-3] hostname"),
    Row("pdsh -w n[1-3] -x n3 uname -sm", "dsx -w n[1-3] -x n3 uname -sm"),
    Row("pdsh -w n[1-3] uname -r | dshbak -c", "dsx -bw n[1-3] uname -r",
        change=((r"-{16}", "-" * 15), (r"(n\[1-3\])", r"\1 (3)")), differs=_COUNT),
    Row('pdsh -w ^hf "ls /etc/hos*"', 'dsx -w ^hf "ls /etc/hos*"'),
    Row('pdsh -w n[1-3] -S "exit 7"', 'dsx -w n[1-3] -S "exit 7"'),
    Row('pdsh -w n[1-3] "exit 7"', 'dsx -w n[1-3] "exit 7"'),
    Row("pdsh -w n[1-3] -t 5 -u 1 sleep 9", "dsx -w n[1-3] -t 5 -u 1 sleep 9"),
    Row("pdsh -w n1 -N 'echo $HOME'", "dsx -w n1 -N 'echo $HOME'"),
    Row('pdsh -w n[1-3] "echo %h %n"', 'dsx -Pw n[1-3] "echo %h %n"'),
    Row("pdsh -w n1,n2,nosuch hostname", "dsx -w n1,n2,nosuch hostname"),
    Row("WCOLL=hf pdsh hostname", "WCOLL=hf dsx hostname"),
    Row("clush -w n[1-3] -b uname -r", "dsx -w n[1-3] -b uname -r"),
    Row("clush -bw @gpu hostname", "dsx -bw @gpu hostname"),
    Row("clush -a -b uname", "dsx -a -b uname"),
    Row("clush -g gpu,odd -X nested -L hostname", "dsx -g gpu,odd -X nested -L hostname"),
    Row("clush -w n[1-3] --diff 'id; hostname | tr 12 x'",
        "dsx -w n[1-3] --diff 'id; hostname | tr 12 x'"),
    Row("cat f | clush -w n[1-3] cat", "cat f | dsx -Iw n[1-3] cat"),
    Row("clush -w n[1-3] -S -q false", "dsx -w n[1-3] -S -q false"),
    Row("clush -w n[1-3] --copy f --dest /tmp/DIR", "dsx -w n[1-3] --copy f --dest /tmp/DIR",
        look="ssh n1 'cat /tmp/DIR; rm /tmp/DIR'"),
    Row("clush -w n[1-3] --rcopy /etc/passwd --dest .",
        "dsx -w n[1-3] --rcopy /etc/passwd --dest .",
        look="for n in 1 2 3; do cat passwd.n$n n$n/passwd 2>&-; done",
        differs="in a folder for each host"),
    Row("clush -w n[1-3] -f 1 hostname", "dsx -w n[1-3] -f 1 hostname"),
    Row("parallel-ssh -h hf -i hostname", "dsx -H hf hostname", change=_PSSH, differs=_LABELS),
    Row("parallel-ssh -h hf -o out -e err -t 5 hostname", "dsx -H hf -o out -e err -u 5 hostname",
        look="cat out/n1 err/n2",
        change=((r"\[\d+\] [\d:]+ \[\w+\] (\w+)\n", r"\1: \1\n"),), differs="ours shows it, too"),
    Row("parallel-ssh -h hf -I -i <s.sh", "dsx -H hf -I sh <s.sh", change=_PSSH, differs=_LABELS),
    Row("ansible all -i hf -m shell -a 'df /|head -1' -f 2", "dsx -H hf -f 2 'df /|head -1'",
        change=_ANSIBLE, differs=_LABELS),
    Row("ansible all -i hf -m script -a s.sh", "dsx -H hf --script s.sh",
        change=_RECORD, differs=_LABELS),
    Row("ansible all -i hf -b -a whoami", "dsx -H hf --sudo whoami",
        change=_ANSIBLE, differs=_LABELS),
)  # fmt: skip
GROUPS = {
    "groups.conf": "[Main]\ndefault: local\n"
    "[local]\nmap: sed -n 's/^$GROUP: //p' {place}/groups\n"
    "all: sed -n 's/^all: //p' {place}/groups\n"
    "list: sed 's/:.*//' {place}/groups\n",
    "groups": "all: n1,n2,n3\ngpu: n2\nodd: n1,n3\nnested: n3\n",
}


class Ended(NamedTuple):
    """What a line printed on standard output and left in files, and its exit code."""

    out: str
    code: int


def run(line: str, look: str, place: str, folder: str) -> Ended:
    """``line`` in a new folder of its own."""
    here = os.path.join(place, folder)
    os.makedirs(here)
    for name, text in (("hf", "n1\nn2\nn3\n"), ("f", "hello\n"), ("s.sh", "echo from $(uname)\n")):
        with open(os.path.join(here, name), "w") as file:
            file.write(text)
    env = {
        **os.environ, "PDSH_RCMD_TYPE": "ssh", "CLUSTERSHELL_CFGDIR": place,
        "PATH": f"{place}:{os.environ['PATH']}", "ANSIBLE_HOME": f"{place}/ansible-home",
    }  # fmt: skip
    env.pop("WCOLL", None)
    name = f"lines-{os.getpid()}"
    done = [
        subprocess.run(
            ["bash", "-c", text.replace("DIR", name)], cwd=here, env=env, timeout=60, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )
        for text in (line, look)
    ]  # fmt: skip
    return Ended("".join(one.stdout for one in done), done[0].returncode)


def judge(row: Row, peer: Ended, ours: Ended) -> dict[str, str]:
    """``output`` and ``codes`` of the table; what is not good begins with ``NOT``."""
    text = peer.out
    for pattern, new in row.change:
        text = re.sub(pattern, new, text)
    equal = sorted(text.splitlines()) == sorted(ours.out.splitlines())
    output = "NOT equal" if not equal else f"= ({row.differs})" if row.differs else "="
    codes = f"{peer.code}/{ours.code}"
    if peer.code != ours.code:
        codes = codes + " better" if peer.code == 0 else f"NOT {codes}"
    return {"output": output, "codes": codes}


def is_good(line: dict[str, str]) -> bool:
    """Whether a line of the table is as it should be."""
    return "NOT" not in line["output"] + line["codes"]


def program(name: str) -> tuple[str | None, str]:
    """Where the peer ``name`` is; else why its rows are not run."""
    given = os.environ.get("ANSIBLE", "") if name == "ansible" else ""
    where = f"at ANSIBLE={given}" if given else "in PATH"
    return shutil.which(given or name), f"not run: there is no {name} {where}"


def compare(place: str, wanted: Sequence[int]) -> list[dict[str, str]]:
    """The rows of the table; runs on the login host."""
    for name, text in GROUPS.items():
        with open(os.path.join(place, name), "w") as file:
            file.write(text.replace("{place}", place))
    starts = {"dsx": f"{sys.executable} -m dispatcher dsx"}
    if given := program("ansible")[0]:
        starts["ansible"] = shlex.quote(given)
    for name, words in starts.items():
        short = os.path.join(place, name)
        with open(short, "w") as file:
            file.write(f'#!/bin/sh\nexec {words} "$@"\n')
        os.chmod(short, 0o755)
    found = []
    for number, row in enumerate(ROWS, 1):
        name = re.findall(r"pdsh|clush|parallel-ssh|ansible", row.peer)[0]
        if number not in wanted:
            continue
        line = {"row": str(number), "peer": row.peer, "ours": row.ours}
        path, why = program(name)
        if path is None:
            found.append({**line, "output": why, "codes": ""})
            continue
        theirs = run(row.peer, row.look, place, f"{number}-peer")
        ours = run(row.ours, row.look, place, f"{number}-ours")
        line |= judge(row, theirs, ours)
        found.append({**line, "theirs": theirs.out, "got": ours.out})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="compare command lines on the cluster rig")
    parser.add_argument("--only", type=int, metavar="ROW", help="one row, with all that it printed")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        wanted = [options.only] if options.only else range(1, len(ROWS) + 1)
        json.dump(compare(options.inside, wanted), sys.stdout)
        return 0
    found = turns.on_login(__file__, HOSTS)
    for line in found:
        letters = f"{len(line['peer'])} {len(line['ours'])}"
        print(f"{line['row']:>2}  {line['peer']:<50}  {line['ours']:<42}  {letters}  "
              f"{line['codes']:<11}  {line['output']}")  # fmt: skip
        if options.only:
            print(f"--- theirs\n{line['theirs']}--- ours\n{line['got']}")
    tried = [line for line in found if line["codes"]]
    mean = [sum(len(line[who]) for line in found) / len(found) for who in ("peer", "ours")]
    print(f"letters of a line: {mean[0]:.1f} and {mean[1]:.1f}; {len(tried)} rows tried")
    return 0 if all(map(is_good, tried)) else 1


if __name__ == "__main__":
    sys.exit(main())
