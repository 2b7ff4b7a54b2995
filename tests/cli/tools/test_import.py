"""``import``: the line on standard output, the reasons on standard error."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher import cli


@cases(
    ("words", "line", "hosts_missing"),
    [
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"],
         "dispatch --nproc-per-node 2 train.py --lr 1", True),
        (["mpirun", "-np", "4", "--hostfile", "hosts", "python", "a b.py"],
         "dispatch --np 4 -H hosts --python python 'a b.py'", False),
        (["mpirun -np 4 --hostfile hosts python 'a b.py'"],
         "dispatch --np 4 -H hosts --python python 'a b.py'", False),
        (["torchrun --nproc-per-node 8 \\\n   train.py \\\n   --lr 1\n"],
         "dispatch --nproc-per-node 8 train.py --lr 1", True),
        (["mpirun -n 1 bash -c 'echo $A > b' \"a;b\" \\$A"],
         "dispatch --np 1 --no-python bash -c 'echo $A > b' 'a;b' '$A'", True),
    ],
)  # fmt: skip
def test_the_line(
    words: list[str], line: str, hosts_missing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["import", "--", *words]) == 0
    out, err = capsys.readouterr()
    assert out == f"{line}\n"
    note = "note: it names no hosts: add -H hostfile, or run it inside a batch job\n"
    assert (note in err) is hosts_missing
    reasons = [one for one in err.splitlines() if "->" in one]
    assert reasons
    assert all(one.startswith("  ") for one in reasons)


def test_hosts_are_added_where_the_line_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    torchrun = ["torchrun", "--nproc-per-node", "2", "train.py"]
    assert cli.main(["import", "-H", "n1,n2", "--", *torchrun]) == 0
    out, err = capsys.readouterr()
    assert out == "dispatch -H n1,n2 --nproc-per-node 2 train.py\n"
    assert "names no hosts" not in err
    assert cli.main(["import", "-H", "n1", "--", "mpirun", "-H", "m1:2", "./a"]) == 0
    out, err = capsys.readouterr()
    assert "n1" not in out
    assert " -H m1:2 " in out


def test_a_reason_says_what_became_of_each_word(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["torchrun", "--standalone", "--nproc-per-node=2", "train.py"]
    assert cli.main(["import", "--", *words]) == 0
    reasons = capsys.readouterr().err.splitlines()
    assert any(one.startswith("  --standalone  ->  ") for one in reasons)
    assert any(one.startswith("  --nproc-per-node=2  ->  --nproc-per-node 2") for one in reasons)


@cases(
    "words", [["torchrun", "--nosuch", "a.py"], ["frob", "x"], ["frob x"], ["mpirun 'x"], [" "], []]
)
def test_what_is_not_known(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", "--", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


_FILLED = "a shell would expand it, but no shell reads a quoted command"
_ENDS = "is for the shell, not for the launcher"


@cases(
    ("text", "said", "hint"),
    [
        ("torchrun a.py --lr $LR", f"$LR: {_FILLED}", "torchrun a.py --lr $LR"),
        ('torchrun \\\n a.py "${A[@]}"', f"${{A: {_FILLED}", 'torchrun a.py "${A[@]}"'),
        ("mpirun -H `hosts` ./a", f"`hosts: {_FILLED}", "mpirun -H `hosts` ./a"),
        ("torchrun ~/a.py", f"~/a.py: {_FILLED}", "torchrun ~/a.py"),
        ("torchrun a.py > out 2>&1", f">: {_ENDS}", "'torchrun a.py'"),
        ("A=1 torchrun a.py 2>&1 | tee $OUT", f"2>&1: {_ENDS}", "'A=1 torchrun a.py'"),
        ("torchrun a.py\ntorchrun b.py", f"a second line: {_ENDS}", "'torchrun a.py'"),
        ("cd d && torchrun a.py", f"&&: {_ENDS}", None),
        ('"a\'b" && torchrun a.py', f"&&: {_ENDS}", None),
    ],
)
def test_what_only_a_shell_reads(
    text: str, said: str, hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It went into the printed line in quotes, as an argument of the program."""
    assert cli.main(["import", "--", text]) == 2
    more = f"  hint: dispatch import -- {hint}\n" if hint else ""
    assert capsys.readouterr().err == f"error: {said} [cannot-translate]\n{more}"
