"""A few lines of POSIX sh that go to a host with a command, so that it never outlives us.

Theory. sshd kills nothing when a connection ends: a command without a terminal
runs on. So the shell that sshd starts (the leader of its own process group, as
sshd makes it) leaves a watcher in the background and then *becomes* the command
by ``exec``: exit codes and signals are the command's own, reported by sshd itself.

::

    command   exec /bin/sh -c 'IFS= read -r s;eval "$s"'      the same for every command
    stdin     line 1: the script; then, in one line or more: the command as shell words
              then orders, one signal name a line (TERM); its end means: we are gone
    stdout    noise (rc files, banners) - SYNC marker - the command's output

The command line holds nothing of the user's, so it means the same to every
login shell (sh, bash, zsh, tcsh, fish) and nothing of it shows in a process
list before the command runs. The script knows no program but sh, and ``sleep``
when it has to kill; it runs under dash, bash, busybox ash, zsh and ksh.

With ``stdin`` given to the command itself there is no line for orders: the watcher
then looks once a second whether its parent (sshd) still lives, and a signal is
sent by closing the connection.

sshd closes the command's input as soon as the command has ended, so nothing can
be ordered after that: a watcher that had an order ends what is left of the group.

Not covered: processes that left the group (``setsid``); with ``stdin`` and the
system's ``ssh``, a dispatch that is killed outright (ssh stays); and what a command
leaves in the background when it has ended by itself; that is kept, as under ssh.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.remote.protocol.wire import SYNC

COMMAND = "exec /bin/sh -c 'IFS= read -r s;eval \"$s\"'"

#: makes us the leader of a process group where we are not one yet and can be
_GROUP = (
    'kill -0 -$$ 2>/dev/null||[ "$DISPATCH_GROUP" ]||'
    "{ command -v setsid >/dev/null 2>&1&&"
    'DISPATCH_GROUP=${p:-$PPID} exec setsid /bin/sh -c "$s"; };'
    "p=${DISPATCH_GROUP:-${p:-$PPID}};unset DISPATCH_GROUP;"
    "g=-$$;kill -0 $g 2>/dev/null||g=$$;"
)
#: TERM, a second, KILL; but only while the command itself still runs, or was told to end
_END = "kill -0 $$||[ $o ]||exit;kill -TERM $g;sleep 1;kill -KILL $g"
_WATCH_ORDERS = (
    "exec 3<&0;(exec <&3 3<&- >/dev/null 2>&1;trap '' HUP INT QUIT TERM;"
    "o=;while IFS= read -r s;do o=1;kill -$s $g;done;" + _END + ")&"
)
#: who may not signal sshd (sudo made it another user) looks it up
_WATCH_PARENT = (
    "o=;(exec </dev/null >/dev/null 2>&1;trap '' HUP INT QUIT TERM;"
    "while { kill -0 $p||[ -d /proc/$p ]||ps -p $p;}&&kill -0 $$;do sleep 1;done;" + _END + ")&"
)
_SYNC_WORDS = SYNC.replace(b"\0", b"\\000").replace(b"\n", b"\\n").decode()


@dataclass(frozen=True)
class Door:
    """A command line whose shell says ``ready`` on standard output and only then reads an opening.

    Before that, on either stream, it may say ``prompt``: sudo wants a password and a
    newline. Neither text is part of the command line, which a shell may show (``set -x``).
    """

    command: str
    ready: bytes
    prompt: bytes


def door(token: str, *, terminal: bool = False, sudo: str | None = None) -> Door:
    """The way in for a command on a terminal, or as user ``sudo``.

    token: a word nobody can guess. A terminal is set to pass all bytes unchanged
    and to echo nothing until the command starts. sudo becomes the other user first, so
    that the watcher is that user and may end what the command starts.
    """
    quiet = "t=$(stty -g);stty raw -echo;" if terminal else ""
    text = f'{quiet}printf %s-%s- ready {token};IFS= read -r s;eval "$s"'
    if sudo is None:
        command = f"exec /bin/sh -c {shlex.quote(text)}"
    else:
        inner = "".join("\\" + c if c in '"$`\\' else c for c in "p=$0;" + text)
        become = f"exec sudo -S -p {token}%%: -u {sudo} -- /bin/sh -c"
        command = f"exec /bin/sh -c '{become} \"{inner}\" $PPID'"
    return Door(command, f"ready-{token}-".encode(), f"{token}%:".encode())


def opening(
    words: Sequence[str],
    environment: Sequence[tuple[str, str]] = (),
    *,
    stdin: bool = False,
    terminal: bool = False,
) -> bytes:
    """What is written to the host first, to run ``words`` exactly as they are.

    environment: names and values for the command. stdin: what is written next
    is the command's input; otherwise it has none and orders may follow.
    terminal: it came through a ``door`` with one, which is the command's input.
    """
    stdin = stdin or terminal
    pairs = "".join(f"{name}={shlex.quote(value)} " for name, value in environment)
    text = f"export {pairs};" if pairs else ""
    text += f"set -- {shlex.join(words)}"
    lines = text.count("\n")
    # the watcher starts when the command was read: it must not read any of it
    script = _GROUP + "IFS= read -r c;" + _more(lines)
    script += _WATCH_PARENT if stdin else _WATCH_ORDERS
    redirect = "" if stdin else " </dev/null 3<&-"
    restore = 'stty "$t";' if terminal else ""
    script += f'eval "$c";unset c s g n l o p;printf "{_SYNC_WORDS}";{restore}exec "$@"{redirect}'
    return (script + "\n" + text + "\n").encode("utf-8", "surrogateescape")


def _more(lines: int) -> str:
    """Script that reads ``lines`` further lines into ``c``; a newline costs a fork to make."""
    if lines == 0:
        return ""
    return (
        f"n={lines};l=$(printf '\\nx');l=${{l%x}};"
        'while [ $n -gt 0 ];do IFS= read -r x;c="$c$l$x";n=$((n-1));done;unset x;'
    )


def order(signal: str) -> bytes:
    """The line that sends ``signal`` (``TERM``) to the command's process group."""
    return signal.encode() + b"\n"
