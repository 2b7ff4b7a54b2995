"""What hosts are sent, what they may say meanwhile, and what is believed of it."""

from __future__ import annotations

import os
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from cases import cases
from transport.far_link import FarLink

from dispatcher.bootstrap import payload
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.mux import HEADER, frame
from dispatcher.transfer.host_copy import HostCopy
from dispatcher.transfer.put_files import Sending, Sources
from dispatcher.transport.base import LinkClosed

NEED_ALL = copy_frames.message({"need": b"\1", "start": "", "seen": ""})
DONE = copy_frames.message({"sent": 1, "equal": 0, "bytes": 5, "found": 0})


#: of one file of five bytes
LIES: list[dict[str, Any]] = [
    {"sent": 2}, {"sent": -1}, {"sent": 10**18}, {"equal": 1}, {"sent": 2, "equal": -1},
    {"bytes": 6}, {"bytes": -1}, {"bytes": 1 << 59}, {"found": 6}, {"found": "x"},
    {"sent": None}, {"equal": []}, {"sent": True},
]  # fmt: skip


def send(tmp_path: Path, said: bytes) -> tuple[list[HostCopy], FarLink]:
    """What is known of hosts 0 and 7, below it, when 0 says ``said``."""
    (tmp_path / "f").write_text("hello")
    groups = (("/x/", (str(tmp_path / "f"),)),)
    sources = Sources(groups, checksum=False)
    told = [HostCopy(), HostCopy()]
    below = {0: ({"below": [[7, [], []]]}, {7: told[1]})}
    sending = Sending(
        [(sources, groups)], checksum=False, resume=True, copies=told[:1], below=below
    )
    wire = FarLink()
    sending.start(0, wire)
    sending.take_output(0, said)
    sending.finish(0)
    sending.close()
    sources.close()
    return told, wire


def test_what_is_needed_is_sent_and_the_report_believed(tmp_path: Path) -> None:
    told, wire = send(tmp_path, payload.PYTHON + NEED_ALL + DONE)
    assert (told[0].python, told[0].sent, told[0].bytes, told[0].error) == (True, 1, 5, None)
    assert frame(0, copy_frames.DATA, b"hello") in wire.written
    assert told[1].sent is None
    told, wire = send(tmp_path, payload.PYTHON + copy_frames.message({"error": "no\x1b[2J" * 999}))
    assert told[0].error is not None
    assert len(told[0].error) == 500
    assert b"hello" not in wire.written


def test_a_host_without_python_is_sent_a_tar(tmp_path: Path) -> None:
    told, wire = send(tmp_path, payload.SHELL)
    assert (told[0].python, told[0].sent) == (False, None)
    assert wire.written[257:262] == b"ustar"


def test_an_inner_host_speaks_for_those_below_it(tmp_path: Path) -> None:
    words = copy_frames.message({"of": [7], "sent": 0, "equal": 1, "bytes": 0, "found": 0})
    told, _ = send(tmp_path, payload.PYTHON + NEED_ALL + words + DONE)
    assert [(one.sent, one.equal) for one in told] == [(1, 0), (0, 1)]
    failed = copy_frames.message({"of": [7], "failed": "Permission denied"})
    told, _ = send(tmp_path, payload.PYTHON + NEED_ALL + failed + DONE)
    assert (told[1].sent, told[1].error, told[1].relay_error) == (None, None, "Permission denied")


@cases(
    "said",
    [
        b"HTTP/1.1 200",
        payload.PYTHON + copy_frames.message({"need": b"\0", "start": "0 1", "seen": "a"}),
        payload.PYTHON + copy_frames.message({"need": b"\1\1", "start": "", "seen": ""}),
        payload.PYTHON + HEADER.pack(0, copy_frames.VALUE, 0xFFFFFFFF),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [0], "sent": 1, "equal": 0}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [8], "sent": 1, "equal": 0}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": 7, "sent": 1, "equal": 0}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [[7]], "failed": ""}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [7], "sent": 1, "equal": 1}),
        *(
            payload.PYTHON + NEED_ALL + copy_frames.message({"sent": 1, "equal": 0, **lie})
            for lie in LIES
        ),
    ],
)
def test_what_makes_no_sense_is_not_believed(said: bytes, tmp_path: Path) -> None:
    told, wire = send(tmp_path, said)
    assert told[0].error
    assert told[0].hostile
    assert told[1].sent is None
    assert wire.closed


