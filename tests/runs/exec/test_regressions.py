"""What other parallel shells got wrong, and the test that we do not.

====================================================  ==========================================
a line of 421 083 characters                          test_exec.test_a_very_long_line_comes_whole_in_pieces
thousands of bytes without a newline                  test_a_line_without_an_end
progress bars, NUL, bytes that are no text            test_exec.test_progress_bars_nul_and_bytes_that_are_no_text
10 MiB on both streams                                test_exec.test_large_output_of_both_streams_arrives_whole
processes there are gone after Ctrl-C and kill -9     test_exec_hosts.test_nothing_is_left
after a time limit                                    test_exec.test_command_timeout_kills_the_group
after the loss of the connection                      test_a_lost_connection_leaves_nothing
ControlPersist                                        test_control_persist
closed port, dead address, unknown name               transport.test_failures.test_refused
a port that says nothing, a host that hangs           transport.test_failures.test_tarpit_ends_at_the_deadline
MaxStartups                                           test_exec_hosts.test_drops_are_tried_again
known_hosts: markers, bad lines                       transport.ssh_auth.test_known_hosts.test_bad_lines_are_skipped
ssh_config: unknown Match                             transport.ssh_config.test_ssh_config.test_refused_and_named
ssh_config: Include                                   transport.ssh_config.test_same_as_ssh.test_same_as_ssh
many hosts through one bastion                        test_many_hosts_through_one_bastion
descriptors beyond 1024                               transport.test_contract.test_descriptors_beyond_1024
a hostfile with slots=, :8 and comments               test_exec_hosts.test_the_hostfile_is_that_of_run
echo '%u' 'a  b'                                      test_exec.test_arguments_are_exact
large standard input to a slow host                   test_memory_is_bounded_by_no_slow_reader
in the background                                     test_in_the_background
in a loop that reads                                  test_exec.test_standard_input_is_left_alone
====================================================  ==========================================
"""  # noqa: E501

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rig import Cluster, wait_for
from typist import Typist

EXEC = [sys.executable, "-m", "dispatcher", "exec", "-t", "90"]
HERE = Path(__file__).parent


def test_every_line_of_the_table_has_its_test() -> None:
    named = re.findall(r"  +((?:\w+\.)*test_\w+)$", __doc__ or "", re.M)
    assert len(named) > 15
    for name in named:
        *place, test = name.split(".")
        file = HERE / "test_regressions.py"
        if place:
            file = (HERE.parents[1] if len(place) > 1 else HERE).joinpath(*place).with_suffix(".py")
        assert re.search(rf"def {test}\(", file.read_text()), name


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXEC, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_a_line_without_an_end() -> None:
    done = run("-w", "localhost", "--shell", "head -c 9000 /dev/zero | tr '\\0' x")
    assert done.stdout == f"localhost: {'x' * 9000}\n"


def test_memory_is_bounded_by_no_slow_reader() -> None:
    size = 300_000_000
    text = "head -c 1 >/dev/null; sleep 1; wc -c"
    # a child of this process would count this process's memory as its own: fork(2), getrusage(2)
    small = (
        "import resource, subprocess, sys\n"
        "code = subprocess.call(sys.argv[1:])\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    with subprocess.Popen(["head", "-c", str(size), "/dev/zero"], stdout=subprocess.PIPE) as source:
        done = subprocess.run(
            [sys.executable, "-Sc", small, *EXEC, "-I", "-w", "localhost,127.0.0.1",
             "--shell", text],
            stdin=source.stdout, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    *lines, last = done.stdout.splitlines()
    assert sorted(line.split()[1] for line in lines) == [str(size - 1)] * 2
    code, most = map(int, last.split())
    assert code == 0
    assert most < 150_000, f"{most} KiB"


def test_in_the_background() -> None:
    """Reading the terminal from there would stop it."""
    words = " ".join([*EXEC, "-w", "localhost", "--", "echo", "done"])
    one = Typist(["sh", "-mc", f"{words} & wait $!"])
    try:
        one.until("done\r\n")
        assert one.wait() == 0
    finally:
        one.close()


class TestOverSsh:
    def test_a_lost_connection_leaves_nothing(self, cluster: Cluster) -> None:
        text = "sleep 1000 & (trap '' TERM INT HUP; exec sleep 1000) & echo $PPID; wait"
        with cluster.popen(
            [*EXEC, "-N", "-w", "n1", "--shell", text], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as one:  # fmt: skip
            assert one.stdout is not None
            session = one.stdout.readline().strip()
            cluster.run(["kill", "-9", session], host="n1")
            assert one.wait(60) == 125
            assert one.stderr is not None
            assert "the connection ended while the command ran" in one.stderr.read()
        wait_for(lambda: not cluster.on_hosts(), 60, lambda: cluster.on_hosts())

    def test_control_persist(self, cluster: Cluster, tmp_path: Path) -> None:
        config = tmp_path / "config"
        config.write_text(
            f"Host *\n ControlMaster auto\n ControlPath {tmp_path}/%h\n ControlPersist 60\n"
        )
        words = [*EXEC, "-F", str(config), "--transport", "ssh", "-w", "n[1-2]", "hostname"]
        for _ in range(2):
            done = cluster.run(words)
            assert sorted(done.stdout.splitlines()) == ["n1: n1", "n2: n2"], done.stderr
        for host in ("n1", "n2"):
            cluster.run(["ssh", "-F", str(config), "-O", "exit", host])

    def test_many_hosts_through_one_bastion(self, cluster: Cluster, tmp_path: Path) -> None:
        config = tmp_path / "config"
        hosts = "".join(
            f"Host a{i}\n HostName n{2 + i % 3}\n HostKeyAlias n{2 + i % 3}\n" for i in range(40)
        )
        config.write_text(f"{hosts}Match originalhost a*\n ProxyJump n1\n")
        done = cluster.run([*EXEC, "-F", str(config), "-w", "a[0-39]", "hostname"])
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == sorted(f"a{i}: n{2 + i % 3}" for i in range(40))
