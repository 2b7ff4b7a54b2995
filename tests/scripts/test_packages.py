"""What is pinned, listed and looked up of the packages that dispatch is made with."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cases import cases
from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "scripts" / "lock.txt").read_text()
BLOCKS = [block for block in LOCK.split("\n\n") if "==" in block]


def load() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("packages", str(ROOT / "scripts" / "packages"))
    spec = importlib.util.spec_from_loader("packages", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


packages = load()


def locked(*words: str) -> dict[str, str]:
    """name -> version of what scripts/setup installs for ``words`` on this Python."""
    found = {}
    for block in BLOCKS:
        first, entry = block.strip().split("\n", 1)
        pin, _, marker = entry.partition("\n")[0].removesuffix(" \\").partition(";")
        if set(first.split()) & set(words) and (not marker or Marker(marker.strip()).evaluate()):
            name, version = pin.strip().split("==")
            found[name.lower()] = version
    return found


def test_every_entry_has_hashes_and_says_for_whom_it_is() -> None:
    words = {*packages.FOR, "cpu", "cuda"}
    for block in BLOCKS:
        first, pin, *hashes = block.strip().split("\n")
        assert set(first.removeprefix("# ").split()) <= words, first
        assert re.match(r"[a-zA-Z0-9._-]+==[\w.+]+( ; .*)? \\$", pin), pin
        assert hashes, pin
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}( \\)?$", one) for one in hashes), pin


def test_it_keeps_to_what_was_chosen() -> None:
    for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines():
        chosen = line.partition("#")[0].partition(";")[0].strip().lower()
        if chosen:
            assert f"\n{chosen} " in LOCK.lower(), chosen


@pytest.mark.parametrize("extras", [("torch",), ("torch", "dev")])
def test_it_has_all_that_is_asked_for_and_what_that_asks_for(extras: tuple[str, ...]) -> None:
    words = ("run", "cpu", "dev")[: 1 + len(extras)]
    there = locked(*words)
    waiting = [("dispatch-launcher", extras)]
    seen = set(waiting)
    while waiting:
        name, wanted = waiting.pop()
        for line in distribution(name).requires or []:
            one = Requirement(line)
            called = re.sub(r"[-_.]+", "-", one.name).lower()
            asked = [{"extra": extra} for extra in ("", *wanted)]
            if one.marker is not None and not any(map(one.marker.evaluate, asked)):
                continue
            if called == "dispatch-launcher":
                continue
            assert called in there, f"{name} asks for {line}"
            assert one.specifier.contains(there[called].partition("+")[0], prereleases=True), line
            new = (called, tuple(sorted(one.extras)))
            if new not in seen:
                seen.add(new)
                waiting.append(new)


def test_the_list_of_what_it_consists_of() -> None:
    told: dict[str, Any] = packages.sbom()
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    assert told["metadata"]["component"]["name"] == "dispatch-launcher"
    names = {one["name"].lower() for one in told["components"]}
    assert {
        "paramiko",
        "cryptography",
        "bcrypt",
        "pynacl",
        "click",
        "rich",
        "clustershell",
    } <= names
    assert not names & {"pytest", "torch", "dispatch-launcher"}
    refs = {one["bom-ref"] for one in (told["metadata"]["component"], *told["components"])}
    assert refs == {one["ref"] for one in told["dependencies"]}
    assert all(set(one["dependsOn"]) <= refs for one in told["dependencies"])
    assert told == packages.sbom()


@cases(
    ("found", "code", "said"),
    [
        ([{"name": "a", "skip_reason": "no"}], 3, "this package index tells no advisories"),
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 packages judged, 0 with"),
        (
            [
                {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]},
                {"name": "b", "skip_reason": "no"},
            ],
            1,
            "a 1: CVE-1: mended in 2\naudit: not judged, since the index does not know them: b\n",
        ),
    ],
)
def test_what_an_audit_says(
    capsys: pytest.CaptureFixture[str], found: list[dict[str, Any]], code: int, said: str
) -> None:
    assert packages.judged(found) == code
    assert said in capsys.readouterr().out
