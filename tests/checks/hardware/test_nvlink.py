"""NVLinks as nvidia-smi tells of them: dead, missing, slow, with errors; and what is well."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from checks.samples import HUNG, MISSING, host, said
from dispatcher.checks.check import Level, Seen, checked
from dispatcher.checks.hardware import nvlink
from dispatcher.checks.hardware.nvlink import machine

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
#: the sentence of NVML: https://github.com/leptonai/gpud/issues/1085
DEAD = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


def gpu(number: int, name: str, speeds: list[str]) -> str:
    """As https://github.com/leptonai/gpud has it, nvidia-smi.nvlink.status.a100."""
    lines = [f"GPU {number}: {name} (UUID: GPU-5269b708-678a-b1a8-60f0-c9040653748{number})\n"]
    lines += [f"\t Link {link}: {speed}\n" for link, speed in enumerate(speeds)]
    return "".join(lines)


def links(*parts: str, status: int = 0) -> Seen:
    return host(smi_nvlink=said("".join(parts).encode(), status))


GOOD = [gpu(n, H100, ["26.562 GB/s"] * 18) for n in range(8)]
#: https://github.com/Azure/azhpc-diagnostics/issues/73
V100 = gpu(3, "Tesla V100-SXM2-32GB", ["25.781 GB/s"] * 3 + ["<inactive>", "25.781 GB/s"]
           + ["<inactive>"])  # fmt: skip
#: three RTX A6000, of which two have a bridge
A6000 = [gpu(n, "NVIDIA RTX A6000", ["14.062 GB/s"] * 4) for n in range(2)]
A6000.append(gpu(2, "NVIDIA RTX A6000", []) + DEAD)


@cases(
    ("seen", "level", "text", "value"),
    [
        (links(*GOOD), OK, "", "144 x 26.562 GB/s"),
        (links(*[gpu(n, A100, ["25 GB/s"] * 12) for n in range(8)]), OK, "", "96 x 25 GB/s"),
        # https://github.com/NVIDIA/k8s-test-infra/issues/371
        (links(*[gpu(n, "NVIDIA GB200", ["53.125 GB/s"] * 18) for n in range(4)]), OK, "",
         "72 x 53.125 GB/s"),
        (links(*A6000), OK, "", "8 x 14.062 GB/s"),
        (links(gpu(0, "NVIDIA A100-PCIE-40GB", []), DEAD), OK, "", "0"),
        (links(gpu(0, "NVIDIA A2", [])), OK, "", "0"),
        (links(gpu(0, H100, []), DEAD), OK, "", "0"),  # one GPU of eight, in a virtual machine
        (links(V100), CRITICAL, "inactive: gpu 3 link 3, gpu 3 link 5", ""),
        (links(*GOOD[:7], gpu(7, H100, []), DEAD), CRITICAL, "gpu 7: no active links of 18", ""),
        (links(*GOOD[:7], gpu(7, H100, ["<inactive>"] * 18)), CRITICAL,
         "gpu 7: no active links of 18", ""),
        (links(*GOOD[:7], gpu(7, H100, ["26.562 GB/s"] * 17)), CRITICAL,
         "gpu 7: 17 active links of 18", ""),
        (links(*GOOD[:7], gpu(7, H100, ["26.562 GB/s"] * 17 + ["13.281 GB/s"])), CRITICAL,
         "slow: gpu 7 link 17: 13.281 GB/s of 26.562", ""),
        (links(*[gpu(n, A100, ["12.5 GB/s"] * 12) for n in range(2)]), CRITICAL,
         "slow: gpu 0 link 0: 12.5 GB/s of 25, gpu 0 link 1: 12.5 GB/s of 25, gpu 0 link 2: 12.5 "
         "GB/s of 25 and 21 more", ""),
        (links(*A6000[:1], gpu(1, "NVIDIA RTX A6000", ["14.062 GB/s"] * 3 + ["7 GB/s"])), CRITICAL,
         "slow: gpu 1 link 3: 7 GB/s of 14.062", ""),
        (links(*[gpu(n, H100, []) + DEAD for n in range(8)]), WARN, "no NVLink is active", ""),
        (links(""), OK, "", "0"),  # cards that can have none; Azure/azurehpc-health-checks knows it
        (links("GPU\n"), INCOMPLETE, "could not be read: nvidia-smi nvlink listed no GPU", ""),
        (links("no", status=2), INCOMPLETE, "could not be read: exit code 2: no", ""),
        (host(smi_nvlink=HUNG), CRITICAL,
         "nvidia-smi hangs: a GPU or its driver does not answer", ""),
        (host(smi_nvlink=MISSING), OK, "no GPU", ""),
    ],
)  # fmt: skip
def test_links(seen: Seen, level: Level, text: str, value: str) -> None:
    found = checked(nvlink.links, seen)
    assert (found.level, found.text, found.value) == (level, text, value)


