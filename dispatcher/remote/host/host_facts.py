"""Facts about this host, read from the kernel; the launcher judges them.

It runs no program and looks up no name. A fact is a file or a system call that answers at once.
Facts about folders (``places``) are the exception: a file system may not answer at all.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: seconds in which the file systems of a run have to answer
ANSWER = 10.0
#: types of file systems that answer at once, or fail
LOCAL = b"ext2 ext3 ext4 xfs btrfs zfs f2fs vfat squashfs erofs overlay tmpfs ramfs nsfs".split()
#: called with a path before it is read, because that read may never return
about: Callable[[bytes], object] = len


def gather(check: dict[str, bytes]) -> dict[str, Any]:
    """The facts of this host as a dict of plain values, without the facts of ``places``.

    check: see ``find_problems``; with an ``iface`` only the addresses of that interface count.
    """
    iface = check.get("iface")
    gpus = count_gpus()
    wanted = check.get("bind", b"").split()
    topology = None
    if wanted and (gpus or wanted != [b"auto"]):
        from dispatcher.remote.host.binding import topology as read_topology

        topology = read_topology(wanted, gpus)
    return {
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus,
        "topology": topology,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "addresses": addresses() if iface is None else addresses_of(iface)[:MOST_ADDRESSES],
        "ifaces": ifaces(),
        "machine": identity(),
    }


def judged(
    asked: list[tuple[dict[str, bytes], bytes, bytes | None]], watched: bytes
) -> tuple[dict[str, Any], list[list[str]]]:
    """The facts of ``places`` and all problems, within ``ANSWER`` seconds for any file system.

    asked: for each program, the arguments of ``find_problems``. watched: a file that is read later.
    """

    def look(tell: Callable[[bytes], object]) -> tuple[dict[str, Any], list[list[str]]]:
        global about
        about = lambda path: tell(path + b"\0")  # noqa: E731
        problems: list[list[str]] = []
        for program in asked:
            problems += [one for one in find_problems(*program) if one not in problems]
        for path in (os.path.join(asked[0][1], watched), os.environb.get(b"HOME") or b"/"):
            _is_file(path)
        return places(*asked[0]), problems

    if not may_hang():
        return look(len)
    from dispatcher.remote.host.child import work_within
    from dispatcher.remote.protocol.packing import pack, unpack

    child = work_within(ANSWER, lambda tell: pack(list(look(tell))))
    names, _, answer = child.partition(b"\0\0")
    if answer:
        facts, problems = unpack(answer)
        return facts, problems
    *_, path, error = (asked[0][1] + b"\0" + names).split(b"\0")
    if error:
        raise RuntimeError(_text(error))
    silent = ["silent", "%s: its file system does not answer" % _text(path)]
    return {"script": None, "code": [], "room": [None, None]}, [silent]


def may_hang(mounts: str = "/proc/self/mounts") -> bool:
    """Whether a file system is mounted that may not answer, as over a network.

    Without one ``judged`` needs no child, which costs a start some milliseconds.
    """
    with open(mounts, "rb") as file:
        rows = [line.split() for line in file.read(1 << 20).splitlines()]
    own = (b"/proc", b"/sys", b"/dev")
    return any(row[2] not in LOCAL and not row[1].startswith(own) for row in rows)


def places(check: dict[str, bytes], cwd: bytes, path: bytes | None = None) -> dict[str, Any]:
    """The facts of folders that a run uses."""
    tmp = os.environb.get(b"TMPDIR") or b"/tmp"
    about(tmp)
    more: tuple[list[list[Any]], list[bool]] = ([], [])
    if "named" in check or "modules" in check:
        from dispatcher.remote.probe.compared import compared

        more = compared(check, cwd, path, about)
    return {
        "room": [free_space(tmp), free_space(b"/dev/shm")],
        "script": summed(os.path.join(cwd, check["script"])) if "script" in check else None,
        "code": code(os.path.join(cwd, check["code"])) if "code" in check else [],
        "named": more[0],
        "modules": more[1],
    }


def summed(path: bytes) -> int | None:
    """CRC-32 of the beginning of a file; None if it is unreadable or not a file (a pipe)."""
    from zlib import crc32

    try:
        if _is_file(path):
            with open(path, "rb") as file:
                return crc32(file.read(1 << 20))
    except OSError:
        pass
    return None


def _is_file(path: bytes) -> bool:
    about(path)
    return os.path.isfile(path)


#: most modules and packages of a folder in a report, and seconds that reading them may take
MOST_CODE, CODE_SECONDS = 64, 0.05


def code(folder: bytes) -> list[list[Any]]:
    """[name, CRC-32] of the Python modules and packages in ``folder``, as far as there is time."""
    from time import monotonic

    until = monotonic() + CODE_SECONDS
    found: list[list[Any]] = []
    try:
        for name in sorted(os.listdir(folder)):
            if len(found) == MOST_CODE or monotonic() > until:
                break
            path = os.path.join(folder, name)
            if name.endswith(b".py"):
                found.append([_text(name), summed(path)])
            elif _is_file(os.path.join(path, b"__init__.py")):
                found.append([_text(name), _package(path, 0, until)])
    except OSError:
        pass
    return [row for row in found if row[1] is not None]


def _package(folder: bytes, total: int, until: float) -> int | None:
    """``total`` with names and contents of the Python files below; None if there is no time."""
    from time import monotonic
    from zlib import crc32

    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if monotonic() > until:
            return None
        if name.endswith(b".py"):
            known = summed(path)
            total = crc32(b"%s %d" % (name, -1 if known is None else known), total)
        elif name[:1] not in b"._" and os.path.isdir(path) and not os.path.islink(path):
            inner = _package(path, crc32(name, total), until)
            if inner is None:
                return None
            total = inner
    return total


def free_space(folder: bytes) -> int | None:
    """Bytes that are free in the file system of ``folder``; None where that is not known."""
    try:
        there = os.statvfs(folder)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize if there.f_blocks else None


def identity() -> str:
    """A text that two agents share only when they run on the same machine (or container)."""
    parts = []
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
    except OSError:
        parts.append(os.uname().nodename)
    for name in ("net", "pid"):
        try:
            parts.append(os.readlink("/proc/self/ns/" + name))
        except OSError:
            pass
    return " ".join(parts)


def count_gpus() -> int:
    """NVIDIA GPUs that this host's driver shows; 0 without the driver.

    In a container only /dev shows which of them it has. A batch system may deny some of those by
    a cgroup; access(2) shows that without asking the driver.
    """
    try:
        devices = [
            name for name in os.listdir("/dev") if name[:6] == "nvidia" and name[6:].isdigit()
        ]
    except OSError:
        devices = []
    if devices:
        return sum(os.access("/dev/" + name, os.R_OK | os.W_OK) for name in devices)
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def oom_kills() -> int:
    """How many processes of our cgroup the OOM killer has killed so far; 0 where unknown."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in lines:  # "0::/path" is version 2, "4:memory:/path" version 1: cgroups(7)
        _, kind, path = line.split(":", 2)
        if kind == "memory":
            base, name = "/sys/fs/cgroup/memory", "memory.oom_control"
        elif kind == "":
            base, name = "/sys/fs/cgroup", "memory.events"
        else:
            continue
        for place in (base + path, base):  # a container may see its own cgroup as the root
            try:
                with open(os.path.join(place, name)) as file:
                    for words in map(str.split, file):
                        if words[0] == "oom_kill":
                            return int(words[1])
            except (OSError, ValueError):
                pass
    return 0


