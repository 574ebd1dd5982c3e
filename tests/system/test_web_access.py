"""Every web page for screen readers, for eyes that need contrast, for fingers, and for keys alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.monitor import job
from tests.system.browser import chromium
from tests.system.web_desk import PAGES, Desk, expect

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
BEHIND_DIALOG = """
how => document.querySelector('dialog[open]')
  && document.querySelectorAll('header, main, .banner').forEach(one => { one.style.visibility = how; })
"""


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """One tab of one browser: another one costs a second of processor time."""
    with chromium() as browser:
        desk = Desk(browser)
        yield desk
        desk.close()


# The first and last rows stand for the others: of a table with a thousand they take axe half a minute.
FEW_ROWS = """
how => document.querySelectorAll('main tbody, main .log').forEach(
  rows => rows.childElementCount > 12 && [...rows.children].slice(6, -2).forEach(one => { one.style.display = how; }))
"""


def test_every_page_is_looked_at():
    table = re.search(r"const PAGES = \{\n(.*?)\n\};", (STATIC / "js" / "main.js").read_text(), re.DOTALL)
    assert table is not None
    names = set(re.findall(r"^  (\w+):", table[1], re.MULTILINE))
    shown = {link.removeprefix("#/").partition("?")[0].partition("/")[0] or "overview" for link in PAGES}
    assert names == shown


COLOURS = ("color-contrast",)
"""Rules about colours: half of the time."""


def wrong(desk: Desk, *schemes: str) -> list[str]:
    """What is wrong with the page as it is, by all rules; those about colours in these schemes, or in both."""
    page = desk.page
    # axe takes what is behind a modal dialog for its background.
    page.evaluate(BEHIND_DIALOG, "hidden")
    page.evaluate(FEW_ROWS, "none")
    is_light = "light" in (schemes or ("light",))
    found = [*desk.tab.axe(without=() if is_light else COLOURS)]
    found += [f"small: {one}" for one in page.evaluate(SMALL, SMALLEST_PX)]
    if "dark" in (schemes or ("dark",)):
        page.emulate_media(color_scheme="dark")
        found += [f"dark: {one}" for one in desk.tab.axe(rules=COLOURS)]
        page.emulate_media(color_scheme="light")
    page.evaluate(BEHIND_DIALOG, "")
    page.evaluate(FEW_ROWS, "")
    if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        found.append("wider than the window")
    return found


@pytest.mark.parametrize(("width", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_screen_readers_and_fingers_find_nothing_wrong_on_any_page(desk: Desk, width: str, scheme: str):
    """Colours are the same in any width: each scheme is looked at in one."""
    before = desk.page.viewport_size
    if width == "phone":
        desk.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    found: list[str] = []
    for link, text in PAGES.items():
        desk.go(link, text)
        found += [f"{link}: {fault}" for fault in wrong(desk, scheme)]
    desk.page.set_viewport_size(before)  # type: ignore[arg-type]
    assert not found, "\n".join(found)
    assert desk.tab.complaints == []
    assert desk.tab.violations() == []


FOCUSED = """
() => {
  const one = document.activeElement;
  const box = one.getBoundingClientRect();
  const name = one.ariaLabel ?? one.labels?.[0]?.textContent ?? one.textContent;
  const isSeen = one.matches(':focus-visible') && box.width > 0 && box.bottom > 0;
  return [one.role ?? one.tagName.toLowerCase(), name.trim(), isSeen];
}
"""
MOST_TABS = 80


class Keys:
    """A person without a mouse."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.keyboard = desk.page.keyboard

    def go(self, *keys: str) -> None:
        for key in keys:
            self.keyboard.press(key)

    def reach(self, name: str) -> None:
        """Press Tab until the element of that name has the focus, and is seen to have it."""
        passed = []
        for _ in range(MOST_TABS):
            self.keyboard.press("Tab")
            role, found, is_seen = self.desk.page.evaluate(FOCUSED)
            if found == name:
                assert is_seen, f"{name} does not show that it has the focus"
                return
            passed.append(f"{role} {found[:30]}")
        raise AssertionError(f"{name} is not reached by Tab: {passed}")

    def press(self, name: str) -> None:
        self.reach(name)
        self.keyboard.press("Enter")

    def answer(self, verb: str, **fields: str) -> None:
        """Fill in the dialog that is open, find nothing wrong with it, and confirm."""
        dialog = self.desk.page.get_by_role("dialog")
        dialog.wait_for()
        assert not (found := wrong(self.desk)), "\n".join(found)
        for label, text in fields.items():
            self.reach(label)
            self.keyboard.press("ControlOrMeta+a")
            self.keyboard.type(text)
        self.press(verb)
        dialog.wait_for(state="detached")

    def done(self) -> tuple[Any, ...]:
        """What was changed last."""
        last: tuple[Any, ...] = self.desk.monitor.done[-1]
        return last


