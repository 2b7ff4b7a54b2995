"""How a host's end of the copy gets there: a command for any host, and the source behind it.

::

    command   sh -c FIND ... : the first python3 that is new enough, else the script for sh
    stdout    one line: ``P``, Python reads on; or ``S``, the script does
    stdin     P: a line with the size, the modules, then frames (``there.frames``)
              S: what the script reads, a tar

The line costs no round trip: it comes with the marker that the command has started.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Sequence

PYTHON, SHELL = b"P\n", b"S\n"

#: what travels, in the order of their imports
_MODULES = (
    "agent.pack", "copy.there.frames", "copy.there.give", "copy.there.disk", "copy.there.take",
    "copy.there.main",
)  # fmt: skip
#: what follows where there is a tree
_TREE = ("copy.there.relay",)
_NEWER = tuple(f"python3.{minor}" for minor in range(14, 7, -1))

#: arguments: the loader, the script for hosts without Python, then the script's own
_FIND = """
l=$1 s=$2; shift 2
command -v python3 >/dev/null 2>&1 && exec python3 -I -S -X utf8 -c "$l" "$l" "$s" "$@"
echo S; eval "$s"
"""
_SHELL_ONLY = 's=$1; shift; echo S; eval "$s"'

#: Python of any version: reads the rest of the program, unbuffered, since frames follow it
_LOADER = f"""
import os, sys
if sys.version_info < (3, 8):
    for p in {_NEWER!r}:
        try: os.execvp(p, [p, "-I", "-S", "-X", "utf8", "-c", sys.argv[1]] + sys.argv[1:])
        except OSError: pass
    os.execv("/bin/sh", ["sh", "-c", {_SHELL_ONLY!r}, "dispatch"] + sys.argv[2:])
os.write(1, {PYTHON!r})
def read(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more: sys.exit(1)
        data += more
    return data
import zlib
packed = read(int(read(8)))
exec(zlib.decompress(packed))
"""

_START = """
class Loader:
    def find_spec(self, name, path=None, target=None):
        if name in modules: return type(sys.__spec__)(name, self)
    def create_module(self, spec): pass
    def get_source(self, name): return modules.get(name)
    def exec_module(self, module):
        name = module.__name__
        exec(compile(modules[name], "<dispatch>/" + name, "exec", 0, True), module.__dict__)
sys.meta_path.insert(0, Loader())
for name in "dispatcher", "dispatcher.agent", "dispatcher.copy", "dispatcher.copy.there":
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = []
from dispatcher.copy.there.main import main
sys.exit(main(packed))
"""


def words(script: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The argv for a host. script, arguments: what sh runs there if there is no Python."""
    return ("/bin/sh", "-c", _FIND, "dispatch", _LOADER, script, *arguments)


@functools.cache
def payload(tree: bool = False) -> bytes:
    """What a host that said ``PYTHON`` is sent before the first frame. tree: it passes files on."""
    names = (*_MODULES, *_TREE) if tree else _MODULES
    modules = {f"dispatcher.{name}": _source(name) for name in names}
    packed = zlib.compress(f"modules = {modules!r}\n{_START}".encode(), 9)
    return b"%08d" % len(packed) + packed


def _source(name: str) -> str:
    from dispatcher.bootstrap import lean

    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), *name.split("."))
    with open(path + ".py", encoding="utf-8") as file:
        return lean(file.read())
