"""A host's end of a copy as a process, spoken to by its wire alone."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.bootstrap import payload, shell
from dispatcher.remote.copy.disk import PART
from dispatcher.remote.protocol.copy_frames import (
    CHUNK,
    DATA,
    END,
    START,
    entry_columns,
    frames,
    message,
    rows,
    value_of,
)
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.transfer.put_files import Sources, needs_of


def spoken(
    command: str,
    *said: bytes,
    tail: tuple[str, ...] = (),
    tree: bool = False,
    before: Callable[[], None] | None = None,
) -> tuple[int, list[Any]]:
    """(exit code, [(kind, body)]) of the far end that is told ``said``."""
    done = subprocess.run(
        [*payload.copy_command(command), *tail],
        input=payload.copy_payload(tree) + b"".join(said),
        capture_output=True, timeout=60, check=False, preexec_fn=before,
    )  # fmt: skip
    assert done.stderr == b""
    assert done.stdout.startswith(payload.PYTHON), done
    heard = frames(1 << 20).feed(done.stdout[len(payload.PYTHON) :])
    return done.returncode, [(kind, body) for _, kind, body in heard]


def get(paths: list[list[str]], *said: bytes, checksum: bool = False) -> tuple[int, list[Any]]:
    order = message({"do": "get", "paths": paths, "checksum": checksum})
    return spoken(shell.GET, order, *said, tail=tuple(path for path, _ in paths))


def test_what_is_wanted_is_listed_and_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")
    all_of_it = message({"need": b"\1", "start": "", "seen": ""})
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


def test_wildcards_stand_for_what_is_there(tmp_path: Path) -> None:
    for name in ("a/log", "b/log", "x.log", "[x].log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def listed(*paths: str) -> str:
        asked = [[f"{tmp_path}/{path}", f"0/{path.rpartition('/')[2]}"] for path in paths]
        _, heard = get(asked)
        told = value_of(*heard[0])
        found = told["error"] if "error" in told else told["list"]["paths"].replace("\0", " ")
        return str(found)

    assert listed("*.log", "x.log") == "0/[x].log 0/x.log "  # each once
    assert listed("[x].log", "*/log") == "0/[x].log 0/a/log 0/b/log "
    assert listed("*.txt", "x.log") == f"{tmp_path}/*.txt: no file there matches"
    assert listed("a/*", "b/*") == f"{tmp_path}/a/log and {tmp_path}/b/log: copied to the same path"


@cases(
    ("path", "kind"),
    [("l", "f"), ("[l]", "l"), ("[x]", "f")],
)
def test_a_link_is_followed_where_it_is_named(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "f").write_text("hello")
    for name in ("l", "[x]"):
        (tmp_path / name).symlink_to(tmp_path / "f")
    all_of_it = message({"need": b"\1" if kind == "f" else b"\0", "start": "", "seen": ""})
    code, heard = get([[f"{tmp_path}/{path}", f"0/{path}"]], all_of_it)
    (entry,) = rows(value_of(*heard[0])["list"])
    assert (code, entry.kind, entry.path) == (
        0,
        kind,
        f"0/{path.strip('[]') if kind == 'l' else path}",
    )
    assert b"".join(body for kind, body in heard if kind == DATA) == b"hello" * (kind == "f")


def test_a_home_of_nobody_is_told(tmp_path: Path) -> None:
    code, ((kind, body),) = get([["~nobody-of-that-name/x", "0/x"]])
    assert code != 0
    assert "nobody-of-that-name" in value_of(kind, body)["error"]


def test_an_answer_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")
    code, heard = get([[str(tmp_path / "a"), "0/a"]], message({"need": b"\1"}))
    assert code != 0
    assert value_of(*heard[-1])["error"] == "a broken answer"


def test_what_is_sent_is_put_in_its_place(tmp_path: Path) -> None:
    source, dest = tmp_path / "a", tmp_path / "dest"
    source.write_text("hello")
    dest.mkdir()
    group = (f"{dest}/", (str(source),))
    sources = Sources([group], checksum=False)
    order = {
        "do": "put", "list": entry_columns(sources.entries), "groups": [[f"{dest}/", ["a"]]],
        "checksum": False, "resume": True,
    }  # fmt: skip
    needed, starts = needs_of({"need": b"\1", "start": "", "seen": ""}, sources.entries)
    pieces = b"".join(sources.pieces(needed, starts))
    code, heard = spoken(shell.PUT, message(order), pieces, tail=(f"{dest}/", "a"))
    sources.close()
    assert code == 0, heard
    assert value_of(*heard[-1])["sent"] == 1
    assert (dest / "a").read_text() == "hello"
    assert os.listdir(dest) == ["a"]


def test_just_what_is_needed_is_given(tmp_path: Path) -> None:
    sizes = {"a": 5, "b": CHUNK + 7, "c": 2 * CHUNK, "d": 3}
    data = {name: os.urandom(size) for name, size in sizes.items()}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    known = hashlib.sha256(data["c"][:CHUNK]).hexdigest()
    needs = {"need": b"\1\1\1\0", "start": f"2 {CHUNK}", "seen": known}
    paths = [[str(tmp_path / name), f"0/{name}"] for name in sizes]
    code, heard = get(paths, message(needs))
    assert code == 0
    given, bodies, starts = [], [b""], []
    for kind, body in heard[1:]:
        if kind == END:
            given.append(b"".join(bodies))
            bodies = []
        elif kind == START:
            starts.append(body)
        else:
            assert kind == DATA
            bodies.append(body)
    assert given == [data["a"], data["b"], data["c"][CHUNK:]]
    assert starts == [CHUNK.to_bytes(8, "big")]


@cases("checksum", [True, False])
def test_a_list_has_digests_if_they_are_wanted(tmp_path: Path, checksum: bool) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f").write_text("hello")
    (tmp_path / "t" / "l").symlink_to("f")
    nothing = message({"need": b"\0\0\0", "start": "", "seen": ""})
    code, heard = get([[str(tmp_path / "t"), "0/t"]], nothing, checksum=checksum)
    ((kind, body),) = heard
    listed = rows(value_of(kind, body)["list"])
    known = hashlib.sha256(b"hello").hexdigest() if checksum else ""
    assert [(e.path, e.more) for e in listed] == [("0/t", ""), ("0/t/f", known), ("0/t/l", "f")]
    assert code == 0


class Put:
    """``source`` on its way to a folder, as the launcher says it."""

    def __init__(self, source: Path, dest: Path, **more: Any) -> None:
        self.dest = f"{dest}/"
        self.sources = Sources([(self.dest, (str(source),))], checksum=False)
        self.order = {
            "do": "put", "list": entry_columns(self.sources.entries), "checksum": False,
            "resume": True, "groups": [[self.dest, [source.name]]], **more,
        }  # fmt: skip

    def said(self) -> list[bytes]:
        """Order and files; all of them are needed."""
        files = [n for n, entry in enumerate(self.sources.entries) if entry.kind == "f"]
        come = list(self.sources.pieces(files, {}))
        self.sources.close()
        return [message(self.order), *come]

    def spoken(self, *said: bytes, **how: Any) -> tuple[int, list[Any]]:
        """With the program's exit code, what it said as values."""
        code, heard = spoken(shell.PUT, *said, tail=(self.dest, "x"), **how)
        return code, [value_of(kind, body) for kind, body in heard]


