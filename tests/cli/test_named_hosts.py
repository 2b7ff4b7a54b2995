"""Which hosts a command takes: those typed, else those of a file; and who is blamed for a mistake.

No host is touched: what a command would reach is seen where it asks whether it can.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.options import host_options
from dispatcher.cli.run import launch
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import DROP

#: every way to the hosts, and the table of dispatch.toml that is for it
WAYS = {
    "exec": ("exec", "--", "true"),
    "put": ("put", "hf", "/there"),
    "get": ("get", "/there", "here"),
    "shell": ("shell",),
    "connect": ("connect",),
    "check": ("check",),
    "check full": ("check", "--full"),
    "check pairs": ("check", "--pairs"),
    "check nccl": ("check", "--nccl"),
    "sweep": ("sweep",),
    "run": ("run", "--no-python", "true"),
}
Taken = Callable[..., str]


class Touched(Exception):
    """A host would have been."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DISPATCH_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    for name, text in {"hf": "n[1-9]\n", "other": "n3\n"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Taken:
    """``taken(way, *where, config=TEXT)``: the hosts that the command would reach, folded."""
    seen: list[Host] = []

    def check_reachable(flags: object, hosts: Iterable[Host]) -> None:
        seen[:] = hosts
        raise Touched

    monkeypatch.setattr(host_options, "check_reachable", check_reachable)
    monkeypatch.setattr(launch, "check_reachable", check_reachable)

    def call(way: str, *where: str, config: str = "") -> str:
        (folder / "dispatch.toml").write_text(config)
        (folder / "dispatch.toml").chmod(0o644)
        name, *rest = WAYS[way]
        with pytest.raises(Touched):
            cli.main([name, *where, *rest])
        return fold([host.name for host in seen])

    return call


def table(way: str, text: str) -> str:
    return f"[{way.partition(' ')[0]}]\n{text}\n"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["-w n3", "-H n3", "-H other", "--hosts n3", "--hostfile n3"])
def test_hosts_that_are_typed_are_the_only_ones(way: str, where: str, taken: Taken) -> None:
    hosts = 'hosts = "n8"' if way == "run" else 'hosts = ["n8", "n9"]'
    for config in ("[all]\nhostfile = 'hf'\n", table(way, "hostfile = 'hf'"), table(way, hosts)):
        assert taken(way, *where.split(), config=config) == "n3"


@pytest.mark.parametrize("way", WAYS)
def test_hosts_of_a_file_are_for_when_none_are_typed(way: str, taken: Taken) -> None:
    assert taken(way, config="[all]\nhostfile = 'hf'\n") == "n[1-9]"
    assert taken(way, config="[all]\nhostfile = 'hf'\n" + table(way, "hostfile = 'm1'")) == "m1"


@pytest.mark.parametrize("way", WAYS)
def test_what_is_typed_adds_up(way: str, taken: Taken) -> None:
    config = "[all]\nhostfile = 'hf'\nhosts = ['m1']\n"
    typed = ("-w", "n3", "-H", "n5", "-w", "n4", "-H", "n6")
    assert taken(way, *typed, config=config) == "n[3-6]"
    assert taken(way, config=config) == "m1,n[1-9]"


