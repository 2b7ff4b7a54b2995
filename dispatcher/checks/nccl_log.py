"""The network that NCCL's INFO lines name during a run, and whether it was meant; pure.

The lines (NCCL_DEBUG=INFO) begin with the host's name: ``b07:4242:4300 [0] NCCL INFO NET/IB : Using
[0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.7<0>``; without a device the list is empty. The last network
named counts, and of ranks that differ a rank that uses sockets. docs/design/checks.md says when a
host is odd.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatcher.checks.nccl_model import Filter, is_on, parse_filter

#: characters of a line that are looked at, and devices of it that are kept (NCCL takes no more)
MOST_LINE, MOST_DEVICES = 4096, 32

_USING = re.compile(r"NET/(IB|Socket)\s?: Using(.*)")
# a name may be of two words (AWS Libfabric), and is short, whatever a rank prints
_NETWORK = re.compile(
    r"(?:Using network|(?:Initialized|Assigned) NET plugin) ([A-Za-z][\w.-]{0,39}(?: Libfabric)?)"
)
_VIA = re.compile(r"via NET/([A-Za-z][\w .-]{0,39})/")
# and /IB or /RoCE, by most versions. From 2.21 to 2.24 ports that were merged into one are in
# braces, "[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}"; "_dma" is NCCL's own word for a port's
# second, direct path to GPUs (net_ib.cc, net_ib/init.cc), which is not a device of the host
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]{1,64}?)(?:_dma)?(:\d{1,4})\b")
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,39})")


@dataclass
class NetworkUse:
    """The network of one host by its ranks. net: the last that they named; devices: of IB.

    version: NCCL's; its first rank prints it and others need not.
    """

    net: str = ""
    devices: tuple[str, ...] = ()
    version: str = ""


def understand(words: str, use: NetworkUse) -> bool:
    """Store the facts in ``words``, a line of NCCL's without its head; whether it has any."""
    if using := _USING.search(words):
        named = _DEVICE.findall(using[2].partition("; OOB")[0])
        devices = tuple(dict.fromkeys(name + port for name, port in named))[:MOST_DEVICES]
        if using[1] == "Socket":
            use.net = "Socket"
        elif devices:
            use.net, use.devices = "IB", devices
        return using[1] == "Socket" or bool(devices)
    if network := _NETWORK.search(words) or _VIA.search(words):
        use.net = network[1]
    elif version := _VERSION.search(words):
        use.version = version[1]
    else:
        return False
    return True


SOCKET = "Socket"


@dataclass(frozen=True)
class Difference:
    """A difference ``what`` of ``nodes``: ``fell back to Socket, 3 others use IB``."""

    nodes: tuple[int, ...]
    what: str


