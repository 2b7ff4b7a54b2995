"""What a rank is given: arguments, environment, descriptors, signals, folder; to the byte."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.driver import Agent

ODD = [
    b"\xff\xfe not utf-8",
    b"two\nlines",
    b"",
    b"%h %% %d",
    b"'\"`$(id)$HOME!",
    b"--help",
    b"-",
    b"back\\slash",
    b" spaces  ",
    "ü€😀".encode(),
]


def hexdump(python: str, code: str) -> list[str]:
    return [python, "-I", "-S", "-c", f"import os,sys\n{code}"]


class TestExactness:
    def test_arguments_arrive_to_the_byte(self, agent: Agent, python: str) -> None:
        agent.prepare()
        code = "sys.stdout.write(' '.join(os.fsencode(a).hex() or '-' for a in sys.argv[1:]))"
        agent.start([*hexdump(python, code), *ODD])
        assert agent.text().decode().split(" ") == [word.hex() or "-" for word in ODD]

    def test_the_environment_arrives_to_the_byte(self, boot: Callable[..., Agent]) -> None:
        agent = boot(env={"FROM_HOST": "1", "SCRUBBED": "1", "SLURM_PROCID": "1", "BOTH": "host"})
        agent.prepare(cwd=b"/usr")
        odd = [[b"ODD%d" % at, value] for at, value in enumerate(ODD)]
        agent.start(
            ["cat", "/proc/self/environ"],
            common=[*odd, [b"BOTH", b"common"], [b"RANK", b"wrong"], [b"PATH", b"/bin"]],
            envs={0: [[b"RANK", b"0"], [b"\xff\xfe", b"odd name"]]},
            scrub=[b"SCRUBBED", b"SLURM_*", b"FROM"],
        )
        entries = dict(e.split(b"=", 1) for e in agent.text().split(b"\0") if e)
        assert {b"ODD%d" % at: value for at, value in enumerate(ODD)}.items() <= entries.items()
        assert entries[b"RANK"] == b"0"
        assert entries[b"BOTH"] == b"common"
        assert entries[b"FROM_HOST"] == b"1"
        assert entries[b"PWD"] == b"/usr"
        assert entries[b"\xff\xfe"] == b"odd name"
        assert not {b"SCRUBBED", b"SLURM_PROCID"} & set(entries)

    def test_the_folder_is_the_one_ordered(self, agent: Agent, tmp_path: Path) -> None:
        folder = os.fsencode(tmp_path) + b"/odd \xff'folder"
        os.mkdir(folder)
        assert agent.prepare(cwd=folder)["problems"] == []
        agent.start(["sh", "-c", 'pwd -P; echo "$PWD"'])
        assert agent.text() == (os.path.realpath(folder) + b"\n" + folder + b"\n")

    def test_ten_megabytes_arrive_to_the_byte(self, agent: Agent, tmp_path: Path) -> None:
        data = os.urandom(10 << 20)
        (tmp_path / "data").write_bytes(data)
        agent.prepare()
        agent.start(["cat", str(tmp_path / "data")])
        assert hashlib.sha256(agent.text()).digest() == hashlib.sha256(data).digest()
        assert max(len(frame.body) for frame in agent.frames) <= 64 << 10


class TestSurroundings:
    def test_each_rank_leads_its_own_session(self, agent: Agent) -> None:
        agent.prepare()
        pids = agent.start(["cat", "/proc/self/stat"], ["cat", "/proc/self/stat"])
        for rank, pid in pids.items():
            fields = agent.text(rank).rpartition(b")")[2].split()
            assert [int(fields[at]) for at in (2, 3)] == [pid, pid]  # process group, session

    def test_descriptors_are_three(self, boot: Callable[..., Agent], python: str) -> None:
        inner, outer = os.pipe()
        os.set_inheritable(outer, True)
        try:
            agent = boot(pass_fds=[outer])  # left open by who started the agent
        finally:
            os.close(inner)
            os.close(outer)
        agent.prepare(reserve=0)
        agent.start(["sh", "-c", "ls /proc/$$/fd; readlink /proc/$$/fd/0; exit"])
        assert agent.text().split() == [b"0", b"1", b"2", b"/dev/null"]

    @pytest.mark.parametrize("blocked", [False, True], ids=["clean", "inherited"])
    def test_signals_have_their_defaults(self, boot: Callable[..., Agent], blocked: bool) -> None:
        def spoil() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)

        agent = boot(preexec_fn=spoil) if blocked else boot()
        agent.prepare()
        agent.start(["cat", "/proc/self/status"])
        lines = dict(line.split(b":\t") for line in agent.text().splitlines() if b":\t" in line)
        for name in (b"SigIgn", b"SigBlk", b"SigCgt"):
            assert int(lines[name], 16) & ~(3 << 31) == 0, name
        assert agent.status() == 0
        assert agent.finish()["killed"] == 0


class TestEndings:
    @pytest.mark.parametrize(
        ("command", "status"),
        [
            ("exit 0", 0),
            ("exit 7", 7),
            ("exit 255", 255),
            ("kill -TERM $$", -signal.SIGTERM),
            ("kill -KILL $$", -signal.SIGKILL),
            ("kill -PIPE $$", -signal.SIGPIPE),
            ("kill -SEGV $$", -signal.SIGSEGV),
        ],
    )
    def test_status_is_code_or_minus_signal(self, agent: Agent, command: str, status: int) -> None:
        agent.prepare()
        agent.start(["sh", "-c", command])
        assert agent.status() == status

    def test_programs_that_cannot_run_are_named(self, agent: Agent, tmp_path: Path) -> None:
        plain = tmp_path / "plain"
        plain.write_text("#!/bin/sh\n")
        broken = tmp_path / "broken"
        broken.write_text("#!/no/such/interpreter\n")
        broken.chmod(0o755)
        agent.prepare()
        pids = agent.start(
            ["no-such-program"], [str(plain)], ["/no/such/file"], [str(broken)], ["true"],
            [str(tmp_path)], ["with\0null"],
        )  # fmt: skip
        assert set(pids) == {4}
        errnos = {
            r["rank"]: r["errno"] for r in agent.reports if r["type"] == "rank.failed_to_start"
        }
        assert errnos == {
            0: errno.ENOENT, 1: errno.EACCES, 2: errno.ENOENT, 3: errno.ENOENT, 5: errno.EACCES,
            6: errno.EINVAL,
        }  # fmt: skip
        failed = agent.report("rank.failed_to_start", rank=0)
        assert (failed["step"], failed["what"]) == ("exec", "no-such-program")
        assert agent.status(4) == 0
        assert agent.finish()["left"] == []

    def test_a_folder_that_vanished_is_named(self, agent: Agent, tmp_path: Path) -> None:
        folder = tmp_path / "gone"
        folder.mkdir()
        agent.prepare(cwd=os.fsencode(folder))
        folder.rmdir()
        agent.start(["true"])
        failed = agent.report("rank.failed_to_start")
        expected = {"step": "chdir", "errno": errno.ENOENT, "what": str(folder)}
        assert expected.items() <= failed.items()

    def test_closing_its_output_is_no_exit(self, agent: Agent) -> None:
        agent.prepare()
        (pid,) = agent.start(["sh", "-c", "exec >&- 2>&-; exec sleep 60"]).values()
        agent.until(lambda: len(agent.counts) == 2)
        agent.order("signal_ranks", ranks=None, signum=0)
        assert agent.found("rank.exited") is None
        os.kill(pid, signal.SIGKILL)
        assert agent.status() == -signal.SIGKILL
        assert agent.found("rank.leaked") is None


class TestLook:
    def test_without_a_path_the_host_s_own_counts(
        self, boot: Callable[..., Agent], tmp_path: Path
    ) -> None:
        tool = tmp_path / "odd-tool"
        tool.write_text("#!/bin/sh\necho found\n")
        tool.chmod(0o755)
        agent = boot(env={"PATH": f"{os.environ['PATH']}:{tmp_path}"})
        assert agent.prepare(check={"program": b"odd-tool"})["problems"] == []
        agent.start(["odd-tool"])
        assert agent.text() == b"found\n"
