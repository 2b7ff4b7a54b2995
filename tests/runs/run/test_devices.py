"""``CUDA_VISIBLE_DEVICES`` of the caller and of a host, as the ranks find it."""

from __future__ import annotations

import promises
import pytest

from ..conftest import Desk

NAME = "CUDA_VISIBLE_DEVICES"
SHOW = ("--no-python", "sh", "-c", f"echo ${{{NAME}-unset}}")
#: a host whose login sets the variable, and one where it is not set
FAR = (
    "--rsh", f"env {NAME}=GPU-8f6c,MIG-5ea8 /bin/sh -c {{command}}",
    "-H", "far:2", "--check", "none",
)  # fmt: skip
BARE = ("--rsh", f"env -u {NAME} /bin/sh -c {{command}}", "-H", "far:2", "--check", "none")


@pytest.mark.parametrize(
    ("words", "mine", "found"),
    [
        (("-H", "localhost:2"), "6,7", "6,7"),
        (("-H", "localhost:2"), "MIG-5ea8,MIG-77aa", "MIG-5ea8,MIG-77aa"),
        (("-H", "localhost:2"), "", ""),
        (("-H", "localhost:2"), "-1", "-1"),
        (("-H", "localhost:2"), None, "0,1"),
        (("-H", "localhost:2", "--devices", "node"), "6,7", "0,1"),
        (("-H", "localhost:4", "--include", "localhost:1,3"), "6,7", "1,3"),
        (("-H", "localhost:2", "-x", f"{NAME}=5"), "6,7", "5"),
        (FAR, "6,7", "GPU-8f6c,MIG-5ea8"),
        (BARE, "6,7", "0,1"),  # the caller's are not the host's
    ],
)
def test_gpus_that_were_chosen_stay_chosen(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], mine: str, found: str
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    done = desk.run(*words, *SHOW, env={} if mine is None else {NAME: mine})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[0] {found}", f"[1] {found}"]


def test_a_dry_run_does_not_promise_what_a_host_decides(desk: Desk) -> None:
    done = desk.run("-H", "localhost:2", "--dry-run", *SHOW, env={NAME: "6,7"})
    assert f"{NAME}=<0,1, unless localhost has chosen others>" in done.stdout
    done = desk.run("-H", "n1", "--devices", "node", "--include", "n1:1,3", "--dry-run", "--json",
                    *SHOW)  # fmt: skip
    told = promises.told(done.stdout)
    assert told["ranks"][0]["environment"][NAME] == "1,3"
