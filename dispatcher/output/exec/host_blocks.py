"""The output of whole hosts, when they are done: gathered blocks, lines, differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dispatcher.model.hostset import fold
from dispatcher.output.exec.host_results import HostResult
from dispatcher.output.text.fold import gather_blocks
from dispatcher.output.text.lines import LineAssembler
from dispatcher.output.text.sanitize import sanitize_lines

#: lines of a block above which a difference is only stated, because finding it is quadratic
MOST_LINES = 5000

_RULE = b"-" * 15


def gather_output(
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
    ``gather_output``.
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

    exact: see ``gather_output``.
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
    groups = sorted(gather_blocks(said), key=lambda one: -len(one[0]))
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


def blocks_of(results: Sequence[HostResult], *, errors: bool = False) -> dict[str, bytes]:
    """Host name -> its standard output or ``errors``, and the number of missing bytes, if any."""
    found = {}
    for one in results:
        block, dropped = one.stdout, one.stdout_dropped
        if errors:
            block, dropped = one.stderr, one.stderr_dropped
        found[one.host] = block + (b"\n[%d bytes more]\n" % dropped if dropped else b"")
    return found
