"""Alerts become symptoms with events, and attempts a timeline, on every database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.database.database import snapshot
from stoker.coordinator.queue.timeline import read_timeline
from stoker.coordinator.storage.telemetry import FleetTelemetry
from stoker.coordinator.symptoms import Gatherer, HealthWatch
from stoker.protocol.telemetry_messages import AlertView, TelemetryReport, TimelineView
from tests.contract.queue_driving import Driven, order

GPU = "GPU-1"


def timeline(fleet: Driven, from_s: float, to_s: float, machine: str = "") -> TimelineView:
    now_s = fleet.clock.wall_s()
    with snapshot(fleet.reader.database) as connection:
        return read_timeline(connection, from_s=from_s, to_s=to_s, now_s=now_s, machine=machine)


def shown(view: TimelineView) -> list[tuple[str, str, str]]:
    return [(one.machine, one.name, one.ending) for one in view.spans]


def test_the_timeline_has_what_ran_within_the_span_and_what_still_runs(fleet: Driven) -> None:
    begun_s = fleet.clock.wall_s()
    fleet.join("m1", "m2")
    fleet.submit(order("first"), order("second"), order("third"))
    (first,) = fleet.claim("m1")
    fleet.start(first)
    fleet.clock.advance(20.0)
    fleet.finish(first)
    fleet.clock.advance(40.0)
    middle_s = fleet.clock.wall_s()
    fleet.clock.advance(1.0)
    (second,) = fleet.claim("m2")
    fleet.start(second)
    (third,) = fleet.claim("m2")
    fleet.clock.advance(20.0)
    now_s = fleet.clock.wall_s()
    assert third is not None
    # The third was granted and never started.
    assert shown(timeline(fleet, begun_s, now_s)) == [("m1", "first", "completed"), ("m2", "second", "")]
    assert shown(timeline(fleet, begun_s, middle_s)) == [("m1", "first", "completed")]
    assert shown(timeline(fleet, middle_s, now_s)) == [("m2", "second", "")]
    assert shown(timeline(fleet, begun_s, now_s, "m2")) == [("m2", "second", "")]
    (span,) = timeline(fleet, begun_s, middle_s).spans
    assert (span.to_s or 0.0) - span.from_s >= 20.0


def test_of_a_span_with_very_many_events_the_end_is_shown_and_the_rest_is_said(
    fleet: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_s = fleet.clock.wall_s()
    fleet.join("m1")
    names = [f"job{number}" for number in range(6)]
    fleet.submit(*(order(name) for name in names))
    for _ in names:
        (lease,) = fleet.claim("m1")
        fleet.start(lease)
        fleet.clock.advance(10.0)
        fleet.finish(lease)
    now_s = fleet.clock.wall_s() + 1.0
    everything = timeline(fleet, begun_s, now_s)
    assert ([span.name for span in everything.spans], everything.is_cut) == (names, False)
    monkeypatch.setattr("stoker.coordinator.queue.timeline.MOST_EVENTS", 8)
    monkeypatch.setattr("stoker.coordinator.queue.timeline._PAGE", 3)
    newest = timeline(fleet, begun_s, now_s)
    assert newest.is_cut
    assert [span.name for span in newest.spans] == names[-len(newest.spans) :]
    assert 0 < len(newest.spans) < len(names)
    assert newest.whole_from_s is not None
    assert begun_s < newest.whole_from_s <= (newest.spans[0].to_s or 0.0)
    monkeypatch.setattr("stoker.coordinator.queue.timeline.MOST_SPANS", 2)
    few = timeline(fleet, begun_s, now_s)
    assert ([span.name for span in few.spans], few.is_cut) == (["job4", "job5"], True)
    assert few.whole_from_s == newest.spans[-3].to_s
    # What ended behind a short span ran in it.
    begun = timeline(fleet, begun_s, begun_s + 5.0)
    assert [span.name for span in begun.spans] == ["job0"]


def test_an_alert_is_a_symptom_with_its_severity_until_it_is_cleared_or_its_machine_is_silent(
    fleet: Driven, tmp_path: Path
) -> None:
    fleet.join("m1")
    telemetry = FleetTelemetry(str(tmp_path), fleet.clock)
    watch = HealthWatch(fleet.queue, Gatherer(fleet.queue, clock=fleet.clock, version="", telemetry=telemetry))

    def report(*alerts: AlertView, worker: str = "m1") -> None:
        telemetry.note(TelemetryReport(worker=worker, wall_s=fleet.clock.wall_s(), alerts=alerts))

    hot = AlertView(device=GPU, kind="hot", severity=80, message="91 °C")
    information = AlertView(device=GPU, kind="power", severity=20, message="440 of 450 W")
    strange = AlertView(device=GPU, kind="haunted", severity=100)
    watch.look()
    report(hot, information, strange)
    report(hot, worker="unknown")
    watch.act()
    found: tuple[Any, ...] = fleet.reader.symptoms()
    assert [(one.machine, one.device, one.symptom, one.message) for one in found if one.device] == [
        ("m1", GPU, "hot", "91 °C (severity 80)")
    ]
    assert fleet.reader.symptoms(among=["m1", "m2"]) == found
    assert fleet.reader.symptoms(among=["m2"]) == ()
    assert [event["symptom"] for event in fleet.reader.events() if event.get("device") == GPU] == ["hot"]
    fleet.clock.advance(121.0)
    watch.look()
    assert [one for one in fleet.reader.symptoms() if one.device] == []
