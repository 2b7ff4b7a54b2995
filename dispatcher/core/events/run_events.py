"""The events of a run: frozen facts in the past tense, the spine of everything.

Edges make events, the runner gives each a number and a time, the core decides on them, sinks show
them. Output bytes are not events: only their end and their count are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

from dispatcher.model.failure import Ending, Failure
from dispatcher.model.frozen import Value, fields_of, value

if TYPE_CHECKING:  # a fan-out command has none of these
    from dispatcher.core.events.stack_frames import in_words
    from dispatcher.core.events.verdicts import Cause, ErrorFile, read_error_file
    from dispatcher.model import bounds
    from dispatcher.plan.job.binding import Topology


@value
class Event(Value):
    """Base of all events; ``name`` is its name in the journal: ``rank.exited``."""

    name: ClassVar[str] = "event"

    def __init_subclass__(cls) -> None:
        # NodeConnected -> node.connected, RankFailedToStart -> rank.failed_to_start
        first, *rest = re.findall(r"[A-Z][a-z]*", cls.__name__)
        cls.name = f"{first.lower()}.{'_'.join(rest).lower()}"

    def context(self) -> dict[str, Any]:
        """The event's fields as plain values, as the journal has them."""
        return fields_of(self)


def types_of(cls: type[Value], *, bounded: bool = False) -> dict[str, Any]:
    """Field -> its type, also of imports for type checkers only; bounded: with ``model.bounds``."""
    from dispatcher.core.events import collectives, stack_frames, verdicts
    from dispatcher.model import bounds
    from dispatcher.plan.job.binding import Topology

    known = {"Collective": collectives.Collective, "Topology": Topology, "bounds": bounds}
    known |= {name: vars(stack_frames)[name] for name in ("Group", "in_words")}
    known |= {name: vars(verdicts)[name] for name in ("Cause", "ErrorFile", "read_error_file")}
    return get_type_hints(cls, localns=known, include_extras=bounded)


@value
class OfAttempt(Event):
    """Base of an agent's news on one attempt to run the ranks; late news on an old one is ignored.

    attempt: how often the hosts had been gathered before, when its link was opened.
    """

    attempt: int = dataclasses.field(default=0, kw_only=True)


@value
class NodeConnecting(Event):
    """A link to the node is being opened; ``attempt`` counts from 1."""

    node: int
    attempt: int = 1


@value
class NodeConnected(Event):
    """The link is open; ``address`` is the numeric address reached, if there is one.

    steps: (name, seconds) of connecting, as far as the transport knows.
    """

    node: int
    address: str | None
    transport: str
    steps: tuple[tuple[str, float], ...] = ()


@value
class NodeBooted(Event):
    """The agent sent its sync marker; ``noise`` bytes came before it."""

    node: int
    noise: int


@value
class NodeReady(OfAttempt):
    """The agent has looked at its host; ``problems`` are (what, why) pairs."""

    node: int
    facts: Facts
    problems: tuple[tuple[bounds.Text, bounds.Text], ...] = ()
    attempt: Annotated[int, bounds.between(0, 1 << 16)] = dataclasses.field(default=0, kw_only=True)


@value
class NodeProbed(OfAttempt):
    """The node has tried to reach node 0; ``reached`` are the addresses that answered."""

    node: int
    reached: tuple[bounds.Text, ...]


@value
class NodeHeard(Event):
    """The agent sent its heartbeat, and the core waits for it."""

    node: int


@value
class NodesHeard(Event):
    """Heartbeats since the last such event; ``ago``: how many seconds before this, by node."""

    nodes: tuple[int, ...]
    ago: tuple[float, ...]


@value
class NodeDying(Event):
    """The agent ends its ranks by its own decision, ``why``; its link will end, too."""

    node: int
    why: bounds.Words


@value
class NodePaused(Event):
    """All ranks on the node have been stopped, since the user stops dispatch itself."""

    node: int


@value
class NodeSwept(OfAttempt):
    """The agent has killed all leftovers below it, ``killed`` of them; ``left`` pids survived.

    mark: as in ``Facts``, but looked at again. stuck: where the first of ``left`` hang, as text.
    """

    node: int
    killed: bounds.Count
    left: tuple[bounds.Pid, ...] = ()
    mark: bounds.Nanoseconds | None = None
    stuck: tuple[Annotated[str, bounds.made(in_words, bounds.a_text)], ...] = ()


@value
class NodeLost(Event):
    """The node cannot be used (any more); also how a failed connection ends.

    ending: of the process that the link led to, where that is known. unheard: for how many seconds
    it had answered nothing and was sent nothing; 0: not known.
    """

    node: int
    failure: Failure
    ending: Ending | None = None
    unheard: float = 0.0


@value
class NodeNoticed(Event):
    """The agent has a ``text`` for the user."""

    node: int
    text: bounds.Words


