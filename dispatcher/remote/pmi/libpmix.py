"""libpmix as seen through ctypes: its structures, and the few calls that make it serve ranks.

Only calls of ``pmix_server.h`` that have been the same since version 3 are used. Sizes and offsets
are those of 64-bit Linux. Lists of nodes and ranks are given as ``raw:...``, to version 3 without
the word, because the output of PMIx_generate_regex may hold NUL bytes.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, List, Tuple

    Pairs = List[Tuple[bytes, int, Any]]  # key, type, value
    Members = List[List[Any]]  # of each namespace that takes part its ranks, None: all

SUCCESS, SUCCEEDED_AT_ONCE = 0, -157
STRING, SIZE, UINT16, UINT32, PROC, INFO, BYTE_OBJECT, DATA_ARRAY = 3, 4, 13, 14, 22, 24, 27, 39
RANK = 40
#: ranks from here on mean more than one
WILDCARD = 0xFFFFFFF0

#: the names of all nodes, and the ranks of each: after ``raw:``
_LISTS = (b"pmix.nmap", b"pmix.pmap")
#: places in the table of functions that the library calls
CONNECTED, FINALIZED, ABORT, FENCE, N_FUNCTIONS = 0, 1, 2, 3, 40


class LoadError(Exception):
    """The library cannot be loaded or set up; the text lists the attempts."""


class Proc(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("content", ctypes.c_uint64 * 3)]


class Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", Value)]


class Published(ctypes.Structure):
    _fields_ = [("proc", Proc), ("key", ctypes.c_char * 512), ("value", Value)]


class App(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_char_p),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("env", ctypes.POINTER(ctypes.c_char_p)),
        ("cwd", ctypes.c_char_p),
        ("count", ctypes.c_int),
        ("infos", ctypes.POINTER(Info)),
        ("n_infos", ctypes.c_size_t),
    ]


class DataArray(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("size", ctypes.c_size_t), ("array", ctypes.c_void_p)]


_P, _S, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ONE = ctypes.POINTER(Proc)
Connected = ctypes.CFUNCTYPE(_I, _ONE, _P, _P, _P)
Aborted = ctypes.CFUNCTYPE(_I, _ONE, _P, _I, ctypes.c_char_p, _P, _S, _P, _P)
Fenced = ctypes.CFUNCTYPE(_I, _ONE, _S, _P, _S, _P, _S, _P, _P)
Released = ctypes.CFUNCTYPE(None, _I, _P, _S, _P, _P, _P)
Fetched = ctypes.CFUNCTYPE(None, _I, _P, _S, _P)


class Infos:
    """An array of pmix_info_t, with all that it points to."""

    def __init__(self, pairs: Pairs) -> None:
        self.array = (Info * max(1, len(pairs)))()
        self.size = len(pairs)
        self.kept: list[Any] = []
        for info, (key, type, value) in zip(self.array, pairs):
            info.key = key
            info.value.type = type
            info.value.content[0] = self._content(type, value)
            if type == BYTE_OBJECT:
                info.value.content[1] = len(value)

    def _content(self, type: int, value: Any) -> int:
        if type == BYTE_OBJECT:
            return copied(value)
        if type == STRING:
            text = ctypes.create_string_buffer(value)
            self.kept.append(text)
            return ctypes.addressof(text)
        if type == DATA_ARRAY and isinstance(value, ctypes.Array):
            members = DataArray(PROC, len(value), ctypes.addressof(value))
            self.kept += (value, members)
            return ctypes.addressof(members)
        if type == DATA_ARRAY:
            inner = Infos(value)
            holder = DataArray(INFO, inner.size, ctypes.addressof(inner.array))
            self.kept += (inner, holder)
            return ctypes.addressof(holder)
        return int(value)


class Library:
    """libpmix at ``path``, set up to serve the ranks of one job. Raises: LoadError.

    tell: takes ``connected`` or ``finalized`` with a rank, ``abort`` with rank, code and text.
    asked: takes a rank's request, the object that answers it, and fields. A thread of libpmix
    calls both. upcalls: more functions for it to call, by their places.
    """

    def __init__(
        self,
        path: str,
        tell: Callable[..., None],
        asked: Callable[..., None],
        upcalls: dict[int, Any],
    ) -> None:
        try:
            self.calls = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
            self.calls.PMIx_Get_version.restype = ctypes.c_char_p
            version: bytes = self.calls.PMIx_Get_version()
            self.calls.PMIx_server_register_nspace  # noqa: B018 - is it there?
        except (OSError, AttributeError) as error:
            raise LoadError(str(error)) from None
        told = version.split(b" (")[0].decode("ascii", "replace")
        self.version = "PMIx " + told if told[:1].isdigit() else told  # a built-in one has no name
        self.firsts: dict[bytes, int] = {}  # namespace -> the job's number of its rank 0
        self.local: dict[bytes, list[int]] = {}  # namespace -> its ranks on this host
        self.fetching: dict[int, Callable[[int, bytes], None]] = {}
        self.n_fetched = 0
        self.on_fetched = Fetched(self.fetched)

        def on_connected(proc: Any, *_: Any) -> int:
            tell("connected", rank=self.number(proc))
            return SUCCEEDED_AT_ONCE

        def on_finalized(proc: Any, *_: Any) -> int:
            tell("finalized", rank=self.number(proc))
            return SUCCEEDED_AT_ONCE

        def on_aborted(proc: Any, _: Any, status: int, text: bytes | None, *__: Any) -> int:
            why = (text or b"")[:1000].decode("utf-8", "replace")
            tell("abort", rank=self.number(proc), code=status, text=why)
            return SUCCESS  # which promises an answer; the rank waits for its end

        def on_fenced(procs: Any, n: int, _: Any, __: int, data: Any, size: int, *how: Any) -> int:
            blob = ctypes.string_at(data, size) if data else b""
            if data:
                libc.free(data)
            asked("fence", PmixAnswer(*how), members=members_of(procs, n), data=blob)
            return SUCCESS

        self.table = (ctypes.c_void_p * N_FUNCTIONS)()
        self.functions = {
            CONNECTED: Connected(on_connected),
            FINALIZED: Connected(on_finalized),
            ABORT: Aborted(on_aborted),
            FENCE: Fenced(on_fenced),
            **upcalls,
        }  # the library answers all other requests with PMIX_ERR_NOT_SUPPORTED
        for place, function in self.functions.items():
            self.table[place] = ctypes.cast(function, ctypes.c_void_p).value

    def begin(self, name: bytes, folder: bytes) -> None:
        """Have it listen, as ``name``; its files go to ``folder``. Raises: LoadError."""
        infos = Infos(
            [
                (b"pmix.srvr.tmpdir", STRING, folder),
                (b"pmix.sys.tmpdir", STRING, folder),
                (b"pmix.srv.nspace", STRING, name),
                (b"pmix.srv.rank", RANK, 0),
            ]
        )
        self._check("server_init", ctypes.byref(self.table), infos.array, _S(infos.size))

    def add(self, namespace: bytes, first: int, job: Pairs, local_ranks: list[int]) -> None:
        """Make a world known. first: the number of its rank 0. Raises: LoadError."""
        self.firsts[namespace] = first
        self.local[namespace] = local_ranks
        infos = Infos(self.readable(job))
        name = ctypes.create_string_buffer(namespace, 256)
        array, n = infos.array, _S(infos.size)
        self._check("server_register_nspace", name, _I(len(local_ranks)), array, n, None, None)
        self._check("server_setup_local_support", name, None, _S(0), None, None)
        ids = (ctypes.c_uint32(os.getuid()), ctypes.c_uint32(os.getgid()))
        for rank in local_ranks:
            proc = ctypes.byref(Proc(namespace, rank))
            self._check("server_register_client", proc, *ids, None, None, None)

    def readable(self, job: Pairs) -> Pairs:
        """``job`` with lists as this version reads them."""
        if not self.version.rpartition(" ")[2].startswith("3."):
            return job
        return [(key, type, v[4:] if key in _LISTS else v) for key, type, v in job]

    def number(self, proc: Any) -> int:
        """The number in the job of the rank that ``proc`` points to."""
        return self.firsts.get(proc[0].namespace, 0) + int(proc[0].rank)

    def fetch(self, namespace: bytes, rank: int, then: Callable[[int, bytes], None]) -> None:
        """Give ``then`` a status, and the data that ``rank`` of this host has put for others."""
        self.n_fetched += 1
        key = self.n_fetched
        self.fetching[key] = then
        proc = ctypes.byref(Proc(namespace, rank))
        status = self.calls.PMIx_server_dmodex_request(proc, self.on_fetched, _P(key))
        if status != SUCCESS:
            self.fetching.pop(key)(status, b"")

    def fetched(self, status: int, data: int | None, size: int, key: int) -> None:
        """Called by the library with the data that ``fetch`` asked for."""
        self.fetching.pop(key)(status, ctypes.string_at(data, size) if data else b"")

    def _check(self, call: str, *arguments: Any) -> None:
        status = getattr(self.calls, "PMIx_" + call)(*arguments)
        if status not in (SUCCESS, SUCCEEDED_AT_ONCE):
            raise LoadError("PMIx_%s: %d" % (call, status))


def copied(data: bytes) -> int:
    """The address of a copy of ``data``, which the library will free."""
    memory = libc.malloc(max(1, len(data)))
    ctypes.memmove(memory, data, len(data))
    return int(memory)


class PmixAnswer:
    """Lets the ranks of this host out of a fence, or gives a rank another rank's data."""

    def __init__(self, function: int, argument: int) -> None:
        self.function = Released(function)
        self.argument = argument

    def give(self, status: int, data: bytes, number: int) -> None:
        """Let them go with ``data``, what all hosts contributed; the library frees its copy."""
        memory = copied(data)
        free = ctypes.cast(libc.free, ctypes.c_void_p)
        self.function(status, memory, len(data), self.argument, free, memory)


