"""How our code gets to run on a host: what is sent, by which command, and what is said first."""

from __future__ import annotations

import ast
import locale
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from remote.driver import Agent, interpreters, new_enough

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.bootstrap.payload import (
    NO_PYTHON_MARK,
    NOISE_LIMIT,
    SyncScanner,
    boot_failure,
    command,
    payload,
)
from dispatcher.model.errors import UsageError
from dispatcher.model.failure import Ending, Kind
from dispatcher.remote.protocol.frames import SYNC, control

HERE = Path(bootstrap.__file__).parents[1]


@pytest.fixture
def newest() -> str:
    return interpreters()[new_enough()[-1]]


#: bytes that may come before the marker, some of them its beginnings
noises = st.lists(
    st.one_of(st.binary(max_size=30), st.integers(1, len(SYNC) - 1).map(lambda n: SYNC[:n])),
    max_size=6,
).map(b"".join)


class TestSyncScanner:
    @given(noises, st.binary(max_size=50), st.data())
    def test_any_chunking_finds_the_marker(
        self, noise: bytes, rest: bytes, data: st.DataObject
    ) -> None:
        stream = noise + SYNC + rest
        at = stream.index(SYNC)  # noise and marker may make the marker sooner
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
        scanner = SyncScanner()
        found: bytes | None = None
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            piece = stream[start:end]
            if found is None:
                found = scanner.feed(piece)
            else:
                found += piece
        assert found == stream[at + len(SYNC) :]
        assert bytes(scanner.noise) == stream[:at]

    @given(noises.filter(lambda noise: SYNC not in noise), st.integers(1, 9))
    def test_without_a_marker_all_is_noise(self, noise: bytes, size: int) -> None:
        scanner = SyncScanner()
        for at in range(0, len(noise), size):
            assert scanner.feed(noise[at : at + size]) is None
        assert scanner.finish() == noise

    def test_noise_is_bounded_and_the_newest_is_kept(self) -> None:
        scanner = SyncScanner()
        for _ in range(40):
            scanner.feed(b"a" * 10_000)
        scanner.feed(b"the end")
        assert scanner.feed(SYNC + b"rest") == b"rest"
        assert len(scanner.noise) == NOISE_LIMIT
        assert scanner.noise.endswith(b"aaathe end")
        assert scanner.dropped == 400_007 - NOISE_LIMIT


class TestBootFailure:
    def test_quotes_the_last_words(self) -> None:
        failure = boot_failure("ssh gpu01 python3 -V", b"", b"one\ntwo\nthree\nfour\n", 1)
        assert failure.kind is Kind.BOOT
        assert failure.why == (
            "exit status 1 before the agent answered; remote said: two; three; four"
        )
        assert failure.hint == "ssh gpu01 python3 -V"

    @cases(
        ("said", "status", "why"),
        [
            ("python3 python3.14", 127, "looked for python3 python3.14"),
            ("/bin/python3 is 3.6, at least 3.8 is needed", 127,
             "/bin/python3 is 3.6, at least 3.8 is needed"),
            ("python3 python3.14", 1, "python3 python3.14"),
            ("x" * 999, 1, "x" * 400),
        ],
    )  # fmt: skip
    def test_no_python_among_other_words(self, said: str, status: int, why: str) -> None:
        errors = f"banner\nsh: {NO_PYTHON_MARK}{said}\nmore\n".encode()
        failure = boot_failure("gpu01", b"noise", errors, status)
        assert (failure.kind, failure.why) == (Kind.NO_PYTHON, why)
        assert failure.hint == (
            "put a python3 of version 3.8 or later on the PATH of non-interactive logins "
            "on the host, or name one with --agent-python"
        )

    @cases(
        ("said", "message"),
        [
            (b"", ""),
            (b" \n\n", ""),
            (b"one\n", "; remote said: one"),
            (b"1\n2\n3\n4", "; remote said: 2; 3; 4"),
            (b"x" * 999, "; remote said: " + "x" * 400),
            (b"a" + b"y" * 400, "; remote said: " + "y" * 400),
            (b"\xff", "; remote said: \\xff"),
        ],
    )
    def test_last_words(self, said: bytes, message: str) -> None:
        assert bootstrap.remote_message(said) == message

    @cases(
        ("code", "signal", "errors", "why"),
        [
            (None, None, b"", "the link ended"),
            (255, None, b"", "ssh ended with 255"),
            (0, None, b"", "ssh ended with 0"),
            (None, "KILL", b"", "ssh was killed by SIGKILL"),
            (255, "KILL", b"", "ssh was killed by SIGKILL"),
            (255, None, b"one\ntwo\n\n", "ssh ended with 255; it said: two"),
            (None, None, b"x" * 999, "the link ended; it said: " + "x" * 400),
            (None, None, b"\xff", "the link ended; it said: \\xff"),
        ],
    )
    def test_a_link_that_ended(
        self, code: int | None, signal: str | None, errors: bytes, why: str
    ) -> None:
        failure = bootstrap.link_ended("ssh", Ending(code, signal), errors)
        assert (failure.kind, failure.why, failure.hint) == (Kind.LOST, why, None)


