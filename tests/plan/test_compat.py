"""Other launchers' lines: the migration document holds, and nothing is dropped in silence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import cli
from dispatcher.cli.entry import load
from dispatcher.model.errors import CannotTranslate, UsageError
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


@cases(("line", "wanted"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_the_document(line: str, wanted: str) -> None:
    assert translate(shlex.split(line)).words == tuple(shlex.split(wanted))


@cases(("line", "wanted"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_dispatch_takes_what_it_is_told(line: str, wanted: str) -> None:
    words = shlex.split(wanted)[1:]
    with RUN.make_context("dispatch", words) as context:
        assert context.params["words"]
        program = translate(shlex.split(line)).program
        assert context.params["words"] == program


@cases("who", TABLES)
def test_every_flag_becomes_options_that_exist(who: str) -> None:
    known = {name for param in RUN.params for name in (*param.opts, *param.secondary_opts)}
    for name, flag in TABLES[who].items():
        try:
            words = flag.becomes(*["1"] * flag.values) or ()
        except UsageError:
            continue
        options = [word for word in words if word.startswith("-")]
        assert set(options) <= known, name


@cases(
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
        ("mpirun --mca rmaps_base_mapping_policy node ./a", "only mpirun itself obeys"),
        ("mpirun --mca hwloc_base_binding_policy core ./a", "only mpirun itself obeys"),
        ("mpirun --prtemca rmaps_default_mapping_policy node ./a", "only mpirun itself obeys"),
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


@cases(
    ("line", "wanted"),
    [
        ("python -u -B -m torch.distributed.run --nnodes 1:4 t.py",
         "--nnodes 1:4 --max-restarts 3 --nproc-per-node 1 t.py"),
        ("/opt/bin/python3.11 -m torch.distributed.launch --use_env t.py",
         "--nproc-per-node 1 t.py"),
        ("python -m torch.distributed.launch t.py",
         "--nproc-per-node 1 --local-rank-arg --local-rank t.py"),
        ("torchrun --nproc_per_node=gpu -- --odd.py a", "--nproc-per-node gpu --odd.py a"),
        ("torchrun --max_restarts=5 --nnodes=2:4 --nproc-per-node 8 t.py",
         "--max-restarts 5 --nnodes 2:4 --nproc-per-node 8 t.py"),
        ("torchrun --nproc-per-node 8 t.py a : b", "--nproc-per-node 8 -- t.py a : b"),
        ("torchrun --rdzv-endpoint= - x", None),
        ("torchrun --rdzv_endpoint h:1 - x", "--nproc-per-node 1 - x"),
        ("torchrun -m --no-python pkg -m", "-m --no-python --nproc-per-node 1 pkg -m"),
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
        ("mpirun -H n1,n2 --bind-to none -n 1 ./a x : -n 2 -x A=1 --wdir d python b.py",
         "--bind-to none -H n1:1,n2:1 --np 1 --no-python ./a x "
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
        ("mpirun -mca orte_default_hostfile f ./a", "-H f --no-python ./a"),
        ("mpirun --prtemca prte_default_hostfile f ./a", "-H f --no-python ./a"),
        ("mpirun -mca plm_rsh_agent ssh ./a", "--rsh ssh --no-python ./a"),
        ("mpirun -mca plm_ssh_agent ssh ./a", "--rsh ssh --no-python ./a"),
        ("mpirun -mca plm_rsh_args '-p 22' ./a", "--ssh-port 22 --no-python ./a"),
        ("mpirun -mca plm_ssh_args -p22 ./a", "--ssh-port 22 --no-python ./a"),
        ("mpirun -mca plm_rsh_args '-p 22 -v' ./a",
         "-x 'OMPI_MCA_plm_rsh_args=-p 22 -v' --no-python ./a"),
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
    ],
)  # fmt: skip
def test_lines_beyond_the_document(line: str, wanted: str | None) -> None:
    if wanted is None:
        with pytest.raises(UsageError, match="torchrun: --rdzv-endpoint=: an empty endpoint"):
            translate(shlex.split(line))
    else:
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
        ("torchrun --numa-binding socket t.py", "--bind-to gpu or core"),
        ("torchrun --run-path t.py", "name the script itself"),
        ("mpirun -configfile f", "give its lines with : between them"),
        ("srun t.py", None),
    ],
)
def test_what_to_do_instead(line: str, hint: str | None) -> None:
    words = shlex.split(line)
    with pytest.raises(UsageError) as caught:
        translate(words)
    assert caught.value.hint == hint
    assert words == shlex.split(line)  # the caller's own are left alone


def test_the_launchers_that_are_known_are_named_without_their_other_spellings() -> None:
    with pytest.raises(UsageError, match="known: torchrun, deepspeed, ds, accelerate, mpirun, "):
        translate(["srun"])


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
