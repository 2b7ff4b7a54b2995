"""Other launchers' lines: the migration document holds, and nothing is dropped in silence."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import cli
from dispatcher.cli.entry import load_command
from dispatcher.model.errors import CannotTranslate, UsageError
from dispatcher.plan import compat, compat_flags
from dispatcher.plan.compat import translate

RUN = load_command("run")
DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "migration.md"
ROWS = re.findall(r"^\| `(.+?)` \| `(dispatch .+?)` \|$", DOCUMENT.read_text(), re.M)
TABLES = {
    "torchrun": compat_flags.TORCHRUN,
    "deepspeed": compat_flags.DEEPSPEED,
    "accelerate launch": compat_flags.ACCELERATE,
    "mpirun": compat_flags.MPIRUN,
    "srun": compat_flags.SRUN,
    "sky": compat_flags.SKY,
}
#: files that lines name
FILES = {
    "hosts": "n1\nn2  # two\n",
    "counted": "n1:4\nn2:4\n",
    "many": "n1:16\nn2:16\na:16\nb:16\n",
    "prod.env": "A=1",
    "ranks": "rank 0=n1 slot=0\nrank 1=n2 slot=0",
    "task.yaml": """\
# a task of SkyPilot's documentation, shortened
name: train
num_nodes: 2   # machines
resources:
  accelerators: A100:8
workdir: .
envs:
  MODEL: "a b"
  LR: 3e-4  # rate
  TOKEN:

setup: |
  pip install torch

run: |
  first=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes $SKYPILOT_NUM_NODES --node_rank ${SKYPILOT_NODE_RANK} \\
    --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE --master_addr $first train.py
