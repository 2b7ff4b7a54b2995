"""How many GPUs a host has for us."""

from __future__ import annotations

import pytest

from dispatcher.remote.host import host_facts


def test_gpus_that_may_not_be_opened_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch system denies a job by a cgroup is still listed in /dev."""
    names = ["null", "nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(8))]
    monkeypatch.setattr("os.listdir", lambda path: names)
    allowed = {"/dev/nvidia4", "/dev/nvidia5", "/dev/nvidiactl"}
    monkeypatch.setattr("os.access", lambda path, mode: path in allowed)
    assert host_facts.count_gpus() == 2
