"""DCGM's short test: what 3.x and 4.x print, what failed and what is a setting, and no answer."""

from __future__ import annotations

import json
from typing import Any

from cases import cases

from checks.samples import HUNG, MISSING, host, said
from dispatcher.checks.check import Level, Reading, checked
from dispatcher.checks.hardware.dcgm import dcgm

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL


def three(**statuses: str) -> Reading:
    """DCGM 3: https://github.com/facebookresearch/gcm, test_check_dcgmi.py."""
    names = (
        "Blacklist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks",
        "Persistence Mode", "Environment Variables", "Page Retirement/Row Remap",
        "Graphics Processes", "Inforom",
    )  # fmt: skip
    tests = [
        {"name": name, "results": [{"status": statuses.get(name.split()[0], "Pass")}]}
        for name in names
    ]
    categories = [{"category": "Deployment", "tests": tests}]
    return said(json.dumps({"DCGM GPU Diagnostic": {"test_categories": categories}}).encode(), 205)


PERSISTENCE = {
    "error_category": 8, "error_id": 29, "error_severity": 5,
    "warning": 'Persistence Mode: Persistence mode for GPU 0 is disabled. Enable persistence mode '
    'by running "nvidia-smi -i <gpuId> -pm 1 " as root.',
}  # fmt: skip
ECC = {"error_id": 12, "error_severity": 2, "warning": "Uncorrectable ECC memory\n error detected"}


def four(status: str, *warnings: dict[str, Any]) -> Reading:
    """DCGM 4.2.3: https://github.com/baldwinSPC/glimmer-burnin, testdata/gb10-level1.json."""
    result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": status}
    if warnings:
        result["warnings"] = list(warnings)
    test = {"name": "software", "results": [result], "test_summary": {"status": status}}
    report = {
        "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [test]}]},
        "metadata": {"Driver Version Detected": "580.82.09", "version": "4.2.3"},
    }
    return said(json.dumps(report, indent=2).encode(), 226 if status == "Fail" else 0)


#: dcgmi/Diag.cpp and dcgmi/Command.cpp of https://github.com/NVIDIA/DCGM
ERROR = said(b'{"DCGM Diagnostic": {"runtime_error": "Error: a diag is already running"}}', 217)
NO_ENGINE = said(
    b"Error: unable to establish a connection to the specified host: localhost\n"
    b"Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n", 235,
)  # fmt: skip


@cases(
    ("reading", "level", "text"),
    [
        (three(), OK, ""),
        (three(Persistence="Warn"), WARN, "Persistence Mode"),
        (three(Persistence="Warn", Inforom="Fail"), CRITICAL, "Inforom"),
        (three(Graphics="Skip"), OK, ""),
        (three(Inforom="Perhaps"), INCOMPLETE, "could not be read: dcgmi: status 'perhaps'"),
        (four("Pass"), OK, ""),
        (four("Fail", PERSISTENCE), WARN,
         "software of gpu 0: Persistence Mode: Persistence mode for GPU 0 is disabled."),
        (four("Fail", PERSISTENCE, ECC), CRITICAL, "software of gpu 0: Persistence Mode: "),
        (four("Fail", ECC), CRITICAL,
         "software of gpu 0: Uncorrectable ECC memory error detected"),
        (four("Fail"), CRITICAL, "software of gpu 0"),
        (ERROR, INCOMPLETE, "could not be read: dcgmi: Error: a diag is already running"),
        (NO_ENGINE, WARN, "DCGM is installed, but does not run"),
        (said(b'{"DCGM Diagnostic": {}}'), INCOMPLETE, "could not be read: dcgmi: no test in its"),
        (said(b"Segmentation fault", 139), INCOMPLETE, "could not be read: dcgmi: Segmentation"),
        (said(b'{"DCGM Diag'), INCOMPLETE, "could not be understood: "),
        (said(b""), INCOMPLETE, "could not be read: dcgmi: it said nothing"),
        (HUNG, WARN, "DCGM's test has not ended in time"),
        (MISSING, OK, "DCGM is not installed"),
    ],
)  # fmt: skip
def test_what_it_found(reading: Reading, level: Level, text: str) -> None:
    found = checked(dcgm, host(dcgm=reading))
    assert (found.level, found.text[: len(text)]) == (level, text)
    assert bool(found.text) == bool(text)
