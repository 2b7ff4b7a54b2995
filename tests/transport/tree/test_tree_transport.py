"""Who of a tree is reached through whom, and from here when that fails.

Relays and links are played: no host, no process.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from rig import wait_for

from dispatcher.bootstrap import shell
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import frame
from dispatcher.transport.base import Link, Target, Transport, Window
from dispatcher.transport.tree import branch, tree_transport
from dispatcher.transport.tree.branch import Stream
from dispatcher.transport.tree.topology import HostTree
from dispatcher.transport.tree.tree_transport import (
    TreeTransport,
    Trust,
    Trusted,
    payload,
)

from ..far_link import FarLink
from .conftest import key


class Head(FarLink):
    """An inner host; its relay is the test."""

    by: str | None = None

    def __init__(self, said: bytes = SYNC) -> None:
        super().__init__(said)
        self.status = Ending(None)
        self.heard: list[tuple[int, int, bytes]] = []
        self._frames = mux.Decoder()
        self._before = len(payload())

    def listen(self) -> None:
        data = self.take_written()
        skipped = min(self._before, len(data))
        self._before -= skipped
        self.heard += self._frames.feed(data[skipped:])

    def hear(self, number: int, kind: int) -> bytes:
        """The body of the first such frame of a channel, which is waited for."""

        def bodies() -> list[bytes]:
            self.listen()
            return [body for *what, body in self.heard if what == [number, kind]]

        return wait_for(bodies, 20, lambda: self.heard)[0]

    def ending(self, timeout: float) -> Ending:
        return self.status


class Below(Head):
    """An inner host whose link is a channel of another's."""

    def __init__(self, above: Head, number: int) -> None:
        super().__init__()
        self._above = above
        self._number = number
        self._taken = 0

    def take_written(self) -> bytes:
        self._above.listen()
        told = b"".join(
            body for *what, body in self._above.heard if what == [self._number, mux.INPUT]
        )
        told = told.lstrip(b"\n").partition(b"\n")[2]  # the first line is for the shell there
        data, self._taken = told[self._taken :], len(told)
        return data


class Direct(Transport):
    """Gives for each command what it was told to."""

    name = "direct"

    def __init__(self) -> None:
        self.gives: dict[tuple[str, str], Link | Failure] = {}
        self.asked: list[tuple[str, str, float, Window | None]] = []

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        self.asked.append((target.host, command, deadline, window))
        return self.gives[target.host, command]


RELAY, COMMAND_ = "start python", "run it"


class Tree:
    """n1 opens n2, which opens n3; n4 is opened from here."""

    def __init__(self, config: str) -> None:
        self.direct = Direct()
        self.head = Head()
        self.said: list[str] = []
        self.direct.gives["n1", RELAY] = self.head
        for name in ("n1", "n2", "n3", "n4", "n5"):
            self.direct.gives[name, COMMAND_] = FarLink()
        self.transport = TreeTransport(
            [Target(f"n{number}") for number in (1, 2, 3, 4)],
            HostTree((None, 0, 1, None)),
            self.direct,
            command=RELAY,
            config=config,
            say=self.said.append,
            program=("ssh", "-F", "there"),
        )
        self._threads = ThreadPoolExecutor(4)

    def open(self, host: str, seconds: float = 20.0) -> Future[Link | Failure]:
        target, deadline = Target(host), time.monotonic() + seconds
        return self._threads.submit(self.transport.open, target, COMMAND_, deadline)

    def close(self) -> None:
        self.transport.close()
        self._threads.shutdown()


@pytest.fixture
def tree(config: Callable[..., str]) -> Iterator[Tree]:
    made = Tree(config(f"n2 {key(2)}", f"n3 {key(3)}"))
    yield made
    made.close()


@pytest.fixture
def two(config: Callable[..., str]) -> Iterator[Tree]:
    """n2 is a leaf: the tree ends there."""
    made = Tree(config(f"n2 {key(2)}"))
    made.transport = TreeTransport(
        [Target("n1"), Target("n2")], HostTree((None, 0)), made.direct, command=RELAY,
        config=config(f"n2 {key(2)}"), say=made.said.append,
    )  # fmt: skip
    yield made
    made.close()


