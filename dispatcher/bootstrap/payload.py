"""How our code gets onto a host: a constant command line, and its source on standard input.

::

    command   exec /bin/sh -c '<find a python>' sh python3 ...     (same for every run and host)
    stdin     blank lines for login files that read any; then, in line 1, stage one of the source
              then N bytes: the modules, compressed
              then frames, the first of them already under way
    stdout    noise (banners, rc files) - SYNC marker - frames

The command means the same to sh, bash, dash, tcsh and fish: it holds one single-quoted word without
``'``, ``!``, backslash or newline. The Python inside it reads line 1 a byte at a time, so the
bytes after it are left. It holds no secret, it writes nothing to the host's disk, and
``-I -S`` keeps the user's own files out. A host's end of a copy first sends one line that names
its reader (``PYTHON``, ``SHELL``), since a host without Python copies too.
"""

from __future__ import annotations

import binascii
import functools
import os
import re
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence

from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import SYNC

OLDEST_PYTHON = (3, 8)
_MINORS = range(14, 7, -1)
NEWER_PYTHONS = tuple(f"python3.{minor}" for minor in _MINORS)
#: the Pythons to look for on a host, in this order
PYTHONS = ("python3", *NEWER_PYTHONS, "/usr/bin/python3")

#: the agent: modules of ``dispatcher.remote``; each is compiled on the host when it is imported
MODULES = (
    "protocol.packing", "protocol.frames", "host.proctree", "host.poll", "host.process",
    "host.child", "host.host_facts", "host.own_folder", "host.ssh_peer", "agent.guardian",
    "agent.rendezvous_port", "agent.node", "pmi.pmi_server", "host.shm", "pmi.pmi_spawn",
    "pmi.pmi_state", "pmi.pmi_replies", "pmi.pmi_connections", "host.failure_info",
    "agent.later_orders", "agent.agent_loop", "agent.main",
)  # fmt: skip

#: modules for few runs; they follow in the ``prepare`` order of the runs that need them
PARTS = (
    "pmi.pmi_port", "agent.rank_stdin", "probe.probes", "probe.survey",
    "probe.sampler", "probe.usage", "probe.stack_dump", "probe.nccl_state", "pmi.pmix_bridge",
    "pmi.pmix_server", "pmi.libpmix", "pmi.pmix_upcalls", "host.binding",
    "host.tcp_peer", "probe.versions", "probe.compared",
)  # fmt: skip

#: a host's end of a copy; the module that passes files on where there is a tree
COPY = (
    "protocol.packing", "protocol.mux", "protocol.copy_frames", "host.own_folder", "copy.disk",
    "copy.arriving", "copy.receiver", "copy.copy_main",
)  # fmt: skip
COPY_TREE = ("copy.copy_relay",)

#: the reader of the next bytes where a copy will begin
PYTHON, SHELL = b"P\n", b"S\n"

#: the far side's message, before any SYNC, when it found nothing to run us with
NO_PYTHON_MARK = "dispatch: no python: "
NO_PYTHON_STATUS = 127

#: the agent's variable for the Python that the user named, if the agent runs by another; else empty
PASSED_OVER = "DISPATCH_AGENT_PYTHON"

#: the first bytes for a host: a login file that reads standard input gets lines of these
BLANK_LINES = b"\n" * 8
#: why nothing can start on a host, and a fix
READS_INPUT = "a login file of this host reads standard input, where the %s comes from"
READ_NO_INPUT = "[ -t 0 ] || return  # at the top of the login file that reads standard input"

#: bytes of noise kept for the error message
NOISE_LIMIT = 64 << 10

#: the room of all that travels
REMOTE = "dispatcher.remote"

_QUOTES = '"' * 3
_packing = threading.Lock()
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+-]*")

