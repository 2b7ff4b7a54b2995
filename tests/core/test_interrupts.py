"""Who asks for what: a person who presses Ctrl-C again hurries the end, machines do not."""

import signal

from cases import cases

from dispatcher.core.interrupts import Interrupts

INT, TERM, HUP, QUIT, KILL = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL,
)  # fmt: skip


@cases(
    ("signals", "levels"),
    [
        ([(TERM, 0), (HUP, 0.02)], [1, 0]),  # systemd at logout
        ([(TERM, 0), (TERM, 0.01), (TERM, 5)], [1, 0, 0]),  # timeout(1), and who asks again
        ([(INT, 0), (TERM, 10)], [1, 0]),  # LSF
        ([(TERM, 0), (INT, 1), (INT, 2)], [1, 0, 2]),
        ([(INT, 0), (INT, 0.29)], [1, 0]),  # a wrapper that forwards Ctrl-C to its group
        ([(INT, 0), (INT, 0.3), (INT, 0.5), (INT, 0.6)], [1, 2, 0, 3]),
        ([(INT, 0), (INT, 0.2), (INT, 0.4)], [1, 0, 2]),  # somebody in a hurry
        ([(TERM, 0), (QUIT, 1)], [1, 2]),
        ([(INT, 0), (KILL, 0), (KILL, 1)], [1, 2, 0]),  # stop(now=True)
        ([(TERM, 0), (KILL, 3), (INT, 4), (INT, 5)], [1, 2, 0, 3]),
    ],
)
def test_how_urgent_signals_are(signals: list[tuple[int, float]], levels: list[int]) -> None:
    interrupts = Interrupts()
    assert [interrupts.hear(signum, now) for signum, now in signals] == levels
    assert interrupts.came == [signum for signum, _ in signals if signum != KILL]


def test_a_command_is_no_key() -> None:
    interrupts = Interrupts()
    assert [interrupts.hear(INT, now, by) for now, by in ((0, "dispatch stop"), (1, ""))] == [1, 0]
