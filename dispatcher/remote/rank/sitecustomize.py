"""Loaded by a rank's Python before its program: a failing rank must not hang in MPI, nor run alone.

* **Endings**: mpi4py's MPI_Finalize at exit would wait for ever after ``sys.exit(3)`` or an
  uncaught exception. Such a rank leaves with its exit code, once all else has run at exit.
* **Wrong library**: ``import mpi4py.MPI`` fails where the MPI speaks neither PMI-1 nor PMIx.
* **Stacks**: with ``DISPATCH_STACKS`` a signal has faulthandler write all threads to that folder.
* **Collectives**: once torch.distributed has begun, a thread writes torch's flight recorder as JSON
  to ``flight-PID.json`` in it for each write to the pipe ``flight-PID``.
* **Debugger**: a signal or ``breakpoint()`` has the rank wait for ``remote.rank.debugger``.

The file is in a private folder that is first in PYTHONPATH. It takes the folder out of the path and
loads the ``sitecustomize`` that it hides. Any Python from 3.7 can run it, without dispatch.
It misses ``raise SystemExit(n)``, and a program that replaces ``sys.excepthook``.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
from _thread import get_ident, start_new_thread
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


def step_aside() -> None:
    """Let the rank's own ``sitecustomize`` be found, as if this one had never been."""
    me = sys.modules[__name__]
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != folder]
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.pathsep.join(place for place in folders if place != folder)
    if rest:
        os.environ["PYTHONPATH"] = rest
    else:
        os.environ.pop("PYTHONPATH", None)
    del sys.modules[__name__]
    try:
        import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, me)  # the importer expects a module under this name


class Ending:
    """Knows, when the interpreter exits, whether that is a failure: ``code`` is not 0."""

    def __init__(self) -> None:
        self.rank = os.getpid()
        self.thread = get_ident()  # the main thread
        self.code = 0

    def leave(self) -> None:
        """Skip MPI_Finalize after a failure; called when all else that runs at exit has run."""
        mpi = sys.modules.get("mpi4py.MPI")
        if not self.code or os.getpid() != self.rank or mpi is None:
            return
        if mpi.Is_initialized() and not mpi.Is_finalized():
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (AttributeError, OSError, ValueError):
                    pass
            os._exit(self.code)

    def watch(self) -> None:
        """Notice from now on how the interpreter exits."""
        atexit.register(self.leave)  # the first to be registered is the last to run
        self.watch_exceptions()
        self.watch_exits()

    def watch_exceptions(self) -> None:
        """Count an uncaught exception as a failure, except for Ctrl-C."""
        original = sys.excepthook

        def excepthook(kind: Any, value: Any, trace: Any) -> None:
            if not issubclass(kind, KeyboardInterrupt):
                self.code = 1
            original(kind, value, trace)

        sys.excepthook = excepthook

    def watch_exits(self) -> None:
        """Have ``sys.exit`` raise a SystemExit that notices its last reader.

        A program may catch it and go on. The interpreter reads ``code`` if the program does not:
        then no Python frame is below the reader.
        """
        ending = self
        original: Any = sys.exit
        original_code: Any = SystemExit.code

        class Exit(SystemExit):
            @property
            def code(self) -> Any:
                value = original_code.__get__(self)
                try:
                    sys._getframe(1)
                except ValueError:
                    ending.code = _status(value)
                return value

            @code.setter
            def code(self, value: Any) -> None:
                original_code.__set__(self, value)

            def __reduce__(self) -> Any:
                return (SystemExit, self.args)

        Exit.__name__ = Exit.__qualname__ = "SystemExit"
        Exit.__module__ = "builtins"

        # in other threads it ends the thread only, and only if it is exactly a SystemExit
        def exit(status: Any = None) -> NoReturn:
            if get_ident() != self.thread or isinstance(status, BaseException):
                original(status)
            if status is None:
                raise Exit
            raise Exit(*status) if isinstance(status, tuple) else Exit(status)

        sys.exit = exit
        # the ``exit`` and ``quit`` that site made; they close stdin first, as before
        quitter: Any = type(getattr(builtins, "exit", None))
        if quitter.__name__ == "Quitter":

            def call(_: Any, code: Any = None) -> NoReturn:
                try:
                    sys.stdin.close()
                except (AttributeError, OSError, ValueError):
                    pass
                exit(code)

            quitter.__call__ = call


