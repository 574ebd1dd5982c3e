"""Jobs in one process: who is told that it joins whom, and who is not."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.explained_case import Fleet, JobExplainContext, LeaseHolder
from stoker.coordinator.explained_verdict import Explainer
from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.protocol.view_messages import JobExplanation
from stoker.scheduler.simulation.forecast import JobForecast
from tests.unit.coordinator.fleets import Driven, box, card, refused
from tests.unit.coordinator.test_matching_explaining import NOW_S, expected, view

BASE = "3f2a9c0144aa0f55"
DESK = Node(name="desk", host="desk", max_adapters=8, gpus=(Gpu(uuid="GPU-1", type="rtx-4090", vram_mb=24 * 1024),))


def adapter(base: str = BASE, **more: Any) -> SchedulableJob:
    said = {"vram_bytes": 5 * GIB, "base_bytes": 4 * GIB, "ram_bytes": 5 * GIB // 2, "base_ram_bytes": 2 * GIB, **more}
    asked = Requirements(**{"wish": DevicePreference.PREFER, "may_share": True, "base": base, **said})
    return SchedulableJob(name="lora", model="language/lora", requirements=asked)


def fleet(*holders: LeaseHolder, count: int | None = None) -> Fleet:
    """A desk for eight adapters, on which these run."""
    driven = Driven()
    driven.put(box("desk", card("GPU-1")), declared=DESK)
    for number in range(len(holders) if count is None else count):
        driven.wait(number + 1, adapter())
        driven.grant("desk")
    return Fleet(offers=driven.offers, holders={"desk": list(holders)})


def member(job: str, wanted: SchedulableJob | None = None, *devices: str) -> LeaseHolder:
    return LeaseHolder(job=job, wanted=wanted or adapter(), devices=devices or ("GPU-1",), is_shared=True)


def told(
    fleet: Fleet, wanted: SchedulableJob | None = None, forecast: JobForecast | None = None, **job: Any
) -> JobExplanation:
    seen = view(**{"name": "lora/3", "recipe": "language/lora", **job})
    ahead = 0 if seen.state == "pending" else None
    case = JobExplainContext(job=seen, wanted=wanted or adapter(), ahead=ahead, forecast=forecast or expected("desk"))
    return Explainer(fleet, now_s=NOW_S).explain(case)


def test_who_would_join_others_is_told_whom():
    found = told(fleet(member("lora/1"), member("lora/2")))
    words = "in one process with lora/1, lora/2: same base 3f2a9c01…"
    assert found.verdict == f"pending, queue position 1: starts with the next claim of desk, {words}"
    assert found.together == ("lora/1", "lora/2")


def test_who_runs_with_others_is_told_so_without_its_own_name():
    found = told(fleet(*(member(f"lora/{number}") for number in range(1, 7))), state="running", machine="desk")
    others = "lora/1, lora/2, lora/4 and 2 more"
    assert found.verdict == f"runs on desk, in one process with {others}: same base 3f2a9c01…"
    assert found.together == ("lora/1", "lora/2", "lora/4", "lora/5", "lora/6")


def test_who_is_first_joins_nobody():
    found = told(fleet())
    assert (found.verdict, found.together) == ("pending, queue position 1: starts with the next claim of desk", ())


def test_another_base_another_device_and_programs_that_only_share_memory_are_no_shared_process():
    others = (
        member("other", adapter("9b00")),
        member("elsewhere", adapter(), "GPU-2"),
        member("program", adapter(base_ram_bytes=0)),
    )
    assert told(fleet(member("lora/3"), *others), state="running", machine="desk").verdict == "runs on desk"
    mine = adapter(base_ram_bytes=0)
    assert not told(fleet(member("lora/3", mine), member("lora/1")), mine, state="running", machine="desk").together


def test_the_ninth_waits_for_a_slot_and_is_told_what_would_help():
    found = told(
        fleet(*(member(f"lora/{number}") for number in range(1, 9))),
        name="lora/9",
        forecast=expected("desk", 60.0, is_start_known=False),
    )
    assert found.verdict.startswith(
        "pending, queue position 1: expected on desk. desk: taken by lora/1, lora/2, lora/3 and 5 more"
    )
    (row,) = found.machines
    assert row["obstacles"][0]["why"] == "all 8 slots are taken (8 jobs)"
    assert found.together == ()


def test_eight_are_granted_at_once_and_no_ninth():
    driven = Driven()
    driven.put(box("desk", card("GPU-1"), ram_gib=16), declared=DESK)
    for number in range(1, 10):
        driven.wait(number, adapter())
    assert driven.grants("desk") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert refused(driven.ask("desk", measured=WorkerMeasurements(ram_available_bytes=10 * GIB))).waiting == {
        "slots": 1
    }
