"""One host of a fan-out command, step by step, by a clock that the test moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cases import cases

from dispatcher.bootstrap import shell
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import CommandEnded, PasswordAwaited
from dispatcher.model.failure import Failure, Kind
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.runner.exec import command_link
from dispatcher.runner.exec.command_link import HELD_OPEN, POLL
from dispatcher.transport.base import Link, PromptTimer, Target, Transport, Window
from runner.far import Clock, Host, Ringing, Talks, Way

WRAPPER = shell.wrapper("token", sudo="root")
LOST = Failure(Kind.LOST, "its jump host went away")
REFUSED = Failure(Kind.REFUSED, "nobody listens")
SAID = "; remote said: sh: x"
PLAIN = "dispatch exec --plain -w n3 true  # if the login allows only some commands"
READS = "a login file of this host reads standard input, where the command comes from"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(command_link, "time", clock)
    return clock


SAYS = {"wrapper": WRAPPER, "sudo": True}


@cases(
    ("options", "out", "errors"),
    [({}, bytes(256 << 10), b""), (SAYS, bytes(256 << 10), b""), (SAYS, b"", bytes(256 << 10)),
     (SAYS, b"", WRAPPER.prompt * 1000)],
)  # fmt: skip
def test_endless_login_noise_is_no_start(
    options: dict[str, Any], out: bytes, errors: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_link, "MOST_NOISE", 1 << 20)
    host = Host(**options)
    host.command.open()
    for _ in range(2 + (1 << 20) // len(out + errors)):
        host.step(*[out] * bool(out), errors=errors)
    why = "a flood: 1 MiB of login noise"
    hint = "ssh n3 true 2>&1 | head -c 999 | cat -v  # what it writes at login"
    assert host.told[-1] == ev.NodeLost(3, Failure(Kind.PROTOCOL, why, hint))
    assert host.command.over


@pytest.mark.parametrize("stream", [1, 2])
def test_who_never_runs_dry_leaves_the_clock_its_turn(clock: Clock, stream: int) -> None:
    host = Host(wrapper=WRAPPER)
    pieces = [bytes(256 << 10)] * 9
    host.command.open()
    (host.far.out if stream == 1 else host.far.errors).extend(pieces)
    host.step()
    assert len(host.far.out + host.far.errors) == 5
    assert len(host.posted) == 1  # it is looked at again
    clock.now += 60.0
    host.step()
    lost = host.told[-1]
    assert isinstance(lost, ev.NodeLost)
    assert lost.failure.kind is Kind.TIMEOUT


# -- the start --------------------------------------------------------------------------


def test_from_the_first_word_to_the_last(clock: Clock) -> None:
    host = Host()
    host.command.open()
    assert host.way.asked == [(Target("n3"), shell.COMMAND, 1060.0, None)]
    assert host.told == [ev.NodeConnecting(3, 2), ev.NodeConnected(3, "10.0.0.7", "way")]
    assert host.far.did == ["watch", b"OPENING"]
    assert host.command.due() == 1060.0
    host.step(b"motd", b"\n" + SYNC + b"one\n", errors=b"oops")
    assert host.told[2:] == [ev.NodeBooted(3, 5)]
    host.step(b"two\n")
    assert (host.text(1), host.text(2)) == (b"one\ntwo\n", b"oops")
    assert host.command.due() == 1000.0 + POLL
    host.far.ends(7)
    host.step()
    assert host.told[3:] == [
        ev.OutputEnded(3, 3, 1, 8, 8), ev.OutputEnded(3, 3, 2, 4, 4),
        CommandEnded(3, 7, None, held_open=False),
    ]  # fmt: skip
    assert host.command.over
    assert host.heard[0][0] == 3
    host.command.leave()
    assert host.far.did[-1] == "close"


def test_how_it_is_reached_is_told_by_the_link(clock: Clock) -> None:
    host = Host(window=Window(100, 40))
    host.far.by, host.far.address = "jump", None
    host.command.open()
    assert host.told[1] == ev.NodeConnected(3, None, "jump")
    assert host.way.asked[0][3] == Window(100, 40)


def test_a_host_that_is_not_reached(clock: Clock) -> None:
    host = Host(REFUSED)
    host.command.open()
    assert host.told == [
        ev.NodeConnecting(3, 2), ev.OutputEnded(3, 3, 1, 0, 0), ev.OutputEnded(3, 3, 2, 0, 0),
        ev.NodeLost(3, REFUSED),
    ]  # fmt: skip
    assert host.command.over
    assert host.far.did == []


def test_time_in_which_the_user_typed_is_not_the_host_s(clock: Clock) -> None:
    timer = PromptTimer(clock.monotonic)

    class Asks(Way):
        def open(self, *args: Any, **how: Any) -> Link | Failure:
            timer.changed(True)
            clock.now += 5.0
            timer.changed(False)
            return host.far

    host = Host(timer=timer)
    host.command.transport = Asks(None)
    host.command.open()
    assert host.command.due() == 1065.0


def test_given_up_before_it_is_reached_the_command_does_not_start(clock: Clock) -> None:
    host = Host()
    host.command.close()
    host.command.open()
    assert host.events() == ["NodeConnecting"]
    assert host.far.did == []
    assert host.command.over


@pytest.mark.parametrize(
    ("said", "errors", "words"),
    [(b"", b"", ""), (b"motd\n", b"", "; remote said: motd"),
     (b"motd\n", b"sh: no\n", "; remote said: sh: no")],
)  # fmt: skip
def test_a_command_that_does_not_start_in_time(
    clock: Clock, said: bytes, errors: bytes, words: str
) -> None:
    host = Host()
    host.command.open()
    host.step(said, errors=errors)
    clock.now = 1059.9
    host.step()
    assert not host.command.over
    clock.now = 1060.0
    host.step()
    why = "connected, but the command did not start" + words
    hint = "One that reads standard input needs at its top: [ -t 0 ] || return; or a longer -t"
    hint = f"time ssh n3 true </dev/null  # are its login files slow? {hint}"
    assert host.told[-1] == ev.NodeLost(3, Failure(Kind.TIMEOUT, why, hint))


@pytest.mark.parametrize(
    ("options", "code", "known", "failure"),
    [
        ({}, 127, None,
         Failure(Kind.START, "exit code 127 before the command started" + SAID, PLAIN)),
        ({}, None, None, Failure(Kind.START, "the link ended before the command started" + SAID)),
        ({}, 255, LOST, LOST),
        ({"errors": f"guard: not allowed: echo {READS}\n"}, 1, None,
         Failure(Kind.START, "exit code 1 before the command started; remote said: guard: not "
                 f"allowed: echo {READS}", PLAIN)),
        ({"errors": f"{READS}\nx\n"}, 1, None,
         Failure(Kind.START, READS, "[ -t 0 ] || return  # at the top of the login file that reads "
                 "standard input")),
        ({"wrapper": WRAPPER, "sudo": True}, 1, None, Failure(Kind.SUDO, "exit code 1" + SAID)),
        ({"wrapper": WRAPPER, "sudo": True}, None, None,
         Failure(Kind.START, "the link ended before the command started" + SAID)),
        ({"wrapper": WRAPPER, "sudo": False}, 1, None,
         Failure(Kind.START, "exit code 1 before the command started" + SAID, PLAIN)),
        ({"wrapper": WRAPPER, "sudo": True, "errors": "me is not allowed to execute it\n"}, 1, None,
         Failure(Kind.SUDO, "exit code 1; remote said: me is not allowed to execute it",
                 "dispatch exec --plain -w n3 sudo -n true  # --sudo starts /bin/sh, for which "
                 "there is no rule")),
    ],
)  # fmt: skip
def test_a_link_that_ends_before_the_command_has_begun(
    clock: Clock, options: dict[str, Any], code: int | None, known: Failure | None, failure: Failure
) -> None:
    errors = options.pop("errors", "sh: x\n")
    host = Host(**options)
    host.far.why = known
    host.command.open()
    host.step(errors=errors.encode())
    host.far.ends(code)
    host.step()
    assert host.told[-1] == ev.NodeLost(3, failure)


@cases(("stdio", "hint"), [(None, "--pty"), (Talks(), "Defaults !requiretty  # in its sudoers")])
def test_a_sudo_that_wants_a_terminal_is_told_apart(stdio: Talks | None, hint: str) -> None:
    host = Host(wrapper=WRAPPER, sudo=True, stdio=stdio)
    host.command.open()
    host.far.ends(1)
    host.step(errors=b"sudo: sorry, you must have a tty to run sudo\n")
    assert isinstance(last := host.told[-1], ev.NodeLost)
    assert last.failure.hint == hint


# -- the end ----------------------------------------------------------------------------


@pytest.mark.parametrize("out", [True, False])
def test_who_holds_the_output_open_is_waited_for_while_it_writes(clock: Clock, out: bool) -> None:
    host = Host().running()
    host.far.ends(0, open=True)
    host.step(b"" if out else b"x")  # one of the two streams stays open
    host.far.errors_open = out
    clock.now += HELD_OPEN - 0.1
    host.step(errors=b"more")
    assert host.command.due() == clock.now + HELD_OPEN
    clock.now += HELD_OPEN - 0.1
    host.step()
    assert not host.command.over
    clock.now += 0.1
    host.step()
    assert host.told[-1] == CommandEnded(3, 0, None, held_open=True)


def test_a_signal_that_ended_it_is_told(clock: Clock) -> None:
    host = Host().running()
    host.far.ends(None, "SEGV")
    host.step()
    assert host.told[-1] == CommandEnded(3, None, "SEGV", held_open=False)


@pytest.mark.parametrize("known", [None, LOST])
def test_a_connection_that_ends_while_the_command_runs(clock: Clock, known: Failure | None) -> None:
    host = Host().running()
    host.far.why = known
    host.far.ends(None)
    host.step()
    lost = Failure(Kind.LOST, "the connection ended while the command ran")
    assert host.told[-1] == ev.NodeLost(3, known or lost)


def test_a_bug_of_ours_is_told_as_one(clock: Clock) -> None:
    host = Host().running()
    host.command.failed(KeyError("x"))
    assert host.told[-1] == ev.NodeLost(3, Failure(Kind.PROTOCOL, "internal error: KeyError: 'x'"))
    host.told.clear()
    host.command.failed(KeyError("y"))
    assert host.told == []  # what happened first was told


def test_who_is_told_to_close_says_no_more(clock: Clock) -> None:
    host = Host().running()
    host.command.close()
    host.step(b"late")
    assert host.command.over
    assert (host.told, host.heard) == ([], [])
    host.command.failed(KeyError("x"))
    assert host.told == []


# -- credit -----------------------------------------------------------------------------


def test_no_more_is_read_than_the_sinks_take(clock: Clock) -> None:
    host = Host(credit=10).running()
    host.far.tells_end = True
    host.step(b"12345", b"67890", b"more")
    assert host.text() == b"1234567890"
    assert host.far.out == [b"more"]
    host.step(errors=b"errors")
    assert host.text(2) == b""
    host.command.taken(4)
    assert host.posted == []  # more than half of it is still owed
    host.command.taken(1)
    assert len(host.posted) == 1
    host.command.taken(1)
    assert len(host.posted) == 1  # it is awake
    host.step()
    assert (host.text(), host.text(2)) == (b"1234567890", b"errors")
    host.command.taken(10)
    host.step()
    assert host.text() == b"1234567890more"


def test_what_waits_for_the_sinks_is_waited_for_at_the_end(clock: Clock) -> None:
    host = Host(credit=4).running()
    host.far.out += [b"1234", b"56"]
    host.far.ends(0)
    host.step()
    assert host.command.due() is None
    clock.now += 100
    host.step()
    assert not host.command.over
    host.command.taken(4)
    host.step()
    assert host.text() == b"123456"
    assert host.told[-1] == CommandEnded(3, 0, None, held_open=False)


# -- orders -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "orders", "did"),
    [
        ({}, ["INT", "KILL"], [b"INT\n", b"KILL\n"]),
        ({"window": Window()}, ["INT", "TERM"], [b"\x03", "close"]),
        ({"stdio": Talks()}, ["INT"], ["close"]),
        ({"stdio": Talks(takes_output=True)}, ["TERM", "KILL"], ["end of input", "close"]),
    ],
)
def test_how_a_command_is_signalled(
    clock: Clock, options: dict[str, Any], orders: list[str], did: list[Any]
) -> None:
    host = Host(**options).running()
    host.far.did.clear()
    for order in orders:
        host.command.signal(order)
        host.step()
    assert host.far.did == did


def test_who_takes_nothing_any_more_is_about_to_tell_why(clock: Clock) -> None:
    host = Host().running()
    host.far.takes = False
    host.command.signal("TERM")
    host.far.ends(3)
    host.step()
    assert host.told[-1] == CommandEnded(3, 3, None, held_open=False)


def test_who_talks_with_the_command_begins_and_ends_with_it(clock: Clock) -> None:
    talks = Talks()
    host = Host(stdio=talks)
    host.command.open()
    assert talks.did == []
    host.step(SYNC)
    assert talks.did == [("start", 3, host.far)]
    host.far.ends(0)
    host.step()
    assert talks.did[1:] == [("finish", 3)]


def test_a_plain_command_line_is_all_that_is_sent(clock: Clock) -> None:
    host = Host(plain="uname -n")
    assert not host.command.never_blocks
    host.command.open()
    assert host.way.asked[0][1] == "uname -n"
    assert host.far.did == ["watch", "end of input"]
    assert isinstance(host.told[-1], ev.NodeBooted)
    host.step(b"n3")
    assert host.text() == b"n3"
    host.command.signal("TERM")
    host.command.step("TERM")
    assert host.far.did == ["watch", "end of input", "close"]


# -- prompts ----------------------------------------------------------------------------


def test_the_opening_waits_until_sudo_has_its_password(clock: Clock) -> None:
    host = Host(wrapper=WRAPPER, sudo=True)
    host.command.open()
    assert host.way.asked[0][1] == WRAPPER.command
    assert host.far.did == ["watch", WRAPPER.first]
    host.step(errors=b"lecture\n" + WRAPPER.prompt)
    assert host.told[-1] == PasswordAwaited(3)
    clock.now += 1000  # the user takes his time
    host.step()
    assert not host.command.over
    assert host.command.due() == clock.now + POLL
    host.command.answer(b"secret", 30.0)
    host.step()
    assert host.far.did[2:] == [b"secret\n"]
    assert host.command.due() == clock.now + 30.0
    host.step(WRAPPER.ready[:5], WRAPPER.ready[5:])
    assert host.far.did[3:] == [b"OPENING"]
    host.step(SYNC + b"out", errors=b"its own")
    assert (host.text(1), host.text(2)) == (b"out", b"its own")
    assert "NodeBooted" in host.events()


def test_what_follows_the_prompt_at_once_is_not_lost(clock: Clock) -> None:
    host = Host(wrapper=WRAPPER)
    host.command.open()
    host.step(b"motd" + WRAPPER.ready + b"noise" + SYNC + b"out")
    assert (host.text(), host.told[-1]) == (b"out", ev.NodeBooted(3, 5))


def test_a_password_that_was_wrong_is_wanted_again(clock: Clock) -> None:
    host = Host(wrapper=WRAPPER, sudo=True)
    host.command.open()
    for asked in (1, 2):
        host.step(errors=b"Sorry, try again.\n" + WRAPPER.prompt)
        host.step(errors=WRAPPER.prompt)  # no sudo does: one answer is all that it waits for
        assert host.events().count("PasswordAwaited") == asked
        assert math.isinf(host.command._deadline)
        host.command.answer(b"secret", 30.0)
        host.step()


# -- calls ------------------------------------------------------------------------------


def test_a_host_that_cannot_be_called_is_opened(clock: Clock) -> None:
    host = Host()
    assert not host.command.call()
    assert host.way.asked == [(Target("n3"), shell.COMMAND, 1060.0, b"OPENING")]
    host.command.open()
    assert host.events() == ["NodeConnecting", "NodeConnected"]  # once


def test_a_call_is_answered_when_there_is_an_answer(clock: Clock) -> None:
    call = Ringing()
    host = Host(called=call)
    assert host.command.call()
    assert host.command.due() == call.until
    assert host.command.step(None)
    assert host.events() == ["NodeConnecting"]
    call.said = host.far
    call.ready()
    assert host.command.step(host.posted.pop())
    assert host.events() == ["NodeConnecting", "NodeConnected"]
    assert host.far.did == ["watch"]  # the opening went with the call
    host.step(SYNC + b"out")
    assert host.text() == b"out"
    host.command.leave()
    assert (host.far.did[-1], call.closed) == ("close", False)


@pytest.mark.parametrize("said", [REFUSED, Way(None)])
def test_a_call_that_comes_to_nothing(clock: Clock, said: Failure | Transport) -> None:
    call = Ringing()
    host = Host(called=call)
    host.command.call()
    call.said = said
    stays = host.command.step(None)
    assert stays == isinstance(said, Failure)
    assert host.command.over == isinstance(said, Failure)
    if isinstance(said, Way):
        said._opened = host.far
        host.command.open()
        assert said.asked
        assert host.far.did == ["watch", b"OPENING"]


def test_a_call_that_nobody_wants_any_more_is_closed(clock: Clock) -> None:
    call = Ringing()
    host = Host(called=call)
    host.command.call()
    host.command.leave()
    assert call.closed
