"""Which files defaults are read from, which wins, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.entry import load_command
from dispatcher.cli.options.option_defaults import (
    file_settings,
    origin,
    read,
    setting_of,
    typed,
    value_origin,
)
from dispatcher.model.errors import UsageError

from ..conftest import Parsed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and a home of one's own; nothing in them."""
    for name in ("DISPATCH_CONFIG", "DISPATCH_SSH_CONFIG", "DISPATCH_PROFILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".config" / "dispatch").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o644)
    return path


def sources() -> list[tuple[str, bool]]:
    return [(file.source, file.loose) for file in read()]


def test_the_narrowest_is_the_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources() == []
    own = write(folder / "home/.config/dispatch/dispatch.toml", "[all]\nuser = 'a'\n")
    assert sources() == [(str(own), False)]
    write(folder / "here/dispatch.toml", "[all]\nuser = 'b'\n")
    assert sources() == [(str(own), False), ("dispatch.toml", True)]
    assert file_settings(load_command("exec"), None)["user"].value == "b"
    other = write(folder / "xdg/dispatch/dispatch.toml", "[all]\nuser = 'c'\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "xdg"))
    assert sources() == [(str(other), False), ("dispatch.toml", True)]
    monkeypatch.setenv("XDG_CONFIG_HOME", "../xdg")  # not from the root: not as specified
    assert sources()[0] == (str(own), False)


def test_one_s_own_file_is_not_that_of_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write(folder / "home/.config/dispatch/dispatch.toml", "[exec]\nrsh = '/r {host}'\n")
    monkeypatch.chdir(own.parent)
    assert sources() == [(str(own), False)]
    assert file_settings(load_command("exec"), None)["rsh"].value == "/r {host}"


@pytest.mark.parametrize(("named", "found"), [("", []), ("other.toml", [("other.toml", False)])])
def test_one_file_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: str, found: list[tuple[str, bool]]
) -> None:
    write(folder / "home/.config/dispatch/dispatch.toml", "[all]\nuser = 'a'\n")
    write(folder / "here/dispatch.toml", "[all]\nuser = 'b'\n")
    write(folder / "here/other.toml", "[exec]\nrsh = 'r {host}'\n")
    monkeypatch.setenv("DISPATCH_CONFIG", named)
    assert sources() == found
    monkeypatch.setenv("DISPATCH_CONFIG", "dispatch.toml")
    assert sources() == [("dispatch.toml", False)]  # named is trusted


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[run]\n\xff", "dispatch.toml: not UTF-8 at byte 6"),
        (b"[run", "dispatch.toml: "),
        (b"[rnu]\n", "dispatch.toml: [rnu]: no such command"),
        (b"#" * ((1 << 20) + 1), "dispatch.toml: more than 1 MiB"),
    ],
)
def test_a_file_that_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, said: str, named: bool
) -> None:
    write(folder / "here/dispatch.toml", text)
    if named:
        monkeypatch.setenv("DISPATCH_CONFIG", "dispatch.toml")
    with pytest.raises(UsageError) as caught:
        read()
    message = caught.value.message
    assert message.removeprefix("DISPATCH_CONFIG: ").startswith(said)
    assert message.startswith("DISPATCH_CONFIG: ") is (named and "more than" in said)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("fold = true", "fold", True),
        ("fold = false", "fold", False),
        ("grace = 3", "grace", "3"),
        ("grace = 0.5", "grace", "0.5"),
        ("grace = '4'", "grace", "4"),
        ("export = ['LANG=1', 'UCX_TLS=2']", "exports", ["LANG=1", "UCX_TLS=2"]),
        ("export = 'LANG=1'", "exports", ["LANG=1"]),
        ("hosts = 'n1'", "lists", ["n1"]),
        ("hosts = ['n1']", "lists", ["n1"]),
        ("map_by = 'node'", "map_by", "node"),
    ],
)
def test_a_value_as_the_command_line_would_have_it(
    folder: Path, text: str, name: str, value: object
) -> None:
    write(folder / "here/dispatch.toml", f"[run]\n{text}\n")
    assert file_settings(load_command("run"), None)[name].value == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fold = 'yes'", "fold: must be true or false, not 'yes'"),
        ("fold = 1", "fold: must be true or false, not 1"),
        ("grace = true", "grace: must be a text or a number, not True"),
        ("grace = ['1']", "grace: must be a text or a number, not ['1']"),
        ("export = 3", "export: must be a text or a list of texts, not 3"),
        ("export = ['A', 3]", "export: must be a text or a list of texts, not ['A', 3]"),
        ("nosuch = 1", "nosuch: a folder's file may not say that"),
        ("version = true", "version: "),
        ("separator = ','", "separator: run has no such option"),
    ],
)
def test_a_value_that_cannot_be(folder: Path, text: str, said: str) -> None:
    path = write(folder / "home/.config/dispatch/dispatch.toml", f"[run]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        file_settings(load_command("run"), None)
    message = caught.value.message
    if "may not" in said or said == "version: ":
        assert f"{text.split()[0]}: run has no such option" in message
    else:
        assert message == f"{path} [run]: {said}"


def test_what_is_for_all_is_for_those_who_have_it(folder: Path) -> None:
    write(folder / "here/dispatch.toml", "[all]\nseparator = ','\nfold = true\n")
    assert set(file_settings(load_command("hosts"), None)) == {"separator", "fold_them"}
    assert set(file_settings(load_command("run"), None)) == {"fold"}
    assert file_settings(load_command("jobs"), None) == {}


@pytest.mark.parametrize(
    ("files", "hint"), [(False, "home/.config/dispatch/dispatch.toml"), (True, "there are: night")]
)
def test_a_profile_that_is_not_there(folder: Path, files: bool, hint: str) -> None:
    if files:
        write(folder / "here/dispatch.toml", "[profile.night.run]\ngrace = 3\n")
    with pytest.raises(UsageError) as caught:
        file_settings(load_command("run"), "noon")
    assert caught.value.message.startswith("--profile noon: ")
    assert (caught.value.hint or "").endswith(hint)


# -- who says so --------------------------------------------------------------------------


def test_who_says_what(folder: Path, parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "here/dispatch.toml", "[all]\nhostfile = 'n1'\nuser = 'ml'\nexclude = ['n9']\n")
    monkeypatch.setenv("DISPATCH_SSH_CONFIG", "/c")
    options = parsed("exec", "-w", "n2", "--user", "me", "true")
    assert (options.hostfile, options.user, options.excluded) == (("n1",), "me", ("n9",))
    assert options.ssh_config == "/c"
    assert [typed(name) for name in ("lists", "user", "hostfile", "excluded")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert origin("excluded") == "dispatch.toml [all]: exclude"
    assert origin("user") is None
    assert origin("ssh_config") is None
    assert origin("keep") is None
    setting = setting_of("hostfile")
    assert setting is not None
    assert (setting.value, setting.file.loose) == (["n1"], True)
    assert value_origin("excluded", "-x") == "dispatch.toml [all]: exclude"
    assert value_origin("lists", "-w") == "-w"


@cases(
    ("line", "words", "said"),
    [
        ("np = 2.5", ["run", "a.py"], "dispatch.toml [all]: np: not a whole number: '2.5'"),
        ("grace = '5s'", ["exec", "true"],
         "dispatch.toml [all]: grace: not a number of seconds: '5s'"),
        ("serial = 'x'", ["exec", "true"], "dispatch.toml [all]: serial: not a whole number: 'x'"),
        ("serial = '1'", ["exec", "--serial", "x", "true"], "--serial: not a whole number: 'x'"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_of_the_place_that_says_it(
    folder: Path, line: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "here/dispatch.toml", f"[all]\n{line}\n")
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said} [bad-value]\n  hint: --")


def test_a_profile_fills_in_before_all_else(folder: Path, parsed: Parsed) -> None:
    write(folder / "here/dispatch.toml", "[profile.night.exec]\nuser = 'owl'\n")
    assert parsed("exec", "true", "--profile", "night").user is None  # the program's own word
    assert parsed("exec", "--profile", "night", "true").user == "owl"


def test_a_name_that_the_command_does_not_have(parsed: Parsed) -> None:
    parsed("jobs")
    with pytest.raises(AssertionError, match="jobs has no option 'hostfile'"):
        typed("hostfile")


def test_a_file_says_how_config_shows_itself(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "here/dispatch.toml", "[all]\njson = true\n[exec]\nfanout = 5\n")
    assert cli.main(["config", "exec"]) == 0
    assert '"option": "--fanout"' in capsys.readouterr().out
