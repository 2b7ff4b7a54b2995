"""Who may import whom, and how many live in a room: read from the source with ``ast``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import trees
from cases import cases

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "dispatcher"

#: room -> the rooms, or parts of one, that it may import besides itself; the lowest first, and
#: each only from those before it, so that imports run one way
MAY: dict[str, tuple[str, ...]] = {
    "model": (),
    "remote": (),
    "comm": (),
    "plan": ("model",),
    "checks": ("model", "remote.protocol"),
    "bootstrap": ("model", "remote.protocol"),
    "core": ("model", "plan"),
    "transport": ("model", "remote.protocol", "remote.tree_relay", "bootstrap"),
    "transfer": ("model", "remote.protocol", "remote.copy", "bootstrap", "transport.base"),
    "output": ("model", "remote.protocol", "plan", "checks", "core.events"),
    "jobs": ("model", "core.events"),
    "runner": (
        "model", "remote.protocol", "remote.host.own_folder", "remote.host.host_facts", "bootstrap",
        "plan", "checks", "core", "transport.base",
    ),
    "api": (
        "model", "remote.protocol", "remote.rank", "bootstrap", "plan", "checks", "core.events",
        "transport", "output", "jobs", "runner",
    ),
    "cli": (
        "", "model", "remote.protocol", "remote.copy", "bootstrap", "plan", "checks", "core",
        "transport", "transfer", "output", "jobs", "runner", "api",
    ),
}  # fmt: skip

#: most entries in a folder of the house, and in the house itself; most modules in all
MOST_ENTRIES, MOST_ROOMS, MOST_MODULES = 12, 14, 332

#: room -> most lines, those of its comments and docstrings included. A commit that needs more takes
#: them from another room here, or says in one sentence beside the number why the whole grows
MOST_LINES = {
    # the whole grew by 1,700 for endings as machines bring them, lines that people type to other
    # tools, and what NCCL and GPUs say. One reader in remote takes what arrives of put and of get.
    # The whole grows by what a team asks of a tool that it uses for months: containers, the history
    # of jobs, who uses the GPUs, hosts that fail again, profiles
    "model": 2_765, "remote": 11_385, "comm": 2_925, "plan": 5_275, "checks": 3_422,
    "bootstrap": 925, "core": 7_440, "transport": 8_815, "transfer": 2_000, "output": 7_520,
    "jobs": 1_475, "runner": 4_125, "api": 2_605, "cli": 12_124,
    "scripts": 9_155, "tests": 106_740,
}  # fmt: skip

#: the standard modules that the agent may load: each is on the path of every start
AGENT_MODULES = {
    "__future__", "_collections", "_ctypes", "_sha2", "_sha256", "_signal", "_socket", "_struct",
    "errno", "fcntl", "os", "select", "sys", "termios", "time", "zlib",
}  # fmt: skip

#: what a part loads that few runs need, and only in a process of its own
PART_MODULES = {
    "remote.probe.usage": {"ctypes"},
    "remote.pmi.libpmix": {"ctypes"},
    "remote.pmi.pmix_upcalls": {"ctypes"},
    "remote.pmi.pmix_server": {"_thread", "ctypes", "re"},
    "remote.tree_relay": {"ctypes"},
}

#: the same for a host's end of a copy; those that cost most are loaded only where they must be
COPY_MODULES = {
    "__future__", "_hashlib", "_signal", "errno", "fcntl", "fnmatch", "grp", "hashlib", "os", "pwd",
    "shutil", "signal", "subprocess", "threading", "time",
}  # fmt: skip

#: what no part of the launcher may load or call: heavy, or able to run what a host sends
HEAVY = {"torch", "mpi4py", "numpy"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "yaml", "dill"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name below ``dispatcher``, file) of every module of the house."""
    for path in sorted(HOUSE.rglob("*.py")):
        parts = path.relative_to(HOUSE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def tree_of(name: str) -> ast.Module:
    return trees.tree_of(MODULES[name])


@cache
def names_imported(name: str, *, types: bool = False) -> frozenset[str]:
    """Absolute dotted names that the module imports, wherever in it; types: for them as well."""
    package = ["dispatcher", *filter(None, name.split("."))]
    if MODULES[name].name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in trees.statements(tree_of(name), types=types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                inner = full.removeprefix("dispatcher.")
                found.add(full if full != inner and inner in MODULES else source)
    return frozenset(found)


def offenders(rule: Callable[[str], set[str]], *rooms: str) -> dict[str, set[str]]:
    """Modules (of ``rooms``, or all) of which the rule finds anything -> what it finds."""
    names = [name for name in MODULES if not rooms or name.split(".")[0] in rooms]
    assert names
    return {name: found for name in names if (found := rule(name))}


def house_names(name: str, *, types: bool = False) -> set[str]:
    """Names below ``dispatcher`` that the module imports ("" is ``dispatcher`` itself)."""
    return {
        full.removeprefix("dispatcher").removeprefix(".")
        for full in names_imported(name, types=types)
        if full.split(".")[0] == "dispatcher"
    }


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")


def test_the_reading_of_imports_sees_them() -> None:
    assert house_names("remote.agent.agent_loop") >= {
        "remote.host.host_facts",
        "remote.agent.node",
        "remote.protocol.frames",
    }
    assert "core.events.run_events" in house_names("runner.run.reports")
    assert "os" in names_imported("remote.agent.main")


def test_a_room_imports_only_what_it_may() -> None:
    def strangers(name: str) -> set[str]:
        room = name.split(".")[0]
        allowed = (room, *MAY[room])
        return {
            other
            for other in house_names(name, types=True)
            if other not in allowed and not any(within(other, one) for one in allowed if one)
        }

    assert offenders(strangers, *MAY) == {}


def test_rooms_stand_above_what_they_may_import() -> None:
    rooms = list(MAY)
    for room, others in MAY.items():
        assert all(
            rooms.index(other.split(".")[0]) < rooms.index(room) for other in others if other
        )


def test_every_folder_is_a_room_with_a_rule() -> None:
    folders = {path.parent for path in HOUSE.rglob("*.py")} - {HOUSE}
    assert {path.relative_to(HOUSE).parts[0] for path in folders} == set(MAY)
    assert len(MAY) <= MOST_ROOMS
    for folder in folders:
        entries = [e for e in folder.iterdir() if e.name != "__pycache__"]
        assert len(entries) <= MOST_ENTRIES, f"{folder.relative_to(ROOT)}: {len(entries)} entries"
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{folder.relative_to(ROOT)}: says no rule"
    assert len(MODULES) <= MOST_MODULES


def lines_of(room: str) -> int:
    """Lines of a room's Python; of ``scripts`` also those of programs and tables, less the lock."""
    root = HOUSE / room if room in MAY else ROOT / room
    ends = (".py", "", ".toml", ".txt") if room == "scripts" else (".py",)
    files = (path for path in root.rglob("*") if path.suffix in ends and path.name != "lock.txt")
    return sum(path.read_bytes().count(b"\n") for path in files if path.is_file())


def test_no_room_is_above_its_budget() -> None:
    assert {*MAY, "scripts", "tests"} == MOST_LINES.keys()
    found = {room: lines_of(room) for room in MOST_LINES}
    assert all(found.values())
    assert {room: n for room, n in found.items() if n > MOST_LINES[room]} == {}


def test_no_files_import_each_other() -> None:
    assert not list(circles())


def circles() -> Iterator[set[str]]:
    """Modules that reach each other by imports, also in functions or for types only (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in sorted(house_names(name, types=True) - {name}):
            if other not in number:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            circle = set(path[path.index(name) :])
            del path[path.index(name) :]
            if len(circle) > 1:
                found.append(circle)

    for name in MODULES:
        if name not in number:
            visit(name)
    yield from found


def travels(name: str) -> bool:
    """Whether the module runs on hosts in a process of ours, with nothing else of the house."""
    return within(name, "remote") and not within(name, "remote.rank")


def test_what_travels_imports_only_itself_and_a_few_standard_modules() -> None:
    def others(name: str) -> set[str]:
        if not travels(name):
            return set()
        outside = {one for one in names_imported(name) if not one.startswith("dispatcher.remote")}
        is_copy = within(name, "remote.copy") or name == "remote.protocol.copy_frames"
        return outside - (
            COPY_MODULES if is_copy else AGENT_MODULES | PART_MODULES.get(name, set())
        )

    assert offenders(others, "remote") == {}


@cases(
    ("name", "beside"),
    [
        ("remote.tree_relay", {"dispatcher.remote.host.poll", "dispatcher.remote.protocol.mux"}),
        ("remote.protocol.mux", set()),
    ],
)
def test_what_travels_for_a_tree_stands_alone(name: str, beside: set[str]) -> None:
    imported = names_imported(name)
    assert {other for other in imported if other.startswith("dispatcher")} == beside


def test_nobody_imports_the_command_line() -> None:
    def of_the_command_line(name: str) -> set[str]:
        if within(name, "cli") or name == "__main__":
            return set()
        return {other for other in house_names(name) if within(other, "cli")}

    assert offenders(of_the_command_line) == {}


def tops(name: str) -> set[str]:
    """The packages that the module imports from."""
    return {full.split(".")[0] for full in names_imported(name)}


def test_nothing_heavy_is_imported() -> None:
    assert offenders(lambda name: set() if within(name, "comm") else tops(name) & HEAVY) == {}


def unsafe_calls(path: Path) -> set[str]:
    # most modules are not read as trees for it: that takes a second
    if not any(re.search(rf"(?<![.\w]){word}\s*\(", path.read_text()) for word in UNSAFE_CALLS):
        return set()
    calls = (node.func for node in ast.walk(trees.tree_of(path)) if isinstance(node, ast.Call))
    return {call.id for call in calls if isinstance(call, ast.Name)} & UNSAFE_CALLS


def test_nothing_runs_what_was_received() -> None:
    def unsafe(name: str) -> set[str]:
        return tops(name) & UNSAFE_MODULES | unsafe_calls(MODULES[name])

    assert offenders(unsafe) == {}


@cases(
    ("text", "seen"),
    [
        ("eval(text)", {"eval"}),
        ("def f():\n    exec (text)", {"exec"}),
        ("one.eval(); re.compile(text)", set()),
    ],
)
def test_a_call_that_runs_a_text_is_seen(tmp_path: Path, text: str, seen: set[str]) -> None:
    (tmp_path / "module.py").write_text(text)
    assert unsafe_calls(tmp_path / "module.py") == seen


def test_the_core_has_no_clock_and_no_threads() -> None:
    edges = {"threading", "socket", "subprocess", "select", "time", "asyncio", "queue"}
    assert offenders(lambda name: tops(name) & edges, "core", "plan", "checks") == {}


@cases(
    ("text", "seen"),
    [
        ("if TYPE_CHECKING:\n    import one\nelse:\n    import two", {"two"}),
        ("if typing.TYPE_CHECKING:\n    import one", set()),
        ("def f():\n    if x:\n        import one", {"one"}),
    ],
)
def test_the_reading_passes_by_what_only_types_need(text: str, seen: set[str]) -> None:
    def imported(types: bool) -> set[str]:
        found = trees.statements(ast.parse(text), types=types)
        return {
            alias.name for node in found if isinstance(node, ast.Import) for alias in node.names
        }

    assert imported(types=False) == seen
    assert imported(types=True) >= {"one"}
