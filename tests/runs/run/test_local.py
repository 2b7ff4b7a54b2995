"""``dispatch -H localhost:N``: the whole path without sshd, as a first run takes it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import promises
import pytest
from rig import wait_for

from dispatcher.api.report import replay

from ..conftest import Desk, script, words_of

SLEEP = "echo up; exec sleep 1000"
#: a background process in a session of its own, whose parent is gone: only a sweep finds it
STRAY = "setsid sh -c 'sleep 1000 & exit 0'; echo up; exec sleep 1000"
STUBBORN = "trap '' TERM INT; echo up; while :; do sleep 0.1; done"


class TestLines:
    def test_every_rank_is_heard_and_labelled(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:3", "--no-python", "sh", "-c", "echo I am $RANK")
        assert (done.returncode, done.stderr) == (0, "")
        assert words_of(done.stdout) == ["[0] I am 0", "[1] I am 1", "[2] I am 2"]

    def test_labels(self, desk: Desk) -> None:
        where = ("-H", "localhost:2", "--no-python")
        by_host = desk.run("--label", "host", *where, "echo", "x")
        assert words_of(by_host.stdout) == ["[localhost:0] x", "[localhost:1] x"]
        assert desk.run("--label", "none", *where, "echo", "x").stdout == "x\nx\n"

    def test_stderr_stays_stderr(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost", "--no-python", "sh", "-c", "echo out; echo err >&2")
        assert (done.stdout, done.stderr) == ("[0] out\n", "[0] err\n")

    def test_last_line_without_end(self, desk: Desk) -> None:
        done = desk.run("-H", "localhost:2", "--no-python", "printf", "no end")
        assert words_of(done.stdout) == ["[0] no end", "[1] no end"]

    def test_a_reader_that_leaves_ends_the_job(self, desk: Desk) -> None:
        process = desk.start("-H", "localhost:2", "--no-python", "yes")
        desk.lines(process, 1)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE

    def test_files_hold_the_exact_bytes(self, desk: Desk) -> None:
        program = (
            "import os,hashlib\n"
            "r=int(os.environ['RANK'])\n"
            "data=b''.join(hashlib.sha256(b'%d %d'%(r,i)).digest() for i in range(30000))\n"
            "data+=b'\\0\\xff\\r\\x1b]52;c;x\\7 no end'\n"
            "at=0\n"
            "while at<len(data): at+=os.write(1+r%2,data[at:at+4097])\n"
            "open('expect-%d'%r,'wb').write(data)\n"
        )
        words = ("--log-dir", "logs", "-H", "localhost:4", script(desk.folder, program))
        done = desk.run(*words, text=False)
        assert done.returncode == 0, done.stderr
        logs = desk.folder / "logs" / "latest"
        for rank in range(4):
            kept = logs / f"rank-{rank:05d}.{'err' if rank % 2 else 'out'}"
            assert kept.read_bytes() == (desk.folder / f"expect-{rank}").read_bytes()
            assert kept.stat().st_mode & 0o777 == 0o600
        assert logs.resolve().stat().st_mode & 0o777 == 0o700
        journal = (logs / "dispatch.jsonl").read_text().splitlines()
        names = [json.loads(line)["name"] for line in journal]
        assert (names[0], names[-2:]) == ("run.began", ["run.finished", "run.closed"])
        assert names.count("rank.exited") == 4
        report = json.loads((logs / "report.json").read_text())
        assert (report["ok"], report["exit_code"], report["world_size"]) == (True, 0, 4)


class TestJournal:
    """``conftest`` replays the journal of every run that a test makes."""

    @pytest.mark.parametrize("code", [0, 3])
    def test_it_tells_the_verdict_again(self, desk: Desk, code: int) -> None:
        program = f"import sys, os\nsys.exit({code} if os.environ['RANK'] == '1' else 0)\n"
        done = desk.run("--log-dir", "logs", "-H", "localhost:2", script(desk.folder, program))
        report = replay(desk.folder / "logs" / "latest" / "dispatch.jsonl")
        assert report.exit_code == done.returncode == code
        assert done.stderr.endswith("".join(line + "\n" for line in report.verdict))
        assert bool(report.verdict) == bool(code)

    def test_no_secret_enters_it(self, desk: Desk) -> None:
        desk.run(
            "--log-dir", "logs", "-H", "localhost", "-x", "API_TOKEN=s3cr3t-words",
            "--no-python", "sh", "-c", "exit 4",
        )  # fmt: skip
        for path in (desk.folder / "logs" / "latest").resolve().iterdir():
            assert b"s3cr3t-words" not in path.read_bytes(), path


class TestProgram:
    ARGUMENTS = (
        b"%h", b"%n%u%%", b"--lr", b"3e-4", b"", b"a b", b"$HOME `id` $(id)", b"new\nline",
        b"it's \"quoted\"", b"-x", b"--", b"\xff\xfe", b"*", b"\\", b"!", b"#", b"~", b"-H", b"=",
    )  # fmt: skip

    def test_arguments_arrive_byte_for_byte(self, desk: Desk) -> None:
        program = "import os,sys\nprint([os.fsencode(a) for a in sys.argv[1:]])\n"
        done = desk.run("-H", "localhost", script(desk.folder, program), *self.ARGUMENTS)
        assert done.stdout == f"[0] {list(self.ARGUMENTS)!r}\n", done.stderr

    def test_arguments_of_a_plain_program(self, desk: Desk) -> None:
        words = [b"printf", b"<%s>", *self.ARGUMENTS]
        here = subprocess.run(words, capture_output=True, check=True).stdout
        done = desk.run(
            "--log-dir", "l", "-H", "localhost", "--no-python", "--", *words, text=False
        )
        assert done.returncode == 0
        assert (desk.folder / "l/latest/rank-00000.out").read_bytes() == here

    def test_module(self, desk: Desk) -> None:
        script(desk.folder, "import sys\nprint('module', sys.argv[1:])\n", "mod.py")
        done = desk.run("-H", "localhost", "-m", "mod", "-m", "x")
        assert done.stdout == "[0] module ['-m', 'x']\n", done.stderr

    def test_underscores_and_dashes_are_one(self, desk: Desk) -> None:
        done = desk.run(
            "-H", "localhost:2", "--nproc_per_node", "1", "--no_python", "echo", "--nproc_per_node"
        )
        assert done.stdout == "[0] --nproc_per_node\n", done.stderr

    def test_hosts_from_standard_input(self, desk: Desk) -> None:
        done = desk.run(
            "-H", "-", "--no-python", "echo", "x", stdin=None, input="localhost slots=2\n"
        )
        assert words_of(done.stdout) == ["[0] x", "[1] x"]

    def test_folder(self, desk: Desk) -> None:
        (desk.folder / "sub").mkdir()
        done = desk.run("-H", "localhost", "--chdir", "sub", "--no-python", "pwd")
        assert done.stdout == f"[0] {desk.folder / 'sub'}\n"

    @pytest.mark.parametrize(
        ("words", "said", "code"),
        [
            (("absent.py",), "absent.py: no such file", 127),
            (("--no-python", "absent-program"), "absent-program: not found", 127),
            (("--no-python", "./plain.txt"), "plain.txt: not executable", 126),
            (("--python", "/absent/python", "plain.txt"), "/absent/python: not found", 127),
            (("--chdir", "/absent", "--no-python", "true"), "/absent: no such directory", 125),
        ],
    )
    def test_what_is_missing_is_said_before_the_start(
        self, desk: Desk, words: tuple[str, ...], said: str, code: int
    ) -> None:
        (desk.folder / "plain.txt").write_text("")
        done = desk.run("-H", "localhost:2", *words)
        assert done.returncode == code
        assert said in done.stderr
        assert "nothing was started" in done.stderr
        assert "hint:" in done.stderr
        assert done.stdout == ""


class TestEnvironment:
    def test_what_a_rank_gets(self, desk: Desk) -> None:
        program = "import os,json\nprint(json.dumps(dict(os.environ)))\n"
        done = desk.run(
            "-H", "localhost:2", "-x", "GIVEN=a b\nc=d", script(desk.folder, program),
            env={"NCCL_DEBUG": "WARN", "NOT_LISTED": "x", "SLURM_PROCID": "7", "PMI_RANK": "3",
                 "PMIX_ID": "9"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        by_rank = {}
        for line in done.stdout.splitlines():
            label, _, text = line.partition(" ")
            by_rank[label] = json.loads(text)
        for rank in (0, 1):
            env = by_rank[f"[{rank}]"]
            expected = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "GROUP_RANK": "0",
                "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "2",
                "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
                "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2",
                "CUDA_VISIBLE_DEVICES": "0,1", "DISPATCH_HOST": "localhost",
                "GIVEN": "a b\nc=d", "NCCL_DEBUG": "WARN",
            }  # fmt: skip
            assert {name: env.get(name) for name in expected} == expected
            assert env["TORCHELASTIC_RUN_ID"] == env["DISPATCH_RUN_ID"]
            assert 0 < int(env["MASTER_PORT"]) < 65536
            assert int(env["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
            assert (env["PMI_RANK"], env["PMI_SIZE"]) == (str(rank), "2")
            assert env["PMIX_RANK"] == str(rank)  # ours, not what was there
            assert not {"SLURM_PROCID", "PMIX_ID"} & set(env)
        assert by_rank["[0]"]["MASTER_PORT"] == by_rank["[1]"]["MASTER_PORT"]

    def test_a_fixed_port_is_kept_or_refused(self, desk: Desk) -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            port = str(holder.getsockname()[1])
            words = ("--master-port", port, "-H", "localhost", "--no-python", "sh", "-c")
            refused = desk.run(*words, "echo $MASTER_PORT")
        assert refused.returncode == 125
        assert f"port {port} cannot be kept free: Address already in use" in refused.stderr
        assert desk.run(*words, "echo $MASTER_PORT").stdout == f"[0] {port}\n"

    def test_any_byte_survives(self, desk: Desk) -> None:
        value = bytes(range(1, 256))
        program = "import os\nprint(os.environb[b'BYTES'] == bytes(range(1, 256)))\n"
        done = desk.run("-H", "localhost", "-x", b"BYTES=" + value, script(desk.folder, program))
        assert done.stdout == "[0] True\n", done.stderr

    def test_deepspeeds_file_is_read(self, desk: Desk) -> None:
        text = "# note\nNCCL_ALGO = Ring\n\nNCCL_IB_HCA=$HOME:${NOSUCH}.:$(id)\n"
        (desk.folder / ".deepspeed_env").write_text(text)
        (desk.folder / "own.env").write_text("export OWN='two words'\nDOLLAR=$HOME\n")
        done = desk.run(
            "-H", "localhost", "--env-file", "own.env", "--no-python", "sh", "-c",
            'echo "$NCCL_ALGO $OWN $DOLLAR $NCCL_IB_HCA"',
        )  # fmt: skip
        assert done.stdout == f"[0] Ring two words $HOME {os.environ['HOME']}:.:$(id)\n"
        assert "note: environment from .deepspeed_env" in done.stderr
        assert "note: .deepspeed_env:4: no command is run" in done.stderr

    def test_secrets_are_in_no_command_line_and_no_file(self, desk: Desk) -> None:
        secret = "zz-secret-value-zz"
        process = desk.start(
            "-H", "localhost:2", "--log-dir", "logs", "-v", "-x", "WANDB_API_KEY",
            "--no-python", "sh", "-c", "echo up; exec sleep 1000",
            env={**os.environ, "WANDB_API_KEY": secret},
        )  # fmt: skip
        desk.lines(process, 2)
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    assert secret.encode() not in Path(f"/proc/{name}/cmdline").read_bytes()
                except OSError:
                    continue
        process.terminate()
        process.wait(timeout=60)
        for path in (desk.folder / "logs").rglob("*"):
            if path.is_file():
                assert secret not in path.read_text(), path
        assert process.stderr is not None
        assert secret not in process.stderr.read()


class TestEnding:
    @pytest.mark.parametrize(
        ("how", "code", "said"),
        [
            ("exit 42", 42, "rank 1 on localhost, pid"),
            ("kill -9 $$", 137, "killed by SIGKILL (signal 9)"),
            ("kill -SEGV $$", 139, "killed by SIGSEGV (signal 11)"),
        ],
    )
    def test_first_failure_ends_all(self, desk: Desk, how: str, code: int, said: str) -> None:
        text = f"if [ $RANK = 1 ]; then echo my last words >&2; {how}; fi; exec sleep 1000"
        done = desk.run("-H", "localhost:4", "--no-python", "sh", "-c", text)
        assert done.returncode == code
        assert said in done.stderr
        assert "my last words" in done.stderr.partition("last lines of its stderr:")[2]
        assert "dispatch then ended ranks 0,2-3 (SIGTERM)" in done.stderr
        assert desk.left() == []

    @pytest.mark.parametrize(
        ("how", "said"), [("exit", "exit code 9"), ("abort", "called MPI_Abort(9)")]
    )
    def test_the_error_file_is_in_the_verdict_and_the_report(
        self, desk: Desk, how: str, said: str
    ) -> None:
        program = (
            "import json,os,sys,time\n"
            "if os.environ['RANK'] == '0': time.sleep(1000)\n"
            "extra = {'py_callstack': 'Traceback\\n  deep\\nValueError: no luck'}\n"
            "error = {'message': {'message': 'ValueError: no luck', 'extraInfo': extra}}\n"
            "json.dump(error, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
            "if sys.argv[1] == 'abort':\n"
            "    os.write(int(os.environ['PMI_FD']), b'cmd=abort exitcode=9\\n')\n"
            "    time.sleep(1000)\n"
            "sys.exit(9)\n"
        )
        words = ("--log-dir", "logs", "-H", "localhost:2", script(desk.folder, program), how)
        done = desk.run(*words)
        assert done.returncode == 9
        code = "rank-failed" if how == "exit" else "mpi-aborted"
        assert f"{said}: ValueError: no luck [{code}]\n  its traceback:\n" in done.stderr
        cause = json.loads((desk.folder / "logs/latest/report.json").read_text())["cause"]
        assert cause["error"]["message"] == "ValueError: no luck"
        assert cause["error"]["traceback"].endswith("deep\nValueError: no luck")
        assert (cause["rank"], cause["host"]) == (1, "localhost")
        assert cause["status" if how == "exit" else "code"] == 9
        assert cause["pid"] > 0

    def test_what_ranks_leave_behind_is_killed_and_told(self, desk: Desk) -> None:
        text = "setsid sh -c 'sleep 1000 >/dev/null 2>&1 & exit 0'; exit 0"
        done = desk.run("-H", "localhost:2", "--no-python", "sh", "-c", text)
        assert done.returncode == 0
        assert "note: localhost: killed 2 processes left behind" in done.stderr
        assert desk.left() == []

    def test_a_failed_ranks_children_do_not_delay_the_end(self, desk: Desk) -> None:
        text = (
            "if [ $RANK = 0 ]; then trap 'date +%s.%N >ended; exit' TERM; touch up; "
            "while :; do sleep 0.05; done; fi; "
            "sleep 1000 & until [ -e up ]; do sleep 0.05; done; date +%s.%N >left; exit 7"
        )
        done = desk.run("-H", "localhost:2", "--no-python", "sh", "-c", text)
        assert done.returncode == 7
        left, ended = (float((desk.folder / name).read_text()) for name in ("left", "ended"))
        # which is said 2 s after the rank's end, also where all are told to end no sooner
        assert ended - left > 1 or "held its output open" not in done.stderr

    def test_a_process_that_holds_the_output_does_not_hold_the_job(self, desk: Desk) -> None:
        text = "echo before; sleep 1000 & exit 0"
        done = desk.run("-H", "localhost", "--no-python", "sh", "-c", text)
        assert (done.returncode, done.stdout) == (0, "[0] before\n")
        assert "held its output open" in done.stderr

    @pytest.mark.parametrize("text", [SLEEP, STRAY], ids=["plain", "stray"])
    @pytest.mark.parametrize(
        ("signum", "code"),
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
    )
    def test_the_launchers_end_leaves_nothing(
        self, desk: Desk, signum: int, code: int, text: str
    ) -> None:
        process = desk.start("-H", "localhost:2", "--no-python", "sh", "-c", text)
        desk.lines(process, 2)
        process.send_signal(signum)
        assert process.wait(timeout=60) == code
        desk.wait_until_clean()

    def test_stubborn_ranks(self, desk: Desk) -> None:
        process = desk.start(
            "--grace", "0.5", "-H", "localhost:2", "--no-python", "sh", "-c", STUBBORN
        )
        desk.lines(process, 2)
        process.terminate()
        assert process.wait(timeout=60) == 143
        assert desk.left() == []

    def test_second_ctrl_c_kills_at_once(self, desk: Desk) -> None:
        process = desk.start(
            "--grace", "60", "-H", "localhost:2", "--no-python", "sh", "-c", STUBBORN
        )
        desk.lines(process, 2)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        # two equal signals may merge into one: send until the second has had its effect
        wait_for(lambda: _gone_or_again(process), 60, "the second Ctrl-C ends it")
        assert process.wait() == 130
        desk.wait_until_clean()

    @pytest.mark.parametrize("leaves", [False, True])
    def test_a_signal_is_asked_for_once(self, desk: Desk, leaves: bool) -> None:
        """Also where another follows it, or the same Ctrl-C ends the reader (``| tee``)."""
        save = f"trap 'echo saves; sleep 1; touch {desk.folder}/saved-$RANK; exit 0' INT TERM; "
        words = ("--grace", "60", "-H", "localhost:2", "--no-python", "sh", "-c")
        process = desk.start(*words, save + "echo up; while :; do sleep 0.1; done")
        desk.lines(process, 2)
        if leaves:
            assert process.stdout is not None
            process.stdout.close()
        process.send_signal(signal.SIGINT if leaves else signal.SIGTERM)
        if not leaves:
            desk.lines(process, 2)  # both ranks save
        for again in () if leaves else (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(again)  # by number, as Python handles them if they wait together
        assert process.wait(timeout=60) == (130 if leaves else 143)
        assert process.stderr is not None
        told = process.stderr.read()
        assert ("then came SIGHUP, SIGINT, SIGTERM" in told) is not leaves
        assert "ranks 0-1 exited 0 after SIG" in told
        assert len([*desk.folder.glob("saved-*")]) == 2

    @pytest.mark.parametrize(
        ("options", "saved"), [([], True), (["--signal-to", "all"], False), (["--no-python"], True)]
    )
    def test_what_a_rank_started_lives_until_it_has_saved(
        self, desk: Desk, options: list[str], saved: bool
    ) -> None:
        """A rank that is Python is told alone; one that is a shell passes nothing on."""
        program = script(desk.folder, SAVES_BY_HELPER)
        words = [program] if "--no-python" not in options else ["sh", "-c", PASSES_NOTHING_ON]
        process = desk.start("--grace", "20", "-H", "localhost:1", *options, *words)
        desk.lines(process, 1)
        process.terminate()
        assert process.wait(timeout=60) == 143
        assert (desk.folder / "saved").exists() is saved
        desk.wait_until_clean()

    def test_a_reader_that_takes_nothing_cannot_keep_the_user(self, desk: Desk) -> None:
        process = desk.start("-H", "localhost:2", "--no-python", "yes")
        desk.lines(process, 1)  # and then no more: the pipe fills, the ranks are held back
        wait_for(lambda: all(_state(pid) == "S" for pid, _ in desk.left()), 30, "ranks wait")
        wait_for(lambda: _gone_or_again(process), 60, "three Ctrl-C end it")
        assert process.wait() == 130
        desk.wait_until_clean()

    def test_ctrl_z_stops_the_ranks_for_longer_than_their_lease(self, desk: Desk) -> None:
        text = "echo up; while :; do sleep 0.1; done"
        process = desk.start(
            "--heartbeat", "2", "--lease", "8", "-H", "localhost:2", "--no-python",
            "sh", "-c", "trap 'exit 5' USR1; " + text,
        )  # fmt: skip
        desk.lines(process, 2)
        shells = [pid for pid, command in desk.left() if "trap" in command and _leads(pid)]
        assert len(shells) == 2
        process.send_signal(signal.SIGTSTP)
        wait_for(lambda: _state(process.pid) == "T", 30, "dispatch is stopped")
        # D: it was stopped as it forked, and waits for a child that is stopped before its exec
        wait_for(lambda: {*map(_state, shells)} <= {"T", "D"}, 30, "the ranks are stopped")
        time.sleep(9.0)  # more than the lease
        assert {*map(_state, shells)} <= {"T", "D"}
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: {"T", "D"}.isdisjoint(map(_state, shells)), 30, "the ranks go on")
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=60) == 5

    def test_a_stopped_job_can_be_ended(self, desk: Desk) -> None:
        process = desk.start("-H", "localhost:2", "--no-python", "sh", "-c", STRAY)
        desk.lines(process, 2)
        process.send_signal(signal.SIGTSTP)
        wait_for(lambda: _state(process.pid) == "T", 30, "dispatch is stopped")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 143
        desk.wait_until_clean()

    def test_usr1_reaches_the_ranks(self, desk: Desk) -> None:
        text = "trap 'echo got it; exit 0' USR1; echo up; while :; do sleep 0.05; done"
        process = desk.start("-H", "localhost:2", "--no-python", "sh", "-c", text)
        desk.lines(process, 2)
        process.send_signal(signal.SIGUSR1)
        assert desk.lines(process, 2) == ["[0] got it\n", "[1] got it\n"]
        assert process.wait(timeout=60) == 0

    @pytest.mark.parametrize(
        ("whom", "said"),
        [("agent", "the agent was killed by signal 9"), ("guardian", "guardian was killed")],
    )
    def test_nothing_outlives_the_agent_or_its_guardian(
        self, desk: Desk, whom: str, said: str
    ) -> None:
        text = "setsid sh -c 'sleep 1000 & exit 0'; echo $PPID; exec sleep 1000"
        process = desk.start("-H", "localhost:2", "--no-python", "sh", "-c", text)
        (agent,) = {int(line.split()[1]) for line in desk.lines(process, 2)}
        parent = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent if whom == "agent" else parent, signal.SIGKILL)
        assert process.wait(timeout=60) == 125
        assert process.stderr is not None
        words = process.stderr.read()
        assert words.startswith("error: localhost (ranks 0-1): host lost: ")
        assert said in words.splitlines()[0]
        desk.wait_until_clean()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:  # a child of a shell's that was about to become sleep
        return False


#: a rank whose checkpoint another process writes, as DataLoader's workers and wandb's helper do
SAVES_BY_HELPER = """
import signal, subprocess, sys
helper = subprocess.Popen(["sh", "-c", "read line && touch saved"], stdin=subprocess.PIPE)
def save(*_):
    helper.communicate(b"all\\n")
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    signal.pause()
"""
PASSES_NOTHING_ON = "(trap 'touch saved; exit 0' TERM; echo up; while :; do sleep 0.1; done); true"


def _gone_or_again(process: subprocess.Popen[str]) -> bool:
    if process.poll() is not None:
        return True
    process.send_signal(signal.SIGINT)
    return False


class TestDryRun:
    def test_json(self, desk: Desk) -> None:
        where = ("-x", "API_TOKEN=swordfish", "-H", "far[1-2].invalid:2")
        done = desk.run("--dry-run", "--json", *where, "train.py", "--lr", "1")
        assert done.returncode == 0, done.stderr
        plan = promises.told(done.stdout)
        assert plan["world_size"] == 4
        assert [node["host"] for node in plan["nodes"]] == ["far1.invalid", "far2.invalid"]
        assert plan["ranks"][3]["environment"]["RANK"] == "3"
        assert plan["ranks"][3]["argv"][-2:] == ["--lr", "1"]
        assert "swordfish" not in done.stdout

    def test_table(self, desk: Desk) -> None:
        done = desk.run("--dry-run", "-H", "far[1-2].invalid:2", "train.py")
        assert done.returncode == 0
        assert "far2.invalid" in done.stdout
        assert "2-3" in done.stdout

    def test_what_is_not_utf8_is_shown_all_the_same(self, desk: Desk) -> None:
        strict = {"PYTHONIOENCODING": "utf-8:strict"}
        done = desk.run("--dry-run", "-H", "far:1", "train.py", b"\xff", env=strict)
        assert done.returncode == 0, done.stderr
        assert "'\\xff'" in done.stdout


def test_a_report_that_cannot_be_written_does_not_change_the_exit_code(desk: Desk) -> None:
    text = "for d in logs/latest logs/*/; do rm -rf $d; done; exit 3"
    done = desk.run("--log-dir", "logs", "-H", "localhost", "--no-python", "sh", "-c", text)
    assert done.returncode == 3
    assert "report.json: cannot be written: no such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_that_cannot_be_written_is_an_error_before_the_start(desk: Desk) -> None:
    done = desk.run("--trace", "/no/such/file", "-H", "localhost", "--no-python", "touch", "mark")
    assert done.returncode == 2
    assert (
        done.stderr == "error: --trace /no/such/file: No such file or directory [file-unusable]\n"
    )
    assert not (desk.folder / "mark").exists()
