"""Other launchers' lines: the migration document holds, and nothing is dropped in silence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import cli
from dispatcher.cli.entry import load
from dispatcher.model.errors import UsageError
from dispatcher.plan import compat
from dispatcher.plan.compat import translate

RUN = load("run")
DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "migration.md"
ROWS = re.findall(r"^\| `(.+?)` \| `(dispatch .+?)` \|$", DOCUMENT.read_text(), re.M)
TABLES = {
    "torchrun": compat.TORCHRUN,
    "deepspeed": compat.DEEPSPEED,
    "accelerate launch": compat.ACCELERATE,
    "mpirun": compat.MPIRUN,
}


def test_the_document_has_its_rows() -> None:
    assert len(ROWS) == 19


@pytest.mark.parametrize(("line", "wanted"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_the_document(line: str, wanted: str) -> None:
    assert translate(shlex.split(line)).words == tuple(shlex.split(wanted))


@pytest.mark.parametrize(("line", "wanted"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_dispatch_takes_what_it_is_told(line: str, wanted: str) -> None:
    words = shlex.split(wanted)[1:]
    with RUN.make_context("dispatch", words) as context:
        assert context.params["words"]
        program = translate(shlex.split(line)).program
        assert context.params["words"] == program


@pytest.mark.parametrize("who", TABLES)
def test_every_flag_becomes_options_that_exist(who: str) -> None:
    known = {name for param in RUN.params for name in (*param.opts, *param.secondary_opts)}
    for name, flag in TABLES[who].items():
        try:
            words = flag.becomes(*["1"] * flag.values) or ()
        except UsageError:
            continue
        options = [word for word in words if word.startswith("-")]
        assert set(options) <= known, name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "not a launcher"),
        ("srun train.py", "not a launcher that is known here: 'srun'"),
        ("python train.py", "not a launcher"),
        ("torchrun --nosuch 1 train.py", "torchrun: --nosuch: not known here"),
        ("torchrun --nnodes", "torchrun: --nnodes: its value is missing"),
        ("torchrun --nnodes 2", "torchrun: no script in it"),
        ("torchrun --no-python=1 x", "takes no value"),
        ("torchrun --run-path train.py", "torchrun: --run-path: cannot be met"),
        ("deepspeed --venv_script v train.py", "deepspeed: --venv_script v: cannot be met"),
        ("accelerate config", "only its launch command"),
        ("accelerate launch --use_fsdp train.py", "cannot be met"),
        ("mpirun -np 2 ./a : -np 2 ./b", "more than one program"),
        ("mpirun -np 2", "mpirun: no program in it"),
    ],
)
def test_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate(shlex.split(line))
    assert said in caught.value.message


@given(st.lists(st.text(max_size=12), max_size=6))
def test_the_programs_words_are_kept(words: list[str]) -> None:
    for launcher in ("torchrun", "deepspeed"):
        assert translate([launcher, "train.py", *words]).program == ("train.py", *words)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["import", "-H", "hosts", "--", "torchrun", "--node-rank=0", "train.py", "a b"]
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert told.out == "dispatch -H hosts --nproc-per-node 1 train.py 'a b'\n"
    assert "--node-rank=0  ->  (not needed)  # dispatch starts every node" in told.err
    assert "(default)  ->  --nproc-per-node 1" in told.err


def test_the_command_without_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", "--", "torchrun", "train.py"]) == 0
    assert "note: it names no hosts" in capsys.readouterr().err
