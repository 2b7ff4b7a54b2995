"""POSIX sh for hosts: end a command when we end, find a run's processes, copy without Python.

    command   exec /bin/sh -c '<read a line, run it if it is ours>'    the same for every command
    stdin     blank lines for login files that read any; the script, a line; then, in one line or
              more, the command as shell words
              then orders, one signal name a line (TERM); its end means: we are gone
    stdout    noise (rc files, banners) - SYNC marker - the command's output

The script leaves a watcher in the background and then becomes the command by ``exec``;
``docs/design/exec.md`` has the reasons and the limits. It runs under dash, bash, busybox ash,
zsh and ksh, and needs no program but sh, and ``sleep`` when it has to kill.

Leftovers of a run are found by ``DISPATCH_RUN_ID`` in the environment of our processes, checked
again just before a kill, and in the names of agents' folders. The answer is a line each:
``found``, ``killed`` or ``left PID RUN_ID NAME``; of folders ``found``, ``removed`` or ``kept -``.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.bootstrap.payload import BLANK_LINES, READS_INPUT
from dispatcher.model.frozen import Value, value
from dispatcher.model.paths import is_run_id
from dispatcher.remote.protocol.frames import SYNC

#: reads a line. bash and ksh give up after TMOUT seconds, which hosts set for idle users; ksh
#: heeds only a TMOUT that is set for good, as the watchers below do
_READ = "IFS= TMOUT= read -r"
#: the first line that is not blank. Of one without an end half may be missing
_FIRST = f's=;until [ "$s" ];do {_READ} s||s=-;done;'
#: its beginning: a login file may have taken more than blank lines, and left half a command
MARK = ": dispatch;"
COMMAND = (
    f'exec /bin/sh -c \'{_FIRST}case $s in "{MARK}"*)eval "$s";;'
    f"*)echo {READS_INPUT % 'command'} >&2;exit 1;;esac'"
)

#: undoes what bash takes from the environment: options (SHELLOPTS), and functions in the place of
#: commands that this text calls
_PLAIN = "set +eu;unset -f kill sleep read printf rm mkdir ps stty setsid 2>/dev/null;"
#: makes us the leader of a process group where we are not one yet and can be
_LEAD = (
    'kill -0 -$$ 2>/dev/null||[ "$DISPATCH_GROUP" ]||'
    "{ command -v setsid >/dev/null 2>&1&&"
    'DISPATCH_GROUP=${p:-$PPID} exec setsid /bin/sh -c "$s"; };'
)
_GROUP = "p=${DISPATCH_GROUP:-${p:-$PPID}};unset DISPATCH_GROUP;g=-$$;kill -0 $g 2>/dev/null||"
#: with a terminal a new session would lose it: there a sudo that makes none of its own (without
#: use_pty) leads the group
_SUDO_LEADS = "{ g=-$PPID;kill -0 $g 2>/dev/null;}||"
#: TERM, a second, KILL; but only while the command itself still runs, or after an order to end
_END = "kill -0 $$||[ $o ]||exit;kill -TERM $g;sleep 1;kill -KILL $g"
_WATCH_ORDERS = (
    "exec 3<&0;(exec <&3 3<&- >/dev/null 2>&1;trap '' HUP INT QUIT TERM;"
    "o=;TMOUT=0;while IFS= read -r s;do o=1;kill -$s $g;done;" + _END + ")&"
)
#: where we may not signal sshd (sudo made us another user) we look it up. The watcher ignores
#: signals from the first: a terminal's Ctrl-C is for it, too, and may come before it has run at all
_WATCH_PARENT = (
    "o=;trap '' HUP INT QUIT TERM;(exec </dev/null >/dev/null 2>&1;"
    "while { kill -0 $p||[ -d /proc/$p ]||ps -p $p;}&&kill -0 $$;do sleep 1;done;" + _END + ")&"
    "trap - HUP INT QUIT TERM;"
)
#: the same for a script of ours (``SentScript``), which they remove; in their own session,
#: so that they survive a kill of the whole group. $1: the leader, $2: the group, $3: the folder,
#: $4: sshd
_SCRIPT_END = (
    'kill -0 $1||[ $o ]||{ rm -rf -- "$3";exit;};kill -TERM $2;sleep 1;rm -rf -- "$3";'
    'kill -KILL $2;rm -rf -- "$3"'
)
_SCRIPT_ORDERS = (
    'o=;TMOUT=0;while IFS= read -r s;do o=1;[ $s = KILL ]&&rm -rf -- "$3";kill -$s $2;done;'
    + _SCRIPT_END
)
_SCRIPT_PARENT = (
    "o=;while { kill -0 $4||[ -d /proc/$4 ]||ps -p $4;}&&kill -0 $1;do sleep 1;done;" + _SCRIPT_END
)
#: the shell waits for the script, and so can remove it before its end is known; the shell's own
#: message about a signal is not the script's
_RUN_SCRIPT = "unset d f u x;trap : HUP INT QUIT TERM;exec 4>&2 2>/dev/null;"
_LEAVE_SCRIPT = 's=$?;rm -rf -- "$dispatch_folder";exit $s'
_SYNC_WORDS = SYNC.replace(b"\0", b"\\000").replace(b"\n", b"\\n").decode()


#: where a script may be kept on a host, the first that takes it
_PLACES = '"${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm "$HOME"'


@dataclass(frozen=True)
class SentScript:
    """A script of ours that the host has while it runs: ``name`` in a folder of mode 0700.

    folder: that folder's name, hard to guess. at: the index of the word to replace by its path.
    """

    folder: str
    name: str
    content: bytes
    at: int

    def stage(self) -> str:
        """Shell text, one line, that writes it: then ``f`` has its path, a long name its folder.

        Its bytes are one line of ASCII: a shell reads many lines in a time that grows with their
        square. They are counted, since half a script must not run. In a folder that is neither
        ours nor sticky another user could exchange it. Signals wait until it can be removed.
        """
        escaped = "".join(map(_ESCAPED.__getitem__, self.content))
        return (
            f"trap '' HUP INT QUIT TERM;u=$(umask);umask 077;x='{escaped}';"
            f'for d in {_PLACES} "";do [ "$d" ]||break;[ -O "$d" ]||[ -k "$d" ]||continue;'
            f"d=$d/{self.folder};"
            f'mkdir "$d"||continue;f=$d/{shlex.quote(self.name)};'
            f'printf %b "$x" >"$f"&&[ $(($(wc -c <"$f"))) -eq {len(self.content)} ]&&'
            'chmod 700 "$f"&&break;rm -rf -- "$d";done 2>/dev/null;umask "$u";'
            '[ "$d" ]||{ echo "no folder takes the script: full, read-only, missing or open to '
            f'others are" {_PLACES} >&2;exit 1;}};dispatch_folder=$d;'
        )


def _escaped(code: int) -> str:
    """The byte ``code`` for ``printf %b``, between single quotes."""
    known = {0x0A: "\\n", 0x5C: "\\\\"}
    plain = 0x20 <= code < 0x7F and code != 0x27
    return known.get(code) or (chr(code) if plain else f"\\0{code:03o}")


_ESCAPED = [_escaped(code) for code in range(256)]


@dataclass(frozen=True)
class Wrapper:
    """A command line whose shell prints ``ready`` on standard output, then reads an opening.

    Before that, on either stream, it may print ``prompt``: sudo wants a password and a newline.
    Both stay out of the command line, which ``set -x`` shows. ``first`` is written at once.
    """

    command: str
    ready: bytes
    prompt: bytes
    first: bytes


def wrapper(token: str, *, terminal: bool = False, sudo: str | None = None) -> Wrapper:
    """The wrapper of a command on a terminal, or as user ``sudo``.

    token: a word that is hard to guess. A terminal passes all bytes unchanged and echoes none until
    the command starts. sudo comes first, so that the watcher may end what the command starts.
    """
    quiet = "t=$(stty -g);stty raw -echo;" if terminal else ""
    text = f'{quiet}printf %s-%s- ready {token};{_FIRST}eval "$s"'
    first = b""
    if sudo is None:
        command = f"exec /bin/sh -c {shlex.quote(text)}"
    else:
        inner = "".join("\\" + c if c in '"$`\\' else c for c in "p=$0;" + text)
        become = f"exec sudo -S -p {token}%%: -u {sudo} -- /bin/sh -c"
        if not terminal:  # which would echo them
            first = BLANK_LINES + b":\n"  # no line of these is left for sudo, a password to it
        command = f"exec /bin/sh -c '{_FIRST if first else ''}{become} \"{inner}\" $PPID'"
    return Wrapper(command, f"ready-{token}-".encode(), f"{token}%:".encode(), first)


def opening(
    words: Sequence[str],
    environment: Sequence[tuple[str, str]] = (),
    *,
    exports: Sequence[tuple[str, str]] = (),
    stdin: bool = False,
    terminal: bool = False,
    one_pipe: bool = False,
    script: SentScript | None = None,
) -> bytes:
    """The first bytes for the host, to run ``words`` exactly as they are.

    environment: variables for the command that this text does not use. exports: any others, set
    last. stdin: the next bytes are the command's input; otherwise it has none and orders may
    follow. terminal: it came through a ``wrapper`` with one, which is the command's input.
    one_pipe: standard error goes into standard output's pipe, as it was written between the rest.
    script: written there first, and removed before its end is known, it is killed or we are gone.
    """
    stdin = stdin or terminal
    text, given = (
        f"export {' '.join(f'{name}={shlex.quote(value)}' for name, value in pairs)};" * bool(pairs)
        for pairs in (environment, exports)
    )
    text += f"dispatch_env() {{ {given} }};" * bool(given)
    given = "dispatch_env;" * bool(given)
    quoted = [shlex.quote(word) for word in words]
    if script is not None:
        quoted[script.at] = '"$f"'
        text += script.stage()
    text += f"set -- {' '.join(quoted)}"
    lines = text.count("\n")
    # the watcher starts when the command was read: it must not read any of it
    group = _GROUP + _SUDO_LEADS if terminal else _LEAD + _GROUP
    steps = MARK + _PLAIN + group + "g=$$;" + _READ + " c;" + _more(lines)
    restore = 'stty "$t";' if terminal else ""
    ready = f'unset c s g n l o p;printf "{_SYNC_WORDS}";{restore}'
    no_input = "" if stdin else " </dev/null 3<&-"
    if script is None:
        steps += _WATCH_ORDERS if not stdin else _hung_up("$g", _WATCH_PARENT, terminal)
        errors = " 2>&1" if one_pipe else ""
        steps += f'eval "$c";{ready}{given}exec "$@"{no_input}{errors}'
    else:
        errors = "2>&1" if one_pipe else "2>&4"
        steps += f'eval "$c";{_watch_script(stdin, terminal)}{ready}'
        begin = f'({given}exec "$@")' if given else '"$@"'
        steps += f"{_RUN_SCRIPT}{begin}{no_input} {errors} 4>&-;{_LEAVE_SCRIPT}"
    return BLANK_LINES + (steps + "\n" + text + "\n").encode("utf-8", "surrogateescape")


def _hung_up(group: str, watcher: str, terminal: bool) -> str:
    """``watcher``, which hangs up ``group`` at the end of a command on a terminal.

    The kernel does that for the leader of a session; a sudo with use_pty keeps it from doing so.
    """
    return watcher.replace("exit", f"{{ kill -HUP {group};exit;}}") if terminal else watcher


def _watch_script(stdin: bool, terminal: bool) -> str:
    """Start the watcher of a script; where there is no ``setsid``, in the command's group.

    It is waited for until it closes its output: before that it may still be in the group. ksh93
    would wait for its end, but for the second pair of brackets.
    """
    text, source = (_SCRIPT_PARENT, "</dev/null") if stdin else (_SCRIPT_ORDERS, "<&3 3<&-")
    text = _hung_up("$2", text, terminal)
    first = "" if stdin else "exec 3<&0;"
    return (
        f"{first}o=;command -v setsid >/dev/null 2>&1&&o=setsid;x=$( ($o /bin/sh -c "
        f"{shlex.quote('exec >/dev/null;' + text)} "
        f'sh $$ $g "$dispatch_folder" $p {source} 2>/dev/null &) );'
    )


def _more(lines: int) -> str:
    """Script that reads ``lines`` further lines into ``c``; a newline costs a fork to make."""
    if lines == 0:
        return ""
    return (
        f"n={lines};l=$(printf '\\nx');l=${{l%x}};"
        f'while [ $n -gt 0 ];do {_READ} x;c="$c$l$x";n=$((n-1));done;unset x;'
    )


def order(signal: str) -> bytes:
    """The line that sends ``signal`` (``TERM``) to the command's process group."""
    return signal.encode() + b"\n"


