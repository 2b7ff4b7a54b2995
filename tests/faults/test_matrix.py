"""The fault matrix: one test a row; docs/design/faults.md says which row is where else.

A row has a bound that counts from the fault. Bounds are those of the design plus ``SLACK`` for
a machine that does other things too. ``test_controls`` runs rows without their mechanism.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig import Cluster, wait_for

from dispatcher.bootstrap.payload import SOURCE_LIMIT

from . import conftest
from .conftest import FLOOD, Job, flood_block, kill_at_once, parent

#: seconds that a loaded machine may take beyond a bound
SLACK = 10.0
#: seconds that the start of a job may take on such a machine, where a bound counts from there
START = 20.0
#: a host is lost after ``SILENCE``, ranks without a launcher die after ``LEASE``: soon, but later
#: than a busy machine lets anybody run again
QUICK = ("--heartbeat", "2", "--lease", "8")
SILENCE, LEASE = 6.0, 8.0

Start = Callable[..., Job]
New = Callable[..., Cluster]

WITHOUT = str(Path(__file__).with_name("without.py"))


def verdict(said: str) -> str:
    """What is said from its error on; before that may be notes of what was waited for."""
    return said[max(0, said.find("error: ")) :]


def strays(cluster: Cluster, host: str) -> list[str]:
    """The command lines there of what a rank has left behind, and of who starts it."""
    return [command for _, command in cluster.processes(host) if "sleep 9999" in command]


class TestRanks:
    @pytest.mark.parametrize(
        ("kind", "code", "how"),
        [
            ("exit", 3, "exit code 3"),  # row 1
            ("segv", 139, r"killed by SIGSEGV \(signal 11\)"),  # row 2
            ("kill", 137, r"killed by SIGKILL \(signal 9\)"),
            ("raise", 1, r"exit code 1: ValueError: rank 3 has no luck \(fault_rank.py:55\)"),
        ],
    )
    def test_a_failure_ends_all(self, job: Start, kind: str, code: int, how: str) -> None:
        run = job(kind).up(3)
        said = run.ends(code, 2 + SLACK)
        line = rf"^error: rank 3 on n2, pid \d+: {how} \[rank-(failed|killed)\]\n"
        assert re.search(line, said, re.M), said
        run.clean(1 + SLACK)
        assert run.report()["cause"]["host"] == "n2"

    def test_stubborn_ranks_get_their_grace_and_no_more(self, job: Start) -> None:  # row 4
        run = job("stubborn", "--grace", "1").up()
        run.terminate()
        run.ends(143, 1 + 2 + SLACK)
        run.clean(1 + SLACK)

    def test_a_checkpoint_gets_its_time(self, job: Start) -> None:
        run = job("save", "--grace", "20").up()
        run.terminate()
        run.ends(143, 2 + SLACK)
        assert all(run.kept(rank).endswith(b"saving\nsaved\n") for rank in range(8))

    def test_strays_go_with_the_job(self, job: Start) -> None:  # row 5
        run = job("stray").up()
        # a shell whose child this is may be about to end still
        wait_for(lambda: strays(run.cluster, "n2") == ["sleep 9999"], 20, "it is alone")
        run.terminate()
        assert "note: n2: killed 1 process left behind" in run.ends(143, 2 + SLACK)
        run.clean(1 + SLACK)

    def test_a_stopped_rank_ends_with_the_others(self, job: Start) -> None:  # row 6
        run = job("stop", "--grace", "30").up()
        wait_for(lambda: "T" in {p.state for p in run.cluster.census(["n2"])}, 20, "rank 3 stops")
        run.terminate()
        run.ends(143, 2 + SLACK)
        run.clean(1 + SLACK)

    def test_ranks_that_hang_are_ended(self, job: Start) -> None:  # row 7
        # longer than rank 3 may be kept from stopping itself
        run = job("stop", "--hang-timeout", "6", "--grace", "1").up()
        said = run.ends(124, 6 + 0.6 + 10 + 1 + SLACK)
        assert re.search(r"^  rank 3 on n2 is in .* \(stopped\)$", said, re.M), said
        assert "  ranks 0-2,4-7 on n[1-4] are in " in said
        run.clean(1 + SLACK)
        assert run.report()["cause"]["host"] == "n2"

    def test_a_child_that_holds_the_output_is_cut_off(self, job: Start) -> None:  # row 9
        run = job("hold").up()
        cut = "held its output open"
        wait_for(lambda: cut in run.said(), 2 + 2 * SLACK, "the output of rank 3 is cut off")
        run.terminate()
        run.ends(143, 2 + 2 + SLACK)
        run.clean(2 + SLACK)

    def test_who_closed_its_output_has_not_ended(self, job: Start) -> None:  # row 10
        run = job("close").up()
        time.sleep(1.0)
        assert run.process.poll() is None
        assert len(run.ranks("n2")) == 2
        run.terminate()
        run.ends(143, 2 + 1 + SLACK)

    def test_an_early_success_is_waited_on(self, job: Start) -> None:  # row 12
        run = job("early").up()
        wait_for(lambda: len(run.ranks("n2")) == 1, 20, "rank 3 has ended")
        time.sleep(1.0)
        assert run.process.poll() is None
        run.terminate()
        run.ends(143, 2 + 2 + SLACK)

    def test_equal_tracebacks_are_told_once(self, job: Start, cluster: Cluster) -> None:  # row 14
        place = os.path.join(cluster.shared, "meeting")
        os.mkdir(place)
        # none is killed that has only met the others late
        said = job("all raise", "--grace", "60", rank=place).ends(1, START + 4 + SLACK)
        verdict = said[said.index("error: rank") :]
        assert verdict.count("raise ValueError") == 1  # the headline has its last line as well
        assert re.search(r"^  7 ranks the same: ranks ", verdict, re.M), verdict
        assert "then" not in verdict

    @pytest.mark.parametrize("kind", ["flood", "longline"])
    def test_a_flood_is_kept_whole(self, job: Start, kind: str) -> None:  # rows 15, 16
        run = job(kind, *QUICK).up()
        wait_for(lambda: len(run.kept(3)) > FLOOD, 60, lambda: f"{len(run.kept(3))} bytes")
        status = Path(f"/proc/{run.launcher()}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        run.terminate()
        run.ends(143, 2 + SLACK)
        data = run.kept(3).partition(b"\n")[2]
        assert len(data) == FLOOD
        if kind == "longline":
            assert data == b"x" * FLOOD
        else:
            assert data.startswith(block := flood_block())
            assert data == (block * (FLOOD // len(block) + 1))[:FLOOD]
        assert int(peak) < 128 << 10

    def test_output_that_was_lost_is_an_error(self, cluster: Cluster) -> None:  # rows 15, 16
        """An agent that says how much it has read, and sends less."""
        own = [conftest.DISPATCH[-1]] if WITHOUT in conftest.DISPATCH else []
        lacks = ",".join([*own, "whole output"])
        words = [sys.executable, WITHOUT, lacks, "-H", "n1", "--no-python"]
        done = cluster.run([*words, "echo", "12345"])
        assert done.returncode == 125, done.stderr
        assert "error: rank 0 on n1: output lost: 5 of 6 bytes arrived" in done.stderr

    def test_many_processes_of_a_rank_go_with_it(self, job: Start) -> None:  # row 11
        run = job("burn", "--grace", "1").up()
        wait_for(lambda: b"burning" in run.kept(3), 30, "300 processes")
        run.terminate()
        run.ends(143, 10 + SLACK)
        run.clean(1 + SLACK)


#: who is hurt, and how
HURT = {
    "agent": lambda agent, guardian: os.kill(agent, signal.SIGKILL),
    "guardian": lambda agent, guardian: os.kill(guardian, signal.SIGKILL),
    "session": lambda agent, guardian: os.kill(parent(guardian), signal.SIGKILL),
    "agent told": lambda agent, guardian: os.kill(agent, signal.SIGTERM),
}


class TestAgents:
    """Rows 17 to 20 and 27: whoever stands above the ranks on a host is hurt."""

    @pytest.mark.parametrize("whom", HURT)
    def test_one_is_killed(self, job: Start, whom: str) -> None:
        run = job("stray").up()
        run.began = time.monotonic()
        HURT[whom](*run.agents("n2"))
        said = run.ends(125, 2 + SLACK)
        assert verdict(said).startswith("error: n2 (ranks 2-3): host lost: "), said
        run.clean(2 + SLACK)

    def test_both_are_killed_at_once(self, job: Start) -> None:  # row 19
        run = job("stray").up()
        run.began = time.monotonic()
        kill_at_once(*run.agents("n2"))
        said = run.ends(125, 2 + SLACK)
        assert "error: n2 (ranks 2-3): host lost: the agent was killed by SIGKILL" in said
        assert re.search(r"note: n2: killed \d process", said), said  # by a new connection
        run.clean(2 + SLACK)

    def test_both_are_killed_at_the_start(self, cluster: Cluster) -> None:  # row 19
        """Of a host where no rank was started, only the agent's folder is left."""
        words = [sys.executable, WITHOUT, "both at the start", "-H", "n[1-2]:1", "--no-python"]
        before = cluster.run(["ls", "/tmp"], "n2").stdout
        done = cluster.run([*words, "true"])
        assert done.returncode == 125, done.stderr
        assert "note: n2: removed 1 folder in /tmp, left behind\n" in done.stderr
        assert cluster.run(["ls", "/tmp"], "n2").stdout == before

    def test_another_run_is_not_touched(self, job: Start) -> None:  # row 57
        """The host is searched for the processes of the run that lost it."""
        run = job("stray").up()
        agents = run.agents("n2")
        other = job("stray").up()
        # what a rank starts looks like it until it is executed
        ranks = wait_for(lambda: {*found} if len(found := other.ranks("n2")) == 4 else set(), 20)
        kill_at_once(*agents)
        run.began = time.monotonic()
        said = run.ends(125, 2 + SLACK)
        assert re.search(r"note: n2: killed \d process", said), said
        assert len(ranks & set(other.ranks("n2"))) == 2
        other.terminate()
        other.ends(143, 2 + SLACK)
        run.clean(2 + SLACK)

    def test_both_and_the_launcher_are_killed_at_once(self, job: Start) -> None:  # row 19
        """Nobody is left who could look after the host; its ranks end all the same."""
        run = job("sleep").up()
        kill_at_once(run.launcher(), *run.agents("n2"))
        run.clean(2 + SLACK)

    def test_a_stopped_agent(self, job: Start) -> None:  # row 20
        run = job("stray", *QUICK).up()
        run.began = time.monotonic()
        os.kill(run.agents("n2")[0], signal.SIGSTOP)
        said = run.ends(125, SILENCE + 2 + SLACK)
        lost = "error: n2 (ranks 2-3): host lost: no heartbeat for 8 s"
        assert verdict(said).startswith(lost), said
        run.clean(LEASE + SLACK)


