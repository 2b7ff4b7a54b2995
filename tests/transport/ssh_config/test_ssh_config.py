"""What our reading of ssh_config makes of files, values and criteria, or refuses to guess at."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Target
from dispatcher.transport.ssh_config import ssh_config as module
from dispatcher.transport.ssh_config.config_lines import ConfigProblem, Local
from dispatcher.transport.ssh_config.host_config import HostConfig
from dispatcher.transport.ssh_config.ssh_config import ProgramAnswers, SshConfig

Resolve = Callable[..., HostConfig | Failure]


@pytest.fixture
def resolve(tmp_path: Path) -> Resolve:
    """Resolves a host with a config text; further files as keyword arguments."""

    def run(text: str, host: str = "node", **target: object) -> HostConfig | Failure:
        path = tmp_path / "config"
        path.write_text(text)
        return SshConfig(str(path)).resolve(Target(host, **target))  # type: ignore[arg-type]

    return run


def good(result: HostConfig | Failure) -> HostConfig:
    assert isinstance(result, HostConfig), result
    return result


# -- files ------------------------------------------------------------------------


def test_include_is_relative_to_the_users_folder(tmp_path: Path) -> None:
    local = _local(tmp_path)
    folder = tmp_path / ".ssh"
    (folder / "d").mkdir(parents=True)
    _write(folder / "config", "Host node\nInclude d/*.conf\nPort 7\nHost *\nUser last\n")
    _write(folder / "d" / "1.conf", "Host other\nUser wrong\nHost node\nIdentityFile ~/one\n")
    _write(folder / "d" / "2.conf", "IdentityFile ~/two\n")
    config = SshConfig(local=local, system_dir=str(tmp_path / "none"))
    found = good(config.resolve(Target("node")))
    assert found.identity_files == (f"{tmp_path}/one", f"{tmp_path}/two")
    assert (found.port, found.user) == (7, "last")  # the file's own Host block goes on
    assert good(config.resolve(Target("elsewhere"))).identity_files != found.identity_files


def test_users_file_before_the_systems(tmp_path: Path) -> None:
    local = _local(tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "etc").mkdir()
    _write(tmp_path / ".ssh" / "config", "User mine\n")
    _write(tmp_path / "etc" / "ssh_config", "User theirs\nPort 9\nInclude conf.d/*\n")
    config = SshConfig(local=local, system_dir=str(tmp_path / "etc"))
    found = good(config.resolve(Target("node")))
    assert (found.user, found.port) == ("mine", 9)


def _local(home: Path) -> Local:
    return replace(Local.here(), home=str(home))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


# -- values -------------------------------------------------------------------------


#: an ssh that knows the criterion; the real one does since 9.4
NEW_SSH = """\
#!/bin/sh
echo "$*" >> "$0.calls"
read -r match criterion value
read -r user name
case "$value" in 127.*) echo "user $name" ;; *) echo "user root" ;; esac
"""


def put_ssh(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``ssh`` of ours, the only program on PATH but for the system's."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.mark.parametrize("value", ["127.0.0.0/8;x", "$(x)", '"1 2"', "1#2", "a\\"])
def test_what_is_asked_of_ssh_stays_one_word(
    resolve: Resolve, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = put_ssh(tmp_path, NEW_SSH, monkeypatch)
    failure = resolve(f"Match localnetwork {value}\nPort 3\n")
    assert isinstance(failure, Failure)
    assert "bad value" in failure.why
    assert not program.with_name("ssh.calls").exists()


def test_no_program_is_run_where_nobody_may_wait(tmp_path: Path) -> None:
    """The daemon of kept connections asks so on the thread that serves all of a client's orders."""
    mark = tmp_path / "runs"
    path = tmp_path / "config"
    path.write_text(f'Match exec "touch {mark}"\nPort 3\n')
    config = SshConfig(str(path))
    failed = config.resolve(Target("n1"), runs=False)
    assert isinstance(failed, Failure)
    assert failed.why.endswith("Match exec: not run now")
    assert not mark.exists()
    assert good(config.resolve(Target("n1"))).port == 3


