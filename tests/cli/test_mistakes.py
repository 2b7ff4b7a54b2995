"""The mistakes everybody makes first: each has a hint to paste, most before any host is touched."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import cli
from dispatcher.cli.exec import run_exec
from dispatcher.cli.hints import Advice
from dispatcher.cli.options.host_options import HostOptions
from dispatcher.cli.run import launch

Asked = Callable[[str, str], "tuple[int, str, str]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user stands: a hostfile, a script, and no batch job around."""
    (tmp_path / "hostfile").write_text("n1\nn2\n")
    (tmp_path / "train.py").write_text("print('hi')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    return tmp_path


@pytest.fixture
def asked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Asked:
    """Run a command line, and ask for advice about a trouble where a host would be touched."""

    def call(line: str, trouble: str) -> tuple[int, str, str]:
        advice: list[str | None] = []

        def touched(_: object, flags: HostOptions, *__: object) -> int:
            advice.append(Advice(flags)(trouble))
            return -1

        monkeypatch.setattr(launch, "_run", touched)
        monkeypatch.setattr(run_exec, "carry_out", touched)
        code = cli.main(shlex.split(line)[1:])
        return code, capsys.readouterr().err, (advice[0] if advice else None) or ""

    return call


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("dispatch -H hostfile python train.py --lr 1", "dispatch -H hostfile train.py --lr 1"),
        ("dispatch -H n1,n2 --np 2 python3 -u train.py", "dispatch -H n1,n2 --np 2 train.py"),
        ("dispatch -H hostfile python3.12 a.py", "dispatch -H hostfile --python python3.12 a.py"),
        ("dispatch -H hostfile python -m pkg.train x", "dispatch -H hostfile -m pkg.train x"),
        ("dispatch -H hostfile python -c 1", "dispatch -H hostfile --no-python python -c 1"),
        ("dispatch -H hostfile uname -r", "dispatch -H hostfile --no-python uname -r"),
        ("dispatch -H hostfile -- uname", "dispatch -H hostfile --no-python uname"),
        (
            "dispatch -H hostfile torchrun --nproc-per-node 8 train.py",
            "dispatch import -H hostfile -- torchrun --nproc-per-node 8 train.py"
            "  # prints the line for dispatch",
        ),
        (
            "dispatch -H hostfile python -m torch.distributed.run train.py",
            "dispatch import -H hostfile -- python -m torch.distributed.run train.py"
            "  # prints the line for dispatch",
        ),
        (
            "dispatch -H n1 deepspeed train.py",
            "dispatch import -H n1 -- deepspeed train.py  # prints the line for dispatch",
        ),
        (
            "dispatch -H n1 accelerate launch train.py",
            "dispatch import -H n1 -- accelerate launch train.py  # prints the line for dispatch",
        ),
        (
            "dispatch -H n1 mpirun -np 2 python train.py",
            "dispatch import -H n1 -- mpirun -np 2 python train.py  # prints the line for dispatch",
        ),
        (
            "dispatch -H n1 --per-node torchrun --nnodes '{nnodes}' train.py",
            "dispatch -H n1 --per-node --no-python torchrun --nnodes '{nnodes}' train.py",
        ),
        (
            "dispatch -H n1 srun -N 2 --ntasks-per-node 8 python train.py --lr 1",
            "dispatch -H n1 train.py --lr 1  # --transport slurm has srun start it",
        ),
        ("dispatch -H n1 n2 train.py", "dispatch -H n1,n2 train.py"),
        ("dispatch -H n1, n2 n3 train.py --lr 1", "dispatch -H n1,n2,n3 train.py --lr 1"),
        ("dispatch -H 'n[1-2]:8' 'n[3-4]:8' --np 4 train.py",
         "dispatch -H 'n[1-2]:8,n[3-4]:8' --np 4 train.py"),
        ("dispatch --hosts=n1 n2", "dispatch --hosts=n1,n2 train.py"),
        ("dispatch -H n1 'train.py --lr 1'", "dispatch -H n1 train.py --lr 1"),
        ("dispatch -H n1 -m 'pkg.train --lr 1'", "dispatch -H n1 -m pkg.train --lr 1"),
        ("dispatch -H n1 --no-python 'echo hi'", "dispatch -H n1 --no-python echo hi"),
        ("dispatch -H n1 --no-python 'echo hi | wc'",
         "dispatch -H n1 --no-python sh -c 'echo hi | wc'"),
        ("dispatch -H n1 --no-python 'A=1 b'", "dispatch -H n1 --no-python sh -c 'A=1 b'"),
        ("dispatch -H n1 A=1 T_TOKEN=2 python -u train.py x",
         "dispatch -H n1 -x A=1 -x 'T_TOKEN=<hidden>' train.py x"),
        ("dispatch -H n1 A=1 ./a.out", "dispatch -H n1 -x A=1 --no-python ./a.out"),
        ("dispatch -H n1 --no-python A=1 b", "dispatch -H n1 --no-python -x A=1 b"),
        ("dispatch job", "dispatch jobs"),
        ("dispatch exce -w n1 hostname", "dispatch exec -w n1 hostname"),
        ("dispatch chekc -H hostfile", "dispatch check -H hostfile"),
        ("dispatch train.py --lr 1 -H hostfile", "dispatch -H hostfile train.py --lr 1"),
        ("dispatch --np 2 train.py --hosts n1", "dispatch --np 2 --hosts n1 train.py"),
        ("dispatch exec -w n1 'ls -l' /tmp", "dispatch exec -w n1 'ls -l /tmp'"),
        ("dispatch exec --sudo -w n1 -- 'ls|wc' x", "dispatch exec --sudo -w n1 'ls|wc x'"),
    ],
)  # fmt: skip
def test_refused_before_any_host(asked: Asked, line: str, hint: str) -> None:
    code, said, _ = asked(line, "")
    assert (code, said.splitlines()[1:]) == (2, [f"  hint: {hint}"])


