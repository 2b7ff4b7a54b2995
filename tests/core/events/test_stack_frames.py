"""Where ranks are, from the words of those who say it."""

from __future__ import annotations

import time

from cases import cases

from dispatcher.core.events.stack_frames import (
    LONGEST,
    MOST,
    NEAR,
    Frame,
    Group,
    grouped,
    in_words,
    innermost,
    read_frames,
)

#: bytes of one stack, as a host may send it
STACK = 256 << 10


@cases(
    ("text", "words"),
    [
        ("D nfs_wait 74 x86_64", "state D in nfs_wait, system call fsync"),
        ("D nfs_wait 82 aarch64", "state D in nfs_wait, system call fsync"),
        ("D nfs_wait 74 riscv64", "state D in nfs_wait, system call 74"),
        ("D nfs_wait 9998 x86_64", "state D in nfs_wait, system call 9998"),
        ("D nfs_wait 99998 x86_64", "state D in nfs_wait"),
        ("D nfs_wait \u0664 x86_64", "state D in nfs_wait"),
        ("D nfs_wait - x86_64", "state D in nfs_wait"),
        ("R 0 running x86_64", "state R"),
        ("R - 0 x86_64", "state R, system call read"),
        ("- - - x86_64", ""),
        ("D nfs_wait 74", ""),
        ("D nfs_wait 74 x86_64 more", ""),
        ("", ""),
    ],
)
def test_what_the_kernel_says_in_words(text: str, words: str) -> None:
    assert in_words(text) == words


@cases(
    ("text", "frames"),
    [
        # without a main thread the first one stands for the rank
        (b'Thread 1 (idle): "a"\n    f (x.py:1)\nThread 2: "b"\n    g (y.py:2)\n',
         (Frame("f", "x.py", 1),)),
        (b'Thread 1: "a"\n    f (x.py:1)\nThread 2: "MainThread"\n    g (y.py:2)\n    h (z.so)\n',
         (Frame("g", "y.py", 2), Frame("h", "z.so", 0))),
        (b"    f (x.py:1)\n", ()),
        (b'Thread 1: "MainThread"\n    f (x.py:123456789)\n', (Frame("f", "x.py", 0),)),
        (b'Thread 1: "MainThread"\n    f (x.py:12345678)\n', (Frame("f", "x.py", 12345678),)),
    ],
)  # fmt: skip
def test_py_spy(text: bytes, frames: tuple[Frame, ...]) -> None:
    assert read_frames("py-spy", text) == frames


@cases(
    ("text", "frames"),
    [
        (b'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'
         b'Current thread 0x2 (most recent call first):\n  <no Python frame>\n',
         (Frame("f", "a.py", 3),)),
        (b'Thread 0x1 (x):\n  File "a.py", line 3 in f\n'
         b'Thread 0x2 (x):\n  File "b.py", line 4 in g\n',
         (Frame("g", "b.py", 4),)),
        (b'  File "a.py", line 3 in f\n', ()),
    ],
)  # fmt: skip
def test_faulthandler(text: bytes, frames: tuple[Frame, ...]) -> None:
    assert read_frames("faulthandler", text) == frames


def test_the_kernel_s_first_thread_of_which_something_is_known() -> None:
    text = b"- - - x86_64 a\nS ep_poll 7 x86_64 my program\nD x 0 x86_64 b\n"
    assert read_frames("proc", text) == (
        Frame("state S in ep_poll, system call poll (my program)", "", 0),
    )
    assert read_frames("proc", b"S ep_poll 7 x86_64\n") == ()
    long = read_frames("proc", b"S ep_poll 7 x86_64 " + b"x" * 999)
    assert len(long[0].function) == LONGEST


def test_what_hosts_send_is_bounded() -> None:
    lines = [b'Thread 1: "MainThread"', *[b"    %s (%s.py:1)" % (b"f" * 399, b"d/" * 190)] * 99]
    found = read_frames("py-spy", b"\n".join(lines))
    assert len(found) == MOST
    assert (len(found[0].function), len(found[0].file)) == (LONGEST, LONGEST)
    assert found[0].file.endswith("d/.py")


@cases(
    ("frame", "words"),
    [
        (Frame("f", "/a/b.py", 3), "f at b.py:3"),
        (Frame("f", "/a/b.so", 0), "f at b.so"),
        (Frame("f", "", 0), "f"),
    ],
)
def test_a_frame_in_words(frame: Frame, words: str) -> None:
    assert frame.words == words


LIBRARY, OWN = Frame("g", "/usr/lib/python3.11/x.py", 1), Frame("mine", "t.py", 2)
WAITS = Frame("all_reduce", "/x/site-packages/torch/d.py", 3)


