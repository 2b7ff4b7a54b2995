"""Files that the user names: read and written whole, and what is wrong with them said."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from cases import cases

from dispatcher.cli import named_files
from dispatcher.model.errors import UsageError


@cases("size", [0, 1, 1 << 20])
def test_read(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"\xff" * size)
    assert named_files.read("--opt f", str(tmp_path / "f"), 1 << 20) == b"\xff" * size


@cases(
    ("path", "said"),
    [
        ("large", "--opt: larger than 2 MiB"),
        ("none", "--opt: no such file or directory"),
        (".", "--opt: is a directory"),
        ("a\0b", "--opt: embedded null byte"),
    ],
)
def test_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").write_bytes(b"x" * ((2 << 20) + 1))
    with pytest.raises(UsageError) as caught:
        named_files.read("--opt", path, 2 << 20)
    assert caught.value.message == said


def test_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named_files.write("--opt", "f", "t\u00e4xt\n")
    named_files.write("--opt", "f", "t\u00e4xt\n")
    assert Path("f").read_bytes() == "t\u00e4xt\n".encode()
    for path, said in (("no/f", "no such file or directory"), (".", "is a directory")):
        for refused in (partial(named_files.write, text="x"), named_files.expect):
            with pytest.raises(UsageError) as caught:
                refused("--opt", path)
            assert caught.value.message == f"--opt: {said}"


def test_what_can_be_written_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").write_text("old")
    for path in ("f", "new"):
        named_files.expect("--opt", path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    monkeypatch.setattr("os.access", lambda path, mode: path == "f")
    named_files.expect("--opt", "f")
    with pytest.raises(UsageError, match="--opt: permission denied"):
        named_files.expect("--opt", "new")
