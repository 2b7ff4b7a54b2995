"""The same tools at the same versions wherever a change is checked: by hand, on commit, in CI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiers
from cases import cases

ROOT = Path(__file__).parents[1]
TEST = (ROOT / "scripts/test").read_text()
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text()
PINNED = re.findall(r"^([\w.-]+)==", (ROOT / "scripts/packages/constraints.txt").read_text(), re.M)


def test_hooks_are_the_tools_of_the_environment() -> None:
    assert re.findall(r"repo: (\S+)", HOOKS) == ["local"]
    entries = re.findall(r"entry: (.+)", HOOKS)
    assert re.findall(r"language: (\S+)", HOOKS) == ["system"] * len(entries)
    lines = [line.strip() for line in TEST.splitlines()]
    run = {line for line in lines if line.split(" ")[0] in {*PINNED} - {"pytest"}}
    assert run == {"ruff check", "ruff format --check", "codespell", "mypy"}
    plain = {entry.removeprefix(".venv/bin/").removesuffix(" --force-exclude") for entry in entries}
    assert plain == {line.removesuffix(" --check") for line in run}


def test_every_tool_has_one_version() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    groups = re.findall(r"^(?:dependencies|torch|dev|nccl) = \[(.*?)\]", text, re.M | re.S)
    wanted = re.findall(r'"([\w.-]+)(?:>=[\d.]+)?"', " ".join(groups))
    assert len(wanted) > 12
    assert set(wanted) <= set(PINNED)


def test_ci_does_what_the_readme_tells_a_newcomer_to_do() -> None:
    (line,) = re.findall(r"^exec (.+)", (ROOT / ".ci/run").read_text(), re.M)
    assert f"\n    {line}\n" in (ROOT / "README.md").read_text()


@pytest.fixture
def bare_machine(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``scripts/test`` where next to nothing is installed; programs only say that they ran."""
    for folder in ("scripts", "bin", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    says = '#!/bin/sh\necho "${0##*/} $*"\n'
    programs = {
        "scripts/test": TEST.replace("PATH=$PATH:/usr/sbin:/sbin", ""),
        "bin/dirname": "#!/bin/sh\necho scripts\n",
        "bin/id": "#!/bin/sh\necho 0\n",
        "bin/date": "#!/bin/sh\necho 20301231\n",
        **dict.fromkeys([f"scripts/{name}" for name in ("setup", "build", "explore")], says),
        **{f".venv/bin/{tool}": says for tool in ("ruff", "codespell", "mypy", "pytest", "python")},
    }
    programs["bin/apt-get"] = f'#!/bin/sh\necho "$*" >> {tmp_path}/installed\n'
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "sh", "env"):
        os.symlink(shutil.which(name) or "", tmp_path / "bin" / name)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", "scripts/test", *words], cwd=tmp_path, text=True,
            env={"PATH": str(tmp_path / "bin"), "WORKERS": "5"}, capture_output=True, check=False,
            timeout=60,
        )  # fmt: skip

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]
LINT = ["ruff check", "ruff format --check", "codespell ", "mypy "]


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ("", ["setup --dev", *LINT, "pytest -q -rs -n 5"]),
        ("--fast", ["setup --dev", "pytest -q -rs -n 5 --fast", *LINT]),
        ("-k wire", ["setup --dev", "pytest -q -rs -k wire"]),
        ("tests/plan", ["setup --dev", "pytest -q -rs tests/plan"]),
        ("--install", ["setup --dev nccl", *LINT, "pytest -q -rs --complete -n 5"]),
        (
            "--nightly",
            [
                "setup --dev", *LINT, "build --every-python --lowest",
                "pytest -q -rs -n 5 --nightly",
                "explore ",
                "pytest -q -rs -n 2 --fast --timeout 3600",
                "python scripts/chaos --runs 200 --seed 20301231",
                "python scripts/chaos --start --runs 200 --hosts 3",
                "python scripts/chaos --soak 10",
            ],
        ),
    ],
)  # fmt: skip
def test_each_tier_runs_what_it_says(bare_machine: Run, words: str, ran: list[str]) -> None:
    done = bare_machine(*words.split())
    assert (done.returncode, done.stdout.splitlines()) == (0, ran), done.stderr


@pytest.mark.parametrize("words", [[], ["--fast"]])
@pytest.mark.parametrize("tool", ["ruff", "mypy", "pytest"])
def test_each_tool_has_its_say(
    tmp_path: Path, bare_machine: Run, words: list[str], tool: str
) -> None:
    (tmp_path / ".venv/bin" / tool).write_text("#!/bin/sh\necho $0 says no; exit 3\n")
    done = bare_machine(*words)
    assert f"/{tool} says no\n" in done.stdout
    assert done.returncode == (3 if tool == "pytest" or not words else 1)


def test_a_night_goes_on_when_something_fails(tmp_path: Path, bare_machine: Run) -> None:
    for name in (".venv/bin/pytest", "scripts/explore"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
    done = bare_machine("--nightly")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "python scripts/chaos --soak 10"
    said = done.stderr.splitlines()
    took = [line for line in said if " took " in line]
    assert [line.endswith("exit code 0") for line in took] == [
        True, False, False, False, True, True, True,
    ]  # fmt: skip
    assert said[-3] == "test: failed: pytest -q -rs -n 5 --nightly"
    assert said[-2] == "test: failed: scripts/explore"


@pytest.mark.parametrize("words", [[], ["--install"]])
def test_nothing_is_installed_unasked(tmp_path: Path, bare_machine: Run, words: list[str]) -> None:
    done = bare_machine(*words)
    assert "openssh-server openssh-client iproute2" in done.stderr
    assert (tmp_path / "installed").exists() == bool(words)


def test_every_kind_of_skip_says_why_it_may_be() -> None:
    for pattern, why in {**tiers.ALLOWED, **tiers.ALLOWED_BY_HAND}.items():
        assert re.compile(pattern)
        assert why


SKIPS = """
import pytest
def test_it():
    pytest.skip({reason!r})
"""


@cases(
    ("reason", "options", "code"),
    [
        ("needs root: hosts with more users than one", [], 0),
        ("no mood for it", [], 1),
        ("mksh is not installed", [], 0),
        ("mksh is not installed", ["--complete"], 1),
    ],
)
def test_a_skip_that_no_list_allows_fails_the_run(
    tmp_path: Path, reason: str, options: list[str], code: int
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(SKIPS.format(reason=reason))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", *options, "test_it.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert ("which no list allows" in done.stdout) == bool(code)


@cases("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:dispatcher|tests|scripts|docs)/[\w./-]*)", text)
    assert named
    # the first word of a path is not that of a pattern, as in tests/x/y/
    assert [name for name in named if "/x/" not in name and not (ROOT / name).exists()] == []


def test_an_order_of_chance_is_that_of_its_seed() -> None:
    def order(seed: str) -> list[int]:
        items: Any = list(range(50))
        tiers.shuffle(cast(Any, SimpleNamespace(getoption=lambda name: seed)), items)
        return list(items)

    assert order("7") == order("7") != order("8")
    assert sorted(order("7")) == list(range(50))
