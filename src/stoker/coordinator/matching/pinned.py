"""Programs that are not submitted yet against machines that run only certain code. Pure.

The queue learns the words for code as jobs come in. Who asks what would become of a job gets them from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.coordinator.matching.cases import Case, Fleet
from stoker.model.frozen import changed
from stoker.model.requirements import code_word
from stoker.scheduler.offers import NodeOffer
from stoker.wire.code import code_of, why_not_accepted
from stoker.wire.orders import JobOrder

_PROGRAM = "command"


def pinned_fleet(fleet: Fleet, accepts: Mapping[str, Sequence[str]], orders: Iterable[JobOrder]) -> Fleet:
    """Give the fleet as it is once its machines have said which code of these orders they do not run."""
    if not accepts:
        return fleet
    codes = {code_of(one) for one in orders if one.recipe == _PROGRAM}
    return changed(
        fleet,
        offers=[_pinned(one, accepts.get(one.node, ()), codes) for one in fleet.offers],
        away=[_pinned(one, accepts.get(one.node, ()), codes) for one in fleet.away],
    )


def pinned_case(case: Case, accepts: Mapping[str, Sequence[str]], order: JobOrder) -> Case:
    """Give a job with the word for its code, where some machine asks about that."""
    if not accepts or order.recipe != _PROGRAM:
        return case
    return changed(case, wanted=changed(case.wanted, code=code_word(*code_of(order))))


def _pinned(offer: NodeOffer, pins: Sequence[str], codes: Iterable[tuple[str, str]]) -> NodeOffer:
    denied = {code_word(*code): why for code in codes if (why := why_not_accepted(pins, *code))}
    if not denied:
        return offer
    return changed(
        offer,
        deny_jobs=tuple(dict.fromkeys((*offer.deny_jobs, *denied))),
        denied_for=tuple({**dict(offer.denied_for), **denied}.items()),
    )
