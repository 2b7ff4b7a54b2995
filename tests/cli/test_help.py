"""What ``-h`` and ``--help`` say: short and whole, all commands, examples that work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS, object_at
from dispatcher.cli.entry import load_command, shown_name
from dispatcher.cli.help import PURPOSES, commands, page
from dispatcher.cli.options.declaration import Option
from dispatcher.cli.run.run import RunOptions
from dispatcher.plan.exec_plan import ExecLimits
from dispatcher.plan.job.request import Limits, Restarts

from .conftest import Parsed

DOCS = Path(__file__).parents[2] / "docs"
#: options that ``-h`` shows at most, and lines of ``dispatch -h`` on a terminal of 80 columns
MOST_BRIEF, MOST_LINES = 16, 50


def context_of(name: str) -> click.Context:
    """The context of the command ``name``; "" is run, left out."""
    command = load_command(name or "run")
    return click.Context(command, info_name=shown_name(name), **command.context_settings)


def options(name: str) -> dict[str, Option]:
    return {one.name or "": one for one in load_command(name).params if isinstance(one, Option)}


def test_every_command_has_its_place_and_a_line_that_fits_a_terminal() -> None:
    told = {name: said for commands in PURPOSES.values() for name, said in commands.items()}
    assert sum(map(len, PURPOSES.values())) == len(told)
    assert set(told) == set(COMMANDS)
    for name, said in told.items():
        assert re.fullmatch(r"[A-Z].*\.", said), name
        assert len(said) <= 82, name


@cases("name", ["", *COMMANDS])
def test_the_short_help_is_short_and_names_the_whole(name: str) -> None:
    context = context_of(name)
    short = page(context, brief=True).splitlines()
    whole = page(context, brief=False).splitlines()
    assert len(short) <= MOST_LINES
    assert len(short) < len(whole) + 2
    assert f"All options: {shown_name(name or 'run')} --help" in short
    brief = load_command(name or "run").kind.brief
    assert len(brief or options(name or "run")) <= MOST_BRIEF
    assert set(brief) <= set(options(name or "run"))
    assert len(set(brief)) == len(brief)


def test_only_dispatch_alone_tells_of_all_commands() -> None:
    for brief in (True, False):
        alone, run = (page(context_of(name), brief=brief) for name in ("", "run"))
        assert "dispatch COMMAND" in alone
        assert re.search(r"^ *Look at jobs(:|  )", alone, re.M)
        assert "Look at jobs" not in run
        assert run.startswith("Usage: dispatch run [OPTIONS] PROGRAM")


def test_the_short_help_names_every_command_and_help_has_a_line_on_each() -> None:
    short, told = page(context_of(""), brief=True), commands()
    for purpose, names in PURPOSES.items():
        assert re.search(rf"^  {purpose}  +{', '.join(names)}$", short, re.M)
        assert f"\n{purpose}:\n" in told
        for name, said in names.items():
            assert re.search(rf"^  {name} +{re.escape(said)}$", told, re.M)
    assert "All commands: dispatch help" in short


@cases("columns", [80, 100, 140])
@cases("name", ["", *COMMANDS])
def test_no_line_is_wider_than_the_terminal(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    context = context_of(name)
    examples = {line for line, _ in load_command(name or "run").kind.examples}
    for brief in (True, False):
        lines = page(context, brief=brief).splitlines()
        wide = [line for line in lines if len(line) > columns and line.strip() not in examples]
        assert not wide
        assert not [line for line in lines if re.search(r"--\w+(-\w+)*-$", line)], "torn apart"


@cases("name", COMMANDS)
def test_texts_are_sentences_whose_first_stands_alone(name: str) -> None:
    for option in options(name).values():
        text = option.help or ""
        assert re.fullmatch(r"[A-Z].*[.)]", text, re.S), (option.opts, text)
        first = re.split(r"(?<=[.?])\s", text)[0]
        assert len(first) <= 160, (option.opts, first)
        assert "[default" not in text, "defaults stand in ``usual``"
        assert " S " not in f"{option.metavar} ", "a unit is written out"


@cases("name", COMMANDS)
def test_choices_show_their_default(name: str) -> None:
    for option in options(name).values():
        if isinstance(option.type, click.Choice) and option.metavar is None:
            assert option.usual is not None, option.opts
        if isinstance(option.default, str) and option.default.strip():
            assert (option.usual or "").startswith(option.default), option.opts


def defaults() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """(command, what its help calls the defaults, the value that holds them)."""
    yield "run", options("run"), Limits()
    yield "run", options("run"), Restarts()
    yield "exec", options("exec"), ExecLimits()


@cases(("name", "shown", "values"), list(defaults()))
def test_the_defaults_that_are_shown_are_those_that_hold(
    name: str, shown: dict[str, Option], values: Any
) -> None:
    found = 0
    for field in fields(values):
        value = getattr(values, field.name)
        usual = shown[field.name].usual if field.name in shown else None
        if usual is not None and isinstance(value, (int, float)) and usual[0].isdigit():
            assert usual == f"{value:g}", field.name
            found += 1
    assert found >= 1


# -- examples --------------------------------------------------------------------------------


def examples() -> Iterator[Any]:
    for name in COMMANDS:
        for line, said in load_command(name).kind.examples:
            yield pytest.param(name, line, said, id=line)


def dispatched(line: str) -> Iterator[list[str]]:
    """The words of each call of dispatch in a line of shell; what other programs do is theirs."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&"):
            commands.append([])
        elif set(word) <= set("<>"):
            lexer.get_token()  # the file
        elif commands[-1] or word not in {"exec", "do", "then", "nohup"}:
            commands[-1].append(word)
    for words in commands:
        for runner in (["uvx"], ["pipx", "run"]):
            if words[: len(runner)] == runner:
                words = words[len(runner) :]
        if words[:1] in (["dispatch"], ["dispatch-launcher"]):
            yield words[1:]
        elif words[:1] == ["dsx"]:
            yield words


