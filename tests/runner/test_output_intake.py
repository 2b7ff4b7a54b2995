"""Credit for output: what a good host may send passes, what is beyond it does not."""

from __future__ import annotations

import pytest

from dispatcher.remote.agent.agent_loop import PIPE_LIMIT
from dispatcher.remote.protocol.frames import OUTPUT_LIMIT
from dispatcher.runner.run.host_intake import ENDS_LIMIT, Credit, Ends
from dispatcher.runner.run.reports import ReportError

#: what an agent may read of one rank's two pipes when it lets go of them
CUT = 2 * (PIPE_LIMIT + OUTPUT_LIMIT)


def test_credit_and_what_is_cut_pass_and_no_more() -> None:
    credit = Credit(1000)
    credit.given(1000 + CUT)
    with pytest.raises(ReportError, match="more output"):
        credit.given(1)


def test_what_was_taken_makes_room_and_goes_back_in_portions() -> None:
    credit = Credit(1000)
    for _ in range(5):
        credit.given(1000 + CUT)
        assert [credit.taken(300), credit.taken(300)] == [0, 600]
        assert credit.taken(400 + CUT) == 400 + CUT


def test_a_rank_that_exited_ends_its_output_within_twice_the_limit() -> None:
    ends = Ends()
    assert ends.wait(5.0) == float("inf")
    assert ends.late(1e9, is_free=True) == "", "nobody exited"
    ends.exited(4, {(4, 1)}, 0.0)
    assert ends.wait(3.0) == ENDS_LIMIT - 3.0
    assert ends.late(ENDS_LIMIT - 0.1, is_free=True) == ""
    # the first time we may have been stopped for as long
    assert ends.late(500.0, is_free=True) == ""
    assert ends.late(509.0, is_free=True) == ""
    assert ends.late(510.0, is_free=True) == ("rank 4 exited, but its output was never closed")


def test_output_that_moves_or_is_held_back_is_not_late() -> None:
    ends = Ends()
    ends.exited(4, set(), 0.0)
    for now in range(0, 100, 9):
        ends.moved(now)
        assert ends.late(now + 9.0, is_free=True) == ""
    for now in range(110, 300, 10):
        assert ends.late(now, is_free=False) == "", "we do not read it"
    ends.ended(4, 1)
    assert ends.late(310.0, is_free=True) == ""
    assert ends.late(320.0, is_free=True) != ""
    ends.ended(4, 2)
    assert ends.late(400.0, is_free=True) == ""
    ends.exited(5, set(), 400.0)
    ends.clear()
    assert ends.wait(401.0) == float("inf")