#: imports the modules by their real names, so that tracebacks show names and source; before 3.13
#: the interpreter's own do not ask a loader, those of the module traceback do
LOADER = """
class Loader:
    def __init__(self, sources):
        self.sources = {"dispatcher.remote." + name: text for name, text in sources.items()}
    def get_source(self, name):
        return self.sources.get(name)
    def find_spec(self, name, path=None, target=None):
        is_room = any(other.startswith(name + ".") for other in self.sources)
        if is_room or name in self.sources:
            return type(sys.__spec__)(name, self, is_package=is_room)
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        name = module.__name__
        if name in self.sources:
            place = "<agent>/" + name.rpartition(".")[2] + ".py"
            exec(compile(self.sources[name], place, "exec", 0, True), module.__dict__)
def load(sources):
    sys.meta_path.insert(0, Loader(sources))
"""

#: objects, beyond those freed, that our Python makes between two looks for cycles: a start makes
#: none, and looking for them takes 1.5 ms of it
LOOK_FOR_CYCLES = 50_000
_RUN = f"""
import gc
gc.set_threshold({LOOK_FOR_CYCLES})
load(dict(zip(m[::2], m[1::2])))
sys.excepthook = lambda *e: __import__("traceback").print_exception(*e)
"""

#: the agent's beginning
_START = f"""
try:
    import _ctypes
except ImportError as error:
    sys.stderr.write({NO_PYTHON_MARK!r} + sys.executable + " is incomplete: " + str(error) + "\\n")
    sys.exit({NO_PYTHON_STATUS})
from dispatcher.remote.agent.main import main
sys.exit(main())
"""

#: the beginning of a copy; it gets all that this process was sent, for hosts below it
_START_COPY = """
from dispatcher.remote.copy.copy_main import main
sys.exit(main(b"S=%r;exec(S)\\n" % S + b))
"""

#: seconds in which all of the source has to be there; on a host that was cut off the reader
#: would wait for hours. As long as the lease of an agent that has got none
SOURCE_LIMIT = 30
#: fewer bytes than line 1 has. They are read at once, the rest of the line one by one
SURE = 512
#: exit status where the first line is not ours, which begins with ``S=``: a login file took it
INPUT_TAKEN = 97
_READ = f"import io,sys,_signal;_signal.alarm({SOURCE_LIMIT});f=io.FileIO(0);"
_READ += f"s=f.read({SURE}).lstrip();s+=next(filter(bytes.strip,f),bytes());"
_STAGE_ZERO = _READ + f"s[:2]==bytes([83,61]) or sys.exit({INPUT_TAKEN});exec(s)"

#: of the names n, in r the first Python that works, in q the first that is there. A program is
#: believed, and the system's own without a look at it. A file that only leads to one (a script, a
#: shim of pyenv, asdf or mise) is asked: its Python may not be there, and a script may print, or
#: split its arguments. PATH is searched by hand, because ``$(command -v p)`` costs a fork
_FIND = (
    "q= r=;for p in $n;do f=;case $p in */*)d=${p%/*};;*)d=$PATH;;esac;IFS=:;for d in $d;do "
    'd=${d:-.}/${p##*/};[ -f "$d" ]&&[ -x "$d" ]&&{ f=$d;break;};done;unset IFS;'
    '[ "$f" ]||continue;q=${q:-$p} l=;case $f in /usr/bin/python3*)r=$p;break;;esac;'
    '{ IFS= read -r l <"$f";} 2>/dev/null;case $f:$l in */shims/*);;*:?ELF*)r=$p;break;;esac;'
    '[ "$("$p" -I -S -c "print(0, 1)" </dev/null 2>/dev/null)" = "0 1" ]&&{ r=$p;break;};done;'
)
#: arguments: the loader, the script for hosts without Python, then the script's own
_COPY = f"""
n="{" ".join(PYTHONS)}"; {_FIND}
l=$1 s=$2; shift 2
[ "$r" ] && exec "$r" -I -S -X utf8 -c "$l" "$l" "$s" "$@"
echo S; eval "$s"
"""
_SHELL_ONLY = 's=$1; shift; echo S; eval "$s"'

