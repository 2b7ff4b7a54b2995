"""Each form in which a runtime says why it ends a program, by itself."""

from __future__ import annotations

from cases import cases

from dispatcher.output.text.error_forms import begin_at, cut, endings

HEAD, FRAME = "Traceback (most recent call last):", '  File "/job/a.py", line 3, in f'
CAUSE = "The above exception was the direct cause of the following exception:"


@cases(
    ("lines", "found"),
    [
        (["step 1", "loss: 3.5"], []),
        ([HEAD, FRAME, "E: no"], [("E: no", 2, "a.py:3", 2, False)]),
        ([HEAD, FRAME, '  File "src/mpi4py/MPI.src/Comm.pyx", line 2560, in mpi4py.MPI.f', "E: no"],
         [("E: no", 2, "a.py:3", 3, False)]),
        (["Exception in thread T:", HEAD, FRAME, "E: no"], [("E: no", 1, "a.py:3", 3, False)]),
        (["Exception ignored in: <f>", HEAD, FRAME, "E: no"], [("E: no", 0, "a.py:3", 3, False)]),
        ([HEAD, FRAME, "E: no", "", CAUSE, "", HEAD, FRAME, "F: so"],
         [("E: no", 2, "a.py:3", 2, False), ("F: so (caused by E: no)", 2, "a.py:3", 8, False)]),
        (["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  no room"],
         [("std::bad_alloc: no room", 2, "", 1, True)]),
        (["sh: 1: mpicc: not found"], [("sh: 1: mpicc: not found", 2, "", 0, True)]),
        (["free(): invalid pointer", HEAD, FRAME, "E: no"],
         [("free(): invalid pointer", 2, "", 0, True), ("E: no", 2, "a.py:3", 3, False)]),
    ],
)  # fmt: skip
def test_a_form_is_found_with_its_text_and_its_last_line(
    lines: list[str], found: list[tuple[str, int, str, int, bool]]
) -> None:
    assert [(e.text, e.rank, e.place, e.end, e.is_native) for e in endings(lines)] == found


def test_reading_begins_a_little_before_the_first_sign() -> None:
    steps = [f"step {number}" for number in range(9)]
    assert begin_at([*steps, HEAD]) == 6
    assert begin_at([HEAD, *steps]) == 0
    assert begin_at(steps) == 5


def test_a_text_is_cut_at_a_sentence() -> None:
    assert cut(" a  b\n", 9) == "a b"
    assert cut("x" * 99, 20) == "x" * 18 + " \N{HORIZONTAL ELLIPSIS}"
    long = "One sentence of a good length, which is more than a third of what is shown. "
    assert cut(long + "y" * 200, 240) == long + "\N{HORIZONTAL ELLIPSIS}"
