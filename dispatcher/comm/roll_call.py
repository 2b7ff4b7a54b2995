"""Facts that every rank gives the others once, and whether the ranks can work together; pure.

The host of a missing rank is in the launcher's list (``DISPATCH_HOSTS``, ``name:count,name:count``
in rank order). Else a rank of the same host shows it: ranks fill a host before the next, so a rank
with local rank l of n means that ranks r-l to r-l+n-1 run there too, unless another rank shows
otherwise. The values of ``NCCL_*`` do not leave the rank, only a digest of each.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dispatcher.comm.errors import CommError, describe
from dispatcher.comm.nccl.library import Gpu, version_text

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
#: the first release that knows it; those before and after compare hosts first, by NCCL_HOSTID where
#: it is set (init.cc of 2.18.3 to 2.30.7)
_MULTI_RANK_SINCE = 23003


@dataclass(frozen=True)
class RankInfo:
    """A rank's place and equipment; at the roll call only the first five are known.

    host is for people to read, host_key equal only on the same host (and network namespace);
    local_rank and local_size are None until the launcher sets them or they are counted;
    nccl is the library's version as ncclGetVersion gives it, None without one; driver is
    the CUDA driver's, 1000 * major + 10 * minor; settings maps NCCL_* names to digests;
    shares_gpu: several ranks a GPU allowed; nccl_host: a digest of NCCL_HOSTID;
    expected: GPUs that the launcher has found for the ranks of this host, if any are wanted.
    """

    rank: int
    host: str
    host_key: str
    local_rank: int | None = None
    local_size: int | None = None
    gpu: str | None = None
    gpu_index: int | None = None
    driver: int | None = None
    nccl: int | None = None
    shares_gpu: bool = False
    nccl_host: str = ""
    expected: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def encode(self) -> bytes:
        """JSON, as it crosses MPI."""
        return json.dumps(vars(self)).encode()

    @staticmethod
    def decode(text: bytes) -> RankInfo:
        """Decode another rank's data; CommError if it runs another version of this package."""
        try:
            return RankInfo(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise CommError(
                "comm: roll call: the ranks run different versions of dispatch"
            ) from error


def first_number(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The number in the first of these variables that has one, or None."""
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def settle(ranks: Iterable[RankInfo]) -> dict[int, tuple[int, int]]:
    """(local rank, local size) of every rank: its number among the ranks with its key."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for info in ranks:
        by_key[info.host_key].append(info.rank)
    return {
        rank: (index, len(members))
        for members in by_key.values()
        for index, rank in enumerate(sorted(members))
    }


def listed(text: str) -> dict[int, str]:
    """rank -> host from ``name:count,...`` in rank order; empty if the text is not of that form."""
    hosts: dict[int, str] = {}
    for item in filter(None, text.split(",")):
        name, colon, count = item.rpartition(":")
        if not (name and colon and count.isascii() and count.isdigit()):
            return {}
        for _ in range(int(count)):
            hosts[len(hosts)] = name
    return hosts


def whereabouts(missing: Iterable[int], present: Iterable[RankInfo], hosts: str) -> dict[int, str]:
    """rank -> host for those missing ranks whose host is known (``hosts`` is DISPATCH_HOSTS)."""
    present = list(present)
    near = {info.rank: info.host for info in present}
    starts: dict[str, int] = {}
    for info in present:
        if info.local_rank is None or info.local_size is None:
            continue
        first = info.rank - info.local_rank
        block = range(first, first + info.local_size)
        if starts.setdefault(info.host_key, first) != first or any(
            near.setdefault(rank, info.host) != info.host for rank in block
        ):
            near = {}  # ranks are dealt to the hosts in turn, and a neighbour shows nothing
            break
    known = {**near, **listed(hosts)}
    return {rank: known[rank] for rank in missing if rank in known}


def gather(
    info: RankInfo,
    env: Mapping[str, str],
    gpu: Gpu | None,
    nccl: int | None,
    *,
    wanted: bool = True,
) -> RankInfo:
    """``info`` with the rest; nccl is the version of the library found. wanted: a GPU is."""
    there = env.get("DISPATCH_GPUS", "")
    hidden = env.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    return replace(
        info,
        gpu=gpu.uuid if gpu else None,
        gpu_index=gpu.index if gpu else None,
        driver=gpu.driver if gpu else None,
        nccl=nccl,
        shares_gpu=env.get(_MULTI_RANK, "0") not in ("", "0"),
        nccl_host=_digest(env.get("NCCL_HOSTID", "")),
        expected=int(there) if there.isdecimal() and wanted and not hidden else 0,
        settings={
            name: _digest(value)
            for name, value in env.items()
            if name.startswith("NCCL_") and name not in _LOCAL
        },
    )


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:8]


@dataclass(frozen=True)
class Comparison:
    """Reasons to refuse, each with its hint, and warnings; both may be empty."""

    refusals: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def compare(ranks: Sequence[RankInfo]) -> Comparison:
    """Whether these ranks can work together: pure, and the same on every rank."""
    refusals = _shared_gpus(ranks) + _some_without_gpu(ranks)
    warnings = []
    some_gpu = any(info.gpu for info in ranks)
    nccl = _differing(
        (info, "none" if info.nccl is None else version_text(info.nccl))
        for info in ranks
        if some_gpu or info.nccl is not None  # a rank that has none and needs none does not count
    )
    if nccl:
        hint = "the same Python environment on every host"
        refusals.append((f"comm: nccl: versions differ: {nccl}", hint))
    for name in sorted({name for info in ranks for name in info.settings}):
        words = _differing((info, info.settings.get(name, "unset")) for info in ranks)
        if words and name in _MUST_AGREE:
            refusals.append((f"comm: {name}: differs: {words}", f"unset {name}"))
        elif words:
            warnings.append(f"comm: {name}: differs: {words}")
    drivers = _differing((info, _spell_driver(info.driver)) for info in ranks)
    if drivers:
        warnings.append(f"comm: cuda driver: versions differ: {drivers}")
    return Comparison(tuple(refusals), tuple(warnings + _unseen(ranks)))


def rank_labels(ranks: Sequence[RankInfo]) -> dict[int, str]:
    """rank -> host, equal only for ranks of the same host: its name, or name#2 if two share it."""
    keys: dict[str, list[str]] = {}
    found = {}
    for info in ranks:
        known = keys.setdefault(info.host, [])
        if info.host_key not in known:
            known.append(info.host_key)
        number = known.index(info.host_key) + 1
        found[info.rank] = info.host if number == 1 else f"{info.host}#{number}"
    return found


def _shared_gpus(ranks: Sequence[RankInfo]) -> list[tuple[str, str]]:
    by_gpu: dict[tuple[str, str], list[RankInfo]] = defaultdict(list)
    for info in ranks:
        if info.gpu is not None:
            by_gpu[info.gpu, info.nccl_host].append(info)
    hint = "export CUDA_VISIBLE_DEVICES=$LOCAL_RANK, or fewer slots on that host"
    return [
        (
            f"comm: gpu {gpu}: chosen by {' and '.join(info.name for info in those)}:"
            " one rank a gpu is allowed",
            hint,
        )
        for (gpu, _), those in by_gpu.items()
        if len(those) > 1
        and not all(info.shares_gpu and (info.nccl or 0) >= _MULTI_RANK_SINCE for info in those)
    ]


def _some_without_gpu(ranks: Sequence[RankInfo]) -> list[tuple[str, str]]:
    without = [info.rank for info in ranks if info.gpu is None]
    if not without or len(without) == len(ranks):
        return []
    names = describe(without, {info.rank: info.host for info in ranks})
    return [
        (
            f"comm: gpu: none seen by {names}, but by the other ranks",
            "nvidia-smi on that host, or comm.init(device='cpu') on all ranks",
        )
    ]


def _unseen(ranks: Sequence[RankInfo]) -> list[str]:
    expected = {info.host: info.expected for info in ranks if info.expected}
    if not expected or any(info.gpu for info in ranks):
        return []
    host, count = next(iter(expected.items()))
    return [
        f"comm: gpu: no rank sees one, though {host} has {count}: this job runs on the CPU, by gloo"
        " (a CUDA driver in the container? else say comm.init(device='cpu'))"
    ]


def _differing(texts: Iterable[tuple[RankInfo, str]]) -> str:
    """``2.30.7 (ranks 0-7 on gpu01), 2.29.1 (rank 8 on gpu02)``; "" if all have the same."""
    by_text: dict[str, list[int]] = defaultdict(list)
    hosts_of = {}
    for info, text in texts:
        by_text[text].append(info.rank)
        hosts_of[info.rank] = info.host
    if len(by_text) < 2:
        return ""
    return ", ".join(f"{text} ({describe(members, hosts_of)})" for text, members in by_text.items())


def _spell_driver(version: int | None) -> str:
    return "none" if version is None else f"{version // 1000}.{version % 1000 // 10}"
