"""What libpmix is told, and what becomes of what it says; the library itself is played."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.pmi import libpmix, pmix_upcalls
from dispatcher.remote.pmi.libpmix import (
    ABORT,
    CONNECTED,
    DATA_ARRAY,
    FENCE,
    FINALIZED,
    RANK,
    STRING,
    SUCCEEDED_AT_ONCE,
    SUCCESS,
    UINT16,
    UINT32,
    WILDCARD,
    DataArray,
    Info,
    Library,
    LoadError,
    PmixAnswer,
    Proc,
    Released,
    job_of,
)
from dispatcher.remote.pmi.pmix_upcalls import (
    CONNECT,
    DISCONNECT,
    GROUP,
    LOG,
    LOG_LIMIT,
    NOT_SUPPORTED,
    NOTIFY,
)
from dispatcher.remote.pmi.pmix_upcalls import Told as GroupTold

HOSTS = [(b"a", [0, 2]), (b"b", [1, 3, 4])]


class Calls:
    """Takes the calls of libpmix: their names and arguments, as numbers and bytes."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []
        self.codes: dict[str, int] = {}
        self.PMIx_Get_version = lambda: b"OpenPMIx 5.0.1 (PMIx Standard: 4.2)"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("PMIx_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            taken = getattr(self, "_" + name.removeprefix("PMIx_server_"), lambda *words: words)
            self.made.append((name.removeprefix("PMIx_server_"), taken(*arguments)))
            return self.codes.get(name, SUCCESS)

        return call

    def _init(self, table: Any, infos: Any, size: Any) -> Any:
        return list(table._obj), seen(infos, size.value)

    def _register_nspace(self, name: Any, ranks: Any, infos: Any, size: Any, *rest: Any) -> Any:
        return name.value, ranks.value, seen(infos, size.value), rest

    def _setup_local_support(self, name: Any, infos: Any, size: Any, *rest: Any) -> Any:
        return name.value, infos, size.value, rest

    def _register_client(self, proc: Any, user: Any, group: Any, *rest: Any) -> Any:
        return proc._obj.namespace, proc._obj.rank, user.value, group.value, rest

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.made]


def seen(infos: Any, size: int) -> list[tuple[bytes, int, Any]]:
    """(key, type, value) of ``size`` structures as a library reads them."""
    found: list[tuple[bytes, int, Any]] = []
    for info in infos[:size]:
        content: Any = info.value.content[0]
        if info.value.type == STRING:
            content = ctypes.string_at(content)
        elif info.value.type == DATA_ARRAY:
            inner = DataArray.from_address(content)
            assert inner.type == libpmix.INFO
            content = seen((Info * inner.size).from_address(inner.array), inner.size)
        found.append((info.key, info.value.type, content))
    return found


