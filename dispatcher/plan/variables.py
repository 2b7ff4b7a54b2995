"""Which environment variables cross to the hosts, which are ours, and which a host must drop.

Tables, questions about a variable, and files with variables; this module reads no environment.
``CROSSING_*`` is an allow-list: most of a login node's environment (``SSH_AUTH_SOCK``, ``TMPDIR``)
is wrong on another host. ``-x`` sends any variable that is not ours. The agent removes ``SCRUB_*``
from the host's own environment: one stray ``SLURM_STEP_ID`` makes Open MPI abort. By a ``LOADING``
variable a program loads code, so a file in the current folder may not set one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from dispatcher.model.errors import Problem, UsageError
from dispatcher.model.names import (
    MOST_PROBLEMS,
    BadName,
    decoded,
    line_problem,
    numbered_lines,
    offset_by,
    quoted,
)

#: names that cross when the login node has them
CROSSING_NAMES = frozenset({
    "PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "VIRTUAL_ENV",
    "CUDA_HOME", "CUDA_PATH", "LANG", "LC_ALL", "LC_CTYPE",
})  # fmt: skip

#: names beginning so cross too
CROSSING_PREFIXES = (
    # interpreters and environments
    "PYTHON", "CONDA_",
    # devices and collectives
    "CUDA_", "NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "HIP_", "HSA_", "RCCL_", "NVTE_", "NVSHMEM_",
    "MPIR_CVAR_", "OMPI_MCA_", "I_MPI_",
    # threads
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_",
    # frameworks
    "TORCH", "PYTORCH_", "TRITON_", "XLA_", "JAX_", "TF_", "DEEPSPEED_", "DS_", "MEGATRON_",
    "ACCELERATE_", "TOKENIZERS_", "TRANSFORMERS_", "HF_", "HUGGINGFACE_",
    # where results go
    "WANDB_", "MLFLOW_", "COMET_", "CLEARML_", "NEPTUNE_",
)  # fmt: skip

#: names that never cross by themselves, in spite of a prefix above
STAYING_NAMES = frozenset({
    "PYTHONHOME", "PYTHONEXECUTABLE", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONPLATLIBDIR",
    "WANDB_SERVICE", "CONDA_PROMPT_MODIFIER",
})  # fmt: skip

#: set by the plan or the agent; a user's value for one of these is an error
RESERVED_NAMES = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
    "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
    "MASTER_ADDR", "MASTER_PORT", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
})  # fmt: skip
RESERVED_PREFIXES = ("DISPATCH_", "PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_")

#: removed from the host's own environment before ours is added
SCRUB_NAMES = tuple(sorted(RESERVED_NAMES | {
    "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE",
    "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_TASK_PID", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
    "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "PALS_RANKID", "PALS_LOCAL_RANKID",
    "ALPS_APP_PE",
    # a module's or a batch job's: where another launcher is to be asked, not us
    "I_MPI_PMI_LIBRARY", "I_MPI_PMI", "I_MPI_PMI2", "OMPI_MCA_pmix", "OMPI_MCA_schizo",
    # what Open MPI's mpirun leaves to what it starts
    "OMPI_COMMAND", "OMPI_ARGV", "OMPI_FILE_LOCATION", "OMPI_NUM_APP_CTX",
    "OMPI_FIRST_RANKS", "OMPI_MCA_initial_wdir",
}))  # fmt: skip
SCRUB_PREFIXES = RESERVED_PREFIXES + (
    "TORCHELASTIC_", "PET_", "OMPI_COMM_", "OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_UNIVERSE_",
    "OMPI_APP_", "ORTE_", "PRTE_", "HYDI_", "HYDRA_BSTRAP_", "I_MPI_INFO_", "I_MPI_HYDRA_",
    "MV2_COMM_WORLD_", "HOROVOD_", "SLURM_STEP_", "SLURM_SRUN_", "SLURM_PMI", "SLURM_MPI_",
)  # fmt: skip

#: the variables that a file found in the current folder may set: by none of these does a program
#: load code, read or write another file, or send results elsewhere
FOLDERS_NAMES = frozenset(
    """
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
    FI_EFA_FORK_SAFE FI_EFA_USE_DEVICE_RDMA FI_LOG_LEVEL FI_PROVIDER GLOO_SOCKET_IFNAME
    GOMP_CPU_AFFINITY HF_DATASETS_OFFLINE HF_HUB_ENABLE_HF_TRANSFER HF_HUB_OFFLINE KMP_AFFINITY
    KMP_BLOCKTIME LANG LC_ALL LC_CTYPE LOGLEVEL MKL_NUM_THREADS NCCL_ALGO
    NCCL_ASYNC_ERROR_HANDLING NCCL_BUFFSIZE NCCL_COLLNET_ENABLE NCCL_CROSS_NIC NCCL_CUMEM_ENABLE
    NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_DISABLE NCCL_IB_GID_INDEX
    NCCL_IB_HCA NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT
    NCCL_IB_SL NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_LAUNCH_MODE NCCL_MAX_CTAS NCCL_MAX_NCHANNELS
    NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NSOCKS_PERTHREAD
    NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE
    NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NUMEXPR_MAX_THREADS
    NUMEXPR_NUM_THREADS OMP_DYNAMIC OMP_MAX_ACTIVE_LEVELS OMP_NUM_THREADS OMP_PLACES
    OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY OPENBLAS_NUM_THREADS PYTHONDEVMODE
    PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER PYTHONHASHSEED PYTHONIOENCODING PYTHONMALLOC
    PYTHONNOUSERSITE PYTHONOPTIMIZE PYTHONSAFEPATH PYTHONTRACEMALLOC PYTHONUNBUFFERED PYTHONUTF8
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF TF_CPP_MIN_LOG_LEVEL TF_FORCE_GPU_ALLOW_GROWTH
    TOKENIZERS_PARALLELISM TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC
    TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_SHOW_CPP_STACKTRACES TRANSFORMERS_OFFLINE
    TRANSFORMERS_VERBOSITY UCX_LOG_LEVEL UCX_NET_DEVICES UCX_TLS WANDB_MODE
    """.split()  # noqa: SIM905 - a list of words reads better as a paragraph
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")
HIDDEN = "<hidden>"


def check_variable(name: str) -> str:
    """``name`` itself, fit to be a variable a user sets.

    Dots and dashes are allowed: programs read them, and nothing passes through a shell here.
    Raises: BadName when it is empty, of other characters, or set by dispatch (``RANK`` ...).
    """
    if not name:
        raise BadName("empty variable name", hint="write NAME=VALUE")
    begins = _NAME.match(name)
    right = begins.end() if begins else 0
    if right < len(name):
        raise BadName(f"not a variable name: {quoted(name)}", right, "write NAME=VALUE")
    if is_reserved(name):
        hints = {
            "MASTER_ADDR": "use --master-addr", "MASTER_PORT": "use --master-port",
            "WORLD_SIZE": "use --np", "LOCAL_WORLD_SIZE": "use --nproc-per-node",
        }  # fmt: skip
        raise BadName(f"{name} is set by dispatch and cannot be given", hint=hints.get(name))
    return name


def check_value(name: str, value: str) -> str:
    """``value`` itself; any text an environment can hold.

    Raises: BadName when it holds a NUL, or a lone surrogate that stands for no byte.
    """
    if "\0" in value:
        raise BadName(f"{name}: a NUL byte in the value", value.index("\0"))
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadName(f"{name}: the value is not text", error.start) from None
    return value


def is_reserved(name: str) -> bool:
    """Whether only dispatch sets this variable."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES)


