"""What drain, cordon, open and forget have in common: which machine, which devices, why and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Option, Positional, duration
from stoker.model.units import format_duration
from stoker.worker.submitting.person import who_asks

if TYPE_CHECKING:
    from stoker.wire.asking import DoneView, MachineAsk
    from stoker.wire.client import FleetClient

MACHINE = Positional("NAME", help="a machine, as `stoker machines` lists it")
DEVICE = Option("--device", value="UUID", help="only this device; may be given again", is_many=True)
WHY = Option("--why", value="TEXT", help="told to everybody who asks")
FOR = Option("--for", value="TIME", read=duration, help="until then: 30m, 2h; until opened unless told")
OPTIONS = (WHY, FOR, AT)


def close_or_open(
    call: Call,
    given: dict[str, Any],
    act: Callable[[FleetClient, str, MachineAsk], DoneView],
    *,
    said: str,
) -> int:
    """Ask for it and say what it did."""
    from stoker.wire.asking import MachineAsk

    for_s = given.get("for")
    asked = MachineAsk(
        devices=tuple(given.get("device") or ()),
        why=given.get("why") or "",
        for_s=for_s,
        is_forced=given.get("force") or False,
        by=who_asks(call.parts.settings.environment),
    )
    done = act(reach(call, given["at"]), given["name"], asked)
    span = f" for {format_duration(for_s)}" if for_s else ""
    what = f"{given['name']} ({', '.join(asked.devices)})" if asked.devices else given["name"]
    call.out.object({"machine": given["name"], **asked.model_dump(mode="json"), **done.model_dump(mode="json")})
    if done.changed:
        # What a note says counts more than what may follow from it.
        does = said.partition(":")[0] if done.notes else said
        call.out.line(f"{what} {does}{span}{f': {asked.why}' if asked.why else ''}")
    for note in done.notes:
        call.out.note(f"note: {note}" if done.changed else note)
    return 0