def _status(code: Any) -> int:
    """The exit code for ``SystemExit(code)``; anything but a number means 1."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


class ImportHook:
    """Sees ``name`` come in, and does ``then`` with the module as soon as it is loaded."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The usual loader of the module, with ``then`` called after it; for ``sys.meta_path``."""
        if name != self.name:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                self.then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def check_library(mpi: Any) -> None:
    """Raises: ImportError if this MPI library cannot find the other ranks."""
    library = mpi.Get_library_version().strip().splitlines()[0].rstrip("\0")
    if mpi.Is_initialized():
        alone = mpi.COMM_WORLD.Get_size() == 1
    else:
        alone = library.startswith("Open MPI") and "PMIX_RANK" not in os.environ
    if alone and int(os.environ.get("PMI_SIZE", "1")) > 1:
        maker, ranks = library.split(",")[0], os.environ["PMI_SIZE"]
        has_pmix = "PMIX_RANK" in os.environ
        spoken, other = ("PMI-1 or PMIx", "") if has_pmix else ("PMI-1", "--mpi auto, or ")
        raise ImportError(
            f"MPI: {maker} does not speak {spoken}, so each of the {ranks} ranks would be alone\n"
            f"  hint: {other}pip install mpich  (--mpi none, if they are meant to be alone)",
            name="mpi4py.MPI",
        )


def show_stacks(folder: str, signum: int = 62) -> None:
    """Write our stacks to ``folder``/stack-PID at each ``signum``; see ``probe.stack_dump``."""
    import faulthandler

    try:
        file = open(os.path.join(folder, f"stack-{os.getpid()}"), "xb", buffering=0)  # noqa: SIM115
        faulthandler.register(signum, file, all_threads=True)
    except (OSError, ValueError, AttributeError):
        pass  # then no stacks can be asked for


