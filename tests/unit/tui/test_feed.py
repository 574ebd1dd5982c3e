"""What the cockpit holds: pages, changed rows, filters, and a connection that is lost and comes back."""

from __future__ import annotations

from typing import NoReturn

from stoker.api.monitor import JobQuery
from stoker.core.clock import FakeClock
from stoker.core.errors import NoCoordinator
from stoker.tui.feed import CockpitFeed
from stoker.tui.job_feed import JobFeed
from stoker.tui.job_filter import parse_filter
from stoker.tui.job_table import MOST_ROWS
from stoker.tui.machine_feed import MachineFeed
from stoker.tui.requests import RequestThreads
from tests.fakes.monitor import NOON_S, MemoryMonitor, job, machine


def feed_of(monitor: MemoryMonitor) -> tuple[CockpitFeed, FakeClock]:
    clock = FakeClock(NOON_S + 1000)
    return CockpitFeed(monitor, clock, RequestThreads(), JobQuery()), clock


def names(feed: CockpitFeed) -> list[str]:
    return [view.name.partition("/")[2] for view in feed.data.rows]


def test_active_jobs_come_first_then_the_queue_then_what_ended_last() -> None:
    jobs = [job(1), job(2, "pending"), job(3, "pending", priority=5), job(4, "failed"), job(5), job(6, "completed")]
    feed, _ = feed_of(MemoryMonitor(jobs, [machine("desk")]))
    assert feed.step() > 0
    assert names(feed) == ["5", "1", "3", "2", "6", "4"]
    assert (feed.data.total, feed.data.machines[0].name) == (6, "desk")


def test_a_changed_job_moves_and_a_deleted_one_leaves() -> None:
    monitor = MemoryMonitor([job(1), job(2, "pending")])
    feed, _ = feed_of(monitor)
    feed.step()
    monitor.change(job(2, "running"), job(3, "pending"), gone=[job(1).id])
    feed.step()
    assert names(feed) == ["2", "3"]
    assert feed.is_gone(job(1).id)
    assert feed.data.counts == {"running": 1, "pending": 1}


def test_a_filter_shows_held_rows_at_once_and_then_all() -> None:
    monitor = MemoryMonitor([job(1), *(job(number, "failed") for number in range(10, 20))])
    feed, _ = feed_of(monitor)
    feed.step()
    monitor.trouble = None
    feed.set_query(parse_filter("state:failed 15"))
    assert names(feed) == ["15"]
    feed.requests.run_queued()
    assert (names(feed), feed.data.total, feed.data.is_loading) == (["15"], 1, False)
    monitor.change(job(115, "failed"), job(116, "running"), job(15, "running"))
    feed.step()
    assert names(feed) == ["115"]


def test_pages_are_loaded_as_far_as_they_are_shown_and_no_more_than_can_be_held() -> None:
    feed, _ = feed_of(MemoryMonitor([job(number, "pending") for number in range(MOST_ROWS + 700)]))
    feed.step()
    assert (len(feed.data.rows), feed.data.total) == (200, MOST_ROWS + 700)
    feed.want_rows(150)
    feed.requests.run_queued()
    assert len(feed.data.rows) == 200
    for _ in range(40):
        feed.want_rows(10**6)
        feed.requests.run_queued()
    assert len(feed.data.rows) == MOST_ROWS


def test_a_row_behind_the_loaded_pages_comes_with_its_page() -> None:
    monitor = MemoryMonitor([job(number, "pending") for number in range(300)])
    feed, _ = feed_of(monitor)
    feed.step()
    monitor.change(job(500, "pending"), job(3, "pending", why="busy"))
    feed.step()
    assert len(feed.data.rows) == 200
    assert feed.data.rows[3].why == "busy"