class TestSending:
    def sending(
        self, sources: Sources, *plans: tuple[tuple[str, tuple[str, ...]], ...], **how: bool
    ) -> Sending:
        copies = [HostCopy() for _ in plans]
        checksum, resume = how.get("checksum", False), how.get("resume", True)
        return Sending(
            [(sources, groups) for groups in plans],
            checksum=checksum, resume=resume, copies=copies,
        )  # fmt: skip

    def said(self, sending: Sending, node: int, *said: bytes, wire: FarLink | None = None) -> bytes:
        """All that ``node`` is sent when it says ``said``."""
        link = wire or FarLink()
        sending.start(node, link)
        for data in said:
            sending.take_output(node, data)
        sending.finish(node)
        return link.take_written()

    def test_a_destination_of_each_rank_needs_python(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("hello")
        group = ("/x/", (str(tmp_path / "f"),))
        sources = Sources([group], checksum=False)
        sending = self.sending(sources, (group, group))
        wire = FarLink()
        self.said(sending, 0, payload.SHELL, wire=wire)
        assert sending.copies[0].error == "{rank} in a destination needs a python3 on the host"
        assert wire.closed
        sources.close()

    def test_a_tar_comes_whole(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(os.urandom(200_000))
        group = ("/x/", (str(tmp_path / "f"),))
        sources = Sources([group], checksum=False)
        sending = self.sending(sources, (group,), (group,))
        sending.copies[0].wanted = 100
        sending.copies[1].wanted = 1 << 30
        tars = [self.said(sending, node, payload.SHELL) for node in (0, 1)]
        with tarfile.open(fileobj=BytesIO(tars[0])) as archive:
            content = archive.extractfile("f")
            assert content is not None
            assert content.read() == (tmp_path / "f").read_bytes()
        assert tars[0] == tars[1]
        assert [copy.bytes for copy in sending.copies] == [100, len(tars[1])]
        sources.close()

    def test_how_far_it_is_can_be_seen_meanwhile(self, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []

        class Watched(FarLink):
            def write(self, data: bytes) -> None:
                seen.append((sending.copies[0].bytes, sending.copies[0].wanted))

        size = 600_000
        (tmp_path / "f").write_bytes(bytes(size))
        group = ("/x/", (str(tmp_path / "f"),))
        sources = Sources([group], checksum=False)
        sending = self.sending(sources, (group,))
        self.said(sending, 0, payload.PYTHON + NEED_ALL, wire=Watched())
        assert seen[0] == (0, 0)
        copied = [done for done, _ in seen[1:]]
        assert {wanted for _, wanted in seen[1:]} == {size}
        assert copied == sorted(copied)
        assert 0 < copied[1] < size
        assert sending.copies[0].bytes == size  # what frames take besides does not count
        sources.close()

    def test_why_a_host_hung_up_is_heard(self, tmp_path: Path) -> None:
        class Gone(FarLink):
            def write(self, data: bytes) -> None:
                if HEADER.size < len(data) < 100:
                    raise LinkClosed
                super().write(data)

        (tmp_path / "f").write_text("hello")
        group = ("/x/", (str(tmp_path / "f"),))
        sources = Sources([group], checksum=False)
        sending = self.sending(sources, (group,))
        full = copy_frames.message({"error": "disk full"})
        self.said(sending, 0, payload.PYTHON + NEED_ALL + full, wire=Gone())
        assert sending.copies[0].error == "disk full"
        assert sending.copies[0].wanted == 5
        sources.close()


def test_what_failed_below_is_told_in_few_words(tmp_path: Path) -> None:
    failed = copy_frames.message({"of": [7], "failed": "x" * 400})
    told, _ = send(tmp_path, payload.PYTHON + NEED_ALL + failed + DONE)
    assert told[1].relay_error == "x" * 300
    assert told[1].python is True
    error = copy_frames.message({"of": [7], "error": "disk full"})
    told, _ = send(tmp_path, payload.PYTHON + NEED_ALL + error + DONE)
    assert (told[1].error, told[0].error) == ("disk full", None)
