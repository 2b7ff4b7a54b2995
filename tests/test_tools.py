"""The same tools at the same versions wherever a change is checked: by hand, on commit, in CI."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = (ROOT / "scripts/test").read_text()
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text()
PINNED = re.findall(r"^([\w.-]+)==", (ROOT / "scripts/constraints.txt").read_text(), re.M)


def test_hooks_are_the_tools_of_the_environment() -> None:
    assert re.findall(r"repo: (\S+)", HOOKS) == ["local"]
    entries = re.findall(r"entry: (.+)", HOOKS)
    assert re.findall(r"language: (\S+)", HOOKS) == ["system"] * len(entries)
    run = {line for line in TEST.splitlines() if line.split(" ")[0] in PINNED}
    assert run == {"ruff check", "ruff format --check", "codespell", "mypy"}
    plain = {entry.removeprefix(".venv/bin/").removesuffix(" --force-exclude") for entry in entries}
    assert plain == {line.removesuffix(" --check") for line in run}


def test_every_tool_has_one_version() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    groups = re.findall(r"^(?:dependencies|torch|dev) = \[(.*?)\]", text, re.M | re.S)
    wanted = re.findall(r'"([\w.-]+)(?:>=[\d.]+)?"', " ".join(groups))
    assert len(wanted) > 12
    assert set(wanted) <= set(PINNED)


def test_ci_does_what_the_readme_tells_a_newcomer_to_do() -> None:
    (line,) = re.findall(r"^exec (.+)", (ROOT / ".ci/run").read_text(), re.M)
    assert f"\n    {line}\n" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("words", [[], ["--install"]])
def test_nothing_is_installed_unasked(tmp_path: Path, words: list[str]) -> None:
    """On a machine with neither sshd nor ip, and an apt-get that only says what it was told."""
    for folder in ("scripts", "bin", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    told = tmp_path / "told"
    programs = {
        "scripts/test": TEST.replace("PATH=$PATH:/usr/sbin:/sbin", ""),
        "scripts/setup": "#!/bin/sh\n",
        "bin/apt-get": f'#!/bin/sh\necho "$*" >> {told}\n',
        "bin/id": "#!/bin/sh\necho 0\n",
        "bin/dirname": "#!/bin/sh\necho scripts\n",
        **dict.fromkeys(
            [f".venv/bin/{tool}" for tool in ("ruff", "codespell", "mypy")], "#!/bin/sh\n"
        ),
        ".venv/bin/pytest": '#!/bin/sh\necho "pytest $*"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "sh"):
        os.symlink(f"/bin/{name}", tmp_path / "bin" / name)
    done = subprocess.run(
        ["/bin/bash", "scripts/test", *words, "-k", "wire"], cwd=tmp_path, text=True,
        env={"PATH": str(tmp_path / "bin")}, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "pytest -q -rs -k wire\n"), done.stderr
    assert "openssh-server openssh-client iproute2" in done.stderr
    assert told.exists() == bool(words)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:dispatcher|tests|scripts|docs)/[\w./-]*)", text)
    assert named
    # the first word of a path is not that of a pattern, as in tests/x/y/
    assert [name for name in named if "/x/" not in name and not (ROOT / name).exists()] == []
