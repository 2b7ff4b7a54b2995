"""The command line of ``scripts/cluster``: one function a command."""

from __future__ import annotations

import argparse
import os
import pwd
import select
import signal
import sys
from collections.abc import Sequence

from . import census, entry, fabric, host, keeper, layout, sshd
from .host import Furniture
from .layout import LOGIN, Member, Record, RigError

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UP_LIMIT = 120.0


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code (2: the rig could not do it)."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except RigError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1


def up(options: argparse.Namespace) -> int:
    for name in layout.names():
        if layout.abandoned(name):
            remove(name)
    sshd.binary()  # says what is missing before anything is made
    members = layout.members(options.count, options.width)
    layout.claim(options.name)
    lines = [f"MaxStartups {options.max_startups}", *options.sshd]
    try:
        may()
        keep(options, members, lines)
    except BaseException:
        remove(options.name)
        raise
    record = layout.load(options.name)
    if not options.quiet:
        print(f"cluster {record.name}: {record.summary()} are up")
        mine = "" if record.name == "rig" else f" --name {record.name}"
        print(
            f"  use it:    scripts/cluster enter{mine} login -- ssh {record.hosts[0].name} hostname"
        )
        print(f"  remove it: scripts/cluster down{mine}")
    return 0


def keep(options: argparse.Namespace, members: Sequence[Member], lines: Sequence[str]) -> None:
    """Write what the hosts share, start the keeper, wait for its word."""
    furniture = Furniture(
        directory=layout.directory(options.name),
        account=pwd.getpwuid(os.getuid()),
        shared=shared_directories(options.share),
        sshd_lines=lines,
        members=members,
    )
    furnish(furniture)
    heard, report = os.pipe()
    sys.stdout.flush()
    if os.fork() == 0:
        os.close(heard)
        try:
            detach(furniture.path("keeper.log"))
            keeper.keep(options.name, members, furniture, options.owner, report)
        finally:
            os._exit(1)
    os.close(report)
    said = b""
    while select.select([heard], [], [], UP_LIMIT)[0]:
        chunk = os.read(heard, 4096)
        said += chunk
        if not chunk:
            break
    if said != b"up":
        raise RigError(said.decode(errors="replace") or "the keeper said nothing")


def detach(log: str) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir("/")


def furnish(furniture: Furniture) -> None:
    """Write the files all hosts see: names, keys, the password file's root line."""
    for part in ("ssh", "etc", "hosts", "shared"):
        os.mkdir(furniture.path(part), 0o700)
    names = ["127.0.0.1 localhost", "::1 localhost"]
    names += [f"{member.address} {member.name}" for member in furniture.members]
    write_public(furniture.path("etc", "hosts"), "\n".join(names) + "\n")
    write_public(
        furniture.path("etc", "nsswitch.conf"),
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\n",
    )
    write_public(furniture.path("etc", "resolv.conf"), "")
    # A locked root account refuses keys too; this one has no password and is not locked.
    sshd.write_private(furniture.path("etc", "shadow"), "root:*:19000:0:99999:7:::\n")
    if furniture.account.pw_uid != 0:
        furnish_accounts(furniture)
    public = sshd.new_key(furniture.path("ssh", "id_ed25519"), "rig")
    sshd.write_private(furniture.path("ssh", "authorized_keys"), public + "\n")


def furnish_accounts(furniture: Furniture) -> None:
    """Have hosts where only one user and one group exist say so to those who ask."""
    with open("/etc/passwd") as file:
        accounts = file.readlines()
    line = ":".join(map(str, furniture.account)) + "\n"  # it may be known by LDAP alone
    accounts = [line, *(one for one in accounts if not one.startswith(line.split(":")[0] + ":"))]
    write_public(furniture.path("etc", "passwd"), "".join(accounts))
    with open("/etc/group") as file:
        groups = [line for line in file if not line.startswith("tty:")]  # sshd would give it ptys
    write_public(furniture.path("etc", "group"), "".join(groups))


def write_public(path: str, text: str) -> None:
    os.chmod(sshd.write_private(path, text), 0o644)


def shared_directories(more: Sequence[str]) -> list[str]:
    """The checkout and the Python that runs us, which a cluster would have on NFS; and ``more``."""
    # of a virtual environment we are the Python, though not in it: we were started without site
    ours = os.path.dirname(os.path.dirname(sys.executable))
    wanted = [CHECKOUT, ours, sys.base_prefix, os.environ.get("VIRTUAL_ENV", ""), *more]
    return list(dict.fromkeys(map(os.path.realpath, filter(None, wanted))))


def may(options: argparse.Namespace | None = None) -> int:
    """0 if this process may make hosts of namespaces, which a child tries. Raises: RigError."""
    heard, report = os.pipe()
    if os.fork() == 0:
        try:
            keeper.seclude()
            fabric.build()
            host.seclude("probe")
            os.write(report, b"it may")
        except (OSError, RigError) as error:
            os.write(report, (getattr(error, "strerror", None) or str(error)).encode())
        finally:
            os._exit(0)
    os.close(report)
    with open(heard) as file:
        said = file.read()
    os.wait()
    if said != "it may":
        raise RigError(f"needs hosts made of namespaces: {said or 'the trial died'}")
    return 0


