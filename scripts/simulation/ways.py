"""How hosts are reached: each from here (``Flat``), or through others (``Tree``).

A way says when a host's command runs, and how far its bytes go.
``Tree`` follows ``dispatcher/transport/tree``: relays and what is behind them are asked for without
waiting for answers. Nobody is refused by the host above.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from dispatcher.transport.tree.topology import HostTree

if TYPE_CHECKING:
    from simulation.world import World


class Flat:
    """Every host is connected from here."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reach(self, node: int, then: Callable[[], None]) -> None:
        """Call ``then`` when the login at ``node`` has been answered."""
        world, model = self._world, self._world.model
        over = world.host_busy(world.login(node)) + model.trips * model.trip
        world.at(over, lambda: world.at(world.busy(model.launcher_login), then))

    def name(self, node: int) -> str | None:
        """The transport's, where it is not the one that was asked."""
        return None

    def cut(self, node: int) -> None:
        """Nothing gets through ``node`` any more."""

    def reaches(self, node: int) -> bool:
        """Whether nobody on the way to ``node`` is cut off."""
        return True

    def half(self, node: int) -> float:
        """Seconds until what is written arrives."""
        return self._world.model.trip / 2


class Tree:
    """Hosts by their numbers in ``topology``; others (spares) are connected from here."""

    def __init__(self, world: World, topology: HostTree) -> None:
        self._world = world
        self._topology = topology
        self._flat = Flat(world)
        self._relays: dict[int, list[Callable[[], None]] | None] = {}  # None: it is up
        self._cores: dict[int, list[float]] = {}  # of an inner host: when each is free
        self._cut: set[int] = set()

    def reach(self, node: int, then: Callable[[], None]) -> None:
        """As ``Flat``'s. Of an inner host: when its relay has answered."""
        world, cost = self._world, self._world.model.launcher_behind
        if self._branch(node) is None:
            self._flat.reach(node, then)
        elif self._topology.children[node]:
            self._relay(node, lambda: world.at(world.busy(cost), then))
        else:
            self._through(node, lambda: world.at(world.busy(cost), then))

    def _relay(self, node: int, then: Callable[[], None]) -> None:
        """``then`` once there is a relay at ``node``; whoever needs it first has it started."""
        world = self._world
        waiting = self._relays.setdefault(node, [])
        if waiting is None:
            then()
            return
        waiting.append(then)
        if len(waiting) > 1:
            return

        def up() -> None:
            self._relays[node] = None
            for one in waiting:
                one()

        def boot() -> None:
            world.at(world.host_busy(world.model.relay), up)

        if self._topology.parents[node] is None:
            self._flat.reach(node, lambda: world.after(world.model.trip, boot))
        else:
            self._through(node, boot)

    def _through(self, node: int, then: Callable[[], None]) -> None:
        """``then`` once the host above has logged in at ``node``."""
        world, model = self._world, self._world.model
        above = self._topology.parents[node]
        assert above is not None

        def begin() -> None:
            begun = self._on_core(above, model.inner_login)
            trips = model.trips * model.inner_trip
            world.at(begun, lambda: world.at(world.host_busy(world.login(node)) + trips, then))

        self._relay(above, begin)

    def _on_core(self, node: int, seconds: float) -> float:
        """When inner host ``node`` has worked for so long, on one of its cores."""
        world = self._world
        if world.model.cores:
            return world.host_busy(seconds)
        cores = self._cores.setdefault(node, [0.0] * world.model.inner_cores)
        end = max(world.clock.now, heapq.heappop(cores)) + seconds
        heapq.heappush(cores, end)
        return end

    def name(self, node: int) -> str | None:
        """As ``Flat``'s."""
        return None if self._branch(node) is None else "tree"

    def cut(self, node: int) -> None:
        """As ``Flat``'s. From now on those below are connected from here."""
        self._cut.add(node)

    def reaches(self, node: int) -> bool:
        """As ``Flat``'s."""
        above = self._topology.above(node) if node < len(self._topology.parents) else ()
        return self._cut.isdisjoint(above)

    def half(self, node: int) -> float:
        """As ``Flat``'s: by each host on the way."""
        parents = self._topology.parents
        levels = len([*self._topology.above(node)]) if node < len(parents) else 0
        return (self._world.model.trip + levels * self._world.model.inner_trip) / 2

    def _branch(self, node: int) -> int | None:
        """The host, opened from here, whose relay serves ``node``."""
        if node >= len(self._topology.parents) or not self.reaches(node):
            return None
        head = [node, *self._topology.above(node)][-1]
        return head if self._topology.children[head] else None
