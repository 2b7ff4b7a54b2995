"""NCCL's settings: where they stand and which of them counts; pure.

The environment goes before NCCL_CONF_FILE (or else ~/.nccl.conf), and that before
/etc/nccl.conf. A file has NAME=VALUE lines; ``#`` begins a comment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: names of other libraries that choose a network interface, and belong to the same advice
RELATED = ("GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "HYDRA_IFACE", "FI_TCP_IFACE")


def parse_conf(text: str) -> dict[str, str]:
    """Names and values of a nccl.conf; lines that are no setting are skipped, as NCCL does."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("#")[0].partition("=")
        if equals and name.strip():
            found[name.strip()] = value.strip()
    return found


def parse_environment(text: str) -> dict[str, str]:
    """The settings among the lines of ``env``, or of a shell's ``export NAME=VALUE``."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and (name.startswith("NCCL_") or name in RELATED):
            found[name] = value
    return found


def effective(environment: Mapping[str, str], files: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What NCCL goes by: ``files`` are in order of precedence, after the environment."""
    found: dict[str, str] = {}
    for layer in (environment, *files):
        for name, value in layer.items():
            found.setdefault(name, value)
    return found
