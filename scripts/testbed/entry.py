"""Run a command inside a host: ``enter`` joins its namespaces and stays as a thin go-between.

A process cannot change its own pid namespace, only its children's, so the command is always a
child of ours. To our caller the two must look like one:

* signals sent to us go to the command; those the terminal sends reach it anyhow, and are not
  passed on a second time;
* if we are killed by SIGKILL, the kernel kills the command the same way;
* if the command stops, so do we, and go on together;
* our exit code is the command's, and if a signal ended it, the same signal ends us.

Tests enter hosts thousands of times, so this loads nothing that only other commands need.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence

from . import kernel


class HostIsOff(Exception):
    """There is no process where the host's init was."""


#: where a host keeps what makes a process its user's
USER = "/run/rig/user"
NAMESPACES = ("net", "uts", "ipc", "pid", "mnt")  # mnt last: /proc is another one after it
PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGWINCH,
    signal.SIGTSTP,
}
FROM_KERNEL = 0x80  # SI_KERNEL: the terminal driver, not somebody's kill(2)


def environment(outside: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what ties it to the machine's own ssh agent and session."""
    return {
        name: value
        for name, value in outside.items()
        if not name.startswith("SSH_") and name not in ("XDG_RUNTIME_DIR", "HOSTNAME")
    }


def join(pid: int) -> None:
    """Enter the namespaces of process ``pid``; the pid namespace is for our children only.

    The working directory is kept when the host has one of the same name, else it is ``/``.

    Raises: HostIsOff when there is no such process.
    """
    where = os.getcwd()
    try:
        kernel.join(pid, NAMESPACES)
    except OSError:
        raise HostIsOff from None
    try:
        os.chdir(where)
    except OSError:
        os.chdir("/")


def roots_path() -> str:
    """``PATH`` with the folders of root's tools, which an ordinary user's may lack."""
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def be_the_user() -> None:
    """From the host's root, become the user whose host it is, if that is another."""
    try:
        space = os.open(USER, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    kernel.setns(space, kernel.CLONE_NEWUSER)
    os.close(space)


def main(arguments: Sequence[str]) -> int:
    """``NAME PID root|user COMMAND...``: enter the host NAME, whose init is PID."""
    name, pid, who, *command = arguments
    try:
        return enter(int(pid), command, environment(os.environ), who == "root")
    except HostIsOff:
        print(f"cluster: {name}: this host is off", file=sys.stderr)
        return 2


def enter(pid: int, argv: Sequence[str], env: Mapping[str, str], root: bool = False) -> int:
    """Run ``argv`` inside the host whose init is ``pid``; return its exit code.

    root: as the one who may mount and route there, not as the one who logs in.

    Raises: HostIsOff when there is no such host.
    """
    join(pid)
    signals = PASSED_ON | {signal.SIGCHLD}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        try:
            kernel.die_with_parent()
            if not has_terminal():
                os.setpgid(0, 0)  # a kill of our group must not reach it twice
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
            if not root:
                be_the_user()
            os.execvpe(argv[0], list(argv), {**env, "PATH": roots_path()} if root else env)
        except FileNotFoundError:
            print(f"{argv[0]}: not found on this host", file=sys.stderr, flush=True)
            os._exit(127)
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(126)
    return attend(child, signals)


def attend(child: int, signals: set[signal.Signals]) -> int:
    """Pass signals to ``child`` until it ends; return its exit code or end as it did."""
    while True:
        info = signal.sigwaitinfo(signals)
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != FROM_KERNEL:
                os.kill(child, info.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            continue
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif os.WIFSIGNALED(status):
            die_of(os.WTERMSIG(status))
        else:
            return os.WEXITSTATUS(status)


def die_of(number: int) -> None:
    """End by signal ``number``, so that our parent sees what the command's parent would have."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
