"""The launcher's part of process management: fences across nodes, names, and patience.

``Job`` hands it the events whose names begin with ``Pmi`` and carries out what
it returns. Pure, like all of ``core``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatcher.core import events as ev
from dispatcher.core.actions import Action, AnswerName, AskWaiting, ReleaseFence
from dispatcher.core.kvs import Fences, Release

#: names that one job may have published at once
MOST_NAMES = 4096


class Mpi:
    """The fences and the published names of one job. ranks_of: node -> its ranks."""

    def __init__(self, ranks_of: Mapping[int, Sequence[int]]) -> None:
        self._fences = Fences(ranks_of)
        self._names: dict[bytes, bytes] = {}

    def commit(self, event: ev.PmiCommitted) -> list[Action]:
        """A node is in. Raises: FenceError if it may not be."""
        return _released(self._fences.commit(event.node, event.fence, event.epoch, event.keys))

    def ended(self, rank: int) -> list[Action]:
        """``rank`` exited with 0: no fence waits for it any more."""
        return [action for release in self._fences.ended(rank) for action in _released(release)]

    def late(self, fence: str, epoch: int, seconds: float) -> list[Action]:
        """Ask the nodes that ``fence`` still waits for whom they are waiting for."""
        missing = self._fences.missing(fence, epoch)
        return [AskWaiting(node, fence, epoch, seconds) for node in missing]

    def ask(self, event: ev.PmiAsked) -> list[Action]:
        """The answer to a rank's publish, lookup or unpublish."""
        return [AnswerName(event.node, event.rank, self._answer(event))]

    def _answer(self, event: ev.PmiAsked) -> bytes:
        service = event.service
        if event.verb == "publish":
            if not event.port or len(self._names) >= MOST_NAMES:
                return b"cmd=publish_result rc=1 msg=cannot_be_published\n"
            self._names[service] = event.port
            return b"cmd=publish_result rc=0\n"
        if event.verb == "unpublish":
            found = self._names.pop(service, None) is not None
            return b"cmd=unpublish_result rc=0\n" if found else _unknown(b"unpublish")
        port = self._names.get(service)
        return _unknown(b"lookup") if port is None else b"cmd=lookup_result rc=0 port=%s\n" % port


def _unknown(verb: bytes) -> bytes:
    return b"cmd=%s_result rc=1 msg=service_not_found\n" % verb


def _released(release: Release | None) -> list[Action]:
    if release is None:
        return []
    return [
        ReleaseFence(node, release.fence, release.epoch, release.packets) for node in release.nodes
    ]
