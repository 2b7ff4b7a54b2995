"""``dispatch exec --sudo``: one password, asked at the terminal, for sudo alone.

``real`` is the system's sudo under its own rules and PAM, for a user that exists only in
a mount namespace of the test; ``stand-in`` behaves as it does and needs no root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import Cluster, wait_for
from typist import Typist

DISPATCH = [sys.executable, "-m", "dispatcher"]
EXEC = [*DISPATCH, "exec", "-t", "60"]
PASSWORD = "geheim wort"
STAND_IN = f"""#!/bin/sh
[ "$1 $2 $4 $6" = "-S -p -u --" ] || exit 99
prompt=$(printf %s "$3" | sed 's/%%/%/g'); shift 6
for try in 1 2 3; do
  printf %s "$prompt" >&2
  IFS= read -r given || exit 1
  echo . >> "$ATTEMPTS"
  [ "$given" = "{PASSWORD}" ] && exec "$@"
  echo "Sorry, try again." >&2
done
exit 1
"""
REAL = '#!/bin/sh\nexec setpriv --reuid=sudo-asker --regid=nogroup --clear-groups {} "$@"\n'
PREPARE = """
set -e
cp -a /etc "$1"
mount --bind "$1" /etc
useradd -M -s /bin/sh sudo-asker
echo "sudo-asker:$2" | chpasswd
echo 'sudo-asker ALL=(ALL) ALL' > /etc/sudoers.d/sudo-asker
"""


class Sudo:
    """What goes before ``dispatch`` and into its environment, so that sudo wants a password."""

    def __init__(self, before: list[str], env: dict[str, str]) -> None:
        self.before, self.env = before, env

    def attempts(self) -> int:
        return len(Path(self.env["ATTEMPTS"]).read_text().split())


def _real(folder: Path) -> Sudo:
    program = shutil.which("sudo")
    tools = ("unshare", "setpriv", "useradd", "chpasswd")
    if os.getuid() != 0 or program is None or not all(map(shutil.which, tools)):
        pytest.skip("needs root and sudo")
    etc = str(folder / "etc")
    private = ["unshare", "--mount", "sh", "-c"]
    made = subprocess.run(
        [*private, PREPARE, "sh", etc, PASSWORD], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"cannot make a user: {made.stderr}")
    (folder / "sudo").write_text(REAL.format(program))
    return Sudo([*private, 'mount --bind "$0" /etc && exec "$@"', etc], {})


@pytest.fixture(scope="module", params=["real", "stand-in"])
def sudo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sudo:
    folder = tmp_path_factory.mktemp("sudo")
    if request.param == "real":
        made = _real(folder)
    else:
        (folder / "sudo").write_text(STAND_IN)
        (folder / "attempts").touch()
        made = Sudo([], {"ATTEMPTS": str(folder / "attempts")})
    (folder / "sudo").chmod(0o755)
    made.env["PATH"] = f"{folder}:{os.environ['PATH']}"
    return made


@pytest.fixture
def sit(sudo: Sudo) -> Iterator[Any]:
    made: list[Typist] = []

    def start(*words: str, by: list[str] = EXEC, **options: Any) -> Typist:
        made.append(Typist([*sudo.before, *by, *words], sudo.env, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


TWO = ("-w", "localhost,127.0.0.1")


def test_asked_once_for_all_hosts(sit: Any) -> None:
    one = sit("--sudo", *TWO, "--shell", 'echo "$DISPATCH_HOST $(id -u)"')
    one.until("for sudo: ")
    assert not one.echoes
    one.type(PASSWORD + "\n")
    assert one.wait() == 0
    shown = "\n".join(one.screen.lines())
    user = os.getuid()
    assert f"localhost: localhost {user}\n" in shown + "\n"
    assert f"127.0.0.1: 127.0.0.1 {user}\n" in shown + "\n"
    assert shown.count("for sudo") == 1
    assert PASSWORD not in shown
    assert "try again" not in shown
    assert one.echoes


def test_a_script_of_ours_is_that_user_s(sit: Any, tmp_path: Path) -> None:
    (tmp_path / "s").write_text('[ -O "$0" ] && [ -O "${0%/*}" ] && echo "mine, $*"')
    one = sit("--sudo", "-w", "localhost", "--script", f"{tmp_path}/s", "a", "b")
    one.until("for sudo: ")
    one.type(PASSWORD + "\n")
    assert one.wait() == 0
    assert "localhost: mine, a b" in one.screen.lines()


@pytest.mark.parametrize("second", [PASSWORD, "wrong too"])
def test_a_wrong_password_has_a_second_try_on_one_host(sit: Any, sudo: Sudo, second: str) -> None:
    attempts = sudo.attempts() if "ATTEMPTS" in sudo.env else 0
    one = sit("--sudo", "--ask-sudo-password", *TWO, "--shell", "echo in")
    one.until("for sudo: ")
    one.type("wrong\n")
    one.until("wrong, try again: password of ")
    one.type(f"{second}\n")
    right = second == PASSWORD
    assert one.wait() == (0 if right else 125)
    shown = "\n".join(one.screen.lines())
    assert shown.count("for sudo") == 2
    assert shown.count(": in") == (2 if right else 0)
    if not right:
        assert "sudo refused: wrong password" in shown
        assert "not tried: the password was wrong on another host" in shown
    if "ATTEMPTS" in sudo.env:  # two on one host, and the right one on the other
        assert sudo.attempts() == attempts + (3 if right else 2)


def test_no_password_no_attempt(sit: Any) -> None:
    one = sit("--sudo", "-w", "localhost", "--", "echo", "in")
    one.until("for sudo: ")
    one.type("\n")
    assert one.wait() == 125
    assert "sudo refused: no password was given" in "\n".join(one.screen.lines())


def test_ctrl_c_while_it_is_asked(sit: Any) -> None:
    one = sit("--sudo", "-w", "localhost", "--", "echo", "in")
    one.until("for sudo: ")
    one.type("\x03")
    assert one.wait() == 130
    assert one.echoes


def test_standard_input_reaches_the_command_untouched(sit: Any, tmp_path: Path) -> None:
    data = b"first line\n" + os.urandom(300_000)
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open("rb") as file:
        text = f'cat > "{tmp_path}/$DISPATCH_HOST"'
        one = sit("--sudo", "-I", *TWO, "--shell", text, stdin=file.fileno())
    one.until("for sudo: ")
    one.type(PASSWORD + "\n")
    assert one.wait() == 0
    assert (tmp_path / "localhost").read_bytes() == data
    assert (tmp_path / "127.0.0.1").read_bytes() == data


def test_files_are_written_and_read_as_the_other_user(sit: Any, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "f").write_bytes(data)
    where = ("--sudo", "-t", "60", "-w", "localhost")
    for words in (
        ("put", *where, "--mode", "400", f"{tmp_path}/f", f"{tmp_path}/to/"),
        ("get", *where, f"{tmp_path}/to/f", f"{tmp_path}/back"),
    ):
        one = sit(*words, by=DISPATCH)
        one.until("for sudo: ")
        one.type(PASSWORD + "\n")
        assert one.wait() == 0
        assert "1 file " in "\n".join(one.screen.lines())
    assert (tmp_path / "to" / "f").stat().st_mode & 0o777 == 0o400
    assert (tmp_path / "back" / "localhost" / "f").read_bytes() == data


def test_the_password_shows_nowhere(sit: Any, tmp_path: Path) -> None:
    text = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; true"
    files = ("-o", str(tmp_path / "o"), "--events", str(tmp_path / "events"))
    one = sit("--sudo", "-v", *files, "-w", "localhost", "--shell", text)
    one.until("for sudo: ")
    one.type(PASSWORD + "\n")
    assert one.wait() == 0
    said = (tmp_path / "o" / "localhost").read_bytes()
    assert b"dispatcher" in said
    for place in (said, (tmp_path / "events").read_bytes(), one.seen):
        assert PASSWORD.encode() not in place


def test_what_it_started_is_ended(sit: Any, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    one = sit("--sudo", "-u", "8", "--grace", "0.3", "-w", "localhost", "--shell",
              f"trap '' TERM; echo $$ > {pid}; sleep 1000")  # fmt: skip
    one.until("for sudo: ")
    one.type(PASSWORD + "\n")
    assert one.wait() == 124
    number = int(pid.read_text())
    wait_for(lambda: not Path(f"/proc/{number}").exists(), 60, "the command is gone")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: sudo, and rules of its own")
@cases("rule", ["!use_pty", "use_pty"])
def test_on_a_terminal_nothing_runs_on(cluster: Cluster, rule: str) -> None:
    """Without use_pty sudo makes no terminal: ours has to stay the command's."""
    rules = Path(cluster.shared, "sudoers")
    rules.write_text(f"Defaults {rule}\nroot ALL=(ALL:ALL) ALL\n")
    cluster.run(["mount", "--bind", str(rules), "/etc/sudoers"], "n1", root=True)
    text = "stty -a | grep -o '[-]*echo '; echo up > /dev/tty; sleep 1000 & sleep 1000"
    with cluster.popen(
        [*EXEC, "--sudo", "--pty", "-w", "n1", "--shell", text], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as one:  # fmt: skip
        assert one.stdout is not None
        assert [one.stdout.readline().split() for _ in range(2)] == [["n1:", "echo"], ["n1:", "up"]]
        one.send_signal(signal.SIGINT)
        assert one.wait(60) == 130
    wait_for(lambda: not cluster.on_hosts(), 60, lambda: cluster.on_hosts())
    cluster.run(["umount", "/etc/sudoers"], "n1", root=True)


def test_nobody_to_ask(sudo: Sudo) -> None:
    done = subprocess.run(
        [*sudo.before, *EXEC, "--sudo", "-w", "localhost", "true"], stdin=subprocess.DEVNULL,
        env={**os.environ, **sudo.env}, capture_output=True, text=True, timeout=60, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 125
    assert "sudo refused: no password was given" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ask-sudo-password", "true"), "--ask-sudo-password needs --sudo"),
        (("--sudo=a b", "true"), "no place in a user name"),
        (("-I", "--pty", "true"), "a terminal changes bytes"),
    ],
)
def test_usage(words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [*EXEC, "-w", "localhost", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