def is_scrubbed(name: str) -> bool:
    """Whether the agent removes this variable of the host's before exec."""
    return name in SCRUB_NAMES or name.startswith(SCRUB_PREFIXES)


def crosses(name: str) -> bool:
    """Whether the login node's value of this variable goes to the ranks unasked."""
    if name not in CROSSING_NAMES and not name.startswith(CROSSING_PREFIXES):
        return False
    if name in STAYING_NAMES or name.endswith("_VISIBLE_DEVICES"):
        return False
    return not is_reserved(name) and not is_scrubbed(name)


def check_folders_variable(name: str) -> str:
    """As ``check_variable``, for a file that is merely found in the current folder.

    Raises: BadName also for one that is not in ``FOLDERS_NAMES``.
    """
    if check_variable(name) not in FOLDERS_NAMES:
        raise BadName(f"{name}: a folder's file may not set it")
    return name


@functools.lru_cache(4096)  # plans show the same few names for each of their ranks
def is_secret(name: str) -> bool:
    """Whether the value must not be shown: a KEY, TOKEN, SECRET, PASS or CREDENTIAL in the name."""
    upper = name.upper().replace("TOKENIZER", "")
    return any(word in upper for word in _SECRETS)


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """The same names with every secret's value replaced; for display only."""
    return {
        name: HIDDEN if is_secret(name)
        else _BY_HOST.sub(r"${\1}", value) if "\0" in value else value
        for name, value in environment.items()
    }  # fmt: skip


def redacted_words(words: Sequence[str]) -> list[str]:
    """``words`` of a command line without what is called like a secret; for display only.

    ``--hf-token X``, ``--hf-token=X`` and ``HF_TOKEN=X`` each lose X, and ``https://me:X@host``
    loses ``me:X``.
    """
    found: list[str] = []
    hide = False
    for word in words:
        shown = _USERINFO.sub(rf"\1{HIDDEN}@", word)
        match = _ASSIGNED.match(word)
        if hide and not word.startswith("-"):
            shown = HIDDEN
        elif match is not None and is_secret(match[1]):
            shown = f"{match[0]}{HIDDEN}"
        hide = word.startswith("-") and "=" not in word and is_secret(word)
        found.append(shown)
    return found


