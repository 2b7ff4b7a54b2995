"""``init``: from N processes to one job, or N times the same reason why not.

MPI_Init, a roll call with a deadline, one allgather, on which all ranks judge the same, and the
``Job``. The roll call comes first because whatever follows (NCCL most of all) waits for a missing
rank for ever.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import warnings
from collections.abc import Mapping
from dataclasses import replace

from dispatcher.comm import roll_call
from dispatcher.comm.errors import CommError, CommWarning, EnvironmentMissing, Refused, describe
from dispatcher.comm.exchange import Exchange
from dispatcher.comm.job import Job
from dispatcher.comm.mpi import abort_first, arm_mpi, check_world, open_mpi, take_others_along
from dispatcher.comm.nccl import library
from dispatcher.comm.roll_call import RankInfo, first_number

_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def init(
    *,
    timeout: float = 120.0,
    thread_level: str = "multiple",
    device: int | str | None = None,
    require_gpu: bool = False,
    abort_on_exception: bool = True,
) -> Job:
    """The job this rank is part of, once all ranks are there and fit together.

    timeout: seconds the ranks wait for each other, here and in later steps.
    thread_level: MPI's, "single", "funneled", "serialized" or "multiple".
    device: the number of this rank's GPU among those visible to it; None takes the local
        rank's (or the only visible GPU), "cpu" none at all. A GPU given by number must exist;
        with None the job goes on without GPUs if no rank sees one.
    require_gpu: a rank without a GPU ends the job, with the reason, instead.
    abort_on_exception: an uncaught exception in one rank ends the job, instead of leaving
    the others in MPI for ever.

    Raises EnvironmentMissing without mpi4py or MPI; RollCallError, naming ranks and hosts,
    when some did not come in time; Refused, with the same reason on every rank, for two
    ranks on one GPU, ranks with and without GPUs, unequal NCCL versions, or NCCL settings
    that must agree and do not.
    """
    if require_gpu and device == "cpu":
        raise CommError("comm: init: require_gpu goes with no device='cpu'")
    name = os.environ.get("DISPATCH_HOST") or socket.gethostname()
    if abort_on_exception:
        arm_mpi(f"a rank on {name}")
    show_stacks(os.environ)
    mpi = open_mpi(thread_level)
    rank = int(mpi.COMM_WORLD.Get_rank())
    world = Exchange(mpi, mpi.COMM_WORLD, f"rank {rank} on {name}")
    check_world(world.size, os.environ, str(mpi.Get_library_version()).split("\n")[0].strip())
    if abort_on_exception:
        take_others_along(mpi, world)
    me = _roll_call(world, name, timeout)
    exchange = world.duplicate(timeout)
    ranks = _compare_ranks(exchange, me, device, require_gpu, timeout)
    exchange.hosts = {info.rank: info.host for info in ranks}
    comparison = roll_call.compare(ranks)
    if comparison.refusals:
        text, hint = comparison.refusals[0]
        rest = [text for text, _ in comparison.refusals[1:]]
        raise Refused("\n".join([text, *rest]), hint=hint, shared=True)
    if rank == 0:
        for text in comparison.warnings:
            warnings.warn(text, CommWarning, stacklevel=2)
    job = Job(exchange, ranks, timeout)
    if abort_on_exception:
        abort_first(job.abort)
    return job


def _roll_call(world: Exchange, host: str, timeout: float) -> RankInfo:
    """Where this rank runs, once all ranks have come."""
    mine = RankInfo(
        world.rank,
        host,
        _host_key(),
        first_number(os.environ, _LOCAL_RANK),
        first_number(os.environ, _LOCAL_SIZE),
    )

    def settle_all(reports: list[bytes]) -> list[bytes]:
        settled = roll_call.settle(map(RankInfo.decode, reports))
        return [json.dumps(settled[rank]).encode() for rank in range(len(reports))]

    def name_missing(missing: list[int], reports: dict[int, bytes]) -> str:
        present = map(RankInfo.decode, reports.values())
        hosts = os.environ.get("DISPATCH_HOSTS", "")
        return describe(missing, roll_call.whereabouts(missing, present, hosts))

    answer = world.assemble(
        "roll call",
        timeout,
        step=mine.encode,
        answer=settle_all,
        missing=name_missing,
        hint="every rank must call comm.init(); py-spy dump shows where one is",
    )
    index, count = json.loads(answer)
    # the launcher's numbers win: its ranks of one host may be in different containers
    return replace(
        mine,
        local_rank=index if mine.local_rank is None else mine.local_rank,
        local_size=count if mine.local_size is None else mine.local_size,
    )


def _host_key() -> str:
    """Equal for two ranks only if they share a kernel, a name and a network namespace."""
    parts = [socket.gethostname()]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/net"))
    except OSError:
        pass
    return "|".join(parts)


def _compare_ranks(
    exchange: Exchange, me: RankInfo, device: int | str | None, required: bool, timeout: float
) -> list[RankInfo]:
    """The facts of every rank, in rank order."""

    def mine() -> bytes:
        gpu, wanted = _gpu(device, me.local_rank or 0, required), device != "cpu"
        return roll_call.gather(me, os.environ, gpu, _nccl(), wanted=wanted).encode()

    return [RankInfo.decode(text) for text in exchange.gather(mine, "comparing ranks", timeout)]


def _gpu(device: int | str | None, local_rank: int, required: bool) -> library.Gpu | None:
    if isinstance(device, str):
        if device == "cpu":
            return None
        kind, _, number = device.partition(":")
        if kind != "cuda" or not number.isdigit():
            raise CommError(f"comm: device {device!r}: is neither 'cpu', a number nor 'cuda:0'")
        device = int(number)
    return library.find_gpu(device, local_rank, required=required)


def _nccl() -> int | None:
    """The version of the NCCL this rank would use; None without NCCL."""
    try:
        return library.load_library().version
    except EnvironmentMissing:
        return None


#: what dispatch's agent sends, to who catches it and has the file open only
SIGNAL = 62


def show_stacks(environ: Mapping[str, str]) -> None:
    """Write the stacks of all threads to ``stack-PID`` beside the rank's error file at ``SIGNAL``.

    faulthandler writes them in C, even while a library holds the interpreter. Nothing happens
    outside of dispatch, or where the rank does so already.
    """
    folder = os.path.dirname(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if not os.path.basename(folder).startswith("dispatch-"):
        return
    try:
        path = os.path.join(folder, f"stack-{os.getpid()}")
        file = open(path, "xb", buffering=0)  # noqa: SIM115 - as long as the process lives
        faulthandler.register(SIGNAL, file, all_threads=True)
    except (OSError, ValueError, AttributeError):
        pass
