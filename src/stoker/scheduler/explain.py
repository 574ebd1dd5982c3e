"""Why there, why not elsewhere, and what would change it: every node and device with its score or its reason.

It asks the same rule that places (`fit.choose`), about offers as they stand. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.model.frozen import changed, frozen
from stoker.model.requirements import WantedJob, Wish
from stoker.scheduler.changes import Change, best_of_each, changes_over, nearest, why_never
from stoker.scheduler.fit import Placement, choose, choose_device
from stoker.scheduler.grouping import Group, Groups
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.scheduler.reasons import Obstacle, Term, cpu_terms, device_obstacle, device_terms, obstacles
from stoker.scheduler.score import Advice, CostRule, Rank
from stoker.scheduler.shapes import Shape, shape_of


@frozen
class DeviceVerdict:
    """One device: its score with the terms, or what keeps the job from it."""

    uuid: str
    type: str
    score: float | None = None
    is_shared: bool = False
    terms: tuple[Term, ...] = ()
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
    """One node: its score with the terms, or everything that stands in the way."""

    node: str
    score: float | None = None
    rank: Rank | None = None
    """What goes before the score."""
    on: tuple[str, ...] = ()
    """The devices that the job would get; with a score and none of them it is the CPU."""
    terms: tuple[Term, ...] = ()
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
    """One job and the whole fleet."""

    job: str
    best: str | None
    """The node where it would start now."""
    nodes: tuple[NodeVerdict, ...]
    changes: tuple[Change, ...] = ()
    """What would start it now, the kinds of change that cost least first; only if it can't."""
    nearest: Change | None = None
    waits_for: tuple[str, ...] = ()
    """Nodes that could take it once jobs on them end; only if it can't start now."""
    never: str = ""
    """Why no node could take it even if all were idle; empty if one could."""
    ever: tuple[Change, ...] = ()
    """What would let an idle fleet take it; only if it never could."""
    advice: Advice = Advice()
    is_advised_against: bool = False
    """The cost rule's advice counts, and keeps the job from devices while the CPU will do."""

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


def explain(
    wanted: WantedJob, offers: Sequence[NodeOffer], *, cost: CostRule | None = None, groups: Groups | None = None
) -> Explanation:
    """Explain one job on offers as they stand now.

    Whoever explains several jobs on the same offers hands in the same `groups`, and is answered sooner.
    """
    shape = shape_of(wanted, cost=cost)
    groups = groups or Groups()
    hosts = shape.allowed_hosts, shape.preferred_hosts
    alike = groups.of(offers, *hosts)
    verdicts = _judge_all(shape, offers, alike)
    asked = wanted.requirements
    advice = (cost or CostRule()).advise(asked.transfer_mb, asked.mflop) if asked.wish is not Wish.NEVER else Advice()
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
    # Of equal nodes the first is told of.
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


def _judge_all(shape: Shape, offers: Sequence[NodeOffer], alike: Sequence[Group]) -> tuple[NodeVerdict, ...]:
    verdicts: dict[int, NodeVerdict] = {}
    for group in alike:
        first = judge_node(shape, group.first)
        for place in group.places:
            offer = offers[place]
            verdicts[place] = first if offer is group.first else _said_of(offer, first, group.first)
    return tuple([verdicts[place] for place in range(len(offers))])


def _said_of(offer: NodeOffer, verdict: NodeVerdict, other: NodeOffer) -> NodeVerdict:
    """Give what was found of another node in the same state under this one's names."""
    if not offer.devices:
        return changed(verdict, node=offer.node)
    names = {theirs.uuid: ours.uuid for theirs, ours in zip(other.devices, offer.devices, strict=True)}
    # Written out: there are tens of thousands, and `changed` takes three times as long.
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


def judge_node(shape: Shape, offer: NodeOffer) -> NodeVerdict:
    """Give one node's score with its terms, or its obstacles; and the same for each of its devices."""
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


def _node_terms(shape: Shape, offer: NodeOffer, choice: Placement) -> tuple[Term, ...]:
    if not choice.devices:
        return cpu_terms(shape, offer, choice)
    worst = min(choice.devices, key=lambda one: one.score)
    return device_terms(shape, offer.devices[worst.at], worst)


def _judge_device(shape: Shape, device: DeviceOffer) -> DeviceVerdict:
    one = choose_device(shape, device, 0)
    if one is None:
        return DeviceVerdict(uuid=device.uuid, type=device.type, obstacle=device_obstacle(shape, device))
    terms = device_terms(shape, device, one)
    return DeviceVerdict(uuid=device.uuid, type=device.type, score=one.score, is_shared=one.is_shared, terms=terms)
