"""Files that arguments name, and modules that a script imports, as this machine finds them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import cases

from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.compared import imported
from dispatcher.plan.job.job_plan import JobPlan, plan_job, with_compared
from dispatcher.plan.job.parts import Program
from dispatcher.plan.job.request import Request


def planned(folder: Path, *argv: str, kind: Any = "command", n_hosts: int = 2) -> JobPlan:
    hosts = Hostlist(tuple(Host(f"n{at}", slots=1) for at in range(n_hosts)))
    return plan_job(Request(hosts, Program(kind, argv), os.fspath(folder)), "run-1")


@cases(
    ("text", "modules"),
    [
        ("import os, torch.nn as nn, yaml", ("torch", "yaml")),
        ("from wandb.sdk import x\nfrom . import y\nfrom .z import w\n", ("wandb",)),
        ("try:\n    import apex\nexcept ImportError:\n    apex = None\n", ()),
        ("try:\n    import apex\nexcept (ModuleNotFoundError, OSError):\n    pass\n", ()),
        ("try:\n    import apex\nexcept:\n    pass\n", ()),
        ("try:\n    import apex\nexcept KeyError:\n    pass\n", ("apex",)),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import apex\n", ()),
        ("import sys\nif sys.platform == 'darwin':\n    import apex\n", ()),
        ("if __name__ == '__main__':\n    import apex\n", ("apex",)),
        ("with a():\n    import apex\ndef f():\n    import late\n", ("apex",)),
        ("'\\d'\nimport apex\n", ("apex",)),
        ("no python", ()),
        ("\0", ()),
    ],
)
def test_imports(tmp_path: Path, text: str, modules: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(text)
    assert imported(os.fspath(tmp_path / "train.py")) == modules
    plan = planned(tmp_path, "train.py", kind="script")
    assert with_compared(plan).modules == modules
    assert with_compared(replace(plan, allow_different_code=True)) == replace(
        plan, allow_different_code=True
    )


def test_no_script_and_a_module(tmp_path: Path) -> None:
    assert imported(os.fspath(tmp_path)) == ()
    assert with_compared(planned(tmp_path, "pkg.main", kind="module")).modules == ("pkg",)


@cases(
    ("argv", "names"),
    [
        (("prog", "--config=c.yaml", "--data", "data/", "--lr", "3"), ["c.yaml", "data/"]),
        (("prog", "model.path=c.yaml", "out", "-c", "./c.yaml"), ["c.yaml", "./c.yaml"]),
        (("./run.sh", "c.yaml"), ["./run.sh", "c.yaml"]),
        (("run.sh",), []),  # this is found in PATH
        (("prog", ".", "..", "/", "/tmp", "/dev/null", "", "-", "--", "a\udcff"), []),
        (("prog", "{here}/c.yaml"), ["{here}/c.yaml"]),
    ],
)
def test_named_files(tmp_path: Path, argv: tuple[str, ...], names: list[str]) -> None:
    for name in ("c.yaml", "run.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "data").mkdir()
    words = [word.replace("{here}", os.fspath(tmp_path)) for word in argv]
    found = with_compared(planned(tmp_path, *words)).named
    assert [one.name.replace(os.fspath(tmp_path), "{here}") for one in found] == names
    assert [one.name for one in found if one.folder] == [name for name in names if "data" in name]
    alone = planned(tmp_path, *words, n_hosts=1)
    assert with_compared(alone) is alone
    again = replace(alone, restarts=replace(alone.restarts, most=1))
    own = [one.name for one in with_compared(again).named]  # its program alone may change
    assert own == [name for name in names if name == argv[0]]


def test_files_that_were_sent(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a.yaml", "data/b", "data/c"):
        (tmp_path / name).write_text("")
    words = ["prog", "a.yaml", "data", os.fspath(tmp_path / "a.yaml")]
    plan = replace(planned(tmp_path, *words), cwd="/on/hosts")
    found = with_compared(plan, os.fspath(tmp_path), {"a.yaml", "data/b"})
    assert [(one.name, one.folder, one.sent) for one in found.named] == [
        ("a.yaml", False, True), ("data", True, False), ("data/b", False, True),
        (words[3], False, True),
    ]  # fmt: skip
