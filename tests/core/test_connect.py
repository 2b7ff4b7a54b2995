"""When a host is connected to, and when again: by example, then for any course of things."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.connect import ConnectAttempt, ConnectPolicy
from dispatcher.model.failure import Failure, Kind

DROPPED = Failure(Kind.DROPPED, "MaxStartups", retryable=True)
FINAL = Failure(Kind.AUTH, "no")
LATE = Failure(Kind.TIMEOUT, "ssh banner: no answer in time")


def room(policy: ConnectPolicy, now: float = 0.0) -> int:
    """How many hosts more may connect, all of which then do."""
    count = 0
    while policy.can_begin:
        policy.begin(1000 + count, now)
        count += 1
    return count


# (most, what becomes of hosts 0, 1 ... that connect one after the other, room after that): C-1
@cases(
    ("most", "course", "left"),
    [
        (8, "", 8),
        (8, "r", 8),  # never above the most
        (8, "f", 8),  # what is final is no sign of too many
        (8, "g", 8),
        (8, "d", 4),
        (8, "dd", 2),
        (8, "dddddd", 1),  # never below one
        (8, "ddr", 3),
        (8, "dr", 5),
        (8, "drrrrrr", 8),
        (1, "dr", 1),
        (5, "d", 2),
    ],
)
def test_the_window(most: int, course: str, left: int) -> None:
    policy = ConnectPolicy(most, 10.0, lambda: 0.5)
    for host, step in enumerate(course):
        policy.begin(host, 0.0)
        match step:
            case "r":
                policy.reached(host)
            case "g":
                policy.given_up(host)
            case _:
                policy.failed(host, DROPPED if step == "d" else FINAL, 0.0)
    assert room(policy) == left


# (random number, seconds between a drop and the next attempt): C-3
@cases(
    ("chance", "pauses"),
    [(0.0, [0.05, 0.1, 0.2, 0.4]), (0.5, [0.1, 0.2, 0.4, 0.8]), (1.0, [0.15, 0.3, 0.6, 1.2])],
)
def test_the_pauses(chance: float, pauses: list[float]) -> None:
    policy, now = ConnectPolicy(4, 60.0, lambda: chance), 7.0
    for number, pause in enumerate(pauses, 1):
        assert policy.begin(0, now) == ConnectAttempt(number, 67.0)  # C-4: the first one counts
        assert policy.failed(0, DROPPED, now) == pytest.approx(pause)
        now += pause


@cases(
    ("last", "at", "stands"),
    [
        (LATE, 5.0, DROPPED),  # the limit cut it off
        (LATE, 4.9, LATE),  # an address that is silent before that
        (FINAL, 5.0, FINAL),
    ],
)
def test_what_a_cut_off_attempt_says(last: Failure, at: float, stands: Failure) -> None:  # C-5
    policy = ConnectPolicy(4, 5.0, lambda: 0.5)
    policy.begin(0, 0.0)
    policy.failed(0, DROPPED, 1.0)
    policy.begin(1, 0.0)
    policy.begin(0, 1.2)
    assert policy.failed(0, last, at) is stands
    assert policy.failed(1, last, at) is last  # was never dropped
    policy.begin(0, 6.0)
    policy.reached(0)
    policy.begin(0, 9.0)
    assert policy.failed(0, last, 20.0) is last  # was reached since


def test_time_in_which_the_user_typed_is_no_hosts() -> None:
    policy = ConnectPolicy(4, 10.0, lambda: 0.5)
    policy.begin(0, 0.0)
    policy.extend(30.0)
    assert policy.failed(0, DROPPED, 35.0) is not DROPPED
    assert policy.begin(0, 36.0) == ConnectAttempt(2, 40.0)


@given(
    most=st.integers(1, 6),
    seconds=st.floats(0.1, 5.0),
    course=st.lists(
        st.tuples(st.sampled_from("bbbrdfg"), st.integers(0, 7), st.floats(0.0, 1.0)), max_size=60
    ),
)
def test_any_course(most: int, seconds: float, course: list[tuple[str, int, float]]) -> None:
    chances = iter([chance for _, _, chance in course] * 2)
    policy = ConnectPolicy(most, seconds, lambda: next(chances))
    now, connecting, first = 0.0, set[int](), dict[int, float]()
    ready: dict[int, float] = {}  # when a host that was dropped may come again
    for step, host, wait in course:
        now += wait
        if step == "b":
            if policy.can_begin and host not in connecting and ready.get(host, 0.0) <= now:
                attempt = policy.begin(host, now)
                assert attempt.until == first.setdefault(host, now) + seconds  # C-4
                connecting.add(host)
        elif host in connecting:
            connecting.discard(host)
            if step == "r":
                policy.reached(host)
            elif step == "g":
                policy.given_up(host)
            else:
                pause = policy.failed(host, DROPPED if step == "d" else FINAL, now)
                if isinstance(pause, Failure):
                    ready[host] = float("inf")
                else:
                    assert step == "d"  # C-2
                    assert now + pause < first[host] + seconds  # C-4
                    ready[host] = now + pause
        assert len(connecting) <= most  # C-1
        assert policy.can_begin or connecting  # somebody can always go on
