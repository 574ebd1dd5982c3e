"""Explain placement: every node and device with its score or its reasons, what would start the job, and plans.

`explain` applies the rule that places (`fit.choose`) to offers as they are; it decides nothing. A fleet of thousands is
in a few hundred states: `NodeGroups` puts nodes of equal state together, and what holds for one holds for all, but for
names and UUIDs. `plan_jobs` places a list of jobs without starting them: by priority, then in the given order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference, SchedulableJob
from stoker.scheduler.changes import Change, at_best, best_of_each, changes_over, nearest, why_never
from stoker.scheduler.fit import Placement, PlacementShape, choose, choose_device, shape_of
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.scheduler.reasons import Obstacle, ScoreTerm, cpu_terms, device_obstacle, device_terms, obstacles
from stoker.scheduler.score import COST_RULE, Advice, CostRule, PlacementRank

_MOST_KNOWN = 20_000


@frozen
class DeviceVerdict:
    """One device: its score with the terms, or why the job can't use it."""

    uuid: str
    type: str
    score: float | None = None
    is_shared: bool = False
    terms: tuple[ScoreTerm, ...] = ()
    obstacle: Obstacle | None = None

    def to_dict(self) -> dict[str, object]:
        return {
            "uuid": self.uuid,
            "type": self.type,
            "score": self.score,
            "is_shared": self.is_shared,
            "terms": [term.to_dict() for term in self.terms],
            "obstacle": None if self.obstacle is None else self.obstacle.to_dict(),
        }


