"""dispatch.toml: which value wins, and what is said of a file that is wrong."""

from __future__ import annotations

import os

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.cli.options.config_file import Defaults, Setting, parse, settings_chosen
from dispatcher.model.errors import UsageError

COMMANDS = ("run", "exec")


def chosen_of(files: list[Defaults], command: str, profile: str | None) -> dict[str, Setting]:
    return settings_chosen(one for file in files for one in file.entries(command, profile))


USER = """
[all]
user = "ml"
grace = 1
[run]
grace = 2
[profile.night.run]
grace = 3
[profile.night.all]
user = "owl"
"""
PROJECT = """
[run]
grace = 4
hostfile = "hosts"
[profile.day.run]
chdir = "/d"
"""


@cases(
    ("command", "profile", "wanted"),
    [
        ("run", None, {"user": "ml", "grace": 4, "hostfile": "hosts"}),
        ("run", "night", {"user": "owl", "grace": 3, "hostfile": "hosts"}),
        ("run", "day", {"user": "ml", "grace": 4, "hostfile": "hosts", "chdir": "/d"}),
        ("exec", None, {"user": "ml", "grace": 1}),
        ("exec", "night", {"user": "owl", "grace": 1}),
    ],
)
def test_the_narrower_wins(command: str, profile: str | None, wanted: dict[str, object]) -> None:
    files = [parse(USER, "~/u", COMMANDS), parse(PROJECT, "p", COMMANDS, loose=True)]
    found = chosen_of(files, command, profile)
    assert {name: setting.value for name, setting in found.items()} == wanted


@cases(
    ("user", "project", "profile", "wanted"),
    [
        ("[all]\nhostfile = '/lab'", "[all]\nhosts = ['n1']", None, {"hosts": ["n1"]}),
        ("[exec]\nhosts = ['n1']", "[all]\nhostfile = 'lab'", None, {"hostfile": "lab"}),
        ("[all]\nhosts = ['n1']\n[exec]\nhostfile = '/lab'", "", None, {"hostfile": "/lab"}),
        ("[all]\nhosts = ['n1']\nhostfile = '/lab'", "[all]\nuser = 'me'", None,
         {"hosts": ["n1"], "hostfile": "/lab", "user": "me"}),
        ("[profile.x.all]\nhosts = ['n1']", "[exec]\nhostfile = 'lab'", "x", {"hosts": ["n1"]}),
        ("[profile.x.all]\nuser = 'me'", "[exec]\nhostfile = 'lab'", "x",
         {"hostfile": "lab", "user": "me"}),
    ],
)  # fmt: skip
def test_hosts_of_one_table_hold_by_whichever_name(
    user: str, project: str, profile: str | None, wanted: dict[str, object]
) -> None:
    files = [parse(user, "/u", COMMANDS), parse(project, "p", COMMANDS, loose=True)]
    found = chosen_of(files, "exec", profile)
    assert {name: setting.value for name, setting in found.items()} == wanted


@cases(
    ("source", "loose", "value", "taken"),
    [
        ("/own/dispatch.toml", False, "lab", "/own/lab"),
        ("/own/dispatch.toml", False, "n[1-2]", "/own/n[1-2]"),
        ("/own/dispatch.toml", False, "/all/lab", "/all/lab"),
        ("/own/dispatch.toml", False, "~/lab", "/home/me/lab"),
        ("/own/dispatch.toml", False, "-", "-"),
        ("/own/dispatch.toml", False, 3, 3),
        ("sub/x.toml", False, "lab", f"{os.getcwd()}/sub/lab"),
        ("dispatch.toml", True, "n[1-2]", "n[1-2]"),
    ],
)
def test_a_hostfile_is_the_same_in_every_folder(
    source: str, loose: bool, value: object, taken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = Defaults(source, {"run": {"hostfile": value}}, {}, loose=loose)
    assert chosen_of([file], "run", None)["hostfile"].value == taken


def test_both_spellings_are_one_name() -> None:
    file = parse("[all]\nssh_port = 1\n[run]\nssh-port = 2\n", "f", COMMANDS)
    assert {n: s.value for n, s in chosen_of([file], "run", None).items()} == {"ssh-port": 2}


@cases(
    ("text", "said"),
    [
        ("[run", "f: "),
        ("\njson = true", "f:2: json is outside any command's table"),
        ("[rnu]\nuser = 'x'", "f: [rnu]: no such command"),
        ("[profile.a]\nuser = 'x'", "f:2: profile.a.user is outside"),
        ("[profile.a.rnu]\nuser = 'x'", "f: [profile.a.rnu]: no such command"),
        ("profile = 3", "f: profile is not a table"),
        ("[profile]\na = 3", "f: profile.a is not a table"),
        ("[run]\n[profile" + ".x" * 100_000 + "]", "f:2: a line of more than 8192 characters"),
        ("a = " + "1" * 5000, "f: a number with too many digits"),
        ("a = " + "[" * 5000, "f: brackets nested too deep"),
    ],
)
def test_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "f", COMMANDS)
    assert caught.value.message.startswith(said)


@given(
    st.text()
    | st.lists(st.sampled_from(["[exec]", "[all]", "a = 1", "[a]", "=", "[run]"])).map("\n".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    """With what stands above it, if it is read at all."""
    try:
        file = parse(f"[run]\nuser = 'ml'\n{text}", "f", COMMANDS)
    except UsageError as refused:
        assert refused.message.startswith("f: ")  # noqa: PT017 - most are refused
    else:
        assert chosen_of([file], "run", None)["user"].value == "ml"


@cases(
    ("text", "place"),
    [
        ("[run]\nrsh = 'x'", "f.toml:2"),
        ("# rsh = 1\n\n[ run ]  # rsh\n  rsh= 'x'", "f.toml:4"),
        ("[run]\n'rsh' = 'x'", "f.toml:2"),
        ("run.rsh = 'x'", "f.toml:1"),
        ("[exec]\nrsh = 'x'\n[run]\nuser = 'rsh = '\nrsh = 'x'", "f.toml:5"),
        ("run = { rsh = 'x' }", "f.toml:1"),
        ('[run]\n"r\\u0073h" = "x"', "f.toml: [run]"),
    ],
)
def test_the_line_of_an_option(text: str, place: str) -> None:
    file = parse(text, "f.toml", COMMANDS)
    said = [(one.table, one.name) for one in file.entries("run", None) if one.name == "rsh"]
    assert [file.place(*one) for one in said] == [place]


def test_the_line_of_an_option_of_a_profile() -> None:
    text = "[profile.a.run]\nlog_dir = 1\n[profile.b]\nrun.log_dir = 2\n"
    file = parse(text, "f.toml", COMMANDS)
    assert file.place("profile.a.run", "log_dir") == "f.toml:2"
    assert file.place("profile.b.run", "log_dir") == "f.toml:4"
    assert list(file.entries("run", "b")) == [Setting(2, "log_dir", "profile.b.run", file)]
    assert list(file.entries("run", None)) == []
