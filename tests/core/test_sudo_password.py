"""However hosts take sudo's password, a wrong one reaches few of them: it may lock accounts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.exec_machine import MOST_UNSETTLED, AskPassword, SudoPassword

#: what a host makes of the password
RIGHT, WRONG, LOST = "right", "wrong", "lost"


@given(
    st.lists(st.sampled_from([RIGHT, WRONG, LOST]), max_size=12) | st.just([LOST] * 7), st.data()
)
def test_a_password_that_is_not_proven_goes_to_one_host_at_a_time(
    hosts: list[str], data: st.DataObject
) -> None:
    machine, proven = SudoPassword(), False
    events = [(node, "asks") for node in range(len(hosts))]
    trying: list[int] = []
    failed: list[int] = []
    n_sent = dict.fromkeys(range(len(hosts)), 0)
    n_unproven = 0
    while events:
        node, event = events.pop(data.draw(st.integers(0, len(events) - 1)))
        if event == "asks":
            machine.wanted(node)
        elif event == "typed":
            machine.given(True)
        else:
            machine.left(node, started=event == RIGHT)
            proven = proven or event == RIGHT
        trying = [other for other in trying if other != node]
        for order in machine.orders():
            if isinstance(order, AskPassword):
                events.append((-1, "typed"))
            elif isinstance(order, int):
                trying.append(order)
                n_sent[order] += 1
                n_unproven += not proven
                events.append((order, "asks" if hosts[order] == WRONG else hosts[order]))
            else:
                failed.append(order[0])
        assert proven or len(trying) <= 1
    assert n_unproven <= MOST_UNSETTLED + 2  # the user is asked twice
    assert all(count <= 2 for count in n_sent.values())
    passed = [node for node, how in enumerate(hosts) if how == RIGHT and n_sent[node]]
    assert not {*passed} & {*failed}
    # none is left without an answer
    assert {*n_sent} == {*failed, *passed, *(n for n in n_sent if hosts[n] == LOST and n_sent[n])}
