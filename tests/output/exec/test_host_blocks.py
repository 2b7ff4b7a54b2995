"""What whole hosts said: gathered, compared, as JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import cases

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec import host_blocks
from dispatcher.output.exec.exec_notes import outcome_text
from dispatcher.output.exec.host_blocks import (
    HostOutput,
    blocks_of,
    differences,
    gathered,
    lines_of,
    record,
)
from dispatcher.remote.protocol.frames import STDERR, STDOUT

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "exec-output.md"


def kept(*said: bytes, streams: frozenset[int] = frozenset({STDOUT, STDERR})) -> HostOutput:
    sink = HostOutput(streams)
    for node, data in enumerate(said):
        for at in range(0, len(data), 3):
            sink.output(node, STDOUT, data[at : at + 3])
    return sink


def test_equal_blocks_once_most_hosts_first() -> None:
    names = ["n1", "n2", "n3", "n4", "n5"]
    sink = kept(b"odd\n", b"same\n", b"same\n", b"", b"last\n")
    shown = b"".join(gathered(blocks_of(sink, names))).decode()
    rule = "-" * 15
    assert shown == (
        f"{rule}\nn[2-3] (2)\n{rule}\nsame\n{rule}\nn1\n{rule}\nodd\n{rule}\nn5\n{rule}\nlast\n"
    )
    bare = b"".join(gathered(blocks_of(sink, names), label=False))
    assert bare == b"same\nodd\nlast\n"


RULE = b"-" * 15 + b"\n"


def test_only_a_last_line_end_may_differ() -> None:
    said = {"n1": b"done\n", "n2": b"odd\n", "n3": b"done"}
    assert list(gathered(said)) == [
        RULE + b"n[1,3] (2)\n" + RULE + b"done\n", RULE + b"n2\n" + RULE + b"odd\n",
    ]  # fmt: skip
    assert list(lines_of(said, gather=True)) == [b"n[1,3]: done\n", b"n2: odd\n"]
    (found,) = differences(said)
    assert found == b"--- n[1,3] (2)\n+++ n2\n@@ -1 +1 @@\n-done\n+odd\n"


@cases(
    ("one", "other", "shown"),
    [
        (b"n1 is here\rsame\n", b"n2 is here\rsame\n",
         [b"n1 is here\\x0dsame\n", b"n2 is here\\x0dsame\n"]),
        (b"a\r\n", b"a\n", [b"a\\x0d\n", b"a\n"]),
        (b"\xf8\n", b"\\xf8\n", [b"\\xf8\n", b"\\\\xf8\n"]),
        (b"a\0\n", b"a\\x00\n", [b"a\\x00\n", b"a\\\\x00\n"]),
        (b"a \n", b"a\n", [b"a \n", b"a\n"]), (b"10%\rdone\n", b"odd\n", [b"done\n", b"odd\n"]),
    ],
)  # fmt: skip
def test_what_differs_is_different(one: bytes, other: bytes, shown: list[bytes]) -> None:
    """Bytes are compared. Two that look alike on a terminal are shown there so that they differ."""
    said = {"n1": one, "n2": other}
    assert list(gathered(said, label=False)) == shown
    assert list(gathered(said, label=False, exact=True)) == [one, other]
    assert len(list(differences(said))) == len(list(differences(said, exact=True))) == 1
    assert list(differences({"n1": one, "n2": one})) == []


def test_a_terminal_cannot_be_told_anything() -> None:
    shown = b"".join(gathered({"n1": b"\x1b]0;x\x07\n10%\r20%\n"}))
    assert b"\x1b" not in shown
    assert b"\n20%\n" in shown


def test_json_keeps_kinds_apart_and_bytes_whole() -> None:
    sink = kept(b"text\n", b"\xff\0")
    sink.event(Entry(1, 2.5, exec_events.HostDone(0, exec_events.Exited(3))))
    first = record("n1", 0, exec_events.Exited(3), sink)
    assert (first["outcome"], first["code"], first["stdout"], first["seconds"]) == (
        "exited", 3, "text\n", 2.5,
    )  # fmt: skip
    second = record("n2", 1, exec_events.Failed(Failure(Kind.AUTH, "no")), sink)
    assert (second["outcome"], second["kind"]) == ("failed", "authentication failed")
    assert second["stdout_base64"] == "/wA="
    assert "stdout" not in second
    json.dumps([first, second])


def test_only_the_streams_that_are_wanted_are_kept() -> None:
    sink = HostOutput(frozenset({STDOUT}))
    sink.output(0, STDOUT, b"out")
    sink.output(0, STDERR, b"err")
    assert (sink.block(0, STDOUT), sink.block(0, STDERR)) == (b"out", b"")
    assert sink.dropped(0, STDERR) == 0
    sink.event(Entry(1, 2.0, ev.NodeBooted(0, 0)))
    assert sink.seconds == {}
    both = HostOutput(frozenset({STDOUT, STDERR}))
    both.output(1, STDERR, b"err")
    assert blocks_of(both, ["n0", "n1"], STDERR) == {"n0": b"", "n1": b"err"}


def test_what_is_beyond_the_bound_is_counted_by_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_blocks, "MOST", 8)
    sink = HostOutput(frozenset({STDOUT, STDERR}))
    for _ in range(3):
        sink.output(0, STDOUT, b"12345")
    sink.output(0, STDERR, b"12345678")
    assert (sink.dropped(0, STDOUT), sink.dropped(0, STDERR), sink.dropped(1, STDOUT)) == (7, 0, 0)
    assert sink.block(0, STDOUT) == b"12345123\n[7 bytes more]\n"
    assert sink.block(0, STDERR) == b"12345678"
    told = record("n1", 0, exec_events.Exited(0), sink)
    assert (told["stdout"], told["stdout_dropped"], told["stderr"]) == ("12345123", 7, "12345678")
    assert "stderr_dropped" not in told


@cases(
    ("outcome", "told"),
    [
        (exec_events.Exited(0), {"ok": True, "outcome": "exited", "code": 0}),
        (exec_events.Exited(3), {"ok": False, "outcome": "exited", "code": 3}),
        (exec_events.Killed("KILL"), {"outcome": "killed", "signal": "KILL"}),
        (exec_events.Failed(Failure(Kind.DNS, "x")),
         {"outcome": "failed", "kind": "name not found", "message_code": "name-not-found"}),
        (exec_events.TimedOut("total", 1.0), {"outcome": "timeout"}),
        (exec_events.Interrupted(2), {"outcome": "interrupted"}),
        (exec_events.NotStarted("x"), {"outcome": "not started"}),
        (exec_events.NotCopied("x"), {"outcome": "not copied"}),
    ],
)  # fmt: skip
def test_one_host_in_json(outcome: exec_events.Outcome, told: dict[str, object]) -> None:
    plain = {"schema": "exec/1", "ok": False, "code": None, "signal": None, "kind": None,
             "message_code": None, "seconds": 0.0, "host": "n1", "index": 4,
             "words": outcome_text(outcome), "stdout": "", "stderr": ""}  # fmt: skip
    assert record("n1", 4, outcome, HostOutput(frozenset())) == {**plain, **told}


def test_a_letter_that_was_cut_off_does_not_make_text_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_blocks, "MOST", 3)
    sink = HostOutput(frozenset({STDOUT, STDERR}))
    sink.output(0, STDOUT, "aäöü".encode())
    sink.output(0, STDERR, b"ab\xc3")
    told = record("n1", 0, exec_events.Exited(0), sink)
    assert (told["stdout"], told["stdout_dropped"], told["stderr_base64"]) == ("aä", 4, "YWLD")
    sink.output(0, STDERR, b"\xa4")
    told = record("n1", 0, exec_events.Exited(0), sink)
    assert (told["stderr"], told["stderr_dropped"]) == ("ab", 2)


@cases(
    ("line", "shown"),
    [
        (r"""jq -r 'select(.ok | not) | "\(.host): \(.words)"'""", b"n3: exit code 3\n"),
        (r"""jq -r 'select(.ok) | "\(.host) \(.seconds)"'""", b"n1 0\nn2 0\nn4 0\n"),
        (r"""jq -r '.host + ": " + (.stdout // "(no text)" | split("\n")[0])'""",
         b"n1: \\xff\nn2: (no text)\nn3: \xc3\xa4\nn4: \\xff\n"),
        ("jq -sc 'group_by(.stdout)[] | [map(.host), .[0].stdout]'",
         b'[["n2"],null]\n[["n1","n4"],"\\\\xff\\n"]\n[["n3"],"\xc3\xa4\\n\\u0000"]\n'),
        ("jq -r '.stdout_base64 // (.stdout | @base64)'", b"\\xff\n\xff\n\xc3\xa4\n\0\\xff\n"),
    ],
)  # fmt: skip
def test_what_the_guide_says_of_jq(line: str, shown: bytes) -> None:
    """Byte 0xff and the four letters \\xff are never taken for one another."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    written = re.findall(r"^(jq .*?') answers(.*?)(?: +#.*)?$", GUIDE.read_text(), re.M)
    assert len(written) == 5
    (rest,) = [rest for command, rest in written if command == line]
    sink = HostOutput(frozenset({STDOUT}))
    said = (b"\\xff\n", b"\xff\n", b"\xc3\xa4\n\0", b"\\xff\n")
    for node, text in enumerate(said):
        sink.output(node, STDOUT, text)
    told = [
        record(f"n{node + 1}", node, exec_events.Exited(3 * (node == 2)), sink) for node in range(4)
    ]
    done = subprocess.run(
        ["sh", "-c", line + rest], input="".join(json.dumps(one) + "\n" for one in told).encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == shown


def test_the_head_of_a_block() -> None:
    (shown,) = gathered({"n1": b"x\n", "n2": b"x\n"}, what=" stderr")
    assert shown == RULE + b"n[1-2] (2) stderr\n" + RULE + b"x\n"


def test_differences_of_several_and_of_long_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = {"n1": b"a\n", "n2": b"a\n", "n3": b"b\n", "n4": b"\x1b[2J\n", "n5": b""}
    assert list(differences(blocks)) == [
        b"--- n[1-2] (2)\n+++ n3\n@@ -1 +1 @@\n-a\n+b\n",
        b"--- n[1-2] (2)\n+++ n4\n@@ -1 +1 @@\n-a\n+\\x1b[2J\n",
        b"--- n[1-2] (2)\n+++ n5\n@@ -1 +0,0 @@\n-a\n",
    ]
    monkeypatch.setattr(host_blocks, "MOST_LINES", 2)
    for lines, is_long in ((b"a\nb\n", False), (b"a\nb\nc\n", True)):
        (found,) = differences({"n1": b"x\n", "n2": lines})
        assert (found == b"n2 and n1 differ\n") == is_long
