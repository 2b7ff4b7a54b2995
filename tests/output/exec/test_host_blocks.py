"""What whole hosts said: gathered, compared, as JSON."""

from __future__ import annotations

import json

from dispatcher.core.events import exec_events
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec import host_blocks
from dispatcher.output.exec.host_blocks import HostOutput, blocks_of, differences, gathered, record
from dispatcher.remote.protocol.frames import STDERR, STDOUT


def kept(*said: bytes, streams: frozenset[int] = frozenset({STDOUT, STDERR})) -> HostOutput:
    sink = HostOutput(streams)
    for node, data in enumerate(said):
        for at in range(0, len(data), 3):
            sink.output(node, STDOUT, data[at : at + 3])
    return sink


def test_equal_blocks_once_most_hosts_first() -> None:
    names = ["n1", "n2", "n3", "n4", "n5"]
    sink = kept(b"odd\n", b"same\n", b"same\n", b"", b"same")
    shown = b"".join(gathered(blocks_of(sink, names))).decode()
    rule = "-" * 15
    assert shown == (
        f"{rule}\nn[2-3] (2)\n{rule}\nsame\n{rule}\nn1 (1)\n{rule}\nodd\n"
        f"{rule}\nn5 (1)\n{rule}\nsame\n"
    )
    bare = b"".join(gathered(blocks_of(sink, names), label=False))
    assert bare == b"same\nodd\nsame\n"


def test_a_terminal_cannot_be_told_anything() -> None:
    shown = b"".join(gathered({"n1": b"\x1b]0;x\x07\n10%\r20%\n"}))
    assert b"\x1b" not in shown
    assert b"\n20%\n" in shown


def test_memory_is_bounded_and_the_rest_counted(monkeypatch: object) -> None:
    sink = HostOutput(frozenset({STDOUT}))
    for _ in range(3):
        sink.output(0, STDOUT, b"x" * (host_blocks.MOST // 2))
    assert sink.dropped(0, STDOUT) == host_blocks.MOST // 2
    assert b"[%d bytes more]" % (host_blocks.MOST // 2) in sink.block(0, STDOUT)


def test_differences_are_told_from_the_block_of_most() -> None:
    names = ["n1", "n2", "n3"]
    shown = b"".join(differences(blocks_of(kept(b"a\nb\n", b"a\nc\n", b"a\nb\n"), names)))
    assert shown == b"--- n[1,3]\n+++ n2\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert not list(differences({"n1": b"x", "n2": b"x"}))
    long = b"x\n" * (host_blocks.MOST_LINES + 1)
    assert list(differences({"n1": long, "n2": long + b"y"})) == [b"n2 and n1 differ\n"]


def test_json_keeps_kinds_apart_and_bytes_whole() -> None:
    sink = kept(b"text\n", b"\xff\0")
    sink.event(Entry(1, 2.5, exec_events.HostDone(0, exec_events.Exited(3))))
    first = record("n1", 0, exec_events.Exited(3), sink, "exit code 3")
    assert (first["outcome"], first["code"], first["stdout"], first["seconds"]) == (
        "exited", 3, "text\n", 2.5,
    )  # fmt: skip
    second = record("n2", 1, exec_events.Failed(Failure(Kind.AUTH, "no")), sink, "x")
    assert (second["outcome"], second["kind"]) == ("failed", "authentication failed")
    assert second["stdout_base64"] == "/wA="
    assert "stdout" not in second
    json.dumps([first, second])