@cases(
    ("words", "names"),
    [
        (("-w", "n[1-4],-n2"), "n1 n3 n4"), (("-w", "n[1-4],/[12]/"), "n1 n2"),
        (("-w", "n[1-4],-n[2-3]", "-w", "n9"), "n1 n4 n9"),
        (("-w", "n[1-14],-/1/"), "n2 n3 n4 n5 n6 n7 n8 n9"), (("-w", "n[1-9],/n[13]/,/3"), "n3"),
        (("-w", "^other,^more"), "n3 n5 n4"), (("-w", "a,^other"), "a n3"),
        (("-w", "n[3-5],-^other"), "n4 n5"), (("-H", "more", "-w", "-n4"), "n5"),
        (("-w", "^a,b"), "n7"),  # there is such a file
        (("-w", "n[1-9]", "-x", "/[5-8]/,n1,^other"), "n2 n4 n9"),
        (("-w", "n[1-5]", "-x", "n1\nn3\n"), "n2 n4 n5"),
        (("-w", "n[1-5]", "-i", "n4\n\nn2,n9\n"), "n2 n4"), (("-w", "n[3,1],n2"), "n3 n1 n2"),
        (("-w", "n[1-3],-n[1-3]"), "error: no hosts given"),
        (("-w", "n1,/(/"), "error: -w: missing ), unterminated subpattern at position 0: '/(/'"),
        (("-w", "/etc"), "error: -w: '/' has no place in a host name"),
        (("-w", "m1"), "note: -w m1: a file here has this name; quote lists, as in 'n[1-3]'\nm1"),
        (("-w", "m[1-2]"), "m1 m2"),
    ],
)  # fmt: skip
def test_lists_as_pdsh_and_clush_have_them(
    words: tuple[str, ...], names: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"more": "n[5,4]\n", "a,b": "n7\n", "m1": ""}.items():
        (folder / name).write_text(text)
    code = cli.main(["hosts", "-S", " ", *words])
    out, err = capsys.readouterr()
    assert (err + out).startswith(names)
    assert (code, out) == ((2, "") if "error" in names else (0, f"{names.splitlines()[-1]}\n"))


def test_only_what_is_typed_may_be_a_pattern(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("hosts = ['n1', '/(n+)+$/']", "hosts = 'n1'\nexclude = '/n/'"):
        (folder / "dispatch.toml").write_text(f"[all]\n{line}\n")
        assert cli.main(["hosts"]) == 2
        assert "'/' has no place in a host name" in capsys.readouterr().err


def test_an_empty_name_is_no_way_to_the_hosts_of_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "dispatch.toml").write_text("[exec]\nhosts = ['n1']\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n2")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for where in ("-H", "-w"):
        assert cli.main(["exec", where, "", "true"]) == 2
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("way", WAYS)
def test_a_filter_of_a_file_stays(way: str, taken: Taken) -> None:
    """Yet what it says of other hosts than these is no mistake."""
    gone = 'exclude = "n[4,7]@m[1-3]"' if way == "run" else 'exclude = ["n[4,7]", "m[1-3]"]'
    assert taken(way, "-H", "n[3-5]", config=table(way, gone)) == "n[3,5]"
    # but the same option, typed, is the one that holds, as with all options
    typed = ("-H", "n[3-5]", "--exclude", "n3")
    assert taken(way, *typed, config=table(way, gone)) == "n[4-5]"


def test_filters_of_a_run(taken: Taken) -> None:
    include = "[run]\nhostfile = 'hf'\ninclude = 'n1@n2:0'\n"
    assert taken("run", config=include) == "n[1-2]"
    assert taken("run", "-H", "n[2-3]:2", config=include) == "n2"
    assert taken("run", "--exclude", "n1", config=include) == "n2"
    exclude = "[run]\nhostfile = 'hf'\nexclude = 'n[1-3]'\n"
    assert taken("run", "--include", "n[2-5]", config=exclude) == "n[4-5]"


@pytest.mark.parametrize(
    ("words", "config", "said"),
    [
        (["-H", "n7", "train.py"], "[run]\nexclude = 'n7'", "dispatch.toml [run]: exclude"),
        (["-H", "n3", "train.py"], "[run]\ninclude = 'n7'", "dispatch.toml [run]: include"),
        (
            ["-H", "n3", "--include", "n3", "train.py"],
            "[all]\nexclude = 'n3'",
            "--include and dispatch.toml [all]: exclude",
        ),
        (["exec", "-w", "n7", "true"], "[all]\nexclude = ['n7']", "dispatch.toml [all]: exclude"),
        (["exec", "-w", "n7", "-x", "n7", "true"], "[all]\nexclude = ['n1']", "-x"),
    ],
)
def test_who_took_the_last_host(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], config: str, said: str
) -> None:
    (folder / "dispatch.toml").write_text(config)
    assert cli.main(words) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"error: no host is left after {said} [no-hosts]"
    assert ("DISPATCH_CONFIG=" in "".join(told[1:])) == ("dispatch.toml" in said)


# -- the preview --------------------------------------------------------------------------


