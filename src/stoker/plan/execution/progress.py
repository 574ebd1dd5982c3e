"""What a run knows so far: results by node, the instances of its fan-outs, and what each node's inputs are.

A run fills it in as nodes end; a preview and an adoption fill it in with what is known already.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.plan.cache import Product
from stoker.plan.graph import MAX_NODES_ADDED, Node, Plan
from stoker.plan.outcome import Ending, NodeResult
from stoker.store.records import Record


class Progress:
    """Nodes and their results. A fan-out is a node (`train`) and one instance per item (`train[0]`, …)."""

    def __init__(self, plan: Plan) -> None:
        self.nodes: dict[str, Node] = {node.id: node for node in plan.nodes}
        self.results: dict[str, NodeResult] = {}
        self._instances: dict[str, list[str]] = {}
        self._positions: dict[str, int] = {}
        self._fanned: dict[str, frozenset[str]] = {}

    def sources_of(self, name: str) -> list[str]:
        """Give whose results a node's result is made of: itself, or the instances of a fan-out."""
        return self._instances.get(name, [name])

    def is_unexpanded_fan(self, name: str) -> bool:
        return self.nodes[name].fans_out and name not in self._positions and name not in self._instances

    def is_expanded_fan(self, name: str) -> bool:
        return name in self._instances

    def items_for(self, name: str) -> int:
        """Say how many items a fan-out goes over. Raises `ValueError` if its lists don't agree, or are too long."""
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
        ran = any(result.ending is Ending.RAN for result in results)
        self.results[name] = NodeResult(
            ending=Ending.RAN if ran else Ending.HIT,
            products=self.products_of(name),
            has_bytes=all(result.has_bytes for result in results),
            instances=len(results),
        )

    def collect_again(self) -> None:
        """Make the results of fan-outs anew: some of their instances may have run after all, for their bytes."""
        for name, instances in self._instances.items():
            is_collected = name in self.results and self.results[name].instances is not None
            if is_collected and all(self.results[one].ending in (Ending.HIT, Ending.RAN) for one in instances):
                self.collect(name)

    def products_of(self, name: str) -> tuple[Product, ...]:
        """Give what a node gave; of a fan-out, what all its instances gave, in order."""
        instances = self._instances.get(name)
        if instances is None:
            return self.results[name].products
        return tuple(product for one in instances for product in self.results[one].products)

    def inputs_of(self, name: str) -> dict[str, tuple[Product, ...]]:
        """Give the artifacts for each port of a node whose producers are done; an instance gets its own items."""
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

    def _given(self, producer: str, position: int | None) -> tuple[Product, ...]:
        if position is None or not self.nodes[producer].gives_several:
            return self.products_of(producer)
        instances = self._instances.get(producer)
        if instances is not None:
            return self.results[instances[position]].products
        return self.results[producer].products[position : position + 1]
