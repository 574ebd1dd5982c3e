"""Plans: compiled DAGs of stages. Data only; built by `builder`, read from files by `plan_file`, checked by `check`.

Nodes stand in an order in which every node comes after what it needs; that order is the order of their ids for the
executor, so that the same plan starts its work in the same order every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.frozen import fresh, frozen
from stoker.model.resources import Needs
from stoker.model.retry import RetryPolicy
from stoker.plan.stage import Stage

MAX_NODES_ADDED = 4096
"""How many nodes one fan-out may add while a plan runs."""


@frozen
class Node:
    """One stage in a plan, with its arguments and where its inputs come from."""

    id: str
    stage: Stage
    args: Mapping[str, Any] = fresh(factory=dict)
    """Checked and default-filled."""
    inputs: Mapping[str, tuple[str, ...]] = fresh(factory=dict)
    """For each port the nodes that feed it, in order."""
    fans_out: bool = False
    """Runs once per item of what feeds it."""
    retry: RetryPolicy | None = None
    timeout_s: float | None = None
    asks: Needs | None = None
    """What it holds while it runs, if the plan knows better than its stage."""

    @property
    def needs(self) -> Needs:
        return self.asks if self.asks is not None else self.stage.needs

    @property
    def gives_several(self) -> bool:
        return self.stage.gives_list or self.fans_out

    @property
    def limit_s(self) -> float | None:
        """How long it may run: as the plan says, else as its stage does."""
        return self.timeout_s if self.timeout_s is not None else self.stage.timeout_s

    def producers(self) -> tuple[str, ...]:
        """Return the nodes that feed it, each once."""
        if not self.inputs:
            return ()
        return tuple(dict.fromkeys(producer for feeding in self.inputs.values() for producer in feeding))

    def fanned_ports(self, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Give the ports through which an instance of a fan-out gets its own item.

        Those that take one, of whatever gives several; a port that takes many gets everything, unless there is nothing
        else to fan out over.
        """
        fed = [
            port
            for port in self.stage.ports
            if any(one in nodes and nodes[one].gives_several for one in self.inputs[port.name])
        ]
        return frozenset(port.name for port in fed if not port.takes_many) or frozenset(port.name for port in fed)


@frozen
class Plan:
    """A checked plan. `final` names the node whose output is the result; `keep` others worth laying out."""

    name: str
    nodes: tuple[Node, ...]
    final: str
    keep: tuple[str, ...] = ()

    def node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)
