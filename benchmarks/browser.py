"""A browser to measure pages with: Debian's Chromium under Playwright.

What is measured is the browser's own: times of paint, processor time of scripts in each frame, memory after a garbage
collection, bytes of responses, and when something was drawn. Each tab begins with an empty cache.

`ScriptDuration` of `Performance.getMetrics` leaves out microtasks, in which pages made with promises do nearly all
their work; frames are therefore taken from a trace. Times of threads in it are processor time, which a busy machine
does not stretch.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet import Coordinator
    from playwright.sync_api import Browser

PATIENCE_MS = 60_000
SIZE = (1280, 860)
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--mute-audio",
)
_CATEGORIES = ("-*", "devtools.timeline", "disabled-by-default-devtools.timeline", "v8", "v8.execute")
_TASKS = frozenset({"RunTask", "ThreadControllerImpl::RunTask"})
_SCRIPTS = frozenset(
    {"EvaluateScript", "FunctionCall", "MajorGC", "MinorGC", "RunMicrotasks", "v8.callFunction", "v8.compile", "v8.run"}
)


def missing() -> str:
    """Return why there is no browser; empty if there is one."""
    if shutil.which("chromium") is None:
        return "chromium is not installed"
    try:
        metadata.version("playwright")
    except metadata.PackageNotFoundError:
        return "playwright is not installed"
    return ""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """What the main thread of a page did while it was traced."""

    scripts_s: Sequence[float]
    """Processor time of scripts in each frame, and of garbage collections."""
    longest_task_s: float
    """Processor time of the longest task, of scripts, style, layout and all else."""


class MeasuredTab:
    """One page in a browser, and what it takes."""

    def __init__(self, browser: Browser, script: str = "") -> None:
        """Open an empty page; `script` runs first in every document."""
        self._browser = browser
        self.context = browser.new_context(viewport={"width": SIZE[0], "height": SIZE[1]})
        self.context.set_default_timeout(PATIENCE_MS)
        if script:
            self.context.add_init_script(script)
        self.page = self.context.new_page()
        self._cdp = self.context.new_cdp_session(self.page)
        self._cdp.send("Network.enable")
        self._cdp.on("Network.loadingFinished", self._on_loaded)
        self.received_bytes = 0
        """Of responses that are complete, as sent: compressed, with heads."""

    def close(self) -> None:
        self.context.close()

    def first_paint_s(self) -> float:
        """Return the first contentful paint, counted from the navigation."""
        entry = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        self.page.wait_for_function(f"{entry} !== null")
        return float(self.page.evaluate(entry)) / 1000

    def shown_s(self, mark: str) -> float:
        """Wait for an element that has been drawn; return the time since the navigation."""
        code = f"""new Promise((resolve) => {{
          const channel = new MessageChannel();
          channel.port1.onmessage = () => resolve(performance.now());
          const look = () => {{
            if (document.querySelector({json.dumps(mark)})) channel.port2.postMessage(0);
            else requestAnimationFrame(look);
          }};
          requestAnimationFrame(look);
        }})"""
        return float(self.page.evaluate(code)) / 1000

    @contextmanager
    def traced(self) -> Iterator[list[Frames]]:
        """Trace the page; the list gets its frames at the end of the block."""
        frames: list[Frames] = []
        self._browser.start_tracing(page=self.page, categories=list(_CATEGORIES))
        yield frames
        frames.append(_frames_of(json.loads(self._browser.stop_tracing())["traceEvents"]))

    def heap_bytes(self) -> int:
        """Return what scripts hold after a garbage collection."""
        for _ in range(2):
            self._cdp.send("HeapProfiler.collectGarbage")
        return int(self._cdp.send("Runtime.getHeapUsage")["usedSize"])

    def rss_bytes(self) -> int:
        """Return the resident memory of the largest process of pages, program included."""
        session = self._browser.new_browser_cdp_session()
        found = session.send("SystemInfo.getProcessInfo")["processInfo"]
        session.detach()
        return max(_rss_bytes(one["id"]) for one in found if one["type"] == "renderer")

    def _on_loaded(self, event: dict[str, Any]) -> None:
        self.received_bytes += int(event["encodedDataLength"])


def log_in(tab: MeasuredTab, coordinator: Coordinator) -> None:
    """Give a tab a session of the operator, as the log-in page does."""
    headers = {"Origin": coordinator.url, "X-Stoker-Page": "1"}
    token = coordinator.token.read_text().strip()
    reply = tab.context.request.post(f"{coordinator.url}/v1/sessions", data={"token": token}, headers=headers)
    if not reply.ok:
        raise RuntimeError(f"the log-in was refused with {reply.status}")
    # An empty page has no place for the key.
    key = json.dumps(reply.json()["key"])
    tab.context.add_init_script(f"if (location.port) localStorage.setItem('stoker-page /', {key})")


def _frames_of(events: Sequence[dict[str, Any]]) -> Frames:
    """Return the frames of the main thread that ran the most scripts."""
    spent: dict[tuple[int, int], float] = {}
    for event in events:
        if event.get("name") in _SCRIPTS and event.get("ph") == "X":
            thread = (event["pid"], event["tid"])
            spent[thread] = spent.get(thread, 0.0) + event.get("tdur", 0)
    main = max(spent, key=spent.__getitem__)
    own = [event for event in events if (event["pid"], event["tid"]) == main]
    begins = sorted(event["ts"] for event in own if event["name"] == "AnimationFrame" and event["ph"] == "b")
    each = [0.0] * (len(begins) + 1)
    for event in _outermost(own, _SCRIPTS):
        each[bisect_right(begins, event["ts"])] += event.get("tdur", 0) / 1e6
    tasks = [event.get("tdur", 0) / 1e6 for event in own if event["name"] in _TASKS and event["ph"] == "X"]
    return Frames(scripts_s=each[1:], longest_task_s=max(tasks, default=0.0))


def _outermost(events: Sequence[dict[str, Any]], names: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Return the events of some names that are not inside another one of them."""
    end = float("-inf")
    for event in sorted(
        (event for event in events if event["name"] in names and event["ph"] == "X"),
        key=lambda event: (event["ts"], -event.get("dur", 0)),
    ):
        if event["ts"] >= end:
            end = event["ts"] + event.get("dur", 0)
            yield event


def _rss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)
