"""MPI opened and left: which thread level, whose protocol, and how a rank that fails goes."""

from __future__ import annotations

import importlib
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.comm import CommError, EnvironmentMissing, mpi
from dispatcher.comm.exchange import Exchange
from dispatcher.comm.mpi import check_world, exit_with, open_mpi, take_others_along

from .fake_mpi import Aborted, Mpi

LEVELS = {"single": 0, "funneled": 1, "serialized": 2, "multiple": 3}


class Module:
    """``mpi4py.MPI`` as far as it is opened; started: whether importing it has called MPI_Init."""

    def __init__(self, given: int = 3, *, started: bool = True) -> None:
        self.given, self.started = given, started
        self.asked: list[int] = []
        for name, number in LEVELS.items():
            setattr(self, f"THREAD_{name.upper()}", number)

    def Is_initialized(self) -> bool:
        return self.started

    def Init_thread(self, level: int) -> None:
        self.asked.append(level)

    def Query_thread(self) -> int:
        return self.given


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``import`` gives; an exception is raised."""
    given: dict[str, Any] = {"mpi4py": SimpleNamespace(rc=SimpleNamespace(thread_level="default"))}

    def load(name: str) -> Any:
        if isinstance(given[name], Exception):
            raise given[name]
        return given[name]

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    return given


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_opened_with_the_level_asked_for(modules: dict[str, Any], level: str) -> None:
    modules["mpi4py.MPI"] = module = Module(LEVELS[level])
    assert open_mpi(level) is module
    assert modules["mpi4py"].rc.thread_level == level
    assert module.asked == []


def test_it_is_started_where_importing_does_not(modules: dict[str, Any]) -> None:
    modules["mpi4py.MPI"] = module = Module(started=False)
    open_mpi("serialized")
    assert module.asked == [2]


def test_what_was_imported_before_is_not_told_a_level(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace())
    modules["mpi4py.MPI"] = Module(LEVELS["serialized"])
    open_mpi("funneled")
    assert modules["mpi4py"].rc.thread_level == "default"
    with pytest.raises(CommError) as caught:
        open_mpi()
    assert caught.value.message == (
        "comm: mpi: started with thread level 'serialized', 'multiple' is needed"
    )
    assert "before anything imports mpi4py.MPI" in (caught.value.hint or "")


def test_a_level_that_there_is_not(modules: dict[str, Any]) -> None:
    with pytest.raises(CommError, match="'many': not one of single, funneled, serialized, multi"):
        open_mpi("many")


@pytest.mark.parametrize(
    ("name", "error", "words", "hint"),
    [
        ("mpi4py", ImportError(), "comm: mpi4py: not installed for ", "pip install mpi4py mpich"),
        ("mpi4py.MPI", ImportError("gone"), "no MPI library could be loaded: gone", "mpich"),
        ("mpi4py.MPI", RuntimeError("ABI"), "no MPI library could be loaded: ABI", "mpich"),
    ],
)  # fmt: skip
def test_without_mpi_what_to_install_is_said(
    modules: dict[str, Any], name: str, error: Exception, words: str, hint: str
) -> None:
    modules[name] = error
    with pytest.raises(EnvironmentMissing) as caught:
        open_mpi()
    assert words in caught.value.message
    assert (caught.value.hint or "").endswith(hint)


@pytest.mark.parametrize(
    ("size", "env"),
    [
        (4, {}), (4, {"WORLD_SIZE": "4", "PMI_SIZE": "1"}), (4, {"WORLD_SIZE": "x"}),
        (4, {"PMI_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "2"}), (1, {"OMPI_COMM_WORLD_SIZE": "1"}),
    ],
)  # fmt: skip
def test_a_world_of_the_size_that_was_started(size: int, env: dict[str, str]) -> None:
    check_world(size, env, "MPICH")  # the first that has a number counts
    with pytest.raises(CommError):
        check_world(size + 1, {"WORLD_SIZE": f"{size}"}, "MPICH")


@pytest.mark.parametrize(("size", "words"), [(1, "has 1 rank,"), (2, "has 2 ranks,")])
@pytest.mark.parametrize("name", ["WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_world_of_another_size(size: int, words: str, name: str) -> None:
    with pytest.raises(CommError) as caught:
        check_world(size, {name: "4"}, "Open MPI 5")
    assert f"comm: mpi: the world {words} {name} says 4: Open MPI 5 does not" in str(caught.value)
    assert caught.value.hint == "pip install mpich"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not called ``init``."""
    fields = {"armed": False, "who": "", "mpi": None, "exchange": None, "abort": None}
    for name, value in fields.items():
        monkeypatch.setattr(mpi._Ways, name, value)
    monkeypatch.setattr(mpi, "_TOGETHER", 0.05)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


