"""What passes what on the link of a ``tree_relay``: signs of life, ends, and all the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig import wait_for

from dispatcher.remote.protocol.mux import (
    COUNT,
    ENDED,
    ERRORS,
    INPUT,
    INPUT_END,
    INPUT_WINDOW,
    LARGEST,
    MORE_INPUT,
    MORE_OUTPUT,
    OUTPUT,
)
from dispatcher.remote.tree_relay import PULSE

from .relay_driver import Relay

#: says on one output what it reads, and gives a sign of life on the other for each ping
ANSWERS = "while read -r x; do echo $x; case $x in ping) printf '\\000' >&2;; esac; done"


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.close()


def pulse(relay: Relay, *numbers: int) -> None:
    relay.say(0, PULSE, COUNT.pack(5) + b"ping\n" + b"".join(map(COUNT.pack, numbers)))


def test_signs_of_life_are_gathered_and_are_no_errors(relay: Relay) -> None:
    for number in (1, 2):
        relay.open(number, "sh", "-c", ANSWERS)
    relay.open(3, "sh", "-c", "cat >&2")
    relay.open(4, "sh", "-c", "printf '\\000' >&2; exec sleep 600")
    relay.until(lambda: relay.of(4, ERRORS) == b"\0")  # not asked, so it is an error
    pulse(relay, 1, 2, 3, 8)
    relay.until(lambda: relay.of(0, PULSE))
    relay.until(lambda: relay.of(3, ERRORS) == b"ping\n")
    heard = relay.of(0, PULSE)
    assert {number for (number,) in COUNT.iter_unpack(heard)} <= {1, 2}
    relay.until(lambda: {n for (n,) in COUNT.iter_unpack(relay.of(0, PULSE))} == {1, 2})
    relay.until(lambda: relay.of(1, OUTPUT) == b"ping\n")  # which the sign of life may pass
    assert relay.of(1, ERRORS) == b""


def test_a_ping_takes_no_credit_of_the_input(relay: Relay) -> None:
    relay.open(1, "cat")
    for _ in range(50):
        pulse(relay, 1)
    relay.until(lambda: len(relay.of(1, OUTPUT)) == 250)
    for _ in range(INPUT_WINDOW // LARGEST):
        relay.say(1, INPUT, bytes(LARGEST))
    relay.say(1, MORE_OUTPUT, COUNT.pack(250))
    relay.until(lambda: len(relay.of(1, OUTPUT)) == 250 + INPUT_WINDOW)
    granted = sum(COUNT.unpack(body)[0] for _, kind, body in relay.said if kind == MORE_INPUT)
    assert granted <= INPUT_WINDOW


def test_who_does_not_read_is_not_pinged_without_end(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "echo $$; read -r x; exec wc -c")
    relay.until(lambda: relay.of(1, OUTPUT))
    big = COUNT.pack(LARGEST - 100) + bytes(LARGEST - 100) + COUNT.pack(1)
    for _ in range(20):
        relay.say(0, PULSE, big)
    relay.say(1, INPUT, b"\n")
    relay.say(1, INPUT_END)
    assert relay.over(1) == 0
    taken = int(relay.of(1, OUTPUT).split()[-1])
    assert taken <= INPUT_WINDOW + 2 * LARGEST + (64 << 10)  # and what the pipe holds


def test_an_end_passes_output_that_waits(relay: Relay) -> None:
    relay.open(1, "sh", "-c", "head -c 900000 /dev/zero; exec sleep 600")
    relay.open(2, "sh", "-c", "read -r x; exit 5")
    wait_for(lambda: len(relay.children()) == 2)
    # nothing is heard meanwhile: the link is full
    relay.say(2, INPUT, b"\n")
    wait_for(lambda: len(relay.children()) == 1)  # reaped, so its end is told
    relay.until(lambda: ENDED in relay.kinds(2))
    assert len(relay.of(1, OUTPUT)) < 600_000
    relay.until(lambda: len(relay.of(1, OUTPUT)) == 900_000)  # the others come, too
