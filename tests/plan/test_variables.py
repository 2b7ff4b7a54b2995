"""Which variables a user may name, which are secret, and where a mistake in a file stands."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.model.names import MOST_PROBLEMS, BadName
from dispatcher.plan.variables import (
    HIDDEN,
    EnvFileError,
    check_folders_variable,
    check_value,
    check_variable,
    crosses,
    exported,
    is_scrubbed,
    is_secret,
    parse_env_file,
    redacted,
    redacted_words,
)


@cases(
    ("name", "offset", "hint"),
    [
        ("", 0, "write NAME=VALUE"), ("1A", 0, "write NAME=VALUE"), ("A B", 1, "write NAME=VALUE"),
        ("AB\n", 2, "write NAME=VALUE"), ("A.b-c\u00e4", 5, "write NAME=VALUE"),
        ("MASTER_ADDR", 0, "use --master-addr"), ("MASTER_PORT", 0, "use --master-port"),
        ("WORLD_SIZE", 0, "use --np"), ("LOCAL_WORLD_SIZE", 0, "use --nproc-per-node"),
        ("RANK", 0, None), ("PMIX_X", 0, None),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_given(name: str, offset: int, hint: str | None) -> None:
    with pytest.raises(BadName) as caught:
        check_variable(name)
    assert (caught.value.offset, caught.value.hint) == (offset, hint)


@cases("name", ["A", "_", "a1.b-c", "PMI", "RANK_", "DISPATCH"])
def test_a_name_that_can(name: str) -> None:
    assert check_variable(name) == name


@cases(
    ("value", "offset", "why"),
    [("ab\0c", 2, "a NUL byte"), ("abc\ud800", 3, "not text"), ("\udcff\udbff", 1, "not text")],
)
def test_a_value_no_environment_can_hold(value: str, offset: int, why: str) -> None:
    with pytest.raises(BadName, match=f"^A: .*{why}") as caught:
        check_value("A", value)
    assert caught.value.offset == offset


@cases("value", ["", "a b\n=", "\udcff", "\u00e4\U0001f600"])
def test_a_value(value: str) -> None:
    assert check_value("A", value) == value


LOADING = """
LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PATH HOME ENV BASH_ENV BASH_FUNC_ls PYTHONSTARTUP PYTHONPATH
PYTHONHOME PYTHONWARNINGS PYTHONBREAKPOINT PERL5LIB RUBYOPT NODE_OPTIONS GIT_SSH_COMMAND GCONV_PATH
OPENSSL_CONF CUDA_INJECTION64_PATH NCCL_NET_PLUGIN NCCL_CONF_FILE FI_PROVIDER_PATH UCX_MODULE_DIR
OMP_TOOL_LIBRARIES HSA_TOOLS_LIB OMPI_MCA_mca_base_component_path OMPI_MCA_plm_rsh_agent
I_MPI_OFI_LIBRARY TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR HF_HOME HF_MODULES_CACHE CONDA_PREFIX CC
COMPILER_PATH GCC_EXEC_PREFIX OPAL_PREFIX TORCH_LOGS_OUT NCCL_DEBUG_FILE NVTX_INJECTION64_PATH
HWLOC_PLUGINS_PATH NVCC_PREPEND_FLAGS NUMBA_CACHE_DIR MPLBACKEND NCCL_TOPO_FILE WANDB_PROJECT
"""


@cases(
    ("name", "may"),
    [
        ("NCCL_DEBUG", True), ("OMP_NUM_THREADS", True), ("PYTHONUNBUFFERED", True),
        ("UCX_TLS", True), ("MINE", False), ("NCCL_NET", False), ("nccl_debug", False),
        # by these a program loads code, or writes a file of the folder's choice
        *((name, False) for name in LOADING.split()),
    ],
)  # fmt: skip
def test_a_folder_s_file_may_set_a_few(name: str, may: bool) -> None:
    if may:
        assert check_folders_variable(name) == name
    else:
        with pytest.raises(BadName, match=f"{name}: a folder's file may not set it"):
            check_folders_variable(name)


def test_nor_what_nobody_may() -> None:
    with pytest.raises(BadName, match="set by dispatch"):
        check_folders_variable("RANK")


@cases(
    ("name", "crossing", "scrubbed"),
    [
        ("PATH", True, False), ("PATHS", False, False), ("XNCCL_DEBUG", False, False),
        ("NCCL_VISIBLE_DEVICES", False, False), ("WANDB_SERVICE", False, False),
        ("WANDB_SERVICE_X", True, False), ("OMPI_MCA_ess_base", False, True),
        ("I_MPI_HYDRA_X", False, True), ("I_MPI_ROOT", True, False), ("CROSS_RANK", False, True),
        ("RANK", False, True), ("SLURM_JOB_ID", False, False),
    ],
)  # fmt: skip
def test_what_crosses_and_what_is_removed(name: str, crossing: bool, scrubbed: bool) -> None:
    assert (crosses(name), is_scrubbed(name)) == (crossing, scrubbed)


@cases(
    ("name", "hidden"),
    [
        ("API_KEY", True), ("my_token_x", True), ("Passphrase", True), ("CLIENT_SECRETS", True),
        ("credentials", True), ("TOKENIZERS_PARALLELISM", False), ("TOKENIZER_TOKEN", True),
        ("HOME", False),
    ],
)  # fmt: skip
def test_secrets(name: str, hidden: bool) -> None:
    assert is_secret(name) is hidden
    assert redacted({name: "v"}) == {name: HIDDEN if hidden else "v"}


@cases(
    ("words", "shown"),
    [
        (["a.py", "--lr", "1"], ["a.py", "--lr", "1"]),
        (["--hf-token", "X", "--api_key=X", "y"],
         ["--hf-token", HIDDEN, f"--api_key={HIDDEN}", "y"]),
        (["env", "WANDB_API_KEY=X", "A=1"], ["env", f"WANDB_API_KEY={HIDDEN}", "A=1"]),
        (["--use-token", "--lr", "1"], ["--use-token", "--lr", "1"]),
        (["--tokenizer", "gpt2"], ["--tokenizer", "gpt2"]),
        (["s3://me:X@h/p", "git@h:p"], [f"s3://{HIDDEN}@h/p", "git@h:p"]),
        (["--password"], ["--password"]),
    ],
)  # fmt: skip
def test_secrets_of_a_command_line(words: list[str], shown: list[str]) -> None:
    assert redacted_words(words) == shown


@cases(
    ("line", "column", "why", "hint"),
    [
        ("  A", 3, "no '=' in the line", "write NAME=VALUE"),
        ("export  A", 9, "no '=' in the line", "write NAME=VALUE"),
        (" A B=1", 3, "not a variable name", "write NAME=VALUE"),
        ("export A B=1", 9, "not a variable name", "write NAME=VALUE"),
        ("A=x\0y", 4, "a NUL byte", None),
        ('A="x\0y"', 5, "a NUL byte", None),
        ("A='x", 3, "the quote ' is never closed", None),
        ('A="x\\"', 3, 'the quote " is never closed', None),
        ("A='x'y", 6, "text after the closing quote", "quote the whole value"),
        ("A='x' y", 6, "text after the closing quote", "quote the whole value"),
        ("A='x'#y", 6, "text after the closing quote", "quote the whole value"),
    ],
)
def test_a_mistake_in_a_file_has_its_place(
    line: str, column: int, why: str, hint: str | None
) -> None:
    with pytest.raises(EnvFileError) as caught:
        parse_env_file(f"# first\n{line}\n", "f")
    (problem,) = caught.value.problems
    assert (problem.source, problem.line, problem.column) == ("f", 2, column)
    assert why in problem.message
    assert problem.hint == hint


@cases(
    ("line", "value"),
    [
        ("A=x \t", "x"), ("A=\tx # y # z", "x"), ("A='x'\t# c", "x"), ("A='x'   ", "x"),
        ('A="a\\\\b\\n\\""', 'a\\b\\n"'), ("A='a\\'", "a\\"), ("exportA=1", None),
    ],
)  # fmt: skip
def test_values_in_a_file(line: str, value: str | None) -> None:
    assert parse_env_file(line, "f") == ({"exportA": "1"} if value is None else {"A": value})


@cases(
    ("line", "value", "shown"),
    [
        ("A=/efa:$LIB", "/efa:/lib", None), ('A="${LIB}:$LIB"', "/lib:/lib", None),
        ("A=$ABOVE$A", "1old", None), ("A=$HOME/c", "\0HOME\0/c", "${HOME}/c"),
        ("A=${HOME}.$NO", "\0HOME\0.\0NO\0", "${HOME}.${NO}"), ("A='$HOME'", "$HOME", None),
        (r"A=a\$HOME", "a$HOME", None),
        ("A=$(id) `id` $1 $$ ${X:-y}", "$(id) `id` $1 $$ ${X:-y}", None),
        ("A = $LIB ", "/lib", None),
        ("A =  '$LIB' # c", "$LIB", None), ("export A\t= x", "x", None),
    ],
)  # fmt: skip
def test_what_is_filled_in_as_in_a_shell(line: str, value: str, shown: str | None) -> None:
    environ = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"}
    text = f"LIB=$LD_LIBRARY_PATH\nABOVE=1\nA=old\n{line}"
    found = exported(environ, files=[("/home/me/.deepspeed_env", text)])
    assert found == {**environ, "LIB": "/lib", "ABOVE": "1", "A": value}
    assert redacted(found)["A"] == (shown or value)
    environ["DS_ENV_FILE"] = "conf/own.env"
    assert exported(environ, files=[("own.env", text)])["A"] == value
    plain = exported(environ, files=[("other.env", text)])  # as it is
    assert plain["LIB"] == "$LD_LIBRARY_PATH"
    assert "\0" not in plain["A"]


def test_what_is_filled_in_has_a_bound() -> None:
    text = "A=xx\n" + "A=$A$A\n" * 30
    with pytest.raises(EnvFileError, match=r"A: its value is too long"):
        exported({}, files=[(".deepspeed_env", text)])


@cases("wrong", [MOST_PROBLEMS - 1, MOST_PROBLEMS, MOST_PROBLEMS + 5])
def test_so_many_mistakes_are_reported_and_no_more(wrong: int) -> None:
    with pytest.raises(EnvFileError) as caught:
        parse_env_file("B\n" * wrong, "f")
    assert len(caught.value.problems) == min(wrong, MOST_PROBLEMS)


def test_what_may_be_set_is_for_the_caller_to_say() -> None:
    def refuse(name: str) -> str:
        raise BadName(f"{name}: not here")

    with pytest.raises(EnvFileError, match="A: not here"):
        parse_env_file("A=1", "f", refuse)
    assert parse_env_file("RANK=1", "f", str) == {"RANK": "1"}


@cases(
    ("item", "said", "hint"),
    [
        ("1A=x", "-x: not a variable name: '1A'", "write NAME=VALUE"),
        ("WORLD_SIZE=4", "-x: WORLD_SIZE is set by dispatch and cannot be given", "use --np"),
        ("A=x\0", "-x: A: a NUL byte in the value", None),
        ("GONE", "-x GONE: not set in this environment", "give it: -x GONE=VALUE"),
    ],
)
def test_what_x_may_not_say(item: str, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        exported({"HOME": "/h"}, [item])
    assert (caught.value.message, caught.value.hint) == (said, hint)


def test_an_empty_value_is_one() -> None:
    assert exported({"EMPTY": "", "NCCL_X": ""}, ["EMPTY", "A="]) == {
        "NCCL_X": "", "EMPTY": "", "A": "",
    }  # fmt: skip
    assert list(exported({"PATH": "b", "LANG": "a"})) == ["LANG", "PATH"]
