"""What was typed is nothing of ours: which of ours may be meant, as a line to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load
from dispatcher.cli.options.misspelt import FOREIGN

Asked = Callable[[str], list[str]]


@pytest.fixture
def asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Asked:
    """The lines of standard error, without ``error: ``, code and ``  hint: ``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)

    def ask(line: str) -> list[str]:
        assert cli.main(shlex.split(line)[1:]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        told = re.sub(r"^error: (.*) \[[a-z-]+\]$", r"\1", err, count=1, flags=re.M)
        return told.replace("  hint: ", "", 1).splitlines()

    return ask


MEANT = "  # did you mean this?"


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        # misspelt, or begun
        ("dispatch --max-restart 3 -H n1 train.py", "--max-restart: no such option",
         f"dispatch --max-restarts 3 -H n1 train.py{MEANT}"),
        ("dispatch -H n1 --hang_timout=60 train.py", "--hang-timout: no such option",
         f"dispatch -H n1 --hang-timeout=60 train.py{MEANT}"),
        ("dispatch run -H n1 --only 0 a.py", "--only: no such option",
         f"dispatch run -H n1 --only-ranks 0 a.py{MEANT}"),
        ("dispatch exec -w n1 --fanuot 3 true", "--fanuot: no such option",
         f"dispatch exec -w n1 --fanout 3 true{MEANT}"),
        # what is done anyway
        ("dispatch get -r -w n1 /etc got", "-r: no such option: folders are copied whole anyway",
         "dispatch get -w n1 /etc got"),
        ("dispatch put -rw n1 d /tmp", "-r: no such option: folders are copied whole anyway",
         "dispatch put -w n1 d /tmp"),
        ("dispatch put --recursive -w n1 d /tmp",
         "--recursive: no such option: folders are copied whole anyway",
         "dispatch put -w n1 d /tmp"),
        ("dispatch exec -r -w n1 true", "-r: no such option", "dispatch exec --help"),
        # another launcher's
        ("dispatch --num_gpus 8 -H n1 a.py", "--num-gpus: no such option",
         f"dispatch --nproc-per-node 8 -H n1 a.py{MEANT}"),
        ("dispatch --nodes=2 -H n1 a.py", "--nodes: no such option",
         f"dispatch --nnodes=2 -H n1 a.py{MEANT}"),
        ("dispatch -H n1 --node_rank=0 --nnodes 2 a.py", "--node-rank: no such option",
         "dispatch -H n1 --nnodes 2 a.py  # dispatch starts every node from one command"),
        ("dispatch -H n1 --rdzv-id 7 a.py", "--rdzv-id: no such option",
         "dispatch -H n1 a.py  # dispatch proves an address of host 0 and keeps a port free there"),
        ("dispatch -H n1 --max_elastic_nodes 4 a.py", "--max-elastic-nodes: no such option",
         f"dispatch -H n1 --nnodes 4 a.py{MEANT}"),
        ("dispatch -H n1 --gpu_ids 0,1 a.py", "--gpu-ids: no such option", "--include host:0,2"),
        # with one dash, as mpirun has them
        ("dispatch -H n1 -ppn 8 a.py", "-ppn: no such option",
         f"dispatch -H n1 --nproc-per-node 8 a.py{MEANT}"),
        ("dispatch run -hostfile hf -np 2 a.py", "-hostfile: no such option",
         f"dispatch run -H hf -np 2 a.py{MEANT}"),
        ("dispatch -H n1 -wdir /data a.py", "-wdir: no such option",
         f"dispatch -H n1 --chdir /data a.py{MEANT}"),
        ("dispatch -H n1 -mca btl tcp a.py", "-mca: no such option",
         "dispatch -H n1 -x OMPI_MCA_btl=tcp a.py  # a variable for the library"),
        ("dispatch -H n1 --np 1 a.py : -ppn 8 b.py",
         "-ppn: not an option of one program of several",
         "--hostfile, --hosts, --np, --nproc-per-node, --module, --no-python, --python, --chdir, "
         "--export, --env-file"),
        # a short name of exec's, in a run
        ("dispatch -H n1 -l me a.py", "-l: no such option",
         f"dispatch -H n1 --user me a.py{MEANT}"),
        ("dispatch -H n1 -p2222 a.py", "-p: no such option",
         f"dispatch -H n1 --ssh-port 2222 a.py{MEANT}"),
        # another command's
        ("dispatch exec -w n1 --nnodes 2 true",
         "--nnodes: no such option here; dispatch run has it", "dispatch exec --help"),
        ("dispatch --command-timeout 5 -H n1 a.py",
         "--command-timeout: no such option here; dispatch exec and dispatch connect have it",
         "dispatch --help"),
        ("dispatch kill -H hf", "-H: no such option here; dispatch sweep has it",
         "dispatch kill --help"),
        # nobody's
        ("dispatch -H n1 --xyzzy a.py", "--xyzzy: no such option", "dispatch --help"),
        ("dispatch fold -Z", "-Z: no such option", "dispatch fold --help"),
        # values
        ("dispatch --map-by nod -H n1 a.py", "--map-by: 'nod' is not one of: slot, node, numa, "
         "socket, core, gpu, ppr:N:WHAT",
         f"dispatch --map-by node -H n1 a.py{MEANT}"),
        ("dispatch exec -w nod --transport=shh true",
         "--transport: 'shh' is not one of: auto, paramiko, ssh, slurm",
         f"dispatch exec -w nod --transport=ssh true{MEANT}"),
        ("dispatch check -w n1 --backend infiniband",
         "--backend: 'infiniband' is not one of: tcp, nccl, gloo", "dispatch check --help"),
        ("dispatch completion bsh", "completion: 'bsh' is not one of: bash, zsh, fish",
         f"dispatch completion bash{MEANT}"),
        ("dispatch -w n1 --gpus 3 t.py", "--gpus: no such option",
         f"dispatch -w n1 --nproc-per-node 3 t.py{MEANT}"),
        ("dispatch -w n1 --nproc 3 t.py", "--nproc: no such option",
         f"dispatch -w n1 --nproc-per-node 3 t.py{MEANT}"),
        # commands
        ("dispatch config exce", "'exce': no such command", "dispatch config exec"),
        ("dispatch help exce", "'exce': no such command, and no such script here",
         "dispatch exec --help"),
        ("dispatch status", "'status': no such command, and no such script here", "dispatch jobs"),
        ("dispatch disconnect -w n1", "'disconnect': no such command, and no such script here",
         "dispatch connect --close -w n1"),
        # forgotten
        ("dispatch", "no hosts given, and no program",
         "dispatch -h  # examples, and what else there is"),
        ("dispatch run", "no hosts given, and no program",
         "dispatch -h  # examples, and what else there is"),
        ("dispatch -q", "no hosts given",
         "dispatch -H hostfile train.py, or on this machine: dispatch -H localhost:2 ..."),
        ("dispatch -H n1 --np", "--np: needs a value", "dispatch --help"),
        ("dispatch -H n1 --watch=yes a.py", "--watch: takes no value", "dispatch --help"),
    ],
)  # fmt: skip
def test_what_may_be_meant(asked: Asked, line: str, said: str, hint: str) -> None:
    assert asked(line) == [said, hint]


