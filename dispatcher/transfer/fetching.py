"""Our end of ``get``: what hosts have, and the files of it that we lack.

A host with Python is sent the program of ``there`` and paths; it answers with a list, is
told which files are needed, and sends just those. A host without sends a tar, which is
kept in an unlinked file and taken apart when it is whole. One thread a host asks, judges
and writes; the list, its sizes and every name are judged before anything is written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

from dispatcher.bootstrap import copy_program
from dispatcher.remote.protocol import copy_frames
from dispatcher.transfer.dest_dir import MOST_MEMBERS, BadArchive
from dispatcher.transfer.get_files import Group, Receiving
from dispatcher.transfer.host_copy import Ended
from dispatcher.transfer.talking import Talking
from dispatcher.transfer.tar import unpack
from dispatcher.transfer.told import Told
from dispatcher.transport.base import Link

#: bytes of one list
_LARGEST = 256 << 20
#: how much larger a tar may be than what is in it: a block or two a member
_TAR_ROOM = 1 << 30


class Fetching(Talking):
    """Talks with the hosts (``runner.exec.dialogue``): ``plans[node]`` comes from ``node``.

    limit: bytes that one host's files may have together.
    """

    def __init__(
        self, plans: Sequence[tuple[Group, ...]], *, limit: int, checksum: bool, resume: bool
    ) -> None:
        super().__init__("get", _LARGEST, [Told() for _ in plans])
        self._plans = plans
        self._limit = limit
        self._checksum = checksum
        self._resume = resume
        self._archives: dict[int, BinaryIO] = {}

    def unpack(self, node: int) -> None:
        """Take apart the tar of a host without Python, whose command ended well."""
        archive, told = self._archives.pop(node, None), self.told[node]
        if archive is None:
            return
        (group,) = self._plans[node]
        try:
            with archive:
                archive.seek(0)
                done = unpack(archive, group.place, group.names, self._limit)
        except BadArchive as bad:
            told.error, told.hostile = str(bad), True
        except OSError as error:
            told.error = f"{error.filename or group.place}: {(error.strerror or '').lower()}"
        else:
            told.sent, told.left_out = done.files, done.left_out
            told.bytes = told.wanted = done.bytes

    # -- one host ---------------------------------------------------------------------------

    def _by_tar(self, node: int, link: Link) -> None:
        if len(self._plans[node]) > 1:
            self.told[node].error = "{rank} in the folder needs a python3 there"
            link.close()
            return
        (group,) = self._plans[node]
        told, hearing = self.told[node], self._hearing[node]
        parent = os.path.dirname(os.path.abspath(group.place))
        os.makedirs(parent, exist_ok=True)
        file = tempfile.TemporaryFile(dir=parent, prefix=".dispatch-get-")  # noqa: SIM115 - kept
        self._archives[node] = file
        try:
            while True:
                told.bytes += file.write(hearing.piece())
                if told.bytes > self._limit + _TAR_ROOM:
                    raise BadArchive(f"more than {self._limit} bytes")
        except Ended:
            pass

    def _by_python(self, node: int, link: Link) -> None:
        groups, told, hearing = self._plans[node], self.told[node], self._hearing[node]
        order = {
            "do": "get",
            "paths": [
                [path, f"{number}/{name}"]
                for number, group in enumerate(groups)
                for path, name in group.paths
            ],
            "checksum": self._checksum,
        }
        link.write(copy_program.payload() + copy_frames.message(order))
        answer = hearing.value()
        if isinstance(answer.get("error"), str):
            told.error = answer["error"][:500]
            return
        entries = self._judged(answer.get("list"))
        receiving = Receiving(entries, groups, checksum=self._checksum, resume=self._resume)
        try:
            link.write(copy_frames.message(receiving.needs()))
            told.wanted, told.found = receiving.wanted, receiving.found
            while not receiving.done:
                receiving.take(*hearing.frame())
                told.bytes = receiving.bytes
            receiving.settle()
        finally:
            receiving.close()
        told.sent, told.equal, told.left_out = receiving.sent, receiving.equal, receiving.left_out

    def _judged(self, listed: object) -> list[copy_frames.Entry]:
        """The entries of what a host lists; bounded before they are made."""
        if not isinstance(listed, dict) or not isinstance(listed.get("kinds"), str):
            raise copy_frames.BadFrame("no list")
        if len(listed["kinds"]) > MOST_MEMBERS:
            raise BadArchive(f"more than {MOST_MEMBERS} members")
        entries = copy_frames.rows(listed)
        if any(entry.size < 0 for entry in entries):
            raise BadArchive("a member of negative size")
        if sum(entry.size for entry in entries) > self._limit:
            raise BadArchive(f"more than {self._limit} bytes")
        return entries
