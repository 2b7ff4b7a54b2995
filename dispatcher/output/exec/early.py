"""The block that most hosts said, shown while the last ones are still at work.

A thousand hosts say the same and one hangs: who gathers would look at nothing until it
ends. So once more than half of all hosts have ended with the same output, and a second
has passed, no other block can be the usual one, and it is shown. At the end come
only the others, and who else said the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from dispatcher.core.events import exec_events as vi
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.output.exec.host_blocks import Kept, headed

#: seconds from when a block has most hosts until it is shown; a quick errand shows whole groups
WAIT = 1.0


class Early(Sink):
    """Watches what ``kept`` has; ``shown`` is the block that was shown and whose, if any was.

    write: called once, from a thread of its own: nobody is held back by a paused reader.
    """

    def __init__(
        self, kept: Kept, names: Sequence[str], write: Callable[[bytes], None], *, label: bool
    ) -> None:
        self._kept = kept
        self._names = names
        self._write = write
        self._label = label
        self._nodes: dict[bytes, list[int]] = {}
        self._done = 0
        self._since: float | None = None
        self._thread: threading.Thread | None = None
        self.shown: tuple[bytes, frozenset[str]] | None = None

    def event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, vi.HostDone):
            self._done += 1
            node = stamped.event.node
            block = self._kept.block(node, 1)
            if block:
                self._nodes.setdefault(block, []).append(node)

    def tick(self, now: float) -> bool:
        if self.shown is not None or self._done == len(self._names):
            return False
        usual = max(self._nodes.items(), key=lambda item: len(item[1]), default=None)
        if usual is None or 2 * len(usual[1]) <= len(self._names):
            return False
        self._since = self._since or now
        if now - self._since < WAIT:
            return True
        block, nodes = usual
        names = [self._names[node] for node in nodes]
        self.shown = block, frozenset(names)
        text = headed(names, block, label=self._label, of=len(self._names))
        self._thread = threading.Thread(target=self._write, args=(text,), name="early", daemon=True)
        self._thread.start()
        return False

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