def test_names_of_other_launchers_are_not_ours_but_mean_what_is_ours() -> None:
    ours = {name[2:] for one in load("run").params for name in one.opts}
    assert set(FOREIGN.values()) <= ours
    assert not set(FOREIGN) & ours


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[run]\nmap-by = 'nod'\n",
         "dispatch.toml [run]: map-by: 'nod' is not one of: slot, node, numa, "
         "socket, core, gpu, ppr:N:WHAT",
         f"node{MEANT}"),
        ("[run]\nmax-restart = 3\n",
         "dispatch.toml [run]: max-restart: run has no such option", "did you mean max-restarts?"),
        ("[rnu]\nnp = 3\n", "dispatch.toml: [rnu]: no such command", "[run]"),
    ],
)  # fmt: skip
def test_a_file_is_named_where_it_is_wrong(
    asked: Asked, tmp_path: Path, text: str, said: str, hint: str
) -> None:
    (tmp_path / "dispatch.toml").write_text(text)
    assert asked("dispatch -H n1 a.py") == [said, hint]


def test_a_profile_and_a_job_that_there_are_not(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "dispatch.toml").write_text("[profile.night.run]\nnp = 3\n")
    said = asked("dispatch --profile nigt -H n1 a.py")
    assert said == ["--profile nigt: no such profile", f"--profile night{MEANT}"]


def test_a_command_is_refused_where_hosts_are_given_elsewhere(asked: Asked, tmp_path: Path) -> None:
    """Else a misspelt one would be looked for on the hosts, as a script."""
    (tmp_path / "dispatch.toml").write_text("[run]\nhosts = 'n1'\n")
    said, hint = asked("dispatch exce uptime")
    assert said == "'exce': no such command, and no such script here"
    assert hint == "dispatch exec uptime  # or, if the hosts have such a script: dispatch run exce"


def test_every_command_has_words_that_are_not_misspelt_others() -> None:
    """``dispatch help`` is no command, and none is another launcher's word for one."""
    from dispatcher.cli.mistakes import _ELSEWHERE

    assert {meant.split()[0] for meant in _ELSEWHERE.values()} <= set(COMMANDS)
    assert not set(_ELSEWHERE) & {*COMMANDS, "help"}


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    excluded: str, noted: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("DISPATCH_CONFIG", "")
    assert cli.main(["hosts", "-w", "n[01-09]", "-x", excluded, "-c"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("8\n" if "n07" in excluded else "9\n", noted)