@pytest.mark.parametrize(
    "line",
    [
        "dispatch -H n1 train.py",
        "dispatch -H n1 elsewhere.py",  # scripts may be on the hosts alone
        "dispatch -H n1 A=1",
        "dispatch -H n1 my.train",
        "dispatch -H n1 n2.py",
        "dispatch -H n1 sub/python.py",
        "dispatch -H n1 'my train.py'",
        "dispatch -H n1 --chdir /somewhere uname",
        "dispatch -H n1 --python bash uname",
        "dispatch -H n1 --no-python uname -r",
        "dispatch -H n1 train.py -H hostfile",
        "dispatch -H n1 --no-python torchrun train.py",
        "dispatch -H n1 --no-python '/opt/my tools/run' x",
        "dispatch -H n1 --no-python sh -c 'echo hi | wc'",
        "dispatch -H n1 -m pkg 'a b'",
        "dispatch -H hostfile n2",
        "dispatch exec -w n1 uname -r",
        "dispatch exec -w n1 '/opt/my tools/run' x",
        "dispatch exec -w n1 echo '$HOME' 'a b'",
        "dispatch exec -w n1 find . -name '*.py'",
        "dispatch exec -w n1 --shell 'uname -r'",
        "dispatch exec -w n1 'uname -r'",
        "dispatch exec -w n1 '/bin/uname -r'",
        "dispatch exec -w n1 '*.sh'",
    ],
)
def test_what_may_be_meant_so_goes_on(asked: Asked, line: str) -> None:
    assert asked(line, "")[:2] == (-1, "")


@pytest.mark.parametrize("name", ["python", "torchrun", "n2", "job", "uname"])
def test_a_script_that_is_here_is_one_whatever_its_name(
    asked: Asked, folder: Path, name: str
) -> None:
    (folder / name).write_text("print()\n")
    assert asked(f"dispatch -H n1 {name} train.py", "")[:2] == (-1, "")


