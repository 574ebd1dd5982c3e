"""Which job a machine gets: strictly by priority, then by age, never what somebody before it waits for."""

from __future__ import annotations

import pytest

from stoker.coordinator.matching.heads import Head, Match, NoMatch, Seat
from stoker.coordinator.matching.joining import WorkerLimits
from stoker.coordinator.matching.matcher import Matcher
from stoker.model.errors import BadInput, Bug
from stoker.model.frozen import changed
from stoker.model.nodes import Gpu, Node
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.wire.leasing import Measured
from stoker.wire.orders import HostPolicy
from tests.unit.coordinator.fleets import Driven, box, card, cpu_job, gpu_job, refused

TWO_CARDS = (card("GPU-1"), card("GPU-2"))


def test_priority_goes_before_age():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job(1))
    fleet.wait(2, cpu_job(2), priority=5)
    assert fleet.grant("desk").head.class_id == 2


def test_within_a_priority_the_oldest_goes_first():
    fleet = Driven(box("desk", ram_gib=64), box("lab"))
    for class_id in (3, 1, 2):
        fleet.wait(class_id, cpu_job(class_id))
    assert [fleet.grant("desk").head.class_id, fleet.grant("lab").head.class_id] == [3, 1]


def test_who_waited_too_long_goes_before_every_priority():
    fleet = Driven(box("desk"), starved_s=100.0)
    fleet.wait(1, cpu_job(1), since_s=0.0)
    fleet.wait(2, cpu_job(2), priority=9, since_s=60.0)
    found = fleet.ask("desk", now_s=100.0)
    assert isinstance(found, Match)
    assert found.head.class_id == 2
    assert fleet.grant("desk", now_s=101.0).head.class_id == 1


def test_a_job_that_prefers_a_device_goes_first_where_there_is_one_and_last_elsewhere():
    fleet = Driven(box("desk", card("GPU-1")), box("cpu"))
    fleet.wait(1, cpu_job(1))
    fleet.wait(2, gpu_job(wish=Wish.PREFER))
    fleet.wait(3, cpu_job(2))
    on_desk, on_cpu = fleet.ask("desk"), fleet.ask("cpu")
    assert isinstance(on_desk, Match)
    assert isinstance(on_cpu, Match)
    assert (on_desk.head.class_id, on_cpu.head.class_id) == (2, 1)
    assert on_desk.seat.devices == ("GPU-1",)


def test_a_preference_never_beats_a_priority():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job(wish=Wish.PREFER))
    fleet.wait(2, cpu_job(), priority=1)
    assert fleet.grant("desk").head.class_id == 2


def test_a_lower_job_does_not_take_a_device_that_a_higher_one_waits_for():
    fleet = Driven(box("desk", *TWO_CARDS))
    fleet.wait(1, gpu_job())
    assert fleet.grant("desk").seat.devices == ("GPU-1",)
    fleet.wait(2, gpu_job(device_count=2), priority=5)
    fleet.wait(3, gpu_job(8))
    assert refused(fleet.ask("desk")).waiting == {"too_few_devices": 1, "kept": 1}


def test_what_the_higher_one_does_not_touch_may_be_used():
    fleet = Driven(box("desk", card("GPU-1"), card("GPU-small", 8)))
    fleet.wait(1, gpu_job(20))
    fleet.grant("desk")
    fleet.wait(2, gpu_job(20), priority=5)
    fleet.wait(3, gpu_job(6))
    assert fleet.grant("desk").seat.devices == ("GPU-small",)


def test_a_job_that_another_machine_could_take_now_keeps_nothing():
    fleet = Driven(box("desk", card("GPU-1")), box("lab", *TWO_CARDS))
    fleet.wait(1, gpu_job())
    fleet.grant("desk")
    fleet.wait(2, gpu_job(device_count=2), priority=5)
    fleet.wait(3, cpu_job())
    fleet.matcher.put_machine("desk", box("desk", *TWO_CARDS), slots=4)
    assert fleet.grant("desk").head.class_id == 3


