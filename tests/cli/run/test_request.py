"""From a line of ``dispatch run`` to the request: each option's meaning, no host touched."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.cli.options.declaration import carried
from dispatcher.cli.run.request import MOST_ENV_FILE, request
from dispatcher.model.arguments import check_types
from dispatcher.model.errors import PlanError, UsageError
from dispatcher.plan.job.request import Limits, Request, Restarts

from ..conftest import Parsed

PROGRAM = ["--no-python", "prog"]


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No batch job, no files of the user's, an empty folder."""
    for name in [n for n in os.environ if n.startswith(("SLURM", "PBS", "LSB", "PE_", "FLUX"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PWD", raising=False)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ([], "np", None),
        (["--np", "3"], "np", 3),
        (["-n", "3"], "np", 3),
        (["-np", "3"], "np", 3),  # as every mpirun has it
        (["-n3", "-np", "4"], "np", 4), (["--nnodes", "2"], "nnodes", 2),
        (["--nnodes", "2:4"], "nnodes", 4), (["--nproc-per-node", "2"], "nproc_per_node", 2),
        (["--nproc-per-node", "gpu"], "nproc_per_node", "gpu"), ([], "nproc_per_node", None),
        (["--per-node"], "nproc_per_node", 1), (["--per-node"], "per_node", True),
        ([], "per_node", False), (["--per-node"], "omp", "keep"),
        (["--per-node", "--omp", "4"], "omp", 4), (["--per-node"], "mpi", "none"),
        (["--per-node", "--mpi", "pmi1"], "mpi", "pmi1"), ([], "mpi", "auto"), ([], "omp", "auto"),
        (["--omp", "keep"], "omp", "keep"), (["--map-by", "node"], "map_by", "node"),
        ([], "map_by", "block"), (["--oversubscribe"], "oversubscribe", True),
        (["--python", "/opt/python"], "python", "/opt/python"), (["--user", "ml"], "user", "ml"),
        (["--ssh-port", "2222"], "port", 2222), (["-x", "A=1", "-x", "B"], "exports", ("A=1", "B")),
        (["--devices", "rank"], "devices", "rank"),
        (["--master-addr", "10.0.0.1"], "master_addr", "10.0.0.1"),
        (["--master-port", "29500"], "master_port", 29500), (["--iface", "ib0"], "iface", "ib0"),
        (["--pmi-port"], "pmi_port", True), ([], "pmi_port", False),
        (["--stdin", "all"], "stdin", "all"), (["--stdin", "2"], "stdin", 2), ([], "stdin", "none"),
        (["--spares", "2"], "spares", 2),
        (["--local-rank-arg", "--local_rank"], "local_rank_arg", "--local_rank"),
        (["--include", "n1"], "include", "n1"), (["--exclude", "n2"], "exclude", "n2"),
        (["--chdir", "/data"], "cwd", "/data"),
    ],
)  # fmt: skip
def test_what_an_option_becomes(parsed: Parsed, words: list[str], field: str, value: Any) -> None:
    found = request(parsed("run", "-H", "n1:2,n2:2", *words, *PROGRAM))
    assert getattr(found, field) == value
    assert [host.name for host in found.hosts.hosts] == ["n1", "n2"]
    assert (found.program.kind, found.program.argv) == ("command", ("prog",))


def test_each_value_has_the_type_of_its_field(parsed: Parsed) -> None:
    """mypy does not see values that go by name."""
    words = [
        "--rank-by=node", "--report-bindings", "--oversubscribe", "--user=me", "--devices=rank",
        "--master-addr=n9", "--master-port=1", "--iface=ib0", "--pmi-port", "--signal-to=all",
        "--spares=1", "--bind-to=gpu", "--mem-bind=local", "--near-hca", "--allow-different-code",
        "--local-rank-arg=--l", "--np=2", "--nnodes=2:3", "--nproc-per-node=gpu", "--include=n1",
        "--map-by=numa", "--python=p", "--ssh-port=22", "-xA=1", "--omp=4", "--mpi=pmi1",
        "--stdin=1", "--heartbeat=3", "--fanout=9", "--max-restarts=2", "--max-host-failures=2",
        "--wrap=0:nice",
    ]  # fmt: skip
    options = parsed("run", "-H", "n1:2,n2:2", *words, *PROGRAM)
    found = request(options)
    check_types("request", Request, vars(found))
    check_types("limits", Limits, vars(found.limits))
    check_types("restarts", Restarts, vars(found.restarts))
    usual = vars(request(parsed("run", "-H", "n1:2", *PROGRAM)))
    names = carried(options, Request).keys()
    assert {name for name in names if getattr(found, name) == usual[name]} == {
        "per_node",
        "env_files",
    }


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        ([], Limits()),
        (["--connect-timeout", "3"], Limits(connect_timeout=3.0)),
        (["--boot-timeout", "4"], Limits(boot_timeout=4.0)),
        (["--grace", "0"], Limits(grace=0.0)),
        (["--heartbeat", "1"], Limits(heartbeat=1.0)),
        (["--heartbeat", "10"], Limits(heartbeat=10.0, lease=60.0)),  # the lease outlives 3 missed
        (["--heartbeat", "10", "--lease", "40"], Limits(heartbeat=10.0, lease=40.0)),
        (["--hang-timeout", "600"], Limits(hang_timeout=600.0)),
        (["--stop-signal", "USR1"], Limits(stop_signal=10)),
        (["--time-limit", "90"], Limits(time_limit=90.0)),
        (
            ["--time-limit", "1-12", "--signal", "B:USR1@300"],
            Limits(time_limit=129600.0, warn_signal=10, warn_before=300.0),
        ),
        (["--time-limit", "2h", "--signal", "term"], Limits(time_limit=7200.0, warn_signal=15)),
        (["--fanout", "5"], Limits(fanout=5)),
        # inner hosts do the work
        (["--fanout-tree=2"], Limits(fanout=1024)),
        (["--fanout-tree=2", "--fanout", "7"], Limits(fanout=7)),
    ],
)
def test_limits(parsed: Parsed, words: list[str], limits: Limits) -> None:
    assert request(parsed("run", "-H", "n1", *words, *PROGRAM)).limits == limits


