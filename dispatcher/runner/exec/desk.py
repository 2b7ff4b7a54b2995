"""On whose thread the visits of an errand are: one for all that wait for nobody, else one each.

A host that is reached by a call (``Transport.call``: kept connections) costs no thread; the desk
looks after all of them, each when something has come for it. Where a connection must be made,
or somebody talks with the command, a host may make us wait, and gets a thread of its own.
"""

from __future__ import annotations

import queue
import sys
import threading
import time

from dispatcher.runner.exec.host_command import Visit

_CALL = object()


class Desk:
    """Carries out visits, and knows their threads."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[Visit, object] | None] = queue.SimpleQueue()
        self._here: set[Visit] = set()  # those on our thread
        self._due: dict[Visit, float] = {}  # when one of them is to be looked at
        self._threads: list[threading.Thread] = []
        self._ours: threading.Thread | None = None

    def serve(self, visit: Visit) -> None:
        """Begin ``visit``; returns at once."""
        if not visit.waits_for_nobody:
            self._apart(visit)
            return
        visit.post = lambda item: self._inbox.put((visit, item))
        if self._ours is None:
            self._ours = threading.Thread(target=self._run, name="desk", daemon=True)
            self._ours.start()
        self._inbox.put((visit, _CALL))

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, at most ``seconds`` in all; visits are over by then."""
        self._inbox.put(None)
        end = time.monotonic() + seconds
        if self._ours is not None:
            self._ours.join(timeout=max(0.0, end - time.monotonic()))
        for thread in list(self._threads):
            thread.join(timeout=max(0.0, end - time.monotonic()))

    # -- a thread for one -----------------------------------------------------------------

    def _apart(self, visit: Visit) -> None:
        """Go on with ``visit`` on a thread of its own."""
        own: queue.SimpleQueue[object] = queue.SimpleQueue()
        visit.post = own.put
        thread = threading.Thread(target=_alone, args=(visit, own), name=visit.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- a thread for all -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            due = min(self._due.values(), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            items: list[tuple[Visit, object] | None] = []
            try:
                items.append(self._inbox.get(timeout=wait))
            except queue.Empty:
                pass
            items += [self._inbox.get() for _ in range(self._inbox.qsize())]
            now = time.monotonic()
            late = [visit for visit, when in self._due.items() if when <= now]
            items += [(visit, None) for visit in late]
            for one in items:
                if one is None:
                    return
                self._step(*one)

    def _step(self, visit: Visit, item: object) -> None:
        if item is not _CALL and visit not in self._here:
            if not visit.over:
                visit.post(item)  # it has a thread of its own by now
            return
        self._here.add(visit)
        stays = True
        try:
            stays = visit.call() if item is _CALL else visit.step(item)
        except Exception as error:  # noqa: BLE001 - the others go on
            visit.failed(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._ours)))
        due = None if visit.over or not stays else visit.due()
        if due is None:
            self._due.pop(visit, None)
        else:
            self._due[visit] = due
        if visit.over or not stays:
            self._here.discard(visit)
        if visit.over:
            visit.leave()
        elif not stays:
            self._apart(visit)


def _alone(visit: Visit, inbox: queue.SimpleQueue[object]) -> None:
    try:
        visit.open()
        while not visit.over:
            due = visit.due()
            try:
                item = inbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = None
            visit.step(item)
    except Exception as error:
        visit.failed(error)
        raise
    finally:
        visit.leave()