#: rounds of looking and killing: a process may fork while it is looked for
ROUNDS = 5
#: processes of one host that are listed
MOST = 10_000

_SCRIPT = r"""
kill=$1; shift
exec 2>/dev/null
field() { sed -n "s/^$1:[[:space:]]*//p" /proc/$2/status; }
mine=" $$ "; p=$PPID
while [ "${p:-0}" -gt 1 ]; do
  mine="$mine$p "; p=$(field PPid $p)
done
tag() {
  r=; [ -O /proc/$1 ] || return 1
  r=$(cat /proc/$1/environ | tr '\n\000' ' \n' | sed -n 's/^DISPATCH_RUN_ID=//p') || return 1
  shift; asked "$@"
}
asked() {
  case $r in ''|*[!0-9a-z-]*) return 1;; esac
  [ $# -eq 0 ] && return
  i=$r; for w do [ "$w" = "$i" ] && return; done; return 1
}
folders() {
  t=${TMPDIR%/}; case $t in /tmp|/dev/shm|[!/]*) t=;; esac
  n='dispatch-*-????????'  # as the agent's ``folder`` has it
  for d in ${t:+"$t"/$n} /tmp/$n /dev/shm/$n; do
    [ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ] || continue
    case ${d##*-} in *[!0-9a-f]*) continue;; esac
    r=${d##*/dispatch-}; r=${r%-*}
    asked "$@" || continue
    word=found
    [ $kill = 0 ] || { rm -rf "$d"; word=removed; [ -d "$d" ] && word=kept; }
    echo "$word - $r ${d%/*}"
  done
}
containers() {  # named and labelled as transport.container.engines has it
  for e in docker podman nerdctl; do
    command -v $e >/dev/null || continue
    for c in $($e ps -a --filter "label=dispatch.uid=$(id -u)" --format '{{.Names}}'); do
      r=${c#dispatch-}; [ "$r" != "$c" ] || continue
      r=${r%-*}; asked "$@" || continue
      word=found
      [ $kill = 0 ] || { word=removed; $e rm -f "$c"; $e inspect "$c" && word=kept; } >/dev/null
      echo "$word - $r container of $e"
    done
  done
}
look() {
  word=$1; shift; any=
  for f in $(grep -ls DISPATCH_RUN_ID= /proc/[0-9]*/environ); do
    p=${f#/proc/}; p=${p%/environ}
    case $mine in *" $p "*) continue;; esac
    tag $p "$@" || continue
    case $(field State $p) in ''|Z*|X*) continue;; esac
    n=$(field Name $p)
    any=1
    case $word in
    found|left) echo "$word $p $r $n";;
    killed) tag $p "$@" && kill -KILL $p && echo "killed $p $r $n";;
    esac
  done
  [ "$any" ]
}
[ $kill = 0 ] && { look found "$@"; folders "$@"; containers "$@"; exit 0; }
round=0; while look killed "$@"; do
  round=$((round+1)); [ $round -ge ROUNDS ] && break; [ $round -gt 1 ] && sleep 1
done
[ $round -lt ROUNDS ] || look left "$@"
folders "$@"
containers "$@"
exit 0
""".replace("ROUNDS", str(ROUNDS))


