"""How soon and how smoothly do the pages show a fleet of 10,000 jobs, 500 machines and 100 events a second?

A coordinator on SQLite, filled by submissions; simulated workers and an operator change its jobs all the time
(`sides/screens_events.py`). Debian's Chromium opens the coordinator's own pages.

- First paint is the browser's own entry, and beside it the time until the page's data is on the screen, from the
  navigation, with an empty cache and with what a browser keeps.
- An event is on the screen with the first frame that shows its row or a later one of the same row: from the time in
  the event to the end of that frame. The browser's clock is the coordinator's.
- While a wheel turns over the table of jobs: processor time of scripts and garbage collections in each frame.
- Then 100,000 jobs: the same, and the time until rows are shown after a jump to any place.
- Memory after a garbage collection: that of scripts, and the resident memory of the tab's process, a third of which is
  the browser's own program.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import browser as browsers
import fleet
import harness
import screens_scene
from browser import Frames, MeasuredTab
from fleet import Coordinator
from harness import Benchmark, Figure, Row
from peers import Installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

JOBS, ENDED, MACHINES, PER_S = 10_000, 2_000, 500, 100.0
MANY_JOBS = 100_000
FEWEST_CHANGES, PATIENCE_S = 5, 20.0
"""The measuring does not end before so many changes are on the screen, or so long after its time."""
WATCHED = 15
"""Jobs on the screen whose priority changes."""
LOADS = 7
LIVE_S, WHEEL_S, JUMPS = 30.0, 10.0, 30
WHEELS_PER_S = 60
WHEEL_PX = 240
"""Seven rows a frame: 14,400 pixels a second."""
PAINT_S, EVENT_S, SCRIPT_S, MEMORY_BYTES, HITCH_S, JUMP_S = 1.0, 0.3, 0.008, 200e6, 0.05, 0.3
PAGES = {
    "overview": ("#/", ".numbers li"),
    "jobs": ("#/jobs", ".vrow .c-name a"),
    "machines": ("#/machines", ".machines section"),
}
_TABLE = ".vtable"
_LATE_S = 5.0
_SETTLED_S = 0.3

SEEN = """
{
  const seen = {};
  const channel = new MessageChannel();
  let isDue = false;
  let first = 0;
  // A message that is posted in an animation frame arrives once that frame is done.
  channel.port1.onmessage = () => {
    isDue = false;
    const at = performance.timeOrigin + performance.now();
    for (const row of document.querySelectorAll('.vrow')) {
      const name = row.querySelector('.c-name a')?.textContent;
      seen[`${name} ${row.querySelector('.c-prio')?.textContent}`] ??= at / 1000;
    }
    first ||= Object.keys(seen).length;
  };
  const observer = new MutationObserver(() => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => channel.port2.postMessage(0));
  });
  observer.observe(document, { subtree: true, childList: true, characterData: true });
  window.changesSeen = () => Object.keys(seen).length - first;
  window.stopSeeing = () => {
    observer.disconnect();
    return seen;
  };
}
"""


def main() -> int:
    bench = harness.start("screens_browser", __doc__.splitlines()[0])
    peer, missing = bench.peer("stoker"), browsers.missing()
    if missing or not isinstance(peer, Installed):
        why = missing or getattr(peer, "reason", "")
        bench.rows.append(Row(question="first paint", against="1 s", ours=None, theirs=None, why_missing=why))
        return bench.finish()
    jobs, ended, machines, per_s = (60, 5, 4, 20.0) if bench.quick else (JOBS, ENDED, MACHINES, PER_S)
    with fleet.serving(peer, bench.home("fleet")) as coordinator, browsers.chromium() as browser:
        bench.versions["chromium"] = browser.version
        screens_scene.fill(peer, coordinator, jobs=jobs, cycles=ended, workers=min(50, machines))
        shown = coordinator.get(f"/v1/jobs?limit={WATCHED}")["jobs"]
        watched = {job["id"]: job["name"] for job in shown}
        with screens_scene.changing(
            peer, coordinator, workers=machines, events_per_s=per_s, watched=list(watched)
        ) as pace:
            used_s, began_s = coordinator.cpu_s(), time.monotonic()
            paints(bench, browser, coordinator)
            with opened(browser, coordinator, SEEN) as tab:
                tab.page.wait_for_timeout(1000 * (0.5 if bench.quick else LIVE_S))
                wait_for_changes(tab)
                seen: dict[str, float] = tab.page.evaluate("window.stopSeeing()")
                left_s = time.time()
                scrolling(bench, tab, f"{jobs:,} jobs")
                memory(bench, tab, f"{jobs:,} jobs")
            share = (coordinator.cpu_s() - used_s) / (time.monotonic() - began_s)
        delays(bench, pace.changed, watched, seen, left_s)
        rate = pace.events / pace.seconds
        bench.notes.append(f"{rate:.0f} events/s; all of it took {100 * share:.0f} % of a core in the coordinator.")
        if not bench.quick:
            many(bench, peer, browser, coordinator, jobs)
    return bench.finish()


def paints(bench: Benchmark, browser: Browser, coordinator: Coordinator) -> None:
    """Time from a navigation to the first paint and to the page's data."""
    for name, (place, mark) in list(PAGES.items())[: 1 if bench.quick else None]:
        first, again, data = [], [], []
        for _ in range(1 if bench.quick else LOADS):
            with logged_in(browser, coordinator) as tab:
                tab.page.goto(f"{coordinator.url}/{place}", wait_until="commit")
                data.append(tab.shown_s(mark))
                first.append(tab.first_paint_s())
                if bench.quick:
                    continue
                tab.page.goto("about:blank")
                tab.page.goto(f"{coordinator.url}/{place}", wait_until="commit")
                again.append(tab.shown_s(mark))
        _add(bench, f"first contentful paint of {name}, empty cache, median", statistics.median(first), PAINT_S, "1 s")
        _add(bench, f"data of {name} on the screen, empty cache, median", statistics.median(data), PAINT_S, "1 s")
        if again:
            _add(bench, "the same, with the browser's cache, median", statistics.median(again), PAINT_S, "1 s")


