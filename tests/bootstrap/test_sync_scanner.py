"""What a host says before the agent: the marker is found in any noise, and told from last words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.bootstrap.payload import NO_PYTHON_MARK
from dispatcher.bootstrap.sync_scanner import NOISE_LIMIT, SyncScanner, boot_failure
from dispatcher.model.failure import Kind
from dispatcher.remote.protocol.frames import SYNC

#: bytes that may come before the marker, some of them its beginnings
noises = st.lists(
    st.one_of(st.binary(max_size=30), st.integers(1, len(SYNC) - 1).map(lambda n: SYNC[:n])),
    max_size=6,
).map(b"".join)


class TestSyncScanner:
    @given(noises, st.binary(max_size=50), st.data())
    def test_any_chunking_finds_the_marker(
        self, noise: bytes, rest: bytes, data: st.DataObject
    ) -> None:
        stream = noise + SYNC + rest
        at = stream.index(SYNC)  # noise and marker may make the marker sooner
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
        scanner = SyncScanner()
        found: bytes | None = None
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            piece = stream[start:end]
            if found is None:
                found = scanner.feed(piece)
            else:
                found += piece
        assert found == stream[at + len(SYNC) :]
        assert bytes(scanner.noise) == stream[:at]

    @given(noises.filter(lambda noise: SYNC not in noise), st.integers(1, 9))
    def test_without_a_marker_all_is_noise(self, noise: bytes, size: int) -> None:
        scanner = SyncScanner()
        for at in range(0, len(noise), size):
            assert scanner.feed(noise[at : at + size]) is None
        assert scanner.finish() == noise

    def test_noise_is_bounded_and_the_newest_is_kept(self) -> None:
        scanner = SyncScanner()
        for _ in range(40):
            scanner.feed(b"a" * 10_000)
        scanner.feed(b"the end")
        assert scanner.feed(SYNC + b"rest") == b"rest"
        assert len(scanner.noise) == NOISE_LIMIT
        assert scanner.noise.endswith(b"aaathe end")
        assert scanner.dropped == 400_007 - NOISE_LIMIT


class TestBootFailure:
    def test_quotes_the_last_words(self) -> None:
        failure = boot_failure("gpu01", b"", b"one\ntwo\nthree\nfour\n", 1)
        assert failure.kind is Kind.BOOT
        assert failure.why == (
            "exit status 1 before the agent answered; remote said: two; three; four"
        )
        assert failure.hint == "try: ssh gpu01 python3 -V"

    def test_noise_stands_in_for_errors(self) -> None:
        failure = boot_failure("gpu01", b"This account is not available.\n", b"", None)
        assert failure.why == (
            "the link ended before the agent answered; remote said: This account is not available."
        )

    def test_quotes_no_more_than_a_few_words(self) -> None:
        for start in (NO_PYTHON_MARK.encode(), b"noise "):
            assert len(boot_failure("h", b"", start + b"\xff" * 60_000, 127).why) < 500

    @given(st.binary(max_size=2000), st.binary(max_size=2000), st.none() | st.integers(-64, 255))
    def test_any_last_words_make_a_short_failure(
        self, noise: bytes, errors: bytes, status: int | None
    ) -> None:
        assert len(boot_failure("h", noise, errors, status).why) < 500