def allow_tracing() -> None:
    """Let the agent's py-spy and gdb look at a Python that the rank's own process has started."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            if file.read().strip() != "1":
                return
        with open(f"/proc/{os.getsid(0)}/stat") as file:
            agent = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return
    from ctypes import CDLL, c_ulong

    CDLL(None).prctl(0x59616D61, c_ulong(agent), 0, 0, 0)  # PR_SET_PTRACER


def await_debugger(folder: str, signum: int = 61) -> None:
    """Let ``dispatch debug`` look into us: asked by ``signum``, or called for by breakpoint()."""

    def asked(_: int, frame: Any) -> None:
        answer_debugger(folder, frame, 10.0)

    try:
        # the module signal would load enum, which few ranks have by then
        import_module("_signal").signal(signum, asked)
        reads_nothing = os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError):
        return
    original = sys.breakpointhook

    def breakpointhook(*args: Any, **kwargs: Any) -> Any:
        if "PYTHONBREAKPOINT" in os.environ:
            return original(*args, **kwargs)
        frame = sys._getframe(1)
        place = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        known = os.environ.get("DISPATCH_RUN_ID", "JOB"), os.environ.get("RANK", "N")
        sys.stderr.write("%s: waiting for: dispatch debug %s --rank %s\n" % (place, *known))
        sys.stderr.flush()
        return answer_debugger(folder, frame, None)

    if reads_nothing:  # else it is the user's own way to talk with pdb
        sys.breakpointhook = breakpointhook


def answer_debugger(folder: str, frame: Any, seconds: float | None) -> None:
    """Wait ``seconds`` for a caller, and let it look into ``frame``."""
    from socket import AF_UNIX, socket

    path = os.path.join(folder, "debug-%d" % os.getpid())
    try:
        with socket(AF_UNIX) as door:
            door.bind(path)
            try:
                door.listen(1)
                door.settimeout(seconds)
                link = door.accept()[0]
            finally:
                os.unlink(path)
        from importlib.util import module_from_spec, spec_from_file_location

        source = os.path.join(folder, "debugger.py")
        spec: Any = spec_from_file_location("_dispatch_debugger", source)
        module: Any = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.talk(frame, link)
    except OSError:
        pass  # no debugger has connected, or can


#: for a process group: most finished collectives, and others, in a report; bytes of all
DONE, OPEN, MOST = 4, 16, 60 << 10


def show_collectives(folder: str, distributed: Any) -> None:
    """Report our collectives in ``folder`` once ``torch.distributed`` has begun.

    distributed: the module ``torch.distributed.distributed_c10d``.
    """
    from functools import update_wrapper

    begin = distributed.init_process_group
    path = os.path.join(folder, f"flight-{os.getpid()}")

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        if not any(name in os.environ for name in names) and not hasattr(
            distributed.torch._C._distributed_c10d, "_dump_fr_trace_json"
        ):
            os.environ[names[1]] = "2000"  # as torch has it by itself since 2.7
        try:
            return begin(*args, **kwargs)
        finally:
            if not os.path.exists(path):
                try:
                    os.mkfifo(path, 0o600)
                    pipe = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                    start_new_thread(answer, (pipe, path, distributed))
                except (OSError, RuntimeError):
                    pass  # then no collectives can be asked for

    update_wrapper(init_process_group, begin)
    distributed.init_process_group = init_process_group


def answer(pipe: int, path: str, distributed: Any) -> None:
    """Write ``path``.json whenever something comes through ``pipe``."""
    while os.read(pipe, 64):
        try:
            text = collectives(distributed)
            with open(path + ".new", "wb") as file:
                file.write(text)
            os.rename(path + ".new", path + ".json")
        except Exception:  # noqa: BLE001, S112 - torch may be of any version, or half ended
            continue


def collectives(distributed: Any) -> bytes:
    """The last collectives of each group, as ``core.events.collectives.read`` reads them.

    torch with CUDA has two recorders since 2.8: ``fr`` for gloo, ``nccl`` for NCCL. A group of both
    (``cpu:gloo,cuda:nccl``) numbers the calls of each library by themselves, so it has two rows.
    """
    import json

    c10d = distributed.torch._C._distributed_c10d
    groups: dict[str, list[Any]] = {}
    entries: list[Any] = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        told = json.loads(getattr(c10d, name)()) if hasattr(c10d, name) else {}
        entries += told.get("entries", [])
        for key, one in told.get("pg_config", {}).items():
            groups[key] = [one["desc"], sorted(json.loads(one["ranks"]))]
    world = distributed._world
    for group, key in world.pg_names.items():
        members = sorted(world.pg_group_ranks[group])
        groups[key] = [getattr(group, "group_desc", ""), members]
    calls_by_row: dict[tuple[str, str], list[Any]] = {}
    for entry in entries:
        key, description = (*entry.get("process_group", ("", "")), "")[:2]
        groups.setdefault(key, [description, []])
        library = entry["profiling_name"].partition(":")[0]
        calls_by_row.setdefault((key, library), []).append(entry)
    rows = []
    for (key, _), called in calls_by_row.items():
        description, members = groups[key]
        is_first = members == list(range(len(members)))
        calls = numbered(called)
        kept = [call for call in calls if call[2]][-DONE:] + [c for c in calls if not c[2]][:OPEN]
        kept += [call for call in calls[-1:] if call not in kept]
        if calls:
            rows.append([key, description, len(members) if is_first else members, kept])
    text = json.dumps({"rank": distributed.get_rank(), "groups": rows})
    while len(text) > MOST:
        rows.remove(max(rows, key=lambda row: len(row[2]) if isinstance(row[2], list) else 0))
        text = json.dumps({"rank": distributed.get_rank(), "groups": rows})
    return text.encode()


def numbered(entries: list[Any]) -> list[Any]:
    """``[number, name, whether it is done]`` of each collective of one group and library.

    Coalesced calls have one end, ``nccl:coalesced``, with the number of the calls in it. Those
    calls have no events, so they stay open for ever and the end counts for them. An end of
    ``batch_isend_irecv`` has the number of an earlier collective, and counts for none.
    Source: ProcessGroupNCCL.cpp, and ``find_coalesced_group`` of torch's ``fr_trace``.
    """
    calls: list[Any] = []
    number, in_batch = -1, False  # of sends and receives
    for entry in entries:
        if entry["collective_seq_id"] != number:
            number, in_batch = entry["collective_seq_id"], False
        is_end = entry["profiling_name"].endswith("coalesced")
        in_batch = in_batch or bool(entry.get("is_p2p"))
        if entry.get("is_p2p") or (is_end and in_batch):
            continue
        tensors = zip(entry.get("input_dtypes", []), entry.get("input_sizes", []))
        name = " ".join([entry["profiling_name"], *(f"{kind}{size}" for kind, size in tensors)])
        while is_end and calls and calls[-1][0] == number:
            name = calls.pop()[1].replace(" (coalesced)", "") + " (coalesced)"
        done = bool(entry.get("retired")) or entry["state"] == "completed"
        calls.append([number, name[:100], done])
    return calls


if __name__ == "sitecustomize":
    Ending().watch()
    await_debugger(os.path.dirname(os.path.abspath(__file__)))
    stacks_folder = os.environ.pop("DISPATCH_STACKS", "")
    if stacks_folder:
        show_stacks(stacks_folder)
        allow_tracing()
        distributed = "torch.distributed.distributed_c10d"
        hook = ImportHook(distributed, lambda module: show_collectives(stacks_folder, module))
        sys.meta_path.insert(0, hook)
    if "PMI_FD" in os.environ or "PMI_PORT" in os.environ:
        sys.meta_path.insert(0, ImportHook("mpi4py.MPI", check_library))
    step_aside()
