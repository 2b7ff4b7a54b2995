"""The output of whole hosts, kept until they are done: gathered blocks, differences, JSON."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dispatcher.core.events import exec_events
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.hostset import fold
from dispatcher.output.exec.exec_notes import outcome_text
from dispatcher.output.text.fold import gather
from dispatcher.output.text.lines import LineAssembler
from dispatcher.output.text.sanitize import sanitize_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.model import formats

#: bytes kept of one stream of one host
MOST = 4 << 20
#: lines of a block above which a difference is only stated, because finding it is quadratic
MOST_LINES = 5000

_RULE = b"-" * 15


class HostOutput(Sink):
    """Keeps the output of each host to ``streams``, and when the host was done."""

    def __init__(self, streams: frozenset[int]) -> None:
        self._streams = streams
        self._blocks: dict[tuple[int, int], bytearray] = {}
        self._dropped: dict[tuple[int, int], int] = {}
        self.seconds: dict[int, float] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream not in self._streams:
            return
        held = self._blocks.setdefault((rank, stream), bytearray())
        left = max(0, MOST - len(held))
        held += data[:left]
        if len(data) > left:
            key = (rank, stream)
            self._dropped[key] = self._dropped.get(key, 0) + len(data) - left

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, exec_events.HostDone):
            self.seconds[entry.event.node] = entry.t

    def block(self, node: int, stream: int) -> bytes:
        """The output of the host, and a line with the number of missing bytes, if any."""
        held = bytes(self._blocks.get((node, stream), b""))
        dropped = self.dropped(node, stream)
        return held + (b"\n[%d bytes more]\n" % dropped if dropped else b"")

    def dropped(self, node: int, stream: int) -> int:
        """Bytes of the host's stream that were not kept."""
        return self._dropped.get((node, stream), 0)


def gathered(
    blocks: Mapping[str, bytes], *, label: bool = True, what: str = "", exact: bool = False
) -> Iterator[bytes]:
    """Each different block once, below the folded names of its hosts; most hosts first.

    Blocks are equal if their bytes are, except the last line end. blocks: host name -> its output.
    Hosts without output are left out. what: text after the names. exact: for a program, which gets
    the bytes; else for a terminal.
    """
    for names, text in _groups(blocks, exact=exact):
        head = f"{_RULE.decode()}\n{_counted(names)}{what}\n{_RULE.decode()}\n" if label else ""
        yield head.encode() + text


def lines_of(
    blocks: Mapping[str, bytes], *, label: bool = True, gather: bool = False, exact: bool = False
) -> Iterator[bytes]:
    """Every block with a name in each line, as ``clush -L``; hosts in order.

    gather: equal blocks once, in the lines the folded names; most hosts first. exact: see
    ``gathered``.
    """
    if gather:
        groups = _groups(blocks, exact=exact)
    else:
        groups = [([name], shown(block, exact=exact)) for name, block in blocks.items()]
    for names, text in groups:
        head = f"{fold(names)}: ".encode() if label else b""
        yield b"".join(head + line + b"\n" for line in text.split(b"\n")[:-1])


def _counted(names: Sequence[str]) -> str:
    """``n[1-3] (3)``, and ``n3`` for one alone, as clush heads a block."""
    return f"{fold(names)} ({len(names)})" if len(names) > 1 else fold(names)


def differences(blocks: Mapping[str, bytes], *, exact: bool = False) -> Iterator[bytes]:
    """Unified diffs of the other blocks, empty ones too, against the most frequent one.

    exact: see ``gathered``.
    """
    groups = _groups(blocks, silent=True, exact=exact)
    if len(groups) < 2:
        return
    import difflib  # few ask for it

    largest, *others = groups
    before, largest_name = _strings(largest[1]), _counted(largest[0])
    for names, text in others:
        after, name = _strings(text), _counted(names)
        if max(len(before), len(after)) > MOST_LINES:
            yield f"{name} and {largest_name} differ\n".encode()
            continue
        found = difflib.unified_diff(before, after, largest_name, name, lineterm="")
        yield "".join(line + "\n" for line in found).encode("utf-8", "surrogateescape")


def _groups(
    blocks: Mapping[str, bytes], *, silent: bool = False, exact: bool = False
) -> list[tuple[list[str], bytes]]:
    """Hosts with equal blocks, and the text to show for them; most hosts first."""
    said = ((name, ended(block)) for name, block in blocks.items() if block or silent)
    groups = sorted(gather(said), key=lambda one: -len(one[0]))
    texts = apart([block for _, block in groups], exact=exact)
    return [(names, text) for (names, _), text in zip(groups, texts, strict=True)]


def apart(blocks: Sequence[bytes], *, exact: bool) -> list[bytes]:
    """The text to show for each of ``blocks``, which all differ.

    Blocks that would look equal on a terminal show all their bytes, as ``\\x0d`` for CR.
    """
    texts = [shown(block, exact=exact) for block in blocks]
    alike = Counter(texts)
    return [
        sanitize_lines(block.replace(b"\\", b"\\\\")) if alike[text] > 1 else text
        for block, text in zip(blocks, texts, strict=True)
    ]


def ended(block: bytes) -> bytes:
    """``block``, with an end for its last line."""
    return block + b"\n" if block and not block.endswith(b"\n") else block


def shown(block: bytes, *, exact: bool) -> bytes:
    """``block`` in whole lines; unless ``exact``, as a terminal would show it, and sanitized."""
    if exact:
        return ended(block)
    assembler = LineAssembler(limit=len(block))
    return sanitize_lines(assembler.feed(block) + assembler.finish())


def _strings(text: bytes) -> list[str]:
    return text.decode("utf-8", "surrogateescape").split("\n")[:-1]


def about(name: str, index: int, outcome: exec_events.Outcome) -> formats.HostOutcome:
    """One host's outcome, for programs."""
    failure = outcome.failure if isinstance(outcome, exec_events.Failed) else None
    kind = type(outcome).__name__.replace("Not", "not ").lower()
    return {
        "host": name,
        "index": index,
        "ok": exec_events.is_good(outcome),
        "outcome": "timeout" if isinstance(outcome, exec_events.TimedOut) else kind,
        "code": outcome.code if isinstance(outcome, exec_events.Exited) else None,
        "signal": outcome.signal if isinstance(outcome, exec_events.Killed) else None,
        "kind": failure.kind.value if failure else None,
        "message_code": failure.kind.code if failure else None,
        "words": outcome_text(outcome),
    }


def record(
    name: str, index: int, outcome: exec_events.Outcome, outputs: HostOutput
) -> dict[str, Any]:
    """One host as plain values for JSON. Output that is not UTF-8 comes as base64."""
    found: dict[str, Any] = {
        "schema": "exec/1",
        **about(name, index, outcome),
        "seconds": round(outputs.seconds.get(index, 0.0), 3),
    }
    for stream, title in ((1, "stdout"), (2, "stderr")):
        data, dropped = outputs.block(index, stream)[:MOST], outputs.dropped(index, stream)
        try:
            found[title] = data.decode()
        except UnicodeDecodeError as bad:
            if dropped and bad.reason == "unexpected end of data":  # a character was cut
                dropped += len(data) - bad.start
                found[title] = data[: bad.start].decode()
            else:
                found[f"{title}_base64"] = base64.b64encode(data).decode()
        if dropped:
            found[f"{title}_dropped"] = dropped
    return found


def blocks_of(outputs: HostOutput, names: Sequence[str], stream: int = 1) -> dict[str, bytes]:
    """Host name -> its output to ``stream``."""
    return {name: outputs.block(node, stream) for node, name in enumerate(names)}
