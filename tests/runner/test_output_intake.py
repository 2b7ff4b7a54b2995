"""Credit for output: what a good host may send passes, what is beyond it does not."""

from __future__ import annotations

import pytest

from dispatcher.remote.agent.agent_loop import PIPE_LIMIT
from dispatcher.remote.protocol.frames import OUTPUT_LIMIT
from dispatcher.runner.run.output_intake import Credit
from dispatcher.runner.run.reports import ReportError

#: what an agent may read of one rank's two pipes when it lets go of them
CUT = 2 * (PIPE_LIMIT + OUTPUT_LIMIT)


def test_credit_and_what_is_cut_pass_and_no_more() -> None:
    credit = Credit(1000)
    credit.given(1000 + 3 * CUT, ranks=3)
    credit.given(0, ranks=1)  # of a further attempt, while the rest of the last one waits
    with pytest.raises(ReportError, match="more output"):
        credit.given(1, ranks=1)


def test_what_was_taken_makes_room_and_goes_back_in_portions() -> None:
    credit = Credit(1000)
    for _ in range(5):
        credit.given(1000 + CUT, ranks=1)
        assert [credit.taken(300), credit.taken(300)] == [0, 600]
        assert credit.taken(400 + CUT) == 400 + CUT
