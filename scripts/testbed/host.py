"""One host from inside: the first process of its namespaces.

``live`` runs in a child of the keeper that is process 1 of a new pid namespace. It takes its own
mount, network, uts and ipc namespaces, lays out its file system, waits for the network cable,
starts sshd, and then reaps orphans for the rest of its life, as an init does. When it dies, by
whatever signal, the kernel ends every other process of the host: that is the power switch.

File system: the machine's own, with these taken away: ``/tmp`` (kept on login, where the developer
sits), ``/var/tmp``, ``/var/log``, ``/run``, ``/dev/shm``, ``/proc``, and in the home directory
``.ssh`` and the shell's start files. Everything else of home, and the directories named as
*shared*, are the same on all hosts, as over NFS.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
import signal
import time
from collections.abc import Sequence

from . import fabric, kernel, layout, sshd
from .entry import USER, be_the_user
from .layout import LOGIN, Member, RigError

SSHD_LIMIT = 20.0
RUN = "/run/rig"
HIDDEN_AT_HOME = {
    ".ssh",
    ".bashrc",
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
}


@dataclasses.dataclass(frozen=True)
class Furniture:
    """What all hosts of a cluster are given: files to lay over /etc, shared directories."""

    directory: str
    account: pwd.struct_passwd
    shared: Sequence[str]
    sshd_lines: Sequence[str]
    members: Sequence[Member]

    def path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)


def live(member: Member, furniture: Furniture, to_keeper: int, from_keeper: int) -> None:
    """Be host ``member``; never returns.

    Says ``ready`` (mounts done, host key made) and ``up`` (sshd listens) to the keeper, or the
    text of an error; waits for one byte in between.
    """
    try:
        outer = layout.own_pid()
        kernel.die_with_parent()
        kernel.set_name(f"init-{member.name}")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        seclude(member.name)
        lay_out(member, furniture)
        if furniture.account.pw_uid != 0:
            make_the_user(furniture.account)
        os.write(to_keeper, f"ready {outer}\n".encode())
        if os.read(from_keeper, 1) != b"g":
            os._exit(1)  # the keeper gave up or is dead
        fabric.batch(fabric.address_commands(member, furniture.members))
        start_sshd(furniture.path("hosts", member.name + ".log"))
        os.write(to_keeper, b"up\n")
        os.close(to_keeper)
        os.close(from_keeper)
    except BaseException as error:
        os.write(to_keeper, f"error {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    reap_for_ever()


def reap_for_ever() -> None:
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] > 0:
                pass
        except ChildProcessError:
            pass
        signal.sigwait([signal.SIGCHLD])


def seclude(name: str) -> None:
    """Take the namespaces of a host called ``name``, and the kernel's own view of them.

    Raises: OSError where the kernel or its configuration does not let us.
    """
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC
    )
    kernel.sethostname(name)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags)
    hold = Held()
    hold.keep("/sys/fs/cgroup")
    kernel.mount("sysfs", "/sys", "sysfs", flags)  # its class/net is of our network
    hold.show("/sys/fs/cgroup")


def make_the_user(account: pwd.struct_passwd) -> None:
    """Make what ``be_the_user`` enters: the user under the usual number, with no rights here.

    Where we are root of an ordinary user's namespaces, that user may not be it: sshd as root
    wants to become others, of whom there are none, and programs would think they may do all.
    """
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
        file.write("22")
    pid = os.fork()
    if pid == 0:
        try:
            kernel.new_user_namespace(account.pw_uid, account.pw_gid)
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    if not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
        raise RigError("no user namespace can be made inside another")
    try:
        os.close(os.open(USER, os.O_CREAT | os.O_WRONLY, 0o600))
        kernel.mount(f"/proc/{pid}/ns/user", USER, None, kernel.MS_BIND)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def lay_out(member: Member, furniture: Furniture) -> None:
    """Mount the host's own file systems over the machine's."""
    hold = Held()
    shared = [path for path in (*furniture.shared, furniture.directory) if os.path.isdir(path)]
    for path in shared:
        hold.keep(path)
    home = furniture.account.pw_dir
    at_home = [name for name in os.listdir(home) if name not in HIDDEN_AT_HOME]
    for name in at_home:
        hold.keep(os.path.join(home, name))

    private = [("/run", "0755"), ("/dev/shm", "1777"), ("/var/tmp", "1777"), ("/var/log", "0755")]
    if member.name != LOGIN:
        private.append(("/tmp", "1777"))
    for path, mode in private:
        kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode={mode}")
    kernel.mount("tmpfs", home, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0700")
    for name in at_home:
        hold.show(os.path.join(home, name))
    for path in shared:
        hold.show(path)
    for name in (".bashrc", ".profile"):
        sshd.write_private(os.path.join(home, name), "")
    lay_ssh(member, furniture, home)
    lay_etc(member, furniture)


class Held:
    """Directories and files kept in hand while something is mounted over their place."""

    def __init__(self) -> None:
        self._held: dict[str, int | str] = {}

    def keep(self, path: str) -> None:
        if os.path.islink(path):
            self._held[path] = os.readlink(path)
        elif os.path.exists(path):
            self._held[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def show(self, path: str) -> None:
        """Put ``path`` back where it was; nothing happens when it is still there."""
        held = self._held.pop(path, None)
        if held is None:
            return
        if isinstance(held, str):
            os.symlink(held, path)
            return
        source = f"/proc/self/fd/{held}"
        try:
            if os.path.exists(path) and os.path.samefile(source, path):
                return
            if os.path.isdir(source):
                os.makedirs(path, exist_ok=True)
            elif not os.path.exists(path):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
        finally:
            os.close(held)


def lay_ssh(member: Member, furniture: Furniture, home: str) -> None:
    """The same key pair and known_hosts for everybody; a host key of one's own."""
    os.mkdir("/run/sshd", 0o755)
    os.mkdir(RUN, 0o700)
    public = sshd.new_key(f"{RUN}/host_key", member.name)
    with open(furniture.path("hosts", member.name + ".pub"), "w") as file:
        file.write(public)
    config = sshd.server_config(
        listen="0.0.0.0",
        port=member.port,
        host_key=f"{RUN}/host_key",
        keys=".ssh/authorized_keys",
        more=furniture.sshd_lines,
    )
    sshd.write_private(f"{RUN}/sshd_config", config)
    # A bind of one directory: known_hosts appears in it when all host keys are made.
    os.mkdir(os.path.join(home, ".ssh"), 0o700)
    kernel.mount(furniture.path("ssh"), os.path.join(home, ".ssh"), None, kernel.MS_BIND)


