"""`stoker pause`: this machine's owner needs it; its workers give back what they hold and take no more until then."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import reach
from stoker.cli.grammar import Grammar, Option, Positional, duration
from stoker.core.errors import StokerError, Usage
from stoker.core.text import format_duration
from stoker.host.locks import is_locked
from stoker.jobs.submitter import user_name
from stoker.protocol.view_messages import MachineRequest
from stoker.worker.owner_pause import Pause, clear_pause, read_pause, write_pause
from stoker.worker.worker_state import Journal, workers_folder

GRAMMAR = Grammar(
    "pause",
    about=(
        "Give this machine to its owner for a while: its workers save what they can, give their jobs back without "
        "charge, and take no more until then. Without a time, until `stoker pause --off`."
    ),
    positionals=(Positional("TIME", help="how long: 30m, 2h", is_required=False),),
    options=(Option("--off", help="take jobs again"),),
    examples=("stoker pause 2h", "stoker pause", "stoker pause --off"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Write the wish down, or take it back."""
    settings, now_s = call.parts.settings, call.parts.clock.wall_s()
    for_s = _read(given["time"])
    if given["off"]:
        if for_s is not None:
            raise Usage("--off takes no time", hint="stoker pause --off")
        was = read_pause(settings.state, now_s=now_s)
        clear_pause(settings.state)
        _tell_coordinators(call, _workers(settings.state), None)
        call.out.object({"is_paused": False, "was_paused": was is not None})
        call.out.line("takes jobs again" if was is not None else "it was not paused")
        return 0
    os.makedirs(settings.state, exist_ok=True)
    until_s = None if for_s is None else now_s + for_s
    write_pause(settings.state, Pause(until_s=until_s, since_s=now_s, by=user_name()))
    workers = _workers(settings.state)
    _tell_coordinators(call, workers, MachineRequest(why="its owner needs it", for_s=for_s, by=user_name()))
    call.out.object({"is_paused": True, "until_s": until_s, "workers": workers})
    span = "until `stoker pause --off`" if for_s is None else f"for {format_duration(for_s)}"
    call.out.line(f"paused {span}: {_told(workers)}")
    if for_s is not None:
        call.out.note("`stoker pause --off` ends it before that")
    return 0


def _read(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = duration(text)
    except ValueError as error:
        raise Usage(f"TIME: {error}", hint="stoker pause 2h") from None
    if not seconds > 0:
        raise Usage(f"TIME: {text!r} is no time at all", hint="stoker pause 2h")
    return seconds


def _told(workers: list[str]) -> str:
    if not workers:
        return "no worker runs here now; one that is started takes nothing until then"
    does = "give back what runs, and take no more" if len(workers) > 1 else "gives back what runs, and takes no more"
    return f"{', '.join(workers)} {does}"


def _tell_coordinators(call: CommandContext, workers: list[str], ask: MachineRequest | None) -> None:
    """Have the fleet see it at once. The workers act on the wish by themselves, so nobody has to answer."""
    for name in workers:
        written = Journal(os.path.join(workers_folder(call.parts.settings.state), name)).read()
        if written is None:
            continue
        try:
            client = reach(call, written.coordinator)
            if ask is not None:
                client.pause(name, ask)
            elif client.machine(name).state == "paused":
                # Who drained or cordoned it did so for another reason.
                client.open(name)
        except StokerError as error:
            call.out.note(f"note: the coordinator was not told, {name} will tell it: {error}")


def _workers(state: str) -> list[str]:
    """Name the workers of this home that run now."""
    place = workers_folder(state)
    with suppress(OSError):
        return [name for name in sorted(os.listdir(place)) if is_locked(Journal(os.path.join(place, name)).lock_path)]
    return []
