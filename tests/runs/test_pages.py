"""The commands in the pages, tried in the order a reader meets them, on a cluster of three hosts.

A block of ``console`` is typed on the login host, line by line, and must answer what stands below
each ``$`` line: ``...`` stands for anything in a line, and alone for any lines; how many seconds
something took is the machine's affair. Blocks with a title are files. A comment
``<!-- run: ... -->`` is typed as well and shown to nobody. A command that ends with
``# exit code N`` must end so, any other with 0, or, if it says ``error:``, with another.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig import Cluster

DOCS = Path(__file__).parents[2] / "docs"
#: dispatch, as it is where no host is a second later than most of them: gathered output comes whole
PROGRAM = f"""#!{sys.executable}
from dispatcher import cli
from dispatcher.output.exec import host_blocks
host_blocks.WAIT = 1000.0
cli.console()
"""
#: where one command left off, the next goes on
SESSION = """
exec 2>&1
export PATH="{own}/bin:{bin}:$PATH"
export XDG_STATE_HOME={own}/state XDG_CONFIG_HOME={own}/config
unset DISPATCH_CONFIG
cd "$(cat {own}/folder 2>&- || echo {own}/start)"
{command}
code=$?
pwd > {own}/folder
exit $code
"""
#: begins a block with its language and title, or a hidden command
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$"
    r"|<!-- run: (?P<hidden>.*?) -->",
    re.M | re.S,
)
#: a line of a rank or a host; those of several come in any order
LABELLED = re.compile(r"\[\d+\] |n\d+: ")
PAGES = sorted(
    page for page in DOCS.rglob("*.md") if "```console" in page.read_text(encoding="utf-8")
)


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """(kind, name or command, file's text or answer) in the page's order; kind: file or command."""
    for found in BLOCK.finditer(text):
        if found["hidden"]:
            yield "command", found["hidden"], "..."
            continue
        body = re.sub(f"^{found['indent']}", "", found["text"], flags=re.M)
        if found["title"]:
            yield "file", found["title"], body
        elif found["language"] == "console":
            for command in re.split(r"^\$ ", body, flags=re.M)[1:]:
                typed, _, answer = command.partition("\n")
                yield "command", typed, answer


def ordered(text: str) -> list[str]:
    """Lines, each run of labelled ones by label, no blanks at their ends."""
    lines = [line.rstrip() for line in text.splitlines()]
    done: list[str] = []
    for line in lines:
        at = len(done)
        label = LABELLED.match(line)
        while label and at and (before := LABELLED.match(done[at - 1])) and before[0] > label[0]:
            at -= 1
        done.insert(at, line)
    return done


def fits(expected: str, said: str) -> bool:
    """Whether ``said`` is what ``expected`` shows."""
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            plain = ".*".join(map(re.escape, line.rstrip().split("...")))
            pattern += re.sub(r"(?<= )\d+(?=\\ s\b)", r"\\d+", plain) + r"\n"
    return bool(re.fullmatch(pattern, "".join(f"{line}\n" for line in ordered(said))))


@pytest.mark.parametrize(
    ("expected", "said", "fit"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n...\nc\n", "a\nc\n", True),
        ("...\nc\n", "a\nb\n", False),
        ("3 hosts, ... s\n", "3 hosts, 0.5 s\n", True),
        ("3 hosts, ... s\n", "3 hosts, 0.5 s\nmore\n", False),
        ("none for 5 s [x]\n", "none for 16 s [x]\n", True),
        ("none for 5 st\n", "none for 6 st\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("[0] a\n[1] b\n", "[1] b\n[0] a\n", True),
        ("[0] a\n[1] b\n", "[1] a\n[0] b\n", False),
        ("n1: x\nn2: y\nz\n", "n2: y\nn1: x\nz\n", True),
    ],
)
def test_what_fits(expected: str, said: str, fit: bool) -> None:
    assert fits(expected, said) == fit


def test_there_are_pages() -> None:
    assert "start/first-run.md" in [str(page.relative_to(DOCS)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page(page: Path, new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = new_cluster(3)
    for host in ("login", *cluster.hosts):  # on each its own: no folder is shared
        cluster.run(["mkdir", "-p", str(tmp_path / "start")], host=host, check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dispatch").write_text(PROGRAM)
    (tmp_path / "bin" / "dispatch").chmod(0o755)

    def type_in(command: str, text: str = "") -> tuple[int, str]:
        script = SESSION.format(bin=Path(sys.executable).parent, own=tmp_path, command=command)
        done = cluster.run(["bash", "-c", script], input=text, timeout=120)
        return done.returncode, done.stdout

    for kind, name, text in steps(page.read_text(encoding="utf-8")):
        if kind == "file":
            assert type_in(f"cat > {shlex.quote(name)}", text) == (0, "")
            continue
        code, said = type_in(name)
        wanted = re.search(r"# exit code (\d+)$", name)
        shown = f"$ {name}\n{said}(exit code {code}); the page has:\n{text}"
        assert fits(text, said), shown
        if wanted:
            assert code == int(wanted[1]), shown
        else:
            assert (code != 0) == (re.search(r"^error: ", text, re.M) is not None), shown
