"""One line of a hostfile: what it means, what is odd about it, and what would be right."""

from __future__ import annotations

from cases import cases

from dispatcher.model.host import Host
from dispatcher.model.names import LONGEST_LINE
from dispatcher.plan.hosts.hostfile_line import MOST_MISTAKES, parse_line


def mistakes(text: str, limit: int = 9) -> list[tuple[int, str, str | None]]:
    """(offset, message, hint) of each."""
    found = parse_line(text, limit, lambda _: ["g1", "g2"])
    return [(bad.offset, bad.message, bad.hint) for bad in found.mistakes]


@cases(
    ("text", "notices"),
    [
        ("u@h:16", ["'u@h:16': read as port 16, because of user@; for slots write: "
                    "h user=u slots=16"]),
        ("u@h:17", []), ("u@h:8,v@k:9", ["'u@h:8'", "'v@k:9'"]), ("[::1]:8", []), ("h:21", []),
        ("h:22", ["'h:22': read as 22 slots; for a port write: h port=22"]),
        ("h:256", []),
        ("h:257", ["'h:257': read as 257 slots; for a port write: h port=257"]),
        ("h:2222", ["'h:2222'"]),
        ("h gpus=0", []),
        ("h gpus=0,1", []),
        ("h gpus=4", ["gpus=4: read as the GPU with number 4; for a count write slots=4"]),
        ("h gpus=GPU-1", []),
    ],
)  # fmt: skip
def test_what_is_odd_is_said(text: str, notices: list[str]) -> None:
    found = parse_line(text, 9)
    assert not found.mistakes
    assert len(found.notices) == len(notices)
    for said, wanted in zip(found.notices, notices, strict=True):
        assert said.startswith(wanted)


