"""What fuzzing has found stays found, every target takes its seeds, and the judges would notice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cases import cases

from dispatcher.output.text.stacks_text import StackFiles
from dispatcher.runner.run import reports
from dispatcher.runner.run.host_intake import HostIntake

from . import confined, judging, lying, streams, texts
from .judging import FIXED, Target, judge, judge_growth, judge_repeated
from .lying import Harm, judge_script

TARGETS = {target.name: target for target in texts.TARGETS}

PUT, *_ = TARGETS["put-far"].seeds
#: target and input of every finding
FOUND: list[tuple[str, bytes]] = [
    ("config", b"[run]\n[profile.x" + b".le" * 20_000 + b"]"),
    ("config", b"[run]\nnnodes = " + b"2" * 5_000),
    ("nvidia-smi", b"x" * 140_000),
    ("site-checks", b'{"a": ' + b"[" * 100_000),
    ("xid", b"x" * (64 << 10)),
    ("network", b"== netdevs\n" + b"\n" * (64 << 10)),
    ("job-records", b"[" * 100_000),
    (
        "job-records",
        b'{"launcher": [1, 2, "b"], "node": 1, "program": [], "hosts": [], "ranks": 1, '
        b'"began": 1' + b"0" * 400 + b"}",
    ),
    ("env-file", b"x" * (64 << 10) + b" ="),
    ("hostset", b"n" + b"[01-18]x" * 8_000),
    ("hostset", b"n[1" + b" " * (64 << 10) + b"x]"),
    ("job-socket", b'{"size": 1e999}\n'),
    *(("put-far", PUT.replace(b"0/a", other)) for other in (b"4/a", b"99b", b"-1a", b"/ab")),
    ("put-far", PUT.replace(b"fdl", b"fd)")),
    ("put-far", PUT.replace(b"420 493 511", b"-20 493 511")),
    ("network", b"== /sys/class/infiniband/a\nLD_PRELOAD=x/ports/1/state\n4: ACTIVE\n"
                b"== /sys/class/infiniband/a/device/net/\nb;c\n"),
    ("network", b"== netdevs\nnetdev eth\x1b]0;x\a flags=41 mtu=1500 type=1 addresses=10.0.0.6\n"),
    ("network", b"== nccl_env\nNCCL_IB_HCA=^mlx5_1:" + b"1" * 5_000),
    ("error-file", b'{"message": {"message": "half a pair: \\ud83d"}}'),
    ("site-checks", b'{"level": "WARN", "text": "\\ud83d", "remedy": "\\udc00"}'),
    ("recorder", b'{"rank": 0, "groups": [["0", "\\ud800", 2, [[4, "\\ud800", false]]]]}'),
    ("tar", b"\xff" + streams.TARS[1].replace(b"00000000015\0", b"00000000023\0")
            .replace(b"1.5\n" + bytes(6), b"1.5\nmtime=")),  # took for ever
    ("pmix-serving", b"\xd7" + b"\xf2" * 76 + b"\xc6"),  # a rank looks up a name of 5,000 bytes
    ("pmix", b"\xe2\x80\xae"),  # ranks of ours meet with nobody
    ("reports", b",\x03A\x03\x00\x1b]3\xff"),
    ("reports",
     b"\\#\x94\xed\x03\x00\xa2\x00]](]]]]]]\x02" + b"\xff" * 8 + b"\x00\x00]]\x07\xab\x00"),
]  # fmt: skip


@cases(("name", "data"), FOUND)
def test_found(name: str, data: bytes) -> None:
    assert judge(TARGETS[name], data, memory=True) is None


@cases(
    ("name", "head", "piece"),
    [
        ("network", b"== libnccl\n", b"libnccl-net"),
        ("known-hosts", b"", b"* F b\n"),
    ],
)
def test_found_when_repeated(name: str, head: bytes, piece: bytes) -> None:
    begin, end = len(head), len(head + piece)
    assert judge_repeated(TARGETS[name], head + piece, (begin, end)) is None


def test_every_target_takes_its_seeds() -> None:
    assert streams.TARGETS is texts.TARGETS
    assert len(TARGETS) == len(texts.TARGETS) > 40
    for target in texts.TARGETS:
        assert target.seeds, target.name
        for seed in target.seeds:
            for data in (seed, seed[: len(seed) // 2], seed[::-1]):
                found = judge(target, data)
                assert found is None, f"{target.name}: {found}"


def test_no_target_keeps_what_it_opens() -> None:
    for target in texts.TARGETS:
        for seed in target.seeds:
            judge(target, seed)
            opened = os.listdir("/proc/self/fd")
            judge(target, seed)
            assert os.listdir("/proc/self/fd") == opened, target.name


# -- would they notice? ---------------------------------------------------------------------


class Clock:
    """Stands for the time that a thread has spent: some for each byte, and each pair of bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(judging, "time", SimpleNamespace(thread_time=lambda: self.now))

    def linear(self, data: bytes) -> None:
        self.now += len(data) * 5e-6

    def square(self, data: bytes) -> None:
        self.now += len(data) ** 2 * 1e-8

    def raises(self, data: bytes) -> None:
        raise (KeyError if data.startswith(b"ab") else ValueError)(data)

    def holds(self, data: bytes) -> None:
        assert bytes(FIXED + 300 * len(data))