def test_a_lost_connection_keeps_the_picture_and_recovers_with_everything_new() -> None:
    monitor = MemoryMonitor([job(1)])
    feed, clock = feed_of(monitor)
    feed.step()
    monitor.trouble = NoCoordinator("connection refused")
    waits = []
    for _ in range(7):
        waits.append(feed.step())
        clock.advance(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    lost = feed.data.connection
    assert (lost.is_live, lost.error, names(feed)) == (False, "connection refused", ["1"])
    assert clock.monotonic_s() - lost.lost_s == sum(waits)
    monitor.trouble = None
    monitor.change(job(1, "failed"), job(2))
    assert feed.step() < 1
    assert (feed.data.connection.is_live, names(feed)) == (True, ["2", "1"])


def test_an_answer_that_can_not_be_read_is_shown_like_a_lost_connection(monkeypatch) -> None:
    def unreadable(after: int, wait_s: float, frame: int) -> NoReturn:
        raise ValueError("bad JSON")

    monitor = MemoryMonitor([job(1)])
    feed, _ = feed_of(monitor)
    feed.step()
    monkeypatch.setattr(monitor, "changes", unreadable)
    assert feed.step() == 1
    assert feed.data.connection.error == "internal error: ValueError: bad JSON"


def test_too_many_changes_fetch_everything_again() -> None:
    monitor = MemoryMonitor([job(1)])
    feed, _ = feed_of(monitor)
    feed.step()
    monitor.change(*(job(number, "pending") for number in range(2, 4200)))
    feed.step()
    assert monitor.calls["overview"] == 1
    feed.step()
    assert monitor.calls["overview"] == 2


def test_ages_follow_the_clock_of_the_coordinator() -> None:
    monitor = MemoryMonitor([job(1)])
    monitor.now_s = NOON_S + 5000
    feed, _ = feed_of(monitor)
    feed.step()
    assert feed.data.offset_s == 4000


def test_machines_are_fetched_again_while_they_are_shown_and_keep_what_a_changed_row_leaves_out() -> None:
    monitor = MemoryMonitor([job(1)], [machine("desk", capability={"cpu_cores": 8})])
    feed, clock = feed_of(monitor)
    feed.step()
    feed.want_machines()
    feed.requests.run_queued()
    assert monitor.calls["machines"] == 1
    monitor.change_machine(machine("desk", "drained"))
    feed.step()
    (desk,) = feed.data.machines
    assert (desk.state, desk.capability) == ("drained", {"cpu_cores": 8})
    # No event says that a machine is silent.
    monitor.change_machine(machine("desk", "silent", capability={"cpu_cores": 8}), is_event=False)
    clock.advance(5.0)
    feed.want_machines()
    feed.requests.run_queued()
    assert feed.data.machines[0].state == "silent"


def test_telemetry_of_a_machine_stays_while_nothing_newer_comes_and_is_dropped_with_its_page() -> None:
    monitor = MemoryMonitor([], [machine("desk"), machine("lab1")])
    clock, requests = FakeClock(NOON_S), RequestThreads()
    feed = MachineFeed(monitor, clock, requests)
    feed.open("desk")
    for _ in range(2):
        feed.refresh()
        requests.run_queued()
    assert (monitor.calls["telemetry"], feed.data.error) == (1, "")
    monitor.trouble = NoCoordinator("connection refused")
    clock.advance(5.0)
    feed.refresh()
    requests.run_queued()
    assert feed.data.telemetry is not None
    assert feed.data.error == "connection refused"
    feed.open("lab1")
    assert feed.data.telemetry is None


# One job.


def job_feed_of(monitor: MemoryMonitor) -> tuple[JobFeed, FakeClock, RequestThreads]:
    clock, requests = FakeClock(NOON_S), RequestThreads()
    return JobFeed(monitor, clock, requests), clock, requests


def test_a_tab_is_fetched_when_it_is_shown_and_again_while_the_job_runs() -> None:
    monitor = MemoryMonitor([job(1)])
    feed, clock, requests = job_feed_of(monitor)
    feed.open(job(1).id, job(1))
    for _ in range(3):
        feed.refresh("curves")
        requests.run_queued()
    assert (monitor.calls["series"], monitor.calls["log"]) == (1, 0)
    clock.advance(3)
    feed.refresh("curves")
    requests.run_queued()
    assert monitor.calls["series"] == 2
    feed.open(job(1).id, job(1, "completed"))
    for _ in range(3):
        feed.refresh("curves")
        requests.run_queued()
        clock.advance(5)
    assert monitor.calls["series"] == 3


def test_a_log_grows_at_its_end_and_older_lines_come_on_request() -> None:
    monitor = MemoryMonitor([job(1)])
    monitor.log_lines = [f"line {number}" for number in range(1200)]
    feed, clock, requests = job_feed_of(monitor)
    feed.open(job(1).id, job(1))
    feed.refresh("logs")
    requests.run_queued()
    monitor.log_lines += ["new"]
    clock.advance(2)
    feed.refresh("logs")
    requests.run_queued()
    assert feed.data.log is not None
    assert [feed.data.log.lines[at].text for at in (0, -1)] == ["line 700", "new"]
    # More than one answer holds: none of it is left out.
    monitor.log_lines += [f"much {number}" for number in range(2500)]
    monitor.log_unfinished = ["10%"]
    for _ in range(2):
        clock.advance(2)
        feed.refresh("logs")
        requests.run_queued()
    assert [line.number for line in feed.data.log.lines] == list(range(700, 3701))
    assert [line.text for line in feed.data.log.unfinished] == ["10%"]
    monitor.log_order, monitor.log_lines = "second", [f"line {number}" for number in range(3000)]
    clock.advance(2)
    feed.refresh("logs")
    requests.run_queued()
    assert [feed.data.log.lines[at].text for at in (0, -1)] == ["line 1000", "line 2999"], "in place of those before"
    feed.older_lines()
    requests.run_queued()
    assert feed.data.log.lines[0].text == "line 500"
    feed.search("LINE 77")
    feed.refresh("logs")
    requests.run_queued()
    assert (feed.data.log.matches, feed.data.log.lines[0].text) == (11, "line 77")


def test_a_job_that_vanished_is_reported_and_an_answer_for_another_job_is_dropped() -> None:
    monitor = MemoryMonitor([job(1)])
    feed, _, requests = job_feed_of(monitor)
    feed.open("nothing", None)
    feed.refresh("curves")
    requests.run_queued()
    assert feed.data.is_missing
    feed.open(job(1).id, job(1))
    feed.refresh("curves")
    feed.open(job(2).id, job(2))
    requests.run_queued()
    assert (feed.data.series, feed.data.is_missing) == (None, False)


def test_of_a_job_with_several_stages_the_curves_of_a_metric_are_fetched_together() -> None:
    monitor = MemoryMonitor([job(1)])
    monitor.series_names = ("1.run: loss", "2.run: loss", "1.run: lr", "2.run: lr", "note")
    feed, _, requests = job_feed_of(monitor)
    feed.open(job(1).id, job(1))
    feed.refresh("curves")
    requests.run_queued()
    assert feed.data.series is not None
    assert [one.name for one in feed.data.series.series] == ["1.run: loss", "2.run: loss", "1.run: lr", "2.run: lr"]
