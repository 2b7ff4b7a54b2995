#!/usr/bin/env python3
"""How long ``dispatch --help`` takes from cold, and which imports it spends that on.

    scripts/bench/import_time.py --repeat 30

``bare`` is the same Python doing nothing; the difference is ours. ``paramiko`` is what every run
and exec over SSH imports after that: as it comes, and by ``paramiko_transport.preload``, which
hides from it what it need not load. Not a test.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import peers

PRELOAD = "from dispatcher.transport.ssh.paramiko_transport import preload; preload()"


def seconds(argv: Sequence[str]) -> float:
    started = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.monotonic() - started


def slowest_imports(count: int) -> list[tuple[float, str]]:
    """``(own milliseconds, module)`` of the slowest imports of one ``--help``."""
    argv = [sys.executable, "-X", "importtime", "-m", "dispatcher", "--help"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stderr
    found = re.findall(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)", said)
    return sorted(((int(own) / 1000, name) for own, name in found), reverse=True)[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description="cold start of dispatch --help")
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    wanted = {
        "bare": [sys.executable, "-c", "pass"],
        "dispatch --help": [*peers.dispatch(), "--help"],
        "transport": [sys.executable, "-c", PRELOAD.partition(";")[0]],
        "+ paramiko": [sys.executable, "-c", f"{PRELOAD.partition(';')[0]}; import paramiko"],
        "+ preload()": [sys.executable, "-c", PRELOAD],
    }
    times: dict[str, list[float]] = {name: [] for name in wanted}
    for turn in range(options.repeat + 1):
        for name, argv in wanted.items():
            took = seconds(argv)
            if turn:  # the first fills the disk cache
                times[name].append(took)
    for name, found in times.items():
        middle, least = statistics.median(found) * 1000, min(found) * 1000
        print(f"{name:16} median {middle:6.1f} ms   min {least:6.1f} ms")
    print("slowest imports (own time):")
    for own, module in slowest_imports(8):
        print(f"  {own:6.1f} ms  {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
