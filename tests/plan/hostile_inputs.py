"""Inputs that must each end as a usage error (exit code 2), never as anything else.

``HOSTILE`` holds ``Hostile(kind, value, expected)``: what is given, and a
fragment of the message it must produce. Kinds::

    hostfile   text or bytes of a hostfile
    hosts      the value of -H on the command line (no such file exists)
    include, exclude   the filter, against ``POOL``
    export     the value of -x; the environment holds only HOME
    env-file   text or bytes of an --env-file
    np, nnodes, nproc   the text of a number, against ``POOL``

A table, so that the command line can be held to it as well.
"""

from __future__ import annotations

from typing import NamedTuple

#: hosts for the kinds that need some, as a hostfile's text
POOL = "w0 slots=4\nw1 slots=4\n"


class Hostile(NamedTuple):
    kind: str
    value: str | bytes
    expected: str


#: a fragment of the message -> what is given
Table = dict[str, tuple[str | bytes, ...]]


_RANGES: Table = {
    "an empty range": ("node[]", "node[1-3,,5]", "node[1-3,]", "node[,1-3]"),
    "not a range": ("node[-]", "node[A]", "node[a-c]", "node[3/2]", "node[3-/2]", "node[-/2]",
        "node[1-4/-2]", "node[1-4/a]", "node[4-a/2]", "node[3-59/2,102a]", "node[1-0x4]",
        "node[1.5]", "node[1 3]", "node[1;3]", "node[1-2-3]", "node[-1-2]", "node[+1]", "node[1_0]",
        "node[1e3]", "node[1:3]", "node[1..3]", "node[\u0661-\u0663]", "node[\uff11-\uff13]",
        "node[\u00b2]"),
    "runs backwards": ("node[5-3]", "node[004-002]"),
    "a step of 0": ("node[1-4/0]",),
    "without its ']'": ("node[1-3", "nova6["),
    "without its '['": ("node1-3]", "node[1-3]]", "]n[1"),
    "inside brackets": ("n[[1-2]]", "xa[[zer[1-30]p"),
    "two ranges with nothing between": ("node[1-4][3-4]",),
    "only digits between two ranges": ("n[1-4]0[3-4]",),
    "digits after a range with a step": ("prod-0[01-06/2]0",),
    "disagree on leading zeros": ("node[9-010]", "node[1-03]", "node[99-0101]", "node[001-03]"),
    "more than 18 digits": ("node[" + "9" * 101 + "]", "node[1-" + "9" * 101 + "]",
        "node[1-9/" + "1" * 101 + "]", "node[" + "0" * 101 + "]"),
    "too many hosts": ("n[0-999999999]", "node[1-100000000]", "n[0-999999999999999999]",
        "n[1-1000]x[1-1000]", "a[0-9]b[0-9]c[0-9]d[0-9]e[0-9]f[0-9]", "n[1-40000],m[1-40000]",
        "n[1-40000]!n[1-40000]", "n[1-70000]!n[1-69999]"),
    "a host is missing": ("node1,,node2", "node1,", ",node1", ",", ",,,", ", ,", "node1!", "!node1",
        "foo&", "^foo", "a!!b", "a&^b"),
    "no host is left": ("n1!n1", "n[1-3]&m[1-3]", "n[1-3]^n[1-3]"),
    "has no place in a host name": ("n[1-3]!n2:4", "node{1..3}", "node{1,3}", "node[1-3]*", "node?",
        "*"),
    "not a group name": ("@", "@ ", "@../x", "@$(id)", "@a:b:c"),
    "second word": ("@a b",),
    "group": ("@no-such-group-anywhere",),
}  # fmt: skip

_NAMES: Table = {
    "starts with '-'": ("-oProxyCommand=touch /tmp/x", "-oProxyCommand=x", "--", "-", "-[1-3]",
        "n1,-oX=y", "a!-b", "user@-oProxyCommand=x", "-l@host", "-oProxyCommand=x@host"),
    "has no place in a host name": ("$(id)", "`id`", "n1;reboot", "n1|cat", "n1>out", "n1<in",
        "n1\\x", "'n1'", '"n1"', "n1(2)", "n1=2", "slots=8", "n1#x", "n1%20", "+n2", "+e:2", "n1~",
        "m\u00fcnchen", "n1\u00a0slots=2", "n\u200b1", "\u202en1", "a@b@c"),
    "a host is missing": ("n1&&id",),
    "NUL": ("n\x001",),
    "a control character": ("n\x1b[31m1", "n1\x07", "n1\rn2", "n1\x0bn2", "n1\x85n2", "n1\u2028n2",
        "n1\x7f", "n\ud800"),
    "is not UTF-8": ("\udcff",),
    "254 characters": ("x" * 254, "x" * 250 + "[1000-1001]"),
    "100000 characters": ("x" * 100000,),
    "not a host name": ("..", ".", "a..b", "_", ".n1"),
    "empty user name": ("@n1@n2",),
    "a host is missing after '@'": ("user@",),
    "has no place in a user name": ("us;er@n1", "us$er@n1", "us:er@n1"),
    "user name of 65": ("u" * 65 + "@n1",),
    "without its ']'": ("[::1",),
    "without its '['": ("::1]",),
    "not an IPv6 address": ("[::g]", "[::1%$(id)]", "::1::2", "1:2:3", "n1:8:mlx5"),
    "text after the bracketed address": ("[::1]x",),
    "not a whole number": ("[::1]:", "[::1]:ssh", "n1:-1", "n1:two", "n1:1.5", "n1:\u0664",
        "user@n1:", "ssh:n1"),
    "not between 1 and 65535": ("[::1]:0", "[::1]:65536", "user@n1:0", "user@n1:99999"),
    "a host is missing before ':'": (":", ":8"),
    "a number is missing": ("n1:",),
    "takes no rank": ("n1:0",),
    "not between 1 and 4096": ("n1:4097",),
    "a number of 101 digits": ("n1:" + "9" * 101,),
}  # fmt: skip

