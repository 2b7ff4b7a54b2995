"""The distribution: built from a copy of the sources, checked, tried in an empty environment.

Called by scripts/build. The archive of the sources is made first and the wheel out of that, so an
archive that lacks something is no archive. With both come the manual pages and what shells load to
complete words, as scripts/reference.py and ``dispatch completion`` make them. "Tried" is: an
environment of its own, outside the checkout, in which pip finds nothing but the wheel and what the
wheel asks for; there every file of ours is compiled with warnings as errors, and ``dispatch`` runs
two ranks on this machine.

Without the index (``--offline``) the wheel is built with the setuptools of this environment, and
what it asks for is copied from here, file by file as the wheel's own metadata names it: what the
wheel forgets to ask for is not there either.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import reference
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = "dispatcher"
#: what the distribution is made of
SOURCES = (PRODUCT, "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
#: seconds for any one program that is started here; an index may be far
LIMIT = 300
TWO_RANKS = ("-H", "localhost:2", "--no-python", "sh", "-c", "echo up as $RANK of $WORLD_SIZE")
#: of what lies beside the product: what an installed dispatch prints to the letter
BESIDE = {
    "share/bash-completion/completions/dispatch": ("completion", "bash"),
    "share/fish/vendor_completions.d/dispatch.fish": ("completion", "fish"),
    "share/zsh/site-functions/_dispatch": ("completion", "zsh"),
}


class Wrong(Exception):
    """Something is not as it must be; the text says what."""


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output of a program. Raises: Wrong, with all it said, if it fails."""
    done = subprocess.run(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise Wrong(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{said}")
    return done.stdout


def without_pythons() -> dict[str, str]:
    """Our variables without Python's own: PYTHONPATH would show an environment more than it has."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


def product_files(root: Path) -> set[str]:
    """Every file of the product below ``root``, as paths from there."""
    return {
        path.relative_to(root).as_posix()
        for path in (root / PRODUCT).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def shared() -> dict[str, str]:
    """Manual pages and completions: place below an environment -> text."""
    from dispatcher.cli.tools.completion import script

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
                shutil.copytree(
                    ROOT / source, place / source, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy2(ROOT / source, place)
        for name, text in shared().items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        made = place / "made"
        isolation = ["--no-isolation"] if offline else []
        run(sys.executable, "-m", "build", *isolation, "--outdir", made, place)
        (wheel,), (archive,) = made.glob("*.whl"), made.glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(wheel, out)), Path(shutil.copy2(archive, out))


def metadata(wheel: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode())


def check_files(wheel: Path, archive: Path) -> None:
    """Raises: Wrong, if a file is missing in one of them, or too many."""
    wanted = product_files(ROOT)
    with zipfile.ZipFile(wheel) as file:
        packed = set(file.namelist())
    about = {name for name in packed if name.partition("/")[0].endswith(".dist-info")}
    beside = set(shared())
    placed = {re.sub(r"^[^/]+\.data/data/", "", name) for name in packed - about}
    differ("wheel", placed, wanted | beside)
    for end in ("METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"):
        if not any(name.endswith(f".dist-info/{end}") for name in about):
            raise Wrong(f"{wheel.name}: has no {end}")
    with tarfile.open(archive) as tar:
        names = [member.name.partition("/")[2] for member in tar if member.isfile()]
    ours = {name for name in names if not re.match(r"PKG-INFO$|setup\.cfg$|[^/]+\.egg-info/", name)}
    differ("archive", ours, wanted | beside | set(SOURCES[1:]))


def differ(what: str, found: set[str], wanted: set[str]) -> None:
    """Raises: Wrong, if the two are not the same."""
    lines = [
        *(f"  missing: {name}" for name in sorted(wanted - found)),
        *(f"  too many: {name}" for name in sorted(found - wanted)),
    ]
    if lines:
        raise Wrong("\n".join([f"{what}: other files than those of the checkout", *lines]))


# -- an empty environment ----------------------------------------------------------------------


def requirements(of: Message | Distribution) -> Iterator[Requirement]:
    """What it asks for on this Python, less its extras."""
    lines = of.requires or [] if isinstance(of, Distribution) else of.get_all("Requires-Dist", [])
    for line in lines:
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one


def closure(of: Message) -> dict[str, Distribution]:
    """The distributions of this environment that it needs: those it names, what these name, ..."""
    found: dict[str, Distribution] = {}
    waiting = list(requirements(of))
    while waiting:
        one = waiting.pop()
        if one.name.lower() not in found:
            found[one.name.lower()] = there = distribution(one.name)
            waiting += requirements(there)
    return found


def lowest(of: Message) -> list[str]:
    """Its own requirements, each at the oldest release that it allows: ``click==8.1``."""
    oldest = {}
    for line in of.get_all("Requires-Dist", []):
        one = Requirement(line)
        if one.marker is None or "extra" not in str(one.marker):
            (bound,) = (spec.version for spec in one.specifier if spec.operator == ">=")
            oldest[one.name] = bound
    return [f"{name}=={version}" for name, version in oldest.items()]


class Environment:
    """One in ``folder``, made by ``python``, with ``wheel`` and what that asks for.

    constraints: as pip's, a line each. offline: what the wheel asks for is copied from here.
    """

    def __init__(
        self,
        folder: Path,
        wheel: Path,
        *,
        python: str = sys.executable,
        constraints: Sequence[str] = (),
        offline: bool = False,
    ) -> None:
        self.folder, self.wheel = folder, wheel
        run(python, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin" / "python"
        self.dispatch = folder / "bin" / "dispatch"
        (self.site,) = folder.glob("lib/python3*/site-packages")
        if offline:
            for one in closure(metadata(wheel)).values():
                self._copy(one)
        limits = folder / "constraints.txt"
        limits.write_text("".join(f"{line}\n" for line in constraints))
        self.pip("install", "-q", "-c", limits, *(["--no-index"] if offline else []), wheel)
        self.pip("check")

    def _copy(self, one: Distribution) -> None:
        for file in one.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (self.site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), self.site / file)

    def pip(self, *words: str | Path) -> str:
        """pip of this environment's, at work in that one."""
        quiet = ("--disable-pip-version-check", "--python", self.python)
        return run(sys.executable, "-m", "pip", *quiet, *words, env=without_pythons())

    def run(self, *words: str | Path) -> str:
        """What a program of it says, started in a folder where nothing is."""
        env = without_pythons()
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        env |= {"HOME": str(home), "XDG_STATE_HOME": str(home), "DISPATCH_CONFIG": ""}
        env["VIRTUAL_ENV"] = str(self.folder)
        return run(*words, cwd=home, env=env)

    def sizes(self) -> dict[str, int]:
        """Bytes on disk of each distribution in it, compiled files included; the largest first."""
        found = {}
        for one in distributions(path=[str(self.site)]):
            paths = [self.site / file for file in one.files or ()]
            there = [path for path in paths if path.is_file()]
            found[one.metadata["Name"]] = sum(path.stat().st_size for path in there)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def try_it(self) -> None:
        """Raises: Wrong, if a file has a warning for this Python, or dispatch does not run."""
        self.run(self.python, "-W", "error", "-m", "compileall", "-q", "-f", self.site / PRODUCT)
        version = metadata(self.wheel)["Version"]
        for words, wanted in (
            (("--version",), [f"dispatch, version {version}"]),
            (TWO_RANKS, [f"[{rank}] up as {rank} of 2" for rank in range(2)]),
        ):
            said = self.run(self.dispatch, *words)
            if sorted(said.splitlines()) != wanted:
                raise Wrong(f"dispatch {' '.join(words)}: said {said!r}")
        for name, printed in BESIDE.items():
            said, kept = self.run(self.dispatch, *printed), (self.folder / name).read_text()
            if said.splitlines()[1:] != kept.splitlines()[1:]:  # a page begins with its day
                raise Wrong(f"{name}: is not what dispatch {' '.join(printed)} prints")


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


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


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
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, archive)
        check_files(wheel, archive)
        for path in (wheel, archive):
            print(f"{path}  {megabytes(path.stat().st_size)}", flush=True)
        oldest = lowest(metadata(wheel)) if options.lowest else []
        for python in [sys.executable, *others]:
            for limits in [[], *([oldest] if oldest else [])]:
                with tempfile.TemporaryDirectory(prefix="dispatch-try-") as name:
                    tried = Environment(
                        Path(name), wheel, python=python, constraints=limits,
                        offline=options.offline,
                    )  # fmt: skip
                    tried.try_it()
                    print(summary(tried, limits), flush=True)
    except Wrong as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0


def summary(tried: Environment, limits: Sequence[str]) -> str:
    """One line: which Python, what it takes on disk, and the largest of that."""
    version = tried.run(tried.python, "-c", "import platform; print(platform.python_version())")
    sizes = tried.sizes()
    parts = ", ".join(f"{name} {megabytes(size)}" for name, size in list(sizes.items())[:5])
    oldest = f" with {' '.join(limits)}" if limits else ""
    total = megabytes(sum(sizes.values()))
    return f"runs on Python {version.strip()}{oldest}: {total}: {parts}, ..."


if __name__ == "__main__":
    sys.exit(main())
