"""The output of whole hosts, kept until they are done: gathered blocks, differences, JSON."""

from __future__ import annotations

import base64
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
#: lines of a block above which a difference is only stated, since finding it is quadratic
MOST_LINES = 5000

_RULE = b"-" * 15


class HostOutput(Sink):
    """Keeps what each host wrote to ``streams``, and when it was done."""

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


def gathered(blocks: Mapping[str, bytes], *, label: bool = True, what: str = "") -> Iterator[bytes]:
    """Each different block once, below the folded names of its hosts; most hosts first.

    Blocks are equal if their lines look the same: one may lack its last line end, or have drawn
    more of its progress. blocks: host name -> what it said. Hosts that said nothing are left out.
    what: text behind the names.
    """
    for names, block in _by_size(blocks):
        yield headed(names, block, label=label, what=what)


def lines_of(
    blocks: Mapping[str, bytes], *, label: bool = True, gather: bool = False
) -> Iterator[bytes]:
    """Every block with a name in each line, as ``clush -L``; hosts in order.

    gather: equal blocks once, in the lines the folded names; most hosts first.
    """
    groups = _by_size(blocks) if gather else [([name], block) for name, block in blocks.items()]
    for names, block in groups:
        head = f"{fold(names)}: ".encode() if label else b""
        yield b"".join(head + line + b"\n" for line in _lines(block))


def headed(names: Sequence[str], block: bytes, *, label: bool = True, what: str = "") -> bytes:
    """``block`` below the names of its hosts, sanitized for a terminal."""
    head = f"{_RULE.decode()}\n{_counted(names)}{what}\n{_RULE.decode()}\n" if label else ""
    return head.encode() + _shown(block)


def _counted(names: Sequence[str]) -> str:
    """``n[1-3] (3)``, and ``n3`` for one alone, as clush heads a block."""
    return f"{fold(names)} ({len(names)})" if len(names) > 1 else fold(names)


def differences(blocks: Mapping[str, bytes]) -> Iterator[bytes]:
    """How the other blocks differ from the most frequent one, as unified diffs.

    An empty block is one, too.
    """
    groups = _by_size(blocks, silent=True)
    if len(groups) < 2:
        return
    import difflib  # few ask for it

    largest, *others = groups
    before, largest_name = _text_lines(largest[1]), _counted(largest[0])
    for names, block in others:
        after, name = _text_lines(block), _counted(names)
        if max(len(before), len(after)) > MOST_LINES:
            yield f"{name} and {largest_name} differ\n".encode()
            continue
        found = difflib.unified_diff(before, after, largest_name, name, lineterm="")
        yield "".join(line.rstrip("\n") + "\n" for line in found).encode()


def _by_size(blocks: Mapping[str, bytes], *, silent: bool = False) -> list[tuple[list[str], bytes]]:
    alike: dict[bytes, list[str]] = {}
    for names, block in gather((name, block) for name, block in blocks.items() if block or silent):
        alike.setdefault(_shown(block), []).extend(names)
    return sorted(((names, text) for text, names in alike.items()), key=lambda one: -len(one[0]))


def _shown(block: bytes) -> bytes:
    return b"".join(line + b"\n" for line in _lines(block))


def _text_lines(block: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in _lines(block)]


def _lines(block: bytes) -> list[bytes]:
    assembler = LineAssembler(limit=len(block))
    return sanitize_lines(assembler.feed(block) + assembler.finish()).split(b"\n")[:-1]


def about(name: str, index: int, outcome: exec_events.Outcome) -> formats.HostOutcome:
    """What became of one host, for programs."""
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
            if dropped and bad.reason == "unexpected end of data":  # a letter that was cut off
                dropped += len(data) - bad.start
                found[title] = data[: bad.start].decode()
            else:
                found[f"{title}_base64"] = base64.b64encode(data).decode()
        if dropped:
            found[f"{title}_dropped"] = dropped
    return found


def blocks_of(outputs: HostOutput, names: Sequence[str], stream: int = 1) -> dict[str, bytes]:
    """Host name -> what it wrote to ``stream``."""
    return {name: outputs.block(node, stream) for node, name in enumerate(names)}
