"""GPUs as the user writes them, and as CUDA's variable leaves them."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.model.host import Host, Hostlist, parse_gpus, visible
from dispatcher.model.names import BadName


@cases(
    ("text", "gpus"),
    [
        ("0", ("0",)), ("3,1", ("3", "1")), ("4-7", ("4", "5", "6", "7")), ("5-5", ("5",)),
        ("007,1-02", ("7", "1", "2")), ("GPU-8f,MIG-a/1/0", ("GPU-8f", "MIG-a/1/0")),
    ],
)  # fmt: skip
def test_gpus(text: str, gpus: tuple[str, ...]) -> None:
    assert parse_gpus(text, 4) == gpus


@cases(
    ("text", "why"),
    [
        ("", "not a GPU: ''"), ("1,", "not a GPU: ''"), ("7-4", "not a GPU: '7-4'"),
        ("GPU", "not a GPU: 'GPU'"), ("12345", "not a GPU"), ("\u0661", "not a GPU"),
        ("GPU-\u00e4", "not a GPU"), ("1,01", "a GPU twice: '1,01'"), ("1,0-2", "a GPU twice"),
        ("1,GPU-a", "numbers and names do not mix"), ("0-4", "5 of them (at most 4)"),
    ],
)  # fmt: skip
def test_what_is_refused_as_gpus(text: str, why: str) -> None:
    with pytest.raises(BadName) as caught:
        parse_gpus(text, 4)
    assert caught.value.message.startswith(f"gpus: {why}")
    assert caught.value.offset == 0
    assert ("nvidia-smi -L" in (caught.value.hint or "")) == why.startswith("not a GPU")


@cases(
    ("text", "count", "left"),
    [
        ("0,1", 2, ("0", "1")), ("1,2", 2, ("1",)), ("9999", 10000, ("9999",)), ("01", 2, ("1",)),
        ("0,00", 2, ()), ("GPU-a,x,GPU-b", 1, ("GPU-a",)), ("0", 0, ()),
    ],
)  # fmt: skip
def test_visible(text: str, count: int, left: tuple[str, ...]) -> None:
    assert visible(text, count) == left


def test_what_nobody_said_of_a_host() -> None:
    host = Host("n1")
    assert vars(host) == {
        "name": "n1", "slots": None, "max_slots": None, "user": None, "port": None, "python": None,
        "env": (), "gpus": None, "granted": None, "spare": False, "origin": "-H",
    }  # fmt: skip
    assert host.place == ("n1", None)
    assert Host("n1", user="a", port=22).place == Host("n1", user="b", port=22).place
    assert Hostlist((host,)).notices == ()