def test_nor_does_one_that_would_not_fit_here_even_if_all_was_idle():
    fleet = Driven(box("desk", *TWO_CARDS))
    fleet.wait(1, gpu_job(30), priority=9)
    fleet.wait(2, gpu_job(6))
    assert fleet.grant("desk").head.class_id == 2


def test_nobody_leaves_a_job_to_a_machine_that_declines():
    fleet = Driven(box("desk", *TWO_CARDS), box("lab", *TWO_CARDS))
    fleet.wait(1, gpu_job())
    fleet.grant("desk")
    fleet.wait(2, gpu_job(device_count=2), priority=5)
    fleet.wait(3, gpu_job(8))
    fleet.matcher.doubt("lab", is_doubted=True)
    assert refused(fleet.ask("desk")).waiting == {"too_few_devices": 1, "kept": 1}
    fleet.matcher.doubt("lab", is_doubted=False)
    assert fleet.grant("desk").head.class_id == 3


@pytest.mark.parametrize(
    ("higher", "lower", "is_kept"),
    [
        pytest.param(cpu_job(30), cpu_job(1), True, id="RAM that is short is kept whole"),
        pytest.param(cpu_job(30), cpu_job(0), False, id="who takes no RAM may pass"),
        pytest.param(
            WantedJob(name="x", requirements=Requirements(ram_bytes=0, cores=8)),
            WantedJob(name="y", requirements=Requirements(ram_bytes=0, cores=1)),
            True,
            id="cores are kept, too",
        ),
    ],
)
def test_ram_and_cores_are_kept_like_devices(higher: WantedJob, lower: WantedJob, *, is_kept: bool):
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk"), slots=4)
    fleet.wait(1, WantedJob(name="first", requirements=Requirements(ram_bytes=4 * GIB, cores=1)))
    fleet.grant("desk")
    fleet.wait(2, higher, priority=5)
    fleet.wait(3, lower)
    assert isinstance(fleet.ask("desk"), NoMatch if is_kept else Match)


def test_who_is_kept_waiting_by_a_higher_one_keeps_from_a_lower_one():
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk", card("GPU-1"), ram_gib=14), slots=4)
    fleet.wait(1, gpu_job(6, ram_gib=4))
    fleet.grant("desk")
    fleet.wait(2, gpu_job(7, ram_gib=8), priority=9)
    fleet.wait(3, cpu_job(4), priority=5)
    fleet.wait(4, cpu_job(2))
    assert refused(fleet.ask("desk")).waiting == {"held_alone": 1, "kept": 2}
    # Another machine that could take the middle one changes that.
    fleet.matcher.put_machine("lab", box("lab", ram_gib=4))
    assert fleet.grant("desk").head.class_id == 4


def test_jobs_of_one_priority_keep_nothing_from_each_other():
    fleet = Driven(box("desk", *TWO_CARDS))
    fleet.wait(1, gpu_job())
    fleet.grant("desk")
    fleet.wait(2, gpu_job(device_count=2))
    fleet.wait(3, gpu_job(8))
    assert fleet.grant("desk").head.class_id == 3


def test_a_starved_job_keeps_a_machine_from_higher_priorities():
    fleet = Driven(box("desk", *TWO_CARDS), starved_s=10.0)
    fleet.wait(1, gpu_job())
    fleet.grant("desk")
    fleet.wait(2, gpu_job(device_count=2), since_s=0.0)
    fleet.wait(3, gpu_job(8), priority=9, since_s=99.0)
    assert isinstance(fleet.ask("desk", now_s=5.0), Match)
    assert isinstance(fleet.ask("desk", now_s=100.0), NoMatch)


def test_a_closed_machine_gives_its_reason_and_nothing_else():
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk"), closed="drained: new disk")
    fleet.wait(1, cpu_job())
    assert refused(fleet.ask("desk")) == NoMatch(closed="drained: new disk")


