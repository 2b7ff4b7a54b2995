"""The exit codes of ``dispatch``, and the errors that its caller can correct.

=====  =====================================================================
code   meaning
=====  =====================================================================
0      every planned rank ran and exited 0
1-..   the exit code of the rank that failed first; 128+n if signal n ended it
2      usage: bad flag, bad hostfile, impossible plan; no host was touched
3      a command on many hosts stopped after failures (--max-fail, --serial):
       some hosts were not started
93     a rank's own 93 means: do not start this job again (--max-restarts)
124    a time limit of the run was reached
125    dispatch or the cluster failed before or beside the ranks
       (host unreachable, check failed, agent lost, output lost)
126    the program was found on the host but cannot be executed
127    the program was not found on the host
128+n  dispatch itself was ended by signal n (130 is Ctrl-C)
=====  =====================================================================

A rank may itself exit with 124-127; the verdict says whose code it is. Source of 124-127:
timeout(1), env(1); of 128+n: sh(1); of 93: the launcher of NVIDIA's resiliency extension. The
name of an error's class is the code of its message and does not change: ``NoSuchJob`` is
``no-such-job``; see ``model.messages``. A failure on a host is not an exception but a value,
``model.failure``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dispatcher.model.frozen import Value, value

OK = 0
USAGE = 2
STOPPED = 3
NO_RESTART = 93
TIME_LIMIT = 124
CLUSTER = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL_BASE = 128


def from_status(status: int) -> int:
    """Exit code for a rank's status: its own code (>= 0), or 128+n for status -n (signal n)."""
    return status if status >= 0 else SIGNAL_BASE - status


def reason(error: OSError) -> str:
    """The system's text for the error, in lower case: ``no such file or directory``."""
    return (error.strerror or "").lower() or str(error)


class DispatchError(Exception):
    """``message`` reads ``who: what: why`` in lower case; ``hint`` is one line to paste."""

    exit_code = CLUSTER
    code = "dispatch-failed"

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = "-".join(re.findall(r"[A-Z][a-z]*", cls.__name__)).lower()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InternalError(DispatchError):
    """A state that must not happen; the message carries the last events."""


class UsageError(DispatchError):
    """The command line or a file it names is wrong; nothing was started."""

    exit_code = USAGE
    code = "bad-value"


class PlanError(UsageError):
    """The request is valid, but these hosts cannot satisfy it."""

    code = "plan-impossible"


# -- what the user typed ----------------------------------------------------------------


class UnknownCommand(UsageError):
    """There is no such command, and no such script in this folder."""


class UnknownCode(UsageError):
    """An unknown message code."""


class UnknownOption(UsageError):
    """The command has no such option."""


class MissingArgument(UsageError):
    """An argument is missing: the program, the command, the files to copy."""


class UnexpectedArgument(UsageError):
    """A word too many."""


class WrongArgument(UsageError, TypeError):
    """A function of this package was called with a name or a type that it does not take."""


class ConflictingOptions(UsageError):
    """Two options that cannot be used together, or one that needs another."""


class NoPassword(UsageError):
    """A password was required at the start, but none was entered."""


class NotAScript(UsageError):
    """The argument at the place of the program is not a Python script."""


class CannotTranslate(UsageError):
    """A line of another launcher for which dispatch has no equal."""


# -- files ------------------------------------------------------------------------------


class FileUnusable(UsageError):
    """A file or folder that was named cannot be read or written, or holds something else."""


class UnsafeFolder(UsageError):
    """A folder that must be yours alone is not."""


class BadConfig(UsageError):
    """``dispatch.toml`` cannot be read, or has an option that no command knows."""


class ConfigNotTrusted(UsageError):
    """A ``dispatch.toml`` or ``.deepspeed_env`` in the current folder sets a restricted option."""


class CannotCopy(UsageError):
    """``put`` or ``get`` cannot do this."""


class JournalUnusable(DispatchError):
    """A run's journal is cut off, or of another version."""


# -- hosts and ranks --------------------------------------------------------------------


class NoHosts(PlanError):
    """There are no hosts: none was named, or none is left."""


class UnknownHost(PlanError):
    """A filter names a host or a slot that is not among the hosts."""


class HostsDisagree(UsageError):
    """Two batch systems, or files, name different hosts."""


class BadBatchJob(UsageError):
    """A batch system's list of hosts cannot be understood."""


class TooFewHosts(PlanError):
    """More hosts are asked for than there are."""


class TooManyRanks(PlanError):
    """More ranks are asked for than the hosts have slots."""


class NoGpu(PlanError):
    """A GPU is asked for that the host does not have."""


class TooFewOpenFiles(UsageError):
    """The hosts need more open files than this machine allows."""


# -- jobs -------------------------------------------------------------------------------


class NoSuchJob(UsageError):
    """This machine has no record of a job with that name."""


class AmbiguousJob(UsageError):
    """Several jobs fit."""


class JobEnded(DispatchError):
    """The job has ended already."""


class CannotRestart(DispatchError):
    """The ranks of the job cannot be started again as it was asked."""


class JobElsewhere(DispatchError):
    """The job belongs to another machine."""


class LauncherKilled(DispatchError):
    """The job's launcher was killed, so there is no verdict."""


class LauncherSilent(DispatchError):
    """The job's launcher does not answer."""


class NoLogFiles(DispatchError):
    """The job keeps no files, or they are gone."""


class NotProfiled(DispatchError):
    """There are no samples of some of the ranks."""


class NoConnectionDaemon(DispatchError):
    """The process that keeps connections cannot be started or reached."""


#: characters that are shown before a mistake far to the right
_NEAR = 60


@value
class Problem(Value):
    """One mistake in a text the user wrote.

    line and column count from 1, line 0 is the only one of a text that was typed; source ""
    needs no naming; text is the offending line without its end; width is the number of
    characters the caret line underlines, >= 1.
    """

    source: str
    line: int
    column: int
    text: str
    message: str
    hint: str | None = None
    width: int = 1

    @property
    def where(self) -> str:
        """The prefix of the message; empty for the command line, where a caret is enough."""
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return f"{place}: " if place else ""

    def __str__(self) -> str:
        before, text = self.column - 1, self.text.replace("\t", " ")
        if before >= 2 * _NEAR:  # far to the right: show the text around it
            before, text = _NEAR + 3, "..." + text[before - _NEAR :]
        caret = " " * before + "^" * max(1, self.width)
        lines = [self.where + self.message, f"  {text}", f"  {caret}"]
        return "\n".join([*lines, *([f"  hint: {self.hint}"] if self.hint else [])])


class HostfileError(UsageError):
    """All mistakes of a hostfile at once, in line order; ``problems`` is never empty."""

    code = "bad-hostfile"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