#: Python of any version; too old for us, it reports that only where no newer one can
_COPY_LOADER = f"""
import os, sys
if sys.version_info < {OLDEST_PYTHON!r}:
    for p in {NEWER_PYTHONS!r}:
        try: os.execvp(p, [p, "-I", "-S", "-X", "utf8", "-c", sys.argv[1]] + sys.argv[1:])
        except OSError: pass
    os.execv("/bin/sh", ["sh", "-c", {_SHELL_ONLY!r}, "dispatch"] + sys.argv[2:])
os.write(1, {PYTHON!r})
{_READ}s or sys.exit({INPUT_TAKEN});exec(s)
"""


def command(first: Sequence[str] = (), last: Sequence[str] = (), run_id: str | None = None) -> str:
    """The shell line that starts an agent with the first python the host has.

    first, last: names or absolute paths to try before and after the usual ones;
    they come from the user's flags and hostfile. One in ``last`` that would need
    quoting is left out. run_id: put into the agent's environment, by which it is found.
    In ``PASSED_OVER`` the agent finds the first of ``first``, if another Python runs it.
    Raises: UsageError for one in ``first`` that would need quoting.
    """
    for name in first:
        if not is_plain(name):
            raise UsageError(f"--agent-python {name!r}: only letters, digits and ./_+- can be used")
    names = dict.fromkeys((*first, *PYTHONS, *filter(is_plain, last)))
    tag = f"export DISPATCH_RUN_ID={run_id}; " if run_id and is_plain(run_id) else ""
    script = tag + _become('-c "' + _STAGE_ZERO + '"', names, first[0] if first else "")
    return f"exec /bin/sh -c '{script}'"


def _become(start: str, names: Iterable[str] = PYTHONS, wanted: str = "") -> str:
    """Script that becomes the first Python among ``names``, with ``start``. wanted: "": any."""
    note = f'w={wanted};[ "${{r:-$q}}" = "$w" ]&&w=;export {PASSED_OVER}="$w";' if wanted else ""
    return (
        f'n="{" ".join(names)}";{_FIND}{note}[ "$q" ]&&exec "${{r:-$q}}" -I -S {start};'
        f'echo "{NO_PYTHON_MARK}$n" >&2; exit {NO_PYTHON_STATUS}'
    )


def python_command(*words: str) -> tuple[str, ...]:
    """The argv that runs a host's Python with ``words``, in its own command, without an agent.

    It takes no module from the folder that it is started in, which may be another user's.
    """
    return ("/bin/sh", "-c", _become('"$@"'), "sh", *words)


def copy_command(script: str, arguments: Sequence[str] = ()) -> tuple[str, ...]:
    """The argv that begins a copy on a host. script, arguments: for sh on hosts without Python."""
    return ("/bin/sh", "-c", _COPY, "dispatch", _COPY_LOADER, script, *arguments)


def is_plain(name: str) -> bool:
    """Whether every shell reads ``name`` as one plain word without quotes."""
    return _PLAIN_PATH.fullmatch(name) is not None


def payload() -> bytes:
    """The bytes for the agent's standard input before the first frame."""
    with _packing:  # or all who need it first, a thread a host, would each pack it
        return _payload()


@functools.cache
def _payload() -> bytes:
    return payload_of(sources())


@functools.cache
def copy_payload(tree: bool = False) -> bytes:
    """The bytes for a ``PYTHON`` host before the first frame; tree: it passes files on."""
    names = COPY + COPY_TREE * tree
    return payload_of({name: source(name) for name in names}, _START_COPY)


def sources() -> dict[str, str]:
    """The agent's modules: name -> source, without its comments; see ``lean``."""
    return {name: source(name) for name in MODULES}


def parts(names: Iterable[str]) -> dict[str, str]:
    """The modules of ``PARTS`` in ``names``, as a run's ``prepare`` order takes them."""
    return {f"{REMOTE}.{name}": source(name) for name in names}


@functools.cache
def source(name: str) -> str:
    """The source of the module ``name`` of ``dispatcher.remote``, as it travels."""
    with open(path_of(name), encoding="utf-8") as file:
        return lean(file.read())


def path_of(name: str) -> str:
    """The file of the module ``name`` of ``dispatcher.remote``."""
    house = os.path.dirname(os.path.dirname(__file__))
    return os.path.join(house, "remote", *name.split(".")) + ".py"