@pytest.mark.parametrize(
    ("host", "window"), [("n4", None), ("n5", None), ("n4", Window()), ("n1", Window(90, 30))]
)
def test_some_are_reached_from_here(tree: Tree, host: str, window: Window | None) -> None:
    """A head without others below it, one that is not of the tree, and every terminal."""
    until = time.monotonic() + 20
    link = tree.transport.open(Target(host), COMMAND_, until, window)
    assert isinstance(link, FarLink)
    assert link is tree.direct.gives[host, COMMAND_]
    assert link.by == "direct"
    assert tree.direct.asked == [(host, COMMAND_, until, window)]
    link.by = "kept"
    tree.transport.open(Target(host), COMMAND_, until, window)
    assert link.by == "kept"
    assert tree.said == []


@pytest.mark.parametrize(
    ("host", "seconds", "kind"),
    [("-n1", 20.0, Kind.CONFIG), ("n1", 0.0, Kind.TIMEOUT), ("n4", -1.0, Kind.TIMEOUT)],
)
def test_some_are_not_even_tried(tree: Tree, host: str, seconds: float, kind: Kind) -> None:
    failure = tree.transport.open(Target(host), COMMAND_, time.monotonic() + seconds)
    assert isinstance(failure, Failure)
    assert (failure.kind, tree.direct.asked) == (kind, [])


def test_an_inner_host_runs_its_command_beside_the_relay(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(tree_transport, "time", SimpleNamespace(monotonic=lambda: now))
    link = tree.transport.open(Target("n1"), COMMAND_, now + 20)
    assert isinstance(link, Stream)
    assert (link.address, link.by) == ("10.0.0.9", "tree")
    assert tree.head.hear(1, mux.OPEN).split(b"\0") == [b"", b"/bin/sh", b"-c", b"run it"]
    # half of the time is the relay's
    assert tree.direct.asked == [("n1", RELAY, now + 10, None)]
    again = tree.transport.open(Target("n1"), COMMAND_, now + 20)
    assert isinstance(again, Stream)
    assert len(tree.direct.asked) == 1  # one relay for all
    link.write(b"hello")
    assert tree.head.hear(1, mux.INPUT) == b"hello"


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (Failure(Kind.AUTH, "no"), False),
        (Failure(Kind.REFUSED, "no"), False),
        (Failure(Kind.TIMEOUT, "late"), True),  # there is time left for another try
        (Failure(Kind.DROPPED, "busy", retryable=True), True),
    ],
)
def test_a_head_that_is_not_reached(tree: Tree, failure: Failure, again: bool) -> None:
    tree.direct.gives["n1", RELAY] = failure
    opened = tree.open("n1").result(60)
    if again:
        assert opened is tree.direct.gives["n1", COMMAND_]
    else:
        assert opened == failure
    assert [command for _, command, _, _ in tree.direct.asked] == [RELAY, *[COMMAND_] * again]
    assert tree.said == []  # it was to be connected from here anyway


def test_a_head_without_a_relay_is_reached_all_the_same(tree: Tree) -> None:
    tree.direct.gives["n1", RELAY] = head = Head(b"sh: python3: not found\n")
    head.status = Ending(127)
    head.end()
    assert tree.open("n1").result(60) is tree.direct.gives["n1", COMMAND_]
    assert tree.said == []


