"""Which transport reaches which host, each made once; and what no way can reach."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from cases import cases

from dispatcher.api.transports import (
    FILES_PER_HOST,
    TransportPool,
    Ways,
    allow_open_files,
    check_reachable,
    is_local,
    nobody,
)
from dispatcher.model.errors import NoPassword, UsageError
from dispatcher.model.host import Host
from dispatcher.transport.process.command import SRUN, CommandTransport, LocalTransport
from dispatcher.transport.process.openssh import SshTransport
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport

HERE, THERE = Host("localhost"), Host("n1")


@cases(
    ("ways", "host", "kind"),
    [
        (Ways(), HERE, LocalTransport),
        (Ways(), Host("127.0.0.1"), LocalTransport),
        (Ways(), Host("::1"), LocalTransport),
        (Ways(), Host("localhost", user="ml"), ParamikoTransport),
        (Ways(), Host("localhost", port=2222), ParamikoTransport),
        (Ways(), THERE, ParamikoTransport), (Ways("paramiko"), HERE, ParamikoTransport),
        (Ways("ssh"), HERE, SshTransport), (Ways("ssh"), THERE, SshTransport),
        (Ways("slurm"), THERE, CommandTransport), (Ways("slurm"), HERE, CommandTransport),
        (Ways(rsh="rsh {host}"), THERE, CommandTransport),
    ],
)  # fmt: skip
def test_who_is_reached_how(ways: Ways, host: Host, kind: type) -> None:
    with TransportPool(ways) as pool:
        first = pool.transport_for(host)
        assert type(first) is kind
        assert pool.transport_for(host) is first
    assert is_local(host) == (host.name != "n1" and host.user is None and host.port is None)


def test_each_is_closed_at_the_end() -> None:
    closed: list[str] = []
    with TransportPool(Ways()) as pool:
        for host in (HERE, THERE):
            transport = pool.transport_for(host)
            transport.close = lambda name=transport.name: closed.append(name)  # type: ignore[method-assign,misc]
        assert closed == []
    assert sorted(closed) == ["local", "paramiko"]


def test_the_user_is_seen_to_type() -> None:
    seen: list[Any] = []

    def ask(prompt: str) -> str:
        seen.append(prompt)
        return "secret"

    pool = TransportPool(Ways(), ask)
    for name in ("localhost", "n1"):  # two transports, and one command that uses both
        pool.transport_for(Host(name)).typing = seen.append
    assert pool._ask("passphrase: ") == "secret"
    assert seen == [True, "passphrase: ", False]
    assert nobody("passphrase: ") is None


def test_a_password_that_is_wanted_in_any_case_is_asked_for_at_once() -> None:
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "secret"

    with TransportPool(Ways(ask_pass=True), ask):
        assert asked == ["password of all hosts: "]
    for nothing in (nobody, lambda prompt: ""):
        with pytest.raises(NoPassword), TransportPool(Ways(ask_pass=True), nothing):
            raise AssertionError("it goes on without one")
    for other in ({"transport": "ssh"}, {"rsh": "rsh {host}"}):
        with pytest.raises(UsageError, match="--ask-pass is for SSH in this process"):
            Ways(ask_pass=True, **other)  # type: ignore[arg-type]


@cases(
    ("ways", "chosen", "template"),
    [
        (Ways(), "auto", None),
        (Ways("ssh"), "ssh", None),
        (Ways("slurm"), "slurm", SRUN),
        (Ways(rsh="ssh -J gate {host}"), "rsh", ("ssh", "-J", "gate", "{host}", "{command}")),
    ],
)
def test_the_command_that_reaches_hosts(
    ways: Ways, chosen: str, template: tuple[str, ...] | None
) -> None:
    assert (ways.chosen, ways.template()) == (chosen, template)


def test_ways_that_contradict_each_other() -> None:
    for transport in ("paramiko", "ssh", "slurm"):
        with pytest.raises(UsageError, match="--rsh and --transport exclude each other"):
            Ways(transport, rsh="x")
    assert Ways("auto", rsh="x {host}").chosen == "rsh"


@cases(
    ("ways", "host", "said"),
    [
        (Ways(), Host("n1", user="ml", port=1), None),
        (Ways("ssh", host_keys="accept-new"), THERE, None),
        (Ways("slurm"), THERE, None),
        (Ways("slurm"), Host("n1", user="ml"), "n1: user ml is set, which --transport slurm"),
        (
            Ways("slurm", host_keys="strict"),
            THERE,
            "--host-keys is for SSH, not for --transport slurm",
        ),
        (Ways(rsh="a {host}"), Host("n1", port=7), "n1: port 7 is set, which --rsh does not"),
        (Ways(rsh="a -p {port} {host}"), Host("n1", port=7), None),
        (Ways(rsh="a {user}@{host}"), Host("n1", user="ml"), None),
        (Ways(rsh="a {user}@{host}"), Host("n1", user="ml", port=7), "n1: port 7"),
    ],
)
def test_what_no_way_can_reach(ways: Ways, host: Host, said: str | None) -> None:
    if said is None:
        check_reachable(ways, [THERE, host])
        return
    with pytest.raises(UsageError) as caught:
        check_reachable(ways, [THERE, host])
    assert caught.value.message.startswith(said)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits that were set; the first is what there is."""
    kept = [(100, 1000)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: kept[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: kept.append(pair))
    return kept


@pytest.mark.parametrize(
    ("hosts", "hard", "now"),
    [
        (9, 1000, 100),  # 9 * 4 + 64 are enough
        (10, 1000, 104),
        (234, 1000, 1000),
        (500, resource.RLIM_INFINITY, 2064),
    ],
)
def test_room_for_open_files(
    limits: list[tuple[int, int]], hosts: int, hard: int, now: int
) -> None:
    assert FILES_PER_HOST == 4
    limits[0] = (100, hard)
    allow_open_files(hosts)
    assert limits[-1] == (now, hard)
    assert len(limits) == (1 if now == 100 else 2)


def test_no_room_for_open_files(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(UsageError, match="235 hosts need 1004 open files, at most 1000") as caught:
        allow_open_files(235)
    assert (caught.value.hint or "").startswith("ulimit -n 1004")
    limits[0] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    allow_open_files(10**6)
    assert len(limits) == 1
