"""What NCCL's own INFO lines say it uses, and whether that was meant; pure.

The lines (NCCL_DEBUG=INFO) begin with the host's name: ``b07:4242:4300 [0] NCCL INFO
NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.7<0>``. Labels and times before it do not
matter. NCCL prints ``Using [RO]; OOB`` with an empty list when it found no device.
The network that is named last counts: a process that tries several ends with the one it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: characters of a line that are looked at, and devices of it that are kept (NCCL takes no more)
MOST_LINE, MOST_DEVICES = 4096, 32

_LINE = re.compile(r"(?:^|\s)([\w.-]+):\d+:\d+ (?:\[\d+\] )?NCCL INFO (.*)")
_USING = re.compile(r"NET/(IB|Socket)\s?: Using(.*)")
# a name may be of two words (AWS Libfabric), and is short, whatever a rank prints
_NETWORK = re.compile(
    r"(?:Using network|(?:Initialized|Assigned) NET plugin) ([A-Za-z][\w.-]{0,39}(?: Libfabric)?)"
)
_VIA = re.compile(r"via NET/([A-Za-z][\w .-]{0,39})/")
_DEVICE = re.compile(r"\[\d+\]([\w.-]{1,64}:\d{1,4})\b")  # and /IB or /RoCE, by most versions
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,39})")


@dataclass
class Said:
    """What one host's ranks said. net: the network, the last word counts; devices: of IB.

    version: NCCL's; its first rank prints it and others need not.
    """

    net: str = ""
    devices: tuple[str, ...] = ()
    version: str = ""


def understand(words: str, said: Said) -> bool:
    """Keep in ``said`` what ``words``, a line of NCCL's without its head, tell; if they do."""
    if using := _USING.search(words):
        devices = tuple(_DEVICE.findall(using[2].partition("; OOB")[0])[:MOST_DEVICES])
        if using[1] == "Socket":
            said.net = "Socket"
        elif devices:
            said.net, said.devices = "IB", devices
        return using[1] == "Socket" or bool(devices)
    if network := _NETWORK.search(words) or _VIA.search(words):
        said.net = network[1]
    elif version := _VERSION.search(words):
        said.version = version[1]
    else:
        return False
    return True


def read(lines: Iterable[str]) -> dict[str, Said]:
    """host -> what its ranks said they use; hosts that said nothing of it are left out."""
    found: dict[str, Said] = {}
    for line in lines:
        match = _LINE.search(line[:MOST_LINE])
        if match is not None:
            understand(match[2], found.setdefault(match[1], Said()))
    return {host: said for host, said in found.items() if said.net}


def differences(
    expected: Mapping[str, tuple[str, tuple[str, ...]]], said: Mapping[str, Said]
) -> list[tuple[str, str]]:
    """(host, what is not as expected). expected: host -> network and devices (``mlx5_0:1``)."""
    found = []
    for host, (net, devices) in expected.items():
        heard = said.get(host)
        if heard is None:
            continue
        if net == "IB" and heard.net == "Socket":
            found.append((host, "fell back to Socket"))
        elif heard.net.upper() != net.upper():
            found.append((host, f"uses {heard.net}, expected was {net}"))
        elif heard.devices and devices and set(heard.devices) != set(devices):
            missing = " ".join(sorted(set(devices) - set(heard.devices)))
            extra = " ".join(sorted(set(heard.devices) - set(devices)))
            words = [f"does not use {missing}"] if missing else []
            words += [f"uses {extra} too"] if extra else []
            found.append((host, "; ".join(words)))
    return found
