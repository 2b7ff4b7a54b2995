"""What every rank tells the others once, and whether they can work together.

``gather`` reads this rank's facts; ``compare`` compares those of all ranks and
gives reasons to refuse and warnings. NCCL would meet each of the refused cases
with a hang or a message from one rank alone.

The values of ``NCCL_*`` do not leave the rank, only a digest of each, by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from dispatcher.comm import rank_hosts
from dispatcher.comm.errors import CommError
from dispatcher.comm.nccl.cuda import Gpu
from dispatcher.comm.nccl.library import spell
from dispatcher.comm.rank_hosts import Seat

_Value = TypeVar("_Value")

#: May differ from rank to rank: they name what is local to a host.
_LOCAL = frozenset(
    {
        "NCCL_DEBUG_FILE",
        "NCCL_HOSTID",
        "NCCL_IB_HCA",
        "NCCL_OOB_NET_IFNAME",
        "NCCL_RAS_ADDR",
        "NCCL_SOCKET_IFNAME",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_TOPO_FILE",
    }
)
#: Ranks that differ here choose different transports or algorithms, and hang.
_MUST_AGREE = ("NCCL_ALGO", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_PROTO")
_MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
_MULTI_RANK_SINCE = 23000


@dataclass(frozen=True)
class Facts:
    """One rank's facts.

    host is for people, host_key equal only on the same host (and network namespace);
    nccl is the library's version as ncclGetVersion gives it, None without one; driver is
    the CUDA driver's, 1000 * major + 10 * minor; settings maps NCCL_* names to digests;
    interface is NCCL_SOCKET_IFNAME as set, or empty; shares_gpu: several ranks a GPU allowed;
    expected: GPUs that the launcher has found for the ranks of this host, if any are wanted.
    """

    rank: int
    host: str
    host_key: str
    local_rank: int
    gpu: str | None = None
    gpu_index: int | None = None
    driver: int | None = None
    nccl: int | None = None
    nccl_path: str = ""
    interface: str = ""
    shares_gpu: bool = False
    expected: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def encode(self) -> bytes:
        """JSON, as it crosses MPI."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(text: bytes) -> Facts:
        """The facts another rank sent; CommError if it runs another version of this package."""
        try:
            return Facts(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise CommError("comm: facts: the ranks run different versions of dispatch") from error


def gather(
    seat: Seat,
    env: Mapping[str, str],
    gpu: Gpu | None,
    nccl: tuple[int, str] | None,
    *,
    wanted: bool = True,
) -> Facts:
    """This rank's facts; nccl is (version, path) of the library it found. wanted: a GPU is."""
    there = env.get("DISPATCH_GPUS", "")
    hidden = env.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    return Facts(
        rank=seat.rank,
        host=seat.host,
        host_key=seat.key,
        local_rank=seat.local_rank or 0,
        gpu=gpu.uuid if gpu else None,
        gpu_index=gpu.index if gpu else None,
        driver=gpu.driver if gpu else None,
        nccl=nccl[0] if nccl else None,
        nccl_path=nccl[1] if nccl else "",
        interface=env.get("NCCL_SOCKET_IFNAME", ""),
        shares_gpu=env.get(_MULTI_RANK, "0") not in ("", "0"),
        expected=int(there) if there.isdecimal() and wanted and not hidden else 0,
        settings={
            name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:8]
            for name, value in env.items()
            if name.startswith("NCCL_") and name not in _LOCAL
        },
    )


@dataclass(frozen=True)
class Comparison:
    """Reasons to refuse, each with its hint, and warnings; both may be empty."""

    refusals: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def compare(ranks: Sequence[Facts]) -> Comparison:
    """Whether these ranks can work together: pure, and the same on every rank."""
    refusals = _shared_gpus(ranks) + _some_without_gpu(ranks) + _versions(ranks)
    differing = _differing_settings(ranks)
    for name in _MUST_AGREE:
        if name in differing:
            refusals.append((f"comm: {name}: differs: {differing.pop(name)}", f"unset {name}"))
    warnings = [f"comm: {name}: differs: {groups}" for name, groups in differing.items()]
    return Comparison(tuple(refusals), tuple(warnings + _drivers(ranks) + _unseen(ranks)))