def wait_for_changes(tab: MeasuredTab) -> None:
    """Wait until a few changes are on the screen and old enough to be judged."""
    until_s = time.monotonic() + PATIENCE_S
    while tab.page.evaluate("window.changesSeen()") < FEWEST_CHANGES and time.monotonic() < until_s:
        tab.page.wait_for_timeout(50)
    tab.page.wait_for_timeout(1000 * _SETTLED_S)


def delays(
    bench: Benchmark,
    changed: dict[str, dict[str, float]],
    watched: dict[str, str],
    seen: dict[str, float],
    left_s: float,
) -> None:
    """Time from an event to the frame that shows it or what came after it."""
    took = []
    first_s = min(seen.values(), default=left_s)
    shown: dict[str, list[tuple[int, float]]] = {}
    for key, at_s in seen.items():
        name, _, priority = key.rpartition(" ")
        if priority.isdigit():
            shown.setdefault(name, []).append((int(priority), at_s))
    for job, priorities in changed.items():
        rows = sorted(shown.get(watched[job], ()))
        for priority, happened_s in priorities.items():
            # Only what happened while the page was open, and long enough before its end.
            if first_s < happened_s < left_s - (_SETTLED_S if bench.quick else _LATE_S):
                found = next((at_s for number, at_s in rows if number >= int(priority)), happened_s + _LATE_S)
                took.append(found - happened_s)
    took.sort()
    if not took:
        why = f"no change of the jobs on the screen was shown within {PATIENCE_S:.0f} s"
        bench.rows.append(Row(question="event → screen", against="300 ms", ours=None, theirs=None, why_missing=why))
        return
    for words, part in (("p50", 50), ("p99", 99)):
        _add(bench, f"event → screen, {words} of {len(took):,}", took[len(took) * part // 100], EVENT_S, "300 ms")


def scrolling(bench: Benchmark, tab: MeasuredTab, words: str) -> None:
    """Processor time of scripts in each frame while the table is scrolled."""
    tab.page.locator(_TABLE).hover()
    with tab.traced() as traced:
        turn_wheel(tab, 0.3 if bench.quick else WHEEL_S)
    frames: Frames = traced[0]
    spent = sorted(frames.scripts_s)
    p99 = spent[len(spent) * 99 // 100]
    _add(bench, f"scripts in a frame while scrolling, {words}: p99 of {len(spent):,}", p99, SCRIPT_S, "8 ms")
    _add(bench, f"longest task while scrolling, {words}", frames.longest_task_s, HITCH_S, "50 ms")


def turn_wheel(tab: MeasuredTab, seconds: float) -> None:
    began_s = time.monotonic()
    for number in range(int(seconds * WHEELS_PER_S)):
        tab.page.mouse.wheel(0, WHEEL_PX)
        tab.page.wait_for_timeout(1000 * max(0.0, began_s + (number + 1) / WHEELS_PER_S - time.monotonic()))


def memory(bench: Benchmark, tab: MeasuredTab, words: str) -> None:
    """Memory of scripts and of the process."""
    heap = float(tab.heap_bytes())
    _add(bench, f"memory of scripts after scrolling, {words}", heap, MEMORY_BYTES, "200 MB", unit="bytes")
    rss = float(tab.rss_bytes())
    _add(bench, f"resident memory of the tab after scrolling, {words}", rss, MEMORY_BYTES, "200 MB", unit="bytes")


def many(bench: Benchmark, peer: Installed, browser: Browser, coordinator: Coordinator, jobs: int) -> None:
    """The table with 100,000 jobs."""
    bench.say(f"submitting {MANY_JOBS - jobs:,} jobs")
    more = MANY_JOBS - jobs
    screens_scene.fill(peer, coordinator, jobs=more, cycles=1, workers=1, first=jobs)
    with (
        screens_scene.changing(peer, coordinator, workers=MACHINES, events_per_s=PER_S),
        opened(browser, coordinator) as tab,
    ):
        words = f"{MANY_JOBS:,} jobs"
        scrolling(bench, tab, words)
        with tab.traced() as traced:
            took = sorted(jumps(tab))
        p95 = took[len(took) * 95 // 100]
        _add(bench, f"jump to any place → rows shown, {words}: p95 of {len(took)}", p95, JUMP_S, "300 ms")
        _add(bench, f"longest task while jumping, {words}", traced[0].longest_task_s, HITCH_S, "50 ms")
        memory(bench, tab, words)


def jumps(tab: MeasuredTab) -> Iterator[float]:
    """Jump to places all over the table; yield the time until every row in view has its name."""
    chance = random.Random(5)
    for _ in range(JUMPS):
        yield float(tab.page.evaluate(_JUMP, chance.random()))


_JUMP = """part => new Promise((resolve) => {
  const box = document.querySelector('.vtable');
  const began = performance.now();
  box.scrollTop = part * (box.scrollHeight - box.clientHeight);
  const look = () => {
    const { top, bottom } = box.getBoundingClientRect();
    const rows = [...box.querySelectorAll('.vrow')].map((row) => [row, row.getBoundingClientRect()])
      .filter(([, at]) => at.bottom > top + 40 && at.top < bottom);
    const isShown = rows.length > 5 && rows.every(([row]) => row.querySelector('.c-name a'));
    if (isShown) resolve((performance.now() - began) / 1000);
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""


@contextmanager
def logged_in(browser: Browser, coordinator: Coordinator, script: str = "") -> Iterator[MeasuredTab]:
    """Open a tab with a session of the operator."""
    tab = MeasuredTab(browser, script)
    try:
        browsers.log_in(tab, coordinator)
        yield tab
    finally:
        tab.close()


@contextmanager
def opened(browser: Browser, coordinator: Coordinator, script: str = "") -> Iterator[MeasuredTab]:
    """Open the table of jobs."""
    with logged_in(browser, coordinator, script) as tab:
        place, mark = PAGES["jobs"]
        tab.page.goto(f"{coordinator.url}/{place}")
        tab.page.locator(mark).first.wait_for()
        tab.page.locator(".connection-live").wait_for()
        yield tab


def _add(bench: Benchmark, question: str, value: float, goal: float, words: str, *, unit: str = "s") -> None:
    most = None if bench.quick else 1.0
    ours, theirs = Figure.of([value]), Figure.of([goal])
    bench.rows.append(Row(question=question, against=words, unit=unit, ours=ours, theirs=theirs, at_most=most))


if __name__ == "__main__":
    sys.exit(main())
