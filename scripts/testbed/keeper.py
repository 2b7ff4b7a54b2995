"""The process a cluster lives by: parent of every host, owner of the bridge.

It is started by ``up`` and stays. Because the hosts' first processes die with it, and namespaces
die with their last process, *one* kill of the keeper, even by SIGKILL, removes the whole cluster:
processes, mounts, links, bridge. Only the directory of the cluster then remains, recognisably
stale (``layout.abandoned``). When the cluster has an owner (a test run), the keeper also ends
when the owner does.

It is process 1 of a pid namespace around those of the hosts. An ordinary user's keeper has a user
namespace too, in which it is root, over all the others and over nothing else: this is what lets it
mount and make links.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
from collections.abc import Iterable, Sequence

from . import fabric, kernel, layout, sshd
from .host import Furniture, live
from .layout import Member, Record, RigError


@dataclasses.dataclass
class Child:
    """A host being born: its init, and the pipes to talk with it until it is up.

    ``pid`` is its number with us, ``outer`` with the machine.
    """

    member: Member
    pid: int
    heard: int
    say: int
    said: bytes = b""
    outer: int = 0

    def await_word(self, word: str) -> str:
        """Wait until the host says ``word``, and return what follows it.

        Raises: RigError with what it said instead.
        """
        while b"\n" not in self.said:
            chunk = os.read(self.heard, 4096)
            if not chunk:
                raise RigError(f"{self.member.name}: its init died before it was {word}")
            self.said += chunk
        line, self.said = self.said.split(b"\n", 1)
        first, _, rest = line.decode(errors="replace").partition(" ")
        if first != word:
            raise RigError(f"{self.member.name}: {first} {rest}")
        return rest


def keep(
    name: str, members: Sequence[Member], furniture: Furniture, owner: int, report: int
) -> None:
    """Build the cluster, write ``up`` or an error to ``report``, then stay until told to end."""
    kernel.set_name("rig-keeper")
    children: list[Child] = []
    try:
        owner_end = os.pidfd_open(owner) if owner else None
        fabric.make_room(len(members))
        seclude()
        fabric.build()
        bear(members, furniture, children)
        for child in children:
            child.outer = int(child.await_word("ready"))
        write_known_hosts(furniture, members)
        fabric.attach({child.member: child.pid for child in children})
        for child in children:
            os.write(child.say, b"g")
        for child in children:
            child.await_word("up")
            os.close(child.heard)
            os.close(child.say)
        layout.save(
            Record(
                name=name,
                keeper=layout.own_pid(),
                keeper_birth=layout.birth(layout.own_pid()) or 0,
                owner=owner,
                user=furniture.account.pw_name,
                members=tuple(
                    dataclasses.replace(child.member, pid=child.outer) for child in children
                ),
            )
        )
    except (RigError, OSError) as error:
        end(child.pid for child in children)
        os.write(report, f"{error}".encode())
        os._exit(1)
    os.write(report, b"up")
    os.close(report)
    pids = {child.pid for child in children}
    orphaned = wait_for_the_end(owner_end, pids)
    end(pids)
    if orphaned:
        layout.discard(name)
    os._exit(0)


def seclude() -> None:
    """Go on as process 1 of new namespaces, as their root; the machine sees our old user.

    Raises: OSError where the kernel or its configuration does not let us.
    """
    if os.getuid() != 0:
        kernel.new_user_namespace(0, 0)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWPID)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    if os.fork():
        os._exit(0)


def bear(members: Sequence[Member], furniture: Furniture, children: list[Child]) -> None:
    """Fork one init a host, each in a pid namespace of its own, adding to ``children``."""
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    for member in members:
        heard, to_keeper = os.pipe()
        from_keeper, say = os.pipe()
        kernel.setns(home, kernel.CLONE_NEWPID)  # back from the previous child's namespace
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            close_all_but(to_keeper, from_keeper)
            live(member, furniture, to_keeper, from_keeper)
        os.close(to_keeper)
        os.close(from_keeper)
        children.append(Child(member, pid, heard, say))
    kernel.setns(home, kernel.CLONE_NEWPID)
    os.close(home)


def close_all_but(*kept: int) -> None:
    """Close what a child inherited of the other hosts and of ``up``, above standard error."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 65536)


def write_known_hosts(furniture: Furniture, members: Sequence[Member]) -> None:
    lines = []
    for member in members:
        with open(furniture.path("hosts", member.name + ".pub")) as file:
            lines.append(sshd.known_hosts_line(member, file.read()))
    sshd.write_private(furniture.path("ssh", "known_hosts"), "".join(lines))


def wait_for_the_end(owner_end: int | None, pids: set[int]) -> bool:
    """Sleep until SIGTERM (False) or until the owner ends (True).

    Hosts that lose power meanwhile are reaped and taken out of ``pids``.
    """
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    told = False

    def note(number: int, frame: object) -> None:
        nonlocal told
        told = told or number == signal.SIGTERM

    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, note)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    if owner_end is not None:
        poll.register(owner_end, select.POLLIN)
    while not told:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if owner_end in ready:
            return True
        try:
            os.read(wake, 4096)
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                pids.discard(pid)
        except (BlockingIOError, ChildProcessError):
            pass
    return False


def end(pids: Iterable[int]) -> None:
    """Kill every init and wait until its namespace is empty (waitpid returns only then)."""
    waiting = list(pids)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)  # our unreaped child: its number cannot be anybody else's
    for pid in waiting:
        os.waitpid(pid, 0)
