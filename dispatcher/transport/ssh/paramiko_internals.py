"""All code that reaches into paramiko: its packets, channels and connections, fit for thousands.

No other file may use private names of paramiko; ``test_paramiko_internals`` lists them.
``docs/design/ssh.md`` explains each change to it.

Imported only after ``paramiko_transport.preload``: importing paramiko costs time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from typing import Any

import paramiko
from paramiko import common
from paramiko.auth_handler import AuthHandler
from paramiko.channel import Channel
from paramiko.kex_gex import KexGexSHA256
from paramiko.kex_group14 import KexGroup14SHA256
from paramiko.kex_group16 import KexGroup16SHA512
from paramiko.message import Message
from paramiko.packet import Packetizer
from paramiko.ssh_exception import SSHException

from dispatcher.transport.base import Asides, RecvBuffer
from dispatcher.transport.ssh.byte_stream import ByteStream, read_identification

#: seconds of silence after which we look after a host: more than between two heartbeats
SILENCE_CHECK = 7.5
#: bytes a peer may send before we have read: the bound on memory a link
WINDOW = 1 << 20

_MAX_PACKET = 32768
_MAX_READ = 1 << 18  # no honest packet is larger: the protocol's own limit is 35000
#: packets without data that a peer may send at once, and a second for ever, of some 6 us each; how
#: many of them one counts that asks for new keys (paid back for each MiB of data) or for an answer,
#: and so many bytes of any; a channel's end pays back all that an honest one has brought
MOST_ASIDES, ASIDES_RATE = 4_000, 500.0
_COSTS = {
    common.MSG_KEXINIT: 200.0, common.MSG_GLOBAL_REQUEST: 3.0, common.MSG_CHANNEL_REQUEST: 3.0,
    common.MSG_CHANNEL_OPEN: 3.0,
}  # fmt: skip
_COUNTS_AS_ONE = 8 << 10
#: message numbers of a key exchange (RFC 4250, 4.1.2), and bytes of one: honest ones have 4 KiB at
#: most; paramiko takes the lists in them, and the numbers, in time that grows with their square
_OF_KEYS, _MAX_OF_KEYS = range(20, 50), 8 << 10
#: seconds of work for new keys that count as one more, so that no host takes more of a core for
#: ever than a twentieth; an exchange takes 2 to 40 ms
_WORK = 1e-4
#: bytes of a secret of ours: twice the 256 bits of the longest key of a cipher, as with OpenSSH
_SECRET = 64
_CHANNEL = 8.0
#: messages that are held back for new keys, of 32 KB at most; a writer with more data waits.
#: Small ones go on: a jump host may have four for each of 4,000 hosts behind it; 1 KB here each
_MOST_HELD, _MOST_SMALL = 32, 16_384
#: bytes of ours that were taken, for one packet that reports it
_TAKEN = 1 << 10
_MOST_EXTENSIONS = 64
_STACK = 512 * 1024
_REFUSALS = {1: "prohibited", 2: "connect failed", 3: "unknown kind", 4: "short of resources"}
_stack_lock = threading.Lock()

#: the algorithms of this paramiko, by their purpose
SUPPORTED: dict[str, Container[str]] = {
    "ciphers": paramiko.Transport._cipher_info,
    "macs": paramiko.Transport._mac_info,
    "kex": paramiko.Transport._kex_info,
    "host_keys": paramiko.Transport._key_info,
    "pubkeys": paramiko.Transport._key_info,
}


class Misbehaved(SSHException):  # type: ignore[misc]
    """The peer broke a bound that protects our memory."""


class BoundedPacketizer(Packetizer):  # type: ignore[misc]
    """Packets of one connection: bounded, without a timer; knows when the host last sent."""

    last_received = 0.0  # when the last bytes came
    silent: Callable[[float], None]  # gets the seconds for which nothing came

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(stream)
        self._asides = Asides(MOST_ASIDES, ASIDES_RATE)
        self._began: float | None = None  # this thread's CPU when it got a packet of new keys

    def read_message(self) -> Any:
        """As paramiko's: the next packet. Raises: Misbehaved where too many bring no data."""
        if self._began is not None:
            self._charge((time.thread_time() - self._began) / _WORK)
            self._began = None
        kind, message = super().read_message()
        size = message.packet.getbuffer().nbytes
        if kind in _OF_KEYS and size > _MAX_OF_KEYS:
            raise Misbehaved(f"it exchanges keys by a packet of {size:,} bytes")
        self._charge(_COSTS.get(kind, 1.0) + size / _COUNTS_AS_ONE)
        if kind in _OF_KEYS:
            self._began = time.thread_time()
        return kind, message

    def _charge(self, cost: float) -> None:
        if self._asides.came(cost):
            raise Misbehaved(f"a flood: more than {MOST_ASIDES:,} packets without data")

    def brought(self, nbytes: int) -> None:
        """Pay back for ``nbytes`` of data in the last packet."""
        if nbytes:
            self.paid(1.0 + nbytes * _COSTS[common.MSG_KEXINIT] / (1 << 20))

    def paid(self, cost: float) -> None:
        """Pay back ``cost``: those packets had a reason."""
        self._asides.paid(cost)

    def read_all(self, n: int, check_rekey: bool = False) -> Any:
        """As paramiko's: the next ``n`` bytes. Raises: Misbehaved where no packet has so many."""
        if n > _MAX_READ:
            raise Misbehaved(f"it announces a packet of {n} bytes")
        found = super().read_all(n, check_rekey)
        self.last_received = time.monotonic()
        return found

    def _check_keepalive(self) -> None:
        """paramiko calls it when nothing came for ``_active_check_timeout``."""
        self.silent(time.monotonic() - self.last_received)

    def sends(self) -> bool:
        """Whether a thread is sending, and maybe for long."""
        free = self._Packetizer__write_lock.acquire(blocking=False)
        if free:
            self._Packetizer__write_lock.release()
        return not free

    def start_handshake(self, timeout: float) -> None:
        """Do nothing: the caller keeps the deadlines, and a timer would be one more thread."""

    def _log(self, level: int, msg: Any) -> None:
        pass


