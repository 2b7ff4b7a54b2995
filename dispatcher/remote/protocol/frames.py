"""Frames between the launcher and an agent, and the control messages in them.

A frame is a header of 12 bytes, big endian, and a body::

    kind:1  stream:1  0:2  rank:4  size:4   body:size

==========  ======  =============================================================
kind        lane    body
==========  ======  =============================================================
CONTROL 1   first   one packed dict with a ``"type"`` (see below), <= 16 MiB
OUTPUT  2   second  raw bytes a rank wrote to stream 1 or 2, 1 to ``OUTPUT_LIMIT``
ENDED   3   second  8 bytes: how many bytes that stream carried in all; its last frame
INPUT   4   second  raw bytes for the ranks that read standard input, also that many;
                    an empty one is the end of the input
TAKEN   5   first   8 bytes: how many more bytes of input the launcher may send
==========  ======  =============================================================

OUTPUT, ENDED and TAKEN come from the agent, INPUT from the launcher.

The first lane always passes the second: a kill or a heartbeat never waits
behind output or input. Within a lane order is kept. Output and input need credit,
each its own; control never does.

The decoder is pure: feed it any split of the bytes and the same frames come
out. It holds at most one frame; a header that breaks the rules raises at once,
before its body is awaited.

The control messages: what the launcher orders and what an agent reports.

A message is a dict with a ``"type"``; it travels packed in a CONTROL frame.

Orders, launcher to agent:

=========  ==================================================================
prepare    the first order: who this node is and what to look at before a start
           (run_id, node, attempt, check, path, cwd, reserve, watch, heartbeat, lease,
           lifeline_grace, credit; ``parts``: modules that only some runs need, name
           to source); answered by ``ready``. Given again before each further attempt, when
           nothing of the last one is left. watch: the file that shows progress.
           reserve: the port to keep free for the ranks' meeting, 0 for any, None on all nodes
           but the first. more: [cwd, path, check] of each further program
probe      connect to ``addresses`` at ``port`` within ``seconds``; answered by ``probed``
start      spawn ``ranks`` (each rank, argv, env, and perhaps its folder) with the ``common``
           environment after scrubbing the host's own of ``scrub`` names; answered by
           ``spawned`` or ``failed``.
           pmi: None, or what the PMI server needs (world, first, name, size, universe, mapping,
           patience; ``apps``: ranks of each program in turn; ``port``: whether ranks come to a
           port; ``pmix``: variables that lead to the port of PMIx), and ``hook``: source that
           Python ranks load first, or None.
           stdin: the ranks that read what INPUT frames bring; the others read /dev/null.
           bind: each [rank, CPUs, NUMA nodes for its memory or none], of ranks that are bound
spawn      spawn ranks of one more world; as ``start``, but that each of ``ranks`` has besides
           its folder and where to look for its program (both may be empty), and ``pmi`` has
           ``preput`` (keys and values in turn)
sample     from now on report ``sample`` every ``seconds``; ``parts`` as in ``prepare``. stacks:
           if given, tell first, within its ``seconds``, ``stacks`` with its ``number``
signal     send ``signum`` to the process groups of ``ranks`` (None: of all)
pause      stop all ranks, let the lease rest, answer ``paused``; ``resume`` ends that
sweep      kill every process below the agent now, without grace
credit     ``count`` more bytes of output may be sent
ping       the launcher is alive; renews the lease
pmi_release
           ``fence`` (GROUP:TAG) of ``world`` opens in ``epoch``; ``keys``: one packet of each host;
           number: of the group that is made by it, or 0
pmi_answer ``line`` for ``rank``, the answer to its ``pmi_name`` or ``pmi_spawn``; ask: the number
           that this had, or 0
pmi_who    answer with ``pmi_waiting`` if ranks are missing in ``fence`` of ``world`` in ``epoch``;
           others have waited ``seconds``
mpi_look   answer with ``mpi_inside``, by ``parts``. over: whether to look who has finalized and not
           said so yet
pmix       serve PMIx by ``parts``; hosts: [name, its ranks] of each node, this one is ``node``;
           ``apps`` as in ``start``
pmix_world a world was spawned by PMIx: ``world`` (index), ``first`` (number of its rank 0), name,
           size, hosts [name, its ranks], their numbers ``nodes``, which ``node`` of them this is
           or None, ``apps`` (ranks of each program)
finish     the job is over: kill whatever is left, answer ``swept`` and exit
=========  ==================================================================

Reports, agent to launcher:

=========  ==================================================================
ready      facts about the host and ``problems`` found: list of [what, why]
probed     ``reached``: the addresses that answered with the run's token
spawned    ``pids``: list of [rank, pid]
failed     rank could not be executed: rank, errno, step, what
exited     rank, status: exit code, or -n for signal n; of the first failure perhaps ``error``,
           the rank's error file, and ``hint``, what else the host knows about it; perhaps
           ``mpi``: it ``never`` called MPI_Init, was still ``inside``, or that is ``open``
leaked     rank ended but another process still holds its output open
input_closed
           rank reads no more input, though there may be more; it has read ``taken`` bytes
beat       the agent is alive
paused     all ranks have been sent SIGSTOP
dying      the agent ends its ranks on its own account, ``why``
pmi_fence  all members here are in ``fence`` of ``world`` in ``epoch``; ``keys``: what they
           put, packed
pmi_abort  ``rank`` called MPI_Abort with ``code``; ``text`` is its reason, if it gave one;
           ``error``: what its error file says, if there is one
pmi_name   ``rank`` wants to publish, lookup or unpublish (``verb``) ``service`` at ``address``;
           answered by ``pmi_answer``. By PMIx with ``ask``, a number for it, ``wait`` (until it is
           published) and ``once`` (until it is read)
pmi_spawn  ``rank`` wants a world of ``segments``, each [number of ranks, argv, info pairs];
           ``preput``: its first keys and values in turn; perhaps ``ask``; answered by
           ``pmi_answer``
mpi        ``rank`` and perhaps more use the MPI ``library`` (path or ""), ``served`` by that
mpi_inside which ranks are ``inside`` MPI, and those of them whose MPI_Finalize is ``over``
pmix_wanted
           a rank has come to where PMIx is offered; answered by ``pmix``
pmix_failed
           MPI ``library`` cannot be served, after what was ``tried``; both empty: no longer
pmi_waiting
           the others have waited ``seconds`` for ranks that ``never`` called MPI_Init, or are
           ``absent`` from a barrier; some: perhaps not all of these
sample     what was seen ``at`` a time of the host's own clock: ``ranks``, each [rank, state,
           CPU seconds, RSS, threads, processes, indices of its own GPUs, of all it may use,
           seconds since it wrote], and ``gpus``, each [index, utilisation in %, bytes used, bytes
           there are, watts, degrees Celsius, watts at most, memory's utilisation in %]; ``late``:
           they do not answer; ``mark``: when the file that shows progress was changed, or None
stacks     gathering ``number``: ``ranks``, each [rank, pid, state, what says it, its text],
           ``ras``: what NCCL's RAS says, ``flights``: torch's dumps, each [rank, path, size,
           bytes], ``recorders``: what these hold, and ``natives``: frames of C, each [rank, text]
ras        ``dead``: what NCCL's RAS says of such processes while the ranks run
swept      ``killed``: processes that had to be killed at the end; ``left``: unkillable ones,
           ``stuck``: where the first of these hang (``proctree.where``)
notice     text for the user
=========  ==================================================================
"""