BIG = os.urandom(2 << 20)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    (tmp_path / "big").write_bytes(BIG)
    (tmp_path / "dest").mkdir()
    return tmp_path / "big"


@pytest.mark.parametrize("resume", [True, False])
def test_a_part_stays_when_the_launcher_is_gone(big: Path, tmp_path: Path, resume: bool) -> None:
    put = Put(big, tmp_path / "dest", resume=resume)
    order, *come = put.said()
    code, heard = put.spoken(order, *come[:4])
    assert (code, len(heard)) == (1, 1)  # nothing to say, and nobody to hear it
    left = os.listdir(tmp_path / "dest")
    assert [name[: len(PART)] for name in left] == [PART] * resume
    if resume:
        assert (tmp_path / "dest" / left[0]).stat().st_size == 4 * CHUNK


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(big: Path, tmp_path: Path, number: int) -> None:
    put = Put(big, tmp_path / "dest", resume=False)
    order, *come = put.said()
    argv = [*payload.copy_command(shell.PUT), put.dest, "x"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(payload.copy_payload() + order + come[0])
        process.stdin.flush()
        assert process.stdout.read(len(payload.PYTHON)) == payload.PYTHON
        assert process.stdout.read(1)  # its answer, so it is under way
        process.send_signal(number)
        assert process.wait(60) == 1
    assert os.listdir(tmp_path / "dest") == []


def test_a_disk_that_takes_no_more_is_told_with_the_file(big: Path, tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK, CHUNK))

    put = Put(big, tmp_path / "dest", resume=False)
    code, heard = put.spoken(*put.said(), before=full)
    assert code == 1
    assert heard[-1] == {"error": "big: file too large"}
    assert os.listdir(tmp_path / "dest") == []


def test_a_place_that_is_no_folder_is_told_by_its_name(big: Path, tmp_path: Path) -> None:
    (tmp_path / "dest" / "big").mkdir()
    put = Put(big, tmp_path / "dest")
    code, heard = put.spoken(*put.said())
    assert (code, heard) == (1, [{"error": f"{tmp_path}/dest/big: is a directory"}])
    put = Put(big, tmp_path / "big")
    code, heard = put.spoken(*put.said())
    assert code == 1
    assert heard[0]["error"].startswith(f"{tmp_path}/big")


def test_an_inner_host_serves_those_below_it_and_then_reports(big: Path, tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    groups = [[f"{lower}/", ["big"]]]
    more = {
        "branches": 8, "marker": SYNC,
        "opening": shell.opening(payload.copy_command("exit 1"), stdin=True),
        "below": [[3, ["sh", "-c", shell.COMMAND], groups], [4, ["sh", "-c", "exit 9"], groups]],
    }  # fmt: skip
    put = Put(big, tmp_path / "dest", **more)
    put.sources.add_digests()
    put.order["list"] = entry_columns(put.sources.entries)
    code, heard = put.spoken(*put.said(), tree=True)
    assert code == 0
    first, *others, last = heard
    assert first == {"need": b"\1", "start": "", "seen": ""}
    report = {"sent": 1, "equal": 0, "bytes": len(BIG), "found": 0}
    assert last == report
    assert {**report, "of": [3]} in others
    assert [told["of"] for told in others if "failed" in told] == [[4]]
    for dest in (tmp_path / "dest", lower):
        assert (dest / "big").read_bytes() == BIG
        assert os.listdir(dest) == ["big"]


def test_an_inner_host_that_fails_says_so_for_itself_alone(big: Path, tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    more = {
        "branches": 8, "marker": SYNC, "below": [[3, ["sleep", "600"], [[f"{lower}/", ["big"]]]]],
        "opening": b"",
    }  # fmt: skip
    put = Put(big, tmp_path / "dest", **more)
    order, *others, last = put.said()
    code, heard = put.spoken(order, *others, last[:-1] + bytes([last[-1] ^ 1]), tree=True)
    assert code == 1
    assert [sorted(told) for told in heard] == [["need", "seen", "start"], ["error"]]
    assert os.listdir(tmp_path / "dest") == []
