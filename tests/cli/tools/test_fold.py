"""``dispatch fold`` on what launchers print."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.tools.fold import Labels, named

from ..conftest import Given, Terminal

LONG = b"y" * (1 << 20)


@pytest.mark.parametrize(
    ("words", "text", "shown"),
    [
        ([], b"n1: a\nn2: a\nn4: b\nn1: c\nn3: a\n", b"n[1-3]: a\nn4: b\nn1: c\n"),
        ([], b"[0] loss 1\n[1] loss 1\n[1]! oops\n", b"[0-1] loss 1\n[1]! oops\n"),
        (["-n"], b"[0] loss 1\n[1] loss 2\n", b"[0-1] loss #\n"),
        ([], b"12:00:00.001 n1: a\n12:00:00.002 n2: a\n12:00:01.123 no label\n",
         b"n[1-2]: a\n12:00:01.123 no label\n"),
        (["--window", "0"], b"[0] loss 1\n", b"[0] loss 1\n"),
        ([], b"[gpu01:0] x\n[gpu02:0] x\n", b"[gpu[01-02]:0] x\n"),
        ([], b"no label\nhttp://x y\nn1:\n", b"no label\nhttp://x y\nn1: \n"),
        ([], b"n1: last line without end", b"n1: last line without end\n"),
        # a program gets the bytes, and bytes are compared
        ([], b"n1: \xff\x1b]0;x\x07\r\n", b"n1: \xff\x1b]0;x\x07\r\n"),
        ([], b"n1: here\rsame\nn2: there\rsame\n", b"n1: here\rsame\nn2: there\rsame\n"),
        (["-b"], b"n1: here\rsame\nn2: there\rsame\n",
         b"---------------\nn1\n---------------\nhere\rsame\n"
         b"---------------\nn2\n---------------\nthere\rsame\n"),
        ([], b"n\x1b[31m1: a\n", b"n\x1b[31m1: a\n"),
        ([], b"", b""),
        (
            ["-b"], b"n1: a\nn2: a\nn1: b\nn3: a\nn2: b\n",
            b"---------------\nn[1-2] (2)\n---------------\na\nb\n"
            b"---------------\nn3\n---------------\na\n",
        ),
        (
            ["-b"], b"plain\n[1] x\n[0] x",
            b"---------------\nno label\n---------------\nplain\n"
            b"---------------\n0-1 (2)\n---------------\nx\n",
        ),
        (["-b"], b"", b""),
    ],
)  # fmt: skip
def test_fold(
    words: list[str], text: bytes, shown: bytes, given: Given,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    given(text)
    assert cli.main(["fold", *words]) == 0
    assert capfdbinary.readouterr() == (shown, b"")


@pytest.mark.parametrize("gathered", [False, True])
def test_a_line_that_is_too_long_to_be_kept_is_whole(
    gathered: bool, given: Given, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What stood before it comes before it."""
    text = b"[0] a\n[1] " + LONG[: (1 << 20) - 30] + b"\n[0] b\n"
    given(text)
    assert cli.main(["fold", *(["-b"] if gathered else [])]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    if gathered:
        lines = out.split(b"\n")
        assert lines[1:2] + lines[3:5] == [b"0", b"a", b"b"]
        assert lines[6:] == [b"1", b"-" * 15, LONG[: (1 << 20) - 30], b""]
    else:
        assert out == text


@cases(
    ("line", "off"),
    [
        (b"[3] x y", ("3", 1, b"x y")), (b"[3]! x", ("3", 2, b"x")),
        (b"[n1:0] x", ("n1:0", 1, b"x")), (b"n1: x", ("n1", 1, b"x")), (b"n1:", ("n1", 1, b"")),
        (b"n1:x", ("", 1, b"n1:x")), (b"[3]x", ("", 1, b"[3]x")), (b"[] x", ("", 1, b"[] x")),
        (b"[a b] x", ("", 1, b"[a b] x")), (b"a b: x", ("", 1, b"a b: x")),
        (b"\xff: x", ("\\xff", 1, b"x")), (b"a" * 255 + b": x", ("a" * 255, 1, b"x")),
        (b"a" * 256 + b": x", ("", 1, b"a" * 256 + b": x")),
    ],
)  # fmt: skip
def test_a_label_is_taken_off(line: bytes, off: tuple[str, int, bytes]) -> None:
    assert Labels().off(line) == off


def test_a_label_is_put_on_as_it_was() -> None:
    labels = Labels()
    assert labels.on(["0", "1"], 1) == b"[0-1] "
    labels.off(b"n1: x")
    assert labels.on(["n1", "n2"], 2) == b"n[1-2]: "
    labels.off(b"no label")
    assert labels.on(["n1"], 1) == b"n1: "
    labels.off(b"[0]! x")
    assert labels.on(["0", "1", "3"], 2) == b"[0-1,3]! "
    assert labels.on([""], 1) == b""


@cases(
    ("labels", "text"),
    [(["0", "1", "2"], "0-2"), (["2", "0", "2"], "0,2"), (["n1", "n2"], "n[1-2]"),
     (["1", "n1"], "1,n1"), (["123456789"], "123456789"), (["\u0661"], "\u0661")],
)  # fmt: skip
def test_names_are_folded(labels: list[str], text: str) -> None:
    assert named(labels) == text


def test_before_a_terminal_a_long_line_is_cut(given: Given, terminal: Terminal) -> None:
    terminal.take()
    given(b"[0] a\n[1] " + LONG[:100_000] + b"\n")
    assert cli.main(["fold"]) == 0
    assert terminal.leave().startswith("[0] a\r\n[1] y")


def test_a_terminal_is_told_nothing_by_a_line_or_a_label(given: Given, terminal: Terminal) -> None:
    terminal.take()
    given(b"n1: \x1b]0;x\x07a\rb\nn\x1b]2: c\n")
    assert cli.main(["fold"]) == 0
    assert terminal.leave() == "n1: \\x1b]0;x\\x07a\\x0db\r\nn\\x1b]2: c\r\n"


def test_it_does_not_wait_for_the_end() -> None:
    argv = [sys.executable, "-m", "dispatcher", "fold"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"n1: a\nn2: a\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"n[1-2]: a\n"
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    process.stdout.close()


def test_bad_window(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fold", "--window", "x"]) == 2
    said = "error: --window: not a number of seconds: 'x' [bad-value]\n"
    assert capsys.readouterr().err.startswith(said)
