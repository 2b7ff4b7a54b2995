"""Where a process hangs that cannot be killed, in words. Pure.

An agent says ``D nfs_wait_on_request 74 x86_64``: the state of the process, the kernel function
it waits in and the number of its system call, as /proc showed them; "-" or "0" for what it
could not see (the kernel hides it from other users, and in some containers).
"""

from __future__ import annotations

#: the system calls in which processes hang, by machine; x86-64 has numbers of its own
_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat",
        7: "poll",
        9: "mmap", 11: "munmap", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv",
        23: "select", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
        46: "sendmsg", 47: "recvmsg", 230: "clock_nanosleep", 232: "epoll_wait", 270: "pselect6",
        271: "ppoll", 281: "epoll_pwait", 288: "accept4",
        20: "writev", 56: "clone", 57: "fork", 58: "vfork", 59: "execve", 61: "wait4",
        74: "fsync", 75: "fdatasync", 82: "rename", 83: "mkdir", 87: "unlink", 137: "statfs",
        162: "sync", 166: "umount2", 202: "futex", 217: "getdents64", 231: "exit_group",
        257: "openat", 262: "newfstatat", 263: "unlinkat", 306: "syncfs", 332: "statx",
        435: "clone3",
    },
    "aarch64": {
        22: "epoll_pwait", 72: "pselect6", 73: "ppoll", 101: "nanosleep", 115: "clock_nanosleep",
        203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg",
        29: "ioctl", 34: "mkdirat", 35: "unlinkat", 39: "umount2", 43: "statfs", 56: "openat",
        57: "close", 61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev",
        67: "pread64", 68: "pwrite64", 79: "newfstatat", 80: "fstat", 81: "sync", 82: "fsync",
        83: "fdatasync", 94: "exit_group", 98: "futex", 215: "munmap", 220: "clone",
        221: "execve", 222: "mmap", 260: "wait4", 267: "syncfs", 276: "renameat2", 291: "statx",
        435: "clone3",
    },
}  # fmt: skip
_UNSEEN = ("-", "0")


def in_words(text: str) -> str:
    """``state D in nfs_wait_on_request, system call fsync``; "" if nothing is known."""
    words = text.split()
    if len(words) != 4 or words[0] == "-":
        return ""
    state, function, number, machine = words
    found = f"state {state}"
    if function not in _UNSEEN:
        found += f" in {function}"
    if number.isascii() and number.isdigit() and len(number) < 5:
        found += f", system call {_CALLS.get(machine, {}).get(int(number), number)}"
    return found
