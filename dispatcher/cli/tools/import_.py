"""``dispatch import``: another launcher's command line as dispatch's, and why; runs nothing."""

from __future__ import annotations

import os
import re
import shlex
import sys

from dispatcher.cli.options.declaration import Options, argument, preset
from dispatcher.model.errors import CannotTranslate
from dispatcher.plan.compat import is_known, translate


class ImportOptions(Options):
    """Print the dispatch command that does the same as another launcher's command.

    It runs nothing. The command goes to standard output, and the translation of each option to
    standard error. The command may be quoted as one word.
    """

    examples = (
        ("dispatch import -- torchrun --nnodes 4 --nproc-per-node 8 train.py --lr 1", "torchrun"),
        ("dispatch import -- deepspeed --hostfile hosts --include a@b:0,1 train.py", "deepspeed"),
        ("dispatch import -- mpirun -np 16 --hostfile hosts python train.py", "mpirun"),
        ("dispatch import -- accelerate launch --num_processes 16 train.py", "accelerate"),
    )
    epilog = "Exit code: 0; 2 if an option is unknown, or dispatch has no equivalent."

    hostfile: str | None = preset(
        "-H", metavar="FILE|LIST", help="Take these hosts if the command names none."
    )
    words: tuple[str, ...] = argument(last=True, metavar="-- LAUNCHER [ARGS]...")


#: bytes of a file that another launcher's command names
_MOST = 1 << 20


def _text(path: str) -> str:
    from dispatcher.cli import named_files

    return named_files.read(path, path, _MOST).decode("utf-8", "surrogateescape")


#: the pieces of a text as a shell reads it: escaped, in quotes of either kind, and plain
_PIECES = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^\\"])*"|[^\\'"]+|.""", re.DOTALL)
#: text that a shell would expand, and characters that end a command
_FILLED = re.compile(r"[$`][\w{(@*#?]*\}?|(?<!\S)~\S*")
_ENDS = re.compile(r"\d*[|&;<>()\n]+&?\d*")


def _words(given: tuple[str, ...]) -> tuple[str, ...]:
    """The words of the command, which may be quoted as one. Raises: UsageError."""
    if len(given) != 1 or not given[0].split()[1:]:
        return given
    text = given[0].replace("\\\n", " ").strip()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise CannotTranslate(f"{given[0]}: {error}") from None
    _refuse_shell(text)
    return words


def _refuse_shell(text: str) -> None:
    """Raises: UsageError if only a shell can read ``text``."""
    for piece in _PIECES.finditer(text):
        quote = piece[0][0]
        filled = _FILLED.search(piece[0]) if quote not in "\\'" else None
        ends = _ENDS.search(piece[0]) if quote not in "\\'\"" else None
        if ends:
            head = text[: piece.start() + ends.start()].strip()
            name = ends[0].strip() or "a second line"
            raise CannotTranslate(
                f"{name}: is for the shell, not for the launcher",
                hint=f"dispatch import -- {shlex.quote(head)}" if _is_launcher(head) else None,
            )
        if filled:
            raise CannotTranslate(
                f"{filled[0]}: a shell would expand it, but no shell reads a quoted command",
                hint=f"dispatch import -- {' '.join(text.split())}",
            )


def _is_launcher(text: str) -> bool:
    try:
        return is_known(shlex.split(text))
    except ValueError:
        return False


def translated(options: ImportOptions) -> int:
    """Print the line for dispatch and its reasons; the exit code. Raises: UsageError."""
    line = translate(_words(options.words), _text, os.environ.get("PYTHONPATH", ""))
    has_hosts = not {"-H", "-w"}.isdisjoint(line.options)
    named = options.hostfile is None or has_hosts
    full = line.words if named else ("dispatch", "-H", options.hostfile or "", *line.words[1:])
    sys.stdout.write(shlex.join(full) + "\n")
    for reason in line.reasons:
        none = "(left out)" if reason.why.startswith("NOT DONE") else "(not needed)"
        became = shlex.join(reason.words) or none
        why = f"  # {reason.why}" if reason.why else ""
        sys.stderr.write(f"  {shlex.join(reason.written) or '(default)'}  ->  {became}{why}\n")
    if not has_hosts and options.hostfile is None:
        sys.stderr.write("note: it names no hosts: add -H hostfile, or run it inside a batch job\n")
    return 0
