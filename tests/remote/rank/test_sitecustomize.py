"""What a rank's Python loads first, by Pythons that end, import and are asked in all ways.

``mpi4py.MPI`` is a stand-in, which says when it is finalized: that is where a real one would wait
for the other ranks.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from rig import UNMEASURED, wait_for

from dispatcher.remote.rank import sitecustomize
from dispatcher.runner.run import orders

MPI = """
import os
class World:
    def Get_size(self):
        return int(os.environ.get("FAKE_SIZE", "2"))
COMM_WORLD = World()
def Get_library_version():
    return os.environ.get("FAKE_LIBRARY", "MPICH Version:      5.0.2\\nand more")
def Is_initialized():
    return "initialized" in os.environ.get("FAKE_STATE", "initialized")
def Is_finalized():
    return "finalized" in os.environ.get("FAKE_STATE", "")
class Last:  # after all that runs at exit, as Py_AtExit has it
    def __del__(self, write=os.write):
        write(1, b"MPI_Finalize\\n")
last = Last()
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(program, NAME=VALUE)``: a Python that finds the hook first, and mpi4py."""
    hook, site = tmp_path / "hook", tmp_path / "site"
    (site / "mpi4py").mkdir(parents=True)
    hook.mkdir()
    (hook / "sitecustomize.py").write_bytes(orders.hook())
    (site / "mpi4py" / "__init__.py").touch()
    (site / "mpi4py" / "MPI.py").write_text(MPI)

    def start(program: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = env.pop("PYTHONPATH", f"{hook}{os.pathsep}{site}").replace("HOOK", str(hook))
        known = {n: v for n, v in os.environ.items() if not n.startswith(("PMI", "FAKE_"))}
        return subprocess.run(
            [sys.executable, "-c", program], env={**known, **env, "PYTHONPATH": path},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return start


FINALIZED = "MPI_Finalize\n"
#: a standard input that cannot be closed, for one reason or the other
CLOSES = "class Stdin:\n    def close(self):\n        raise {}\nsys.stdin = Stdin()\nexit(5)"


@pytest.mark.parametrize(
    ("program", "code", "output"),
    [
        ("pass", 0, FINALIZED),
        ("sys.exit()", 0, FINALIZED),
        ("sys.exit(None)", 0, FINALIZED),
        ("sys.exit(0)", 0, FINALIZED),
        ("sys.exit(256)", 0, FINALIZED),
        ("sys.exit(False)", 0, FINALIZED),
        ("sys.exit(3)", 3, ""),
        ("sys.exit(260)", 4, ""),
        ("sys.exit(-1)", 255, ""),
        ("sys.exit('words')", 1, ""),
        ("sys.exit((1, 2))", 1, ""),
        ("exit(5)", 5, ""),
        ("quit(6)", 6, ""),
        ("exit()", 0, FINALIZED),
        ("sys.stdin = None\nexit(5)", 5, ""),
        (CLOSES.format("OSError"), 5, ""),
        (CLOSES.format("ValueError"), 5, ""),
        ("raise ValueError", 1, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, FINALIZED),
        # what is caught is no exit
        ("try:\n    sys.exit(3)\nexcept SystemExit as e:\n    print(e.code)", 0, "3\n" + FINALIZED),
        ("try:\n    sys.exit(3)\nexcept SystemExit as e:\n    e.code = 5\n    raise", 5, ""),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    sys.exit(0)", 0, FINALIZED),
        # a thread ends alone, quietly
        ("t = threading.Thread(target=sys.exit, args=(3,))\nt.start()\nt.join()", 0, FINALIZED),
        # neither goes by what notices
        ("raise SystemExit(7)", 7, FINALIZED),
        ("sys.exit(SystemExit(8))", 8, FINALIZED),
        # nothing that the program has to do or to say at its end is lost
        ("atexit.register(print, 'bye')\nsys.stdout.write('last ')\nsys.exit(3)", 3, "last bye\n"),
        ("sys.stdout = None\nsys.exit(3)", 3, ""),
        ("sys.stdout.close()\nsys.exit(3)", 3, ""),
        ("sys.stdout = open('/dev/full', 'w')\nsys.stdout.write('x')\nsys.exit(3)", 3, ""),
    ],
)
def test_only_a_rank_that_ends_well_finalizes_mpi(
    run: Run, program: str, code: int, output: str
) -> None:
    done = run(f"import atexit, sys, threading, mpi4py.MPI\n{program}")
    assert (done.returncode, done.stdout) == (code, output)
    if program.startswith("raise ValueError"):
        assert done.stderr.endswith("\nValueError\n")
    elif program == "sys.exit('words')":
        assert done.stderr == "words\n"
    elif "(1, 2)" in program:
        assert done.stderr == "(1, 2)\n"
    elif "Keyboard" not in program:
        assert done.stderr == ""


@pytest.mark.parametrize("state", ["", "initialized finalized"])
def test_an_mpi_that_waits_for_nobody_ends_as_it_likes(run: Run, state: str) -> None:
    done = run("import sys, mpi4py.MPI; sys.exit(3)", FAKE_STATE=state)
    assert (done.returncode, done.stdout) == (3, FINALIZED)


def test_without_mpi_nothing_is_skipped(run: Run) -> None:
    done = run("import atexit, sys; atexit.register(print, 'bye'); sys.exit(3)")
    assert (done.returncode, done.stdout) == (3, "bye\n")


def test_who_replaces_the_hook_for_exceptions_and_calls_it_is_seen(run: Run) -> None:
    lines = [
        "import sys, mpi4py.MPI", "before = sys.excepthook",
        "sys.excepthook = lambda *what: (print('mine', flush=True), before(*what))", "1 / 0",
    ]  # fmt: skip
    done = run("\n".join(lines))
    assert (done.returncode, done.stdout) == (1, "mine\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_child_that_is_forked_is_not_the_rank(run: Run) -> None:
    text = (
        "import os, sys, mpi4py.MPI\nif not os.fork():\n    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)"
    )
    done = run(text)
    assert (done.returncode, done.stdout) == (0, f"{FINALIZED}3\n{FINALIZED}")


def test_what_sys_exit_raises_is_an_ordinary_exception(run: Run) -> None:
    text = (
        "import copy, pickle, sys\ntry:\n    sys.exit(3)\nexcept SystemExit as e:\n"
        "    print(type(e).__module__, type(e).__qualname__, e.args, e.code)\n"
        "    print(type(pickle.loads(pickle.dumps(e))) is SystemExit, copy.copy(e).args)\n"
        "    e.code = 0\n"
        "try:\n    sys.exit()\nexcept SystemExit as e:\n    print(e.args, e.code)\n"
        "try:\n    sys.exit((1, 2))\nexcept SystemExit as e:\n    print(e.args, e.code)\n"
    )
    assert run(text).stdout == ("builtins SystemExit (3,) 3\nTrue (3,)\n() None\n(1, 2) (1, 2)\n")


# -- another library ------------------------------------------------------------------------

OPEN_MPI = "Open MPI v5.0.3, package: Debian, ident: 5.0.3\0"
INTEL = "\nIntel(R) MPI Library 2021.11 for Linux* OS\nmore"
INTEL_SAYS = (
    "MPI: Intel(R) MPI Library 2021.11 for Linux* OS does not speak PMI-1, "
    "so each of the 4 ranks would be alone\n"
    "  hint: --mpi auto, or pip install mpich  (--mpi none, if they are meant to be alone)\n"
)
OPEN_SAYS = INTEL_SAYS.replace("Intel(R) MPI Library 2021.11 for Linux* OS", "Open MPI v5.0.3")
WITH_PMIX = OPEN_SAYS.replace("PMI-1,", "PMI-1 or PMIx,").replace("--mpi auto, or ", "")


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"PMI_FD": "9", "PMI_SIZE": "4", "FAKE_SIZE": "4"}, ""),
        ({"PMI_FD": "9", "PMI_SIZE": "4", "FAKE_SIZE": "1", "FAKE_LIBRARY": INTEL}, INTEL_SAYS),
        ({"PMI_PORT": "h:9", "PMI_SIZE": "4", "FAKE_SIZE": "1", "FAKE_LIBRARY": INTEL}, INTEL_SAYS),
        ({"PMI_FD": "9", "PMI_SIZE": "1", "FAKE_SIZE": "1", "FAKE_LIBRARY": INTEL}, ""),
        ({"PMI_FD": "9", "FAKE_SIZE": "1", "FAKE_LIBRARY": INTEL}, ""),
        ({"PMI_SIZE": "4", "FAKE_SIZE": "1", "FAKE_LIBRARY": INTEL}, ""),  # --mpi none
        (
            {"PMI_FD": "9", "PMI_SIZE": "4", "PMIX_RANK": "0", "FAKE_SIZE": "1",
             "FAKE_LIBRARY": OPEN_MPI},
            WITH_PMIX,
        ),
        # before MPI_Init nobody knows, but Open MPI, which needs PMIx
        ({"PMI_FD": "9", "PMI_SIZE": "4", "FAKE_STATE": "", "FAKE_LIBRARY": OPEN_MPI}, OPEN_SAYS),
        (
            {"PMI_FD": "9", "PMI_SIZE": "4", "PMIX_RANK": "0", "FAKE_STATE": "",
             "FAKE_LIBRARY": OPEN_MPI},
            "",
        ),
        (
            {"PMI_FD": "9", "PMI_SIZE": "4", "FAKE_STATE": "", "FAKE_SIZE": "1",
             "FAKE_LIBRARY": INTEL},
            "",
        ),
    ],
)  # fmt: skip
def test_a_library_that_leaves_its_ranks_alone(run: Run, env: dict[str, str], why: str) -> None:
    env = {name: value.replace("\0", "") for name, value in env.items()}
    done = run(
        "import sys\ntry:\n    from mpi4py import MPI\n    print(MPI.COMM_WORLD is not None)\n"
        "except ImportError as error:\n    print(error.name)\n    print(error)\n"
        "print([one for one in sys.meta_path if type(one).__name__ == 'ImportHook'])\n"
        "sys.stdout.flush()\nimport os; os._exit(0)",
        **env,
        **UNMEASURED,
    )
    assert done.stdout == (f"mpi4py.MPI\n{why}[]\n" if why else "True\n[]\n"), done.stderr


def test_a_name_that_ends_with_nul_is_shown_without() -> None:
    """As C libraries hand it over."""
    mpi = type("mpi", (), {
        "Get_library_version": staticmethod(lambda: OPEN_MPI), "Is_initialized": lambda: False,
    })  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PMI_SIZE", "4")
        patch.delenv("PMIX_RANK", raising=False)
        patch.setattr(mpi, "Get_library_version", staticmethod(lambda: "Open MPI v4\0\n"))
        with pytest.raises(ImportError, match=r"MPI: Open MPI v4 does not") as raised:
            sitecustomize.check_library(mpi)
    assert raised.value.name == "mpi4py.MPI"


def test_an_mpi4py_without_its_heart_is_told_as_ever(run: Run, tmp_path: Path) -> None:
    (tmp_path / "site/mpi4py/MPI.py").unlink()
    done = run("import mpi4py.MPI", PMI_FD="9", PMI_SIZE="2")
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'mpi4py.MPI'\n")


def test_other_imports_go_their_own_way(run: Run) -> None:
    done = run("import json, mpi4py\nimport mpi4py.absent", PMI_FD="9", PMI_SIZE="2")
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'mpi4py.absent'\n")


# -- leaving no trace -----------------------------------------------------------------------

TRACES = (
    "import os, sys\nprint([p for p in sys.path if 'hook' in p], os.environ.get('PYTHONPATH'))\n"
    "import sitecustomize\nprint(getattr(sitecustomize, 'mine', None))"
)


def test_it_steps_aside_for_the_rank_s_own(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("mine = 'loaded'\nprint('once')")
    done = run(TRACES, PYTHONPATH=f"HOOK{os.pathsep}{own}{os.pathsep}/nowhere")
    assert done.stdout == f"once\n[] {own}{os.pathsep}/nowhere\nloaded\n"
    assert done.stderr == ""


def test_alone_it_leaves_nothing(run: Run) -> None:
    done = run(TRACES, PYTHONPATH="HOOK")
    assert done.stdout.splitlines()[0] == "[] None"
    assert done.stderr == ""


def test_one_of_the_rank_s_own_that_breaks_is_told_as_ever(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import no_such_module")
    done = run("print('runs')", PYTHONPATH=f"HOOK{os.pathsep}{own}")
    without = run("print('runs')", PYTHONPATH=str(own))
    assert "no_such_module" in without.stderr
    assert "no_such_module" in done.stderr
    assert (done.returncode, done.stdout) == (without.returncode, without.stdout)


# -- stacks ---------------------------------------------------------------------------------


def test_stacks_are_written_when_asked_for(run: Run, tmp_path: Path) -> None:
    text = (
        "import os\nassert 'DISPATCH_STACKS' not in os.environ\n"
        "def deep():\n    os.kill(os.getpid(), 62)\ndeep()\nprint(os.getpid())"
    )
    done = run(text, DISPATCH_STACKS=str(tmp_path))
    (file,) = tmp_path.glob("stack-*")
    assert file.name == f"stack-{done.stdout.strip()}"
    assert "in deep" in file.read_text()
    assert "most recent call first" in file.read_text()


@pytest.mark.parametrize("place", ["/no/such/folder", ""])
def test_a_folder_that_is_not_there_harms_nobody(
    run: Run, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("print('runs')", DISPATCH_STACKS=place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")
    assert list(Path().glob("stack-*")) == []


def test_without_a_folder_nobody_is_asked(run: Run) -> None:
    done = run("import faulthandler; print(faulthandler.unregister(62))")
    assert done.stdout == "False\n"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # it is kept for faulthandler
def test_a_python_that_cannot_be_asked_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sitecustomize.show_stacks(str(tmp_path), 9999)  # no signal
    (tmp_path / f"stack-{os.getpid()}").unlink()
    monkeypatch.delattr(faulthandler, "register")  # as some are built
    sitecustomize.show_stacks(str(tmp_path))
    assert os.listdir(tmp_path) == [f"stack-{os.getpid()}"]


def test_a_file_that_is_there_is_nobody_s_to_write_to(tmp_path: Path) -> None:
    """As a link of somebody else's, which would lead elsewhere."""
    (tmp_path / f"stack-{os.getpid()}").write_text("theirs")
    sitecustomize.show_stacks(str(tmp_path), 62)
    assert (tmp_path / f"stack-{os.getpid()}").read_text() == "theirs"