#: all that is sent to hosts: for runs, for copies, for trees
SENT = sorted(path for path in (HERE / "remote").rglob("[!_]*.py") if path.parent.name != "rank")


class TestPayload:
    def test_is_small(self) -> None:
        assert len(payload()) <= 29 << 10  # each start sends and compiles it on every host

    def test_it_is_read_alike_in_every_locale(self) -> None:
        names, before = ("agent.node", "pmi.pmi_server"), locale.setlocale(locale.LC_CTYPE)
        try:
            locale.setlocale(locale.LC_CTYPE, "C")  # which has no more than ASCII
            read = [bootstrap.source.__wrapped__(name) for name in names]
        finally:
            locale.setlocale(locale.LC_CTYPE, before)
        assert read == list(map(bootstrap.source, names))

    @cases("path", SENT, ids=lambda path: f"{path.parent.name}.{path.stem}")
    def test_what_travels_means_the_same_and_stands_in_the_same_lines(self, path: Path) -> None:
        source = path.read_text(encoding="utf-8")
        whole, sent = ast.parse(source), ast.parse(bootstrap.lean(source))
        checked = {"TYPE_CHECKING = False", "if TYPE_CHECKING:"}  # for mypy alone
        whole.body = [
            node for node in whole.body if ast.unparse(node).split("\n")[0] not in checked
        ]
        for node in ast.walk(whole):
            if isinstance(node, ast.FunctionDef):
                node.returns = None
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                first = node.body[0]
                if ast.get_docstring(node) is not None:
                    assert isinstance(first, ast.Expr)
                    first.value = ast.Constant("")
        assert ast.dump(sent) == ast.dump(whole)
        lines = [node.lineno for node in ast.walk(sent) if isinstance(node, ast.stmt)]
        assert lines == [node.lineno for node in ast.walk(whole) if isinstance(node, ast.stmt)]

    @cases(
        ("source", "sent"),
        [
            ("def f(a: int) -> None:  # so", "def f(a: int):"),
            ("    b: str,\n) -> dict[str, int]:\n    return {}", "    b: str,\n):\n    return {}"),
            ("a = f(b) -> c", "a = f(b) -> c"),
            ("    # so\n    a = '#'  # so", "\n    a = '#'"),
            ('def f():\n    """So.\n\n    And so.\n    """', 'def f():\n    ""\n\n\n'),
            ("if TYPE_CHECKING:\n    from a import b\n\nc = d", "\n\n\nc = d"),
        ],
    )
    def test_what_only_people_and_checkers_read_stays_here(self, source: str, sent: str) -> None:
        assert bootstrap.lean(source) == sent

    def test_line_one_is_one_line(self) -> None:
        line, _, _ = payload().lstrip().partition(b"\n")
        assert len(line) < 1000
        assert line.isascii()

    def test_holds_every_module_of_the_agent(self) -> None:
        rooms = ("agent", "host", "pmi", "probe", "protocol")
        there = {
            f"{room}.{path.stem}"
            for room in rooms
            for path in (HERE / "remote" / room).glob("[!_]*.py")
        }
        there -= {"protocol.copy_frames", "protocol.mux"}  # of copies and trees
        assert {*bootstrap.MODULES, *bootstrap.PARTS} == there

    def test_frames_right_behind_it_are_not_swallowed(self, newest: str) -> None:
        beats = {"type": "odd"}
        agent = Agent(newest, payload=payload() + control(**beats) * 3)
        try:
            agent.until(lambda: sum(r["type"] == "node.noticed" for r in agent.reports) == 3)
        finally:
            agent.close()

    def test_one_that_breaks_off_ends_the_agent(self, newest: str) -> None:
        for size in (0, 10, 18, 600, len(payload()) - 1):
            done = subprocess.run(
                ["/bin/sh", "-c", command(first=[newest])],
                input=payload()[:size], capture_output=True, check=False, timeout=60,
            )  # fmt: skip
            assert SYNC not in done.stdout

    def test_nothing_of_the_host_s_python_setup_gets_in(self, newest: str, tmp_path: Path) -> None:
        for name in ("zlib.py", "select.py", "os.py", "sitecustomize.py", "_ctypes.py"):
            (tmp_path / name).write_text("raise SystemExit('wrong module')")
        agent = Agent(
            newest,
            env={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "os.py")},
            cwd=os.fspath(tmp_path),
        )
        try:
            agent.prepare()
            agent.finish()
        finally:
            agent.close()

    @cases("python", new_enough(), ids="{0[0]}.{0[1]}".format)
    def test_its_tracebacks_show_the_source(self, python: tuple[int, int]) -> None:
        agent = Agent(interpreters()[python])
        try:
            agent.order("prepare")  # without its fields
            agent.exit()
            assert b'self.lease = message["lease"]' in agent.errors
            assert b"KeyError: 'lease'" in agent.errors
        finally:
            agent.close()


