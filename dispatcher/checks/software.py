"""Python, script, versions: what the ranks would run, and is it the same everywhere; pure."""

from __future__ import annotations

import re

from dispatcher.checks.check import Judge, Seen, Unread, alike, critical, ok
from dispatcher.checks.finding import Finding, Level

#: run by the ranks' Python; reads names of folders only, since importing torch takes seconds
PROBE = """
import os, sys
print("dispatch-version python %d.%d.%d" % sys.version_info[:3])
seen = set()
for folder in sys.path:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        continue
    for name in names:
        stem, end = os.path.splitext(name)
        project, _, version = stem.partition("-")
        project = project.lower()
        if end != ".dist-info" or project in seen:
            continue
        if project in ("torch", "mpi4py", "numpy") or project.startswith("nvidia_nccl"):
            seen.add(project)
            print("dispatch-version %s %s" % (project, version))
"""

_VERSION = re.compile(r"^dispatch-version (\w+) ([\w.+!-]+)$", re.M | re.ASCII)
_DRIVER = re.compile(r"[\w.-]+")


def versions(seen: Seen) -> dict[str, str]:
    """Project -> version, as the ranks' Python sees them. Raises: Unread."""
    found = dict(_VERSION.findall(seen.output("python")))
    if "python" not in found:
        raise Unread("the ranks' Python says no version")
    return {("nccl" if n.startswith("nvidia_nccl") else n): v for n, v in found.items()}


def _python(seen: Seen) -> Finding:
    reading = seen.reading("python")
    remedy = "install it there; for a Python elsewhere: --python, or python= in the hostfile"
    if reading.status in (126, 127):
        return critical(f"the ranks' Python: {reading.why()}", remedy, "none")
    if reading.hung:
        return critical("the ranks' Python does not start", "is its file system there? dmesg -T")
    return ok(versions(seen)["python"])


def _project(name: str) -> Judge:
    def judge(seen: Seen) -> Finding:
        return ok(versions(seen).get(name, ""))

    return alike(judge, Level.WARN, f"install the same {name} everywhere")


def _driver(seen: Seen) -> Finding:
    text = seen.files("kernel").get("/sys/module/nvidia/version", "").strip()
    if text and not _DRIVER.fullmatch(text):
        raise Unread("/sys/module/nvidia/version: no version")
    return ok(text)


def _script(seen: Seen) -> Finding:
    reading, name = seen.reading("script"), seen.asked.script
    if reading.hung:
        return critical(f"{name}: its file system does not answer", "look at its mount: dmesg -T")
    value = reading.value()
    if value is None:
        why = re.sub(r"^\[Errno \d+\] ([^:]*).*", r"\1", reading.text.strip(), flags=re.S)
        if not why:
            raise Unread(reading.why())
        return critical(f"{name}: {why.lower()}", "copy it there, as by dispatch put", "none")
    n_bytes, digest = value
    return ok(f"{digest[:12]} ({n_bytes} bytes)")


python = alike(_python, Level.WARN, "install the same Python everywhere")
torch, nccl = _project("torch"), _project("nccl")
driver = alike(_driver, Level.CRITICAL, "install the same driver everywhere, and reboot")
script = alike(_script, Level.CRITICAL, "copy the same file to all hosts, as by dispatch put")