# -- collectives ----------------------------------------------------------------------------


def entry(number: int, *, done: bool = True, key: str = "0", **more: Any) -> dict[str, Any]:
    """As torch 2.13.0 writes it in JSON, less what is not read."""
    return {
        "collective_seq_id": number, "is_p2p": False, "process_group": [key, "default_pg"],
        "profiling_name": "gloo:all_reduce", "input_sizes": [[8]], "input_dtypes": ["Float"],
        "retired": done, "state": "scheduled", **more,
    }  # fmt: skip


class Group:
    """A process group as torch keeps it."""

    def __init__(self, description: str) -> None:
        self.group_desc = description


class Torch:
    """``distributed_c10d`` of rank 2 of 3, with what its recorder holds, and ways to ask for it."""

    def __init__(self, told: dict[str, Any], *ways: str) -> None:
        c10d = SimpleNamespace(**dict.fromkeys(ways, lambda: json.dumps(told).encode()))
        self.torch = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=c10d))
        world, pair = Group("default_pg"), Group("undefined")
        members = {world: {0: 0, 1: 1, 2: 2}, pair: {2: 0, 0: 1}}
        self._world = SimpleNamespace(pg_names={world: "0", pair: "7"}, pg_group_ranks=members)

    def init_process_group(self, backend: str) -> str:
        """How torch begins."""
        return f"begun with {backend}"

    def get_rank(self) -> int:
        return 2


