"""What the Tab key does in real shells, with the script that ``dispatch completion`` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typist import Typist

from dispatcher.cli.tools.completion import script
from dispatcher.jobs import registry

#: what is typed before the Tab key -> the words that the shell then has
TYPED = [
    ("dispatch swe", ["sweep"]),
    ("dispatch help comp", ["help", "completion"]),
    ("dispatch --max-rest", ["--max-restarts"]),
    ("dispatch exec --command-t", ["exec", "--command-timeout"]),
    ("dispatch --map-by no", ["--map-by", "node"]),
    ("dispatch --map-by=no", ["--map-by=node"]),
    ("dispatch --stdin al", ["--stdin", "all"]),
    ("dsx -w gpu01,sto", ["-w", "gpu01,store"]),
    # hosts of ssh's files, behind a comma and an equals sign, in a quote
    ("dispatch -H log", ["-H", "login"]),
    ("dispatch exec -w gpu01,sto", ["exec", "-w", "gpu01,store"]),
    ("dispatch exec --hosts=gpu01,sto", ["exec", "--hosts=gpu01,store"]),
    ("dispatch exec -w 'log", ["exec", "-w", "login"]),
    # those of the hostfile that stands in the line
    ("dispatch exec -H hostfile -x spa", ["exec", "-H", "hostfile", "-x", "spare1"]),
    ("dispatch -H hostfile --include n1@spa", ["-H", "hostfile", "--include", "n1@spare1"]),
    # groups
    ("dispatch exec -w @comp", ["exec", "-w", "@compute"]),
    ("dispatch exec -w login,@comp", ["exec", "-w", "login,@compute"]),
    # jobs and profiles
    ("dispatch logs k3", ["logs", "k3f9x2"]),
    ("dispatch stop lat", ["stop", "latest"]),
    ("dispatch sweep 2026", ["sweep", "20260131-142501-k3f9x2"]),
    ("dispatch --profile nig", ["--profile", "night"]),
    # files: of an option, a program, what is copied
    ("dispatch -H hostf", ["-H", "hostfile"]),
    ("dispatch --log-dir fol", ["--log-dir", "folder/"]),
    ("dispatch -n 2 tra", ["-n", "2", "train.py"]),
    ("dispatch exec -w login -- ls tra", ["exec", "-w", "login", "--", "ls", "train.py"]),
    ("dispatch put -w login 'a b", ["put", "-w", "login", "a big file"]),
    ("dispatch exec --sudo tra", ["exec", "--sudo", "train.py"]),
    # a word of another command's, and what nothing follows
    ("dispatch import -- torch", ["import", "--", "torchrun"]),
    ("dispatch explain rank-f", ["explain", "rank-failed"]),
    ("dispatch exec --no-such", ["exec", "--no-such"]),
]
#: how each is started without anybody's own settings, and reads a script
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='ready> '; . ./script"),
    "zsh": (["zsh", "-f", "-i"], "PS1='ready> '; autoload -U compinit; compinit -u -D; . ./script"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with hosts, groups, a job and files; ``dispatch`` is in ``bin``."""
    home = tmp_path_factory.mktemp("home")
    for name in (".ssh", "bin", "groups", "folder", "state"):
        (home / name).mkdir()
    (home / ".ssh" / "known_hosts").write_text("gpu01,gpu02 ssh-ed25519 AAAA\n")
    (home / ".ssh" / "config").write_text("Host login store\n")
    (home / "groups" / "groups.conf").write_text(
        "[Main]\ndefault: own\n[own]\nmap: echo n1\nlist: echo rack1 compute\n"
    )
    (home / "hostfile").write_text("n1 slots=2\nspare1\n")
    (home / "dispatch.toml").write_text("[profile.night.run]\nnp = 2\n")
    for name in ("train.py", "a big file"):
        (home / name).touch()
    for name, word in (("dispatch", ""), ("dsx", "dsx")):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dispatcher {word} "$@"\n')
        program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        registry.enroll(
            "20260131-142501-k3f9x2", program=["train.py"], hosts=[], ranks=1, logs=None,
            detached=True, reach={},
        )  # fmt: skip
    return home


def environment(home: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("DISPATCH_")},
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CLUSTERSHELL_CFGDIR": str(home / "groups"),
        "XDG_STATE_HOME": str(home / "state"),
        "HISTFILE": "/dev/null",
        "INPUTRC": "/dev/null",
    }


@pytest.fixture(scope="module", params=list(STARTS))
def terminal(
    request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Typist]:
    """The shell at its prompt, with our script."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (home / "script").write_text(script(shell))
    argv, setting = STARTS[shell]
    told = [f"{name}={value}" for name, value in environment(home).items()]
    person = Typist(
        ["env", "-i", *told, "sh", "-c", 'cd "$0" && exec "$@"', str(home), *argv], size=(200, 50)
    )
    person.type(f"{setting}; echo loa''ded\n")
    person.until("loaded", 60)
    yield person
    person.close()


@pytest.mark.parametrize(("typed", "words"), TYPED, ids=[typed for typed, _ in TYPED])
def test_the_tab_key(terminal: Typist, typed: str, words: list[str]) -> None:
    """The line as it then is becomes words of printf, so that the shell itself takes it apart."""
    terminal.type(f"{typed}\t")
    terminal.type("\x01printf '<%s>' BEGIN \x05 END; echo; : \n")  # to its begin, and to its end
    shown = terminal.until("<END>", 60).decode()
    found = shown[shown.rindex("<BEGIN>") :].replace("/>", ">")  # zsh takes it off again
    wanted = "".join(f"<{word.rstrip('/')}>" for word in ["BEGIN", typed.split()[0], *words, "END"])
    assert found == wanted


def test_fish(home: Path) -> None:
    """Which says what it would offer without a terminal."""
    if shutil.which("fish") is None:
        pytest.skip("no fish on this machine")
    (home / "script.fish").write_text(script("fish"))
    lines = "".join(f"echo == {number}\ncomplete -C {escaped(typed)}\n"
                    for number, (typed, _) in enumerate(TYPED))  # fmt: skip
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source script.fish\n{lines}"],
        cwd=home, env=environment(home), capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    offered = [part.split("\n", 1)[1] for part in done.stdout.split("== ")[1:]]
    for (typed, words), found in zip(TYPED, offered, strict=True):
        names = [line.partition("\t")[0] for line in found.splitlines()]
        assert names == ([words[-1]] if words[-1] not in typed else []), typed


def escaped(text: str) -> str:
    """``text`` as one word of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
