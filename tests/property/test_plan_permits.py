"""Permits never give more than there is, lose nothing, and grant or refuse a vector as a whole."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.core.device import GIB, Capacity, Needs
from stoker.engine.permits import PermitGrant, Permits, Shortage
from tests.lengths import examples

CAPACITY = Capacity(cpu=4, network=3, disk=2, memory_bytes=8 * GIB)
NEEDS = st.builds(
    Needs,
    cpu=st.integers(0, 9),
    network=st.integers(0, 5),
    disk=st.integers(0, 3),
    memory_gib=st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0, 50.0]),
)


class Machine(RuleBasedStateMachine):
    """Stages come and go; the model is plain sums."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = Permits(CAPACITY)
        self.held: list[PermitGrant] = []

    def used(self) -> tuple[int, int, int, int]:
        return (
            sum(grant.cpu for grant in self.held),
            sum(grant.network for grant in self.held),
            sum(grant.disk for grant in self.held),
            sum(grant.memory_bytes for grant in self.held),
        )

    @rule(needs=NEEDS)
    def come(self, needs: Needs) -> None:
        limits = (CAPACITY.cpu, CAPACITY.network, CAPACITY.disk, CAPACITY.memory_bytes)
        asked = (needs.cpu, needs.network, needs.disk, needs.memory_bytes)
        wanted = [min(need, limit) for need, limit in zip(asked, limits, strict=True)]
        fits = all(want <= limit - use for want, limit, use in zip(wanted, limits, self.used(), strict=True))
        taken = self.permits.take(needs)
        assert isinstance(taken, PermitGrant if fits else Shortage)
        if isinstance(taken, PermitGrant):
            self.held.append(taken)
        else:
            assert taken.short_of

    @rule(chance=st.randoms(use_true_random=False))
    def go(self, chance: object) -> None:
        if self.held:
            index = chance.randrange(len(self.held))  # type: ignore[attr-defined]
            self.permits.give_back(self.held.pop(index))

    @invariant()
    def no_more_than_there_is(self) -> None:
        for use, limit in zip(
            self.used(),
            (CAPACITY.cpu, CAPACITY.network, CAPACITY.disk, CAPACITY.memory_bytes),
            strict=True,
        ):
            assert 0 <= use <= limit

    def teardown(self) -> None:
        for grant in self.held:
            self.permits.give_back(grant)
        whole = self.permits.take(Needs(cpu=4, network=3, disk=2, memory_gib=8.0))
        assert isinstance(whole, PermitGrant)


TestPermits = Machine.TestCase
TestPermits.settings = settings(max_examples=examples(24, 60), stateful_step_count=40, deadline=None)
