"""Host expressions: what they expand to, and agreement with ClusterShell."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import cases
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model import hostset
from dispatcher.model.hostset import LIMIT, LONGEST_TEXT, HostsetError, expand, fold, split_list
from dispatcher.model.names import BadName, check_host, check_user


def members(_: str) -> list[str]:
    return ["g1", "g2", "g3"]


# Expression and names. Mostly ClusterShell's results; where the order differs it is
# because the written order is kept.
VECTORS = [
    ("node1", "node1"), ("node[1-3]", "node1 node2 node3"), ("node[01-03]", "node01 node02 node03"),
    ("node[8-11]", "node8 node9 node10 node11"), ("node[08-11]", "node08 node09 node10 node11"),
    ("node[008-011]", "node008 node009 node010 node011"),
    ("node[1,3,5-7]", "node1 node3 node5 node6 node7"),
    ("node[3,1,2,2]", "node3 node1 node2"),
    ("node[0-10/2]", "node0 node2 node4 node6 node8 node10"),
    ("node[1-10/3]", "node1 node4 node7 node10"),
    ("node[01-10/3]", "node01 node04 node07 node10"),
    ("node[1-4/4]", "node1"),
    ("node[1-7/02]", "node1 node3 node5 node7"),
    ("node[1-3]-ib0", "node1-ib0 node2-ib0 node3-ib0"),
    ("cluster[50-52]-ipmi", "cluster50-ipmi cluster51-ipmi cluster52-ipmi"),
    ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
    ("r[1-2]0n[1-2]", "r10n1 r10n2 r20n1 r20n2"),
    ("r[1-2]n[01-02]-ib0", "r1n01-ib0 r1n02-ib0 r2n01-ib0 r2n02-ib0"),
    ("rack[1-2]-node[1-3/2]", "rack1-node1 rack1-node3 rack2-node1 rack2-node3"),
    ("d[1-2]r[1-2]n[1-2]", "d1r1n1 d1r1n2 d1r2n1 d1r2n2 d2r1n1 d2r1n2 d2r2n1 d2r2n2"),
    ("[1-3].example.com", "1.example.com 2.example.com 3.example.com"),
    ("10.0.[0-1].[1-2]", "10.0.0.1 10.0.0.2 10.0.1.1 10.0.1.2"),
    ("node1[0-2]", "node10 node11 node12"),
    ("node01[0-1]", "node010 node011"),
    ("prod-02[10-12]", "prod-0210 prod-0211 prod-0212"),
    ("prod-100[040-042]", "prod-100040 prod-100041 prod-100042"),
    ("node-1[0-48/16]", "node-10 node-116 node-132 node-148"),
    ("n1[01-09/4]", "n101 n105 n109"),
    ("node[1-2]5", "node15 node25"),
    ("node[1-2]5x", "node15x node25x"),
    ("node[1-3],node[2-4]", "node1 node2 node3 node4"),
    ("node[1-3],gpu[1-2],login", "node1 node2 node3 gpu1 gpu2 login"),
    ("z,a,z", "z a"), ("node[1-5]!node[2-3]", "node1 node4 node5"),
    ("node[1-5]&node[4-8]", "node4 node5"), ("node[1-3]^node[3-4]", "node1 node2 node4"),
    ("node[1-4]!node[2-3],node3", "node1 node4 node3"),
    ("node[1,01,001]", "node1 node01 node001"),
    ("node[1-2],node[01-02]", "node1 node2 node01 node02"),
    ("node[000]", "node000"), ("node[00-0]", "node00"), ("[01-03]", "01 02 03"),
    ("fe80::1:[2-3]", "fe80::1:2 fe80::1:3"),
    (" node1 , node[ 2 - 3 ] ", "node1 node2 node3"),
    # the left bound sets the width, as in Slurm and pdsh
    ("node[01-3]", "node01 node02 node03"), ("node[001-3]", "node001 node002 node003"),
    ("node[099-101]", "node099 node100 node101"), ("node[99-101]", "node99 node100 node101"),
    ("node[08-101/31]", "node08 node39 node70 node101"),
    ("node[0-2]", "node0 node1 node2"),
    # ClusterShell makes 92 names of the first and refuses the second
    ("node1[9-10]", "node19 node110"),
    ("node01[9-10]", "node019 node0110"),
    # groups
    ("@rack1", "g1 g2 g3"),
    ("@slurm:gpu!g2", "g1 g3"),
    ("n1,@all", "n1 g1 g2 g3"),
]  # fmt: skip


@cases(("text", "names"), VECTORS)
def test_expands(text: str, names: str) -> None:
    assert expand(text, resolve=members) == names.split()


#: where we differ on purpose
ANOTHER_MEANING = {"node[00-0]", "node1[9-10]", "node01[9-10]", "node[001-3]", "node[08-101/31]"}


@cases(
    "text",
    [
        text
        for text, _ in VECTORS
        if "@" not in text and "[01-3]" not in text and text not in ANOTHER_MEANING
    ],
)
def test_agrees_with_clustershell_where_it_is_right(text: str) -> None:
    from ClusterShell.NodeSet import NodeSet, NodeSetParseError

    try:
        theirs = set(NodeSet(text))
    except NodeSetParseError as error:
        pytest.fail(f"ClusterShell refuses {text}: {error}")
    assert set(expand(text)) == theirs


def test_a_bomb_is_refused_before_anything_is_allocated() -> None:
    started = time.process_time()
    for text in ("n[0-999999999]", "a[0-99999]b[0-99999]c[0-99999]", "n[0-999999999999999999]"):
        with pytest.raises(HostsetError, match="too many hosts"):
            expand(text)
    assert time.process_time() - started < 1.0


def test_a_long_text_is_refused_before_it_is_looked_at() -> None:
    assert expand("n1".ljust(LONGEST_TEXT)) == ["n1"]
    with pytest.raises(HostsetError, match="characters"):
        expand("n1".ljust(LONGEST_TEXT + 1))


def test_the_limit_is_inclusive() -> None:
    assert len(expand(f"n[1-{LIMIT}]")) == LIMIT
    with pytest.raises(HostsetError):
        expand(f"n[0-{LIMIT}]")


@cases(
    ("text", "offset"),
    [
        ("node1,,node2", 6), ("n[1-3", 1), ("ok,n[1-x]", 5), ("ok,-bad", 3), ("ok, n{1}", 5),
        ("a!b]", 3), ("[[1]", 1), ("]", 0), ("", 0), ("  ", 0), ("n1,", 2), ("n1, ,n2", 4),
        (",n1", 0), ("n1, a b", 5), ("ab,n[1-2,5-3]", 9), ("ab,n[1-2, ,3]", 9), ("ab,n[1-2/0]", 5),
        ("ab,n[1-03]", 5), ("ab,n[1][2]", 7), ("ab,n[0-4/2]5", 11), ("ab,n[1]5[2]", 7),
        ("n1, n[1-99999]", 4), ("n1,ok[1-2]-{", 5), ("n1, @bad-", 4), ("n1,ok[1-2]a b", 11),
        ("n1,@ x", 4),
    ],
)  # fmt: skip
def test_an_error_points_at_its_place(text: str, offset: int) -> None:
    with pytest.raises(HostsetError) as caught:
        expand(text, resolve=lambda _: ["-l"])
    assert caught.value.offset == offset


@cases(
    ("text", "said", "hint"),
    [
        ("", "empty host list", "name a host, a range n[1-4], or a group @rack1"),
        ("n1,", "a host is missing after ','", None),
        ("n1!,n2", "a host is missing before ','", None),
        ("a b", "a blank inside a name", "separate hosts by commas"),
        ("n[1,[2]]", "a '[' inside brackets", "brackets do not nest"),
        ("n[]", "an empty range", "a range is 1-16 or 0-14/2; several are separated by commas"),
        ("n[ x ]", "not a range: 'x'",
         "a range is 1-16 or 0-14/2; several are separated by commas"),
        ("n[1-03]", "the bounds disagree on leading zeros: 1-03", "write [01-03]"),
        ("n[3-1]", "a range that runs backwards: 3-1", None),
        ("[1", "'[' without its ']'", None),
        ("n1]", "']' without its '['", None),
        (f"n[{'1' * 19}]", "a number of more than 18 digits", None),
        (f"n[1-2/{'1' * 19}]", "a number of more than 18 digits", None),
        ("n[1-4],m", "too many hosts: 4 in 'n[1-4],m', room for 3",
         "check the bounds of the range"),
        ("n1,m[1-3]", "too many hosts: 3 in 'n1,m[1-3]', room for 2",
         "check the bounds of the range"),
        ("n1!n1", "no host is left: 'n1!n1'", None),
        ("@none", "group '@none' is unknown or empty", "list the groups with: cluset -L"),
        ("@many", "group '@many' has more than 3 hosts", None),
        ("@few,@other", "too many hosts: more than 3", None),
        ("@evil", "group '@evil': \"{\" has no place", "ranges are written n[1-3]"),
        ("@option", "group '@option': host name starts with '-'",
         "a host name starts with a letter or a digit; ssh options go elsewhere"),
        ("@a/b", "not a group name: '@a/b'", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, said: str, hint: str | None) -> None:
    groups = {
        "@many": ["a", "b", "c", "d"], "@few": ["a", "b"], "@other": ["c", "d"], "@evil": ["n{1}"],
        "@option": ["-oProxyCommand=x"],
    }  # fmt: skip
    with pytest.raises(HostsetError) as caught:
        expand(text, limit=3, resolve=lambda name: groups.get(name, []))
    assert caught.value.message.startswith(said.replace('"', "'"))
    assert caught.value.hint == hint


def test_what_operands_add_up_to_is_bounded_and_no_more() -> None:
    groups = {"@three": ["a", "b", "c"], "@same": ["c", "b", "a"]}
    assert expand("n[1-2],m", limit=3) == ["n1", "n2", "m"]
    for text in ("n[0-4/2]", "n[1-6/2]", "n[1,3-4]", "n[2-4/9,7-8]"):
        assert len(expand(text, limit=3)) == 3
        with pytest.raises(HostsetError, match="too many hosts: 3 in"):
            expand(text, limit=2)
    assert expand("@three,@same", limit=3, resolve=groups.__getitem__) == ["a", "b", "c"]
    assert len(expand(f"n[{10**17}-{10**17 + 2}]", limit=3)) == 3


def test_a_group_that_may_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by a process of its own, since ClusterShell reads its files once."""
    (tmp_path / "groups.conf").write_text(
        "[Main]\ndefault: local\n"
        "[local]\nmap: echo n1\nlist: echo rack1 rack2 compute\n"
        "[slurm]\nmap: echo n2\nlist: echo debug\n"
    )
    probe = (
        "from dispatcher.model.hostset import HostsetError, expand, group_names\n"
        "print(group_names(), group_names('@slurm:d'), group_names('@absent:'))\n"
        "import dispatcher.model.hostset as hostset\n"
        "for text in ('@comptue', '@rack3', '@slurm:debgu'):\n"
        "    try: expand(text, resolve=lambda name: [])\n"
        "    except HostsetError as error: print(error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "['@compute', '@rack1', '@rack2'] ['@slurm:debug'] []",
        "did you mean @compute?",
        "list the groups with: cluset -L",
        "did you mean @slurm:debug?",
    ]


