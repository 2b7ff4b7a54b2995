"""The job as one of its ranks sees it: the other ranks, and the communicators they can build.

Every method here that builds something is collective: all ranks call it, in the
same order, and either all get it or all raise the same reason.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from dispatcher.comm import groups, mpi
from dispatcher.comm.errors import CommWarning, GroupError
from dispatcher.comm.exchange import Exchange
from dispatcher.comm.groups import Groups
from dispatcher.comm.nccl import start
from dispatcher.comm.nccl.communicator import Communicator
from dispatcher.comm.nccl.library import Library, UniqueId, load_library, make_current
from dispatcher.comm.roll_call import RankInfo, rank_labels


class Job:
    """This rank's place in the world; made by ``init``.

    ``with init() as job:`` closes it at the end; left by an exception it aborts what was
    built, and a ``sys.exit(3)`` ends the job with 3 instead of hanging.

    rank, size: in the world. local_rank, local_size: on this host. ranks: all ranks,
    in rank order. mpi: the mpi4py communicator of all ranks that this job talks
    over; for your own messages make a ``Dup`` of it, or use ``MPI.COMM_WORLD``.
    """

    def __init__(self, exchange: Exchange, ranks: Sequence[RankInfo], timeout: float) -> None:
        self._exchange = exchange
        self._timeout = timeout
        self._library: Library | None = None
        self._nccl: Communicator | None = None
        self._communicators: list[Communicator] = []  # all that are open, in order of their making
        self._torch: Any = None
        self._torch_timeout = 600.0
        self.ranks = tuple(ranks)
        self.rank = exchange.rank
        self.size = exchange.size
        self.me = self.ranks[self.rank]
        self.host = self.me.host
        self.local_rank = self.me.local_rank or 0
        self.local_size = sum(info.host_key == self.me.host_key for info in ranks)
        self.mpi = exchange.communicator

    def __repr__(self) -> str:
        return f"Job(rank {self.rank} of {self.size} on {self.host}, {self.backend})"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        self.abort()
        if isinstance(error, SystemExit):
            mpi.exit_with(error)

    @property
    def gpu(self) -> int | None:
        """The number of this rank's GPU among those visible to it; None on the CPU."""
        return self.me.gpu_index

    @property
    def device(self) -> str:
        """As torch spells it: ``cuda:3``, or ``cpu``."""
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"

    @property
    def backend(self) -> str:
        """``nccl`` when every rank has a GPU, else ``gloo``; the same on all ranks."""
        return "gloo" if self.gpu is None else "nccl"

    def nccl_communicator(
        self,
        *,
        timeout: float | None = None,
        ranks_per_id: int | None = None,
        blocking: bool = True,
    ) -> Communicator:
        """NCCL's communicator of all ranks, built at the first call.

        timeout in seconds for the start and then for each of its calls (``init``'s without
        it). ranks_per_id: above this many ranks several ids are used. blocking, NCCL's default:
        ``docs/guides/comm.md`` compares the two; ``NCCL_COMM_BLOCKING`` overrules it.
        Raises EnvironmentMissing or NcclError, the same on all ranks, naming the rank and NCCL's
        own reason; on ranks without a GPU that is CUDA's.
        """
        if self._nccl is not None and not self._nccl.closed:
            return self._nccl
        limit = self._timeout if timeout is None else timeout
        ids = self._ids(limit, start.RANKS_PER_ID if ranks_per_id is None else ranks_per_id)
        if self.gpu is not None:
            make_current(self.gpu)
            torch: Any = sys.modules.get("torch")
            if torch is not None:
                torch.cuda.set_device(self.gpu)
        hint = "export NCCL_DEBUG=INFO and run again"
        if self.gpu is None:
            hint = "no rank sees a gpu: job.init_torch() then uses gloo"
        assert self._library is not None  # which made the ids
        self._nccl = start.start(
            self._exchange,
            self._library,
            ids,
            limit,
            device=self.gpu,
            blocking=blocking,
            hint=hint,
            family=self._communicators,
        )
        return self._nccl

    def nccl_id(self, *, timeout: float | None = None) -> UniqueId:
        """A new id, the same on all ranks, for one communicator of nccl4py or cupy.

        They take ``bytes(id)``, ``job.rank`` and ``job.size``. timeout in seconds (``init``'s
        without it). Raises EnvironmentMissing or NcclError, the same on all ranks.
        """
        (one,) = self._ids(self._timeout if timeout is None else timeout, self.size)
        return one

    def _ids(self, limit: float, ranks_per_id: int) -> list[UniqueId]:
        """New ids, the same on all ranks: one for ``ranks_per_id`` ranks, as rank 0 has it."""

        def step() -> bytes:
            self._library = self._library or load_library()
            return b"%d" % start.how_many(self.size, self._library.version, ranks_per_id)

        count = self._exchange.assemble(
            "loading nccl", limit, step=step, answer=lambda counts: [counts[0]] * self.size
        )
        assert self._library is not None  # assemble came back, so the step was done here too
        return start.share_ids(self._exchange, self._library, int(count), limit)

    def init_torch(self, *, backend: str | None = None, timeout: float = 600.0) -> None:
        """``torch.distributed``'s process group of all ranks: nccl on GPUs, gloo without.

        backend, as torch spells it: "cpu:gloo,cuda:nccl" takes tensors of both kinds. timeout,
        in seconds, is for this group and for groups that ``parallel`` makes. Raises the same
        CommError on every rank when on any of them torch cannot be imported, rank 0 not be
        reached, or the group not be joined in time, or when the backend needs GPUs and no rank
        has one.
        """
        from dispatcher.comm import torch_bridge

        self._torch = torch_bridge.init_torch(
            self._exchange,
            backend=backend or self.backend,
            device=self.gpu,
            one_host=self.local_size == self.size,
            timeout=timeout,
        )
        self._torch_timeout = timeout

    def parallel(
        self,
        *,
        tp: int = 1,
        pp: int = 1,
        dp: int | None = None,
        cp: int = 1,
        ep: int = 1,
        expert_tp: int | None = None,
        order: str = groups.ORDER,
        also: Sequence[str] = (),
    ) -> Groups:
        """The groups for these sizes, exactly as Megatron lays them out (see ``groups``).

        dp None is what is left of the world. Each group is a torch process group if
        ``init_torch`` was called before, and an NCCL communicator if ``nccl_communicator``
        was. also: further joins, as "tp-dp". Raises GroupError, on all ranks, when the sizes
        do not fit, the ranks disagree about them, or uneven hosts would split tensor
        parallel groups; warns when those span hosts.
        """
        asked = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "expert_tp": expert_tp}
        self._agree({**asked, "order": order, "also": list(also)})
        try:
            plan = groups.plan(
                self.size, tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, expert_tp=expert_tp, order=order
            )
            warned = groups.check_hosts(plan, rank_labels(self.ranks))
        except GroupError as error:
            error.shared = True  # all have asked for the same
            raise
        for text in warned:
            if self.rank == 0:
                warnings.warn(text, CommWarning, stacklevel=2)
        return groups.build(
            plan,
            self.rank,
            [info.host for info in self.ranks],
            axes=tuple(dict.fromkeys(groups.AXES + tuple(also))),
            torch=self._torch,
            timeout=self._torch_timeout,
            nccl=self._nccl,
            device_type="cpu" if self.gpu is None else "cuda",
        )

    def _agree(self, asked: dict[str, object]) -> None:
        mine = json.dumps(asked, sort_keys=True).encode()
        answers = self._exchange.gather(lambda: mine, "comparing the groups", self._timeout)
        for rank, text in enumerate(answers):
            if text != answers[0]:
                raise GroupError(
                    f"comm: groups: rank {rank} asks for {text.decode()},"
                    f" rank 0 for {answers[0].decode()}",
                    shared=True,
                )

    def close(self) -> None:
        """Take down what was built, in order; all ranks call this. MPI itself goes at exit."""
        for each in reversed(list(self._communicators)):
            each.close()
        if self._torch is not None:
            from dispatcher.comm import torch_bridge

            torch_bridge.leave(self._torch.distributed)
        self._torch = None

    def abort(self) -> None:
        """Free every NCCL communicator that came of this job, on this rank alone, at once.

        Whatever runs on them ends; those that ``split`` made go too. May be called twice.
        """
        for each in reversed(list(self._communicators)):
            each.abort()
