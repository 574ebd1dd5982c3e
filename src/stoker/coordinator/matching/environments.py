"""A job's environment and the machines of a fleet, for whoever explains: who has it, who builds it, who can't.

Pure. The queue lets machines deny environments that it has met; of a job that is not there yet, this does the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.coordinator.matching.cases import Case, Fleet
from stoker.model.frozen import changed
from stoker.model.requirements import environment_word
from stoker.model.units import format_duration
from stoker.scheduler.offers import NodeOffer
from stoker.wire.environments import Outlook, Standing, outlooks


class EnvironmentViews:
    """What jobs' environments are to one fleet; each is looked at once."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[str, dict[str, Outlook]] = {}
        self._offers: dict[str, Sequence[NodeOffer]] = {}

    def of(self, case: Case) -> dict[str, Outlook]:
        """Give by machine how a job's environment stands there; nothing if it has none."""
        digest = case.wanted.environment
        if not digest or not case.environment:
            return {}
        if digest not in self._known:
            told = outlooks(case.environment, self._fleet.holdings)
            self._known[digest] = {one.machine: one for one in told}
        return self._known[digest]

    def offers(self, case: Case) -> Sequence[NodeOffer]:
        """Give all machines, with those that can't have the job's environment denying it."""
        found = self.of(case)
        if not any(one.standing is Standing.IMPOSSIBLE for one in found.values()):
            return self._fleet.offers
        digest = case.wanted.environment
        if digest not in self._offers:
            self._offers[digest] = [_denying(offer, digest, found.get(offer.node)) for offer in self._fleet.offers]
        return self._offers[digest]


def first_builds(outlook: Outlook | None) -> str:
    """Say what a machine has to do before it can start, as the end of a sentence; empty: nothing."""
    if outlook is None or outlook.standing is not Standing.BUILDS:
        return ""
    about = f" (about {format_duration(outlook.about_s)})" if outlook.about_s is not None else ""
    return f", and builds its environment first{about}"


def _denying(offer: NodeOffer, digest: str, outlook: Outlook | None) -> NodeOffer:
    word = environment_word(digest)
    if outlook is None or outlook.standing is not Standing.IMPOSSIBLE or word in offer.deny_jobs:
        return offer
    return changed(offer, deny_jobs=(*offer.deny_jobs, word), denied_for=(*offer.denied_for, (word, outlook.why)))
