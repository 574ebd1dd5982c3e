"""A browser for tests: Debian's Chromium, without a network beyond this machine; what a page complains of is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js"
PATIENCE_MS = 60_000
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--mute-audio",
    # Grey edges of letters: pictures of pages are half as large.
    "--disable-lcd-text",
)
# Playwright's own evaluation lifts the ban on eval while it runs, so violations are collected by the page itself.
_COLLECT = """
window.violations = [];
addEventListener('securitypolicyviolation', (e) => window.violations.push(e.violatedDirective + ' ' + e.blockedURI));
"""
# Best practices are among the rules; sizes of targets have to be asked for.
_AXE = """
([only, without]) => axe.run(document, {
  resultTypes: ['violations', 'incomplete'],
  rules: {'target-size': {enabled: true}, ...Object.fromEntries(without.map(rule => [rule, {enabled: false}]))},
  ...(only.length ? {runOnly: {type: 'rule', values: only}} : {}),
})
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skip where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium: `make test` installs it where it may")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page, and what went wrong in it."""

    def __init__(self, browser: Browser, *, scheme: str = "light", size: tuple[int, int] = (1280, 860)) -> None:
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_init_script(_COLLECT)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, url: str) -> Page:
        """Open an address, and wait for the page's heading."""
        self.page.goto(url)
        self.page.locator("main h1").first.wait_for()
        return self.page

    def violations(self) -> list[str]:
        """What the content security policy refused."""
        found: list[str] = self.page.evaluate("window.violations")
        return found

    def axe(self, *, rules: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> list[str]:
        """What assistive technology can't read, as one line each; by all rules, by these alone, or without some."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(_AXE, [rules, without])
        contrast = [one for one in found["incomplete"] if one["id"] == "color-contrast"]
        return [
            f"{one['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
            for one in (*found["violations"], *contrast)
            for node in one["nodes"][:3]
            # Signs beside a word have no contrast to measure.
            if "only non-text characters" not in node.get("failureSummary", "")
        ]

    def close(self) -> None:
        """Close it."""
        with suppress(Exception):
            self.context.close()