def members_of(procs: Any, n: int) -> Members:
    """The processes in the ``n`` structures at ``procs``: [namespace, ranks or None for all]."""
    ranks: dict[bytes, list[int] | None] = {}
    for proc in procs[:n]:
        known = ranks.setdefault(proc.namespace, [])
        if known is not None:
            ranks[proc.namespace] = None if proc.rank >= WILDCARD else [*known, proc.rank]
    return [[namespace, own] for namespace, own in ranks.items()]


def job_of(
    hosts: Sequence[tuple[bytes, list[int]]],
    node: int | None,
    folder: bytes,
    job: bytes,
    nodes: Sequence[int] = (),
    apps: Sequence[int] = (),
    universe: int = 0,
) -> Pairs:
    """The data that ranks may read about the job, themselves and each other.

    hosts: each a name and its ranks; node: which of them this is, or None; nodes: their numbers, if
    they do not count from 0; apps: the ranks of each program; universe: MPI_UNIVERSE_SIZE.
    """
    size = sum(len(ranks) for _, ranks in hosts)
    ids = nodes or range(len(hosts))
    apps = apps or (size,)
    firsts = [sum(apps[:app]) for app in range(len(apps))]
    node_map = b"raw:" + b",".join(host for host, _ in hosts)
    rank_map = b"raw:" + b";".join(b",".join(b"%d" % r for r in ranks) for _, ranks in hosts)
    pairs: Pairs = [
        (b"pmix.jobid", STRING, job),
        (b"pmix.univ.size", UINT32, universe or size),
        (b"pmix.job.size", UINT32, size),
        (b"pmix.max.size", UINT32, size),
        (b"pmix.job.napps", UINT32, len(apps)),
        (b"pmix.num.nodes", UINT32, len(hosts)),
        (b"pmix.nmap", STRING, node_map),
        (b"pmix.pmap", STRING, rank_map),
    ]
    if node is not None:
        pairs += _here(hosts[node], ids[node], folder)
    places: dict[int, tuple[int, int]] = {
        rank: (index, local)
        for index, (_, ranks) in enumerate(hosts)
        for local, rank in enumerate(ranks)
    }
    for rank, (index, local) in sorted(places.items()):
        app = max(at for at, first in enumerate(firsts) if first <= rank)
        own: Pairs = [
            (b"pmix.rank", RANK, rank),
            (b"pmix.appnum", UINT32, app),
            (b"pmix.lrank", UINT16, local),
            (b"pmix.nrank", UINT16, local),
            (b"pmix.grank", RANK, rank),
            (b"pmix.apprank", RANK, rank - firsts[app]),
            (b"pmix.app.size", UINT32, apps[app]),
            (b"pmix.aldr", RANK, firsts[app]),
            (b"pmix.nodeid", UINT32, ids[index]),
            (b"pmix.hname", STRING, hosts[index][0]),
        ]
        pairs.append((b"pmix.pdata", DATA_ARRAY, own))
    return pairs


def _here(host: tuple[bytes, list[int]], node: int, folder: bytes) -> Pairs:
    """The data that ranks may read about their own host."""
    name, local_ranks = host
    return [
        (b"pmix.local.size", UINT32, len(local_ranks)),
        (b"pmix.node.size", UINT32, len(local_ranks)),
        (b"pmix.lpeers", STRING, b",".join(b"%d" % rank for rank in local_ranks)),
        (b"pmix.lldr", RANK, local_ranks[0]),
        (b"pmix.tmpdir", STRING, folder),
        (b"pmix.nsdir", STRING, folder),
        (b"pmix.hname", STRING, name),
        (b"pmix.nodeid", UINT32, node),
    ]


libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