@value
class RankSpawned(OfAttempt):
    """The rank's program is running as process ``pid`` of its host."""

    node: int
    rank: bounds.OwnRank
    pid: bounds.Pid


@value
class RanksBound(OfAttempt):
    """The ranks of the node are being started, on these CPUs.

    bound, unbound: (where as text, or why not; ranks). is_asked: the user wants them bound.
    in_full: the user wants to see all of them.
    """

    node: int
    bound: tuple[tuple[str, tuple[int, ...]], ...]
    unbound: tuple[tuple[str, tuple[int, ...]], ...] = ()
    is_asked: bool = False
    in_full: bool = False


@value
class RankFailedToStart(OfAttempt):
    """The rank's program could not be executed; ``errno`` as execve(2) gave it."""

    node: int
    rank: bounds.OwnRank
    errno: Annotated[int, bounds.between(0, 4095)]
    step: bounds.Text
    what: bounds.Text


@value
class RankExited(OfAttempt):
    """The rank's process was reaped; ``status`` is its exit code, or -n for signal n.

    error: the content of its error file; hint: a remark of its host, "" for none. mpi: it
    ``never`` called MPI_Init, was still ``inside`` MPI, or that is ``open``, because some libraries
    report MPI_Finalize late; "": it was through, or the job is without MPI.
    """

    node: int
    rank: bounds.OwnRank
    status: Annotated[int, bounds.between(-64, 255)]
    error: Annotated[ErrorFile | None, bounds.made(read_error_file, bounds.error_file)] = None
    hint: bounds.Text = ""
    mpi: Annotated[str, bounds.one_of("", "never", "inside", "open")] = ""


@value
class RankLeaked(OfAttempt):
    """The rank ended but another process held its output open; the pipes were cut."""

    node: int
    rank: bounds.OwnRank


@value
class OutputEnded(OfAttempt):
    """One stream of a rank is complete: ``received`` bytes here, ``sent`` by the agent."""

    node: int
    rank: int
    stream: int
    received: int
    sent: int


@value
class InputClosed(OfAttempt):
    """The rank reads no more of the input, though there may be more; it has ``taken`` bytes."""

    node: int
    rank: bounds.OwnRank
    taken: bounds.Size


@value
class InputBroken(Event):
    """dispatch's own standard input cannot be read, ``why``; the ranks see its end."""

    why: str


@value
class InputLeft(Event):
    """``ranks`` did not take ``most`` (at most) of the ``total`` bytes read for them."""

    ranks: tuple[int, ...]
    most: int
    total: int


@value
class Remark(Event):
    """A finding that one sink shares with the others; the core ignores it."""


@value
class HostsNoted(Remark):
    """The launcher has a ``text`` about ``nodes`` for the user."""

    nodes: tuple[int, ...]
    text: str


@value
class HostsSilent(Remark):
    """``nodes`` have sent nothing for ``seconds``.

    limit: after how many seconds they are lost; 0: they respond again.
    """

    nodes: tuple[int, ...]
    seconds: float
    limit: float


@value
class LauncherSlept(Event):
    """dispatch, or its whole machine, was stopped for ``seconds``."""

    seconds: float


@value
class SignalReceived(Event):
    """dispatch itself got signal ``signum``; by: the command that stands for a signal, or "".

    first: the signal that the ranks get first, if the job ends for this; 0: the one of the run's
    options, else SIGTERM; None: the command named none.
    """

    signum: int
    by: str = ""
    first: int | None = None


@value
class RestartWanted(Event):
    """A person wants the ranks to be started again. words, names: as in ``RestartAsked``."""

    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@value
class RestartRefused(Event):
    """The ranks are not started again as a person wanted it: ``why``."""

    why: str


@value
class FolderSent(Event):
    """The working folder was sent again. failures: host -> why it does not have it.

    notes: lines for the user about the copy.
    """

    failures: Mapping[int, Failure] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@value
class RanksPlaced(Event):
    """The plan is final: ``world_size`` ranks meet at ``master_addr``:``master_port``.

    restart: how often ranks of this run have been started before. parts: name and number of ranks
    of each program, in order of ranks, where there are several. per_node: they are launchers.
    """

    world_size: int
    master_addr: str
    master_port: int
    restart: int = 0
    parts: tuple[tuple[str, int], ...] = ()
    per_node: bool = False


@value
class JobStopping(Event):
    """The job is being ended; ``why`` is the name of the cause."""

    why: str


@value
class TimeShort(Event):
    """dispatch sends ``signum`` to all ranks, ``seconds`` before the time limit."""

    signum: int
    seconds: float


@value
class RanksAwaited(Event):
    """These ``ranks`` have not exited since they were signalled; in ``seconds`` they are killed.

    sooner: the key or command that kills them at once, if a person has ended the job.
    """

    ranks: tuple[int, ...]
    seconds: float
    sooner: str = ""