#: texts that -H takes for the name of a file; as a line of a hostfile they are bad names
_PATHS: Table = {
    "is a directory": (".", "..", "/"),
    "no such file": (".n1", "@../x", "no/such/file", "/no/such/hostfile", "~/no-such-hostfile",
        "no-such-file.txt", "nodes.list", "hostfile", "n1/n2", "ssh://n1", "x" * 5000 + "/y"),
}  # fmt: skip
_NOT_LISTS = {"-", *(value for values in _PATHS.values() for value in values)}

_LINES: Table = {
    "empty": ("", "\n\n", " \t ", "\ufeff"),
    "no host in it": ("# only\n// comments\n",),
    "UTF-16": (b"\xff\xfen\x001\x00", b"\xfe\xff\x00n"),
    "0xe9 is not UTF-8": (b"n1 # caf\xe9\n",),
    "0xff is not UTF-8": (b"n1\xff slots=2",),
    "a control character": (b"\x7fELF\x02\x01\x01\0\0", b"\x1f\x8b\x08\0"),
    "NUL": (b"n1\0\0\0",),
    "not a whole number": ("n1 slots=two", "n1 slots=-1", "n1 slots=+1", "n1 slots=1e3",
        "n1 slots=0x8", "n1 slots=1_000", "n1 slots=\u0664", "n1 slots=\u00b2", "n1 slots=4#x",
        "n1 slots=2abc", "n1 port=ssh"),
    "takes no rank": ("n1 slots=0", "n1 slots=00", "n1 max_slots=0"),
    "not between 1 and 4096": ("n1 slots=99999",),
    "a number of 5000 digits": ("n1 slots=" + "9" * 5000,),
    "a value is missing": ("n1 slots=", "n1 gpus="),
    "a second word": ("n1 slots", "n1 slots 8", "n1 =8", ("n " + "a " * 65000 + "\n") * 20,
        "rank 0=n1 slot=0", "n1 /* c */", '{"hosts": ["n1"]}', "#!/bin/sh\necho n1\n"),
    "unknown key 'slot'": ("n1 slot=8",),
    "unknown key 'SLOTS'": ("n1 SLOTS=8",),
    "unknown key 'type'": ("n1 type=A100",),
    "unknown key 'hca'": ("n1 hca=mlx5",),
    "slots is given twice": ("n1 slots=2 slots=2", "n1:2 slots=2"),
    "count is given twice": ("n1 slots=2 count=2",),
    "user is given twice": ("u@n1 user=v",),
    "port is given twice": ("[::1]:22 port=22",),
    "less than slots": ("n1 slots=4 max_slots=2",),
    "a second word without '='": ("n1 train", "n1 8", "n1 8 all.q UNDEFINED",
        "this is bad slots=1"),
    "not between 1 and 65535": ("n1 port=0", "n1 port=65536"),
    "starts with '-'": ("n1 user=-l", "n1 slots=2\nn2 slots=two\n-bad slots=2\n", "- n1\n- n2\n"),
    "has no place in a user name": ("n1 user='a b'", "n1 user=$(id)"),
    "empty user name": ("n1 user=''",),
    "not a program": ("n1 python=-c", "n1 python=''"),
    "is not expanded": ("n1 python=~/bin/python",),
    "not a GPU": ("n1 gpus=0,", "n1 gpus=3-1", "n1 gpus=a", "n1 gpus=-1", "n1 gpus=GPU-$(id)",
        "n1 gpus=0-99999"),
    "a GPU twice": ("n1 gpus=0,0", "n1 gpus=00,0"),
    "do not mix": ("n1 gpus=0,GPU-abc",),
    "of them": ("n1 gpus=0-9999",),
    "4 slots but 2 gpus": ("n1 slots=4 gpus=0,1",),
    "no value for 'A'": ("n1 env=A",),
    "empty variable name": ("n1 env==x",),
    "not a variable name": ("n1 env=1A=x", "n1 env='A B=x'"),
    "set by dispatch": ("n1 env=RANK=0", "n1 env=PMI_FD=3"),
    "is never closed": ("n1 env=A='x", 'n1 env="A=x'),
    "already on line 1": ("n1 slots=2\nn1 slots=2", "n1 slots=2\nn1", "n1\nn1 slots=2",
        "n[1-3] slots=2\nn2 slots=4", "n1:2,n1:2"),
    "with other options": ("n1\nn1 user=u",),
    "too many hosts": ("n[1-40000]\nm[1-40000]",),
    "a line of 160003 characters": ("n1 " + "env=A=1 " * 20000,),
    "has no place in a host name": (",".join(f"n{i}" for i in range(9000)) + ",{", "<html><body>"),
    "more than 100 mistakes": ("x y\n" * 1000,),
}  # fmt: skip

