"""The web pages before a real coordinator and a real worker: a job runs, fails, and is cancelled from the page."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from tests.system.browser import Tab, chromium
from tests.system.shell import Shell, finish
from tests.system.test_cli_fleet_following import _read_until, ended

PROGRAM = """
import sys, time
print("<b>loss=0.5</b>", flush=True)
for step in range(5):
    print(f"step={step} loss={1 / (step + 1)}", flush=True)
if sys.argv[1] == "fails":
    raise ValueError("<img src=x onerror=alert(1)>")
while sys.argv[1] == "waits":
    time.sleep(0.05)
"""


def expect(found: Any) -> Any:
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    return expect(found)


def _submit(shell: Shell, *names: str) -> None:
    (shell.folder / "train.py").write_text(PROGRAM)
    for name in names:
        submitted = shell.stoker("submit", "-y", "--name", name, "memory=256M", "--", "python3", "train.py", name)
        assert submitted.code == 0, submitted.err


def test_jobs_run_fail_and_are_cancelled_in_the_browser_and_a_link_logs_in(shell: Shell):
    with ExitStack() as running:
        serving = running.enter_context(ended(shell.start("serve", "--listen", "127.0.0.1:0", "--json")))
        url = json.loads(_read_until(serving, "url")[-1])["url"]
        running.enter_context(ended(shell.start("work", "--name", "desk", "--slots", "2")))
        _submit(shell, "waits", "fails")
        opened = running.enter_context(ended(shell.start("ui", "--no-browser", "--json")))
        link = json.loads(_read_until(opened, "link")[-1])["link"]
        browser = running.enter_context(chromium())
        tab = Tab(browser)
        page = tab.open(link)
        expect(page.get_by_role("heading", name="Failed lately")).to_be_visible()
        expect(page.locator("main")).to_contain_text("ValueError")
        page.get_by_role("link", name="waits").first.click()
        expect(page.locator("h1")).to_have_text("waits")
        expect(page.locator(".jobhead .state")).to_contain_text("running")
        expect(page.get_by_label("metric loss")).to_be_visible()
        page.get_by_role("tab", name="logs").click()
        expect(page.get_by_role("log")).to_contain_text("<b>loss=0.5</b>")
        page.get_by_role("button", name="cancel").click()
        expect(page.get_by_role("dialog")).to_contain_text("Cancel waits?")
        page.get_by_role("dialog").get_by_role("button", name="cancel the job").click()
        expect(page.locator(".jobhead .state")).to_contain_text("cancelled")
        for name in ("stages", "config", "code", "files", "explain", "attempts"):
            page.get_by_role("tab", name=name).click()
            expect(page.get_by_text("loading…")).to_have_count(0)
            expect(page.get_by_role("alert")).to_have_count(0)
        page.goto(page.url.partition("#")[0] + "#/machines")
        page.get_by_role("button", name="drain desk").click()
        page.get_by_role("dialog").get_by_role("button", name="drain desk").click()
        expect(page.locator("main")).to_contain_text("drained")
        assert (tab.complaints, tab.violations()) == ([], [])
        tab.close()

        made = shell.stoker("ui", "--link", "--json")
        (told,) = made.objects()
        assert told["link"].startswith(url)
        direct = Tab(browser)
        expect(direct.open(told["link"]).locator("header")).to_contain_text("local user (admin)")
        expect(direct.page.locator(".connection")).to_contain_text("live")
        assert direct.complaints == []
        opened.terminate()
        assert finish(opened).code == 143
