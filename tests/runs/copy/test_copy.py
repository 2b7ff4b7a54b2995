"""``dispatch put`` and ``dispatch get``, on this machine and over real sshd."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devices import make_device
from rig import Cluster

DISPATCH = [sys.executable, "-m", "dispatcher"]
#: the same, for hosts whose PATH has no Python: the one that has a fixed place is not looked for
WITHOUT = """
from dispatcher.bootstrap import payload
payload._COPY = payload._COPY.replace("/usr/bin/python3", "")
from dispatcher.cli import console
console()
"""


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    without = options.get("env", {}).get("PATH", "").endswith("/tools")
    program = [sys.executable, "-c", WITHOUT] if without else DISPATCH
    return subprocess.run(
        [*program, *words], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def put(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run("put", "-w", "localhost", *words, **options)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with what trees have."""
    top = tmp_path / "tree"
    (top / "sub dir").mkdir(parents=True)
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o750)
    (top / "sub dir" / "it's\nodd").write_bytes(bytes(range(256)))
    (top / ".hidden").write_text("")
    (top / "link").symlink_to("run.sh")
    (top / ("long" * 40)).write_text("long")
    os.utime(top / "run.sh", (1_000_000, 1_000_000))
    return top


def only_tools(tmp_path: Path) -> str:
    """A PATH without Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cat", "chmod", "cp", "id", "mkdir", "mv", "rm", "sleep", "tar", "touch"):
        (tools / name).symlink_to(shutil.which(name) or "")
    return str(tools)


def content(top: Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes() if path.is_file() else "folder", path.stat().st_mode)
        for path in top.rglob("*")
    }


def test_a_tree_there_and_back(tree: Path, tmp_path: Path) -> None:
    done = put(str(tree), f"{tmp_path}/there/")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"localhost: 4 files sent, 0 equal; 270 B in [\d.]+ s\n", done.stderr)
    assert content(tmp_path / "there" / "tree") == content(tree)
    assert (tmp_path / "there" / "tree" / "run.sh").stat().st_mtime == 1_000_000
    assert os.listdir(tmp_path / "there") == ["tree"]
    done = run("get", "-w", "localhost", f"{tmp_path}/there/tree", f"{tmp_path}/back")
    assert done.returncode == 0
    assert "localhost: 4 files fetched, 0 equal; 270 B in" in done.stderr
    assert content(tmp_path / "back" / "localhost" / "tree") == content(tree)
    assert os.listdir(tmp_path / "back") == ["localhost"]


def test_names_of_the_destination(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    (tmp_path / "there").mkdir()
    assert put("one", f"{tmp_path}/new", cwd=tmp_path).returncode == 0
    assert put("one", f"{tmp_path}/there", cwd=tmp_path).returncode == 0
    assert put("one", "two", f"{tmp_path}/made/for/{{host}}", cwd=tmp_path).returncode == 0
    assert (tmp_path / "new").read_text() == (tmp_path / "there" / "one").read_text() == "1"
    assert (tmp_path / "made" / "for" / "localhost" / "two").read_text() == "2"


def test_merging_and_replacing(tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    put(str(tree), f"{there}/")
    (there / "tree" / "mine").write_text("kept")
    (there / "tree" / "run.sh").write_text("changed")
    (there / "tree" / ".hidden").unlink()
    (there / "tree" / ".hidden").symlink_to(tmp_path / "victim")
    assert put(str(tree), f"{there}/").returncode == 0
    (there / "tree" / "mine").unlink()
    assert content(there / "tree") == content(tree)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("mode", [None, "640"])
def test_a_tar_keeps_owner_and_mode_of_a_file(tmp_path: Path, mode: str | None) -> None:
    env = {**os.environ, "PATH": only_tools(tmp_path)}
    file, there = tmp_path / "key", tmp_path / "there" / "key"
    there.parent.mkdir()
    for path, text in ((file, "new"), (there, "older")):
        path.write_text(text)
    os.utime(file, (7, 7))
    there.chmod(0o600)
    owner = 4711 if os.geteuid() == 0 else os.geteuid()
    os.chown(there, owner, -1)
    assert (
        put(*([f"--mode={mode}"] if mode else []), str(file), f"{there}", env=env).returncode == 0
    )
    about = there.stat()
    assert (there.read_text(), about.st_mtime, os.listdir(there.parent)) == ("new", 7, ["key"])
    if mode is None:
        assert (about.st_uid, about.st_mode & 0o777) == (owner, 0o600)
    else:
        assert (about.st_uid, about.st_mode & 0o777) == (os.geteuid(), 0o640)


def test_a_tar_replaces_a_link_where_a_folder_comes(tree: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": only_tools(tmp_path)}
    (tmp_path / "there" / "tree").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "there" / "tree" / "sub dir").symlink_to(tmp_path / "other")
    assert put(str(tree), f"{tmp_path}/there/", env=env).returncode == 0
    assert content(tmp_path / "there" / "tree") == content(tree)
    assert os.listdir(tmp_path / "other") == []


def test_failures_leave_nothing_half_done(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "there" / "run.sh").mkdir(parents=True)
    done = put(str(tree / "run.sh"), f"{tmp_path}/there/")
    assert done.returncode == 1
    assert "is a directory" in done.stderr
    assert os.listdir(tmp_path / "there") == ["run.sh"]
    missing = run("get", "-w", "localhost", "/no/such", str(tmp_path / "back"))
    assert missing.returncode == 1
    assert os.listdir(tmp_path / "back") == []


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 5000)
    done = run("get", "--max-size", "4K", "-w", "localhost", f"{tmp_path}/big", f"{tmp_path}/in")
    assert done.returncode == 1
    assert "more than 4 KiB (--max-size)" in done.stderr
    assert not (tmp_path / "in" / "localhost" / "big").exists()


def test_what_is_equal_is_not_sent_again(tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there" / "tree"
    assert "4 files sent, 0 equal" in put(str(tree), f"{tmp_path}/there/").stderr
    inode = (there / "run.sh").stat().st_ino
    assert "0 files sent, 4 equal" in put(str(tree), f"{tmp_path}/there/").stderr
    (tree / ".hidden").write_text("more")
    (tree / "run.sh").chmod(0o700)
    (tree / ".hidden").chmod(0o700)
    (there / ".hidden").chmod(0o640)
    assert "1 file sent, 3 equal" in put(str(tree), f"{tmp_path}/there/").stderr
    assert (there / "run.sh").stat().st_ino == inode
    modes = [(there / name).stat().st_mode & 0o777 for name in ("run.sh", ".hidden")]
    assert modes == [0o750, 0o750]  # their own, and to be executed where ours is
    assert "0 files sent, 4 equal" in put("--mode=604", str(tree), f"{tmp_path}/there/").stderr
    modes = [(there / name).stat().st_mode & 0o777 for name in ("run.sh", ".hidden")]
    assert modes == [0o604, 0o604]


def test_checksum_sees_what_size_and_time_do_not(tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there" / "tree"
    put(str(tree), f"{tmp_path}/there/")
    (there / "run.sh").write_text("#!/bin/SH\n")
    os.utime(there / "run.sh", (1_000_000, 1_000_000))
    os.utime(there / ".hidden", (7, 7))
    assert "0 files sent, 4 equal" in put(str(tree), f"{tmp_path}/there/").stderr
    assert (there / ".hidden").stat().st_mtime == (tree / ".hidden").stat().st_mtime
    assert (there / "run.sh").read_text() == "#!/bin/SH\n"
    assert "1 file sent, 3 equal" in put("--checksum", str(tree), f"{tmp_path}/there/").stderr
    assert content(there) == content(tree)


def test_a_host_without_python_takes_a_tar(tree: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": only_tools(tmp_path)}
    done = put(str(tree), f"{tmp_path}/there/", env=env)
    assert done.returncode == 0, done.stderr
    assert "localhost: all sent, by tar; 270 B in" in done.stderr
    assert content(tmp_path / "there" / "tree") == content(tree)


def test_get_fetches_what_is_not_equal_here(tree: Path, tmp_path: Path) -> None:
    def get(*words: str) -> str:
        done = run("get", "-w", "localhost", *words, str(tree), f"{tmp_path}/back")
        assert done.returncode == 0, done.stderr
        return done.stderr

    get()
    assert "0 files fetched, 4 equal" in get()
    (tree / ".hidden").write_text("more")
    there = tmp_path / "back" / "localhost" / "tree"
    (there / "run.sh").write_text("#!/bin/SH\n")
    os.utime(there / "run.sh", (1_000_000, 1_000_000))
    assert "1 file fetched, 3 equal" in get()
    assert "1 file fetched, 3 equal" in get("--checksum")
    assert content(there) == content(tree)


def test_a_tar_of_what_can_be_read(tree: Path, tmp_path: Path) -> None:
    """As tar gives it that cannot read all; the host has failed."""
    env = {**os.environ, "PATH": only_tools(tmp_path)}
    real = os.readlink(tmp_path / "tools" / "tar")
    (tmp_path / "tools" / "tar").unlink()
    (tmp_path / "tools" / "tar").write_text(f'#!/bin/sh\n{real} "$@"\nexit 2\n')
    (tmp_path / "tools" / "tar").chmod(0o755)
    done = run("get", "-w", "localhost", str(tree), f"{tree}/run.sh", f"{tmp_path}/back", env=env)
    assert (done.returncode, "localhost  exit code 2" in done.stderr) == (1, True)
    assert content(tmp_path / "back" / "localhost" / "tree") == content(tree)
    assert (tmp_path / "back" / "localhost" / "run.sh").exists()


@pytest.mark.parametrize("python", [True, False])
def test_get_heeds_the_umask(tree: Path, tmp_path: Path, python: bool) -> None:
    env = dict(os.environ) if python else {**os.environ, "PATH": only_tools(tmp_path)}
    tree.chmod(0o777)
    words = "get", "-w", "localhost", str(tree), f"{tmp_path}/back"
    assert run(*words, env=env, umask=0o027).returncode == 0
    back = tmp_path / "back" / "localhost" / "tree"
    modes = {name: (back / name).stat().st_mode & 0o777 for name in ("", "run.sh", ".hidden")}
    assert modes == {"": 0o750, "run.sh": 0o750, ".hidden": 0o640}


def test_get_from_a_host_without_python(tree: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": only_tools(tmp_path)}
    done = run("get", "-w", "localhost", str(tree), f"{tmp_path}/back", env=env)
    assert done.returncode == 0, done.stderr
    assert "localhost: 4 files fetched, 0 equal, by tar; 270 B in" in done.stderr
    assert content(tmp_path / "back" / "localhost" / "tree") == content(tree)


@pytest.mark.parametrize("python", [True, False])
def test_a_device_is_not_replaced(tmp_path: Path, python: bool) -> None:
    (tmp_path / "file").write_text("x")
    make_device(tmp_path / "null")
    env = dict(os.environ) if python else {**os.environ, "PATH": only_tools(tmp_path)}
    done = put(f"{tmp_path}/file", f"{tmp_path}/null", env=env)
    assert (done.returncode, f"{tmp_path}/null: is a device" in done.stderr) == (1, True)
    assert (tmp_path / "null").is_char_device()


@pytest.mark.parametrize("python", [True, False])
def test_links_that_are_named(tmp_path: Path, python: bool) -> None:
    real = tmp_path / "v1"
    real.mkdir()
    (real / "f").write_text("hello")
    (real / "f").chmod(0o640)
    (real / "inner").symlink_to("f")
    os.mkfifo(tmp_path / "fifo")
    for name, target in (("file", real / "f"), ("away", real), ("near", "v1"), ("gone", "no"),
                         ("pipe", "fifo")):  # fmt: skip
        (tmp_path / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
    env = dict(os.environ) if python else {**os.environ, "PATH": only_tools(tmp_path)}
    back = tmp_path / "back" / "localhost"

    def get(*names: str) -> tuple[int, str]:
        shutil.rmtree(back, ignore_errors=True)
        words = [f"{tmp_path}/{name}" for name in names]
        done = run("get", "-w", "localhost", *words, f"{tmp_path}/back", env=env)
        return done.returncode, done.stderr

    code, said = get("file", "away/", "near", "v1")
    assert code == 0, said
    assert "3 files fetched" in said
    assert not (back / "file").is_symlink()
    assert ((back / "file").read_text(), (back / "file").stat().st_mode & 0o777) == ("hello", 0o640)
    assert content(back / "away") == content(back / "v1") == content(real)
    assert not (back / "away").is_symlink()
    assert os.readlink(back / "near") == "v1"
    for name, why in (
        ("away", "'away': a link that leads outside"), ("gone", "o such file or directory"),
        ("fifo", "not a file, folder or link"), ("pipe", "not a file, folder or link"),
        ("socket", "not a file, folder or link"),
    ):  # fmt: skip
        code, said = get(name)
        assert (code, why in said) == (1, True), said
        assert not os.path.lexists(back / name)

    done = put(*(f"{tmp_path}/{name}" for name in ("file", "away/", "near")), f"{tmp_path}/there/")
    assert done.returncode == 0, done.stderr
    there = tmp_path / "there"
    assert (content(there / "away"), os.readlink(there / "near")) == (content(real), "v1")
    assert ((there / "file").read_text(), (there / "file").is_symlink()) == ("hello", False)
    done = put(f"{tmp_path}/gone", f"{tmp_path}/there/")
    assert (done.returncode, "gone: no such file or directory" in done.stderr) == (2, True)


@pytest.fixture(params=["python", "tar"])
def homely(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own, that of a host with and without Python."""
    (tmp_path / "home").mkdir()
    env = {**os.environ, "HOME": f"{tmp_path}/home"}
    return env if request.param == "python" else {**env, "PATH": only_tools(tmp_path)}


