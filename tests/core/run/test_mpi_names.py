"""Names that ranks publish and look up, through the job: how long they live, how many there are."""

from __future__ import annotations

from dispatcher.core.events import mpi_events
from dispatcher.core.events.actions import Action, AnswerRank
from dispatcher.core.run import mpi_manager
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.mpi_manager import AWAITED, NAMES_LIMIT

from .test_mpi_manager import exited


class TestNames:
    def ask(
        self,
        job: AttemptMachine,
        verb: str,
        service: bytes = b"door",
        port: bytes = b"",
        *,
        once: bool = False,
    ) -> bytes:
        (answer,) = job.handle(mpi_events.PmiAsked(1, 2, verb, service, port, once=once), 1.0)
        assert isinstance(answer, AnswerRank)
        assert (answer.node, answer.rank) == (1, 2)
        return answer.line

    def test_a_name_lives_from_publish_to_unpublish(self, running: AttemptMachine) -> None:
        assert b"rc=1" in self.ask(running, "lookup")
        assert b"rc=0" in self.ask(running, "publish", port=b"here#1")
        assert self.ask(running, "lookup") == b"cmd=lookup_result rc=0 port=here#1\n"
        assert b"rc=0" in self.ask(running, "unpublish")
        assert b"rc=1" in self.ask(running, "unpublish")

    def test_each_is_said_no_in_its_own_words(self, running: AttemptMachine) -> None:
        assert self.ask(running, "lookup") == b"cmd=lookup_result rc=1 msg=service_not_found\n"
        assert self.ask(running, "unpublish") == (
            b"cmd=unpublish_result rc=1 msg=service_not_found\n"
        )
        assert self.ask(running, "publish") == (
            b"cmd=publish_result rc=1 msg=cannot_be_published\n"
        )
        assert b"rc=1" in self.ask(running, "lookup")  # so it was not kept
        self.ask(running, "publish", port=b"a")
        self.ask(running, "publish", port=b"b")
        assert self.ask(running, "lookup") == b"cmd=lookup_result rc=0 port=b\n"

    def test_names_are_bounded(self, running: AttemptMachine) -> None:
        half = b"p" * 500_000
        for index in range(2):
            assert b"rc=0" in self.ask(running, "publish", b"%d" % index, half, once=True)
        assert b"rc=1" in self.ask(running, "publish", b"one more", half, once=True)
        assert b"rc=0" in self.ask(running, "publish", b"1", b"p")  # in its place
        assert b"rc=0" in self.ask(running, "publish", b"1", half, once=True)
        other = mpi_events.PmiAsked(1, 2, "publish", b"others have room", b"p")
        (answer,) = running.handle(other, 1.0)
        assert isinstance(answer, AnswerRank)
        assert b"rc=0" in answer.line
        assert b"rc=0" in self.ask(running, "unpublish", b"0")
        assert b"rc=0" in self.ask(running, "publish", b"one more", half, once=True)

    def test_what_is_long_is_read_once(self, running: AttemptMachine) -> None:
        """Short lookups without end would else be answered by as many long values."""
        lasting = b"p" * mpi_manager.LASTING
        assert b"rc=0" in self.ask(running, "publish", port=lasting)
        for _ in range(2):
            assert lasting in self.ask(running, "lookup")
        assert b"rc=1" in self.ask(running, "publish", port=lasting + b"p")
        assert b"rc=0" in self.ask(running, "publish", port=lasting + b"p", once=True)
        assert lasting + b"p" in self.ask(running, "lookup")
        assert b"rc=1" in self.ask(running, "lookup")

    def test_who_waits_is_answered_when_somebody_publishes(self, running: AttemptMachine) -> None:
        def ask(verb: str, rank: int, number: int, **how: bool) -> list[Action]:
            node, port = rank // 2, b"here" if verb == "publish" else b""
            asked = mpi_events.PmiAsked(node, rank, verb, b"door", port, number, **how)
            return running.handle(asked, 1.0)

        found, lost = b"cmd=lookup_result rc=0 port=here\n", b"cmd=lookup_result rc=1"
        assert ask("lookup", 0, 7, wait=True) == []
        assert ask("lookup", 2, 8, wait=True) == []
        assert ask("publish", 3, 9, once=True) == [
            AnswerRank(1, 3, b"cmd=publish_result rc=0\n", 9), AnswerRank(0, 0, found, 7),
        ]  # fmt: skip
        (answer,) = ask("lookup", 1, 10)  # it was for the first that asked
        assert isinstance(answer, AnswerRank)
        assert answer.line.startswith(lost)
        exited(running, 1, 2)
        (published,) = ask("publish", 3, 11)  # nobody waits any more
        assert isinstance(published, AnswerRank)
        assert ask("lookup", 1, 12, wait=True) == [AnswerRank(0, 1, found, 12)]

    def test_names_that_are_awaited_are_bounded(self, running: AttemptMachine) -> None:
        def waits(rank: int, service: bytes) -> bool:
            asked = mpi_events.PmiAsked(rank // 2, rank, "lookup", service, b"", 1, wait=True)
            answers = running.handle(asked, 1.0)
            unknown = b"cmd=lookup_result rc=1 msg=service_not_found\n"
            assert answers in ([], [AnswerRank(rank // 2, rank, unknown, 1)])
            return not answers

        half = b"n" * (NAMES_LIMIT // 2 - AWAITED)
        assert [waits(rank, half) for rank in (0, 1, 0, 2)] == [True, True, False, True]
        assert not waits(0, b"")
        exited(running, 0, 1)
        assert [waits(0, half), waits(0, half)] == [True, False]
        published = mpi_events.PmiAsked(1, 2, "publish", half, b"p")
        ranks = [a.rank for a in running.handle(published, 1.0) if isinstance(a, AnswerRank)]
        assert ranks == [2, 0, 2, 0]
        assert [waits(0, half[1:]) for _ in range(3)] == [True, True, False]

    def test_of_many_that_wait_the_first_gets_what_one_may_read(
        self, running: AttemptMachine
    ) -> None:
        for ask in range(1, 9):
            asked = mpi_events.PmiAsked(0, 0, "lookup", b"door", b"", ask, wait=True)
            assert running.handle(asked, 1.0) == []
        assert running._mpi is not None
        for ask in range(1, 9):
            waiting = [*running._mpi._awaited[b"door"]]
            assert [one.ask for one in waiting] == [*range(ask, 9)]
            published = mpi_events.PmiAsked(1, 2, "publish", b"door", b"p", once=True)
            line = b"cmd=lookup_result rc=0 port=p\n"
            assert running.handle(published, 1.0)[1:] == [AnswerRank(0, 0, line, ask)]
        assert running._mpi._awaited == {}
