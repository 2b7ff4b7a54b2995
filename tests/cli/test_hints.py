"""What is advised when hosts complain, from what this machine knows; and lines that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.cli import mistakes
from dispatcher.cli.hints import Advice
from dispatcher.model.errors import UsageError

from .conftest import Parsed

DNS = "name not found"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, a hostfile and a folder of data in it."""
    for name in ("train.py", "hostfile", "data/evaluate.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("n1\n")
    (tmp_path / "config").write_text("Host gpu07 login\n")
    (tmp_path / "one").write_text("nosuch.py\n")
    (tmp_path / "programs").write_text("--np 1 nosuch.py\n--np 2 train.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/me")
    return tmp_path


def advice(parsed: Parsed, command: str, words: list[str], trouble: str) -> str | None:
    return Advice(parsed(command, *words))(trouble)


@pytest.mark.parametrize(
    ("command", "words", "trouble", "hint"),
    [
        # a name that is none: of a file that is here, of one that is nearly here, of a host
        ("run", ["-w", "hostfile", "train.py"], DNS,
         "dispatch -H hostfile train.py  # it is a file here, and -w takes lists"),
        ("run", ["-w", "hostfile", "-w", "n1", "train.py"], DNS, None),
        ("run", ["-w", "n1", "train.py"], DNS, None),
        ("run", ["-H", "hostfil", "train.py"], DNS,
         "dispatch -H hostfile train.py  # there is no such file here; did you mean this?"),
        ("run", ["--hostfile=hostfil", "train.py"], DNS,
         "dispatch --hostfile=hostfile train.py  # there is no such file here; did you mean "
         "this?"),
        ("run", ["-H", "gpu07", "train.py"], DNS,
         "getent hosts gpu07  # and there is no such file here"),
        ("run", ["-H", "dato", "train.py"], DNS,  # near a folder: no hostfile
         "getent hosts dato  # and there is no such file here"),
        ("run", ["-H", "hostfile", "train.py"], DNS, None),
        ("run", ["-H", "n1,n2", "train.py"], DNS, None),
        ("exec", ["-H", "hostfil", "true"], DNS,
         "dispatch exec -H hostfile true  # there is no such file here; did you mean this?"),
        # a host that ssh's files call otherwise
        ("run", ["-F", "config", "-H", "gpu7", "train.py"], DNS,
         "dispatch -F config -H gpu07 train.py  # ssh knows this name; did you mean it?"),
        ("exec", ["-F", "config", "-w", "gpu07,logni", "true"], DNS,
         "dispatch exec -F config -w gpu07,login true  # ssh knows this name; did you mean it?"),
        ("exec", ["-F", "config", "-w", "gpu08", "true"], DNS, None),  # another machine
        ("exec", ["-F", "config", "-w", "gpu[07-08]", "true"], DNS, None),
        # a script that hosts do not have
        ("run", ["-H", "n1", "tran.py", "x"], "no script",
         "dispatch -H n1 train.py x  # no such script here either; did you mean this?"),
        ("run", ["-H", "n1", "data/evalute.py"], "no script",
         "dispatch -H n1 data/evaluate.py  # no such script here either; did you mean this?"),
        ("run", ["-H", "n1", "hostname"], "no script",
         "dispatch -H n1 --no-python hostname  # no such script here either; if it is a "
         "program"),
        ("run", ["-H", "n1", "exect"], "no script",
         "dispatch -H n1 --no-python exect  # no such script here either; if it is a program"),
        ("run", ["-H", "n1", "--chdir", "nowhere", "train.py"], "no script",
         "--chdir DIR  # there is no such folder here either"),
        # of several programs, on the line or in a file
        ("run", ["-H", "n1", "--np", "1", "train.py", ":", "tran.py"], "no script",
         "ls {here}  # no such script here either: tran.py; did you mean train.py?"),
        ("run", ["-H", "n1", ":", "--np", "1", "gone/a.py", ":", "train.py"], "no script",
         "ls {here}/gone  # no such script here either: gone/a.py"),
        ("run", ["-H", "n1", "--app", "programs"], "no script",
         "ls {here}  # no such script here either: nosuch.py"),
        ("run", ["-H", "n1", "--app", "one"], "no script",
         "ls {here}  # no such script here either: nosuch.py"),
        ("run", ["-H", "n1", "--np", "1", "train.py", ":", "train.py", "x"], "no script",
         "dispatch -H n1 --np 1 --sync train.py : train.py x  # or a folder that every host has: "
         "--chdir DIR"),
        ("run", ["-H", "n1", ":", "--no-python", "echo a", ":", "b.py"], "missing", None),
        ("run", ["-H", "n1", "--no-python", "--app", "programs"], "missing", None),
        ("run", ["-H", "n1", "train.py"], "missing", None),
        ("run", ["-H", "n1", "train.py"], "exit code 127", None),
        # a program that cannot be one
        ("run", ["-H", "n1", "--no-python", "echo a"], "missing",
         "dispatch -H n1 --no-python echo a"),
        ("run", ["-H", "n1", "--no-python", "echo $A", "b"], "missing",
         "dispatch -H n1 --no-python sh -c 'echo $A b'"),
        ("run", ["-H", "n1", "--no-python", "A=1 prog"], "missing",
         "dispatch -H n1 --no-python sh -c 'A=1 prog'"),
        ("run", ["-H", "n1", "--no-python", "prog"], "missing", None),
        ("exec", ["-w", "n1", "echo a"], "exit code 127", None),
        ("exec", ["-w", "n1", "/echo a", "b"], "exit code 127", "dispatch exec -w n1 '/echo a b'"),
        ("exec", ["-w", "n1", "cd", "/tmp"], "exit code 127", "dispatch exec -w n1 'cd /tmp'"),
        ("exec", ["-w", "n1", "A=1", "prog"], "exit code 127", "dispatch exec -w n1 'A=1 prog'"),
        ("exec", ["-w", "n1", "prog"], "exit code 127", None),
        ("exec", ["-w", "n1", "prog"], "exit code 1", None),
        ("exec", ["-w", "n1", "--shell", "prog"], "exit code 127", None),
        # a blank where a comma was meant
        ("exec", ["-w", "n1,", "n2", "true"], "exit code 127", "dispatch exec -w n1,n2 true"),
        ("exec", ["-w", "n1", "n2,", "n3", "true"], "exit code 127",
         "dispatch exec -w n1,n2,n3 true"),
        ("exec", ["-w", "n1", "n2"], "exit code 127", None),
        ("exec", ["-w", "n1", "m2", "true"], "exit code 127", None),
        ("exec", ["-w", "alpha", "beta", "true"], "exit code 127", None),
        ("put", ["-w", "n1", "a", "b"], "exit code 127", None),
    ],
)  # fmt: skip
def test_advice(
    parsed: Parsed, here: Path, command: str, words: list[str], trouble: str, hint: str | None
) -> None:
    expected = None if hint is None else hint.replace("{here}", str(here))
    assert advice(parsed, command, words, trouble) == expected


@cases(
    ("words", "line"),
    [
        (["-H", "n1", "train.py"], "-H n1 --sync train.py"),
        (["-H", "n1", "-x", "API_KEY=a", "train.py", "--lr", "1"],
         "-H n1 -x 'API_KEY=<hidden>' --sync train.py --lr 1"),
        (["-H", "n1", "-m", "absent"], "-H n1 -m --sync absent"),
        (["-H", "n1", "--no-python", "./absent"], "-H n1 --no-python --sync ./absent"),
    ],
)  # fmt: skip
def test_the_folder_is_sent_where_what_is_in_it_lacks(
    parsed: Parsed, here: Path, words: list[str], line: str
) -> None:
    assert advice(parsed, "run", words, "no script") == (
        f"dispatch {line}  # or a folder that every host has: --chdir DIR"
    )


@cases(
    ("words", "copied"),
    [
        (["-H", "hostfile"], "-H hostfile"),
        (["-w", "n1", "-w", "n2"], "-w n1 -w n2"),
        (["-H", "n1", "--user", "ml", "--ssh-port", "2222", "-F", "cfg"],
         "-H n1 --user ml --ssh-port 2222 -F cfg"),
        (["-H", "n1", "--host-keys", "accept-new", "--transport", "ssh"],
         "-H n1 --transport ssh --host-keys accept-new"),
        (["-H", "n1", "--transport", "auto"], "-H n1"),
    ],
)  # fmt: skip
def test_what_is_elsewhere_can_be_copied(
    parsed: Parsed, here: Path, words: list[str], copied: str
) -> None:
    path = here.parent / "elsewhere.py"
    path.touch()
    assert advice(parsed, "run", [*words, str(path)], "no script") == (
        f"dispatch put {copied} {path} {here.parent}/"
        "  # or a folder that every host has: --chdir DIR"
    )


@cases(
    ("chdir", "hint"),
    [
        ("data", "dispatch -H n1 --no-python --chdir data --sync prog"
                 "  # or a folder that every host has: --chdir DIR"),
        ("/", "--chdir DIR  # a folder that every host has"),
        ("none", "--chdir DIR  # there is no such folder here either"),
    ],
)  # fmt: skip
def test_a_folder_that_hosts_lack(parsed: Parsed, here: Path, chdir: str, hint: str) -> None:
    words = ["-H", "n1", "--no-python", "--chdir", chdir, "prog"]
    assert advice(parsed, "run", words, "cwd") == hint


def test_a_home_is_never_copied(parsed: Parsed, here: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(here))
    found = advice(parsed, "run", ["-H", "n1", "train.py"], "cwd")
    assert found == "--chdir DIR  # a folder that every host has"


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["-H", "n1", "python3", "train.py", "x"], "'python3': not a script",
         "dispatch -H n1 train.py x"),
        (["-H", "n1", "python3.9", "train.py"], "'python3.9': not a script",
         "dispatch -H n1 --python python3.9 train.py"),
        (["-H", "n1", "train.py --lr 1", "x"], "'train.py --lr 1': a single word, taken as the nam",
         "dispatch -H n1 train.py --lr 1 x"),
        (["-H", "n1", "ls", "-l"], "'ls': a program, not a Python script",
         "dispatch -H n1 --no-python ls -l"),
        (["-H", "n1", "srun", "-N2", "train.py", "x"], "'srun': a launcher, and so is dispatch",
         "dispatch -H n1 train.py x  # --transport slurm has srun start it"),
        (["-H", "n1", "srun", "-N2"], "'srun': a launcher, and so is dispatch",
         "dispatch -H n1 train.py  # --transport slurm has srun start it"),
        (["-H", "n1", "mpirun", "-n", "2", "./a"], "'mpirun': a launcher, and so is dispatch",
         "dispatch import -H n1 -- mpirun -n 2 ./a  # prints the line for dispatch"),
        (["-H", "n1", "--per-node", "mpirun", "./a"], "'mpirun': a program, not a Python script",
         "dispatch -H n1 --per-node --no-python mpirun ./a"),
        (["-w", "n1", "n2", "train.py"], "'n2': a host, not a script: put commas",
         "dispatch -w n1,n2 train.py"),
        (["-w", "n1", "n2"], "'n2': a host, not a script: put commas",
         "dispatch -w n1,n2 train.py"),
    ],
)  # fmt: skip
def test_what_is_surely_no_script(parsed: Parsed, words: list[str], said: str, hint: str) -> None:
    options = parsed("run", *words)
    with pytest.raises(UsageError) as caught:
        mistakes.script(options.words, options)
    assert caught.value.message.startswith(said)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "words", [["train.py"], ["absent.py"], ["data/evaluate.py", "x"], ["./nothing"]]
)
def test_what_may_be_a_script_is_left_to_the_hosts(parsed: Parsed, words: list[str]) -> None:
    options = parsed("run", "-H", "n1", *words)
    mistakes.script(options.words, options)
    assert mistakes.options() == ["-H", "n1"]