@cases(
    ("text", "said"),
    [
        ("n1 8", [(3, "a second word without '=': '8'",
                   "for a count write slots=8; for a port, port=8")]),
        ("n1 train", [(3, "a second word without '=': 'train'",
                       "for a login name write user=train; several hosts are separated by "
                       "commas")]),
        ("n1 /x\tslots=0", [(3, "a second word without '=': '/x'", "options are written key=value"),
                            (6 + 6, "slots=0: a host without slots takes no rank",
                             "remove the host")]),
        ("n1 spare spare", [(9, "a second word without '=': 'spare'",
                             "for a login name write user=spare; several hosts are separated by "
                             "commas")]),
        ("n1 SLOTS=2", [(3, "unknown key 'SLOTS'", "did you mean slots=?")]),
        ("n1 zzz=2", [(3, "unknown key 'zzz'", "known keys: slots max_slots user port python gpus "
                       "env; or the word spare")]),
        ("n1 slots=2#x", [(9, "slots: not a whole number: '2#x'",
                           "a comment needs a blank before its '#'")]),
        ("n1 slots=x", [(9, "slots: not a whole number: 'x'", None)]),
        ("n1 max-cpus=0", [(12, "max-cpus=0: a host without slots takes no rank",
                            "remove the host")]),
        ("n1 slots=2  count=3", [(12, "count is given twice", None)]),
        ("n1:2  slots=3", [(6, "slots is given twice: before the blank and as slots=", None)]),
        ("u@n1 user=v", [(5, "user is given twice: before the blank and as user=", None)]),
        ("[::1]:5 port=5", [(8, "port is given twice: before the blank and as port=", None)]),
        ("n1 slots=3 gpus=0,1", [(11, "3 slots but 2 gpus",
                                  "leave slots out: gpus says how many")]),
        ("n1 slots=3  max_slots=2", [(12, "max_slots=2 is less than slots=3", None)]),
        ("n1 python=~/x", [(10, "python: '~' is not expanded", "write the whole path")]),
        ("n1 env=A", [(7, "env: no value for 'A'", "write env=NAME=VALUE")]),
        ("n1 slots= ", [(9, "a value is missing after '='", None)]),
        ("n1 env='A", [(7, "the quote ' is never closed", None)]),
        ("u@", [(1, "a host is missing after '@'", None)]),
        ("a,u@,b", [(3, "a host is missing after '@'", None)]),
        ("a, :8", [(3, "a host is missing before ':'", None)]),
        ("a,b:", [(3, "a number is missing after ':'", None)]),
        ("a,b:x", [(4, "slots: not a whole number: 'x'", None)]),
        ("ab,[:g]", [(4, "not an IPv6 address, and ':' has no place in a host name: ':g'",
                      "an address goes in brackets; a range is written n[1-3]")]),
        ("n[1-5],m[1-5]", [(7, "too many hosts: 5 in 'm[1-5]', room for 4",
                            "check the bounds of the range")]),
        ("n1\x01", [(2, "a control character: '\\x01'", None)]),
        ("n1\udc80", [(2, "byte 0x80 is not UTF-8", None)]),
        ("n1\udcff", [(2, "byte 0xff is not UTF-8", None)]),
        ("n1\0", [(2, "a NUL byte: not a text file", None)]),
        ("n" * (LONGEST_LINE + 1), [(0, "a line of 131073 characters (at most 131072)", None)]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_pointed_at(text: str, said: list[tuple[int, str, str | None]]) -> None:
    assert mistakes(text) == said


def test_mistakes_come_in_order_and_not_without_end() -> None:
    assert [offset for offset, _, _ in mistakes("n{1} a=1 b=2")] == [1, 5, 9]
    assert len(mistakes("n1" + " x" * (MOST_MISTAKES + 5))) == MOST_MISTAKES
    assert len(mistakes("-n1" + " x" * (MOST_MISTAKES + 5))) == MOST_MISTAKES + 1


@cases(
    ("text", "hosts"),
    [
        ("", []), ("  \t# n1", []), ("//n1", []), ("n1 //x=y", [Host("n1")]),
        ("n1 # x=y", [Host("n1")]),
        ("n1\t,\tn2  slots = 2", [Host("n1", 2), Host("n2", 2)]),
        ("n[1,\t2] spare", [Host("n1", spare=True), Host("n2", spare=True)]),
        ("n1 slots=2 max_slots=2", [Host("n1", 2, 2)]),
        ("n1 slots=2 gpus=3,1", [Host("n1", 2, gpus=("3", "1"))]),
        ('n1 python=\'/a b\'/c"d \\" \\\\"', [Host("n1", python='/a b/cd " \\')]),
        ("n1 env='A= # ' env=\"B=\\x\"", [Host("n1", env=(("A", " # "), ("B", "\\x")))]),
        ("n1 python=\"\"x''", [Host("n1", python="x")]),
        ("n1!n2,n3", [Host("n1"), Host("n3")]),
        ("u@[::1]:7,[::2]", [Host("::1", user="u", port=7), Host("::2")]),
        ("[10.0.0.4]:22", [Host("10.0.0.4", port=22)]),
        ("u@n[1-2]:7", [Host("n1", user="u", port=7), Host("n2", user="u", port=7)]),
        ("n[1-2]x[3-4]:2", [Host(f"n{i}x{j}", 2) for i in (1, 2) for j in (3, 4)]),
    ],
)  # fmt: skip
def test_what_a_line_means(text: str, hosts: list[Host]) -> None:
    found = parse_line(text, 9)
    assert found.mistakes == []
    assert found.hosts == hosts
    assert len(found.offsets) == len(hosts)


def test_where_slots_do_not_matter_nothing_is_kept_of_them() -> None:
    found = parse_line("u@n1:8,n2:300 gpus=7 max_slots=512", 9, slots=False)
    assert [bad.message for bad in found.mistakes] == ["300 slots but 1 gpu"]
    found = parse_line("u@n1:8,n2 gpus=7 max_slots=512", 9, slots=False)
    assert found.hosts == [Host("n1", user="u", port=8), Host("n2")]
    assert found.notices == []


def test_the_limit_counts_hosts_of_the_whole_line() -> None:
    assert len(parse_line("n[1-4],m[1-5]", 9).hosts) == 9
    assert parse_line("n[1-4],m[1-6]", 9).mistakes
    assert parse_line("@g", 1, lambda _: ["g1", "g2"]).mistakes
    assert len(parse_line("@g", 2, lambda _: ["g1", "g2"]).hosts) == 2
    assert parse_line(f"{'n1':<{LONGEST_LINE}}", 9).hosts == [Host("n1")]
