"""What crosses to the hosts, what wins over what, and what a rank finds."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import UsageError
from dispatcher.plan.hosts.hostfile import parse_inline
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.rank_environment import Bound, omp_threads, rank_environment
from dispatcher.plan.job.request import Program, Request
from dispatcher.plan.variables import (
    RESERVED_NAMES,
    EnvFileError,
    crosses,
    exported,
    is_reserved,
    is_scrubbed,
    parse_env_file,
    redacted,
)

BOUND = Bound("10.0.0.1", 29400, omp_threads=6, error_file="/run/e/1")


def planned(hosts: str = "n1:2,n2:2", **flags: object) -> JobPlan:
    request = Request(
        parse_inline(hosts),
        Program("script", ("train.py",)),
        "/work",
        **flags,  # type: ignore[arg-type]
    )
    return plan_job(request, "run-1")


@cases(
    "name",
    [
        "PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONUNBUFFERED", "CUDA_HOME",
        "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_DEBUG", "NCCL_IB_HCA", "TORCH_HOME", "TORCHINDUCTOR_X",
        "PYTORCH_CUDA_ALLOC_CONF", "UCX_TLS", "OMP_NUM_THREADS", "HF_HOME", "HF_TOKEN",
        "WANDB_API_KEY", "GLOO_SOCKET_IFNAME", "TRITON_CACHE_DIR", "DEEPSPEED_X", "CONDA_PREFIX",
        "TOKENIZERS_PARALLELISM", "FI_PROVIDER", "MPIR_CVAR_CH4_NETMOD", "OMPI_MCA_btl",
    ],
)  # fmt: skip
def test_crosses(name: str) -> None:
    assert exported({name: "v"}) == {name: "v"}


@cases(
    "name",
    [
        "HOME", "USER", "SHELL", "TERM", "DISPLAY", "SSH_AUTH_SOCK", "TMPDIR", "XDG_RUNTIME_DIR",
        "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "PYTHONHOME", "PYTHONSTARTUP",
        "PYTHONINSPECT", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PMI_RANK", "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_x", "WANDB_SERVICE", "AWS_SECRET_ACCESS_KEY", "PWD",
        "DISPATCH_RUN_ID", "BASH_FUNC_x%%", "",
    ],
)  # fmt: skip
def test_stays(name: str) -> None:
    assert exported({name: "v"}) == {}


def test_later_levels_win() -> None:
    environ = {"NCCL_DEBUG": "login", "NCCL_ALGO": "login", "MINE": "login", "HOME": "/h"}
    files = [("a", "NCCL_DEBUG=file1\nNCCL_ALGO=file1"), ("b", "NCCL_DEBUG=file2\nX=file2")]
    assert exported(environ, ["X=flag", "MINE"], files) == {
        "NCCL_ALGO": "file1", "NCCL_DEBUG": "file2", "X": "flag", "MINE": "login",
    }  # fmt: skip
    plan = planned(
        "n1 slots=1 env=X=host env=CUDA_VISIBLE_DEVICES=7",
        environ=environ,
        exports=("X=flag", "CUDA_VISIBLE_DEVICES=5"),
    )
    env = rank_environment(plan, 0, BOUND)
    assert (env["X"], env["CUDA_VISIBLE_DEVICES"]) == ("host", "7")


def test_an_explicit_name_crosses_even_if_it_would_stay() -> None:
    environ = {"HOME": "/h", "PYTHONHOME": "/p", "CUDA_VISIBLE_DEVICES": "1"}
    assert exported(environ, list(environ)) == environ


@cases("name", sorted(RESERVED_NAMES) + ["PMI_FD", "PMIX_RANK", "DISPATCH_X"])
def test_what_dispatch_sets_cannot_be_given(name: str) -> None:
    assert is_reserved(name)
    with pytest.raises(UsageError, match=f"{name} is set by dispatch"):
        exported({}, [f"{name}=1"])
    with pytest.raises(UsageError, match=f"{name} is set by dispatch"):
        parse_env_file(f"{name}=1", "f")


def test_a_missing_variable_is_an_error_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="-x FOO: not set") as caught:
        exported({}, ["FOO"])
    assert caught.value.hint == "give it: -x FOO=VALUE"


def test_a_rank_finds_exactly_this() -> None:
    plan = planned(exports=("A=1",))
    assert rank_environment(plan, 3, BOUND, restart=2) == {
        "A": "1", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "default",
        "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400",
        "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1",
        "TORCHELASTIC_RUN_ID": "run-1", "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_ERROR_FILE": "/run/e/1",
        "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "6", "DISPATCH_RUN_ID": "run-1",
        "DISPATCH_HOST": "n2", "DISPATCH_HOSTS": "n1:2,n2:2",
    }  # fmt: skip


def test_every_variable_set_for_a_rank_is_reserved_or_yields_to_the_user() -> None:
    for name in rank_environment(planned(), 0, BOUND):
        assert is_reserved(name) or name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        assert is_scrubbed(name) or not is_reserved(name)


def test_placeholders_stand_for_what_only_the_hosts_know() -> None:
    env = rank_environment(planned(), 0)
    assert env["MASTER_ADDR"] == "<address of n1>"
    assert env["OMP_NUM_THREADS"] == "<cores / local ranks>"
    env = rank_environment(planned(master_addr="10.1.1.1", master_port=9, omp=3), 0)
    assert [env[k] for k in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")] == [
        "10.1.1.1", "9", "3",
    ]  # fmt: skip


@cases(
    ("hosts", "flags", "seen"),
    [
        ("n1:2", {}, ["0,1", "0,1"]),
        ("n1:2", {"devices": "rank"}, ["0", "1"]),
        ("n1:2", {"devices": "none"}, [None, None]),
        ("n1 gpus=GPU-a,GPU-b", {}, ["GPU-a,GPU-b"] * 2),
        ("n1 gpus=MIG-a,MIG-b", {"devices": "rank"}, ["MIG-a", "MIG-b"]),
        ("n1:4", {"include": "n1:1,3"}, ["1,3", "1,3"]),
        ("n1:8", {"nproc_per_node": 1}, ["0,1,2,3,4,5,6,7"]),
        ("n1", {"nproc_per_node": 2}, [None, None]),
        ("n1", {"nproc_per_node": 2, "devices": "rank"}, ["0", "1"]),
        ("n1:2", {"np": 3, "oversubscribe": True, "devices": "rank"}, ["0", "1", "0"]),
    ],
)
def test_visible_devices(hosts: str, flags: dict[str, object], seen: list[str | None]) -> None:
    plan = planned(hosts, **flags)
    found = [
        rank_environment(plan, place.rank, BOUND).get("CUDA_VISIBLE_DEVICES")
        for place in plan.ranks
    ]
    assert found == seen


def test_threads_by_policy() -> None:
    assert [omp_threads(*pair) for pair in [(64, 8), (2, 8), (7, 2), (1, 0)]] == [8, 1, 3, 1]
    name = "OMP_NUM_THREADS"
    assert rank_environment(planned(environ={name: "5"}), 0, BOUND)[name] == "5"
    assert rank_environment(planned(omp=2), 0, BOUND)[name] == "2"
    assert name not in rank_environment(planned(omp="keep"), 0, BOUND)
    assert name not in rank_environment(planned(), 0, Bound("a", 1))


def test_an_interface_is_named_to_every_library_and_yields_to_the_user() -> None:
    given = {"UCX_NET_DEVICES": "mlx5_0:1"}
    found = rank_environment(planned(iface="ib0.10", environ=given), 0, BOUND)
    assert found["NCCL_SOCKET_IFNAME"] == "=ib0.10"
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE"):
        assert found[name] == "ib0.10"
    assert found["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert "FI_TCP_IFACE" not in rank_environment(planned(), 0, BOUND)


@cases(
    ("given", "found"),
    [
        ({}, {"include": "ib0"}),
        ({"include": "eth1"}, {"include": "eth1"}),
        ({"exclude": "lo"}, {"exclude": "lo"}),  # MPI_Init refuses both
        ({"include": "a", "exclude": "b"}, {"include": "a", "exclude": "b"}),
    ],
)
def test_open_mpi_keeps_its_tcp_on_the_interface(
    given: dict[str, str], found: dict[str, str]
) -> None:
    begin = "OMPI_MCA_btl_tcp_if_"
    environ = {f"{begin}{name}": text for name, text in given.items()}
    env = rank_environment(planned(iface="ib0", environ=environ), 0, BOUND)
    assert {n.removeprefix(begin): env[n] for n in env if n.startswith(begin)} == found


def test_secrets_are_hidden_for_display() -> None:
    env = {
        "HF_TOKEN": "s", "WANDB_API_KEY": "s", "my_secret": "s", "DB_PASSWORD": "s",
        "AWS_CREDENTIALS": "s", "TOKENIZERS_PARALLELISM": "false", "PATH": "/bin",
    }  # fmt: skip
    shown = redacted(env)
    assert list(shown) == list(env)
    assert [name for name in env if shown[name] == env[name]] == ["TOKENIZERS_PARALLELISM", "PATH"]


@cases(
    ("text", "found"),
    [
        ("A=b=c", {"A": "b=c"}), ("export A=1", {"A": "1"}), ("  export\tA=1 ", {"A": "1"}),
        ("\n# c\n  # d\n#A=1\nA=2\n", {"A": "2"}), ("A=", {"A": ""}), ("A=1\nA=2", {"A": "2"}),
        ("A='x # y'", {"A": "x # y"}),
        ('A="x \\"y\\" \\\\ \\n"', {"A": 'x "y" \\ \\n'}),
        ("A='x' # c", {"A": "x"}), ("A=x # c", {"A": "x"}), ("A=#fff", {"A": "#fff"}),
        ("A=x#y", {"A": "x#y"}), ("A= # c", {"A": ""}), ('A={"a": "b"}', {"A": '{"a": "b"}'}),
        ("A=it's", {"A": "it's"}), ("A=$HOME `id`", {"A": "$HOME `id`"}),
        ("A=64(x2)", {"A": "64(x2)"}), ("A.b-c=1", {"A.b-c": "1"}),
        (b"\xef\xbb\xbfA=1\r\nB=\xff\r\n", {"A": "1", "B": "\udcff"}),
        ("A=\x1b[1m", {"A": "\x1b[1m"}),
        ("", {}),
    ],
)  # fmt: skip
def test_env_files(text: bytes | str, found: dict[str, str]) -> None:
    assert parse_env_file(text, ".env") == found


def test_env_file_mistakes_come_together_each_with_its_place() -> None:
    with pytest.raises(EnvFileError) as caught:
        parse_env_file("A=1\nB\n  export C D=1\nE='x\nRANK=0\n", ".env")
    assert [(p.line, p.column) for p in caught.value.problems] == [(2, 1), (3, 11), (4, 3), (5, 1)]
    assert "RANK is set by dispatch" in caught.value.message


values = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
) | st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


@given(st.dictionaries(st.from_regex(r"X_[A-Za-z0-9_.-]{0,9}", fullmatch=True), values))
def test_any_value_survives_exactly(wanted: dict[str, str]) -> None:
    exports = tuple(f"{name}={value}" for name, value in wanted.items())
    plan = planned(exports=exports)
    env = rank_environment(plan, 0, BOUND)
    assert {name: env[name] for name in wanted} == wanted
    assert {name: env[name].encode("utf-8", "surrogateescape") for name in wanted} == {
        name: value.encode("utf-8", "surrogateescape") for name, value in wanted.items()
    }


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_env_file_gives_a_dict_or_our_error(text: bytes | str) -> None:
    above = "KEPT=1\n" if isinstance(text, str) else b"KEPT=1\n"
    try:
        found = parse_env_file(above + text, "f")  # type: ignore[operator]
    except EnvFileError:
        return
    assert found["KEPT"] == "1" or "KEPT" in str(text)
    assert not any(is_reserved(name) or "\0" in value for name, value in found.items())


@given(st.text(max_size=20))
def test_what_crosses_is_never_ours_nor_scrubbed(name: str) -> None:
    assert not (crosses(name) and (is_reserved(name) or is_scrubbed(name)))
