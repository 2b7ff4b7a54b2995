"""The distribution: built from a copy of the sources, checked, tried in an empty environment.

Called by scripts/build. ``build`` makes the archive of the sources, and the wheel out of that
archive. The manual pages and the completions for shells are put beside the sources first.
``environment`` installs the wheel where nothing else is, and ``try_it`` runs two ranks there.
With ``--offline`` the package index is not asked: the environment then sees the packages of .venv.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import reference  # noqa: E402

from dispatcher.cli.tools.completion import script  # noqa: E402

PRODUCT = "dispatcher"
SOURCES = (PRODUCT, "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
#: seconds for any one program that is started here; an index may be far
LIMIT = 300
TWO_RANKS = ("-H", "localhost:2", "--no-python", "sh", "-c", "echo up as $RANK of $WORLD_SIZE")


class Wrong(Exception):
    """Something is not as it must be; the text says what."""


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output of a program. Raises: Wrong, with all it said, if it fails."""
    # PYTHONPATH would show an environment more than it has
    known = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        argv, cwd=cwd, env={**known, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise Wrong(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{said}")
    return done.stdout


def shared() -> dict[str, str]:
    """Manual pages and completions: place below an environment -> text."""
    return {
        "share/bash-completion/completions/dispatch": script("bash"),
        "share/bash-completion/completions/dsx": script("bash"),
        "share/fish/vendor_completions.d/dispatch.fish": script("fish"),
        "share/fish/vendor_completions.d/dsx.fish": script("fish"),
        "share/zsh/site-functions/_dispatch": script("zsh"),
        **{f"share/man/man1/{name}": text for name, text in reference.manuals().items()},
    }


def build(out: Path, *, offline: bool = False) -> tuple[Path, Path]:
    """The wheel and the archive of the sources, in ``out``. Raises: Wrong."""
    with tempfile.TemporaryDirectory(prefix="dispatch-build-") as folder:
        place = Path(folder)
        for source in SOURCES:
            if (ROOT / source).is_dir():
                left_out = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, place / source, ignore=left_out)
            else:
                shutil.copy2(ROOT / source, place)
        for name, text in shared().items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        made = place / "made"
        isolation = ["--no-isolation"] if offline else []
        run(sys.executable, "-m", "build", *isolation, "--outdir", made, place)
        (wheel,), (archive,) = made.glob("*.whl"), made.glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, archive)
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(wheel, out)), Path(shutil.copy2(archive, out))


def check_files(wheel: Path) -> None:
    """Raises: Wrong, if the wheel lacks a file of the checkout, or has another."""
    there = {path for path in (ROOT / PRODUCT).rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(ROOT)) for path in there if path.parent.name != "__pycache__"}
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    found = {re.sub(r"^[^/]+\.data/data/", "", name) for name in names}
    if odd := found ^ (wanted | set(shared())):
        raise Wrong(f"{wheel.name}: other files than the checkout has: {', '.join(sorted(odd))}")


def lowest(wheel: Path) -> list[str]:
    """Its requirements, each at the oldest release that it allows: ``click==8.1``."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(file.read(name).decode()).get_all("Requires-Dist", [])
    known = [one for one in map(Requirement, lines) if "extra" not in str(one.marker)]
    return [
        f"{one.name}=={spec.version}"
        for one in known
        for spec in one.specifier
        if spec.operator == ">="
    ]


def environment(
    folder: Path,
    wheel: Path,
    *,
    python: str = sys.executable,
    constraints: Sequence[str] = (),
    offline: bool = False,
) -> Path:
    """Make an environment with ``wheel`` and what that asks for; its ``bin``. Raises: Wrong."""
    run(python, "-m", "venv", "--without-pip", folder)
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(constraints))
    if offline:
        (site,) = folder.glob("lib/python3*/site-packages")
        packages = (path for path in sys.path if path.endswith("site-packages"))
        (site / "beside.pth").write_text("\n".join(packages))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python",
           folder / "bin" / "python")  # fmt: skip
    # of .venv's packages an old dispatcher counts as installed, and is not to be taken away
    ours = ["--no-index", "--no-deps", "--ignore-installed"] if offline else []
    run(*pip, "install", "-q", "-c", limits, *ours, wheel)
    if not offline:
        run(*pip, "check")
    return folder / "bin"


def try_it(programs: Path) -> str:
    """The version of Python that ran two ranks. Raises: Wrong, if a file has a warning for it."""
    home = programs.parent / "home"
    home.mkdir()
    own = {"HOME": str(home), "XDG_STATE_HOME": str(home), "DISPATCH_CONFIG": "",
           "VIRTUAL_ENV": str(programs.parent)}  # fmt: skip
    (product,) = programs.parent.glob(f"lib/python3*/site-packages/{PRODUCT}")
    run(programs / "python", "-W", "error", "-m", "compileall", "-qf", product, cwd=home, env=own)
    said = run(programs / "dispatch", *TWO_RANKS, cwd=home, env=own)
    if sorted(said.splitlines()) != [f"[{rank}] up as {rank} of 2" for rank in range(2)]:
        raise Wrong(f"dispatch {' '.join(TWO_RANKS)}: said {said!r}")
    return run(programs / "python", "--version").strip()


def pythons() -> list[str]:
    """A Python of each version that the project is for, this one's left out; the oldest first."""
    versions = re.findall(r'"Programming .* :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    found = []
    for version in versions:
        kept = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}*/bin/python3"))
        path = next(iter(sorted(kept)), None) or shutil.which(f"python{version}")
        if path and version != f"{sys.version_info[0]}.{sys.version_info[1]}":
            found.append(path)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/build", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder [default: dist]")
    parser.add_argument("--python", action="append", default=[], help="try it with this one too")
    parser.add_argument("--every-python", action="store_true", help="with all that are found")
    parser.add_argument("--lowest", action="store_true", help="and with the oldest dependencies")
    parser.add_argument("--offline", action="store_true", help="without the package index")
    options = parser.parse_args()
    others = [*options.python, *(pythons() if options.every_python else [])]
    if options.offline and (others or options.lowest):
        parser.error("--offline has the packages of .venv, and those for its Python alone")
    try:
        wheel, archive = build(options.out, offline=options.offline)
        check_files(wheel)
        print(f"{archive}\n{wheel}", flush=True)
        for python in [sys.executable, *others]:
            for limits in [[], *([lowest(wheel)] if options.lowest else [])]:
                with tempfile.TemporaryDirectory(prefix="dispatch-try-") as name:
                    programs = environment(
                        Path(name), wheel, python=python, constraints=limits,
                        offline=options.offline,
                    )  # fmt: skip
                    print(f"runs on {try_it(programs)}", *limits, flush=True)
    except Wrong as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
