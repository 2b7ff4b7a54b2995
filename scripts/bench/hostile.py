#!/usr/bin/env python3
"""What one hostile host costs the launcher: memory, time, and what the user then reads.

    scripts/bench/hostile.py                  # every attack, and an honest host to compare with
    scripts/bench/hostile.py notices rekeys   # some of them
    scripts/bench/hostile.py --paused         # on a terminal that takes nothing meanwhile

A real launcher reaches two hosts by a command: an honest one, and one that speaks the protocol and
lies (``--play``). Attacks below the protocol come from an SSH server of our own. *MiB* is how far
its peak lies above that of the same job with an honest host in the liar's place, which comes first;
*CPU s* and *s* are since the ranks ran: a job's end, which each has, takes 0.2 s of a core.
Beside floods of SSH packets stands ``output``: an honest command that writes as many bytes.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dispatcher.bootstrap import payload  # noqa: E402
from dispatcher.remote.protocol.frames import (  # noqa: E402
    HEADER,
    SYNC,
    Decoder,
    control,
    encode,
)  # fmt: skip
from dispatcher.remote.protocol.packing import unpack  # noqa: E402

#: seconds of an attack, after which who has not been cut off ends as if all were well
SECONDS = 10.0
MIB = 1 << 20
#: what the honest host's rank says
RUNS = b"it stands"

FACTS = {
    "hostname": "evil", "pid": 7, "python": "3.8.0", "cores": 2, "gpus": 0,
    "addresses": ["127.0.0.1"], "machine": "evil", "error_folder": None, "port": None,
}  # fmt: skip


def barriers() -> Iterator[bytes]:
    """One that nobody else comes to after the other."""
    for tag in range(10**6):
        yield control(
            "pmi.committed", world=0, fence=f"WORLD:{tag}", epoch=0, keys=bytes(900 << 10)
        )


def names() -> Iterator[bytes]:
    """Published ones."""
    for number in range(10**6):
        name = b"%04000d" % number
        yield control("pmi.asked", rank=1, verb="publish", service=name, port=name)


def again(*frames: bytes) -> Callable[[], Iterator[bytes]]:
    """The same for ever."""
    joined = b"".join(frames)
    many = joined * max(1, (64 << 10) // len(joined))

    def forever() -> Iterator[bytes]:
        while True:
            yield many

    return forever


def once(data: bytes) -> Callable[[], Iterator[bytes]]:
    """That, and silence."""
    return lambda: iter([data])


SPAWN = control("pmi.spawn_asked", rank=1, segments=[[1, [b"id"], [[b"host", b"good"]]]], preput=[])
#: name -> what is said once the ranks run
LIES: dict[str, Callable[[], Iterator[bytes]]] = {
    "notices": again(control("node.noticed", text="x" * 4000)),
    "short notices": again(control("node.noticed", text="")),
    "heartbeats": again(control("node.heard")),
    "samples": again(
        control("node.sampled", at=1.0, ranks=[], gpus=[[0, *[1.0] * 7, 1, []]] * 4096, late=False)
    ),
    "questions": again(control("mpi.inside", ranks=[1] * 99, over=[])),
    "waits": again(control("pmi.waiting", never=[1], absent=[], seconds=1.0)),
    "libraries": again(control("mpi.found", library="x" * 4000, served="PMI-1", rank=1)),
    "objects": again(encode(1, b"d" + b"s4:typel" + b"le" * (400 << 10) + b"ee")),
    "half a frame": once(HEADER.pack(1, 0, 0, 0, MIB) + bytes(MIB - 1)),
    "huge frame": once(HEADER.pack(1, 0, 0, 0, 16 * MIB) + bytes(MIB)),
    "barriers": barriers,
    "names": names,
    "spawns": again(SPAWN),
    "stacks": again(
        control("node.stacks", number=1, ranks=[[1, 9, "S", "proc", bytes(256 << 10)]] * 3)
    ),
    "rests": again(control("node.paused")),
    "exits": again(control("rank.exited", rank=1, status=0)),
    "another's rank": again(control("rank.exited", rank=0, status=0)),
}  # fmt: skip


def play(lie: str) -> None:
    """Be the agent of the second host, which tells ``lie``."""
    out, first, decoder = 1, payload.payload(), Decoder()
    if lie == "noise":
        while True:
            os.write(out, bytes(64 << 10))
    os.write(out, SYNC)
    heard, until = b"", 0.0
    while True:
        ready, _, _ = select.select([0], [], [], max(0.0, until - time.monotonic()) if until else 9)
        if not ready and until:
            break
        heard += os.read(0, MIB)
        if len(heard) < len(first):
            continue
        frames = decoder.feed(heard[len(first) :])
        heard = first
        for order in (unpack(frame.body) for frame in frames):
            if order["type"] == "prepare":
                os.write(out, control("node.ready", facts=FACTS, problems=[], attempt=0))
            elif order["type"] == "probe":
                os.write(out, control("node.probed", reached=order["addresses"]))
            elif order["type"] == "start_ranks":
                os.write(out, control("rank.spawned", pids=[[1, 9]]))
                until = time.monotonic() + SECONDS
                if lie == "standard error":
                    threading.Thread(
                        target=flood, args=(2, again(b"x" * 4096)), daemon=True
                    ).start()
                elif lie != "honest":
                    threading.Thread(target=flood, args=(out, LIES[lie]), daemon=True).start()
            elif order["type"] == "ping" and lie == "honest":
                os.write(out, control("node.heard"))
    os.write(out, control("rank.exited", rank=1, status=0))
    for stream in (1, 2):
        os.write(out, encode(3, bytes(8), 1, stream))
    time.sleep(1.0)
    os.write(out, control("node.swept", killed=0, left=[]))


def flood(fd: int, what: Callable[[], Iterator[bytes]]) -> None:
    """Write it for as long as somebody takes it."""
    try:
        for piece in what():
            left = memoryview(piece)
            while left:
                left = left[os.write(fd, left) :]
    except OSError:
        pass


# -- below our protocol ------------------------------------------------------------------


def packets(transport: Any, *kinds: int, body: bytes = b"") -> None:
    """Send packets of these kinds for ever."""
    from paramiko import Message

    while True:
        for kind in kinds:
            message = Message()
            message.add_byte(bytes([kind]))
            message.add_bytes(body)
            transport._send_user_message(message)


def rekeys(transport: Any) -> None:
    """Ask for new keys as soon as the last are there."""
    while True:
        transport.renegotiate_keys()


def costly_keys(transport: Any) -> None:
    """The same, and of the exchanges that are offered choose the one that costs most."""
    transport._preferred_kex = ("diffie-hellman-group16-sha512",)
    rekeys(transport)


def rest(transport: Any) -> None:
    """Do nothing, as an honest one whose command takes long."""
    time.sleep(SECONDS)


def write(transport: Any) -> None:
    """What an honest command may: output, of as many bytes as a flood of small packets has."""
    (channel,) = transport._channels.values()
    for _ in range(40):
        channel.sendall(bytes(8 << 10))
    time.sleep(SECONDS)


#: name -> what an SSH server does once the command was asked for
SERVERS: dict[str, Callable[[Any], None]] = {
    "rest": rest,
    "output": write,
    "ignored packets": lambda transport: packets(transport, 2, body=bytes(4)),
    "large packets": lambda transport: packets(transport, 2, body=bytes(200 << 10)),
    "explanations": lambda transport: packets(transport, 4, body=b"\1" + bytes(8)),
    "requests": lambda transport: packets(transport, 80, body=b"\0\0\0\1x\1"),
    "empty data": lambda transport: packets(transport, 94, body=bytes(8)),
    "windows": lambda transport: packets(transport, 93, body=bytes(4) + b"\0\0\0\1"),
    "banners": lambda transport: packets(transport, 53, body=b"\0\0\0\4evil\0\0\0\0"),
    "rekeys": rekeys,
    "costly keys": costly_keys,
    "extensions": lambda transport: packets(transport, 7, body=b"\xff" * 4),
}


def serve(act: Callable[[Any], None], folder: Path) -> int:
    """The port of an SSH server for anybody, which does ``act``; ``folder`` gets a config."""
    import paramiko

    class Anybody(paramiko.ServerInterface):  # type: ignore[misc]
        def check_auth_publickey(self, username: str, key: object) -> int:
            return int(paramiko.AUTH_SUCCESSFUL)

        def get_allowed_auths(self, username: str) -> str:
            return "publickey"

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

        def check_channel_exec_request(self, channel: object, command: bytes) -> bool:
            return True

    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(folder / "key"))
    server = socket.create_server(("127.0.0.1", 0))
    port = int(server.getsockname()[1])
    line = f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"
    (folder / "known").write_text(line)
    (folder / "config").write_text(
        f"HostName 127.0.0.1\nPort {port}\nUser any\nIdentityAgent none\n"
        f"IdentityFile {folder}/key\n"
        f"UserKnownHostsFile {folder}/known\nGlobalKnownHostsFile none\n"
    )

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.start_server(event=threading.Event(), server=Anybody())
            channel = transport.accept(9)  # which lives as long as somebody has it
            time.sleep(0.3)
            try:
                act(transport)
            except Exception:  # the launcher has hung up
                transport.close()
            del channel

    threading.Thread(target=accept, daemon=True).start()
    return port


# -- the launcher ------------------------------------------------------------------------


class Cost:
    """What a process has taken until its end, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak, self.cpu = 0.0, 0.0
        self._began = time.monotonic()
        self.seconds = 0.0
        self.started = (0.0, 0.0)  # seconds and CPU when the ranks ran

    @property
    def since(self) -> tuple[float, float]:
        """(seconds of a core, seconds) since the ranks ran, which is when an attack begins."""
        return self.cpu - self.started[1], self.seconds - self.started[0]

    def look(self) -> None:
        """Note where it stands."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        found = dict(re.findall(r"^(VmHWM):\s+(\d+)", status, re.M))
        if "VmHWM" not in found:
            return  # it has just ended
        self.peak = int(found["VmHWM"]) / 1024
        self.cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.seconds = time.monotonic() - self._began


def run(argv: list[str], paused: bool) -> tuple[Cost, int, str]:
    """Run the launcher: its cost, its exit code, what it said last."""
    master, slave = pty.openpty()
    streams = slave if paused else subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "dispatcher", *argv], cwd=ROOT, stdin=subprocess.DEVNULL,
        stdout=streams, stderr=streams if paused else subprocess.STDOUT, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "DISPATCH_CONFIG": "/dev/null"},
    )  # fmt: skip
    os.close(slave)
    cost, said = Cost(process.pid), b""
    source = master if paused else process.stdout.fileno()  # type: ignore[union-attr]
    os.set_blocking(source, False)
    while process.poll() is None:
        cost.look()
        if not cost.started[0] and (RUNS in said or (paused and cost.seconds > 2)):
            cost.started = cost.seconds, cost.cpu
        if not paused or cost.seconds > SECONDS + 3:
            try:
                said += os.read(source, MIB)
            except OSError:
                pass
        time.sleep(0.1)
    try:
        while more := os.read(source, MIB):
            said += more
    except OSError:
        pass
    os.close(master)
    return cost, process.returncode, said.decode("utf-8", "replace")


def job(lie: str, paused: bool, folder: Path) -> tuple[Cost, int, str]:
    """A job on an honest host and one that tells ``lie``."""
    script = folder / "rsh"
    script.write_text(
        "#!/bin/sh\nhost=$1; shift\n"
        f'[ "$host" = good ] && exec sh -c "$*"\nexec {sys.executable} {__file__} --play "{lie}"\n'
    )
    script.chmod(0o700)
    words = ["-H", "good:1,evil:1", "--rsh", f"{script} {{host}}", "--log-dir"]
    logs = folder / "logs"
    program = ["sh", "-c", f"echo {RUNS.decode()}; sleep {SECONDS:.0f}"]
    return run([*words, str(logs), "--no-python", *program], paused)


def exec_(act: Callable[[Any], None], paused: bool, folder: Path) -> tuple[Cost, int, str]:
    """A command on a host whose SSH server attacks."""
    serve(act, folder)
    words = ["exec", "-w", "evil", "--ssh-config", str(folder / "config")]
    return run([*words, "--command-timeout", f"{SECONDS:.0f}", "true"], paused)


def last_words(said: str) -> str:
    """The line that says what the host did."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    lines = [line.strip() for line in plain.splitlines() if "evil" in line and "hint: " not in line]
    named = [line for line in lines if line.startswith("error")] or lines or [""]
    return named[-1][:150]


def attacked(attack: str, paused: bool) -> tuple[Cost, int, str]:
    """What ``attack`` costs; "honest" and "rest" are what there is to compare with."""
    with tempfile.TemporaryDirectory() as name:
        if attack in SERVERS:
            return exec_(SERVERS[attack], paused, Path(name))
        return job(attack, paused, Path(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK")
    parser.add_argument("--paused", action="store_true", help="on a terminal that takes nothing")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.play:
        play(asked.play)
        return
    every = ["honest", *LIES, "standard error", "noise", *SERVERS]
    print(f"{'attack':16} {'MiB':>6} {'CPU s':>5} {'s':>5} {'lines':>6} {'exit':>4}  said")
    base: dict[str, Cost] = {}
    for attack in asked.attacks or every:
        like = "rest" if attack in SERVERS else "honest"
        if like not in base:
            base[like] = attacked(like, asked.paused)[0]
        cost, code, said = attacked(attack, asked.paused)
        more, (cpu, seconds) = cost.peak - base[like].peak, cost.since
        print(
            f"{attack:16} {more:6.1f} {cpu:5.2f} "
            f"{seconds:5.1f} {len(said.splitlines()):6} {code:4}  {last_words(said)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