def sweep_command(run_ids: Sequence[str], *, kill: bool) -> tuple[str, ...]:
    """The command that finds leftovers of ``run_ids``, of any run if there are none."""
    assert all(map(is_run_id, run_ids))
    assert run_ids or not kill  # kill only runs that were named
    return ("/bin/sh", "-c", _SCRIPT, "sh", "1" if kill else "0", *run_ids)


@value
class SweptProcess(Value):
    """A process or, where pid is null, a folder in ``name`` or a "container of" an engine.

    what: found, killed, removed; left or kept if it could not be.
    """

    host: str
    run_id: str
    what: str
    pid: int | None
    name: str


def swept_processes(host: str, text: bytes) -> list[SweptProcess]:
    """The findings in the answer of ``host``; other lines are skipped.

    A process that takes long to die is killed again in the next round, and still counts once.
    """
    found = []
    counted = set()
    for line in text.decode("utf-8", "replace").splitlines():
        what, _, rest = line.partition(" ")
        pid, _, rest = rest.partition(" ")
        run_id, _, name = rest.partition(" ")
        is_pid = pid.isascii() and pid.isdigit() and len(pid) < 11
        if not is_run_id(run_id):
            continue
        if is_pid and what in ("found", "killed", "left") and (what, pid) not in counted:
            counted.add((what, pid))
            found.append(SweptProcess(host, run_id, what, int(pid), name[:15]))
        elif pid == "-" and what in ("found", "removed", "kept"):
            found.append(SweptProcess(host, run_id, what, None, name[:255]))
    return found[:MOST]


