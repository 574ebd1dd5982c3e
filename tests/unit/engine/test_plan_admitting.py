"""Memory before a start and after an end: caps, refusals, and what raises a cap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.device import GIB, Needs
from stoker.core.digests import Digest
from stoker.devices.admission import Admission, AdmissionDelay, AdmissionRefusal, MachineMemory
from stoker.engine.action import Action, StageFacts
from stoker.engine.permits import MemoryGate
from stoker.engine.plan import PlanNode
from stoker.engine.run_history import Footprints
from stoker.engine.runners.stage_runner import AttemptUsage
from tests.unit.engine.misbehaving import misbehave
from tests.unit.engine.stages import number

HERE = MachineMemory(total_bytes=20 * GIB, available_bytes=20 * GIB)


@pytest.fixture
def footprints(tmp_path: Path) -> Iterator[Footprints]:
    made = Footprints(str(tmp_path / "footprints.db"))
    yield made
    made.close()


def action(value: int = 1) -> Action:
    facts = StageFacts(stage="test/blob", version=1, output="x@1", code={}, env={})
    return Action(facts=facts, facts_digest=Digest("0" * 64), inputs=(), args={"value": value})


def node(gib: float) -> PlanNode:
    return PlanNode(id="a", stage=misbehave, asks=Needs(memory_gib=gib))


def cap_gib(answer: Admission | AdmissionRefusal | AdmissionDelay) -> float:
    assert isinstance(answer, Admission)
    assert answer.cap_bytes is not None
    return answer.cap_bytes / GIB


def test_nothing_declared_is_never_refused_and_capped_above_the_floor(footprints: Footprints) -> None:
    gate = MemoryGate(lambda: HERE, footprints)
    assert cap_gib(gate.ask(node(0), action(), is_work_running=False)) == 18.0


def test_what_runs_in_the_engine_itself_has_no_cap(footprints: Footprints) -> None:
    gate = MemoryGate(lambda: HERE, footprints)
    answer = gate.ask(PlanNode(id="a", stage=number), action(), is_work_running=False)
    assert isinstance(answer, Admission)
    assert answer.cap_bytes is None


def test_only_a_kill_at_the_cap_raises_the_next_cap(footprints: Footprints) -> None:
    gate = MemoryGate(lambda: HERE, footprints)
    small = node(1)
    assert cap_gib(gate.ask(small, action(), is_work_running=False)) == 3.0
    gate.note(small, action(), AttemptUsage(peak_rss_bytes=GIB), cap_bytes=3 * GIB)
    assert cap_gib(gate.ask(small, action(), is_work_running=False)) == 3.0
    gate.note(small, action(), AttemptUsage(peak_rss_bytes=3 * GIB, was_killed_for_memory=True), cap_bytes=3 * GIB)
    assert cap_gib(gate.ask(small, action(), is_work_running=False)) == 4.5
    assert cap_gib(gate.ask(small, action(value=2), is_work_running=False)) == 3.0


def test_what_never_fits_is_refused_and_what_does_not_fit_now_waits_for_our_own_work(footprints: Footprints) -> None:
    busy = MachineMemory(total_bytes=20 * GIB, available_bytes=4 * GIB)
    gate = MemoryGate(lambda: busy, footprints)
    assert "it needs 19.0 GiB" in gate.never(node(19))
    assert gate.never(node(18)) == ""
    waits = gate.ask(node(3), action(), is_work_running=True)
    assert isinstance(waits, AdmissionDelay)
    assert waits.may_wait
    refused = gate.ask(node(3), action(), is_work_running=False)
    assert isinstance(refused, AdmissionDelay)
    assert not refused.may_wait
    # What is free less the need leaves exactly the floor: equality admits.
    assert cap_gib(gate.ask(node(2), action(), is_work_running=False)) == 4.0


def shared_node(percent: float = 100.0, peaks: tuple[str, ...] = ("exact", "kind")) -> PlanNode:
    needs = Needs(gpu=1, vram_gib=8.0, base_gib=6.0, shares=True, peaks=peaks, foretold_percent=percent)
    return PlanNode(id="a", stage=misbehave, asks=needs)


@pytest.mark.parametrize(
    ("percent", "promised", "took", "kept"),
    [
        (100.0, 4 * GIB, 5 * GIB, [5 * GIB, 4 * GIB]),
        (125.0, 5 * GIB, 5 * GIB, [5 * GIB, 4 * GIB]),
        (100.0, 4 * GIB, 3 * GIB, [4 * GIB, 4 * GIB]),
    ],
    ids=["more than foretold", "as corrected", "less teaches nothing"],
)
def test_what_a_shared_process_took_beside_its_base_corrects_the_next_of_its_kind(
    footprints: Footprints, tmp_path: Path, percent: float, promised: int, took: int, kept: list[int]
) -> None:
    path = tmp_path / "vram.json"
    gate = MemoryGate(lambda: HERE, footprints, str(path))
    gate.note_shared(shared_node(percent), promised_bytes=promised, took_bytes=took)
    assert json.loads(path.read_text())["kinds"] == {"exact": [kept], "kind": [kept]}


def test_a_shared_process_that_was_not_measured_or_left_memory_behind_teaches_nothing(
    footprints: Footprints, tmp_path: Path
) -> None:
    path = tmp_path / "vram.json"
    gate = MemoryGate(lambda: HERE, footprints, str(path))
    gate.note_shared(shared_node(), promised_bytes=0, took_bytes=0)
    gate.note_shared(shared_node(), promised_bytes=2 * GIB, took_bytes=3 * GIB)
    gate.note_shared(shared_node(peaks=()), promised_bytes=4 * GIB, took_bytes=5 * GIB)
    MemoryGate(lambda: HERE, footprints).note_shared(shared_node(), promised_bytes=4 * GIB, took_bytes=5 * GIB)
    assert not path.exists()
