"""Jobs on GPUs as samples show them: none that works is ended, each that hangs is told in time.

The figures are those of H100 (limit 700 W, idle 70 W, a waiting NCCL kernel 100 % at 110 to 130 W)
and A100 (400, 55, 85 W), as operators report them; no GPU was asked for these tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events.monitor_events import GpuSample, NodeSampled, RankSample
from dispatcher.core.hang_rule import HangRule, every

#: --hang-timeout of all jobs here, s; how long they are looked at; what the design promises
S, LONG = 300.0, 3000.0
BOUND = S + 2 * every(S)


@dataclass(frozen=True)
class At:
    """What a rank and its GPU do: CPUs used; % used, watts, and % of traffic of the GPU."""

    cpu: float
    used: float
    watts: float
    traffic: float | None = 0.0
    limit: float | None = 700.0


IDLE = At(0.0, 0, 70)
TRAINS = At(1.05, 99, 650, 45)
WAITS = At(1.0, 100, 120)  # the process spins in cudaStreamSynchronize, the kernel in NCCL
WAITS_ASLEEP = replace(WAITS, cpu=0.01)
LOADS = At(4.0, 0, 90)  # the rank's processes decode, its GPU has nothing to do
LOADS_WARM = At(1.0, 8, 110, 1)
INFERS = At(1.0, 100, 190, 22)  # small batches: launches without a gap, memory is read
INFERS_LOWER = At(1.0, 97, 130, 5)
EVALUATES = At(1.0, 100, 230, 30)
WRITES = At(0.4, 0, 72)  # a checkpoint, from memory
CAPPED = At(1.0, 99, 195, 40, 200.0)
CAPPED_WAITS = At(1.0, 100, 85, 0, 200.0)
LIGHT = At(1.0, 70, 210, 12)  # a stage of a pipeline with little to do
UNTOLD = At(1.0, 100, 120, None)  # a driver that does not tell of memory
MIG = At(1.0, 0, 120, None, None)

Course = Callable[[float], At]


def then(*parts: tuple[float, At] | At) -> Course:
    """The last part stays; the others last for so many seconds."""

    def at(t: float) -> At:
        for part in parts:
            if isinstance(part, At):
                return part
            seconds, what = part
            if t < seconds:
                return what
            t -= seconds
        raise AssertionError("no last part")

    return at


def again(*parts: tuple[float, At]) -> Course:
    """The parts over and over."""
    whole = sum(seconds for seconds, _ in parts)
    last = parts[-1][1]
    return lambda t: then(*parts[:-1], last)(t % whole)


def told(
    hosts: Sequence[Sequence[Course]],
    gpus: Callable[[int, float], tuple[GpuSample, ...]] = lambda node, t: (),
    own: Callable[[int, int], tuple[int, ...]] = lambda local, count: (local,),
) -> float | None:
    """When a job of these ranks is told to hang; None: never. gpus: what other GPUs do."""
    hang = HangRule(S, 0.0)
    seats = [(node, local) for node, host in enumerate(hosts) for local in range(len(host))]
    for rank, (node, _) in enumerate(seats):
        hang.began(rank, node, 0.0)
    used = [0.0] * len(seats)
    step = every(S)
    for number in range(int(LONG / step)):
        t = 0.5 + step * number
        for rank, (node, local) in enumerate(seats):
            used[rank] += step * hosts[node][local](t).cpu
        for node, host in enumerate(hosts):
            seen = [course(t) for course in host]
            count = len(host)
            everything = tuple(range(count))
            ranks = tuple(
                RankSample(
                    rank, "R", used[rank], 1, 1, 1, own(local, count),
                    tuple(sorted({*everything, *own(local, count)})),
                )
                for rank, (at, local) in enumerate(seats) if at == node
            )  # fmt: skip
            figures = tuple(
                GpuSample(index, one.used, 1.0, 2.0, one.watts, 40.0, one.limit, one.traffic)
                for index, one in enumerate(seen)
            )
            hang.sampled(NodeSampled(node, 5e4 + t, ranks, figures + gpus(node, t)), t)
        if hang.hangs(t):
            return t
    return None


def same(course: Course, hosts: int, each: int) -> list[list[Course]]:
    return [[course] * each] * hosts


WORKING: dict[str, list[list[Course]]] = {
    "training in silence": same(then(TRAINS), 2, 8),
    "training, unequal": [[then(TRAINS), then(LIGHT)], [then(LIGHT), then(EVALUATES)]],
    "ranks sleep while their gpus work": same(then(replace(TRAINS, cpu=0.0)), 1, 8),
    "steps between long waits": same(again((200, WAITS), (60, TRAINS)), 2, 8),
    "one gpu works, the others wait for it": [[then(TRAINS), *[then(WAITS)] * 7]],
    "one host works, the other waits for it": [[then(TRAINS)] * 2, [then(WAITS)] * 2],
    "all load data for ten minutes": same(again((600, TRAINS), (600, LOADS)), 2, 8),
    "data before the first step": same(then((1200, LOADS), TRAINS), 1, 8),
    "rank 0 tokenizes, the others wait in the first collective": [
        [then((1200, LOADS), TRAINS), *[then((30, IDLE), (1170, WAITS), TRAINS)] * 7]
    ],
    "the same, others sleep": [
        [then((1200, LOADS), TRAINS), *[then((30, IDLE), (1170, WAITS_ASLEEP), TRAINS)] * 7]
    ],
    "the same, over hosts": [
        [then((1200, LOADS), TRAINS), then((1200, WAITS), TRAINS)],
        [then((1200, WAITS), TRAINS)] * 2,
    ],
    "data with a little of the gpu": same(then(LOADS_WARM), 1, 2),
    "rank 0 writes checkpoints, the others wait": [
        [again((500, TRAINS), (500, WRITES)), *[again((500, TRAINS), (500, WAITS))] * 7]
    ],
    "inference at few watts": same(then(INFERS), 1, 8),
    "inference at fewer": same(then(INFERS_LOWER), 1, 2),
    "generation after training": same(again((600, TRAINS), (900, INFERS)), 2, 8),
    "evaluation after training": same(again((1000, TRAINS), (400, EVALUATES)), 1, 2),
    "a gpu idle by design": [[then(IDLE), then(TRAINS)]],
    "a pipeline, one stage at a time": [
        [again((400, TRAINS), (400, WAITS)), again((400, WAITS), (400, TRAINS))]
    ],
    "capped": same(then(CAPPED), 1, 8),
    "ranks on cpus beside idle gpus": same(then(At(1.0, 0, 70)), 2, 8),
    "a driver that tells nothing of memory": same(then(UNTOLD), 1, 2),
    "slices of gpus, which tell no use": same(then(MIG), 1, 2),
}


@cases("name", WORKING)
def test_who_works_is_not_ended(name: str) -> None:
    assert told(WORKING[name]) is None


STOPS = 1000.0
HANGING: dict[str, tuple[list[list[Course]], float]] = {
    **{
        f"{what}, {hosts} x {each}": (same(course, hosts, each), since)
        for hosts, each in ((1, 1), (1, 2), (1, 8), (2, 2), (2, 8))
        for what, course, since in (
            ("in the first collective", then(WAITS), 0.0),
            ("in the first collective, asleep", then(WAITS_ASLEEP), 0.0),
            ("after work", then((STOPS, TRAINS), WAITS), STOPS),
            ("after little work", then((STOPS, LIGHT), WAITS), STOPS),
            ("capped, after work", then((STOPS, CAPPED), CAPPED_WAITS), STOPS),
            ("untold, after work", then((STOPS, TRAINS), UNTOLD), STOPS),
            ("all asleep", then((STOPS, TRAINS), IDLE), STOPS),
        )
    },
    "unequal load": (
        [[then((STOPS, TRAINS), WAITS), then((STOPS, LIGHT), WAITS)] * 4], STOPS,
    ),
    "one rank sleeps elsewhere": (
        [[then((STOPS, TRAINS), IDLE), *[then((STOPS, TRAINS), WAITS)] * 7]] * 2, STOPS,
    ),
    "one has waited for long": (
        [[then((STOPS, TRAINS), WAITS), then(WAITS)]], STOPS,
    ),
    "a gpu idle by design": ([[then(IDLE), then((STOPS, TRAINS), WAITS)]], STOPS),
}  # fmt: skip


@cases("name", HANGING)
def test_who_hangs_is_told_in_time(name: str) -> None:
    hosts, since = HANGING[name]
    when = told(hosts)
    assert when is not None
    assert since + S <= when + every(S)
    assert when <= since + BOUND


@cases("course", [then(CAPPED_WAITS), then((STOPS, TRAINS), At(1.0, 0, 75)), then(UNTOLD)])
def test_what_might_be_work_is_left_alone(course: Course) -> None:
    """These hang, and nothing that is seen of them says so: ``--progress-line`` does."""
    assert told(same(course, 1, 8)) is None


def test_what_others_do_on_their_gpus_is_theirs() -> None:
    """A host that is shared: GPUs 2 to 7 are somebody else's, and work."""

    def theirs(node: int, t: float) -> tuple[GpuSample, ...]:
        return tuple(GpuSample(n, 99.0, 1.0, 2.0, 640.0, 60.0, 700.0, 50.0) for n in range(2, 8))

    assert told(same(then((STOPS, TRAINS), WAITS), 1, 2), gpus=theirs) is not None
    assert told(same(then(TRAINS), 1, 2), gpus=theirs) is None
    # ranks 0 and 1 may drive those as well, as in a model over several GPUs each
    both = told(same(then(WAITS), 1, 2), gpus=theirs, own=lambda local, count: (local, 2 + local))
    assert both is None


