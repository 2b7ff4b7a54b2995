"""A rank that can be asked where it is: at a signal it writes its stacks to a file of dispatch's.

``dispatch stacks`` and ``--hang-timeout`` ask so where there is no py-spy. It is faulthandler that
writes, in C, so it does even while a library holds the interpreter. Nothing happens outside
of dispatch, or where the rank does so already.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Mapping

#: what dispatch's agent sends, to who catches it and has the file open only
SIGNAL = 62


def listen(environ: Mapping[str, str]) -> bool:
    """Write the stacks of all threads to ``stack-PID`` beside the rank's error file at ``SIGNAL``.

    Whether we do now, for whoever wants to know.
    """
    folder = os.path.dirname(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if not os.path.basename(folder).startswith("dispatch-"):
        return False
    try:
        path = os.path.join(folder, f"stack-{os.getpid()}")
        file = open(path, "xb", buffering=0)  # noqa: SIM115 - as long as the process lives
        faulthandler.register(SIGNAL, file, all_threads=True)
    except FileExistsError:
        return True
    except (OSError, ValueError, AttributeError):
        return False
    return True
