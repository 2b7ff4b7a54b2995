"""The same Python, script and versions everywhere; GPUs enough and free."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


@pytest.mark.parametrize(
    ("check", "one", "level", "words"),
    [
        (health.python, host(), OK, ""),
        (health.python, host(python=OLD), WARN, "3.10.1 here, 3.11.2 elsewhere"),
        (health.python, host(python=MISSING), CRITICAL, "not installed"),
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
        (gpu.enough, host(kernel=kernel(dev=b"nvidia0\nnvidia1\nnvidiactl")), CRITICAL,
         "2 GPUs for 8 slots"),
        (gpu.enough, replace(host(kernel=kernel(dev=b"nvidia0")), slots=None), CRITICAL,
         "1 GPUs here, 8 elsewhere"),
        (gpu.enough, host(kernel=HUNG), INCOMPLETE, "no answer"),
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


def test_a_cluster_without_gpus_needs_none() -> None:
    bare = kernel(dev=b"null", version=None)
    found = gpu.enough({name: host(name, kernel=bare) for name in ("a", "b")})
    assert {one.level for one in found.values()} == {OK}


def test_of_two_hosts_the_first_is_right() -> None:
    """Rank 0 runs there; with two hosts there is no majority."""
    found = health.torch({"a": host("a", python=OLD), "b": host("b")})
    assert (found["a"].level, found["b"].level) == (OK, WARN)


def test_the_usual_value_needs_somebody_who_has_it() -> None:
    found = health.torch({"a": host("a", python=Reading(1, b""))})
    assert found["a"].level == INCOMPLETE