@pytest.mark.parametrize(
    "ways",
    [("_dump_fr_trace_json", "_dump_nccl_trace"), ("_dump_nccl_trace_json", "_dump_nccl_trace")],
)
def test_collectives_of_each_group(ways: tuple[str, ...]) -> None:
    """By the ways of torch 2.13 and 2.5; NCCL marks by its state what is done."""
    told = {
        "pg_config": {"9": {"name": "9", "desc": "tp", "ranks": "[1, 2]"}},
        "entries": [
            *(entry(n) for n in range(1, 8)), entry(8, done=False), entry(8, is_p2p=True),
            entry(1, key="7", done=False, state="completed"), entry(1, key="9", done=False),
        ],
    }  # fmt: skip
    name = "gloo:all_reduce Float[8]"
    assert json.loads(sitecustomize.collectives(Torch(told, *ways))) == {
        "rank": 2,
        "groups": [
            ["0", "default_pg", 3, [*([n, name, True] for n in range(4, 8)), [8, name, False]]],
            ["7", "undefined", [0, 2], [[1, name, True]]],
            ["9", "tp", [1, 2], [[1, name, False]]],
        ],
    }  # fmt: skip


def nccl(number: int, name: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return entry(number, **{"profiling_name": f"nccl:{name}", **more})


def test_torch_with_cuda_has_two_recorders() -> None:
    """And a group of both libraries has a row of each."""
    torch = Torch({"entries": [entry(1)]}, "_dump_fr_trace_json")
    both = torch.torch._C._distributed_c10d
    both._dump_nccl_trace_json = lambda: json.dumps({"entries": [nccl(4, done=False)]})
    assert json.loads(sitecustomize.collectives(torch))["groups"] == [
        ["0", "default_pg", 3, [[1, "gloo:all_reduce Float[8]", True]]],
        ["0", "default_pg", 3, [[4, "nccl:all_reduce Float[8]", False]]],
    ]


INSIDE: dict[str, Any] = {"name": "_broadcast_oop", "done": False}


@cases(
    ("entries", "calls"),
    [
        # a collective of several calls: they have no events, its end speaks for them
        ([nccl(1, **INSIDE), nccl(1, **INSIDE), nccl(1, "coalesced"), nccl(2)],
         [[1, "nccl:_broadcast_oop (coalesced)", True], [2, "nccl:all_reduce", True]]),
        ([nccl(1), nccl(2, **INSIDE), nccl(2, "ALLGATHER_coalesced", done=False)],
         [[1, "nccl:all_reduce", True], [2, "nccl:_broadcast_oop (coalesced)", False]]),
        # the fast way is one call, whose name ends alike
        ([nccl(1), nccl(2, "allgather_into_tensor_coalesced", done=False)],
         [[1, "nccl:all_reduce", True], [2, "nccl:allgather_into_tensor_coalesced", False]]),
        # sends and receives in a batch: its end has the number of the collective before it
        ([nccl(3), nccl(3, "send 0->1", done=False, is_p2p=True), nccl(3, "coalesced"),
          nccl(3, "recv 0<-1", done=False, is_p2p=True), nccl(3, "coalesced", done=False)],
         [[3, "nccl:all_reduce", True]]),
        ([nccl(0, "send 0->1", done=False, is_p2p=True), nccl(0, "coalesced"), nccl(1)],
         [[1, "nccl:all_reduce", True]]),
        # one that is sent by itself has nothing to do with what comes next
        ([nccl(3, "send 0->1", is_p2p=True), nccl(4, **INSIDE), nccl(4, "coalesced")],
         [[4, "nccl:_broadcast_oop (coalesced)", True]]),
    ],
)  # fmt: skip
def test_what_is_coalesced_is_one_collective(entries: list[Any], calls: list[Any]) -> None:
    found = [[n, name.replace(" Float[8]", ""), done]
             for n, name, done in sitecustomize.numbered(entries)]  # fmt: skip
    assert found == calls


def test_torch_before_2_5_has_nothing_but_a_pickle() -> None:
    told = sitecustomize.collectives(Torch({"entries": [entry(1)]}, "_dump_nccl_trace"))
    assert json.loads(told) == {"rank": 2, "groups": []}


def test_of_many_collectives_the_first_open_ones_and_the_last_are_told() -> None:
    told = {"entries": [entry(n, done=n < 5) for n in range(1, 1000)]}
    found = json.loads(sitecustomize.collectives(Torch(told, "_dump_fr_trace_json")))
    assert [call[0] for call in found["groups"][0][3]] == [*range(1, 5), *range(5, 21), 999]


def test_what_is_told_is_bounded() -> None:
    groups = {
        str(n): {"name": str(n), "desc": "x", "ranks": str([*range(1, 4000)])} for n in range(9)
    }
    told = {"pg_config": groups, "entries": [entry(1, key=str(n)) for n in range(9)]}
    text = sitecustomize.collectives(Torch(told, "_dump_fr_trace_json"))
    assert len(text) <= sitecustomize.MOST
    assert json.loads(text)["groups"][0][:3] == ["0", "default_pg", 3]


@pytest.mark.parametrize(
    ("ways", "set_before", "found"),
    [(("_dump_fr_trace_json",), {}, None), (("_dump_nccl_trace_json",), {}, "2000"),
     (("_dump_nccl_trace_json",), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "0"),
     (("_dump_nccl_trace_json",), {"TORCH_FR_BUFFER_SIZE": "9"}, None)],
)  # fmt: skip
def test_a_rank_answers_through_its_pipe_once_torch_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: tuple[str, ...],
    set_before: dict[str, str], found: str | None,
) -> None:  # fmt: skip
    """And has a recorder: by itself since torch 2.7, when that is told to older ones."""
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        monkeypatch.setenv(name, set_before.get(name, ""))  # so that it is as before at the end
        if name not in set_before:
            del os.environ[name]
    torch = Torch({"entries": [entry(1)]}, *ways)
    sitecustomize.show_collectives(str(tmp_path), torch)
    assert os.listdir(tmp_path) == []
    assert torch.init_process_group("gloo") == "begun with gloo"
    assert torch.init_process_group("nccl") == "begun with nccl"  # once more is well
    assert os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") == found
    pipe, answer = tmp_path / f"flight-{os.getpid()}", tmp_path / f"flight-{os.getpid()}.json"
    for _ in range(2):
        pipe.write_bytes(b"1")
        wait_for(answer.exists)
        assert json.loads(answer.read_bytes())["rank"] == 2
        answer.unlink()


