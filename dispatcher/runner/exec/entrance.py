"""What a host says between an open link and the command, where the command must wait; pure.

A terminal has to be made silent, and sudo may want a password, before the far side
can be told what to run (see ``lifeline.door``). Until it says that it is ready nothing
of the user's is sent, least of all standard input: sudo would take its lines for
passwords. A password that is asked for twice was wrong; sudo counts each attempt, so
there is only one.
"""

from __future__ import annotations

import enum

from dispatcher.bootstrap.shell import Door

#: bytes of either stream that are kept to explain a host that lets nobody in
KEPT = 4096


class Heard(enum.Enum):
    NOTHING = enum.auto()
    PASSWORD = enum.auto()  # one is wanted
    WRONG = enum.auto()  # the one that was given
    READY = enum.auto()  # for the opening


class Entrance:
    """Listens at ``door`` to both streams; ``said`` is what else the host said, of each."""

    def __init__(self, door: Door) -> None:
        self._ready = door.ready
        self._prompt = door.prompt
        self.asked = False
        self.said = {1: b"", 2: b""}

    def hear(self, stream: int, data: bytes) -> tuple[Heard, bytes]:
        """What ``data`` of ``stream`` means, and what followed if it means ``READY``."""
        text = self.said[stream] + data
        if stream == 1 and (at := text.find(self._ready)) >= 0:
            self.said[stream] = text[:at][-KEPT:]
            return Heard.READY, text[at + len(self._ready) :]
        heard = Heard.NOTHING
        while (at := text.find(self._prompt)) >= 0:
            text = text[:at] + text[at + len(self._prompt) :]
            heard = Heard.WRONG if self.asked else Heard.PASSWORD
            self.asked = True
        self.said[stream] = text[-KEPT:]
        return heard, b""