def shell_lines() -> Iterator[Any]:
    """Each line with dispatch in the blocks of shell of all pages; those of consoles are typed."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                if "dispatch " in line.partition(" #")[0]:
                    yield pytest.param(line.strip(), id=f"{path.stem}: {line.strip()}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that examples name, and no settings of anybody's."""
    (tmp_path / "hostfile").write_text("n1 slots=2\nn2 slots=2\n")
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    for name in ("train.py", "node.conf", "shard.tar", "run.json", "saved.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPATCH_CONFIG", "")
    return tmp_path


@cases("name", COMMANDS)
def test_each_command_has_a_few(name: str) -> None:
    found = load_command(name).kind.examples
    assert 2 <= len(found) <= 4
    assert any(line.startswith(f"{shown_name('' if name == 'run' else name)} ") or
               f"| dispatch {name}" in line or line == f"dispatch {name}"
               for line, _ in found)  # fmt: skip


@pytest.mark.parametrize(("name", "line", "said"), list(examples()))
def test_examples_are_lines_that_dispatch_takes(
    name: str, line: str, said: str, folder: Path, parsed: Parsed
) -> None:
    assert said
    assert len(line) <= 90
    ours = list(dispatched(line))
    assert ours
    for words in ours:
        command = words.pop(0) if words and words[0] in COMMANDS else "run"
        taken = parsed(command, *words)
        assert isinstance(taken, object_at(COMMANDS[command][0]))


@pytest.mark.parametrize("line", list(shell_lines()))
def test_lines_of_the_pages_are_taken(line: str, folder: Path, parsed: Parsed) -> None:
    calls = list(dispatched(line))
    assert calls
    for words in calls:
        command = words.pop(0) if words and words[0] in COMMANDS else "run"
        assert isinstance(parsed(command, *words), object_at(COMMANDS[command][0]))


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ("hosts -H hostfile", "n1\nn2\n"),
        ("hosts -f n1 n2 n3", "n[1-3]\n"),
        ("hosts -c 'n[1-64]!n7'", "63\n"),
        ("config", "no dispatch.toml sets defaults for run\n"),
        (
            "import -- torchrun --nnodes 4 --nproc-per-node 8 train.py --lr 1",
            "dispatch --nnodes 4 --nproc-per-node 8 train.py --lr 1\n",
        ),
        (
            "import -- mpirun -np 16 --hostfile hosts python train.py",
            "dispatch --np 16 -H hosts --python python train.py\n",
        ),
        ("jobs -a --json", "[]\n"),
    ],
)
def test_examples_do_what_is_said_of_them(
    words: str, out: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    assert cli.main(shlex.split(words)) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("line", [line for line, _ in RunOptions.examples])
def test_examples_of_a_run_can_be_planned(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *words = shlex.split(line)
    assert cli.main(["--dry-run", *words]) == 0
    assert "world size" in capsys.readouterr().out


# -- how pages are filled --------------------------------------------------------------------


def test_a_page_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert (
        page(context_of("logs"), brief=True)
        == """\
Usage: dispatch logs [OPTIONS] [JOB]

  Show the output of a job's ranks so far, one rank after
  the other.

Examples:
  # all ranks
  dispatch logs latest | less
  # one rank, without labels
  dispatch logs k3f9x2 --rank 0
  # all output, then new output
  dispatch logs -f
  # these lines of the last ten minutes
  dispatch logs --grep 'loss|error' --since 10m

Options:
  -f, --follow  Go on with new output, until the job ends.
  --rank N      Show only rank N, without labels.
  --grep REGEX  Show only lines that match REGEX, a
                regular expression.
  --since TIME  Show only lines that came after TIME: 10m
                (ago), 14:30 (the last), 2026-01-31T14:30.

All options: dispatch logs --help"""
    )


def test_help_loads_no_compressors() -> None:
    probe = (
        "import sys\nfrom dispatcher.cli import main\nmain(['--help'])\n"
        "print(sorted({'lzma', 'shutil', 'subprocess', 'difflib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
