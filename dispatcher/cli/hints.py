"""What this machine knows about what hosts complain of, as a hint to paste: asked at the end.

``Advice`` answers for a trouble as the verdict names it: a kind of failure (``name not found``),
what an agent's look found (``no script``), or a fan-out command's end (``exit code 127``).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.api.request import cwd_of
from dispatcher.cli.options import mistakes
from dispatcher.cli.options import mistakes as retyped
from dispatcher.cli.options.host_options import only_typed
from dispatcher.model.failure import Kind

_BARE = re.compile(r"[A-Za-z0-9][\w.-]*\Z")
#: of a name that was meant for another: ``difflib``'s measure
_NEAR = 0.7
#: commands that only a shell has
_BUILTINS = frozenset({
    ".", "alias", "bg", "cd", "eval", "exec", "exit", "export", "fg", "hash", "jobs", "read", "set",
    "shift", "source", "trap", "type", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
#: how hosts are reached: the options that ``run`` and ``put`` share
_LOGIN = (
    ("user", "--user"),
    ("ssh_port", "--ssh-port"),
    ("ssh_config", "-F"),
    ("transport", "--transport"),
    ("rsh", "--rsh"),
    ("host_keys", "--host-keys"),
)


class Advice:
    """Hints for the command line whose options are ``flags``."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self._flags = flags
        self._words: Sequence[str] = flags.get("words") or ()
        self._is_run = "nproc_per_node" in flags

    def __call__(self, trouble: str) -> str | None:
        """What to do about ``trouble``; None: nothing is known here."""
        if trouble == Kind.DNS.value:
            return self._no_such_host()
        if self._is_run and trouble in ("no script", "cwd"):
            return self._not_there(trouble == "cwd")
        if self._is_run and trouble == "missing":
            return self._no_program()
        if not self._is_run and trouble == "exit code 127":
            return self._not_found()
        return None

    # -- hosts ---------------------------------------------------------------------------

    def _no_such_host(self) -> str | None:
        """A name that may have been meant for a file of hosts."""
        flags = only_typed(self._flags)
        named = flags.get("hostfile")
        lists: Sequence[str] = flags.get("lists") or ()
        if not named and len(lists) == 1 and os.path.isfile(lists[0]):
            line = retyped.as_file(lists[0])
            return f"{line}  # it is a file here, and -w takes lists" if line else None
        if not named or not _BARE.match(named) or os.path.lexists(named):
            return None
        near = _near(named, ".", os.path.isfile)
        if near is None:
            return f"getent hosts {named}  # and there is no such file here"
        return f"{retyped.respelled(named, near)}  # there is no such file here; did you mean this?"

    # -- programs ------------------------------------------------------------------------

    def _not_there(self, folder_missing: bool) -> str | None:
        """A script, or the folder of all, that hosts do not have."""
        flags, words = self._flags, self._words
        folder = cwd_of(flags["chdir"])
        path = os.path.join(folder, words[0])
        if not os.path.isdir(folder):
            return "--chdir DIR  # there is no such folder here either"
        if flags["module"] or flags["no_python"] or os.path.lexists(path):
            return self._put(folder if folder_missing else path)
        absent = "no such script here either"
        near = _near(os.path.basename(path), os.path.dirname(path), os.path.isfile)
        if near is not None:
            found = os.path.join(os.path.dirname(words[0]), near)
            line = retyped.line([*retyped.options(), found, *words[1:]])
            return f"{line}  # {absent}; did you mean this?"
        if command := mistakes.near_command(words):
            return f"{command}  # {absent}; did you mean this?"
        if "/" not in words[0] and not words[0].endswith(".py"):
            line = retyped.line([*retyped.options(), "--no-python", *words])
            return f"{line}  # {absent}; if it is a program"
        return f"ls {shlex.quote(os.path.dirname(path))}  # {absent}"

    def _put(self, path: str) -> str:
        """The line that copies ``path`` to where it is here."""
        flags = self._flags
        path = os.path.normpath(path)
        if path in (os.path.expanduser("~"), "/") or "{" in path:
            return "--chdir DIR  # a folder that every host has"
        reached = [
            word
            for name, flag in _LOGIN
            if flags.get(name) not in (None, "auto")
            for word in (flag, flags[name])
        ]
        hosts = [word for one in flags["lists"] for word in ("-w", one)]
        if flags["hostfile"]:
            hosts[:0] = ["-H", "hostfile" if flags["hostfile"] == "-" else flags["hostfile"]]
        words = ["dispatch", "put", *hosts, *reached, path]
        line = shlex.join([*words, os.path.join(os.path.dirname(path), "")])
        return f"{line}  # or a folder that every host has: --chdir DIR"

    def _no_program(self) -> str | None:
        """A program that no host has, when its name cannot be one."""
        words = self._words
        if not self._flags["no_python"] or not mistakes.is_shell_text(words[0], surely=False):
            return None
        return mistakes.apart(words)

    def _not_found(self) -> str | None:
        """A command of ``exec`` that no host has, when it was meant otherwise."""
        words = self._words
        if not words:  # --shell, or a command whose words are not its user's
            return None
        if (
            mistakes.is_shell_text(words[0], surely=False)
            or words[0] in _BUILTINS
            or "=" in words[0]
        ):
            return mistakes.as_shell_text(words)
        listed = self._flags["lists"][-1] if self._flags["lists"] else self._flags["hostfile"]
        more = mistakes.neighbours(words, listed)
        if more and len(more) < len(words):
            return mistakes.with_neighbours(words, more, listed)
        return None


def _near(name: str, folder: str, fits: Any) -> str | None:
    """The name in ``folder`` that ``name`` may have been meant for."""
    try:
        there = [one for one in os.listdir(folder or ".") if abs(len(one) - len(name)) <= 3]
    except OSError:
        return None
    from difflib import get_close_matches  # for mistakes only

    close = get_close_matches(name, there, 3, _NEAR)
    return next((one for one in close if fits(os.path.join(folder, one))), None)
