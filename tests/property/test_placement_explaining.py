"""What an explanation says is true: reasons exist exactly where the rule says no, and every proposal works."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.device import GIB, MIB, Backend, MemoryType
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob
from stoker.core.text import parse_size
from stoker.scheduler.changes import ChangeKind, at_best, best_of_each, changes_over, is_true, nearest, shown_bytes
from stoker.scheduler.explain import NodeGroups, explain, judge_node
from stoker.scheduler.fit import choose, shape_of
from stoker.scheduler.offers import DeviceOffer, NodeOffer, ResidentBase, Sharing
from stoker.scheduler.reasons import obstacles
from tests.lengths import examples

sizes = st.integers(1, 30 * 1024).map(lambda mib: mib * MIB)


@st.composite
def devices(draw: st.DrawFn, uuid: str) -> DeviceOffer:
    """A device in any state that placing can bring it to."""
    total = draw(st.sampled_from([8 * GIB, 24564 * MIB]))
    device = DeviceOffer(
        uuid=uuid,
        type=draw(st.sampled_from(["rtx-4090", "Jetson Orin"])),
        backend=draw(st.sampled_from([Backend.CUDA, Backend.CUDA, Backend.ROCM])),
        memory_type=draw(st.sampled_from(MemoryType)),
        total_bytes=total,
        free_bytes=draw(st.none() | st.integers(0, total)),
        sharing=draw(st.sampled_from(Sharing)),
        slots=draw(st.sampled_from([None, 1, 2])),
        closed=draw(st.sampled_from(["", "", "", "cordoned"])),
    )
    state = draw(st.sampled_from(["idle", "held", "held", "shared"]))
    if state == "held":
        return changed(device, is_held=True, jobs=1, promised_bytes=draw(st.just(0) | sizes))
    if state == "shared" and device.sharing is not Sharing.NEVER:
        bases = draw(st.sampled_from([(), (ResidentBase(base="llama", size_bytes=GIB, jobs=1),)]))
        promised = draw(st.integers(1 if not bases else 1024, 8 * 1024)) * MIB
        jobs = draw(st.integers(1, device.slots or 3))
        return changed(device, jobs=jobs, promised_bytes=promised, bases=bases)
    return device


@st.composite
def offers(draw: st.DrawFn, node: str) -> NodeOffer:
    """A node in any state that placing can bring it to."""
    found = [draw(devices(f"GPU-{node}{at}")) for at in range(draw(st.integers(0, 3)))]
    slots, cpu_jobs = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    return NodeOffer(
        node=node,
        devices=tuple(found),
        slots=slots,
        is_slot_per_device=draw(st.booleans()),
        ram_bytes=draw(st.none() | sizes),
        ram_held_bytes=draw(st.sampled_from([0, GIB])),
        cores=draw(st.none() | st.integers(1, 16)),
        cores_held=draw(st.integers(0, 4)),
        allow_jobs=draw(st.sampled_from([(), (), ("gbt",)])),
        deny_jobs=draw(st.sampled_from([(), (), ("lora",)])),
        closed=draw(st.sampled_from(["", "", "", "drained"])),
        jobs=cpu_jobs + sum(device.jobs for device in found),
        cpu_jobs=cpu_jobs,
    )


fleets = st.tuples(offers("a"), offers("b"), offers("c")).flatmap(
    lambda three: st.integers(1, 3).map(lambda count: list(three[:count]))
)
wanted = st.builds(
    SchedulableJob,
    name=st.sampled_from(["x", "gbt", "lora/2"]),
    requirements=st.builds(
        Requirements,
        wish=st.sampled_from(
            [DevicePreference.REQUIRE, DevicePreference.REQUIRE, DevicePreference.PREFER, DevicePreference.NEVER]
        ),
        device_count=st.sampled_from([1, 1, 2]),
        vram_bytes=st.just(0) | sizes,
        ram_bytes=st.just(0) | sizes,
        cores=st.integers(0, 8),
        may_share=st.booleans(),
        base=st.sampled_from(["", "llama"]),
        base_bytes=st.just(GIB),
    ),
    allowed_hosts=st.sampled_from([(), (), ("a",), ("z",)]),
)
few = settings(max_examples=examples(32, 120), deadline=None)


@few
@given(job=wanted, offer=offers("a"))
def test_there_are_reasons_exactly_where_the_rule_says_no(job: SchedulableJob, offer: NodeOffer) -> None:
    shape = shape_of(job)
    found = obstacles(shape, offer)
    assert (choose(shape, offer) is None) == bool(found)
    for one in found:
        assert one.why
        assert one.missing is None or one.missing > 0


@few
@given(job=wanted, fleet=fleets)
def test_every_starts_now_if_is_true(job: SchedulableJob, fleet: list[NodeOffer]) -> None:
    told = explain(job, fleet)
    for change in told.changes:
        assert is_true(change)
        # It is about this fleet: one node as it stands, or with the one thing changed that the text names.
        (now,) = [offer for offer in fleet if offer.node == change.node]
        if change.what not in (ChangeKind.SHARE_NODE, ChangeKind.SLOTS, ChangeKind.LISTS):
            assert change.offer == now
    if told.best is None:
        assert not told.changes or told.nearest is not None
    else:
        assert told.changes == ()
        assert told.never == ""


@few
@given(job=wanted, fleet=fleets, part=st.floats(0.01, 1.0))
def test_an_amount_that_is_told_works_as_a_user_would_write_it_and_so_does_every_smaller_one(
    job: SchedulableJob, fleet: list[NodeOffer], part: float
) -> None:
    for change in explain(job, fleet).changes:
        if change.what is not ChangeKind.VRAM:
            continue
        written = parse_size(change.text.removeprefix("min_vram ≤ "))
        for asked in (written, max(1, int(written * part))):
            less = changed(
                job,
                requirements=changed(
                    job.requirements,
                    vram_bytes=asked,
                    base_bytes=min(job.requirements.base_bytes, asked),
                ),
            )
            assert any(choose(shape_of(less), offer) is not None for offer in fleet)


@few
@given(job=wanted, fleet=fleets)
def test_never_means_never(job: SchedulableJob, fleet: list[NodeOffer]) -> None:
    told = explain(job, fleet)
    shape = shape_of(job)
    possible = [offer.node for offer in fleet if choose(shape, at_best(offer)) is not None]
    if told.best is None:
        assert bool(told.never) == (not possible)
        assert list(told.waits_for) == possible
    for change in told.ever:
        assert is_true(change)


@few
@given(job=wanted, fleet=fleets)
def test_the_best_node_of_an_explanation_is_the_one_that_the_rule_prefers(
    job: SchedulableJob, fleet: list[NodeOffer]
) -> None:
    shape = shape_of(job)
    choices = {offer.node: choice for offer in fleet if (choice := choose(shape, offer)) is not None}
    told = explain(job, fleet)
    if not choices:
        assert told.best is None
    else:
        assert told.best is not None
        assert choices[told.best].key == max(choice.key for choice in choices.values())
    for verdict in told.nodes:
        if verdict.score is not None:
            product = 1.0
            for term in verdict.terms:
                product *= term.value
            assert abs(product - verdict.score) <= 1e-9 * max(1.0, verdict.score)
        for device in verdict.devices:
            assert (device.score is None) == (device.obstacle is not None)


@given(size=st.integers(0, 2**40) | st.integers(0, 2**13).map(lambda tenths: -(-tenths * GIB // 10)))
def test_what_is_shown_is_never_more_than_what_is_there(size: int) -> None:
    assert shown_bytes(size) <= size


@settings(max_examples=examples(20, 40), deadline=None)
@given(job=wanted, fleet=fleets, copies=st.integers(1, 3))
def test_nodes_in_equal_states_are_told_of_as_if_each_had_been_looked_at(
    job: SchedulableJob, fleet: list[NodeOffer], copies: int
) -> None:
    fleet = [renamed(offer, copy) for copy in range(copies) for offer in fleet]
    shape, told = shape_of(job), explain(job, fleet, groups=NodeGroups())
    assert told.nodes == tuple(judge_node(shape, offer) for offer in fleet)
    if told.best is not None:
        return
    found = [change for offer in fleet for change in changes_over(shape, [offer])]
    assert told.changes == tuple(best_of_each(found))
    assert told.nearest == nearest(found)
    idle = [at_best(offer) for offer in fleet]
    assert told.waits_for == tuple(offer.node for offer in idle if choose(shape, offer) is not None)
    if told.never:
        assert told.ever == tuple(best_of_each(change for offer in idle for change in changes_over(shape, [offer])))


def renamed(offer: NodeOffer, copy: int) -> NodeOffer:
    """The same node under other names."""
    devices = tuple(changed(device, uuid=f"{device.uuid}/{copy}") for device in offer.devices)
    return changed(offer, node=offer.node if not copy else f"{offer.node}{copy}", devices=devices)