class Told:
    """A ``Library`` over ``calls``, and what it told."""

    def __init__(self, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[tuple[str, Any, dict[str, Any]]] = []

        def load(path: str, mode: int) -> Calls:
            assert (path, mode) == ("/lib/libpmix.so.2", ctypes.RTLD_GLOBAL)
            return calls

        with monkeypatch.context() as patch:
            patch.setattr(ctypes, "CDLL", load)
            self.library = Library(
                "/lib/libpmix.so.2",
                lambda type, **fields: self.events.append((type, fields)),
                self.take,
                pmix_upcalls.functions(self.take, lambda proc: self.library.number(proc)),
            )

    def take(self, kind: str, answer: Any, **fields: Any) -> None:
        self.asked.append((kind, answer, fields))


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def told(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(calls, monkeypatch)


def proc(rank: int, namespace: bytes = b"kvs_7") -> Any:
    return (Proc * 1)(Proc(namespace, rank))


def test_it_listens_under_a_name_with_its_files_in_a_folder(told: Told, calls: Calls) -> None:
    assert told.library.version == "OpenPMIx 5.0.1"
    told.library.begin(b"kvs_7_srv", b"/folder")
    ((name, (table, infos)),) = calls.made
    assert name == "init"
    assert infos == [
        (b"pmix.srvr.tmpdir", STRING, b"/folder"), (b"pmix.sys.tmpdir", STRING, b"/folder"),
        (b"pmix.srv.nspace", STRING, b"kvs_7_srv"), (b"pmix.srv.rank", RANK, 0),
    ]  # fmt: skip
    ours = [place for place, function in enumerate(table) if function]
    assert ours == [CONNECTED, FINALIZED, ABORT, FENCE, *range(4, 11), NOTIFY, LOG, GROUP]
    assert len(table) == libpmix.N_FUNCTIONS


def begin(library: Library, apps: tuple[int, ...] = (), universe: int = 0) -> None:
    """Make the job of ``HOSTS`` known on the second of them."""
    job = job_of(HOSTS, 1, b"/folder", b"kvs_8", (), apps, universe)
    library.add(b"kvs_8", 0, job, HOSTS[1][1])


def test_a_job_is_made_known_whole(told: Told, calls: Calls) -> None:
    begin(told.library)
    assert told.library.firsts == {b"kvs_8": 0}
    (_, (name, ranks, infos, rest)), support, *clients = calls.made
    assert (name, ranks, rest) == (b"kvs_8", 3, (None, None))
    assert support == ("setup_local_support", (b"kvs_8", None, 0, (None, None)))
    ids = (os.getuid(), os.getgid(), (None, None, None))
    assert clients == [("register_client", (b"kvs_8", rank, *ids)) for rank in (1, 3, 4)]
    assert infos[:16] == [
        (b"pmix.jobid", STRING, b"kvs_8"), (b"pmix.univ.size", UINT32, 5),
        (b"pmix.job.size", UINT32, 5), (b"pmix.max.size", UINT32, 5),
        (b"pmix.job.napps", UINT32, 1), (b"pmix.num.nodes", UINT32, 2),
        (b"pmix.nmap", STRING, b"raw:a,b"), (b"pmix.pmap", STRING, b"raw:0,2;1,3,4"),
        (b"pmix.local.size", UINT32, 3), (b"pmix.node.size", UINT32, 3),
        (b"pmix.lpeers", STRING, b"1,3,4"), (b"pmix.lldr", RANK, 1),
        (b"pmix.tmpdir", STRING, b"/folder"), (b"pmix.nsdir", STRING, b"/folder"),
        (b"pmix.hname", STRING, b"b"), (b"pmix.nodeid", UINT32, 1),
    ]  # fmt: skip
    places = [(0, 0, b"a", 0), (1, 1, b"b", 0), (2, 0, b"a", 1), (3, 1, b"b", 1), (4, 1, b"b", 2)]
    assert infos[16:] == [
        (
            b"pmix.pdata",
            DATA_ARRAY,
            [
                (b"pmix.rank", RANK, rank), (b"pmix.appnum", UINT32, 0),
                (b"pmix.lrank", UINT16, local), (b"pmix.nrank", UINT16, local),
                (b"pmix.grank", RANK, rank), (b"pmix.apprank", RANK, rank),
                (b"pmix.app.size", UINT32, 5), (b"pmix.aldr", RANK, 0),
                (b"pmix.nodeid", UINT32, node), (b"pmix.hname", STRING, host),
            ],
        )
        for rank, node, host, local in places
    ]  # fmt: skip


@cases(
    ("version", "lists"),
    [
        (b"3.2.5a1", [b"a,b", b"0,2;1,3,4"]),  # as Open MPI 4 has it built in
        (b"OpenPMIx 3.1.5 (PMIx Standard: 3)", [b"a,b", b"0,2;1,3,4"]),
        (b"OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)", [b"raw:a,b", b"raw:0,2;1,3,4"]),
        (b"OpenPMIx 13.3 (PMIx Standard: 9)", [b"raw:a,b", b"raw:0,2;1,3,4"]),
    ],
)
def test_lists_are_as_the_version_reads_them(
    monkeypatch: pytest.MonkeyPatch, version: bytes, lists: list[bytes]
) -> None:
    calls = Calls()
    calls.PMIx_Get_version = lambda: version
    library = Told(calls, monkeypatch).library
    assert "PMIx " in library.version
    begin(library)
    infos = next(made for name, made in calls.made if name == "register_nspace")[2]
    assert [value for key, _, value in infos if key in (b"pmix.nmap", b"pmix.pmap")] == lists


def test_programs_are_told_apart(told: Told, calls: Calls) -> None:
    begin(told.library, apps=(2, 3))
    (_, (_, _, infos, _)), *_ = calls.made
    assert (b"pmix.job.napps", UINT32, 2) in infos
    found = [{key: value for key, _, value in pairs} for key, _, pairs in infos[16:]]
    wanted = ("pmix.appnum", "pmix.apprank", "pmix.app.size", "pmix.aldr")
    assert [tuple(one[name.encode()] for name in wanted) for one in found] == [
        (0, 0, 2, 0), (0, 1, 2, 0), (1, 0, 3, 2), (1, 1, 3, 2), (1, 2, 3, 2),
    ]  # fmt: skip


def test_the_universe_is_what_there_is_room_for(told: Told, calls: Calls) -> None:
    begin(told.library, universe=12)
    (_, (_, _, infos, _)), *_ = calls.made
    sizes = {key: value for key, kind, value in infos if kind == UINT32}
    assert (sizes[b"pmix.univ.size"], sizes[b"pmix.job.size"]) == (12, 5)


@pytest.mark.parametrize(
    ("call", "before"),
    [("register_nspace", 1), ("setup_local_support", 2), ("register_client", 3)],
)
def test_the_first_call_that_fails_is_named(
    told: Told, calls: Calls, call: str, before: int
) -> None:
    calls.codes["PMIx_server_" + call] = -31
    with pytest.raises(LoadError, match=f"PMIx_server_{call}: -31"):
        begin(told.library)
    assert len(calls.made) == before


@cases("missing", ["PMIx_Get_version", "PMIx_server_register_nspace"])
def test_another_library_is_none(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __init__(self) -> None:
            if missing != "PMIx_Get_version":
                self.PMIx_Get_version = lambda: b"1"

    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: Other())
    with pytest.raises(LoadError, match=missing):
        Library("/lib/other.so", lambda: None, lambda *_: None, {})


def test_a_library_that_is_not_there(tmp_path: Any) -> None:
    absent = str(tmp_path / "libpmix.so.2")
    with pytest.raises(LoadError, match=absent):
        Library(absent, lambda: None, lambda *_: None, {})


def test_ranks_come_and_go(told: Told) -> None:
    functions = told.library.functions
    told.library.firsts[b"kvs_7_1"] = 1 << 20
    assert functions[CONNECTED](proc(3, b"kvs_7_1"), None, None, None) == SUCCEEDED_AT_ONCE
    assert told.events.pop() == ("connected", {"rank": (1 << 20) + 3})
    assert functions[CONNECTED](proc(3), None, None, None) == SUCCEEDED_AT_ONCE
    assert functions[FINALIZED](proc(3), None, None, None) == SUCCEEDED_AT_ONCE
    assert told.events == [("connected", {"rank": 3}), ("finalized", {"rank": 3})]


@pytest.mark.parametrize(
    ("said", "text"), [(None, ""), (b"why \xff", "why \ufffd"), (b"x" * 1001, "x" * 1000)]
)
def test_an_abort_is_told_in_its_words(told: Told, said: bytes | None, text: str) -> None:
    abort = told.library.functions[ABORT]
    assert abort(proc(2), None, 7, said, None, 0, None, None) == SUCCESS
    assert told.events == [("abort", {"rank": 2, "code": 7, "text": text})]


def fence(told: Told, procs: list[tuple[bytes, int]], data: bytes | None) -> int:
    """What the library is answered for a fence of ``procs``; it owns a copy of ``data``."""
    members = (Proc * len(procs))(*(Proc(*one) for one in procs))
    memory = None
    if data is not None:
        memory = libpmix.libc.malloc(max(1, len(data)))
        ctypes.memmove(memory, data, len(data))
    size = 0 if data is None else len(data)
    answer: int = told.library.functions[FENCE](members, len(procs), None, 0, memory, size, 1, 2)
    return answer


@pytest.mark.parametrize(
    ("ranks", "known", "data"),
    [
        ([4, 1], [4, 1], b"blob\0"),
        ([WILDCARD], None, b""),
        ([1, 0xFFFFFFFE], None, None),
        ([WILDCARD - 1], [WILDCARD - 1], b"x"),
    ],
)
def test_a_fence_brings_what_its_ranks_contribute(
    told: Told, ranks: list[int], known: list[int] | None, data: bytes | None
) -> None:
    assert fence(told, [(b"kvs_7", rank) for rank in ranks], data) == SUCCESS
    ((kind, _, fields),) = told.asked
    assert (kind, fields) == ("fence", {"members": [[b"kvs_7", known]], "data": data or b""})


def test_ranks_of_two_namespaces_meet(told: Told) -> None:
    assert fence(told, [(b"kvs_7", 0), (b"kvs_8", WILDCARD), (b"kvs_7", 2)], None) == SUCCESS
    ((_, _, fields),) = told.asked
    assert fields["members"] == [[b"kvs_7", [0, 2]], [b"kvs_8", None]]


@cases("data", [b"", b"all that came\0"])
def test_an_answer_gives_its_own_copy_of_the_data(data: bytes) -> None:
    given: list[Any] = []

    def released(status: int, memory: int, size: int, argument: int, free: int, own: int) -> None:
        given.append((status, ctypes.string_at(memory, size), argument, memory == own))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(free)(own)  # as the library does

    function = Released(released)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    PmixAnswer(address, 99).give(-29, data, 0)
    assert given == [(-29, data, 99, True)]


@cases(("where", "is_told"), [(2, False), (7, False), (3, True), (5, True)])
def test_an_event_that_others_would_hear_is_told(told: Told, where: int, is_told: bool) -> None:
    told.asked.clear()
    notify = told.library.functions[NOTIFY]
    assert notify(-4001, proc(2), where, None, 0, 1, 9) == NOT_SUPPORTED
    assert told.asked == [("event", None, {"rank": 2})] * is_told


def test_what_is_to_be_logged_is_told_with_its_stream(told: Told) -> None:
    log = told.library.functions[LOG]
    texts = [(b"pmix.log.stderr", STRING, b"why"), (b"pmix.log.email", STRING, b"x"),
             (b"pmix.log.stdout", STRING, b"y" * (LOG_LIMIT + 1)),
             (b"pmix.log.stderr", UINT32, 7)]  # fmt: skip
    for infos in (libpmix.Infos(texts), libpmix.Infos(texts[1:2])):
        log(proc(2), infos.array, infos.size, None, 0, 1, 9)
    first, other = (fields for kind, _, fields in told.asked if kind == "log")
    assert first == {"rank": 2, "texts": [[2, b"why"], [1, b"y" * LOG_LIMIT]]}
    assert other["texts"] == []


def group(told: Told, verb: int, infos: libpmix.Infos, answered: Any) -> int:
    """What the library is answered when ranks 0 and 2 make the group ``g``."""
    members = (Proc * 2)(Proc(b"kvs_7", 0), Proc(b"kvs_7", 2))
    address = ctypes.cast(answered, ctypes.c_void_p).value
    function = told.library.functions[GROUP]
    answer: int = function(verb, b"g", members, 2, infos.array, infos.size, address, 99)
    return answer


def test_a_group_brings_what_its_ranks_contribute_and_gets_a_number(told: Told) -> None:
    given: list[Any] = []

    def take(status: int, infos: int, size: int, argument: int, free: int, key: int) -> None:
        for info in (Info * size).from_address(infos):
            content = info.value.content
            if info.value.type == libpmix.BYTE_OBJECT:
                given.append((info.key, ctypes.string_at(content[0], content[1])))
            elif info.value.type == DATA_ARRAY:
                inner = DataArray.from_address(content[0])
                procs = (Proc * inner.size).from_address(inner.array)
                given.append((info.key, [(proc.namespace, proc.rank) for proc in procs]))
            else:
                given.append((info.key, content[0]))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(free)(key)  # as the library does

    endpoints = libpmix.Infos([(b"pmix.grp.endpt", libpmix.BYTE_OBJECT, b"mi\0ne")])
    answered = GroupTold(take)
    assert group(told, 0, endpoints, answered) == SUCCESS
    ((kind, answer, fields),) = told.asked
    assert (kind, fields) == (
        "group",
        {"verb": "construct", "name": b"g", "members": [[b"kvs_7", [0, 2]]], "data": b"mi\0ne"},
    )
    answer.give(SUCCESS, b"al\0l", 7)
    assert given == [
        (b"pmix.grp.mbrs", [(b"kvs_7", 0), (b"kvs_7", 2)]), (b"pmix.grp.ctxid", 7),
        (b"pmix.grp.endpt", b"al\0l"),
    ]  # fmt: skip
    answer.give(-47, b"", 0)
    assert len(given) == 3


def test_a_group_of_one_host_is_the_library_s_own_affair(told: Told) -> None:
    given: list[tuple[int, int]] = []
    answered = GroupTold(lambda status, infos, size, *_: given.append((status, size)))
    local = libpmix.Infos([(b"pmix.grp.lcl", 1, 1)])
    assert group(told, 0, local, answered) == SUCCESS
    assert group(told, 1, local, answered) == SUCCEEDED_AT_ONCE
    assert (told.asked, given) == ([], [(SUCCESS, 1)])


@pytest.mark.parametrize("key", [b"pmix.grp.add", b"pmix.grp.btstrp"])
def test_a_group_whose_makers_do_not_know_it_is_refused(told: Told, key: bytes) -> None:
    answered = GroupTold(lambda *given: pytest.fail(f"answered twice: {given}"))
    infos = libpmix.Infos([(b"pmix.grp.actxid", 1, 1), (key, libpmix.SIZE, 2)])
    assert group(told, 0, infos, answered) == -47
    assert told.asked == []


def test_worlds_connect_and_part(told: Told) -> None:
    given: list[Any] = []
    answered = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(
        lambda status, argument: given.append((status, argument))
    )
    address = ctypes.cast(answered, ctypes.c_void_p).value
    for place, verb in ((CONNECT, "connect"), (DISCONNECT, "disconnect")):
        function = told.library.functions[place]
        assert function(proc(WILDCARD), 1, None, 0, address, 99) == SUCCESS
        kind, answer, fields = told.asked.pop()
        assert (kind, fields["verb"], fields["members"]) == ("group", verb, [[b"kvs_7", None]])
        answer.give(-46, b"", 0)
        assert given.pop() == (-46, 99)


def published(*pairs: tuple[bytes, int, Any]) -> libpmix.Infos:
    return libpmix.Infos([*pairs, (b"pmix.euid", UINT32, 0)])


def test_what_is_published_is_told_with_its_type(told: Told) -> None:
    publish = told.library.functions[pmix_upcalls.PUBLISH]
    for pairs, value, once in (
        ([(b"door", STRING, b"here")], b"\x03here", False),
        ([(b"door", STRING, b""), (b"pmix.persist", 30, 3)], b"\x03", False),
        ([(b"door", libpmix.BYTE_OBJECT, b"a\0b"), (b"pmix.persist", 30, 1)], b"\x1ba\0b", True),
    ):
        infos = published(*pairs)
        assert publish(proc(2), infos.array, infos.size, 1, 9) == SUCCESS
        kind, _, fields = told.asked.pop()
        assert (kind, fields) == ("name", {
            "rank": 2, "verb": "publish", "key": b"door", "value": value, "wait": False,
            "once": once,
        })  # fmt: skip
    for bad in ((), ((b"door", UINT32, 7),), ((b"a", STRING, b"b"), (b"c", STRING, b"d"))):
        infos = published(*bad)
        assert publish(proc(2), infos.array, infos.size, 1, 9) == pmix_upcalls.NOT_SUPPORTED
    assert told.asked == []


def test_what_is_looked_up_comes_with_its_type(told: Told) -> None:
    given: list[Any] = []

    def take(status: int, found: int, size: int, argument: int) -> None:
        for one in (libpmix.Published * size).from_address(found) if size else ():
            text = ctypes.string_at(one.value.content[0], one.value.content[1] or 4)
            given.append((one.key, one.value.type, text))
        given.append((status, argument))

    answered = pmix_upcalls.FoundName(take)
    address = ctypes.cast(answered, ctypes.c_void_p).value
    lookup = told.library.functions[pmix_upcalls.LOOKUP]
    keys, waits = (ctypes.c_char_p * 2)(b"door", None), libpmix.Infos([(b"pmix.wait", 1, 1)])
    for value, type, text in ((b"\x03here", STRING, b"here"), (b"\x1ba\0b", 27, b"a\0b")):
        assert lookup(proc(2), keys, waits.array, waits.size, address, 9) == SUCCESS
        _, answer, fields = told.asked.pop()
        assert (fields["verb"], fields["key"], fields["wait"]) == ("lookup", b"door", True)
        answer.give(SUCCESS, value, 0)
        assert given == [(b"door", type, text), (SUCCESS, 9)]
        given.clear()
    answer.give(-46, b"", 0)
    assert given == [(-46, 9)]
    # another host's word for a type whose value is an address, or another protocol's text
    for wrong in (b"\x27" + bytes(range(24)), b"tcp://here"):
        answer.give(SUCCESS, wrong, 0)
        assert given.pop() == (pmix_upcalls.UNPACK_FAILURE, 9)
    several = (ctypes.c_char_p * 3)(b"a", b"b", None)
    for place in (pmix_upcalls.LOOKUP, pmix_upcalls.UNPUBLISH):
        function = told.library.functions[place]
        assert function(proc(2), several, None, 0, 1, 9) == pmix_upcalls.NOT_SUPPORTED


def app(count: int, *words: bytes, env: tuple[bytes, ...] = (), said: Any = ()) -> libpmix.App:
    infos = libpmix.Infos(list(said))
    argv, variables = ((ctypes.c_char_p * (len(w) + 1))(*w, None) for w in (words, env))
    pointer = ctypes.POINTER(ctypes.c_char_p)
    first = ctypes.cast(infos.array, ctypes.POINTER(Info))
    made = libpmix.App(words[0], ctypes.cast(argv, pointer), ctypes.cast(variables, pointer), b"/")
    made.count, made.infos, made.n_infos = count, first, infos.size
    made.kept = argv, variables, infos
    return made


def test_a_spawn_is_told_in_the_words_of_pmi_1(told: Told) -> None:
    given: list[Any] = []
    answered = pmix_upcalls.Spawned(lambda *words: given.append(words))
    address = ctypes.cast(answered, ctypes.c_void_p).value
    spawn = told.library.functions[pmix_upcalls.SPAWN]
    made = [
        app(2, b"/bin/a", b"-x", env=(b"A=1",), said=[(b"pmix.host", STRING, b"n1:2,n2")]),
        app(1, b"b", said=[(b"pmix.wdir", STRING, b"/d"), (b"pmix.mapby", STRING, b"slot")]),
    ]
    infos = libpmix.Infos([(b"pmix.addhost", STRING, b"n9"), (b"pmix.fwd.stdout", 1, 1)])
    apps = (libpmix.App * 2)(*made)
    assert spawn(proc(3), infos.array, infos.size, apps, 2, address, 9) == SUCCESS
    ((kind, answer, fields),) = told.asked
    assert (kind, fields) == ("spawn", {"rank": 3, "segments": [
        [2, [b"/bin/a", b"-x"], [[b"add-host", b"n9"], [b"host", b"n1,n2"], [b"env", b"A=1"]]],
        [1, [b"b"], [[b"add-host", b"n9"], [b"wdir", b"/d"]]],
    ]})  # fmt: skip
    answer.give(SUCCESS, b"kvs_7_1", 0)
    answer.give(-29, b"", 0)
    assert given == [(SUCCESS, b"kvs_7_1", 9), (-29, b"", 9)]
    for bad in (app(-1, b"a"), app(1, *[b"x"] * 4097), app(1, b"x" * (257 << 10))):
        one = (libpmix.App * 1)(bad)
        assert spawn(proc(3), None, 0, one, 1, address, 9) == pmix_upcalls.BAD_PARAM
    assert spawn(proc(3), None, 0, apps, 0, address, 9) == pmix_upcalls.BAD_PARAM
