"""PMIx's fences on their way through the agent: up as one packet, down in parts, bounded."""

from __future__ import annotations

import os
import socket
import threading
import tracemalloc
import zlib
from typing import Any

import pytest

from dispatcher.remote.pmi import pmix_bridge
from dispatcher.remote.pmi.pmix_bridge import OUT_OF_RESOURCE, TAG
from dispatcher.remote.protocol.frames import control

from .conftest import FENCE, House, heard

ALL = [[b"kvs_7", None]]


def test_a_fence_goes_up_and_comes_down(house: House) -> None:
    there, end = house.serving()
    end.sendall(control("fence", id=5, members=ALL, data=b"mine"))
    ((_, kind, fields),) = house.turn()
    packet = fields.pop("keys")
    assert (kind, fields, zlib.decompress(packet)) == ("pmi.committed", FENCE, b"mine")
    keys = [packet, zlib.compress(b"theirs")]
    order = {"type": "release_fence", **FENCE, "number": 0, "keys": keys}
    assert house.connections.replies().order({**order, "epoch": 1}) == []  # out of turn
    assert house.connections.replies().order(order) == []
    part, release = heard(end, 2)
    assert part == {"type": "part", "id": 5, "data": b"minetheirs"}
    assert release == {"type": "release", "id": 5, "status": 0, "number": 0}
    end.sendall(control("fence", id=6, members=[[b"kvs_7", [2, 0]]], data=b""))
    ((_, _, fields),) = house.turn()
    assert (fields["fence"], fields["epoch"]) == ("0,2" + TAG, 0)
    assert there.epochs[0, "WORLD" + TAG] == 1
    end.close()


def test_a_process_that_does_not_read_holds_nobody_back(house: House) -> None:
    there, end = house.serving()
    end.sendall(control("fence", id=5, members=ALL, data=b""))
    house.turn()
    size = 5 << 20
    house.connections.replies().order(
        {"type": "release_fence", **FENCE, "number": 0, "keys": [zlib.compress(bytes(size))]}
    )
    assert there.outgoing
    end.sendall(control("connected", rank=0))
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(heard(end, 6)))
    reader.start()
    while there.outgoing:
        house.turn()
    reader.join(60)
    assert sum(len(message.get("data", b"")) for message in got) == size
    assert got[-1]["type"] == "release"
    end.close()


@pytest.mark.parametrize("size", [0, 65 << 20])
def test_what_other_hosts_send_is_bounded(house: House, size: int) -> None:
    keys = [zlib.compress(bytes(size)) if size else b"no zlib"]
    _, end = house.serving()
    end.sendall(control("fence", id=5, members=ALL, data=b"mine"))
    house.turn()
    house.connections.replies().order({"type": "release_fence", **FENCE, "number": 0, "keys": keys})
    assert heard(end, 1) == [{"type": "release", "id": 5, "status": OUT_OF_RESOURCE, "number": 0}]
    end.close()


