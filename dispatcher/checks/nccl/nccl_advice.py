"""What NCCL should be told on a cluster, and what is wrong with what it is told now; pure.

Choice, in this order:

1. *Which ports.* ACTIVE ones; not a RoCE port that carries the default route or our
   login (it is the host's own network card). InfiniBand where every host has it, else
   RoCE where every host has it, else plain sockets. Of those the fastest on each host.
2. *How to name them.* With ``=``, so that mlx5_1 is not mlx5_10 as well; for the whole
   cluster where all hosts have the same names, else host by host. ``NCCL_NET=IB`` goes
   with it, so that a port that fails is an error instead of a job ten times slower.
3. *Where ranks meet.* The interface we logged in by, or that of the default route,
   rather than IP over InfiniBand; for NCCL and gloo alike.

Never advised: anything that tunes (NCCL_ALGO, NCCL_PROTO, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.checks.nccl import nccl_warnings
from dispatcher.checks.nccl.nccl_model import HostNet, Message, Prediction, predict
from dispatcher.checks.network import Netdev
from dispatcher.checks.rdma_ports import IB, ROCE, Port


@dataclass(frozen=True)
class Advice:
    """settings: for all hosts; own: what single hosts need besides, or instead.

    now, then: what NCCL does with the present settings and with the advised ones.
    """

    settings: dict[str, str]
    own: dict[str, dict[str, str]]
    now: dict[str, Prediction]
    then: dict[str, Prediction]
    messages: tuple[Message, ...]

    def of(self, host: str) -> dict[str, str]:
        """All that is advised for ``host``."""
        return {**self.settings, **self.own.get(host, {})}


def advise(hosts: Mapping[str, HostNet]) -> Advice:
    """What to tell NCCL on ``hosts`` (name -> what it has), and what is wrong."""
    seen = {name: host for name, host in hosts.items() if not host.unread}
    layer, chosen = _choose(seen)
    settings: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {name: {} for name in seen}
    if any(host.plugin for host in seen.values()):
        layer = None  # the plugin knows its own devices (EFA and the like)
    elif layer is not None:
        settings["NCCL_NET"] = "IB"
        _name(
            "NCCL_IB_HCA",
            {n: "=" + ",".join(_tokens(seen[n], ports)) for n, ports in chosen.items()},
            settings,
            own,
        )
    elif any(host.ports for host in seen.values()):
        settings["NCCL_NET"] = "Socket"
    meeting = {name: _meeting(host) for name, host in seen.items()}
    found = {name: device for name, device in meeting.items() if device is not None}
    _name("NCCL_SOCKET_IFNAME", {n: "=" + d.name for n, d in found.items()}, settings, own)
    _name("GLOO_SOCKET_IFNAME", {n: d.name for n, d in found.items()}, settings, own)
    own = {name: values for name, values in own.items() if values}
    now = {n: predict(h.ports, h.netdevs, h.settings, h.plugin) for n, h in seen.items()}
    then = {
        n: predict(
            h.ports, h.netdevs, {**_kept(h.settings), **settings, **own.get(n, {})}, h.plugin
        )
        for n, h in seen.items()
    }
    messages = nccl_warnings.messages(hosts, now, chosen if layer else {})
    return Advice(settings, own, now, then, messages)


def _kept(settings: Mapping[str, str]) -> dict[str, str]:
    """Without what the advice replaces as a whole: the choice of network and devices."""
    gone = {"NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"}
    return {name: value for name, value in settings.items() if name not in gone}


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
        chosen = {
            name: _fastest([port for port in ports if port.layer == layer])
            for name, ports in usable.items()
        }
        if chosen and all(chosen.values()):
            return layer, chosen
    return None, {}


def _usable(host: HostNet) -> list[Port]:
    active = [port for port in host.ports if port.active]
    meeting = {d.name for d in host.netdevs if host.login and host.login in d.addresses}
    taken = meeting | ({host.route} if host.route else set())
    return [p for p in active if p.layer != ROCE or not taken & set(p.netdevs)] or active


def _fastest(ports: list[Port]) -> tuple[Port, ...]:
    best = max((port.gbps or 0.0 for port in ports), default=0.0)
    return tuple(port for port in ports if (port.gbps or 0.0) == best)


def _tokens(host: HostNet, chosen: tuple[Port, ...]) -> list[str]:
    """Device names; with the port where only some of a device's ports are chosen."""
    return [
        port.device
        if all(other in chosen for other in host.ports if other.device == port.device)
        else port.name
        for port in chosen
    ]


def _meeting(host: HostNet) -> Netdev | None:
    """The interface over which ranks should meet; None when there is none to advise."""
    usable = [d for d in host.netdevs if d.usable and not d.address.startswith("127.")]
    usable = [d for d in usable if not d.name.startswith(nccl_warnings.INNER)]
    for device in usable:
        if host.login and host.login in device.addresses:
            return device
    for device in usable:
        if device.name == host.route:
            return device
    return next((d for d in usable if not d.ipoib), usable[0] if usable else None)