INDICES = st.none() | st.lists(st.integers(0, 3)).map(tuple)


@given(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.floats(0.0, 2 * S)),
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 2), INDICES)),
)
def test_a_gpu_works_for_a_job_whose_ranks_may_use_it(
    at_work: dict[tuple[int, int], float], ranks: dict[int, tuple[int, tuple[int, ...] | None]]
) -> None:
    hang, now = HangRule(S, 0.0), 2 * S
    hang._at_work.update(at_work)
    for rank, (node, usable) in ranks.items():
        hang.began(rank, node, 0.0)
        if rank % 2 or usable is not None:
            hang._gpus[rank] = None, usable
    works = any(
        now - when < S and host == node and (usable is None or index in usable)
        for (host, index), when in at_work.items()
        for node, usable in ranks.values()
    )
    assert hang._gpu_works(now) == works
    assert all(now - when < S for when in hang._at_work.values()), "what is over is forgotten"


def test_who_was_seen_for_a_part_of_the_time_is_not_still() -> None:
    """Samples that begin late, that stop for a while, of ranks and of their GPUs."""
    for cpu, gpus in ((0.0, ()), (1.0, (GpuSample(0, 100.0, 1.0, 2.0, 120.0, 40.0, 700.0, 0.0),))):
        hang = HangRule(S, 0.0)
        hang.began(0, 0, 0.0)
        seen = [t for t in range(0, 1500, 30) if 600 <= t < 660 or t >= 900]
        first = None
        for t in seen:
            ranks = (RankSample(0, "R", t * cpu, 1, 1, 1, (0,), (0,)),)
            hang.sampled(NodeSampled(0, float(t), ranks, gpus), float(t))
            if first is None and hang.hangs(float(t)):
                first = t
        # CPU time counts up, so the gap hides nothing; what a GPU did meanwhile nobody knows
        assert first == (900 if cpu == 0.0 else 1200)
    hang = HangRule(S, 0.0)
    hang.began(0, 0, 0.0)
    for t in range(400, 400 + int(S) - 60, 30):
        ranks = (RankSample(0, "S", 5.0, 1, 1, 1),)
        hang.sampled(NodeSampled(0, float(t), ranks), float(t))
        assert not hang.hangs(float(t))