def standalone(main: str, names: Sequence[str]) -> str:
    """Source of one program that is the agent's module ``main`` with those it needs, ``names``.

    For ``standalone_command``; its function ``main`` gets the last argument's bytes.
    """
    modules = {name: source(name) for name in (*names, main)}
    packed = binascii.b2a_base64(zlib.compress(repr((modules, LOADER)).encode(), 9), newline=False)
    return (
        "import sys,zlib,binascii\n"
        f"m,s=eval(zlib.decompress(binascii.a2b_base64({packed!r})))\n"
        "exec(s)\nload(m)\n"
        f"from {REMOTE}.{main} import main\n"
        "sys.exit(main(binascii.a2b_base64(sys.argv[-1])))\n"
    )


def standalone_command(source: str, argument: bytes) -> tuple[str, ...]:
    """The argv that runs a program of ``standalone``."""
    packed = binascii.b2a_base64(argument, newline=False).decode()
    return python_command("-c", source, packed)


def lean(source: str) -> str:
    """``source`` without docstrings, comments, types of results, and lines for type checkers.

    Every other line stays in its place. A line of the agent's code that begins with three
    quotes begins a docstring, a comment at the end of a line comes after two spaces, a
    function's head ends with ``) -> TYPE:``, and the lines below ``if TYPE_CHECKING:`` run to the
    next line that is not indented; a test holds the agent to that. Comments are a fifth of the
    source; types in a function's head stay, since to find them takes longer.
    """
    lines = []
    inside = for_checkers = False
    for line in source.split("\n"):
        text = line.strip()
        for_checkers = line == "if TYPE_CHECKING:" or (for_checkers and line[:1] in ("", " "))
        if for_checkers or line == "TYPE_CHECKING = False" or text.startswith("#"):
            lines.append("")
        elif inside:
            inside = not text.endswith(_QUOTES)
            lines.append("")
        elif text.startswith(_QUOTES):
            inside = text == _QUOTES or not text.endswith(_QUOTES)
            lines.append(line[: line.index(_QUOTES)] + '""')
        else:
            line = line.partition("  # ")[0]
            head, arrow, _ = line.partition(") -> ")
            lines.append(head + "):" if arrow and line.endswith(":") else line)
    return "\n".join(lines)


def payload_of(modules: Mapping[str, str], start: str = _START) -> bytes:
    """``payload`` made of ``modules`` (name below ``dispatcher.remote`` -> source).

    start: Python that runs when they can be imported.
    """
    texts = [LOADER + _RUN + start, *(text for module in modules.items() for text in module)]
    packed = zlib.compress("\0".join(texts).encode(), 9)  # no source of Python holds a NUL
    return BLANK_LINES + _stage_one(len(packed)) + packed


def _stage_one(size: int) -> bytes:
    """Line 1: check the version, read ``size`` bytes, hand over to stage two."""
    source = (
        "import os,sys\n"
        f"if sys.version_info<{OLDEST_PYTHON!r}:\n"
        f" os.environ.get({PASSED_OVER!r})==''and os.environ.update({PASSED_OVER}=sys.executable)\n"
        f" for p in map('python3.{{}}'.format,{_MINORS!r}):\n"
        "  try:os.execvp(p,[p,'-I','-S','-c','import io;f=io.FileIO(0);S=%r;exec(S)'%S])\n"
        "  except OSError:pass\n"
        f" sys.stderr.write({NO_PYTHON_MARK!r}+'%s is %d.%d, at least %d.%d is needed\\n'"
        f"%((sys.executable,)+sys.version_info[:2]+{OLDEST_PYTHON!r}))\n"
        f" sys.exit({NO_PYTHON_STATUS})\n"
        "import zlib\n"
        "b=b''\n"
        f"while len(b)<{size}:\n"
        f" c=f.read({size}-len(b))\n"
        " if not c:sys.exit(98)\n"
        " b+=c\n"
        "__import__('_signal').alarm(0)\n"
        "s,*m=zlib.decompress(b).decode().split('\\0')\n"
        "exec(s)\n"
    )
    return f"S={source!r};exec(S)\n".encode()


