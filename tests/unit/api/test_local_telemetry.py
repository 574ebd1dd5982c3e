"""Telemetry and reservations of this machine as a screen shows them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.api.local_monitor import LocalMonitor
from stoker.api.monitor import SpanQuery
from stoker.app.app import App
from stoker.core.capability import Capability
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.device import GIB, Backend, Device
from stoker.core.errors import NotFound
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, FakeMeter, Reservation
from stoker.devices.telemetry.recorder import FOLDER
from stoker.devices.telemetry.series import ON_THE_MACHINE, SECONDS, TENS, RingFile, TelemetryRow, file_name
from tests.unit.jobs.real_jobs import Made, Shelf

# Faked: there is no driver to ask here.
CARD = Device(uuid="GPU-1", backend=Backend.CUDA, name="Card", total_bytes=24 * GIB, is_fake=True)
STARTED_S = 1_700_000_000.0


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def app(tmp_path: Path, shelf: Shelf) -> App:
    app = App(AppSettings(home=str(tmp_path), folder=str(tmp_path), environment={"FLEET_HOST_ID": "desk"}))
    app.__dict__["capability"] = Capability(hostname="desk", cpu_cores=8, ram_total_bytes=1 << 36, devices=(CARD,))
    app.__dict__["store"] = shelf.store
    app.__dict__["clock"] = FakeClock(STARTED_S + 100)
    meter = FakeMeter({CARD.uuid: 24 * GIB})
    app.__dict__["ledger"] = Ledger(str(tmp_path / "ledger"), clock=SystemClock(), meter=meter)
    return app


@pytest.fixture
def monitor(app: App) -> LocalMonitor:
    return LocalMonitor(app)


def record(app: App, uuid: str, *powers: float) -> None:
    """Write rows of ten seconds that end now, as a worker here does."""
    ring = RingFile(os.path.join(app.settings.state, FOLDER, file_name(uuid)), ON_THE_MACHINE)
    first = int(STARTED_S + 100) // 10 * 10 - 10 * len(powers)
    rows = [
        TelemetryRow(start_s=first + 10 * at, count=10, values=(None, None, (one, one, one), None, None))
        for at, one in enumerate(powers)
    ]
    ring.write([(TENS.period_s, row) for row in rows], about={"uuid": uuid, "name": "Card"})


def test_what_a_worker_here_recorded_is_shown(app: App, monitor: LocalMonitor):
    record(app, CARD.uuid, 100.0, 200.0, 300.0)
    view = monitor.telemetry("desk", SpanQuery())
    (card,) = [one for one in view.devices if one.device == CARD.uuid]
    assert (view.period_s, [one.channel for one in card.series]) == (10, ["power"])
    assert card.series[0].high == (100.0, 200.0, 300.0)
    thin = monitor.telemetry("desk", SpanQuery(points=1))
    assert [one.series[0].high for one in thin.devices if one.device] == [(300.0,)]
    old = SpanQuery(from_s=STARTED_S - 1000, to_s=STARTED_S - 900)
    assert [one for one in monitor.telemetry("desk", old).devices if one.times_s] == []
    with pytest.raises(NotFound):
        monitor.telemetry("other", SpanQuery())


def test_seconds_are_shown_where_they_are_kept(app: App, monitor: LocalMonitor):
    ring = RingFile(os.path.join(app.settings.state, FOLDER, file_name("")), ON_THE_MACHINE)
    row = TelemetryRow(start_s=int(STARTED_S), count=1, values=((1.0, 1.0, 1.0), None, None, None, None))
    ring.write([(SECONDS.period_s, row)], about={"uuid": ""})
    view = monitor.telemetry("desk", SpanQuery(from_s=STARTED_S - 10))
    assert (view.period_s, view.devices[0].times_s) == (1, (STARTED_S,))


def test_without_a_worker_the_samples_of_a_screen_are_kept(app: App, monitor: LocalMonitor):
    clock: object = app.clock
    assert isinstance(clock, FakeClock)
    for _ in range(2):
        monitor.telemetry("desk", SpanQuery())
        clock.advance(10.0)
    (host,) = monitor.telemetry("desk", SpanQuery()).devices
    assert host.device == ""
    assert len(host.times_s) == 2, "the last one is not over"
    assert host.now is not None
    assert host.now.memory_total_bytes is not None
    assert host.now.power_w is None


def take(app: App, job: str, gib: int) -> Reservation:
    candidate = CandidateDevice.of(CARD)
    assert candidate is not None
    asked = DeviceRequest(job=job, devices=(candidate,), vram_bytes=gib * GIB, may_share=True)
    held = app.ledger.reserve(asked)
    assert isinstance(held, Reservation)
    return held


def test_who_holds_what_is_in_the_machines_view(app: App, monitor: LocalMonitor, shelf: Shelf):
    id_ = shelf.add("resnet", [Made(state="running")], is_ended=False)
    (empty,) = monitor.machines()
    assert (empty.devices[0]["promised_bytes"], [one.name for one in empty.holders]) == (0, ["resnet"])
    held = [take(app, "resnet/train", 6), take(app, "notebook", 2)]
    (machine,) = monitor.machines()
    assert {one.name: (one.job, one.memory_bytes, one.devices) for one in machine.holders} == {
        "resnet": (id_, 6 * GIB, ("GPU-1",)),
        "notebook": ("", 2 * GIB, ("GPU-1",)),
    }
    assert machine.devices[0]["promised_bytes"] == 8 * GIB
    assert machine.host["memory_total_bytes"]
    for one in held:
        app.ledger.release(one)


def test_what_ran_here_is_a_timeline(monitor: LocalMonitor, shelf: Shelf):
    shelf.add("done", [Made()])
    shelf.add("runs", [Made(state="running")], is_ended=False)
    view = monitor.timeline(SpanQuery(from_s=STARTED_S - 10, to_s=STARTED_S + 90))
    assert [(one.name, one.ending) for one in view.spans] == [("done", "completed"), ("runs", "")]
    assert monitor.timeline(SpanQuery(from_s=STARTED_S + 70)).spans[0].name == "runs"
    assert monitor.timeline(SpanQuery(), machine="other").spans == ()