def test_gpus_that_do_not_answer_are_not_known_to_wait() -> None:
    hang = HangRule(S, 0.0)
    hang.began(0, 0, 0.0)
    waits = (GpuSample(0, 100.0, 1.0, 2.0, 120.0, 40.0, 700.0, 0.0),)
    for t in range(0, 900, 30):
        ranks = (RankSample(0, "R", float(t), 1, 1, 1, (0,), (0,)),)
        late = 240 <= t < 300
        hang.sampled(NodeSampled(0, float(t), ranks, () if late else waits, late), float(t))
        assert hang.hangs(float(t)) == (t >= 600)


waiting = st.builds(
    At, st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.2]), st.sampled_from([95.0, 100.0]),
    st.floats(60, 240), st.sampled_from([0.0, 1.0]), st.sampled_from([700.0, 1000.0]),
)  # fmt: skip
busy = st.builds(
    At, st.floats(0, 8), st.floats(5, 100), st.floats(60, 700), st.floats(2, 100),
    st.sampled_from([None, 200.0, 400.0, 700.0]),
)  # fmt: skip
alive = busy | st.builds(At, st.floats(0.05, 8), st.just(0.0), st.floats(55, 110))
anything = waiting | busy | alive | st.just(IDLE)


@given(
    st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 8)]), alive, st.lists(anything, min_size=8),
    st.integers(0, 7),
)  # fmt: skip
def test_one_who_works_is_enough(
    shape: tuple[int, int], worker: At, others: list[At], where: int
) -> None:
    """Whatever the other ranks do, and wherever it runs."""
    n_hosts, each = shape
    ranks = [then(what) for what in others[: n_hosts * each]]
    ranks[where % len(ranks)] = then(worker)
    hosts = [ranks[host * each : (host + 1) * each] for host in range(n_hosts)]
    assert told(hosts) is None


@given(
    st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 8), (2, 8)]),
    st.lists(waiting | st.just(IDLE), min_size=16, max_size=16),
    st.lists(anything, min_size=16, max_size=16),
    st.sampled_from([0.0, 47.0, 900.0]),
)
def test_nobody_works_from_a_time_on(
    shape: tuple[int, int], last: list[At], first: list[At], since: float
) -> None:
    n_hosts, each = shape
    ranks = [then((since, one), two) for one, two in zip(first, last, strict=True)]
    when = told([ranks[host * each : (host + 1) * each] for host in range(n_hosts)])
    assert when is not None
    assert when <= since + BOUND


@cases(
    ("watts", "limit", "hangs"),
    [(640.0, 700.0, False), (100.0, 700.0, True), (None, 700.0, False), (640.0, None, False)],
)
def test_a_gpu_that_does_not_tell_its_use_is_judged_by_its_watts(
    watts: float | None, limit: float | None, hangs: bool
) -> None:
    """As with MIG, in a virtual machine, or a GB10; one that tells neither may be at work."""
    rule = HangRule(S, 0.0)
    rule.began(0, 0, 0.0)
    gpu = GpuSample(0, None, 7e10, 8e10, watts, 60.0, limit)
    for t in range(0, 700, 30):
        rank = RankSample(0, "S", 0.01 * t, 1, 9, 1, own=(0,), gpus=(0,))
        rule.sampled(NodeSampled(0, float(t), (rank,), (gpu,)), float(t))
    assert rule.hangs(700.0) == hangs
