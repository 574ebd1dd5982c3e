"""Today's estimates beside what an H200's driver counted: the goals of the estimator, on recorded measurements."""

from __future__ import annotations

import pytest

from stoker.devices.estimate.terms import CalibrationFile
from tests.unit.devices.estimate.recorded import H200, foretold, name_of, training_of

TORCH = H200["versions"]["torch"]
CASES = H200["measured"]
JUDGED = [place for place, case in enumerate(CASES) if case["role"] == "judge"]
OTHERS = [place for place in range(len(CASES)) if place not in JUDGED]
CONTEXT_BYTES = 758 * 1024**2


def off_by(told_bytes: float, case) -> float:
    return float(told_bytes / case["process_bytes"] - 1)


def of_its_kind(case) -> list[int]:
    """Return the smaller runs that the book would know before this one."""
    kind = training_of(case).kind
    known = [(place, one) for place, one in enumerate(CASES) if one["role"] == "calibrate"]
    return [place for place, one in known if one["model"] == case["model"] and training_of(one).kind == kind]


def tensors_of(place: int) -> int:
    told = foretold(place)
    return told.total_bytes - told.term("fragmentation") - CONTEXT_BYTES


def test_enough_was_measured_and_nothing_failed():
    assert len(JUDGED) >= 8
    assert {CASES[place]["training"]["method"] for place in JUDGED} == {"lora", "full"}
    assert not [case for case in CASES if "error" in case]


def test_what_the_driver_counts_is_torchs_peak_and_a_constant():
    beyond = {case["process_bytes"] - case["reserved_bytes"] for case in CASES}
    assert max(beyond) == CONTEXT_BYTES
    assert min(beyond) >= CONTEXT_BYTES - 32 * 1024**2


@pytest.mark.parametrize("place", OTHERS, ids=[name_of(CASES[place]) for place in OTHERS])
def test_a_training_takes_what_was_foretold(place):
    case = CASES[place]
    assert -0.05 <= off_by(foretold(place).total_bytes, case) <= 0.15
    assert tensors_of(place) == pytest.approx(case["allocated_bytes"], rel=0.03)


@pytest.mark.parametrize("place", JUDGED, ids=[name_of(CASES[place]) for place in JUDGED])
def test_a_judged_training_was_foretold_without_having_been_seen_and_can_be_corrected(place, tmp_path):
    case, book = CASES[place], CalibrationFile(str(tmp_path / "vram.json"))
    told = foretold(place)
    assert abs(off_by(told.total_bytes, case)) < 0.01
    assert tensors_of(place) == pytest.approx(case["allocated_bytes"], rel=0.03)
    for known in of_its_kind(case):
        measured_bytes, told_bytes = CASES[known]["process_bytes"], foretold(known).total_bytes
        book.note(training_of(CASES[known]), TORCH, measured_bytes=measured_bytes, estimated_bytes=told_bytes)
    correction = book.correction(training_of(case), TORCH)
    assert correction is not None, "a judged case has a smaller one of its kind"
    assert -0.05 <= off_by(told.total_bytes * correction.percent / 100, case) <= 0.06


def test_counting_states_alone_is_off_by_more_than_half():
    assert max(abs(off_by(CASES[place]["accelerate_bytes"], CASES[place])) for place in JUDGED) > 0.5
