"""What a worker reports: at once, again soon if nobody took it, and then daily."""

from __future__ import annotations

from stoker.core.clock import FakeClock
from stoker.core.errors import NotFound
from stoker.protocol.codec import VERSION
from stoker.protocol.operator_messages import DoctorFinding, MachineReport
from stoker.protocol.view_messages import DoneView
from stoker.worker.machine_checks import AGAIN_S, DAY_S, FIRST_S, MachineReporter

FOUND = (DoctorFinding(name="disk", verdict="ok"),)


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
    reporting = MachineReporter(taking.report, name="desk", version="3", look=lambda: FOUND, clock=FakeClock())
    assert [reporting.act() for _ in range(4)] == [2 * FIRST_S, 4 * FIRST_S, DAY_S, DAY_S]
    assert [(one.worker, one.version, one.protocol, one.findings) for one in taking.taken] == [
        ("desk", "3", VERSION, FOUND)
    ] * 2


def test_a_coordinator_that_never_knows_reports_is_asked_daily():
    reporting = MachineReporter(
        Taking(refusals=100).report, name="desk", version="3", look=lambda: FOUND, clock=FakeClock()
    )
    pauses = [reporting.act() for _ in range(11)]
    assert pauses[8:11] == [AGAIN_S, DAY_S, 2 * FIRST_S]
