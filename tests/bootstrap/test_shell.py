"""``dispatcher.bootstrap.shell`` under every shell there is here,
as ``/bin/sh`` and as login shell.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import cases
from rig import gone, wait_for

from dispatcher.bootstrap import shell as lifeline
from dispatcher.remote.protocol.frames import SYNC

SHELLS = [["dash"], ["bash"], ["bash", "--posix"], ["busybox", "ash"], ["zsh", "--emulate", "sh"],
          ["ksh"], ["mksh"]]  # fmt: skip
LOGIN_SHELLS = ["sh", "bash", "zsh", "tcsh", "fish"]
WORDS = ("a  b", "$HOME `id` $(id)", "it's", "two\nlines", "", "\\", "!", "\udcff\xe9", "*", "%u",
         "-x", "ends\n\n", "~", "#", ";", "\t")  # fmt: skip


def installed(argv: list[str]) -> list[str]:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    return argv


@pytest.fixture(params=SHELLS, ids="-".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell in the place of ``/bin/sh -c``."""
    return [*installed(request.param), *shlex.split(lifeline.COMMAND)[2:]]


ENV: dict[str, str] = {}


class Started:
    """The far side's shell, whose input stays open until ``end``."""

    def __init__(
        self, argv: list[str], opening: bytes, leader: bool = True, env: dict[str, str] = ENV
    ) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=leader,
            bufsize=0,
            env={**os.environ, "LC_ALL": "C.UTF-8", **env},
        )
        self.say(opening)

    def say(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def output(self) -> bytes:
        """All output to its end; the input is closed only then."""
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.process.wait(60)


@pytest.fixture
def start() -> Iterator[type[Started]]:
    made: list[Started] = []

    class Kept(Started):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            made.append(self)

    yield Kept
    for one in made:
        one.close()


@cases("terminal", [False, True])
def test_a_wrapped_command_line_says_nothing_of_what_is_awaited(terminal: bool) -> None:
    for sudo in (None, "nobody"):
        wrapper = lifeline.wrapper("TOKEN", terminal=terminal, sudo=sudo)
        assert (wrapper.ready, wrapper.prompt) == (b"ready-TOKEN-", b"TOKEN%:")
        assert ("stty" in wrapper.command) == terminal
        assert ("sudo -S -p TOKEN%%: -u nobody" in wrapper.command) == (sudo is not None)
        for text in (wrapper.ready, wrapper.prompt):
            assert text not in wrapper.command.encode()


RUN = "20260131-142501-k3f9x2"


def found(what: str, pid: int | None, name: str) -> lifeline.SweptProcess:
    return lifeline.SweptProcess("n1", RUN, what, pid, name)


@cases(
    ("line", "found"),
    [
        (f"found 12 {RUN} python3", found("found", 12, "python3")),
        (f"killed 1 {RUN} a b", found("killed", 1, "a b")),
        (f"left 9999999999 {RUN} {'n' * 16}", found("left", 9999999999, "n" * 15)),
        (f"left 99999999999 {RUN} x", None),
        (f"removed 12 {RUN} x", None),
        (f"removed - {RUN} {'n' * 256}", found("removed", None, "n" * 255)),
        (f"found - {RUN} x", found("found", None, "x")),
        (f"kept - {RUN} x", found("kept", None, "x")),
        (f"killed - {RUN} x", None),
        (f"found \u0663 {RUN} x", None),
        ("found 12 nothing x", None),
        ("noise", None),
    ],
)
def test_what_a_look_tells(line: str, found: lifeline.SweptProcess | None) -> None:
    assert lifeline.swept_processes("n1", f"noise\n{line}\n".encode()) == (
        [] if found is None else [found]
    )


def test_nothing_is_killed_that_nobody_named() -> None:
    for ids in ([], ["$(id)"]):
        with pytest.raises(AssertionError):
            lifeline.sweep_command(ids, kill=True)


def test_a_look_tells_no_more_than_so_much() -> None:
    text = b"".join(b"found %d %s x\n" % (n, RUN.encode()) for n in range(lifeline.MOST + 5))
    assert len(lifeline.swept_processes("n1", text)) == lifeline.MOST


# -- real shells ---------------------------------------------------------------------------


@pytest.mark.parametrize("leader", [True, False])
def test_words_arrive_exactly(shell: list[str], start: type[Started], leader: bool) -> None:
    far = start(shell, lifeline.opening(["printf", "<%s>", *WORDS]), leader)
    expected = b"".join(b"<%s>" % word.encode("utf-8", "surrogateescape") for word in WORDS)
    assert far.output() == SYNC + expected
    assert far.process.wait(60) == 0


@pytest.mark.parametrize("name", LOGIN_SHELLS)
def test_any_login_shell_can_start_it(name: str, start: type[Started]) -> None:
    far = start(
        [*installed([name]), "-c", lifeline.COMMAND], lifeline.opening(["echo", "it's", "!x"])
    )
    assert far.output() == SYNC + b"it's !x\n"


def test_environment_and_no_input(shell: list[str], start: type[Started]) -> None:
    far = start(
        shell,
        lifeline.opening(
            ["sh", "-c", 'cat; echo "$DISPATCH_HOST"; env | grep -c "^[a-z]="'],
            [("DISPATCH_HOST", "n 1'\n$x")],
        ),
    )
    assert far.output() == SYNC + b"n 1'\n$x\n0\n"  # and none of the script's own variables


#: values for variables that the text of ours has as well, or a shell, or a loader
GIVEN = [
    *((name, "5") for name in "abcdefghijklmnopqrstuvwxyz"),
    ("TWO", "1\n2 '\"$x`\\\udcff"), ("PATH", "/nowhere"), ("IFS", "eo"), ("TMOUT", "1"), ("NO", ""),
]  # fmt: skip


@pytest.mark.parametrize("script", [False, True])
def test_any_variable_can_be_given(
    shell: list[str], start: type[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    script: bool,
) -> None:  # fmt: skip
    """The command alone has them: they change nothing of what starts, watches and removes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    env, sleep = shutil.which("env"), shutil.which("sleep")
    text = f"{env} -0; exec {sleep} 1000"
    sent_one = sent(text.encode()) if script else None
    words = ["/bin/sh", "x"] if script else ["/bin/sh", "-c", text]
    far = start(shell, lifeline.opening(words, exports=GIVEN, script=sent_one))
    assert far.line() == SYNC
    assert far.process.stdout is not None
    # a shell that is the command sets IFS for itself
    left = {f"{name}={text}".encode("utf-8", "surrogateescape") for name, text in GIVEN} - {
        b"IFS=eo"
    }
    seen = b""
    while not left.issubset(seen.split(b"\0")):
        more = os.read(far.process.stdout.fileno(), 1 << 16)
        assert more, (seen, left)
        seen += more
    assert b"dispatch_env" not in seen
    assert len(os.listdir(tmp_path)) == script
    far.say(lifeline.order("TERM"))
    assert far.process.wait(60) in (-15, 143, 15)  # ksh cuts its own number
    assert os.listdir(tmp_path) == []


#: variables of a host that mean something to a shell
HOSTILE = {
    "TMOUT": "1", "IFS": "eoKL", "CDPATH": "/usr", "PS4": "$(exit 9)", "ENV": "/etc/passwd",
    "BASH_ENV": "/etc/passwd", "POSIXLY_CORRECT": "1", "GLOBIGNORE": "*",
    "SHELLOPTS": "errexit:nounset:noclobber", "BASH_FUNC_kill%%": "() { :; }",
    "BASH_FUNC_printf%%": "() { :; }", "BASH_FUNC_sleep%%": "() { :; }",
}  # fmt: skip


def test_no_variable_of_the_host_ends_a_command(shell: list[str], start: type[Started]) -> None:
    """Hardened hosts set TMOUT; bash and ksh take it for the limit of ``read``."""
    words = ["sh", "-c", "sleep 1.5; env | grep ^TMOUT"]
    far = start(shell, lifeline.opening(words), env=HOSTILE)
    assert far.output() == SYNC + b"TMOUT=1\n"
    assert far.process.wait(60) == 0


def test_no_variable_of_the_host_keeps_a_command(shell: list[str], start: type[Started]) -> None:
    words = ["python3", "-c", "import time; print(1, flush=True); time.sleep(1000)"]
    far = start(shell, lifeline.opening(words), env=HOSTILE)
    assert [far.line(), far.line()] == [SYNC, b"1\n"]
    far.say(lifeline.order("TERM"))
    assert far.process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("lines", [1, 8])
def test_a_login_file_may_read_blank_lines(
    shell: list[str], start: type[Started], lines: int
) -> None:
    """``s`` is what the text reads into; a host may have it in its environment."""
    opening = lifeline.opening(["echo", "a\nb"]).split(b"\n", lines)[lines]
    far = start(shell, opening, env={"s": "echo hit"})
    assert far.output() == SYNC + b"a\nb\n"


@pytest.mark.parametrize("lines", [9, 10, 11])
def test_what_a_login_file_leaves_of_a_command_is_not_run(
    shell: list[str], start: type[Started], lines: int, tmp_path: Path
) -> None:
    """The second of these lines was run, alone."""
    opening = lifeline.opening(["sh", "-c", f"if false; then\n  touch {tmp_path}/hit\nfi"])
    far = start(shell, opening.split(b"\n", lines)[lines])
    far.end()
    assert far.output() == b""
    assert far.process.wait(60) == 1
    assert not list(tmp_path.iterdir())


def test_half_a_script_is_not_run(shell: list[str], start: type[Started]) -> None:
    far = start(shell, lifeline.MARK.encode() + b"echo half")
    far.end()
    assert far.output() == b""
    assert far.process.wait(60) == 1


def test_codes_and_signals_are_the_commands_own(shell: list[str], start: type[Started]) -> None:
    for words, status in (
        (["sh", "-c", "exit 41"], 41),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ):
        far = start(shell, lifeline.opening(words))
        far.output()
        assert far.process.wait(60) == status, words


def test_input_given_to_the_command(shell: list[str], start: type[Started]) -> None:
    far = start(shell, lifeline.opening(["wc", "-c"], stdin=True))
    far.say(b"\0\xffx" * 50_000)
    far.end()
    assert far.output() == SYNC + b"150000\n"


#: prints the pids of three processes of its group, two of which refuse TERM
STUBBORN = "sleep 1000 & echo $!; trap '' TERM; sleep 1000 & echo $!; echo $$; wait; wait"


@pytest.mark.parametrize("stdin", [False, True])
def test_the_end_of_the_link_ends_the_group(
    shell: list[str], start: type[Started], stdin: bool, tmp_path: Path
) -> None:
    # the shell's parent is the one whose death counts when the input is the command's
    parent = (
        "import subprocess,sys;p=subprocess.Popen(sys.argv[1:],start_new_session=True);"
        "sys.stdin.close();p.wait()"
    )
    far = start(
        ["python3", "-c", parent, *shell], lifeline.opening(["sh", "-c", STUBBORN], stdin=stdin)
    )
    assert far.line() == SYNC
    pids = [int(far.line()) for _ in range(3)]
    if stdin:
        far.process.kill()
        far.process.wait(60)  # a zombie would still count as alive
    else:
        far.end()
    wait_for(lambda: all(map(gone, pids)), 30, lambda: f"all are gone: {pids}")


def test_orders_reach_the_whole_group(shell: list[str], start: type[Started]) -> None:
    far = start(shell, lifeline.opening(["sh", "-c", STUBBORN]))
    far.line()
    ready, stubborn, leader = (int(far.line()) for _ in range(3))
    far.say(lifeline.order("TERM"))
    wait_for(lambda: gone(ready), 30, "TERM has reached a child")
    assert not gone(leader)
    assert not gone(stubborn)
    far.say(lifeline.order("KILL"))
    wait_for(lambda: gone(leader) and gone(stubborn), 30, "KILL has ended the rest")


def test_what_a_finished_command_left_in_the_background_stays(
    shell: list[str], start: type[Started]
) -> None:
    far = start(shell, lifeline.opening(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]))
    far.line()
    pid = int(far.line())
    far.output()
    assert far.process.wait(60) == 0
    far.end()
    watcher_gone = subprocess.run(["sleep", "0.3"], check=True)
    assert watcher_gone.returncode == 0
    assert not gone(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("name", LOGIN_SHELLS)
@pytest.mark.parametrize("sudo", [None, "nobody"])
def test_any_login_shell_knows_the_wrapper(
    name: str, sudo: str | None, start: type[Started], tmp_path: Path
) -> None:
    """sudo: a stand-in that shows what it was given and becomes nobody else."""
    program = tmp_path / "sudo"
    program.write_text('#!/bin/sh\necho "$3 $5" >&2; shift 6; exec "$@"\n')
    program.chmod(0o755)
    wrapper = lifeline.wrapper("TOKEN", sudo=sudo)
    shell = installed([name])[0]
    path = f"PATH={tmp_path}:{os.environ['PATH']}"
    far = start(["env", path, shell, "-c", wrapper.command], wrapper.first[3:])
    assert far.process.stdout is not None
    assert far.process.stdout.read(len(wrapper.ready)) == wrapper.ready
    assert wrapper.ready not in wrapper.command.encode()
    assert wrapper.prompt not in wrapper.command.encode()
    far.say(lifeline.opening(["printf", "<%s>", *WORDS]))
    expected = b"".join(b"<%s>" % word.encode("utf-8", "surrogateescape") for word in WORDS)
    assert far.output() == SYNC + expected
    if sudo is not None:
        assert far.process.stderr is not None
        assert far.process.stderr.readline() == b"TOKEN%%: nobody\n"


def test_a_terminal_passes_all_bytes_until_the_command_starts(start: type[Started]) -> None:
    """Nothing of the opening is echoed; and then it is what it was, with line ends of its own."""
    ours, theirs = os.openpty()
    wrapper = lifeline.wrapper("TOKEN", terminal=True)
    process = subprocess.Popen(
        ["/bin/sh", "-c", wrapper.command], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        seen = b""
        while not seen.endswith(wrapper.ready):
            seen += os.read(ours, 99)
        assert seen == wrapper.ready
        words = ["sh", "-c", 'stty -a | tr " " "\\n" | grep -x "echo;*"; echo "$1"', "sh", "a\003b"]
        os.write(ours, lifeline.opening(words, terminal=True))
        seen = b""
        with contextlib.suppress(OSError):  # its end
            while True:
                seen += os.read(ours, 99)
        assert seen == SYNC + b"echo\r\na\003b\r\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)
        os.close(ours)


def test_no_signal_is_too_early_for_a_watcher() -> None:
    """A Ctrl-C for all on the terminal may come before it has run: here it is late by a second."""
    late = 'trap() { [ "$1" ] || sleep 1; builtin trap "$@"; };'
    text = shlex.split(lifeline.wrapper("TOKEN", terminal=True).command)[-1]
    ours, theirs = os.openpty()
    sshd = subprocess.Popen(["sleep", "1000"])
    process = subprocess.Popen(
        [*installed(["setsid"]), "--ctty", *installed(["bash"]), "-c", late + text],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "DISPATCH_GROUP": str(sshd.pid)},
    )  # fmt: skip
    os.close(theirs)
    try:
        words = ["sh", "-c", "trap '' HUP INT QUIT TERM; echo up; while :; do sleep 0.1; done"]
        os.write(ours, lifeline.opening(words, terminal=True))
        seen = b""
        while not seen.endswith(b"up\r\n"):
            seen += os.read(ours, 99)
        os.killpg(process.pid, signal.SIGTERM)
        os.close(ours)
        sshd.kill()
        sshd.wait(60)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        for one in (process, sshd):
            one.kill()
            one.wait(60)


#: a sudo without use_pty: it leads the session, its command is in the same group
SUDO = "import subprocess,sys;sys.exit(subprocess.run(sys.argv[1:]).returncode)"


@cases("how", ["sshd is gone", "the command is done"])
def test_under_a_sudo_that_makes_no_terminal_the_terminal_stays(
    shell: list[str], how: str, tmp_path: Path
) -> None:
    """It was lost by a session of our own: no echo, no /dev/tty, no Ctrl-C; and what the command
    had started ran on.
    """
    (tmp_path / "s").write_text(
        "stty -a | grep -o '[-]*echo '; echo up > /dev/tty; trap '' HUP TERM; sleep 1000 & echo $!;"
        "trap - HUP TERM; sleep 1000 & echo $!; [ $1 ] || wait"
    )
    text = shlex.split(lifeline.wrapper("TOKEN", terminal=True).command)[-1]
    ours, theirs = os.openpty()
    sshd = subprocess.Popen(["sleep", "1000"])
    sudo = subprocess.Popen(
        [*installed(["setsid"]), "--ctty", sys.executable, "-c", SUDO, *shell[:-1], text],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "DISPATCH_GROUP": str(sshd.pid)},
    )  # fmt: skip
    os.close(theirs)
    try:
        is_done = how == "the command is done"
        words = ["sh", str(tmp_path / "s"), "x" * is_done]
        with os.fdopen(ours, "r+b", buffering=0) as file:
            assert file.read(12) == b"ready-TOKEN-"
            file.write(lifeline.opening(words, terminal=True))
            said = [file.readline().strip() for _ in range(5)]
            assert said[:3] == [SYNC.strip(), b"echo", b"up"]
            stubborn, other = map(int, said[3:])
            if is_done:
                wait_for(lambda: gone(other), 30, "hung up")
                assert not gone(stubborn)
                os.kill(stubborn, signal.SIGKILL)
                return
            sshd.kill()
            sshd.wait(60)
            wait_for(lambda: gone(stubborn) and gone(other), 30, "all are gone")
    finally:
        for one in (sudo, sshd):
            one.kill()
            one.wait(60)


# -- scripts of ours -----------------------------------------------------------------------

#: shows its name, its mode, its folder's, what it was given and what it is
SHOWS = b"""echo ${0##*/} $(stat -c %a "$0" "${0%/*}") "$@"; cat "$0"; exit 41
# """


def sent(content: bytes, name: str = "a 'b'.sh") -> lifeline.SentScript:
    return lifeline.SentScript("dispatch-0123", name, content, 1)


def run_it(script: lifeline.SentScript, *words: str, stdin: bool = False) -> bytes:
    return lifeline.opening(["/bin/sh", "x", *words], stdin=stdin, script=script)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scripts lie meanwhile."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_script_arrives_exactly_and_leaves_nothing(
    shell: list[str], start: type[Started], places: Path
) -> None:
    content = SHOWS + bytes(range(256)) * 2
    far = start(shell, run_it(sent(content), "a  b", "", "*"))
    head, _, rest = far.output().partition(b"\n")
    assert head + rest[: -len(content)] == SYNC.rstrip(b"\n") + b"a 'b'.sh 700 700 a  b  *\n"
    assert rest.endswith(content)
    assert far.process.wait(60) == 41
    assert os.listdir(places) == []


def test_a_script_reads_the_input(shell: list[str], start: type[Started], places: Path) -> None:
    far = start(shell, run_it(sent(b"wc -c; no-such-program; exit 7"), stdin=True))
    far.say(b"\0\xffx" * 50_000)
    far.end()
    assert far.output() == SYNC + b"150000\n"
    assert far.process.wait(60) == 7
    assert far.process.stderr is not None
    assert b"no-such-program" in far.process.stderr.read()
    assert os.listdir(places) == []


@pytest.mark.parametrize("how", ["TERM", "KILL", "group", "link", "parent"])
def test_a_script_that_is_killed_is_removed(how: str, start: type[Started], places: Path) -> None:
    """By an order, by anybody who kills the whole group at once, and when we are gone."""
    parent = (
        "import subprocess,sys;p=subprocess.Popen(sys.argv[1:],start_new_session=True);"
        "sys.stdin.close();p.wait()"
    )
    text = b"trap '' TERM; echo $$; sleep 1000" if how != "TERM" else b"echo $$; sleep 1000"
    command = run_it(sent(text), stdin=how == "parent")
    far = start(["python3", "-c", parent, "sh", "-c", lifeline.COMMAND], command)
    assert far.line() == SYNC
    pid = int(far.line())
    assert os.listdir(places) == ["dispatch-0123"]
    if how == "group":
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        far.end()
    elif how == "link":
        far.end()
    elif how == "parent":
        far.process.kill()
        far.process.wait(60)
    else:
        far.say(lifeline.order(how))
    wait_for(lambda: gone(pid) and not os.listdir(places), 30, lambda: f"removed: {pid}")


def test_a_script_lies_in_the_first_folder_that_takes_it(
    start: type[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    script = lifeline.SentScript(f"dispatch-{os.urandom(8).hex()}", "s", b"echo ${0%/*}", 1)
    shell = ["sh", "-c", lifeline.COMMAND]
    far = start(shell, run_it(script))
    assert far.output() == SYNC + f"/tmp/{script.folder}\n".encode()
    assert not os.path.exists(f"/tmp/{script.folder}")
    if os.geteuid() == 0:  # what another user owns, and what everybody may change
        (tmp_path / "missing").mkdir()
        os.chown(tmp_path / "missing", 1, 1)
        assert start(shell, run_it(script)).output() == SYNC + f"/tmp/{script.folder}\n".encode()
    monkeypatch.setattr(lifeline, "_PLACES", '"$TMPDIR"')
    far = start(shell, run_it(script))
    assert far.output() == b""
    assert far.process.wait(60) == 1
    assert far.process.stderr is not None
    assert far.process.stderr.read().startswith(b"no folder takes the script: ")