_FILTERS: Table = {
    "empty filter": ("",),
    "a host is missing": ("@", "w0@", "@w0", "w0@@w1"),
    "no host 'nope'": ("nope",),
    "no host 'W0'": ("W0",),
    "no host 'w2'": ("w[0-2]",),
    "no host '5'": ("w1@w0:1@5",),
    "not a slot": ("w0:", "w0:a", "w0:-1", "w0:0,", "w0:,0", "w0:3-1", "w0:0-99999", "w0:0:1",
        "w0:\u0661", "w0:" + "1" * 101),
    "no slot '4'": ("w0:4",),
    "no slot '7'": ("w1:7",),
    "no slot 'GPU-abc'": ("w0:GPU-abc",),
    "a blank inside": ("w0 :0", "w0: 0", "w0 w1"),
    "empty host list": (":0",),
    "several hosts before ':'": ("w0,w1:0",),
    "too many hosts": ("w[0-999999999]",),
    "without its ']'": ("w[0-1",),
    "text after the bracketed address": ("[::1]0",),
    "no host '::1'": ("[::1]:0",),
    "starts with '-'": ("-w0",),
    "has no place in a host name": ("w0;id", "w0\0"),
    "no host is left": ("w0!w0",),
}  # fmt: skip

_EXPORTS: Table = {
    "empty variable name": ("", "=x"),
    "not a variable name": ("1A=x", "A B=x", "A;id=x", "$HOME", "-x=1", "\u00c4=1", "A\n=1",
        "A\0B=1"),
    "NUL": ("A=x\0y",),
    "not text": ("A=\ud800",),
    "not set in this environment": ("UNSET_HERE",),
    "set by dispatch": ("RANK=0", "RANK", "WORLD_SIZE=8", "LOCAL_RANK=0", "MASTER_ADDR=n1",
        "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=x", "PMI_RANK=0", "PMIX_NAMESPACE=x",
        "DISPATCH_RUN_ID=x"),
}  # fmt: skip

_ENV_FILES: Table = {
    "no '=' in the line": ("A", "export A", "A=1\nB\n"),
    "empty variable name": ("=x",),
    "not a variable name": ("set A=1", "export export A=1", "1=2", b"\xff=1", "A\x1b=1"),
    "is never closed": ('A="x', "A='x"),
    "text after the closing quote": ('A="x"y', 'A="x"#y'),
    "set by dispatch": ("RANK=1", "export LOCAL_RANK=1"),
    "NUL": (b"A=x\0y",),
}  # fmt: skip

_NUMBERS: Table = {
    "not a whole number": ("", "-1", "+1", "1.0", "1e3", "0x8", "1_000", " 1", "1\n", "two", "nan",
        "\u0663", "\u00b2", "1\0"),
    "not between 1": ("0", "9" * 18),
    "a number of 10000 digits": ("9" * 10000,),
}  # fmt: skip


def _of(kind: str, *tables: Table) -> list[Hostile]:
    return [
        Hostile(kind, value, expected)
        for table in tables
        for expected, values in table.items()
        for value in values
    ]


HOSTILE: tuple[Hostile, ...] = (
    *(one for one in _of("hosts", _RANGES, _NAMES) if one.value not in _NOT_LISTS),
    *_of("hosts", _PATHS), *_of("hostfile", _RANGES, _NAMES, _LINES), *_of("include", _FILTERS),
    *_of("exclude", _FILTERS),
    Hostile("exclude", "w[0-1]", "no host is left after --exclude"),
    *_of("export", _EXPORTS),
    *_of("env-file", _ENV_FILES),
    *(one for kind in ("np", "nnodes", "nproc") for one in _of(kind, _NUMBERS)),
    Hostile("nproc", "cpu", "not a whole number"), Hostile("nproc", "GPU", "not a whole number"),
    Hostile("np", "9", "9 ranks but only 8 slots"), Hostile("nnodes", "3", "only 2 hosts"),
    Hostile("nproc", "5", "only 4 slots"), Hostile("nproc", "1000000", "only 4 slots"),
)  # fmt: skip
