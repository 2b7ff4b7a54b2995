"""What a file that merely lies in a folder may say, and which files are read at all."""

# ruff: noqa: SIM905 - word lists read better as paragraphs
from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from cases import cases
from open_files import open_files
from rig import wait_for

from dispatcher import cli
from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load_command
from dispatcher.cli.options import config_file
from dispatcher.cli.options.config_file import Defaults, Setting, parse
from dispatcher.cli.options.declaration import Options, declared, option, preset
from dispatcher.model.errors import ConfigNotTrusted, UsageError
from dispatcher.model.host import Host, Hostlist


def options() -> Iterator[tuple[str, click.Option, str]]:
    """Command, option and each of its long names."""
    for command in COMMANDS:
        for parameter in load_command(command).params:
            if isinstance(parameter, click.Option) and parameter.expose_value:
                for name in parameter.opts:
                    if name.startswith("--"):
                        yield command, parameter, name[2:]


#: what a ``dispatch.toml`` in the current folder may set, in each command that has the option; all
#: else is refused. A new name here needs a thought: ``git clone`` and ``cd`` must run nothing of
#: the clone's, on no machine
IN_FOLDER = frozenset(
    # which hosts, and as which account: the keys of unknown hosts are refused
    "hostfile hosts exclude group exclude-group include intersect user ssh-port spares nnodes np "
    "nproc-per-node min-nodes map-by rank-by rankfile oversubscribe per-node iface pick "
    "master-port bind-to mem-bind report-bindings near-hca "
    # settings of the program on the command line; variables are checked one by one
    "chdir name sync export devices omp module no-python stdin no-stdin mpi pmi-port "
    # how long, how many, how often
    "boot-timeout check-timeout command-timeout connect-timeout deadline delay fanout fanout-tree "
    "grace hang-timeout heartbeat keep lease max-fail max-host-failures max-missed-heartbeats "
    "max-restarts max-size mpi-stall-warning partial-after restart-delay rounds sample serial "
    "server-alive-interval signal signal-to slow stall-after stop-signal time-limit window detach "
    # the checks
    "allow-different-code check checksum exclude-unhealthy full ignore nccl no-resume whole-file "
    "avoid-failures backend failures if-busy pairs progress-file progress-line step-line xid-table "
    # the output, and files in a new folder of their own
    "count diff dry-run fold fold-numbers follow from-start gather gather-all grep json label "
    "line-mode list log-dir log-keep log-merge log-overflow log-size max-code no-gather no-label "
    "numbers only-ranks percent profile progress quiet rank rank0 screen-overflow separator color "
    "seconds sort timestamps verbose version worker".split()
)


def test_a_folder_s_file_may_set_so_much() -> None:
    allowed = {name for _, option, name in options() if getattr(option, "in_folder", False)}
    assert allowed == IN_FOLDER
    refused = {name for _, option, name in options() if not getattr(option, "in_folder", False)}
    assert refused & IN_FOLDER == set()
    assert config_file.REFUSED.keys() - refused == set(), "no such option any more"


def judged(text: str, command: click.Command, *, loose: bool = False) -> list[object]:
    """The values of a file for ``command``."""
    file = parse(text, "f", COMMANDS, loose=loose)
    known = {name[2:]: one for one in command.params for name in one.opts}
    return [
        config_file.judged(one, known[one.option], "/own").value  # type: ignore[arg-type]
        for one in file.entries(command.name or "", None)
        if one.option in known
    ]


def test_an_option_that_says_nothing_is_refused() -> None:
    class New(Options):
        speed: str | None = option(help="Go at this speed.")
        colour: str | None = preset(help="Use this colour.")

    command = click.Command("new", params=[one.parameter(n) for n, one in declared(New).items()])
    assert judged("[all]\ncolour = 'red'\n", command, loose=True) == ["red"]
    with pytest.raises(ConfigNotTrusted, match="f:2: speed: a folder's file may not "):
        judged("[all]\nspeed = '3'\n", command, loose=True)


