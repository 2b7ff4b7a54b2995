"""What ranks want of PMIx beside fences: groups, connections, names, new ranks, others' data.

libpmix calls a function here for each; it is told to the agent as it is, with what will answer
it. Only what hosts must settle together comes here: libpmix itself serves the rest.

==========  =========================================================================
asked       fields, and what the answer brings
==========  =========================================================================
group       verb (``construct``, ``destruct``, ``connect``, ``disconnect``), name, members, data;
            all members of this host are in it. Brings the data of all, and a number for the group
==========  =========================================================================
"""

from __future__ import annotations

import ctypes

from dispatcher.remote.pmi.libpmix import (
    BYTE_OBJECT,
    DATA_ARRAY,
    SIZE,
    SUCCEEDED_AT_ONCE,
    SUCCESS,
    Info,
    Infos,
    Proc,
    libc,
    members_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: places in the table of functions that the library calls
CONNECT, DISCONNECT, GROUP = 9, 10, 25
#: bytes of the name of a group
NAME_LIMIT = 512
BAD_PARAM = -27
ENDPOINTS, CONTEXT, MEMBERSHIP = b"pmix.grp.endpt", b"pmix.grp.ctxid", b"pmix.grp.mbrs"
LOCAL = b"pmix.grp.lcl"

_P, _S, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_PROCS, _INFOS = ctypes.POINTER(Proc), ctypes.POINTER(Info)
Grouped = ctypes.CFUNCTYPE(_I, ctypes.c_uint8, ctypes.c_char_p, _PROCS, _S, _INFOS, _S, _P, _P)
Connected = ctypes.CFUNCTYPE(_I, _PROCS, _S, _INFOS, _S, _P, _P)
Done = ctypes.CFUNCTYPE(None, _I, _P)
Told = ctypes.CFUNCTYPE(None, _I, _P, _S, _P, _P, _P)
Freed = ctypes.CFUNCTYPE(None, _P)


def functions(asked: Callable[..., None]) -> dict[int, Any]:
    """What the library calls, by place in its table."""

    def on_group(
        verb: int, name: bytes | None, procs: Any, n: int, infos: Any, size: int, *how: int
    ) -> int:
        if not name or len(name) > NAME_LIMIT:
            return BAD_PARAM
        data, answer = b"", GroupAnswer((Proc * n)(*procs[:n]), *how)
        for info in infos[:size]:
            if info.key == LOCAL:  # nobody else need know, and version 5 asks twice for the end
                if verb:
                    return SUCCEEDED_AT_ONCE
                answer.give(SUCCESS, b"", 0)
                return SUCCESS
            if info.key == ENDPOINTS and info.value.type == BYTE_OBJECT:
                data = ctypes.string_at(info.value.content[0], info.value.content[1])
        kind = "destruct" if verb else "construct"
        asked("group", answer, verb=kind, name=name, members=members_of(procs, n), data=data)
        return SUCCESS

    def connecting(verb: str) -> Any:
        def on_connect(procs: Any, n: int, _: Any, __: int, *how: int) -> int:
            members = members_of(procs, n)
            asked("group", DoneAnswer(*how), verb=verb, name=b"", members=members, data=b"")
            return SUCCESS

        return Connected(on_connect)

    return {
        CONNECT: connecting("connect"),
        DISCONNECT: connecting("disconnect"),
        GROUP: Grouped(on_group),
    }


class DoneAnswer:
    """Tells a rank, or all that wait together, that it is done, or cannot be."""

    def __init__(self, function: int, argument: int) -> None:
        self.function = Done(function)
        self.argument = argument

    def give(self, status: int, data: bytes, number: int) -> None:
        """Let them go on with ``status``."""
        self.function(status, self.argument)


class GroupAnswer:
    """Lets the ranks of this host out of the making, or the end, of a group."""

    def __init__(self, members: Any, function: int, argument: int) -> None:
        self.members = members
        self.function = Told(function)
        self.argument = argument

    def give(self, status: int, data: bytes, number: int) -> None:
        """Let them go with ``data``, what all hosts contributed, and ``number``, the group's."""
        infos = Infos([])
        if status == SUCCESS:
            infos = Infos(
                [(MEMBERSHIP, DATA_ARRAY, self.members)]
                + ([(CONTEXT, SIZE, number)] if number else [])
                + ([(ENDPOINTS, BYTE_OBJECT, data)] if data else [])
            )
        key = id(infos)
        _lent[key] = infos
        self.function(status, infos.array, infos.size, self.argument, _taken_back, key)


#: what the library still reads
_lent: dict[int, Infos] = {}


def _take_back(key: int | None) -> None:
    infos = _lent.pop(key or 0)
    for info in infos.array:
        if info.value.type == BYTE_OBJECT:  # the library takes what it reads, and leaves 0
            libc.free(info.value.content[0])


_freed = Freed(_take_back)
_taken_back = ctypes.cast(_freed, _P)
