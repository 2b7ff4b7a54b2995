"""What a cluster is on paper: names, addresses, paths, and the record kept on disk.

A cluster owns one directory, ``<base>/<name>/``, private to the user. Its record
(``cluster.json``) is written when all hosts are up and is what every later command reads. The
cluster lives as long as its *keeper* process: a record whose keeper is gone is stale, and its
directory may be removed by anyone who finds it.

Does not start or stop anything.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import tempfile
import time

LOGIN = "login"
NETWORK = "10.77"
UID = os.getuid()  # asked once: in a user namespace of ours we are root
#: seconds in which who made a cluster's directory has written there who it is
CLAIM_LIMIT = 10.0
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}")


class RigError(Exception):
    """What went wrong and what to do, fit to be printed as it is."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One host: ``pid`` is its init, as this machine counts."""

    name: str
    index: int
    address: str
    port: int
    pid: int = 0


@dataclasses.dataclass(frozen=True)
class Record:
    """A cluster that is up; ``owner`` 0 means nobody."""

    name: str
    keeper: int
    keeper_birth: int
    owner: int
    user: str
    members: tuple[Member, ...]

    @property
    def directory(self) -> str:
        return directory(self.name)

    @property
    def hosts(self) -> list[Member]:
        """Everyone but ``login``."""
        return [member for member in self.members if member.name != LOGIN]

    def member(self, name: str) -> Member:
        """The host called ``name``.

        Raises: RigError when the cluster has no such host.
        """
        for member in self.members:
            if member.name == name:
                return member
        raise RigError(f"{name}: no such host in cluster {self.name} ({self.summary()})")

    def summary(self) -> str:
        """``login and n1..n8``."""
        hosts = self.hosts
        span = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name}..{hosts[-1].name}"
        return f"{LOGIN} and {span}"


def base() -> str:
    """The private directory that holds all clusters of this user; made when missing.

    Raises: RigError when somebody else prepared a directory of that name.
    """
    path = os.path.join(os.path.realpath(tempfile.gettempdir()), f"dispatch-rig-{UID}")
    while True:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        try:
            facts = os.lstat(path)
            break
        except FileNotFoundError:
            pass  # the last cluster of somebody beside us just went, and took it along
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in (os.getuid(), UID):
        raise RigError(f"{path}: is not a directory of yours; set TMPDIR to another place")
    return path


def directory(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise RigError(f"{name!r}: a cluster name is lower-case letters, digits, '-', '_' and '.'")
    return os.path.join(base(), name)


def members(count: int, width: int, prefix: str = "n") -> list[Member]:
    """``login`` and then ``count`` hosts, numbered from 1, padded to ``width`` digits.

    Addresses are 10.77.x.y; they exist only inside the cluster's own namespaces, so every
    cluster may use the same ones.
    """
    if not 1 <= count <= 60000:
        raise RigError(f"{count}: a cluster has between 1 and 60000 hosts")
    found = [Member(LOGIN, 0, address(0), 22)]
    for index in range(1, count + 1):
        found.append(Member(f"{prefix}{index:0{width}d}", index, address(index), 22))
    return found


def address(index: int) -> str:
    """Host ``index`` is 10.77.(index+1)/250.(index+1)%250+1; login, index 0, is 10.77.0.2."""
    high, low = divmod(index + 1, 250)
    return f"{NETWORK}.{high}.{low + 1}"


def hardware_address(index: int) -> str:
    return f"02:00:0a:4d:{index >> 8:02x}:{index & 255:02x}"


def birth(pid: int) -> int | None:
    """When process ``pid`` began, in ticks since boot; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def own_pid() -> int:
    """Our pid as the machine counts, while its /proc is what we see."""
    return int(os.readlink("/proc/self"))


def alive(record: Record) -> bool:
    return birth(record.keeper) == record.keeper_birth


def save(record: Record) -> None:
    """Write the record so that no reader ever sees half of it."""
    path = os.path.join(record.directory, "cluster.json")
    with open(path + ".new", "w") as file:
        # other checkouts of this user read the records, and the older ones ask for "build"
        json.dump({**dataclasses.asdict(record), "build": "netns"}, file, indent=1)
    os.rename(path + ".new", path)


def read(name: str) -> Record | None:
    """The record of cluster ``name``, alive or not; None when there is none (yet)."""
    try:
        with open(os.path.join(directory(name), "cluster.json")) as file:
            fields = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    fields["members"] = tuple(Member(**member) for member in fields["members"])
    known = {field.name for field in dataclasses.fields(Record)}
    return Record(**{name: value for name, value in fields.items() if name in known})


def load(name: str) -> Record:
    """The record of a cluster that is up.

    Raises: RigError when there is none, or only the remains of one.
    """
    record = read(name)
    if record is None:
        raise RigError(f"{name}: no such cluster; make it with: scripts/cluster up 4 --name {name}")
    if not alive(record):
        raise RigError(
            f"{name}: its keeper is dead; clear it with: scripts/cluster down --name {name}"
        )
    return record


def names() -> list[str]:
    """All clusters that have a directory, stale ones too."""
    place = base()
    try:
        return sorted(entry.name for entry in os.scandir(place) if entry.is_dir())
    except FileNotFoundError:
        return []  # see ``base``


def claim(name: str) -> str:
    """Make the directory of a new cluster and return its path.

    Raises: RigError when the name is in use.
    """
    while True:
        path = directory(name)
        try:
            os.mkdir(path, 0o700)
            break
        except FileNotFoundError:
            pass  # see ``base``
        except FileExistsError:
            raise RigError(
                f"{name}: this cluster exists; use it, or: scripts/cluster down --name {name}"
            ) from None
    with open(os.path.join(path, "claimed-by"), "w") as file:
        file.write(f"{os.getpid()} {birth(os.getpid())}")
    return path


def abandoned(name: str) -> bool:
    """Whether the directory of ``name`` belongs to nobody alive: no keeper, nobody building it."""
    record = read(name)
    if record is not None:
        return not alive(record)
    path = directory(name)
    try:
        with open(os.path.join(path, "claimed-by")) as file:
            pid, born = file.read().split()
    except (OSError, ValueError):
        try:
            return time.time() - os.stat(path).st_mtime > CLAIM_LIMIT
        except FileNotFoundError:
            return False  # it went meanwhile: nothing to remove
    return birth(int(pid)) != int(born)


def discard(name: str) -> None:
    """Remove the cluster's directory and, when it was the last one, the base."""
    shutil.rmtree(directory(name), ignore_errors=True)
    try:
        os.rmdir(base())
    except OSError:
        pass