@cases(
    ("words", "said"),
    [
        (["--signal", "USR1"], "--signal needs --time-limit"),
        (["--time-limit", "60", "--signal", "USR1"], "--signal: 60 s must be more than 0 and"),
        (["--time-limit", "60", "--signal", "9"], "--signal: not a signal that a program can"),
        (["--time-limit", "1:2:3:4"], "--time-limit: not a time: '1:2:3:4'"),
        (["--stop-signal", "NONE"], "--stop-signal: not a signal that a program can handle"),
    ],
)
def test_what_is_no_end_of_time(parsed: Parsed, words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(parsed("run", "-H", "n1", *words, *PROGRAM))
    assert caught.value.message.startswith(said)


@cases(
    ("words", "said"),
    [
        (["--nnodes", "x"], "--nnodes: not a whole number: 'x'"),
        (["--nnodes", "2:"], "--nnodes: not a whole number: ''"),
        (["--nnodes", "4:2"], "--nnodes 4:2: MIN is more than MAX"),
        (["--nnodes", "2:4", "--min-nodes", "3"], "--nnodes 2:4 sets how few hosts are enough"),
    ],
)
def test_what_is_no_number_of_hosts(parsed: Parsed, words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(parsed("run", "-H", "n1", *words, *PROGRAM))
    assert caught.value.message.startswith(said)


def test_the_time_limit_of_mpiexec_counts_where_none_is_typed(
    parsed: Parsed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPIEXEC_TIMEOUT", "30")
    assert request(parsed("run", "-H", "n1", *PROGRAM)).limits == Limits(time_limit=30.0)
    assert "note: time limit of 30 s, from MPIEXEC_TIMEOUT" in capfd.readouterr().err
    typed = parsed("run", "-H", "n1", "--time-limit", "5", *PROGRAM)
    assert request(typed).limits == Limits(time_limit=5.0)
    monkeypatch.setenv("MPIEXEC_TIMEOUT", "soon")
    with pytest.raises(UsageError) as caught:
        request(parsed("run", "-H", "n1", *PROGRAM))
    assert caught.value.message == "MPIEXEC_TIMEOUT: not a number of seconds: 'soon'"


@pytest.mark.parametrize("known", ["0", "-1"])
def test_none_of_mpiexec_s_time_limits_is_none(
    parsed: Parsed, known: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPIEXEC_TIMEOUT", known)
    assert request(parsed("run", "-H", "n1", *PROGRAM)).limits == Limits()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "restarts"),
    [
        ([], Restarts()),
        (["--max-restarts", "0"], Restarts(most=0)),
        (["--max-restarts", "3", "--restart-delay", "0.5"], Restarts(most=3, delay=0.5)),
        (["--min-nodes", "2"], Restarts(min_nodes=2)),
        (["--nnodes", "2:4"], Restarts(min_nodes=2)),
        (["--nnodes", "4", "--min-nodes", "3"], Restarts(min_nodes=3)),
        (["--progress-line", "step"], Restarts(progress_line="step")),
        (["--progress-file", "/ckpt"], Restarts(progress_file="/ckpt")),
    ],
)
def test_restarts(parsed: Parsed, words: list[str], restarts: Restarts) -> None:
    assert request(parsed("run", "-H", "n1", *words, *PROGRAM)).restarts == restarts


@pytest.mark.parametrize(
    ("words", "kind", "argv"),
    [
        (["train.py", "--lr", "1"], "script", ("train.py", "--lr", "1")),
        (["-m", "pkg.train", "x"], "module", ("pkg.train", "x")),
        (["--no-python", "prog", "x"], "command", ("prog", "x")),
    ],
)
def test_the_program(parsed: Parsed, words: list[str], kind: str, argv: tuple[str, ...]) -> None:
    program = request(parsed("run", "-H", "n1", *words)).program
    assert (program.kind, program.argv) == (kind, argv)


@cases(
    ("words", "kind", "argv"),
    [
        (["job", "x"], "command", ("./job", "x")), (["--chdir", "sub", "in"], "command", ("./in",)),
        (["sub/in"], "command", ("sub/in",)), (["--python", "p", "job"], "script", ("job",)),
        (["--no-python", "job"], "command", ("job",)), (["-m", "job"], "module", ("job",)),
    ],
)  # fmt: skip
def test_a_file_that_names_what_runs_it(
    parsed: Parsed, words: list[str], kind: str, argv: tuple[str, ...]
) -> None:
    Path("sub").mkdir(exist_ok=True)
    for name in ("job", "sub/in"):
        Path(name).write_text("#!/bin/bash\n")
    found = request(parsed("run", "-w", "n1:1", *words)).program
    assert (found.kind, found.argv) == (kind, argv)
    line = ["-w", "n1:2", "--np", "1", *words, ":", "--np", "1", "train.py"]
    assert request(parsed("run", *line)).parts[0].program == found


def test_torchrun_starts_the_ranks_of_a_host_by_itself(parsed: Parsed) -> None:
    torchrun = ["--launcher", "torchrun", "--nproc-per-node", "2"]
    found = request(parsed("run", "-H", "n1", *torchrun, "train.py", "x"))
    assert found.program.kind == "module"
    assert found.program.argv[0] == "torch.distributed.run"
    assert found.program.argv[-2:] == ("train.py", "x")
    assert (found.nproc_per_node, found.per_node) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-H", "n1", "-m", "--no-python", "a"], "--module and --no-python exclude each other"),
        (["-H", "n1"], "no program given"),
        (["-H", "n1", "--no-python", ""], "no program given"),
        (PROGRAM, "no hosts given"),
        (["-H", "n1", "--per-node", "--nproc-per-node", "2", *PROGRAM], "--per-node starts one p"),
        (["-H", "n1", "--launcher", "torchrun", "--nproc-per-node", "x", "a.py"], "--nproc-per"),
        (["-H", "n1", "--python", "", *PROGRAM], "--python: an empty name"),
        (["-H", "n1", "--pmi-port", "--mpi", "none", *PROGRAM], "--pmi-port and --mpi none"),
        (["-H", "n1", "--omp", "lots", *PROGRAM], "--omp"),
        (["-H", "n1", "--np", "0", *PROGRAM], "--np"),
        (["-H", "n1", "--master-port", "65536", *PROGRAM], "--master-port"),
        (["-H", "n1", "--include", "n1", "--exclude", "n2", *PROGRAM], "--include and --exclude e"),
        (["-w", "n1", "-w", "n1:2", *PROGRAM], "-w: n1 is named twice"),
        (["-H", "n1", "-w", "n1", *PROGRAM], "-w: n1 is named twice"),
        (["-H", "n1,n2", "-x", "n2", *PROGRAM], "-x n2: a host, but in a run -x exports a variab"),
        (["-H", "n1", "--env-file", "none", *PROGRAM], "--env-file none: no such file"),
        (["-H", "n1", "--heartbeat", "10", "--lease", "20", *PROGRAM], "lease of 20"),
        (["-H", "n1", "--restart-delay", "soon", *PROGRAM], "--restart-delay: not a number of"),
    ],
)
def test_refusals(parsed: Parsed, words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(parsed("run", *words))
    assert caught.value.message.startswith(said)


def test_a_variable_of_a_host_s_name_may_be_exported(
    parsed: Parsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("n2", "1")
    assert request(parsed("run", "-H", "n1,n2", "-x", "n2", *PROGRAM)).exports == ("n2",)


@pytest.mark.parametrize("chosen", ["all", "0"])
def test_input_that_is_not_there_cannot_be_read(
    parsed: Parsed, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Piped:
        buffer = io.BytesIO(b"n1\n")

    words = ["--stdin", chosen, *PROGRAM]
    with pytest.raises(UsageError, match="-H - takes the hosts from standard input"):
        request(parsed("run", "-H", "-", *words))
    monkeypatch.setattr(sys, "stdin", Piped())
    found = request(parsed("run", "-H", "-", "--dry-run", *words))  # nothing will be read
    assert [host.name for host in found.hosts.hosts] == ["n1"]
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        request(parsed("run", "-H", "n1", *words))
    assert request(parsed("run", "-H", "n1", *PROGRAM)).stdin == "none"
    with pytest.raises(UsageError, match="-H -: standard input is closed"):
        request(parsed("run", "-H", "-", *PROGRAM))


def test_in_a_folder_that_is_gone_another_is_named(
    parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert request(parsed("run", "-H", "n1", "--chdir", "/tmp", *PROGRAM)).cwd == "/tmp"


class TestEnvFiles:
    def test_all_are_read_deepspeeds_first(
        self, parsed: Parsed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / ".deepspeed_env").write_text("A=1\n")
        (tmp_path / ".deepspeed_env").write_text("NCCL_DEBUG=INFO\n")
        (tmp_path / "more").write_text("C=3\n")
        found = request(parsed("run", "-H", "n1", "--env-file", "more", *PROGRAM)).env_files
        assert found == (
            (str(tmp_path / "home" / ".deepspeed_env"), b"A=1\n"),
            (".deepspeed_env", b"NCCL_DEBUG=INFO\n"),
            ("more", b"C=3\n"),
        )
        said = capsys.readouterr().err
        assert said.count("note: environment from ") == 2

    def test_one_that_is_named_is_trusted_and_read_once(
        self, parsed: Parsed, tmp_path: Path
    ) -> None:
        (tmp_path / ".deepspeed_env").write_text("LD_PRELOAD=/x.so\n")
        with pytest.raises(UsageError) as caught:
            request(parsed("run", "-H", "n1", *PROGRAM))
        assert (
            caught.value.hint == "if you trust it: --env-file .deepspeed_env; or ~/.deepspeed_env"
        )
        words = ["--env-file", ".deepspeed_env", *PROGRAM]
        found = request(parsed("run", "-H", "n1", *words)).env_files
        assert found == ((".deepspeed_env", b"LD_PRELOAD=/x.so\n"),)

    @pytest.mark.parametrize("place", ["", "home", "absolute", "nowhere"])
    def test_the_file_that_deepspeeds_variable_names(
        self,
        parsed: Parsed,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        place: str,
    ) -> None:
        path = tmp_path / ("home" if place == "home" else "") / "own.env"
        path.parent.mkdir(exist_ok=True)
        if place != "nowhere":
            path.write_text("NCCL_DEBUG=$(id)\n# $(id)\n")
        (tmp_path / ".deepspeed_env").write_text("A=1\n")  # not read
        name = str(path) if place == "absolute" else "own.env"
        monkeypatch.setenv("DS_ENV_FILE", name)
        files = request(parsed("run", "-H", "n1", *PROGRAM)).env_files
        said = capsys.readouterr().err
        if place == "nowhere":
            assert (files, said) == ((), "note: DS_ENV_FILE: 'own.env': no such file\n")
            return
        source = str(path) if place else name
        assert files == ((source, b"NCCL_DEBUG=$(id)\n# $(id)\n"),)
        assert said.splitlines()[0] == f"note: environment from {source}"
        assert [line.split(": ")[1] for line in said.splitlines()[1:]] == [f"{source}:1"]

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_large_one_is_refused(self, parsed: Parsed, tmp_path: Path, more: int) -> None:
        text = b"#" * (MOST_ENV_FILE - 5) + b"\nA=1\n"[: 5 + more] + b"\n" * more
        (tmp_path / "large").write_bytes(text)
        options = parsed("run", "-H", "n1", "--env-file", "large", *PROGRAM)
        if more:
            with pytest.raises(UsageError, match="--env-file large: larger than 1 MiB"):
                request(options)
        else:
            assert request(options).env_files == (("large", text),)


@pytest.mark.parametrize(
    ("file", "words", "included", "excluded"),
    [
        ('exclude = "n2"', ["-H", "n1,n2"], None, "n2"),
        ('exclude = "n2"', ["-w", "n1"], None, None),  # one who is not there is left out already
        ('include = "n1,n9"', ["-w", "n1,n2"], "n1", None),
        ('exclude = "n2"', ["-H", "n1,n2,n3", "--include", "n1,n2"], "n1,n2", "n2"),
    ],
)
def test_a_filter_of_a_file_stays_for_hosts_that_are_typed(
    parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    file: str, words: list[str], included: str | None, excluded: str | None,
) -> None:  # fmt: skip
    (tmp_path / "my.toml").write_text(f"[run]\n{file}\n")
    monkeypatch.setenv("DISPATCH_CONFIG", str(tmp_path / "my.toml"))
    found = request(parsed("run", *words, *PROGRAM))
    assert (found.include, found.exclude) == (included, excluded)


@pytest.mark.parametrize("file", ['include = "n9"', 'exclude = "n[1-2]"'])
def test_a_filter_of_a_file_that_leaves_nobody_is_named(
    parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / "my.toml").write_text(f"[run]\n{file}\n")
    monkeypatch.setenv("DISPATCH_CONFIG", str(tmp_path / "my.toml"))
    with pytest.raises(PlanError) as caught:
        request(parsed("run", "-w", "n1,n2", *PROGRAM))
    assert "my.toml [run]: " in caught.value.message
    assert (caught.value.hint or "").startswith("DISPATCH_CONFIG= dispatch")
