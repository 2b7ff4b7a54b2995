"""``dispatch fold`` on what launchers print."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOLD = [sys.executable, "-m", "dispatcher", "fold"]


def folded(text: bytes, *words: str) -> bytes:
    done = subprocess.run([*FOLD, *words], input=text, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.parametrize(
    ("words", "text", "shown"),
    [
        ((), b"n1: a\nn2: a\nn4: b\nn1: c\nn3: a\n", b"n[1-3]: a\nn4: b\nn1: c\n"),
        ((), b"[0] loss 1\n[1] loss 1\n[1]! oops\n", b"[0-1] loss 1\n[1]! oops\n"),
        (("-n",), b"[0] loss 1\n[1] loss 2\n", b"[0-1] loss #\n"),
        ((), b"[gpu01:0] x\n[gpu02:0] x\n", b"[gpu[01-02]:0] x\n"),
        ((), b"no label\nhttp://x y\nn1:\n", b"no label\nhttp://x y\nn1: \n"),
        ((), b"n1: last line without end", b"n1: last line without end\n"),
        ((), b"n1: \xff\x1b]0;x\x07\n", b"n1: \\xff\\x1b]0;x\\x07\n"),
        (
            ("-b",), b"n1: a\nn2: a\nn1: b\nn3: a\nn2: b\n",
            b"---------------\nn[1-2] (2)\n---------------\na\nb\n"
            b"---------------\nn3 (1)\n---------------\na\n",
        ),
        (("-b",), b"", b""),
    ],
)  # fmt: skip
def test_fold(words: tuple[str, ...], text: bytes, shown: bytes) -> None:
    assert folded(text, *words) == shown


def test_it_does_not_wait_for_the_end() -> None:
    process = subprocess.Popen(FOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"n1: a\nn2: a\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"n[1-2]: a\n"
    process.stdin.close()
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def test_bad_window() -> None:
    done = subprocess.run([*FOLD, "--window", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split("\n")[0]) == (
        2, "error: --window: not a number of seconds: 'x'"
    )  # fmt: skip
