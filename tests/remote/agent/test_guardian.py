"""The guardian and its pipe, without an agent: how long it waits, for whom, and what it does then.

With real agents: ``test_endings``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cases import cases
from rig import gone, wait_for

from dispatcher.remote.agent import guardian
from dispatcher.remote.agent.guardian import Guardian, GuardianPipe
from dispatcher.remote.host import ssh_peer
from remote.driver import Os, noting

#: a guardian whose agent is a shell with the pipe as its descriptor 3. argv: the text, first words
WATCH = """
import os, signal, sys
from dispatcher.remote.agent.guardian import Guardian
from dispatcher.remote.host import proctree
proctree.become_subreaper()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
pipe_in, pipe_out = os.pipe()
pid = os.fork()
if pid == 0:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.dup2(pipe_out, 3)
    os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
os.close(pipe_out)
os._exit(Guardian(pid, 0, pipe_in, os.fsencode(sys.argv[2])).watch())
"""


#: one that is told to end before its own fork has returned; its agent ends as one that has swept
EARLY = """
import os, signal
from dispatcher.remote.agent import guardian
told, tell = os.pipe()
fork = os.fork
def slow():
    pid = fork()
    if pid:
        os.read(told, 1)
    return pid
os.fork = slow
pipe = guardian.fork_guardian(0)
signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
pipe.expect(60, 60, 0, "")
pipe.alive()
os.kill(os.getppid(), signal.SIGTERM)
os.write(tell, b"x")
while True:
    signal.pause()
"""


class Watched:
    def __init__(self, text: str, first: str = "", program: str = WATCH) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, text, first], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(guardian.__file__).parents[3])},
        )  # fmt: skip

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said; the link stays open until then."""
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        return self.process.wait(60), said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def start(*what: str) -> Watched:
        made.append(Watched(*what))
        return made[-1]

    yield start
    for one in made:
        one.close()


class TestWatch:
    @pytest.mark.parametrize(
        ("text", "code", "said"),
        [
            ("exit 0", 0, ""),
            ("exit 3", 3, ""),
            ("exit 4", 4, "it crashed\n"),
            ("kill -KILL $$", 128 + 9, "the agent was killed by signal 9\n"),
            ("kill -TERM $$", 128 + 15, "the agent was killed by signal 15\n"),
        ],
    )
    def test_how_the_agent_ended(
        self, watch: Callable[..., Watched], tmp_path: Path, text: str, code: int, said: str
    ) -> None:
        """Only one that swept itself, and says so by its code, has removed its folder."""
        (tmp_path / "my folder").mkdir()
        assert watch(text, f"60 60 0 {tmp_path}/my folder\n").end() == (code, said)
        assert (tmp_path / "my folder").exists() == (code in (0, 3))

    def test_what_a_dead_agent_left_is_killed(
        self, watch: Callable[..., Watched], tmp_path: Path
    ) -> None:
        left = f"setsid sleep 300 3>&- >/dev/null 2>&1 & echo $! > {tmp_path}/pid; kill -KILL $$"
        assert watch(left).end()[0] == 128 + 9
        assert gone(int((tmp_path / "pid").read_text()))

    def test_one_that_shows_no_sign_of_life_is_killed(
        self, watch: Callable[..., Watched], tmp_path: Path
    ) -> None:
        (tmp_path / "folder").mkdir()
        # the words may come from the agent itself
        words = f"echo '0.5 60 0 {tmp_path}/folder' >&3"
        text = f"echo $$ > {tmp_path}/pid; {words}; exec sleep 300"
        said = watch(text).end()
        assert said == (1, "the agent was stopped or stuck\n")
        assert gone(int((tmp_path / "pid").read_text()))
        assert not (tmp_path / "folder").exists()

    def test_a_signal_is_the_agent_s(self, watch: Callable[..., Watched], tmp_path: Path) -> None:
        trap = f"trap 'exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
        one = watch(trap)
        wait_for((tmp_path / "up").exists)
        one.process.terminate()
        assert one.end() == (0, "")

    def test_a_signal_that_comes_with_the_first_word_as_well(
        self, watch: Callable[..., Watched]
    ) -> None:
        assert watch("", "", EARLY).end() == (3, "")


class Waits:
    """In the place of the poll and the clock: who is ready, and after how long, is written down."""

    def __init__(self, *steps: tuple[float, int]) -> None:
        self.now = 500.0
        self.steps = list(steps)
        self.limits: list[float] = []
        self.known: dict[int, int] = {}

    def register(self, fd: int, events: int) -> None:
        self.known[fd] = events

    def unregister(self, fd: int) -> None:
        del self.known[fd]

    def poll(self, limit: float) -> list[tuple[int, int]]:
        self.limits.append(limit / 1000)
        after, fd = self.steps.pop(0) if self.steps else (limit / 1000, -1)
        self.now += after
        return [] if fd < 0 else [(fd, 1)]