class TestNetwork:
    @pytest.mark.parametrize("way", ["both", "to", "from"])
    def test_a_cut_host(self, own_job: Start, way: str) -> None:  # rows 29, 30
        run = own_job("stray", *QUICK).up()
        run.cluster.cut("n2", way)
        run.began = time.monotonic()
        said = run.ends(125, SILENCE + 2 + SLACK)
        # whichever is seen first by a launcher that did not run for a while
        lost = r"error: n2 \(ranks 2-3\): (host lost|unreachable): "
        assert re.match(lost, verdict(said)), said
        run.clean(1 + SLACK, "n1", "n3")
        run.clean(LEASE + 1 + SLACK)  # n2 has only its own lease to tell it

    @pytest.mark.parametrize("who", ["kernel", "firewall"])
    def test_a_reset_connection(self, own_job: Start, who: str) -> None:  # row 28
        """A reset that both ends are told of, or one that only answers the launcher."""
        run = own_job("stray", *QUICK).up()
        reset(run.cluster, "n2", who)
        run.began = time.monotonic()
        said = run.ends(125, 1 + SLACK)
        assert verdict(said).startswith("error: n2 (ranks 2-3): host lost: "), said
        # the host knows at once, or when the lease is over
        run.clean((1 if who == "kernel" else LEASE + 1) + SLACK)

    def test_short_cuts_are_survived(self, own_job: Start) -> None:  # row 31
        """As long as the user is told of them, and less than what counts as lost."""
        often = ("--heartbeat", "0.5", "--max-missed-heartbeats", "12", "--lease", "15")
        run = own_job("stubborn", *often, "--grace", "0.5").up()
        run.cluster.cut("n2")
        wait_for(lambda: "note: n2 has been silent for " in run.said(), 30, run.said)
        run.cluster.mend("n2")
        wait_for(lambda: "note: n2 responds again after " in run.said(), 30, run.said)
        assert run.process.poll() is None
        run.terminate()
        run.ends(143, 2 + SLACK)

    @pytest.mark.parametrize("how", ["cut", "power"])
    def test_a_lost_login_host(self, own_job: Start, how: str) -> None:  # row 49
        run = own_job("stray", *QUICK).up()
        for host in run.cluster.hosts if how == "cut" else ():
            run.cluster.cut(host)
        if how == "power":
            run.cluster.power_off("login")
        run.clean(LEASE + 1 + SLACK)

    def test_a_host_that_is_down_from_the_start(self, own_job: Start) -> None:  # row 36
        own_job("sleep", "--dry-run").cluster.power_off("n2")
        run = own_job("sleep", "--connect-timeout", "12")  # in which the others are reached
        said = run.ends(125, START + 12 + 2 + SLACK)
        assert "1 host of 3 cannot be used; nothing was started" in said
        assert "\n  n2" in said
        assert not Path(run.logs, "latest", "rank-00000.out").exists()


