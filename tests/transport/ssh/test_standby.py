"""Shells that wait for the next command over a kept connection, and hosts that fell silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import wait_for

from dispatcher.bootstrap import shell
from dispatcher.model.failure import Ending, Kind
from dispatcher.transport import base
from dispatcher.transport.base import Keepalive, Link, Target
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.ssh.shared_sessions import SessionPool
from dispatcher.transport.ssh_config.ssh_config import SshConfig

from ..conftest import Reader, gather
from ..sshd import Sshd, start_sshd

NODE = Target("node")


@pytest.fixture
def transport(sshd: Sshd) -> Iterator[ParamikoTransport]:
    made = ParamikoTransport(config=sshd.config(), keep=True, alive=Keepalive(15.0))
    yield made
    made.close()


def run(transport: ParamikoTransport, *words: str, at_hand: bool = False) -> bytes:
    """What ``words`` say; the link is closed after their end."""
    if at_hand:
        link = until_at_hand(transport)
    else:
        opened = transport.open(NODE, shell.COMMAND, time.monotonic() + 40)
        assert isinstance(opened, Link), opened
        link = opened
    link.write(shell.opening(words))
    output, _ = gather(link)
    assert link.ending(30) == Ending(0)
    link.close()
    return output.partition(b"\n\0")[2] or output


def until_at_hand(transport: ParamikoTransport) -> Link:
    link = wait_for(lambda: transport.open_started(NODE, shell.COMMAND), 20, "a shell waits there")
    assert link is not None
    return link


def test_a_command_over_a_shell_that_waits(transport: ParamikoTransport) -> None:
    assert transport.open_started(NODE, shell.COMMAND) is None
    run(transport, "true")
    assert transport.open_started(NODE, shell.COMMAND) is None
    assert transport.session_pool is not None
    for number in range(3):
        transport.session_pool.stand_by(shell.COMMAND)
        assert run(transport, "echo", f"x{number}", at_hand=True).endswith(f"x{number}\n".encode())
    transport.session_pool.stand_by(shell.COMMAND)
    other = transport.open(NODE, "echo other", time.monotonic() + 40)  # not what waits there
    assert isinstance(other, Link)
    assert gather(other)[0] == b"other\n"


def test_variables_that_ssh_config_sends(tmp_path: Path) -> None:
    """What AcceptEnv lacks is dropped without a word, as with ssh; a shell that waits has them."""
    server = start_sshd(tmp_path / "sshd", "AcceptEnv SET GIVEN_*")
    config = server.config(extra="SendEnv GIVEN_?\nSetEnv SET=fixed 'SECRET=no'")
    show = ("sh", "-c", "echo $SET,$GIVEN_A,$GIVEN_LONG,$SECRET")
    pool = SessionPool()

    def reading(**environ: str) -> ParamikoTransport:
        return ParamikoTransport(config=SshConfig(config, environ=environ), keep=pool)

    with server:
        one = reading(GIVEN_A="1 2\udcff", GIVEN_LONG="x")
        assert run(one, *show).endswith(b"fixed,1 2\xff,,\n")
        pool.stand_by(shell.COMMAND)
        other = reading(GIVEN_A="other")
        assert other.open_started(NODE, shell.COMMAND) is None
        assert run(other, *show).endswith(b"fixed,other,,\n")  # by the same connection
        assert sum(map(len, pool._idle.values())) == 1
        assert run(one, *show, at_hand=True).endswith(b"fixed,1 2\xff,,\n")
        pool.close()


def test_a_waiting_shell_that_has_ended(transport: ParamikoTransport, tmp_path: Path) -> None:
    run(transport, "true")
    command = f"[ -e {tmp_path}/once ]&&echo again;touch {tmp_path}/once"
    assert transport.session_pool is not None
    transport.session_pool.stand_by(command)
    ((_, session),) = next(iter(transport.session_pool._idle.values()))
    assert session._standby is not None
    assert session._standby._channel.status_event.wait(60)
    opened = transport.open(NODE, command, time.monotonic() + 40)
    assert isinstance(opened, Link)
    assert gather(opened)[0] == b"again\n"


def test_a_host_of_one_session_refuses(tmp_path: Path) -> None:
    server = start_sshd(tmp_path / "sshd", "MaxSessions 1")
    transport = ParamikoTransport(config=server.config(), keep=True)
    try:
        for _ in range(3):
            assert run(transport, "echo", "yes").endswith(b"yes\n")
            assert transport.session_pool is not None
            transport.session_pool.stand_by(shell.COMMAND)
    finally:
        transport.close()
        server.stop()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_silent_host(sshd: Sshd, stopped: bool) -> None:
    """Its command says nothing for longer than the limit; only if sshd does neither it is lost."""
    # an sshd that only is slow answers within the limit, and the command has begun
    interval = 1.5 if stopped else 2.0
    transport = ParamikoTransport(config=sshd.config(), alive=Keepalive(interval))
    limit = interval * (base.ALIVE_COUNT + 1)
    command = f"echo $PPID; sleep {limit + 0.5}; echo late"
    link = transport.open(NODE, command, time.monotonic() + 40)
    assert isinstance(link, Link)
    reader = Reader(link)
    reader.until(lambda: reader.output.endswith(b"\n"))
    parent = int(reader.output)
    if stopped:
        os.kill(parent, signal.SIGSTOP)
    try:
        reader.until(lambda: reader.ended)
        assert reader.output.endswith(b"late\n") is not stopped
        assert (link.ending(30).code is None) is stopped
        lost = link.failure(0.0)
        assert (lost is not None and lost.kind is Kind.UNREACHABLE) is stopped
    finally:
        os.kill(parent, signal.SIGCONT) if stopped else None
        link.close()
        transport.close()