@pytest.mark.parametrize(
    ("dest", "place"),
    [
        ("~", "home/file"),
        ("~/", "home/file"),
        ("~/x", "home/x"),
        ("~/x/", "home/x/file"),
        ("~/{host} ~/$(x)/", "home/localhost ~/$(x)/file"),
        ("./~", "~"),
        ("./~/x", "~/x"),
    ],
)
def test_put_to_the_home_folder(
    homely: dict[str, str], tmp_path: Path, dest: str, place: str
) -> None:
    (tmp_path / "file").write_text("new")
    done = put("file", dest, env=homely, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / place).read_text() == "new"
    assert (tmp_path / "~").exists() == dest.startswith("./")
    assert not (tmp_path / "home" / "~").exists()


def test_get_from_the_home_folder(homely: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home" / "sub").mkdir()
    (tmp_path / "home" / "sub" / "x").write_text("home")
    (tmp_path / "~").write_text("odd")
    words = ("get", "-w", "localhost", "~/sub/", "./~", "~/back")
    done = run(*words, env=homely, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    back = tmp_path / "home" / "back" / "localhost"
    assert (back / "sub" / "x").read_text() == "home"
    assert (back / "~").read_text() == "odd"
    assert (tmp_path / "~").is_file()


def test_the_home_folder_of_somebody(homely: dict[str, str], tmp_path: Path) -> None:
    one = next(one for one in pwd.getpwall() if one.pw_dir == "/bin")
    done = run("get", "-w", "localhost", f"~{one.pw_name}/sh", ".", env=homely, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sh" in os.listdir(tmp_path / "localhost")
    (tmp_path / "file").touch()
    for words in (("put", "-w", "localhost", "file", "~no.such/x"),
                  ("get", "-w", "localhost", "~no.such/x", ".")):  # fmt: skip
        done = run(*words, env=homely, cwd=tmp_path)
        assert done.returncode == 1
        assert "~no.such/x: no such home folder" in done.stderr
    assert not list(tmp_path.glob("~*"))


def test_an_empty_home_is_none(homely: dict[str, str], tmp_path: Path) -> None:
    """``~/x`` is never ``/x``."""
    env = {**homely, "HOME": ""}
    done = run("get", "-w", "localhost", "~/etc/passwd", ".", env=env, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert not (tmp_path / "localhost" / "passwd").exists()


def test_ranks_and_hosts_in_names(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    for rank in range(2):
        (tmp_path / f"shard-{rank}").write_text(str(rank))
    where = ("-H", f"{tmp_path}/hosts")
    done = run("put", *where, f"{tmp_path}/shard-{{rank}}", f"{tmp_path}/there/{{host}}-{{rank}}/")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "localhost-1" / "shard-1").read_text() == "1"
    assert not (tmp_path / "there" / "localhost-1" / "shard-0").exists()
    remote = f"{tmp_path}/there/{{host}}-{{rank}}/shard-{{rank}}"
    done = run("get", *where, remote, f"{tmp_path}/back/{{rank}}")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "back").rglob("*")) == [
        "0",
        "1",
        "shard-0",
        "shard-1",
    ]
    done = run("get", *where, f"{tmp_path}/shard-{{rank}}", f"{tmp_path}/flat")
    assert sorted(os.listdir(tmp_path / "flat" / "localhost")) == ["shard-0", "shard-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "-w", "n1", "/x", "/y/{user}"), "unknown placeholder: {user}"),
        (("put", "-w", "n1", "/no/such", "/x"), "no such file"),
        (("put", "-w", "n1", "/etc/hosts", "/etc/../etc/hosts", "/x"), "two sources have"),
        (("get", "-w", "n1", "~", "y"), "a home folder cannot be fetched as a whole"),
        (("get", "-w", "n1", "~$(id)/x", "y"), "hint: for a file of that name: './~$(id)/x'"),
        (("get", "-w", "n1", "/x", "~no.such/y"), "~no.such/y: no such home folder"),
    ],
)
def test_usage_errors_touch_no_host(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("transport", ["paramiko", "ssh"])
def test_over_hosts(cluster: Cluster, tree: Path, transport: str) -> None:
    words = ("-t", "60", "--transport", transport, "-w", "n[1-4]")
    there = f"/tmp/{transport}-{{host}}/"
    done = cluster.run([*DISPATCH, "put", *words, str(tree), there])
    assert done.returncode == 0, done.stderr
    back = tree.parent / "back"
    done = cluster.run([*DISPATCH, "get", *words, f"{there}tree", str(back)])
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(back)) == ["n1", "n2", "n3", "n4"]
    for host in ("n1", "n2", "n3", "n4"):
        assert content(back / host / "tree") == content(tree)


def test_the_home_folder_of_every_host(new_cluster: Callable[..., Cluster], tree: Path) -> None:
    """Whatever the login shell makes of ``~``; ``~/.ssh`` is a folder that hosts do not share."""
    shells = {"n1": "/bin/sh", "n2": "/bin/tcsh", "n3": "/usr/bin/fish"}
    here = {host: shell for host, shell in shells.items() if os.path.exists(shell)}
    cluster, where = new_cluster(3), ("-t", "60", "-w", "n[1-3]")
    for host, shell in here.items():
        cluster.set_login_shell(host, shell)
    for number, way in enumerate((("--keep",), ("--transport", "ssh"), ("--fanout-tree=1",))):
        there = f"~/.ssh/{number}"
        done = cluster.run([*DISPATCH, "put", *way, *where, str(tree), there + "/"])
        assert done.returncode == 0, done.stderr
        back = tree.parent / str(number)
        done = cluster.run([*DISPATCH, "get", *where, f"{there}/tree", str(back)])
        assert done.returncode == 0, done.stderr
        for host in ("n1", "n2", "n3"):
            assert content(back / host / "tree") == content(tree)
            odd = ["sh", "-c", f"cd {Path.home()}; ls -d '~' .ssh/{number}"]
            assert cluster.run(odd, host).stdout == f".ssh/{number}\n"
    for shell in sorted({*shells.values()} - {*here.values()}):
        pytest.skip(f"{shell} is not installed")
