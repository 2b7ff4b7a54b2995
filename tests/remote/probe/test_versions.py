"""Versions as the Python of a rank has them: asked of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatcher.remote.host import proctree
from dispatcher.remote.probe import versions
from dispatcher.remote.protocol.frames import Decoder
from dispatcher.remote.protocol.packing import unpack

WAIT = "import sys; print(flush=True); sys.stdin.read()"
Begun = Callable[..., int]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Begun]:
    """``begun(*words)``: the pid of a process that has printed a line, with X=1, elsewhere."""
    with ExitStack() as stack:

        def begin(*words: str) -> int:
            process = stack.enter_context(
                subprocess.Popen(
                    words, cwd=tmp_path, env={"X": "1", "DISPATCH_STACKS": "/x", "E": ""},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )  # fmt: skip
            assert process.stdout is not None
            process.stdout.readline()
            return process.pid

        yield begin


def found(code: str, *pids: int) -> str:
    answer = versions.Answer(code.encode(), dict(enumerate(pids)))
    (frame,) = Decoder().feed(answer.frame(wait=True) or b"")
    message = unpack(frame.body)
    assert message.pop("type") == "node.versions"
    return str(message["found"])


def test_it_has_the_folder_and_the_variables_of_the_rank(begun: Begun, tmp_path: Path) -> None:
    pid = begun(sys.executable, "-c", WAIT)
    code = "import os, sys; print(os.getcwd(), os.environ, sys.prefix); os.write(2, b'no')"
    text = found(code, pid)
    assert text.startswith(f"{tmp_path} ")
    assert text.endswith(f" {sys.prefix}\n")
    assert "'X': '1'" in text
    assert "STACKS" not in text


def test_the_first_python_counts_also_below_a_shell(begun: Begun) -> None:
    none = begun("/bin/sh", "-c", "echo; read x")
    shell = begun("/bin/sh", "-c", f"{sys.executable} -c '{WAIT}'; true")
    gone = 1 << 22
    assert found("print(1)", gone, none) == ""
    assert found("print(2)", gone, none, shell) == "2\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os, time; os.write(1, b'1'); time.sleep(99)", "1"),
        ("print('x' * (1 << 20))", "x" * versions.MOST),
        ("print('\\xff')", "\ufffd\ufffd\n"),
        ("1 /", ""),
    ],
)
def test_it_is_bounded(begun: Begun, monkeypatch: pytest.MonkeyPatch, code: str, told: str) -> None:
    monkeypatch.setattr(versions, "SECONDS", 1.0 if "sleep" in code else 30.0)
    pid = begun(sys.executable, "-c", WAIT)
    before = set(proctree.descendants(os.getpid()))
    assert found(code, pid) == told
    assert set(proctree.descendants(os.getpid())) == before  # it has ended


def test_a_sampler_does_not_wait_for_it(begun: Begun) -> None:
    pid = begun(sys.executable, "-c", WAIT)
    answer = versions.Answer(b"import time; print(1, flush=True); time.sleep(0.5)", {0: pid})
    assert answer.frame(wait=False) is None
    (frame,) = Decoder().feed(answer.frame(wait=True) or b"")
    assert unpack(frame.body)["found"] == "1\n"
    late = versions.Answer(b"import time; time.sleep(99)", {0: pid})
    late.end = 0.0
    assert late.frame(wait=False)
    assert late.fd == -1