from __future__ import annotations

from _struct import Struct

from dispatcher.remote.protocol.packing import pack

CONTROL = 1
OUTPUT = 2
ENDED = 3
INPUT = 4
TAKEN = 5

STDOUT = 1
STDERR = 2

HEADER = Struct("!BBHII")
CONTROL_LIMIT = 16 << 20
OUTPUT_LIMIT = (64 << 10) - HEADER.size  # a pipe takes the frame whole
COUNT = Struct("!Q")

_RANKS, _NO_RANK = (STDOUT, STDERR), (0,)
#: kind -> its streams, and the least and the most bytes of a body
_SIZES: dict[int, tuple[tuple[int, ...], int, int]] = {
    CONTROL: (_NO_RANK, 0, CONTROL_LIMIT),
    OUTPUT: (_RANKS, 1, OUTPUT_LIMIT),
    ENDED: (_RANKS, COUNT.size, COUNT.size),
    INPUT: (_NO_RANK, 0, OUTPUT_LIMIT),
    TAKEN: (_NO_RANK, COUNT.size, COUNT.size),
}

#: the first bytes an agent says; everything before them on its stream is noise
SYNC = b"\0DISPATCH1\n"


class WireError(ValueError):
    """Bytes that are not our protocol; the link that sent them cannot be used any more."""


def encode(kind: int, body: bytes, rank: int = 0, stream: int = 0) -> bytes:
    """One frame as bytes. The caller keeps the size limits of the table above."""
    return HEADER.pack(kind, stream, 0, rank, len(body)) + body


class Frame:
    """A decoded frame: ``kind``, ``stream``, ``rank`` and ``body`` (bytes)."""

    __slots__ = ("body", "kind", "rank", "stream")

    def __init__(self, kind: int, stream: int, rank: int, body: bytes) -> None:
        self.kind = kind
        self.stream = stream
        self.rank = rank
        self.body = body


class Decoder:
    """Turns any chunking of a byte stream into frames; most: bytes of a CONTROL frame's body."""

    def __init__(self, most: int = CONTROL_LIMIT) -> None:
        self._buffer = bytearray()
        self._most = most

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame; 0 when the stream stands between two frames."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames completed by ``data``, in order.

        Raises: WireError at the first header that breaks the rules.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        while len(buffer) - at >= HEADER.size:
            kind, stream, unused, rank, size = HEADER.unpack_from(buffer, at)
            streams, least, most = _SIZES.get(kind, ((), 0, 0))
            if unused or stream not in streams or not least <= size <= min(most, self._most):
                raise WireError("bad frame: kind %d, stream %d, size %d" % (kind, stream, size))
            end = at + HEADER.size + size
            if end > len(buffer):
                break
            frames.append(Frame(kind, stream, rank, bytes(buffer[at + HEADER.size : end])))
            at = end
        del buffer[:at]
        return frames


def control(type: str, **fields: object) -> bytes:
    """The bytes of one control frame."""
    fields["type"] = type
    return encode(CONTROL, pack(fields))
