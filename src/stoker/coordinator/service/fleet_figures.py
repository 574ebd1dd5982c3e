"""What of a coordinator is worth a curve."""

from __future__ import annotations

from collections import Counter

from stoker.coordinator.service.figures import Page
from stoker.coordinator.service.office import Office


class FleetFigures:
    """The figures of one coordinator."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def text(self) -> bytes:
        """Give them as Prometheus reads them. Reads the database, so it blocks."""
        office, page = self._office, Page()
        counter = office.counter
        page.by("stoker_jobs", "gauge", "Jobs by state.", "state", office.reader.counts())
        page.by("stoker_machines", "gauge", "Machines by state.", "state", machine_counts(office))
        page.by("stoker_asked_total", "counter", "What was asked of the queue.", "command", counter.asked)
        page.by("stoker_refusals_total", "counter", "What the queue refused, by code.", "code", counter.refused)
        page.one("stoker_grants_total", "counter", "Leases granted.", counter.grants)
        page.histogram("stoker_answer_seconds", "From a command to its durable answer.", counter.seconds)
        page.histogram("stoker_group_size", "Answers that one commit brought.", counter.group_sizes)
        page.one("stoker_waiting_claims", "gauge", "Claims that are held open.", len(office.waiting))
        page.one("stoker_event_listeners", "gauge", "Streams of events.", office.feed.listeners)
        page.one("stoker_file_followers", "gauge", "Who waits for a file to grow.", len(office.followers))
        page.one("stoker_uptime_seconds", "gauge", "Since the start.", office.clock.wall_s() - office.about.started_s)
        return page.to_bytes()


def machine_counts(office: Office) -> dict[str, int]:
    """Count the machines by state. Reads the database, so it blocks."""
    return dict(Counter(machine.state for machine in office.views.machines("")))
