"""An offer beside the ledger: what is held there is not offered again."""

from __future__ import annotations

from stoker.hardware.ledger.asking import Candidate
from stoker.hardware.ledger.entries import Entry, Share
from stoker.hardware.ledger.state import DeviceState, Holder
from stoker.host.identity import mine
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.scheduler.fit import choose
from stoker.scheduler.offers import NodeOffer, ResidentBase, agree, with_holders
from stoker.scheduler.shapes import shape_of
from tests.unit.hardware.machines import capability, device


def holder(
    number: int, *, gib: int = 0, measured_gib: int | None = None, base: str = "", whole: bool = False
) -> Holder:
    share = Share(
        uuid="GPU-0",
        promised_bytes=gib * GIB,
        total_bytes=24 * GIB,
        is_exclusive=whole,
        measured_bytes=None if measured_gib is None else measured_gib * GIB,
    )
    entry = Entry(
        id=f"{number}",
        job=f"job {number}",
        owner=mine(),
        user=0,
        shares=(share,),
        base=base,
        base_bytes=2 * GIB if base else 0,
        since_s=0.0,
        since_wall_s=0.0,
        lease_s=90.0,
        lease_until_s=90.0,
    )
    return Holder(entry=entry, share=share, held_s=1.0, is_late=False)


def state(*holders: Holder, reserved_gib: int, free_gib: int | None) -> DeviceState:
    return DeviceState(
        device=Candidate(uuid="GPU-0", total_bytes=24 * GIB),
        holders=holders,
        reserved_bytes=reserved_gib * GIB,
        free_bytes=None if free_gib is None else free_gib * GIB,
    )


def offered() -> NodeOffer:
    return agree(None, capability(device(0))).offer


def fits(offer: NodeOffer, gib: int, *, shares: bool = False) -> bool:
    wants = Requirements(wish=Wish.REQUIRE, vram_bytes=gib * GIB, may_share=shares, ram_bytes=0)
    return choose(shape_of(WantedJob(name="new", requirements=wants)), offer) is not None


def test_a_device_that_nobody_holds_is_offered_as_before() -> None:
    offer = with_holders(offered(), [state(reserved_gib=0, free_gib=23)])
    assert offer == offered()
    assert fits(offer, 23)


def test_a_device_that_somebody_has_to_himself_takes_nobody() -> None:
    offer = with_holders(offered(), [state(holder(1, whole=True), reserved_gib=24, free_gib=3)])
    assert offer.devices[0].is_held
    assert not fits(offer, 1)
    assert not fits(offer, 1, shares=True)


def test_what_is_promised_to_those_who_share_is_not_promised_again() -> None:
    one, other = holder(1, gib=6, measured_gib=5, base="b"), holder(2, gib=4, base="b")
    offer = with_holders(offered(), [state(one, other, reserved_gib=8, free_gib=16)])
    shown = offer.devices[0]
    assert (shown.jobs, shown.promised_bytes, offer.jobs) == (2, 8 * GIB, 2)
    assert shown.bases == (ResidentBase(base="b", size_bytes=2 * GIB, jobs=2),)
    # 16 GiB are free, and 5 of what is in use are ours: 21 that others leave, 20.4 usable, 8 of them promised.
    assert shown.free_bytes == 21 * GIB
    assert fits(offer, 12, shares=True)
    assert not fits(offer, 13, shares=True)
    assert not fits(offer, 1)


def test_a_device_that_the_ledger_does_not_know_stays_as_it_was() -> None:
    other = DeviceState(device=Candidate(uuid="GPU-9", total_bytes=GIB), holders=(), reserved_bytes=0, free_bytes=None)
    assert with_holders(offered(), [other]).devices == offered().devices