@cases(
    ("word", "surely", "anyhow"),
    [("ls", False, False), ("ls -l", True, True), ("a|b", True, True), ("/a b", False, True),
     ("./a b", False, True), (" ", False, False), ("echo 'a/b c'", True, True), ("a*", True, True)],
)  # fmt: skip
def test_text_for_a_shell(word: str, surely: bool, anyhow: bool) -> None:
    assert mistakes.is_shell_text(word) is surely
    assert mistakes.is_shell_text(word, surely=False) is anyhow


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["train.py", "-H", "n1", "x"], "no hosts: -H stands behind the program",
         "dispatch -H n1 train.py x"),
        (["train.py", "x", "--hosts", "n1"], "no hosts: --hosts stands behind",
         "dispatch --hosts n1 train.py x"),
        (["exce", "true"], "'exce': no such command, and no such script here",
         "dispatch exec true"),
        ([], "no hosts given, and no program", "dispatch -h  # examples, and what else there is"),
    ],
)  # fmt: skip
def test_hosts_that_nobody_named(parsed: Parsed, words: list[str], said: str, hint: str) -> None:
    options = parsed("run", *words)
    found = mistakes.no_hosts(options.words)
    assert found is not None
    assert found.message.startswith(said)
    assert found.hint == hint


@pytest.mark.parametrize(
    "words", [["--"], ["train.py"], ["train.py", "-H"], ["frobnicate", "x"], ["-q"]]
)
def test_hosts_that_nobody_named_and_no_more_to_say(parsed: Parsed, words: list[str]) -> None:
    assert mistakes.no_hosts(parsed("run", *words).words) is None


def test_secrets_stay_out_of_hints(parsed: Parsed) -> None:
    parsed("run", "-H", "n1", "-x", "API_TOKEN=abc", "-x", "LR=3", "train.py")
    line = mistakes.line(mistakes.options())
    assert "abc" not in line
    assert line == "dispatch -H n1 -x 'API_TOKEN=<hidden>' -x LR=3"
