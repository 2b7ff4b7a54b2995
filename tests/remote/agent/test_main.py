"""The agent's first steps, from its files: where the link goes, and what ranks do not inherit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dispatcher.remote.agent import main
from dispatcher.remote.protocol.frames import SYNC, Decoder, Frame, control
from dispatcher.remote.protocol.packing import unpack
from remote.agent.played import PREPARE

HOUSE = str(Path(main.__file__).parents[3])

INHERITED = """
import os
from dispatcher.remote.agent import main
for fd in (3, 9):
    os.dup2(1, fd)
main._keep_inherited()
print([os.get_inheritable(fd) for fd in (0, 1, 2, 3, 9)])
"""


def test_only_the_standard_descriptors_are_passed_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INHERITED], env={**os.environ, "PYTHONPATH": HOUSE},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "[True, True, True, False, False]\n"


def test_the_link_is_moved_away_and_the_code_is_the_job_s() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from dispatcher.remote.agent.main import main; main()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": HOUSE}, bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(control("prepare", **PREPARE))
        data = b""
        decoder = Decoder()
        frames: list[Frame] = []
        while not frames:
            data = process.stdout.read(1 << 16)
            assert data, process.stderr.read()
            frames += decoder.feed(data.removeprefix(SYNC))
        pid = unpack(frames[0].body)["facts"]["pid"]
        fds = Path(f"/proc/{pid}/fd")
        links = [os.readlink(fds / str(fd)) for fd in (0, 1, 2)]
        assert links[0] == "/dev/null"
        assert links[1] == links[2] == os.readlink(f"/proc/{process.pid}/fd/2")
        process.stdin.write(control("finish"))
        rest = decoder.feed(process.stdout.read(1 << 16))
        swept = unpack(rest[-1].body)
        assert (swept["type"], swept["killed"], swept["left"]) == ("node.swept", 0, [])
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
