"""A rank as a process, started by this one: looked up, spawned, refused, read from.

What real agents give their ranks: ``test_real_ranks``.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cases import cases
from open_files import open_files

from dispatcher.remote.host import process
from remote.driver import Os


class TestLookUp:
    @cases(
        ("name", "path", "places"),
        [
            (b"tool", b"/a:/b", [b"/a/tool", b"/b/tool"]),
            (b"tool", b"/a::/b/", [b"/a/tool", b"./tool", b"/b/tool"]),
            (b"tool", b"", [b"./tool"]),
            (b"tool", None, [b"/usr/local/bin/tool", b"/usr/bin/tool", b"/bin/tool"]),
            (b"./tool", b"/a:/b", [b"./tool"]),
            (b"/x/tool", None, [b"/x/tool"]),
        ],
    )
    def test_where_a_program_may_lie(
        self, name: bytes, path: bytes | None, places: list[bytes]
    ) -> None:
        assert process.program_paths(name, path) == places

    def test_the_first_that_can_be_run_is_found(self, tmp_path: Path) -> None:
        for folder, mode in (("a", 0o644), ("b", 0o755), ("c", 0o755)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "tool").write_text("")
            (tmp_path / folder / "tool").chmod(mode)
        here = os.fsencode(tmp_path)
        path = b":".join(here + b"/" + folder for folder in (b"none", b"a", b"b", b"c"))
        assert process.locate([b"tool", b"-x"], path) == [here + b"/b/tool", b"-x"]
        assert process.locate([b"tool", b"-x"], here + b"/a") == [b"tool", b"-x"]
        assert process.locate([b"ls"]) == process.locate([b"ls"], b"") == [b"ls"]

    @cases(
        ("value", "wanted"), [(b"\0HOME\0/x:\0NO\0", b"/h/x:"), (b"$HOME", b"$HOME"), (b"", b"")]
    )
    def test_what_a_host_fills_in(
        self, monkeypatch: pytest.MonkeyPatch, value: bytes, wanted: bytes
    ) -> None:
        monkeypatch.setenv("HOME", "/h")
        monkeypatch.delenv("NO", raising=False)
        assert process.expand(value) == wanted

    @cases(
        ("scrub", "left"),
        [
            ([], "ABC ABX AB X"),
            ([b"AB"], "ABC ABX X"),
            ([b"AB*"], "X"),
            ([b"ABC*", b"X"], "ABX AB"),
            ([b"B*", b"AB?", b"x"], "ABC ABX AB X"),
            ([b"*"], ""),
        ],
    )
    def test_what_is_scrubbed(self, scrub: list[bytes], left: str) -> None:
        environ = [(name, b"=" + name) for name in (b"ABC", b"ABX", b"AB", b"X")]
        kept = process.scrubbed(environ, scrub)
        assert kept == {name.encode(): b"=" + name.encode() for name in left.split()}

    @cases(
        ("refusals", "number", "tried"),
        [
            ((errno.ENOENT, errno.ENOENT), errno.ENOENT, 2),
            ((errno.ENOTDIR, errno.ENOENT), errno.ENOENT, 2),
            ((errno.EACCES, errno.ENOENT), errno.EACCES, 2),
            ((errno.ENOENT, errno.EACCES), errno.EACCES, 2),
            ((errno.E2BIG, errno.ENOENT), errno.E2BIG, 1),
            ((errno.ENOENT, errno.ENOEXEC), errno.ENOEXEC, 2),
        ],
    )
    def test_which_refusal_counts(
        self,
        monkeypatch: pytest.MonkeyPatch,
        refusals: tuple[int, int],
        number: int,
        tried: int,
    ) -> None:
        asked: list[Any] = []

        def refuse(*what: Any) -> None:
            asked.append(what)
            raise OSError(refusals[len(asked) - 1], "refused")

        monkeypatch.setattr(process, "os", Os(execve=refuse))
        env = {b"PATH": b"/a:/b"}
        with pytest.raises(OSError, match=r".") as raised:
            process.execute([b"tool", b"x"], env)
        assert raised.value.errno == number
        assert (
            asked == [(place, [b"tool", b"x"], env) for place in (b"/a/tool", b"/b/tool")][:tried]
        )


def read_all(fd: int) -> bytes:
    os.set_blocking(fd, True)
    with open(fd, "rb") as file:
        return file.read()


class TestSpawn:
    """A rank started by this process."""

    ENV: ClassVar[dict[bytes, bytes]] = {b"PATH": b"/usr/bin:/bin", b"ONLY": b"this"}

    def test_it_runs_with_what_it_was_given_and_nothing_else(self, tmp_path: Path) -> None:
        inner, outer = os.pipe()
        given, giving = os.pipe()
        os.write(giving, b"input\n")
        os.close(giving)
        text = (
            b"cat; pwd; env | grep -v ^COVERAGE_ | grep -c .; echo $ONLY;"
            b"echo kept >/proc/self/fd/%d; echo bad >&2" % outer
        )
        before = open_files()
        rank = process.spawn(
            7, [b"sh", b"-c", text], self.ENV, os.fsencode(tmp_path), keep=outer, stdin=given
        )
        assert (rank.rank, rank.status, len(open_files() - before)) == (7, None, 2)
        os.close(outer)
        os.close(given)
        assert rank.pipes.keys() == rank.counts.keys() == {1, 2}
        assert set(rank.counts.values()) == {0}
        assert not any(map(os.get_blocking, rank.pipes.values()))
        out = read_all(rank.pipes[1]).decode().splitlines()
        assert out == ["input", str(tmp_path), "3", "this"]  # and PWD, which sh sets
        assert read_all(rank.pipes[2]) == b"bad\n"
        assert read_all(inner) == b"kept\n"
        assert os.waitpid(rank.pid, 0)[1] == 0

    @cases(
        ("argv", "cwd", "step", "number", "what"),
        [
            ([b"no-such-program"], b"/", "exec", errno.ENOENT, "no-such-program"),
            ([b"true"], b"/no/such", "chdir", errno.ENOENT, "/no/such"),
            ([b"a\0b"], b"/", "exec", errno.EINVAL, "a\0b"),
            ([b"\xff"], b"/", "exec", errno.ENOENT, "\udcff"),
        ],
    )
    def test_one_that_does_not_start_leaves_nothing(
        self, argv: list[bytes], cwd: bytes, step: str, number: int, what: str
    ) -> None:
        before = open_files()
        with pytest.raises(process.SpawnError) as raised:
            process.spawn(0, argv, self.ENV, cwd)
        error = raised.value
        assert (error.step, error.errno, error.what) == (step, number, what)
        assert str(error) == f"{step}: {what}: {os.strerror(number)}"
        assert not open_files() - before

    @cases("broken", ["fork", "pipe"])
    @cases("number", [errno.EAGAIN, None])
    def test_a_host_that_is_full(
        self, monkeypatch: pytest.MonkeyPatch, broken: str, number: int | None
    ) -> None:
        usual, made = os.pipe, [0]

        def refuse() -> Any:
            made[0] += 1
            if broken == "pipe" and made[0] < 3:
                return usual()
            raise OSError(number, "full")

        before = open_files()
        monkeypatch.setattr(process, "os", Os(**{broken: refuse}))
        with pytest.raises(process.SpawnError) as raised:
            process.spawn(3, [b"true"], self.ENV, b"/")
        found = raised.value
        assert (found.step, found.errno, found.what) == ("fork", number or errno.EIO, "rank 3")
        assert not open_files() - before


BECOME = """
import os, signal, sys
from dispatcher.remote.host import child
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for fd in (5, 6):
    os.dup2(2, fd)
parent = os.getpid() + int(sys.argv[2])
def work():
    known = [line for line in open("/proc/self/status") if line.startswith("SigIgn")]
    print(sorted(os.listdir("/proc/self/fd")), int(known[0].split()[1], 16), flush=True)
    exec(sys.argv[1])
pid = os.fork()
if pid == 0:
    child.become(parent, {6}, work, "worker")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@cases(
    ("text", "other", "said", "errors"),
    [
        ("pass", 0, "['0', '1', '2', '3', '6'] 0\n1\n", ""),
        ("os._exit(7)", 0, "['0', '1', '2', '3', '6'] 0\n7\n", ""),
        ("1 / 0", 0, "['0', '1', '2', '3', '6'] 0\n1\n",
         "worker: ZeroDivisionError: division by zero\n"),
        ("pass", 1, "1\n", ""),  # whoever started it is dead already
    ],
)  # fmt: skip
def test_a_child_that_does_one_thing(text: str, other: int, said: str, errors: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BECOME, text, str(other)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[3])}, timeout=30,
        check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (said, errors)
