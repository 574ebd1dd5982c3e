"""The web pages when something is wrong: a dead server, a job that is gone, odd text, other clocks, an old tab."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from stoker.coordinator.http.pages import PageAnswer
from stoker.jobs.log_text import LONGEST_LINE_BYTES
from stoker.web.ui_server import UiServer
from tests.fakes.monitor import job
from tests.system.browser import Tab, chromium
from tests.system.web_desk import Desk, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

HOURS_AHEAD = "const real = Date.now; Date.now = () => real() + 3 * 3600 * 1000;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[Desk]:
    """One tab: another one costs a second of processor time."""
    desk = Desk(browser)
    yield desk
    desk.close()


def test_a_job_that_vanishes_stays_on_screen_and_the_page_says_so(desk: Desk):
    desk.go("#/job/resnet%2F20", "resnet/20")
    expect(desk.page.locator(".connection")).to_contain_text("live")
    desk.monitor.change(gone=[f"{20:064x}"])
    expect(desk.page.get_by_role("alert")).to_contain_text("not found, perhaps pruned")
    expect(desk.page.locator("h1")).to_have_text("resnet/20")
    desk.page.goto(f"{desk.ui.url}#/job/never-was")
    expect(desk.page.get_by_role("alert")).to_contain_text("job never-was not found")
    desk.page.get_by_role("link", name="all jobs").click()
    expect(desk.page.locator("h1")).to_contain_text("Jobs")


def test_a_page_that_is_not_there_leads_back(desk: Desk):
    desk.page.goto(f"{desk.ui.url}#/nothing/%ff")
    expect(desk.page.locator("main")).to_contain_text("There is no such page.")
    desk.page.locator("main").get_by_role("link", name="overview").click()
    expect(desk.page.locator("h1")).to_contain_text("overview")


def test_a_very_long_line_of_a_log_stays_in_its_box(desk: Desk):
    desk.monitor.log_lines = ["x" * LONGEST_LINE_BYTES, "the next line"]
    desk.go("#/job/resnet%2F3?tab=logs", "the next line")
    box = desk.page.get_by_role("log")
    assert desk.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert box.evaluate("one => one.scrollWidth <= one.clientWidth + 1")


def test_ages_are_by_the_clock_of_the_server(desk: Desk, browser: Browser):
    tab = Tab(browser)
    tab.context.add_init_script(HOURS_AHEAD)
    tab.open(desk.ui.link())
    failed = tab.page.get_by_role("region", name="Failed lately")
    expect(failed).to_contain_text("lab1 · 12 min ago")
    tab.close()


def test_what_happens_before_the_stream_begins_is_shown_and_a_page_that_does_not_load_says_so(
    desk: Desk, browser: Browser
):
    tab, read = Tab(browser), desk.monitor.calls["overview"]

    def begin_late(route: Route) -> None:
        while desk.monitor.calls["overview"] == read:
            time.sleep(0.01)
        desk.monitor.change(job(77, "failed", name="meanwhile", ended_s=desk.monitor.now_s - 1, why="user: too late"))
        route.continue_()

    tab.page.route("**/v1/stream", begin_late)
    tab.page.route("**/js/simulation.js", lambda route: route.abort())
    tab.open(desk.ui.link())
    expect(tab.page.get_by_role("region", name="Failed lately")).to_contain_text("meanwhile")
    tab.page.get_by_role("link", name="Simulation").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("a newer version of these pages is installed")
    expect(tab.page.get_by_role("button", name="reload")).to_be_visible()
    tab.page.get_by_role("link", name="Machines").click()
    expect(tab.page.locator("h1")).to_contain_text("Machines")
    desk.monitor.change(gone=[f"{77:064x}"])
    tab.close()


def test_without_a_session_the_page_asks_for_a_log_in_and_nothing_fails(desk: Desk, browser: Browser):
    tab = Tab(browser)
    page = tab.open(f"{desk.ui.url}#/jobs")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert (tab.complaints, tab.violations(), tab.axe()) == ([], [], [])
    page.get_by_label("or paste a token").fill("wrong")
    page.get_by_role("button", name="log in").click()
    expect(page.get_by_role("alert")).to_contain_text("the code is not valid")
    tab.close()


def cut_streams(desk: Desk) -> None:
    """End every stream; pages begin another one."""
    ending = desk.ui.backend._ending  # type: ignore[attr-defined]
    ending.set()
    expect(desk.page.locator(".connection")).not_to_contain_text("live")
    ending.clear()


def test_an_old_tab_says_that_other_pages_are_installed(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    desk.go("#/", "Pending by reason")
    expect(desk.page.locator(".connection")).to_contain_text("live")
    newer = PageAnswer(status=200, headers=(), body=b'<html data-build="0123456789abcdef">')
    monkeypatch.setattr(desk.ui.pages, "answer", lambda *_: newer)
    cut_streams(desk)
    expect(desk.page.get_by_text("A newer version of these pages is installed.")).to_be_visible()
    expect(desk.page.locator("main")).to_contain_text("Pending by reason")


def test_a_dead_server_leaves_the_last_picture_and_comes_back(browser: Browser):
    desk = Desk(browser)
    try:
        desk.go("#/job/resnet%2F1", "val_loss")
        expect(desk.page.locator(".connection")).to_contain_text("live")
        port, sessions = desk.ui.port, desk.ui.sessions
        desk.ui.stop()
        expect(desk.page.locator(".banner")).to_contain_text("connection lost")
        expect(desk.page.locator("h1")).to_have_text("resnet/1")
        backend = desk.ui.backend
        backend._ending.clear()  # type: ignore[attr-defined]
        desk.ui = UiServer(backend, pages=desk.ui.pages, clock=desk.clock, port=port, user="anna")
        desk.ui.sessions = sessions
        desk.ui.start()
        expect(desk.page.locator(".connection")).to_contain_text("live")
        expect(desk.page.locator(".banner")).to_have_count(0)
        desk.monitor.change(job(1, "completed", changed_s=desk.monitor.now_s + 9))
        expect(desk.page.locator(".jobhead .state")).to_contain_text("completed")
    finally:
        desk.close()
