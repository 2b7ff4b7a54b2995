"""What was typed is nothing of ours, or hosts complain of it: which of ours is near, as a hint."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS, mistakes
from dispatcher.cli.entry import load_command
from dispatcher.cli.exec import run_exec
from dispatcher.cli.mistakes import Advice
from dispatcher.cli.options.host_options import HostOptions
from dispatcher.cli.run import launch

Asked = Callable[..., "tuple[int, str, str]"]
MEANT = "  # did you mean this?"
DNS = "name not found"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user stands: some files, and no batch job around."""
    for name in ("train.py", "hostfile", "data/evaluate.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("n1\nn2\n")
    (tmp_path / "config").write_text("Host gpu07 login\n")
    (tmp_path / "one").write_text("nosuch.py\n")
    (tmp_path / "programs").write_text("--np 1 nosuch.py\n--np 2 train.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def asked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Asked:
    """Run a command line, and ask for advice about a trouble where a host would be touched.

    The exit code (-1: hosts would be touched); the error without its code; the hint.
    """

    def call(line: str, trouble: str = "") -> tuple[int, str, str]:
        advice: list[str | None] = []

        def touched(_: object, flags: HostOptions, *__: object) -> int:
            advice.append(Advice(flags)(trouble))
            return -1

        monkeypatch.setattr(launch, "_run", touched)
        monkeypatch.setattr(run_exec, "carry_out", lambda *flags, **_: (touched(*flags), ()))
        code = cli.main(shlex.split(line)[1:])
        err = capsys.readouterr().err
        said = re.sub(r"^error: (.*) \[[a-z-]+\]$", r"\1", err, count=1, flags=re.M)
        said, _, hint = said.partition("\n  hint: ")
        return code, said, (hint.strip() if code > 0 else advice[0] if advice else None) or ""

    return call


@cases(
    ("line", "said", "hint"),
    [
        # misspelt, or begun; a number is repeated, no other value is
        ("dispatch --max-restart 3 -H n1 train.py", "--max-restart: no such option",
         f"--max-restarts 3{MEANT}"),
        ("dispatch -H n1 --hang_timout=60 train.py", "--hang-timout: no such option",
         f"--hang-timeout 60{MEANT}"),
        ("dispatch run -H n1 --exprot API_KEY=abc a.py", "--exprot: no such option",
         f"--export{MEANT}"),
        # what is done anyway
        ("dispatch get -r -w n1 /etc got", "-r: no such option: folders are copied whole anyway",
         "without -r"),
        ("dispatch put -rw n1 d /tmp", "-r: no such option: folders are copied whole anyway",
         "without -r"),
        ("dispatch exec -r -w n1 true", "-r: no such option", "dispatch exec --help"),
        # another launcher's, with one dash as mpirun has them, too
        ("dispatch --num_gpus 8 -H n1 a.py", "--num-gpus: no such option",
         f"--nproc-per-node 8{MEANT}"),
        ("dispatch --nodes=2 -H n1 a.py", "--nodes: no such option", f"--nnodes 2{MEANT}"),
        ("dispatch -H n1 --node_rank=0 --nnodes 2 a.py", "--node-rank: no such option",
         "without --node-rank  # dispatch starts every node from one command"),
        ("dispatch -H n1 --max_elastic_nodes 4 a.py", "--max-elastic-nodes: no such option",
         f"--nnodes 4{MEANT}"),
        ("dispatch -H n1 --gpu_ids 0,1 a.py", "--gpu-ids: no such option", "--include host:0,2"),
        ("dispatch -H n1 -ppn 8 a.py", "-ppn: no such option", f"--nproc-per-node 8{MEANT}"),
        ("dispatch run -hostfile hf -np 2 a.py", "-hostfile: no such option", f"-H hf{MEANT}"),
        ("dispatch -H n1 -mca btl tcp a.py", "-mca: no such option",
         "-x OMPI_MCA_btl=tcp  # a variable for the library"),
        ("dispatch -H n1 -genv API_KEY abc a.py", "-genv: no such option",
         f"-x 'API_KEY=<hidden>'{MEANT}"),
        ("dispatch -H n1 -launcher-exec 'sshpass -p abc ssh' a.py",
         "-launcher-exec: no such option", f"--rsh ...{MEANT}"),
        ("dispatch -H n1 --np 1 a.py : -ppn 8 b.py",
         "-ppn: not an option of one program of several",
         "--hostfile, --hosts, --np, --nproc-per-node, --module, --no-python, --python, --chdir, "
         "--export, --env-file"),
        ("dispatch -H n1 -i n1:0 a.py", "-i: no such option", f"--include n1:0{MEANT}"),
        ("dispatch -H n1 -e n2 a.py", "-e: no such option", f"--exclude n2{MEANT}"),
        ("dispatch -f hf a.py", "-f: no such option", f"-H hf{MEANT}"),
        ("dispatch -H n1 -N 1 a.py", "-N: no such option", f"--nproc-per-node 1{MEANT}"),
        ("dispatch -H n1 -c 2 a.py", "-c: no such option", f"--np 2{MEANT}"),
        ("dispatch -t 3 -H n1 a.py", "-t: no such option",
         "without -t  # every line is shown; --log-dir keeps them all"),
        ("dispatch -l -H n1 a.py", "-l: no such option", "without -l  # as dispatch does"),
        ("dispatch -H n1 -wd /tmp a.py", "-wd: no such option", f"--chdir /tmp{MEANT}"),
        ("dispatch -H n1 --timeout 10 a.py", "--timeout: no such option",
         f"--time-limit 10{MEANT}"),
        ("dispatch exec -w n1 --timeout 10 true", "--timeout: no such option",
         f"--command-timeout 10{MEANT}"),
        ("dispatch -H n1 --launcher pdsh a.py", "--launcher: 'pdsh' is not one of: dispatch, "
         "torchrun, accelerate, deepspeed, lightning, llamafactory-cli",
         "without --launcher  # dispatch is the launcher"),
        ("dispatch -H n1 --launcher_args x a.py", "--launcher-args: no such option",
         "dispatch import -- deepspeed ... has them as options"),
        # never the opposite, nor a flag for what has a value, nor an option as a value
        ("dispatch -H n1 --nooversubscribe a.py", "--nooversubscribe: no such option",
         "without --nooversubscribe  # as dispatch does"),
        ("dispatch exec -w n1 --stdn=x true", "--stdn: no such option", "dispatch exec --help"),
        ("dispatch -s -np 2 -H n1 a.py", "-s: no such option",
         "--stdin takes none, all or the number of a rank"),
        # a short name of exec's, in a run
        ("dispatch -H n1 -l me a.py", "-l: no such option", f"--user{MEANT}"),
        ("dispatch -H n1 -p2222 a.py", "-p: no such option", f"--ssh-port{MEANT}"),
        # another command's, and nobody's
        ("dispatch exec -w n1 --nnodes 2 true",
         "--nnodes: no such option here; dispatch run has it", "dispatch exec --help"),
        ("dispatch --command-timeout 5 -H n1 a.py",
         "--command-timeout: no such option here; dispatch exec and dispatch connect have it",
         "dispatch --help"),
        ("dispatch kill -H hf", "-H: no such option here; dispatch sweep has it",
         "dispatch kill --help"),
        ("dispatch -H n1 --xyzzy a.py", "--xyzzy: no such option", "dispatch --help"),
        ("dispatch -H n1 --topic exp1 a.py", "--topic: no such option", "dispatch --help"),
        ("dispatch -H n1 --mail-to me a.py", "--mail-to: no such option", "dispatch --help"),
        ("dispatch history", "'history': no such command or script in this folder",
         "dispatch jobs -a"),
        ("dispatch fold -Z", "-Z: no such option", "dispatch fold --help"),
        # values
        ("dispatch --map-by nod -H n1 a.py", "--map-by: 'nod' is not one of: slot, node, numa, "
         "socket, core, gpu, ppr:N:WHAT", f"--map-by node{MEANT}"),
        ("dispatch check -w n1 --backend infiniband",
         "--backend: 'infiniband' is not one of: tcp, nccl, gloo", "dispatch check --help"),
        ("dispatch completion bsh", "completion: 'bsh' is not one of: bash, zsh, fish",
         f"bash{MEANT}"),
        ("dispatch --profile nigt -H n1 a.py",
         "--profile nigt: there is no dispatch.toml", "{here}/none/dispatch/dispatch.toml"),
        # commands
        ("dispatch config exce", "'exce': no such command", f"exec{MEANT}"),
        ("dispatch help exce", "'exce': no such command or script in this folder",
         "dispatch exec"),
        ("dispatch exce -w n1 hostname", "'exce': no such command or script in this folder",
         "dispatch exec"),
        ("dispatch status", "'status': no such command or script in this folder", "dispatch jobs"),
        ("dispatch disconnect -w n1", "'disconnect': no such command or script in this folder",
         "dispatch connect --close"),
        # forgotten
        ("dispatch", "no hosts given, and no program",
         "dispatch -h  # examples, and all commands"),
        ("dispatch -q", "no hosts given",
         "dispatch -H hostfile train.py, or on this machine: dispatch -H localhost:2 ..."),
        ("dispatch -H n1 --np", "--np: needs a value", "dispatch --help"),
        ("dispatch -H n1 --quiet=yes a.py", "--quiet: takes no value", "dispatch --help"),
        ("dispatch train.py --lr 1 -H hostfile",
         "no hosts: -H comes after the program, so the program gets it",
         "-H hostfile train.py ..."),
        ("dispatch --np 2 train.py --hosts n1",
         "no hosts: --hosts comes after the program, so the program gets it",
         "--hosts n1 train.py ..."),
    ],
)  # fmt: skip
def test_what_may_be_meant(asked: Asked, folder: Path, line: str, said: str, hint: str) -> None:
    assert asked(line) == (2, said, hint.replace("{here}", str(folder)))


def test_names_of_others_are_not_ours_but_mean_what_is_ours() -> None:
    ours = {name[2:] for one in load_command("run").params for name in one.opts}
    assert {one.split()[0] for one in mistakes.FOREIGN.values()} <= ours
    assert not set(mistakes.FOREIGN) & ours
    assert {meant.split()[0] for meant in mistakes._ELSEWHERE.values()} <= set(COMMANDS)
    assert not set(mistakes._ELSEWHERE) & {*COMMANDS, "help"}


@cases(
    ("text", "said", "hint"),
    [
        ("[run]\nmap-by = 'nod'\n",
         "dispatch.toml [run]: map-by: 'nod' is not one of: slot, node, numa, "
         "socket, core, gpu, ppr:N:WHAT", f"node{MEANT}"),
        ("[run]\nmax-restart = 3\n",
         "dispatch.toml [run]: max-restart: run has no such option", "did you mean max-restarts?"),
        ("[rnu]\nnp = 3\n", "dispatch.toml: [rnu]: no such command", "[run]"),
    ],
)  # fmt: skip
def test_a_file_is_named_where_it_is_wrong(
    asked: Asked, folder: Path, text: str, said: str, hint: str
) -> None:
    (folder / "dispatch.toml").write_text(text)
    assert asked("dispatch -H n1 a.py") == (2, said, hint)


def test_a_command_is_refused_where_hosts_are_given_elsewhere(asked: Asked, folder: Path) -> None:
    """Else a misspelt one would be looked for on the hosts, as a script."""
    (folder / "dispatch.toml").write_text("[run]\nhosts = 'n1'\n")
    _, said, hint = asked("dispatch exce uptime")
    assert said == "'exce': no such command or script in this folder"
    assert hint == "dispatch exec  # or, if the hosts have such a script: dispatch run exce"


@cases(
    ("excluded", "noted"),
    [
        ("n7", "note: -x n7: none of the hosts; did you mean n07?\n"),
        ("n07,n3", "note: -x n3: none of the hosts; did you mean n03?\n"),
        ("n07", ""),
        ("m99", ""),  # what is excluded need not be there
    ],
)
def test_a_host_that_stays_in_though_it_may_be_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], excluded: str, noted: str
) -> None:
    monkeypatch.setenv("DISPATCH_CONFIG", "")
    assert cli.main(["hosts", "-w", "n[01-09]", "-x", excluded, "-c"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("8\n" if "n07" in excluded else "9\n", noted)


SHELL = "--shell '...'  # the whole command, in quotes"
IMPORT = "  # prints the line for dispatch"


@cases(
    ("line", "hint"),
    [
        ("dispatch -H hostfile python train.py --lr 1", "train.py ..."),
        ("dispatch -H n1,n2 --np 2 python3 -u train.py", "train.py"),
        ("dispatch -H hostfile python3.12 a.py", "--python python3.12 a.py"),
        ("dispatch -H hostfile python -m pkg.train x", "-m pkg.train ..."),
        ("dispatch -H hostfile python -c 1", "--no-python python ..."),
        ("dispatch -H hostfile -- uname", "--no-python uname"),
        ("dispatch -H hostfile torchrun --nproc-per-node 8 train.py",
         f"dispatch import -- torchrun ...{IMPORT}"),
        ("dispatch -H hostfile python -m torch.distributed.run train.py",
         f"dispatch import -- python ...{IMPORT}"),
        ("dispatch -H n1 mpirun -np 2 python train.py", f"dispatch import -- mpirun ...{IMPORT}"),
        ("dispatch -H n1 --per-node torchrun --nnodes '{nnodes}' train.py",
         "--no-python torchrun ..."),
        ("dispatch -H n1 srun -N 2 --ntasks-per-node 8 python train.py --lr 1",
         "without srun  # --transport slurm has srun start the ranks"),
        ("dispatch -H n1 n2 train.py", "-w n1,n2"),
        ("dispatch -H n1, n2 n3 train.py --lr 1", "-w n1,n2,n3"),
        ("dispatch -H 'n[1-2]:8' 'n[3-4]:8' --np 4 train.py", "-w 'n[1-2]:8,n[3-4]:8'"),
        ("dispatch --hosts=n1 n2", "-w n1,n2"),
        ("dispatch -H n1 'train.py --lr 1'", "without the quotes"),
        ("dispatch -H n1 -m 'pkg.train --lr 1'", "without the quotes"),
        ("dispatch -H n1 --no-python 'echo hi'", "without the quotes"),
        ("dispatch -H n1 --no-python 'echo hi | wc'", "--no-python sh -c '...'"),
        ("dispatch -H n1 --no-python 'A=1 b'", "--no-python sh -c '...'"),
        ("dispatch -H n1 A=1 T_TOKEN=2 python -u train.py x",
         "-x A=1 -x 'T_TOKEN=<hidden>' train.py ..."),
        ("dispatch -H n1 A=1 ./a.out", "-x A=1 --no-python ./a.out"),
        ("dispatch -H n1 --no-python A=1 b", "-x A=1 b"),
        ("dispatch exec -w n1 'ls -l' /tmp", SHELL),
        ("dispatch exec --sudo -w n1 -- 'ls|wc' x", SHELL),
        # of several programs, each
        ("dispatch -H n1 --np 1 python a.py : b.py", "a.py"),
        ("dispatch -H n1 --np 1 a.py : python b.py", "b.py"),
    ],
)  # fmt: skip
def test_refused_before_any_host(asked: Asked, line: str, hint: str) -> None:
    code, _, found = asked(line)
    assert (code, found) == (2, hint)


@cases(
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
        "dispatch -H n1 -m pkg 'a b'",
        "dispatch -H hostfile n2",
        "dispatch exec -w n1 uname -r",
        "dispatch exec -w n1 '/opt/my tools/run' x",
        "dispatch exec -w n1 echo '$1' 'a b'",
        "dispatch exec -w n1 --shell 'uname -r'",
        "dispatch exec -w n1 '/bin/uname -r'",
        "dispatch exec -w n1 '*.sh'",
    ],
)
def test_what_may_be_meant_so_goes_on(asked: Asked, line: str) -> None:
    assert asked(line)[:2] == (-1, "")


@cases("name", ["python", "torchrun", "n2", "job", "uname"])
def test_a_script_that_is_here_is_one_whatever_its_name(
    asked: Asked, folder: Path, name: str
) -> None:
    (folder / name).write_text("print()\n")
    assert asked(f"dispatch -H n1 {name} train.py")[:2] == (-1, "")


ABSENT = "  # no such script here either"
DIR = "  # or a folder that every host has: --chdir DIR"


@cases(
    ("line", "trouble", "hint"),
    [
        # a name that is none: of a file that is here, of one that is nearly here, of a host
        ("-w hostfile train.py", DNS, "-H hostfile  # it is a file, and -w takes lists"),
        ("-w hostfile -w n1 train.py", DNS, ""),
        ("-H hostfil train.py", DNS,
         "-H hostfile  # there is no such file; did you mean this?"),
        ("-H gpu07 train.py", DNS, "getent hosts gpu07  # and there is no such file"),
        ("-H dato train.py", DNS, "getent hosts dato  # and there is no such file"),
        ("-H n1,n2 train.py", DNS, ""),
        ("exec -H hostfil true", DNS,
         "-H hostfile  # there is no such file; did you mean this?"),
        # a host that ssh's files call otherwise
        ("-F config -H gpu7 train.py", DNS, "gpu07  # ssh knows this name; did you mean it?"),
        ("exec -F config -w gpu07,logni true", DNS,
         "login  # ssh knows this name; did you mean it?"),
        ("exec -F config -w gpu08 true", DNS, ""),  # another machine
        ("exec -F config -w 'gpu[07-08]' true", DNS, ""),
        # a script that hosts do not have, nor is it here
        ("-H n1 nosuch.py", "no script", f"ls {{here}}{ABSENT}: nosuch.py"),
        ("-H n1 tran.py x", "no script", f"train.py{ABSENT}; did you mean this?"),
        ("-H n1 data/evalute.py", "no script",
         f"data/evaluate.py{ABSENT}; did you mean this?"),
        ("-H n1 exect x", "no script", f"--no-python exect ...{ABSENT}; if it is a program"),
        ("-H n1 --chdir nowhere train.py", "no script",
         "--chdir DIR  # there is no such folder here either"),
        # of several programs, on the line or in a file
        ("-H n1 --np 1 train.py : tran.py", "no script",
         f"train.py{ABSENT}; did you mean this?"),
        ("-H n1 : --np 1 gone/a.py : train.py", "no script",
         f"ls {{here}}/gone{ABSENT}: gone/a.py"),
        ("-H n1 --app programs", "no script", f"ls {{here}}{ABSENT}: nosuch.py"),
        ("-H n1 --np 1 train.py : train.py x", "no script", f"--sync{DIR}"),
        # a script or a folder that is here
        ("-H n1 -x API_KEY=abc train.py", "no script", f"--sync{DIR}"),
        ("-H n1 train.py", "cwd", f"--sync{DIR}"),
        ("-H n1 --no-python --chdir data prog", "cwd", f"--sync{DIR}"),
        ("-H n1 --no-python --chdir / prog", "cwd", "--chdir DIR  # a folder that every host has"),
        ("-H n1 /etc/hosts", "no script", f"dispatch put HOSTS /etc/hosts /etc/{DIR}"),
        # a program that cannot be one
        ("-H n1 : --np 1 --no-python '/echo a' : --np 1 b.py", "missing", ""),
        ("-H n1 train.py", "missing", ""),
        ("-H n1 --no-python '/opt/echo a'", "missing", "without the quotes"),
        ("-H n1 --no-python prog", "missing", ""),
        # a program that is not here either, is here, or may not be executed
        ("-H n1 --no-python ./data/evalute.py", "missing",
         "./data/evaluate.py  # no such program here either; did you mean this?"),
        ("-H n1 --no-python data/x", "missing",
         "ls {here}/data  # no such program here either: data/x"),
        ("-H n1 --no-python ./train.py", "missing", f"--sync{DIR}"),
        ("-H n1 --no-python /etc/hosts", "missing", f"dispatch put HOSTS /etc/hosts /etc/{DIR}"),
        ("-H n1 --no-python train.py", "missing",
         "--no-python ./train.py  # without ./ it is looked for in PATH"),
        ("-H n1 --no-python ./train.py", "not executable",
         "chmod +x ./train.py  # and on hosts that have their own copy"),
        ("-H n1 --no-python ./nothing", "not executable", ""),
        ("-H n1 --python ./train.py train.py", "not executable", ""),
        ("exec -w n1 'echo a'", "exit code 127", ""),
        ("exec -w n1 '/echo a' b", "exit code 127", SHELL),
        ("exec -w n1 cd /tmp", "exit code 127", SHELL),
        ("exec -w n1 A=1 prog", "exit code 127", SHELL),
        ("exec -w n1 prog", "exit code 127", ""),
        ("exec -w n1 --shell prog", "exit code 127", ""),
        # a blank where a comma was meant
        ("exec -w n1 n2 true", "exit code 127", "-w n1,n2"),
        ("exec -w n1 n2, n3 true", "exit code 127", "-w n1,n2,n3"),
        ("exec -w n1 n2", "exit code 127", ""),
        ("exec -w alpha beta true", "exit code 127", ""),
    ],
)  # fmt: skip
def test_advice(asked: Asked, folder: Path, line: str, trouble: str, hint: str) -> None:
    code, _, found = asked(f"dispatch {line}", trouble)
    assert (code, found) == (-1, hint.replace("{here}", str(folder)))


def test_a_home_is_never_copied(
    asked: Asked, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    found = asked("dispatch -H n1 train.py", "cwd")[2]
    assert found == "--chdir DIR  # a folder that every host has"


@cases(
    ("word", "surely", "anyhow"),
    [("ls", False, False), ("ls -l", True, True), ("a|b", True, True), ("/a b", False, True),
     ("./a b", False, True), (" ", False, False), ("echo 'a/b c'", True, True), ("a*", True, True)],
)  # fmt: skip
def test_text_for_a_shell(word: str, surely: bool, anyhow: bool) -> None:
    assert mistakes.is_shell_text(word) is surely
    assert mistakes.is_shell_text(word, surely=False) is anyhow
