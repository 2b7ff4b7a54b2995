"""Where the agent begins: descriptors made safe, the sync marker said, the loop run."""

from __future__ import annotations

import os

from dispatcher.remote.agent import guardian
from dispatcher.remote.host import proctree
from dispatcher.remote.protocol.frames import SYNC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def main() -> NoReturn:
    """Serve the link on descriptors 0 and 1 until the job is over; exits.

    The link moves to other descriptors first: a stray print then lands on standard error.
    """
    link_in = os.dup(0)
    link_out = os.dup(1)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    _keep_inherited()
    proctree.become_subreaper()
    os.write(link_out, SYNC)
    pipe = guardian.fork_guardian(link_in)
    from dispatcher.remote.agent.agent_loop import (
        Loop,  # only now: the guardian needs none of it, and shares no page with it
    )

    code = Loop(link_in, link_out, pipe, later).run()
    os._exit(code)  # the interpreter has nothing to tidy up, and would take 2 ms for it


def later(name: str) -> Callable[..., None]:
    """The function of ``later_orders`` for the action ``name``."""
    from dispatcher.remote.agent import later_orders

    return getattr(later_orders, "do_" + name)  # type: ignore[no-any-return]


def _keep_inherited() -> None:
    """Mark inherited descriptors as close-on-exec, so that ranks do not get them."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            pass  # the descriptor that listed the folder
