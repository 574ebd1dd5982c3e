"""Which node may go next: the state of a plan while it runs, and every move it may make. Pure: no clock, no I/O.

    waiting → ready → running → done
                ↑        │    → failed | cancelled | diverged
                └── parked      (backing off, leased elsewhere, twin in flight, short of permits)
    done → waiting                rewind: its bytes are needed and gone
    waiting → pruned              something it needs will never come

Ready nodes come out in the order of the plan, so that sequential and parallel runs start the same work in one order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from enum import Enum

from stoker.core.device import Needs
from stoker.core.frozen import changeable, fresh
from stoker.engine.plan import MAX_NODES_ADDED, Plan, PlanNode
from stoker.engine.result_cache import Execute, NodeProduct
from stoker.engine.types import NodeEnding, NodeResult
from stoker.store.records import Record


class NodeState(Enum):
    """Where a node stands."""

    WAITING = "waiting"
    READY = "ready"
    PARKED = "parked"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"
    PRUNED = "pruned"


ENDED = frozenset({NodeState.DONE, NodeState.FAILED, NodeState.DIVERGED, NodeState.CANCELLED, NodeState.PRUNED})


@changeable
class _Place:
    rank: tuple[int, ...]
    needs: set[str]
    feeds: list[str] = fresh(factory=list)
    state: NodeState = NodeState.WAITING


class Schedule:
    """The nodes of one run by name. Every method that changes something says what follows from it."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._ready: list[tuple[tuple[int, ...], str]] = []
        self._open = 0

    def add(self, name: str, *, rank: tuple[int, ...], needs: Iterable[str]) -> None:
        """Add a node; what it needs must be there already. It is ready at once if all of that is done."""
        wanted = set(needs)
        missing = {one for one in wanted if self._places[one].state is not NodeState.DONE}
        self._places[name] = _Place(rank=rank, needs=missing)
        for one in wanted:
            self._places[one].feeds.append(name)
        self._open += 1
        if not missing:
            self._make_ready(name)

    def state(self, name: str) -> NodeState:
        return self._places[name].state

    def has_ended(self, name: str) -> bool:
        return self._places[name].state in ENDED

    def rank(self, name: str) -> tuple[int, ...]:
        return self._places[name].rank

    @property
    def is_over(self) -> bool:
        return self._open == 0

    def next_ready(self) -> str | None:
        """Take the first ready node in the plan's order; it is running now."""
        while self._ready:
            rank, name = heapq.heappop(self._ready)
            place = self._places[name]
            if place.state is NodeState.READY and place.rank == rank:
                place.state = NodeState.RUNNING
                return name
        return None

    def park(self, name: str) -> None:
        """Put a node aside until `unpark`."""
        self._places[name].state = NodeState.PARKED

    def unpark(self, name: str) -> None:
        """Make a parked node ready again."""
        if self._places[name].state is NodeState.PARKED:
            self._make_ready(name)

    def done(self, name: str) -> list[str]:
        """A node has its result; gives the nodes that became ready."""
        place = self._places[name]
        place.state = NodeState.DONE
        self._open -= 1
        freed = []
        for consumer in place.feeds:
            waiting = self._places[consumer]
            waiting.needs.discard(name)
            if not waiting.needs and waiting.state is NodeState.WAITING:
                self._make_ready(consumer)
                freed.append(consumer)
        return freed

    def end(self, name: str, state: NodeState) -> list[str]:
        """A node ended without a result; gives everything downstream that is pruned by that."""
        place = self._places[name]
        place.state = state
        self._open -= 1
        pruned: list[str] = []
        waiting = list(place.feeds)
        while waiting:
            consumer = waiting.pop()
            below = self._places[consumer]
            if below.state in (NodeState.WAITING, NodeState.READY, NodeState.PARKED):
                below.state = NodeState.PRUNED
                self._open -= 1
                pruned.append(consumer)
                waiting.extend(below.feeds)
        return sorted(pruned, key=lambda one: self._places[one].rank)

    def rewind(self, name: str, *, then: str) -> None:
        """A done node must run again because `then` needs its bytes; `then` waits for it."""
        place = self._places[name]
        if place.state is NodeState.DONE:
            self._open += 1
            self._make_ready(name)
        if then not in place.feeds:
            place.feeds.append(then)
        waiting = self._places[then]
        waiting.state = NodeState.WAITING
        waiting.needs.add(name)

    def fan_out(self, name: str, instances: list[str], *, needs: Iterable[str]) -> None:
        """Add the instances of a node that was taken, in their order, and make it wait for them."""
        place = self._places[name]
        for position, instance in enumerate(instances):
            self.add(instance, rank=(*place.rank, position), needs=needs)
            self._places[instance].feeds.append(name)
        place.needs.update(instances)
        if instances:
            place.state = NodeState.WAITING

    def _make_ready(self, name: str) -> None:
        place = self._places[name]
        place.state = NodeState.READY
        heapq.heappush(self._ready, (place.rank, name))