def test_a_rank_whose_folder_is_gone_begins_all_the_same(tmp_path: Path) -> None:
    torch = Torch({}, "_dump_fr_trace_json")
    sitecustomize.show_collectives(str(tmp_path / "gone"), torch)
    assert torch.init_process_group("gloo") == "begun with gloo"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("scope", "asked"), [("1\n", True), ("0\n", False), ("2\n", False)])
def test_the_agent_may_look_into_a_python_that_its_rank_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, asked: bool
) -> None:
    """With Yama, whose file this machine may lack; the session's first process is the rank."""
    (tmp_path / "scope").write_text(scope)
    paths = {"/proc/sys/kernel/yama/ptrace_scope": tmp_path / "scope"}

    def opened(path: str) -> Any:
        return Path(paths.get(path, path)).open()

    monkeypatch.setattr(sitecustomize, "open", opened, raising=False)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    calls: list[Any] = []
    library = SimpleNamespace(prctl=lambda *words: calls.append(words))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    sitecustomize.allow_tracing()
    seen = [(option, tracer.value) for option, tracer, *_ in calls]
    assert seen == [(0x59616D61, os.getppid())] * asked


def test_a_rank_that_cannot_be_asked_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = sys.breakpointhook
    monkeypatch.setattr(sys, "breakpointhook", hook)
    sitecustomize.await_debugger("/none", signum=0)
    assert sys.breakpointhook is hook
