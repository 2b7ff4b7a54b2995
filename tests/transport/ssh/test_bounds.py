"""What a hostile or broken peer can cost us: memory, time, descriptors, and no more."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import cases
from open_files import open_files

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import Link, Target
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport, preload
from dispatcher.transport.ssh.session import CIPHERS, KEX, MACS
from dispatcher.transport.ssh_config.config_lines import narrow

from .. import hostile
from ..conftest import gather
from ..sshd import ADDRESS, Sshd, start_sshd


@pytest.fixture(scope="module", autouse=True)
def _paramiko() -> None:
    preload()


class EvilServer:
    """An SSH server made of paramiko that accepts anybody and then misbehaves."""

    def __init__(self, folder: Path, act: object) -> None:
        import paramiko

        self._act = act
        self._key = paramiko.ECDSAKey.generate()
        self.folder = folder
        self.opened = threading.Event()  # the client has its link

    def config(self, port: int) -> str:
        known = self.folder / "known_hosts"
        known.write_text(f"[{ADDRESS}]:{port} {self._key.get_name()} {self._key.get_base64()}\n")
        from ..sshd import keygen

        path = self.folder / "config"
        path.write_text(
            f"HostName {ADDRESS}\nPort {port}\nUser any\nIdentityAgent none\n"
            f"IdentityFile {keygen(self.folder / 'key')}\nUserKnownHostsFile {known}\n"
            "GlobalKnownHostsFile none\n"
        )
        return str(path)

    def serve(self, connection: socket.socket) -> None:
        import paramiko

        class Anybody(paramiko.ServerInterface):  # type: ignore[misc]
            def check_auth_publickey(self, username: str, key: object) -> int:
                return int(paramiko.AUTH_SUCCESSFUL)

            def get_allowed_auths(self, username: str) -> str:
                return "publickey"

            def check_channel_request(self, kind: str, chanid: int) -> int:
                return int(paramiko.OPEN_SUCCEEDED)

            def check_channel_exec_request(self, channel: object, command: bytes) -> bool:
                return True

        transport = paramiko.Transport(connection)
        transport.add_server_key(self._key)
        transport.start_server(event=threading.Event(), server=Anybody())
        channel = transport.accept(20)
        assert channel is not None
        self.opened.wait(60)  # sooner it could be gone before its last answer was sent
        try:
            assert callable(self._act)
            self._act(channel)
        finally:
            transport.close()


def evil_link(folder: Path, act: object) -> Iterator[Link]:
    server = EvilServer(folder, act)
    with hostile.listener(server.serve) as port:
        transport = ParamikoTransport(config=server.config(port))
        link = transport.open(Target("evil"), "true", time.monotonic() + 40)
        assert isinstance(link, Link), link
        server.opened.set()
        yield link
        link.close()
        transport.close()


def test_flood_beyond_the_window_ends_the_link(
    tmp_path: Path, most_held: Callable[[], int]
) -> None:
    sent = threading.Event()

    def flood(channel: object) -> None:
        channel.out_window_size = 1 << 30  # type: ignore[attr-defined]
        try:
            for _ in range(200):
                channel.sendall(b"x" * (1 << 20))  # type: ignore[attr-defined]
        except (OSError, EOFError):
            pass
        sent.set()

    for link in evil_link(tmp_path, flood):
        assert sent.wait(60)
        output, _ = gather(link)  # what was within bounds, then the end
        assert len(output) <= (1 << 20)
        assert link.ending(30).code is None
    assert most_held() < 32 << 20


def test_huge_packet_announced(sshd: Sshd) -> None:
    def announce(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-x\r\n" + b"\x7f\xff\xff\xff" + b"\x00" * 100)

    with hostile.listener(announce) as port:
        config = Path(sshd.config("huge"))
        config.write_text(config.read_text().replace(f"Port {sshd.port}", f"Port {port}"))
        transport = ParamikoTransport(config=str(config))
        failure = transport.open(Target("huge"), "true", time.monotonic() + 40)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.PROTOCOL
    assert "packet" in failure.why


def test_what_is_agreed_on(sshd: Sshd) -> None:
    from dispatcher.transport.ssh.session import ParamikoLink

    transport = ParamikoTransport(config=sshd.config())
    link = transport.open(Target("node"), "true", time.monotonic() + 40)
    assert isinstance(link, ParamikoLink)
    session = link._session
    assert session.local_cipher == session.remote_cipher == "aes128-gcm@openssh.com"
    assert session.agreed_on_strict_kex
    link.close()
    transport.close()


def test_nothing_weak_is_offered() -> None:
    for name in (*CIPHERS, *MACS, *KEX):
        assert not any(bad in name for bad in ("cbc", "3des", "sha1", "md5", "group1-", "arcfour"))


@cases(
    ("config", "left"),
    [
        (None, CIPHERS),
        ("+3des-cbc", CIPHERS),
        ("^aes256-ctr", CIPHERS),
        ("aes256-*", ("aes256-gcm@openssh.com", "aes256-ctr")),
        ("-aes128-*,aes192-ctr", ("aes256-gcm@openssh.com", "aes256-ctr")),
        ("chacha20-poly1305@openssh.com", ()),
    ],
)
def test_config_narrows_what_is_offered(config: str | None, left: tuple[str, ...]) -> None:
    assert narrow(CIPHERS, config) == left


def test_kex_has_two_names() -> None:
    assert narrow(KEX, "curve25519-sha256") == ("curve25519-sha256@libssh.org",)


def test_rekeying_in_the_middle(tmp_path: Path) -> None:
    server = start_sshd(tmp_path / "rekey", "RekeyLimit 1M")
    transport = ParamikoTransport(config=server.config())
    try:
        size = 8_000_000
        link = transport.open(Target("node"), f"head -c {size} /dev/zero", time.monotonic() + 40)
        assert isinstance(link, Link)
        assert len(gather(link, 60)[0]) == size
        assert link.ending(30) == Ending(0)
        link.close()
        link = transport.open(Target("node"), "wc -c", time.monotonic() + 40)
        assert isinstance(link, Link)
        link.write(bytes(size))
        link.end_input()
        assert int(gather(link, 60)[0]) == size
        link.close()
    finally:
        transport.close()
        server.stop()


@pytest.mark.parametrize("name", [name for name in KEX if name.startswith("diffie-hellman")])
def test_sshd_and_we_agree_on_keys_by_a_short_secret(sshd: Sshd, name: str) -> None:
    transport = ParamikoTransport(config=sshd.config(f"by-{name}", f"KexAlgorithms {name}"))
    link = transport.open(Target(f"by-{name}"), "echo in", time.monotonic() + 40)
    assert isinstance(link, Link), link
    assert gather(link)[0] == b"in\n"
    link.close()
    transport.close()


def test_idle_links_cost_next_to_nothing(sshd: Sshd) -> None:
    transport = ParamikoTransport(config=sshd.config())
    links = [transport.open(Target("node"), "cat", time.monotonic() + 40) for _ in range(8)]
    gc.collect()
    for _ in range(3):  # what others begin in this process has an end
        spent = processor_time(2)
        if spent < 0.05:
            break
    for link in links:
        assert isinstance(link, Link)
        link.close()
    transport.close()
    assert spent < 0.05, spent  # paramiko as it comes: 8 links * 2 s * 0.5 ms/s, and more with load


def processor_time(seconds: float) -> float:
    """What this process takes of it in so many seconds."""
    began, started = time.monotonic(), time.process_time()
    threading.Event().wait(seconds)
    spent = time.process_time() - started
    return spent * seconds / (time.monotonic() - began)  # a busy machine may have woken us late


def test_one_thread_and_one_descriptor_a_link(sshd: Sshd) -> None:
    transport = ParamikoTransport(config=sshd.config())
    first = transport.open(Target("node"), "cat", time.monotonic() + 40)
    threads, files = set(threading.enumerate()), open_files()
    links = [transport.open(Target("node"), "cat", time.monotonic() + 40) for _ in range(4)]
    threads, files = set(threading.enumerate()) - threads, open_files() - files
    for link in (first, *links):
        assert isinstance(link, Link)
        link.close()
    transport.close()
    assert (len(threads), len(files)) == (4, 4)


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


def test_importing_the_transport_does_not_import_paramiko() -> None:
    code = (
        "import sys, dispatcher.transport.ssh.paramiko_transport; print('paramiko' in sys.modules)"
    )
    assert _run(code) == "False\n"


def test_preload_leaves_all_importable() -> None:
    code = (
        "import sys, threading; from dispatcher.transport.ssh.paramiko_transport import preload\n"
        "threads = [threading.Thread(target=lambda: preload(alone=True)) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert not {'invoke', 'importlib.metadata', 'email'} & set(sys.modules)\n"
        "import invoke, paramiko; from importlib.metadata import version\n"
        "print(version('paramiko') == paramiko.__version__)"
    )
    assert _run(code) == "True\n"


@cases(("first", "hides"), [("", False), ("import dispatcher.cli", True)])
def test_preload_hides_nothing_from_threads_of_others(first: str, hides: bool) -> None:
    code = (
        "import sys\n"
        "class Looks:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'paramiko.config':\n"
        "            print(sys.modules.get('invoke', 0) is None)\n"
        f"{first}\n"
        "sys.meta_path.insert(0, Looks())\n"
        "from dispatcher.transport.ssh.paramiko_transport import preload; preload()\n"
    )
    assert _run(code) == f"{hides}\n"


def test_a_failed_connection_writes_nothing_to_the_terminal(sshd: Sshd) -> None:
    with hostile.listener(hostile.web_server) as port:
        config = Path(sshd.config("web"))
        config.write_text(config.read_text().replace(f"Port {sshd.port}", f"Port {port}"))
        code = (
            "import time\n"
            "from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport as P\n"
            "from dispatcher.transport.base import Target\n"
            f"f = P(config={str(config)!r}).open(Target('web'), 'true', time.monotonic() + 40)\n"
            "print(f.kind.value)"
        )
        assert _run(code) == "protocol error\n"
