"""The orders that agents get: what each rank is started with, and what is made once a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.bootstrap import payload
from dispatcher.core.events.mpi_events import Segment, World
from dispatcher.core.events.run_events import Facts
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.binding import Topology
from dispatcher.plan.job.compared import NamedFile
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.parts import Part
from dispatcher.plan.job.placement import number
from dispatcher.plan.job.request import Limits, Program, Request, Restarts
from dispatcher.remote.host.own_folder import shm_link
from dispatcher.remote.protocol.frames import Decoder
from dispatcher.remote.protocol.packing import unpack
from dispatcher.runner.run import orders
from dispatcher.runner.run.orders import once_a_plan

COMMAND = Program("command", ("prog",))


def plan_of(*names: str, slots: int | None = 2, **fields: Any) -> JobPlan:
    hosts = Hostlist(tuple(Host(name, slots=slots) for name in names))
    fields = {"bind_to": "none", "program": COMMAND, **fields}
    return plan_job(Request(hosts, fields.pop("program"), "/w", **fields), "run-1")


def facts_of(cores: int = 8, gpus: int = 0, *addresses: str, folder: str | None = None) -> Facts:
    return Facts("h", 1, "3.11", cores, gpus, addresses, "m", folder)


def read(order: bytes) -> dict[str, Any]:
    (frame,) = Decoder().feed(order)
    found = unpack(frame.body)
    assert isinstance(found, dict)
    return found


def env(pairs: list[list[bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in pairs}


def test_it_is_made_once_for_each_plan() -> None:
    seen: list[JobPlan] = []

    @once_a_plan
    def size(plan: JobPlan) -> int:
        seen.append(plan)
        return plan.world_size

    small, large = plan_of("a"), plan_of("a", "b")
    assert [size(plan) for plan in (small, small, large, large, small)] == [2, 2, 4, 4, 2]
    assert [plan is small for plan in seen] == [True, False, True]


def test_names_for_pmix_differ() -> None:
    plan = plan_of("a_1", "a.1", "a+1", "a 1")
    assert orders.hostnames(plan) == ["a_1", "a.1", "a-1", "a-1-3"]
    assert orders.hostnames(plan_of("b")) == ["b"]
    assert orders.hostnames(plan_of("n" * 61)) == ["n" * 60]


# -- prepare ----------------------------------------------------------------------------


def prepared(plan: JobPlan, node: int = 0, *, head: bool = True, **how: Any) -> dict[str, Any]:
    return read(orders.prepare_order(plan, plan.nodes[node], b"T" * 16, 999, head=head, **how))


def test_who_a_node_is_and_what_it_looks_at() -> None:
    limits = Limits(heartbeat=2.0, lease=21.0, lifeline_grace=3.0)
    restarts = Restarts(progress_file="/w/step")
    plan = plan_of("a", "b", limits=limits, restarts=restarts, master_port=4711, iface="ib0")
    order = prepared(plan, 0, head=True, attempt=2)
    assert {name: value for name, value in order.items() if name != "path"} == {
        "type": "prepare", "parts": payload.parts(["host.tcp_peer"]), "run_id": "run-1",
        "node": 0, "attempt": 2, "check": {"program": b"prog", "iface": b"ib0"}, "cwd": b"/w",
        "reserve": 4711,
        "watch": b"/w/step", "token": b"T" * 16, "heartbeat": 2.0, "lease": 21.0,
        "lifeline_grace": 3.0, "credit": 999,
    }  # fmt: skip
    order = prepared(plan, 1, head=False)
    assert (order["node"], order["attempt"]) == (1, 0)
    assert (order["reserve"], order["watch"]) == (None, None)
    plain = prepared(plan_of("a"))
    assert (plain["reserve"], plain["watch"]) == (0, None)  # any port


@cases(
    ("fields", "check"),
    [
        ({}, {"program": b"prog"}),
        ({"program": Program("command", ("a\udcff",))}, {"program": b"a\xff"}),
        ({"program": Program("script", ("t.py",))}, {"program": b"python3", "script": b"t.py"}),
        ({"program": Program("module", ("m",)), "python": "p9"}, {"program": b"p9"}),
        ({"mpi": "pmi1"}, {"program": b"prog", "mpi": b"pmi1"}),
        ({"mpi": "pmi1", "np": 1}, {"program": b"prog"}),  # alone it needs nobody
        ({"bind_to": "auto"}, {"program": b"prog", "bind": b"auto"}),
        (
            {"bind_to": "core", "near_hca": True, "exports": ("CUDA_VISIBLE_DEVICES=GPU-7",)},
            {"program": b"prog", "bind": b"core nics uuid"},
        ),
        ({"mpi": "pmi1", "program": Program("module", ("m",))}, {"program": b"python3"}),
    ],
)
def test_what_is_looked_for_on_a_host(fields: dict[str, Any], check: dict[str, bytes]) -> None:
    assert prepared(plan_of("a", **fields))["check"] == check


def test_a_host_s_own_python_and_path_go_before_the_plan_s() -> None:
    own = Host("a", slots=1, python="/own/py", env=(("PATH", "/host"),))
    request = Request(
        Hostlist((own, Host("b", slots=1), )), Program("module", ("m",)), "/w",
        exports=("PATH=/all",), bind_to="none",
    )  # fmt: skip
    plan = plan_job(request, "run-1")
    first, second = prepared(plan), prepared(plan, 1)
    assert (first["check"], first["path"]) == ({"program": b"/own/py", "code": b""}, b"/host")
    assert (second["check"], second["path"]) == ({"program": b"python3", "code": b""}, b"/all")
    assert prepared(plan_of("a"))["path"] is None


@cases(
    ("fields", "parts"),
    [
        ({}, []),
        ({"stdin": 0}, ["agent.rank_stdin"]),
        ({"stdin": "all"}, ["agent.rank_stdin"]),
        ({"mpi": "auto"}, ["host.tcp_peer"]),
        ({"mpi": "pmi1"}, []),
        ({"mpi": "pmi1", "pmi_port": True}, ["host.tcp_peer", "pmi.pmi_port"]),
        ({"pmi_port": True}, []),
        ({"bind_to": "auto"}, ["host.binding"]),
        ({"near_hca": True}, ["host.binding"]),
    ],
)
def test_an_agent_gets_the_parts_that_the_run_needs(
    fields: dict[str, Any], parts: list[str]
) -> None:
    assert prepared(plan_of("a", **{"mpi": "none"} | fields))["parts"] == payload.parts(parts)


# -- start ------------------------------------------------------------------------------


def started(plan: JobPlan, node: int, facts: Facts, restart: int = 0) -> dict[str, Any]:
    return read(orders.start_order(plan, node, facts, "10.0.0.1", 4000, "kvs", restart))


def test_what_ranks_are_started_with() -> None:
    plan = plan_of("a", "b", stdin=3, exports=("X=1",), program=Program("command", ("p", "\udcff")))
    order = started(plan, 1, facts_of(9, 0, "10.0.0.2", "fd00::2", folder="/tmp/d"), restart=3)
    assert [(rank, words) for rank, words, _ in order["ranks"]] == [
        (2, [b"p", b"\xff"]), (3, [b"p", b"\xff"]),
    ]  # fmt: skip
    assert order["stdin"] == [3]
    assert order["scrub"] == orders.SCRUB
    common = env(order["common"])
    assert {name: common[name] for name in ("X", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "OMP_NUM_THREADS", "PMI_HOSTNAME", "TORCHELASTIC_RESTART_COUNT", "PMIX_HOSTNAME",
        "PMIX_NAMESPACE", "PMIX_VERSION")} == {
        "X": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000",
        "OMP_NUM_THREADS": "4", "PMI_HOSTNAME": "10.0.0.2", "TORCHELASTIC_RESTART_COUNT": "3",
        "PMIX_HOSTNAME": "b", "PMIX_NAMESPACE": "kvs", "PMIX_VERSION": "9.9.9",
    }  # fmt: skip
    assert all(common[name] == shm_link("/tmp/d") for name in orders.SEGMENTS)
    own = [env(pairs) for _, _, pairs in order["ranks"]]
    assert own[1] == {
        "RANK": "3", "LOCAL_RANK": "1", "ROLE_RANK": "3", "MPI_LOCALRANKID": "1",
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
        "PMIX_RANK": "3", "TORCHELASTIC_ERROR_FILE": "/tmp/d/rank-3.json",
    }  # fmt: skip
    assert own[0].keys() == own[1].keys()
    assert not common.keys() & own[0].keys()
    assert "DISPATCH_GPUS" not in common


def test_the_words_before_a_program_are_looked_for_where_they_run() -> None:
    plan = plan_of("a", "b", wraps=("all:nice", "3:perf stat"))
    nice, perf = ([plan.cwd.encode(), None, {"program": word}] for word in (b"nice", b"perf"))
    assert [prepared(plan, node)["more"] for node in (0, 1)] == [[nice], [nice, perf]]


def test_what_hosts_are_compared_in_is_looked_at() -> None:
    plan = plan_of("a", "b", program=Program("script", ("a.py",)), exports=("PYTHONPATH=/lib",))
    plan = replace(plan, named=(NamedFile("c.yaml"), NamedFile("data")), modules=("torch", "yaml"))
    order = prepared(plan)
    assert order["check"] == {
        "program": b"python3", "script": b"a.py", "code": b"", "modules": b"torch yaml",
        "pythonpath": b"/lib", "named": b"c.yaml\0data",
    }  # fmt: skip
    assert "dispatcher.remote.probe.compared" in order["parts"]


def test_programs_find_what_is_theirs() -> None:
    parts = (
        Part(("a.py",), np=1, cwd="sub", hosts=(("a", None),)),
        Part(("b",), "command", np=3, exports=("PATH=/b",), hosts=(("b", None),)),
        Part(("c",), "command", np=1, hosts=(("a", None),)),
    )
    plan = plan_of("a", "b", parts=parts, program=parts[0].program, nproc_per_node=None, slots=3)
    there, elsewhere = prepared(plan), prepared(plan, 1, head=False)
    assert (there["cwd"], elsewhere["cwd"]) == (b"/w/sub", b"/w")
    assert there["check"] == {"program": b"python3", "script": b"a.py", "code": b""}
    assert there["more"] == [[b"/w", None, {"program": b"c"}]]
    assert elsewhere["check"] == {}, "nothing is compared with hosts of another program"
    assert elsewhere["more"] == [[b"/w", b"/b", {"program": b"b"}]]
    order = started(plan, 0, facts_of())
    assert [(rank, words[-1], cwd) for rank, words, _, cwd in order["ranks"]] == [
        (0, b"a.py", b"/w/sub"), (4, b"c", b"/w"),
    ]  # fmt: skip
    assert order["pmi"]["apps"] == [1, 3, 1]
    assert read(orders.pmix_order(plan, 1))["apps"] == [1, 3, 1]


TWO_NODES = Topology(
    "0-7", ((0, "0-1,4-5"), (1, "2-3,6-7")), gpus=(("", 1, "pci0/a"), ("", 0, "pci1/b")),
    nics=(("mlx5_0", 0, "pci1/c"), ("mlx5_1", 1, "pci2/d")),
)  # fmt: skip


@cases(
    ("fields", "bind", "threads", "hca"),
    [
        ({}, [[0, [2, 3, 6, 7], []], [1, [0, 1, 4, 5], []]], "4 4", "None None"),
        ({"mem_bind": "local"}, [[0, [2, 3, 6, 7], [1]], [1, [0, 1, 4, 5], [0]]], "4 4",
         "None None"),
        ({"near_hca": True, "bind_to": "none", "omp": 3}, [], "3 3", "=mlx5_1 =mlx5_0"),
        ({"near_hca": True, "bind_to": "none", "exports": ("NCCL_IB_HCA=^x",)}, [], "4 4",
         "^x ^x"),
        # named twice: CUDA shows none of them, so nobody has a GPU
        ({"nproc_per_node": 3, "bind_to": "gpu", "exports": ("CUDA_VISIBLE_DEVICES=1,1",)},
         [], "2 2 2", "None None None"),
        ({"nproc_per_node": 4, "bind_to": "numa", "oversubscribe": True},
         [[0, [2, 3, 6, 7], []], [1, [0, 1, 4, 5], []], [2, [2, 3, 6, 7], []],
          [3, [0, 1, 4, 5], []]], "2 2 2 2", "None None None None"),
    ],
)  # fmt: skip
def test_what_ranks_are_bound_to_and_their_threads(
    fields: dict[str, Any], bind: list[Any], threads: str, hca: str
) -> None:
    how = {"bind_to": "auto", "oversubscribe": True, **fields}
    facts = replace(facts_of(8, 2), topology=TWO_NODES)
    plan = plan_of("a", **how).resolved({0: 2})
    order = started(plan, 0, facts)
    assert order["bind"] == bind
    for name, wanted in (("OMP_NUM_THREADS", threads), ("NCCL_IB_HCA", hca)):
        all_ranks = env(order["common"])
        found = [{**all_ranks, **env(own)}.get(name) for _, _, own in order["ranks"]]
        assert " ".join(map(str, found)) == wanted


def test_what_a_rankfile_names_is_looked_for_and_bound() -> None:
    text = "rank 0=a slot=1\nrank 1=a slot=1"
    plan = plan_of("a", bind_to="auto", rankfile=("rf", text), np=2)
    assert prepared(plan)["check"]["bind"] == b"core socket"
    there = Topology("0-3", ((0, "0-3"),), ("0,2", "1,3"))
    order = started(plan, 0, replace(facts_of(8, 0), topology=there))
    assert order["bind"] == [[0, [1, 3], []], [1, [1, 3], []]]
    assert env(order["common"])["OMP_NUM_THREADS"] == "1"
    told = orders.ranks_bound(plan, 0, replace(facts_of(8, 0), topology=there))
    assert told is not None
    assert told.is_asked


@cases(
    ("bind_to", "there", "told"),
    [
        ("auto", None, None), ("none", TWO_NODES, None),
        ("auto", TWO_NODES, ((("CPUs 2-3,6-7 of NUMA node 1", (0,)),
                              ("CPUs 0-1,4-5 of NUMA node 0", (1,))), (), False)),
        ("auto", replace(TWO_NODES, gpus=()), ((), (("no GPU that is known", (0, 1)),), False)),
        ("gpu", None, ((), (("the host reports no CPUs", (0, 1)),), True)),
    ],
)  # fmt: skip
def test_what_is_told_of_bindings(bind_to: Any, there: Any, told: Any) -> None:
    facts = replace(facts_of(8, 2), topology=there)
    found = orders.ranks_bound(plan_of("a", bind_to=bind_to), 0, facts)
    assert (found and (found.bound, found.unbound, found.is_asked)) == told


def test_on_the_first_host_ranks_are_reached_where_all_meet() -> None:
    plan = plan_of("a", "b")
    assert (
        env(started(plan, 0, facts_of(8, 0, "192.168.0.1"))["common"])["PMI_HOSTNAME"] == "10.0.0.1"
    )
    known = replace(facts_of(8, 0, "10.0.0.2"), ifaces=(("10.0.0.1", "eth1"), ("10.0.0.2", "ib0")))
    for node, iface in ((0, "eth1"), (1, "ib0")):
        assert env(started(plan, node, known)["common"])["GLOO_SOCKET_IFNAME"] == iface
    common = env(started(plan, 1, facts_of())["common"])
    assert not {"PMI_HOSTNAME", "GLOO_SOCKET_IFNAME"} & common.keys()
    assert "TORCHELASTIC_ERROR_FILE" not in common
    assert not common.keys() & {*orders.SEGMENTS}  # its agent has no folder


@cases(
    ("mpi", "np", "is_offered", "is_served"),
    [("auto", 2, True, True), ("auto", 1, True, True), ("pmi1", 2, False, True),
     ("none", 2, False, False)],
)  # fmt: skip
def test_what_mpi_finds(mpi: Any, np: int, is_offered: bool, is_served: bool) -> None:
    plan = plan_of("a", mpi=mpi, np=np)
    assert orders.is_offered(plan) == is_offered
    order = started(plan, 0, facts_of())
    assert ("PMIX_NAMESPACE" in env(order["common"])) == is_offered
    if not is_served:
        assert order["pmi"] is None
        return
    assert order["pmi"] == {
        "world": 0, "first": 0, "name": b"kvs", "size": np, "universe": 2,
        "mapping": b"(vector,(0,1,%d))" % np, "patience": plan.limits.mpi_stall_warning,
        "port": False, "pmix": list(orders.URIS) if is_offered else [], "hook": None,
    }  # fmt: skip


@cases(("np", "shares"), [(1, False), (2, True)])
def test_a_lone_rank_shares_no_memory_that_is_ours_to_place(np: int, shares: bool) -> None:
    order = started(plan_of("a", np=np), 0, facts_of(folder="/tmp/d"))
    assert {name in env(order["common"]) for name in orders.SEGMENTS} == {shares}


def test_what_ranks_in_python_load_first() -> None:
    order = started(plan_of("a", program=Program("module", ("m",)), pmi_port=True), 0, facts_of())
    assert order["pmi"]["hook"] == orders.hook()
    assert b"def " in orders.hook()
    assert order["pmi"]["port"] is True


def test_the_universe_is_all_room_there_is() -> None:
    assert orders.universe(plan_of("a", "b", np=3)) == 4
    assert orders.universe(plan_of("a", "b", nproc_per_node=3, oversubscribe=True)) == 6


def test_gpus_that_ranks_may_use_are_told() -> None:
    def told(plan: JobPlan, gpus: int) -> str | None:
        order = started(plan, 0, facts_of(8, gpus))
        return {**env(order["common"]), **env(order["ranks"][0][2])}.get("DISPATCH_GPUS")

    assert told(plan_of("a"), 4) == "4"
    assert told(plan_of("a"), 0) is None
    plan = plan_of("a")
    some = replace(plan.nodes[0], gpus=("5", "7"))  # somebody has chosen these
    assert told(replace(plan, nodes=(some,)), 4) == "2"


@cases(
    ("slots", "gpus", "addr", "words"),
    [
        (2, 8, "10.0.0.1", "2 1 2 10.0.0.1:4000 10.0.0.2 b 0 run-1-5"),
        (None, 8, "fd00::1", "2 1 8 [fd00::1]:4000 10.0.0.2 b 0 run-1-5"),
        (None, 0, "10.0.0.1", "2 1 1 10.0.0.1:4000 10.0.0.2 b 0 run-1-5"),
    ],
)
def test_one_process_a_node_is_told_its_place_in_its_words(
    slots: int | None, gpus: int, addr: str, words: str
) -> None:
    form = (
        "{nnodes} {node_rank} {nproc_per_node} {master_addr}:{master_port} {address} {host} "
        "{is_first_node} {run_id}-{restart}"
    )
    plan = plan_of("a", "b", slots=slots, program=Program("command", ("p", form)), per_node=True,
                   nproc_per_node=1)  # fmt: skip
    order = read(orders.start_order(plan, 1, facts_of(8, gpus, "10.0.0.2"), addr, 4000, "kvs", 5))
    ((rank, argv, _),) = order["ranks"]
    assert (rank, argv) == (1, [b"p", words.encode()])
    common = env(order["common"])
    nproc = words.split()[2]
    assert [common[n] for n in ("NNODES", "NODE_RANK", "NPROC_PER_NODE")] == ["2", "1", nproc]
    first = read(orders.start_order(plan, 0, facts_of(8, gpus, "9.9.9.9"), addr, 4000, "kvs"))
    assert first["ranks"][0][1][1].decode().split()[4:7] == [addr, "a", "1"]
    alone = read(orders.start_order(plan, 1, facts_of(8, gpus), addr, 4000, "kvs"))
    assert alone["ranks"][0][1][1].decode().split()[4] == "b"  # its address is not known


def test_what_environments_share_is_sent_once() -> None:
    common, own = orders._common([{"A": "1", "B": "2", "C": "3"}, {"A": "1", "B": "9"}])
    assert unpack(common) == [[b"A", b"1"]]
    assert [unpack(one) for one in own] == [[[b"B", b"2"], [b"C", b"3"]], [[b"B", b"9"]]]


# -- MPI --------------------------------------------------------------------------------


def test_who_serves_pmix_knows_all_hosts() -> None:
    order = read(orders.pmix_order(plan_of("a", "b c"), 1))
    assert order == {
        "type": "serve_pmix", "parts": payload.parts(orders.PARTS), "node": 1,
        "hosts": [[b"a", [0, 1]], [b"b-c", [2, 3]]],
    }  # fmt: skip


def spawned(plan: JobPlan, world: World, node: int, facts: Facts) -> dict[str, Any]:
    return read(orders.spawn_order(plan, world, node, facts, "10.0.0.1", "kvs"))


def test_a_world_that_was_spawned() -> None:
    plan = plan_of("a", "b", mpi="auto", limits=Limits(mpi_stall_warning=9.0))
    segments = (
        Segment(2, (b"/bin/child", b"-x"), (
            (b"wdir", b"/d"), (b"path", b"/p"), (b"env", b"A=1\nPMIX_RANK=7"),
            (b"env", b"B=2=3\nC"),
        )),
        Segment(1, (b"/opt/python3.9", b"m.py")),
    )  # fmt: skip
    world = World(3, 1, segments, ((b"k", b"v"), (b"l", b"w")), (1, 0, 1))
    first = number(3, 0)
    order = spawned(plan, world, 1, facts_of(8, 0, "10.0.0.2"))
    assert [(r[0], r[1], r[3], r[4]) for r in order["ranks"]] == [
        (first, [b"/bin/child", b"-x"], b"/d", b"/p"),
        (first + 2, [b"/opt/python3.9", b"m.py"], b"", b""),
    ]  # fmt: skip
    own = [env(r[2]) for r in order["ranks"]]
    assert [one["MPI_LOCALRANKID"] for one in own] == ["0", "1"]
    assert [one["PMIX_RANK"] for one in own] == ["0", "2"]
    assert [(one.get("A"), one.get("B")) for one in own] == [("1", "2=3"), (None, None)]
    common = env(order["common"])
    assert (common["MPI_LOCALNRANKS"], common["PMI_HOSTNAME"]) == ("2", "10.0.0.2")
    assert common["OMP_NUM_THREADS"] == "4"
    assert (common["PMIX_NAMESPACE"], common["PMIX_HOSTNAME"]) == ("kvs_3", "b")
    assert order["scrub"] == orders.SCRUB
    assert order["pmi"] == {
        "world": 3, "first": first, "name": b"kvs_3", "size": 3, "universe": 4,
        "mapping": b"(vector,(0,2,1),(0,1,1))", "patience": 9.0, "hook": orders.hook(),
        "apps": [2, 1], "preput": [[b"k", b"v"], [b"l", b"w"]],
        "pmix": list(orders.URIS),
    }  # fmt: skip
    head = spawned(plan, world, 0, facts_of(8, 0, "192.168.0.1"))
    assert [r[0] for r in head["ranks"]] == [first + 1]
    assert env(head["common"])["PMI_HOSTNAME"] == "10.0.0.1"


@cases(
    ("program", "has_hook"),
    [(b"python", True), (b"/usr/bin/python3.11", True), (b"pypy3", True), (b"prog", False),
     (b"/python/prog", False)],
)  # fmt: skip
def test_a_spawned_python_loads_the_hook_too(program: bytes, has_hook: bool) -> None:
    world = World(1, 0, (Segment(1, (program,)),), (), (0,))
    hook = spawned(plan_of("a"), world, 0, facts_of())["pmi"]["hook"]
    assert (hook is not None) == has_hook


def test_who_serves_pmix_learns_of_a_world() -> None:
    plan = plan_of("a", "b", "c", mpi="auto")
    world = World(3, 1, (Segment(2, (b"x",)), Segment(1, (b"y",))), (), (2, 0, 2))
    for node, here in ((0, 0), (1, None), (2, 1)):
        assert read(orders.world_order(plan, world, node, "kvs")) == {
            "type": "share_world", "world": 3, "first": number(3, 0), "name": b"kvs_3", "size": 3,
            "hosts": [[b"a", [1]], [b"c", [0, 2]]], "nodes": [0, 2], "node": here, "apps": [2, 1],
        }  # fmt: skip