class TestLogins:
    def test_a_changed_host_key(self, job_on: Start, new_cluster: New) -> None:  # row 39
        cluster = new_cluster(2)
        script = (
            "k=$(mktemp -u); h=$(mktemp); ssh-keygen -q -t ed25519 -N '' -f $k; "
            "key=$(cut -d' ' -f2 $k.pub); f=$HOME/.ssh/known_hosts; "
            'sed "s|^\\(.*n2.* ssh-ed25519\\) .*|\\1 $key|" $f > $h && cat $h > $f; rm $h $k $k.pub'
        )
        cluster.run(["sh", "-c", script], check=True)
        said = job_on(cluster, "exit").ends(125, START + SLACK)
        assert re.search(r"^  n2 .*host key", said, re.M), said
        assert "ssh-keygen -R" in said

    def test_all_that_refuse_are_told_at_once(
        self, job_on: Start, new_cluster: New
    ) -> None:  # rows 37, 40
        """One host has no sshd, one takes no key of ours; each is tried once."""
        cluster = new_cluster(3)
        ends = "p=$(pgrep -o -x sshd); kill $p; while kill -0 $p 2>/dev/null; do sleep 0.05; done"
        cluster.run(["sh", "-c", ends], "n1", check=True)
        hide = "mount --bind /dev/null $HOME/.ssh/authorized_keys"
        cluster.run(["sh", "-c", hide], "n2", root=True, check=True)
        run = job_on(cluster, "sleep")
        said = run.ends(125, START + SLACK)
        assert "2 hosts of 3 cannot be used; nothing was started" in said
        assert re.search(r"^  n1 .*refused", said, re.M), said
        assert re.search(r"^  n2 .*", said, re.M), said
        assert cluster.log("n2").count("Connection closed by authenticating user") <= 1
        run.clean(2 + SLACK)


