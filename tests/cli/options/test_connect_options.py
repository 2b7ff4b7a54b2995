"""Which transport is made of the options: kept connections, trees, whom to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.cli.exec.exec import ExecOptions
from dispatcher.cli.options.connect_options import (
    Fanout,
    LoginTransports,
    alive,
    check_keep,
    fanout_tree,
    keep_seconds,
)
from dispatcher.cli.options.host_options import LimitOptions, LoginOptions
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.transport.base import ALIVE_INTERVAL, UNLESS_CONFIGURED, Keepalive
from dispatcher.transport.tree import tree_transport
from dispatcher.transport.tree.topology import HostTree, plan_tree

N = [Host(f"n{number}") for number in range(1, 8)]


@pytest.fixture(autouse=True)
def _no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody keeps connections here already, whatever other tests have left to idle."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


# -- kept connections ------------------------


@cases(
    ("options", "seconds"),
    [
        (LoginOptions(), None),
        (ExecOptions(), None),
        (ExecOptions(keep="600"), 600.0),
        (ExecOptions(keep="0.5", transport="paramiko"), 0.5),
    ],
)
def test_how_long_connections_are_kept(options: LoginOptions, seconds: float | None) -> None:
    assert keep_seconds(options) == seconds


@cases(
    ("options", "said", "hint"),
    [
        (ExecOptions(keep="0"), "--keep=0: connections cannot be kept for 0 s",
         "dispatch connect --close ends them"),
        (ExecOptions(keep="x"), "--keep: not a number of seconds", None),
        (ExecOptions(keep="9", transport="ssh"), "--keep needs the built-in ssh client",
         "ControlPersist of ssh_config keeps ssh's own"),
        (ExecOptions(keep="9", transport="slurm"), "--keep needs the built-in ssh client",
         "ControlPersist of ssh_config keeps ssh's own"),
        (ExecOptions(keep="9", rsh="rsh {host}"), "--keep needs the built-in ssh client",
         "ControlPersist of ssh_config keeps ssh's own"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept(options: LoginOptions, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        check_keep(options)
    assert caught.value.message.startswith(said)
    if hint is not None:
        assert caught.value.hint == hint


@cases(
    ("options", "found"),
    [
        (LoginOptions(), UNLESS_CONFIGURED),
        (RunOptions(), UNLESS_CONFIGURED),
        (LimitOptions(), Keepalive(otherwise=ALIVE_INTERVAL)),
        (ExecOptions(server_alive_interval=0.0), Keepalive(0.0)),
        (ExecOptions(server_alive_interval=9.0), Keepalive(9.0)),
    ],
)
def test_when_a_silent_host_is_asked(options: Any, found: Keepalive) -> None:
    assert alive(options) == found


# -- trees ------------------------


def test_the_tree_in_words() -> None:
    tree = Fanout(tuple(N), HostTree((None, 0, 1, 0, None, 4, 4)))
    assert tree.lines() == [
        "tree        3 levels; from here n[1,5]",
        "            n1 opens n[2,4]",
        "            n2 opens n3",
        "            n5 opens n[6-7]",
    ]
    assert tree.parents() == {"n2": "n1", "n3": "n2", "n4": "n1", "n6": "n5", "n7": "n5"}


@cases(
    ("options", "there_is"),
    [
        (LoginOptions(), False),
        (ExecOptions(), False),
        (ExecOptions(fanout_tree="auto"), True),
        (RunOptions(fanout_tree="3", ssh_config="c", agent_python="/py"), True),
    ],
)
def test_a_tree_only_if_it_is_wanted(options: Any, there_is: bool) -> None:
    tree = fanout_tree(options, [*N, Host("localhost")], "run")
    assert (tree is not None) is there_is
    if tree is not None:
        assert (tree.run_id, tree.ssh_config) == ("run", options.ssh_config)
        assert tree.python == options.agent_python
        assert tree.hosts == tuple(N)  # this machine needs no way through others
        branches = {"auto": None, "3": 3}[str(options.fanout_tree)]
        assert tree.topology == plan_tree(7, branches)


def test_a_dry_run_says_that_so_few_hosts_get_no_tree() -> None:
    tree = fanout_tree(ExecOptions(fanout_tree="auto"), N)
    assert tree is not None
    assert tree.lines() == [f"tree        none with so few hosts; from here n[1-{len(N)}]"]


@cases(
    ("options", "said"),
    [
        ({"fanout_tree": "1"}, "--fanout-tree=1: a chain"),
        ({"fanout_tree": "x"}, "--fanout-tree"),
        ({"fanout_tree": "2", "rsh": "r {host}"}, "--fanout-tree needs SSH"),
        ({"fanout_tree": "2", "transport": "slurm"}, "--fanout-tree needs SSH"),
        ({"fanout_tree": "2", "keep": "9"}, "--fanout-tree and --keep exclude each other"),
    ],
)
def test_no_tree(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        fanout_tree(ExecOptions(**options), N)  # type: ignore[arg-type]
    assert caught.value.message.startswith(said)


class Made:
    """In the place of a transport: what it was made of, and whether it is closed."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.given, self.more = given, more
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_transport, "TreeTransport", Made)


@pytest.mark.usefixtures("trees")
def test_this_machine_is_not_reached_by_a_tree() -> None:
    options = ExecOptions(fanout_tree="2")
    said: list[Any] = []
    with LoginTransports(options, tree=fanout_tree(options, N), say=said.append) as pool:
        by_tree: Any = pool.transport_for(N[0])
        assert pool.transport_for(N[6]) is by_tree
        assert pool.transport_for(Host("localhost")).name == "local"
        assert isinstance(by_tree, Made)
        by_tree.more["say"]("note")
        by_tree.typing = said.append
        pool._ask_whom = str.upper
        assert pool._ask("word") == "WORD"
    assert by_tree.closed == 1
    assert said == ["note", True, False]
    with LoginTransports(ExecOptions()) as pool:
        assert pool.transport_for(N[0]).name == "paramiko"


def test_what_the_options_say_reaches_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatcher.transport.ssh import paramiko_transport

    monkeypatch.setattr(paramiko_transport, "ParamikoTransport", Made)
    monkeypatch.setattr(Made, "name", "paramiko", raising=False)
    options = ExecOptions(ssh_config="c", host_keys="accept-new", server_alive_interval=7.0)
    for keep in (False, True):
        with LoginTransports(options, keep=keep) as pool:
            made: Any = pool.transport_for(N[0])
        assert (made.more["config"], made.more["host_keys"]) == ("c", "accept-new")
        assert (made.more["alive"], made.more["keep"]) == (Keepalive(7.0), keep)
        assert made.closed == 1
        kept: Any = pool.in_process(keep=True)
        assert kept.more["keep"] is True


def test_whom_a_secret_is_asked_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dispatcher.output.terminal.asking.Asking.ask", lambda self, prompt: f"here {prompt}"
    )
    assert LoginTransports(ExecOptions())._ask("x: ") == "here x: "
    assert LoginTransports(ExecOptions(), lambda prompt: "there")._ask("x: ") == "there"
