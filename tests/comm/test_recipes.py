"""The recipes for other bindings of NCCL give them this job's id and numbers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from cases import cases

from dispatcher import comm
from dispatcher.comm import UniqueId

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
ID = bytes(range(128))


@cases("page, makes", [("nccl4py", "Communicator.init"), ("cupy", "NcclCommunicator")])
def test_a_recipe(page: str, makes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (RECIPES / f"{page}.md").read_text(), re.S)
    numbers = {"rank": 3, "size": 8, "gpu": 1, "device": "cuda:1"}
    job = SimpleNamespace(**numbers, nccl_id=lambda: UniqueId(ID))
    modules = MagicMock()
    for name in ("cupy", "cupy.cuda", "nccl", "nccl.core", "cuda", "cuda.core", "torch"):
        monkeypatch.setitem(sys.modules, name, modules)
    modules.core.UniqueId.from_bytes = bytes
    monkeypatch.setattr(comm, "init", lambda **_: job)
    exec(compile(script, page, "exec"), {})
    made = str(modules.mock_calls)
    assert makes in made
    assert str(ID) in made