def test_groups_are_those_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostset, "groups", lambda text: ["a1", "a2"] if text == "@rack" else [])
    assert expand("@rack,b") == ["a1", "a2", "b"]
    with pytest.raises(HostsetError):
        expand("@none")


def test_plain_names_and_ranges_do_not_load_clustershell() -> None:
    code = (
        "import sys; from dispatcher.model.hostset import expand, fold;"
        "expand('n[1-3],login!n2'); fold(['n1', 'n2', 'r1c1', 'r1c2', 'r2c1']);"
        "sys.exit(any(name.startswith('ClusterShell') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


number = st.integers(0, 120)


@given(
    st.lists(
        st.tuples(number, st.integers(0, 12), st.integers(1, 5), st.integers(1, 4)), min_size=1
    ),
    st.sampled_from(["n", "n1", "r2-", ""]),
    st.sampled_from(["", "-ib0", ".org"]),
)
def test_expansion_is_the_text_with_each_number_put_in(
    ranges: list[tuple[int, int, int, int]], prefix: str, suffix: str
) -> None:
    texts, wanted = [], set()
    for first, length, step, width in ranges:
        if width > 1 and len(str(first)) >= width:
            width = 1
        last = first + length
        texts.append(f"{first:0{width}}-{last}/{step}")
        wanted |= {f"{prefix}{n:0{width}}{suffix}" for n in range(first, last + 1, step)}
    assert set(expand(f"{prefix}[{','.join(texts)}]{suffix}")) == wanted


@given(st.text(alphabet="n1-9[],!&^@:/ .0\t\n-x", max_size=30))
def test_any_text_gives_names_or_our_error(text: str) -> None:
    try:
        names = expand(text, limit=5000, resolve=members)
    except HostsetError as error:
        place = error.offset
    else:
        place = 0
        assert names
        assert len(set(names)) == len(names)
        assert all(check_host(name) == name for name in names)
    assert 0 <= place <= len(text)


def test_split_list_keeps_brackets_whole() -> None:
    assert split_list("n[1,3], b ,c") == [("n[1,3]", 0), ("b", 8), ("c", 11)]
    for text, offset in (("", 0), ("a,", 1), ("a,,b", 2), (",a", 0), ("a, ", 2)):
        with pytest.raises(HostsetError, match="a host is missing beside ','") as caught:
            split_list(text)
        assert caught.value.offset == offset


@cases(
    ("text", "has"),
    [("n1!n2", True), ("a&b", True), ("a^b", True), ("a,n[1!2]", False), ("", False)],
)
def test_algebra_stands_outside_brackets(text: str, has: bool) -> None:
    assert hostset.has_algebra(text) is has


def test_clustershell_answers_for_groups() -> None:
    with pytest.raises(HostsetError, match=r"group '@x\[1': ") as caught:
        hostset.groups("@x[1")
    assert caught.value.hint == "see: cluset -L"
    assert hostset.groups("n[2-3]") == ["n2", "n3"]


def test_names_sort_by_their_numbers() -> None:
    names = ["n10", "n0", "n2", "n02", "a1b10", "a1b2", "n", "b", "9", "n2x", "n" + "9" * 30]
    assert sorted(names, key=hostset.natural) == [
        "9", "a1b2", "a1b10", "b", "n", "n0", "n2", "n2x", "n02", "n10", "n" + "9" * 30,
    ]  # fmt: skip


@cases(
    "name",
    ["n1", "N1", "a.b.c", "a.b.", "a_b", "10.0.0.1", "::1", "fe80::1%eth0", "1", "x" * 253, "a--b"],
)
def test_good_host_names(name: str) -> None:
    assert check_host(name) == name


def test_whatever_openssh_refuses_in_a_name_is_refused() -> None:
    host_refused = "'`\"$\\;&<>|(){}," + "".join(map(chr, [*range(33), 127]))
    user_refused = "'`\";&<>|(){}" + "".join(map(chr, [*range(32), 127]))
    for char, place in itertools.product(host_refused, (0, 1, 2)):
        with pytest.raises(BadName):
            check_host("ab"[:place] + char + "ab"[place:])
    for char in user_refused:
        with pytest.raises(BadName):
            check_user("a" + char)
    for bad in ("", "-l", "-"):
        with pytest.raises(BadName):
            check_user(bad)
    assert check_user("first.last-2_x+y") == "first.last-2_x+y"


# -- and back to a short text --------------------------------------------------------


@cases(
    ("names", "short"),
    [
        ("n03 n04 n05 n07", "n[03-05,07]"), ("n01 n02 n10", "n[01-02,10]"),
        ("a1b1 a2b2", "a1b1,a2b2"), ("a1b1 a1b2 a2b1 a2b2", "a1b[1-2],a2b[1-2]"),
        ("n1-a0 n2-a0 n3-a0 n2-a1", "n[1-3]-a0,n2-a1"), ("n1.x.org n2.x.org", "n[1-2].x.org"),
        ("10.0.0.1 10.0.0.2 10.0.1.1", "10.0.0.[1-2],10.0.1.1"),
        ("web db web1", "db,web,web1"), ("x[1] n2 n1 @g n1", "n[1-2],x[1],@g"), ("b a", "a,b"),
        ("b x[1]", "b,x[1]"),
        (f"n{'1' * 18} n{'1' * 19} n{'1' * 17}2", f"n[{'1' * 18}-{'1' * 17}2],n{'1' * 19}"),
        ("n1", "n1"),
        ("n1 n1", "n1"),
        ("", ""),
        ("n0 n9 n10 n08 n09 n98 n99 n100", "n[0,9,08-10,98-100]"),
        ("n8 n9 n10 n099 n100", "n[8-10,099-100]"),
    ],
)  # fmt: skip
def test_folds(names: str, short: str) -> None:
    assert fold(names.split()) == short


@given(st.lists(st.text(max_size=20), max_size=8))
def test_folding_never_fails(names: list[str]) -> None:
    assert isinstance(fold(names), str)


@given(
    st.sets(
        st.from_regex(r"[a-z]{1,2}[0-9]{1,4}([.-][a-z]{1,2}[0-9]{0,3})?", fullmatch=True),
        min_size=2,
        max_size=30,
    )
)
def test_what_is_folded_reads_back_as_the_same_names(names: set[str]) -> None:
    short = fold(names)
    assert set(expand(short)) == names
    assert set(NodeSet(short, resolver=RESOLVER_NOGROUP)) == names


@given(st.sets(st.integers(0, 150), min_size=2), st.sampled_from(["n%d", "n%03d", "r1c%d-ib"]))
def test_one_number_is_folded_as_by_clustershell(numbers: set[int], name: str) -> None:
    names = [name % number for number in numbers]
    assert fold(names) == str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def test_many_names_fold_fast_and_whole() -> None:
    names = [f"r{i % 37}c{i % 41}n{i % 43:02}-ib" for i in range(10_000)]
    started = time.process_time()
    short = fold([*names, "login", "x y"])
    assert time.process_time() - started < 5.0
    assert short.endswith(",x y")
    assert set(expand(short.removesuffix(",x y"))) == {*names, "login"}
