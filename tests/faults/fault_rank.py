"""One rank that misbehaves as it is told; the fault tests and ``scripts/chaos`` run it.

    fault_rank.py KIND [RANK]      rank RANK (default 1) does KIND, every other rank works on

Every rank first says ``up RANK PID`` on standard output. Standard library only; what the ranks
that ``work`` leave for others to judge by is in ``trail``.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import trail

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
#: bytes of a flood
FLOOD = 32 << 20


def sleep_on() -> None:
    while True:
        time.sleep(1000)


def stray(*kept: int) -> None:
    """Leave a process that made its own session, lost its parents and holds no pipe of ours.

    kept: descriptors that it inherits.
    """
    command = "sleep 9999 >/dev/null 2>&1 & exit 0"
    subprocess.run(["setsid", "sh", "-c", command], check=True, stdout=2, pass_fds=kept)


def ignore(*numbers: int) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def meet(place: str) -> None:
    """Wait until every rank has come to the folder ``place``."""
    open(os.path.join(place, f"here-{RANK}"), "w").close()
    while sum(n.startswith("here-") for n in os.listdir(place)) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


def fail() -> None:
    def deeper() -> None:
        raise ValueError(f"rank {RANK} has no luck")

    deeper()


def save(*_: object) -> None:
    """A checkpoint that takes half a second."""
    os.write(1, b"saving\n")
    time.sleep(0.5)
    os.write(1, b"saved\n")
    sys.exit(0)


def burn() -> None:
    """Start 300 processes, each with a session of its own and all with our output open."""
    for _ in range(300):
        if os.fork() == 0:
            os.setsid()
            sleep_on()
    os.write(1, b"burning\n")
    sleep_on()


def flood(size: int) -> None:
    """``size`` bytes in long and short lines."""
    block = b"".join(b"%d %s\n" % (n, b"x" * (n % 300)) for n in range(1000))
    while size > 0:
        size -= os.write(1, block[:size])


def line(rank: int, number: int) -> bytes:
    """Line ``number`` of the work of ``rank``: anybody can say what it must be."""
    return f"{rank} {number} {hashlib.sha256(b'%d %d' % (rank, number)).hexdigest()}\n".encode()


def work(seconds: float, place: str, habits: tuple[str, ...]) -> None:
    """Write lines for ``seconds``; ``trail`` says in ``place`` what of, whatever ends us."""
    if "stubborn" in habits and RANK % 3 == 0:
        ignore(signal.SIGTERM, signal.SIGINT)
    lock = trail.enter(place, ATTEMPT, RANK)
    if "stray" in habits and RANK % 2 == 0:
        stray(lock)
    note = trail.counter(place, ATTEMPT, RANK)
    end, number, total = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        data = line(RANK, number)
        os.write(1, data)  # less than PIPE_BUF: whole or not at all
        number, total = number + 1, total + len(data)
        note(-total)
        time.sleep(random.choice((0, 0.001, 0.02)))
    note(total)


def close() -> None:
    os.close(1)
    os.close(2)
    sleep_on()


KINDS = {
    "sleep": sleep_on,
    "exit": lambda: sys.exit(3),
    "early": lambda: sys.exit(0),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": fail,
    "flood": lambda: flood(FLOOD),
    "longline": lambda: flood_line(FLOOD),
    "close": close,
    "hold": lambda: (subprocess.Popen(["sleep", "9999"]), sys.exit(0)),
    "stray": sleep_on,
    "burn": burn,
}


def flood_line(size: int) -> None:
    """``size`` bytes without an end of line."""
    while size > 0:
        size -= os.write(1, b"x" * min(size, 65536))


def main(kind: str, *words: str) -> None:
    if kind == "stubborn":  # before anybody knows that we are up
        ignore(signal.SIGTERM, signal.SIGINT)
    elif kind == "save":
        signal.signal(signal.SIGTERM, save)
    elif kind == "stray" and int(words[0] if words else 1) == RANK:
        stray()
    print("up", RANK, os.getpid(), flush=True)
    if kind == "work":
        work(float(words[0]), words[1], words[2:])
    elif kind in ("stubborn", "save"):
        sleep_on()
    elif kind == "all raise":
        ignore(signal.SIGTERM)  # that of who was first
        meet(words[0])
        fail()
    elif int(words[0] if words else 1) == RANK:
        KINDS[kind]()
    else:
        sleep_on()


if __name__ == "__main__":
    main(*sys.argv[1:])
