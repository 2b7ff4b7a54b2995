"""Hostfiles: every dialect to hosts, every mistake at its line and column."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import HostfileError, Problem, UsageError
from dispatcher.model.names import MOST_PROBLEMS, BadName, line_problem
from dispatcher.plan.hosts import hostfile
from dispatcher.plan.hosts.hostfile import (
    MOST_BYTES,
    Host,
    Hostlist,
    looks_like_path,
    parse_hostfile,
    parse_inline,
    read_hostfile,
    read_hosts,
)

EXAMPLES = Path(__file__).parents[3] / "hostfiles"


def members(_: str) -> list[str]:
    return ["g1", "g2"]


def parse(text: bytes | str) -> Hostlist:
    return parse_hostfile(text, "hf", members)


def brief(found: Hostlist) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in found.hosts]


@cases(
    ("text", "hosts"),
    [
        # DeepSpeed, as its tests and its users write them
        ("worker-1 slots=2", [("worker-1", 2)]),
        ("123.23.12.10 slots=2", [("123.23.12.10", 2)]),
        ("a slots=1\n\n#b slots=3\n# text\nc slots=2", [("a", 1), ("c", 2)]),
        ("w\tslots=4", [("w", 4)]),
        ("  w slots=2", [("w", 2)]),
        ("w slots=2\r\nv slots=3\r\n", [("w", 2), ("v", 3)]),
        ("w slots=2\r", [("w", 2)]), ("w slots=2 # c", [("w", 2)]), ("w slots=04", [("w", 4)]),
        ("fe80::1 slots=2", [("fe80::1", 2)]),
        ("a slots=1\na.example.com slots=1\nA slots=1", [("a", 1), ("a.example.com", 1), ("A", 1)]),
        # Open MPI
        ("w slots = 2", [("w", 2)]), ("w max_slots=4 slots=2", [("w", 2)]), ("w cpu=3", [("w", 3)]),
        ("w count=3 // why", [("w", 3)]), ("// all of it\nw", [("w", None)]),
        # MPICH
        ("w:2", [("w", 2)]),
        ("a:2,b:3", [("a", 2), ("b", 3)]),
        # plain, ranges, groups
        ("w", [("w", None)]),
        ("a,b", [("a", None), ("b", None)]),
        ("a, b ,c slots=2", [("a", 2), ("b", 2), ("c", 2)]),
        ("n[2-3,1]:4", [("n2", 4), ("n3", 4), ("n1", 4)]),
        ("n[1, 3] slots=2", [("n1", 2), ("n3", 2)]),
        ("n[1-3]!n2 slots=2", [("n1", 2), ("n3", 2)]),
        ("@rack slots=2", [("g1", 2), ("g2", 2)]),
        # bytes, marks, ends
        (b"\xef\xbb\xbfw slots=2", [("w", 2)]),
        ("\ufeffw", [("w", None)]),
        (b"w # caf\xc3\xa9 \xc2\xa0", [("w", None)]),
        # repeated hosts
        ("a\na\na\nb\nb", [("a", 3), ("b", 2)]), ("a\na\nb", [("a", 2), ("b", 1)]),
        ("a\nb\na", [("a", 2), ("b", 1)]), ("a,a,b", [("a", 2), ("b", 1)]),
        ("a\na\nb slots=4", [("a", 2), ("b", 4)]), ("a\nb", [("a", None), ("b", None)]),
    ],
)  # fmt: skip
def test_dialects(text: bytes | str, hosts: list[tuple[str, int | None]]) -> None:
    assert brief(parse(text)) == hosts


def test_that_hosts_are_repeated_is_told() -> None:
    told = "hf: hosts are repeated, so each line counts one slot: a"
    assert parse("a\na").notices == (told,)
    assert parse("a\nb").notices == ()


@cases(
    ("text", "host"),
    [
        ("train@n1:2222", Host("n1", user="train", port=2222, origin="hf:1")),
        ("[::1]:22", Host("::1", port=22, origin="hf:1")),
        ("u@[fe80::1%eth0]:2", Host("fe80::1%eth0", user="u", port=2, origin="hf:1")),
        ("[::1] slots=2", Host("::1", slots=2, origin="hf:1")),
        ("u@::1", Host("::1", user="u", origin="hf:1")),
        ("n1 user=u port=7 slots=2", Host("n1", 2, user="u", port=7, origin="hf:1")),
        ("n1 slots=2 max-slots=9", Host("n1", 2, 9, origin="hf:1")),
        ("n1 gpus=2,0", Host("n1", 2, gpus=("2", "0"), origin="hf:1")),
        ("n1 gpus=4-6", Host("n1", 3, gpus=("4", "5", "6"), origin="hf:1")),
        ("n1 gpus=GPU-a1,GPU-b2", Host("n1", 2, gpus=("GPU-a1", "GPU-b2"), origin="hf:1")),
        ("n1 gpus=MIG-GPU-a/1/0", Host("n1", 1, gpus=("MIG-GPU-a/1/0",), origin="hf:1")),
        ("n1 python=/opt/py/bin/python", Host("n1", python="/opt/py/bin/python", origin="hf:1")),
        (
            """n1 env=A=b=c env=B='x # y' env="C=a \\" b" env=D= env=E=#fff env=F="$HOME" # c""",
            Host(
                "n1",
                env=(("A", "b=c"), ("B", "x # y"), ("C", 'a " b'), ("D", ""), ("E", "#fff"),
                     ("F", "$HOME")),
                origin="hf:1",
            ),
        ),
    ],
)  # fmt: skip
def test_options(text: str, host: Host) -> None:
    assert parse(text).hosts == (host,)