#: most addresses in a report
MOST_ADDRESSES = 32


def addresses() -> list[str]:
    """Numeric addresses by which other hosts may reach this one; ssh's address comes first.

    Loopback and link-local addresses are left out. ``probe`` proves whether one can be reached.
    """
    connection = os.environ.get("SSH_CONNECTION", "").split()
    login = [connection[2].partition("%")[0]] if len(connection) == 4 else []
    found = dict.fromkeys([*filter(_is_numeric, login), *_ipv4(), *_ipv6()])
    outer = [a for a in found if a != "::1" and a[:4] not in ("127.", "fe80")]
    return outer[:MOST_ADDRESSES]


def ifaces(hosts: str = "/etc/hosts") -> list[list[str]]:
    """[address, interface] where ``hosts`` gives this host's own name 127.*, as Debian does.

    gloo and TensorPipe take the interface which that name leads to, and no other host reaches it.
    """
    try:
        with open(hosts, "rb") as file:
            lines = file.read(64 << 10).split(b"\n")
    except OSError:
        return []
    name = os.fsencode(os.uname().nodename)
    rows = [line.partition(b"#")[0].split() for line in lines]
    found = [row[0] for row in rows if name in row[1:]]
    if (
        not found
        or not found[0].startswith((b"127.", b"::1"))
        or b"GLOO_SOCKET_IFNAME" in os.environb
    ):
        return []
    each = sorted(os.listdir("/sys/class/net"))
    return [[a, one] for one in each for a in addresses_of(os.fsencode(one))][:MOST_ADDRESSES]


