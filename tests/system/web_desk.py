"""The web pages with a fleet in memory behind them, in a tab of a real browser; and a list of all pages.

A new page needs a line in `PAGES`: the tests of every page then look at it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.core.clock import FakeClock, SystemClock
from stoker.web.assets import Pages
from stoker.web.local_routes import LocalBackend
from stoker.web.ui_server import UiServer
from tests.fakes.page_monitor import PageMonitor, page_monitor
from tests.system.browser import Tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def expect(found: Any) -> Any:
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    return expect(found)


JOB = "#/job/resnet%2F1"
SWEEP = "#/sweep/resnet"
TABS = ("curves", "logs", "stages", "resources", "config", "code", "files", "explain", "model-card", "attempts")
PAGES = {
    "#/": "Pending by reason",
    "#/jobs": "resnet/10",
    "#/jobs?group=sweep&state=running": "6 running",
    "#/machines": "device 1 at 91 °C",
    "#/machines?table=1&hours=24": "took",
    "#/machine/lab2": "Temperature",
    "#/machine/lab2?table=1": "Clock",
    "#/adapters": "best loss",
    "#/models": "stage/8",
    f"#/model/{'01' * 32}": "Made from",
    "#/simulation?add=rtx-4090:2&leave=desk": "earlier",
    f"{JOB}?tab=resources": "Memory in use",
    f"{JOB}?tab=model-card": "Scores on held-out rows",
    JOB: "val_loss",
    f"{JOB}?table=1&log=1&x=relative": "1,000",
    f"{JOB}?tab=logs": "step 899",
    f"{JOB}?tab=stages": "load data",
    f"{JOB}?tab=config": "model.depth",
    f"{JOB}?tab=code": "lr = 0.2",
    f"{JOB}?tab=files": "logs/train.log",
    f"{JOB}?tab=explain": "queue position 1",
    f"{JOB}?tab=attempts": "granted",
    "#/submit": "It is checked first",
    "#/again/resnet%2F1": "model.depth",
    "#/sweeps": "resnet",
    f"{SWEEP}?min.p.lr=0.003&max.p.schedule=linear&cols=p.lr,p.schedule,m.accuracy": "of 48 trials",
    f"{SWEEP}?view=curves&top=5": "5 of",
    f"{SWEEP}?view=scatter": "importance 60 %",
    f"{SWEEP}?view=importance": "Permutation importance",
    "#/compare?jobs=resnet/1": "the run before it",
    "#/compare?jobs=resnet/1,resnet/2,resnet/3": "settings",
}
"""Link → a text that is there once the data has come."""


class Desk:
    """Pages of a fleet in memory, and a logged-in tab."""

    def __init__(self, browser: Browser, **look: object) -> None:
        self.clock = FakeClock()
        clock = SystemClock()
        self.monitor: PageMonitor = page_monitor(clock.wall_s())
        pages = Pages()
        backend = LocalBackend(self.monitor, clock=clock, user="anna", build=pages.build)
        self.ui = UiServer(backend, pages=pages, clock=self.clock, user="anna")
        self.ui.start()
        self.tab = Tab(browser, **look)  # type: ignore[arg-type]
        self.page = self.tab.open(self.ui.link())
        self.page.locator("header").wait_for()

    def go(self, link: str, text: str) -> None:
        self.page.goto(f"{self.ui.url}{link}")
        self.page.locator("main").get_by_text(text).filter(visible=True).first.wait_for()

    def close(self) -> None:
        self.tab.close()
        self.ui.stop()
