"""Loaded by a rank's Python before its program: a failing rank must not hang in MPI, nor run alone.

**Endings.** mpi4py finalizes MPI when the interpreter exits. After an uncaught
exception or ``sys.exit(3)`` in one rank, that call waits for ranks which wait for
this one, so the job would hang with its traceback on the screen. Here such a rank
leaves with its exit code instead, once everything else that runs at exit has run;
the launcher does the rest. Success goes the usual way.

**Wrong library.** An MPI that speaks neither PMI-1 nor, where that is offered, PMIx finds
no process manager, and each rank would believe it is a world of its own. Importing
``mpi4py.MPI`` then fails, and says why.

**Stacks.** Where dispatch names a folder (``DISPATCH_STACKS``, with ``--hang-timeout``) the stacks
of all threads are written to a file there when a signal asks for them, by faulthandler: in C,
also while the interpreter is stuck. The variable is taken away, so that only the first
Python of a rank does so.

The file travels to the hosts and lies in a private folder that is first in
PYTHONPATH. It takes itself out of ``sys.path`` and PYTHONPATH and loads the
``sitecustomize`` it stands before, so neither the program nor its children find
a trace. Any Python from 3.7 can run it; nothing of dispatch is imported. What it does
not see: ``raise SystemExit(n)``, which passes by ``sys.exit``, and a program that
replaces ``sys.excepthook`` without calling the one before.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
from _thread import get_ident
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
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
        sys.modules.setdefault(__name__, me)  # who imports us looks for something there


class Ending:
    """Knows, when the interpreter exits, whether that is a failure: ``code`` is not 0."""

    def __init__(self) -> None:
        self.rank = os.getpid()
        self.thread = get_ident()  # the main one
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
        """An exception that nobody catches is a failure; Ctrl-C is none of the rank's."""
        original = sys.excepthook

        def excepthook(kind: Any, value: Any, trace: Any) -> None:
            if not issubclass(kind, KeyboardInterrupt):
                self.code = 1
            original(kind, value, trace)

        sys.excepthook = excepthook

    def watch_exits(self) -> None:
        """Have ``sys.exit`` raise a SystemExit that notices its last reader.

        A program may catch what sys.exit raises and go on, so the call alone says
        nothing. The interpreter reads ``code`` when nobody has caught it: then no
        Python frame is below the reader.
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
    """What the process exits with for ``SystemExit(code)``; other things than numbers mean 1."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


class ImportHook:
    """Sees ``mpi4py.MPI`` come in, and turns back an MPI that left its ranks alone."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """How others would load the module, and a check behind it; for ``sys.meta_path``."""
        if name != "mpi4py.MPI":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                check_library(module)

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
    """Write our stacks to ``folder``/stack-PID at each ``signum``;
    see ``remote.probe.stack_dump``.
    """
    import faulthandler

    try:
        file = open(os.path.join(folder, f"stack-{os.getpid()}"), "xb", buffering=0)  # noqa: SIM115
        faulthandler.register(signum, file, all_threads=True)
    except (OSError, ValueError, AttributeError):
        pass  # nobody can ask us then


if __name__ == "sitecustomize":
    Ending().watch()
    if "DISPATCH_STACKS" in os.environ:
        show_stacks(os.environ.pop("DISPATCH_STACKS"))
    if "PMI_FD" in os.environ or "PMI_PORT" in os.environ:
        sys.meta_path.insert(0, ImportHook())
    step_aside()
