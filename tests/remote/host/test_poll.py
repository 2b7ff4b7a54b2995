"""What is called for a descriptor, and when; real pipes."""

from __future__ import annotations

import os
import select
import signal
from typing import Any

from dispatcher.remote.host.poll import Poll, read_ready


def test_what_is_there_now() -> None:
    out, into = os.pipe()
    os.set_blocking(out, False)
    assert read_ready(out, 10) is None
    os.write(into, b"abc")
    assert (read_ready(out, 2), read_ready(out, 2)) == (b"ab", b"c")
    os.close(into)
    assert read_ready(out, 2) == b""
    os.close(out)
    assert read_ready(out, 2) == b""


class TestPoll:
    def test_calls_what_is_ready_and_acts_on_its_answer(self) -> None:
        acted: list[Any] = []
        poll = Poll(acted.append)
        out, into = os.pipe()
        poll.add(out, lambda now, events: (now > 0, events, os.read(out, 9)))
        poll.turn(0.0)
        assert acted == []
        os.write(into, b"x")
        poll.turn()
        assert acted == [(True, select.EPOLLIN, b"x")]
        poll.remove(out)
        poll.remove(out)
        os.write(into, b"y")
        poll.turn(0.0)
        assert len(acted) == 1
        poll.epoll.close()
        os.close(out)
        os.close(into)

    def test_one_that_an_earlier_call_removed_is_not_called(self) -> None:
        poll = Poll()
        pipes = [os.pipe() for _ in range(2)]
        called: list[int] = []

        def call(fd: int) -> None:
            called.append(fd)
            for out, _ in pipes:
                poll.remove(out)

        for out, into in pipes:
            os.write(into, b"x")
            poll.add(out, lambda *_, fd=out: call(fd))
        poll.turn()
        assert len(called) == 1
        poll.epoll.close()
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)

    def test_other_events_may_be_waited_for(self) -> None:
        poll, seen = Poll(), list[int]()
        out, into = os.pipe()
        poll.add(into, lambda _, events: seen.append(events), 0)
        poll.turn(0.0)
        poll.change(into, select.EPOLLOUT)
        poll.turn(0.0)
        os.close(out)
        poll.change(into, 0)
        poll.turn(0.0)
        assert seen == [select.EPOLLOUT, select.EPOLLERR]
        poll.epoll.close()
        os.close(into)

    def test_a_child_that_ends_is_reaped(self) -> None:
        before = signal.getsignal(signal.SIGCHLD)
        poll, ended = Poll(), list[int]()
        pid = 0
        try:
            # this child alone: other tests may have left some that end later
            poll.on_child(lambda: ended.append(os.waitpid(pid, os.WNOHANG)[0]))
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            while pid not in ended:
                poll.turn(60.0)
            assert {*ended} <= {0, pid}
        finally:
            os.close(signal.set_wakeup_fd(-1))
            signal.signal(signal.SIGCHLD, before)
            for fd in poll.calls:
                os.close(fd)
            poll.epoll.close()
