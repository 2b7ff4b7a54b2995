"""The last lines of every rank, as the verdict has them, and how much each wrote."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.core.events.verdicts import Interrupted, MpiAborted, RankFailed
from dispatcher.output.text.story import KEPT, LEAST_KEPT, LINE_BYTES, N_LINES, Tail

#: bytes that may come until the oldest go
SLACK = KEPT // 2


def ended(rank: int, stream: int) -> Entry:
    return Entry(1, 0.0, ev.OutputEnded(0, rank, stream, 0, 0))


def test_standard_error_says_most_and_else_standard_output() -> None:
    tail = Tail()
    assert tail.last(0) == ("stderr", [])
    tail.output(0, 1, b"one\ntwo\n")
    assert tail.last(0) == ("stdout", ["one", "two"])
    tail.output(0, 2, b"no \x1b[2Jend")
    assert tail.last(0)[0] == "stdout"  # its line has no end yet
    tail.event(ended(0, 2))
    assert tail.last(0) == ("stderr", ["no \\x1b[2Jend"])
    assert tail.last(1) == ("stderr", [])
    tail.event(ended(7, 1))  # it never wrote
    assert tail.last(7) == ("stderr", [])


def test_so_many_lines_are_kept_and_so_much_of_each() -> None:
    tail = Tail()
    for number in range(N_LINES + 3):
        tail.output(0, 1, b"%d\n" % number)
    assert tail.last(0)[1] == [str(n) for n in range(3, N_LINES + 3)]
    tail.output(1, 1, b"".join(b"%d\n" % n for n in range(N_LINES + 3)))
    assert tail.last(1) == tail.last(0)
    tail.output(2, 1, b"x" * 2 * LINE_BYTES + b"\n")
    assert tail.last(2)[1] == ["x" * LINE_BYTES]


@cases("size", [1, 1000, KEPT, KEPT + SLACK + 1])
def test_of_a_large_output_only_the_end_is_kept(size: int) -> None:
    tail = Tail()
    text = b"first\n" + b"x" * (KEPT + SLACK) + b"\nlast\n"
    for at in range(0, len(text), size):
        tail.output(0, 1, text[at : at + size])
    lines = tail.last(0)[1]
    assert (lines[-1], "first" in lines) == ("last", False)
    assert tail.sizes == {(0, 1): len(text)}


@cases("ranks, kept", [(1, KEPT), (8192, KEPT), (16_384, KEPT // 2), (80_000, LEAST_KEPT)])
def test_of_very_many_ranks_less_is_kept(ranks: int, kept: int) -> None:
    tail = Tail()
    tail.event(Entry(1, 0.0, ev.RanksPlaced(ranks, "10.0.0.1", 1)))
    lines = [b"%07d\n" % number for number in range(2 * KEPT // 8)]
    for line in lines:
        tail.output(0, 1, line)
    held = tail._ends[0, 1]
    assert kept <= len(held) <= kept * 3 // 2
    assert bytes(held) == b"".join(lines)[-len(held) :]


def test_frames_of_c_do_not_push_out_the_line_that_matters() -> None:
    tail = Tail()
    frames = [b"frame #%d: c10::f() + 0x9 (0x7f in libc10.so)" % n for n in range(30)]
    tail.output(0, 2, b"\n".join([b"E: no", *frames, b"bye", *frames[:3]]) + b"\n")
    told = ["E: no", "  (30 frames of C++)", "bye", *(frame.decode() for frame in frames[:3])]
    assert tail.last(0)[1] == told


OWN = '  File "/job/a.py", line 3, in f'
TORCH = [
    '  File "/v/lib/python3.11/site-packages/torch/a/b.py", line 3, in g',
    "    g()",
    "    ^^^",
]
PYTHON = ['  File "/usr/lib/python3.11/runpy.py", line 3, in h', "    h()"]
HEAD = "Traceback (most recent call last):"


@cases(
    "lines, told",
    [
        ([HEAD, *PYTHON, OWN, "    f()", *TORCH, *TORCH, *PYTHON, "E: no"],
         [HEAD, "  (1 frame of Python)", OWN, "    f()", "  (3 frames of torch, Python)", "E: no"]),
        ([HEAD, *PYTHON, *TORCH, "E: no", "", HEAD, *TORCH, "E"],
         [HEAD, "  (2 frames of Python, torch)", "E: no", "", HEAD, "  (1 frame of torch)", "E"]),
        ([f"[rank0]: {line}" for line in (HEAD, OWN, *TORCH, "  [Previous line repeated]", "E")],
         [f"[rank0]: {line}" for line in (HEAD, OWN, "  (1 frame of torch)", "E")]),
        (["step", "    a", OWN, ""], ["step", "    a", OWN]),
    ],
)  # fmt: skip
def test_frames_of_packages_are_one_line(lines: list[str], told: list[str]) -> None:
    tail = Tail()
    tail.output(0, 2, "".join(line + "\n" for line in lines).encode())
    assert tail.last(0)[1] == told


@cases(
    "err, out, told",
    [
        ("giving up\n", "", "giving up"),
        ("one\ntwo\n", "", "two"),
        ("one\ntwo\nthree\n", "", ""),
        ("giving up\n", f"{HEAD}\n{OWN}\nE: no\n", "E: no (a.py:3)"),
        ("", "giving up\n", ""),  # its output, not what it says of its end
        # nor are these
        ("a.py:3: FutureWarning: old\n", "", ""),
        ("2026-01-01 INFO done\n", "", ""),
        (" 99%|####| 99/100\n", "", ""),
        ("---\n", "", ""),
    ],
)
def test_a_line_or_two_on_standard_error_are_the_reason(err: str, out: str, told: str) -> None:
    tail = Tail()
    tail.output(0, 2, err.encode())
    tail.output(0, 1, out.encode())
    assert str(tail.error(0, 1) or "") == told
    assert (tail.error(0, -15) is None) or out


def test_the_line_that_says_why_is_among_the_last_that_are_told() -> None:
    tail = Tail()
    rest = [b"  after %d" % n for n in range(N_LINES + 5)]
    error = [b"Traceback (most recent call last):", b'  File "/a.py", line 3, in f', b"E: no luck"]
    tail.output(0, 2, b"\n".join([*[b"step"] * 50, *error, *rest, b"  "]) + b"\n")
    assert tail.last(0)[1] == [line.decode() for line in rest[5:]]
    assert str(tail.error(0, 1)) == "E: no luck (a.py:3)"
    told = tail.last(0)[1]
    assert (told[-2:], len(told)) == (["E: no luck", f"({N_LINES + 5} more lines)"], N_LINES)
    tail.event(Entry(1, 0.0, ev.RanksPlaced(1, "a", 1, 1)))
    assert tail.last(0)[1] == []
    tail.output(0, 2, b"\n".join([*error, *rest]) + b"\n")  # with nothing before it
    assert str(tail.error(0, 1)) == "E: no luck (a.py:3)"
    told = [line.decode() for line in error]
    assert tail.last(0)[1] == [*told, f"({N_LINES + 5} more lines)"]


def test_why_a_rank_ended_is_kept_of_each_attempt() -> None:
    tail = Tail()
    tail.output(0, 1, b'Traceback (most recent call last):\n  File "/a.py", line 3, in f\nE: no\n')
    tail.output(0, 2, b"a warning\n")
    assert tail.told(RankFailed(0, 0, 1)) == tail.told(MpiAborted(0, 0, 2)) == "E: no (a.py:3)"
    assert (tail.told(Interrupted(2)), tail.told(RankFailed(0, 7, 1))) == ("", "")
    tail.event(Entry(1, 0.0, ev.RunRestarting(RankFailed(0, 0, 1), 3, 5, 0.0)))
    tail.event(Entry(2, 0.0, ev.RanksPlaced(1, "a", 1, 3)))
    assert (tail.errors, tail.last(0)[1]) == ({2: "E: no (a.py:3)"}, [])


def test_bytes_are_counted_by_rank_and_stream() -> None:
    tail = Tail()
    for rank, stream, data in ((3, 1, b"abc"), (1, 2, b"de"), (3, 1, b"f"), (3, 2, b"g")):
        tail.output(rank, stream, data)
    assert tail.written() == [(1, 0, 2), (3, 4, 1)]
    assert Tail().written() == []


@cases(("restart", "lines"), [(0, ["old"]), (1, [])])
def test_a_further_attempt_begins_anew(restart: int, lines: list[str]) -> None:
    tail = Tail()
    tail.output(0, 1, b"old\nhalf")
    tail.event(Entry(1, 0.0, ev.RanksPlaced(1, "a", 1, restart)))
    assert tail.last(0)[1] == lines
    assert tail.sizes == ({(0, 1): 8} if lines else {})
    tail.output(0, 1, b" new\n")
    assert tail.last(0)[1][-1] == ("half new" if lines else " new")
