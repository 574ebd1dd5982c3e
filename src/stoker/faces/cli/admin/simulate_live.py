"""`stoker admin simulate --live`: the coordinator's machines and queue, run forward; as they are, and with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call

if TYPE_CHECKING:
    from stoker.scheduler.offers import NodeOffer
    from stoker.scheduler.simulation.simulation_report import Simulated
    from stoker.scheduler.simulation.simulator import Disruptions, Simulator
    from stoker.scheduler.snapshot import Snapshot
    from stoker.wire.views import ScheduleView

MOST_JOBS = 1_000_000
MOST_ADDED = 10_000
_LISTED = 20


def simulate_live(call: Call, given: dict[str, Any]) -> int:
    """Ask the coordinator for its schedule, let it run forward, and show when everything is done."""
    from stoker.faces.cli.admin.counting import counted
    from stoker.faces.cli.fleet.reaching import reach
    from stoker.faces.view.simulation import live_lines
    from stoker.scheduler.simulation.simulation_report import simulate_from
    from stoker.scheduler.snapshot import snapshot_from_dict

    view = reach(call, given["at"]).schedule()
    snapshot = snapshot_from_dict(view.schedule)
    added = machines_of(given["add"], snapshot)
    disruptions = _disruptions(snapshot, given)
    clock, most = call.parts.clock, MOST_JOBS
    with counted(call, "simulating", snapshot.ready_count) as count:
        now = simulate_from(snapshot, clock, most=most, heed=count.reach)
        changed = None
        if added or disruptions is not None:
            changed = simulate_from(
                snapshot, clock, added=added, disruptions=disruptions, most=most, heed=lambda _done: count.reach(0)
            )
    jobs = _starts(now, changed, view, snapshot)
    call.out.object(
        {
            "live": True,
            "at_s": snapshot.now_s,
            "blocked": view.blocked,
            "now": _told(now, snapshot),
            "changed": None if changed is None else _told(changed, snapshot),
            "added": [offer.node for offer in added],
            "jobs": jobs,
        }
    )
    for line in live_lines(
        (now[1].report, now[0].scheduler.ready.count),
        None if changed is None else (changed[1].report, changed[0].scheduler.ready.count),
        jobs[:_LISTED],
        at_s=snapshot.now_s,
        blocked=view.blocked,
        is_guess=_is_guess(now[0], snapshot),
        columns=call.out.columns,
    ):
        call.out.line(line)
    if len(jobs) > _LISTED:
        call.out.note(f"note: {len(jobs) - _LISTED:,} more jobs: --json lists the first {len(jobs):,}")
    return 0


def machines_of(text: str | None, snapshot: Snapshot) -> tuple[NodeOffer, ...]:
    """Return the machines that `--add` names: a kind (`rtx-4090:2`), or one that the fleet has (`desk:2`)."""
    from stoker.model.errors import Usage
    from stoker.model.suggest import did_you_mean
    from stoker.scheduler.offers import offer_of
    from stoker.scheduler.simulation.workload import make_node, node_kinds

    kinds = {_plain(name): kind for name, kind in node_kinds().items()}
    known = {one.offer.node: one.offer for one in snapshot.machines}
    found: list[NodeOffer] = []
    for part in filter(None, (text or "").split(",")):
        word, _, number = part.strip().partition(":")
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(MOST_ADDED))
        if number and not (is_number and 0 < int(number) <= MOST_ADDED):
            hint = f"write for example rtx-4090:2; {MOST_ADDED:,} at most"
            raise Usage(f"--add {part[:100]}: {number[:100]!r} is not a number of machines", hint=hint)
        kind = kinds.get(_plain(word))
        if word not in known and kind is None:
            words = [*known, *node_kinds()]
            hint = did_you_mean(word, words) or f"name one of the fleet, or {', '.join(node_kinds())}"
            raise Usage(f"--add {part}: there is no kind of machine {word!r}", hint=hint)
        for at in range(len(found) + 1, len(found) + 1 + int(number or "1")):
            name = f"added-{word}-{at}"
            if word in known:
                found.append(_like(known[word], name))
            elif kind is not None:
                found.append(offer_of(make_node(kind, name)))
        if len(found) > MOST_ADDED:
            raise Usage(f"--add: {MOST_ADDED:,} machines at most", hint="leave some out")
    return tuple(found)


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def _like(offer: NodeOffer, name: str) -> NodeOffer:
    """Return a machine as another one is, open and with nothing measured."""
    from stoker.model.frozen import changed

    devices = tuple(changed(one, uuid=f"{name}-{one.uuid}", free_bytes=None, closed="") for one in offer.devices)
    return changed(offer, node=name, devices=devices, closed="")


def _disruptions(snapshot: Snapshot, given: dict[str, Any]) -> Disruptions | None:
    from stoker.model.errors import Usage
    from stoker.model.suggest import did_you_mean
    from stoker.model.units import parse_duration
    from stoker.scheduler.simulation.simulator import Disruptions

    if not given["fail"] and not given["leave"]:
        return None
    names = [one.offer.node for one in snapshot.machines]
    leaves_s: dict[str, float] = {}
    for part in filter(None, (given["leave"] or "").split(",")):
        name, _, when = part.partition(":")
        if name not in names:
            raise Usage(
                f"--leave {part}: there is no machine {name!r}",
                hint=did_you_mean(name, names) or "stoker machines lists them",
            )
        try:
            leaves_s[name] = parse_duration(when) if when else 0.0
        except ValueError as error:
            raise Usage(f"--leave {part}: {error}") from None
    return Disruptions(fail=given["fail"] or 0.0, leaves_s=leaves_s, seed=given["seed"] or 0)


def _is_guess(run: Simulator, snapshot: Snapshot) -> bool:
    """Return whether some job that runs, or finds a machine, has no estimate of its duration."""
    from stoker.scheduler.simulation.simulator import NOWHERE

    batch, log = run.batch, run.log
    unknown = {one.class_id for one in snapshot.classes if one.expected_s is None}
    if log.guessed or not unknown:
        return bool(log.guessed)
    shapes = {at for at, class_id in enumerate(batch.class_ids) if class_id in unknown}
    return any(shape in shapes and log.node_of[row] != NOWHERE for row, shape in enumerate(batch.shape_of))


def _told(run: tuple[Simulator, Simulated], snapshot: Snapshot) -> dict[str, Any]:
    report, unfinished = run[1].report, run[0].scheduler.ready.count
    return {
        "done_s": None if unfinished else snapshot.now_s + report.makespan_s,
        "unfinished": unfinished,
        "is_guess": _is_guess(run[0], snapshot),
        **report.to_dict(),
    }


def _starts(
    now: tuple[Simulator, Simulated],
    changed: tuple[Simulator, Simulated] | None,
    view: ScheduleView,
    snapshot: Snapshot,
) -> list[dict[str, Any]]:
    """Return where and when the jobs with names start, the first first; None: it fits no machine."""
    users = {one.class_id: one.user for one in snapshot.classes}
    batch = now[0].batch
    rows = [row for row in range(batch.running, len(batch)) if str(batch.numbers[row]) in view.names]
    found = []
    for row in rows:
        told = {
            "job": view.names[str(batch.numbers[row])],
            "user": users.get(batch.class_ids[batch.shape_of[row]], ""),
            **_start(now[0], row, snapshot.now_s),
        }
        if changed is not None:
            told["changed"] = _start(changed[0], row, snapshot.now_s)
        found.append(told)
    return sorted(found, key=lambda one: (one["starts_s"] is None, one["starts_s"] or 0.0))


def _start(run: Simulator, row: int, now_s: float) -> dict[str, Any]:
    from stoker.scheduler.simulation.simulator import NOWHERE

    log = run.log
    if log.node_of[row] == NOWHERE:
        return {"machine": None, "starts_s": None, "ends_s": None, "is_guess": False}
    return {
        "machine": run.offers[log.node_of[row]].node,
        "starts_s": now_s + log.start_s[row],
        "ends_s": now_s + log.end_s[row],
        "is_guess": row in log.guessed,
    }
