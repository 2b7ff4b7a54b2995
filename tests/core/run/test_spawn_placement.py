"""Where spawned worlds go, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events.mpi_events import PmiSpawnAsked, Segment, World
from dispatcher.core.run.spawn_placement import MOST_WORDS, Hosts, NotSpawned, _Room, place
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import JobPlan, NodePlan, plan_job
from dispatcher.plan.job.request import Program, Request

from ..conftest import make_plan


def segment(nprocs: int, **info: str) -> Segment:
    pairs = tuple((key.replace("_", "-").encode(), value.encode()) for key, value in info.items())
    return Segment(nprocs, (b"prog",), pairs)


def placed(
    plan: JobPlan, *segments: Segment, load: Sequence[int] = (), spawned: int = 0, index: int = 1
) -> World:
    event = PmiSpawnAsked(0, 0, segments)
    hosts = Hosts(plan.nodes, {0: "alpha", 1: "beta"})
    return place(event, index, hosts, dict(enumerate(load)), spawned)


def limited(*hosts: tuple[int, int | None]) -> JobPlan:
    """A plan of nodes with (slots, max_slots), of which one rank takes the first slot."""
    found = tuple(Host(f"n{i}", slots=s, max_slots=m) for i, (s, m) in enumerate(hosts))
    request = Request(Hostlist(found), Program("command", ("prog",)), "/w")
    return plan_job(request, "run-1")


@cases(("name", "here"), [("localhost", ()), ("login", {0})])
def test_only_this_machine_starts_something_on_this_machine(
    name: str, here: Collection[int]
) -> None:
    hosts = (Host(name, slots=4), Host("n1", slots=4), Host("n2", slots=4))
    request = Request(Hostlist(hosts), Program("command", ("prog",)), "/w")
    job, wanted = Hosts(plan_job(request, "run-1").nodes, {}, here), (segment(6),)
    assert set(place(PmiSpawnAsked(1, 4, wanted), 1, job, {}).nodes) == {1, 2}
    assert set(place(PmiSpawnAsked(0, 0, wanted), 1, job, {}).nodes) == {0, 1}
    with pytest.raises(NotSpawned, match="may start nothing on this machine"):
        place(PmiSpawnAsked(1, 4, (segment(1, host=name),)), 1, job, {})
    assert place(PmiSpawnAsked(1, 4, wanted), 1, job, {}, using={2}).nodes == (2,) * 6


@cases(
    ("load", "wanted", "nodes"),
    [
        ((2, 2), 1, (0,)),  # all slots taken: in turn
        ((2, 2), 4, (0, 0, 1, 1)),
        ((3, 2), 1, (1,)),  # from the least loaded
        ((3, 2), 3, (1, 1, 0)),
        ((1, 1), 2, (0, 1)),  # free slots first, host by host
        ((1, 0), 3, (0, 1, 1)),
        ((2, 0), 2, (1, 1)),
        ((0, 0), 6, (0, 0, 0, 1, 1, 1)),
        ((5, 1), 3, (1, 1, 0)),
    ],
)
def test_free_slots_first_then_in_turn(
    load: tuple[int, ...], wanted: int, nodes: tuple[int, ...]
) -> None:
    assert placed(make_plan(), segment(wanted), load=load).nodes == nodes


def test_each_segment_sees_those_before_it() -> None:
    world = placed(make_plan(), segment(1), segment(1), segment(2), load=(1, 1))
    assert world.nodes == (0, 1, 0, 1)
    assert [world.segment(rank) is world.segments[i] for rank, i in ((0, 0), (1, 1), (3, 2))]
    assert world.ranks_of() == {0: (0, 2), 1: (1, 3)}


@cases(
    ("info", "nodes"),
    [
        ({"host": "n1"}, (1, 1)),
        ({"hosts": "n1,n0"}, (1, 0)),
        ({"host": " n0 , n0"}, (0, 0)),
        ({"host": "beta"}, (1, 1)),  # what the host calls itself
        ({"soft": "1:2", "whatever": "x", "wdir": "/", "path": "/bin"}, (0, 1)),
    ],
)
def test_info(info: dict[str, str], nodes: tuple[int, ...]) -> None:
    assert placed(make_plan(), segment(2, **info), load=(2, 2)).nodes == nodes


@cases(
    ("info", "words"),
    [
        ({"host": "n7"}, "n7: not a host of this job, which has n0,n1"),
        ({"host": "n0,"}, "no name: not a host"),
        ({"hosts": "n0;rm"}, "n0;rm: not a host"),
        ({"hostfile": "/etc/hosts"}, "the info key hostfile is not supported, use host"),
        ({"add_host": "n9"}, "add-host is not supported"),
        ({"arch": "sparc"}, "arch is not supported"),
    ],
)
def test_other_hosts_are_refused(info: dict[str, str], words: str) -> None:
    with pytest.raises(NotSpawned) as caught:
        placed(make_plan(), segment(1, **info))
    assert words in str(caught.value).replace("n[0-1]", "n0,n1")


def test_however_many_hosts_are_named_those_of_the_job_are_looked_at_a_few_times() -> None:
    looks = []

    class Nodes(tuple[NodePlan, ...]):
        def __iter__(self) -> Iterator[NodePlan]:
            looks.append(1)
            return super().__iter__()

    hosts = Hosts(Nodes(make_plan(4).nodes), {0: "alpha"})
    wanted = segment(2, host="n3,alpha, n3 ," * 5000 + "n1")
    for index in (1, 2, 3):
        world = place(PmiSpawnAsked(0, 0, (wanted,)), index, hosts, {})
        assert world.nodes == (3, 3)
    assert len(looks) < 10


def test_however_many_programs_are_spawned_hosts_are_looked_at_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: Counter[str] = Counter()
    excess = _Room._excess

    def counted(room: _Room, at: int) -> int:
        looks["all"] += 1
        return excess(room, at)

    monkeypatch.setattr(_Room, "_excess", counted)
    world = placed(make_plan(100), *[segment(1), segment(1, host="n7")] * 500)
    assert world.size == 1000
    assert looks["all"] < 5000


def test_max_slots_bound_it() -> None:
    plan = limited((1, 2), (1, 3))
    assert placed(plan, segment(3), load=(1, 1)).nodes == (0, 1, 1)
    with pytest.raises(NotSpawned, match=r"4 processes wanted: .* take 3 more \(max_slots\)"):
        placed(plan, segment(4), load=(1, 1))


@cases(
    ("segments", "fields", "words"),
    [
        ([segment(placement.MOST_SPAWNED + 1)], {}, "4097 processes wanted: at most 4096"),
        ([segment(4000), segment(97)], {}, "4097 processes wanted"),
        ([segment(2)], {"spawned": 4095}, "2 processes wanted and 4095 live: at most 4096"),
        ([Segment(2, (b"prog", b"x" * MOST_WORDS))], {}, "at most 4194304 for all processes"),
        ([], {}, "0 processes wanted"),
        ([segment(0)], {}, "0 processes wanted"),
        ([segment(1), segment(0)], {}, "0 processes wanted"),
        ([Segment(1, ())], {}, "no program"),
        ([Segment(1, (b"",))], {}, "no program"),
        ([segment(1)], {"index": placement.MOST_WORLDS + 1}, "which is the most"),
    ],
)
def test_limits(segments: list[Segment], fields: dict[str, int], words: str) -> None:
    with pytest.raises(NotSpawned, match=words):
        placed(make_plan(), *segments, **fields)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.none() | st.integers(0, 3), st.integers(0, 6)),
        min_size=1, max_size=5,
    ),
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 4))), min_size=1, max_size=5),
)  # fmt: skip
def test_ranks_go_where_a_look_at_every_host_puts_them(
    hosts: list[tuple[int, int | None, int]], wanted: list[tuple[int, list[int]]]
) -> None:
    """hosts: slots, how many more ranks may come, living ranks. wanted: ranks, on which hosts."""
    plan = limited(*((slots, None if more is None else slots + more) for slots, more, _ in hosts))
    load = [living for *_, living in hosts]
    wanted = [(count, [at for at in named if at < len(hosts)]) for count, named in wanted]
    segments = [
        segment(count, **({"host": ",".join(f"n{at}" for at in named)} if named else {}))
        for count, named in wanted
    ]
    taken, found = [*load], []
    try:
        for count, named in wanted:
            every = [*dict.fromkeys(named)] or [*range(len(hosts))]
            excess = {at: taken[at] - hosts[at][0] for at in every}
            order = sorted(every, key=lambda at: max(0, excess[at]))
            most = [
                None if more is None else max(0, slots + more - taken[at])
                for at in order
                for slots, more, _ in [hosts[at]]
            ]
            free = [max(0, -excess[at]) for at in order]
            shares = placement.shares(free, count, most=most, oversubscribe=True)
            for at, share in zip(order, shares, strict=True):
                taken[at] += share
                found += [at] * share
    except placement.TooFewSlots as full:
        with pytest.raises(NotSpawned, match=rf" take {full.most} more \(max_slots\)"):
            placed(plan, *segments, load=load)
    else:
        assert placed(plan, *segments, load=load).nodes == tuple(found)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_every_rank_has_a_node_and_nobody_is_crowded_for_nothing(
    load: list[int], wanted: list[int]
) -> None:
    plan = make_plan(len(load))
    world = placed(plan, *map(segment, wanted), load=load)
    assert world.size == sum(wanted)
    new = Counter(world.nodes)
    free = sum(max(0, 2 - taken) for taken in load)
    crowded = sum(max(0, load[n] + new[n] - 2) - max(0, load[n] - 2) for n in range(len(load)))
    assert crowded == max(0, world.size - free)


def test_a_host_that_claims_to_be_the_launchers_may_start_nothing_there() -> None:
    job = Hosts(make_plan(3).nodes, {}, here={0, 1})
    name = job.nodes[0].host.name
    with pytest.raises(NotSpawned, match="may start nothing on this machine"):
        place(PmiSpawnAsked(1, 1, (segment(1, host=name),)), 1, job, {})
