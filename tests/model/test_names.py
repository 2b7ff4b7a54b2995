"""Names as they are checked, and texts of the user as they are quoted back."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from cases import cases

from dispatcher.model.errors import UsageError
from dispatcher.model.names import (
    LONGEST_HOST,
    LONGEST_USER,
    MOST_RANKS,
    BadName,
    check_host,
    check_interface,
    check_job,
    check_user,
    clock,
    decoded,
    digits,
    duration,
    fold_numbers,
    is_ipv6,
    line_problem,
    nearest,
    numbered_lines,
    offset_by,
    parse_count,
    plural,
    printable,
    quoted,
    size,
)


@cases(
    ("name", "offset", "hint"),
    [
        ("", 0, None), ("x" * (LONGEST_HOST + 1), 0, None),
        ("-n1", 0, "starts with a letter or a digit"), ("n1:2:3", 2, None), ("n 1", 1, None),
        ("n\u00a01", 1, "a special blank"), ("n1\t", 2, "a special blank"),
        ("m\u00fcnchen", 1, "xn--"), ("n{1}", 1, "ranges are written n[1-3]"),
        ("n1*", 2, "patterns are not expanded"), ("n1?", 2, "patterns are not expanded"),
        ("ab#c", 2, "a blank before its '#'"), ("slots=8", 5, "the host comes first"),
        ("a;b", 1, "commas or lines"), ("a|b", 1, None), (".n1", 0, None), ("a..b", 0, None),
        ("_-_", 0, None),
    ],
)  # fmt: skip
def test_a_host_name_that_is_none(name: str, offset: int, hint: str | None) -> None:
    with pytest.raises(BadName) as caught:
        check_host(name)
    assert caught.value.offset == offset
    assert (caught.value.hint is None) == (hint is None)
    assert (hint or "") in (caught.value.hint or "")


def test_the_dot_of_the_root_takes_no_room() -> None:
    name = "x" * LONGEST_HOST
    assert check_host(name) == name
    assert check_host(name + ".") == name + "."


@cases(
    ("name", "fits"),
    [
        ("lr-3e-4", True), ("_A.b", True), ("7", True), ("x" * 64, True), ("latest2", True),
        ("20260131", True), ("", False), ("x" * 65, False), ("-x", False), (".x", False),
        ("a b", False), ("a\n", False), ("\u00e4", False), ("a/b", False), ("latest", False),
        ("20260131-142501", False), ("20260131-142501-k3f9x2", False),
    ],
)  # fmt: skip
def test_a_job_name(name: str, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(BadName):
        assert check_job(name) == name


@cases(
    ("name", "offset"),
    [
        ("", 0), ("u" * (LONGEST_USER + 1), 0), ("-l", 0), ("a b", 1), ("ab\x7f", 2), ("\u00e4", 0),
        ("abc$", 3),
    ],
)  # fmt: skip
def test_a_user_name_that_is_none(name: str, offset: int) -> None:
    with pytest.raises(BadName) as caught:
        check_user(name)
    assert caught.value.offset == offset
    assert (caught.value.hint == "write user@host") == (name == "")


@cases("name", ["u" * LONGEST_USER, "a.b-c_d+e", "0"])
def test_a_user_name(name: str) -> None:
    assert check_user(name) == name


@cases(
    ("name", "offset"),
    [("", 0), ("a" * 16, 0), ("eth0,eth1", 4), ("eth 0", 3), ("a/b", 1), ("^lo", 0), ("\x7f", 0)],
)
def test_an_interface_that_is_none(name: str, offset: int) -> None:
    with pytest.raises(BadName) as caught:
        check_interface(name)
    assert caught.value.offset == offset


@cases("name", ["e", "a" * 15, "eth0.10", "br-1f", "!~"])
def test_an_interface(name: str) -> None:
    assert check_interface(name) == name


@cases(
    ("text", "is_one"),
    [
        ("::", True), ("fe80::1%eth0", True), ("fe80::1%", False), ("fe80::1%a b", False),
        ("10.0.0.1", False), ("n1", False), ("1:2", False), ("::ffff:10.0.0.1", True),
    ],
)  # fmt: skip
def test_ipv6(text: str, is_one: bool) -> None:
    assert is_ipv6(text) is is_one


@cases(("text", "number"), [("2", 2), ("9", 9), ("007", 7), ("0" * 17 + "3", 3)])
def test_digits(text: str, number: int) -> None:
    assert digits(text, "-x", 2, 9) == number


@cases(
    ("text", "said", "hinted"),
    [
        ("1", "-x: 1 is not between 2 and 9", True), ("10", "-x: 10 is not between 2 and 9", True),
        ("two", "-x: not a whole number: 'two'", True), ("\u0663", "-x: not a whole number", True),
        ("", "-x: not a whole number: ''", True),
        ("0" * 18 + "3", "-x: a number of 19 digits (at most 9)", False),
    ],
)  # fmt: skip
def test_what_is_no_number_there(text: str, said: str, hinted: bool) -> None:
    with pytest.raises(BadName) as caught:
        digits(text, "-x", 2, 9, "try 3")
    assert caught.value.message.startswith(said)
    assert caught.value.hint == ("try 3" if hinted else None)


def test_a_count_is_at_least_one() -> None:
    assert parse_count("1", "--np") == 1
    assert parse_count(str(MOST_RANKS), "--np") == MOST_RANKS
    assert parse_count("7", "--port", 7) == 7
    for text, high in (("0", 9), ("8", 7), (str(MOST_RANKS + 1), MOST_RANKS)):
        with pytest.raises(UsageError, match="--np: ") as caught:
            parse_count(text, "--np", high)
        assert caught.value.hint == "--np takes a whole number from 1"


def test_a_text_is_quoted_in_one_bounded_line() -> None:
    assert quoted("a'b\n\x1b\u00e4") == '"a\'b\\n\\x1b\\xe4"'
    assert quoted("x" * 60) == repr("x" * 60)
    assert quoted("x" * 61) == repr("x" * 60 + "...")
    assert quoted("xyz", 2) == "'xy...'"


def test_a_mistake_inside_a_text_is_one_of_the_whole() -> None:
    with pytest.raises(BadName) as caught, offset_by(10):
        raise BadName("what", 3, "how")
    assert (caught.value.message, caught.value.offset, caught.value.hint) == ("what", 13, "how")


def test_lines_end_with_newlines_alone() -> None:
    assert list(numbered_lines("a\r\nb\x0bc\u2028d\r\r\n")) == [
        (1, "a"), (2, "b\x0bc\u2028d\r"), (3, ""),
    ]  # fmt: skip
    assert decoded(b"\xef\xbb\xbfa\xff\xef\xbb\xbf") == "a\udcff\ufeff"
    assert decoded("\ufeff\ufeffa") == "\ufeffa"


def test_a_line_is_shown_character_by_character() -> None:
    assert printable("a\tb\x1b[m\udcff\u00e9") == "a\tb\ufffd[m\ufffd\u00e9"
    assert printable("x" * 400) == "x" * 400
    assert printable("x" * 401) == "x" * 400 + "..."
    assert printable("abc", 2) == "ab..."


def test_a_mistake_in_a_line_is_shown_with_what_follows() -> None:
    found = line_problem("hf", 3, "ab" * 400, BadName("what", 500, "how"), 2)
    assert (found.source, found.line, found.column, found.width) == ("hf", 3, 501, 2)
    assert (found.message, found.hint) == ("what", "how")
    assert found.text == "ab" * 270 + "..."


@cases(
    ("word", "known", "meant"),
    [
        ("exce", ["exec", "check"], "exec"),
        ("EXEC", ["exec"], "exec"),
        ("no_python", ["no-python"], "no-python"),
        ("sto", ["stop", "stacks"], "stop"),  # begun
        ("fol", ["fold-numbers", "fold-them"], None),  # begun like two
        ("fol", ["fold-numbers", "get"], "fold-numbers"),
        ("s", ["stop"], None),  # too little to tell
        ("xyzzy", ["exec", "check"], None),
        ("gpu1", ["gpu01", "gpu10"], "gpu01"),  # one number, written otherwise
        ("gpo02", ["gpu01", "gpu02"], "gpu02"),
        ("gpu3", ["gpu1", "gpu2"], None),  # another machine
        ("n1", ["n2"], None),
        ("worker-1b", ["worker-1a", "worker-2b"], "worker-1a"),
        ("x", [], None),
        ("n1", ["n10"], None),
    ],
)
def test_the_name_that_may_be_meant(word: str, known: list[str], meant: str | None) -> None:
    assert nearest(word, known) == meant


@cases(
    ("count", "noun", "many", "text"),
    [(1, "host", None, "1 host"), (0, "host", None, "0 hosts"), (2, "process", "processes",
     "2 processes"), (1, "process", "processes", "1 process")],
)  # fmt: skip
def test_how_many(count: int, noun: str, many: str | None, text: str) -> None:
    assert plural(count, noun, many) == text


@cases(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (65536, "64 KiB"), (1 << 19 | 1, "512 KiB"),
     ((1 << 20) - 1, "1024 KiB"), (3 << 19, "1.5 MiB"), (1.26 * (1 << 30), "1.3 GiB"),
     (1 << 50, "1024 TiB")],
)  # fmt: skip
def test_bytes_in_words(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


@cases(("numbers", "text"), [([], ""), ([3], "3"), ([3, 1, 2, 7], "1-3,7"), (range(64), "0-63")])
def test_numbers(numbers: list[int], text: str) -> None:
    assert fold_numbers(numbers) == text


@cases(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.9, "0:00:59"), (60, "0:01:00"), (3599, "0:59:59"), (3661, "1:01:01"),
     (360000, "100:00:00")],
)  # fmt: skip
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@cases(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (1, "1 s"), (119.4, "119 s"), (120, "2 min"), (7199, "120 min"),
     (7200, "2 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
