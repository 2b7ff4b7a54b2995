"""Errors that end a rank's start, with a message that says what to do.

``message`` reads ``subject: object: reason`` in lower case; ``hint`` is one line to paste.
``shared`` is true when every rank raises the same reason, so that all of them can leave in good
order; otherwise the rank that raises must end the others (``mpi`` does so).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class CommError(RuntimeError):
    """The ranks cannot go on together; the message says which one, where and why.

    code: NCCL's ncclResult_t, 0 where it is not NCCL's error. missing: ranks that did not come.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        shared: bool = False,
        code: int = 0,
        missing: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.shared = shared
        self.code = code
        self.missing = missing

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class EnvironmentMissing(CommError):
    """A library this rank needs is not installed or cannot be loaded."""


class RollCallError(CommError):
    """Some ranks did not take part within the deadline; ``missing`` lists them."""


class Refused(CommError):
    """Every rank is here, but they would hang or fail together; nothing was built."""


class NcclError(CommError):
    """NCCL refused or broke; ``code`` is its ncclResult_t (5 is a usage error, say)."""


class GroupError(CommError):
    """The sizes asked for do not fit this world or these hosts."""


class Unreachable(CommError):
    """This rank cannot connect to any address of rank 0."""


class CommWarning(UserWarning):
    """The ranks can go on, but probably slower or otherwise than meant."""


def fold(ranks: Iterable[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def describe(ranks: Iterable[int], hosts: Mapping[int, str]) -> str:
    """``rank 3 on gpu01; ranks 8-15 on gpu02``: many ranks in few words, unknown hosts said so."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(set(ranks)):
        by_host.setdefault(hosts.get(rank, "an unknown host"), []).append(rank)
    return "; ".join(
        f"rank{'s' if len(members) > 1 else ''} {fold(members)} on {host}"
        for host, members in by_host.items()
    )
