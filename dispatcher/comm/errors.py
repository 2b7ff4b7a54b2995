"""What ends a rank's start, in words a person can act on.

::

    CommError                 anything below
    |- EnvironmentMissing     mpi4py, libnccl or torch is not here or cannot be loaded
    |- RollCallError          ranks did not come within the deadline
    |- Refused                all came, but together they cannot work
    |- NcclError              NCCL said no; ``code`` is its ncclResult_t
    |- GroupError             these parallel sizes do not fit this world
    `- Unreachable            a rank cannot open a connection to rank 0

``message`` reads ``who: what: why`` in lower case; ``hint`` is one line to
paste. ``shared`` is true when every rank raises the same reason, so all of them
can leave in good order; otherwise the rank that raises must take the others
down with it (``mpi`` does so).
"""

from __future__ import annotations


class CommError(RuntimeError):
    """The ranks cannot go on together; the message says which one, where and why."""

    def __init__(self, message: str, *, hint: str | None = None, shared: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.shared = shared

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class EnvironmentMissing(CommError):
    """A library this rank needs is not installed or cannot be loaded."""


class RollCallError(CommError):
    """Some ranks did not take part within the deadline; ``missing`` lists them."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        shared: bool = False,
        missing: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, shared=shared)
        self.missing = missing


class Refused(CommError):
    """Every rank is here, but they would hang or fail together; nothing was built."""


class NcclError(CommError):
    """NCCL refused or broke; ``code`` is its ncclResult_t (5 is a usage error, say)."""

    def __init__(
        self, message: str, *, hint: str | None = None, shared: bool = False, code: int = 0
    ) -> None:
        super().__init__(message, hint=hint, shared=shared)
        self.code = code


class GroupError(CommError):
    """The sizes asked for do not fit this world or these hosts."""


class Unreachable(CommError):
    """No address of rank 0 answers from this rank."""


class CommWarning(UserWarning):
    """The ranks can go on, but probably slower or otherwise than meant."""