SHELLS = ("sh", "bash", "dash", "tcsh", "csh", "fish", "zsh", "ksh", "mksh", "busybox")


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
        line = command(first=["python3.9"], last=["python3", "mine"])
        words = line.partition('n="')[2].partition('"')[0].split()
        assert words[:3] == ["python3.9", "python3", "python3.14"]
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
        words = bootstrap.copy_command(self.SCRIPT, ["a b", "$HOME"])
        done = subprocess.run(
            [word.replace("/usr/bin/python3", "/no/such/bin/python3") for word in words],
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
        line = b"import os;os.write(1,b'read on: '+f.read(4)+b' '+os.fsencode(sys.argv[-1]))"
        line = line.ljust(bootstrap.SURE) + b"#\n"  # as long as ours
        assert self.begun(tools, line + b"1234") == bootstrap.PYTHON + b"read on: 1234 $HOME"

    def test_an_early_end_of_the_input_is_no_good_end(self, tools: Path, newest: str) -> None:
        """As at a time limit, before anything was sent."""
        shim(tools, "python3", newest)
        with pytest.raises(subprocess.CalledProcessError):
            self.begun(tools, b"")

    def test_without_python_the_shell_does(self, tools: Path) -> None:
        assert self.begun(tools, b"tar") == bootstrap.SHELL + b"by sh: a b $HOME\ntar"

    def test_a_python_that_is_too_old_is_none(self, tools: Path, too_old: str, newest: str) -> None:
        shim(tools, "python3", too_old)
        assert self.begun(tools, b"tar") == bootstrap.SHELL + b"by sh: a b $HOME\ntar"
        shim(tools, "python3.9", newest)
        assert self.begun(tools, b"pass\n") == bootstrap.PYTHON

    def test_the_first_line_is_as_long_as_is_read_at_once(self) -> None:
        for sent in (bootstrap.payload(), bootstrap.copy_payload()):
            assert sent.lstrip().index(b"\n") >= bootstrap.SURE

    def test_what_is_sent_to_it(self) -> None:
        """For a tree also what passes files on."""
        for tree, names in ((False, bootstrap.COPY), (True, bootstrap.COPY + bootstrap.COPY_TREE)):
            line, _, packed = bootstrap.copy_payload(tree).lstrip().partition(b"\n")
            sources = zlib.decompress(packed).decode().split("\0")
            assert tuple(sources[1::2]) == names
            assert sources[2] == bootstrap.source(names[0])
            assert f"len(b)<{len(packed)}:".encode() in line
            assert "copy_main" in sources[0]
        assert bootstrap.copy_payload() == bootstrap.copy_payload(False)


#: what stands for a Python and is none; what a version manager puts there has a folder of its own
SHIMS = {
    "pyenv": "#!/bin/sh\necho 'pyenv: python3: command not found' >&2; exit 127",
    "asdf": "#!/bin/sh\necho 'No version is set for command python3'; exit 126",
    "prints": "#!/bin/sh\necho 'WARNING: deprecated'; exec NEWEST \"$@\"",
    "splits": "#!/bin/sh\nexec NEWEST $*",
    "silent": "#!/bin/sh\ncat >/dev/null",
    "shims/a program": "",
}

READS = "import sys,binascii;print('read',binascii.a2b_base64(sys.argv[-1]).decode(),end='')"


class TestShims:
    @cases("kind", SHIMS)
    def test_the_next_python_is_taken_by_all(self, kind: str, tmp_path: Path, newest: str) -> None:
        tools = tmp_path / kind
        tools.mkdir(parents=True)
        (tools / "python3").write_text(SHIMS[kind].replace("NEWEST", newest) + "\n")
        (tools / "python3").chmod(0o755)
        if not SHIMS[kind]:
            (tools / "python3").unlink()
            shim(tools, "python3", "/bin/true")
        shim(tools, "python3.13", newest)
        shim(tools, "cat", "/bin/cat")
        line = b"S='';import os;os.write(1,b'read on')\n"
        for words in (
            ("/bin/sh", "-c", command()),
            bootstrap.copy_command("exit 1"),
            bootstrap.standalone_command(READS, b"on"),
        ):
            done = subprocess.run(
                words, input=line, capture_output=True, check=True, timeout=60,
                env={"PATH": str(tools)},
            )  # fmt: skip
            assert done.stdout.removeprefix(bootstrap.PYTHON) == b"read on"
            assert done.stderr == b""

    def test_the_only_one_says_itself_why_it_cannot(self, tmp_path: Path) -> None:
        (tmp_path / "python3").write_text(SHIMS["pyenv"])
        (tmp_path / "python3").chmod(0o755)
        done = TestNoPython().boot(tmp_path)
        failure = boot_failure("ssh n1 python3 -V", done.stdout, done.stderr, done.returncode)
        assert "remote said: pyenv: python3: command not found" in failure.why
        assert (failure.hint or "").endswith("--agent-python /usr/bin/python3")


class TestNamed:
    """A Python that the user named, where it is passed over for another."""

    @pytest.mark.parametrize("named", ["/no/such/python3", "too-old", "shim"])
    def test_a_note_names_it_and_the_one_that_runs(
        self, named: str, tmp_path: Path, too_old: str, newest: str
    ) -> None:
        shim(tmp_path, "shim", "/bin/false")
        first = {"too-old": too_old, "shim": str(tmp_path / "shim")}.get(named, named)
        shim(tmp_path, "python3", newest)
        shim(tmp_path, "python3.14", newest)
        agent = Agent(first, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        try:
            agent.prepare()
            (note,) = (
                report["text"] for report in agent.reports if report["type"] == "node.noticed"
            )
            start, _, end = note.partition(" does not work on this host; the agent runs on ")
            assert start.startswith("--agent-python ")
            assert os.path.realpath(start.split()[1]) == os.path.realpath(first)
            assert os.path.exists(end)
            agent.start(["sh", "-c", "echo $DISPATCH_AGENT_PYTHON."])
            assert agent.text() == b".\n"
            agent.finish()
        finally:
            agent.close()

    def test_one_that_works_needs_no_note(self, newest: str) -> None:
        agent = Agent(newest)
        try:
            agent.prepare()
            assert [report["type"] for report in agent.reports] == ["node.ready"]
            agent.start(["sh", "-c", "echo ${DISPATCH_AGENT_PYTHON-none}"])
            assert agent.text() == b"none\n"
            agent.finish()
        finally:
            agent.close()


class TestNoPython:
    def test_one_without_a_module_is_named(self, newest: str) -> None:
        """As Debian's python3-minimal, which has no ctypes."""
        start = "sys.modules['_ctypes'] = None\n" + bootstrap._START
        done = subprocess.run(
            ["/bin/sh", "-c", command(first=[newest])],
            input=bootstrap.payload_of({}, start), capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        failure = boot_failure("ssh n1 python3 -V", done.stdout, done.stderr, done.returncode)
        assert failure.kind is Kind.NO_PYTHON
        assert re.fullmatch(rf"{newest} is incomplete: .*_ctypes.*", failure.why)

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

    @cases("taken", [1, 3, 8])
    def test_a_login_file_may_read_blank_lines(self, taken: int, newest: str) -> None:
        agent = Agent(newest, payload=payload()[taken:] + control(type="odd"))
        try:
            agent.until(lambda: any(r["type"] == "node.noticed" for r in agent.reports))
        finally:
            agent.close()

    @cases("taken", [9, 17, len(payload()) // 2, len(payload())])
    def test_a_login_file_that_reads_is_told(self, taken: int) -> None:
        """It was said that source code cannot contain null bytes."""
        done = subprocess.run(
            ["/bin/sh", "-c", command(first=[sys.executable])],
            input=payload()[taken:], capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        failure = boot_failure("gpu01", done.stdout, done.stderr, done.returncode)
        why = "a login file of this host reads standard input, where the agent comes from"
        assert (failure.kind, failure.why) == (Kind.BOOT, why)
        assert (failure.hint or "").startswith("[ -t 0 ] || return")

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