def test_a_program_that_hangs_holds_up_its_own_hosts_alone(tmp_path: Path) -> None:
    wait, path = tmp_path / "wait", tmp_path / "config"
    os.mkfifo(wait)
    path.write_text(f'Match exec "test %n != slow || read x < {wait}"\nPort 3\n')
    config = SshConfig(str(path))
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(config.resolve, Target("slow"))
        try:
            with open(wait, "w") as let_go:  # opens when the program reads
                assert good(config.resolve(Target("quick"))).port == 3
                assert not slow.done()
                let_go.write("x\n")
            assert good(slow.result(60)).port == 3
        finally:
            os.close(os.open(wait, os.O_RDWR | os.O_NONBLOCK))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("PKCS11Provider /usr/lib/x.so", "pkcs11provider"),
        ("SecurityKeyProvider /usr/lib/x.so", "securitykeyprovider"),
        ("CanonicalizeHostname always", "canonicalizehostname"),
        ("RemoteCommand tmux", "remotecommand"),
        ("KnownHostsCommand /bin/x", "knownhostscommand"),
        ("RevokedHostKeys /x", "revokedhostkeys"),
        ("PreferredAuthentications gssapi-with-mic,hostbased", "publickey"),
        ("BatchMode yes\nPubkeyAuthentication no", "allows no way to log in"),
        ("Match sessiontype shell\nUser a", "sessiontype"),
        ("Match version 10*\nUser a", "version"),
        ("IdentityFile /x/%T", "%T"),
        ("IdentityFile ${NO_SUCH_VARIABLE_HERE}/x", "NO_SUCH_VARIABLE_HERE"),
        ("IdentityFile ~nosuchuserhere/x", "nosuchuserhere"),
        ("NoSuchOption 1", "nosuchoption"),
        ("IdentityFile ~a\0b/x", "config:1: a NUL byte"),
        ("Host other\nInclude ~a\0b/*", "config:2: a NUL byte"),
    ],
)
def test_refused_and_named(resolve: Resolve, text: str, why: str) -> None:
    failure = resolve(text)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.CONFIG
    assert why in failure.why
    assert "--transport ssh" in (failure.hint or "")


def test_match_tagged(resolve: Resolve) -> None:
    """OpenSSH has it since 9.4, which ``test_same_as_ssh`` may not find."""
    config = "Host node\nTag fast\nMatch tagged fast\nPort 3\nMatch tagged slow\nUser other"
    found = good(resolve(config))
    assert (found.port, found.user == "other") == (3, False)
    assert good(resolve(config, "another")).port == 22


def test_a_host_that_the_config_refuses(resolve: Resolve) -> None:
    failure = resolve("Host other\nRefuseConnection no\nHost *\nRefuseConnection not from here")
    assert isinstance(failure, Failure)
    assert failure.why.endswith("config:4: refuseconnection: not from here")


@pytest.mark.parametrize(
    "text",
    [
        "HostName -oProxyCommand=x",
        'HostName "a b"',
        "HostName a;b",
        "HostName $(x)",
        'User "-l"',
        'User "$(touch x)"',
        "User `x`",
        "ProxyJump -oProxyCommand=x",
        "ProxyJump a;b",
        "ProxyJump $(x)@h",
        "HostKeyAlias a/../b",
    ],
)
def test_hostile_values(resolve: Resolve, text: str) -> None:
    failure = resolve(text)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.CONFIG


