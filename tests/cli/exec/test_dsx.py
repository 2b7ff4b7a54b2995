"""``dsx``: the lines of pdsh and clush, and what dispatch's own commands would be for each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.exec import get, put, run_exec, shell
from dispatcher.cli.exec.dsx import DsxOptions
from dispatcher.cli.options.declaration import Option, WordChoice, converted, declared

N = "-w n[1-12]"


@pytest.fixture(autouse=True)
def _here(nothing_around: Path) -> None:
    """No batch job, an empty folder."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What was to be done: the function, and its options."""
    found: list[tuple[Any, Any]] = []
    monkeypatch.setenv("NO_COLOR", "")  # --color sets it
    for module, name in ((run_exec, "run"), (put, "put"), (get, "get"), (shell, "run")):

        def do(options: Any, module: Any = module) -> int:
            found.append((module, options))
            return 7

        monkeypatch.setattr(module, name, do)
    return found


@cases(
    ("short", "long"),
    [
        # pdsh's lines, with the program's name changed
        ((*N.split(), "hostname"), ("exec", *N.split(), "hostname")),
        ((*N.split(), "-x", "n3", "w", "-h"), ("exec", *N.split(), "-x", "n3", "w", "-h")),
        (("-w", "^hf", "ls /etc/hos*"), ("exec", "-H", "hf", "ls /etc/hos*")),
        ((*N.split(), "-S", "exit 7"), ("exec", *N.split(), "-S", "--shell", "exit 7")),
        ((*N.split(), "-t", "5", "-u", "2", "sleep", "20"),
         ("exec", *N.split(), "-t5", "-u2", "sleep", "20")),
        ((*N.split(), "-N", "echo $HOME"), ("exec", *N.split(), "-N", "echo $HOME")),
        ((*N.split(), "-P", "echo %h %n"), ("exec", *N.split(), "-P", "echo %h %n")),
        (("-f", "1", *N.split(), "-l", "me", "x"),
         ("exec", "--serial", "1", *N.split(), "-l", "me", "x")),
        (N.split(), ("shell", *N.split())),
        # clush's
        (("-w", "n[1-3]", "-b", "x"), ("exec", "-w", "n[1-3]", "-b", "x")),
        (("-bw", "@gpu", "x"), ("exec", "-b", "-w", "@gpu", "x")),
        (("-a", "-b", "x"), ("exec", "-w", "@*", "-b", "x")),
        (("-bg", "gpu", "df -h | tail -1"), ("exec", "-w", "@gpu", "-b", "df -h | tail -1")),
        (("-g", "gpu,odd", "-X", "nested", "-L", "x"),
         ("exec", "-w", "@gpu", "-w", "@odd", "-x", "@nested", "-L", "x")),
        (("-g", "a", "-g", "b", "-w", "n1", "-x", "n2", "-X", "c,d", "x"),
         ("exec", "-w", "n1", "-w", "@a", "-w", "@b", "-x", "n2", "-x", "@c", "-x", "@d", "x")),
        ((*N.split(), "--diff", "x"), ("exec", *N.split(), "--diff", "x")),
        ((*N.split(), "-I", "cat"), ("exec", *N.split(), "-I", "cat")),
        ((*N.split(), "-S", "--quiet", "false"), ("exec", *N.split(), "-S", "-q", "false")),
        ((*N.split(), "-S", "-q", "false"), ("exec", *N.split(), "-S", "--dry-run", "false")),
        (("-c", "a", *N.split(), "--dest", "/d/"), ("put", *N.split(), "a", "/d/")),
        (("-bLc", "a", *N.split()), ("put", *N.split(), "a", "{cwd}/")),
        (("-wsrc", "ls", "-l", "-S"), ("exec", "-w", "src", "ls", "-l", "-S")),
        (("--rcopy", "/a", "--dest=d", *N.split()), ("get", *N.split(), "/a", "d")),
        ((*N.split(), "--copy", "a", "b", "--dest", "/etc/"),
         ("put", *N.split(), "a", "b", "/etc/")),
        ((*N.split(), "--sudo", "--owner", "u:", "--mode", "600", "--ignore", "*.o", "-c", "a"),
         ("put", *N.split(), "--sudo", "--owner", "u:", "--mode", "600", "--ignore", "*.o", "a",
          "{cwd}/")),
        ((*N.split(), "-c", "--dest=/etc/x", "a"), ("put", *N.split(), "a", "/etc/x")),
        ((*N.split(), "--copy", "sub/a"), ("put", *N.split(), "sub/a", "{cwd}/sub/")),
        ((*N.split(), "--rcopy", "/var/log/x", "--dest", "."),
         ("get", *N.split(), "/var/log/x", ".")),
        (("--dest", "logs", *N.split(), "--rcopy", "/a", "/b"),
         ("get", *N.split(), "/a", "/b", "logs")),
        ((*N.split(), "--rcopy", "/var/log/x/"), ("get", *N.split(), "/var/log/x/", "/var/log")),
        # parallel-ssh's
        (("-H", "hf", "-H", "n[8-9]", "x"), ("exec", "-H", "hf", "-H", "n[8-9]", "x")),
        (("-H", "hf", "-o", "out", "-e", "err", "-u", "5", "x"),
         ("exec", "-H", "hf", "-o", "out", "-e", "err", "-u", "5", "x")),
    ],
)  # fmt: skip
def test_a_line_and_what_it_means(
    short: tuple[str, ...], long: tuple[str, ...], done: list[tuple[Any, Any]]
) -> None:
    Path("hf").write_text("n1\n")
    done.clear()
    long = tuple(word.replace("{cwd}", os.getcwd()) for word in long)
    assert [cli.main(["dsx", *short]), cli.main([*long])] == [7, 7]
    (module, given), (wanted_module, wanted) = done
    assert module is wanted_module
    given, wanted = converted(given, type(wanted)), wanted
    for options in (given, wanted):  # two spellings of the same
        vars(options).update(
            {"lists": ("^hf",), "hostfile": ()} if options.hostfile == ("hf",) else {}
        )
        if getattr(options, "shell", None):
            vars(options).update(words=(options.shell,), shell=None)
    assert given == wanted


