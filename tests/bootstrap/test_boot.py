"""Getting our code to run on a host: any login shell, any Python, none, and who says so.

The command lines of ``payload``; what they are sent: ``test_payload``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from cases import cases
from remote.driver import Agent, interpreters, new_enough

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.bootstrap.payload import (
    boot_failure,
    command,
    payload,
)
from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Kind

SHELLS = ("sh", "bash", "dash", "tcsh", "csh", "fish", "zsh", "ksh", "mksh", "busybox")


@pytest.fixture
def newest() -> str:
    return interpreters()[new_enough()[-1]]


@pytest.fixture
def too_old() -> str:
    for version, path in sorted(interpreters().items()):
        if version < bootstrap.OLDEST_PYTHON:
            return path
    pytest.skip("no Python older than 3.8 on this machine")


def shim(folder: Path, name: str, target: str) -> None:
    """A program ``name`` in ``folder`` that runs ``target``."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f'#!/bin/sh\nexec {target} "$@"\n')
    (folder / name).chmod(0o755)


class TestCommand:
    @cases("name", ["py thon", "a'b", "$(id)", "-c", "", "a;b", "p!", "~/p", "ü"])
    def test_a_name_that_needs_quotes_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="--agent-python"):
            command(first=[name])
        assert command(last=[name]) == command()

    def test_the_user_s_choice_comes_first_and_each_name_once(self) -> None:
        words = command(first=["python3.9"], last=["python3", "mine"]).rpartition("'")[2].split()
        assert words[:3] == ["sh", "python3.9", "python3"]
        assert words[-1] == "mine"
        assert len(words) == len(set(words))

    @pytest.mark.parametrize("shell", SHELLS)
    def test_means_the_same_to_every_login_shell(self, shell: str, newest: str) -> None:
        path = shutil.which(shell)
        if path is None:
            pytest.skip(f"no {shell} on this machine")
        stage = [path, "sh", "-c"] if shell == "busybox" else [path, "-c"]
        agent = Agent(newest, stage=stage)
        try:
            agent.prepare()
            agent.start(["echo", "it's here"])
            assert agent.text() == b"it's here\n"
            agent.finish()
            assert agent.errors == b""
        finally:
            agent.close()

    @cases(
        ("run_id", "tag"),
        [
            ("20260131-1-a", "export DISPATCH_RUN_ID=20260131-1-a; "),
            ("a b", ""),
            ("", ""),
            (None, ""),
        ],
    )
    def test_the_run_is_named_in_the_agent_s_environment(
        self, run_id: str | None, tag: str
    ) -> None:
        assert command(run_id=run_id) == command().replace("-c '", f"-c '{tag}", 1)

    def test_who_is_never_sent_the_source_does_not_wait_for_ever(self) -> None:
        limit = f"alarm({bootstrap.SOURCE_LIMIT})"
        line = command(first=[sys.executable])
        assert limit in line
        waits = subprocess.Popen(
            ["sh", "-c", line.replace(limit, "alarm(1)")], stdin=subprocess.PIPE
        )
        with waits:  # whose input stays open
            assert waits.stdin is not None
            waits.stdin.write(payload()[:-1])
            waits.stdin.flush()
            assert waits.wait(60) == -signal.SIGALRM

    def test_who_has_its_source_has_no_limit_any_more(self) -> None:
        sent = bootstrap.payload_of({}, "import _signal\nprint(_signal.alarm(0))\n")
        done = subprocess.run(
            ["sh", "-c", command(first=[sys.executable])], input=sent, capture_output=True,
            check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout == b"0\n"


class TestCopies:
    """What begins a host's end of a copy: Python if it can, else the shell."""

    SCRIPT = 'echo "by sh: $1 $2"; cat'

    def begun(self, path: Path, sent: bytes) -> bytes:
        done = subprocess.run(
            bootstrap.copy_command(self.SCRIPT, ["a b", "$HOME"]),
            input=sent, capture_output=True, check=True, timeout=60, env={"PATH": str(path)},
        )  # fmt: skip
        assert done.stderr == b""
        return done.stdout

    @pytest.fixture
    def tools(self, tmp_path: Path) -> Path:
        tools = tmp_path / "tools"
        shim(tools, "cat", "/bin/cat")
        return tools

    def test_python_takes_the_first_line_and_all_that_follows(
        self, tools: Path, newest: str
    ) -> None:
        shim(tools, "python3", newest)
        line = b"import os;os.write(1,b'read on: '+f.read(4)+b' '+os.fsencode(sys.argv[-1]))\n"
        assert self.begun(tools, line + b"1234") == bootstrap.PYTHON + b"read on: 1234 $HOME"

    def test_without_python_the_shell_does(self, tools: Path) -> None:
        assert self.begun(tools, b"tar") == bootstrap.SHELL + b"by sh: a b $HOME\ntar"

    def test_a_shim_whose_python_is_gone_is_none(self, tmp_path: Path) -> None:
        tools = tmp_path / "shims"
        shim(tools, "cat", "/bin/cat")
        (tools / "python3").write_text(
            "#!/bin/sh\necho 'pyenv: python3: not found' >&2\nexit 127\n"
        )
        (tools / "python3").chmod(0o755)
        usual = os.access("/usr/bin/python3", os.X_OK)  # which is asked next
        line = b"import os;os.write(1,b'read on')\n"
        wanted = bootstrap.PYTHON + b"read on" if usual else bootstrap.SHELL + b"by sh: a b $HOME\n"
        assert self.begun(tools, line).startswith(wanted)

    def test_a_python_that_is_too_old_is_none(self, tools: Path, too_old: str, newest: str) -> None:
        shim(tools, "python3", too_old)
        assert self.begun(tools, b"tar") == bootstrap.SHELL + b"by sh: a b $HOME\ntar"
        shim(tools, "python3.9", newest)
        assert self.begun(tools, b"pass\n") == bootstrap.PYTHON

    def test_what_is_sent_to_it(self) -> None:
        """For a tree also what passes files on."""
        for tree, names in ((False, bootstrap.COPY), (True, bootstrap.COPY + bootstrap.COPY_TREE)):
            line, _, packed = bootstrap.copy_payload(tree).partition(b"\n")
            sources = zlib.decompress(packed).decode().split("\0")
            assert tuple(sources[1::2]) == names
            assert sources[2] == bootstrap.source(names[0])
            assert f"len(b)<{len(packed)}:".encode() in line
            assert "copy_main" in sources[0]
        assert bootstrap.copy_payload() == bootstrap.copy_payload(False)


class TestNoPython:
    def boot(self, folder: Path, *first: str) -> subprocess.CompletedProcess[bytes]:
        """What the command line says on a host whose PATH is ``folder`` alone."""
        line = command(first=first).replace("/usr/bin/python3", "/no/such/bin/python3")
        return subprocess.run(
            ["/bin/sh", "-c", line],
            input=payload(), capture_output=True, check=False, env={"PATH": str(folder)},
        )  # fmt: skip

    def test_names_all_that_was_tried(self, tmp_path: Path) -> None:
        done = self.boot(tmp_path, "mypython")
        assert done.returncode == bootstrap.NO_PYTHON_STATUS == 127
        failure = boot_failure("gpu01", done.stdout, done.stderr, done.returncode)
        assert failure.kind is Kind.NO_PYTHON
        assert failure.why.startswith("looked for mypython python3 python3.14")
        assert "--agent-python" in (failure.hint or "")

    def test_one_that_is_too_old_is_named_with_its_version(
        self, tmp_path: Path, too_old: str
    ) -> None:
        shim(tmp_path, "python3", too_old)
        done = self.boot(tmp_path)
        assert done.returncode == bootstrap.NO_PYTHON_STATUS
        failure = boot_failure("gpu01", done.stdout, done.stderr, done.returncode)
        version = min(interpreters())
        assert failure.kind is Kind.NO_PYTHON
        assert f" is {version[0]}.{version[1]}, at least 3.8 is needed" in failure.why
        assert "looked for" not in failure.why

    def test_one_that_is_too_old_hands_over_to_a_newer(
        self, tmp_path: Path, too_old: str, newest: str
    ) -> None:
        shim(tmp_path, "python3", too_old)
        shim(tmp_path, "python3.11", newest)
        agent = Agent(str(tmp_path / "python3"), env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        try:
            assert "port" in agent.prepare(reserve=True)["facts"]
            agent.start(["echo", "new"])
            assert agent.text() == b"new\n"
            agent.finish()
        finally:
            agent.close()
