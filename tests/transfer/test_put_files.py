"""What hosts may say while they are sent files, and what is believed of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from transport.far_link import FarLink

from dispatcher.bootstrap import payload
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.mux import HEADER, frame
from dispatcher.transfer.host_copy import HostCopy
from dispatcher.transfer.put_files import Sending, Sources

NEED_ALL = copy_frames.message({"need": "0", "start": "", "seen": ""})
DONE = copy_frames.message({"sent": 1, "equal": 0, "bytes": 5, "found": 0})


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
    words = copy_frames.message({"of": [7], "sent": 1, "equal": 2, "bytes": 5, "found": 0})
    told, _ = send(tmp_path, payload.PYTHON + NEED_ALL + words + DONE)
    assert [(one.sent, one.equal) for one in told] == [(1, 0), (1, 2)]
    failed = copy_frames.message({"of": [7], "failed": "Permission denied"})
    told, _ = send(tmp_path, payload.PYTHON + NEED_ALL + failed + DONE)
    assert (told[1].sent, told[1].error, told[1].relay_error) == (None, None, "Permission denied")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200",
        payload.PYTHON + copy_frames.message({"need": "1", "start": "", "seen": ""}),
        payload.PYTHON + HEADER.pack(0, copy_frames.VALUE, 0xFFFFFFFF),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [0], "sent": 1, "equal": 0}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [8], "sent": 1, "equal": 0}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": 7, "sent": 1, "equal": 0}),
        payload.PYTHON + NEED_ALL + copy_frames.message({"of": [[7]], "failed": ""}),
    ],
)
def test_what_makes_no_sense_is_not_believed(said: bytes, tmp_path: Path) -> None:
    told, wire = send(tmp_path, said)
    assert told[0].error
    assert told[0].hostile
    assert told[1].sent is None
    assert wire.closed
