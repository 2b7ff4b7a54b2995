"""The system's ssh: the words it is started with, and what is made of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import Keepalive, Link, Target, Window
from dispatcher.transport.process.openssh import SshLink, SshTransport, classify, connect_timeout

from ..conftest import Reader, gather

NODE = Target("n1", "me", 2222)
ALWAYS = {
    "BatchMode": "yes", "ForwardAgent": "no", "ForwardX11": "no", "ClearAllForwardings": "yes",
}  # fmt: skip


def options_of(argv: list[str]) -> dict[str, str]:
    """Those of ``-o``, each of them once."""
    words = [word for before, word in pairwise(argv) if before == "-o"]
    found = dict(word.split("=", 1) for word in words)
    assert len(found) == len(words)
    return found


@cases(
    ("how", "terminal", "more"),
    [
        ({}, "-T", {}),
        ({}, "-tt", {"LogLevel": "ERROR"}),
        ({"accept_new": True}, "-T", {"StrictHostKeyChecking": "accept-new"}),
        ({"alive": Keepalive(0.0)}, "-T",
         {"ServerAliveInterval": "0", "ServerAliveCountMax": "3"}),
        ({"alive": Keepalive(7.2)}, "-T",
         {"ServerAliveInterval": "8", "ServerAliveCountMax": "3"}),
        ({"alive": Keepalive(otherwise=15.0)}, "-T",
         {"ServerAliveInterval": "15", "ServerAliveCountMax": "3"}),
    ],
)  # fmt: skip
def test_options(how: dict[str, Any], terminal: str, more: dict[str, str]) -> None:
    argv = SshTransport(**how).argv(NODE, "true", 4.5, terminal)
    assert argv[:2] == ["ssh", terminal]
    assert options_of(argv) == {**ALWAYS, "ConnectTimeout": "5", **more}
    assert "-F" not in argv


@cases(
    ("target", "words"),
    [
        (Target("n1"), []),
        (Target("n1", "me"), ["-l", "me"]),
        (Target("n1", None, 22), ["-p", "22"]),
        (NODE, ["-l", "me", "-p", "2222"]),
    ],
)
def test_where_to(target: Target, words: list[str]) -> None:
    argv = SshTransport(config="/c", program="/opt/ssh").argv(target, "echo 'a b'", 1.0)
    assert argv[:4] == ["/opt/ssh", "-T", "-F", "/c"]
    after = max(at for at, word in enumerate(argv) if word == "-o") + 2
    assert argv[after:] == [*words, "--", "n1", "echo 'a b'"]


@cases(("seconds", "text"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (60.0, "60")])
def test_whole_seconds_to_connect(seconds: float, text: str) -> None:
    assert connect_timeout(seconds) == text


# -- what comes of it ---------------------------------------------------------------------

Program = Callable[..., SshTransport]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """An ssh that is a script of the test's."""
    made: list[SshTransport] = []

    def make(text: str) -> SshTransport:
        file = tmp_path / "ssh"
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        made.append(SshTransport(program=str(file)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def opened(transport: SshTransport, window: Window | None = None) -> SshLink:
    link = transport.open(NODE, "true", time.monotonic() + 20, window)
    assert isinstance(link, SshLink)
    return link


DENIED = "me@10.0.0.1: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("text", "ending", "kind"),
    [
        (f"echo '{DENIED}' >&2; exit 255", Ending(None), Kind.AUTH),
        # its own failure, but after the host was reached
        ("echo x; echo 'Connection to n1 closed by remote host.' >&2; exit 255",
         Ending(None), None),
        # the command's status: ssh tells of no failure
        ("echo x; exit 255", Ending(255), None),
        ("echo x; echo 'my own words' >&2; exit 255", Ending(255), None),
        (f"echo '{DENIED}' >&2; exit 1", Ending(1), None),
        ("exit 0", Ending(0), None),
        ("kill -9 $$", Ending(None, "KILL"), None),
        # nothing known was said and nothing came: the host was not reached, for some reason
        ("exit 255", Ending(255), Kind.LOST),
        ("echo 'my own words' >&2; exit 255", Ending(255), Kind.LOST),
        ("echo '  ' >&2; exit 255", Ending(255), Kind.LOST),
    ],
)  # fmt: skip
def test_ends(program: Program, text: str, ending: Ending, kind: Kind | None) -> None:
    link = opened(program(text))
    gather(link)
    failure = link.failure(20)
    assert (link.ending(20), failure and failure.kind) == (ending, kind)
    link.close()


def test_one_that_still_runs_has_failed_at_nothing(program: Program) -> None:
    link = opened(program(f"echo '{DENIED}' >&2; exec cat"))
    assert (link.failure(0.01), link.ending(0.0)) == (None, Ending(None))
    link.close()


def test_words_that_something_holds_open(program: Program) -> None:
    """Who has left standard error to another has said what it had to say."""
    link = opened(program(f"echo '{DENIED}' >&2; sleep 1000 & exit 255"))
    reader = Reader(link)
    reader.until(lambda: DENIED.encode() in reader.errors)
    failure = link.failure(20)
    assert failure is not None
    assert (failure.kind, link.ending(20)) == (Kind.AUTH, Ending(None))
    link.close()


def test_hints_name_the_host_as_it_was_asked_for(program: Program) -> None:
    link = opened(program("echo 'Host key verification failed.' >&2; exit 255"))
    gather(link)
    failure = link.failure(20)
    assert failure is not None
    assert "ssh-keyscan n1 " in (failure.hint or "")
    link.close()


@pytest.mark.parametrize(("window", "terminal"), [(None, "-T"), (Window(), "-tt")])
def test_it_is_started_with_its_words(
    program: Program, window: Window | None, terminal: str
) -> None:
    link = opened(program("printf '%s\\n' \"$@\""), window)
    argv = gather(link)[0].decode().splitlines()
    assert argv[0] == terminal
    assert argv[-3:] == ["--", "n1", "true"]
    assert options_of(argv)["ConnectTimeout"] in ("19", "20")  # seconds that were left
    link.close()


@cases(
    ("target", "late", "kind"),
    [(Target("-n1"), 0.0, Kind.CONFIG), (NODE, 0.0, Kind.TIMEOUT), (NODE, -1.0, Kind.TIMEOUT)],
)
def test_what_is_not_even_tried(target: Target, late: float, kind: Kind) -> None:
    failure = SshTransport(program="/no/such/ssh").open(target, "true", time.monotonic() + late)
    assert isinstance(failure, Failure)
    assert failure.kind is kind


def test_no_ssh_here() -> None:
    opened = SshTransport(program="/no/such/ssh").open(NODE, "true", time.monotonic() + 40)
    assert not isinstance(opened, Link)
    assert (opened.kind, opened.why) == (Kind.BOOT, "/no/such/ssh: no such program")


# -- its words --------------------------------------------------------------------------


@cases(
    ("line", "kind", "retryable"),
    [
        ("ssh: Could not resolve hostname x: try again", Kind.DNS, True),
        ("name resolution failed", Kind.DNS, False),
        ("@  WARNING: REVOKED HOST KEY DETECTED!  @", Kind.HOST_KEY_REVOKED, False),
        ("Host key ED25519 for x is marked as revoked.", Kind.HOST_KEY_REVOKED, False),
        ("ED25519 host key for x has changed", Kind.HOST_KEY_CHANGED, False),
        ("No ED25519 host key is known for x and you", Kind.HOST_KEY_UNKNOWN, False),
        ("Host key fingerprint verification failed.", Kind.HOST_KEY_UNKNOWN, False),
        ("host key x not found", Kind.HOST_KEY_UNKNOWN, False),
        ("No more authentication methods to try.", Kind.AUTH, False),
        ("Authentication failed.", Kind.AUTH, False),
        ("/c: terminating, 1 bad configuration options", Kind.CONFIG, False),
        ("Bad owner or permissions on /c", Kind.CONFIG, False),
        ("Can't open user config file /c: No such file", Kind.CONFIG, False),
        ("jumphost loop via x", Kind.CONFIG, False),
        ("Unable to negotiate with x port 22: no matching cipher", Kind.CONFIG, False),
        ("hostname contains invalid characters", Kind.CONFIG, False),
        ("Not allowed at this time", Kind.DROPPED, False),
        ("banner exchange: Connection to x: refused", Kind.DROPPED, True),
        ("ssh: connect to host x: Operation timed out", Kind.TIMEOUT, False),
        ("Timeout, server x not responding.", Kind.UNREACHABLE, False),
        ("connect to host x: Network is unreachable", Kind.UNREACHABLE, False),
        ("connect to host x: Host is down", Kind.UNREACHABLE, False),
        ("bind x: Can't assign requested address", Kind.UNREACHABLE, False),
        ("Address family not supported by protocol", Kind.UNREACHABLE, False),
        ("channel 0: open failed: connect failed: x", Kind.UNREACHABLE, False),
        ("channel 0: open failed: administratively prohibited", Kind.UNREACHABLE, False),
        ("Connection reset by 10.0.0.1 port 22", Kind.DROPPED, True),
        ("Connection closed by 10.0.0.1 port 22", Kind.DROPPED, True),
        ("client_loop: send disconnect: Broken pipe", Kind.DROPPED, True),
        ("Connection to x closed by remote host.", Kind.DROPPED, True),
    ],
)
def test_kinds(line: str, kind: Kind, retryable: bool) -> None:
    failure = classify(f"\n  {line}  \n", "x")
    assert (failure.kind, failure.retryable) == (kind, retryable)
    assert failure.why == "ssh says: " + line.rstrip(".")


def test_the_worst_is_told_whatever_comes_last() -> None:
    lines = "Connection refused\nREMOTE HOST IDENTIFICATION HAS CHANGED!\nConnection closed by x"
    assert classify(lines, "x").kind is Kind.HOST_KEY_CHANGED


@cases(
    ("errors", "why"),
    [
        ("", "ssh failed without a word"),
        (" \n\n", "ssh failed without a word"),
        ("first\nlast...\n\n", "ssh says: last"),
        ("a\x1b[31mb\x07c", "ssh says: a[31mbc"),
        ("x" * 400, "ssh says: " + "x" * 300),
    ],
)
def test_words_that_nobody_knows(errors: str, why: str) -> None:
    assert classify(errors, "x") == Failure(Kind.LOST, why)


@cases(
    ("line", "hint"),
    [
        ("REMOTE HOST IDENTIFICATION HAS CHANGED!",
         "ssh-keygen -R n1  # if you know why the key changed"),
        ("Host key verification failed.",
         "--host-keys accept-new  # trusts the key shown now and refuses others later; "
         "or check the fingerprint, then: ssh-keyscan n1 >> ~/.ssh/known_hosts"),
        ("Too many authentication failures", "ssh -v n1 true"),
        ("Bad configuration option: x", "ssh -v n1 true"),
        ("me@10.0.0.1: Permission denied (publickey,password).",
         "ssh-copy-id me@n1  # or --ask-pass without --transport ssh; or is it another user there? "
         "--user NAME"),
        ("me@10.0.0.1: Permission denied (password).",
         "--ask-pass  # without --transport ssh, which cannot ask"),
        ("Connection refused", None),
    ],
)  # fmt: skip
def test_hints(line: str, hint: str | None) -> None:
    assert classify(line, "n1").hint == hint
