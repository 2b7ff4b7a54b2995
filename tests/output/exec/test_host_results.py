"""The results of hosts: what is kept of their output, as JSON, and in lines at the end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import cases

from dispatcher.core.events import exec_events
from dispatcher.core.events.exec_events import Exited, Failed, Interrupted, NotCopied, NotStarted
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.exec.host_results import HostResult, describe, host_record, outcome_text

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "exec-output.md"
REFUSED = Failure(Kind.REFUSED, "no\x1b[2J", "is it up?")


def results(outcomes: list[exec_events.Outcome], names: list[str]) -> list[HostResult]:
    return [HostResult(name, 0, one) for name, one in zip(names, outcomes, strict=True)]


@cases(
    ("outcome", "text"),
    [
        (Exited(3), "exit code 3"),
        (exec_events.Killed("KILL"), "killed by SIGKILL"),
        (exec_events.Killed("\x1b"), "killed by SIG\\x1b"),
        (Failed(REFUSED), "connection refused: no\\x1b[2J"),
        (exec_events.TimedOut("command", 2.5), "timeout: longer than the 2.5 s of the command"),
        (exec_events.TimedOut("total", 60.0), "timeout: longer than the 60 s for all hosts"),
        (exec_events.TimedOut("total", 60.0, ended=False),
         "timeout: longer than the 60 s for all hosts; it was not seen to end"),
        (Interrupted(2), "interrupted by SIGINT"),
        (Interrupted(15, ended=False), "interrupted by SIGTERM; it was not seen to end"),
        (NotCopied("no room\x07"), "no room\\x07"),
        (NotStarted("stopped"), "not started: stopped"),
    ],
)  # fmt: skip
def test_outcomes_in_words(outcome: exec_events.Outcome, text: str) -> None:
    assert outcome_text(outcome) == text


def test_who_failed_and_what_to_do() -> None:
    outcomes: list[exec_events.Outcome] = [
        Exited(0), Exited(127), Failed(REFUSED), NotCopied("x" * 400), Exited(127),
    ]  # fmt: skip
    names = ["n1", "n2", "n3", "n4", "n5"]
    asked: list[str] = []

    def advise(trouble: str) -> str | None:
        asked.append(trouble)
        return {"exit code 127": "install it"}.get(trouble)

    assert describe(results(outcomes, names), advise) == [
        "error: 4 of 5 hosts failed [hosts-failed]",
        "  n[2,5]  exit code 127",
        "  n3      connection refused: no\\x1b[2J",
        "  n4      " + "x" * 300,
        "  hint: install it",
        "  hint: is it up?",
    ]
    assert asked == ["exit code 127", "connection refused", ""]
    assert describe(results([Exited(0)], ["n1"])) == []
    assert describe(results([Exited(1)], ["n1"]))[0] == "error: 1 of 1 host failed [hosts-failed]"


@cases(
    ("outcomes", "head", "hint"),
    [
        ([Exited(0), Exited(1), NotStarted("x")],
         "1 of 3 hosts failed, 1 not started", "-w 'n[2-3]'"),
        ([NotStarted("x")], "1 of 1 host not started", "-w n1"),
        ([Exited(1), *[NotStarted("x")] * 200], "1 of 201 hosts failed, 200 not started", None),
    ],
)  # fmt: skip
def test_who_was_not_started_is_counted_apart(
    outcomes: list[exec_events.Outcome], head: str, hint: str | None
) -> None:
    """And with what the rest goes on: the hosts, where they are few words, or a file of them."""
    names = [f"n{n}{'x' * (n % 2) * (hint is None)}" for n in range(1, len(outcomes) + 1)]
    ended = results(outcomes, names)
    first, *lines = describe(ended)
    assert first == f"error: {head} [hosts-failed]"
    found = [line for line in lines if "hint: " in line]
    assert found == ([f"  hint: {hint}  # goes on with all of these"] if hint else [])
    if hint is not None:
        again = [f"me@{name}" for name in names]
        typed = f"-w {','.join(again[-2:])}"
        assert describe(ended, again=again)[-1] == lines[-1].replace(hint, typed)
        assert describe(ended, again=[*again[1:], None])[1:] == lines[:-1]
    told = describe(ended, {"not started": "by a file"}.get)
    assert told[-1] == "  hint: by a file"


def test_names_of_hosts_take_no_more_than_so_many_columns() -> None:
    names = [f"{letter}{'x' * 30}" for letter in "abc"]
    lines = describe(results([Exited(1), Exited(1), Exited(2)], names))
    assert lines[1].index("exit") > 60
    assert lines[2].index("exit") == 2 + 40 + 2


def test_json_keeps_kinds_apart_and_bytes_whole() -> None:
    first = host_record(HostResult("n1", 0, Exited(3), 2.5, b"text\n", stdout_dropped=7))
    assert (first["outcome"], first["code"], first["stdout"], first["seconds"]) == (
        "exited", 3, "text\n", 2.5,
    )  # fmt: skip
    assert first["stdout_dropped"] == 7
    assert "stderr_dropped" not in first
    second = host_record(HostResult("n2", 1, Failed(Failure(Kind.AUTH, "no")), 2.5, b"\xff\0"))
    assert (second["outcome"], second["kind"]) == ("failed", "authentication failed")
    assert second["stdout_base64"] == "/wA="
    assert "stdout" not in second
    json.dumps([first, second])


@cases(
    ("outcome", "told"),
    [
        (exec_events.Exited(0), {"ok": True, "outcome": "exited", "code": 0}),
        (exec_events.Exited(3), {"ok": False, "outcome": "exited", "code": 3}),
        (exec_events.Killed("KILL"), {"outcome": "killed", "signal": "KILL"}),
        (exec_events.Failed(Failure(Kind.DNS, "x")),
         {"outcome": "failed", "kind": "name not found", "message_code": "name-not-found"}),
        (exec_events.TimedOut("total", 1.0), {"outcome": "timeout"}),
        (Interrupted(2), {"outcome": "interrupted"}),
        (exec_events.NotStarted("x"), {"outcome": "not started"}),
        (exec_events.NotCopied("x"), {"outcome": "not copied"}),
    ],
)  # fmt: skip
def test_one_host_in_json(outcome: exec_events.Outcome, told: dict[str, object]) -> None:
    plain = {"schema": "exec/1", "ok": False, "code": None, "signal": None, "kind": None,
             "message_code": None, "seconds": 0.0, "host": "n1", "index": 4,
             "words": outcome_text(outcome), "stdout": "", "stderr": ""}  # fmt: skip
    assert host_record(HostResult("n1", 4, outcome)) == {**plain, **told}


def test_a_letter_that_was_cut_off_does_not_make_text_bytes() -> None:
    told = host_record(HostResult("n1", 0, Exited(0), 0.0, "aä".encode()[:2], b"ab\xc3", 4))
    assert (told["stdout"], told["stdout_dropped"], told["stderr_base64"]) == ("a", 5, "YWLD")


@cases(
    ("line", "shown"),
    [
        (r"""jq -r 'select(.ok | not) | "\(.host): \(.words)"'""", b"n3: exit code 3\n"),
        (r"""jq -r 'select(.ok) | "\(.host) \(.seconds)"'""", b"n1 0\nn2 0\nn4 0\n"),
        (r"""jq -r '.host + ": " + (.stdout // "(no text)" | split("\n")[0])'""",
         b"n1: \\xff\nn2: (no text)\nn3: \xc3\xa4\nn4: \\xff\n"),
        ("jq -sc 'group_by(.stdout)[] | [map(.host), .[0].stdout]'",
         b'[["n2"],null]\n[["n1","n4"],"\\\\xff\\n"]\n[["n3"],"\xc3\xa4\\n\\u0000"]\n'),
        ("jq -r '.stdout_base64 // (.stdout | @base64)'", b"\\xff\n\xff\n\xc3\xa4\n\0\\xff\n"),
    ],
)  # fmt: skip
def test_what_the_guide_says_of_jq(line: str, shown: bytes) -> None:
    """Byte 0xff and the four letters \\xff are never taken for one another."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    written = re.findall(r"^(jq .*?') answers(.*?)(?: +#.*)?$", GUIDE.read_text(), re.M)
    assert len(written) == 5
    (rest,) = [rest for command, rest in written if command == line]
    said = (b"\\xff\n", b"\xff\n", b"\xc3\xa4\n\0", b"\\xff\n")
    told = [
        host_record(HostResult(f"n{node + 1}", node, Exited(3 * (node == 2)), 0.0, text))
        for node, text in enumerate(said)
    ]
    done = subprocess.run(
        ["sh", "-c", line + rest], input="".join(json.dumps(one) + "\n" for one in told).encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == shown