def test_what_a_folder_may_not_say_is_refused_in_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPATCH_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for command, parameter, name in options():
        if name in IN_FOLDER:
            continue
        value = "true" if parameter.is_flag else "['./evil']" if parameter.multiple else "'./evil'"
        for table in (command, "all", "profile.p.all"):
            if table == "profile":  # all profiles are there
                continue
            (tmp_path / "dispatch.toml").write_text(f"# ours\n[{table}]\n{name} = {value}\n")
            profile = ["--profile", "p"] if table.startswith("profile") else []
            assert cli.main([command, *profile]) == 2, (command, name)
            said = capsys.readouterr().err
            assert f"error: dispatch.toml:3: {name}: a folder's file may not " in said
            assert f"[{table}] of {tmp_path}/home/.config/dispatch/dispatch.toml" in said


# -- which files are read ------------------------


def test_a_file_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xff text")
    path.chmod(0o644)
    assert config_file.read(str(path)) == b"\xff text"
    assert config_file.read(str(path), must_be=True) == b"\xff text"
    assert capsys.readouterr().err == ""


@cases("mode", [0o664, 0o646, 0o666])
@cases("must_be", [False, True])
def test_a_file_that_others_could_write(
    tmp_path: Path, mode: int, must_be: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f"
    path.write_text("x")
    path.chmod(mode)
    assert config_file.read(str(path), must_be=must_be) is None
    why = "another user could have written it: chmod go-w"
    assert capsys.readouterr().err == f"note: {path} is not read: {why}\n"


def test_what_is_no_file_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But one that is named may be a pipe, and is read to its end."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    assert config_file.read(str(path)) is None
    assert capsys.readouterr().err == f"note: {path} is not read: it is not a file\n"
    assert config_file.read("/dev/null", must_be=False) is None
    writer = threading.Thread(target=lambda: path.write_text("text"), daemon=True)
    kept = os.open(path, os.O_RDWR)  # a writer there is from the start
    try:
        writer.start()
        writer.join(60)
    finally:

        def close() -> None:
            with suppress(AssertionError):  # then the test says what was not read
                wait_for(lambda: [to for _, to in open_files()].count(str(path)) > 1, 60)
            os.close(kept)

        closer = threading.Thread(target=close)
        closer.start()  # once the reader has the pipe open, too
    assert config_file.read(str(path), must_be=True) == b"text"
    closer.join()


@cases("beyond", [0, 1])
def test_a_large_file(tmp_path: Path, beyond: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"#" * (config_file.MOST_BYTES + beyond))
    path.chmod(0o600)
    if beyond:
        with pytest.raises(UsageError) as caught:
            config_file.read(str(path))
        assert caught.value.message == f"{path}: more than 1 MiB"
    else:
        assert len(config_file.read(str(path)) or b"") == config_file.MOST_BYTES


@cases(
    ("path", "must_be", "said"),
    [
        ("none", False, None),
        ("file/none", False, None),
        ("none", True, "{path}: no such file"),
        ("file/none", True, "{path}: no such file"),
        (".", False, None),
        (".", True, "{path}: is a directory"),
        ("x" * 300, False, "{path}: file name too long"),
    ],
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, path: str, must_be: bool, said: str | None
) -> None:
    (tmp_path / "file").write_text("")
    tmp_path.chmod(0o700)
    whole = str(tmp_path / path)
    if said is None:
        assert config_file.read(whole, must_be=must_be) is None
        return
    with pytest.raises(UsageError) as caught:
        config_file.read(whole, must_be=must_be)
    assert caught.value.message == said.format(path=whole)


# -- what they may say ------------------------


@cases(
    ("text", "said"),
    [
        ("[run]\ngrace = 1", ""),
        ("[run]\nrsh = 'x'", "f:2: rsh: a folder's file may not choose what runs"),
        ("[run]\ntransport = 'ssh'", "f:2: transport: a folder's file may not choose which hosts"),
        ("[run]\nexport = ['UCX_TLS=rc', 'NCCL_DEBUG=INFO']", ""),
        ("[run]\nexport = 'LD_PRELOAD=x'", "f:2: export: LD_PRELOAD"),
        ("[run]\nexport = ['UCX_TLS=rc', 'PATH']", "f:2: export: PATH"),
        ("[run]\nsync = '.'", ""),
        ("[run]\nsync = '/root'", "f:2: sync: a folder's file may not name a folder to write to"),
        ("[run]\nsync = ''", "f:2: sync: a folder's file may not name"),
        ("[run]\nsync = true", "f:2: sync: a folder's file may not name"),
        ("[run]\nsync = ['.']", "f:2: sync: a folder's file may not name"),
        ("[run]\nserver-alive-interval = 1", ""),  # of other commands: looked at there
        ("[exec]\nrsh = 'x'", ""),
        ("[all]\noutput-dir = 'x'", ""),  # which run does not have
    ],
)
def test_what_a_folder_s_file_may_say(text: str, said: str) -> None:
    if not said:
        judged(text, load_command("run"), loose=True)
        return
    with pytest.raises(UsageError) as caught:
        judged(text, load_command("run"), loose=True)
    assert caught.value.message.startswith(said)
    option = said.split(": ")[1]
    assert caught.value.hint == f"put it into [run] of /own, or type it: --{option}"


@cases(
    ("setting", "path"),
    [
        ("ssh-config = 'c'", "c"), ("ssh-config = '/c'", ""),
        ("ssh-config = 'none'", ""),  # ssh's own word for no file
        ("env-file = ['/a', 'b']", "b"), ("env-file = '/a'", ""), ("rsh = './r {host}'", "./r"),
        ("rsh = 'r {host}'", ""), ("rsh = '/r x/y'", ""), ("rsh = ''", ""),
        ("hostfile = 'hosts'", ""), ("chdir = 'sub'", ""),
    ],
)  # fmt: skip
def test_ones_own_file_means_the_same_in_every_folder(setting: str, path: str) -> None:
    text = f"[run]\n{setting}\n"
    if not path:
        assert len(judged(text, load_command("run"))) == 1
        return
    with pytest.raises(UsageError) as caught:
        judged(text, load_command("run"))
    option = setting.partition(" ")[0]
    assert caught.value.message == (f"f:2: {option}: {path} would be another file in every folder")
    assert caught.value.hint == "write the path from /"


HOSTS = Hostlist((Host("n1", env=(("NCCL_DEBUG", "INFO"),), origin="f:1"),))
PYTHON = Hostlist((*HOSTS.hosts, Host("n2", python="/evil", origin="f:2")))


def setting(value: object, name: str, *, loose: bool = False) -> Setting:
    return Setting(value, name, "run", Defaults("o", {}, {}, loose=loose))


LOADS = Hostlist((Host("n3", env=(("A", "1"), ("LD_PRELOAD", "x")), origin="f:3"),))


@cases(
    ("found", "setting", "said"),
    [
        (HOSTS, None, ""),
        (PYTHON, None, ""),
        (LOADS, None, ""),
        (HOSTS, setting("hosts", "hostfile", loose=True), ""),
        (PYTHON, setting("hosts", "hostfile", loose=True),
         "f:2: python: a folder's file may not choose what runs"),
        (LOADS, setting("hosts", "hostfile", loose=True), "f:3: env: LD_PRELOAD"),
        (PYTHON, setting("/hosts", "hostfile"), ""),
        (PYTHON, setting("none", "hostfile"), ""),
        (PYTHON, setting("here", "hostfile"), "f:2: python: a folder's file may not"),
        (PYTHON, setting(["none", "here"], "hostfile"), "f:2: python: a folder's file"),
        (PYTHON, setting(["here"], "hosts"), ""),
        (PYTHON, setting(["^here"], "hosts"), "f:2: python: a folder's file may not"),
    ],
)  # fmt: skip
def test_a_hostfile_that_a_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    found: Hostlist, setting: Setting | None, said: str,
) -> None:  # fmt: skip
    (tmp_path / "here").write_text("")
    monkeypatch.chdir(tmp_path)
    if not said:
        assert config_file.hosts_named(found, setting) is found
        return
    with pytest.raises(UsageError) as caught:
        config_file.hosts_named(found, setting)
    assert caught.value.message.startswith(said)
    assert caught.value.hint == "o [run] names it; if you trust it, name it yourself: -H FILE"
