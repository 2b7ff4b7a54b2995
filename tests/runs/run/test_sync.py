"""``--sync`` as a user calls it; the other folder is one of this machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..conftest import Desk, words_of


@pytest.fixture
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("there") / "job"


def test_code_is_there_before_the_ranks_start(desk: Desk, there: Path) -> None:
    (desk.folder / ".gitignore").write_text("*.log\n")
    (desk.folder / "a.log").write_text("no")
    (desk.folder / "lib").mkdir()
    (desk.folder / "lib" / "text").write_text("old")
    (desk.folder / "train.py").write_text("import os; print(os.getcwd(), open('lib/text').read())")
    words = ("-H", "localhost:2", f"--sync={there}", "--python", "python3", "train.py")
    first = desk.run(*words)
    assert words_of(first.stdout) == [f"[{rank}] {there} old" for rank in (0, 1)]
    assert first.stderr.startswith("note: --sync: 3 of 3 files (")
    assert sorted(os.listdir(there)) == [".gitignore", "lib", "train.py"]
    (there / "own").write_text("kept")

    with (there / "lib" / "text").open() as running:  # a job that has the old file open
        (desk.folder / "lib" / "text").write_text("newer")
        second = desk.run(*words)
        assert words_of(second.stdout) == [f"[{rank}] {there} newer" for rank in (0, 1)]
        assert second.stderr.startswith("note: --sync: 1 of 3 files (5 B) sent to localhost, ")
        assert running.read() == "old"
    assert sorted(os.listdir(there)) == [".gitignore", "lib", "own", "train.py"]


def test_no_rank_starts_where_the_code_is_not_taken(desk: Desk, there: Path) -> None:
    (desk.folder / "x").write_text("")
    (there / "x").mkdir(parents=True)
    done = desk.run("-H", "localhost", f"--sync={there}", "--no-python", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert f"localhost  check failed  --sync: {there}/x: is a directory" in done.stderr
