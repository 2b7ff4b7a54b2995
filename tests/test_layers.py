"""Who may import whom: the walls of the house, read from the source with ``ast``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "dispatcher"

#: room -> the rooms (or single modules) it may import besides itself; a room stands above all
#: that it may import, so that imports run one way
MAY: dict[str, tuple[str, ...]] = {
    "model": (),
    "remote": ("comm.bandwidth",),  # which is to go
    "comm": (),
    "plan": ("model",),
    "checks": ("model", "remote.protocol"),
    "bootstrap": ("model", "remote", "transport.base", "jobs.registry"),
    "transport": ("model", "remote", "bootstrap", "jobs.registry", "plan.job.request"),
    "core": ("model", "plan", "transport.base"),
    "output": (
        "model", "remote.protocol", "plan", "checks", "core.events", "core.run.policy",
        "core.run.orphan_check", "transport.base",
    ),
    "transfer": ("model", "remote", "bootstrap", "transport.base"),
    "jobs": ("model", "remote", "core.events"),
    "runner": ("model", "remote", "bootstrap", "plan", "checks", "core", "transport.base"),
    "api": (
        "model", "remote", "bootstrap", "plan", "checks", "core", "transport", "output", "runner",
        "jobs",
    ),
}  # fmt: skip

#: the standard modules that the agent may load: each is on the path of every start
AGENT_MODULES = {
    "__future__", "_collections", "_ctypes", "_sha2", "_sha256", "_signal", "_socket", "_struct",
    "errno", "fcntl", "os", "select", "sys", "termios", "time", "zlib",
}  # fmt: skip

#: what a part loads that few runs need, and only in a process of its own
PART_MODULES = {
    "remote.pmi.inside": {"ctypes"},
    "remote.probe.nvidia": {"ctypes"},
    "remote.pmi.libpmix": {"ctypes"},
    "remote.pmi.pmix_server": {"_thread", "ctypes", "re"},
    "remote.tree_command": {"ctypes"},
    "remote.tree_relay": {"ctypes"},
}

#: the same for a host's end of a copy; those that cost most are loaded only where they must be
COPY_MODULES = {
    "__future__", "_hashlib", "errno", "fcntl", "hashlib", "os", "shutil", "signal", "subprocess",
    "threading", "time",
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


def names_imported(name: str) -> set[str]:
    """Absolute dotted names that the module imports, wherever in it; types' imports left out."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    package = ["dispatcher", *filter(None, name.split("."))]
    if MODULES[name].name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                inner = full.removeprefix("dispatcher.")
                found.add(full if full != inner and inner in MODULES else source)
    return found


def house_names(name: str) -> set[str]:
    """Names below ``dispatcher`` that the module imports ("" is ``dispatcher`` itself)."""
    return {
        full.removeprefix("dispatcher").removeprefix(".")
        for full in names_imported(name)
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


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] in MAY])
def test_a_room_imports_only_what_it_may(name: str) -> None:
    room = name.split(".")[0]
    allowed = (room, *MAY[room])
    strangers = {
        other
        for other in house_names(name) - {""}
        if not any(within(other, permitted) for permitted in allowed)
    }
    assert not strangers


def travels(name: str) -> bool:
    """Whether the module runs on hosts in a process of ours, with nothing else of the house."""
    return within(name, "remote") and not within(name, "remote.rank")


@pytest.mark.parametrize("name", [name for name in MODULES if travels(name)])
def test_what_travels_imports_only_itself_and_a_few_standard_modules(name: str) -> None:
    outside = {full for full in names_imported(name) if not full.startswith("dispatcher.remote")}
    is_copy = within(name, "remote.copy") or name == "remote.protocol.copy_frames"
    allowed = COPY_MODULES if is_copy else AGENT_MODULES | PART_MODULES.get(name, set())
    assert outside <= allowed


@pytest.mark.parametrize(
    ("name", "beside"),
    [("remote.tree_relay", {"dispatcher.remote.tree_command"}), ("remote.tree_command", set())],
)
def test_what_travels_for_a_tree_stands_alone(name: str, beside: set[str]) -> None:
    imported = names_imported(name)
    assert {other for other in imported if other.startswith("dispatcher")} == beside


@pytest.mark.parametrize("name", [n for n in MODULES if not within(n, "cli") and n != "__main__"])
def test_nobody_imports_the_command_line(name: str) -> None:
    assert not {other for other in house_names(name) if within(other, "cli")}


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, "comm")])
def test_nothing_heavy_is_imported(name: str) -> None:
    assert not {full.split(".")[0] for full in names_imported(name)} & HEAVY


@pytest.mark.parametrize("name", MODULES)
def test_nothing_runs_what_was_received(name: str) -> None:
    assert not {full.split(".")[0] for full in names_imported(name)} & UNSAFE_MODULES
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & UNSAFE_CALLS


@pytest.mark.parametrize(
    "name",
    [n for n in MODULES if n.split(".")[0] in ("core", "plan", "checks")],
)
def test_the_core_has_no_clock_and_no_threads(name: str) -> None:
    edges = {"threading", "socket", "subprocess", "select", "time", "asyncio", "queue"}
    assert not {full.split(".")[0] for full in names_imported(name)} & edges