def test_what_comes_when_the_bound_is_reached_is_bounded_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host takes it to the byte; the packet of the next would be a thousand times its size."""
    monkeypatch.setattr(pmix_bridge, "FENCE_LIMIT", 1000)
    keys = [zlib.compress(bytes(size)) for size in (1000, 64 << 20)]
    _, end = house.serving()
    end.sendall(control("fence", id=5, members=ALL, data=b"mine"))
    house.turn()
    tracemalloc.start()
    try:
        order = {"type": "release_fence", **FENCE, "number": 0, "keys": keys}
        house.connections.replies().order(order)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert heard(end, 1) == [{"type": "release", "id": 5, "status": OUT_OF_RESOURCE, "number": 0}]
    end.close()


def test_fences_of_pmi_1_are_not_its_affair(house: House) -> None:
    there, end = house.serving()
    for kind in ("release_fence", "ask_waiting"):
        order = {"type": kind, **FENCE, "fence": "WORLD:0", "keys": [], "seconds": 1.0}
        assert there.order(order) is None
    end.close()


def released(end: socket.socket, id: int, status: int) -> None:
    assert heard(end, 1) == [{"type": "release", "id": id, "status": status, "number": 0}]


def test_a_fence_that_cannot_be_sent_lets_its_ranks_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, end = house.serving()
    data = os.urandom(100)
    size = len(zlib.compress(data, 1))
    told = size + len("WORLD" + TAG)
    monkeypatch.setattr(pmix_bridge, "PACKET_LIMIT", size - 1)
    end.sendall(control("fence", id=1, members=ALL, data=data))
    ((_, kind, fields),) = house.turn()
    assert (kind, fields["text"]) == (
        "node.noticed",
        f"MPI: a fence of {told} bytes cannot be sent",
    )
    released(end, 1, OUT_OF_RESOURCE)
    monkeypatch.setattr(pmix_bridge, "PACKET_LIMIT", size)
    end.sendall(control("fence", id=2, members=[[b"kvs_7", [3, 2, 1, 0, 0]]], data=data))
    ((_, kind, fields),) = house.turn()
    assert (kind, fields["fence"], fields["epoch"]) == ("pmi.committed", "WORLD" + TAG, 0)
    end.sendall(control("fence", id=3, members=ALL, data=b""))  # the one before is not over
    assert house.turn()[0][1] == "node.noticed"
    released(end, 3, OUT_OF_RESOURCE)
    end.close()


@pytest.mark.parametrize(("sizes", "status"), [((5, 4), 0), ((5, 5), OUT_OF_RESOURCE), ((), 0)])
def test_all_that_a_fence_brings_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], status: int
) -> None:
    monkeypatch.setattr(pmix_bridge, "FENCE_LIMIT", 10)
    monkeypatch.setattr(pmix_bridge, "PORTION", 4)
    _, end = house.serving()
    end.sendall(control("fence", id=1, members=[[b"kvs_7", [1, 2]]], data=b""))
    ((_, _, fields),) = house.turn()
    assert fields["fence"] == "1-2" + TAG
    keys = [zlib.compress(b"x" * size) for size in sizes]
    order = {
        "type": "release_fence", **FENCE, "fence": "1-2" + TAG, "keys": keys, "number": 0,
    }  # fmt: skip
    assert house.connections.replies().order(order) == []
    assert house.connections.replies().order(order) == []  # once is enough
    parts = [b"xxxx", b"xxxx", b"x"] if sizes and not status else []
    found = heard(end, len(parts) + 1)
    assert [message["data"] for message in found[:-1]] == parts
    assert found[-1] == {"type": "release", "id": 1, "status": status, "number": 0}
    end.sendall(control("fence", id=2, members=[[b"kvs_7", [1, 2]]], data=b""))
    ((_, _, fields),) = house.turn()
    assert fields["epoch"] == 1
    end.close()


def test_who_is_asked_for_of_a_fence_that_waits_here_is_nobody(house: House) -> None:
    _, end = house.serving()
    asked = {"type": "ask_waiting", **FENCE, "seconds": 3.0}
    end.sendall(control("connected", rank=0) + control("connected", rank=1))
    house.turn()
    assert len(house.connections.replies().order(asked)) == 1
    end.sendall(control("fence", id=1, members=ALL, data=b""))
    house.turn()
    assert house.connections.replies().order(asked) == []
    order = {"type": "release_fence", **FENCE, "number": 0, "keys": []}
    house.connections.replies().order(order)
    assert house.connections.replies().order(asked) == []
    assert len(house.connections.replies().order({**asked, "epoch": 1})) == 1
    end.close()


def test_a_group_is_made_and_gets_its_number(house: House) -> None:
    there, end = house.serving()
    group = {"verb": "construct", "members": ALL, "data": b"mine"}
    end.sendall(control("group", id=5, name=b"a", **group))
    end.sendall(control("group", id=6, name=b"b", **group))  # at the same time
    sent: list[dict[str, Any]] = []
    while len(sent) < 2:  # both may be read at once
        sent += [fields for _, _, fields in house.turn()]
    assert len({fields["fence"] for fields in sent}) == 2
    for number, fields in enumerate(sent, 1):
        assert (fields["world"], fields["epoch"]) == (0, 0)
        assert int(fields["fence"].removeprefix("WORLD:")) >= pmix_bridge.ONCE
        order = {**fields, "type": "release_fence", "keys": [fields["keys"]] * 2, "number": number}
        assert house.connections.replies().order(order) == []
    part, release, _, other = heard(end, 4)
    assert (part["data"], release) == (
        b"minemine", {"type": "release", "id": 5, "status": 0, "number": 1},
    )  # fmt: skip
    assert (other["id"], other["number"]) == (6, 2)
    assert (there.epochs, there.waiting) == ({}, {})
    end.close()


def test_who_nobody_knows_cannot_meet(house: House) -> None:
    _, end = house.serving()
    end.sendall(control("fence", id=5, members=[*ALL, [b"other", [0]]], data=b""))
    assert house.turn() == []
    released(end, 5, pmix_bridge.NOT_FOUND)
    end.close()
