"""Requests of ranks by PMIx other than fences: groups, connections, names, new ranks, others' data.

libpmix calls a function here for each, which sends it to the agent with the object that answers:

======  =============================================================================
asked   fields, and what the answer brings
======  =============================================================================
group   verb (``construct``, ``destruct``, ``connect``, ``disconnect``), name, members, data;
        brings the data of all, and a number for the group
name    rank (its number in the job), verb (``publish``, ``lookup``, ``unpublish``), key, value,
        wait: until it is published, once: until it is read; brings the value
event   rank: it notifies others; ranks on other hosts do not get it; no answer
spawn   rank, segments, each [number of ranks, argv, info pairs]; brings the namespace
modex   namespace, rank: of another host; brings what that rank has put
log     rank, texts, each [stream, bytes]: written where the rank itself writes
======  =============================================================================
"""

from __future__ import annotations

import ctypes

from dispatcher.remote.pmi.libpmix import (
    BYTE_OBJECT,
    DATA_ARRAY,
    SIZE,
    STRING,
    SUCCEEDED_AT_ONCE,
    SUCCESS,
    App,
    Info,
    Infos,
    PmixAnswer,
    Proc,
    Published,
    libc,
    members_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: places in the table of functions that the library calls
MODEX, PUBLISH, LOOKUP, UNPUBLISH, SPAWN = 4, 5, 6, 7, 8
CONNECT, DISCONNECT, NOTIFY, LOG, GROUP = 9, 10, 14, 17, 25
#: ranges of an event that name no rank of another host: PMIX_RANGE_LOCAL, PMIX_RANGE_PROC_LOCAL
NEAR = (2, 7)
#: bytes of the name of a group
NAME_LIMIT = 512
UNPACK_FAILURE, BAD_PARAM, NOT_SUPPORTED = -20, -27, -47
#: where a rank has texts written that PMIx should show; Open MPI 5 shows its help texts so
STREAMS = {b"pmix.log.stdout": 1, b"pmix.log.stderr": 2}
#: of a value to publish, of arguments and variables of a program, of programs of a spawn
VALUE_LIMIT, WORDS_LIMIT, APPS_LIMIT = 256 << 10, 4096, 256
#: bytes of a text to log, and texts of one request
LOG_LIMIT, LOGS_LIMIT = 16 << 10, 16
#: attributes that a spawn may have beside its programs, by their names in a PMI-1 request
SAID = {
    b"pmix.host": b"host",
    b"pmix.wdir": b"wdir",
    b"pmix.hostfile": b"hostfile",
    b"pmix.addhost": b"add-host",
    b"pmix.addhostfile": b"add-hostfile",
}
_KEY = 511
FIRST_READ = 1
ENDPOINTS, CONTEXT, MEMBERSHIP = b"pmix.grp.endpt", b"pmix.grp.ctxid", b"pmix.grp.mbrs"
LOCAL = b"pmix.grp.lcl"
#: PMIX_GROUP_ADD_MEMBERS, PMIX_GROUP_BOOTSTRAP: the makers of such a group do not know its members
PARTIAL = b"pmix.grp.add", b"pmix.grp.btstrp"

_P, _S, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_PROCS, _INFOS = ctypes.POINTER(Proc), ctypes.POINTER(Info)
Grouped = ctypes.CFUNCTYPE(_I, ctypes.c_uint8, ctypes.c_char_p, _PROCS, _S, _INFOS, _S, _P, _P)
Connected = ctypes.CFUNCTYPE(_I, _PROCS, _S, _INFOS, _S, _P, _P)
_KEYS = ctypes.POINTER(ctypes.c_char_p)
Modexed = ctypes.CFUNCTYPE(_I, _PROCS, _INFOS, _S, _P, _P)
Publishes = ctypes.CFUNCTYPE(_I, _PROCS, _INFOS, _S, _P, _P)
LooksUp = ctypes.CFUNCTYPE(_I, _PROCS, _KEYS, _INFOS, _S, _P, _P)
Spawns = ctypes.CFUNCTYPE(_I, _PROCS, _INFOS, _S, ctypes.POINTER(App), _S, _P, _P)
Notifies = ctypes.CFUNCTYPE(_I, _I, _PROCS, ctypes.c_uint8, _INFOS, _S, _P, _P)
Logs = ctypes.CFUNCTYPE(None, _PROCS, _INFOS, _S, _INFOS, _S, _P, _P)
FoundName = ctypes.CFUNCTYPE(None, _I, _P, _S, _P)
Spawned = ctypes.CFUNCTYPE(None, _I, ctypes.c_char_p, _P)
Done = ctypes.CFUNCTYPE(None, _I, _P)
Told = ctypes.CFUNCTYPE(None, _I, _P, _S, _P, _P, _P)
Freed = ctypes.CFUNCTYPE(None, _P)


def functions(asked: Callable[..., None], number: Callable[[Any], int]) -> dict[int, Any]:
    """The functions that the library calls, by place. number: gives a rank's number in the job."""

    def on_group(
        verb: int, name: bytes | None, procs: Any, n: int, infos: Any, size: int, *how: int
    ) -> int:
        if not name or len(name) > NAME_LIMIT:
            return BAD_PARAM
        data, answer = b"", GroupAnswer((Proc * n)(*procs[:n]), *how)
        for info in infos[:size]:
            if info.key == LOCAL:  # other hosts need not know, and version 5 asks twice for the end
                if verb:
                    return SUCCEEDED_AT_ONCE
                answer.give(SUCCESS, b"", 0)
                return SUCCESS
            if info.key == ENDPOINTS and info.value.type == BYTE_OBJECT:
                data = ctypes.string_at(info.value.content[0], info.value.content[1])
            if info.key in PARTIAL:
                return NOT_SUPPORTED
        kind = "destruct" if verb else "construct"
        asked("group", answer, verb=kind, name=name, members=members_of(procs, n), data=data)
        return SUCCESS

    def connecting(verb: str) -> Any:
        def on_connect(procs: Any, n: int, _: Any, __: int, *how: int) -> int:
            members = members_of(procs, n)
            asked("group", DoneAnswer(*how), verb=verb, name=b"", members=members, data=b"")
            return SUCCESS

        return Connected(on_connect)

    def on_modex(proc: Any, _: Any, __: int, *how: int) -> int:
        asked("modex", PmixAnswer(*how), namespace=proc[0].namespace, rank=proc[0].rank)
        return SUCCESS

    def on_publish(proc: Any, infos: Any, n: int, *how: int) -> int:
        said = [info for info in infos[:n] if not info.key.startswith(b"pmix.")]
        if len(said) != 1 or said[0].value.type not in (STRING, BYTE_OBJECT):
            return NOT_SUPPORTED  # MPI publishes one at a time
        value = b"%c" % said[0].value.type
        if said[0].value.type == STRING:
            value += _text(said[0])
        elif said[0].value.content[0]:
            value += ctypes.string_at(said[0].value.content[0], said[0].value.content[1])
        if len(value) > VALUE_LIMIT:
            return BAD_PARAM
        once = any(
            info.key == b"pmix.persist" and info.value.content[0] & 0xFF == FIRST_READ
            for info in infos[:n]
        )
        fields = {"key": said[0].key, "value": value, "wait": False, "once": once}
        asked("name", DoneAnswer(*how), rank=number(proc), verb="publish", **fields)
        return SUCCESS

    def on_lookup(proc: Any, keys: Any, infos: Any, n: int, *how: int) -> int:
        if not keys[0] or keys[1]:
            return NOT_SUPPORTED
        if len(keys[0]) > _KEY:
            return BAD_PARAM
        wait = any(info.key == b"pmix.wait" for info in infos[:n])
        fields = {"key": keys[0], "value": b"", "wait": wait, "once": False}
        answer = NameAnswer(proc[0], keys[0], *how)
        asked("name", answer, rank=number(proc), verb="lookup", **fields)
        return SUCCESS

    def on_unpublish(proc: Any, keys: Any, _: Any, __: int, *how: int) -> int:
        if not keys[0] or keys[1]:
            return NOT_SUPPORTED
        if len(keys[0]) > _KEY:
            return BAD_PARAM
        fields = {"key": keys[0], "value": b"", "wait": False, "once": False}
        asked("name", DoneAnswer(*how), rank=number(proc), verb="unpublish", **fields)
        return SUCCESS

    def on_notify(_: int, proc: Any, range: int, *__: Any) -> int:
        if range not in NEAR:
            asked("event", None, rank=number(proc))
        return NOT_SUPPORTED  # which libpmix keeps from the rank: its own host got the event

    def on_log(proc: Any, infos: Any, n: int, _: Any, __: int, *how: int) -> None:
        known = [info for info in infos[:n] if info.key in STREAMS and info.value.type == STRING]
        texts = [[STREAMS[info.key], _text(info)[:LOG_LIMIT]] for info in known[:LOGS_LIMIT]]
        asked("log", DoneAnswer(*how), rank=number(proc), texts=texts)

    def on_spawn(proc: Any, infos: Any, n: int, apps: Any, n_apps: int, *how: int) -> int:
        if not 0 < n_apps <= APPS_LIMIT:
            return BAD_PARAM
        said = _said(infos[:n])
        segments = [[app.count, *_program(app, said)] for app in apps[:n_apps]]
        lists = [both for _, *both in segments]
        words = [word for argv, pairs in lists for word in (*argv, *(v for _, v in pairs))]
        most = max(max(map(len, both)) for both in lists)
        if most > WORDS_LIMIT or sum(map(len, words)) > VALUE_LIMIT:
            return BAD_PARAM
        if any(count < 0 for count, *_ in segments):
            return BAD_PARAM
        asked("spawn", SpawnAnswer(*how), rank=number(proc), segments=segments)
        return SUCCESS

    return {
        MODEX: Modexed(on_modex),
        PUBLISH: Publishes(on_publish),
        LOOKUP: LooksUp(on_lookup),
        UNPUBLISH: LooksUp(on_unpublish),
        SPAWN: Spawns(on_spawn),
        CONNECT: connecting("connect"),
        DISCONNECT: connecting("disconnect"),
        NOTIFY: Notifies(on_notify),
        LOG: Logs(on_log),
        GROUP: Grouped(on_group),
    }


def _text(info: Any) -> bytes:
    """The text that is the value of ``info``."""
    return ctypes.string_at(info.value.content[0]) if info.value.content[0] else b""


def _said(infos: Any) -> list[list[bytes]]:
    """The attributes in ``infos`` that a spawn heeds, as pairs; the rest are hints."""
    known = [info for info in infos if info.key in SAID and info.value.type == STRING]
    pairs = [[SAID[info.key], _text(info)] for info in known]
    for pair in pairs:
        if pair[0] == b"host":  # Open MPI's may have slots: n1:2
            pair[1] = b",".join(word.split(b":")[0] for word in pair[1].split(b","))
    return pairs


def _program(app: Any, said: list[list[bytes]]) -> tuple[list[bytes], list[list[bytes]]]:
    """The arguments of a program to spawn, and pairs of its other attributes."""
    words = _words(app.argv) or [app.program or b""]
    pairs = [*said, *_said(app.infos[: app.n_infos] if app.infos else ())]
    return [app.program or b"", *words[1:]], pairs + [[b"env", one] for one in _words(app.env)]


def _words(array: Any) -> list[bytes]:
    """The strings of ``array`` up to its end, and not many more than allowed."""
    words: list[bytes] = []
    while array and array[len(words)] is not None and len(words) <= WORDS_LIMIT:
        words.append(array[len(words)])
    return words


# -- answers -------------------------------------------------------------------------------


class DoneAnswer:
    """Reports to a rank, or to all that wait together, success or failure."""

    def __init__(self, function: int, argument: int) -> None:
        self.function = Done(function)
        self.argument = argument

    def give(self, status: int, data: bytes, number: int) -> None:
        """Let them go on with ``status``."""
        self.function(status, self.argument)


class NameAnswer:
    """Gives a rank the value that it looked up."""

    def __init__(self, proc: Proc, key: bytes, function: int, argument: int) -> None:
        self.found = Published(Proc(proc.namespace, proc.rank), key)
        self.function = FoundName(function)
        self.argument = argument

    def give(self, status: int, data: bytes, number: int) -> None:
        """Give it ``data``, a type and a value, if ``status`` is 0; the library copies that.

        Another host says the type, and of most the library would take the value for an address.
        """
        if data and data[0] not in (STRING, BYTE_OBJECT):
            status = UNPACK_FAILURE
        text = ctypes.create_string_buffer(data[1:])
        self.found.value.type = data[0] if data else STRING
        self.found.value.content[0] = ctypes.addressof(text)
        if self.found.value.type == BYTE_OBJECT:
            self.found.value.content[1] = len(data) - 1
        there = ctypes.addressof(self.found) if status == SUCCESS else None
        self.function(status, there, int(status == SUCCESS), self.argument)


class SpawnAnswer:
    """Gives a rank the namespace of the ranks that it spawned, or an error."""

    def __init__(self, function: int, argument: int) -> None:
        self.function = Spawned(function)
        self.argument = argument

    def give(self, status: int, data: bytes, number: int) -> None:
        """Let it go on with the namespace ``data``."""
        self.function(status, ctypes.create_string_buffer(data, 256), self.argument)


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


#: data that the library still reads
_lent: dict[int, Infos] = {}


def _take_back(key: int | None) -> None:
    infos = _lent.pop(key or 0)
    for info in infos.array:
        if info.value.type == BYTE_OBJECT:  # the library takes what it reads, and leaves 0
            libc.free(info.value.content[0])


_freed = Freed(_take_back)
_taken_back = ctypes.cast(_freed, _P)