@cases(
    ("words", "said"),
    [
        ("-w n1 --dest x true", "--dest needs --copy or --rcopy"),
        ("-w n1 --owner x true", "--owner needs --copy"), ("-w n1 --ignore x", "--ignore needs"),
        ("-w n1 --rcopy --mode 600 x", "--mode needs --copy"),
        ("-w n1 --copy --rcopy x", "--copy and --rcopy exclude each other"),
        ("-w n1 --copy --script s x", "--script and --copy exclude each other"),
        ("-w n1 --retry-failed f", "--retry-failed needs a command: this is a prompt"),
        ("-w n1 --copy", "--copy: no file given"), ("-w n1 --rcopy --dest x", "--rcopy: no file"),
        ("-g nosuch true", "error: -g: group '@nosuch' is unknown"),
        ("-w n1 -X nosuch true", "error: -X: group '@nosuch' is unknown"),
        ("-w n1 -g nosuch true", "error: -w, -g: group"),
        ("-w n1 -tt true", "hint: for a terminal on the host: --pty"),
        ("true", "no hosts given"), ("-w n1 --grup x true", "hint: --group  # did you mean this?"),
    ],
)  # fmt: skip
def test_refusals(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dsx", *words.split()]) == 2
    assert said in capsys.readouterr().err


#: in each mode, what an option asks for that it does not do anyway, or that dsx does itself
COPY = {"no_stdin", "no_label", "gather", "gather_all", "line_mode", "max_code"}
HARMLESS = {"command": set(), "prompt": {"no_stdin"}, "copy": COPY, "rcopy": COPY}
#: option -> the field that shows what it did
BECOMES = {"everyone": "lists", "group": "lists", "left_out": "excluded", "pick": "lists"}
#: what each takes whose value cannot be any text
VALUES = {"serial": "3", "max_fail": "3", "sudo": "ml", "env": "A=1", "fanout_tree": "3"}
MODES = {
    "command": ["uptime"], "prompt": [], "copy": ["--copy", "f"], "rcopy": ["--rcopy", "f"],
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_no_option_is_lost_in_a_mode(
    mode: str, done: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    lost = []
    for field, one in declared(DsxOptions).items():
        parameter = one.parameter(field)
        if not isinstance(parameter, Option) or field in ("copy", "rcopy", "dest"):
            continue  # these choose the mode; see above
        value = VALUES.get(field, "3")
        if isinstance(parameter.type, WordChoice):
            value = parameter.type.choices[-1]
        name, where = parameter.opts[-1], ["-w", "n[1-9]"] if field == "pick" else []
        done.clear()
        line = [name if parameter.is_flag else f"{name}={value}", *where, *MODES[mode]]
        code = cli.main(["dsx", *line])
        said = capsys.readouterr().err
        if code == 2 and said.startswith(f"error: {name} "):
            continue
        if field == "version":
            assert (code, done) == (0, [])
            continue
        if field == "percent" and mode == "command":  # said once, see -P
            said = said.removeprefix(
                "note: -P replaces %h, %n and %u in the command; progress is shown without it\n"
            )
        assert (code, said) == (7, ""), name
        field = BECOMES.get(field, field)
        known = {*HARMLESS[mode], "worker", "color", "needless"}
        if getattr(done[0][1], field, None) in (None, False, ()) and field not in known:
            lost.append(name)
    assert lost == []


def test_each_file_of_a_copy_goes_to_its_own_folder(done: list[tuple[Any, Any]]) -> None:
    assert cli.main(["dsx", "-w", "n1", "--copy", "a", "b/c", "b/d"]) == 7
    here = f"{os.getcwd()}/"
    assert [one.paths for _, one in done] == [("a", here), ("b/c", "b/d", f"{here}b/")]
    done.clear()
    assert cli.main(["dsx", "-w", "n1", "--rcopy", "/a/x", "y"]) == 7
    assert [one.paths for _, one in done] == [("/a/x", "/a"), ("y", ".")]


def test_some_hosts_by_chance(done: list[tuple[Any, Any]]) -> None:
    Path("hf").write_text("me@n1:2200\nn9 port=22\nn[2-8]\n")
    assert cli.main(["dsx", "-H", "hf", "-x", "n2", "--pick", "8", "x"]) == 7
    ((_, one),) = done
    assert one.lists == ("me@n1:2200", "n9 port=22", *(f"n{n}" for n in range(3, 9)))
    cli.main(["dsx", "-H", "hf", "--pick", "2", "x"])
    assert len(done[1][1].lists) == 2
    assert (one.hostfile, one.excluded) == ((), ())


def test_it_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dsx", "-h"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Usage: dsx [OPTIONS] [--] [COMMAND] [ARGS]...")
    assert told.endswith("All options: dsx --help\n")


def test_hosts_of_a_file_are_for_when_no_group_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: list[tuple[Any, Any]]
) -> None:
    monkeypatch.setenv("DISPATCH_CONFIG", str(tmp_path / "own.toml"))
    (tmp_path / "own.toml").write_text("[exec]\nhosts = 'n1'\ngather = true\n[dsx]\nuser = 'me'\n")
    cli.main(["dsx", "x"])
    cli.main(["dsx", "-g", "gpu", "x"])
    assert [one.lists for _, one in done] == [("n1",), ("@gpu",)]
    assert {(one.gather, one.user) for _, one in done} == {(True, "me")}
