"""NVML through ctypes, with a library of our own in its place: two GPUs, one of them lost."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NVML = r"""
#include <string.h>
typedef unsigned int u;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(u *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u i, void **gpu) { *gpu = (void *)(unsigned long)(i + 1); return i == 1 ? 15 : 0; }
int nvmlDeviceGetUtilizationRates(void *gpu, u rates[2]) { rates[0] = 100; rates[1] = 3; return 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long m[3]) { m[0] = 80; m[1] = 50; m[2] = 30; return 0; }
int nvmlDeviceGetPowerUsage(void *gpu, u *mw) { *mw = 125500; return 0; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, u *degrees) { *degrees = 41; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, u *mw) { *mw = 700000; return gpu == (void *)1 ? 0 : 3; }
int nvmlDeviceGetUUID(void *gpu, char *name, u size) {
    strncpy(name, gpu == (void *)1 ? "GPU-8f6c1a2e" : "GPU-9a7d0b3f", size); return 0; }
struct event { void *gpu; unsigned long long kind, data; u gi, ci; };
static unsigned long long registered; static int waited;
int nvmlEventSetCreate(void **set) { *set = (void *)7; return 0; }
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long kinds, void *set) {
    registered |= (unsigned long long)gpu << (8 * (kinds == 8 && set == (void *)7 ? 0 : 1)); return 0; }
int nvmlEventSetWait_v2(void *set, struct event *e, u ms) {
    if (!registered || waited++) return 10;
    e->gpu = (void *)3; e->kind = 8; e->data = registered == 3 ? 79 : 0; return ms; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *bits) { *bits = 0x40; return 0; }
"""  # noqa: E501
READ = "from dispatcher.remote.probe import usage; read = usage.library(); read(); print(read())"


def test_what_nvml_says(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True, timeout=60
    )
    done = subprocess.run(
        [sys.executable, "-c", READ], env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ast.literal_eval(done.stdout) == [
        [0, 100.0, 30, 80, 125.5, 41.0, 700.0, 3.0, "GPU-8f6c1a2e", 0x40, []],
        [1, *[None] * 9, []],
        [2, 100.0, 30, 80, 125.5, 41.0, None, 3.0, "GPU-9a7d0b3f", 0x40, [79]],
    ]
