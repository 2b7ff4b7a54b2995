"""``exec``: what each host answered, over this machine by its names."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

import dispatcher
from dispatcher.api import exec_session
from dispatcher.api.exec_session import ExecSession
from dispatcher.api.transports import TransportPool, nobody
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import Exited, HostDone
from dispatcher.core.events.run_events import Entry
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.output.exec.host_results import BOTH, HostResult
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.remote.protocol.frames import STDERR, STDOUT
from dispatcher.transport.base import ALIVE_INTERVAL, Keepalive
from dispatcher.transport.process.command import LocalTransport

ON_TWO = ["localhost", "127.0.0.1"]


def test_what_each_host_answered() -> None:
    found = dispatcher.exec(ON_TWO, ["sh", "-c", "printf 'out\\377'; echo error >&2; exit 3"])
    assert [one.host for one in found.hosts] == ON_TWO
    for one in found.hosts:
        assert (one.ok, one.code, one.words) == (False, 3, "exit code 3")
        assert (one.stdout, one.stderr, one.dropped) == (b"out\xff", b"error\n", 0)
        assert one.text == "out\ufffd"
        assert 0 < one.seconds < 60
    assert (found.ok, found.exit_code, found.largest_code) == (False, 1, 3)
    assert found.verdict[0] == "error: 2 of 2 hosts failed [hosts-failed]"


def test_all_went_well() -> None:
    found = dispatcher.exec(ON_TWO, ["true"], limits=ExecLimits(serial=1))
    assert (found.ok, found.exit_code, found.largest_code, found.verdict) == (True, 0, 0, ())
    assert all(one.ok and one.code == 0 for one in found.hosts)


def test_a_command_that_does_not_exit_by_itself() -> None:
    limits = ExecLimits(command=0.3, grace=0.5)
    found = dispatcher.exec("localhost", ["sleep", "50"], limits=limits)
    (one,) = found.hosts
    assert (one.ok, one.code, found.exit_code, found.largest_code) == (False, None, 124, 124)
    assert one.seconds >= 0.2


def test_what_is_too_much_is_counted() -> None:
    text = "head -c 5000000 /dev/zero; head -c 4200000 /dev/zero >&2"
    (one,) = dispatcher.exec("localhost", ["sh", "-c", text]).hosts
    assert len(one.stdout) == len(one.stderr) == 4 << 20
    assert one.dropped == 5000000 + 4200000 - (8 << 20)


def test_only_the_wanted_streams_are_kept_and_what_is_beyond_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exec_session, "MOST", 8)
    plan = ExecPlan((Host("n1"), Host("n2")), ("true",))

    def results(streams: frozenset[int]) -> Any:
        session = ExecSession(plan, lambda host: LocalTransport(), streams=streams)
        monkeypatch.setattr(session._runner, "run", lambda handled: (Exited(0), Exited(3)))
        for _ in range(3):
            session.output(0, STDOUT, b"12345")
        session.output(1, STDERR, b"err")
        session.event(Entry(1, 2.0, ev.NodeBooted(0, 0)))
        session.event(Entry(2, 2.5, HostDone(1, Exited(3))))
        return session.run()

    kept = HostResult("n1", 0, Exited(0), 0.0, b"12345123", stdout_dropped=7)
    other = HostResult("n2", 1, Exited(3), 2.5, b"", b"err")
    assert results(BOTH) == (kept, other)
    assert (kept.dropped, other.dropped) == (7, 0)
    assert results(frozenset({STDOUT})) == (kept, HostResult("n2", 1, Exited(3), 2.5))


@cases(
    ("hosts", "argv", "more", "said"),
    [
        ("localhost", "echo a b", {}, "argv: a list of words, not a text"),
        ("n[", ["a"], {}, ""),
        ("-", ["a"], {}, "hosts: - is for the command line only"),
        (["n1"], ["a"], {"ways": dispatcher.Ways("slurm", host_keys="strict")}, "--host-keys is"),
    ],
)
def test_refused_before_any_host(hosts: Any, argv: Any, more: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        dispatcher.exec(hosts, argv, **more)
    assert caught.value.message.startswith(said)
    if isinstance(argv, str):
        assert caught.value.hint == "['echo', 'a', 'b']"


def test_how_hosts_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = TransportPool

    def pool(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    def ask(prompt: str) -> str:
        return "secret"

    monkeypatch.setattr("dispatcher.api.transports.TransportPool", pool)
    assert dispatcher.exec("localhost", ["true"]).ok
    rsh = dispatcher.Ways(rsh="sh -c {command}")
    assert dispatcher.exec("n7", ["true"], ways=rsh, ask=ask).ok
    alive = Keepalive(otherwise=ALIVE_INTERVAL)
    assert made == [(dispatcher.Ways(), nobody, alive), (rsh, ask, alive)]