def test_a_leaf_is_reached_through_the_host_above(
    two: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(tree_transport, "time", SimpleNamespace(monotonic=lambda: now))
    opened = two.open("n2", now + 20 - time.monotonic())
    known, *words = two.head.hear(1, mux.OPEN).decode().split("\0")
    assert known == f"n2 {key(2)}\n"
    assert words[0] == "ssh"
    # three quarters of its time are for the way through the other
    assert {"ConnectTimeout=15", "ConnectTimeout=16"} & set(words)
    assert words[-3:] == ["--", "n2", shell.COMMAND]
    first = two.head.hear(1, mux.INPUT)
    assert first.lstrip().startswith(b": dispatch;printf '")
    assert first.endswith(b";unset s;run it\n")
    assert not opened.done()
    two.head.say(frame(1, mux.OUTPUT, b"motd\n" + SYNC + b"hello"))
    link = opened.result(60)
    assert isinstance(link, Stream)
    assert wait_for(lambda: link.read(99), 20, "output") == b"motd\nhello"
    assert two.said == []


@pytest.mark.parametrize(
    ("frames", "why", "hint"),
    [
        (frame(1, mux.ERRORS, b"me@n2: Permission denied (publickey).\n")
         + frame(1, mux.ERRORS_END) + frame(1, mux.ENDED, tree_relay.STATUS.pack(255)),
         "ssh says: me@n2: Permission denied (publickey)", "ssh n1 ssh n2 true"),
        (frame(1, mux.ENDED, tree_relay.STATUS.pack(1)),
         "the login ended before the host's shell answered", None),
        (None, "n1, through which it was reached, is gone: its relay ended with 3", None),
    ],
)  # fmt: skip
def test_a_leaf_that_is_not_reached_is_connected_from_here(
    two: Tree, frames: bytes | None, why: str, hint: str | None
) -> None:
    opened = two.open("n2")
    two.head.hear(1, mux.INPUT)
    two.head.status = Ending(3)
    if frames is None:
        two.head.end()
    else:
        two.head.say(frames)
    assert opened.result(60) is two.direct.gives["n2", COMMAND_]
    assert two.said[0] == f"note: n2: connected from here, not through n1: {why}"
    assert len(two.said) == (1 if hint is None else 2)
    assert hint is None or two.said[1].startswith(f"  hint: {hint}")
    if frames is not None:
        assert two.head.hear(1, mux.CLOSE) == b""


def test_a_leaf_that_is_late_has_a_quarter_of_its_time_from_here(
    two: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    for module in (tree_transport, branch):  # however late our threads are
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: began))
    opened = two.transport.open(Target("n2"), COMMAND_, began + 0.4)
    assert opened is two.direct.gives["n2", COMMAND_]
    assert time.monotonic() >= began + 0.3
    assert two.direct.asked[-1][2] == began + 0.4  # the whole of its time
    assert two.said == [
        "note: n2: connected from here, not through n1: n1 did not reach it in time"
    ]


def test_a_leaf_of_which_no_key_is_known(two: Tree, config: Callable[..., str]) -> None:
    two.transport = TreeTransport(
        [Target("n1"), Target("n2")], HostTree((None, 0)), two.direct, command=RELAY,
        config=config(), say=two.said.append,
    )  # fmt: skip
    refused = Failure(Kind.HOST_KEY_UNKNOWN, "it is unknown here as well")
    two.direct.gives["n2", COMMAND_] = refused
    assert two.open("n2").result(60) == refused
    assert two.said[0].endswith(": no key of n2 is on file here")
    assert two.said[1].startswith("  hint: ssh-keyscan n2 >> ~/.ssh/known_hosts")
    two.transport.close()


def test_those_behind_a_head_that_is_not_reached(two: Tree) -> None:
    two.direct.gives["n1", RELAY] = Failure(Kind.REFUSED, "port 22")
    assert two.open("n2").result(60) is two.direct.gives["n2", COMMAND_]
    assert two.said == [
        "note: n2: connected from here, not through n1: n1 was not reached: port 22"
    ]