#: https://github.com/NVIDIA/srt-slurm/pull/307
HOPPER = """\
GPU 0: NVIDIA GB300
\t Link 0: Replay Errors: {}
\t Link 0: Recovery Errors: {}
\t Link 0: CRC Errors: 0
"""
#: the counters of driver 595 on a Blackwell, and link 14 of
#: https://github.com/marin-community/marin/issues/9086
BLACKWELL = """\
GPU 0: NVIDIA GB200 (UUID: GPU-2e2b6342-3996-51b9-5480-e20df571e09c)
\t Link 14: Tx packets: 123456789
\t Link 14: Malformed packet Errors: 0
\t Link 14: Local link integrity Errors: 0
\t Link 14: Link recovery successful events: {}
\t Link 14: Link recovery failed events: 0
\t Link 14: Total link recovery events: {}
\t Link 14: Effective Errors: 0
\t Link 14: Effective BER: 15e-255
\t Link 14: FEC Errors - 0: 17941761
"""


def counted(before: str, after: str | None = None) -> Seen:
    later = {} if after is None else {"smi nvlink errors": said(after.encode())}
    return replace(host(smi_nvlink_errors=said(before.encode())), later=later)


@cases(
    ("seen", "level", "text"),
    [
        (counted(HOPPER.format(0, 0)), OK, ""),
        (counted(BLACKWELL.format(0, 0), BLACKWELL.format(0, 0)), OK, ""),
        (counted(HOPPER.format(7, 0), HOPPER.format(7, 0)), WARN,
         "since the driver was loaded: gpu 0 link 0: Replay Errors 7"),
        (counted(HOPPER.format(7, 0), HOPPER.format(9, 0)), WARN,
         "gpu 0 link 0: Replay Errors +2"),
        (counted(HOPPER.format(7, 0), HOPPER.format(9, 1)), CRITICAL,
         "gpu 0 link 0: Recovery Errors +1"),
        (counted(BLACKWELL.format(505, 505), BLACKWELL.format(505, 505)), WARN,
         "since the driver was loaded: gpu 0 link 14: Link recovery successful events 505"),
        (counted(BLACKWELL.format(505, 505), BLACKWELL.format(508, 508)), CRITICAL,
         "gpu 0 link 14: Link recovery successful events +3"),
        (counted("GPU 0: NVIDIA A2 (UUID: GPU-1)\n"), OK, ""),
        (counted("", ""), OK, ""),
        (counted("GPU\n"), INCOMPLETE, "could not be read: nvidia-smi nvlink listed no GPU"),
        (host(smi_nvlink_errors=said(b"no", 2)), INCOMPLETE, "could not be read: exit code 2: no"),
        (host(smi_nvlink_errors=HUNG), CRITICAL,
         "nvidia-smi hangs: a GPU or its driver does not answer"),
        (host(smi_nvlink_errors=MISSING), OK, "no GPU"),
    ],
)  # fmt: skip
def test_errors(seen: Seen, level: Level, text: str) -> None:
    found = checked(nvlink.errors, seen)
    assert (found.level, found.text) == (level, text)


@cases(
    ("name", "kind"),
    [
        (H100, "H100"), (A100, "A100"), ("NVIDIA A100-SXM4-40GB", "A100"), ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"), ("NVIDIA H100 PCIe", ""), ("NVIDIA H100 NVL", ""),
        ("NVIDIA H200 NVL", ""), ("NVIDIA GB200", ""), ("NVIDIA A100-PCIE-40GB", ""),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""), ("NVIDIA GH200 480GB", ""),
    ],
)  # fmt: skip
def test_which_machines_are_known(name: str, kind: str) -> None:
    found = machine(name)
    assert (found.kind if found else "") == kind
    if found:
        # all links together are what a GPU can send; its floor is above half of that
        assert found.floor / 2 < found.links * found.link_rate < 2 * found.floor
