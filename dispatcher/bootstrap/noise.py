"""What a host says before we are there: banners and the output of login files; pure."""

from __future__ import annotations

from dispatcher.remote.protocol.wire import SYNC

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
