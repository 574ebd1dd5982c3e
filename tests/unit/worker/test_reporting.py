"""What a worker reports: at once, again soon if nobody took it, and then daily."""

from __future__ import annotations

from stoker.model.clock import FakeClock
from stoker.model.errors import NotFound
from stoker.wire.asking import DoneView
from stoker.wire.health import Found, MachineReport
from stoker.wire.protocol import VERSION
from stoker.worker.reporting import AGAIN_S, DAY_S, FIRST_S, Reporting

FOUND = (Found(name="disk", verdict="ok"),)


class Taking:
    """A coordinator that knows no reports for a while."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.taken: list[MachineReport] = []

    def report(self, report: MachineReport) -> DoneView:
        if self.refusals:
            self.refusals -= 1
            raise NotFound("there is nothing here")
        self.taken.append(report)
        return DoneView()


def test_a_report_that_is_refused_comes_again_soon_and_then_daily():
    taking = Taking(refusals=2)
    reporting = Reporting(taking, name="desk", version="3", look=lambda: FOUND, clock=FakeClock())
    assert [reporting.act() for _ in range(4)] == [2 * FIRST_S, 4 * FIRST_S, DAY_S, DAY_S]
    assert [(one.worker, one.version, one.protocol, one.findings) for one in taking.taken] == [
        ("desk", "3", VERSION, FOUND)
    ] * 2


def test_a_coordinator_that_never_knows_reports_is_asked_daily():
    reporting = Reporting(Taking(refusals=100), name="desk", version="3", look=lambda: FOUND, clock=FakeClock())
    pauses = [reporting.act() for _ in range(11)]
    assert pauses[8:11] == [AGAIN_S, DAY_S, 2 * FIRST_S]
