"""Every web page for screen readers, for eyes that need contrast, for fingers, and for keys alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.browser import chromium
from tests.system.web_desk import PAGES, Desk

STATIC = Path(__file__).parents[2] / "src" / "stoker" / "web" / "static"
PHONE = {"width": 390, "height": 800}
SMALLEST_PX = 24
# What can be pressed but is smaller: links in a line of text need no size of their own.
SMALL = """
least => [...document.querySelectorAll('button, select, input, summary, [role=tab], [role=button]')]
  .filter(one => one.checkVisibility({visibilityProperty: true}) && !one.closest('.hidden'))
  .map(one => [one, (one.labels?.[0] ?? one).getBoundingClientRect()])
  .filter(([, box]) => box.width < least || box.height < least)
  .map(([one, box]) => `${one.outerHTML.slice(0, 120)}: ${Math.round(box.width)} x ${Math.round(box.height)}`)
"""


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """One tab of one browser: another one costs a second of processor time."""
    with chromium() as browser:
        desk = Desk(browser)
        yield desk
        desk.close()


def test_every_page_is_looked_at():
    table = re.search(r"const PAGES = \{\n(.*?)\n\};", (STATIC / "js" / "main.js").read_text(), re.DOTALL)
    assert table is not None
    names = set(re.findall(r"^  (\w+):", table[1], re.MULTILINE))
    shown = {link.removeprefix("#/").partition("?")[0].partition("/")[0] or "overview" for link in PAGES}
    assert names == shown


def wrong(desk: Desk) -> list[str]:
    """What is wrong with the page as it is: by all rules, in the other scheme by those about colours."""
    page = desk.page
    found = [*desk.tab.axe(), *(f"small: {one}" for one in page.evaluate(SMALL, SMALLEST_PX))]
    page.emulate_media(color_scheme="dark")
    found += [f"dark: {one}" for one in desk.tab.axe(rules=("color-contrast",))]
    page.emulate_media(color_scheme="light")
    if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        found.append("wider than the window")
    return found


@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_screen_readers_and_fingers_find_nothing_wrong_on_any_page(desk: Desk, width: str):
    before = desk.page.viewport_size
    if width == "phone":
        desk.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    found: list[str] = []
    for link, text in PAGES.items():
        desk.go(link, text)
        found += [f"{link}: {fault}" for fault in wrong(desk)]
    desk.page.set_viewport_size(before)  # type: ignore[arg-type]
    assert not found, "\n".join(found)
    assert desk.tab.complaints == []
    assert desk.tab.violations() == []