def _is_numeric(address: str) -> bool:
    """Whether it is an address; sshd writes UNKNOWN if a pipe led to it."""
    from _socket import AF_INET, AF_INET6, inet_pton

    try:
        inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    except (OSError, ValueError):
        return False
    return True


def addresses_of(iface: bytes) -> list[str]:
    """Numeric addresses of the network interface ``iface``; none if there is no such thing."""
    from _socket import AF_INET, SOCK_DGRAM, inet_ntoa, socket
    from fcntl import ioctl

    found = []
    probe = socket(AF_INET, SOCK_DGRAM)
    try:  # SIOCGIFADDR of netdevice(7): a struct ifreq in, the same with a sockaddr_in out
        found.append(inet_ntoa(ioctl(probe.fileno(), 0x8915, iface.ljust(40, b"\0"))[20:24]))
    except OSError:
        pass
    finally:
        probe.close()
    return found + _ipv6(_text(iface))


def _ipv4() -> list[str]:
    """Local IPv4 addresses, from the routing trie: "|-- 10.0.0.7" above "/32 host LOCAL"."""
    found: list[str] = []
    last = ""
    try:
        with open("/proc/net/fib_trie") as file:
            for line in file:
                line = line.strip()
                if line.startswith("|-- "):
                    last = line[4:]
                elif line == "/32 host LOCAL":
                    found.append(last)
    except OSError:
        pass
    return found


def _ipv6(iface: str | None = None) -> list[str]:
    """IPv6 addresses, of ``iface`` or of all; link-local addresses are left out."""
    found = []
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                digits, *_, name = line.split()
                if iface not in (None, name) or digits[:4] == "fe80":
                    continue
                groups = [digits[at : at + 4].lstrip("0") or "0" for at in range(0, 32, 4)]
                found.append("::1" if int(digits, 16) == 1 else ":".join(groups))
    except OSError:
        pass
    return found


def find_problems(check: dict[str, bytes], cwd: bytes, path: bytes | None) -> list[list[str]]:
    """Problems that would keep the ranks from starting: list of [what, why].

    check: the plan's needs: ``program`` (looked up in ``path``) must be executable, and so must
    the interpreter that its first line names; ``script`` (in ``cwd``) must be readable; ``iface``
    must have an address; with ``mpi`` the program must not be built for Open MPI.
    """
    problems = []
    about(cwd)
    if not os.path.isdir(cwd):
        return [["cwd", "%s: no such directory" % _text(cwd)]]
    iface = check.get("iface")
    if iface is not None and not addresses_of(iface):
        there = sorted(os.listdir("/sys/class/net"))
        what = "no interface %s with an address; there is: %s" % (_text(iface), " ".join(there))
        problems.append(["iface", what])
    program = check.get("program")
    if program:
        from dispatcher.remote.host.process import program_paths  # not needed by a survey

        found = [os.path.join(cwd, place) for place in program_paths(program, path)]
        files = [place for place in found if _is_file(place)]
        runs = [_lacks(place, cwd) for place in files if os.access(place, os.X_OK)]
        if not files:
            problems.append(["missing", "%s: not found" % _text(program)])
        elif not runs:
            problems.append(["not executable", "%s: not executable" % _text(files[0])])
        elif all(runs):
            why = "%s: its interpreter %s: not found" % (_text(program), _text(runs[0]))
            problems.append(["no interpreter", why])
        elif "mpi" in check and _needs_open_mpi(files[0]):
            problems.append(["open mpi", "%s: Open MPI does not speak PMI-1" % _text(program)])
    script = check.get("script")
    if script:
        place = os.path.join(cwd, script)
        about(place)
        if not os.path.exists(place):
            problems.append(["no script", "%s: no such file" % _text(place)])
        elif os.stat(place).st_mode >> 12 == 1:
            problems.append(["no script", "%s: a pipe, not a file" % _text(place)])
        elif not os.access(place, os.R_OK):
            problems.append(["not executable", "%s: cannot be read" % _text(place)])
    return problems


def _lacks(path: bytes, cwd: bytes) -> bytes:
    """The interpreter that the first line of a script names, if it is not there; else b""."""
    try:
        with open(path, "rb") as file:
            line = file.read(256).split(b"\n")[0]
    except OSError:
        return b""
    name = line[2:].replace(b"\t", b" ").strip(b" ").split(b" ")[0]
    if line[:2] != b"#!":
        return b""
    about(os.path.join(cwd, name))
    return b"" if os.path.exists(os.path.join(cwd, name)) else name


def _needs_open_mpi(path: bytes) -> bool:
    """Is ``path`` an ELF file that names Open MPI's library? The names stand near its start."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF" and b"\0libmpi.so.40\0" in file.read(4 << 20)
    except OSError:
        return False


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
