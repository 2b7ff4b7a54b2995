"""What all commands have alike: errors and their codes, JSON for programs, dry runs."""

from __future__ import annotations

from pathlib import Path

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.api import transports
from dispatcher.cli import COMMANDS, object_at, print_error, print_lines, say
from dispatcher.cli.options.declaration import names_of
from dispatcher.cli.options.host_options import LoginOptions
from dispatcher.core.events import codec
from dispatcher.core.events.monitor_events import RunBegan
from dispatcher.core.events.run_events import Entry, NodeConnecting, RunFinished
from dispatcher.jobs.job_socket import JobConnection
from dispatcher.model.errors import DispatchError, UsageError

from .conftest import OnRecord

RUN_ID = "20260131-142501-k3f9x2"
#: the command -> why it has no --json
NO_JSON = {
    "attach": "the ranks' own output",
    "completion": "a script",
    "debug": "a prompt",
    "fold": "a filter of lines",
    "import": "a command line",
    "logs": "the ranks' own output",
    "profile": "the file is JSON",
    "restart": "a word or two; report.json and the journal have it",
    "stop": "the verdict, which report.json has",
}
HERE = ["-w", "localhost"]


@cases(
    ("error", "said", "code"),
    [
        (UsageError("who: what"), "error: who: what [bad-value]\n", 2),
        (
            UsageError("who: what", hint="do this"),
            "error: who: what [bad-value]\n  hint: do this\n",
            2,
        ),
        (DispatchError("lost"), "error: lost [dispatch-failed]\n", 125),
        (  # of a host, or of a file in the current folder
            UsageError("n1: \x1b]0;x\a\n  \u202eé", hint="rm '\x9b'"),
            "error: n1: \\x1b]0;x\\x07 [bad-value]\n  \\u202eé\n  hint: rm '\\x9b'\n",
            2,
        ),
    ],
)
def test_an_error_in_words_and_its_code(
    error: DispatchError, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(error) == code
    say("more")
    out, err = capsys.readouterr()
    assert (out, err) == ("", said + "more\n")


def test_what_is_said_and_printed_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    say("note: \x1b[2J\x1b[31mred\x1b[0m \ud83d")
    print_lines(["a\tb", "\x1b]52;c;eA==\a", "\udcff"])
    out, err = capsys.readouterr()
    assert err == "note: \\x1b[2J\x1b[31mred\x1b[0m \\ud83d\x1b[0m\n"
    assert out == "a\tb\n\\x1b]52;c;eA==\\x07\n\\xff\n"


def test_who_lists_has_json_and_who_touches_hosts_a_dry_run() -> None:
    kinds = {name: object_at(where) for name, (where, _) in COMMANDS.items()}
    assert {name for name, kind in kinds.items() if "as_json" not in names_of(kind)} == {*NO_JSON}
    dry = {name for name, kind in kinds.items() if "dry_run" in names_of(kind)}
    touching = {name for name, kind in kinds.items() if issubclass(kind, LoginOptions)}
    assert dry == touching | {"debug", "kill", "profile", "restart", "stop"}


def test_what_is_printed_for_programs(
    nothing_around: Path, on_record: OnRecord, capfd: pytest.CaptureFixture[str]
) -> None:
    (nothing_around / "file").write_text("words\n")
    (nothing_around / "run").mkdir()
    happened = (RunBegan("x", 0.0, ("n1",)), NodeConnecting(0), RunFinished(0, ""))
    lines = [codec.encode(Entry(at, float(at), event)) for at, event in enumerate(happened, 1)]
    (nothing_around / "run" / "dispatch.jsonl").write_bytes(b"".join(lines))
    (nothing_around / "run" / "plan.json").write_text("{}")
    on_record(RUN_ID)
    seen = {}
    for words, code, name in (
        (["--dry-run", "-w", "n[1-3]:2", "--fanout-tree=2", "--no-python", "true"], 0, "plan/1"),
        (["exec", *HERE, "--shell", "echo x; printf '\\377' >&2"], 0, "exec/1"),
        (["exec", *HERE, "--", "false"], 1, "exec/1"),
        (["exec", "-w", "n1", "--dry-run", "--", "true"], 0, "dry-run/1"),
        (["put", *HERE, "file", str(nothing_around / "copy")], 0, "copy/1"),
        (["put", *HERE, "file", str(nothing_around / "file" / "below")], 1, "copy/1"),
        (["get", *HERE, str(nothing_around / "file"), "got"], 0, "copy/1"),
        (["connect", "--list"], 0, "connections/1"),
        (["check", *HERE], None, "check/1"),
        (["check", "--nccl", *HERE], None, "check-nccl/1"),
        (["sweep", *HERE], 0, "swept/1"),
        (["jobs"], 0, "job/1"),
        (["hosts", "-w", "me@n[1-2]:22"], 0, "host/1"),
        (["config", "exec", "-a"], 0, "setting/1"),
        (["explain"], 0, "message/1"),
        (["explain", "job-hung"], 0, "message/1"),
        (["report", "./run"], 0, "phase/1"),
    ):  # fmt: skip
        command, *rest = words
        found = cli.main([command, "--json", *rest])
        out, err = capfd.readouterr()
        assert code in (None, found), (words, found, err)
        told = promises.told(out)
        some = told[0] if isinstance(told, list) else told
        assert some["schema"] == name, words
        seen[name] = told
    values = {one["option"]: one["value"] for one in seen["setting/1"]}
    assert (values["--hosts"], values["--serial"], values["--transport"]) == ([], None, "auto")
    assert (seen["copy/1"]["files"], seen["copy/1"]["bytes"]) == (1, 6)
    assert [one["name"] for one in seen["phase/1"]] == ["connect"]


@pytest.fixture
def nobody_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a host would be reached, or the launcher of a job."""

    def called(*arguments: object, **more: object) -> None:
        raise AssertionError("somebody would be called")

    monkeypatch.setattr(transports.TransportPool, "__init__", called)
    monkeypatch.setattr(JobConnection, "__init__", called)


def test_a_dry_run_contacts_nobody(
    nobody_is_called: None, nothing_around: Path, on_record: OnRecord,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (nothing_around / "file").write_text("words\n")
    (nothing_around / "x.o").write_text("object\n")
    on_record(RUN_ID)
    where = ["-w", "n[1-2]"]
    for words, does in (
        (["exec", *where, "--sudo", "--", "echo", "a b"], "run echo 'a b' as root"),
        (["exec", *where, "--shell", "a | b"], "run /bin/sh -c 'a | b'"),
        (["shell", *where], "run what you type"),
        (["connect", *where], "connect, and stay connected until 600 idle seconds have passed"),
        (["put", *where, "file", "/there/"], "copy file to /there/ (6 B)"),
        (["put", *where, "--sudo=app", "--owner", "app:", "--mode", "640", "--ignore", "*.o",
          "file", "x.o", "/there/"],
         "copy file x.o to /there/ (6 B, less 1 that --ignore names) as app, owner app:, mode 640"),
        (["get", *where, "--sudo", "/f", "in/{host}"], None),
        (["get", *where, "/there/{host}/file", "here/{host}"], None),
        (["check", *where], None),
        (["check", *where, "--full"], None),
        (["check", *where, "--pairs"],
         "measure the network by tcp with one partner after the other"),
        (["check", *where, "--nccl"],
         "read network interfaces, InfiniBand, GPUs and variables of NCCL"),
        (["sweep", *where], "look for leftovers of any run of yours"),
        (["sweep", *where, "--kill", RUN_ID],
         f"look for leftovers of {RUN_ID}, then kill and remove them"),
        (["stop", "latest"], f"end the ranks of {RUN_ID}"),
        (["stop", "--now"], f"kill the ranks of {RUN_ID}"),
        (["kill", "--all"], f"kill all processes of {RUN_ID}"),
    ):  # fmt: skip
        command, *rest = words
        assert cli.main([command, "--dry-run", *rest]) == 0
        out, err = capsys.readouterr()
        assert err == "note: a dry run: no host was contacted\n"
        if does is not None:
            assert out == f"n[1-2] (2): {does}\n"
        if command in ("shell", "stop"):
            continue
        assert cli.main([command, "--dry-run", "--json", *rest]) == 0
        told = promises.told(capsys.readouterr().out)
        assert (told["schema"], told["command"]) == ("dry-run/1", command)
        assert [one["host"] for one in told["hosts"]] == ["n1", "n2"]
    assert not (nothing_around / "here").exists()


def test_a_dry_run_that_was_forgotten_contacts_nobody_either() -> None:
    from dispatcher.cli.options.connect_options import LoginTransports

    with pytest.raises(AssertionError, match="a dry run"):
        LoginTransports(LoginOptions(dry_run=True))


def test_a_dry_run_shows_who_is_reached_through_whom(
    nobody_is_called: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["exec", "--dry-run", "-w", "n[1-6]", "--fanout-tree=2", "true"]
    assert cli.main(words) == 0
    assert "n1 opens n[2-3]" in capsys.readouterr().out
    assert cli.main([*words[:2], "--json", *words[2:]]) == 0
    assert promises.told(capsys.readouterr().out)["parents"] == {
        "n2": "n1",
        "n3": "n1",
        "n5": "n4",
        "n6": "n4",
    }


def test_where_a_dry_run_means_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("connect --list", "connect --close"):
        assert cli.main([*words.split(), "--dry-run"]) == 2
        assert "touch" in capsys.readouterr().err
