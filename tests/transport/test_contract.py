"""What every transport promises, tried on each: see ``dispatcher.transport.base``."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable

import pytest
from open_files import open_files
from rig import gone, wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import LinkClosed, Target
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport

from .conftest import ALL, OVER_SSH, Reader, Way, gather
from .zombies import zombies


def by(*kinds: str) -> pytest.MarkDecorator:
    """For a promise that only some transports make."""
    return pytest.mark.parametrize("way", kinds, indirect=True)


def test_output_errors_and_code(way: Way) -> None:
    link = way.open("echo out; echo err >&2; exit 7")
    output, errors = gather(link)
    assert (output, errors) == (b"out\n", b"err\n")
    assert link.ending(30) == Ending(7)
    assert link.failure(1) is None


def test_success_is_code_zero(way: Way) -> None:
    link = way.open("true")
    assert gather(link) == (b"", b"")
    assert link.ending(30) == Ending(0)


def test_signal(way: Way) -> None:
    link = way.open("kill -KILL $$")
    gather(link)
    ending = link.ending(30)
    if way.kind in ("ssh", "tree"):
        assert ending == Ending(255)  # ssh says no more than that
    else:
        assert ending == Ending(None, "KILL")


def test_every_byte_crosses_unchanged(way: Way) -> None:
    data = bytes(range(256)) * 64
    link = way.open(f"head -c {len(data)}")
    link.write(data)
    output, _ = gather(link)
    assert output == data


def test_command_text_is_shell_text(way: Way) -> None:
    link = way.open("printf '%s\\n' \"a  b\" '$HOME' \"it's\"")
    assert gather(link)[0] == b"a  b\n$HOME\nit's\n"


def test_one_byte_at_a_time(way: Way) -> None:
    link = way.open("cat")
    reader = Reader(link, limit=1)
    for byte in b"hello\n":
        link.write(bytes((byte,)))
    reader.until(lambda: bytes(reader.output) == b"hello\n")


def test_conversation(way: Way) -> None:
    link = way.open("while read line; do echo got $line; done")
    reader = Reader(link)
    for word in (b"one", b"two", b"three"):
        link.write(word + b"\n")
        reader.until(lambda word=word: reader.output.endswith(b"got " + word + b"\n"))


def test_watch_tells_of_what_came_before(way: Way) -> None:
    link = way.open("echo early")
    assert link.ending(30) == Ending(0)
    rang = threading.Event()
    link.watch(rang.set)
    assert rang.wait(60)


def test_big_input(way: Way) -> None:
    size = 50_000_000
    link = way.open("wc -c; echo done")
    block = b"x" * 1_000_000

    def write() -> None:
        for _ in range(size // len(block)):
            link.write(block)

    # wc ends at the end of its input only: head gives it one
    link.close()
    link = way.open(f"head -c {size} | wc -c")
    writer = threading.Thread(target=write, name="test:writer")
    writer.start()
    output, _ = gather(link, 60)
    writer.join(60)
    assert not writer.is_alive()
    assert int(output) == size


def test_big_output_behind_a_stuck_reader(way: Way, most_held: Callable[[], int]) -> None:
    size = 50_000_000
    link = way.open(f"head -c {size} /dev/zero; echo end >&2")
    reader = Reader.__new__(Reader)  # not yet reading
    stuck = threading.Event()
    assert not stuck.wait(1.0)  # time in which a reader without bounds would take all 50 MB
    assert most_held() < 20_000_000
    reader.__init__(link)  # type: ignore[misc]
    count = 0
    deadline = time.monotonic() + 60
    while not reader.ended:
        reader.until(lambda: reader.output or reader.ended, deadline - time.monotonic())
        count += len(reader.output)
        reader.output.clear()
    assert count == size
    reader.until(lambda: bytes(reader.errors) == b"end\n")


def test_big_errors_do_not_stop_output(way: Way) -> None:
    link = way.open("head -c 3000000 /dev/zero >&2; echo end")
    output, errors = gather(link)
    assert output == b"end\n"
    assert len(errors) == 3_000_000


def test_descriptors_beyond_1024(way: Way) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2000:
        pytest.skip("the system allows no such number")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        size = 5_000_000  # more than fits anywhere on the way: the writer has to wait
        link = way.open(f"sleep 0.2; head -c {size} | wc -c")
        link.write(b"x" * size)
        assert int(gather(link)[0]) == size
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_far_end_closing_its_input_is_no_harm(way: Way) -> None:
    link = way.open("exec <&-; echo closed; cat /dev/null; sleep 0; exec cat /etc/hostname")
    output, _ = gather(link)
    assert output.startswith(b"closed\n")


@by(*OVER_SSH)  # of the others the local child is killed, with its group
def test_our_close_is_the_end_of_its_input(way: Way, tmp_path: os.PathLike[str]) -> None:
    mark = os.path.join(tmp_path, "ended")
    os.mkfifo(mark)
    link = way.open(f"trap '' HUP; (cat >/dev/null; echo ended > {mark}) & echo up; wait")
    reader = Reader(link)
    reader.until(lambda: reader.output == b"up\n")
    told: list[str] = []

    def listen() -> None:
        with open(mark) as fifo:
            told.append(fifo.read())

    listener = threading.Thread(target=listen, name="test:fifo", daemon=True)
    listener.start()
    link.close()
    listener.join(60)
    assert told == ["ended\n"]


def test_write_after_close(way: Way) -> None:
    link = way.open("cat")
    link.close()
    with pytest.raises(LinkClosed):
        link.write(b"x")


def test_write_after_the_far_end_went(way: Way) -> None:
    link = way.open("exit 3")
    gather(link)
    assert link.ending(30) == Ending(3)

    def keep_writing() -> None:
        for _ in range(100):
            link.write(b"x" * 65536)

    with pytest.raises(LinkClosed):
        keep_writing()


def test_close_frees_a_blocked_writer(way: Way) -> None:
    link = way.open("echo up; exec sleep 60")
    reader = Reader(link)
    reader.until(lambda: reader.output == b"up\n")
    freed = threading.Event()

    def write() -> None:
        try:
            while True:
                link.write(b"x" * 65536)
        except LinkClosed:
            freed.set()

    threading.Thread(target=write, name="test:writer", daemon=True).start()
    assert not freed.wait(0.3)
    link.close()
    assert freed.wait(60)


def test_close_is_quick_whatever_runs(way: Way) -> None:
    # a transport alone cannot end such a command, so it ends by itself
    link = way.open(
        "trap '' TERM HUP INT; echo up; n=0; until [ $n = 20 ]; do sleep 1; n=$((n+1)); done"
    )
    reader = Reader(link)
    reader.until(lambda: reader.output == b"up\n")
    started = time.monotonic()
    link.close()
    link.close()
    assert time.monotonic() - started < 15


def test_close_while_output_floods(way: Way) -> None:
    link = way.open("exec yes")
    reader = Reader(link)
    reader.until(lambda: len(reader.output) > 100_000)
    started = time.monotonic()
    link.close()
    assert time.monotonic() - started < 15


@by("local", "command")
def test_close_ends_the_local_child(way: Way) -> None:
    link = way.open("sleep 1000 & echo $! $$; wait")
    reader = Reader(link)
    reader.until(lambda: reader.output.endswith(b"\n"))
    pids = [int(word) for word in reader.output.split()]
    link.close()
    wait_for(lambda: all(map(gone, pids)), 30, lambda: f"all are gone: {pids}")


def test_no_time_left(way: Way) -> None:
    opened = way.transport.open(way.target, "true", time.monotonic() - 1)
    assert isinstance(opened, Failure)
    assert opened.kind is Kind.TIMEOUT


@by(*(kind for kind in ALL if kind != "local"))
@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "a;b", "$(id)", "", "a" * 300])
def test_hostile_host_names(way: Way, host: str) -> None:
    opened = way.transport.open(Target(host), "true", time.monotonic() + 40)
    assert isinstance(opened, Failure)
    assert opened.kind is Kind.CONFIG


def test_nothing_is_left_behind(way: Way) -> None:
    gather(way.open("true"))  # whatever is made once is made now
    way.links.pop().close()
    _drop_idle(way)
    files, threads, before = open_files(), set(threading.enumerate()), zombies()
    for command in ("true", "echo x; exit 3", "cat", "exec yes", "kill -9 $$"):
        way.open(command).close()
    _drop_idle(way)
    assert _settles(lambda: open_files() <= files), open_files() - files
    assert _settles(lambda: set(threading.enumerate()) <= threads), threading.enumerate()
    assert _settles(lambda: zombies() <= before), zombies() - before


def test_transport_close_leaves_no_thread(way: Way) -> None:
    before = set(threading.enumerate())
    gather(way.open("true"))
    way.close()
    way.transport.close()
    assert _settles(lambda: set(threading.enumerate()) <= before), threading.enumerate()


@by("kept", "daemon")
def test_a_connection_is_used_again(way: Way) -> None:
    ask = "echo $PPID"
    first = []
    for _ in range(3):
        link = way.open(ask)
        first.append(gather(link)[0])
        assert link.ending(30) == Ending(0)
        link.close()
    assert len(set(first)) == 1
    busy = way.open("echo $PPID; cat")
    reader = Reader(busy)
    reader.until(lambda: reader.output.endswith(b"\n"))
    assert gather(way.open(ask))[0] != bytes(reader.output) == first[0]  # one command at a time
    busy.close()  # and a command that did not end by itself takes its connection along
    assert gather(way.open(ask))[0] != first[0]


@by("kept", "daemon")
def test_a_connection_is_used_again_after_its_output_was_held_open(way: Way) -> None:
    link = way.open("sleep 0.5 & echo $PPID")
    first = gather(link)[0]
    assert link.ending(30) == Ending(0)
    link.close()
    assert gather(way.open("echo $PPID"))[0] == first


@by("kept", "daemon")
def test_a_kept_connection_that_broke_is_made_anew(way: Way) -> None:
    link = way.open("echo $PPID")
    parent = int(gather(link)[0])
    assert link.ending(30) == Ending(0)
    link.close()
    os.kill(parent, signal.SIGKILL)
    assert gather(way.open("echo again"))[0] == b"again\n"


def _drop_idle(way: Way) -> None:
    """End the connections that wait for the next command; the daemon's are not of this process."""
    if isinstance(way.transport, ParamikoTransport) and way.transport.session_pool is not None:
        way.transport.session_pool.drop()


def _settles(condition: object, seconds: float = 30) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        threading.Event().wait(0.02)
    return bool(condition())


def test_many_at_once(way: Way) -> None:
    results: list[bytes] = []

    def one(number: int) -> None:
        results.append(gather(way.open(f"echo {number}"))[0])

    threads = [threading.Thread(target=one, args=(n,), name=f"test:{n}") for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(int(result) for result in results) == list(range(16))