def test_no_token_becomes_a_shell_word(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "config"
    path.write_text('Match exec "test -n %r"\nUser x\n')
    for user in ("a;touch " + str(mark), "$(touch x)", "a\\", "a'b", "a b"):
        failure = SshConfig(str(path)).resolve(Target("node", user=user))
        assert isinstance(failure, Failure)
    # allowed in a name, but not plain in a shell
    failure = SshConfig(str(path)).resolve(Target("node", user="dom\\user"))
    assert isinstance(failure, Failure)
    assert not mark.exists()


NODE = Target("node")


class Home:
    """A user's folder and the system's; what is written there is the user's alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user, self.system = folder / ".ssh", folder / "etc"
        for place in (self.user, self.system):
            place.mkdir()

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def config(self, path: str | None = None) -> SshConfig:
        local = Local("me", os.getuid(), str(self.folder), "here")
        return SshConfig(path, local=local, environ={"SUB": "sub"}, system_dir=str(self.system))

    def port(self, path: str | None = None) -> int | str:
        """The port of the node; else why there is none."""
        found = self.config(path).resolve(NODE)
        return found.port if isinstance(found, HostConfig) else found.why


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_nothing_at_all_is_read(home: Home) -> None:
    home.write(".ssh/config", "Port 1\n")
    home.write("etc/ssh_config", "Port 2\n")
    assert [home.port(), home.port("none"), home.port("NONE")] == [1, 22, 22]


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("Include one", 1), ("Include {user}/one", 1), ("Include ~/.ssh/one", 1),
        ("Include on?", 1), ("Include ${{SUB}}/*", 2), ("Include missing\nPort 9", 9),
        ("Include missing sub/b one", 2), ("Include two*", 3),
    ],
)  # fmt: skip
def test_files_that_are_included(home: Home, text: str, port: int) -> None:
    home.write(".ssh/config", text.format(user=home.user) + "\n")
    for name, number in (("one", 1), ("sub/b", 2), ("two-b", 4), ("two-a", 3)):
        home.write(f".ssh/{name}", f"Port {number}\n")
    home.write("etc/one", "Port 8\n")
    assert home.port() == port


def test_a_system_file_includes_its_own(home: Home) -> None:
    home.write("etc/ssh_config", "Include one\n")
    home.write("etc/one", "Port 8\n")
    home.write(".ssh/one", "Port 1\n")
    assert home.port() == 8
    path = home.write("etc/one", "Port 8\n", 0o666)
    assert home.port() == f"{path}: bad owner or permissions: others could change it"
    home.write("etc/ssh_config", "Include ~/.ssh/one\n")
    assert home.port() == f"{home.system}/ssh_config:1: Include: ~ in a system file"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660, 0o602, 0o620])
def test_others_must_not_write_there(home: Home, mode: int) -> None:
    for name, text in ((".ssh/config", "Port 1\n"), (".ssh/config", "Include one\n")):
        path = home.write(name, text, 0o600 if "Include" in text else mode)
        if "Include" in text:
            path = home.write(".ssh/one", "Port 1\n", mode)
        problem = f"{path}: bad owner or permissions: others could change it"
        assert home.port() == (problem if mode & 0o022 else 1)
    given = home.write("given", "Port 5\n", mode)
    assert home.port(str(given)) == 5  # what is named by -F is as it is given
    failure = home.config().resolve(NODE)
    if isinstance(failure, Failure):
        assert failure.hint == f"chmod 600 {home.user / 'one'}"


@pytest.mark.parametrize(("owner", "good"), [(0, True), (1000, True), (1001, False)])
def test_whose_a_file_is(
    home: Home, monkeypatch: pytest.MonkeyPatch, owner: int, good: bool
) -> None:
    home.write(".ssh/config", "Port 1\n")
    real = os.fstat

    def owned(fd: int) -> os.stat_result:
        found = list(real(fd))
        found[4] = owner
        return os.stat_result(found)

    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", owned)
    assert (home.port() == 1) is good


def test_a_file_is_read_once_for_all_hosts(home: Home) -> None:
    path = home.write("given", "Host node\nPort 1\n")
    config = home.config(str(path))
    for name, port in (("node", 1), ("other", 22)):
        found = config.resolve(Target(name))
        assert isinstance(found, HostConfig)
        assert found.port == port
        path.write_text("Port 9\n")


def test_files_that_cannot_be_read(home: Home) -> None:
    failure = home.config(str(home.folder / "no")).resolve(NODE)
    assert isinstance(failure, Failure)
    assert (failure.why, failure.hint) == (
        f"{home.folder}/no: no such file", "give another -F file",
    )  # fmt: skip
    assert home.port(str(home.user)) == f"{home.user}: Is a directory"
    os.mkfifo(home.user / "config")
    assert home.port(None) == f"{home.user}/config: Not a regular file"


def test_a_chain_of_files_has_an_end(home: Home) -> None:
    for depth in range(20):
        home.write(f".ssh/f{depth}", f"Include f{depth + 1}\nPort {depth + 1}\n")
    home.write(".ssh/config", "Include f4\n")
    assert home.port() == 20  # 17 files, one below the other
    home.write(".ssh/config", "Include f3\n")
    assert "more than 16 files include each other" in str(home.port())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('Host ""', "config:1: Host: empty pattern"),
        ('Host a\nUser ""', "config:2: user: empty value"),
        ("Match host", "config:1: Match host: no value"),
        ("Match bogus x", "config:1: Match bogus: not understood"),
        ("Match all host x", "config:1: Match all cannot be combined"),
        ("IdentityFile a b", "config:1: identityfile: more than one value"),
        ("NoSuchThing x", "config:1: unknown option 'nosuchthing'"),
        ("Port", "config:1: Port: no value"),
        ('User "a', "config:1: no closing quote"),
        ("User a\0b", "config:1: a NUL byte"),
    ],
)
def test_what_cannot_be_read(home: Home, text: str, why: str) -> None:
    path = home.write("config", text + "\n")
    assert why in str(home.port(str(path)))


# -- programs that answer -----------------------------------------------------------------------


@pytest.fixture
def answers() -> ProgramAnswers:
    return ProgramAnswers()


def test_a_command_is_asked_once(
    answers: ProgramAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    for shell in ("/bin/sh", ""):
        monkeypatch.setenv("SHELL", shell)
        for code in (0, 3):
            command = f"echo {code} >> {log}; exit {code}"
            for _ in range(2):
                assert answers.succeeds(command, "here") is (code == 0)
    assert log.read_text() == "0\n3\n"


def test_it_is_asked_by_the_shell_of_the_user(
    answers: ProgramAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "shell"
    mine.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/words\n')
    mine.chmod(0o755)
    monkeypatch.setenv("SHELL", str(mine))
    assert answers.succeeds("a  b", "here")
    assert (tmp_path / "words").read_text() == "-c|a  b|"


def test_what_it_leaves_running_is_not_waited_for(answers: ProgramAnswers, tmp_path: Path) -> None:
    got: list[bool] = []
    command = f"sleep 1000 & echo $! > {tmp_path}/pid"
    asking = threading.Thread(
        target=lambda: got.append(answers.succeeds(command, "here")), daemon=True
    )
    asking.start()
    asking.join(60)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert got == [True]


def test_a_program_that_does_not_answer(
    answers: ProgramAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EXEC_SECONDS", 0.05)
    with pytest.raises(ConfigProblem, match=r"^here: Match exec: no answer in 0 s"):
        answers.succeeds("exec sleep 1000", "here")


def test_a_program_that_is_not_there(
    answers: ProgramAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/no/such/shell")
    with pytest.raises(ConfigProblem, match=r"^here: Match exec: /no/such/shell: No such file"):
        answers.succeeds("true", "here")


Asked = list[tuple[tuple[str, ...], bytes]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bytes], Asked]:
    """What ssh is asked; it answers so."""

    def answering(code: int, said: bytes) -> Asked:
        heard: Asked = []

        def run(argv: tuple[str, ...], **options: object) -> subprocess.CompletedProcess[bytes]:
            text = options["input"]
            assert isinstance(text, bytes)
            heard.append((argv, text))
            return subprocess.CompletedProcess(argv, code, said)

        monkeypatch.setattr(subprocess, "run", run)
        return heard

    return answering


@pytest.mark.parametrize(
    ("said", "holds"),
    [
        (b"host host\nuser criterion-holds\nport 22\n", True),
        (b"user me\nport 22\n", False),
        (b"x user criterion-holds\n", False),
        (b"", False),
    ],
)
def test_what_ssh_says_of_a_criterion(
    answers: ProgramAnswers, asked: Callable[[int, bytes], Asked], said: bytes, holds: bool
) -> None:
    heard = asked(0, said)
    for _ in range(2):
        assert answers.ssh_holds("localnetwork", "10.0.0.0/8,!10.1.0.0/16", "here") is holds
    ((argv, text),) = heard
    assert argv == ("ssh", "-G", "-F", "/dev/stdin", "--", "host")
    assert text == b"Match localnetwork 10.0.0.0/8,!10.1.0.0/16\nUser criterion-holds\n"


def test_a_criterion_that_ssh_does_not_know(
    answers: ProgramAnswers, asked: Callable[[int, bytes], Asked]
) -> None:
    heard = asked(255, b"user criterion-holds\n")
    with pytest.raises(ConfigProblem, match=r"^here: Match localnetwork: not understood by"):
        answers.ssh_holds("localnetwork", "10.0.0.0/8", "here")
    with pytest.raises(ConfigProblem, match=r"^here: Match localnetwork: bad value 'a b'"):
        answers.ssh_holds("localnetwork", "a b", "here")
    assert len(heard) == 1
