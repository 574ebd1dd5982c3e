"""What is wrong with machines, from facts alone: every rule at its edge, and what it must not accuse."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.symptoms import (
    AttemptHealthFacts,
    FleetHealthFacts,
    MachineHealthFacts,
    WorkerPresenceEvent,
    symptoms_of,
    to_cordon,
)
from stoker.core.leases import Symptom, SymptomKind

NOW_S = 1_000_000.0
GPU = "GPU-1"
XID = "RuntimeError: CUDA error: an illegal memory access was encountered"


def machine(name: str = "m1", **more: Any) -> MachineHealthFacts:
    return MachineHealthFacts(**{"name": name, "version": "2", "last_seen_s": NOW_S, **more})


def ended(seq: int, ending: str = "completed", on: str = "m1", **more: Any) -> AttemptHealthFacts:
    fields = {"seq": seq, "machine": on, "recipe": "tabular/gbt", "name": "train", "ending": ending, **more}
    return AttemptHealthFacts(**fields)


def found(*machines: MachineHealthFacts, **more: Any) -> list[Symptom]:
    return symptoms_of(FleetHealthFacts(now_s=NOW_S, version="2", machines=machines, **more))


def ailments(symptoms: list[Symptom]) -> list[tuple[str, SymptomKind]]:
    return [(one.machine, one.ailment) for one in symptoms]


def test_a_machine_that_is_well_has_no_symptom():
    endings = tuple(ended(seq, seconds=10.0) for seq in range(20))
    assert found(machine(disk_free_bytes=1 << 40), endings=endings) == []


@pytest.mark.parametrize(
    ("quiet_s", "has_left", "is_told"),
    [(1799.0, False, False), (1801.0, False, True), (1801.0, True, False), (86_401.0, False, False)],
    ids=["not_yet", "silent", "left_in_order", "gone_for_a_day"],
)
def test_silence_is_told_between_half_an_hour_and_a_day(quiet_s: float, has_left: bool, is_told: bool):
    one = machine(last_seen_s=NOW_S - quiet_s, has_left=has_left)
    assert ailments(found(one)) == ([("m1", SymptomKind.SILENT)] if is_told else [])


@pytest.mark.parametrize(
    ("starts", "silences", "is_told"), [(3, 3, False), (4, 0, True), (0, 4, True)], ids=["both", "starts", "silences"]
)
def test_a_machine_flaps_by_starts_or_by_silences_but_a_crash_is_not_counted_twice(
    starts: int, silences: int, is_told: bool
):
    comings = tuple(
        WorkerPresenceEvent(machine="m1", at_s=NOW_S, is_new_start=at < starts) for at in range(starts + silences)
    )
    assert bool(found(machine(), comings=comings)) is is_told


def test_a_slow_machine_is_told_with_both_medians():
    endings = [ended(seq, seconds=60.0) for seq in range(3)]
    endings += [ended(seq, on="m2", seconds=20.0) for seq in range(10, 13)]
    (slow,) = found(machine(), machine("m2"), endings=tuple(endings))
    assert (slow.machine, slow.ailment) == ("m1", SymptomKind.SLOW)
    assert slow.message == "tabular/gbt takes 1m00s there and 20s elsewhere (medians of 3 and 3 jobs)"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [([60.0, 60.0], [20.0] * 5), ([60.0] * 3, [20.0] * 2), ([39.0] * 3, [20.0] * 3), ([0.9] * 3, [0.2] * 3)],
    ids=["too_few_of_its_own", "too_few_elsewhere", "less_than_twice", "by_no_time"],
)
def test_nobody_is_called_slow_by_chance(mine: list[float], theirs: list[float]):
    endings = [ended(at, seconds=seconds) for at, seconds in enumerate(mine)]
    endings += [ended(100 + at, on="m2", seconds=seconds) for at, seconds in enumerate(theirs)]
    assert found(machine(), machine("m2"), endings=tuple(endings)) == []


def test_work_that_never_completed_anywhere_hides_nobody_who_is_slow():
    never = tuple(ended(seq, "failed", recipe="command", name="broken") for seq in range(2))
    mine = tuple(ended(10 + seq, seconds=30.0) for seq in range(3))
    theirs = tuple(ended(20 + seq, on="m2", seconds=10.0) for seq in range(3))
    symptoms = found(machine("m1"), machine("m2"), endings=(*never, *mine, *theirs))
    assert ailments(symptoms) == [("m1", SymptomKind.SLOW)]


def test_programs_of_different_names_are_not_compared():
    endings = [ended(seq, recipe="command", name="long", seconds=600.0) for seq in range(3)]
    endings += [ended(seq, on="m2", recipe="command", name="short", seconds=1.0) for seq in range(10, 13)]
    assert found(machine(), machine("m2"), endings=tuple(endings)) == []


def test_a_machine_on_which_nothing_ends_well_is_told_only_if_others_complete_the_same():
    bad = [ended(seq, "failed" if seq % 2 else "declined", message="no such file") for seq in range(5)]
    assert found(machine(), endings=tuple(bad)) == []
    (fatal,) = found(machine(), endings=(*bad, ended(9, on="m2")))
    assert fatal.ailment is SymptomKind.FATAL_ONLY
    assert "no such file" in fatal.message
    assert "cordon m1" in fatal.hint
    assert found(machine(), endings=(*bad, ended(9, on="m2"), ended(10))) == []


@pytest.mark.parametrize("version", ["1", ""], ids=["older", "unstamped"])
def test_another_version_is_told(version: str):
    (skewed,) = found(machine(version=version))
    assert skewed.ailment is SymptomKind.SKEWED
    assert "2" in skewed.hint


def test_a_disk_that_is_nearly_full_is_told_with_what_is_left():
    (disk,) = found(machine(disk_free_bytes=1 << 30))
    assert disk.ailment is SymptomKind.DISK
    assert "1.0 GiB" in disk.message or "1 GiB" in disk.message


def broken(seq: int, **more: Any) -> AttemptHealthFacts:
    return ended(seq, "failed", **{"devices": (GPU,), "message": XID, "cause": "user", **more})


def test_a_device_that_fails_three_different_jobs_while_others_succeed_is_to_be_cordoned_once():
    elsewhere = ended(9, on="m2", devices=("GPU-2",))
    endings = (elsewhere, *(broken(seq) for seq in range(3)))
    facts = FleetHealthFacts(now_s=NOW_S, version="2", machines=(machine(), machine("m2")), endings=endings)
    symptoms = symptoms_of(facts)
    assert [(one.machine, one.device, one.ailment) for one in symptoms] == [("m1", GPU, SymptomKind.FAILING)]
    assert f"open m1 --device {GPU}" in symptoms[0].hint
    assert to_cordon(facts, symptoms) == symptoms
    closed = FleetHealthFacts(
        now_s=NOW_S, version="2", machines=(machine(closed_devices=frozenset({GPU})), machine("m2")), endings=endings
    )
    assert to_cordon(closed, symptoms_of(closed)) == []


@pytest.mark.parametrize(
    "endings",
    [
        [broken(1), broken(1), broken(1), ended(9, on="m2")],
        [broken(1), broken(2), broken(3)],
        [broken(1), broken(2), ended(4, devices=(GPU,)), broken(3), ended(9, on="m2")],
        [*(broken(seq, message="ValueError: bad data") for seq in range(3)), ended(9, on="m2")],
        [
            *(broken(seq, cause="oom_device", message="CUDA error: out of memory") for seq in range(3)),
            ended(9, on="m2"),
        ],
        [*(broken(seq, devices=(GPU, "GPU-3")) for seq in range(3)), ended(9, on="m2")],
    ],
    ids=["one_job", "nobody_succeeds", "a_success_between", "the_codes_fault", "out_of_memory", "several_devices"],
)
def test_a_device_is_not_accused_without_proof(endings: list[AttemptHealthFacts]):
    assert [one for one in found(machine(), machine("m2"), endings=tuple(endings)) if one.device] == []


WEIRD = "RuntimeError: the answer is 41"


def alike(count: int, *, start: int = 0, **more: Any) -> list[AttemptHealthFacts]:
    return [broken(seq, **{"message": WEIRD, **more}) for seq in range(start, start + count)]


def accused(*endings: AttemptHealthFacts) -> list[str]:
    symptoms = found(machine(), machine("m2"), endings=endings)
    return [one.message for one in symptoms if one.ailment is SymptomKind.FAILING]


DONE_ON_ANOTHER = ended(900, on="m2", devices=("GPU-2",))


def test_a_device_on_which_five_jobs_in_a_row_fail_alike_is_accused_whatever_they_say():
    assert accused(DONE_ON_ANOTHER, *alike(4)) == []
    (why,) = accused(DONE_ON_ANOTHER, *alike(5))
    assert why == f"5 different jobs in a row failed on it in the same way, and succeed elsewhere: user: {WEIRD}"


@pytest.mark.parametrize(
    "endings",
    [
        alike(9),
        [DONE_ON_ANOTHER, *alike(9), *alike(1, start=50, on="m2", devices=("GPU-2",))],
        [ended(900, on="m2"), *alike(9)],
        [ended(900, on="m2", devices=("GPU-2",), recipe="command", name="other"), *alike(9)],
        [DONE_ON_ANOTHER, *(alike(1)[0] for _ in range(9))],
        [DONE_ON_ANOTHER, *alike(4), ended(50, devices=(GPU,)), *alike(4, start=60)],
        [DONE_ON_ANOTHER, *alike(4), broken(50, message="another"), *alike(4, start=60)],
        [DONE_ON_ANOTHER, *alike(9, cause="oom_device")],
        [DONE_ON_ANOTHER, *alike(9, devices=())],
        [DONE_ON_ANOTHER, *alike(9, devices=(GPU, "GPU-3"))],
    ],
    ids=[
        "nobody_succeeds",
        "it_fails_elsewhere_too",
        "it_succeeds_without_a_device",
        "other_work_succeeds",
        "one_job",
        "a_success_between",
        "another_failure_between",
        "out_of_memory",
        "on_the_cpu",
        "several_devices",
    ],
)
def test_failures_that_are_alike_do_not_accuse_a_device_without_proof(endings: list[AttemptHealthFacts]):
    assert accused(*endings) == []
