"""Machines that no longer belong to the fleet: forgotten, or with their last certificate taken back."""

from __future__ import annotations

from stoker.coordinator.queue.certifying import revoke, revoke_all
from stoker.coordinator.queue.commands import Done, ForgetMachine
from stoker.coordinator.queue.losing import lose
from stoker.coordinator.queue.moves import plain
from stoker.coordinator.queue.roster import named
from stoker.coordinator.queue.trust_commands import RevokeCertificate
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import NotFound, Refused
from stoker.model.fleet_events import FleetKinds


def forget_machine(turn: Turn, asked: ForgetMachine) -> Done:
    """Remove a machine, and take its certificates back; one that has none and would be back at once is refused."""
    if not turn.book.standing.certificates_of(asked.machine, turn.now_s):
        _see_gone(turn, asked.machine, is_forced=asked.is_forced)
    revoke_all(turn, asked.machine, why="forgotten", by=asked.by)
    _remove(turn, asked.machine, "its machine was forgotten", asked.by)
    return Done(changed=(asked.machine,))


def revoke_certificate(turn: Turn, asked: RevokeCertificate) -> Done:
    """Take one certificate back. Whoever has no other is out of the fleet until it joins again."""
    standing = turn.book.standing
    found = standing.certificates.get(asked.serial)
    if found is None:
        raise NotFound(f"no certificate {asked.serial[:12]} is known", hint="`stoker machines show` lists them")
    if found.revoked_s is not None:
        return Done(notes=(f"the certificate of {found.name} was taken back before",))
    revoke(turn, found, asked.why, asked.by)
    if not standing.certificates_of(found.name, turn.now_s) and found.name in turn.book.machines:
        _remove(turn, found.name, "its certificate was taken back", asked.by)
    return Done(changed=(found.name,))


def _see_gone(turn: Turn, name: str, *, is_forced: bool) -> None:
    """Refuse to forget a machine that would be back with its next word, and open, though it was drained."""
    machine = named(turn, name)
    if machine.leases:
        jobs = sorted(live.id for live in machine.leases.values())
        raise Refused(
            f"{name} still holds {len(jobs)} lease{'s' * (len(jobs) != 1)}",
            hint="drain it, or wait until its leases end",
            jobs=jobs,
        )
    if machine.is_offered and not is_forced:
        raise Refused(
            f"the worker of {name} still runs: with its next word {name} would be back, and open",
            hint=f"stop it first; {name} is taken for gone when nothing was heard of it for the lease and the grace. "
            "--force forgets it now",
            machine=name,
        )


def _remove(turn: Turn, name: str, why: str, by: str) -> None:
    book = turn.book
    machine = book.machines.get(name)
    # Without a machine, it joined and never said hello.
    if machine is not None:
        for live in list(machine.leases.values()):
            lose(turn, live, why)
        del book.machines[name]
        book.scheduler.remove_machine(name)
        book.barred.pop(name, None)
        turn.write(turn.statements.drop_machine, at_name=name)
    turn.tell(FleetKinds.MACHINE_FORGOTTEN, machine=name, fields={"by": plain(by)} if by else None)
