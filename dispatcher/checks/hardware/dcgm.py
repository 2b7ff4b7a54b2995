"""The result of DCGM's short test, where DCGM is installed: ``dcgmi diag -r 1 -j``; pure.

The JSON has two forms, before and from DCGM 4.0. The exit status is one of DCGM's own (226: the
test found something), so only the JSON counts. A failure that DCGM calls a setting (persistence
mode), or only to be watched, is a warning (``DCGM_ERROR_CONFIG``, ``DCGM_ERROR_MONITOR``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dispatcher.checks.check import NOT_FOUND, Finding, Level, Seen, Unread, a_few, ok, warn

COMMAND = ("dcgmi", "diag", "-r", "1", "-j")
NAMES = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
#: statuses of a result; skipped tests give no finding
GRAVE = {"fail": Level.CRITICAL, "warn": Level.WARN, "pass": Level.OK, "skip": Level.OK}

#: severities of warnings that leave the GPU usable: to be watched, to be set otherwise
MILD = {1, 5}


def dcgm(seen: Seen) -> Finding:
    """The most severe results of DCGM's short test."""
    reading = seen.reading("dcgm")
    if reading.status == NOT_FOUND:
        return ok(text="DCGM is not installed")
    if "unable to establish a connection" in reading.text.lower():
        return warn("DCGM is installed, but does not run", "systemctl start nvidia-dcgm")
    if reading.hung:  # it may take a minute with many GPUs, and others look at these as well
        return warn("DCGM's test has not ended in time", "--check-timeout 300")
    tests = list(_tests(_report(reading.text)))
    if not tests:
        raise Unread(f"dcgmi: no test in its report; {reading.why()}")
    worst = max(level for level, _ in tests)
    texts = list(dict.fromkeys(text for level, text in tests if level == worst))
    remedy = "dcgmi diag -r 3 tests more, and takes the GPUs for half an hour"
    if worst == Level.CRITICAL:
        return Finding(Level.CRITICAL, a_few(texts, between="; "), remedy=remedy)
    return warn(a_few(texts, between="; "), "dcgmi diag -r 1 -v") if worst else ok(str(len(tests)))


def _report(text: str) -> Any:
    start = text.find("{")
    if start < 0:
        raise Unread(f"dcgmi: {text.strip()[:100] or 'it said nothing'}")
    found = json.JSONDecoder().raw_decode(text, start)[0]
    report: Any = next((found[name] for name in NAMES if name in found), {})
    if report.get("runtime_error"):
        raise Unread(f"dcgmi: {str(report['runtime_error'])[:200]}")
    return report


def _tests(report: Any) -> Iterator[tuple[Level, str]]:
    for category in report.get("test_categories", []):
        for test in category.get("tests", []):
            for result in test.get("results") or [test.get("test_summary", {})]:
                status = str(result.get("status", "")).lower()
                if status not in GRAVE:
                    raise Unread(f"dcgmi: status {status[:40]!r}")
                said = result.get("warnings", [])
                said = [one if isinstance(one, dict) else {"warning": one} for one in _list(said)]
                mild = bool(said) and all(one.get("error_severity") in MILD for one in said)
                level = min(GRAVE[status], Level.WARN) if mild else GRAVE[status]
                yield level, str(test.get("name", "?"))[:60] + _why(result, said)


def _list(said: Any) -> list[Any]:
    return said if isinstance(said, list) else [said]


def _why(result: Any, said: list[dict[str, Any]]) -> str:
    gpu = result.get("gpu_id", result.get("entity_id"))
    words = " ".join(" ".join(str(one.get("warning", "")) for one in said).split())[:160]
    return ("" if gpu is None else f" of gpu {gpu}") + (f": {words}" if words else "")
