"""What nvidia-smi says of GPUs: where each limit lies, and which of several troubles is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import cases

from checks.samples import HUNG, MISSING, call, host, kernel, said
from checks.test_full import CORE, MORE, gpu_lines, smi_host
from dispatcher.checks import gpu
from dispatcher.checks.check import CheckHost, Level, Reading, Seen, Unread, checked
from dispatcher.checks.hardware import nvlink

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL


@cases(
    ("check", "last", "level", "text"),
    [
        (gpu.ecc, {"errors": "3", "ecc": "Disabled"}, CRITICAL,
         "gpu 7: 3 uncorrected memory errors since the last reset"),
        (gpu.ecc, {"ecc": "Disabled"}, WARN, "gpu 7: ECC is off"),
        (gpu.clocks, {"reasons": "0x0000000000000008", "heat": "99"}, CRITICAL,
         "gpu 7: slowed down: hardware slowdown"),
        (gpu.clocks, {"reasons": "0x0000000000000080"}, CRITICAL,
         "gpu 7: slowed down: power brake"),
        (gpu.clocks, {"reasons": "0x00000000000000a0"}, CRITICAL,
         "gpu 7: slowed down: power brake"),
        (gpu.clocks, {"reasons": "0x0000000000000020", "heat": "99"}, WARN,
         "gpu 7: slowed down: software thermal"),
        (gpu.clocks, {"heat": "85"}, WARN, "gpu 7: 85 °C"),
        (gpu.clocks, {"heat": "84.9"}, OK, ""),
        (gpu.clocks, {"heat": "[N/A]"}, OK, ""),
        (gpu.clocks, {"reasons": "[N/A]"}, OK, ""),
        (gpu.pcie, {"width": "15"}, CRITICAL, "gpu 7: PCIe x15 of x16"),
        (gpu.pcie, {"width": "16"}, OK, ""),
        (gpu.pcie, {"width": "32"}, OK, ""),
        (gpu.pcie, {"width": "[N/A]"}, OK, ""),
        (gpu.used, {"used": "1024"}, OK, ""),
        (gpu.used, {"used": "1025"}, CRITICAL, "gpu 7: 1025 MiB in use"),
        (gpu.used, {"used": "[N/A]"}, OK, ""),
        (gpu.fabric, {"fabric": "state  Completed", "status": "status Success"}, OK, ""),
        (gpu.fabric, {"fabric": "state  In Progress", "status": "status N/A"}, CRITICAL,
         "gpu 7: fabric In Progress, N/A"),
        (gpu.persistence, {"ready": "Disabled"}, WARN, "gpu 7: persistence mode is off"),
        (gpu.persistence, {"ready": "[N/A]"}, OK, ""),
        (gpu.fabric, {"status": "[N/A]"}, OK, ""),
        (gpu.fabric, {"status": "SUCCESS"}, OK, ""),
        (gpu.fabric, {"status": "Failure"}, CRITICAL, "gpu 7: fabric Completed, Failure"),
        (gpu.fabric, {"fabric": "Not Started", "status": "Success"}, CRITICAL,
         "gpu 7: fabric Not Started, Success"),
        (gpu.fabric, {"fabric": "N/A", "status": "Failure"}, OK, ""),
    ],
)  # fmt: skip
def test_one_of_eight(check: CheckHost, last: dict[str, str], level: Level, text: str) -> None:
    found = checked(check, smi_host(**last))
    assert (found.level, found.text) == (level, text)
    assert (found.remedy is None) == (level == OK)


def test_the_gravest_of_several_is_told() -> None:
    lines = gpu_lines(CORE + MORE, {"errors": "1"})
    first = lines.replace(b"Enabled, Enabled, 0, 16", b"Disabled, Disabled, 0, 16", 1)
    found = checked(gpu.ecc, host(smi=said(first), smi_core=MISSING))
    assert (found.level, found.text[:6]) == (CRITICAL, "gpu 7:")


def test_a_reset_that_waits_has_no_remedy_but_itself() -> None:
    found = checked(gpu.ecc, smi_host(pending="Disabled"))
    assert (found.level, found.text) == (WARN, "gpu 7: ECC will be Disabled after a reset")


@cases(
    ("watt", "level", "text", "value"),
    [
        ("700.00", OK, "", "700 W"),
        ("[N/A]", OK, "", "700 W"),
        ("300.00", WARN, "gpu 7: limited to 300 W, others to 700 W", ""),
    ],
)
def test_power_limits(watt: str, level: Level, text: str, value: str) -> None:
    found = checked(gpu.power, smi_host(watt=watt))
    assert (found.level, found.text, found.value) == (level, text, value)
    assert found.remedy == (None if level == OK else "nvidia-smi -i INDEX -pl 700")


def test_gpus_that_tell_no_power_limit_have_none() -> None:
    lines = gpu_lines(CORE + MORE, {}).replace(b"700.00", b"[N/A]")
    assert checked(gpu.power, host(smi=said(lines), smi_core=MISSING)).value == ""


def test_an_inventory_counts_alike_gpus() -> None:
    kind = "NVIDIA H100 80GB HBM3, 81559 MiB, vbios 96.00.A5.00.01"
    assert checked(gpu.inventory, smi_host()).value == f"8 x {kind}"
    lines = gpu_lines(CORE + MORE, {}).replace(b"81559", b"40000", 1)
    lines = lines[::-1].replace(b"delbasiD ,delbanE", b"delbanE ,delbanE", 1)[
        ::-1
    ]  # the last's MIG
    found = checked(gpu.inventory, host(smi=said(lines), smi_core=MISSING))
    assert (
        found.value == f"1 x {kind.replace('81559', '40000')}; 6 x {kind}; 1 x {kind}, mig Enabled"
    )
    assert (
        checked(
            gpu.used,
            host(
                smi=said(lines.replace(b", 4, 31", b", 9999, 31")[-300:].split(b"\n", 1)[1]),
                smi_core=MISSING,
            ),
        ).level
        == OK
    )  # MIG has its own accounts


def test_a_short_list_of_fields_serves_old_drivers() -> None:
    core = said(gpu_lines(CORE, {}, 2))
    for smi in (said(b"unknown field", 2), Reading(0, gpu_lines(CORE + MORE, {}, 2), cut=True)):
        found = gpu.gpus(host(smi=smi, smi_core=core))
        assert [(one["index"], "fabric.state" in one) for one in found] == [
            ("0", False),
            ("1", False),
        ]
    whole = gpu.gpus(host(smi=said(gpu_lines(CORE + MORE, {}, 1)), smi_core=core))
    assert [one["fabric.status"] for one in whole] == ["Success"]
    with pytest.raises(Unread, match="nvidia-smi: exit code 9: failed"):
        gpu.gpus(host(smi=said(b"x", 2), smi_core=said(b"failed", 9)))


@cases(
    ("smi", "core", "level", "text"),
    [
        (MISSING, HUNG, CRITICAL, "nvidia-smi hangs"),
        (HUNG, MISSING, CRITICAL, "nvidia-smi hangs"),
        (MISSING, MISSING, INCOMPLETE, "could not be read: nvidia-smi is not installed"),
        (MISSING, said(b"no", 9), INCOMPLETE, "could not be read: nvidia-smi: exit code 9: no"),
    ],
)
def test_nvidia_smi_that_does_not_answer(
    smi: Reading, core: Reading, level: Level, text: str
) -> None:
    found = checked(gpu.inventory, host(smi=smi, smi_core=core))
    assert (found.level, found.text[: len(text)]) == (level, text)
    if level == CRITICAL:  # without persistence mode it may be no more than slow
        assert str(found.remedy).endswith("nvidia-smi -pm 1")
    bare = host(smi=smi, smi_core=core, kernel=kernel(version=None))
    assert (checked(gpu.inventory, bare).text == "no GPU") == (smi == core == MISSING)


def remap(text: bytes, status: int = 0) -> Seen:
    return host(smi_remap=said(text, status))


@cases(
    ("seen", "level", "text"),
    [
        (remap(b"GPU-1, 0, 1, Yes, Yes\n"), CRITICAL, "GPU-1: no spare rows left"),
        (remap(b"GPU-1, 0, 1, 1, 0\n"), CRITICAL, "GPU-1: a row waits to be remapped"),
        (remap(b"GPU-1, 0, 1, 0, 1\n"), CRITICAL, "GPU-1: no spare rows left"),
        (remap(b"GPU-1, 0, 1, [N/A], [N/A]\n"), OK, ""),
        (
            remap(b"GPU-1, 0, 0, No, No\nGPU-2, 0, 1, Yes, No\n"),
            CRITICAL,
            "GPU-2: a row waits to be",
        ),
        (remap(b"Row remapping is Not Supported on this GPU\n", 6), OK, "this GPU has none"),
        (remap(b"failed", 9), INCOMPLETE, "could not be read: exit code 9: failed"),
        (replace(remap(b"", 127)), OK, "no GPU"),
    ],
)
def test_remapped_rows(seen: Seen, level: Level, text: str) -> None:
    found = checked(gpu.remapped, seen)
    assert (found.level, found.text[: len(text)], bool(found.text)) == (level, text, bool(text))


def refused(text: bytes, status: int = 9) -> Seen:
    """A host of which every call of nvidia-smi ends so."""
    reading = said(text, status)
    names = ("smi", "smi core", "smi remap", "smi recovery", "smi nvlink",
             "smi nvlink errors", "gpu apps")  # fmt: skip
    one = host()
    return replace(one, readings={**one.readings, **dict.fromkeys(names, reading)})


#: with where it was seen
REFUSED = {
    # https://github.com/marian-nmt/marian/issues/251
    b"Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system "
    b"to recover this GPU\n": ("gpu 0000:03:00.0: lost: the driver cannot reach it", "power cab"),
    # https://github.com/pdbear/syno_nvidia_gpu_driver/issues/22
    b"Unable to determine the device handle for GPU0000:07:00.0: Unknown Error\n":
        ("gpu 0000:07:00.0: lost: the driver cannot reach it", "reboot the host"),
    b"Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error\n":
        ("gpu 0000:5F:00.0: lost: the driver cannot reach it", "reboot the host"),
    b"Unable to determine the device handle for GPU2: Unknown Error\n":
        ("gpu 2: lost: the driver cannot reach it", "reboot the host"),
    b"Unable to determine the device handle for GPU 0000:01:00.0: Not Found\n":
        ("gpu 0000:01:00.0: lost: the driver cannot reach it", "reboot the host"),
    # https://github.com/intel/llvm/issues/17614
    b"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n":
        ("the driver that runs is 570.86.15, its library 550.144", "an update of the driver"),
    # https://github.com/gqqnbig/shine-cluster/issues/30: older ones do not say which
    b"Failed to initialize NVML: Driver/library version mismatch\n":
        ("the driver that runs is 570.86.15, its library another", "an update of the driver"),
    b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    b"the latest NVIDIA driver is installed and running.\n":
        ("the driver is not loaded", "modprobe nvidia"),
    b"Failed to initialize NVML: Unknown Error\n":
        ("the driver cannot be asked: Unknown Error", "in a container: restart it"),
    b"No devices were found\n": ("nvidia-smi finds none of 8 GPUs", "RmInitAdapter"),
}  # fmt: skip


@cases("text", REFUSED)
def test_what_nvidia_smi_says_instead_of_an_answer(text: bytes) -> None:
    means, remedy = REFUSED[text]
    checks = (gpu.users, gpu.listed, gpu.ecc, gpu.remapped, gpu.recovery, nvlink.links,
              nvlink.errors)  # fmt: skip
    for status in (9, 0) if b"No devices" in text or b"handle" in text else (9,):
        for check in checks:
            found = checked(check, refused(text, status))
            assert (found.level, found.text) == (CRITICAL, means), check
            assert remedy in str(found.remedy)


def test_a_host_without_gpus_may_say_that_it_has_none() -> None:
    none = said(b"No devices were found\n")
    bare = host(kernel=kernel(version=None), gpus=call(0), smi=none, smi_core=none)
    assert (checked(gpu.listed, bare).level, checked(gpu.listed, bare).value) == (OK, "0")


def listing(lines: bytes, gpus: int = 8) -> Seen:
    return host(gpus=call(gpus), smi=said(lines), smi_core=MISSING)


@cases(
    ("seen", "level", "text"),
    [
        (smi_host(), OK, ""),
        (listing(gpu_lines(CORE + MORE, {}, 7)), CRITICAL, "nvidia-smi lists 7 of 8 GPUs"),
        (listing(gpu_lines(CORE + MORE, {}, 9)), OK, ""),  # /dev of a container may have fewer
        (listing(gpu_lines(CORE + MORE, {}, 2), gpus=2), OK, ""),  # two of eight, by a batch system
        (smi_host(used="[GPU is lost]"), CRITICAL, "gpu 7 (00000000:07:00.0): GPU is lost"),
        (smi_host(heat="[GPU requires reset]"), CRITICAL,
         "gpu 7 (00000000:07:00.0): GPU requires reset"),
    ],
)  # fmt: skip
def test_every_gpu_is_listed_and_answers(seen: Seen, level: Level, text: str) -> None:
    found = checked(gpu.listed, seen)
    assert (found.level, found.text) == (level, text)


#: https://github.com/NVIDIA/DCGM/issues/263, with the bus ids that are asked as well
ACTIONS = b"0, 00000000:18:00.0, None\n1, 00000000:2A:00.0, %s\n2, 00000000:3A:00.0, None\n"


@cases(
    ("seen", "level", "text"),
    [
        (host(smi_recovery=said(ACTIONS % b"None")), OK, ""),
        (host(smi_recovery=said(ACTIONS % b"[N/A]")), OK, ""),
        (host(smi_recovery=said(ACTIONS % b"Reset")), CRITICAL,
         "the driver asks for it: gpu 1 (00000000:2A:00.0): Reset"),
        (host(smi_recovery=said(ACTIONS % b"Drain and Reset")), CRITICAL,
         "the driver asks for it: gpu 1 (00000000:2A:00.0): Drain and Reset"),
        (host(smi_recovery=said(
            b'Field "gpu_recovery_action" is not a valid field to query.\n', 2)), OK,
         "the driver is too old to say"),
        (host(smi_recovery=said(b"no", 3)), INCOMPLETE, "could not be read: exit code 3: no"),
        (host(smi_recovery=HUNG), CRITICAL,
         "nvidia-smi hangs: a GPU or its driver does not answer"),
        (host(smi_recovery=MISSING), OK, "no GPU"),
    ],
)  # fmt: skip
def test_what_the_driver_asks_for(seen: Seen, level: Level, text: str) -> None:
    found = checked(gpu.recovery, seen)
    assert (found.level, found.text) == (level, text)
