"""``run`` over this machine: plan, sinks, files, verdict, exit code; and plans that are shown."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.run import preflight, run_sinks
from dispatcher.cli.run.launch import typed_line
from dispatcher.core.events.run_events import Sink
from dispatcher.core.events.verdicts import Rejected, Verdict
from dispatcher.jobs import registry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.terminal import live_terminal
from dispatcher.plan.job.reassignment import Exclusion

from ..conftest import Parsed, Terminal

ON_TWO = ["-H", "localhost:2"]
SAY = ["--no-python", "sh", "-c", "echo out $RANK; echo error $RANK >&2"]
FAIL = ["--no-python", "sh", "-c", "echo last words >&2; exit $((RANK + 3))"]


@pytest.fixture(autouse=True)
def _here(nothing_around: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(nothing_around / "state"))


# -- over this machine ------------------------


def test_lines_verdict_and_record(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ON_TWO, *SAY]) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] out 0", "[1] out 1"]
    assert sorted(err.splitlines()) == ["[0] error 0", "[1] error 1"]
    (job,) = registry.jobs()
    assert (job.state, job.exit_code, job.detached, job.ranks) == ("ended", 0, False, 2)
    assert [name for name, _, _ in job.hosts] == ["localhost"]


def test_a_rank_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-H", "localhost:1", *FAIL]) == 3
    err = capfd.readouterr().err
    assert "error: rank 0" in err
    assert "last words" in err
    (job,) = registry.jobs()
    assert job.exit_code == 3
    assert all(line in err for line in (job.end or {})["verdict"])


@cases(
    ("words", "out"),
    [
        (["--label", "host"], ["[localhost:0] out 0", "[localhost:1] out 1"]),
        (["--label", "none"], ["out 0", "out 1"]),
        (["--rank0"], ["[0] out 0"]),
        (["--only-ranks", "1"], ["[1] out 1"]),
        (["--grep", "out 1"], ["[1] out 1"]),
        (["-q"], ["[0] out 0", "[1] out 1"]),
    ],
)
def test_which_lines_and_how(
    words: list[str], out: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*ON_TWO, *words, *SAY]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == out


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_kept(tmp_path: Path, quiet: bool, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--log-dir", "logs", "--trace", "trace.json", "--metrics", "metrics",
             "--sample", "0.2", *(["-q"] if quiet else [])]  # fmt: skip
    assert cli.main([*ON_TWO, *words, *SAY]) == 0
    folder = (tmp_path / "logs" / "latest").resolve()
    err = capfd.readouterr().err
    assert (f"note: logs in logs/{folder.name}\n" in err) is not quiet
    names = {path.name for path in folder.iterdir()}
    assert names >= {"rank-00000.out", "rank-00001.err", "dispatch.jsonl", "plan.json",
                     "report.json"}  # fmt: skip
    assert (folder / "rank-00001.out").read_text() == "out 1\n"
    rows = (tmp_path / "trace.json").read_text().splitlines()
    spans = [json.loads(row.rstrip(",")) for row in rows if len(row) > 2]
    hosts = {one["args"]["name"] for one in spans if one["name"] == "process_name"}
    assert "localhost" in hosts
    assert folder.name in (tmp_path / "metrics").read_text()
    (job,) = registry.jobs()
    assert job.logs == folder


def test_one_file_for_all_ranks_in_pieces(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--log-dir", "logs", "--log-merge", "--log-size", "4K", "--log-keep", "1"]
    text = "i=0; while [ $i -lt 300 ]; do echo 0123456789012345678901234567890123; i=$((i+1)); done"
    assert cli.main(["-H", "localhost:1", *words, "--no-python", "sh", "-c", text]) == 0
    capfd.readouterr()
    pieces = sorted(path.name for path in (tmp_path / "logs" / "latest").glob("merged.log*"))
    assert pieces[0] == "merged.log"
    assert 2 <= len(pieces) <= 3  # one of them may be about to go
    assert "merged.log.1" not in pieces


@cases(
    ("words", "said"),
    [
        (["--trace", "no/where"], "--trace no/where: No such file or directory"),
        (["--metrics", "no/where"], "--metrics no/where: no such file or directory"),
        (["--log-dir", "/dev/null/x"], "--log-dir /dev/null/x: not a directory"),
        (["--json"], "--json needs --dry-run"),
        (["--detach", "--rank0"], "--rank0 needs a screen, and --detach has none"),
        (["--exclude-unhealthy", "--check", "none"], "--exclude-unhealthy needs a check"),
        (["--agent-python", "a b"], "--agent-python"),
        (["--launcher", "mpirun"], "--launcher=mpirun was removed: dispatch starts the ranks"),
        (["--launcher", "./mpirun"], "--launcher: './mpirun' is not one of: dispatch, torchrun"),
        (["--rsh", "x {host}", "--user", "me"], "localhost: user me is set"),
        (["--fanout-tree", "--rsh", "x {host}"], "--fanout-tree needs SSH"),
        (["--keep=0"], "--keep=0"),
        (["--quiet", "--verbose"], "--quiet and --verbose exclude each other"),
        (["--only-ranks", "2"], "--only-ranks: 2: the world's ranks are 0-1"),
    ],
)
def test_refused_before_any_host(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*ON_TWO, *words, *SAY]) == 2
    out, err = capfd.readouterr()
    assert (out, err.splitlines()[0]) == ("", err.splitlines()[0])
    assert err.startswith(f"error: {said}")


def test_notes_come_first(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost\nlocalhost\n")
    words = ["-H", "hosts", "--nnodes", "1", "--no-python", "true"]
    assert cli.main(words) == 0
    assert capfd.readouterr().err.startswith("note: ")


def test_ranks_that_are_silent_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    # the rank waits until that is in the journal, half a minute at most
    told = "grep -q ranks.stalled logs/latest/dispatch.jsonl"
    text = f"n=0; until {told} || [ $n = 300 ]; do sleep 0.1; n=$((n+1)); done"
    words = ["-H", "localhost:1", "--stall-after", "0.3", "--log-dir", "logs"]
    assert cli.main([*words, "--no-python", "sh", "-c", text]) == 0
    assert "rank 0" in capfd.readouterr().err


@cases("quiet", [False, True])
def test_slow_ranks_are_named_at_the_end(
    quiet: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatcher.cli.run.run_sinks import Monitoring

    monkeypatch.setattr(Monitoring, "slow", lambda self: ("rank 1 is slow",))
    words = [*ON_TWO, "--step-line", "x", *(["-q"] if quiet else []), "--no-python", "true"]
    assert cli.main(words) == 0
    assert ("note: rank 1 is slow\n" in capfd.readouterr().err) is not quiet


@cases(("words", "steps"), [([], False), (["-v"], True)])
def test_every_step_is_told_by_v(
    words: list[str], steps: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-H", "localhost:1", *words, "--no-python", "true"]) == 0
    assert ("localhost" in capfd.readouterr().err) is steps


# -- what a check decided ------------------------


def test_a_run_that_is_rejected_touches_no_host(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = {0: Failure(Kind.CHECK, "memory: bad", "add some")}

    def decided(plan: Any, *more: Any) -> preflight.Decision:
        verdict = Verdict(Rejected(failures, 125), 125, plan.world_size)
        return preflight.Decision(plan, (Exclusion("localhost", "bad"),), verdict)

    monkeypatch.setattr(preflight, "preflight", decided)
    assert cli.main([*ON_TWO, "--check", "full", *SAY]) == 125
    out, err = capfd.readouterr()
    assert out == ""
    assert "localhost" in err
    assert "memory: bad" in err
    assert registry.jobs()[0].exit_code == 125


@cases("quiet", [False, True])
def test_a_check_s_notes(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = property(lambda self: ["note: n1: memory: low"])
    monkeypatch.setattr(preflight.Decision, "notes", notes)
    assert cli.main([*ON_TWO, *(["-q"] if quiet else []), "--no-python", "true"]) == 0
    assert ("note: n1: memory: low\n" in capfd.readouterr().err) is not quiet


# -- before a terminal ------------------------


@pytest.mark.parametrize(
    ("words", "code", "panel"),
    [
        (["--no-python", "true"], 0, False),
        (["--on-end", "exit 1", *FAIL], 3, True),
        (["-q", *FAIL], 3, False),
    ],
)
def test_the_verdict_below_the_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, panel: bool
) -> None:
    monkeypatch.setattr(live_terminal, "FIRST", 1000.0)  # however long a short run takes
    terminal.take()
    assert cli.main(["-H", "localhost:1", *words]) == code
    terminal.leave()
    assert ("1 rank on 1 host" in terminal.plain) is panel
    assert ("error: rank 0" in terminal.plain) is (code != 0)
    assert ("note: --on-end (end): exit code 1" in terminal.plain) is ("--on-end" in words)


#: says a line, then waits for the file "go", at most a minute
WAITS = """
import os, time
print("up", flush=True)
end = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < end:
    time.sleep(0.02)
