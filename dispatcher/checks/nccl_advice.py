"""The settings that NCCL should have on a cluster, and the faults of those it has; pure.

``docs/design/checks.md`` explains the choice. The advice takes ACTIVE ports of a link layer that
every host has, the fastest of each host. It leaves out a RoCE port that carries the default route
or our login, be it below a bond, a bridge or a VLAN. It tunes nothing (NCCL_ALGO ...).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dispatcher.checks.check import Level
from dispatcher.checks.nccl_model import HostNet, NcclMessage, Prediction, parse_filter, predict
from dispatcher.checks.network import IB, OTHER, ROCE, Netdev, Port

#: interfaces that lead to nowhere but this host
INNER = ("lo", "docker", "virbr", "br-", "veth", "cni", "flannel", "podman")

#: for finding faults; they slow a job down when they are forgotten
DEBUGGING = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_LEVEL", "NCCL_LAUNCH_MODE",
)  # fmt: skip

#: may well differ between hosts
LOCAL = frozenset({
    "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG_FILE", "NCCL_RAS_ADDR",
    "NCCL_TOPO_FILE", "NCCL_HOSTID", "NCCL_CONF_FILE",
})  # fmt: skip

#: what the advice replaces as a whole: the choice of network and devices
REPLACED = {"NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"}

Add = Callable[..., None]


def warnings(
    hosts: Mapping[str, HostNet],
    now: Mapping[str, Prediction],
    advised: Mapping[str, tuple[Port, ...]],
) -> tuple[NcclMessage, ...]:
    """The faults of ``hosts``, the most severe first. advised: the ports that should be used."""
    groups: dict[tuple[Level, str, str | None], list[str]] = {}

    def add(host: str, level: Level, text: str, remedy: str | None = None) -> None:
        groups.setdefault((level, text, remedy), []).append(host)

    for name, host in hosts.items():
        if host.unread:
            add(name, Level.INCOMPLETE, host.unread)
            continue
        _start(name, host, now[name], len(hosts) > 1, add)
        _ports(name, host, now[name], add)
        _settings(name, host, add)
    seen = {name: host for name, host in hosts.items() if not host.unread}
    _agreement(seen, now, advised, add)
    ranked = sorted(groups.items(), key=lambda item: -item[0][0])
    return tuple(NcclMessage(lv, tuple(dict.fromkeys(h)), t, r) for (lv, t, r), h in ranked)


def _start(name: str, host: HostNet, will: Prediction, many: bool, add: Add) -> None:
    wanted = host.settings.get("NCCL_SOCKET_IFNAME", "")
    if will.fatal:
        remedy = None
        if "SOCKET_IFNAME" in will.fatal:
            there = " ".join(d.name for d in host.netdevs if d.usable)
            remedy = f"name one that is up with an address; there is: {there or 'none'}"
        add(name, Level.CRITICAL, f"NCCL does not start: {will.fatal}", remedy)
        return
    hca = host.settings.get("NCCL_IB_HCA", "")
    active = [port for port in host.ports if port.active and port.layer != OTHER]
    if will.net not in ("IB", "Socket") and host.plugin is None:
        text = f"NCCL_NET={will.net}: ldconfig knows no plugin, and without one NCCL does not start"
        add(name, Level.WARN, text, "LD_LIBRARY_PATH= the folder of libnccl-net.so")
    others = " ".join(port.name for port in host.ports if port.active and port.layer == OTHER)
    if others and will.net == "Socket" and host.plugin is None:
        text = f"{others} can be used by a plugin only, and ldconfig knows none: data goes by TCP"
        add(name, Level.WARN, text, "LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib, or where it is")
    off = host.settings.get("NCCL_IB_DISABLE", "0") not in ("", "0")
    if will.net == "Socket" and active and hca and not off and "NCCL_NET" not in host.settings:
        text = f"NCCL_IB_HCA={hca}: no such port is ACTIVE, so NCCL falls back to Socket silently"
        add(name, Level.CRITICAL, text, "NCCL_NET=IB makes that an error")
    if will.net == "Socket" and active and off:
        what = ", ".join(port.name for port in active)
        add(name, Level.WARN, f"NCCL_IB_DISABLE=1 although {what} are ACTIVE", "unset it")
    if will.net == "Socket" and will.interfaces and all(d.ipoib for d in will.interfaces):
        used = " ".join(d.name for d in will.interfaces)
        add(name, Level.WARN, f"data goes by IP over InfiniBand ({used}), several times slower")
    meet = will.bootstrap
    if many and meet is not None and meet.address.startswith("127."):
        text = f"ranks would meet at {meet.address} ({meet.name}), which no other host reaches"
        add(name, Level.CRITICAL, text, "NCCL_SOCKET_IFNAME= the interface between the hosts")
    elif many and meet is not None and meet.name.startswith(INNER):
        text = f"ranks would meet over {meet.name}, which only this host has"
        add(name, Level.CRITICAL, text, "NCCL_SOCKET_IFNAME= the interface between the hosts")
    if wanted.startswith("^") and len(wanted) > 1:
        left = [n for n in ("lo", "docker") if n not in wanted]
        if left:
            text = f"NCCL_SOCKET_IFNAME={wanted} takes {' and '.join(left)} too"
            add(name, Level.WARN, text, "a list with ^ replaces the built-in ^docker,lo,virbr")


def _ports(name: str, host: HostNet, will: Prediction, add: Add) -> None:
    hca = host.settings.get("NCCL_IB_HCA", "")
    hca_filter = parse_filter(hca)
    devices = {port.device for port in host.ports}
    if hca and not hca_filter.negated and will.net == "IB":
        for wanted, number in hca_filter.names:
            one = parse_filter(("=" if hca_filter.exact else "") + wanted)
            there = [p for p in host.ports if one.matches(p.device)]
            there = [p for p in there if number in (-1, p.number)]
            if not there:
                add(name, Level.WARN, f"NCCL_IB_HCA names {wanted}, which is not there")
            elif not any(p.active for p in there):
                text = f"NCCL_IB_HCA names {wanted}, which is {there[0].state}: "
                text += f"the job runs with {will.gbps:.0f} Gb/s"
                add(name, Level.WARN, text, "NCCL does not report this")
            elif wanted in devices and any(p.device != wanted for p in there):
                taken = ", ".join(dict.fromkeys(p.device for p in there))
                text = f"NCCL_IB_HCA: {wanted} is a prefix and takes {taken}"
                # with = a word that is not a whole name, as mlx5, would fit nothing
                whole = all(word in devices for word, _ in hca_filter.names)
                add(name, Level.WARN, text, f"NCCL_IB_HCA=={hca}" if whole else None)
    if will.net == "IB" and will.mixed:
        layers = " ".join(f"{p.name}/{p.layer}" for p in will.ports)
        text = f"InfiniBand and RoCE side by side: {layers}"
        add(name, Level.WARN, text, "connections between the two fail; name ports of one kind")
    for port in host.ports:
        if port.physical == "LINKUP" and port.state in ("DOWN", "INIT", "ARMED"):
            text = f"{port.name} has its link up but is {port.state}"
            remedy = "no subnet manager answers it" if port.layer == "IB" else None
            add(name, Level.WARN, text, remedy)


def _settings(name: str, host: HostNet, add: Add) -> None:
    found = host.settings
    for variable in DEBUGGING:
        if variable in found:
            text = f"{variable}={found[variable]} is for finding faults"
            add(name, Level.WARN, text, "remove it unless you measured it")
    if "NCCL_COMM_ID" in found:
        text = "NCCL_COMM_ID is set: communicators of one job get in each other's way"
        add(name, Level.WARN, text, "remove it; the id is broadcast")
    if "NCCL_IB_GID_INDEX" in found:
        text = f"NCCL_IB_GID_INDEX={found['NCCL_IB_GID_INDEX']}: it may differ between hosts"
        add(name, Level.WARN, text, "remove it; NCCL 2.21 and later find it themselves")
    file = found.get("NCCL_DEBUG_FILE", "")
    if file and not ("%h" in file and "%p" in file):
        text = f"NCCL_DEBUG_FILE={file}: ranks overwrite each other's file"
        add(name, Level.WARN, text, "put %h and %p into its name")
    for variable in sorted(host.overridden):
        add(name, Level.WARN, f"{variable} of a nccl.conf is hidden by the environment")


def _agreement(
    hosts: Mapping[str, HostNet],
    now: Mapping[str, Prediction],
    advised: Mapping[str, tuple[Port, ...]],
    add: Add,
) -> None:
    """Differences between hosts; the messages name hosts unlike most."""
    nets = {name: will.net or "" for name, will in now.items() if not will.fatal}
    for name, net, most in _differing(nets):
        text = f"would use {net}, most hosts {most}: they cannot talk to each other"
        add(name, Level.CRITICAL, text)
    layers = {
        name: "+".join(sorted({port.layer for port in will.ports}))
        for name, will in now.items()
        if will.net == "IB"
    }
    for name, layer, most in _differing(layers):
        add(name, Level.CRITICAL, f"would use {layer} ports, most hosts {most}")
    counts = {name: len(ports) for name, ports in advised.items()}
    for name, count, common in _differing(counts):
        text = f"has {count} good ports, most hosts {common}"
        add(name, Level.WARN, text, "see which are not ACTIVE: ibstatus")
    rates = {name: max((p.gbps or 0.0) for p in ports) for name, ports in advised.items()}
    for name, rate, best in _differing(rates):
        text = f"its ports run at {rate:.0f} Gb/s, on most hosts at {best:.0f}"
        add(name, Level.WARN, text, "a bad cable or a port of the switch")
    mtus = {
        name: will.bootstrap.mtu
        for name, will in now.items()
        if will.bootstrap is not None and will.bootstrap.mtu
    }
    for name, mtu, common in _differing(mtus):
        add(name, Level.WARN, f"MTU {mtu}, on most hosts {common}")
    everything = {v for host in hosts.values() for v in host.settings if v not in LOCAL}
    for variable in sorted(everything):
        values = {name: host.settings.get(variable, "(unset)") for name, host in hosts.items()}
        for name, value, usually in _differing(values):
            add(name, Level.WARN, f"{variable}={value}, on most hosts {usually}")


def _differing(values: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """(host, its value, the usual value) of hosts unlike the most; on a tie the first is usual."""
    if not values:
        return []
    common = Counter(values.values()).most_common(1)[0][0]
    return [(name, value, common) for name, value in values.items() if value != common]


@dataclass(frozen=True)
class NcclAdvice:
    """settings: for all hosts; own: for single hosts in addition, or instead.

    now, then: NCCL's choice with the present and with the advised settings.
    """

    settings: dict[str, str]
    own: dict[str, dict[str, str]]
    now: dict[str, Prediction]
    then: dict[str, Prediction]
    messages: tuple[NcclMessage, ...]

    def of(self, host: str) -> dict[str, str]:
        """All that is advised for ``host``."""
        return {**self.settings, **self.own.get(host, {})}


def advise(hosts: Mapping[str, HostNet]) -> NcclAdvice:
    """The settings that ``hosts`` (by name) should have, and the faults of the present settings."""
    seen = {name: host for name, host in hosts.items() if not host.unread}
    layer, advised = _choose(seen)
    layers = {port.layer for host in seen.values() for port in host.ports}
    settings: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {name: {} for name in seen}
    if any(host.plugin for host in seen.values()):
        layer = None  # the plugin knows its own devices (EFA and the like)
    elif layer is not None:
        settings["NCCL_NET"] = "IB"
        names = {n: "=" + ",".join(_tokens(seen[n], ports)) for n, ports in advised.items()}
        _name("NCCL_IB_HCA", names, settings, own)
    elif layers and OTHER not in layers:
        settings["NCCL_NET"] = "Socket"
    meeting = {name: _meeting(host) for name, host in seen.items()}
    found = {name: device for name, device in meeting.items() if device is not None}
    _name("NCCL_SOCKET_IFNAME", {n: "=" + d.name for n, d in found.items()}, settings, own)
    _name("GLOO_SOCKET_IFNAME", {n: d.name for n, d in found.items()}, settings, own)
    own = {name: values for name, values in own.items() if values}
    now = {n: predict(h.ports, h.netdevs, h.settings, h.plugin) for n, h in seen.items()}
    then = {}
    for n, h in seen.items():
        kept = {name: value for name, value in h.settings.items() if name not in REPLACED}
        wanted = {**kept, **settings, **own.get(n, {})}
        then[n] = predict(h.ports, h.netdevs, wanted, h.plugin)
    return NcclAdvice(settings, own, now, then, warnings(hosts, now, advised if layer else {}))


def _name(
    variable: str,
    values: Mapping[str, str],
    settings: dict[str, str],
    own: dict[str, dict[str, str]],
) -> None:
    """Set ``variable`` for all at once where the hosts agree, else for each."""
    if len(set(values.values())) == 1 and len(values) == len(own):
        settings[variable] = next(iter(values.values()))
        return
    for host, value in values.items():
        own[host][variable] = value


def _choose(hosts: Mapping[str, HostNet]) -> tuple[str | None, dict[str, tuple[Port, ...]]]:
    """The link layer for all hosts, and the ports of it on each."""
    usable = {name: _usable(host) for name, host in hosts.items()}
    for layer in (IB, ROCE):
        advised = {
            name: _fastest([port for port in ports if port.layer == layer])
            for name, ports in usable.items()
        }
        if advised and all(advised.values()):
            return layer, advised
    return None, {}


def _usable(host: HostNet) -> list[Port]:
    active = [port for port in host.ports if port.active]
    meeting = {d.name for d in host.netdevs if host.login and host.login in d.addresses}
    taken = meeting | ({host.route} if host.route else set())
    lower = {device.name: set(device.lower) for device in host.netdevs}
    while below := set().union(*(lower.get(name, set()) for name in taken)) - taken:
        taken |= below
    return [p for p in active if p.layer != ROCE or not taken & set(p.netdevs)] or active


def _fastest(ports: list[Port]) -> tuple[Port, ...]:
    best = max((port.gbps or 0.0 for port in ports), default=0.0)
    return tuple(port for port in ports if (port.gbps or 0.0) == best)


def _tokens(host: HostNet, advised: tuple[Port, ...]) -> list[str]:
    """Device names; with the port where only some of a device's ports are advised."""
    return [
        port.device
        if all(other in advised for other in host.ports if other.device == port.device)
        else port.name
        for port in advised
    ]


def _meeting(host: HostNet) -> Netdev | None:
    """The interface over which ranks should meet; None if no interface suits."""
    usable = [d for d in host.netdevs if d.usable and not d.address.startswith("127.")]
    usable = [d for d in usable if not d.name.startswith(INNER)]
    ranked = [
        *(d for d in usable if host.login and host.login in d.addresses),
        *(d for d in usable if d.name == host.route),
        *(d for d in usable if not d.ipoib),
        *usable,
    ]
    return next(iter(ranked), None)
