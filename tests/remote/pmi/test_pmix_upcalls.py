"""What a rank tells ranks of other hosts: what arrives there, and what is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.pmi.libpmix import (
    BYTE_OBJECT,
    DATA_ARRAY,
    INFO,
    PROC,
    STRING,
    UINT32,
    DataArray,
    Info,
    Infos,
    Proc,
)
from dispatcher.remote.pmi.pmix_upcalls import EVENT_LIMIT, INFOS_LIMIT, NUMBERS, packed, unpacked
from dispatcher.remote.protocol.packing import PackError, pack, unpack

texts = st.binary(max_size=40).map(lambda text: text.replace(b"\0", b""))
ranks = st.builds(Proc, texts.filter(bool), st.integers(0, (1 << 32) - 1))
INFOS = st.one_of(
    st.sampled_from(sorted(NUMBERS)).flatmap(
        lambda type: st.tuples(st.just(type), st.integers(0, (1 << 8 * NUMBERS[type]) - 1))
    ),
    st.tuples(st.just(STRING), texts),
    st.tuples(st.just(BYTE_OBJECT), st.binary(max_size=40)),
    st.tuples(st.just(PROC), ranks),
    st.tuples(st.just(DATA_ARRAY), st.lists(ranks, min_size=1, max_size=3)),
)


def read(infos: Infos) -> list[Any]:
    """(key, type, value) of each as a library reads them."""
    found: list[Any] = []
    for info in infos.array[: infos.size]:
        content: Any = info.value.content
        if info.value.type == STRING:
            value: Any = ctypes.string_at(content[0])
        elif info.value.type == BYTE_OBJECT:
            value = ctypes.string_at(content[0], content[1])
        elif info.value.type == PROC:
            value = named(Proc.from_address(content[0]))
        elif info.value.type == DATA_ARRAY:
            array = DataArray.from_address(content[0])
            value = [named(one) for one in (Proc * array.size).from_address(array.array)]
        else:
            value = content[0]
        found.append((info.key, info.value.type, value))
    return found


def named(proc: Proc) -> tuple[bytes, int]:
    return proc.namespace, proc.rank


def held(type: int, value: Any) -> Any:
    return (Proc * len(value))(*value) if type == DATA_ARRAY else value


@given(st.integers(-(1 << 31), (1 << 31) - 1), ranks, st.integers(0, 255), st.lists(INFOS))
def test_what_is_told_arrives(number: int, source: Proc, range: int, told: list[Any]) -> None:
    infos = Infos([(b"key", type, held(type, value)) for type, value in told])
    event = packed(number, source, range, infos.array[: infos.size])
    if len(event) > EVENT_LIMIT or len(told) > INFOS_LIMIT:
        return
    came, by, where, pairs = unpacked(event)
    assert (came, named(by), where) == (number, named(source), range)
    assert read(Infos(pairs)) == read(infos)


def test_what_would_mean_nothing_there_stays_here() -> None:
    inner: Any = [(b"in", UINT32, 1)]
    infos = Infos(
        [(b"pmix.srvr.internal.notify", 1, 1), (b"nested", DATA_ARRAY, inner), (b"a", UINT32, 7)]
    )
    infos.array[2].value.content[0] |= 9 << 32  # what is there is not of the number
    none = Info(b"no text")
    none.value.type = STRING  # at no address
    event = packed(-1, Proc(b"n", 3), 3, [*infos.array[: infos.size], none])
    assert unpack(event) == [-1, b"n", 3, 3, [[b"a", UINT32, (7).to_bytes(4, "little")]]]


GOOD = [-4001, b"n", 3, 3, [[b"a", UINT32, bytes(4)]]]


def event(**wrong: Any) -> bytes:
    """``GOOD`` with fields replaced; key, type, value: of its info."""
    number, namespace, rank, range, _ = GOOD
    info = [wrong.get("key", b"a"), wrong.get("type", UINT32), wrong.get("value", bytes(4))]
    return pack(
        [wrong.get("number", number), wrong.get("namespace", namespace), wrong.get("rank", rank),
         wrong.get("range", range), wrong.get("infos", [info])]
    )  # fmt: skip


@cases(
    "data",
    [
        b"", b"x", pack({}), pack(GOOD[:4]), event(number=1 << 31), event(number=True),
        event(namespace=b""), event(namespace=b"n" * 256), event(namespace="n"), event(rank=-1),
        event(rank=1 << 32), event(range=256), event(range=-1), event(infos={}),
        event(infos=[[b"a", UINT32]]), event(infos=[[b"a", 1, bytes(1)]] * (INFOS_LIMIT + 1)),
        event(key=b""), event(key=b"k" * 512), event(value=bytes(8)), event(type=1), event(value=7),
        # types whose values are addresses, and a text of another kind
        event(type=21), event(type=INFO), event(type=-1), event(type=STRING, value="x"),
        event(type=PROC, value=[]), event(type=PROC, value=[[b"n", "0"]]),
        event(type=DATA_ARRAY, value=[[b"n", 0]] * 257), event(type=DATA_ARRAY, value=b"x"),
        event(type=BYTE_OBJECT, value=bytes(EVENT_LIMIT)),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused(data: bytes) -> None:
    unpacked(event())
    with pytest.raises(PackError):
        unpacked(data)
