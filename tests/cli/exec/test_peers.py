"""Every option in the manuals of pdsh 2.34 and clush 1.10, and what ``dsx`` makes of it."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.exec import get, put, run_exec, shell

GUIDE = Path(__file__).parents[3] / "docs/guides/dsx.md"
#: what is said at once, and touches no host
SAYS = "says"
#: option as it is typed -> the field that it sets, or the hint of its refusal
PDSH = {
    "-w n1": "lists", "-x n2": "excluded", "-S": "max_code", "-h": SAYS, "-q": "dry_run",
    "-b": "gather", "-l me": "user", "-t 5": "connect_timeout", "-u 5": "command_timeout",
    "-f 2": "serial", "-R ssh": "worker", "-L": "line_mode", "-N": "no_label", "-V": SAYS,
    "-a": "lists", "-g gpu": "lists", "-X gpu": "excluded", "-F file": "ssh_config",
    "-v": "verbose", "-P": "percent", "-r": "needless", "-e dir": "error_dir", "-p 22": "ssh_port",
    "-A": "hint: -a", "-M x": "hint: without -M", "-d": "hint: -v", "-i": "hint: without -i",
    "-j 1": "hint: -w", "-s": "hint: -w @SOURCE:GROUP", "-k": "hint: --max-fail 1",
    "-Q": "hint: -q", "-p": "hint: without -p", "-R exec": "hint: --rsh",
}  # fmt: skip
CLUSH = {
    "--version": SAYS, "-h": SAYS, "--help": SAYS, "-n": "no_stdin", "--nostdin": "no_stdin",
    "-w n1": "lists", "-x n2": "excluded", "-a": "lists", "--all": "lists", "-g gpu": "lists",
    "--group=gpu": "lists", "-X gpu": "excluded", "--hostfile=f": "hostfile",
    "--machinefile=f": "hostfile", "--pick=2": "pick", "-q": "dry_run", "--quiet": "quiet",
    "-v": "verbose", "--verbose": "verbose", "--debug": "verbose", "-L": "line_mode",
    "-N": "no_label", "-P": "percent", "--progress": "needless", "-b": "gather",
    "--dshbak": "gather", "-B": "gather_all", "-r": "needless", "-S": "max_code",
    "--maxrc": "max_code", "--color=never": "color", "--diff": "diff", "--outdir=d": "output_dir",
    "-o x": "output_dir", "--axis=1": "hint: without", "--dest=d": "needs --copy",
    "--errdir=d": "error_dir", "-c": "copy", "--copy": "copy", "--rcopy": "rcopy",
    "-f 3": "serial", "--fanout=3": "fanout", "-l me": "user", "--user=me": "user",
    "-t 5": "connect_timeout", "--connect_timeout=5": "connect_timeout", "-u 5": "command_timeout",
    "--command_timeout=5": "command_timeout", "-R ssh": "worker", "--worker=ssh": "worker",
    "-p": "hint: without -p", "-d": "hint: -v", "-s x": "hint: -w @SOURCE",
    "--groupsource=x": "hint: -w @SOURCE", "--groupsconf=x": "hint: CLUSTERSHELL_CFGDIR=DIR",
    "--conf=x": "hint: DISPATCH_CONFIG=FILE", "-O x=y": "hint: dispatch config",
    "--option=x=y": "hint: dispatch config", "--topology=x": "hint: --fanout-tree",
    "-G": "hint: without -G", "--groupbase": "hint: without", "--regroup": "hint: without",
    "--options=-oX": "hint: --ssh-config", "-m sudo": "hint: --sudo", "--mode=sudo": "needs --copy",
    "--remote=no": "hint: without", "--color=always": "auto, never",
}  # fmt: skip
#: those that the guide must name: another meaning, or none
DIFFERENT = sorted(
    {"-b", "-q", "-L", "-P", "-p", "-F", "-e", "-o", "-r"}
    | {"--options"}
    | {line.split()[0].partition("=")[0] for line, said in (PDSH | CLUSH).items() if " " in said}
    - {"--dest"}
)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, nothing_around: Path) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setenv("NO_COLOR", "")  # --color sets it

    def do(options: Any) -> int:
        found.append(options)
        return 7

    for module, name in ((run_exec, "run"), (put, "put"), (get, "get"), (shell, "run")):
        monkeypatch.setattr(module, name, do)
    return found


@pytest.mark.parametrize("peer", [PDSH, CLUSH], ids=["pdsh", "clush"])
def test_what_dsx_makes_of_each_option(
    peer: dict[str, str], done: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {}
    for line, wanted in peer.items():
        done.clear()
        mode = ["--dest", "d", "f"] if wanted in ("copy", "rcopy") else ["uptime"]
        code = cli.main(["dsx", "-w", "n[1-3]", *line.split(), *mode])
        said = capsys.readouterr().err
        if " " in wanted:
            right = code == 2 and wanted in said and not done
        elif wanted == SAYS:
            right = code == 0 and not done
        elif wanted in ("copy", "rcopy", "pick", "worker", "color", "needless"):
            right = code == 7  # dsx does it itself, or it is so anyway
        else:
            right = code == 7 and getattr(done[0], wanted) not in (None, False, ())
        if not right:
            wrong[line] = (code, said)
    assert wrong == {}


def test_the_tables_have_all_that_the_manuals_have() -> None:
    def names(lines: dict[str, str]) -> set[str]:
        return {line.split()[0].partition("=")[0] for line in lines}

    command = [sys.executable, "-m", "ClusterShell.CLI.Clush", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # --version, -s GROUPSOURCE, --groupsource=GROUPSOURCE
    found = re.findall(r"(?:^ +|, )(--?[a-z_]+)", told, re.MULTILINE | re.IGNORECASE)
    assert len(found) > 50
    assert set(found) - names(CLUSH) == set()
    page = Path("/usr/share/man/man1/pdsh.1.gz")
    text = gzip.decompress(page.read_bytes()).decode() if page.exists() else ""
    letters = set(re.findall(r'^\.I "(-[a-zA-Z])', text, re.MULTILINE))
    assert letters - names(PDSH) == set()


def test_the_guide_names_what_differs() -> None:
    told = GUIDE.read_text()
    assert [name for name in DIFFERENT if f"`{name}" not in told] == []


@cases(
    ("line", "text"),
    [
        (("rm", "-f", "/x*"), "rm -f /x*"), (("cd", "/tmp", "&&", "pwd"), "cd /tmp && pwd"),
        (("--", "ls -l", "/tmp"), "ls -l /tmp"), (("ulimit",), "ulimit"),
        (("a 'b c' | d",), "a 'b c' | d"),
    ],
)  # fmt: skip
def test_words_are_joined_for_the_shell_as_ssh_does(
    line: tuple[str, ...], text: str, nothing_around: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dsx", "-w", "n1", "-q", *line]) == 0
    assert capsys.readouterr().out == f"n1 (1): run {shlex.join(['/bin/sh', '-c', text])}\n"


@cases(
    ("line", "word"),
    [
        (("rm", "-f", "/x*"), "/x*"), (("ls", "~/log/?.txt"), "~/log/?.txt"),
        (("echo", "$HOME"), "$HOME"), (("cd", "/tmp", "&&", "pwd"), "&&"),
        (("make", "2>&1"), "2>&1"), (("sh", "-c", "echo $HOME; ls /x* | wc"), ""),
        (("grep", "a$", "/etc/passwd"), ""), (("find", "/a", "-name", "*.py"), ""),
        (("awk", "{print $1}"), ""), (("echo", "a & b", "n?"), ""),
    ],
)  # fmt: skip
def test_exec_keeps_words_and_says_which_a_shell_would_read(
    line: tuple[str, ...], word: str, nothing_around: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["exec", "-w", "n1", "--dry-run", "--", *line]) == 0
    note = f"note: '{word}' is sent unchanged; for the host's shell: --shell '...'\n"
    assert capsys.readouterr().err.startswith(note if word else "note: a dry run")