#: h PATH: into $p the path with the home folder it begins with, which ``cli.exec.run_copy`` has
#: checked to be ~ or ~user: nothing else is ever evaluated
_HOME = """
h() {
  p=$1
  case $p in
  \\~*) eval "p=${1%%/*}"
      case $p in
      /*) p=$p${1#"${1%%/*}"};;
      *) echo "$1: no such home folder" >&2; return 1;;
      esac;;
  esac
}
"""

#: DEST NAME...: takes the tar of NAMEs from standard input. All of it is unpacked into
#: a folder beside the destination first and then renamed, so no reader ever sees half a
#: file. A folder that is there already is merged into, file by file. A file that is there gives its
#: owner, group and mode, unless dispatch_mode is set.
PUT = (
    _HOME
    + """
h "$1" || exit
d=$p; shift
k() {
  [ -O "$2" ] || [ "$(id -u)" = 0 ] || return 0
  x=$t/.dispatch-kept
  cp -p -- "$2" "$x" && cat <"$1" >"$x" && touch -r "$1" "$x" && chmod ug-s "$x" || return
  [ ! -x "$1" ] || chmod u+x "$x" || return
  mv -f -- "$x" "$1"
}
m() {
  if [ -d "$1" ] && [ ! -L "$1" ] && [ -d "$2" ] && [ ! -L "$2" ]; then
    for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
      if [ -e "$f" ] || [ -L "$f" ]; then m "$f" "$2/${f##*/}" || return; fi
    done
  else
    if [ -L "$2" ]; then rm -f -- "$2" || return
    elif [ -d "$2" ]; then echo "$2: is a directory" >&2; return 1
    elif [ -c "$2" ] || [ -b "$2" ]; then echo "$2: is a device" >&2; return 1
    elif [ -f "$1" ] && [ ! -L "$1" ] && [ -f "$2" ] && [ ! "$dispatch_mode" ]; then
      k "$1" "$2" || return
    fi
    mv -f -- "$1" "$2"
  fi
}
to=
case $d in
*/) ;;
*) if [ $# -eq 1 ] && [ ! -d "$d" ]; then
     to=$d
     case $d in */*) d=${d%/*}/;; *) d=.;; esac
   fi;;
esac
mkdir -p -- "$d" || exit
t=${d%/}/.dispatch-put-$$
(umask 077; mkdir -- "$t") || exit
trap 'rm -rf -- "$t"' EXIT
trap 'exit 1' HUP INT TERM
tar -xopf - -C "$t" || exit
for n do
  [ -e "$t/$n" ] || [ -L "$t/$n" ] || continue
  m "$t/$n" "${to:-${d%/}/$n}" || exit
done
"""
)

#: PATH...: one tar after the other on standard output, each with the path's last part only.
#: A link is followed, one to a folder only with a slash after it
GET = (
    _HOME
    + """
r=
for n do
  h "$n" || exit
  if [ -e "$p" ] && [ ! -f "$p" ] && [ ! -d "$p" ]; then
    echo "$p: not a file, folder or link" >&2; exit 1
  fi
  o=-cf; b=/.
  case $p in
  */) p=${p%/};;
  *) b=; if [ -L "$p" ] && [ ! -d "$p" ]; then o=-chf; fi;;
  esac
  case $p in */*) d=${p%/*}/; b=${p##*/}$b;; *) d=.; b=$p$b;; esac
  tar $o - -C "$d" "./$b" || r=$?
done
exit ${r:-0}
"""
)