def _short_secret(exchange: Any) -> None:
    """Choose a secret in place of paramiko's, which is twice as long or as long as the group."""
    exchange.x = int.from_bytes(os.urandom(_SECRET), "big")


class Group14(KexGroup14SHA256):  # type: ignore[misc]
    """Diffie-Hellman in a group of 2048 bits."""

    _generate_x = _short_secret


class Group16(KexGroup16SHA512):  # type: ignore[misc]
    """Diffie-Hellman in a group of 4096 bits."""

    _generate_x = _short_secret


class HostsGroup(KexGexSHA256):  # type: ignore[misc]
    """Diffie-Hellman in a group that the host chooses, within our limit."""

    max_bits = 4096
    _generate_x = _short_secret

    def _parse_kexdh_gex_group(self, m: Any) -> None:
        bits = m.get_mpint().bit_length()
        if not self.min_bits <= bits <= self.max_bits:
            raise Misbehaved(f"it chooses a group of {bits:,} bits")
        m.rewind()
        super()._parse_kexdh_gex_group(m)


class SshChannel(Channel):  # type: ignore[misc]
    """A channel that holds the peer to its window and knows how the command ended."""

    def __init__(self, chanid: int, window: int) -> None:
        super().__init__(chanid)
        # paramiko's own copies every byte into an array and out again
        self.in_buffer, self.in_stderr_buffer = RecvBuffer(), RecvBuffer()
        self.refusal = ""
        self.exit_code: int | None = None
        self.exit_signal: str | None = None
        self.on_status: Callable[[], None] = lambda: None
        self._granted = window  # grown before the peer gets the grant: see acknowledge
        self._received = 0
        self._untold = 0  # bytes of ours that the host has not acknowledged
        self._unsent: deque[Message] = deque()
        self._sending = threading.Lock()

    def expect_reply(self) -> None:
        """``event`` is set when the request that is sent next is answered, or the end has come."""
        self._event_pending()

    # -- what is sent ------------------------------------------------------------

    def send_message(self, message: Any) -> bool:
        """Send a message about this channel, unless it is closed: then False."""
        with self.lock:
            if self.closed:
                return False
            self._unsent.append(message)
        self._send_in_turn()
        return True

    def shutdown_write(self) -> None:
        """As paramiko's: end the command's input; earlier data goes first."""
        with self.lock:
            end = None if self.closed else self._send_eof()
            if end is not None:
                self._unsent.append(end)
        self._send_in_turn()

    def close(self) -> None:
        """As paramiko's: close both directions; earlier data goes first."""
        with self.lock:
            self._unsent.extend(last for last in self._close_internal() if last is not None)
        self._send_in_turn()

    def _handle_close(self, m: Any) -> None:
        with self.lock:
            self._unsent.extend(last for last in self._close_internal() if last is not None)
            self.transport._unlink_channel(self.chanid)
        self.transport.packetizer.paid(_CHANNEL)
        self._send_in_turn()

    def _send(self, s: bytes, m: Any) -> int:
        self.transport.wait_for_room()
        with self.lock:
            if self.closed:
                raise OSError("socket is closed")
            size = int(self._wait_for_send_window(len(s)))
            if size:
                m.add_string(s[:size])
                self._unsent.append(m)
                self._untold += size
        self._send_in_turn()
        return size

    def _send_in_turn(self) -> None:
        """Send what is unsent; a thread that sends already goes on with data that others add.

        The channel's lock is not held: its reader needs it, also while a writer waits
        for the host to take what it sends.
        """
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                while self._unsent:
                    self.transport._send_user_message(self._unsent.popleft())
            finally:
                self._sending.release()

    # -- what has come -----------------------------------------------------------

    def take(self, stream: RecvBuffer, limit: int) -> bytes | None:
        """Up to ``limit`` bytes of a stream; ``None``: none now; ``b""``: the end."""
        data = stream.take(limit)
        if data:
            self._acknowledge(len(data))
        return data

    def recv(self, nbytes: int) -> bytes:
        """As a socket; for a session that runs through this channel."""
        data = self.in_buffer.wait(nbytes, self.timeout)
        if data:
            self._acknowledge(len(data))
        return data

    def _acknowledge(self, size: int) -> None:
        grant = self._check_add_window(size)
        if grant > 0:
            self._granted += grant
            message = Message()
            message.add_byte(common.cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self.remote_chanid)
            message.add_int(grant)
            try:
                self.send_message(message)
            except (EOFError, OSError, SSHException):
                pass  # the connection is gone; the end is in the buffer already

    def _count(self, size: int) -> None:
        self._received += size
        if self._received > self._granted:
            raise Misbehaved("it sends more than its window allows")
        self.transport.packetizer.brought(size)

    def on_data(self, m: Any) -> None:
        """Standard output has come. Raises: Misbehaved for more than was granted."""
        data = m.get_binary()
        self._count(len(data))
        self.in_buffer.feed(data)

    def on_extended_data(self, m: Any) -> None:
        """As ``on_data``, of standard error (kind 1; others are dropped, RFC 4254, 5.2)."""
        code, data = m.get_int(), m.get_binary()
        self._count(len(data))
        if code == 1:
            self.in_stderr_buffer.feed(data)

    def on_window(self, m: Any) -> None:
        """The host takes more. A packet that acknowledges our data is not counted."""
        more = m.get_int()
        with self.lock:
            taken = min(more, self._untold)
            self._untold -= taken
            self.out_window_size += more
            self.out_buffer_cv.notify_all()
        self.transport.packetizer.paid(min(1.0, taken / _TAKEN))

    def on_request(self, m: Any) -> None:
        """The host reports how the command ended (RFC 4254, 6.10), or asks what we refuse."""
        kind, wants_reply = m.get_binary(), m.get_boolean()
        if kind == b"exit-status":
            self.exit_code = min(m.get_int(), 255)
            self._end_is_known()
        elif kind == b"exit-signal":
            name = m.get_binary()[:80].decode("utf-8", "replace")
            self.exit_signal = "".join(c for c in name[:20] if c.isalnum() or c in "@.-")
            self._end_is_known()
        if wants_reply:
            reply = Message()
            reply.add_byte(common.cMSG_CHANNEL_FAILURE)
            reply.add_int(self.remote_chanid)
            self.send_message(reply)

    def _set_closed(self) -> None:
        super()._set_closed()
        self.on_status()  # the buffers rang before the end was known

    def _end_is_known(self) -> None:
        self.status_event.set()
        self.on_status()

    def _log(self, level: int, msg: str, *args: Any) -> None:
        pass


