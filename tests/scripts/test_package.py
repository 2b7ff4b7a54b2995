"""scripts/package.py: what is in the distribution, and that it runs where nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import package
import pytest
from package import ROOT, Wrong
from rig import Cluster

import dispatcher
from dispatcher.bootstrap import payload

ABOUT = "dispatch_launcher-1.0.dist-info"
DATA = "dispatch_launcher-1.0.data/data"
BASH = "share/bash-completion/completions/dispatch"


def whole() -> set[str]:
    """What a wheel has."""
    about = "METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"
    shared = {f"{DATA}/{name}" for name in package.shared()}
    return package.product_files(ROOT) | shared | {f"{ABOUT}/{name}" for name in about}


def packed(folder: Path, names: set[str]) -> tuple[Path, Path]:
    """A wheel of these files, and an archive that is whole."""
    wheel, archive = folder / "a.whl", folder / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as file:
        for name in names:
            file.writestr(name, "")
    with tarfile.open(archive, "w:gz") as tar:
        for name in (*package.product_files(ROOT), *package.SOURCES[1:]):
            tar.add(ROOT / name, f"a-1.0/{name}")
        for name in package.shared():
            tar.add(ROOT / "LICENSE", f"a-1.0/{name}")
        tar.add(ROOT / "LICENSE", "a-1.0/PKG-INFO")
    return wheel, archive


@pytest.mark.parametrize(
    ("lacks", "has", "said"),
    [
        ("", "", ""),
        ("dispatcher/py.typed", "", "missing: dispatcher/py.typed"),
        ("dispatcher/remote/agent/main.py", "", "missing: dispatcher/remote/agent/main.py"),
        (f"{ABOUT}/licenses/LICENSE", "", "has no licenses/LICENSE"),
        (f"{ABOUT}/entry_points.txt", "", "has no entry_points.txt"),
        (
            f"{DATA}/share/bash-completion/completions/dispatch",
            "",
            "missing: share/bash-completion/completions/dispatch",
        ),
        ("", "tests/test_tools.py", "too many: tests/test_tools.py"),
        ("", "dispatcher/new.py", "too many: dispatcher/new.py"),
    ],
)
def test_a_wheel_has_what_the_checkout_has(tmp_path: Path, lacks: str, has: str, said: str) -> None:
    wheel, archive = packed(tmp_path, whole() - {lacks} | {*filter(None, [has])})
    if not said:
        package.check_files(wheel, archive)
        return
    with pytest.raises(Wrong, match=re.escape(said)):
        package.check_files(wheel, archive)


def test_an_archive_has_what_a_wheel_is_made_of(tmp_path: Path) -> None:
    wheel, archive = packed(tmp_path, whole())
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(ROOT / "LICENSE", "a-1.0/LICENSE")
    with pytest.raises(Wrong, match=r"archive: other files(?s:.*)missing: pyproject.toml"):
        package.check_files(wheel, archive)


def test_the_oldest_that_is_allowed_of_each() -> None:
    about = Message()
    for line in (
        "click>=8.1", "paramiko<5.2,>=5.0", 'tomli>=2; python_version < "3.11"',
        'torch>=2.2; extra == "torch"',
    ):  # fmt: skip
        about["Requires-Dist"] = line
    assert package.lowest(about) == ["click==8.1", "paramiko==5.0", "tomli==2"]


def test_what_is_taken_from_here_is_what_was_asked_for_and_no_more() -> None:
    about = Message()
    about["Requires-Dist"] = "ClusterShell>=1.9"
    about["Requires-Dist"] = 'pytest; extra == "dev"'
    about["Requires-Dist"] = 'tomli; python_version < "3"'
    assert sorted(package.closure(about)) == ["clustershell", "pyyaml"]


@pytest.mark.timeout(400)  # it compiles, packs and installs
def test_one_command_builds_it_and_tries_it(tmp_path: Path) -> None:
    other = tmp_path / "other" / "odd-1.0.dist-info" / "METADATA"  # no environment has this
    other.parent.mkdir(parents=True)
    other.write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\nRequires-Dist: nowhere\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "package.py"), "--offline", "--out", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "other")},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    version = dispatcher.__version__
    wheel = tmp_path / f"dispatch_launcher-{version}-py3-none-any.whl"
    assert wheel.is_file()
    assert (tmp_path / f"dispatch_launcher-{version}.tar.gz").is_file()
    about = package.metadata(wheel)
    assert (about["Name"], about["Version"]) == ("dispatch-launcher", version)
    assert about["License-Expression"] == "Apache-2.0"
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    for module in (
        *payload.MODULES,
        *payload.PARTS,
        *payload.COPY,
        *payload.COPY_TREE,
        *payload.COPY_WILD,
    ):
        assert f"dispatcher/remote/{module.replace('.', '/')}.py" in names
    last = done.stdout.splitlines()[-1]
    size = re.match(r"runs on Python [\d.]+: ([\d.]+) MB: cryptography ", last)
    assert size is not None, last
    assert float(size[1]) < 60  # a launcher stays small: nothing that computes comes with it


def test_installed_alone_it_runs_on_hosts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, _ = package.build(tmp_path, offline=True)
    alone = package.Environment(Path(cluster.shared) / "alone", wheel, offline=True)
    for name in ("PYTHONPATH", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    program = Path(cluster.shared) / "where.py"
    program.write_text(
        "import os, dispatcher, dispatcher.comm\n"
        "print('rank', os.environ['RANK'], 'has', dispatcher.__file__)\n"
    )
    done = cluster.run(
        [str(alone.dispatch), "-H", cluster.hostfile(slots=1), str(program)],
        env={"VIRTUAL_ENV": str(alone.folder)}, cwd=cluster.shared,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    path = alone.site / "dispatcher" / "__init__.py"
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