@cases(
    ("frames", "place", "waits"),
    [
        ((), "an unknown place", False),
        ((LIBRARY,), "g at x.py:1", False),
        ((LIBRARY, OWN), "mine at t.py:2", False),
        ((LIBRARY, WAITS, OWN), "all_reduce at d.py:3", True),
        ((*[LIBRARY] * (NEAR - 1), WAITS, OWN), "all_reduce at d.py:3", True),
        ((*[LIBRARY] * NEAR, WAITS, OWN), "mine at t.py:2", False),
    ],
)
def test_the_place_that_says_most(frames: tuple[Frame, ...], place: str, waits: bool) -> None:
    group = Group((0,), "py-spy", "S", frames)
    assert (group.place, group.waits, group.odd) == (place, waits, False)


@cases(
    ("how", "piece"),
    [
        ("py-spy", b" "), ("py-spy", b" ("), ("py-spy", b" (:1"), ("py-spy", b" ()"),
        ("faulthandler", b' File "'), ("faulthandler", b'", line 1 in '), ("faulthandler", b"1"),
        ("proc", b"- "), ("gdb", b" "), ("gdb", b"0x1 in "), ("gdb", b"1"), ("gdb", b" ("),
    ],
)  # fmt: skip
def test_no_text_takes_time_by_its_square(how: str, piece: bytes) -> None:
    began = time.process_time()
    for line in (piece * (STACK // len(piece)), (piece * (1000 // len(piece)) + b"\n ") * 256):
        if how == "gdb":
            innermost(b"#1 " + line)
        else:
            read_frames(how, b'Thread 0x1 (most recent)\n  File "' + line)
            read_frames(how, b"Thread 1\n  " + line + b")")
    assert time.process_time() - began < 2.0


def test_groups_stand_with_the_odd_ones_first_then_by_size() -> None:
    places = {
        0: (WAITS,),
        1: (OWN,),
        2: (WAITS,),
        3: (LIBRARY,),
        4: (LIBRARY,),
        5: (OWN,),
        6: (OWN,),
    }
    found = grouped({rank: ("py-spy", "S", frames) for rank, frames in places.items()})
    assert [(group.ranks, group.odd) for group in found] == [
        ((1, 5, 6), True), ((3, 4), True), ((0, 2), False),
    ]  # fmt: skip
    assert grouped({}) == ()


def test_a_stopped_rank_in_a_collective_waits_for_nobody() -> None:
    """So the others, of whom none waits, are judged by their numbers alone."""
    stacks = {0: ("proc", "T", (WAITS,)), 1: ("proc", "S", (OWN,)), 2: ("proc", "S", (OWN,))}
    found = grouped(stacks)
    assert [(group.ranks, group.odd) for group in found] == [((0,), True), ((1, 2), False)]


@cases(
    ("text", "found"),
    [
        # gdb of a rank in all_reduce, of torch 2.13.0 on CPUs
        (b"#0  __futex_abstimed_wait_common64 (private=0) at ./nptl/futex-internal.c:57\n"
         b"#2  0x00007f7bcdea3f7b in __GI___futex_abstimed_wait (futex_word=0) at ./nptl/f.c:139\n"
         b"#5  0x00007f7b in std::condition_variable::wait(std::unique_lock<m>&) () from /s\n"
         b"#6  0x00007f7b in c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) "
         b"() from /t/libtorch_cpu.so\n#9  0x1 in cudaStreamSynchronize () from /c\n",
         "c10d::Work::wait"),
        (b'Thread 1 (idle): "MainThread"\n    poll (libc.so.6)\n    ncclGroupEnd (libnccl.so.2)\n',
         "ncclGroupEnd"),
        (b"#0  0x1 in clock_nanosleep () from /libc\n#1  0x2 in pysleep (t=1) at time.c:1\n", ""),
        (b"", ""),
    ],
)  # fmt: skip
def test_the_innermost_function_that_says_something(text: bytes, found: str) -> None:
    assert innermost(text) == found


@cases(
    ("file", "function", "waits"),
    [("/p/site-packages/torch/nn/utils/clip_grad.py", "clip_grad_norm_", True),
     ("/p/torch/_tensor.py", "item", True), ("/usr/lib/python3.11/threading.py", "wait", False),
     ("/home/u/mine.py", "cpu", False), ("/home/u/mine.py", "all_reduce", True)],
)  # fmt: skip
def test_some_wait_in_torch_s_own_code_only(file: str, function: str, waits: bool) -> None:
    assert Group((0,), "py-spy", "S", (Frame(function, file, 1),)).waits == waits


def test_the_user_s_code_behind_a_library_s() -> None:
    frames = (Frame("all_reduce", "/p/site-packages/torch/d.py", 9), Frame("step", "/h/t.py", 4))
    one = Group((0,), "py-spy", "S", frames)
    assert (one.own, one.place) == (frames[1], "all_reduce at d.py:9")
    assert Group((0,), "py-spy", "S", frames[:1]).own is None
