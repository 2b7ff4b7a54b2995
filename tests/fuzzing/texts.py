"""Targets: texts of files and tools, whoever wrote them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from checks import samples

from dispatcher.checks import nccl_advice, nccl_log, nccl_model, xid
from dispatcher.checks.check import Check, Reading, Seen
from dispatcher.checks.report import PREFIX, QUICK, full, make_report
from dispatcher.cli.checks import check_table, nccl
from dispatcher.cli.options import config_file
from dispatcher.core.events import codec, collectives, stack_frames, verdicts
from dispatcher.jobs import job_socket, registry
from dispatcher.model import hostset
from dispatcher.model.errors import UsageError
from dispatcher.output.text.lines import LineAssembler
from dispatcher.output.text.sanitize import sanitize_lines, sanitize_pieces, sanitize_text
from dispatcher.output.text.stacks_text import collective_line
from dispatcher.output.text.story import Tail
from dispatcher.plan.hosts import allocation
from dispatcher.plan.hosts import hostfile as hostfiles
from dispatcher.plan.job import placement
from dispatcher.plan.variables import parse_env_file
from dispatcher.remote.protocol.packing import PackError, pack
from dispatcher.transport.base import Target as SshTarget
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck, certificate_problem
from dispatcher.transport.ssh_auth.known_hosts import KnownHosts, authority_of, key_problem
from dispatcher.transport.ssh_config.config_lines import Local
from dispatcher.transport.ssh_config.host_config import HostConfig
from dispatcher.transport.ssh_config.ssh_config import SshConfig

from . import tool_seeds
from .choices import Choices
from .confined import folder
from .judging import Target

ROOT = Path(__file__).parents[2]
TARGETS: list[Target] = []


def target(
    name: str, about: str, *seeds: bytes, own: tuple[type[Exception], ...] = (), long: bool = True,
    make: Callable[[bytes], bytes] = bytes,
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:  # fmt: skip
    def add(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        TARGETS.append(Target(name, about, run, own, seeds, long, make))
        return run

    return add


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def no_group(name: str) -> list[str]:
    """What ClusterShell would answer for a group."""
    return [f"{name[:20]}-{number}" for number in range(3)]


# -- hosts --------------------------------------------------------------------------


@target(
    "hostfile", "hostfiles in every dialect",
    b"n[01-16] slots=8\nn20 port=22 user=me\n", b"host1:4\n# c\nlocalhost slots=2 env:A=b",
    b"n1,n2:2 gpus=0,1", *(file.read_bytes() for file in sorted((ROOT / "hostfiles").iterdir())),
    own=(UsageError,),
)  # fmt: skip
def hostfile(data: bytes) -> None:
    with patch.object(hostfiles, "LIMIT", 500):  # a range that is meant to be long takes its time
        for slots in (True, False):
            hostfiles.parse_hostfile(data, "hostfile", no_group, slots=slots)


@target(
    "hostset", "host ranges and groups", b"n[01-16,20]", b"a,b!c&d^e", b"@gpu,n[1-9/2]x[0-3]",
    own=(hostset.HostsetError,),
)  # fmt: skip
def sets(data: bytes) -> None:
    names = hostset.expand(as_text(data), 500, no_group)
    assert sorted(hostset.expand(hostset.fold(names), 1000, no_group)) == sorted(set(names))


@target(
    "allocation", "what batch systems say of their hosts",
    b"SLURM_JOB_ID=7\0SLURM_JOB_NODELIST=n[1-3]\0SLURM_NTASKS=6\0"
    b"SLURM_TASKS_PER_NODE=2(x3)\0\0n1\nn2\nn3",
    b"LSB_JOBID=7\0LSB_MCPU_HOSTS=n1 2 n2 4", b"JOB_ID=1\0PE_HOSTFILE=f\0\0n1 4 all.q@n1 UNDEFINED",
    b"PBS_JOBID=7\0PBS_NODEFILE=f\0\0n1\nn1\nn2", b"FLUX_JOB_ID=7\0\0n[1-3]", own=(UsageError,),
)  # fmt: skip
def grants(data: bytes) -> None:
    words, _, contents = as_text(data).partition("\0\0")
    environ = dict(word.partition("=")[::2] for word in words.split("\0"))
    rest = contents.encode("utf-8", "surrogateescape")

    def read(path: str) -> bytes:
        if path == "f":
            return rest
        raise FileNotFoundError(path)

    expand = patch.object(allocation, "expand", partial(hostset.expand, limit=500))
    with expand, patch.object(hostfiles, "LIMIT", 500):
        allocation.discover(allocation.Surroundings(environ, read, lambda _: contents))


@target("rankfile", "rankfiles", b"rank 0=n1 slot=0:1-2\nrank 1=n1 slot=p3\n", own=(UsageError,))
def rankfile(data: bytes) -> None:
    placement.parse_rankfile(as_text(data), "rankfile")


@target(
    "env-file", "files of --env-file", b"A=1\nexport B='x y'\nC=\"a\\nb\" # c", own=(UsageError,)
)  # fmt: skip
def env_file(data: bytes) -> None:
    parse_env_file(data, ".env")


@target(
    "config", "dispatch.toml",
    b'[run]\nnnodes = 2\n[profile.x.exec]\nlabel = true\n', own=(UsageError,),
)  # fmt: skip
def config(data: bytes) -> None:
    found = config_file.parse(as_text(data), "dispatch.toml", ("run", "exec"))
    for profile in (None, "x"):
        config_file.settings_chosen(found.entries("run", profile))


# -- SSH ----------------------------------------------------------------------------


class NoPrograms:
    """Answers for ``Match exec`` without running anything."""

    def succeeds(self, command: str, place: str) -> bool:
        return len(command) % 2 == 0

    def ssh_holds(self, criterion: str, value: str, place: str) -> bool:
        return len(value) % 2 == 0


@target(
    "ssh-config", "the user's ssh_config",
    b"Host n* !n1\n  User %r\n  Port 22\n  IdentityFile ~/.ssh/%h_%p\n  ProxyJump a@b:2,c\n",
    b"Match host n1 exec \"true\"\nHostName %h.lab\nConnectTimeout 1h\nInclude x\n",
    b"CanonicalizeHostname no\nUserKnownHostsFile ~/x \"a b\" ${HOME}/y\nCiphers +aes*\n",
    b"PreferredAuthentications publickey,password\nBatchMode yes\nServerAliveInterval 1m\n"
    b"ServerAliveCountMax 3\nStrictHostKeyChecking accept-new\nHostKeyAlias lab\n"
    b"IdentityAgent ~/.ssh/agent\nCertificateFile ~/.ssh/%r-cert.pub\nIdentitiesOnly=yes\n",
    b"ProxyCommand ssh -W %h:%p b\nHostKeyAlgorithms ^ssh-ed25519\nKexAlgorithms -diffie*\n"
    b"RequiredRSASize 2048\nCASignatureAlgorithms ssh-ed25519\nPubkeyAcceptedAlgorithms rsa*\n",
    b"Match user me localuser root originalhost n1 !host n2\nAddressFamily inet\nProxyJump none\n"
    b"Match all\nIgnoreUnknown x*\nxy z\nBindAddress 10.0.0.1\nConnectionAttempts 3\n",
)  # fmt: skip
def ssh_config(data: bytes) -> None:
    path = os.path.join(folder(), "config")
    with open(path, "wb") as file:
        file.write(data.lower().replace(b"include", b"exclude"))  # no other file of this machine
    local = Local.here()
    read = SshConfig(path, environ={"HOME": "/home/me"}, local=local, system_dir="/nowhere")
    read._answers = NoPrograms()  # type: ignore[assignment]
    for host in ("n1", "n2.lab"):
        read.resolve(SshTarget(host))


ED25519 = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g"
BLOB = b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(range(1, 33))


@target(
    "known-hosts", "known_hosts, and keys judged by it",
    b"n1,10.0.0.1 " + ED25519, b"@cert-authority *.lab " + ED25519 + b" c", b"[n1]:22 " + ED25519,
    b"@revoked * " + ED25519,
    b"|1|" + b"A" * 27 + b"=|" + b"A" * 27 + b"= " + ED25519,
)  # fmt: skip
def known_hosts(data: bytes) -> None:
    path = os.path.join(folder(), "known_hosts")
    with open(path, "wb") as file:
        file.write(data)
    index = KnownHosts([path])
    for name, port in (("n1", 22), ("n1", 2222), ("n2.lab", 22)):
        config = HostConfig(name, name, "me", port, user_known_hosts=(path,))
        judge = HostKeyCheck(config, index, "strict")
        judge.wanted_types(("ssh-ed25519", "rsa-sha2-512"))
        judge.verify(BLOB, "ssh-ed25519")


def certificate() -> bytes:
    def field(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    kind = b"ssh-ed25519-cert-v01@openssh.com"
    return b"".join((
        field(kind), field(b"nonce"), field(bytes(32)), bytes(8), (2).to_bytes(4, "big"),
        field(b"id"), field(field(b"n1")), bytes(8), b"\x7f" + b"\xff" * 7, field(b""), field(b""),
        field(b""), field(BLOB), field(field(b"ssh-ed25519") + field(bytes(64))),
    ))  # fmt: skip


@target("certificates", "host keys and certificates", certificate(), BLOB, own=(ValueError,))
def certificates(data: bytes) -> None:
    for kind in ("ssh-ed25519", "ssh-rsa", "ssh-ed25519-cert-v01@openssh.com", "ssh-rsa-x"):
        key_problem(data, kind)
    certificate_problem(data, (BLOB,), "n1", 1.0)
    authority = data[-51:]
    certificate_problem(data + authority, (authority,), "n1", 1.0)
    authority_of(data)


# -- what tools of the hosts say ------------------------------------------------------

NCCL = (
    b"n1:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
    b"n1:7:8 [0] NCCL INFO NCCL version 2.27.5+cuda12\nn1:7:8 [0] NCCL INFO Using network IB\n"
)


@target("nccl-log", "the log of NCCL", NCCL, b"n2:1:2 [3] NCCL INFO NET/Socket : Using [0]e:1<0>")
def logged(data: bytes) -> None:
    lines = as_text(data).splitlines()
    heard = nccl_log.Networks([{}, {"NCCL_IB_HCA": "=mlx5_0"}], {0: "mlx5_0:1"})
    heard.place(0, 0)
    heard.place(1, 1)
    for number, line in enumerate(lines):
        heard.take(number % 2, line)
    heard.differing()


@target("network", "a host's network as its readings tell it", *tool_seeds.NETWORK)
def network(data: bytes) -> None:
    one = nccl_model.host_net(samples.network_host(as_text(data)), {"NCCL_SOCKET_IFNAME": "=eth0"})
    other = nccl_model.host_net(samples.network_host(as_text(data)))
    advice = nccl_advice.advise({"n1": one, "n2": other})
    for name, value in (*advice.of("n1").items(), *advice.of("n2").items()):
        assert re.fullmatch(r"[\w.@:,=-]*", value, re.ASCII), f"{name}={value!r}"
    shown(nccl.lines(advice))


@cache
def readings() -> tuple[tuple[str, ...], tuple[Check, ...]]:
    """Names of all readings that are ever made, and all checks."""
    from dispatcher.checks import report

    want = report.Want(samples.host().asked, "python3", {}, 5.0, full=True, site="/site")
    made = [item[0] for item in report.first_readings(want, ["n1"])]
    made += [item[0] for item in report.second_readings(want, ["10.0.0.1"], 4000)]
    names = tuple(dict.fromkeys((*map(str, made), *samples.READINGS, PREFIX + "mine")))
    return names, (*QUICK, *full({}, site_checks=True))


SITE = b'{"level": "WARN", "text": "hot", "remedy": "cool it"}'
SMI = b"0, GPU-1, NVIDIA H100, 81559, 570.86.15, 96.00.5E, Enabled, 0, 0, P0, 700.00, 5, 16, 1\n"


class Asked(dict[str, Reading]):
    """Readings that note which of them were looked for."""

    def __init__(self, there: Mapping[str, Reading]) -> None:
        super().__init__(there)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


@cache
def checks_of(name: str) -> tuple[Check, ...]:
    """The checks that look at reading ``name``."""
    names, every = readings()
    base, found = samples.host(), []
    for check in every:
        asked = [Asked({**base.readings, **dict.fromkeys(names, one)}) for one in (
            samples.said(SMI), samples.said(b""), samples.MISSING)]  # fmt: skip
        for there in (*asked, Asked(base.readings)):
            check.find({"n2": Seen("n2", there, there, 8, "n1", (-0.01, 0.02), base.asked)})
            if name in there.names or (name.startswith(PREFIX) and check.name == "site"):
                found.append(check)
                break
    return tuple(found)


def judged(name: str, data: bytes, *, packed: bool) -> None:
    """The checks that look at ``name``, on a host where that is ``data``, and one that is well."""
    reading = samples.files({name: data}) if packed else Reading(0, data)
    base = samples.host()
    sick = Seen("n2", {**base.readings, name: reading}, {**base.later, name: reading}, 8, "n1",
                (-0.01, 0.02), base.asked)  # fmt: skip
    seen = {"n1": samples.host("n1"), "n2": sick}
    report = make_report(checks_of(name), seen, ["n1", "n2"], {}, {})
    shown(check_table.lines(report, colour=False, every=True))


def every_reading() -> Iterator[bytes]:
    """Each reading that is right, and each file of the kernel, behind what chooses it."""
    names, _ = readings()
    for name, output in tool_seeds.CHECKS.items():
        yield bytes([names.index(name), 0]) + output
    for at, content in enumerate(samples.KERNEL.values()):
        yield bytes([0, 2, at]) + content


def a_reading(data: bytes) -> bytes:
    """``data``, of which what is behind the first two bytes may choose what a host says."""
    take = Choices(data[2:])
    with suppress(PackError):  # deeper than what can be packed
        return data[:2] + pack(take.changed(take.value())) if _how(data) == 3 else data
    return data


def _how(data: bytes) -> int:
    return Choices(data[1:]).below(4)


@target(
    "checks", "every reading of dispatch check", b"\0\0", b"\0\3", *every_reading(),
    make=a_reading,
)  # fmt: skip
def checks(data: bytes) -> None:
    names, _ = readings()
    take, how = Choices(data), _how(data)
    name, _ = take.one(names), take.below(4)
    rest = data[2:]
    if how == 2:
        path = take.one(tuple(samples.KERNEL))
        sick = {**samples.KERNEL, path: rest}
        seen = Seen("n2", {**samples.READINGS, "kernel": samples.files(sick)}, {}, 8, "n1")
        make_report(checks_of("kernel"), {"n2": seen}, ["n2"], {}, {})
    else:
        judged(name, rest, packed=how == 1)


@cache
def smi_readings() -> tuple[str, ...]:
    return tuple(
        name for name in readings()[0]
        if checks_of(name) and name.startswith(("smi", "gpu"))
    )  # fmt: skip


@target("nvidia-smi", "what nvidia-smi prints", SMI, *tool_seeds.NVIDIA_SMI)
def nvidia_smi(data: bytes) -> None:
    for name in smi_readings():
        judged(name, data, packed=False)


@target("xid", "the kernel's log, and a site's own levels", *tool_seeds.KERNEL_LOG)
def xids(data: bytes) -> None:
    for name in ("dmesg", "journal"):
        judged(name, data, packed=False)
    try:
        xid.parse_table(as_text(data), "xid.conf")
    except UsageError:
        pass


@target("site-checks", "the answers of a site's own checks", SITE, b"noise\n" + SITE)
def site_checks(data: bytes) -> None:
    judged(PREFIX + "mine", data, packed=False)


@target(
    "stacks", "stacks of ranks",
    b'Thread 12 (idle): "MainThread"\n    f (a.py:3)\n',
    b'Current thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n',
    b"S futex_wait 202 x86_64 python\n", b"#0  0x1 in ncclGroupEnd () from /lib/x.so\n",
)  # fmt: skip
def stacks(data: bytes) -> None:
    for how in (*stack_frames.HOW, "gdb"):
        for frame in stack_frames.read_frames(how, data):
            assert len(frame.words) < 4096
    stack_frames.innermost(data)
    stack_frames.in_words(as_text(data))


@target(
    "recorder", "torch's flight recorder, as a rank tells it",
    b'{"rank": 0, "groups": [["0", "default_pg", 2, [[4, "gloo:all_reduce Float[8]", false]]]]}',
    b'{"rank": 1, "groups": [["0", "x", [0, 1], [[3, "y", true]]]]}',
)  # fmt: skip
def recorder(data: bytes) -> None:
    right = b'{"rank": 1, "groups": [["0", "x", 2, [[3, "y", true], [4, "z", true]]]]}'
    found = collectives.stuck([{0: data}, {1: right}], range(2))
    if found is not None:
        shown([collective_line(found, str)])


RAS = (
    b"DEAD\n  Process 7 on node 10.0.0.1 managing GPU 0\nINCOMPLETE\n"
    b"  Rank 3 has launched up to operation 4 -- GPU 0 managed by process 9 on node 10.0.0.2\n"
)


@target("ras", "what NCCL's RAS says", RAS, b"  2 ranks at operation counts\n")
def ras(data: bytes) -> None:
    assert collectives.read_ras(data).blamed is not None


@target("error-file", "a rank's error file", b'{"message": {"message": "ValueError: no"}}')
def error_file(data: bytes) -> None:
    found = verdicts.read_error_file(data)
    if found is not None:
        assert len(found.message) + len(found.traceback) < 128 << 10
        shown([sanitize_text(found.message), *map(sanitize_text, found.traceback.splitlines())])


# -- files of ours --------------------------------------------------------------------


@target(
    "last-words", "what a rank wrote last",
    b'\1Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: no\n',
    b"\xfaFatal Python error: Aborted\n\nCurrent thread 0x1:\n  File \"a.py\", line 3 in f\n",
    b"\xfaterminate called after throwing an instance of 'x'\n  what():  no\nframe #0: f + 0x1\n",
    b"\1RuntimeError: NCCL error in: a.cpp:3, unhandled cuda error\nLast error:\nCuda failure 2\n",
)  # fmt: skip
def last_words(data: bytes) -> None:
    status = int.from_bytes(data[:1], "big", signed=True)
    tail = Tail()
    tail.output(0, 2, data[1:])
    found = tail.error(0, status)
    assert found is None or len(str(found) + found.hint) < 4096
    assert sum(map(len, tail.last(0)[1])) < 32 << 10


@target(
    "journal", "the journal of a run",
    b'{"seq": 1, "t": 0.1, "name": "node.heard", "context": {"node": 0}}\n',
    b'{"seq": 2, "t": 0.1, "name": "rank.exited", "context": {"node": 0, "rank": 1, "status": -9}}',
    own=(codec.Malformed,),
)  # fmt: skip
def journal(data: bytes) -> None:
    for line in data.split(b"\n"):
        entry = codec.decode(line)
        assert codec.decode(codec.encode(entry)) == entry or b"NaN" in line


@target("job-records", "the registry of jobs on a shared home", b'{"launcher": [1, 2, "b"]}')
def records(data: bytes) -> None:
    place = Path(folder(), "20260131-142501-k3f9x2")
    place.mkdir(exist_ok=True)
    for name in ("job.json", "end.json", "phase.json"):
        (place / name).write_bytes(data)
    registry._read(place)


@target(
    "job-socket", "orders and answers of a running job",
    b'{"order": "attach", "output": false}\n', b'{"size": 3}\nabc', own=(job_socket.Malformed,),
)  # fmt: skip
def socket_frames(data: bytes) -> None:
    reader = job_socket.Frames()
    for at in range(0, len(data), 7):
        list(reader.feed(data[at : at + 7]))
    order = job_socket.parse_order(data)
    job_socket.wants_table(order)


@target(
    "terminal", "output on its way to a terminal",
    b"a\x1b[31mb\x1b]0;x\a\n", "é\u202ex\r\n".encode(),
)  # fmt: skip
def terminal(data: bytes) -> None:
    lines = LineAssembler(limit=100)
    said = b"".join(lines.feed(data[at : at + 5]) for at in range(0, len(data), 5)) + lines.finish()
    assert not lines.rest
    for made in (sanitize_lines(said), b"".join(sanitize_pieces([data[:9], data[9:]]))):
        harmless(made.replace(b"\r", b""))


def shown(lines: Iterable[str]) -> None:
    """What a command shows of a host's words. Raises: AssertionError, UnicodeEncodeError."""
    harmless("\n".join(lines).encode())


_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(shown: bytes) -> None:
    """Nothing that a terminal obeys but colour. Raises: AssertionError."""
    plain = re.sub(rb"\x1b\[[0-9;:]*m", b"", shown)
    text = plain.decode("utf-8", "surrogateescape")
    bad = _OBEYED.search(text)
    assert bad is None, f"a terminal would obey {bad[0]!r}"