def test_a_machine_that_says_itself_that_it_is_closed_gets_nothing_until_it_says_otherwise():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job())
    paused = Measured(closed={"": "its owner paused it"})
    assert refused(fleet.ask("desk", measured=paused)).closed == "its owner paused it"
    assert isinstance(fleet.ask("desk", measured=Measured()), Match)


def test_closed_devices_are_passed_over_whoever_closed_them():
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk", *TWO_CARDS), closed_devices={"GPU-1": "cordoned"})
    fleet.wait(1, gpu_job())
    found = fleet.ask("desk")
    assert isinstance(found, Match)
    assert found.seat.devices == ("GPU-2",)
    worn = Measured(closed={"GPU-2": "too hot"})
    assert refused(fleet.ask("desk", measured=worn)).waiting == {"closed": 1}


def test_a_machine_nobody_knows_gets_nothing():
    assert "does not know" in refused(Driven().ask("desk")).closed


def test_measured_memory_counts_beside_promises():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job(20))
    assert refused(fleet.ask("desk", measured=Measured(free_bytes={"GPU-1": 19 * GIB}))).waiting == {"too_small": 1}
    assert isinstance(fleet.ask("desk", measured=Measured(free_bytes={"GPU-1": 21 * GIB})), Match)


def test_available_ram_counts_what_our_own_jobs_were_promised_once():
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk"), slots=4)
    fleet.wait(1, cpu_job(8))
    fleet.grant("desk")
    fleet.wait(2, cpu_job(9))
    assert refused(fleet.ask("desk", measured=Measured(ram_available_bytes=8 * GIB))).waiting == {"ram": 1}
    assert isinstance(fleet.ask("desk", measured=Measured(ram_available_bytes=9 * GIB)), Match)


def test_nonsense_that_was_measured_is_bounded():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job(6))
    bent = Measured(ram_available_bytes=-5, free_bytes={"GPU-1": 1 << 70, "GPU-9": -1})
    assert refused(fleet.ask("desk", measured=bent)).waiting == {"ram": 1}
    assert fleet.matcher.offers()[0].devices[0].free_bytes == 24 * GIB


def test_the_seat_says_whether_a_device_is_shared():
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk", card("GPU-1")), slots=3)
    fleet.wait(1, gpu_job(6, may_share=True), count=2)
    first = fleet.grant("desk").seat
    assert first == Seat(machine="desk", class_id=1, devices=("GPU-1",), is_shared=True)
    fleet.wait(1, gpu_job(6, may_share=True))
    assert fleet.grant("desk").seat == first
    fleet.wait(2, gpu_job(6))
    assert refused(fleet.ask("desk")).waiting == {"in_use": 1}
    fleet.matcher.unseat(first)
    fleet.matcher.unseat(first)
    assert fleet.grant("desk").seat.is_shared is False


def test_leases_stay_counted_when_their_machine_comes_back():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job())
    seat = fleet.grant("desk").seat
    fleet.matcher.remove_machine("desk")
    fleet.matcher.put_machine("desk", box("desk", card("GPU-1")))
    fleet.wait(2, gpu_job(7))
    assert refused(fleet.ask("desk")).waiting == {"held_alone": 1}
    fleet.matcher.unseat(seat)
    assert isinstance(fleet.ask("desk"), Match)


def test_a_lease_outlives_its_device_and_its_machine():
    fleet = Driven(box("desk", card("GPU-1")))
    fleet.wait(1, gpu_job())
    seat = fleet.grant("desk").seat
    fleet.matcher.put_machine("desk", box("desk"))
    assert fleet.matcher.offers()[0].jobs == 1
    fleet.matcher.remove_machine("desk")
    fleet.matcher.unseat(seat)
    assert fleet.matcher.offers() == ()