def id_of(number: int) -> str:
    return f"{number:064x}"


def test_keys_alone_complete_every_action(desk: Desk):
    keys, page = Keys(desk), desk.page
    desk.go("#/job/resnet%2F2", "val_loss")
    keys.press("cancel")
    keys.answer("cancel the job")
    assert keys.done() == ("cancel", id_of(2))
    desk.monitor.change(job(2, "cancelled"))
    page.locator("main:focus").wait_for()
    desk.go("#/job/resnet%2F12", "resnet/12")
    keys.press("priority 0")
    keys.answer("set the priority", priority="7")
    assert keys.done() == ("priority", id_of(12), 7)
    desk.go("#/job/lora%2F3", "lora/3")
    keys.press("requeue")
    keys.answer("requeue the job")
    assert keys.done() == ("requeue", id_of(50))

    desk.go("#/jobs?state=pending&q=resnet", "resnet/10")
    page.locator("[role=row][id]").nth(5).wait_for()
    keys.go("j", "x", "j", "x")
    keys.press("priority of 2")
    keys.answer("set the priority of 2 jobs", priority="3")
    assert [one[::2] for one in desk.monitor.done[-2:]] == [("priority", 3)] * 2
    keys.go("j", "x", "k", "x")
    keys.press("cancel 2")
    keys.answer("cancel 2 jobs")
    assert [one[0] for one in desk.monitor.done[-2:]] == ["cancel", "cancel"]
    desk.go("#/jobs?state=failed", "lora/3")
    keys.press("select the 2 loaded jobs")
    keys.press("requeue 2")
    keys.answer("requeue 2 jobs")
    assert [one[0] for one in desk.monitor.done[-2:]] == ["requeue", "requeue"]

    for verb, fields, for_s in (
        ("drain", {"reason": "new fan", "for": "30m"}, 1800),
        ("cordon", {}, None),
        ("pause", {"for": "2h"}, 7200),
    ):
        desk.go("#/machines", "lab1")
        keys.press(f"{verb} lab1")
        keys.answer(f"{verb} lab1", **fields)
        assert keys.done() == (verb, "lab1", for_s)
    keys.press("open desk")
    keys.answer("open desk")
    assert keys.done() == ("open", "desk", None)


def test_keys_alone_submit_a_job_again_with_another_value(desk: Desk):
    keys, page = Keys(desk), desk.page
    desk.go("#/job/resnet%2F1", "val_loss")
    keys.press("again with changes…")
    page.get_by_role("heading", name="resnet/1 again").wait_for()
    keys.reach("lr")
    keys.keyboard.press("ControlOrMeta+a")
    keys.keyboard.type("x")
    keys.press("check")
    page.get_by_role("region", name="errors").filter(has_text="x is no number").wait_for()
    assert not (found := wrong(desk)), "\n".join(found)
    page.get_by_label("lr").fill("0.2")
    keys.press("check")
    page.get_by_text("queue position 1").wait_for()
    assert not (found := wrong(desk)), "\n".join(found)
    keys.press("submit 1 job…")
    keys.answer("submit the job")
    assert keys.done() == ("again", "resnet/1", ("lr=0.2",), None)


def test_keys_alone_submit_a_manifest(desk: Desk):
    keys, page = Keys(desk), desk.page
    desk.go("#/", "Pending by reason")
    keys.press("submit a manifest…")
    page.get_by_role("heading", name="Submit a manifest").wait_for()
    keys.reach("manifest")
    for text, shown in (("wrong", "no argument"), ("command", "a browser sends no code"), ("jobs", "queue position 1")):
        page.get_by_label("manifest", exact=True).set_input_files(
            {"name": "grid.toml", "mimeType": "application/toml", "buffer": text.encode()}
        )
        page.locator("main").get_by_text(shown).first.wait_for()
        assert not (found := wrong(desk)), "\n".join(found)
    keys.press("submit 1 job…")
    keys.answer("submit 1 job")
    assert keys.done() == ("manifest", "grid.toml", "jobs")
    page.wait_for_url("**/#/jobs")