class Terminal:
    """A terminal for a launcher: ``modes`` as they are now, ``text`` once that has ended."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self._said += data

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self.slave)

    def close(self) -> str:
        os.close(self.slave)
        self._reader.join(timeout=30)
        os.close(self._master)
        return self._said.decode(errors="replace")


def test_the_terminal_is_as_it_was(cluster: Cluster) -> None:  # rows 46, 56
    terminal = Terminal()
    before = terminal.modes
    words = [*conftest.DISPATCH, "-H", "n[1-2]", "--no-python", "sh", "-c", "sleep 0.5; exit 3"]
    ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
    with cluster.popen(words, **ends) as process:
        assert process.wait(timeout=60) == 3
    after = terminal.modes
    assert "exit code 3" in terminal.close()
    assert after == before


@pytest.mark.parametrize(
    ("fault", "said"), [("known events", "job: no rule for"), ("sound core", "KeyError: 'odd'")]
)
def test_a_bug_of_ours_ends_the_run(cluster: Cluster, fault: str, said: str) -> None:  # row 56
    terminal = Terminal()
    before = terminal.modes
    words = [sys.executable, WITHOUT, fault, "-H", "n[1-2]:2", "--no-python"]
    ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
    with cluster.popen([*words, "sh", "-c", "echo up; exec sleep 1000"], **ends) as process:
        assert process.wait(timeout=START + 3 + SLACK) == 125
    after = terminal.modes
    assert said in terminal.close()
    assert after == before
    wait_for(lambda: not cluster.on_hosts(), 2 + SLACK, "the hosts are idle")


SSH = ("--dport", "22")


def firewall(cluster: Cluster, host: str, *rule: str, to: tuple[str, ...] = SSH) -> None:
    """Let ``rule`` hold for what comes to the host's sshd; skips the test where none can."""
    words = ["iptables", "-A", "INPUT", "-p", "tcp", *to, *rule]
    try:
        done = cluster.run(words, host, root=True)
    except FileNotFoundError:
        pytest.skip("iptables is not here")
    if done.returncode:
        pytest.skip(f"iptables does nothing here: {done.stderr.strip()[:200]}")


