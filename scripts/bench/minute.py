#!/usr/bin/env python3
"""A minute of flood, at readers that do not keep up: what the launcher's memory does.

    scripts/bench/minute.py                          8 hosts, 100 MB/s offered by each, 60 s
    scripts/bench/minute.py --seconds 10 terminal    one case only

``pipe``: labelled lines to a program that reads as fast as it can. ``terminal``: a terminal that
is paused until the ranks are done. ``disk``: ``--log-dir`` on a disk of 20 MB/s. ``wrote`` is what
the ranks could write, ``left out`` what the screen counted as not shown, and ``lost`` what nobody
can account for. Who is held back writes less than was offered; nobody may be held back by a
terminal.

Not a test: it prints, the tests judge.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import peers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from testbed.cluster import Cluster
from testbed.peak import Peak

WIDTH = 100
DISK = 20_000_000  # bytes/s
RANK = f"""
import os, sys, time
rate, seconds, place = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
block = b"".join(b"%0{WIDTH - 1}d\\n" % n for n in range(10000))
began, sent = time.monotonic(), 0
while (now := time.monotonic() - began) < seconds or sent % {WIDTH}:
    if sent > rate * now and not sent % {WIDTH}:
        time.sleep(0.002)
        continue
    at = sent % len(block)
    sent += os.write(1, block[at : at + 65536 if now < seconds else at - at % {WIDTH} + {WIDTH}])
with open(place + "/wrote-" + os.environ["RANK"], "w") as file:
    file.write(str(sent))
"""
#: dispatch with log files on a disk that takes ``DISK``
SLOW = f"""
import sys, time
from dispatcher.output.files import rank_logs
from dispatcher.cli import console
write = rank_logs.write_all
def slowly(fd, data):
    time.sleep(len(data) / {DISK})
    write(fd, data)
rank_logs.write_all = slowly
sys.argv[0] = "dispatcher"
console()
"""


class Case:
    """One run. words: of dispatch. Gives the rank's bytes that were shown, and left out."""

    def __init__(self, cluster: Cluster, rate: float, seconds: float) -> None:
        self.cluster = cluster
        program = os.path.join(cluster.shared, "minute.py")
        with open(program, "w") as file:
            file.write(RANK)
        self.where = ["-H", cluster.hostfile(slots=1), program]
        self.where += [str(rate * 1e6), str(seconds), cluster.shared]
        self.peak = 0.0

    def wrote(self) -> list[int]:
        """What each rank that is done has written."""
        found = []
        for path in glob.glob(os.path.join(self.cluster.shared, "wrote-*")):
            with open(path) as file, contextlib.suppress(ValueError):
                found.append(int(file.read()))
        return found

    def pipe(self) -> tuple[int, int]:
        process = self.cluster.popen([*peers.dispatch(), *self.where], stdout=subprocess.PIPE)
        peak, lines = Peak(process, "dispatch"), 0
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 20):
            lines += data.count(b"\n")
        self.end(process, peak)
        return lines * WIDTH, 0

    def terminal(self) -> tuple[int, int]:
        master, slave = pty.openpty()
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        argv = [*peers.dispatch(), *self.where]
        process = self.cluster.popen(argv, stdout=slave, stderr=slave, env={"TERM": "dumb"})
        peak = Peak(process, "dispatch")
        os.close(slave)
        while len(self.wrote()) < len(self.cluster.hosts) and process.poll() is None:
            time.sleep(0.2)
        text = bytearray()
        with contextlib.suppress(OSError):  # EIO: all have closed it
            while data := os.read(master, 1 << 16):
                text += data
        os.close(master)
        self.end(process, peak)
        plain = re.sub(rb"\x1b\[[0-9;]*m", b"", text)
        cut = " \N{LEFTWARDS ARROW WITH HOOK}\n".encode()
        rows = re.findall(rb"^\[\d+\] ([^\n]*\n)", plain, re.M)
        shown = sum(len(line.removesuffix(cut)) for line in rows)
        counts = re.findall(rb"^\.\.\. ([\d,]+) bytes of [^\n]* not shown$", plain, re.M)
        return shown, sum(int(count.replace(b",", b"")) for count in counts)

    def disk(self) -> tuple[int, int]:
        logs = os.path.join(self.cluster.shared, "logs")
        words = ["--only-ranks", "none", "-q", "--log-dir", logs, *self.where]
        process = self.cluster.popen([sys.executable, "-c", SLOW, *words])
        self.end(process, Peak(process))
        kept = glob.glob(os.path.join(logs, "latest/rank-*.out"))
        return sum(os.path.getsize(path) for path in kept), 0

    def end(self, process: subprocess.Popen[bytes], peak: Peak) -> None:
        if process.wait() != 0:
            print(f"exit code {process.returncode}")
        self.peak = peak.mib()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="which cases to run [all]")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=100, help="offered by each rank, MB/s")
    options = parser.parse_args()
    print(f"{options.hosts} hosts, {options.rate:g} MB/s offered by each for {options.seconds:g} s")
    print(f"{'':10}{'s':>7}{'wrote MB':>10}{'MB/s':>7}{'left out MB':>13}{'lost':>6}{'rss MiB':>9}")
    for name in ("pipe", "terminal", "disk"):
        if options.names and name not in options.names:
            continue
        with Cluster(options.hosts) as cluster:
            case = Case(cluster, options.rate, options.seconds)
            run: Callable[[], tuple[int, int]] = getattr(case, name)
            began = time.monotonic()
            shown, left_out = run()
            took, wrote = time.monotonic() - began, sum(case.wrote())
        print(
            f"{name:10}{took:7.1f}{wrote / 1e6:10.0f}{wrote / took / 1e6:7.0f}"
            f"{left_out / 1e6:13.0f}{wrote - shown - left_out:6}{case.peak:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