def world(size: int = 1, rank: int = 0) -> tuple[Mpi, Exchange]:
    fake = Mpi(size)
    fake.COMM_WORLD = fake.rank(rank)
    return fake, Exchange(fake, fake.rank(rank), f"rank {rank} on h")


def fail(error: BaseException) -> int | None:
    """What an uncaught ``error`` ends the job with; None where it does not end it."""
    try:
        sys.excepthook(type(error), error, None)
    except Aborted as end:
        return end.code
    return None


@pytest.mark.usefixtures("ways")
class TestUncaught:
    def test_an_error_of_ours_is_said_in_words(self, capsys: pytest.CaptureFixture[str]) -> None:
        mpi.arm_mpi("a rank on h")
        assert fail(CommError("comm: mpi4py: not installed", hint="pip install it")) is None
        said = "a rank on h: mpi4py: not installed\nhint: pip install it\n"
        assert capsys.readouterr().err == said

    def test_others_have_their_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        mpi.arm_mpi("a rank on h")
        mpi.arm_mpi("a rank on h")  # once is enough
        fail(ValueError("row 7"))
        assert capsys.readouterr().err.count("ValueError: row 7") == 1

    def test_it_takes_the_others_along(self) -> None:
        fake, exchange = world()
        mpi.arm_mpi("a rank on h")
        assert fail(ValueError()) is None  # before MPI is there
        take_others_along(fake, exchange)
        assert fail(ValueError()) == 1
        assert fail(CommError("mine")) == 1
        fake.finalized = True
        assert fail(ValueError()) is None
        fake.finalized, fake.initialized = False, False
        assert fail(ValueError()) is None
        assert fake.aborted == [1, 1]

    def test_it_does_so_even_if_it_cannot_be_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake, exchange = world()
        mpi.arm_mpi("a rank on h")
        take_others_along(fake, exchange)
        monkeypatch.setattr(sys, "stderr", None)
        assert fail(CommError("x")) == 1

    def test_those_with_one_reason_leave_together(self) -> None:
        fake, _ = world(2)
        mpi.arm_mpi("a rank on h")

        def leave(rank: int) -> int | None:
            take_others_along(fake, Exchange(fake, fake.rank(rank)))
            return fail(CommError("x", shared=True))

        assert leave(0) == 1  # the other does not come
        fake, exchange = world(1)
        take_others_along(fake, exchange)
        assert fail(CommError("x", shared=True)) is None
        assert fake.aborted == []

    def test_who_leaves_in_good_order_lets_go_of_its_gpu_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mpi, "_TOGETHER", 60.0)
        fake, exchange = world()
        mpi.arm_mpi("a rank on h")
        take_others_along(fake, exchange)
        calls: list[str] = []
        mpi.abort_first(lambda: calls.append("abort"))
        assert fail(CommError("mine")) == 1  # MPI_Abort needs none
        assert calls == []
        assert fail(CommError("x", shared=True)) is None
        assert calls == ["abort"]
        monkeypatch.setattr(mpi, "_TOGETHER", 0.05)
        never = threading.Event()
        mpi.abort_first(lambda: (never.wait(), None)[1])
        assert fail(CommError("x", shared=True)) is None  # it is not waited for without a limit
        never.set()


@pytest.mark.usefixtures("ways")
class TestExit:
    @pytest.mark.parametrize("code", [None, 0])
    def test_success_returns(self, code: int | None) -> None:
        fake, exchange = world()
        take_others_along(fake, exchange)
        exit_with(SystemExit(code))
        assert fake.aborted == []

    @pytest.mark.parametrize(("code", "ends", "said"), [(3, 3, ""), ("no data", 1, "no data\n")])
    def test_a_failure_ends_the_job(
        self, code: Any, ends: int, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fake, exchange = world()
        take_others_along(fake, exchange)
        with pytest.raises(Aborted) as caught:
            exit_with(SystemExit(code))
        assert caught.value.code == ends
        assert capsys.readouterr().err == said