@value
class RanksProgressed(OfAttempt):
    """A rank wrote the first line of this attempt that shows progress; what: as found there."""

    node: int
    rank: int
    what: str = ""


@value
class RunRestarting(Event):
    """The ranks will be started again in ``seconds``: restart ``number``.

    asked: how many of these restarts a person asked for; ``most`` limits the others.
    """

    cause: Cause
    number: int
    most: int
    seconds: float
    asked: int = 0


@value
class HostReplaced(Event):
    """Host ``by`` takes the ranks of host ``node``, which cannot be used: ``why``."""

    node: int
    by: int
    ranks: tuple[int, ...]
    why: str


@value
class HostLeftOut(Event):
    """Host ``node`` will not be used (any more): ``why``."""

    node: int
    why: str


@value
class HostReturned(Event):
    """Host ``node``, which was lost, can be used again from the next attempt on."""

    node: int


@value
class WorldGrown(Event):
    """The run goes on with more hosts than before, since some are back; as ``WorldShrunk``."""

    nodes: tuple[int, ...]
    counts: tuple[int, ...]


@value
class WorldShrunk(Event):
    """The run goes on with fewer hosts: ``nodes``, with ``counts`` ranks on each, in order."""

    nodes: tuple[int, ...]
    counts: tuple[int, ...]


@value
class RunFinished(Event):
    """The one last event of every run."""

    exit_code: int
    why: str


@value
class HostExcluded(Event):
    """``host`` did not pass the checks, ``why``, and takes no part; ``by`` has its place."""

    host: str
    why: str
    by: str | None = None


@value
class Facts(Value):
    """An agent's report on its host; only ``core`` judges it.

    port: the port node 0 keeps free for MASTER_PORT, else None.
    error_folder: where ranks may write error files on that host, None if nowhere.
    machine: equal for two agents only if they run on the same machine.
    mark: when the progress file was last changed, in ns; None where there is none.
    script: CRC-32 of the script's beginning, None without a script. code: the same of modules and
    packages beside it, by name, where hosts are compared. room: bytes that are
    free for temporary files and in shared memory, None where not known. visible:
    CUDA_VISIBLE_DEVICES as the agent found it. self_fencing: whether it ends its ranks by itself
    soon after our machine stops answering. topology: None where nothing is chosen by it.
    ifaces: (address, network interface) where the host's own name is a loopback address.
    named, modules: see ``remote.probe.compared``, for each that the plan names.
    """

    hostname: bounds.HostName
    pid: bounds.Count
    python: bounds.Text
    cores: Annotated[int, bounds.between(1, 1 << 16)]
    gpus: bounds.Gpu
    addresses: Annotated[tuple[bounds.Address, ...], bounds.at_most(bounds.MOST_ADDRESSES)]
    machine: bounds.Text
    error_folder: bounds.Text | None = None
    port: Annotated[int | None, bounds.between(1, 65535)] = None
    mark: bounds.Nanoseconds | None = None
    script: bounds.Sum | None = None
    code: tuple[tuple[bounds.Text, bounds.Sum], ...] = ()
    room: tuple[bounds.Nanoseconds | None, bounds.Nanoseconds | None] = (None, None)
    visible: bounds.Text | None = None
    self_fencing: bool = False
    topology: Topology | None = None
    ifaces: tuple[tuple[bounds.Text, Annotated[str, bounds.text(15)]], ...] = ()
    named: tuple[tuple[bounds.Sum | None, bounds.Sum | None, bool], ...] = ()
    modules: tuple[bool, ...] = ()


@value
class NodeCleared(Event):
    """Nothing of the run is left on the given-up node; ``killed`` processes were killed."""

    node: int
    killed: int


#: (rank, stream) -> bytes
Counts = Mapping[tuple[int, int], int]
#: seconds between two ticks
TICK = 0.05


@value
class Entry(Value):
    """An event on the spine: ``seq`` counts from 1, ``t`` is seconds since the run began."""

    seq: int
    t: float
    event: Event


class Sink:
    """Takes events and output in order, on the sinks' thread. Subclasses override the methods."""

    def event(self, entry: Entry) -> None:
        """Something happened."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """``rank`` wrote ``data`` to ``stream`` (1 stdout, 2 stderr); any split, never empty."""

    def gap(self, missing: Counts) -> None:
        """So many bytes were left out at this point, because this sink was too slow."""

    def say(self, line: str) -> None:
        """A line from dispatch itself for the user; only sinks that show something show it."""

    def tick(self, now: float) -> bool:
        """Time has passed; True to be called again in ``TICK`` even if nothing happens.

        now: seconds, monotonic. Called at most once a ``TICK``.
        """
        return False

    def close(self) -> None:
        """Nothing comes after this; flush and release."""
