#!/usr/bin/env python3
"""Write lock.txt anew, from pyproject.toml and constraints.txt; needs uv and the package index.

One set of versions for every Python and machine, with the SHA-256 of each file. A comment before
each entry says who needs it: ``run`` (dispatch from this checkout, and torch), ``dev`` (the tests),
``nccl`` (that extra), ``cpu`` (torch for machines without a GPU) or ``cuda`` (torch, and the
packages that it loads). scripts/setup installs the entries that it needs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK, CONSTRAINTS = HERE / "lock.txt", HERE / "constraints.txt"
#: a word of scripts/setup -> the extras of pyproject.toml
FOR = {"run": ("torch",), "dev": ("torch", "dev"), "nccl": ("nccl",)}
CUDA = re.compile(r"nvidia-|cuda-|triton==|torch==")
#: what builds a checkout that is installed as it stands
BUILDS = "setuptools"
OLDEST = "3.10"
HEAD = """\
# Made by scripts/packages/lock.py; to choose another version, change constraints.txt.
# What scripts/setup installs, with the SHA-256 of every file that it may be.
"""


def entries(text: str) -> dict[str, str]:
    """Pins with hashes: first line of each -> the entry, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = re.findall(r"^\S.*(?:\n +.*)*", lines, re.M)
    return {entry.partition("\n")[0].removesuffix(" \\"): entry for entry in found}


def name_of(first: str) -> str:
    return re.split(r"[=\[]", first)[0]


def compiled(extras: Iterable[str], *among: Path) -> dict[str, str]:
    """What pyproject.toml asks for with ``extras``, for every Python. among: pins to keep to."""
    words = [word for extra in extras for word in ("--extra", extra)]
    limits = [word for path in (CONSTRAINTS, *among) for word in ("-c", str(path))]
    argv = ["uv", "pip", "compile", str(HERE.parents[1] / "pyproject.toml"), "--quiet",
            "--universal", "--generate-hashes", "--no-annotate", "--no-header",
            "--python-version", OLDEST, *words, *limits]  # fmt: skip
    return entries(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)


def without_gpus(pin: str) -> str:
    """The entry of torch's build for machines without a GPU, where pip takes one here.

    Only some indexes offer it. Otherwise the entry of the present lock stays.
    """
    quiet = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-")
    argv = [sys.executable, "-m", "pip", "install", *quiet, pin]
    report = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    (there,) = json.loads(report)["install"]
    version = there["metadata"]["version"]
    if "+" in version:
        known = there["download_info"]["archive_info"]["hashes"]["sha256"]
        return f"torch=={version} \\\n    --hash=sha256:{known}"
    kept = entries(LOCK.read_text())
    return next((entry for first, entry in kept.items() if first.startswith(f"{pin}+")), "")


def main() -> None:
    everything = compiled({extra for extras in FOR.values() for extra in extras})
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write("\n".join(everything))
        pins.flush()
        parts = {
            word: {name_of(first) for first in compiled(extras, Path(pins.name))}
            for word, extras in FOR.items()
        }
    parts["run"].add(BUILDS)
    blocks = []
    for first, entry in everything.items():
        words = [word for word in FOR if name_of(first) in parts[word]]
        if CUDA.match(first):
            words = ["cuda", *(["nccl"] if "nccl" in first else [])]
        if first.startswith("torch=="):
            blocks.append(f"# cpu\n{without_gpus(first.partition(';')[0].strip())}\n")
        blocks.append(f"# {' '.join(words)}\n{entry}\n")
    LOCK.write_text("\n".join([HEAD, *blocks]))


if __name__ == "__main__":
    main()