@cases(
    ("words", "variables", "config", "hosts", "said"),
    [
        ("", {}, "", "", "no hosts given"),
        ("", {"WCOLL": "other"}, "", "n3", "hosts of WCOLL"),
        ("", {"WCOLL": "other"}, "[all]\nhosts = 'm1'", "m1",
         "hosts of dispatch.toml [all]: hosts"),
        ("", {"WCOLL": "other", "PBS_NODEFILE": "hf"}, "", "n[1-9]", "hosts of PBS"),
        ("", {"DISPATCH_HOSTFILE": "other"}, "[all]\nhostfile = 'hf'", "n3",
         "hosts of DISPATCH_HOSTFILE"),
        ("", {"DISPATCH_HOSTFILE": "n3, n4"}, "", "n[3-4]", "hosts of DISPATCH_HOSTFILE"),
        ("", {"DISPATCH_HOSTFILE": "other"}, "[all]\nhosts = ['m1']", "n3",
         "hosts of DISPATCH_HOSTFILE"),
        ("", {"DISPATCH_HOSTFILE": "other"}, "[hosts]\nhostfile = 'hf'\nhosts = 'm1'",
         "n3", "hosts of DISPATCH_HOSTFILE"),
        ("", {"DISPATCH_HOSTFILE": ""}, "[all]\nhosts = ['m1']", "m1",
         "hosts of dispatch.toml [all]: hosts"),
        ("-w n5", {"DISPATCH_HOSTFILE": "other", "WCOLL": "other"}, "", "n5", ""),
        ("-w ^other -w m5", {}, "", "m5,n3", ""),
        ("-w ^none", {}, "", "", "-w: 'none': no such file"),
        ("-w - -w n5", {}, "", "i[1-2],n5", ""),
        ("", {"WCOLL": "none"}, "", "", "WCOLL: 'none': no such file"),
        ("", {"DISPATCH_HOSTFILE": "./no"}, "", "", "DISPATCH_HOSTFILE: './no': no such file"),
    ],
)  # fmt: skip
def test_whose_hosts_they_are(
    words: str, variables: dict[str, str], config: str, hosts: str, said: str,
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("WCOLL", "DISPATCH_HOSTFILE", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name, text in {"hf": "n[1-9]\n", "other": "n3\n", "dispatch.toml": config}.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"i1\ni2\n")))
    assert cli.main(["hosts", "-f", *words.split()]) == (0 if hosts else 2)
    shown = capsys.readouterr()
    assert shown.out == (f"{hosts}\n" if hosts else "")
    assert said in shown.err
    assert said or not shown.err


# -- lists of hosts that failed -------------------------------------------------------------