class PlanProgress:
    """Nodes and their results. A fan-out is a node (`train`) and one instance per item (`train[0]`, …).

    A run fills it in as nodes end; a preview and an adoption fill it in with what is known already.
    """

    def __init__(self, plan: Plan) -> None:
        self.nodes: dict[str, PlanNode] = {node.id: node for node in plan.nodes}
        self.results: dict[str, NodeResult] = {}
        self._instances: dict[str, list[str]] = {}
        self._positions: dict[str, int] = {}
        self._fanned: dict[str, frozenset[str]] = {}

    def sources_of(self, name: str) -> list[str]:
        """Return whose results a node's result is made of: itself, or the instances of a fan-out."""
        return self._instances.get(name, [name])

    def is_unexpanded_fan(self, name: str) -> bool:
        return self.nodes[name].fans_out and name not in self._positions and name not in self._instances

    def is_expanded_fan(self, name: str) -> bool:
        return name in self._instances

    def items_for(self, name: str) -> int:
        """Return how many items a fan-out goes over. Raises `ValueError` if its lists don't agree, or are too long."""
        node = self.nodes[name]
        counts = {
            one: len(self.products_of(one))
            for port in sorted(node.fanned_ports(self.nodes))
            for one in node.inputs[port]
            if self.nodes[one].gives_several
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} of {one}" for one, count in counts.items())
            message = f"it fans out over lists of different lengths: {listed}"
            raise ValueError(message)
        count = next(iter(counts.values()))
        if count > MAX_NODES_ADDED:
            message = f"its list has {count} items; a fan-out may add {MAX_NODES_ADDED}"
            raise ValueError(message)
        return count

    def expand(self, name: str, count: int) -> list[str]:
        """Make the instances of a fan-out."""
        instances = [f"{name}[{position}]" for position in range(count)]
        self._instances[name] = instances
        self._fanned[name] = self.nodes[name].fanned_ports(self.nodes)
        for position, instance in enumerate(instances):
            self.nodes[instance] = self.nodes[name]
            self._positions[instance] = position
        return instances

    def collect(self, name: str) -> None:
        """Make a fan-out's result from those of its instances."""
        results = [self.results[one] for one in self._instances[name]]
        ran = any(result.ending is NodeEnding.RAN for result in results)
        self.results[name] = NodeResult(
            ending=NodeEnding.RAN if ran else NodeEnding.HIT,
            products=self.products_of(name),
            has_bytes=all(result.has_bytes for result in results),
            instances=len(results),
        )

    def collect_again(self) -> None:
        """Collect fan-outs again: some of their instances may have run after all, for their bytes."""
        for name, instances in self._instances.items():
            is_collected = name in self.results and self.results[name].instances is not None
            if is_collected and all(self.results[one].ending in (NodeEnding.HIT, NodeEnding.RAN) for one in instances):
                self.collect(name)

    def products_of(self, name: str) -> tuple[NodeProduct, ...]:
        """Return what a node gave; of a fan-out, what all its instances gave, in order."""
        instances = self._instances.get(name)
        if instances is None:
            return self.results[name].products
        return tuple(product for one in instances for product in self.results[one].products)

    def inputs_of(self, name: str) -> dict[str, tuple[NodeProduct, ...]]:
        """Return the artifacts for each port of a node whose producers are done; an instance gets its own items."""
        node = self.nodes[name]
        position = self._positions.get(name)
        fanned = self._fanned[node.id] if position is not None else ()
        gathered = {}
        for port, producers in node.inputs.items():
            given = [self._given(one, position if port in fanned else None) for one in producers]
            gathered[port] = given[0] if len(given) == 1 else tuple(product for made in given for product in made)
        return gathered

    def read_by(self, name: str) -> list[str]:
        """Name whose bytes a node reads: its producers or their instances, for an instance only those of its items."""
        node = self.nodes[name]
        position = self._positions.get(name)
        fanned = self._fanned[node.id] if position is not None else ()
        sources: dict[str, None] = {}
        for port, producers in node.inputs.items():
            for one in producers:
                made_by = self.sources_of(one)
                if port in fanned and one in self._instances and position is not None:
                    made_by = made_by[position : position + 1]
                sources.update(dict.fromkeys(made_by))
        return list(sources)

    def has_lost_inputs(self, name: str, has_bytes: Callable[[Record], bool]) -> bool:
        """Return True if bytes that a node reads are gone; their producers' results say so from now on."""
        lost = False
        for source in self.read_by(name):
            result = self.results[source]
            if not all(has_bytes(product.record) for product in result.products[:1]):
                result.has_bytes = False
                lost = True
        return lost

    def _given(self, producer: str, position: int | None) -> tuple[NodeProduct, ...]:
        if position is None or not self.nodes[producer].gives_several:
            return self.products_of(producer)
        instances = self._instances.get(producer)
        if instances is not None:
            return self.results[instances[position]].products
        return self.results[producer].products[position : position + 1]


