"""Placeholders in a program's words: which are filled, and which braces stand."""

from __future__ import annotations

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.plan.job.rank_environment import NAMES, filled, torchrun

VALUES: dict[str, object] = {name: f"<{name}>" for name in NAMES}


@cases(
    ("word", "wanted"),
    [
        ("{node_rank}", "<node_rank>"),
        ("--rdzv={master_addr}:{master_port}", "--rdzv=<master_addr>:<master_port>"),
        ("{unknown}", "{unknown}"),
        ('{"rank": {"host": 1}}', '{"rank": {"host": 1}}'),
        ("{ host }", "{ host }"),
        ("{host", "{host"),
        ("${host}", "$<host>"),
        ("", ""),
    ],
)
def test_filled(word: str, wanted: str) -> None:
    assert filled((word,), VALUES) == (wanted,)


@given(st.lists(st.text(alphabet="{}ab_ host", max_size=20)))
def test_every_other_word_stands(words: list[str]) -> None:
    for before, after in zip(words, filled(tuple(words), VALUES), strict=True):
        if not any(f"{{{name}}}" in before for name in NAMES):
            assert after == before


def test_a_value_is_not_filled_again() -> None:
    assert filled(("{host}",), {**VALUES, "host": "{run_id}"}) == ("{run_id}",)


def test_torchrun() -> None:
    words = torchrun(("train.py", "--nproc-per-node", "{nproc_per_node}"), "4", "script")
    assert words[:5] == (
        "torch.distributed.run", "--nnodes", "{nnodes}", "--nproc-per-node", "4",
    )  # fmt: skip
    assert words[-3:] == ("train.py", "--nproc-per-node", "{nproc_per_node}")
    assert torchrun(("pkg.train",), None, "module")[-2:] == ("-m", "pkg.train")
    assert torchrun(("./a",), None, "command")[-2:] == ("--no-python", "./a")
