"""The state of the jobs' Python environments on each machine, shown before a submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.cli.context import CommandContext
from stoker.core.errors import StokerError
from stoker.core.frozen import changed
from stoker.core.machine import is_platform
from stoker.core.text import outside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stoker.core.job import EnvironmentChoice
    from stoker.jobs.pack.code_tree import PreparedSubmission
    from stoker.protocol.client import FleetClient
    from stoker.protocol.lease_messages import MachineInventory

_MOST_NAMED = 8
_DEFAULT = "default"
_AWAY = ("silent", "gone", "left")


def read_env(words: Sequence[str]) -> dict[str, str]:
    """Parse `--env FILE` and `--env PLATFORM=FILE` as a manifest's table. Raises `ValueError`."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, file = word.partition("=")
        platform, file = (name, file) if equals and (is_platform(name) or name == _DEFAULT) else (_DEFAULT, word)
        platform = "" if platform == _DEFAULT else platform
        if platform in found:
            message = f"--env {word}: {found[platform]} is already set for this platform"
            raise ValueError(message)
        found[platform] = file
    return found


def look_at_environments(
    call: CommandContext, orders: PreparedSubmission, client: FleetClient, say: Callable[[str], None]
) -> PreparedSubmission:
    """Print the state of the jobs' environments on the fleet; return the jobs with unsupported platforms excluded."""
    ways = {id(order.environment): (order.environment, order.folder) for order in orders.jobs if order.environment}
    if not ways:
        return orders
    from stoker.jobs.pack.environment_choices import refused_by
    from stoker.protocol.environment_messages import environment_digest, outlooks

    machines = machines_there(client)
    known: dict[str, tuple[EnvironmentChoice, ...]] = {}
    made: dict[int, tuple[EnvironmentChoice, ...]] = {}
    for place, (choices, folder) in ways.items():
        digest = environment_digest(choices)
        if digest not in known:
            known[digest] = refused_by(choices, folder, machines.values())
            found = outlooks(known[digest], machines)
            _show(call, choices, [one.text for one in found], {one.machine: one.to_dict() for one in found}, say)
        made[place] = known[digest]
    if all(made[place] is choices or made[place] == choices for place, (choices, _) in ways.items()):
        return orders
    jobs = tuple(
        changed(order, environment=made[id(order.environment)]) if order.environment else order for order in orders.jobs
    )
    return changed(orders, jobs=jobs)


def machines_there(client: FleetClient) -> dict[str, MachineInventory]:
    """Return the available machines and their inventories; none without permission."""
    from stoker.protocol.lease_messages import MachineInventory

    try:
        views = client.machines()
    except StokerError:
        # A role that may submit may not be allowed to list machines.
        return {}
    return {one.name: MachineInventory.model_validate(one.environments) for one in views if one.state not in _AWAY}


def _show(
    call: CommandContext,
    choices: Sequence[EnvironmentChoice],
    texts: list[str],
    machines: dict[str, dict[str, object]],
    say: Callable[[str], None],
) -> None:
    files = " or ".join(dict.fromkeys(one.path or f"python {one.python}" for one in choices))
    if call.out.is_json:
        call.out.object({"environment": files, "machines": machines})
        return
    shown = ", ".join(texts[:_MOST_NAMED]) + (f" and {len(texts) - _MOST_NAMED} more" if texts[_MOST_NAMED:] else "")
    say(f"env {outside(files)}: {outside(shown) or 'no machines'}")