# -- what comes back ----------------------------------------------------------------------


class SyncScanner:
    """Finds the end of the noise in a host's output: banners, the output of login files.

    Pure, any chunking.
    """

    def __init__(self) -> None:
        self.noise = bytearray()
        self.dropped = 0  # bytes of noise beyond NOISE_LIMIT, oldest first
        self._tail = b""

    def feed(self, data: bytes) -> bytes | None:
        """The bytes after the marker once it has come, else None (and ``data`` was noise)."""
        text = self._tail + data
        at = text.find(SYNC)
        if at < 0:
            keep = min(len(SYNC) - 1, len(text))
            self._keep_noise(text[: len(text) - keep])
            self._tail = text[len(text) - keep :]
            return None
        self._keep_noise(text[:at])
        self._tail = b""
        return text[at + len(SYNC) :]

    def finish(self) -> bytes:
        """All noise kept, when the stream ended without a marker."""
        self._keep_noise(self._tail)
        self._tail = b""
        return bytes(self.noise)

    def _keep_noise(self, data: bytes) -> None:
        self.noise += data
        if len(self.noise) > NOISE_LIMIT:
            self.dropped += len(self.noise) - NOISE_LIMIT
            del self.noise[: len(self.noise) - NOISE_LIMIT]


def boot_failure(by_hand: str, noise: bytes, errors: bytes, status: int | None) -> Failure:
    """The failure of a host without an agent, from its output and the command's exit status.

    by_hand: ``python3 -V`` on the host, as a user types it.
    """
    output = (errors or noise).decode("utf-8", "backslashreplace").strip()
    why = pythons_tried(output)
    if why:
        if status == NO_PYTHON_STATUS and " is " not in why:
            why = f"looked for {why}"
        return Failure(
            Kind.NO_PYTHON,
            why,
            hint=f"put a python3 of version {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or later on "
            "the PATH of non-interactive logins on the host, or name one with --agent-python",
        )
    if status == INPUT_TAKEN:
        return Failure(Kind.BOOT, READS_INPUT % "agent", hint=READ_NO_INPUT)
    how = "the link ended" if status is None else f"exit status {status}"
    why = f"{how} before the agent answered{remote_message(errors or noise)}"
    if status in (126, NO_PYTHON_STATUS):
        by_hand += "  # one that works: --agent-python /usr/bin/python3"
    return Failure(Kind.BOOT, why, hint=by_hand)


def flood_hint(by_hand: str) -> str:
    """A command that shows a flood at login. by_hand: ``true`` there, as a user types it."""
    return f"{by_hand} 2>&1 | head -c 999 | cat -v  # what it writes at login"


def slow_hint(by_hand: str) -> str:
    """A hint about slow login files. by_hand: ``true`` on the host, as a user types it."""
    why = "are its login files slow? One that reads standard input needs at its top"
    return f"time {by_hand} </dev/null  # {why}: [ -t 0 ] || return"


def pythons_tried(errors: str) -> str:
    """The Pythons that a host reports to have tried in vain; "" if its output names none."""
    for line in errors.splitlines():
        tried = line.partition(NO_PYTHON_MARK)[2]
        if tried and not tried.startswith("$n"):  # our command, from a shell that cannot run it
            return tried[:400]
    return ""


def remote_message(data: bytes) -> str:
    """The last three lines of a host's output, to end a message with; "" for nothing."""
    lines = data.decode("utf-8", "backslashreplace").strip().splitlines()
    last = "; ".join(lines[-3:])[-400:]
    return f"; remote said: {last}" if last else ""


def link_ended(program: str, ending: Ending, errors: bytes) -> Failure:
    """The loss of a link over which ``program`` spoke, with its last line of ``errors``."""
    how = "the link ended" if ending.code is None else f"{program} ended with {ending.code}"
    if ending.signal is not None:
        how = f"{program} was killed by SIG{ending.signal}"
    said = errors.decode("utf-8", "backslashreplace").strip().splitlines()
    return Failure(Kind.LOST, how + (f"; it said: {said[-1][-400:]}" if said else ""))
