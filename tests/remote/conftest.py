"""``boot()`` gives real agents, under the oldest and the newest Python of this machine.

The versions between them have their turn in the nightly tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remote.driver import Agent, interpreters, new_enough

FOUND = new_enough()


def marks(version: tuple[int, int]) -> list[pytest.MarkDecorator]:
    """``other_python``, unless it is the newest."""
    between = [pytest.mark.nightly] if FOUND[0] < version < FOUND[-1] else []
    return [*between, pytest.mark.other_python] if version != FOUND[-1] else []


@pytest.fixture(
    params=[pytest.param(version, marks=marks(version)) for version in FOUND],
    ids="{0[0]}.{0[1]}".format,
)
def python(request: pytest.FixtureRequest) -> str:
    """The path of an interpreter of each version in turn."""
    return interpreters()[request.param]


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
