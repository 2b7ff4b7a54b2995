"""``logs``: what ranks have written, from the files; with ``-f`` as it comes."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path

import pytest

from dispatcher import cli
from dispatcher.cli.jobs import attach as command
from dispatcher.jobs import registry
from dispatcher.output.files.rank_logs import time_stamp

from ..conftest import OnRecord, full_disk


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "rank-00000.out").write_bytes(b"a\nb")
    (folder / "rank-00001.out").write_bytes(b"c\n")
    (folder / "rank-00001.err").write_bytes(b"d\n")
    (folder / "rank-00002.out").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        ([], "[0] a\n[1] c\n[0] b\n", "[1] d\n"),
        (["latest"], "[0] a\n[1] c\n[0] b\n", "[1] d\n"),
        (["--rank", "0"], "a\nb", ""),
        (["--rank", "1"], "c\n", "d\n"),
        (["-f"], "[0] a\n[1] c\n[0] b\n", "[1] d\n"),
        (["--grep", "^[ad]$"], "[0] a\n", "[1] d\n"),
        (["--grep", "b", "--rank", "0"], "b\n", ""),
    ],
)
def test_what_was_written(
    on_record: OnRecord, files: Path, capfd: pytest.CaptureFixture[str],
    words: list[str], out: str, err: str,
) -> None:  # fmt: skip
    registry.conclude(on_record(logs=files), 3, [])
    assert cli.main(["logs", *words]) == 0
    assert capfd.readouterr() == (out, err)


@pytest.mark.parametrize(
    ("since", "lines"),
    [
        ("2h", ["old", "new"]),
        ("600", ["new"]),
        ("10m", ["new"]),
        ("%H:%M", ["new"]),
        ("%H:%M:%S", ["new"]),
        ("%Y-%m-%d %H:%M", ["new"]),
        ("%Y-%m-%dT%H:%M:%S+00:00", ["new"]),
        ("%Y-%m-%dT%H:%MZ", ["new"]),
        ("0s", []),
        ("2001-01-01", ["old", "new"]),
    ],
)
def test_lines_since_a_time(
    on_record: OnRecord, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    since: str, lines: list[str],
) -> None:  # fmt: skip
    """A text with % is the time ten minutes ago, between the two lines."""
    now = time.time()
    written = [(now - 3600, "old"), (now - 60, "new")]
    text = "".join(
        f"{time_stamp(at)} 0 out F {line}\n{time_stamp(at)} 1 out F no\n" for at, line in written
    )
    (tmp_path / "merged.log").write_text(text)
    registry.conclude(on_record(logs=tmp_path), 0, [])
    at = time.gmtime if since.endswith(("Z", "+00:00")) else time.localtime
    assert cli.main(["logs", "--rank", "0", "--since", time.strftime(since, at(now - 600))]) == 0
    assert capfd.readouterr() == ("".join(f"{line}\n" for line in lines), "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "1h"], "--since: job 20260131-142501-k3f9x2: its files do not have the times "
         "of lines [conflicting-options]\n  hint: a job with --log-merge keeps them\n"),
        (["--grep", "("], "--grep: missing ), unterminated subpattern at position 0: '(' "
         "[bad-value]\n"),
        *[
            (["--since", text], f"--since: not a time: '{text}' [bad-value]\n"
             "  hint: --since 10m, --since 14:30, --since 2026-01-31T14:30\n")
            for text in ("", "x", "25:00", "2026-13-01", "1e9", "\u0663m", "9" * 400, "-1h")
        ],
    ],
)  # fmt: skip
def test_lines_that_cannot_be_chosen(
    on_record: OnRecord, files: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    registry.conclude(on_record(logs=files), 0, [])
    assert cli.main(["logs", *words]) == 2
    assert capfd.readouterr() == ("", f"error: {said}")


def test_a_full_disk(on_record: OnRecord, files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    registry.conclude(on_record(logs=files), 3, [])
    with full_disk():
        assert cli.main(["logs"]) == 1
    assert capfd.readouterr().err == "error: standard output: no space left on device\n"


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ([], "[1] a\n[1] b\n[1] c\n[1] e\n[1] f\n"),
        (["--rank", "1"], "a\nb\nc\ne\nf\n"),
        (["--rank", "0"], "whole\nlast"),
    ],
)
def test_a_line_is_ended_where_the_rank_was_started_again(
    on_record: OnRecord, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    words: list[str], out: str,
) -> None:  # fmt: skip
    written = {"": "a\nb", "restart-1/": "c", "restart-2/": "e\n", "restart-10/": "f\n"}
    for folder, text in written.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "rank-00001.out").write_text(text)
    if "0" in words:
        (tmp_path / "rank-00000.out").write_text("whole\n")
        (tmp_path / "restart-2/rank-00000.out").write_text("last")
    registry.conclude(on_record(logs=tmp_path), 0, [])
    assert cli.main(["logs", *words]) == 0
    assert capfd.readouterr().out == out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--rank", "2"], 125, "error: rank 2: has written nothing [no-log-files]\n"),
        (
            ["--rank", "7"],
            2,
            "error: job 20260131-142501-k3f9x2: it has no rank 7 [no-such-job]\n"
            "  hint: --rank 0 to 2\n",
        ),
        (["--rank", "1048576"], 125, "error: rank 1048576: has written nothing [no-log-files]\n"),
        (["--rank", "x"], 2, "error: --rank: not a rank: 'x' [bad-value]\n  hint: --rank 0\n"),
        (["--rank", "-1"], 2, "error: --rank: not a rank: '-1' [bad-value]\n  hint: --rank 0\n"),
        (
            ["--rank", "12345678"],
            2,
            "error: --rank: not a rank: '12345678' [bad-value]\n  hint: --rank 0\n",
        ),
        (
            ["--rank", "\u0663"],
            2,
            "error: --rank: not a rank: '\u0663' [bad-value]\n  hint: --rank 0\n",
        ),
    ],
)
def test_no_such_rank(
    on_record: OnRecord, files: Path, capfd: pytest.CaptureFixture[str],
    words: list[str], code: int, said: str,
) -> None:  # fmt: skip
    on_record(logs=files, ranks=3)
    assert cli.main(["logs", *words]) == code
    assert capfd.readouterr() == ("", said)
    assert command._rank("1234567") == 1234567


@pytest.mark.parametrize("node", [socket.gethostname(), "another.example"])
def test_it_goes_on_until_the_job_ends(
    on_record: OnRecord, files: Path, monkeypatch: pytest.MonkeyPatch, node: str,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A look that finds something new is followed by the next one at once."""
    folder = on_record(logs=files)
    record = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**record, "node": node}))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            with open(files / "rank-00000.out", "ab") as file:
                file.write(b" and more\n")
        else:
            registry.conclude(folder, 0, [])

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["logs", "-f", "--rank", "0"]) == 0
    assert capfd.readouterr().out == "a\nb and more\n"
    assert waits == [command.LOOK] * 2


@pytest.mark.parametrize("merged", [False, True])
def test_files_that_are_removed_meanwhile(
    on_record: OnRecord, files: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], merged: bool,
) -> None:  # fmt: skip
    folder = on_record(logs=files)
    if merged:
        (files / "merged.log").write_bytes(b"2026-01-31T14:25:01.123456Z 0 out F a\n")
    monkeypatch.setattr(time, "sleep", lambda seconds: shutil.rmtree(files))
    assert cli.main(["logs", "-f"]) == 125
    out, err = capfd.readouterr()
    assert out.startswith("[0] a\n")
    assert f"error: job {folder.name}: its files are gone: {files}" in err


def test_without_f_a_job_that_runs_is_not_waited_for(
    on_record: OnRecord, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    on_record(logs=files)
    assert cli.main(["logs", "--rank", "1"]) == 0
    assert capfd.readouterr().out == "c\n"


def test_ctrl_c_shows_what_is_there(
    on_record: OnRecord, files: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    on_record(logs=files)
    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["logs", "-f", "--rank", "0"]) == 130
    assert capfd.readouterr().out == "a\nb"
