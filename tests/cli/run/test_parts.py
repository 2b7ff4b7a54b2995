"""``a : b`` and ``--app``: which words are whose, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from cases import cases

from dispatcher.cli.run.parts import app_lines
from dispatcher.cli.run.request import request
from dispatcher.model.errors import UsageError
from dispatcher.plan.job.parts import Part
from dispatcher.plan.job.request import Request

from ..conftest import Parsed

JOB = ("-H", "n1:2,n2:2")
RUN = ("--no-python", "--np")


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PWD", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def command(*words: str, **own: object) -> Part:
    return Part(words, "command", **own)  # type: ignore[arg-type]


def hosts(found: Request) -> dict[str, int | None]:
    return {host.name: host.slots for host in found.hosts.hosts}


@cases(
    ("words", "parts"),
    [
        ((*RUN, "1", "a", "x", ":", *RUN, "3", "b"),
         (command("a", "x", np=1), command("b", np=3))),
        ((*RUN, "1", "a", ":", *RUN, "1", "b", ":", "--no-python", "c", "-n", "5"),
         (command("a", np=1), command("b", np=1), command("c", "-n", "5"))),
        (("-np", "1", "a.py", ":", "-n", "2", "-m", "m"),
         (Part(("a.py",), np=1), Part(("m",), "module", np=2))),
        ((*RUN, "1", "-x", "A=1", "--chdir", "d", "--python", "p", "a", ":", *RUN, "2", "b"),
         (command("a", np=1, exports=("A=1",), cwd="d", python="p"), command("b", np=2))),
        # in front of the first : alone: for all
        (("--no-python", "-x", "A=1", "--chdir", "/d", ":", "-n", "1", "a", ":", "-x", "B=2", "b"),
         (command("a", np=1), command("b", exports=("B=2",)))),
        (("--no-python", "--nproc-per-node", "1", ":", "a", ":", "--nproc_per_node=2", "b"),
         (command("a", nproc_per_node=1), command("b", nproc_per_node=2))),
        # behind -- a : is an argument
        ((*RUN, "1", "a", ":", "--no-python", "--", "b", ":", "c"),
         (command("a", np=1), command("b", ":", "c"))),
        ((*RUN, "1", "a", "::", ":", "--no-python", "b", "a:b"),
         (command("a", "::", np=1), command("b", "a:b"))),
    ],
)  # fmt: skip
def test_whose_words_are_whose(parsed: Parsed, words: tuple[str, ...], parts: object) -> None:
    found = request(parsed("run", *JOB, *words))
    assert found.parts == parts
    assert (found.np, found.nproc_per_node) == (None, None)
    assert found.program == found.parts[0].program
    assert hosts(found) == {"n1": 2, "n2": 2}


def test_what_is_for_all_is_the_jobs(parsed: Parsed) -> None:
    words = ("--no-python", "-x", "A=1", "--chdir", "/d", ":", "-n", "1", "a", ":", "b")
    found = request(parsed("run", *JOB, "--map-by", "node", *words))
    assert (found.exports, found.cwd, found.map_by) == (("A=1",), "/d", "node")
    line = ("-x", "A=1", "--chdir", "/d", *RUN, "1", "a", ":", *RUN, "1", "b")
    own = request(parsed("run", *JOB, *line))
    assert (own.exports, own.cwd) == ((), str(Path.cwd()))


def test_what_a_file_says_holds_for_a_program_that_says_nothing(
    parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[run]\nexport = ['LANG=1']\nno-python = true\nchdir = '/w'\nnp = 2\n"
    (tmp_path / "dispatch.toml").write_text(text)
    monkeypatch.delenv("DISPATCH_CONFIG", raising=False)
    line = ("--np", "1", "-x", "B=2", "--chdir", "/d", "a", ":", "b")
    found = request(parsed("run", *JOB, *line))
    assert (found.exports, found.cwd) == (("LANG=1",), "/w")
    assert found.parts == (command("a", np=1, exports=("B=2",), cwd="/d"), command("b", np=2))


def test_one_program_may_have_a_colon_behind_dashes(parsed: Parsed) -> None:
    found = request(parsed("run", *JOB, "--no-python", "--", "a", ":", "b"))
    assert (found.parts, found.program.argv) == ((), ("a", ":", "b"))


@cases(
    ("words", "those", "found"),
    [
        (("-w", "n1", "a", ":", "-w", "n2", "b"),
         [(("n1", None),), (("n2", None),)], {"n1": None, "n2": None}),
        (("-w", "n1:2", "a", ":", "-w", "n1:6", "b"),
         [(("n1", 2),), (("n1", 6),)], {"n1": 8}),
        (("-w", "n1:4,n2:4", "a", ":", "-w", "n2:1", "b"),
         [(("n1", 4), ("n2", 4)), (("n2", 1),)], {"n1": 4, "n2": 5}),
        (("-w", "n1:4,n2:4", ":", "a", ":", "-w", "n2:1", "b"),
         [(), (("n2", 1),)], {"n1": 4, "n2": 4}),
        (("-w", "n1:4", "a", ":", "b"), [(), ()], {"n1": 4}),
    ],
)  # fmt: skip
def test_hosts_of_its_own(
    parsed: Parsed, words: tuple[str, ...], those: object, found: dict[str, int | None]
) -> None:
    line = ["--no-python", *words]
    for at in [at for at, word in enumerate(line) if word == ":"][-1:]:
        line[at + 1 : at + 1] = [] if words[2] == ":" else ["--no-python"]
    made = request(parsed("run", *line))
    assert [part.hosts for part in made.parts] == those
    assert hosts(made) == found


def test_hosts_are_read_from_standard_input_once(
    parsed: Parsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"n1 slots=2\nn2\n")))
    made = request(parsed("run", "-H", "-", *RUN, "1", "a", ":", "-w", "n3", *RUN, "1", "b"))
    assert [part.hosts for part in made.parts] == [(("n1", 2), ("n2", None)), (("n3", None),)]
    assert hosts(made) == {"n1": 2, "n2": None, "n3": None}


@cases(
    ("words", "why", "hint"),
    [
        ((*RUN, "1", "a", ":"), "':': no program after it", "dispatch -H hostfile --np 1"),
        ((*RUN, "1", "a", ":", "-n", "1", ":", "b"), "no program before it", None),
        ((*RUN, "1", "a", ":", "-n", "1", "--fold", "b"), "--fold: applies to the whole", "--fold"),
        ((*RUN, "1", "a", ":", "-n", "1", "--ppn", "b"), "--ppn: not an option of one", "--np"),
        ((*RUN, "1", "a", ":", "-n", "0", "b"), "--np: 0 is not between", None),
        ((*RUN, "1", "a", ":", "-n", "1", "/bin/sh"), "/bin/sh': a program, not a Python script",
         "--no-python /bin/sh"),
        (("-n", "1", "/bin/sh", ":", "-n", "1", "b.py"), "a program, not a Python script",
         "--no-python /bin/sh"),
        ((*RUN, "1", "a", ":", "--no-python", "--nproc-per-node", "gpu", "b"),
         "one program of several takes a number", None),
        (("--launcher=torchrun", "-n", "1", "a.py", ":", "-n", "1", "b.py"),
         "starts one program", None),
        (("--app", "no-such", "x"), "lists the programs; remove x", None),
        (("--app", "no-such"), "--app no-such: no such file", None),
    ],
)  # fmt: skip
def test_what_is_refused(
    parsed: Parsed, words: tuple[str, ...], why: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as refused:
        request(parsed("run", *JOB, *words))
    assert why in refused.value.message
    assert hint is None or hint in (refused.value.hint or "")


def test_a_file_of_programs(parsed: Parsed, tmp_path: Path) -> None:
    text = "# two\n\n-np 1 a 'b c'   # first\n-n 2 -x A=1 \\\n  d : -n 1 e\n"
    (tmp_path / "app").write_text(text)
    found = request(parsed("run", *JOB, "--no-python", "-x", "B=2", "--app", "app"))
    assert found.exports == ("B=2",)
    assert found.parts == (
        command("a", "b c", np=1), command("d", np=2, exports=("A=1",)), command("e", np=1),
    )  # fmt: skip


@cases(
    ("text", "why"),
    [
        ("", "--app app: no program in it"),
        ("# nothing\n", "no program in it"),
        ("-n 1 a\n-n 1 'b\n", "--app app:2: no closing quotation"),
        ("-n 1 a\n\n--fold b\n", "--app app:3: --fold: applies to the whole job"),
    ],
)
def test_a_file_that_is_wrong(parsed: Parsed, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "app").write_text(text)
    with pytest.raises(UsageError) as refused:
        request(parsed("run", *JOB, "--no-python", "--app", str(tmp_path / "app")))
    assert why in refused.value.message.replace(f"{tmp_path}/", "")


@cases(
    ("text", "lines"),
    [
        ("a\nb", [(1, "a"), (2, "b")]),
        ("a \\\n b\nc", [(1, "a   b"), (3, "c")]),
        ("a \\", [(1, "a  ")]),
        ("", []),
    ],
)
def test_lines_that_go_on(text: str, lines: list[tuple[int, str]]) -> None:
    assert app_lines(text) == lines