class Networks:
    """The networks of one attempt by its ranks. settings: for each node, the settings of its ranks.

    active: node -> its ACTIVE ports as text, of nodes where some were seen.
    """

    def __init__(
        self, settings: Sequence[Mapping[str, str]], active: Mapping[int, str] | None = None
    ) -> None:
        self._settings = settings
        self._active = active or {}
        self._uses: dict[int, NetworkUse] = {}  # rank -> its words
        self._nodes: dict[int, int] = {}  # rank -> where it runs; its words may be here before

    def place(self, rank: int, node: int) -> None:
        """``rank`` runs on ``node``."""
        self._nodes[rank] = node

    def take(self, rank: int, line: str) -> bool:
        """Take a line of ``rank``; whether it had any facts."""
        _, found, words = line[:MOST_LINE].partition("NCCL ")
        one = self._uses.get(rank, NetworkUse())
        understood = bool(found) and understand(f"NCCL {words}", one)
        if understood:
            self._uses[rank] = one
        return understood

    @property
    def everybody(self) -> bool:
        return self.hosts().keys() == set(self._nodes.values())

    def hosts(self) -> dict[int, NetworkUse]:
        """Node -> what its ranks together use; those that have not named a network are left out."""
        ranks: dict[int, list[NetworkUse]] = {}
        for rank, one in list(self._uses.items()):  # a run that was left in haste still hears
            if rank in self._nodes:
                ranks.setdefault(self._nodes[rank], []).append(one)
        found = {}
        for node, use in sorted(ranks.items()):
            known = [one for one in use if one.net]
            if not known:
                continue
            nets = Counter(one.net for one in known)
            net = SOCKET if SOCKET in nets else max(nets, key=lambda name: nets[name])
            devices = dict.fromkeys(name for one in known for name in one.devices)
            version = next((one.version for one in use if one.version), "")
            found[node] = NetworkUse(net, tuple(devices) if net != SOCKET else (), version)
        return found

    def differing(self) -> list[Difference]:
        """The hosts that do not use what was meant, or what the others use; [] for none."""
        hosts = self.hosts()
        if not hosts:
            return []
        nets = Counter(one.net for one in hosts.values())
        asked = {self._settings[node].get("NCCL_NET", "").upper() for node in hosts}
        # a network that a host was asked to use is not a fallback
        common = max(nets, key=lambda net: (net.upper() in asked, net != SOCKET, nets[net]))
        port_counts = [len(one.devices) for one in hosts.values() if one.net == common]
        counts = Counter(filter(None, port_counts))  # some report their network without its ports
        groups: dict[str, list[int]] = {}
        for node, use in hosts.items():
            what = self._judged(node, use, nets, common)
            if what := what or _ports(use, self._settings[node], counts):
                groups.setdefault(what, []).append(node)
        return [Difference(tuple(nodes), what) for what, nodes in groups.items()]

    def _judged(self, node: int, use: NetworkUse, nets: Counter[str], common: str) -> str:
        """The oddity of the network of ``node``; "" for none. nets: of how many hosts."""
        settings = self._settings[node]
        how = "fell back to" if use.net == SOCKET else "uses"
        why = meant(settings)
        if why and _breaks(use.net, settings):
            rest = [net for net in nets.elements() if net != use.net]
            return f"{how} {use.net}{_others(len(rest), rest)}, though {why}"
        if use.net != common:
            return f"{how} {use.net}{_others(nets[common], [common])}"
        if use.net == SOCKET and node in self._active and not _steers(settings):
            return f"fell back to Socket, though {self._active[node]} are ACTIVE"
        return ""


def meant(settings: Mapping[str, str]) -> str:
    """The setting that asks for a network, ``NCCL_NET=IB``; "" where none does."""
    if settings.get("NCCL_NET"):
        return f"NCCL_NET={settings['NCCL_NET']}"
    hca = settings.get("NCCL_IB_HCA", "")
    hca_filter = parse_filter(hca)
    if is_on(settings.get("NCCL_IB_DISABLE", "")) or hca_filter.negated or not hca_filter.names:
        return ""
    return f"NCCL_IB_HCA={hca}"


def _breaks(net: str, settings: Mapping[str, str]) -> bool:
    """Whether ``net`` breaks the settings; networks of plugins heed NCCL_IB_HCA as well."""
    wanted = settings.get("NCCL_NET", "")
    return net.upper() != wanted.upper() if wanted else net == SOCKET


def _steers(settings: Mapping[str, str]) -> bool:
    return any(settings.get(name) for name in ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"))


def _others(count: int, names: Iterable[str]) -> str:
    """``, 63 others use IB``; "" for none."""
    who = "1 other uses" if count == 1 else f"{count} others use"
    return f", {who} {' or '.join(dict.fromkeys(names))}" if count else ""


def _ports(use: NetworkUse, settings: Mapping[str, str], counts: Counter[int]) -> str:
    """The deviation of the ports that a host uses; counts: number of ports -> hosts with it."""
    if not use.devices:
        return ""
    text = settings.get("NCCL_IB_HCA", "")
    hca_filter = parse_filter(text)
    if hca_filter.exact and not hca_filter.negated:
        missing = [name for name in hca_filter.names if not _fits(hca_filter, name, use.devices)]
        if missing:
            words = " ".join(name if port < 0 else f"{name}:{port}" for name, port in missing)
            return f"does not use {words}, which NCCL_IB_HCA names"
        return ""
    common = max(counts, key=lambda count: (counts[count], count))
    own = len(use.devices)
    if own == common:
        return ""
    ports = "port" if own == 1 else "ports"
    return f"uses {own} {ports}, {counts[common]} with {common}: {' '.join(use.devices)}"


def _fits(hca_filter: Filter, name: tuple[str, int], devices: Sequence[str]) -> bool:
    """Whether one of ``devices`` (``mlx5_0:1``) is what ``name`` of the filter wants."""
    one = Filter(False, hca_filter.exact, (name,))
    parts = (device.rpartition(":") for device in devices)
    return any(one.matches(device, int(port)) for device, _, port in parts)
