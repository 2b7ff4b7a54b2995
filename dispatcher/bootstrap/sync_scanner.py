"""What a host says before the agent does: banners, the output of login files, last words; pure."""

from __future__ import annotations

from dispatcher.bootstrap.payload import NO_PYTHON_MARK, NO_PYTHON_STATUS, OLDEST_PYTHON
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import SYNC

#: bytes of noise kept for the error message
NOISE_LIMIT = 64 << 10


class SyncScanner:
    """Finds the end of the noise in what an agent's host says; pure, any chunking."""

    def __init__(self) -> None:
        self.noise = bytearray()
        self.dropped = 0  # bytes of noise beyond NOISE_LIMIT, oldest first
        self._tail = b""

    def feed(self, data: bytes) -> bytes | None:
        """What follows the marker once it has been seen, else None (and ``data`` was noise)."""
        text = self._tail + data
        at = text.find(SYNC)
        if at < 0:
            keep = min(len(SYNC) - 1, len(text))
            self._keep_noise(text[: len(text) - keep])
            self._tail = text[len(text) - keep :]
            return None
        self._keep_noise(text[:at])
        self._tail = b""
        return text[at + len(SYNC) :]

    def finish(self) -> bytes:
        """All noise kept, when the stream ended without a marker."""
        self._keep_noise(self._tail)
        self._tail = b""
        return bytes(self.noise)

    def _keep_noise(self, data: bytes) -> None:
        self.noise += data
        if len(self.noise) > NOISE_LIMIT:
            self.dropped += len(self.noise) - NOISE_LIMIT
            del self.noise[: len(self.noise) - NOISE_LIMIT]


def boot_failure(host: str, noise: bytes, errors: bytes, status: int | None) -> Failure:
    """Why no agent came up on ``host``, from all it said and the command's exit status."""
    said = (errors or noise).decode("utf-8", "backslashreplace").strip()
    for line in said.splitlines():
        if NO_PYTHON_MARK in line:
            why = line.partition(NO_PYTHON_MARK)[2][:400]
            if status == NO_PYTHON_STATUS and " is " not in why:
                why = f"looked for {why}"
            return Failure(
                Kind.NO_PYTHON,
                why,
                hint=f"put a python3 of version {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or later on "
                "the PATH of non-interactive logins there, or name one with --agent-python",
            )
    how = "the link ended" if status is None else f"exit status {status}"
    why = f"{how} before the agent answered{remote_said(errors or noise)}"
    return Failure(Kind.BOOT, why, hint=f"try: ssh {host} python3 -V")


def remote_said(data: bytes) -> str:
    """The last three lines of what a host said, to end a message with; "" for nothing."""
    lines = data.decode("utf-8", "backslashreplace").strip().splitlines()
    last = "; ".join(lines[-3:])[-400:]
    return f"; remote said: {last}" if last else ""


def link_ended(program: str, ending: Ending, errors: bytes) -> Failure:
    """The loss of a link over which ``program`` spoke, with its last line of ``errors``."""
    how = "the link ended" if ending.code is None else f"{program} ended with {ending.code}"
    if ending.signal is not None:
        how = f"{program} was killed by SIG{ending.signal}"
    said = errors.decode("utf-8", "backslashreplace").strip().splitlines()
    return Failure(Kind.LOST, how + (f"; it said: {said[-1][-400:]}" if said else ""))