def test_two_ports_of_one_name_are_two_hosts() -> None:
    found = parse("127.0.0.1 port=2201 slots=2\n127.0.0.1 port=2202 slots=2")
    assert [host.port for host in found.hosts] == [2201, 2202]


@cases(
    ("text", "notices"),
    [
        ("h,h", ()), ("h:4,h", ()), ("h:4,h:2", ()), ("u@h:8", ()), ("h gpus=8", ()),
        ("h:22", ("-w: 'h:22': 22 is not read as a port; for a port write: h port=22",)),
    ],
)  # fmt: skip
def test_where_nobody_asks_for_slots(text: str, notices: tuple[str, ...]) -> None:
    found = parse_inline(text, "-w", slots=False)
    assert brief(found) == [("h", None)]
    assert found.notices == notices


@cases(
    ("source", "text", "said"),
    [
        ("-w", "n[1-", "-w: '[' without its ']'\n  n[1-\n   ^"),
        ("", "n[1-", "'[' without its ']'\n  n[1-\n   ^"),
        ("-w", "n1:2,n1", "-w: n1 is already in the list, and one of them has a slot count"),
        ("-w", "n1\nn[1-", "-w:2:2: '[' without its ']'"),
        ("-w", "", "-w: empty"),
    ],
)
def test_what_was_typed_has_no_line(source: str, text: str, said: str) -> None:
    with pytest.raises(HostfileError) as caught:
        parse_inline(text, source)
    assert caught.value.message.startswith(said)


def test_all_mistakes_come_together_each_with_its_place() -> None:
    text = "n1 slots=two\nok slots=2\n-bad\nn2 slot=4 port=0\nok slots=4\n"
    with pytest.raises(HostfileError) as caught:
        parse(text)
    found = [(p.line, p.column, p.message.split(":")[0]) for p in caught.value.problems]
    assert found == [
        (1, 10, "slots"),
        (3, 1, "host name starts with '-'"),
        (4, 4, "unknown key 'slot'"),
        (4, 16, "port"),
        (5, 1, "ok is already on line 2, and one of them has a slot count"),
    ]
    shown = str(caught.value)
    assert "hf:1:10: slots: not a whole number: 'two'\n  n1 slots=two\n           ^" in shown
    assert "hint: did you mean slots=?" in shown
    assert "the other reads: ok slots=2" in shown


