"""Which host's ranks use another network than was meant, by NCCL's own lines during a run; pure.

Theory. What is meant stands in the settings that the ranks of a host are given, and so does the
advice of ``dispatch check --nccl`` once it is applied: NCCL_NET, NCCL_IB_DISABLE, NCCL_IB_HCA.
NCCL does not insist on most of them: a filter that fits no port leads to sockets without a word,
one of whose ports half are down to half of the rate. Without such a setting what most hosts
use is what a host should use. Told, one sentence for all hosts that it is true of:

* Socket, where another network was meant or another host uses one, or where a check has just
  seen ports that are ACTIVE: NCCL takes those unless it is told otherwise, or cannot
* another network than was meant, or than most use
* ports that NCCL_IB_HCA names with ``=`` and NCCL does not use; or else fewer or more ports
  than on most hosts

A host whose ranks differ is judged by the one that uses sockets, if there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatcher.checks.nccl.nccl_log_part import MOST_LINE, Said, understand
from dispatcher.checks.nccl.nccl_model import Filter, is_on, parse_filter

SOCKET = "Socket"


@dataclass(frozen=True)
class Odd:
    """``what`` is true of ``nodes``: ``fell back to Socket, 3 others use IB``."""

    nodes: tuple[int, ...]
    what: str


class Networks:
    """What the ranks of one attempt say. settings: of each node, what its ranks are given.

    active: node -> its ACTIVE ports in words, of nodes where some were seen.
    """

    def __init__(
        self, settings: Sequence[Mapping[str, str]], active: Mapping[int, str] | None = None
    ) -> None:
        self._settings = settings
        self._active = active or {}
        self._said: dict[int, Said] = {}  # rank -> its words
        self._nodes: dict[int, int] = {}  # rank -> where it runs; its words may be here before

    def place(self, rank: int, node: int) -> None:
        """``rank`` runs on ``node``."""
        self._nodes[rank] = node

    def take(self, rank: int, line: str) -> bool:
        """Hear a line of ``rank``; whether it told anything."""
        _, found, words = line[:MOST_LINE].partition("NCCL ")
        one = self._said.get(rank, Said())
        told = bool(found) and understand(f"NCCL {words}", one)
        if told:
            self._said[rank] = one
        return told

    @property
    def everybody(self) -> bool:
        """Whether every host with ranks has named its network."""
        return self.hosts().keys() == set(self._nodes.values())

    def hosts(self) -> dict[int, Said]:
        """Node -> what its ranks together use; those that have not named a network are left out."""
        ranks: dict[int, list[Said]] = {}
        for rank, one in list(self._said.items()):  # a run that was left in haste still hears
            if rank in self._nodes:
                ranks.setdefault(self._nodes[rank], []).append(one)
        found = {}
        for node, said in sorted(ranks.items()):
            known = [one for one in said if one.net]
            if not known:
                continue
            nets = Counter(one.net for one in known)
            net = SOCKET if SOCKET in nets else max(nets, key=lambda name: nets[name])
            devices = dict.fromkeys(name for one in known for name in one.devices)
            version = next((one.version for one in said if one.version), "")
            found[node] = Said(net, tuple(devices) if net != SOCKET else (), version)
        return found

    def odd(self) -> list[Odd]:
        """The hosts that do not use what was meant, or what the others use; [] for none."""
        hosts = self.hosts()
        if not hosts:
            return []
        nets = Counter(one.net for one in hosts.values())
        usual = max(nets, key=lambda net: (net != SOCKET, nets[net]))
        alike = [len(one.devices) for one in hosts.values() if one.net == usual]
        counts = Counter(filter(None, alike))  # some tell their network without its ports
        groups: dict[str, list[int]] = {}
        for node, said in hosts.items():
            what = self._judged(node, said, nets, usual) or _ports(
                said, self._settings[node], counts
            )
            if what:
                groups.setdefault(what, []).append(node)
        return [Odd(tuple(nodes), what) for what, nodes in groups.items()]

    def _judged(self, node: int, said: Said, nets: Counter[str], usual: str) -> str:
        """What is odd about the network of ``node``; "" for nothing. nets: of how many hosts."""
        settings = self._settings[node]
        how = "fell back to" if said.net == SOCKET else "uses"
        why = meant(settings)
        if why and _breaks(said.net, settings):
            rest = [net for net in nets.elements() if net != said.net]
            return f"{how} {said.net}{_others(len(rest), rest)}, though {why}"
        if said.net != usual:
            return f"{how} {said.net}{_others(nets[usual], [usual])}"
        if said.net == SOCKET and node in self._active and not _steers(settings):
            return f"fell back to Socket, though {self._active[node]} are ACTIVE"
        return ""


def meant(settings: Mapping[str, str]) -> str:
    """The setting that asks for a network, ``NCCL_NET=IB``; "" where none does."""
    if settings.get("NCCL_NET"):
        return f"NCCL_NET={settings['NCCL_NET']}"
    hca = settings.get("NCCL_IB_HCA", "")
    chosen = parse_filter(hca)
    if is_on(settings.get("NCCL_IB_DISABLE", "")) or chosen.negated or not chosen.names:
        return ""
    return f"NCCL_IB_HCA={hca}"


def _breaks(net: str, settings: Mapping[str, str]) -> bool:
    """Whether ``net`` is not what is meant; networks of plugins heed NCCL_IB_HCA as well."""
    wanted = settings.get("NCCL_NET", "")
    return net.upper() != wanted.upper() if wanted else net == SOCKET


def _steers(settings: Mapping[str, str]) -> bool:
    """Whether a setting may keep NCCL from ports that are ACTIVE."""
    return any(settings.get(name) for name in ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"))


def _others(count: int, names: Iterable[str]) -> str:
    """``, 63 others use IB``; "" for none."""
    who = "1 other uses" if count == 1 else f"{count} others use"
    return f", {who} {' or '.join(dict.fromkeys(names))}" if count else ""


def _ports(said: Said, settings: Mapping[str, str], counts: Counter[int]) -> str:
    """What is odd about the ports that a host uses; counts: with so many, how many hosts."""
    if not said.devices:
        return ""
    text = settings.get("NCCL_IB_HCA", "")
    chosen = parse_filter(text)
    if chosen.exact and not chosen.negated:
        missing = [name for name in chosen.names if not _fits(chosen, name, said.devices)]
        if missing:
            words = " ".join(name if port < 0 else f"{name}:{port}" for name, port in missing)
            return f"does not use {words}, which NCCL_IB_HCA names"
        return ""
    usual = max(counts, key=lambda count: (counts[count], count))
    own = len(said.devices)
    if own == usual:
        return ""
    ports = "port" if own == 1 else "ports"
    return f"uses {own} {ports}, {counts[usual]} with {usual}: {' '.join(said.devices)}"


def _fits(chosen: Filter, name: tuple[str, int], devices: Sequence[str]) -> bool:
    """Whether one of ``devices`` (``mlx5_0:1``) is what ``name`` of the filter wants."""
    one = Filter(False, chosen.exact, (name,))
    parts = (device.rpartition(":") for device in devices)
    return any(one.matches(device, int(port)) for device, _, port in parts)
