"""Whether a ``Host`` or ``Match`` line of an ``ssh_config`` applies.

Patterns are OpenSSH's: ``*`` and ``?``, and comma lists with ``!`` exclusion.

Every criterion of ``Match`` is either answered as ssh does or refused by name: an unknown one
taken for true would silently change user, port or proxy. What is rare and the same for all
hosts is asked of ssh itself, once (``localnetwork``).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatcher.transport.base import shell_safe
from dispatcher.transport.ssh_config.config_lines import ConfigProblem, Line


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # What stands between two stars is taken where it is first found and never tried
    # elsewhere (a lookahead does not go back), so that no pattern can make the match slow.
    first, *rest = (_literal(part) for part in re.split(r"\*+", pattern))
    between = (f"(?=(?P<p{n}>.*?{part}))(?P=p{n})" for n, part in enumerate(rest[:-1]))
    last = [f".*{rest[-1]}"] if rest else []
    return re.compile("".join([first, *between, *last]), re.DOTALL)


def _literal(text: str) -> str:
    return ".".join(re.escape(part) for part in text.split("?"))


def matches(text: str, pattern: str) -> bool:
    """True when the whole text fits one pattern."""
    return _compiled(pattern).fullmatch(text) is not None


def matches_list(text: str, patterns: str, *, lower: bool = False) -> bool:
    """True when the text fits a pattern of the comma list and no ``!pattern`` of it.

    lower: fold the patterns to lower case (OpenSSH does so for host names).
    """
    found = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        bare = pattern[1:] if negated else pattern
        if matches(text, bare.lower() if lower else bare):
            if negated:
                return False
            found = True
    return found


_EXEC_SECONDS = 10.0
_HOLDS = "criterion-holds"  # a user's name that ssh is to show where a criterion holds
_HINT = "--transport ssh  # the system's ssh follows its own configuration"


@dataclass(frozen=True)
class MatchContext:
    """What the criteria are compared with, at this line of the file."""

    host: str
    original: str
    user: str
    local_user: str
    tag: str
    final: bool
    expand_command: Callable[[str], str]


class ProgramAnswers:
    """Answers of programs to ``Match`` lines, each run once and shared by all hosts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[tuple[str, ...], bytes], tuple[int, bytes]] = {}

    def succeeds(self, command: str, place: str) -> bool:
        """True when the shell command of a ``Match exec`` exits 0.

        Raises: ConfigProblem when it takes too long or cannot run.
        """
        shell = os.environ.get("SHELL") or "/bin/sh"
        return self._answer((shell, "-c", command), b"", f"{place}: Match exec")[0] == 0

    def ssh_holds(self, criterion: str, value: str, place: str) -> bool:
        """What the system's ssh says of a criterion that is the same for all hosts.

        Raises: ConfigProblem when there is no ssh here, or none that knows the criterion.
        """
        what = f"{place}: Match {criterion}"
        if not shell_safe(value.replace("!", "")):  # it becomes a word in a config for ssh
            raise ConfigProblem(f"{what}: bad value {value[:40]!r}")
        config = f"Match {criterion} {value}\nUser {_HOLDS}\n"
        argv = ("ssh", "-G", "-F", "/dev/stdin", "--", "host")
        code, said = self._answer(argv, config.encode(), what)
        if code:
            raise ConfigProblem(f"{what}: not understood by the ssh of this machine", hint=_HINT)
        return f"user {_HOLDS}".encode() in said.splitlines()

    def _answer(self, argv: tuple[str, ...], text: bytes, what: str) -> tuple[int, bytes]:
        with self._lock:
            if (argv, text) not in self._answers:
                self._answers[argv, text] = _run(argv, text, what)
            return self._answers[argv, text]


def _run(argv: tuple[str, ...], text: bytes, what: str) -> tuple[int, bytes]:
    """Exit code and output; without ``text`` as input there is no output that counts."""
    try:
        done = subprocess.run(
            argv,
            input=text,
            # what a command of the user's leaves running may hold its output open
            stdout=subprocess.PIPE if text else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_EXEC_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigProblem(f"{what}: no answer in {_EXEC_SECONDS:.0f} s") from None
    except OSError as error:
        raise ConfigProblem(f"{what}: {argv[0]}: {error.strerror}", hint=_HINT) from None
    return done.returncode, done.stdout or b""


def wants_final_pass(words: Sequence[str]) -> bool:
    """True when the line asks for a second reading of the config."""
    return any(word.lstrip("!").lower() == "final" for word in words)


def applies(line: Line, now: MatchContext, answers: ProgramAnswers) -> bool:
    """True when all criteria of the ``Match`` line hold.

    Raises: ConfigProblem for an unknown criterion or a missing value.
    """
    result = True
    count = 0
    words = iter(line.words)
    for word in words:
        negated = word.startswith("!")
        criterion = word.lstrip("!").lower() if negated else word.lower()
        if criterion == "all":
            if count > 1 or next(words, None) is not None:
                raise ConfigProblem(f"{line.place}: Match all cannot be combined")
            return result and not negated
        count += 1
        if criterion in ("canonical", "final"):
            holds = now.final
        else:
            value = next(words, "")
            if not value:
                raise ConfigProblem(f"{line.place}: Match {criterion}: no value")
            if criterion in ("exec", "localnetwork") and not result:
                continue  # no program is run whose answer cannot matter
            holds = _holds(criterion, value, line, now, answers)
        if holds == negated:
            result = False
    if count == 0:
        raise ConfigProblem(f"{line.place}: Match: no criterion")
    return result


def _holds(
    criterion: str, value: str, line: Line, now: MatchContext, answers: ProgramAnswers
) -> bool:
    if criterion == "host":
        return matches_list(now.host.lower(), value, lower=True)
    if criterion == "originalhost":
        return matches_list(now.original.lower(), value, lower=True)
    if criterion == "user":
        return matches_list(now.user, value)
    if criterion == "localuser":
        return matches_list(now.local_user, value)
    if criterion == "tagged":
        return matches_list(now.tag, value)
    if criterion == "localnetwork":
        return answers.ssh_holds(criterion, value, line.place)
    if criterion == "exec":
        return answers.succeeds(now.expand_command(value), line.place)
    raise ConfigProblem(f"{line.place}: Match {criterion}: not understood", hint=_HINT)