def labels(ranks: Sequence[Facts]) -> dict[int, str]:
    """rank -> host, equal only for ranks of the same host: its name, or name#2 if two share it."""
    keys: dict[str, list[str]] = {}
    found = {}
    for facts in ranks:
        known = keys.setdefault(facts.host, [])
        if facts.host_key not in known:
            known.append(facts.host_key)
        number = known.index(facts.host_key) + 1
        found[facts.rank] = facts.host if number == 1 else f"{facts.host}#{number}"
    return found


def _shared_gpus(ranks: Sequence[Facts]) -> list[tuple[str, str]]:
    found = []
    for gpu, members in _spread((facts.rank, facts.gpu) for facts in ranks).items():
        if gpu is None or len(members) < 2:
            continue
        those = [ranks[member] for member in members]
        allowed = all(
            facts.shares_gpu and (facts.nccl or 0) >= _MULTI_RANK_SINCE for facts in those
        )
        if not allowed:
            names = " and ".join(facts.name for facts in those)
            found.append(
                (
                    f"comm: gpu {gpu}: chosen by {names}: one rank a gpu is allowed",
                    "export CUDA_VISIBLE_DEVICES=$LOCAL_RANK, or fewer slots on that host",
                )
            )
    return found


def _some_without_gpu(ranks: Sequence[Facts]) -> list[tuple[str, str]]:
    without = [facts.rank for facts in ranks if facts.gpu is None]
    if not without or len(without) == len(ranks):
        return []
    names = rank_hosts.describe(without, {facts.rank: facts.host for facts in ranks})
    return [
        (
            f"comm: gpu: none seen by {names}, but by the other ranks",
            "nvidia-smi on that host, or comm.init(device='cpu') on all ranks",
        )
    ]


def _unseen(ranks: Sequence[Facts]) -> list[str]:
    expected = {facts.host: facts.expected for facts in ranks if facts.expected}
    if not expected or any(facts.gpu for facts in ranks):
        return []
    host, count = next(iter(expected.items()))
    return [
        f"comm: gpu: no rank sees one, though {host} has {count}: this job runs on the CPU, by gloo"
        " (a CUDA driver in the container? else say comm.init(device='cpu'))"
    ]


def _versions(ranks: Sequence[Facts]) -> list[tuple[str, str]]:
    spread = _spread((facts.rank, facts.nccl) for facts in ranks)
    if not any(facts.gpu for facts in ranks):  # who has none and needs none does not count
        spread.pop(None, None)
    if len(spread) < 2:
        return []
    words = _spelled(ranks, {_spell_nccl(nccl): members for nccl, members in spread.items()})
    return [(f"comm: nccl: versions differ: {words}", "the same Python environment on every host")]


def _drivers(ranks: Sequence[Facts]) -> list[str]:
    spread = _spread((facts.rank, facts.driver) for facts in ranks)
    if len(spread) < 2:
        return []
    words = _spelled(ranks, {_spell_driver(driver): members for driver, members in spread.items()})
    return [f"comm: cuda driver: versions differ: {words}"]


def _differing_settings(ranks: Sequence[Facts]) -> dict[str, str]:
    """name -> who has which value (by its digest), for every NCCL_* not the same on all."""
    found = {}
    for name in sorted({name for facts in ranks for name in facts.settings}):
        spread = _spread((facts.rank, facts.settings.get(name, "unset")) for facts in ranks)
        if len(spread) > 1:
            found[name] = _spelled(ranks, spread)
    return found


def _spread(values: Iterable[tuple[int, _Value]]) -> dict[_Value, list[int]]:
    """value -> the ranks that have it."""
    spread: dict[_Value, list[int]] = {}
    for rank, value in values:
        spread.setdefault(value, []).append(rank)
    return spread


def _spelled(ranks: Sequence[Facts], spread: Mapping[str, Sequence[int]]) -> str:
    """``2.30.7 (ranks 0-7 on gpu01), 2.29.1 (rank 8 on gpu02)``."""
    places = {facts.rank: facts.host for facts in ranks}
    return ", ".join(
        f"{value} ({rank_hosts.describe(members, places)})" for value, members in spread.items()
    )


def _spell_nccl(version: int | None) -> str:
    return "none" if version is None else spell(version)


def _spell_driver(version: int | None) -> str:
    return "none" if version is None else f"{version // 1000}.{version % 1000 // 10}"