def lay_etc(member: Member, furniture: Furniture) -> None:
    """Names come from one file; nobody asks a name server; root may log in by key."""
    sshd.write_private(f"{RUN}/hostname", member.name + "\n")
    for source, target in (
        (furniture.path("etc", "hosts"), "/etc/hosts"),
        (furniture.path("etc", "nsswitch.conf"), "/etc/nsswitch.conf"),
        (furniture.path("etc", "shadow"), "/etc/shadow"),
        (furniture.path("etc", "resolv.conf"), "/etc/resolv.conf"),
        (furniture.path("etc", "passwd"), "/etc/passwd"),
        (furniture.path("etc", "group"), "/etc/group"),
        (f"{RUN}/hostname", "/etc/hostname"),
    ):
        if os.path.exists(target) and os.path.exists(source):
            kernel.mount(source, os.path.realpath(target), None, kernel.MS_BIND)


def start_sshd(log: str) -> None:
    """Start sshd and return when it listens.

    Raises: RigError with the end of its log when it does not.
    """
    program = sshd.binary()
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            be_the_user()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
            os.execve(program, [program, "-D", "-e", "-f", f"{RUN}/sshd_config"], environment)
        finally:
            os._exit(127)
    limit = time.monotonic() + SSHD_LIMIT
    while not sshd.listening(22):
        if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > limit:
            with open(log) as file:
                raise RigError(f"sshd did not start: {file.read()[-800:]}")
        time.sleep(0.005)
