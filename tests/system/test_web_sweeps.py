"""The pages of sweeps and comparisons in a real browser: brushes, order, drawings, and runs side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.fakes.monitor import job
from tests.fakes.page_sweep import page_sweep
from tests.system.browser import Tab, chromium
from tests.system.shell import Shell, finish
from tests.system.test_cli_fleet_following import _read_until, ended
from tests.system.web_desk import SWEEP, Desk, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

ALL = "48 trials"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[Desk]:
    desk = Desk(browser)
    yield desk
    desk.close()


def shown(desk: Desk) -> Locator:
    """How many trials are inside the brushes."""
    return desk.page.locator(".filters [role=status]").first


def rows(desk: Desk) -> Locator:
    return desk.page.get_by_role("grid").locator(".vrow")


def test_brushes_are_set_by_keys_and_by_dragging_and_are_part_of_the_link(desk: Desk):
    desk.go(SWEEP, "best val_loss")
    page = desk.page
    expect(shown(desk)).to_have_text(ALL)
    rates = page.get_by_label("lr from")
    rates.focus()
    page.keyboard.type("0.003")
    page.keyboard.press("Enter")
    inside = sum(float(one.parameters["lr"]) >= 0.003 for one in page_sweep().trials)
    expect(shown(desk)).to_have_text(f"{inside} of {ALL}")
    assert "min.p.lr=0.003" in page.url
    page.reload()
    expect(shown(desk)).to_have_text(f"{inside} of {ALL}")
    page.get_by_role("button", name="show all").click()
    expect(shown(desk)).to_have_text(ALL)
    assert "min." not in page.url

    # The second of seven axes: from its middle to above its upper end.
    box = page.get_by_role("img", name=re.compile("parallel")).bounding_box()
    assert box is not None
    x = box["x"] + box["width"] * 1.5 / 7
    page.mouse.move(x, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 60)
    page.mouse.move(x, box["y"] + 2)
    page.mouse.up()
    deepest = sum(one.parameters["depth"] == 8 for one in page_sweep().trials)
    expect(shown(desk)).to_have_text(f"{deepest} of {ALL}")
    expect(page.get_by_label("depth from")).to_have_value(re.compile(r"^5\.\d+$"))
    page.mouse.click(x, box["y"] + 100)
    expect(shown(desk)).to_have_text(ALL)

    for end in ("from", "to"):
        page.get_by_label(f"schedule {end}", exact=True).select_option(label="cosine")
    cosine = sum(one.parameters["schedule"] == "cosine" for one in page_sweep().trials)
    expect(shown(desk)).to_have_text(f"{cosine} of {ALL}")
    expect(
        page.get_by_role("img", name=re.compile(r"parallel coordinates of \d+ of 48 trials over lr, .*best"))
    ).to_be_visible()


def test_the_table_is_ordered_by_any_column_and_the_metric_and_its_direction_are_chosen(desk: Desk):
    desk.go(SWEEP, "best val_loss")
    page = desk.page
    best = page_sweep().trials[0]
    expect(rows(desk).first).to_contain_text(f"#{best.number}")
    expect(page.locator(".best")).to_contain_text(f"#{best.number}")
    page.get_by_role("columnheader", name="lr", exact=True).get_by_role("button").click()
    fastest = max(page_sweep().trials, key=lambda one: float(one.parameters["lr"]))
    expect(rows(desk).first).to_contain_text(f"#{fastest.number}")
    page.get_by_role("combobox", name="metric", exact=True).select_option("accuracy")
    expect(page.locator(".best")).to_contain_text("best accuracy ↑")
    page.get_by_role("combobox", name="better", exact=True).select_option("smaller")
    expect(page.locator(".best")).to_contain_text("best accuracy ↓")
    assert "better=smaller" in page.url
    expect(page.locator(".command code")).to_contain_text("stoker compare resnet --by accuracy --min")
    page.get_by_text("columns", exact=False).first.click()
    page.get_by_role("group", name="columns").get_by_label("warm up").uncheck()
    expect(page.get_by_role("columnheader", name="warm up")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("columnheader", name="depth")).to_be_visible()
    expect(page.get_by_role("columnheader", name="warm up")).to_have_count(0)


def test_every_drawing_says_what_it_shows_and_curves_are_a_table_too(desk: Desk):
    page = desk.page
    desk.go(f"{SWEEP}?view=scatter", "importance 60 %")
    expect(
        page.get_by_role("img", name=re.compile(r"val_loss against lr: 39 trials, best .* at .*, (rising|falling)"))
    ).to_be_visible()
    desk.go(f"{SWEEP}?view=curves&top=5", "5 of")
    expect(
        page.get_by_role(
            "img", name=re.compile(r"val_loss of 5 runs: last .* to .*, best .* of resnet.[0-9]+, 5 falling")
        )
    ).to_be_visible()
    page.get_by_label("as a table").check()
    expect(page.get_by_role("region", name="values of val_loss").locator("tbody tr")).to_have_count(51)
    page.get_by_role("combobox", name="the best", exact=True).select_option("10")
    expect(page.locator(".tints li")).to_have_count(10)


def test_a_sweep_grows_without_a_reload_and_says_what_is_missing(desk: Desk):
    desk.go(SWEEP, "best val_loss")
    expect(desk.page.locator(".connection")).to_contain_text("live")
    desk.monitor.trials = 49
    desk.monitor.change(job(148, "completed"))
    expect(shown(desk)).to_have_text("49 trials")
    desk.monitor.trials = 48
    desk.go(f"{SWEEP}?metric=lost", "no trial has a metric 'lost'")
    desk.go("#/sweep/nothing", "sweep nothing not found")


def test_a_sweep_is_cancelled_after_a_question(desk: Desk):
    desk.go(SWEEP, "best val_loss")
    desk.page.get_by_role("button", name="cancel", exact=True).click()
    question = desk.page.get_by_role("dialog")
    expect(question).to_contain_text("Cancel the sweep resnet?")
    expect(question).to_contain_text("stoker cancel resnet")
    question.get_by_role("button", name="cancel the sweep").click()
    expect(question).to_have_count(0)
    assert desk.monitor.done == [("cancel", "resnet")]


def test_rows_are_selected_and_compared_what_differs_first(desk: Desk):
    page = desk.page
    desk.go("#/jobs?state=running", "resnet/1")
    page.get_by_role("grid").focus()
    for key in "jxjx":
        page.keyboard.press(key)
    page.get_by_role("link", name="compare 2").click()
    expect(page.get_by_role("heading", name="Compare")).to_contain_text("2 runs")
    table = page.get_by_role("region", name="comparison")
    expect(table.locator(".section").first).to_contain_text("at the best step by val_loss")
    expect(table.locator(".top")).to_contain_text("best")
    expect(table).to_contain_text("settings 2 differ")
    expect(table).not_to_contain_text("model.depth")
    page.get_by_text("the same", exact=False).first.click()
    expect(page.get_by_role("region", name="the same in all")).to_contain_text("model.depth")
    expect(page.get_by_role("img", name=re.compile("val_loss of 2 runs"))).to_be_visible()
    page.get_by_label("add a run").fill("resnet/3")
    page.get_by_role("button", name="add").click()
    expect(page.get_by_role("heading", name="Compare")).to_contain_text("3 runs")
    page.get_by_role("button", name="remove resnet/3").click()
    expect(page.get_by_role("heading", name="Compare")).to_contain_text("2 runs")
    assert [one for one in desk.tab.complaints if "404" not in one] == []
    assert desk.tab.violations() == []


PROGRAM = """
import os, sys, time
rate = float(sys.argv[1])
print(f"step=1 loss={1 - rate}", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print(f"step=2 loss={0.5 - rate}", flush=True)
print(f"step=3 loss={0.7 - rate}", flush=True)
"""


def test_a_sweep_of_this_machine_is_followed_to_its_end_and_its_trials_compared(shell: Shell, browser: Browser):
    (shell.folder / "train.py").write_text(PROGRAM)
    with ExitStack() as running:
        words = ("run", "--name", "tune", "lr=0.1,0.2", "-j", "2", "--", "python3", "train.py", "{lr}")
        sweep = running.enter_context(ended(shell.start(*words)))
        opened = running.enter_context(ended(shell.start("ui", "--local", "--no-browser", "--json")))
        tab = Tab(browser)
        page = tab.open(json.loads(_read_until(opened, "link")[-1])["link"])
        page.get_by_role("link", name="Sweeps").click()
        page.get_by_role("link", name="tune").click()
        expect(page.locator(".best")).to_contain_text("0 of 2 trials ended")
        (shell.folder / "go").touch()
        expect(page.locator(".best")).to_contain_text("2 of 2 trials ended")
        expect(page.locator(".best")).to_contain_text("0.3 @ step 2")
        assert finish(sweep).code == 0
        page.get_by_role("link", name="compare the best 2").click()
        table = page.get_by_role("region", name="comparison")
        expect(table).to_contain_text("settings 1 differs")
        expect(table.locator(".top")).to_have_text("0.3 best")
        expect(page.get_by_role("img", name=re.compile("loss of 2 runs: last 0.5 to 0.6, best 0.3"))).to_be_visible()
        table.get_by_role("link", name="tune/2").click()
        expect(page.locator("h1")).to_have_text("tune/2")
        expect(page.locator(".jobhead .state")).to_contain_text("completed")
        page.get_by_role("link", name="sweep", exact=True).click()
        expect(page.get_by_role("heading", name="tune")).to_be_visible()
        assert (tab.complaints, tab.violations()) == ([], [])
        tab.close()