def reset(cluster: Cluster, host: str, who: str) -> None:
    """Reset every connection of the host's sshd: by its kernel, or by a firewall before it."""
    if who == "firewall":
        firewall(cluster, host, "-j", "REJECT", "--reject-with", "tcp-reset")
        return
    words = "ss --kill --no-header --tcp state established sport = :22"
    try:
        done = cluster.run(words.split(), host, root=True)
    except FileNotFoundError:
        pytest.skip("ss is not here")
    if done.returncode or not done.stdout:
        pytest.skip(f"ss resets nothing here: {done.stderr.strip()[:200]}")


def test_one_host_lacks_the_program(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(3)  # row 13
    program, mark = (os.path.join(cluster.shared, name) for name in ("program", "mark"))
    with open(program, "w") as file:
        file.write(f"#!/bin/sh\ntouch {mark}\n")
    os.chmod(program, 0o755)
    cluster.run(["mount", "--bind", "/dev/null", program], "n2", root=True, check=True)
    done = cluster.run([*conftest.DISPATCH, "-H", "n[1-3]", "--no-python", program])
    assert done.returncode in (126, 127)
    assert re.search(r"\n  n2 .*program", done.stderr), done.stderr
    assert not os.path.exists(mark)  # no rank elsewhere


@pytest.fixture
def frozen() -> object:
    """``frozen(pid)`` puts a process into the state D until the test is over."""
    group = Path(f"/sys/fs/cgroup/freezer/dispatch-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer cgroup can be made here: {error}")

    def freeze(pid: int) -> None:
        (group / "tasks").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (group / "freezer.state").read_text() == "FROZEN\n", 20, "frozen")

    yield freeze
    (group / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (group / "tasks").read_text(), 10, "the group is empty")
    group.rmdir()


@pytest.mark.nightly
def test_a_host_cut_off_while_its_agent_begins_keeps_nothing(
    new_cluster: Callable[..., Cluster],
) -> None:  # row 29
    """Its first bytes arrive, the rest of its source does not."""
    cluster = new_cluster(2)
    sent = ("--connbytes-dir", "original", "--connbytes-mode", "bytes", "--connbytes", "9000:")
    firewall(cluster, "n1", "-m", "connbytes", *sent, "-j", "DROP")
    run = [*conftest.DISPATCH, "-w", "n[1-2]:1", "--boot-timeout", "5", "--no-python", "hostname"]
    done = cluster.run(run)
    assert done.returncode == 125
    assert re.search(r"n1  unreachable  no answer for \d+ s", done.stderr), done.stderr
    assert any(conftest.AGENT in command for _, _, command in cluster.on_hosts())
    wait_for(lambda: not cluster.on_hosts(), SOURCE_LIMIT + SLACK, "nothing is left on n1")


def test_who_cannot_reach_node_0_is_not_lost_over_it(new_cluster: Callable[..., Cluster]) -> None:
    """An agent that tries gives no heartbeat for longer than three of them."""
    cluster = new_cluster(3)
    firewall(cluster, "n1", "--syn", "-j", "DROP", to=("!", *SSH))
    run = [*conftest.DISPATCH, "-w", "n[1-3]:1", "--heartbeat", "0.8", "--no-python", "hostname"]
    done = cluster.run(run)
    assert done.returncode == 125
    assert "n[2-3]  check failed  cannot reach node 0 at 10." in done.stderr, done.stderr
    assert "lost" not in done.stderr, done.stderr


@pytest.mark.nightly
def test_a_rank_that_cannot_be_killed_is_named(
    job: Start, frozen: Callable[[int], None]
) -> None:  # row 8
    run = job("sleep", "--grace", "1").up()
    victim = run.ranks("n2")[0]
    frozen(victim)
    run.terminate()
    said = run.ends(143, 60)
    assert re.search(r"error: n2: processes survived SIGKILL: \d+ \(rank [23]: state D", said), said
    assert time.monotonic() - run.began < 30