def test_retry_failed_goes_with_hosts_of_a_file(
    folder: Path, taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "[all]\nhostfile = 'hf'\nhosts = ['m1']\nexclude = ['n2']\n"
    (folder / "failed").write_text("n2\nn3\n")
    assert taken("exec", "--retry-failed", "failed", config=config) == "n3"
    assert taken("exec", "--failed-to", "failed", "-w", "n5", config=config) == "n5"
    assert cli.main(["exec", "--retry-failed", "failed", "-w", "n5", "true"]) == 2
    assert "-H and -w cannot be given as well" in capsys.readouterr().err


def test_retry_failed_of_a_file_gives_way_to_hosts_that_are_typed(
    folder: Path, taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    own = folder / "config" / "dispatch" / "dispatch.toml"  # a folder's names no file to write
    own.parent.mkdir(parents=True)
    own.write_text("[exec]\nretry-failed = 'failed'\n")
    own.chmod(0o644)
    (folder / "failed").write_text("n2\n")
    assert taken("exec", "-w", "n5") == "n5"
    assert taken("exec") == "n2"
    (folder / "failed").unlink()
    assert cli.main(["exec", "true"]) == 2
    said = f"error: {own} [exec]: retry-failed: failed: no such file or directory [file-unusable]\n"
    assert capsys.readouterr().err == said


def test_standard_input_is_wanted_twice_only_if_both_are_in_force(
    folder: Path, taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "[exec]\nhostfile = '-'\n"
    assert taken("exec", "-w", "n5", "-I", config=config) == "n5"
    assert cli.main(["exec", "-I", "true"]) == 2
    assert "-I and dispatch.toml [exec]: hostfile - both want" in capsys.readouterr().err


# -- kept connections -----------------------------------------------------------------------


@pytest.mark.parametrize(("where", "closed"), [([], None), (["-w", "n[3-4]"], ["n3", "n4"])])
def test_close_is_about_all_or_those_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: list[str], closed: list[str] | None
) -> None:
    (folder / "dispatch.toml").write_text("[all]\nhostfile = 'hf'\n")
    orders: list[object] = []

    def ask(kind: int, hosts: object) -> None:
        assert kind == DROP
        orders.append(hosts)

    monkeypatch.setattr(daemon_socket, "ask_daemon", ask)
    assert cli.main(["connect", "--close", *where]) == 0
    assert orders == [closed]


# -- who is blamed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "config", "said"),
    [
        (["exec", "-w", "n1", "-x", "^no", "true"], "", "-x: 'no': no such file"),
        (["exec", "-w", "n1", "-x", "n[", "true"], "", "-x: '[' without its ']'"),
        (["exec", "-w", "n[1-", "true"], "", "-w: '[' without its ']'"),
        (["exec", "-H", "n[1-", "true"], "", "-H: '[' without its ']'"),
        (["exec", "-H", "no.txt", "true"], "", "-H: 'no.txt': no such file"),
        (["hosts", "n[1-"], "", "'[' without its ']'"),
        (["hosts", "n1", "@nosuch"], "", "group '@nosuch' is unknown or empty"),
        (["hosts", "n1", "-i", "n["], "", "-i: '[' without its ']'"),
        (["exec", "true"], "hosts = ['n[1-']", "dispatch.toml [all]: hosts: '[' without its ']'"),
        (["exec", "true"], "hostfile = 'no.txt'",
         "dispatch.toml [all]: hostfile: 'no.txt': no such file"),
        (["exec", "-w", "n1", "true"], "exclude = ['^no']",
         "dispatch.toml [all]: exclude: 'no': no such file"),
        (["hosts"], "hostfile = 'no.txt'",
         "dispatch.toml [all]: hostfile: 'no.txt': no such file"),
        (["run", "train.py"], "hostfile = 'no.txt'",
         "dispatch.toml [all]: hostfile: 'no.txt': no such file"),
        (["run", "train.py"], "hostfile = 'hf'\ninclude = 'm1'",
         "dispatch.toml [all]: include: no host 'm1' (known: n[1-9])"),
    ],
)  # fmt: skip
def test_an_error_names_who_said_it(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], config: str, said: str
) -> None:
    (folder / "dispatch.toml").write_text(f"[all]\n{config}\n")
    assert cli.main(words) == 2
    assert capsys.readouterr().err.splitlines()[0].rpartition(" [")[0] == f"error: {said}"


def test_a_hint_is_about_the_hosts_that_were_taken(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    (folder / "dispatch.toml").write_text("[all]\nhostfile = 'gpu1'\n")
    assert cli.main(["get", "-w", "nosuch.invalid", "/there", "here"]) == 125
    said = capfd.readouterr().err
    assert "nosuch.invalid" in said
    assert "gpu1" not in said


@pytest.mark.parametrize(
    ("where", "hosts", "said"),
    [
        ("-w n1,n1", "n1", ""),
        ("-w n[1-3],n[2-4]", "n[1-4]", ""),
        ("-w n1:4,n1", "n1", ""),
        ("-w n1:4,n1:2", "n1", ""),
        ("-w me@n1:8", "n1", ""),
        ("-w n2:2222", "n2", "note: -w: 'n2:2222': 2222 is not read as a port; for a port write: "
         "n2 port=2222\n"),
    ],
)  # fmt: skip
def test_what_has_no_slots_does_not_talk_of_them(
    where: str, hosts: str, said: str, taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    for way in ("exec", "put", "sweep", "check"):
        assert taken(way, *where.split()) == hosts
        assert capsys.readouterr().err == said


def test_who_asks_for_slots_is_told_of_them(
    taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "note: -w: hosts are repeated, so each line counts one slot: n1\n"
    assert taken("check full", "-w", "n1,n1") == "n1"
    assert capsys.readouterr().err == note
    with pytest.raises(Touched):
        cli.main(["put", "-w", "n1,n1", "{rank}", "/there"])
    assert capsys.readouterr().err == note
