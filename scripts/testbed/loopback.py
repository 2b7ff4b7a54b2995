"""A cluster without namespaces: one unprivileged sshd a host, on 127.0.1.x and a high port.

What it gives: real ssh connections to many names, that can be stalled (``cut`` stops the host's
sshd and all its sessions) and broken (``power-off`` kills them all). What it cannot give: hosts of
their own name, files, processes and network; so the tests that need those are skipped on it.

Names exist only in an ssh configuration file. ``enter login`` names it in ``DISPATCH_SSH_CONFIG``
and puts first on ``PATH`` an ``ssh`` that reads it. It also makes ``--check none`` the default: the
check would say, rightly, that all hosts are the same machine.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from . import layout, sshd
from .census import MARK, census, pids, status_of
from .layout import LOGIN, Member, Record, RigError


def bring_up(
    name: str, members: Sequence[Member], sshd_lines: Sequence[str], owner: int, reason: str
) -> None:
    """Build the cluster and write its record.

    Raises: RigError when an sshd does not start.
    """
    place = layout.directory(name)
    user = pwd.getpwuid(os.getuid()).pw_name
    if os.getuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd run by root insists on it
    for part in ("ssh", "hosts", "bin", "shared"):
        os.makedirs(os.path.join(place, part), mode=0o700, exist_ok=True)
    hosts = [
        dataclasses.replace(
            member, address=f"127.0.{1 + member.index // 250}.{member.index % 250 + 1}"
        )
        for member in members
        if member.name != LOGIN
    ]
    hosts = [dataclasses.replace(member, port=free_port(member.address)) for member in hosts]
    public = sshd.new_key(os.path.join(place, "ssh", "id_ed25519"), "rig")
    keys = sshd.write_private(os.path.join(place, "ssh", "authorized_keys"), public + "\n")
    write_client(place, user, hosts)
    sshd.write_private(os.path.join(place, "dispatch.toml"), '[run]\ncheck = "none"\n')
    end = owner_end(owner)
    keeper = subprocess.Popen(  # the cluster's life: see layout
        [sys.executable, "-IS", os.path.abspath(sys.argv[0]), "_keep", name, str(end)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[end] if end else [],
    )
    started: list[Member] = []
    known = []
    try:
        for member in hosts:
            host_key = os.path.join(place, "hosts", member.name + ".key")
            known.append(sshd.known_hosts_line(member, sshd.new_key(host_key, member.name)))
            more = [*sshd_lines, "StrictModes no", f"SetEnv {MARK}={name}/{member.name}"]
            config = sshd.server_config(
                listen=member.address, port=member.port, host_key=host_key, keys=keys, more=more
            )
            path = sshd.write_private(os.path.join(place, "hosts", member.name + ".conf"), config)
            started.append(dataclasses.replace(member, pid=start(member, path)))
    except BaseException:
        for member in started:
            os.kill(member.pid, signal.SIGKILL)
        keeper.kill()
        raise
    sshd.write_private(os.path.join(place, "ssh", "known_hosts"), "".join(known))
    login = dataclasses.replace(members[0], address="127.0.0.1", port=0)
    born = layout.birth(keeper.pid) or 0
    keeper.returncode = 0  # it outlives us on purpose: no warning about it
    layout.save(Record(name, "loopback", keeper.pid, born, owner, user, (login, *started), reason))


def start(member: Member, config: str) -> int:
    log = config.removesuffix(".conf") + ".log"
    argv = [sshd.binary(), "-D", "-e", "-f", config]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={"PATH": os.defpath},
        )
    limit = time.monotonic() + 20
    while not sshd.listening(member.port, member.address):
        if process.poll() is not None or time.monotonic() > limit:
            with open(log) as file:
                raise RigError(f"{member.name}: sshd did not start: {file.read()[-800:]}")
        time.sleep(0.005)
    process.returncode = 0
    return process.pid


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def write_client(place: str, user: str, hosts: Sequence[Member]) -> None:
    blocks = []
    for member in hosts:
        blocks.append(f"Host {member.name}\n  HostName {member.address}\n  Port {member.port}\n")
    blocks.append(
        f"Host *\n  User {user}\n  IdentityFile {place}/ssh/id_ed25519\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {place}/ssh/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    config = sshd.write_private(os.path.join(place, "ssh", "config"), "".join(blocks))
    for tool in ("ssh", "scp", "sftp"):
        real = shutil.which(tool)
        if real:
            wrapper = os.path.join(place, "bin", tool)
            sshd.write_private(
                wrapper, f'#!/bin/sh\nexec {shlex.quote(real)} -F {shlex.quote(config)} "$@"\n'
            )
            os.chmod(wrapper, 0o700)


def environment(record: Record, outside: Mapping[str, str]) -> dict[str, str]:
    """What ``login`` adds to the caller's environment."""
    env = {name: value for name, value in outside.items() if name != "SSH_AUTH_SOCK"}
    env["DISPATCH_SSH_CONFIG"] = os.path.join(record.directory, "ssh", "config")
    env["DISPATCH_CONFIG"] = env.get("DISPATCH_CONFIG") or f"{record.directory}/dispatch.toml"
    env["PATH"] = os.path.join(record.directory, "bin") + os.pathsep + env.get("PATH", os.defpath)
    return env


def tree(root: int) -> list[int]:
    """``root`` and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        status = status_of(pid)
        if status:
            children.setdefault(int(status["PPid"]), []).append(pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def signal_sshds(member: Member, number: int, *, everything: bool = False) -> None:
    """Send ``number`` to the host's sshd and its sessions' sshds, or to ``everything`` below."""
    for pid in tree(member.pid):
        status = status_of(pid)
        if status and (everything or status["Name"].startswith("sshd")):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


def bring_down(record: Record) -> None:
    """Kill what the hosts still run, then their sshds."""
    for process in census(record):
        try:
            os.kill(process.outer, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for member in record.hosts:
        if (layout.birth(member.pid) or 0) >= record.keeper_birth:
            signal_sshds(member, signal.SIGKILL, everything=True)
    if layout.alive(record):
        os.kill(record.keeper, signal.SIGKILL)


def owner_end(owner: int) -> int:
    """What tells of the owner's end, also when that comes before anybody listens; 0 for nobody."""
    try:
        return os.pidfd_open(owner) if owner else 0
    except ProcessLookupError:
        raise RigError(f"{owner}: the owner has ended") from None


def keep(name: str, end: int) -> None:
    """Stand for the cluster's life; when ``end`` tells of its owner's, bring the cluster down."""
    if end == 0:
        while True:
            signal.pause()
    select.select([end], [], [])
    record = layout.read(name)
    if record is not None:
        bring_down(dataclasses.replace(record, keeper=0))
    layout.discard(name)
