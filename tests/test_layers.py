"""Who may import whom: the walls of the house, read from the source with ``ast``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "dispatcher"

#: what everybody in the launcher may use
COMMON = ("errors", "exitcodes", "values")

#: part of the house -> the parts (or single modules) it may import besides itself
MAY = {
    "errors": ("exitcodes",),
    "exitcodes": (),
    "values": (),
    "agent": (),
    "plan": COMMON,
    "transport": ("errors", "values"),
    "core": (*COMMON, "plan", "transport.base"),
    "sinks": (
        *COMMON,
        "core.events",
        "core.policy",
        "core.frames",
        "core.pmi",
        "core.pmix",
        "core.last_look",
        "core.samples",
        "core.stacks",
        "core.visits",
        "core.networks",
        "checks.nccl_run",
        "plan",
        "agent.wire",
        "transport.base",
    ),
    "checks": (*COMMON, "plan.hostset", "agent.pack"),
    "noise": ("agent.wire",),
    "bootstrap": (*COMMON, "agent", "noise", "transport.base"),
    "lifeline": ("agent.wire",),
    "foreign": ("errors",),
    "timeline": ("errors",),
    "copy": (
        *COMMON,
        "agent.pack",
        "agent.wire",
        "bootstrap",
        "noise",
        "lifeline",
        "plan.host",
        "transport.base",
    ),
    "runner": (
        *COMMON,
        "plan",
        "core",
        "agent",
        "transport.base",
        "bootstrap",
        "noise",
        "lifeline",
        "sinks.base",
        "checks",
    ),
    "api": (
        *COMMON,
        "agent.wire",
        "bootstrap",
        "noise",
        "checks.pairs",
        "core",
        "jobs.tags",
        "paths",
        "plan",
        "ranks",
        "runner",
        "sinks",
        "transport",
    ),
    "kept": (*COMMON, "lifeline", "transport", "jobs.record"),
    "tree": (*COMMON, "transport", "bootstrap", "agent.wire", "plan.topology", "plan.hostset"),
    "jobs": (*COMMON, "core.events", "sinks.base"),
    "comm": (),
}

#: the standard modules that the agent may load: each is on the path of every start
AGENT_MODULES = {
    "__future__", "_collections", "_ctypes", "_sha2", "_sha256", "_signal", "_socket", "_struct",
    "errno", "fcntl", "os", "select", "sys", "termios", "time", "zlib",
}  # fmt: skip

#: what a part loads that few runs need, and only in a process of its own
PART_MODULES = {
    "agent.inside": {"ctypes"},
    "agent.nvidia": {"ctypes"},
    "agent.libpmix": {"ctypes"},
    "agent.pmix": {"_thread", "ctypes", "re"},
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
    assert house_names("agent.loop") >= {"agent.facts", "agent.node", "agent.wire", "agent.meeting"}
    assert "core.events" in house_names("runner.reports")
    assert "os" in names_imported("agent.main")


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] in MAY])
def test_a_part_imports_only_what_it_may(name: str) -> None:
    part = name.split(".")[0]
    allowed = (part, *MAY[part])
    strangers = {
        other
        for other in house_names(name) - {""}
        if not any(within(other, permitted) for permitted in allowed)
    }
    assert not strangers


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "agent")])
def test_the_agent_imports_only_itself_and_a_few_standard_modules(name: str) -> None:
    outside = {full for full in names_imported(name) if not full.startswith("dispatcher.agent")}
    assert outside <= AGENT_MODULES | PART_MODULES.get(name, set())


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "copy.there")])
def test_what_travels_for_a_copy_needs_little(name: str) -> None:
    outside = {
        full for full in names_imported(name) if not full.startswith("dispatcher.copy.there")
    }
    assert outside <= {"dispatcher.agent.pack", *COPY_MODULES}


@pytest.mark.parametrize(
    ("name", "beside"), [("tree.there", {"dispatcher.tree.started"}), ("tree.started", set())]
)
def test_what_travels_for_a_tree_stands_alone(name: str, beside: set[str]) -> None:
    imported = names_imported(name)
    assert imported <= AGENT_MODULES | {"ctypes"} | beside
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
    [n for n in MODULES if n.split(".")[0] in ("core", "plan", "checks", "foreign", "timeline")],
)
def test_the_core_has_no_clock_and_no_threads(name: str) -> None:
    edges = {"threading", "socket", "subprocess", "select", "time", "asyncio", "queue"}
    assert not {full.split(".")[0] for full in names_imported(name)} & edges
