"""``import dispatcher``: runs from a program, and every example of docs/guides/python.md."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import dispatcher
from dispatcher.model import errors
from dispatcher.plan.job.rank_environment import describe_plan

from .conftest import Desk

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TRAIN = "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n"
SLEEP = ["sh", "-c", "echo up; exec sleep 1000"]


def ranks(
    desk: Desk, argv: list[str], count: int = 2, exports: tuple[str, ...] = (), **fields: Any
) -> dispatcher.Request:
    """A request that leaves the desk's mark on every rank."""
    return dispatcher.request(
        f"localhost:{count}", argv, kind="command", exports=(desk.mark, *exports), **fields
    )


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_runs(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_types_and_the_names_are_the_same() -> None:
    tree = ast.parse(Path(dispatcher.__file__).read_text())
    typed = {
        str(alias.asname): node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {name: f"dispatcher.{home}" for name, home in dispatcher._HOMES.items()}
    assert all(getattr(dispatcher, name) is not None for name in typed)
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        dispatcher.rum  # type: ignore[attr-defined]  # noqa: B018


def test_every_field_of_a_request_can_be_said() -> None:
    names = {field.name for field in dataclasses.fields(dispatcher.Request)}
    for name in names - {"hosts", "program"}:
        wrong: dict[str, Any] = {name: object()}
        with pytest.raises(errors.WrongArgument, match=f"request: {name} takes "):
            dispatcher.request("n1", ["a.py"], **wrong)


def test_the_report_is_that_of_the_file(desk: Desk) -> None:
    notes: list[str] = []
    out = "h:1:2 [0] NCCL INFO Using network Socket"
    report = dispatcher.run(
        ranks(
            desk,
            ["sh", "-c", f"echo '{out}'; echo error >&2; kill -9 $$"],
            1,
            exports=("NCCL_NET=IB",),
        ),
        log_dir=desk.folder / "logs",
        on_note=notes.append,
    )
    assert (report.ok, report.exit_code) == (False, 128 + signal.SIGKILL)
    assert report.cause is not None
    assert (report.cause.host, report.cause.last_lines) == ("localhost", ("error",))
    (rank,) = report.ranks
    assert (rank.status, rank.stdout, rank.stderr) == (-signal.SIGKILL, len(out) + 1, 6)
    assert rank.began is not None
    assert rank.ended is not None
    assert 0 < rank.began <= rank.ended <= report.seconds
    assert report.log_dir is not None
    assert (report.log_dir / "rank-00000.err").read_bytes() == b"error\n"
    kept = json.loads((report.log_dir / "report.json").read_text())
    assert kept == json.loads(json.dumps(report.plain()))
    assert report.nccl["localhost"].net == "Socket"
    assert report.verdict[-2:] == (
        "note: NCCL: localhost fell back to Socket, though NCCL_NET=IB",
        "  hint: dispatch check --nccl -H localhost",
    )
    assert not notes


#: a line of JSON, much longer than any buffer on its way
LONG = "import json; print(json.dumps({'text': 'x' * %d}))"


def test_a_line_is_whole_whatever_its_length(desk: Desk) -> None:
    heard: list[dispatcher.Line] = []
    argv = [sys.executable, "-c", f"for n in range(3):\n {LONG % 2_000_000}"]
    assert dispatcher.run(ranks(desk, argv), on_line=heard.append).ok
    assert [len(json.loads(line.text)["text"]) for line in heard] == [2_000_000] * 6


class TestBadInput:
    @pytest.mark.parametrize(
        ("hosts", "argv", "fields", "what"),
        [
            ("n1:x", ["a"], {}, dispatcher.HostfileError),
            ("-", ["a"], {}, dispatcher.UsageError),
            (["n1", "n[1"], ["a"], {}, dispatcher.HostfileError),
            (Path("/no/such/file"), ["a"], {}, errors.FileUnusable),
            ("n1:2", [], {}, errors.MissingArgument),
            ("n1:2", "train.py --lr 1", {}, dispatcher.UsageError),
            ("n1:2", ["a"], {"np": 3}, errors.TooManyRanks),
            ("n1:2", ["a"], {"map_by": "moon"}, dispatcher.UsageError),
        ],
    )
    def test_is_a_typed_error(
        self, hosts: Any, argv: Any, fields: Any, what: type[dispatcher.UsageError]
    ) -> None:
        with pytest.raises(what) as caught:
            dispatcher.run(dispatcher.request(hosts, argv, **fields))
        assert (type(caught.value), caught.value.exit_code) == (what, 2)

    def test_ways(self) -> None:
        with pytest.raises(dispatcher.UsageError, match="exclude each other"):
            dispatcher.Ways(transport="ssh", rsh="kubectl exec")
        with pytest.raises(dispatcher.UsageError, match="user me is set"):
            dispatcher.exec(
                "me@n1", ["true"], ways=dispatcher.Ways(rsh="kubectl exec -i {host} --")
            )


class TestThreads:
    def test_any_thread_will_do_and_no_handler_is_taken(self, desk: Desk) -> None:
        reports: list[dispatcher.Report] = []
        before = signal.getsignal(signal.SIGINT)
        lines: list[str] = []

        def body() -> None:
            heard = lines.append
            reports.append(
                dispatcher.run(ranks(desk, ["echo", "hi"]), on_line=lambda line: heard(str(line)))
            )

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(60)
        assert [report.exit_code for report in reports] == [0]
        assert sorted(lines) == ["[0] hi", "[1] hi"]
        assert signal.getsignal(signal.SIGINT) is before


class TestLeaving:
    def test_an_error_in_a_callback_ends_the_job_and_is_raised(self, desk: Desk) -> None:
        def broken(line: dispatcher.Line) -> None:
            raise ZeroDivisionError(line.text)

        with pytest.raises(ZeroDivisionError, match="up"):
            dispatcher.run(ranks(desk, SLEEP), on_line=broken)
        assert not desk.left()

    def test_who_does_not_read_is_not_waited_for(self, desk: Desk) -> None:
        with dispatcher.start(ranks(desk, ["seq", "100000"]), lines=True) as running:
            report = running.wait()
        assert report.ok
        assert {rank.stdout for rank in report.ranks} == {588895}

    def test_stop(self, desk: Desk) -> None:
        with dispatcher.start(ranks(desk, SLEEP), lines=True) as running:
            assert next(iter(running))
            running.stop()
            report = running.wait()
        assert report.exit_code == 128 + signal.SIGINT
        assert not desk.left()

    @pytest.mark.parametrize("options", ["", "signals=True"])
    def test_ctrl_c(self, desk: Desk, options: str) -> None:
        """Without handlers of ours Python's own one interrupts the caller, after the job's end."""
        text = (
            "import dispatcher\n"
            f"request = dispatcher.request('localhost:2', {SLEEP!r}, kind='command',"
            f" exports=({desk.mark!r},))\n"
            "def show(line): print(line, flush=True)\n"
            "try:\n"
            f"    report = dispatcher.run(request, on_line=show, {options})\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
            "else:\n"
            "    print(report.exit_code)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", text], cwd=desk.folder, stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] up\n", "[1] up\n"]
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ("130\n" if options else "interrupted\n")
            assert not desk.left()


def test_exec_tells_what_became_of_each_host() -> None:
    script = "echo out; echo error >&2; exit 3"
    answers = dispatcher.exec("localhost", ["sh", "-c", script])
    (answer,) = answers.hosts
    assert (answer.host, answer.code, answer.text, answer.stderr) == (
        "localhost", 3, "out\n", b"error\n",
    )  # fmt: skip
    assert (answers.ok, answers.exit_code, answers.largest_code) == (False, 1, 3)
    assert answers.verdict[0] == "error: 1 of 1 host failed [hosts-failed]"


def test_files_keep_the_names_of_their_keys(desk: Desk) -> None:
    plan = describe_plan(dispatcher.plan_job(ranks(desk, ["true"])))
    assert {"beats_lost", "mpi_patience", "connect_window"} <= set(plan["limits"])
    assert "host_faults" in plan["restarts"]


CELL = """
import dispatcher
words = ["sh", "-c", "echo up; sleep 1.5; exit $RANK"]
job = dispatcher.request("localhost:2", words, kind="command", exports=({mark!r},))
report = {call}(job)
report
"""


@pytest.mark.nightly
@pytest.mark.parametrize("call", ["dispatcher.run", "await dispatcher.run_async"])
def test_a_notebook_shows_how_far_it_is_and_how_it_ended(desk: Desk, call: str) -> None:
    """In a real kernel, as a front end hears it."""
    if importlib.util.find_spec("ipykernel") is None:
        pytest.skip("needs ipykernel: scripts/frameworks")
    start = importlib.import_module("jupyter_client.manager").start_new_kernel
    kernel, client = start(cwd=str(desk.folder))
    shown: dict[str, list[str]] = {}

    def hear(message: dict[str, Any]) -> None:
        data = message["content"].get("data", {})
        shown.setdefault(message["msg_type"], []).append(data.get("text/html", ""))

    try:
        cell = CELL.format(mark=desk.mark, call=call)
        reply = client.execute_interactive(cell, output_hook=hear, timeout=60)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply
    (first,), updates, (last,) = (
        shown[kind] for kind in ("display_data", "update_display_data", "execute_result")
    )
    assert "1 host" in first
    assert any("2 running" in text for text in updates), updates
    for text in (updates[-1], last):
        assert "rank 1 on localhost" in text
        assert "exit code 1" in text
    assert "stream" not in shown, shown
