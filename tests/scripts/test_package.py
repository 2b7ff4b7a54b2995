"""scripts/build: the distribution has every file, and it runs where nothing else is."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import rig  # noqa: F401 - puts scripts/ on the path
from packages import package
from packages.package import ROOT, Wrong
from rig import Cluster

import dispatcher


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made without the package index."""
    made, _ = package.build(tmp_path_factory.mktemp("dist"), offline=True)
    return made


@pytest.mark.timeout(400)  # it compiles, packs and installs
def test_one_command_builds_it_and_tries_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, package.__file__, "--offline", "--out", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    name = f"dispatch_launcher-{dispatcher.__version__}"
    archive, made, runs = done.stdout.splitlines()
    assert [archive, made] == [f"{tmp_path}/{name}.tar.gz", f"{tmp_path}/{name}-py3-none-any.whl"]
    assert runs.startswith("runs on Python 3.")


def test_a_wheel_that_lacks_a_file_or_has_another(wheel: Path, tmp_path: Path) -> None:
    package.check_files(wheel)
    for lacks, has in [
        ("dispatcher/py.typed", ""),
        ("dispatcher/remote/agent/main.py", ""),
        ("", "tests/test_tools.py"),
    ]:
        other = tmp_path / wheel.name
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
            for name in {*old.namelist(), *filter(None, [has])} - {lacks}:
                new.writestr(name, "")
        with pytest.raises(Wrong, match=f": {lacks or has}$"):
            package.check_files(other)


def test_the_oldest_that_is_allowed_of_each(wheel: Path) -> None:
    found = dict(pin.split("==") for pin in package.lowest(wheel))
    assert {"paramiko", "rich", "click", "ClusterShell", "tomli"} == found.keys()
    assert found["paramiko"] == "5.0"


def test_installed_alone_it_runs_on_hosts(
    cluster: Cluster, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = package.environment(Path(cluster.shared) / "alone", wheel, offline=True)
    for name in ("PYTHONPATH", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    program = Path(cluster.shared) / "where.py"
    program.write_text(
        "import os, dispatcher, dispatcher.comm\n"
        "print('rank', os.environ['RANK'], 'has', dispatcher.__file__)\n"
    )
    done = cluster.run(
        [str(programs / "dispatch"), "-H", cluster.hostfile(slots=1), str(program)],
        env={"VIRTUAL_ENV": str(programs.parent)}, cwd=cluster.shared,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = programs.parent.glob("lib/python3*/site-packages/dispatcher/__init__.py")
    assert sorted(done.stdout.splitlines()) == [f"[{n}] rank {n} has {path}" for n in range(4)]


def test_ranks_need_nothing_but_ours_to_import_it() -> None:
    """What a training environment gets by ``pip install --no-deps``."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import dispatcher.comm"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_told_in_one_place_and_its_changes_in_another() -> None:
    heads = re.findall(r"^## (.+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d|Unreleased", head) for head in heads)
    newest = next(head for head in heads if head != "Unreleased")
    assert newest.split(" ")[0] == dispatcher.__version__
    assert not re.search(r"^version\s*=\s*\"", (ROOT / "pyproject.toml").read_text(), re.M)


def test_the_page_tells_the_bounds_that_hold() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    told = re.findall(r"^\| `([\w-]+)` \| `(.+?)` \|", page, re.M)
    project = (ROOT / "pyproject.toml").read_text()
    (text,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.M | re.S)
    assert told == re.findall(r'^  "(\w+)([<>=\d.,]+)', text, re.M)


def test_nobody_is_sent_to_the_other_dispatcher() -> None:
    """The index has one of that name, which is not ours."""
    files = subprocess.run(
        ["git", "grep", "-nE", r"(pip|pipx|uv|uv tool) (install|run) [^`]*\bdispatcher\b[^.]"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if files.returncode > 1:
        pytest.skip("needs git and a checkout")
    assert files.stdout == ""