class TestPatience:
    LINK, PIPE = 90, 91

    def waited(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *steps: tuple[float, int | bytes],
        first: bytes = b"10 3 0 /folder\n",
    ) -> tuple[bool, list[float], list[tuple[int, int]]]:
        """steps: after so many seconds the link ends, or the agent says that. Its answer, how long
        it would have waited each time, and whom it sent which signal.
        """
        said = [data for _, data in steps if isinstance(data, bytes)]
        waits = Waits(*((s, what if isinstance(what, int) else self.PIPE) for s, what in steps))
        sent: list[tuple[int, int]] = []
        monkeypatch.setattr(guardian, "monotonic", lambda: waits.now)
        monkeypatch.setattr(select, "poll", lambda: waits)
        own = Os(
            kill=noting(sent), read=lambda fd, size: said.pop(0), write=lambda fd, data: len(data)
        )
        monkeypatch.setattr(guardian, "os", own)
        one = Guardian(4321, self.LINK, self.PIPE, first)
        answer = one._wait()
        monkeypatch.undo()
        return answer, waits.limits, sent

    def test_each_sign_of_life_renews_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.waited(monkeypatch, (9.0, b"\n"), (9.0, b"\n\n"), (4.0, b""))
        assert found == (True, [10.0, 10.0, 10.0], [])

    def test_no_sign_of_life_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.waited(monkeypatch, (9.0, b"\n"), (2.0, -1))
        assert found == (False, [10.0, 10.0, 8.0], [])
        assert self.waited(monkeypatch, (10.0, -1)) == (False, [10.0], [])

    def test_new_words_count_from_then_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.waited(monkeypatch, (1.0, b"20 7 0 /f\n"), (1.0, self.LINK), (1.0, b"\n"))
        assert found == (False, [10.0, 20.0, 7.0, 6.0], [(4321, 18)])

    def test_after_the_link_no_sign_of_life_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The agent is continued, and has its lifeline grace to end; what it says is no excuse."""
        found = self.waited(monkeypatch, (9.0, self.LINK), (1.0, b"\n"), (1.5, b"\n"))
        assert found == (False, [10.0, 3.0, 2.0, 0.5], [(4321, 18)])
        assert self.waited(monkeypatch, (0.0, self.LINK), (2.0, b"")) == (
            True, [10.0, 3.0], [(4321, 18)],
        )  # fmt: skip

    @cases(
        ("silence", "found"),
        [
            # looks from 3 s on, and then once a second; after four the agent is told to end, in 2 s
            (99.0, (False, [3.0, 1.0, 1.0, 1.0, 1.0, 2.0], [(4321, 18), (4321, 15)])),
            # it answers: then the agent has its whole time
            (0.5, (False, [3.0, *[1.0] * 7], [])),
            (None, (False, [3.0, *[1.0] * 7], [])),
        ],
    )
    def test_a_silent_agent_is_ended_where_the_launchers_machine_does_not_answer(
        self, silence: float | None, found: tuple[bool, list[float], list[tuple[int, int]]]
    ) -> None:
        class Peer:
            def __init__(self) -> None:
                if silence is None:
                    raise ValueError

            def silence(self) -> float:
                assert silence is not None
                return silence

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ssh_peer, "SshPeer", Peer)
            assert self.waited(patch, first=b"10 9 2 /f\n") == found

    def test_a_sign_of_life_ends_the_question(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.waited(monkeypatch, (2.0, b"\n"), (1.0, b""), first=b"10 9 2 /f\n")
        assert found == (True, [3.0, 3.0], [])

    def test_what_the_agent_says_may_come_in_any_pieces(self) -> None:
        for at in range(len(b"12.5 3.5 0 /a folder\n\n")):
            words = b"12.5 3.5 0 /a folder\n\n"
            one = Guardian(1, 2, 3, words[:at])
            one._take(words[at:])
            assert (one.silence, one.ending, one.folder) == (12.5, 3.5, b"/a folder")
        assert (Guardian(1, 2, 3, b"").silence, Guardian(1, 2, 3, b"").ending) == (60.0, 60.0)


class TestPipe:
    """The agent's side of it."""

    @pytest.fixture
    def ends(self) -> Iterator[tuple[int, int]]:
        ends = os.pipe()
        os.set_blocking(ends[1], False)
        yield ends
        for fd in ends:
            with suppress(OSError):
                os.close(fd)

    def test_what_it_says(self, ends: tuple[int, int]) -> None:
        pipe = GuardianPipe(os.getppid(), ends[1])
        pipe.expect(30.0, 1.5, 5.0, "/a folder")
        pipe.alive()
        known = 30.0 + guardian.SLACK, 1.5 + guardian.SLACK
        words = b"%f %f %f /a folder\n"
        assert os.read(ends[0], 999) == words % (*known, 5.0) + b"\n"
        for on, late in ((False, 0.0), (True, 5.0)):
            pipe.watch_peer(on)
            assert os.read(ends[0], 999) == words % (*known, late)

    def test_nobody_who_reads_holds_it_up(self, ends: tuple[int, int]) -> None:
        pipe = GuardianPipe(os.getppid(), ends[1])
        with suppress(BlockingIOError):
            while True:
                os.write(ends[1], bytes(4096))
        pipe.alive()
        os.close(ends[0])
        pipe.alive()
        assert pipe.why() == "the link ended"

    def test_why_the_link_ended(self) -> None:
        ours, others = GuardianPipe(os.getppid(), -1), GuardianPipe(os.getppid() + 1, -1)
        assert (ours.why(), ours.why(15)) == ("the link ended", "the agent was sent signal 15")
        assert others.why() == others.why(15) == "the agent's guardian was killed"

    def test_a_stopped_guardian_goes_on_when_the_agent_leaves(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[tuple[int, int]] = []
        monkeypatch.setattr(guardian, "os", Os(kill=noting(sent)))
        GuardianPipe(os.getppid() + 1, -1).leave()  # its number may be somebody else's
        assert sent == []
        GuardianPipe(os.getppid(), -1).leave()
        assert sent == [(os.getppid(), signal.SIGCONT)]
