"""What is declared about machines: the coordinator's own file, and manifests' policies laid over it by name."""

from __future__ import annotations

from stoker.coordinator.queue.classes import listed_words, reclassify
from stoker.coordinator.queue.commands import Declare, Done
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.roster import offer
from stoker.coordinator.queue.turn import Turn
from stoker.model.fleet_events import FleetKinds
from stoker.wire.orders import HostPolicy


def declare(turn: Turn, said: Declare) -> Done:
    """Let the coordinator's own file stand as it was read now."""
    turn.book.cluster = said.cluster
    users = said.cluster.users if said.cluster is not None else {}
    turn.book.scheduler.set_policies(users)
    moved = _spread(turn)
    nodes = [] if said.cluster is None else [node.name for node in said.cluster.nodes]
    fields = {"source": plain(said.source), "machines": nodes, **telling({"users": list(users), "by": plain(said.by)})}
    turn.tell(FleetKinds.POLICY_RELOADED, fields=fields)
    return Done(changed=tuple(nodes), data={"jobs_moved": moved})


def put_policies(turn: Turn, policies: tuple[HostPolicy, ...], *, source: str, by: str) -> None:
    """Lay what a manifest says about machines over what is known of them."""
    book = turn.book
    new = [policy for policy in policies if book.policies.get(policy.name) != policy]
    if not new:
        return
    for policy in new:
        book.policies[policy.name] = policy
        turn.write(turn.statements.put_policy, name=policy.name, policy=policy.model_dump_json(), source=source)
    _spread(turn)
    fields = {"source": source, "machines": [policy.name for policy in new], **telling({"by": by})}
    turn.tell(FleetKinds.POLICY_RELOADED, fields=fields)


def _spread(turn: Turn) -> int:
    """Tell matching what machines offer now, and put jobs into their classes as lists tell them apart now."""
    book = turn.book
    for machine in book.machines.values():
        machine.away = None
        if machine.is_offered:
            offer(turn, machine)
    was, book.listed = book.listed, listed_words(book.cluster, book.policies.values())
    return reclassify(turn, was ^ book.listed)
