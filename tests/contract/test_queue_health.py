"""Symptoms, reports and hooks in rows: told once an hour, over when gone, moved on and closed; and the watch on top."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.queue.commands import (
    AddHook,
    CloseHook,
    MoveHook,
    NoteReport,
    NoteSymptoms,
    OpenMachine,
    QueueCommandResult,
    Write,
)
from stoker.coordinator.symptoms import Gatherer, HealthWatch
from stoker.core.errors import NotFound
from stoker.core.leases import Symptom, SymptomKind
from stoker.protocol.lease_messages import Fail, Renewal, WorkerMeasurements
from tests.contract.queue_driving import Driven, order
from tests.contract.queue_words import token
from tests.contract.test_queue_machines import with_gpus
from tests.unit.host.real_processes import wait_until

SLOW = Symptom(machine="m1", ailment=SymptomKind.SLOW, message="twice as slow", hint="look there")


def told(fleet: Driven, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in fleet.reader.events() if event["kind"] in kinds]


def note(fleet: Driven, *symptoms: Symptom) -> QueueCommandResult:
    done = fleet.ask(NoteSymptoms(symptoms=symptoms))
    assert isinstance(done, QueueCommandResult)
    return done


def test_a_symptom_is_told_once_an_hour_and_once_more_when_it_is_over(fleet: Driven) -> None:
    fleet.join("m1")
    assert note(fleet, SLOW).changed == ("m1",)
    assert note(fleet, SLOW).changed == ()
    fleet.clock.advance(3600.0)
    assert note(fleet, SLOW).changed == ("m1",)
    assert [event["symptom"] for event in told(fleet, "symptom")] == ["slow", "slow"]
    assert note(fleet).changed == ("m1",)
    (over,) = told(fleet, "symptom_over")
    assert (over["machine"], over["symptom"]) == ("m1", "slow")
    assert fleet.reader.symptoms() == ()


def test_a_symptom_that_comes_and_goes_within_the_hour_is_no_news(fleet: Driven) -> None:
    fleet.join("m1")
    note(fleet, SLOW)
    note(fleet)
    note(fleet, SLOW)
    assert len(told(fleet, "symptom")) == 1
    (shown,) = fleet.reader.symptoms("m1")
    assert (shown.symptom, shown.hint) == ("slow", "look there")


def test_an_alert_that_gets_worse_is_told_at_once_and_each_severity_once_an_hour(fleet: Driven) -> None:
    fleet.join("m1")

    def hot(severity: int) -> str:
        alert = Symptom(machine="m1", ailment=SymptomKind.HOT, message=f"9{severity} °C (severity {severity})", hint="")
        note(fleet, alert)
        return fleet.reader.symptoms("m1")[0].message

    assert hot(60) == "960 °C (severity 60)"
    assert hot(80) == "980 °C (severity 80)"
    assert hot(60) == "960 °C (severity 60, 80 before)"
    assert hot(80) == "980 °C (severity 80)"
    assert hot(90) == "990 °C (severity 90)"
    assert [event["message"][:3] for event in told(fleet, "symptom")] == ["960", "980", "990"]
    fleet.clock.advance(3600.0)
    assert hot(60) == "960 °C (severity 60)"
    assert len(told(fleet, "symptom")) == 4


def test_symptoms_survive_a_restart_and_those_of_unknown_machines_are_none(fleet: Driven) -> None:
    fleet.join("m1")
    note(fleet, SLOW, Symptom(machine="nobody", ailment=SymptomKind.DISK, message="full", hint=""))
    fleet.close()
    fleet.open()
    assert [one.machine for one in fleet.reader.symptoms()] == ["m1"]
    assert note(fleet, SLOW).changed == ()


def test_a_report_is_kept_through_a_new_start_of_the_worker(fleet: Driven) -> None:
    fleet.join("m1")
    fleet.ask(NoteReport(machine="m1", report='{"version":"1"}'))
    fleet.join("m1")
    (row,) = fleet.reader.machines("m1")
    assert row.report == {"version": "1"}
    with pytest.raises(NotFound):
        fleet.ask(NoteReport(machine="m2", report="{}"))


def test_a_hook_moves_on_and_is_closed_with_an_event(fleet: Driven) -> None:
    done = fleet.ask(AddHook(url="https://example.org/", secret="s", kinds=("failed",), by="me"))
    assert isinstance(done, QueueCommandResult)
    (hook,) = fleet.reader.hooks(is_open=True)
    assert (hook.id, hook.words, hook.jobs) == (done.data["id"], ("failed",), ())
    fleet.ask(MoveHook(id=hook.id, cursor=hook.cursor + 5, failures=2, failing_since_s=3.0, last_error="it hung up"))
    (hook,) = fleet.reader.hooks()
    assert (hook.failures, hook.last_error) == (2, "it hung up")
    fleet.ask(CloseHook(id=hook.id, why="enough"))
    fleet.ask(MoveHook(id=hook.id, cursor=10**6))
    (hook,) = fleet.reader.hooks()
    assert hook.closed_s is not None
    assert (hook.secret, fleet.reader.hooks(is_open=True)) == ("", ())
    assert [event["hook"] for event in told(fleet, "hook_made", "hook_closed")] == [hook.id, hook.id]


def test_a_hook_of_jobs_begins_before_the_ends_of_those_that_have_ended(fleet: Driven) -> None:
    submitted = fleet.submit(order("one"), order("two"))
    fleet.join("m1")
    (grant,) = fleet.claim()
    fleet.finish(grant)
    (ended,) = told(fleet, "job_finished")
    fleet.ask(AddHook(url="https://example.org/", secret="s", jobs=tuple(job.id for job in submitted.jobs)))
    (hook,) = fleet.reader.hooks()
    assert hook.cursor == ended["seq"] - 1
    assert len(hook.jobs) == 2


def test_a_failing_device_is_cordoned_by_the_operators_verb_and_opened_it_starts_anew(fleet: Driven) -> None:
    fleet.submit(*(order("gpu", number, requirements={"wish": "require", "ram_bytes": 0}) for number in range(1, 6)))
    fleet.ask(with_gpus("good", "GPU-good"))
    (grant,) = fleet.claim("good")
    assert grant.devices == ("GPU-good",)
    fleet.finish(grant)
    fleet.ask(with_gpus("bad", "GPU-bad"))
    for _ in range(3):
        (grant,) = fleet.claim("bad")
        fleet.start(grant)
        said = Fail(**token(grant), cause="user", message="RuntimeError: CUDA error: unspecified launch failure")
        fleet.ask(Write(job=grant.job, said=said))
    watch = HealthWatch(fleet.queue, Gatherer(fleet.queue, clock=fleet.clock, version=""))
    assert SymptomKind.FAILING in [one.ailment for one in watch.look()]
    (closing,) = [event for event in told(fleet, "machine_changed") if event.get("what") == "cordoned"]
    assert (closing["devices"], closing["by"]) == (["GPU-bad"], "the coordinator")
    assert fleet.claim("bad") == ()
    watch.look()
    assert len([event for event in told(fleet, "machine_changed") if event.get("what") == "cordoned"]) == 1
    fleet.ask(OpenMachine(machine="bad", devices=("GPU-bad",)))
    assert watch.look() == []
    again = HealthWatch(fleet.queue, Gatherer(fleet.queue, clock=fleet.clock, version=""))
    assert again.look() == []


def test_a_device_on_which_everything_fails_alike_is_cordoned_also_after_a_restart_of_the_coordinator(
    fleet: Driven,
) -> None:
    fleet.submit(*(order("gpu", number, requirements={"wish": "require", "ram_bytes": 0}) for number in range(1, 8)))
    fleet.ask(with_gpus("good", "GPU-good"))
    (grant,) = fleet.claim("good")
    fleet.finish(grant)
    fleet.ask(with_gpus("bad", "GPU-bad"))
    gatherer = Gatherer(fleet.queue, clock=fleet.clock, version="")
    assert not gatherer.sees_device_failures()
    for _ in range(5):
        (grant,) = fleet.claim("bad")
        fleet.start(grant)
        fleet.fail(grant, "the answer is 41")
    assert gatherer.sees_device_failures()
    fleet.close()
    fleet.open()
    fleet.ask(with_gpus("bad", "GPU-bad"))
    # Without waiting for its hour: something failed on a device.
    with HealthWatch(fleet.queue, Gatherer(fleet.queue, clock=fleet.clock, version=""), every_s=3600.0, soon_s=0.01):
        wait_until(lambda: bool(fleet.reader.machines("bad")[0].closed_devices))
    (row,) = fleet.reader.machines("bad")
    assert list(row.closed_devices) == ["GPU-bad"]
    assert fleet.claim("bad") == ()
    (closing,) = [event for event in told(fleet, "machine_changed") if event.get("what") == "cordoned"]
    assert closing["devices"] == ["GPU-bad"]


def test_the_watch_sees_silence_a_full_disk_and_comings(fleet: Driven) -> None:
    fleet.join("m1", "m2")
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", measured=WorkerMeasurements(disk_free_bytes=1 << 30)))
    watch = HealthWatch(fleet.queue, Gatherer(fleet.queue, clock=fleet.clock, version=""))
    assert [(one.machine, one.ailment) for one in watch.look()] == [("m1", SymptomKind.DISK)]
    fleet.clock.advance(1900.0)
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", measured=WorkerMeasurements(disk_free_bytes=1 << 40)))
    # Heartbeats are written down about once a second, with the next chore.
    fleet.close()
    fleet.open()
    watch = HealthWatch(fleet.queue, Gatherer(fleet.queue, clock=fleet.clock, version=""))
    assert [(one.machine, one.ailment) for one in watch.look()] == [("m2", SymptomKind.SILENT)]
