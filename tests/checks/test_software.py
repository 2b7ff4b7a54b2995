"""The same Python, script and versions everywhere; GPUs enough and free."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from checks.samples import HUNG, MISSING, VERSIONS, call, host, kernel, said
from dispatcher.checks import gpu, health
from dispatcher.checks.check import CheckHosts, Finding, Level, Reading, Seen, each

OK, WARN, INCOMPLETE, CRITICAL = Level.OK, Level.WARN, Level.INCOMPLETE, Level.CRITICAL


def odd(check: CheckHosts, one: Seen, n_others: int = 3) -> Finding:
    """What ``check`` finds of ``one`` among healthy hosts; of those it must find nothing."""
    hosts = {f"h{n}": host(f"h{n}") for n in range(n_others)}
    found = check({**hosts, "odd": one})
    assert all(found[name].level == OK for name in hosts)
    return found["odd"]


OLD = said(VERSIONS.replace(b"2.9.1", b"2.4.0").replace(b"3.11.2", b"3.10.1"))


@cases(
    ("check", "one", "level", "words"),
    [
        (health.python, host(), OK, ""),
        (health.python, host(python=OLD), WARN, "3.10.1 here, 3.11.2 elsewhere"),
        (health.python, host(python=HUNG), CRITICAL, "does not start"),
        (health.python, host(python=said(b"Segmentation fault", 139)), INCOMPLETE, "139"),
        (health.python, host(python=said(b"dispatch-vers")), INCOMPLETE, "did not print"),
        (health.torch, host(python=OLD), WARN, "2.4.0 here, 2.9.1 elsewhere"),
        (health.torch, host(python=said(VERSIONS[:31])), WARN, "none here, 2.9.1 elsewhere"),
        (health.nccl, host(python=OLD), OK, ""),
        (health.driver, host(kernel=kernel(version=b"535.1\n")), CRITICAL, "535.1 here, 570"),
        (health.driver, host(kernel=kernel(version=b"\0\xff")), INCOMPLETE, "no version"),
        (health.script, host(script=call([12, "cd" * 32])), CRITICAL, "cdcdcdcdcdcd (12 bytes)"),
        (health.script, host(script=said(b"[Errno 2] No such file or directory: b'/x'", 125)),
         CRITICAL, "/home/me/train.py: no such file or directory"),
        (health.script, host(script=HUNG), CRITICAL, "does not answer"),
        (health.script, host(script=said(b"", 125)), INCOMPLETE, "exit code 125"),
        (gpu.enough, host(), OK, ""),
        (gpu.enough, host(gpus=HUNG), INCOMPLETE, "no answer"),
        (each(gpu.users), host(gpu_users=call([[7, 0, "python3"]])), CRITICAL, "python3 (7)"),
        (each(gpu.users), host(gpu_users=call([[7, 0, "nvidia-persiste"]])), OK, ""),
        (each(gpu.users), host(gpu_apps=said(b"9, /opt/py/bin/python, 4012\n")), CRITICAL,
         "python (9)"),
        (each(gpu.users), host(gpu_apps=said(b"9, /opt/py")), INCOMPLETE, "2 fields instead of 3"),
        (each(gpu.users), host(gpu_apps=HUNG), CRITICAL, "nvidia-smi hangs"),
        (each(gpu.users), host(gpu_apps=MISSING), OK, ""),
        (each(gpu.users), host(gpu_apps=said(b"NVIDIA-SMI has failed", 9)), INCOMPLETE, "code 9"),
    ],
)  # fmt: skip
def test_the_odd_one(check: CheckHosts, one: Seen, level: Level, words: str) -> None:
    found = odd(check, one)
    assert (found.level, words in found.text) == (level, True), found
    assert found.remedy or level in (OK, INCOMPLETE)


def test_of_two_hosts_the_first_is_right() -> None:
    """Rank 0 runs there; with two hosts there is no majority."""
    found = health.torch({"a": host("a", python=OLD), "b": host("b")})
    assert (found["a"].level, found["b"].level) == (OK, WARN)


@cases(
    ("said_", "versions"),
    [
        (VERSIONS, {"python": "3.11.2", "torch": "2.9.1", "nccl": "2.27.5"}),
        (b"dispatch-version python 3.12.0\n", {"python": "3.12.0"}),
        (b"motd\ndispatch-version python 3.12.0rc1\n dispatch-version torch 1\n",
         {"python": "3.12.0rc1"}),
        (b"dispatch-version python 3.9.1\ndispatch-version torch 2.1.0+cu118\n"
         b"dispatch-version numpy 2 0\n", {"python": "3.9.1", "torch": "2.1.0+cu118"}),
    ],
)  # fmt: skip
def test_versions(said_: bytes, versions: dict[str, str]) -> None:
    assert health.versions(host(python=said(said_))) == versions


@cases(("status", "why"), [(127, "not installed"), (126, "exit code 126")])
def test_a_python_that_is_not_there_says_what_to_do(status: int, why: str) -> None:
    found = odd(health.python, host(python=Reading(status, b"")))
    assert (found.level, found.text, found.value) == (CRITICAL, f"the ranks' Python: {why}", "none")
    assert found.remedy is not None
    assert found.remedy.startswith("install it on the host")


def test_a_script_is_known_by_its_bytes() -> None:
    found = health.script({"a": host("a"), "b": host("b", script=call([13, "ab" * 32]))})
    assert (found["a"].value, found["b"].value) == (
        "abababababab (12 bytes)", "abababababab (13 bytes)",
    )  # fmt: skip
    gone = health.script(
        {"a": host("a", script=said(b"[Errno 13] Permission denied: b'/x'\n", 125))}
    )
    assert (gone["a"].text, gone["a"].value) == ("/home/me/train.py: permission denied", "none")
    assert gone["a"].remedy == "copy it to the host: dispatch put"


def gpus_of(*counts: int, slots: int | None = None) -> dict[str, Finding]:
    hosts = {}
    for at, count in enumerate(counts):
        hosts[f"h{at}"] = replace(host(f"h{at}", gpus=call(count)), slots=slots)
    return gpu.enough(hosts)


@cases(
    ("counts", "slots", "texts"),
    [
        ((8, 8, 4), None, ["", "", "4 GPUs here, 8 elsewhere"]),
        ((8, 8, 9), None, ["", "", ""]),  # more than elsewhere is enough
        ((8, 8), 8, ["", ""]),
        ((8, 7), 8, ["", "7 GPUs for 8 slots"]),
        ((8, 0), None, ["", "0 GPUs here, 8 elsewhere"]),
        ((4, 8), None, ["", ""]),  # of as frequent ones the first
        ((0, 0), 8, ["no GPUs anywhere"] * 2),
    ],
)
def test_gpus_enough(counts: tuple[int, ...], slots: int | None, texts: list[str]) -> None:
    found = gpus_of(*counts, slots=slots)
    assert [one.text for one in found.values()] == texts
    assert [one.value for one in found.values()] == [str(count) for count in counts]
    levels = [CRITICAL if " for " in t or " here" in t else OK for t in texts]
    assert [one.level for one in found.values()] == levels


def test_a_cluster_without_gpus_has_hosts_that_cannot_be_read() -> None:
    found = gpu.enough({"a": host("a", gpus=call(0)), "b": host("b", gpus=HUNG)})
    assert (found["a"].text, found["b"].level) == ("no GPUs anywhere", INCOMPLETE)


def test_who_is_on_the_gpus() -> None:
    users = call([[9, 0, "python3"], [3, 1, "a"], [7, 0, "nvtop"]])
    apps = said(b"3, /usr/bin/other, 10\n12, /opt/b, 10\n5, [Not Found], 1\n8, c, 1\n")
    found = gpu.users(host(gpu_users=users, gpu_apps=apps))
    assert (
        found.text == "processes on its GPUs: a (3), [Not Found] (5), c (8), python3 (9) and 1 more"
    )
    assert found.level == CRITICAL
    bare = host(kernel=kernel(version=None), gpu_users=HUNG)
    assert gpu.users(bare).text == "no GPU"
    nobody = host(gpu_apps=said(b"No running processes found\n"))
    assert gpu.users(nobody).level == OK


MOUNTED = b"""\
root / ext4 rw 0 0
nas:/home /home nfs rw 0 0
lfs /scratch lustre rw 0 0
s /s fuse.sshfs rw 0 0
d /data fuse.ext rw 0 0
c /c cephfs rw 0 0
"""


def mounts_of(*texts: bytes, cwd: str = "/home/me") -> dict[str, Finding]:
    hosts = {}
    for at, text in enumerate(texts):
        one = host(f"h{at}", mounts=said(text))
        hosts[f"h{at}"] = replace(one, asked=replace(one.asked, cwd=cwd))
    return health.mounts(hosts)


def test_shared_file_systems_that_most_hosts_have() -> None:
    none = b"root / ext4 rw 0 0\n"
    found = mounts_of(MOUNTED, MOUNTED, none)
    assert [one.level for one in found.values()] == [OK, OK, CRITICAL]
    assert found["h2"].text == "not mounted: /home (nfs), /s (fuse.sshfs), /scratch (lustre)"
    assert found["h2"].remedy == "mount it: mount -a"
    unread = health.mounts({"a": host("a", mounts=HUNG), "b": host("b")})
    assert (unread["a"].level, unread["b"].level) == (INCOMPLETE, OK)
    half = mounts_of(MOUNTED, none)  # half of the hosts are not most
    assert {one.level for one in half.values()} == {OK}
    many = b"".join(b"x /m%d nfs rw 0 0\n" % n for n in range(6))
    assert mounts_of(many, many, none)["h2"].text.endswith("/m2 (nfs), /m3 (nfs)")


def test_what_is_mounted_at_its_first_use_is_not_missing() -> None:
    """An idle host has mounted nobody's home folder yet, where its automounter does that."""
    busy = b"auto.home /home autofs rw 0 0\nnas:/h/bob /home/bob nfs4 rw 0 0\n"
    idle = busy.partition(b"\n")[0] + b"\nsystemd-1 /data autofs rw 0 0\n"
    found = mounts_of(busy, busy, idle, b"x / ext4 rw 0 0\n", busy, cwd="/")
    assert [one.text for one in found.values()] == [
        "", "", "", "not mounted: /home/bob (nfs4)", "",
    ]  # fmt: skip
    busy += b"nas:/d /data nfs rw 0 0\nnas:/e /data2 nfs rw 0 0\n"
    assert mounts_of(busy, busy, idle, cwd="/")["h2"].text == "not mounted: /data2 (nfs)"