@cases(
    ("run", "data", "what"),
    [
        ("raises", b"x", None),
        ("raises", b"abc", "KeyError"),
        ("holds", b"x" * 100, "memory"),
        ("linear", bytes(1 << 16), None),
        ("square", bytes(4096), None),
        ("square", bytes(1 << 19), "slow"),
    ],
)
def test_judge(monkeypatch: pytest.MonkeyPatch, run: str, data: bytes, what: str | None) -> None:
    target = Target("t", "", getattr(Clock(monkeypatch), run), (ValueError,))
    found = judge(target, data, memory=True)
    assert (found.key.split()[0] if found else None) == what


IN, OUT = f"{confined.folder()}/x", f"{confined.folder()}-x"  # beside it, not in it


@cases(
    ("change", "escapes"),
    [
        (lambda: os.mkdir(OUT), True),
        (lambda: os.mkdir(f"{IN}/../../y"), True),
        (lambda: os.symlink("x", OUT), True),
        (lambda: os.symlink(OUT, f"{IN}/l"), False),
        (lambda: os.rename(IN, OUT), True),
        (lambda: os.rename(OUT, IN), True),
        (lambda: os.remove(OUT), True),
        (lambda: open(OUT, "w").close(), True),
        (lambda: open(f"{IN}/out", "w").close(), True),  # a link
        (lambda: open(f"{IN}/out").close(), False),
        (lambda: os.chmod(f"{IN}/out", 0o600), True),
        (lambda: os.close(os.open("..", os.O_RDONLY)), False),
        (lambda: os.remove(".."), True),
        (lambda: open(os.devnull, "w").close(), False),
        (lambda: shutil.rmtree(IN), False),
    ],
)
def test_judge_what_is_changed_elsewhere(change: Callable[[], object], escapes: bool) -> None:
    """It is found, and it is not done."""
    shutil.rmtree(IN, ignore_errors=True)
    os.mkdir(IN)
    os.symlink(OUT, f"{IN}/out")
    found = judge(Target("t", "", lambda data: change(), (OSError,)), b"")
    assert (found is not None and found.key.startswith("Escaped")) == escapes
    assert not os.path.lexists(OUT)


@cases(("run", "what"), [("square", "grows"), ("linear", None), ("raises", "KeyError")])
def test_judge_growth(monkeypatch: pytest.MonkeyPatch, run: str, what: str | None) -> None:
    found = judge_growth(
        Target("t", "", getattr(Clock(monkeypatch), run), (ValueError,)), b"abcdef"
    )
    assert (found.key.split()[0] if found else None) == what


# -- agents that lie ------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No honest host is given up that does not run for a while; none of these liars is silent."""
    limits = replace(
        lying.LIMITS, boot_timeout=60.0, max_missed_heartbeats=120, lease=60.0, time_limit=90.0
    )
    monkeypatch.setattr(lying, "LIMITS", limits)
    of_exec = replace(lying.EXEC_LIMITS, connect=60.0, command=60.0)
    monkeypatch.setattr(lying, "EXEC_LIMITS", of_exec)
    monkeypatch.setattr(lying, "MOST_SECONDS", 120.0)


@pytest.mark.usefixtures("patient")
def test_liars_harm_nobody() -> None:
    seeds = (*range(2, 12), *range(65, 74), 597)  # the last in two attempts
    ended = {judge_script(seed) for seed in seeds}
    assert ended <= {"ok", "ended", "Exited", "Failed", "Killed", "TimedOut"}


def _loses_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    give = HostIntake._give

    def lossy(self: HostIntake, together: dict[tuple[int, int], list[bytes]]) -> None:
        for bodies in together.values():
            bodies[-1] = bodies[-1][:-1]
        give(self, together)

    monkeypatch.setattr(HostIntake, "_give", lossy)


def _loses_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StackFiles, "_write", lambda *_: None)


def _believes_all_of_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reports.read
    every = range(1 << 32)
    monkeypatch.setattr(reports, "read", lambda node, _, *rest: read(node, every, *rest))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("fault", "seed", "words"),
    [
        (_loses_a_byte, 3, "wrote|does not name|was lost"),
        (_loses_stacks, 10, "where the ranks of n0 are was lost"),
        (_believes_all_of_any_rank, 712, "ranks of n2 ended with"),
    ],
)
def test_harm_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    words: str,
) -> None:
    fault(monkeypatch)
    with pytest.raises(Harm, match=words):
        judge_script(seed)