_MOST_QUEUED = 256
_MOST_REFUSALS = 32


@changeable
class QueuedNode:
    """A node without a stored result, that waits for permits, memory or devices."""

    name: str
    node: PlanNode
    execute: Execute
    inputs: dict[str, tuple[NodeProduct, ...]]
    rank: tuple[int, ...]
    """Its place in the plan, which no other node has."""
    needs: Needs
    """What it holds while it runs, with its share key."""
    refusals: int = 0
    waits_for: str = ""
    """The last reported reason of its wait for devices."""

    def __lt__(self, other: QueuedNode) -> bool:
        return self.rank < other.rank

    def is_first_refusal(self) -> bool:
        """Count a refusal; return True if it is the first."""
        self.refusals += 1
        return self.refusals == 1

    @property
    def has_waited_enough(self) -> bool:
        return self.refusals > _MOST_REFUSALS


class NodeQueue:
    """Waiting nodes by their needs, in the order of the plan.

    Nodes with equal needs are interchangeable, so only the first of each group is tried: a hundred thousand waiting
    nodes cost as much as a handful. A node that was passed over often enough holds back those behind it.
    """

    def __init__(self) -> None:
        self._groups: dict[Needs, list[QueuedNode]] = {}
        self._count = 0

    @property
    def is_full(self) -> bool:
        """True if more nodes would only cost memory."""
        return self._count >= _MOST_QUEUED

    def enter(self, waiting: QueuedNode) -> None:
        """Add a node."""
        self._count += 1
        heapq.heappush(self._groups.setdefault(waiting.needs, []), waiting)

    def first_of_each(self) -> list[QueuedNode]:
        """Return the first node of each group, in the order of the plan."""
        return sorted(group[0] for group in self._groups.values() if group)

    def leave(self, waiting: QueuedNode) -> None:
        """Remove the first node of its group."""
        heapq.heappop(self._groups[waiting.needs])
        self._count -= 1

    def drop(self, names: set[str]) -> list[QueuedNode]:
        """Remove nodes that will never run, and return them."""
        dropped = []
        for needs, group in self._groups.items():
            gone = [waiting for waiting in group if waiting.name in names]
            if gone:
                kept = [waiting for waiting in group if waiting.name not in names]
                heapq.heapify(kept)
                self._groups[needs] = kept
                self._count -= len(gone)
                dropped += gone
        return dropped

    def empty(self) -> list[str]:
        """Remove all nodes and return their names."""
        names = [waiting.name for group in self._groups.values() for waiting in group]
        self._groups.clear()
        self._count = 0
        return names