""",
    "one.yaml": "run: python train.py",
    "odd.yaml": "num_nodes: 2\nservice:\n  port: 1\nrun: a",
    "ips.yaml": "run: |\n  n=$(echo $SKYPILOT_NODE_IPS | wc -l)\n",
    "brace.yaml": "run: echo ${host}",
    "none.yaml": "num_nodes: 2\n",
}
#: what another launcher's own tests and pages have its users type -> what becomes of it: dispatch's
#: words ("" for a line of the same meaning in the tables below), or why it is refused
PEERS = {
    # torchrun: variables are defaults of its flags
    "PET_NPROC_PER_NODE=4 PET_NNODES=2 torchrun t.py": "--nnodes 2 --nproc-per-node 4 t.py",
    "PET_STANDALONE=1 A=1 torchrun t.py": "-x A=1 -H localhost --nproc-per-node 1 t.py",
    "PET_STANDALONE=0 PET_MAX_RESTARTS=3 torchrun --nproc-per-node 2 t.py":
        "--max-restarts 3 --nproc-per-node 2 t.py",
    "PET_NNODES=2 torchrun --nnodes 3 t.py": "! --nnodes=2 and --nnodes 3 contradict each other",
    "PET_NOSUCH=2 torchrun t.py": "! torchrun: --nosuch: not known here",
    "torchrun --nnodes 2:1 t.py": "! --nnodes: 1 is not between 2 and",
    "torchrun --nnodes 0 t.py": "! --nnodes: 0 is not between 1 and",
    "torchrun --nnodes 2:x t.py": "! --nnodes: not a whole number: 'x'",
    "torchrun --max-restarts -1 t.py": "! --max-restarts: not a whole number: '-1'",
    "torchrun --max-restarts 0 --nproc-per-node 2 t.py": "--max-restarts 0 --nproc-per-node 2 t.py",
    "torchrun --master-port 65536 t.py": "! 65536 is not between 1 and 65535",
    "torchrun --shutdown-timeout 1x t.py": "! not a number of seconds: '1x'",
    # deepspeed: words for the launcher below it, its variables, where Python looks
    "deepspeed --launcher openmpi --launcher_args '-mca btl_tcp_if_include eth1 -x A=1' t.py":
        "--iface eth1 -x A=1 --local-rank-arg --local_rank t.py",
    "deepspeed --launcher=impi --launcher_args='-genv A 1' --no_local_rank t.py": "-x A=1 t.py",
    "deepspeed --launcher slurm --launcher_args '-p part --nodelist n1,n2' --no_local_rank t.py":
        "-w n1,n2 t.py",
    "deepspeed --launcher openmpi --launcher_args '-nosuch' t.py": "! openmpi: -nosuch: not known",
    "deepspeed --launcher openmpi --launcher_args 'a b' t.py": "! openmpi: a: not known here",
    "deepspeed --launcher_args '-u 3' t.py": "! pdsh: -u: not known here",
    "deepspeed --launcher mvapich --launcher_args 'A=1' t.py": "! mvapich: A=1: not known here",
    "deepspeed --launcher openmpi --launcher_args \"it's\" t.py": "! No closing quotation",
    "PYTHON_EXEC=/p/python deepspeed --no_local_rank t.py": "--python /p/python t.py",
    "DS_ENV_FILE=prod.env deepspeed --no_local_rank t.py": "--env-file prod.env t.py",
    "PDSH_SSH_ARGS_APPEND='-p 2222' deepspeed --no_local_rank t.py": "--ssh-port 2222 t.py",
    "PDSH_SSH_ARGS_APPEND='-i k -p 22' deepspeed --no_local_rank t.py":
        "--rsh 'ssh -i k -p 22 {host}' t.py",
    "PDSH_RCMD_TYPE=ssh deepspeed --no_local_rank t.py": "t.py",
    "deepspeed -H many --no_local_rank tools/t.py": "-x PYTHONPATH=. -H many tools/t.py",
    "deepspeed --no_python --no_local_rank a": "-x PYTHONPATH=. --no-python a",
    "deepspeed --module --no_local_rank a.b": "-m a.b",
    "PYTHONPATH=src deepspeed --no_local_rank tools/t.py":
        "-x PYTHONPATH=src -x PYTHONPATH=.:src tools/t.py",
    "deepspeed --num_nodes 0 t.py": "! --nnodes: 0 is not between 1 and",
    # Hydra: a name is one slot, they are taken in turn, again from the first
    "mpiexec -n 8 -hosts a,b ./a":
        "--np 8 -H a:1,b:1 --oversubscribe --map-by node --no-python ./a",
    "mpiexec -hosts n1,n2,n1 ./a": "-H n1:2,n2:1 --map-by node --no-python ./a",
    "mpiexec -hosts n1,n1,n2 ./a": "-H n1:2,n2:1 --no-python ./a",
    "mpiexec -hosts n1:2,n2:2 ./a": "-H n1:2,n2:2 --no-python ./a",
    "mpiexec -hosts n1,n2,n2,n1 ./a": "! ranks would be elsewhere",
    "mpiexec -n 4 -ppn 2 -hosts a,b ./a": "--np 4 --nproc-per-node 2 -H a,b --no-python ./a",
    "mpiexec -f hosts -n 5 ./a": "-H hosts --oversubscribe --map-by node --np 5 --no-python ./a",
    "mpiexec -f counted -n 5 ./a": "-H counted --np 5 --no-python ./a",
    "mpiexec -f hosts -ppn 2 ./a": "-H hosts --nproc-per-node 2 --no-python ./a",
    "MPIEXEC_TIMEOUT=5 mpiexec -n 2 ./a": "--time-limit 5 --np 2 --no-python ./a",
    "HYDRA_LAUNCHER=ssh mpiexec -n 2 ./a": "--np 2 --no-python ./a",
    # Open MPI
    "mpirun --timeout 10 --nooversubscribe --display-map --merge-stderr-to-stdout ./a":
        "--time-limit 10 --no-python ./a",
    "mpirun --forward-signals SIGUSR1 -n 2 ./a": "--np 2 --no-python ./a",
    "mpirun --output tag ./a": "! --output tag: cannot be met",
    "mpirun -s -np 2 ./a": "! -s -np: --stdin: not a whole number",
    "mpirun -hostfile hosts -host n1,n2 -n 2 ./a": "-H n1:1,n2:1 --np 2 --no-python ./a",
    "mpirun -H 'n1:*' ./a": "! slots: not a whole number: '*'",
    "mpirun -x A,B ./a": "! not a variable name: 'A,B'",
    "mpirun -n 0 ./a": "! --np: 0 is not between 1 and",
    # srun
    "srun -N2 -n16 --ntasks-per-node=8 -D /x -l -t 30 -K --mpi=pmi2 --gres=gpu:8 python t.py":
        "--nnodes 2 --np 16 --nproc-per-node 8 --chdir /x --time-limit 30m --python python t.py",
    "srun -w 'n[1-4]' -x n2,n4 --export=ALL,A=1,B ./a":
        "-w 'n[1-4]' --exclude n2@n4 -x A=1 -x B --no-python ./a",
    "srun -w ./hosts --export NONE -t 1-12:00:00 ./a":
        "-H ./hosts --time-limit 1-12:00:00 --no-python ./a",
    "srun --kill-on-bad-exit=1 -c 8 --cpu-bind=cores -m cyclic -O -u ./a":
        "--bind-to core --bind-to core --map-by node --oversubscribe --no-python ./a",
    "srun --container-image=nvcr.io#a/b:1 --container-mounts /d:/e:ro+rprivate,/f python t.py":
        "--container-image nvcr.io/a/b:1 --mount /d:/e:ro --mount /f:/f --python python t.py",
    "srun -o out.txt ./a": "! -o out.txt: cannot be met",
    "srun -N 2-4 ./a": "! --nnodes: not a whole number: '2-4'",
    "srun -t soon ./a": "! --time-limit: not a time: 'soon'",
    "srun -lu ./a": "! -lu: not known here",
    "srun --multi-prog f": "! --multi-prog: cannot be met",
    "srun --cpu-bind=map_cpu:0,1 ./a": "! cannot be met",
    "srun --het-group=1 ./a": "! --het-group: not known here",
    # SkyPilot
    "sky launch -c x --env Q=1 -y one.yaml":
        "-x Q=1 --per-node --no-python bash -c 'python train.py'",
    "sky launch --num-nodes 4 odd.yaml": "! odd.yaml: service: cannot be met",
    "sky launch ips.yaml": "! ips.yaml: SKYPILOT_: cannot be met",
    "sky launch brace.yaml": "! brace.yaml: {host}: cannot be met",
    "sky launch none.yaml": "! none.yaml: run: cannot be met",
    "sky launch": "! sky: only a file of a task",
    "sky status x": "! sky: only a file of a task",
}  # fmt: skip


def test_the_document_has_its_rows() -> None:
    assert len(ROWS) == 25


@cases(("line", "wanted"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_the_document(line: str, wanted: str) -> None:
    assert translate(shlex.split(line)).words == tuple(shlex.split(wanted))


#: of PEERS, those that do something else on purpose -> what the document says of it
DIFFERENT = {
    "mpirun --timeout 10 --nooversubscribe --display-map --merge-stderr-to-stdout ./a": "`2>&1`",
    "mpiexec -f counted -n 5 ./a": "more ranks than slots are an error",
    "deepspeed --module --no_local_rank a.b": "puts the current folder first on `PYTHONPATH`",
    "srun -w ./hosts --export NONE -t 1-12:00:00 ./a": "srun sends the whole environment",
    "srun --kill-on-bad-exit=1 -c 8 --cpu-bind=cores -m cyclic -O -u ./a": "`--stdin all`",
    "sky launch -c x --env Q=1 -y one.yaml": "it runs once on each host",
}


def test_what_differs_is_in_the_document() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert [line for line, said in DIFFERENT.items() if said not in text] == []
    refused = [line for line, became in PEERS.items() if became.startswith("! ")]
    same = PEERS.keys() - DIFFERENT.keys() - {*refused}
    assert (len(same), len(DIFFERENT), len(refused)) == (29, 6, 33)


@cases(("line", "became"), [*PEERS.items()], ids=[line[:40] for line in PEERS])
def test_what_users_of_other_launchers_type(line: str, became: str) -> None:
    if became.startswith("! "):
        with pytest.raises(CannotTranslate) as caught:
            translate(shlex.split(line), FILES.__getitem__)
        assert became[2:] in caught.value.message
    else:
        found = translate(shlex.split(line), FILES.__getitem__)
        assert shlex.join(found.words[1:]) == became
        assert all(reason.words or reason.why for reason in found.reasons)


def test_dispatch_takes_every_line_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("A", "B", "C", "PATH", "TOKEN"):
        monkeypatch.setenv(name, "1")
    for name in (*FILES, "f", "d/f"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILES["ranks" if name[-1:] == "f" else "many" if name == "hosts" else name])
    told = [line for line, became in PEERS.items() if not became.startswith("! ")]
    told += [line for line, _ in ROWS] + [line for line, _ in BEYOND]
    wrong = {}
    for line in [*told, "sky launch task.yaml"]:
        words = [*translate(shlex.split(line), FILES.__getitem__).words]
        if {"-H", "-w"}.isdisjoint(words):
            words[1:1] = ["-H", "n[1-4]:16"]
        if cli.main(["run", "--dry-run", *words[1:]]) != 0:
            wrong[line] = (shlex.join(words), capsys.readouterr().err)
    assert wrong == {}
    assert len(told) > 100


def test_a_task_of_skypilot() -> None:
    found = translate(["sky", "launch", "task.yaml"], FILES.__getitem__)
    assert shlex.join(found.options) == (
        "--nnodes 2 -x 'MODEL=a b' -x LR=3e-4 -x TOKEN --per-node --no-python"
    )
    assert found.program == (
        "bash", "-c",
        "first=$(echo $MASTER_ADDR)\ntorchrun --nnodes $NNODES --node_rank ${NODE_RANK} \\\n"
        "  --nproc_per_node=$NPROC_PER_NODE --master_addr $first train.py",
    )  # fmt: skip
    undone = [one.written[0] for one in found.reasons if one.why.startswith("NOT DONE")]
    assert undone == ["workdir:", "setup:"]


def test_ranks_are_where_hydra_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    for hosts, wanted in (("n1,n2", "n1 n2 n1 n2 n1"), ("n1,n2,n1", "n1 n2 n1")):
        words = ["mpiexec", "-n", str(len(wanted.split())), "-hosts", hosts, "./a"]
        assert cli.main(["run", "--dry-run", "--json", *translate(words).words[1:]]) == 0
        ranks = json.loads(capsys.readouterr().out)["ranks"]
        assert [one["host"] for one in ranks] == wanted.split()


@cases("who", TABLES)
def test_every_flag_becomes_options_that_exist(who: str) -> None:
    known = {name for param in RUN.params for name in (*param.opts, *param.secondary_opts)}
    for name, flag in TABLES[who].items():
        try:
            words = flag.becomes(*["1"] * flag.values) or ()
        except (UsageError, ValueError):
            continue
        options = [word for word in words if word.startswith("-")]
        assert set(options) <= known, name


@cases(
    ("line", "said"),
    [
        ("", "not a launcher"),
        ("horovodrun t.py", "not a launcher that dispatch knows: 'horovodrun'"),
        ("python train.py", "not a launcher"),
        ("torchrun --nosuch 1 train.py", "torchrun: --nosuch: not known here"),
        ("torchrun --nnodes", "torchrun: --nnodes: its value is missing"),
        ("torchrun --nnodes 2", "torchrun: no script in it"),
        ("torchrun --no-python=1 x", "takes no value"),
        ("torchrun --run-path train.py", "torchrun: --run-path: cannot be met"),
        ("deepspeed --venv_script v train.py", "deepspeed: --venv_script v: cannot be met"),
        ("accelerate config", "only its launch command"),
        ("accelerate launch --use_fsdp train.py", "cannot be met"),
        ("mpirun -np 2 ./a : -np 2", "mpirun: no program in it"),
        ("mpirun -n 2 ./a : -ppn 2 ./b", "-ppn 2: of several programs"),
        ("mpirun -app file", "cannot be met"),
        ("mpirun --map-by ppr:2:l3cache ./a", "ppr:2:l3cache' is not one of"),
        ("mpirun --map-by numa:PE=2 ./a", "PE=2 cannot be met"),
        ("mpirun --map-by slot:oversubscribe,PE=2 ./a", ": PE=2 cannot be met"),
        ("mpirun --map-by seq ./a", "'seq' is not one of"),
        ("mpirun --rank-by core ./a", "cannot be met"),
        ("mpirun --rank-by span ./a", "cannot be met"),
        ("mpirun --bind-to l3cache ./a", "cannot be met"),
        ("mpirun --bind-to hwthread ./a", "cannot be met"),
        ("mpirun -np 2", "mpirun: no program in it"),
        ("mpirun --mca rmaps_base_mapping_policy node ./a", "only mpirun itself uses"),
        ("mpirun --mca hwloc_base_binding_policy core ./a", "only mpirun itself uses"),
        ("mpirun --prtemca rmaps_default_mapping_policy node ./a", "only mpirun itself uses"),
        ("mpirun -H a:2 -H b:2 ./a", "mpirun: -H a:2 and -H b:2 contradict each other"),
        ("mpirun -n 1 --bind-to core ./a : -n 2 --bind-to none ./b",
         "mpirun: --bind-to core and --bind-to none contradict each other"),
        ("torchrun --nproc-per-node cpu t.py",
         "torchrun: --nproc-per-node cpu: --nproc-per-node: not a whole number: 'cpu'"),
    ],
)  # fmt: skip
def test_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate(shlex.split(line))
    assert said in caught.value.message


#: lines beside those of the document, and what becomes of them
BEYOND = [
    ("python -u -B -m torch.distributed.run --nnodes 1:4 t.py",
     "--nnodes 1:4 --max-restarts 3 --nproc-per-node 1 t.py"),
    ("/opt/bin/python3.11 -m torch.distributed.launch --use_env t.py",
     "--nproc-per-node 1 t.py"),
    ("python -m torch.distributed.launch t.py",
     "--nproc-per-node 1 --local-rank-arg --local-rank t.py"),
    ("torchrun --nproc_per_node=gpu -- --odd.py a", "--nproc-per-node gpu -- --odd.py a"),
    ("torchrun --max_restarts=5 --nnodes=2:4 --nproc-per-node 8 t.py",
     "--max-restarts 5 --nnodes 2:4 --nproc-per-node 8 t.py"),
    ("torchrun --nproc-per-node 8 t.py a : b", "--nproc-per-node 8 -- t.py a : b"),
    ("torchrun --rdzv-endpoint= - x", "--nproc-per-node 1 - x"),
    ("torchrun --rdzv_endpoint h:1 - x", "--nproc-per-node 1 - x"),
    ("torchrun -m pkg -m", "-m --nproc-per-node 1 pkg -m"),
    ("torchrun --no-python a -m", "--no-python --nproc-per-node 1 a -m"),
    ("deepspeed --no_local_rank t.py", "t.py"),
    ("ds --num_gpus=2 t.py", "--nproc-per-node 2 --local-rank-arg --local_rank t.py"),
    ("accelerate launch --dynamo_backend inductor --cpu t.py",
     "-x ACCELERATE_DYNAMO_BACKEND=INDUCTOR -x ACCELERATE_USE_CPU=true t.py"),
    ("accelerate launch --mixed_precision bf16 t.py",
     "-x ACCELERATE_MIXED_PRECISION=bf16 t.py"),
    ("mpirun -n 2 -- python -u -m pkg a", "--np 2 --python python -m pkg a"),
    ("mpirun /opt/python3.11 -u -u t.py -u", "--python /opt/python3.11 t.py -u"),
    ("mpirun python -m", "--no-python python -m"),
    ("mpirun python -c x", "--no-python python -c x"),
    ("mpirun python", "--no-python python"),
    ("mpirun python -u", "--no-python python -u"),
    ("mpirun pythonic t.py", "--no-python pythonic t.py"),
    ("mpirun /x/python t.py", "--python /x/python t.py"),
    ("mpirun -genv A 1 -genvlist B,,C ./a", "-x A=1 -x B -x C --no-python ./a"),
    ("mpirun -map-by ppr:4:node ./a", "--nproc-per-node 4 --no-python ./a"),
    ("mpirun -map-by node:OVERSUBSCRIBE ./a", "--map-by node --oversubscribe --no-python ./a"),
    ("mpirun --map-by :OVERSUBSCRIBE ./a", "--oversubscribe --no-python ./a"),
    ("mpirun --map-by ppr:2:package ./a", "--map-by ppr:2:socket --no-python ./a"),
    ("mpirun --map-by numa:nooversubscribe ./a", "--map-by numa --no-python ./a"),
    ("mpirun --rank-by node --map-by slot ./a",
     "--rank-by node --map-by slot --no-python ./a"),
    ("mpirun -H n1,n2:2 --bind-to none -n 1 ./a x : -n 2 -x A=1 --wdir d python b.py",
     "--bind-to none -H n1:1,n2:2 --np 1 --no-python ./a x "
     ": --np 2 -x A=1 --chdir d --python python b.py"),
    ("mpiexec -genv G 1 -n 1 -env A 1 ./a : -n 2 -iface ib0 ./b",
     "--iface ib0 -x G=1 --np 1 -x A=1 --no-python ./a : -x G=1 --np 2 --no-python ./b"),
    ("mpirun -n 1 -q -wdir d ./a : -n 2 -q -wdir e -tag-output ./b",
     "--quiet --quiet --np 1 --chdir d --no-python ./a : --np 2 --chdir e --no-python ./b"),
    ("mpirun --rankfile f -n 2 ./a", "--rankfile f --np 2 --no-python ./a"),
    ("mpirun --map-by rankfile:FILE=d/f ./a", "--rankfile d/f --no-python ./a"),
    ("mpirun -map-by slot ./a", "--map-by slot --no-python ./a"),
    ("mpirun -np 2 -H a,b ./a", "--np 2 -H a:1,b:1 --no-python ./a"),
    ("mpirun -np 3 -H a:2,b ./a", "--np 3 -H a:2,b:1 --no-python ./a"),
    ("mpirun --host a,a,b ./a", "-H a,a,b --no-python ./a"),
    ("mpirun -n 4 -host a ./a : -host b ./b",
     "--np 4 -H a --no-python ./a : -H b --no-python ./b"),
    ("mpirun -map-by core ./a", "--map-by core --no-python ./a"),
    ("mpirun --bind-to core:overload-allowed -report-bindings ./a",
     "--bind-to core --report-bindings --no-python ./a"),
    ("mpirun -bind-to socket ./a", "--bind-to socket --no-python ./a"),
    ("torchrun --numa-binding=node --nproc-per-node 8 t.py",
     "--bind-to gpu --nproc-per-node 8 t.py"),
    ("torchrun --numa_binding exclusive --nproc-per-node 8 t.py",
     "--bind-to core --nproc-per-node 8 t.py"),
    ("deepspeed --bind_cores_to_rank --no_local_rank t.py", "--bind-to core t.py"),
    ("accelerate launch --enable_cpu_affinity t.py", "--bind-to gpu t.py"),
    ("mpirun -mca orte_default_hostfile many ./a", "-H many --no-python ./a"),
    ("mpirun --prtemca prte_default_hostfile many ./a", "-H many --no-python ./a"),
    ("mpirun -mca plm_rsh_agent ssh ./a", "--rsh ssh --no-python ./a"),
    ("mpirun -mca plm_ssh_agent ssh ./a", "--rsh ssh --no-python ./a"),
    ("mpirun -mca plm_rsh_args '-p 22' ./a", "--ssh-port 22 --no-python ./a"),
    ("mpirun -mca plm_ssh_args -p22 ./a", "--ssh-port 22 --no-python ./a"),
    ("mpirun -mca plm_rsh_args '-p 22 -v' ./a",
     "--rsh 'ssh -p 22 -v {host}' --no-python ./a"),
    ("mpirun -mca other '-p 22' ./a", "-x 'OMPI_MCA_other=-p 22' --no-python ./a"),
    ("mpirun -mca btl_tcp_if_include eth0 ./a", "--iface eth0 --no-python ./a"),
    ("mpirun -mca btl_tcp_if_include eth0,eth1 ./a",
     "-x OMPI_MCA_btl_tcp_if_include=eth0,eth1 --no-python ./a"),
    ("mpirun -mca oob_tcp_if_include eth0 ./a", "--iface eth0 --no-python ./a"),
    ("mpirun -mca btl_tcp_if_include 10.0.0.0/8 ./a",
     "-x OMPI_MCA_btl_tcp_if_include=10.0.0.0/8 --no-python ./a"),
    ("mpiexec.hydra -pernode ./a", "--nproc-per-node 1 --no-python ./a"),
    ("A=1 B= torchrun --nproc-per-node 8 t.py", "-x A=1 -x B= --nproc-per-node 8 t.py"),
    # what dispatch sets itself, and refuses to be given
    ("mpirun -x MASTER_ADDR=a -x MASTER_PORT=29500 -x RANK -n 2 ./a",
     "--master-port 29500 --np 2 --no-python ./a"),
    ("MASTER_ADDR=a MASTER_PORT=1 A=1 torchrun --nproc-per-node 8 t.py",
     "--master-port 1 -x A=1 --nproc-per-node 8 t.py"),
    ("WORLD_SIZE=2 mpirun -genv MASTER_PORT 1 -genvlist A,MASTER_ADDR -n 1 ./a : -n 1 ./b",
     "--master-port 1 -x A --np 1 --no-python ./a : -x A --np 1 --no-python ./b"),
    ("env A=1 mpirun -n 1 ./a : -n 2 ./b",
     "-x A=1 --np 1 --no-python ./a : -x A=1 --np 2 --no-python ./b"),
]  # fmt: skip


@cases(("line", "wanted"), BEYOND)
def test_lines_beyond_the_document(line: str, wanted: str) -> None:
    assert translate(shlex.split(line)).words == ("dispatch", *shlex.split(wanted))


def test_every_word_has_its_reason() -> None:
    found = translate(shlex.split("torchrun --nnodes=1:2 --node_rank 0 t.py"))
    assert [(one.written, one.words) for one in found.reasons] == [
        (("--nnodes=1:2",), ("--nnodes", "1:2")),
        (("--node_rank", "0"), ()),
        ((), ("--max-restarts", "3")),
        ((), ("--nproc-per-node", "1")),
    ]
    assert all(one.why for one in found.reasons)
    assert found.options == ("--nnodes", "1:2", "--max-restarts", "3",
                             "--nproc-per-node", "1")  # fmt: skip
    assert found.program == ("t.py",)
    for launcher in ("torchrun", "mpirun"):
        first = translate(["A=1=2", launcher, "t.py"]).reasons[0]
        assert (first.written, first.words) == (("A=1=2",), ("-x", "A=1=2"))
    for words in (["RANK=0", "torchrun"], ["RANK=0", "mpirun"], ["mpirun", "-x", "RANK"]):
        first = translate([*words, "t.py"]).reasons[0]
        assert (first.words, first.why) == ((), "dispatch sets it itself")
    found = translate(["deepspeed", "t.py"])
    assert found.reasons[0].words == ("--local-rank-arg", "--local_rank")
    assert "deepspeed gives scripts --local_rank=N" in found.reasons[0].why


@cases(
    ("line", "known"),
    [
        ("torchrun", True), ("/opt/bin/torchrun x", True), ("mpirun.openmpi", True), ("", False),
        ("python -m torch.distributed.run", True), ("python -u -m torch.distributed.run", True),
        ("python", False), ("python -m", False), ("python torchrun", False), ("python -B", False),
        ("dispatch -m torch.distributed.run", False), ("run", False), ("A=1 torchrun", True),
        ("env A=1 torchrun", True), ("env", False), ("A=1", False), ("A-B=1 torchrun", False),
    ],
)  # fmt: skip
def test_which_launchers_are_known(line: str, known: bool) -> None:
    assert compat.is_known(shlex.split(line)) is known


@cases(
    ("line", "hint"),
    [
        ("torchrun --nosuch 1 t.py", "leave it out and ask again"),
        ("torchrun --numa-binding socket t.py", "known: node, exclusive"),
        ("accelerate launch --config_file f.yaml t.py",
         "dispatch -H hostfile --launcher accelerate -- --config_file f.yaml train.py"),
        ("torchrun --run-path t.py", "name the script itself"),
        ("mpirun -configfile f", "give its lines with : between them"),
        ("horovodrun t.py", None),
    ],
)  # fmt: skip
def test_what_to_do_instead(line: str, hint: str | None) -> None:
    words = shlex.split(line)
    with pytest.raises(UsageError) as caught:
        translate(words)
    assert caught.value.hint == hint
    assert words == shlex.split(line)  # the caller's own are left alone


def test_the_launchers_that_are_known_are_named_without_their_other_spellings() -> None:
    with pytest.raises(UsageError, match="known: torchrun, deepspeed, ds, accelerate, srun, "):
        translate(["horovodrun"])


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


def test_flags_are_told_as_they_were_written() -> None:
    first = translate(["srun", "-N2", "./a"]).reasons[0]
    assert (first.written, first.words) == (("-N2",), ("--nnodes", "2"))


def test_the_command_without_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", "--", "torchrun", "train.py"]) == 0
    assert "note: it names no hosts" in capsys.readouterr().err


def test_the_programs_of_a_file_stand_in_the_line() -> None:
    text = "# two\n-n 1 ./a \\\n  'b c'\n\n-n 2 -env A 1 ./d # here\n"
    line = compat.translate(["mpiexec", "-f", "hosts", "-configfile", "app"], {"app": text}.get)  # type: ignore[arg-type]
    assert shlex.join(line.words) == (
        "dispatch -H hosts --np 1 --no-python ./a 'b c' : --np 2 -x A=1 --no-python ./d"
    )


@cases("flag", ["--app", "-configfile", "--configfile"])
def test_a_programs_own_words_name_no_file_of_programs(flag: str) -> None:
    def unread(path: str) -> str:
        raise AssertionError(path)

    line = compat.translate(["mpirun", "-x", "A=1", "-n", "2", "./a", flag, "b"], unread)
    assert shlex.join(line.words) == f"dispatch -x A=1 --np 2 --no-python ./a {flag} b"


def test_a_line_of_a_file_of_programs_that_no_shell_could_read_is_told() -> None:
    text = "-n 1 ./a\n-n 2 ./b it's\n"
    with pytest.raises(CannotTranslate) as caught:
        compat.translate(["mpiexec", "-configfile", "app"], {"app": text}.__getitem__)
    assert caught.value.message == '-configfile app: no closing quotation: "-n 2 ./b it\'s"'
