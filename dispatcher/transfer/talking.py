"""What both ends of a copy to many hosts share: one thread a host, which says how it copies.

The first words of a host tell whether Python answers there or only a shell; ``put`` and
``get`` differ in what comes then.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from dispatcher.bootstrap import copy_program
from dispatcher.model.errors import UsageError
from dispatcher.remote.protocol import copy_frames
from dispatcher.transfer.dest_dir import BadArchive
from dispatcher.transfer.host_copy import Ended, Hearing
from dispatcher.transfer.told import Told
from dispatcher.transport.base import Link, LinkClosed


class Talking(abc.ABC):
    """A ``runner.exec.dialogue`` with the copy's far ends.

    verb: names the threads. largest: bytes of one value a host may send. told: one a node,
    written as it goes.
    """

    hears = True

    def __init__(self, verb: str, largest: int, told: Sequence[Told]) -> None:
        self._verb = verb
        self._hearing = [Hearing(largest) for _ in told]
        self.told = told

    def start(self, node: int, link: Link) -> None:
        self._hearing[node].talk(f"{self._verb}:{node}", lambda: self._talk(node, link))

    def heard(self, node: int, data: bytes) -> None:
        self._hearing[node].put(data)

    def finish(self, node: int) -> None:
        self._hearing[node].finish()

    def close(self) -> None:
        for hearing in self._hearing:
            hearing.stop()

    @abc.abstractmethod
    def _by_python(self, node: int, link: Link) -> None:
        """Copy with a host that has Python. Raises: Ended, BadFrame, BadArchive, UsageError,
        OSError for what this side's disk refuses."""

    @abc.abstractmethod
    def _by_tar(self, node: int, link: Link) -> None:
        """Copy with one that has none. Raises: as ``_by_python``."""

    def _talk(self, node: int, link: Link) -> None:
        told, hearing = self.told[node], self._hearing[node]
        try:
            first = hearing.line(len(copy_program.PYTHON))
            told.python = first == copy_program.PYTHON
            if told.python:
                self._by_python(node, link)
            elif first == copy_program.SHELL:
                self._by_tar(node, link)
            else:
                told.error, told.hostile = "it did not say how it copies", True
                link.close()
            link.end_input()
        except (LinkClosed, Ended):
            pass  # the end of its command says more
        except (copy_frames.BadFrame, BadArchive) as bad:
            told.error, told.hostile = str(bad), True
            link.close()
        except UsageError as error:
            told.error = str(error)
            link.close()
        except OSError as error:
            name = f"{error.filename}: " if error.filename is not None else ""
            told.error = name + (error.strerror or str(error)).lower()
            link.close()
        finally:
            hearing.stop()
