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
import zlib
from collections.abc import Sequence

PYTHON, SHELL = b"P\n", b"S\n"

#: what travels, in the order of their imports
_MODULES = (
    "protocol.packing", "protocol.copy_frames", "copy.disk", "copy.receiver",
    "copy.copy_main",
)  # fmt: skip
#: what follows where there is a tree
_TREE = ("copy.copy_relay",)
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
load(modules)
from dispatcher.remote.copy.copy_main import main
sys.exit(main(packed))
"""


def words(script: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The argv for a host. script, arguments: what sh runs there if there is no Python."""
    return ("/bin/sh", "-c", _FIND, "dispatch", _LOADER, script, *arguments)


@functools.cache
def payload(tree: bool = False) -> bytes:
    """What a host that said ``PYTHON`` is sent before the first frame. tree: it passes files on."""
    from dispatcher.bootstrap.payload import LOADER, source

    modules = {name: source(name) for name in ((*_MODULES, *_TREE) if tree else _MODULES)}
    packed = zlib.compress(f"modules = {modules!r}\n{LOADER}{_START}".encode(), 9)
    return b"%08d" % len(packed) + packed
