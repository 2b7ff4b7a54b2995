"""The fast network: RDMA ports and their error counters, NVSwitch's manager; pure."""

from __future__ import annotations

from dispatcher.checks.check import Seen, Unread, critical, ok, warn
from dispatcher.checks.finding import Finding
from dispatcher.checks.gpu import HANG
from dispatcher.checks.nccl.host_network import text_of
from dispatcher.checks.rdma_ports import Port
from dispatcher.checks.rdma_ports import parse as parse_ports

#: counters of a port that must not rise: by any amount a broken link, or a poor one
BROKEN = ("link_downed", "link_error_recovery")
POOR = (
    "symbol_error", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "local_ack_timeout_err", "rnr_nak_retry_err",
    "out_of_sequence",
)  # fmt: skip


def ports_of(seen: Seen) -> tuple[Port, ...]:
    """The RDMA ports. Raises: Unread."""
    return parse_ports(text_of({"rdma": seen.value("rdma")}))


def ports(seen: Seen) -> Finding:
    """Every port that has a cable is ACTIVE; value: how many of which layer and rate."""
    there = ports_of(seen)
    if "/sys/class/infiniband/" in seen.files("kernel") and not there:
        names = seen.files("kernel")["/sys/class/infiniband/"].split()
        if names:
            raise Unread("the ports in /sys/class/infiniband")
    kinds: dict[str, int] = {}
    for port in there:
        if port.active:
            kind = f"{port.layer} {port.gbps or 0:.0f} Gb/s"
            kinds[kind] = kinds.get(kind, 0) + 1
    value = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    stuck = [p.name for p in there if p.physical == "LINKUP" and not p.active]
    if stuck:
        text = f"{', '.join(stuck)}: the link is up, but not ACTIVE"
        return critical(text, "InfiniBand: is there a subnet manager? sminfo", value)
    layers = {port.layer for port in there if port.active}
    if len(layers) > 1:
        return Finding(ok().level, "InfiniBand and RoCE: see dispatch check --nccl", None, value)
    return ok(value)


def counters(seen: Seen) -> Finding:
    """Errors between our two visits: a link that errs while nobody uses it is no good."""
    before, after = (_counts(seen, later=later) for later in (False, True))
    rises: dict[str, list[str]] = {}
    for path, count in after.items():
        rise = count - before.get(path, count)
        if rise > 0:
            parts = path.strip("/").split("/")  # sys class infiniband DEV ports 1 counters NAME
            rises.setdefault(parts[-1], []).append(f"{parts[3]}:{parts[5]} +{rise}")
    remedy = "look at the cable: ibdiagnet, mlxlink; swap it"
    for names, make in ((BROKEN, critical), (POOR, warn)):
        found = [f"{name} {' '.join(rises[name])}" for name in names if name in rises]
        if found:
            return make("; ".join(found), remedy)
    return ok()


def _counts(seen: Seen, *, later: bool) -> dict[str, int]:
    found = {}
    for path, content in seen.files("ib counters", later=later).items():
        if path.rsplit("/", 1)[-1] in (*BROKEN, *POOR):
            if not content.strip().isdigit():
                raise Unread(f"{path}: {content.strip()[:20]!r}")
            found[path] = int(content)
    return found


def manager(seen: Seen) -> Finding:
    """On NVSwitch systems NVLink works only while the fabric manager does."""
    if "nvidia-nvswitch" not in seen.files("kernel").get("/dev/", ""):
        return ok(text="no NVSwitch")
    reading = seen.reading("fabric manager")
    if reading.hung:
        return critical("systemctl does not answer", "look at the host's console")
    state = reading.text.strip()
    if state == "active":
        return ok("active")
    if reading.status in (126, 127):
        raise Unread(f"systemctl: {reading.why()}")
    return critical(
        f"the fabric manager is {state or 'not there'}", "systemctl start nvidia-fabricmanager"
    )


__all__ = ["HANG", "counters", "manager", "ports"]
