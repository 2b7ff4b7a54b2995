"""The usual block comes early, the others at the end."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events.exec_events import Exited, HostDone
from dispatcher.core.events.run_events import Entry, NodeBooted
from dispatcher.output.exec.host_blocks import WAIT, EarlyBlock, HostOutput, gathered

NAMES = ["n1", "n2", "n3", "n4", "n5"]


class Table:
    def __init__(self) -> None:
        self.kept = HostOutput(frozenset({1}))
        self.written: list[bytes] = []
        self.early = EarlyBlock(self.kept, NAMES, self.written.append, label=True)

    def done(self, node: int, text: bytes) -> None:
        self.kept.output(node, 1, text) if text else None
        for sink in (self.kept, self.early):
            sink.event(Entry(1, 0.0, HostDone(node, Exited(0))))

    def rest(self) -> bytes:
        self.early.close()
        blocks = {name: self.kept.block(node, 1) for node, name in enumerate(NAMES)}
        return b"".join(gathered(blocks, early=self.early.early))


def test_most_hosts_first_and_the_rest_at_the_end() -> None:
    table = Table()
    for node in (0, 1, 2):
        table.done(node, b"same\n")
    assert table.early.tick(10.0)
    assert not table.written
    table.early.tick(10.0 + WAIT)
    table.done(3, b"same\n")
    table.done(4, b"other\n")
    rule = b"-" * 15 + b"\n"
    assert table.rest() == (
        rule + b"n4\n" + rule + b"as above\n" + rule + b"n5\n" + rule + b"other\n"
    )
    assert table.written == [rule + b"n[1-3] (3 of 5)\n" + rule + b"same\n"]


@cases("said", [[b"a\n", b"a\n"], [b"a\n", b"b\n", b"a\n", b"b\n"], [b""] * 4])
def test_no_block_that_may_not_be_the_usual_one(said: list[bytes]) -> None:
    table = Table()
    for node, text in enumerate(said):
        table.done(node, text)
    for now in (1.0, 5.0, 100.0):
        table.early.tick(now)
    table.rest()
    assert not table.written


def test_a_quick_command_shows_whole_groups() -> None:
    table = Table()
    for node in range(5):
        table.done(node, b"same\n")
        table.early.tick(node * WAIT / 10)
    table.early.tick(100.0)
    assert b"n[1-5] (5)" in table.rest()
    assert not table.written


def test_it_is_shown_once_and_asked_for_no_longer() -> None:
    table = Table()
    assert not table.early.tick(0.0)  # nobody has said anything
    for node in (0, 1):
        table.done(node, b"same\n")
    assert not table.early.tick(1.0)  # two of five are not most
    table.done(2, b"same\n")
    assert table.early.tick(2.0)
    assert table.early.tick(2.0 + WAIT - 0.01)
    assert not table.written
    assert not table.early.tick(2.0 + WAIT)
    assert table.early.early == (b"same\n", frozenset({"n1", "n2", "n3"}))
    table.done(3, b"same\n")
    assert not table.early.tick(10.0)
    table.early.close()
    assert len(table.written) == 1


def test_other_events_end_nobody() -> None:
    table = Table()
    for node in range(3):
        table.early.event(Entry(1, 0.0, NodeBooted(node, 0)))
    assert not table.early.tick(1.0)
    for node in range(3):
        table.done(node, b"")
        table.done(node, b"x") if node else None
    table.early.close()
    assert table.written == []