"""


@cases(("words", "code"), [([], 128 + signal.SIGPIPE), (["--log-dir", "d"], 0)])
def test_nobody_reads(words: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without files the ranks end, as writers to a pipe do; with them the run is worth it."""
    real = run_sinks.open_screen

    class Reader(Sink):
        """Hears the line, and is gone."""

        def __init__(self, gone: Callable[[], None]) -> None:
            self._gone = gone

        def output(self, rank: int, stream: int, data: bytes) -> None:
            self._gone()
            if words:
                Path("go").touch()

    def opened(*given: Any, **more: Any) -> Any:
        screen, progress = real(*given, **more)
        screen.output = Reader(more["on_broken"]).output  # type: ignore[method-assign]
        return screen, progress

    monkeypatch.setattr(run_sinks, "open_screen", opened)
    line = ["-H", "localhost:1", *words, "--no-python", sys.executable, "-c", WAITS]
    assert cli.main(line) == code


# -- plans that are shown ------------------------


def test_a_plan_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts").write_text("me@n1 slots=2\nn2 slots=1\nn3 slots=2\n")
    words = ["--dry-run", "--spares", "1", "--ssh-port", "2222", "--chdir", "/work[dir]",
             "-x", "API_TOKEN=swordfish", "-x", "LR=[1]", "--no-python", "prog", "a b"]  # fmt: skip
    assert cli.main(["-H", "hosts", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"run \d{8}-\d{6}-\w{6}", lines[0])
    rows = [line.split() for line in lines[1:5]]
    assert rows == [
        ["node", "host", "user", "port", "slots", "ranks"],
        ["0", "n1", "me", "2222", "0,1", "0-1"],
        ["1", "n2", "2222", "0", "2"],
        ["n3", "2222", "0,1", "spare"],
    ]
    assert "world size  3" in lines
    assert "folder      /work[dir]" in lines
    assert "rank 0      prog 'a b'" in lines
    at = lines.index("rank 0      prog 'a b'")
    own = [line.strip().partition("=")[::2] for line in lines[at + 1 :]]
    assert {("RANK", "0"), ("WORLD_SIZE", "3")} <= set(own)
    assert own == sorted(own)
    (first,) = [n for n, line in enumerate(lines) if line.startswith("all ranks   ")]
    shared = [line[12:].partition("=")[::2] for line in lines[first:at]]
    assert {("API_TOKEN", "<hidden>"), ("LR", "[1]")} <= set(shared)
    assert shared == sorted(shared)
    assert "swordfish" not in "".join(lines)


def test_a_plan_whose_ranks_are_not_counted_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-H", "n1,n2", "--dry-run", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "one per GPU, else 1" in out
    assert "world size  counted at the start" in out
    assert out.count("counted at the start") == 3
    assert "rank 0" not in out
    assert "all ranks   " in out
    assert "DISPATCH_HOSTS" not in out


@cases(
    ("words", "said"),
    [
        (["-H", "n1,n2:2"], "   1  n2                0,1                   one per slot\n"),
        (
            ["-H", "n1,n2:2", "--nproc-per-node", "gpu"],
            " 0,1                   one per GPU, else 1",
        ),
        (["-H", "n1", "--map-by", "ppr:2:numa"], "2 per numa"),
        (["-H", "n1,n2", "--np", "3"], "world size  3"),
        (["-H", "n1"], "bound to    the NUMA node of its GPU, if the host reports it\n"),
        (["-H", "n1", "--map-by", "gpu"], "bound to    the NUMA node of its GPU\n"),
        (["-H", "n1", "--map-by", "numa"], "bound to    the NUMA node that it is dealt to\n"),
        (
            ["-H", "n1", "--map-by", "ppr:2:socket", "--bind-to", "core"],
            "bound to    cores of its own, in the socket that it is dealt to\n",
        ),
        (
            ["-H", "n1", "--map-by", "core", "--bind-to", "numa"],
            "bound to    the NUMA node of the core that it is dealt to\n",
        ),
    ],
)
def test_what_is_known_of_such_a_plan(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--dry-run", "train.py"]) == 0
    assert said in capsys.readouterr().out


def test_a_plan_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-H", "n[1-3]:1", "--dry-run", "--json", "--fanout-tree=2", "-x", "A_TOKEN=swordfish"]
    assert cli.main([*words, "--no-python", "prog"]) == 0
    out = capsys.readouterr().out
    plan = promises.told(out)
    assert [node["host"] for node in plan["nodes"]] == ["n1", "n2", "n3"]
    assert plan["parents"] == {"n3": "n2"}
    assert "swordfish" not in out
    assert out.startswith("{\n  ")
    assert cli.main(["-H", "n1:1", "--dry-run", "--json", "--no-python", "prog"]) == 0
    assert "parents" not in promises.told(capsys.readouterr().out)


def test_values_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    values = ["A=tcp:key:1", "E=a\\", "F=[red]x[/red]"]
    words = [word for value in values for word in ("-x", value)]
    assert cli.main(["-H", "n1:1", "--dry-run", *words, "-x", "G=\x1b]52;c;eA==\a", "x.py"]) == 0
    lines = [line[12:] for line in capsys.readouterr().out.splitlines()]
    assert {*values, "G=\\x1b]52;c;eA==\\x07"} <= {*lines}


def test_words_that_are_no_text(capfd: pytest.CaptureFixture[str]) -> None:
    import io

    with pytest.MonkeyPatch.context() as patch:
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
        patch.setattr(sys, "stdout", stream)
        assert cli.main(["-H", "n1:1", "--dry-run", "--no-python", "prog", "a\udcff"]) == 0
        stream.flush()
        shown = stream.buffer.getvalue().decode()
    assert "'a\\xff'" in shown


@pytest.mark.parametrize(
    ("line", "options", "words", "withheld"),
    [
        ("-H h --np 2 t.py --lr 1", "-H h --np 2", "t.py --lr 1", ""),
        ("-H h -- t.py -x A=1", "-H h --", "t.py -x A=1", ""),
        ("-x A=1 -qxB=2 --export=C=3 --export D -x E= -H h t.py A=1",
         "-x A -qxB --export=C --export D -x E -H h", "t.py A=1", "A B C E"),
        ("-x A=1 --rsh BA=1 t.py", "-x A --rsh BA=1", "t.py", "A"),
        ("-x A=1 t.py : -x B=2 --np 1 u.py", "-x A", "t.py : -x B --np 1 u.py", "A B"),
    ],
)  # fmt: skip
def test_the_typed_line_has_no_values(
    parsed: Parsed, line: str, options: str, words: str, withheld: str
) -> None:
    given = parsed("run", *line.split())
    exports = (("PATH", "/bin"), ("B", "2"))
    parts = (SimpleNamespace(exports=exports),) if ":" in given.words else ()
    found = typed_line(cast("Any", SimpleNamespace(parts=parts)), given)
    assert found is not None
    assert found.options == tuple(options.split())
    assert found.words == tuple(words.split())
    assert found.withheld == tuple(withheld.split())
    assert found.folder == os.getcwd()
