"""Steps: job types by some amount; masks of job types; durations that are rounded to one type."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.machine import Requirements, SchedulableJob
from stoker.scheduler.job_types import LEAST_PROGRESS_S, JobTypes, least_time_s, rounded_s
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.node_tables import AmountSteps, NodeTable
from stoker.scheduler.offers import NodeOffer

AMOUNTS = [(5.0, 0), (1.0, 3), (5.0, 1), (9.0, 2), (-2.0, 7)]
STEPS = AmountSteps(AMOUNTS)


def test_up_to_an_amount_are_all_that_have_no_more() -> None:
    for amount in (-3.0, -2.0, 0.0, 1.0, 4.9, 5.0, 8.0, 9.0, 100.0):
        assert STEPS.upto(amount) == sum(1 << number for one, number in AMOUNTS if one <= amount)


def test_the_shortest_of_a_mask_is_the_smallest_amount_in_it() -> None:
    for bits in product((0, 1), repeat=9):
        mask = sum(bit << number for number, bit in enumerate(bits))
        among = [amount for amount, number in AMOUNTS if mask >> number & 1]
        assert STEPS.shortest(mask) == min(among, default=None)


def test_no_steps_have_no_shortest() -> None:
    assert AmountSteps().upto(1e9) == 0
    assert AmountSteps().shortest(-1) is None
    assert STEPS.shortest(0) is None


def test_a_mask_of_all_bits_has_all_job_types() -> None:
    index = NodeIndex()
    types = JobTypes(index)
    for number in range(3):
        types.of(SchedulableJob(name="job", requirements=Requirements(cores=number + 1)), 10.0)
    assert types.in_mask(-1) == [0, 1, 2]
    assert types.in_mask(~types.types[1].bits) == [0, 2]
    assert types.in_mask(-1 << 60) == []


def test_a_rounded_duration_stands_for_all_durations_of_one_type() -> None:
    types = JobTypes(NodeIndex())
    wanted = SchedulableJob(name="job", requirements=Requirements())
    for at in range(400):
        expected_s = 0.01 * 1.05**at
        rounded = rounded_s(expected_s)
        assert rounded_s(rounded) == rounded
        assert 1 / 1.06 < rounded / expected_s < 1.06
        assert types.of(wanted, rounded)[0] is types.of(wanted, expected_s)[0]
    assert rounded_s(1e308) == rounded_s(1e12)


def test_nothing_is_over_in_no_time() -> None:
    table = NodeTable(0, NodeOffer(node="n"))
    table.unknown = 0b1000
    table.times = AmountSteps([(10.0, 0), (0.0, 1)])
    assert table.within(20.0) == 0b1011
    assert table.within(5.0) == 0b1010
    assert table.within(0.0) == table.within(-1.0) == 0


@given(
    jobs=st.lists(st.tuples(st.none() | st.floats(1.0, 10_000.0), st.booleans()), min_size=1, max_size=8),
    left_s=st.sampled_from([-1.0, 0.0, 1.0, LEAST_PROGRESS_S - 1.0, LEAST_PROGRESS_S, 500.0, 20_000.0]),
)
def test_what_may_start_in_a_time_is_what_the_rule_says(jobs: list[tuple[float | None, bool]], left_s: float) -> None:
    table = NodeTable(0, NodeOffer(node="n"))
    for number, (takes_s, has_checkpoint) in enumerate(jobs):
        table.unknown |= (takes_s is None) << number
        table.saving |= has_checkpoint << number
    table.times = AmountSteps((takes_s, number) for number, (takes_s, _) in enumerate(jobs) if takes_s is not None)
    may_start = [
        left_s > 0.0 and least_time_s(takes_s, has_checkpoint=has_checkpoint) <= left_s
        for takes_s, has_checkpoint in jobs
    ]
    assert [bool(table.within(left_s) >> number & 1) for number in range(len(jobs))] == may_start