def test_three_levels(tree: Tree) -> None:
    """The relay of n2 is started through that of n1, and its link is a stream there."""
    opened = tree.open("n3")
    words = tree.head.hear(1, mux.OPEN).decode().split("\0")
    assert words[1:4] == ["ssh", "-F", "there"]
    assert words[-2] == "n2"
    assert tree.head.hear(1, mux.INPUT).endswith(b";unset s;" + RELAY.encode() + b"\n")
    tree.head.say(frame(1, mux.OUTPUT, SYNC))  # the shell of n2
    tree.head.say(frame(1, mux.OUTPUT, b"noise" + SYNC))  # and its relay
    assert Below(tree.head, 1).hear(1, mux.OPEN).decode().split("\0")[-2] == "n3"
    tree.head.say(frame(1, mux.OUTPUT, frame(1, mux.OUTPUT, SYNC + b"from n3")))
    link = opened.result(60)
    assert isinstance(link, Stream)
    assert wait_for(lambda: link.read(99), 20, "output") == b"from n3"


def test_closing_ends_all_relays(tree: Tree) -> None:
    link = tree.open("n1").result(60)
    assert isinstance(link, Stream)
    for _ in range(2):
        tree.transport.close()
        assert tree.head.closed
    wait_for(link.gone, 20, "its command has ended")


def test_what_is_begun_after_the_close_ends_at_once(tree: Tree) -> None:
    tree.transport.close()
    tree.open("n1").result(60)
    wait_for(lambda: tree.head.closed or not tree.direct.asked, 20, "it is not left open")


EXCHANGE = "^curve25519-sha256"