@frozen
class NodeVerdict:
    """One node: its score with the terms, or all obstacles."""

    node: str
    score: float | None = None
    rank: PlacementRank | None = None
    """What is compared before the score."""
    on: tuple[str, ...] = ()
    """The devices that the job would get; a score without devices is the CPU."""
    terms: tuple[ScoreTerm, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    devices: tuple[DeviceVerdict, ...] = ()

    @property
    def fits(self) -> bool:
        return self.score is not None

    def to_dict(self) -> dict[str, object]:
        return {
            "node": self.node,
            "fits": self.fits,
            "score": self.score,
            "rank": None if self.rank is None else {name: int(at) for name, at in self.rank._asdict().items()},
            "on": list(self.on),
            "terms": [term.to_dict() for term in self.terms],
            "obstacles": [one.to_dict() for one in self.obstacles],
            "devices": [one.to_dict() for one in self.devices],
        }


@frozen
class Explanation:
    """One job on the whole fleet."""

    job: str
    best: str | None
    """The node where it would start now."""
    nodes: tuple[NodeVerdict, ...]
    changes: tuple[Change, ...] = ()
    """What would start it now, one change of each kind, in the order of `ChangeKind`; only if it can't start."""
    nearest: Change | None = None
    waits_for: tuple[str, ...] = ()
    """Nodes that could take it once their jobs end; only if it can't start now."""
    never: str = ""
    """Why no node could take it even if all were idle; else empty."""
    ever: tuple[Change, ...] = ()
    """What would let an idle fleet take it; only if it can never start."""
    advice: Advice = Advice()
    is_advised_against: bool = False
    """The advice of the cost rule is followed: the job uses the CPU if it can."""

    def to_dict(self) -> dict[str, object]:
        return {
            "job": self.job,
            "best": self.best,
            "nodes": [one.to_dict() for one in self.nodes],
            "starts_now_if": [one.to_dict() for one in self.changes],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
            "waits_for": list(self.waits_for),
            "never": self.never or None,
            "possible_if": [one.to_dict() for one in self.ever],
            "cost_rule": {
                "rule": self.advice.rule,
                "is_worth": self.advice.is_worth,
                "why": self.advice.why,
                "is_followed": self.is_advised_against,
            },
        }


class NodeGroup(NamedTuple):
    """Nodes of equal state."""

    first: NodeOffer
    places: list[int]
    """Their indices among all offers."""


class NodeGroups:
    """Groups nodes of equal state. Keep one object for the same offers: it caches their states by identity."""

    def __init__(self) -> None:
        # With the offer itself, so that its id is not used again.
        self._known: dict[int, tuple[NodeOffer, Hashable]] = {}
        self._best: dict[int, tuple[NodeOffer, NodeOffer]] = {}

    def of(self, offers: Sequence[NodeOffer], *named: frozenset[str]) -> list[NodeGroup]:
        """Return the groups in the order of their first nodes; nodes of one group are in the same host lists."""
        hosts = [names for names in named if names]
        found: dict[Hashable, NodeGroup] = {}
        for place, offer in enumerate(offers):
            key = self._key(offer)
            if hosts:
                key = key, *[offer.node in names for names in hosts]
            group = found.get(key)
            if group is None:
                found[key] = NodeGroup(offer, [place])
            else:
                group.places.append(place)
        return list(found.values())

    def at_best(self, offer: NodeOffer) -> NodeOffer:
        """Return a node at its best; cached."""
        known = self._best.get(id(offer))
        if known is None or known[0] is not offer:
            if len(self._best) >= _MOST_KNOWN:
                self._best.clear()
            known = self._best[id(offer)] = offer, at_best(offer)
        return known[1]

    def _key(self, offer: NodeOffer) -> Hashable:
        known = self._known.get(id(offer))
        if known is None or known[0] is not offer:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[id(offer)] = offer, _state(offer)
        return known[1]


@frozen
class PlacementRequest:
    """A job to be placed `count` times: the trials of a sweep are placed alike."""

    job: SchedulableJob
    count: int = 1


@frozen
class PlannedPlacements:
    """The placements of one requested job."""

    wanted: PlacementRequest
    placed: tuple[PlacedJob, ...]
    explanation: Explanation | None = None
    """Of the first that has to wait; if none has to, of the first, if explanations of all are requested."""

    @property
    def waiting(self) -> int:
        return self.wanted.count - len(self.placed)


def explain(
    wanted: SchedulableJob,
    offers: Sequence[NodeOffer],
    *,
    cost: CostRule | None = COST_RULE,
    groups: NodeGroups | None = None,
) -> Explanation:
    """Explain one job on offers as they are now.

    To explain several jobs on the same offers faster, pass the same `groups` each time.
    """
    shape = shape_of(wanted, cost=cost)
    groups = groups or NodeGroups()
    hosts = shape.allowed_hosts, shape.preferred_hosts
    alike = groups.of(offers, *hosts)
    verdicts = _judge_all(shape, offers, alike)
    asked = wanted.requirements
    advice = (
        (cost or COST_RULE).advise(asked.transfer_mb, asked.mflop)
        if asked.wish is not DevicePreference.NEVER
        else Advice()
    )
    fitting = [one for one in verdicts if one.rank is not None]
    if fitting:
        best = max(fitting, key=lambda one: (one.rank, one.score))
        return Explanation(
            job=wanted.name,
            best=best.node,
            nodes=verdicts,
            advice=advice,
            is_advised_against=shape.is_advised_against,
        )
    # Of equal nodes only the first is reported.
    found = changes_over(shape, [group.first for group in alike])
    idle = groups.of([groups.at_best(offer) for offer in offers], *hosts)
    able = [group for group in idle if choose(shape, group.first) is not None]
    possible = sorted(place for group in able for place in group.places)
    ever = [] if possible else changes_over(shape, [group.first for group in idle])
    return Explanation(
        job=wanted.name,
        best=None,
        nodes=verdicts,
        changes=tuple(best_of_each(found)),
        nearest=nearest(found),
        waits_for=tuple([offers[place].node for place in possible]),
        never="" if possible else why_never(shape, [groups.at_best(offer) for offer in offers]),
        ever=tuple(best_of_each(ever)),
        advice=advice,
        is_advised_against=shape.is_advised_against,
    )


def judge_node(shape: PlacementShape, offer: NodeOffer) -> NodeVerdict:
    """Return the score of a node with its terms, or its obstacles, and the same for each of its devices."""
    choice = choose(shape, offer)
    devices = tuple(_judge_device(shape, device) for device in offer.devices) if shape.takes_devices else ()
    if choice is None:
        return NodeVerdict(node=offer.node, obstacles=obstacles(shape, offer), devices=devices)
    return NodeVerdict(
        node=offer.node,
        score=choice.key.score,
        rank=choice.key.rank,
        on=tuple(offer.devices[one.at].uuid for one in choice.devices),
        terms=_node_terms(shape, offer, choice),
        devices=devices,
    )


def plan_jobs(
    wanted: Iterable[PlacementRequest],
    offers: Sequence[NodeOffer],
    *,
    cost: CostRule | None = COST_RULE,
    explains_all: bool = False,
) -> tuple[PlannedPlacements, ...]:
    """Place jobs on a fleet as it is, without starting them; return the results in the order of the jobs."""
    jobs = list(wanted)
    nodes = NodeIndex(offers, cost=cost)
    # All at once: the index checks its nodes again after new shapes.
    shapes = [nodes.shape_of(one.job) for one in jobs]
    planning = _Planning(nodes, cost, explains_all=explains_all)
    planned: dict[int, PlannedPlacements] = {}
    for at in sorted(range(len(jobs)), key=lambda at: -jobs[at].job.priority):
        planned[at] = planning.plan(jobs[at], shapes[at])
    return tuple(planned[at] for at in range(len(jobs)))


def _judge_all(
    shape: PlacementShape, offers: Sequence[NodeOffer], alike: Sequence[NodeGroup]
) -> tuple[NodeVerdict, ...]:
    verdicts: dict[int, NodeVerdict] = {}
    for group in alike:
        first = judge_node(shape, group.first)
        for place in group.places:
            offer = offers[place]
            verdicts[place] = first if offer is group.first else _verdict_as(offer, first, group.first)
    return tuple([verdicts[place] for place in range(len(offers))])


def _verdict_as(offer: NodeOffer, verdict: NodeVerdict, other: NodeOffer) -> NodeVerdict:
    """Return the verdict on another node of the same state with the names of this one."""
    if not offer.devices:
        return changed(verdict, node=offer.node)
    names = {theirs.uuid: ours.uuid for theirs, ours in zip(other.devices, offer.devices, strict=True)}
    # Not `changed`, which takes three times as long: there are tens of thousands.
    return NodeVerdict(
        node=offer.node,
        score=verdict.score,
        rank=verdict.rank,
        on=tuple([names[uuid] for uuid in verdict.on]),
        terms=verdict.terms,
        obstacles=tuple([_renamed(one, names) for one in verdict.obstacles]),
        devices=tuple(
            [
                DeviceVerdict(
                    uuid=names[one.uuid],
                    type=one.type,
                    score=one.score,
                    is_shared=one.is_shared,
                    terms=one.terms,
                    obstacle=None if one.obstacle is None else _renamed(one.obstacle, names),
                )
                for one in verdict.devices
            ]
        ),
    )


def _renamed(one: Obstacle, names: Mapping[str, str]) -> Obstacle:
    if not one.device:
        return one
    return Obstacle(code=one.code, why=one.why, needed=one.needed, left=one.left, device=names[one.device])


def _node_terms(shape: PlacementShape, offer: NodeOffer, choice: Placement) -> tuple[ScoreTerm, ...]:
    if not choice.devices:
        return cpu_terms(shape, offer, choice)
    worst = min(choice.devices, key=lambda one: one.score)
    return device_terms(shape, offer.devices[worst.at], worst)


def _judge_device(shape: PlacementShape, device: DeviceOffer) -> DeviceVerdict:
    one = choose_device(shape, device, 0)
    if one is None:
        return DeviceVerdict(uuid=device.uuid, type=device.type, obstacle=device_obstacle(shape, device))
    terms = device_terms(shape, device, one)
    return DeviceVerdict(uuid=device.uuid, type=device.type, score=one.score, is_shared=one.is_shared, terms=terms)


class _Planning:
    """Places jobs one after the other. No job is released meanwhile, so a shape that did not fit never fits."""

    def __init__(self, nodes: NodeIndex, cost: CostRule | None, *, explains_all: bool) -> None:
        self._nodes = nodes
        self._cost = cost
        self._explains_all = explains_all
        self._waiting: dict[int, Explanation] = {}
        self._groups = NodeGroups()

    def plan(self, wanted: PlacementRequest, shape: PlacementShape) -> PlannedPlacements:
        number = self._nodes.number_of(shape)
        known = self._waiting.get(number)
        if known is not None:
            # The explanation of the first such job holds for this one too: with a thousand machines, explaining each of
            # ten thousand jobs would take hours.
            return PlannedPlacements(wanted=wanted, placed=(), explanation=changed(known, job=wanted.job.name))
        explanation = self._explain(wanted) if self._explains_all else None
        placed: list[PlacedJob] = []
        while len(placed) < wanted.count:
            place = self._nodes.place(shape)
            if place is None:
                if placed or explanation is None:
                    explanation = self._explain(wanted)
                self._waiting[number] = explanation
                break
            placed.append(place)
        return PlannedPlacements(wanted=wanted, placed=tuple(placed), explanation=explanation)

    def _explain(self, wanted: PlacementRequest) -> Explanation:
        offers = [self._nodes.offer(node) for node in self._nodes.nodes]
        return explain(wanted.job, offers, cost=self._cost, groups=self._groups)


def _state(offer: NodeOffer) -> Hashable:
    # Equal nodes have their devices at the same indices, with other UUIDs.
    places = {device.uuid: at for at, device in enumerate(offer.devices)} if offer.processes else {}
    return (
        tuple([_device_state(device) for device in offer.devices]),
        (offer.slots, offer.is_slot_per_device, offer.ram_bytes, offer.cores, offer.is_fake),
        (offer.allow_jobs, offer.deny_jobs, offer.denied_for, offer.priority, offer.closed),
        (offer.jobs, offer.cpu_jobs, offer.ram_held_bytes, offer.cores_held),
        tuple([(one.base, one.size_bytes, places.get(one.device, -1), one.jobs) for one in offer.processes]),
    )


def _device_state(device: DeviceOffer) -> Hashable:
    # All but the UUID.
    return (
        (device.type, device.backend, device.memory_type, device.total_bytes, device.free_bytes, device.sharing),
        (device.slots, device.closed, device.is_held, device.jobs, device.promised_bytes, device.declared_speed),
        tuple([(one.base, one.size_bytes, one.jobs) for one in device.bases]),
    )
