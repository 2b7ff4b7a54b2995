"""What nvidia-smi says of GPUs: where each limit lies, and which of several troubles is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import cases

from checks.samples import HUNG, MISSING, host, kernel, said
from checks.test_full import CORE, MORE, gpu_lines, smi_host
from dispatcher.checks import gpu
from dispatcher.checks.check import CheckHost, Level, Reading, Seen, Unread, checked

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
    bare = host(smi=smi, smi_core=core, kernel=kernel(version=None))
    assert (checked(gpu.inventory, bare).text == "no GPU") == (smi == core == MISSING)


@cases(
    ("text", "rows"),
    [
        ("", []), ("\n1, 2\n", [["1", "2"]]), ("No running processes found\n", []),
        ("No devices were found\n", []), ("1 , \" a, b \"\n", [["1", "a, b"]]),
        ("3, No running\n", [["3", "No running"]]),
    ],
)  # fmt: skip
def test_rows(text: str, rows: list[list[str]]) -> None:
    assert gpu.rows(text, 2) == rows


@cases(
    ("text", "value"),
    [("12", 12.0), ("0x10", 16.0), ("1.5", 1.5), ("[N/A]", None), ("N/A", None), ("", None),
     ("[Not Supported]", None), ("[Deprecated]", None)],
)  # fmt: skip
def test_figures(text: str, value: float | None) -> None:
    assert gpu.number(text) == value


@cases("text", ["[Unknown Error]", "ERR!", "0xzz"])
def test_what_is_no_figure(text: str) -> None:
    with pytest.raises(Unread, match="nvidia-smi says"):
        gpu.number(text)


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


LINKS = (
    b"GPU 0: H100 (UUID: a)\n\t Link 0: 26.5 GB/s\n\t Link 1: 26.5 GB/s\n"
    b"GPU 1: H100 (UUID: b)\n\t Link 0: 26.5 GB/s\n\t Link 1: %s\n"
)


@cases(
    ("seen", "level", "text", "value"),
    [
        (host(smi_nvlink=said(LINKS % b"26.5 GB/s")), OK, "", "4"),
        (host(smi_nvlink=said(LINKS % b"<inactive>")), CRITICAL, "inactive: gpu 1 link 1", ""),
        (host(smi_nvlink=said((LINKS % b"<inactive>").replace(b"26.5 GB/s", b"<inactive>"))),
         OK, "", "0"),  # none is in use
        (host(smi_nvlink=said(b"GPU\n")), INCOMPLETE,
         "could not be read: nvidia-smi nvlink listed no GPU", ""),
        (host(smi_nvlink=said(b"no", 2)), INCOMPLETE, "could not be read: exit code 2: no", ""),
    ],
)  # fmt: skip
def test_nvlinks(seen: Seen, level: Level, text: str, value: str) -> None:
    found = checked(gpu.nvlink, seen)
    assert (found.level, found.text, found.value) == (level, text, value)