def down(options: argparse.Namespace) -> int:
    if options.all:
        for name in layout.names():
            remove(name)
        return 0
    if options.stale:
        for name in layout.names():
            if layout.abandoned(name):
                remove(name)
        return 0
    if options.name not in layout.names():
        raise RigError(f"{options.name}: no such cluster")
    remove(options.name)
    return 0


def remove(name: str) -> None:
    """End everything cluster ``name`` has, alive or stale; returns when it is gone."""
    record = layout.read(name)
    if record is not None and layout.alive(record):
        end_keeper(record)
    layout.discard(name)


def end_keeper(record: Record) -> None:
    try:
        handle = os.pidfd_open(record.keeper)
    except ProcessLookupError:
        return
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
        signal.pidfd_send_signal(handle, number)
        if select.select([handle], [], [], patience)[0]:
            break
    os.close(handle)


def enter(options: argparse.Namespace) -> int:
    record = layout.load(options.name)
    command = list(options.command)
    if command[:1] == ["--"]:
        command = command[1:]
    member = record.member(options.host)
    command = command or [os.environ.get("SHELL", "/bin/sh")]
    who = "root" if options.root else "user"
    return entry.main([member.name, str(member.pid), who, *command])


def hosts(options: argparse.Namespace) -> int:
    slots = f" slots={options.slots}" if options.slots else ""
    for member in layout.load(options.name).hosts:
        print(f"{member.name}{slots}")
    return 0


def ps(options: argparse.Namespace) -> int:
    record = layout.load(options.name)
    wanted = [record.member(name).name for name in options.hosts] or None
    for process in census.census(record, wanted, options.run_id):
        print(f"{process.host}\t{process.pid}\t{process.state}\t{process.command}")
    return 0


def cut(options: argparse.Namespace) -> int:
    record = layout.load(options.name)
    members = [record.member(name) for name in options.hosts]
    fabric.enter(record.keeper)
    for member in members:
        fabric.cut(member.index, options.way)
    return 0


def mend(options: argparse.Namespace) -> int:
    record = layout.load(options.name)
    members = [record.member(name) for name in options.hosts]
    fabric.enter(record.keeper)
    for member in members:
        fabric.mend(member.index)
    return 0


def power_off(options: argparse.Namespace) -> int:
    """Cut first, so that nothing the dying kernel objects send gets out; then kill the init."""
    record = layout.load(options.name)
    members = [record.member(name) for name in options.hosts]
    fabric.enter(record.keeper)
    for member in members:
        if layout.birth(member.pid) is None:
            raise RigError(f"{member.name}: this host is off")
        fabric.cut(member.index)
        os.kill(member.pid, signal.SIGKILL)
    return 0


def clusters(options: argparse.Namespace) -> int:
    for name in layout.names():
        record = layout.read(name)
        if record is None or layout.abandoned(name):
            print(f"{name}\t{'stale' if layout.abandoned(name) else 'being built'}")
        else:
            print(f"{name}\t{record.summary()}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="scripts/cluster", description="A cluster of hosts with real sshd inside this machine."
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: object, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help)
        added.set_defaults(run=run)
        added.add_argument("--name", default="rig", help="which cluster (default: rig)")
        return added

    this = command("up", up, "make a cluster of COUNT hosts n1..nCOUNT and login")
    this.add_argument("count", type=int, metavar="COUNT")
    this.add_argument("--width", type=int, default=1, help="digits in a name: 3 gives n001")
    this.add_argument("--max-startups", default=sshd.MAX_STARTUPS, help="of every sshd")
    this.add_argument(
        "--sshd", action="append", default=[], metavar="LINE", help="one more sshd_config line"
    )
    this.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="DIR",
        help="visible on all hosts, as by NFS",
    )
    this.add_argument("--owner", type=int, default=0, metavar="PID", help="down when PID ends")
    this.add_argument("--quiet", action="store_true")

    this = command("down", down, "remove a cluster and everything that runs on it")
    this.add_argument("--all", action="store_true", help="all of this user's clusters")
    this.add_argument("--stale", action="store_true", help="what killed test runs left behind")

    this = command("enter", enter, "run a command on a host, as if logged in there")
    this.add_argument("--root", action="store_true", help="as one who may mount and route there")
    this.add_argument("host", nargs="?", default=LOGIN, metavar="HOST")
    this.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")

    this = command("hosts", hosts, "print a hostfile")
    this.add_argument("--slots", type=int, default=0, help="add slots=N to each line")

    this = command("ps", ps, "every process of HOSTs that is not part of the rig")
    this.add_argument("hosts", nargs="*", metavar="HOST")
    this.add_argument("--run-id", metavar="ID", help="only those of this DISPATCH_RUN_ID")

    this = command("cut", cut, "lose every packet to and from HOST; nobody is told")
    this.add_argument("hosts", nargs="+", metavar="HOST")
    this.add_argument("--way", choices=["both", "to", "from"], default="both")

    this = command("mend", mend, "undo cut")
    this.add_argument("hosts", nargs="+", metavar="HOST")

    this = command("power-off", power_off, "end HOST at once, without a word on the network")
    this.add_argument("hosts", nargs="+", metavar="HOST")

    command("list", clusters, "all clusters of this user")
    command("may", may, "whether this user can make a cluster here")
    return top