@pytest.mark.parametrize(
    ("line", "trouble", "hint"),
    [
        ("dispatch -H n1 nosuch.py", "no script", "ls {here}  # no such script here either"),
        ("dispatch -H n1 trian.py --lr 1", "no script",
         "dispatch -H n1 train.py --lr 1  # no such script here either; did you mean this?"),
        ("dispatch -H n1 nosuch", "no script",
         "dispatch -H n1 --no-python nosuch  # no such script here either; if it is a program"),
        ("dispatch -H n1 --user me --ssh-port 22 train.py", "no script",
         "dispatch -H n1 --user me --ssh-port 22 --sync train.py"
         "  # or a folder that every host has: --chdir DIR"),
        ("dispatch -H n1 train.py", "cwd",
         "dispatch -H n1 --sync train.py  # or a folder that every host has: --chdir DIR"),
        ("dispatch -H n1 --no-python uname", "cwd",
         "dispatch -H n1 --no-python --sync uname  # or a folder that every host has: --chdir DIR"),
        ("dispatch -H n1 trian.py", "cwd",
         "dispatch -H n1 train.py  # no such script here either; did you mean this?"),
        ("dispatch -H n1 --chdir /no/where train.py", "cwd",
         "--chdir DIR  # there is no such folder here either"),
        ("dispatch -H n1 --no-python './echo hi'", "missing",
         "dispatch -H n1 --no-python ./echo hi"),
        ("dispatch -H n1 --no-python uname", "missing", ""),
        ("dispatch -H hostfiel train.py", "name not found",
         "dispatch -H hostfile train.py  # there is no such file here; did you mean this?"),
        ("dispatch -H myhosts train.py", "name not found",
         "getent hosts myhosts  # and there is no such file here"),
        ("dispatch -H hostfile train.py", "name not found", ""),
        ("dispatch -H n1,n2 train.py", "name not found", ""),
        ("dispatch exec -H hostfiel uname", "name not found",
         "dispatch exec -H hostfile uname  # there is no such file here; did you mean this?"),
        ("dispatch exec -w hostfile uname", "name not found",
         "dispatch exec -H hostfile uname  # it is a file here, and -w takes lists"),
        ("dispatch exec -w n1 '/bin/uname -r'", "exit code 127", ""),
        ("dispatch exec -w n1 cd", "exit code 127", "dispatch exec -w n1 --shell cd"),
        ("dispatch exec -w n1 cd /tmp", "exit code 127", "dispatch exec -w n1 'cd /tmp'"),
        ("dispatch exec -w n1 A=1 b", "exit code 127", "dispatch exec -w n1 'A=1 b'"),
        ("dispatch exec -w n1 n2 uname", "exit code 127", "dispatch exec -w n1,n2 uname"),
        ("dispatch exec -w n1 nosuch", "exit code 127", ""),
        ("dispatch exec -w n1 --shell nosuch", "exit code 127", ""),
    ],
)  # fmt: skip
def test_what_this_machine_knows_about_a_trouble(
    asked: Asked, folder: Path, line: str, trouble: str, hint: str
) -> None:
    code, _, advice = asked(line, trouble)
    assert code == -1
    assert advice == hint.format(here=folder)


def test_a_home_directory_is_not_to_be_copied(
    asked: Asked, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert (
        asked("dispatch -H n1 train.py", "cwd")[2] == "--chdir DIR  # a folder that every host has"
    )


def test_secrets_are_not_repeated(asked: Asked) -> None:
    line = "dispatch -H n1 -x A=1 -x API_KEY=abc -xWANDB_TOKEN=abc --export=DB_PASSWORD=abc"
    for said in (
        asked(f"{line} python train.py", "")[1],
        asked(f"{line} trian.py", "no script")[2],
    ):
        assert "dispatch -H n1 -x A=1 -x 'API_KEY=" in said
        assert "abc" not in said