def request(channel: SshChannel, name: str, *, wants_reply: bool) -> Any:
    """The start of a channel request; the caller adds its contents."""
    message = Message()
    message.add_byte(common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string(name)
    message.add_boolean(wants_reply)
    return message


class Login(AuthHandler):  # type: ignore[misc]
    """One attempt to log in. Hands to the connection the answers of a host that paramiko drops.

    A host's question (RFC 4256) ends the wait for the attempt, too: it may take a person to answer,
    and this is the connection's own thread. So does its answer that it takes a key that
    ``asks_first`` (RFC 4252, 7): ``sign`` comes next.
    """

    _is_wanted = True  # the login has still to be sent
    takes_key = False  # the host has said so
    unfit = ""  # why the key cannot sign for this host
    _algorithm = ""
    _asks = False

    def _request_auth(self) -> None:
        """As paramiko's, but once a connection: saves a round trip for each key."""
        if self.transport.serves_logins:
            accepted = Message()
            accepted.add_string("ssh-userauth")
            self._parse_service_accept(Message(accepted.asbytes()))
        else:
            super()._request_auth()

    def _parse_service_accept(self, m: Any) -> None:
        """Send the login, but once: each time would let a key sign again."""
        if not self._is_wanted:
            raise Misbehaved("it asks for the same login again")
        self._is_wanted = False
        self.transport.serves_logins = True
        if self.auth_method != "publickey":
            super()._parse_service_accept(m)
            return
        key = self.private_key
        try:
            self._algorithm = self._finalize_pubkey_algorithm(self._get_key_type_and_bits(key)[0])
        except SSHException:
            self.unfit = "the host does not take RSA with SHA-2"
            self.auth_event.set()
            return
        self._asks = getattr(key, "asks_first", False)
        if self._asks:
            self._send_key(b"")
        else:
            self.sign()

    def sign(self) -> None:
        """Log in by the key. Raises: the key's own error where it does not sign."""
        key: Any = self.private_key
        algorithm = self._algorithm
        blob = self._get_session_blob(key, "ssh-connection", self.username, algorithm)
        self._send_key(key.sign_ssh_data(blob, algorithm))

    def _send_key(self, signature: Any) -> None:
        message = Message()
        message.add_byte(common.cMSG_USERAUTH_REQUEST)
        for text in (self.username, "ssh-connection", "publickey"):
            message.add_string(text)
        message.add_boolean(bool(signature))
        message.add_string(self._algorithm)
        message.add_string(self._get_key_type_and_bits(self.private_key)[1])
        if signature:
            message.add_string(signature)
        self.transport._send_user_message(message)

    def _parse_userauth_failure(self, m: Any) -> None:
        self.transport.on_refusal(m.get_list())
        m.rewind()
        super()._parse_userauth_failure(m)

    def _parse_userauth_info_request(self, m: Any) -> None:
        if self.auth_method == "password":  # the same number says: change it (RFC 4252, 8)
            self.transport.on_expired()
        elif self._asks and not (self.takes_key or self.authenticated):  # or: it takes the key
            self.takes_key = True
        elif self.auth_method != "keyboard-interactive" or self.authenticated:
            raise Misbehaved("it asks a question that does not belong to this login")
        else:
            self.transport.on_question(m)
        if self.auth_event is not None:
            self.auth_event.set()

    def forget(self) -> None:
        """Keep nothing secret: paramiko holds this object as long as the connection lasts."""
        self.password = self.private_key = None
        self._is_wanted = False


class Connection(paramiko.Transport):  # type: ignore[misc]
    """One SSH connection and its thread; a class derived from it decides what is done with it.

    offers: algorithms by their purpose, as in ``SUPPORTED``.
    """

    active: Any  # paramiko's; turns False on another thread, at any moment
    _active_check_timeout = SILENCE_CHECK
    _kex_info = {  # noqa: RUF012 - paramiko's own way
        **paramiko.Transport._kex_info,
        **{exchange.name: exchange for exchange in (Group14, Group16, HostsGroup)},
    }
    _channel_handler_table = {  # noqa: RUF012 - paramiko's own way: message number -> function
        **paramiko.Transport._channel_handler_table,
        # paramiko's table holds its own class's functions: ours would not be called.
        common.MSG_CHANNEL_DATA: lambda channel, m: channel.on_data(m),
        common.MSG_CHANNEL_EXTENDED_DATA: lambda channel, m: channel.on_extended_data(m),
        common.MSG_CHANNEL_REQUEST: lambda channel, m: channel.on_request(m),
        common.MSG_CHANNEL_WINDOW_ADJUST: lambda channel, m: channel.on_window(m),
    }

    def __init__(self, stream: ByteStream, offers: dict[str, tuple[str, ...]]) -> None:
        super().__init__(stream, packetizer_class=BoundedPacketizer, strict_kex=True)
        self.stream = stream
        self.before_banner = ""
        self.goodbye = ""
        self.serves_logins = False  # the host has said so
        self.host_key_types: list[str] = []  # that the host has, in its own words
        self._held: deque[Message] = deque()  # until there are new keys
        self._offers = {**offers, "compression": ("none",)}
        self.packetizer.silent = self.on_silence

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self._offers["host_keys"]

    # -- what is made of it, on the connection's thread --------------------

    def on_version(self) -> None:
        """The host has said that it speaks SSH 2."""

    def on_host_key(self, key: bytes) -> None:
        """The host has proved to hold this key. Raises: SSHException where it is not trusted."""

    def on_silence(self, seconds: float) -> None:
        """Nothing was heard for so long. Raises: SSHException to give the host up."""

    def on_answer(self) -> None:
        """A global request of ours was answered, be it with a refusal."""

    def on_refusal(self, ways: list[str]) -> None:
        """The host refused a login, and says which ways it takes."""

    def on_question(self, m: Any) -> None:
        """The host asks something before it lets us in. Raises: SSHException for too much."""

    def on_expired(self) -> None:
        """The password was right, and the host wants another to be set."""

    # -- channels ------------------------------------------------------------------

    def new_channel(self, opened: Any) -> SshChannel:
        """A channel to be asked for; ``opened.set`` is called, on our thread, with the answer."""
        with self.lock:
            number = self._next_channel()
            channel = SshChannel(number, WINDOW)
            self._channels.put(number, channel)
            self.channel_events[number] = opened
            self.channels_seen[number] = True
            channel._set_transport(self)
            channel._set_window(WINDOW, _MAX_PACKET)
            channel.in_window_threshold = WINDOW // 4  # fewer packets than with paramiko's tenth
        return channel

    def ask_for(self, channel: SshChannel, forward: tuple[str, int] | None = None) -> bool:
        """Ask the host to open ``channel``; False when the connection is gone."""
        message = Message()
        message.add_byte(common.cMSG_CHANNEL_OPEN)
        message.add_string("direct-tcpip" if forward else "session")
        for value in (channel.chanid, WINDOW, _MAX_PACKET):
            message.add_int(value)
        if forward:
            for host, port in (forward, ("127.0.0.1", 0)):
                message.add_string(host)
                message.add_int(port)
        return self.send(message)

    def wait_for_room(self) -> None:
        """Wait while much is held back. Raises: SSHException where new keys are too late."""
        limit = self.clear_to_send_timeout
        if len(self._held) >= _MOST_HELD and not self.clear_to_send.wait(limit):
            raise SSHException("it does not end the exchange of keys")

    def send(self, message: Any) -> bool:
        """Send ``message``; whether the connection was still open then."""
        try:
            self._send_user_message(message)
        except (EOFError, OSError, SSHException):
            return False
        return bool(self.active)

    def send_message(self, channel: SshChannel, message: Any) -> bool:
        """Do as ``send``, but not after the channel's close."""
        try:
            return channel.send_message(message) and bool(self.active)
        except (EOFError, OSError, SSHException):
            return False

    # -- what paramiko calls -------------------------------------------------------

    def start(self) -> None:
        """Start the thread, with a small stack: there may be thousands."""
        with _stack_lock:
            before = threading.stack_size(_STACK)
            try:
                super().start()
            finally:
                threading.stack_size(before)

    def run(self) -> None:
        """Be the connection's thread; its end frees the descriptor."""
        try:
            super().run()
        finally:
            self.clear_to_send.set()  # a thread that waits for new keys sees the end
            self.stream.close()

    def stop_thread(self) -> None:
        """As paramiko's, without its wait, which looks at a private name of the socket."""
        self.active = False
        self.packetizer.close()

    def _send_user_message(self, data: Any) -> None:
        """As paramiko's, but during an exchange of keys it only queues the message."""
        with self.clear_to_send_lock:
            if not self.active:
                return
            if not self._held and self.clear_to_send.is_set():
                self._send_message(data)
            elif len(self._held) < _MOST_SMALL:
                self._held.append(data)
            else:
                raise Misbehaved("it does not end the exchange of keys")

    def _parse_newkeys(self, m: Any) -> None:
        super()._parse_newkeys(m)
        with self.clear_to_send_lock:
            while self._held and self.clear_to_send.is_set():
                self._send_message(self._held.popleft())

    def _really_parse_kex_init(self, m: Any, ignore_first_byte: bool = False) -> Any:
        parsed = super()._really_parse_kex_init(m, ignore_first_byte)
        if not ignore_first_byte:  # else it is our own
            self.host_key_types = parsed["server_key_algo_list"]
        return parsed

    def _filter_algorithm(self, kind: str) -> Any:
        """The algorithms that we offer, narrowed once; paramiko asks 60 times a handshake."""
        return self._offers[kind]

    def _parse_debug(self, m: Any) -> None:
        """Do nothing: paramiko escapes sshd's text about each login for a log without a reader."""

    def _check_banner(self) -> None:
        try:
            version, self.before_banner = read_identification(self.stream)
        except EOFError as end:
            self.before_banner = str(end)
            raise
        except ValueError as error:
            raise SSHException(str(error)) from None
        if not version.startswith(("SSH-2.0-", "SSH-1.99-")):
            raise SSHException(f"it speaks another protocol: {version[:40]!r}")
        self.remote_version = version
        self.on_version()

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        super()._verify_key(host_key, sig)
        self.on_host_key(host_key)

    def _parse_request_success(self, m: Any) -> None:
        self.on_answer()

    _parse_request_failure = _parse_request_success  # sshd refuses each request of ours

    def _parse_ext_info(self, m: Any) -> None:
        count = m.get_int()
        if count > _MOST_EXTENSIONS:
            raise Misbehaved(f"it names {count:,} extensions")
        self.server_extensions = {
            m.get_string().decode("utf-8", "replace"): m.get_string() for _ in range(count)
        }

    def _parse_disconnect(self, m: Any) -> None:
        m.get_int()
        text = m.get_string().decode("utf-8", "replace")
        self.goodbye = "".join(c for c in text if c.isprintable())[:200]

    def _parse_channel_open_failure(self, m: Any) -> None:
        number, reason = m.get_int(), m.get_int()
        text = m.get_string().decode("utf-8", "replace")
        words = "".join(c for c in text if c.isprintable())[:200]
        with self.lock:
            channel = self._channels.get(number)
            opened = self.channel_events.pop(number, None)
            self._channels.delete(number)
        if isinstance(channel, SshChannel) and opened is not None:
            name = _REFUSALS.get(reason, f"reason {reason}")
            channel.refusal = f"{name}: {words.lower()}" if words else name
            opened.set()

    def _log(self, level: int, msg: Any) -> None:
        pass
