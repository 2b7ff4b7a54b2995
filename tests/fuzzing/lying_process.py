"""The same lies to the command itself: real agents, of which one is put behind a liar.

    dispatch --rsh 'python lying_process.py SEED LIAR {host}' -H n0,n1,n2 ...

As the program of ``--rsh`` this runs the agent on this machine, and of the host ``LIAR`` it
changes what the agent says, frame by frame, as the script decides (``lies.Lies``).
``judge_process`` starts the command and judges what came of it: besides all else the memory that
it took.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
#: seconds until it must have ended, on a machine that does nothing else
MOST_SECONDS = 45.0
#: bytes that a lying host may cost beyond what an honest run takes
MOST_MEMORY = 16 << 20
NAMES = ("n0", "n1", "n2")
LIMITS = (
    "--boot-timeout", "3", "--heartbeat", "0.5", "--max-missed-heartbeats", "8", "--lease", "5",
    "--grace", "0.3", "--check", "none", "--time-limit", "20",
)  # fmt: skip


def judge_process(seed: int) -> str:
    """Script ``seed`` against the command; what came of it in a word. Raises: Harm."""
    from .lies import script
    from .lying import Harm

    liar = script(seed).below(len(NAMES))
    with tempfile.TemporaryDirectory(prefix="dispatch-liar-") as folder:
        code, said, seconds, memory = _run(Path(folder), seed, NAMES[liar])
        try:
            _judge(Path(folder), NAMES[liar], code, said, seconds, memory)
        except AssertionError as harm:
            raise Harm(f"script {seed} of a process, liar {NAMES[liar]}: {harm}") from harm
    return "ok" if code == 0 else "ended"


@cache
def honest_memory() -> int:
    """Bytes that the command takes at most where nobody lies."""
    with tempfile.TemporaryDirectory(prefix="dispatch-liar-") as folder:
        code, said, _, memory = _run(Path(folder), 0, "")
        assert code == 0, said
    return memory


def _run(folder: Path, seed: int, liar: str) -> tuple[int, bytes, float, int]:
    """Exit code, what was shown, seconds, bytes of memory."""
    rsh = f"{sys.executable} {__file__} {seed} {liar or 'nobody'} {{host}}"
    argv = [
        sys.executable, "-m", "dispatcher", "run", "--no-python", *LIMITS, "--rsh", rsh,
        "--log-dir", str(folder / "logs"), "-H", ",".join(NAMES), "sh", "-c",
        'echo "hello from $RANK"',
    ]  # fmt: skip
    begun = time.monotonic()
    with open(folder / "shown", "wb") as shown:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        )  # fmt: skip
        most = 0
        while process.poll() is None:
            most = max(most, _peak(process.pid))
            if time.monotonic() - begun > 2 * MOST_SECONDS:
                process.kill()
            time.sleep(0.05)
    said = (folder / "shown").read_bytes()
    return process.returncode, said, time.monotonic() - begun, most


def _peak(pid: int) -> int:
    """Bytes of memory that a process had at most; what wait(2) tells counts its parent's, too."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def _judge(folder: Path, liar: str, code: int, said: bytes, seconds: float, memory: int) -> None:
    from .lying import OURS, Harm
    from .texts import harmless

    harmless(said)
    if code not in range(256) or b"Traceback" in said or b"internal error" in said:
        raise Harm(f"exit code {code}: {said[-2000:]!r}")
    if code and liar.encode() not in said:
        raise Harm(f"{liar} is not named: {said!r}")
    if seconds > MOST_SECONDS:
        raise Harm(f"it took {seconds:.0f} s")
    if memory > honest_memory() + MOST_MEMORY:
        raise Harm(f"{memory - honest_memory()} bytes more than where nobody lies")
    if {path.name for path in folder.iterdir()} != {"shown", "logs"}:
        raise Harm(f"files outside: {sorted(path.name for path in folder.iterdir())}")
    for path in (folder / "logs" / "latest").resolve().iterdir():
        if not OURS.match(path.name) and path.name != "launcher.log":
            raise Harm(f"a file of nobody's: {path.name}")
        rank = path.name[5:10]
        if path.suffix == ".out" and int(rank) != NAMES.index(liar):
            want = (b"", b"hello from %d\n" % int(rank))
            if path.read_bytes() not in want:
                raise Harm(f"{path.name}: {path.read_bytes()!r}")


def main(seed: int, liar: str, host: str, command: list[str]) -> int:
    """Run ``command`` here, as ``--rsh`` wants it, with lies if ``host`` is the liar."""
    if host != liar:
        os.execvp("/bin/sh", ["/bin/sh", "-c", " ".join(command)])
    sys.path[:0] = [str(TESTS.parent), str(TESTS)]
    from dispatcher.remote.protocol.frames import SYNC, Decoder, WireError, encode
    from fuzzing.lies import Lies, script

    take = script(seed)
    own = take.below(len(NAMES))
    lies = Lies(take, [own], [rank for rank in range(len(NAMES)) if rank != own])
    agent = subprocess.Popen(["/bin/sh", "-c", " ".join(command)], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    decoder, before = Decoder(), b""
    while data := os.read(agent.stdout.fileno(), 1 << 16):
        if before is not None:
            before += data
            at = before.find(SYNC)
            if at < 0:
                continue
            _tell(lies, before[: at + len(SYNC)])
            data, before = before[at + len(SYNC) :], None  # type: ignore[assignment]
        try:
            for frame in decoder.feed(data):
                _tell(lies, encode(frame.kind, frame.body, frame.rank, frame.stream))
        except (WireError, BrokenPipeError):
            break
        if lies.closed_early:
            break
    os.close(1)
    agent.terminate()
    return agent.wait()


def _tell(lies: Any, frame: bytes) -> None:
    lies.feed(frame)
    while said := lies.take(1 << 16):
        view = memoryview(said)
        while view:
            view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
