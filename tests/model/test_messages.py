"""The catalogue of messages: whole, and what stands in it is true."""

from __future__ import annotations

import re

import dispatcher.plan.variables  # noqa: F401 - has an error of its own
from dispatcher.core.events import verdicts
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.messages import HOSTS, MESSAGES, REFUSALS, RUN

#: each cause of a run's end, and the code of its message
CAUSES: list[tuple[verdicts.Cause, str]] = [
    (verdicts.RankFailed(0, 0, 3), "rank-failed"),
    (verdicts.RankFailed(0, 0, -9), "rank-killed"),
    (verdicts.MpiAborted(0, 0, 7), "mpi-aborted"),
    (verdicts.LeftMpi(0, 0, True, (0,)), "mpi-left-early"),
    (verdicts.RankNotStarted(0, 0, 2, "exec", "x"), "program-not-found"),
    (verdicts.RankNotStarted(0, 0, 13, "exec", "x"), "program-not-executable"),
    (verdicts.RankNotStarted(0, 0, 2, "chdir", "x"), "program-not-executable"),
    (verdicts.NodeFailed(0, Failure(Kind.LOST, "x")), "host-lost"),
    (verdicts.NodeFailed(0, Failure(Kind.HOST_KEY_CHANGED, "x")), "host-key-changed"),
    (verdicts.Rejected({}), "hosts-rejected"),
    (verdicts.Impossible("x"), "plan-impossible"),
    (verdicts.Impossible("x", code="no-gpu"), "no-gpu"),
    (verdicts.OutputLost(0, 0, 1, 2), "output-lost"),
    (verdicts.Hung(9.0), "job-hung"), (verdicts.TimeUp(9.0), "time-limit"),
    (verdicts.RestartAsked(), "interrupted"), (verdicts.Interrupted(13), "reader-left"),
    (verdicts.Interrupted(2), "interrupted"),
]  # fmt: skip


def all_errors() -> list[type[DispatchError]]:
    found = [DispatchError]
    for one in found:
        found += one.__subclasses__()
    return [one for one in found if one.__module__.startswith("dispatcher.")]


def test_each_cause_has_its_message() -> None:
    for cause, code in CAUSES:
        assert cause.message_code == code
        exits = str(cause.exit_code)
        varies = code in ("rank-failed", "rank-killed", "mpi-aborted", "interrupted")
        assert exits in MESSAGES[code].exit_code or varies, cause


def test_codes_are_those_of_what_there_is_and_no_more() -> None:
    of_hosts = {kind.code for kind in Kind}
    of_causes = {code for _, code in CAUSES} - of_hosts - {errors.PlanError.code, errors.NoGpu.code}
    assert {one.code for one in HOSTS} == of_hosts
    assert {one.code for one in RUN} == of_causes | {"hosts-failed"}
    ours = [one for one in all_errors() if one.__module__ == errors.__name__]
    assert {one.code for one in REFUSALS} == {one.code for one in ours}
    assert {one.code for one in all_errors()} <= MESSAGES.keys()
    assert len(MESSAGES) == len(RUN) + len(HOSTS) + len(REFUSALS)


def test_an_error_exits_as_its_message_says() -> None:
    for one in all_errors():
        assert MESSAGES[one.code].exit_code == str(one.exit_code) or one.code == "interrupted", one


def test_a_code_is_made_of_the_name_of_the_class() -> None:
    assert errors.NotAScript.code == "not-a-script"
    assert errors.NoGpu.code == "no-gpu"
    assert errors.HostfileError.code == "bad-hostfile"


def test_texts_are_sentences() -> None:
    for one in MESSAGES.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", one.code)
        assert re.fullmatch(r"[A-Za-z-].*\.", one.what), one.code
        assert re.fullmatch(r"[A-Za-z-].*[.]", one.why), one.code
        assert one.do, one.code
        assert all(len(line) <= 100 for line in one.do.splitlines()), one.code