def test_keys_of_the_bare_name_and_what_is_revoked_at_the_port(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(
        f"leaf {key(1)}\nleaf {key(2)[:-8]}\n@revoked [leaf]:2222 {key(3)}\n@revoked * {key(4)}\n"
    )
    config = tmp_path / "config"
    config.write_text(f"Host *\n  UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n")
    trusted = Trust(str(config)).of(Target("leaf", port=2222))
    assert isinstance(trusted, Trusted)
    assert set(trusted.lines.splitlines()) == {
        f"leaf {key(1)}",
        f"@revoked leaf {key(3)}",
        f"@revoked leaf {key(4)}",
    }


@pytest.mark.parametrize(
    ("lines", "extra", "target", "known"),
    [
        ([f"leaf {key(1)}"], "", Target("leaf"), Trusted("leaf", f"leaf {key(1)}\n", EXCHANGE)),
        ([f"leaf {key(1)}"], "", Target("leaf", None, 22),
         Trusted("leaf", f"leaf {key(1)}\n", EXCHANGE)),
        ([f"[leaf]:23 {key(1)}", f"leaf {key(2)}"], "", Target("leaf", None, 23),
         Trusted("leaf", f"leaf {key(1)}\n", EXCHANGE)),
        ([f"leaf {key(2)}", f"other {key(1)}"], "HostKeyAlias other", Target("leaf", None, 23),
         Trusted("other", f"other {key(1)}\n", EXCHANGE)),
        ([f"real {key(1)}"], "HostName real", Target("leaf"),
         Trusted("real", f"real {key(1)}\n", EXCHANGE)),
        ([f"leaf {key(1)}"], "KexAlgorithms ecdh-sha2-nistp256", Target("leaf"),
         Trusted("leaf", f"leaf {key(1)}\n", None)),
        # what is revoked and who may sign stand before the keys
        ([f"* {key(1)}", f"@cert-authority * {key(2)}", f"@revoked * {key(3)}"], "", Target("a"),
         Trusted("a", f"@revoked a {key(3)}\n@cert-authority a {key(2)}\na {key(1)}\n",
                 EXCHANGE)),
        # an authority is no key: the bare name's is there for every port
        ([f"leaf {key(1)}", f"@cert-authority * {key(2)}"], "", Target("leaf", None, 23),
         Trusted("leaf", f"@cert-authority leaf {key(2)}\nleaf {key(1)}\n", EXCHANGE)),
        ([f"@cert-authority [leaf]:23 {key(1)}", f"@cert-authority leaf {key(2)}"], "",
         Target("leaf", None, 23),
         Trusted("leaf", f"@cert-authority leaf {key(1)}\n@cert-authority leaf {key(2)}\n",
                 EXCHANGE)),
    ],
)  # fmt: skip
def test_what_is_known_of_a_host(
    config: Callable[..., str], lines: list[str], extra: str, target: Target, known: Trusted
) -> None:
    assert Trust(config(*lines, extra=extra)).of(target) == known


@pytest.mark.parametrize(
    ("lines", "extra", "target", "why"),
    [
        ([], "", Target("leaf"), "no key of leaf is on file here"),
        ([f"leaf {key(1)}"], "HostKeyAlias other", Target("leaf", None, 23),
         "no key of other is on file here"),
        ([f"@revoked leaf {key(1)}"], "", Target("leaf", None, 23),
         "no key of [leaf]:23 is on file here"),
    ],
)  # fmt: skip
def test_a_host_of_which_nothing_is_known(
    config: Callable[..., str], lines: list[str], extra: str, target: Target, why: str
) -> None:
    trusted = Trust(config(*lines, extra=extra)).of(target)
    assert trusted == Failure(Kind.HOST_KEY_UNKNOWN, why)


def test_a_configuration_that_cannot_be_followed(config: Callable[..., str]) -> None:
    trusted = Trust(config(extra="Port nowhere")).of(Target("leaf"))
    assert isinstance(trusted, Failure)
    assert trusted.kind is Kind.CONFIG


def test_an_ssh_that_trusts_nobody_but_who_is_known_here() -> None:
    known = Trusted("alias", "lines", "^curve25519-sha256")
    argv = tree_transport.ssh(Target("n2", "me", 2222), known, 4.2, ("ssh", "-x"))
    assert argv[:4] == ["ssh", "-x", "-T", "-o"]
    options = [word for before, word in pairwise(argv) if before == "-o"]
    said = dict(option.split("=", 1) for option in options)
    assert said["HostKeyAlias"] == "alias"
    assert said["ConnectTimeout"] == "5"
    assert said["KexAlgorithms"] == "^curve25519-sha256"
    assert said["StrictHostKeyChecking"] == "yes"
    assert said["GlobalKnownHostsFile"] == "/dev/null"
    assert options[0] == tree_relay.KNOWN.decode()
    assert argv[-7:] == ["-l", "me", "-p", "2222", "--", "n2", shell.COMMAND]
    other = tree_transport.ssh(Target("n2"), Trusted("n2", "", None), 0.0, ("ssh",))
    assert not any(word.startswith("KexAlgorithms") for word in other)
    assert "ConnectTimeout=1" in other


#: of an inner host, each with what shall hold of it
OWN_FILE = {
    "KnownHostsCommand": ("/bin/echo %H", "none"), "RemoteCommand": ("tmux", "none"),
    "UserKnownHostsFile": ("/etc/own", "/ours"), "GlobalKnownHostsFile": ("/etc/own", "/dev/null"),
    "NoHostAuthenticationForLocalhost": ("yes", "no"), "StrictHostKeyChecking": ("no", "true"),
    "VerifyHostKeyDNS": ("yes", "false"), "ForwardAgent": ("yes", "no"), "Tunnel": ("yes", "false"),
    "ForwardX11": ("yes", "no"), "OfALaterRelease": ("yes", "none"),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh program")
def test_what_the_file_of_an_inner_host_says_does_not_count(tmp_path: Path) -> None:
    own = tmp_path / "config"
    own.write_text("".join(f"{name} {value}\n" for name, (value, _) in OWN_FILE.items()))
    argv = tree_transport.ssh(Target("n2"), Trusted("n2", "", None), 9.0, ("ssh", "-GF", str(own)))
    argv[argv.index(tree_relay.KNOWN.decode())] += "/ours"
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for name, (_, holds) in OWN_FILE.items():
        assert said.get(name.lower(), "none") == holds, name


def test_a_shell_says_that_it_is_there_and_runs_the_command() -> None:
    command = "echo \"a  b\" ${s-unset}; printf '\\303\\244'; cat"
    done = subprocess.run(
        ["/bin/sh", "-c", shell.COMMAND],
        input=tree_transport.opening(command) + b"rest",
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == SYNC + b"a  b unset\n\xc3\xa4rest"