@cases("wrong", [MOST_PROBLEMS - 1, MOST_PROBLEMS, MOST_PROBLEMS + 5])
def test_many_mistakes_are_cut_short(wrong: int) -> None:
    with pytest.raises(HostfileError) as caught:
        parse("-bad\n" * wrong)
    problems = caught.value.problems
    assert len(problems) == min(wrong, MOST_PROBLEMS)
    assert problems[-1].line == min(wrong, MOST_PROBLEMS)
    stopped = f"more than {MOST_PROBLEMS} mistakes: stopped reading here"
    assert (problems[-1].message == stopped) == (wrong >= MOST_PROBLEMS)


def test_of_mistakes_and_contradictions_the_first_are_told() -> None:
    with pytest.raises(HostfileError) as caught:
        parse("a slots=1\n" * 60 + "-bad\n" * 60)
    problems = caught.value.problems
    assert [problem.line for problem in problems] == list(range(2, MOST_PROBLEMS + 2))
    assert problems[58].message.startswith("a is already on line 1")
    assert problems[59].message.startswith("host name starts with")


def test_a_long_line_is_shown_for_few_of_its_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shows the line as far as it: for thousands that would be seconds."""
    told: list[int] = []
    really = line_problem

    def noted(source: str, number: int, line: str, bad: BadName, width: int = 1) -> Problem:
        told.append(bad.offset)
        return really(source, number, line, bad, width)

    monkeypatch.setattr(hostfile, "line_problem", noted)
    with pytest.raises(HostfileError) as caught:
        parse_inline("n1:2,n2:2" + ",n2,n1" * 2000)
    assert told == [10 + 3 * at for at in range(MOST_PROBLEMS)]
    assert len(caught.value.problems) == MOST_PROBLEMS


def test_a_mistake_far_to_the_right_is_shown_with_its_surroundings() -> None:
    text = ",".join(f"n{i}" for i in range(1000)) + ",n{1},n2"
    with pytest.raises(HostfileError) as caught:
        parse(text)
    head, shown, caret, hint = str(caught.value).split("\n")
    assert head.startswith(f"hf:1:{text.index('{') + 1}: ")
    assert shown[caret.index("^")] == "{"
    assert len(shown) < 130
    assert hint == "  hint: ranges are written n[1-3]"


def test_inline_hosts_come_from_the_flag() -> None:
    found = parse_inline("n[001-002]:2,login")
    assert found.hosts == (
        Host("n001", 2, origin="-H"),
        Host("n002", 2, origin="-H"),
        Host("login", origin="-H"),
    )
    assert parse_inline("user@h:22").hosts == (Host("h", user="user", port=22, origin="-H"),)
    assert brief(parse_inline("user@node[1-2]")) == [("node1", None), ("node2", None)]
    assert brief(parse_inline("n[1-9]!n[2-8]")) == [("n1", None), ("n9", None)]
    assert brief(parse_inline("n1 slots=4 gpus=0-3")) == [("n1", 4)]


def test_read_hosts_takes_a_file_a_list_or_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "hosts with blank.txt"
    path.write_bytes(b"n1 slots=2\r\n")
    assert brief(read_hosts(str(path), lambda: b"")) == [("n1", 2)]
    assert read_hosts(str(path), lambda: b"").hosts[0].origin == f"{path}:1"
    assert brief(read_hosts("-", lambda: b"n1\nn2:3\n")) == [("n1", None), ("n2", 3)]
    assert brief(read_hosts("n[1-2],n4", lambda: b"")) == [("n1", None), ("n2", None), ("n4", None)]
    assert brief(read_hosts("n[0-2/2]", lambda: b"")) == [("n0", None), ("n2", None)]


def test_read_hosts_reads_a_pipe(tmp_path: Path) -> None:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: Path(path).write_text("n1:2\n"), name="writer")
    writer.start()
    try:
        assert brief(read_hosts(path, lambda: b"")) == [("n1", 2)]
    finally:
        writer.join(10)


def test_read_hosts_says_why_a_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    big = tmp_path / "big"
    big.write_bytes(b"#" * ((16 << 20) + 1))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "gpu01").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for spec, why in [
        (str(big), "more than 16 MiB"), (str(tmp_path), "is a directory"),
        ("gpu01", "write gpu01:SLOTS"), ("gone", "No such file"), (str(big) + "/x", "no such file"),
        ("hosts.txt", "no such file"), ("a\0b", "NUL"), ("/dev/zero", "more than 16 MiB"),
    ]:  # fmt: skip
        with pytest.raises(UsageError) as caught:
            read_hosts(spec, lambda: b"")
        assert why in f"{caught.value.message} {caught.value.hint}"
    with pytest.raises(UsageError, match="standard input: more than 16 MiB"):
        read_hosts("-", lambda: b"#" * ((16 << 20) + 1))
    assert brief(read_hosts("gpu01:4", lambda: b"")) == [("gpu01", 4)]


def test_an_unreadable_file_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("n1\n")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        read_hosts(str(path), lambda: b"")


def test_there_is_an_example_of_each_dialect() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {
        "deepspeed", "groups", "localhost", "mpich", "openmpi", "pbs", "per_host", "plain",
        "pssh", "ranges", "two_hosts",
    }  # fmt: skip


@cases(
    ("name", "n_hosts", "n_slots"),
    [
        ("localhost", 1, 2), ("two_hosts", 2, 16), ("deepspeed", 3, 10), ("openmpi", 4, 12),
        ("mpich", 3, 20), ("pssh", 4, 0), ("plain", 3, 0), ("pbs", 2, 5), ("ranges", 17, 69),
        ("groups", 2, 12), ("per_host", 5, 13),
    ],
)  # fmt: skip
def test_the_examples_parse(name: str, n_hosts: int, n_slots: int) -> None:
    def resolve(group: str) -> list[str]:
        return ["g1"] if group == "@rack1" else ["g2"]

    found = parse_hostfile((EXAMPLES / name).read_bytes(), name, resolve)
    assert len(found.hosts) == n_hosts
    assert sum(host.slots or 0 for host in found.hosts) == n_slots
    assert (EXAMPLES / name).read_text().startswith("# "), "says what it shows"


line = st.text(alphabet="n1@:[]-,= #'\"/slotgpuenv0A!&^%\t\\", max_size=40)


@given(st.lists(line, max_size=4).map("\n".join))
def test_any_text_gives_hosts_or_problems_at_real_places(text: str) -> None:
    try:
        found = parse(text)
    except HostfileError as error:
        lines = text.split("\n")
        for problem in error.problems:
            assert 1 <= problem.line <= len(lines)
            assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
    else:
        assert found.hosts
        places = [host.place for host in found.hosts]
        assert len(set(places)) == len(places)
        assert all(host.slots is None or host.slots >= 1 for host in found.hosts)


@given(st.binary(max_size=60))
def test_any_bytes_give_hosts_or_a_hostfile_error(text: bytes) -> None:
    with contextlib.suppress(HostfileError):
        assert parse(text).hosts


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(1, 64)), min_size=1, unique_by=lambda x: x[0]
    )
)
def test_all_dialects_of_one_list_say_the_same(hosts: list[tuple[int, int]]) -> None:
    openmpi = "".join(f"n{n} slots={s}\n" for n, s in hosts)
    mpich = "\r\n".join(f"n{n}:{s}" for n, s in hosts)
    inline = ",".join(f"n{n}:{s}" for n, s in hosts)
    wanted = [(f"n{n}", s) for n, s in hosts]
    assert brief(parse(openmpi)) == brief(parse(mpich)) == brief(parse_inline(inline)) == wanted


@cases(
    ("spec", "is_one"),
    [
        ("-", False), ("-/x", False), ("n1", False), ("n[0-8/2]", False), ("n[0/2", False),
        ("a/b", True), ("n[0-8/2]/x", True), (".x", True), ("~", True), ("x.TXT", True),
        ("x.hosts", True), ("hosts", True), ("HostFile", True), ("hosts1", False), ("txt", False),
        ("n1.txt.org", False),
    ],
)  # fmt: skip
def test_what_can_only_be_a_path(spec: str, is_one: bool) -> None:
    assert looks_like_path(spec) is is_one


def test_a_file_s_mistakes_are_told_of_the_option_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError) as caught:
        read_hostfile("a b/gone", "--hosts")
    assert caught.value.message == "--hosts: 'a b/gone': no such file"
    assert caught.value.hint == "look in its folder: ls 'a b'"
    with pytest.raises(UsageError) as caught:
        read_hostfile("gone", "--hosts")
    assert caught.value.hint == "look in its folder: ls ."
    with pytest.raises(UsageError) as caught:
        read_hostfile("x" * 200, "--hosts")
    assert caught.value.hint is None
    for spec, said in (
        ("d", "-w: 'd' is a directory"),
        ("a/b", "-w: 'a/b': no such file"),
        ("a\0", "-w: a NUL byte in the value"),
        ("n[1-", "-w: '[' without its ']'"),
    ):
        with pytest.raises(UsageError) as caught:
            read_hosts(spec, lambda: b"", option="-w")
        assert caught.value.message.startswith(said)
    with pytest.raises(UsageError, match=r"^-w: standard input: more than 16 MiB"):
        read_hosts("-", lambda: b"#" * (MOST_BYTES + 1), option="-w")
    with pytest.raises(HostfileError, match=r"^<stdin>:1:1: empty"):
        read_hosts("-", lambda: b"")


def test_slots_and_groups_count_wherever_hosts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    text = b"@g slots=2 max_slots=4\n" + (b"#".ljust(1 << 16, b".")[:-1] + b"\n") * 300
    path.write_bytes(text[: MOST_BYTES - 1] + b"\n")  # just as many as are read
    line = "@g slots=2 max_slots=4"
    for spec in (str(path), "-", line):
        found = read_hosts(spec, line.encode, members)
        assert brief(found) == [("g1", 2), ("g2", 2)]
        found = read_hosts(spec, line.encode, members, slots=False)
        assert [(h.name, h.slots, h.max_slots) for h in found.hosts] == [
            ("g1", None, None), ("g2", None, None),
        ]  # fmt: skip
    assert brief(read_hostfile(str(path), "-H", members)) == [("g1", 2), ("g2", 2)]
    assert parse_inline("h gpus=0-3", slots=False).hosts == (Host("h", origin="-H"),)


INCLUDES = {
    "a": "n1\n#include b\nn4 slots=2\n", "b": "n2\n#include sub/c\n# include x\n#include the new\n",
    "sub/c": "n3\n", "own": "n1\n#include own\n", "round": "#include back\n",
    "back": "#include round\n", "gone": "n1\n#include no\n", "twice": "n1 slots=3\n#include a\n",
    "wrong": "#include sub/w\n", "sub/w": "n1\nn_ [\n",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a", ["n1", "n2", "n3", "n4"]),
        ("own", "own:2: 'own': included twice, or behind 100 others"),
        ("round", "back:1: 'round': included twice"),
        ("gone", "gone:2: 'no': No such file or directory"),
        ("twice", "a:1:1: n1 is already in twice:1, and one of them has a slot count"),
        ("wrong", "sub/w:2:4: "),
    ],
)
def test_files_that_a_file_includes_as_for_pdsh(
    name: str, said: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    for file, text in INCLUDES.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    if isinstance(said, list):
        assert [host.name for host in read_hostfile(name, "-H").hosts] == said
        found = read_hosts("-", lambda: INCLUDES[name].encode())
        assert [host.name for host in found.hosts] == said
        assert [host.name for host in parse_hostfile(INCLUDES[name], "f").hosts] == ["n1", "n4"]
        return
    with pytest.raises(UsageError) as caught:
        read_hostfile(name, "-H")
    assert str(caught.value).startswith(str(said))


def test_a_chain_of_files_has_an_end(tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / f"f{n}").write_text(f"n{n}\n#include f{n + 1}\n")
    with pytest.raises(UsageError, match="behind 100 others"):
        read_hostfile(str(tmp_path / "f0"), "-H")
