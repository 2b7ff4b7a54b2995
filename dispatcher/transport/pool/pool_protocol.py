"""What a launcher and the pool's daemon say to each other; pure.

Channels of ``remote.protocol.mux``: a connection is one launcher, a channel one command. The
launcher is the near end, and numbers them. The end of the connection, from either side, is
the end of all. Bodies that are not bytes of a stream are JSON objects::

    launcher   OPEN (what to run where)  RESIZE (columns, rows)
    daemon     ACCEPTED (address)  FAILED (a failure)  NOT_POOLED  ENDED (code, signal, silence)
    at once    LIST  DROP (hosts)  and LIST the answer, on no channel

An OPEN is answered first, by one of the daemon's first three.
"""

from __future__ import annotations

import json
from typing import Any

from dispatcher.remote.protocol.mux import OWN, Malformed, frame

#: part of the socket's name, since a daemon may be older than who calls it
PROTOCOL = 4
#: bytes of a body at most: a command may be long, and so may a list of hosts
LARGEST = 1 << 20
#: bytes of input that may come with an OPEN: as many as any connection takes at once
OPENING = 8 << 10

RESIZE, ACCEPTED, FAILED, NOT_POOLED, LIST, DROP = range(OWN, OWN + 6)


def message(kind: int, channel: int = 0, /, **fields: Any) -> bytes:
    """A frame whose body is ``fields`` as JSON."""
    return frame(channel, kind, json.dumps(fields).encode())


def fields(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises: Malformed."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Malformed("not an object")
    return found
