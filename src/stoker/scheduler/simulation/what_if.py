"""A fleet with other machines: which are added, and what a simulation says of single jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stoker.core.frozen import changed
from stoker.scheduler.offers import NodeOffer, offer_of
from stoker.scheduler.simulation.simulator import NOWHERE, Simulator
from stoker.scheduler.simulation.workload import make_node, node_kinds
from stoker.scheduler.snapshot import Snapshot


def kinds_to_add(snapshot: Snapshot) -> list[str]:
    """Return what `machines_like` knows: the machines of the fleet, then kinds such as `rtx-4090`."""
    return [*(one.offer.node for one in snapshot.machines), *node_kinds()]


def machines_like(word: str, count: int, snapshot: Snapshot, begin: int = 1) -> list[NodeOffer] | None:
    """Return machines like one of the fleet, or of a kind, numbered from `begin`; None if neither is known."""
    known = {one.offer.node: one.offer for one in snapshot.machines}
    names = [f"added-{word}-{number}" for number in range(begin, begin + count)]
    if word in known:
        return [_like(known[word], name) for name in names]
    kind = {_plain(name): kind for name, kind in node_kinds().items()}.get(_plain(word))
    return None if kind is None else [offer_of(make_node(kind, name)) for name in names]


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def _like(offer: NodeOffer, name: str) -> NodeOffer:
    """Return an open copy of a machine without measurements."""
    devices = tuple(changed(one, uuid=f"{name}-{one.uuid}", free_bytes=None, closed="") for one in offer.devices)
    return changed(offer, node=name, devices=devices, closed="")


def has_guesses(run: Simulator, snapshot: Snapshot) -> bool:
    """Return True if a job that runs in the simulation has no estimate of its duration."""
    batch, log = run.batch, run.log
    unknown = {one.class_id for one in snapshot.classes if one.expected_s is None}
    if log.guessed or not unknown:
        return bool(log.guessed)
    shapes = {at for at, class_id in enumerate(batch.class_ids) if class_id in unknown}
    return any(shape in shapes and log.node_of[row] != NOWHERE for row, shape in enumerate(batch.shape_of))


def rows_named(run: Simulator, numbers: Iterable[str]) -> list[int]:
    """Return the rows of pending jobs with these numbers of the schedule."""
    batch, known = run.batch, frozenset(numbers)
    return [row for row in range(batch.running, len(batch)) if str(batch.numbers[row]) in known]


def start_of(run: Simulator, row: int, now_s: float) -> dict[str, Any]:
    """Return machine, start and end of a job; None for each if it fits no machine."""
    log = run.log
    if log.node_of[row] == NOWHERE:
        return {"machine": None, "starts_s": None, "ends_s": None, "is_guess": False}
    return {
        "machine": run.offers[log.node_of[row]].node,
        "starts_s": now_s + log.start_s[row],
        "ends_s": now_s + log.end_s[row],
        "is_guess": row in log.guessed,
    }
