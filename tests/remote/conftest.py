"""``boot()`` gives real agents, under each Python of 3.8 to 3.13 that this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remote.driver import MINORS, Agent, interpreters


@pytest.fixture(params=[f"3.{minor}" for minor in MINORS])
def python(request: pytest.FixtureRequest) -> str:
    """The path of an interpreter of each version in turn."""
    path = interpreters().get((3, int(request.param[2:])))
    if path is None:
        pytest.skip(f"no python{request.param} on this machine")
    return path


@pytest.fixture
def boot(python: str) -> Iterator[Callable[..., Agent]]:
    """``boot(**options)`` starts an agent; after the test nothing of it may live."""
    agents = []

    def start(**options: Any) -> Agent:
        agents.append(Agent(python, **options))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()


@pytest.fixture
def agent(boot: Callable[..., Agent]) -> Agent:
    """One agent, booted with nothing special."""
    return boot()
