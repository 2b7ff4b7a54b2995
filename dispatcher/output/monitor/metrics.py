"""The state of each rank as text for Prometheus: in a file, or at a local socket.

A file is replaced at once and never half written, as node_exporter's textfile collector wants it;
at a socket each caller gets an HTTP answer, and dispatch waits for none. Nothing listens on a
network port. Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

from dispatcher.core.events.run_events import Sink
from dispatcher.model.errors import reason
from dispatcher.model.paths import replace_file
from dispatcher.output.monitor.run_picture import Snapshot, TopRank
from dispatcher.output.run_state import STATES

#: callers that may wait at the socket; bytes of a call that are read
MOST_CALLERS, MOST_CALL = 16, 4096

#: name without its prefix, description, and the value of a rank or None
_OF_RANKS: list[tuple[str, str, Callable[[TopRank], float | None]]] = [
    ("up", "1 while the rank runs", lambda row: float(row.alive)),
    ("cpu_percent", "share of one CPU, children included", lambda row: row.cpu),
    ("resident_bytes", "resident memory, children included", lambda row: row.rss),
    ("silence_seconds", "time since it last wrote", lambda row: row.silence),
    ("gpu_utilization_percent", "its GPU", lambda row: row.gpu_used),
    ("gpu_memory_bytes", "memory used on its GPU", lambda row: row.gpu_memory),
    ("gpu_power_watts", "power of its GPU", lambda row: row.gpu_watts),
]  # fmt: skip


def exposition(snapshot: Snapshot, run_id: str, name: str | None = None) -> str:
    """``snapshot`` in the text format. name: of the job."""
    run = f'run="{_escaped(run_id)}"' + (f',name="{_escaped(name)}"' if name else "")
    picture = snapshot.picture
    lines = _family("run_seconds", "time since the run began", [(run, picture.seconds)])
    lines += _family("lines", "lines that the ranks have written", [(run, float(picture.lines))])
    hosts = [(f'{run},state="{STATES[n]}"', float(c)) for n, c in sorted(picture.hosts.items())]
    lines += _family("hosts", "hosts by state", hosts)
    for title, what, value in _OF_RANKS:
        found = []
        for row in snapshot.ranks:
            number = value(row)
            if number is not None:
                where = f'rank="{row.rank}",host="{_escaped(row.host)}"'
                found.append((f'{run},{where},local_rank="{row.local_rank}"', float(number)))
        lines += _family(f"rank_{title}", what, found)
    return "\n".join(lines) + "\n"


def _family(title: str, what: str, samples: list[tuple[str, float]]) -> list[str]:
    title = f"dispatch_{title}"
    values = [f"{title}{{{labels}}} {value:.10g}" for labels, value in samples]
    return [f"# HELP {title} {what}", f"# TYPE {title} gauge", *values] if values else []


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics(Sink):
    """Writes or serves ``text()``, the exposition; calls ``warn`` once if the disk refuses.

    Raises: OSError if the file or socket cannot be made.
    """

    def __init__(
        self, text: Callable[[], str], warn: Callable[[str], None], every: float, path: str
    ) -> None:
        self._text = text
        self._warn = warn
        self._every = every
        self._next = 0.0
        self._said = False
        self._listener: socket.socket | None = None
        place, _, rest = path.partition(":")
        self._path = Path(rest if place == "unix" else path)
        if place == "unix":
            self._listener = _listen(self._path)
        else:
            self._write()

    def tick(self, now: float) -> bool:
        if self._listener is not None:
            self._answer(self._listener)
        elif now >= self._next:
            self._next = now + self._every
            try:
                self._write()
            except OSError as error:
                if not self._said:
                    self._said = True
                    self._warn(f"note: {self._path}: metrics cannot be written: {reason(error)}")
        return True

    def close(self) -> None:
        """Write the file a last time, with the end of the run; or remove the socket."""
        if self._listener is None:
            self._next = 0.0
            self.tick(time.monotonic())
            return
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        # others' collectors read it; there is no secret in it
        replace_file(self._path, self._text().encode(), 0o644)

    def _answer(self, listener: socket.socket) -> None:
        for _ in range(MOST_CALLERS):
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller, contextlib.suppress(OSError):
                body = self._text().encode()
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(body) + MOST_CALL)
                caller.settimeout(0.05)
                caller.recv(MOST_CALL)
                head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _listen(path: Path) -> socket.socket:
    """A listening socket, mode 0600. A socket without a process is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if path.is_socket() and not _answers(path):
                path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)  # clients cannot connect before ``listen``
        listener.listen(MOST_CALLERS)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True
