"""However hosts take a login's password, a wrong one reaches few of them: it may lock accounts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.transport.base import PromptTimer
from dispatcher.transport.ssh_auth.passwords import MOST_UNSETTLED, Outcome, Password

OUTCOMES: tuple[Outcome, ...] = ("right", "wrong", "unsettled")


@given(st.lists(st.sampled_from(OUTCOMES), max_size=12) | st.just([OUTCOMES[2]] * 7), st.data())
def test_a_password_that_is_not_proven_goes_to_one_host_at_a_time(
    hosts: list[Outcome], data: st.DataObject
) -> None:
    asked: list[bool] = []

    def ask(again: bool) -> str:
        asked.append(again)
        return "secret"

    password = Password(ask, PromptTimer(lambda: 0.0))
    waiting, trying = [*range(len(hosts))], list[int]()
    n_sent = dict.fromkeys(waiting, 0)
    proven, n_unproven = False, 0
    while waiting or trying:
        node = data.draw(st.sampled_from([*waiting, *trying]))
        if node in waiting:
            if password.take(node, 0.0) is not None:
                waiting.remove(node)
                trying.append(node)
                n_sent[node] += 1
                n_unproven += not proven
                assert proven or trying == [node]
            elif not trying:  # nothing that it could wait for
                assert password.why(f"n{node}")
                waiting.remove(node)
            continue
        trying.remove(node)
        if password.came(node, f"n{node}", hosts[node]):
            waiting.append(node)
        proven = proven or hosts[node] == "right"
    assert n_unproven <= MOST_UNSETTLED + 2
    assert asked in ([], [False], [False, True])
    assert all(count <= 2 for count in n_sent.values())