_REFERENCE = re.compile(r"\\\$|\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)", re.ASCII)
_BY_HOST = re.compile("\0(.*?)\0")
#: what a shell would do with a value besides: run a command, take another value
UNMET = re.compile(r"`|\$\(|\$\{\w*[^\w}]", re.ASCII)
Check = Callable[[str], str]
Found = dict[str, str]
_ASSIGNED = re.compile(r"-{0,2}([A-Za-z_][\w.-]*)=")
_USERINFO = re.compile(r"(://)[^/@\s]+@")
_EXPORT = re.compile(r"export[ \t]+")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
_SINGLE = re.compile(r"'([^']*)'")
_COMMENT = re.compile(r"(?:^|[ \t])#")


class EnvFileError(UsageError):
    """All mistakes of an environment file at once, in line order."""

    code = UsageError.code

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def parse_env_file(
    text: bytes | str, source: str, check: Check = check_variable, into: Found | None = None
) -> Found:
    """Names and values of an environment file (``--env-file``, DeepSpeed's ``.deepspeed_env``).

    A line is ``NAME=VALUE``, ``export NAME=VALUE``, blank, or a ``#`` comment. Quotes matter as the
    first character of a value only; within ``"``, ``\\"`` and ``\\\\`` are the escapes. Behind a
    value, ``#`` needs a blank before it. Of two values the last counts. With ``into``, to which the
    variables are added, ``$NAME`` outside of ``'`` is filled in: from it, else later by the host.
    check: raises BadName for a name that it may not set. Raises: EnvFileError with every bad line.
    """
    found: Found = {} if into is None else into
    problems: list[Problem] = []
    for number, line in numbered_lines(decoded(text)):
        try:
            pair = _pair(line, check, into)
        except BadName as bad:
            problems.append(line_problem(source, number, line, bad))
            if len(problems) >= MOST_PROBLEMS:
                break
            continue
        if pair:
            found[pair[0]] = pair[1]
    if problems:
        raise EnvFileError(problems)
    return found


def _pair(line: str, check: Check, known: Found | None) -> tuple[str, str] | None:
    start = len(line) - len(line.lstrip(" \t"))
    if start == len(line) or line[start] == "#":
        return None
    export = _EXPORT.match(line, start)
    if export:
        start = export.end()
    equals = line.find("=", start)
    if equals < 0:
        raise BadName("no '=' in the line", start, "write NAME=VALUE")
    name = line[start:equals].rstrip(" \t")
    with offset_by(start):
        check(name)
    value, at = _value(line, equals + 1)
    with offset_by(at):
        check_value(name, value)
        if known is not None and line[at - 1] != "'":
            value = _REFERENCE.sub(lambda one: _filled(one[0].strip("${}"), known), value)
        if len(value) >= 1 << 17:  # the longest that Linux passes on
            raise BadName(f"{name}: its value is too long")
        return name, value


def _filled(name: str, known: Found) -> str:
    """The value for ``$name``; the name between NULs if only the host has it."""
    return "$" if name == "\\" else known.get(name, f"\0{name}\0")


def _value(line: str, start: int) -> tuple[str, int]:
    """The value that begins at ``start``, and the offset where its text begins."""
    first = len(line) - len(line[start:].lstrip(" \t"))
    if line[first : first + 1] not in ('"', "'"):
        comment = _COMMENT.search(line, start)
        end = comment.start() if comment else len(line)
        value = line[start:end].strip(" \t")
        return value, start
    start = first
    quoted = (_DOUBLE if line[start] == '"' else _SINGLE).match(line, start)
    if not quoted:
        raise BadName(f"the quote {line[start]} is never closed", start)
    rest = line[quoted.end() :].strip(" \t")
    if rest and not (rest.startswith("#") and line[quoted.end()] in " \t"):
        raise BadName("text after the closing quote", quoted.end(), "quote the whole value")
    value = quoted[1]
    if line[start] == '"':
        value = re.sub(r'\\(["\\])', r"\1", value)
    return value, start + 1


def deepspeeds(environ: Mapping[str, str]) -> str:
    """The name of the files that DeepSpeed reads, in which the host fills in ``$NAME``."""
    return environ.get("DS_ENV_FILE") or ".deepspeed_env"


def exported(
    environ: Mapping[str, str],
    extra: Iterable[str] = (),
    files: Iterable[tuple[str, bytes | str]] = (),
) -> dict[str, str]:
    """The variables that ranks get from the login node: allow-list, then env files, then ``-x``.

    environ: the login node's environment. extra: values of ``-x``. files: source and text of each
    ``--env-file``, in the order given. Raises: UsageError for a bad or reserved name, a NUL, or
    ``-x NAME`` of a variable that is not set here; EnvFileError for bad lines.
    """
    found = {name: environ[name] for name in sorted(environ) if crosses(name)}
    for source, text in files:
        is_filled = source.rpartition("/")[2] == deepspeeds(environ).rpartition("/")[2]
        found.update(parse_env_file(text, source, into=found if is_filled else None))
    for item in extra:
        name, equals, text = item.partition("=")
        try:
            check_variable(name)
            if not equals:
                if name not in environ:
                    raise UsageError(
                        f"-x {name}: not set in this environment", hint=f"give it: -x {name}=VALUE"
                    )
                text = environ[name]
            found[name] = check_value(name, text)
        except BadName as bad:
            raise UsageError(f"-x: {bad.message}", hint=bad.hint) from None
    return found
