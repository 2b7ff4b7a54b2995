"""The far side of ``put`` and ``get``: shell text, run as ``sh -c TEXT dispatch ARGUMENT...``."""

from __future__ import annotations

#: h PATH: into $p the path with the home folder it begins with, which ``cli.exec.run_copy`` has
#: judged to be ~ or ~user: nothing else is ever evaluated
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
#: file. A folder that is there already is merged into, file by file.
PUT = (
    _HOME
    + """
h "$1" || exit
d=$p; shift
m() {
  if [ -d "$1" ] && [ ! -L "$1" ] && [ -d "$2" ]; then
    for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
      if [ -e "$f" ] || [ -L "$f" ]; then m "$f" "$2/${f##*/}" || return; fi
    done
  else
    if [ -L "$2" ]; then rm -f -- "$2" || return
    elif [ -d "$2" ]; then echo "$2: is a directory" >&2; return 1; fi
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
for n do m "$t/$n" "${to:-${d%/}/$n}" || exit; done
"""
)

#: PATH...: one tar after the other on standard output, each with the path's last part only
GET = (
    _HOME
    + """
for n do
  h "$n" || exit
  case $p in */*) d=${p%/*}/; b=${p##*/};; *) d=.; b=$p;; esac
  tar -cf - -C "$d" "./$b" || exit
done
"""
)