@cases(
    ("cwd", "text"),
    [
        ("/home/me", "/home is mounted read-only, and /home/me is on it"),
        ("/home", "/home is mounted read-only, and /home is on it"),
        ("/homework", ""),
        ("/home/rw/x", ""),
        ("/", ""),
    ],
)
def test_a_working_directory_that_cannot_be_written(cwd: str, text: str) -> None:
    mounts = b"root / ext4 rw,ro_not 0 0\nnas /home ext4 ro,relatime 0 0\nx /home/rw ext4 rw 0 0\n"
    found = mounts_of(mounts, cwd=cwd)["h0"]
    assert (found.text, found.level) == (text, WARN if text else OK)


@cases(("first", "second", "level"), [("ro", "rw", OK), ("rw", "ro", WARN)])
def test_of_two_mounts_on_one_place_the_last_counts(first: str, second: str, level: Level) -> None:
    """As with an automounter, whose own mount stays below."""
    text = f"auto /home autofs {first} 0 0\nnas:/h /home ext4 {second} 0 0\n".encode()
    assert mounts_of(text)["h0"].level == level


def test_only_whole_lines_tell_of_a_mount() -> None:
    assert health.parse("a /x ext4 rw 0 0\nb /y\\040z nfs ro,bg 0 0\nc /cut ext4 rw 0") == [
        ("a", "/x", "ext4", frozenset({"rw"})), ("b", "/y z", "nfs", frozenset({"ro", "bg"})),
    ]  # fmt: skip
