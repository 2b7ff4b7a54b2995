"""What waits for one who looks on: in order, bounded, and gaps told where they are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.jobs.control_server import HEAD, StreamPositions
from dispatcher.jobs.job_socket import Frames
from dispatcher.jobs.status import LIMIT, Client

Heard = list[tuple[dict[str, Any], bytes]]


def drained(client: Client, piece: int = 1 << 30) -> Heard:
    """All that would be written to the client, in pieces of so many bytes."""
    frames, heard = Frames(), Heard()
    while (data := client.take()) is not None:
        client.written(len(data[:piece]))
        heard += frames.feed(data[:piece])
    return heard


class TestClient:
    @given(st.lists(st.binary(min_size=1, max_size=30), max_size=9), st.integers(1, 40))
    def test_all_comes_in_order_whatever_the_pieces(self, lines: list[bytes], piece: int) -> None:
        client = Client(None)  # type: ignore[arg-type]
        for rank, line in enumerate(lines):
            client.output(rank, 1, line)
        heard = drained(client, piece)
        assert [payload for _, payload in heard] == lines
        assert [(f["type"], f["rank"], f["stream"], f["size"]) for f, _ in heard] == [
            ("output", rank, 1, len(line)) for rank, line in enumerate(lines)
        ]
        assert client.idle

    def test_what_finds_no_room_is_counted_and_told_where_it_is_missing(self) -> None:
        client = Client(None)  # type: ignore[arg-type]
        client.put(bytes(LIMIT - 10))
        client.output(0, 1, b"0123456789")  # its head does not count
        client.output(0, 1, b"lost")
        client.output(3, 2, b"lost too")
        client.output(0, 1, b"x")
        assert not client.idle
        client.written(len(client.take() or b""))
        client.output(0, 1, b"there again")
        client._queue[0] = b""  # the first 10 bytes
        heard = drained(client)
        assert [(f["type"], f.get("missing")) for f, _ in heard] == [
            ("gap", [[0, 1, 5], [3, 2, 8]]),
            ("output", None),
        ]
        assert heard[-1][1] == b"there again"

    def test_a_gap_is_told_when_all_before_it_was_read(self) -> None:
        client = Client(None)  # type: ignore[arg-type]
        client.gap({(0, 1): 3})
        client.gap({(0, 1): 4, (1, 2): 1})
        assert drained(client) == [({"type": "gap", "missing": [[0, 1, 7], [1, 2, 1]]}, b"")]
        assert client.idle
        assert client.take() is None

    def test_a_viewer_that_reads_nothing_holds_no_more_than_the_limit(self) -> None:
        client = Client(None)  # type: ignore[arg-type]
        for _ in range(3 * LIMIT // 65536):
            client.output(0, 1, bytes(65536))
        assert LIMIT - 65536 < sum(map(len, client._queue)) < LIMIT + 65536


class TestPositions:
    def test_bytes_ends_and_heads(self) -> None:
        there = StreamPositions(heads=True, clock=lambda: 17.5)
        assert there.hello() == {"world_size": None, "passed": [], "ended": [], "until": 0.0}
        there.placed(2)
        there.output(0, 1, b"one\ntw")
        there.output(0, 1, b"o")
        there.output(1, 2, b"whole\n")
        there.output(1, 1, b"x")
        there.ended(1, 1)
        assert there.rests() == [(0, 1, b"two")]
        assert there.hello() == {
            "world_size": 2, "passed": [[0, 1, 7], [1, 2, 6], [1, 1, 1]], "ended": [[1, 1]],
            "until": 17.5,
        }  # fmt: skip
        there.placed(1)
        assert there.hello()["ended"] == []
        assert there.hello()["passed"][0] == [0, 1, 7]  # counted on

    def test_of_a_long_line_the_end_is_kept(self) -> None:
        there = StreamPositions(heads=True)
        there.output(0, 1, b"a" + b"b" * HEAD)
        assert there.rests() == [(0, 1, b"b" * HEAD)]
        without = StreamPositions()
        without.output(0, 1, b"head")
        assert without.rests() == []
