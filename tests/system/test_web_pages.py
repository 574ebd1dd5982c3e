"""The web pages in a real browser: what they show and do, live, for eyes, keys and screen readers."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.monitor import job, machine
from tests.fakes.page_sweep import MARKUP
from tests.system.browser import Tab, chromium
from tests.system.shell import PATIENCE_S, Shell, finish
from tests.system.test_cli_fleet_following import _read_until, ended
from tests.system.web_desk import JOB, PAGES, Desk, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


MOST_PICTURE_BYTES = 60 * 1024


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def one_tab(browser: Browser) -> Iterator[Desk]:
    desk = Desk(browser)
    yield desk
    desk.close()


@pytest.fixture
def shared(one_tab: Desk) -> Desk:
    """A tab for tests that leave it as it is, or change different jobs: another costs a second of processor time."""
    one_tab.tab.complaints.clear()
    return one_tab


@pytest.fixture
def desk(browser: Browser) -> Iterator[Desk]:
    desk = Desk(browser)
    yield desk
    desk.close()


def test_every_page_shows_its_data_and_takes_markup_for_text(shared: Desk):
    for link, text in PAGES.items():
        shared.go(link, text)
        assert shared.page.locator("img").count() == 0
        assert shared.page.locator(".command code").count() == 1, "the command that does the same"
    shared.go("#/jobs?q=onerror", MARKUP)
    shared.page.get_by_role("link", name=f"x{MARKUP}").click()
    expect(shared.page.locator("h1")).to_have_text(f"x{MARKUP}")
    assert shared.tab.complaints == []
    assert shared.tab.violations() == []
    assert shared.tab.hosts == {f"127.0.0.1:{shared.ui.port}"}


def test_a_job_is_cancelled_by_keys_alone_after_a_question_that_names_it(shared: Desk):
    page = shared.page
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.locator("[role=grid] [role=row]").nth(3).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("resnet/4")
    expect(page.locator("h1")).to_contain_text("1")
    page.locator("[role=gridcell] a", has_text=re.compile("^resnet/4$")).wait_for()
    page.locator("[role=grid]").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("resnet/4")
    cancel = page.get_by_role("button", name="cancel")
    cancel.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel resnet/4?")
    page.keyboard.press("Escape")
    assert shared.monitor.done == [], "a question that is not answered changes nothing"
    cancel.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="cancel the job").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert shared.monitor.done == [("cancel", f"{4:064x}")]


def test_bars_of_the_timeline_are_walked_by_arrow_keys_and_opened(shared: Desk):
    shared.go("#/machines", "Who ran what where")
    bars = shared.page.get_by_role("group", name="timeline of the machines")
    bars.focus()
    told = shared.page.locator("main [role=status]")
    bars.press("ArrowDown")
    expect(told).to_contain_text("on desk")
    bars.press("ArrowDown")
    expect(told).to_contain_text("on lab1")
    first = told.inner_text()
    bars.press("ArrowRight")
    expect(told).not_to_have_text(first)
    name = told.inner_text().partition(" on lab1")[0]
    bars.press("Enter")
    shared.page.wait_for_url("**/#/job/*")
    assert name


def test_a_simulation_is_asked_by_keys_alone_and_its_change_is_in_the_link(shared: Desk):
    shared.go("#/simulation", "as it is")
    page = shared.page
    page.get_by_label("add machines like").fill("rtx-4090")
    page.get_by_label("how many").fill("3")
    page.keyboard.press("Enter")
    expect(page.get_by_label("with the change", exact=True)).to_contain_text("6 machines")
    expect(page.get_by_label("difference", exact=True)).to_contain_text("earlier")
    assert "add=rtx-4090%3A3" in page.url
    expect(page.locator(".command code")).to_have_text("$ stoker admin simulate --live --add rtx-4090:3")
    page.get_by_role("button", name="remove 3 × rtx-4090").press("Enter")
    expect(page.get_by_label("with the change", exact=True)).to_have_count(0)
    page.goto(f"{shared.ui.url}#/simulation?add=warp-core")
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'rtx-4090'?")


DROP = """(file) => {
  const carried = new DataTransfer();
  carried.items.add(new File([file.text], file.name));
  return carried;
}"""


def drop(page: Page, name: str, text: str) -> None:
    """Drop a file on the page, as from a file manager."""
    carried = page.evaluate_handle(DROP, {"name": name, "text": text})
    for kind in ("dragover", "drop"):
        page.dispatch_event("main", kind, {"dataTransfer": carried})


def test_a_manifest_is_dropped_and_its_markup_is_text(shared: Desk):
    page, before = shared.page, len(shared.monitor.done)
    shared.go("#/jobs", "resnet/10")
    drop(page, f"x{MARKUP}.toml", "command")
    expect(page.get_by_role("status").filter(has_text="needs more than this file")).to_be_visible()
    expect(page.locator("main")).to_contain_text(f"its command runs code of the manifest's folder {MARKUP}")
    expect(page.get_by_role("button", name="submit 1 job")).to_have_count(0)
    drop(page, "photo.png", "x")
    expect(page.locator(".messages")).to_contain_text("photo.png is no manifest")
    shared.go("#/machines", "Who ran what where")
    drop(page, "m.toml", "jobs")
    assert page.url.endswith("#/machines"), "only pages of jobs take manifests"
    assert shared.monitor.done[before:] == []
    assert page.locator("img").count() == 0
    assert shared.tab.complaints == []


def test_changes_appear_without_a_reload(shared: Desk):
    shared.go(JOB, "val_loss")
    expect(shared.page.locator(".connection")).to_contain_text("live")
    at = shared.monitor.now_s
    shared.monitor.change(job(1, "failed", changed_s=at + 5, why="out of memory", submitted_s=at - 3000, ended_s=at))
    expect(shared.page.locator(".jobhead .state")).to_contain_text("failed")
    expect(shared.page.locator("main")).to_contain_text("out of memory")


def test_numbers_follow_while_changes_never_pause(shared: Desk):
    shared.go("#/", "Pending by reason")
    number = shared.page.locator(".numbers li", has_text="failed in 24 h").locator("strong")
    before = int(number.inner_text())
    at = shared.monitor.now_s
    shared.monitor.change(job(60, "failed", submitted_s=at - 3000, ended_s=at - 10))
    until_s = time.monotonic() + PATIENCE_S
    step = 0
    while int(number.inner_text()) == before and time.monotonic() < until_s:
        step += 1
        shared.monitor.change(
            job(2, changed_s=at + step, submitted_s=at - 3002, started_s=at - 1200, step=step, of=10**6)
        )
    assert int(number.inner_text()) == before + 1


_MOVED = """async () => {
  const scripts = document.querySelector('script[type=module]').src;
  const { JobRows } = await import(scripts.replace('main.js', 'job_rows.js'));
  const usual = { state: 'running', submitted_s: 5, started_s: 6, priority: 0, machine: 'desk' };
  const row = (id, more) => ({ id, ...usual, ...more });
  const isOther = (filter, job) => {
    const list = new JobRows(filter, () => {}, () => {}, 10);
    list.pages.set(0, [row('a')]);
    list.places.set('a', [0, 0]);
    return list.change([job], {});
  };
  return {
    elsewhere: isOther({}, row('b', { state: 'failed' })),
    ended: isOther({}, row('a', { state: 'completed' })),
    submitted: isOther({}, row('b', { submitted_s: 11 })),
    'left a filter': isOther({ state: 'running' }, row('a', { state: 'completed' })),
    'may enter a filter': isOther({ machine: 'lab' }, row('b')),
    'first in order': isOther({ sort: '-priority' }, row('a', { priority: 1 })),
    'same place': isOther({ sort: '-priority' }, row('a', { state: 'completed' })),
  };
}"""


def test_a_list_of_jobs_is_read_again_only_if_a_change_may_move_a_row_of_it(shared: Desk):
    assert shared.page.evaluate(_MOVED) == {
        "elsewhere": False,
        "ended": False,
        "submitted": True,
        "left a filter": True,
        "may enter a filter": True,
        "first in order": True,
        "same place": False,
    }


def test_a_row_that_is_scrolled_away_leaves_the_keys_to_the_table(shared: Desk):
    shared.go("#/jobs", "resnet/10")
    shared.page.locator("#row-2 a").focus()
    shared.page.locator("[role=grid]").evaluate("grid => { grid.scrollTop = 2000; }")
    shared.page.locator("#row-60 a").wait_for()
    expect(shared.page.locator("[role=grid]")).to_be_focused()
    assert shared.page.locator("[role=grid] [role=row]").count() < 60


def test_many_machines_are_read_once_and_follow_the_stream(desk: Desk):
    for number in range(60):
        desk.monitor.change_machine(machine(f"node{number}", last_seen_s=desk.monitor.now_s), is_event=False)
    desk.go("#/machines", "node1")
    expect(desk.page.locator(".connection")).to_contain_text("live")
    cordoned = desk.page.get_by_role("button", name="cordoned", exact=False)
    expect(cordoned).to_contain_text("1")
    desk.monitor.change(job(1, "running", machine="node7", changed_s=desk.monitor.now_s))
    # The beginning of the stream reads all once more, page by page.
    read = -1
    while read != desk.monitor.calls["machines"]:
        read = desk.monitor.calls["machines"]
        desk.page.wait_for_timeout(500)
    why = "ECC errors"
    desk.monitor.change_machine(machine("node7", "cordoned", why=why, last_seen_s=desk.monitor.now_s))
    expect(desk.page.get_by_role("region", name="machine node7", exact=True)).to_contain_text(why)
    expect(cordoned).to_contain_text("2")
    assert desk.monitor.calls["machines"] == read, "what changed comes by the stream"


def test_the_end_of_a_session_asks_for_a_log_in_and_keeps_the_place(desk: Desk):
    desk.go("#/", "Pending by reason")
    desk.clock.advance(13 * 3600)
    # Not by keys: the end may be noticed before the second one, and then they are typed into the log-in.
    desk.page.evaluate("location.hash = '#/jobs'")
    expect(desk.page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(desk.page.locator("main")).to_contain_text("the session has ended")
    assert desk.page.url.endswith("#/jobs")


@pytest.mark.slow
def test_a_used_link_says_so(desk: Desk, browser: Browser):
    link = desk.ui.link()
    first, second = Tab(browser), Tab(browser)
    first.open(link).get_by_role("heading", name="lab overview").wait_for()
    assert "code" not in first.page.url
    expect(second.open(link).get_by_role("alert")).to_contain_text("the code is not valid")
    first.close()
    second.close()


@pytest.mark.slow
def test_the_pictures_of_the_readme_are_small(browser: Browser, tmp_path: Path):
    """`STOKER_PICTURES=docs/pictures` before the tests writes it there."""
    from PIL import Image

    desk = Desk(browser, size=(960, 600))
    folder = Path(os.environ.get("STOKER_PICTURES") or tmp_path)
    try:
        desk.monitor.change(gone=[f"{51:064x}"])
        desk.monitor.metric_names = ("loss", "val_loss")
        folder.mkdir(parents=True, exist_ok=True)
        for name, link, text in (
            ("overview", "#/", "Pending by reason"),
            ("job", JOB, "val_loss"),
        ):
            desk.go(link, text)
            expect(desk.page.locator(".connection")).to_contain_text("live")
            expect(desk.page.locator(".plot canvas")).to_have_count(0 if name == "overview" else 2)
            expect(desk.page.locator("main")).not_to_contain_text("onerror")
            taken = Image.open(BytesIO(desk.page.screenshot()))
            small = taken.convert("RGB").quantize(128, dither=Image.Dither.NONE)
            small.save(folder / f"{name}.png", optimize=True)
            assert (folder / f"{name}.png").stat().st_size <= MOST_PICTURE_BYTES
    finally:
        desk.close()


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


def _submit(shell: Shell, *names: str) -> None:
    (shell.folder / "train.py").write_text(PROGRAM)
    for name in names:
        submitted = shell.stoker("submit", "-y", "--name", name, "memory=256M", "--", "python3", "train.py", name)
        assert submitted.code == 0, submitted.err


def _see_machine(page: Page) -> None:
    """Look at what the worker measured of its host; what a host does not have is not zero."""
    page.get_by_role("link", name="desk", exact=True).click()
    expect(page.get_by_role("img", name="3 attempts of 3 jobs")).to_be_visible()
    host = page.get_by_role("row", name="host, no accelerators")
    expect(host).to_contain_text(re.compile(r"[0-9.]+ GiB in use"))
    expect(host.get_by_role("cell").nth(2)).to_have_text("–")


def _run_again(page: Page, shell: Shell) -> None:
    """Run the job that failed again with another word in its program, then drop a manifest; end at the machines."""
    page.goto(page.url.partition("#")[0] + "#/job/fails")
    page.get_by_role("link", name="again with changes…").click()
    program = page.get_by_label("program")
    expect(program).to_have_value("python3 train.py fails")
    program.fill("python3 train.py 'ends")
    page.get_by_role("button", name="check").click()
    expect(page.get_by_role("region", name="errors")).to_contain_text("close the quotes")
    program.fill("python3 train.py ends")
    page.get_by_label("name", exact=True).fill("ends")
    page.get_by_role("button", name="check").click()
    expect(page.locator("main")).to_contain_text("program: python3 train.py fails → python3 train.py ends")
    line = "stoker submit --again fails --name ends -- python3 train.py ends"
    expect(page.locator(".command code")).to_have_text(f"$ {line}")
    page.get_by_role("button", name="submit 1 job…").click()
    page.get_by_role("dialog").get_by_role("button", name="submit the job").click()
    expect(page.locator("h1")).to_have_text("ends")
    expect(page.locator(".jobhead .state")).to_contain_text("completed")
    tried = shell.stoker("submit", "--again", "ends", "--dry-run", "memory=512M", "--", "python3", "train.py", "soon")
    assert tried.code == 0, tried.err
    assert "program: python3 train.py ends → python3 train.py soon" in tried.out
    wrong = shell.stoker("submit", "--again", "ends", "-y", "memory=lots", "folder=/etc")
    assert (wrong.code, wrong.err.count("folder names code, data or environment")) == (28, 1), wrong.err
    _drop_manifest(page)
    page.goto(page.url.partition("#")[0] + "#/machines")


TREES = """
[[jobs]]
name = "trees"
recipe = "tabular/gbt"
allowed_hosts = ["elsewhere"]
sweep = { lr = [0.1, 0.2] }
"""


def _drop_manifest(page: Page) -> None:
    """Drop a manifest with faults, one that needs its folder, and one whose jobs are there afterwards."""
    page.goto(page.url.partition("#")[0] + "#/")
    page.get_by_role("heading", name="Failed lately").wait_for()
    drop(page, "trees.toml", f"{TREES}hyper = {{ lrr = 1 }}\n")
    errors = page.get_by_role("region", name="errors")
    expect(errors).to_contain_text("jobs[0].hyper.lrr")
    expect(errors).to_contain_text("did you mean")
    drop(page, "trees.toml", f"{TREES}hyper = {{ data = '../../etc/passwd' }}\n")
    expect(page.locator("main")).to_contain_text("may name a file, a folder or a repository: ../../etc/passwd")
    expect(page.locator(".command code")).to_have_text("$ stoker submit trees.toml")
    drop(page, "trees.toml", TREES)
    page.get_by_role("button", name="submit 2 jobs…").click()
    page.get_by_role("dialog").get_by_role("button", name="submit 2 jobs").click()
    expect(page.locator("[role=gridcell]").get_by_text("trees/2")).to_be_visible()


def test_jobs_run_fail_and_are_cancelled_in_the_browser_and_a_link_logs_in(shell: Shell, browser: Browser):
    with ExitStack() as running:
        serving = running.enter_context(ended(shell.start("serve", "--listen", "127.0.0.1:0", "--json")))
        url = json.loads(_read_until(serving, "url")[-1])["url"]
        running.enter_context(ended(shell.start("work", "--name", "desk", "--slots", "2")))
        _submit(shell, "waits", "fails")
        opened = running.enter_context(ended(shell.start("ui", "--no-browser", "--json")))
        link = json.loads(_read_until(opened, "link")[-1])["link"]
        tab = Tab(browser)
        page = tab.open(link)
        expect(page.get_by_role("heading", name="Failed lately")).to_be_visible()
        expect(page.locator("main")).to_contain_text("ValueError")
        page.get_by_role("link", name="waits").first.click()
        expect(page.locator("h1")).to_have_text("waits")
        expect(page.locator(".jobhead .state")).to_contain_text("running")
        # Before the next heartbeat of its worker, 30 s later, which changes its row.
        expect(page.get_by_label("metric loss")).to_be_visible(timeout=20_000)
        page.get_by_role("tab", name="logs").click()
        expect(page.get_by_role("log")).to_contain_text("<b>loss=0.5</b>")
        page.get_by_role("button", name="cancel").click()
        expect(page.get_by_role("dialog")).to_contain_text("Cancel waits?")
        page.get_by_role("dialog").get_by_role("button", name="cancel the job").click()
        expect(page.locator(".jobhead .state")).to_contain_text("cancelled")
        for name in ("stages", "resources", "config", "code", "files", "explain", "model-card", "attempts"):
            page.get_by_role("tab", name=name).click()
            expect(page.get_by_text("loading…")).to_have_count(0)
            expect(page.get_by_role("alert")).to_have_count(0)
        _run_again(page, shell)
        page.get_by_role("button", name="drain desk").click()
        page.get_by_role("dialog").get_by_role("button", name="drain desk").click()
        expect(page.locator("main")).to_contain_text("drained")
        _see_machine(page)
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