def test_ending_what_nobody_holds_is_a_bug_and_told():
    with pytest.raises(Bug, match="desk"):
        Driven(box("desk")).matcher.unseat(Seat(machine="desk", class_id=1))


def test_a_class_must_be_described_before_it_waits_or_runs():
    matcher = Matcher()
    with pytest.raises(Bug, match="class 7"):
        matcher.line.put(Head(class_id=7, priority=0, seq=1, since_s=0.0))
    with pytest.raises(Bug, match="class 7"):
        matcher.seat(Seat(machine="desk", class_id=7))


def test_allow_and_deny_lists_match_names_and_models():
    fleet = Driven()
    node = Node(name="desk", host="desk", deny_jobs=("gbt",))
    fleet.wait(1, cpu_job())
    fleet.matcher.put_machine("desk", box("desk"), node)
    assert refused(fleet.ask("desk")).waiting == {"denied": 1}
    fleet.matcher.put_machine("desk", box("desk"), changed(node, deny_jobs=(), allow_jobs=("resnet",)))
    assert refused(fleet.ask("desk")).waiting == {"not_on_allow_list": 1}
    fleet.matcher.put_machine("desk", box("desk"), changed(node, deny_jobs=(), allow_jobs=("tabular/gbt",)))
    assert isinstance(fleet.ask("desk"), Match)


def test_a_manifests_policy_lies_over_what_was_found_and_declared():
    fleet = Driven()
    fleet.wait(1, gpu_job())
    policy = HostPolicy(name="desk", deny_jobs=("resnet",))
    fleet.matcher.put_machine("desk", box("desk", card("GPU-1")), policy=policy)
    assert refused(fleet.ask("desk")).waiting == {"denied": 1}
    fleet.matcher.put_machine("desk", box("desk", card("GPU-1")), policy=HostPolicy(name="desk", priority=3))
    assert isinstance(fleet.ask("desk"), Match)
    assert fleet.matcher.offers()[0].priority == 3


def test_the_smaller_of_declared_found_and_the_workers_word_counts():
    fleet = Driven()
    node = Node(
        name="desk",
        host="desk",
        gpus=(Gpu(uuid="GPU-1", type="rtx-4090", vram_mb=8192),),
        cpu_cores=64,
        ram_mb=16384,
    )
    limits = WorkerLimits(cores=2, ram_bytes=8 * GIB)
    drift = fleet.matcher.put_machine("desk", box("desk", card("GPU-1")), node, limits=limits)
    (offer,) = fleet.matcher.offers()
    assert (offer.cores, offer.ram_bytes, offer.devices[0].total_bytes) == (2, 8 * GIB, 8 * GIB)
    assert any("64 cores" in one for one in drift)
    assert fleet.matcher.drift() == {"desk": drift}


def test_a_capability_may_come_as_json_and_is_refused_if_it_is_none():
    fleet = Driven()
    fleet.matcher.put_machine("desk", box("desk", card("GPU-1")).to_dict())
    fleet.wait(1, gpu_job())
    assert fleet.grant("desk").seat.devices == ("GPU-1",)
    with pytest.raises(BadInput, match="capability"):
        fleet.matcher.put_machine("lab", {"devices": "many"})
    assert len(fleet.matcher.offers()) == 1


def test_heads_may_be_handed_in_by_themselves():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job(1))
    second = fleet.wait(2, cpu_job(2))
    found = fleet.matcher.choose("desk", [second], 0.0)
    assert isinstance(found, Match)
    assert found.head == second


def test_choosing_takes_nothing():
    fleet = Driven(box("desk"))
    fleet.wait(1, cpu_job())
    assert fleet.ask("desk") == fleet.ask("desk")
    assert fleet.matcher.offers()[0].jobs == 0


def test_what_is_not_told_costs_nothing():
    fleet = Driven(box("desk"))
    fleet.wait(1, gpu_job())
    assert fleet.matcher.choose("desk", fleet.matcher.line, 0.0, tells=False) == NoMatch()
