"""A host's end of a copy as a process, spoken to by its wire alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from dispatcher.bootstrap import payload, shell
from dispatcher.remote.protocol.copy_frames import DATA, columns, frames, message, rows, value_of
from dispatcher.transfer.put_files import Sources, needs_of


def spoken(command: str, *said: bytes, tail: tuple[str, ...] = ()) -> tuple[int, list[Any]]:
    """(exit code, [(kind, body)]) of the far end that is told ``said``."""
    done = subprocess.run(
        [*payload.copy_command(command), *tail], input=payload.copy_payload() + b"".join(said),
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(payload.PYTHON), done
    heard = frames(1 << 20).feed(done.stdout[len(payload.PYTHON) :])
    return done.returncode, [(kind, body) for _, kind, body in heard]


def get(paths: list[list[str]], *said: bytes) -> tuple[int, list[Any]]:
    order = message({"do": "get", "paths": paths, "checksum": False})
    return spoken(shell.GET, order, *said, tail=tuple(path for path, _ in paths))


def test_what_is_wanted_is_listed_and_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")
    all_of_it = message({"need": "0", "start": "", "seen": ""})
    code, heard = get([[str(tmp_path / "a"), "0/a"]], all_of_it)
    assert code == 0
    (entry,) = rows(value_of(*heard[0])["list"])
    assert (entry.path, entry.size) == ("0/a", 5)
    assert b"".join(body for kind, body in heard if kind == DATA) == b"hello"


def test_what_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    code, ((kind, body),) = get([[absent, "0/absent"]])
    assert code != 0
    assert value_of(kind, body)["error"] == f"{absent}: no such file or directory"


def test_a_home_of_nobody_is_told(tmp_path: Path) -> None:
    code, ((kind, body),) = get([["~nobody-of-that-name/x", "0/x"]])
    assert code != 0
    assert "nobody-of-that-name" in value_of(kind, body)["error"]


def test_an_answer_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")
    code, heard = get([[str(tmp_path / "a"), "0/a"]], message({"need": "0"}))
    assert code != 0
    assert value_of(*heard[-1])["error"] == "a broken answer"


def test_what_is_sent_is_put_in_its_place(tmp_path: Path) -> None:
    source, dest = tmp_path / "a", tmp_path / "dest"
    source.write_text("hello")
    dest.mkdir()
    group = (f"{dest}/", (str(source),))
    sources = Sources([group], checksum=False)
    order = {
        "do": "put", "list": columns(sources.entries), "groups": [[f"{dest}/", ["a"]]],
        "checksum": False, "resume": True,
    }  # fmt: skip
    needed, starts = needs_of({"need": "0", "start": "", "seen": ""}, sources.entries)
    pieces = b"".join(sources.pieces(needed, starts))
    code, heard = spoken(shell.PUT, message(order), pieces, tail=(f"{dest}/", "a"))
    sources.close()
    assert code == 0, heard
    assert value_of(*heard[-1])["sent"] == 1
    assert (dest / "a").read_text() == "hello"
    assert os.listdir(dest) == ["a"]
