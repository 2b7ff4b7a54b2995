"""Each row of the table of docs/guides/exec-peers.md, tried."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOC = Path(__file__).parents[3] / "docs" / "guides" / "exec-peers.md"
DISPATCH = [sys.executable, "-m", "dispatcher"]

#: what a row is about -> (words, standard output); {} is a folder of the test's own
ROWS: dict[str, tuple[list[str], str]] = {
    "hosts": (["exec", "-w", "localhost", "echo", "x"], "localhost: x\n"),
    "hosts of a file": (["exec", "-H", "{}/hosts", "echo", "x"], "localhost: x\n"),
    "all but": (
        ["exec", "-w", "localhost,n[1-9]", "-x", "n[1-8]", "-x", "^{}/down", "echo", "x"],
        "localhost: x\n",
    ),
    "shell text": (["exec", "-w", "localhost", "echo a b | wc -w"], "localhost: 2\n"),
    "your own script": (
        ["exec", "--script", "{}/s.sh", "-w", "localhost", "x"],
        "localhost: x\n",
    ),
    "hosts at once": (
        ["exec", "-f", "8", "--serial", "2", "-w", "localhost", "echo", "x"],
        "localhost: x\n",
    ),
    "limit to connect": (["exec", "-t", "60", "-w", "localhost", "echo", "x"], "localhost: x\n"),
    "limit for the command": (
        ["exec", "-u", "20", "-w", "localhost", "echo", "x"],
        "localhost: x\n",
    ),
    "no names": (["exec", "-N", "-w", "localhost", "echo", "x"], "x\n"),
    "equal output once": (["exec", "-b", "-N", "-w", "localhost,127.0.0.1", "echo", "x"], "x\n"),
    "sorted by hosts, a name in every line": (
        ["exec", "-bL", "-w", "localhost,127.0.0.1", "echo", "x"],
        "127.0.0.1,localhost: x\n",
    ),
    "the host's name in the command": (
        ["exec", "-P", "-w", "localhost", "echo", "%h %n"],
        "localhost: localhost 0\n",
    ),
    "differences only": (["exec", "--diff", "-w", "localhost,127.0.0.1", "echo", "x"], ""),
    "a file a host": (
        ["exec", "-N", "-o", "{}/o", "-e", "{}/e", "-w", "localhost", "echo", "x"],
        "x\n",
    ),
    "a variable for the command": (
        ["exec", "--env", "A=x", "-w", "localhost", "echo $A"],
        "localhost: x\n",
    ),
    "largest exit code": (["exec", "-S", "-w", "localhost", "echo", "x"], "localhost: x\n"),
    "standard input": (["exec", "-I", "-w", "localhost", "wc", "-c"], "localhost: 5\n"),
    "on a terminal": (["exec", "--pty", "-w", "localhost", "echo", "x"], "localhost: x\n"),
    "a host that stops responding": (
        ["exec", "--server-alive-interval", "5", "-w", "localhost", "echo", "x"],
        "localhost: x\n",
    ),
    "retry failed hosts": (
        ["exec", "--failed-to", "{}/failed", "-w", "localhost", "echo", "x"],
        "localhost: x\n",
    ),
    "copy to hosts": (["put", "-w", "localhost", "{}/hosts", "{}/copy"], ""),
    "copy from hosts": (["get", "-w", "localhost", "{}/hosts", "{}/back"], ""),
    "host lists": (["hosts", "-c", "n[1-16]"], "16\n"),
}


def test_every_row_of_the_table_is_here() -> None:
    table = DOC.read_text().partition("| want | pdsh")[2].partition("\n\n")[0]
    rows = ["want", *re.findall(r"^\| ([a-z][^|]*?) \|", table, re.M)]
    # below, and in tests of their own
    elsewhere = {
        "a group",
        "login name",
        "as root",
        "a prompt",
        "connections for later commands",
        "hosts if you name none",
        "progress",
    }
    assert set(rows[1:]) == {*ROWS, *elsewhere}


@pytest.mark.parametrize("row", list(ROWS))
def test_the_row_is_true(row: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=8 # first\n")
    (tmp_path / "down").write_text("n9\n")
    (tmp_path / "s.sh").write_text("echo $1\n")
    words, said = ROWS[row]
    done = subprocess.run(
        [*DISPATCH, *(word.replace("{}", str(tmp_path)) for word in words)],
        input="12345", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    errors = re.sub(
        r"localhost: 1 file (sent|fetched), .* s\n", "", done.stderr
    )  # a copy's summary
    assert (done.returncode, done.stdout, errors) == (0, said, "")


def test_a_group(tmp_path: Path) -> None:
    (tmp_path / "groups.conf").write_text("[Main]\ndefault: local\n[local]\nmap: echo localhost\n")
    done = subprocess.run(
        [*DISPATCH, "exec", "-w", "@any", "echo", "x"], env={"CLUSTERSHELL_CFGDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "localhost: x\n", done.stderr


def test_a_login_name() -> None:
    done = subprocess.run(
        [*DISPATCH, "exec", "-l", "bad name", "-w", "n1", "true"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no place in a user name" in done.stderr
