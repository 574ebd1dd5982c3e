"""The scheduler leaves no machine idle without a reason, starves no job, and its counts stay true."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.core.frozen import changed
from stoker.scheduler.fit import choose, shape_of
from stoker.scheduler.leases import StartDecision
from stoker.scheduler.machine_index import MatchableMachine
from tests.lengths import examples
from tests.property.scheduler_world import ASKS, KINDS, NAMES, Class, Spec, World, classes, machines, steps

FLEETS = st.tuples(*[machines(name) for name in NAMES[:3]])


def world_of(fleet: tuple[Spec, ...], known: list[Class]) -> World:
    world = World(known)
    for spec in fleet:
        world.join(spec)
    return world


@settings(max_examples=examples(120, 20_000), deadline=None)
@given(FLEETS, st.lists(classes(), min_size=1, max_size=5), st.lists(steps, max_size=25))
@example(
    (Spec(name="a", kind="board"), Spec(name="b", kind="wanted", left_s=1500.0), Spec(name="c", kind="board")),
    [Class(asks="either", true_s=600.0)],
    [("come", 0, 6, 0)],
)
def test_no_machine_is_idle_without_a_reason_and_every_job_that_fits_starts(
    fleet: tuple[Spec, ...], known: list[Class], happens: list[tuple[object, ...]]
) -> None:
    world = world_of(fleet, known)
    for step in happens:
        getattr(world, str(step[0]))(*step[1:])
        world.check_books()
        if step == ("answer",):
            world.check_idle()
    world.drain()
    world.check_done()
    world.check_books()


PLAIN = st.builds(Class, asks=st.sampled_from(sorted(ASKS)), preferred=st.sampled_from([(), ("a",), ("b", "c")]))
"""Classes of one user, without an estimate."""
STAYING = st.tuples(*[machines(name).map(lambda spec: changed(spec, left_s=None)) for name in NAMES])


@settings(max_examples=examples(60, 5_000), deadline=None)
@given(STAYING, PLAIN)
def test_a_single_job_starts_on_the_best_of_all_free_machines(fleet: tuple[Spec, ...], only: Class) -> None:
    world = world_of(fleet, [only])
    shape = shape_of(only.wanted(), listed=())
    offers = list(world.offers.values())
    world.come(0)
    world.answer()
    places = {one.node: place for one in offers if (place := choose(shape, one)) is not None}
    if not places:
        assert not world.grants
        return
    ((_, machine),) = world.grants
    assert places[machine].key == max(place.key for place in places.values())


@settings(max_examples=examples(60, 5_000), deadline=None)
@given(machines("a"), st.lists(PLAIN, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12))
def test_a_machine_gets_the_oldest_job_that_fits(spec: Spec, known: list[Class], coming: list[int]) -> None:
    world = World(known)
    for at in coming:
        world.come(at % len(known))
    world.scheduler.put_machine(MatchableMachine(spec.offer()))
    fitting = [
        seq
        for seq, (class_id, _) in sorted(world.job_of.items())
        if choose(shape_of(known[class_id].wanted(), listed=()), spec.offer()) is not None
    ]
    decision = world.scheduler.choose("a", world.now_s)
    assert (decision.head.seq if isinstance(decision, StartDecision) else None) == (fitting[0] if fitting else None)


def test_a_thousand_users_share_a_fleet_and_all_of_them_are_served() -> None:
    world = World([Class(asks="cpu", user=f"user{at}", true_s=60.0) for at in range(1000)], tells=False)
    for at in range(1000):
        world.come(at, 2)
    for name in NAMES:
        world.join(Spec(name=name, kind="box", slots=8))
    first = len(world.started)
    while len(world.started) < 1000:
        assert world.step()
    assert first == 40
    assert len({world.job_of[seq][0] for seq in world.started}) == 1000, "each has had one before any has had two"
    world.drain()
    assert len(world.started) == 2000


@pytest.mark.parametrize("error", [0.01, 100.0])
def test_estimates_that_are_wrong_by_a_hundred_times_starve_no_job(error: float) -> None:
    asks = ("small", "large", "two", "either", "adapter", "cpu")
    known = [Class(asks=one, stated_s=600.0 * error, true_s=600.0) for one in asks]
    world = world_of(tuple(Spec(name=name, kind=kind) for name, kind in zip(NAMES, KINDS, strict=False)), known)
    begun_s = world.now_s
    for at in range(len(known)):
        world.come(at, 10, priority=at % 2)
    world.drain()
    assert len(world.started) == 60
    # A device of speed 1 alone would need 36,000 s.
    assert world.now_s - begun_s < 72_000.0