def test_a_wrong_answer_is_said_in_the_dialog_and_changes_nothing(desk: Desk):
    keys, before = Keys(desk), len(desk.monitor.done)
    desk.go("#/machines", "lab1")
    keys.press("drain lab1")
    desk.page.get_by_role("dialog").wait_for()
    keys.reach("for")
    keys.keyboard.type("soon")
    keys.press("drain lab1")
    desk.page.get_by_role("dialog").get_by_role("alert").filter(has_text="soon is not a duration").wait_for()
    keys.go("Escape")
    desk.page.get_by_role("dialog").wait_for(state="detached")
    assert desk.monitor.done[before:] == []
    assert desk.page.evaluate("document.activeElement.ariaLabel") == "drain lab1", "the focus is where it was"


def test_the_chosen_tab_is_in_view_on_a_phone(desk: Desk):
    before = desk.page.viewport_size
    desk.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    desk.go("#/job/resnet%2F10?tab=explain", "lab1 is cordoned")
    expect(desk.page.get_by_role("tab", name="explain")).to_be_in_viewport(ratio=0.9)
    assert desk.page.get_by_role("region", name="machines").get_by_role("cell").all_inner_texts()[1:] == [
        "-",
        "lab1 is cordoned",
    ]
    desk.page.set_viewport_size(before)  # type: ignore[arg-type]


def test_keys_lead_to_all_pages_and_into_their_content(desk: Desk):
    keys, page = Keys(desk), desk.page
    desk.go("#/", "Pending by reason")
    for name in page.locator("header nav a").all_inner_texts():
        keys.press(name)
        page.locator("header nav a[aria-current=page]", has_text=name).wait_for()
        page.locator("main h1").first.wait_for()
    keys.press("skip to the content")
    assert page.evaluate("document.activeElement.id") == "main"
    keys.go("?")
    page.get_by_role("dialog").wait_for()
    assert not (found := wrong(desk)), "\n".join(found)
    keys.press("close")
    page.get_by_role("dialog").wait_for(state="detached")


def palette() -> dict[str, dict[str, str]]:
    """The colours of each theme, by name."""
    text = (STATIC / "app.css").read_text()
    blocks = re.findall(r":root(\[data-theme=dark\])? \{(.*?)\}", text, re.DOTALL)
    found: dict[str, dict[str, str]] = {"light": {}, "dark": {}}
    for dark, body in blocks:
        found["dark" if dark else "light"] |= dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})\b", body))
    return found


def brightness(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((brightness(one), brightness(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


BEHIND = {"--raw", "--line", "--back", "--card", "--on-colour"}
"""Drawn behind what is to be read (the raw values, grids, backgrounds), or on a bar of another colour."""


def test_what_is_drawn_on_a_canvas_can_be_told_from_the_background():
    """axe does not see into a canvas: the colours that scripts ask for are looked up in the palette."""
    scripts = "".join(path.read_text() for path in (STATIC / "js").glob("*.js"))
    drawn = (set(re.findall(r"'(--[a-z0-9-]+)'", scripts)) & palette()["light"].keys()) - BEHIND
    assert "--accent" in drawn
    faint = {
        f"{theme} {name}": round(contrast(colours[name], colours["--card"]), 2)
        for theme, colours in palette().items()
        for name in drawn
        if contrast(colours[name], colours["--card"]) < (4.5 if "text" in name else 3.0)
    }
    assert faint == {}


def test_the_dark_theme_is_the_same_whether_chosen_or_the_systems():
    text = (STATIC / "app.css").read_text()
    chosen = re.search(r":root\[data-theme=dark\] \{(.*?)\}", text, re.DOTALL)
    system = re.search(r":root:not\(\[data-theme=light\]\) \{(.*?)\}", text, re.DOTALL)
    assert chosen is not None
    assert system is not None
    assert chosen[1].split() == system[1].split()
