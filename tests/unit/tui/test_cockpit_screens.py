"""The cockpit in Textual's test terminal: what each key shows, at 80×24 and 200×50.

Screens are compared with tests/golden/cockpit/*.txt; STOKER_WRITE_GOLDEN=1 writes them again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from stoker.core.clock import FakeClock
from stoker.core.display_width import text_width
from stoker.core.errors import Forbidden, NoCoordinator
from stoker.tui.cockpit import CockpitApp
from stoker.tui.cockpit_state import CockpitState
from stoker.tui.controls import CockpitControls
from stoker.tui.requests import RequestThreads
from tests.fakes.monitor import NOON_S, MemoryMonitor, job, machine

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "cockpit.md"
GOLDEN = Path(__file__).parents[2] / "golden" / "cockpit"


class _QueuedRequests(RequestThreads):
    """Requests that a test carries out."""

    def start(self) -> None:
        """Start nothing."""


class Screen:
    """A cockpit of a size, with a fleet in memory and a clock that stands still."""

    def __init__(self, monitor: MemoryMonitor, *, is_read_only: bool = False, is_ascii: bool = False) -> None:
        self.monitor = monitor
        self.clock = FakeClock(NOON_S + 1000)
        state = CockpitState(is_read_only=is_read_only)
        self.controls = CockpitControls(monitor, self.clock, state, _QueuedRequests())
        # The test fetches: a thread would fetch at times of its own.
        self.controls.feed.start = lambda: None  # type: ignore[method-assign]
        self.app = CockpitApp(self.controls, is_ascii=is_ascii)
        self.pilot: Pilot[int] | None = None

    def run(self, act: Callable[[Screen], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
        async def acting() -> None:
            async with self.app.run_test(size=size) as pilot:
                self.pilot = pilot
                await self.fetch()
                await act(self)

        asyncio.run(acting())

    async def fetch(self) -> None:
        self.controls.feed.step()
        await self.settle()

    async def press(self, *keys: str) -> str:
        assert self.pilot is not None
        for key in keys:
            await self.pilot.press(key)
            await self.settle()
        return self.text

    async def type(self, text: str) -> str:
        """Type a word, and the rest as a terminal pastes it."""
        await self.press(text[0])
        self.app.post_message(events.Paste(text[1:]))
        await self.settle()
        return self.text

    async def settle(self) -> None:
        assert self.pilot is not None
        await self.pilot.pause()
        for _ in range(2):
            self.app.draw()
            self.controls.requests.run_queued()
        self.app.draw()

    @property
    def text(self) -> str:
        return self.app.shown_text()

    def check(self, name: str) -> None:
        lines = [f"{line}\n" for line in self.text.split("\n")]
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("STOKER_WRITE_GOLDEN"):
            path.write_text("".join(lines), encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "".join(lines)


def fleet() -> MemoryMonitor:
    why = "queue position {}: needs 6.0 GiB, 4.9 GiB are free on desk until 14:16; lab1 is cordoned (ECC errors)"
    monitor = MemoryMonitor(
        [
            job(1, step=63, of=100, metrics={"loss": 0.41}),
            job(2, name="模型/2", label="lr=0.1", machine="机器一号"),
            *(job(number, "pending", why=why.format(number - 2)) for number in range(3, 40)),
            job(40, "failed", why="ValueError: loss is nan", machine="lab1"),
            job(41, "completed", metrics={"val_loss": 0.25}),
        ],
        [machine("desk"), machine("lab1", "cordoned", why="ECC errors", held=0, jobs=())],
    )
    monitor.log_lines = [f"step {number} loss={2 / (number + 1):.4f}" for number in range(100)]
    return monitor


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    time.tzset()


def test_every_page_at_80_by_24() -> None:
    async def act(screen: Screen) -> None:
        screen.check("jobs-80x24")
        await screen.press("down", "enter")
        screen.check("curves-80x24")
        for key, name in (("2", "logs"), ("3", "stages"), ("4", "explain"), ("5", "config")):
            await screen.press(key)
            screen.check(f"{name}-80x24")
        await screen.press("q", "m")
        screen.check("machines-80x24")
        await screen.press("enter")
        screen.check("machine-80x24")
        await screen.press("question_mark")
        screen.check("help-80x24")

    Screen(fleet()).run(act)


def test_list_and_job_are_side_by_side_at_200_by_50() -> None:
    async def act(screen: Screen) -> None:
        await screen.press("down")
        screen.check("jobs-200x50")
        await screen.press("tab")
        assert "step 99 loss=0.0200" in screen.text
        await screen.press("m")
        screen.check("machines-200x50")

    Screen(fleet()).run(act, (200, 50))


def test_the_same_metric_of_several_stages_is_drawn_over_each_other() -> None:
    async def act(screen: Screen) -> None:
        screen.monitor.series_names = ("1.run: loss", "2.run: loss")
        text = await screen.press("down", "enter")
        assert "loss of 2 stages, best 0.12 at step 990 of 1.run" in text
        assert text.count("step ") < 4

    Screen(fleet()).run(act)


def test_without_unicode_everything_is_ascii() -> None:
    async def act(screen: Screen) -> None:
        assert screen.text.isascii()
        await screen.press("down", "enter")
        screen.check("curves-ascii-80x24")
        assert screen.text.isascii()

    Screen(fleet(), is_ascii=True).run(act)


@pytest.mark.parametrize("size", [(10, 4), (43, 11), (160, 12)])
def test_every_line_is_as_wide_as_the_screen_whatever_its_size(size: tuple[int, int]) -> None:
    async def act(screen: Screen) -> None:
        for keys in (("down",), ("enter",), ("l",), ("s",), ("q", "m"), ("enter",), ("q", "q", "question_mark")):
            await screen.press(*keys)
            lines = [screen.app._view.render_line(row) for row in range(size[1])]
            assert [text_width(line.text) for line in lines] == [size[0]] * size[1]

    hostile = job(7, name="a\x1b]0;x\x07b" * 9, label="模" * 200, why="\x1b[2J\r\nnext", machine="\u202eevil")
    monitor = MemoryMonitor([hostile, job(8, "failed", why="x" * 50_000)], [machine("\x9b31m" * 5)])
    monitor.log_lines = ["\x1b[31mred\x1b[0m", "x" * 4000, "模" * 3000]
    Screen(monitor).run(act, size)


def test_why_a_job_waits_is_asked_once_it_stays_selected() -> None:
    async def act(screen: Screen) -> None:
        await screen.press("down", "down", "down")
        assert screen.monitor.calls["explain"] == 0
        screen.clock.advance(0.6)
        await screen.settle()
        assert "why: pending, queue position 1; starts now if lab1 is opened" in screen.text
        screen.clock.advance(3)
        await screen.settle()
        assert screen.monitor.calls["explain"] == 1

    Screen(fleet()).run(act)


def test_a_filter_is_typed_applied_and_cleared() -> None:
    async def act(screen: Screen) -> None:
        await screen.press("slash")
        assert (await screen.type("state:failed")).endswith("\n/state:failed")
        await screen.press("enter")
        assert "jobs ▸ state:failed" in screen.text
        assert "1–1 of 1" in screen.text
        await screen.press("escape")
        assert "1–18 of 41" in screen.text
        await screen.press("slash")
        await screen.type("stat:x")
        assert "unknown filter 'stat'" in await screen.press("enter")
        await screen.press("slash")
        await screen.type("nothing-like-it")
        assert "no job matches nothing-like-it" in await screen.press("enter")

    Screen(fleet()).run(act)


def test_nothing_is_changed_without_a_yes() -> None:
    async def act(screen: Screen) -> None:
        assert "cancel resnet/1? y yes  n no" in await screen.press("down", "c")
        assert "not done: stoker cancel resnet/1" in await screen.press("enter")
        await screen.press("c", "n", "r", "escape", "m", "d", "q", "q")
        assert screen.monitor.done == []
        await screen.press("c", "y")
        assert screen.monitor.done == [("cancel", job(1).id)]
        await screen.press("p")
        await screen.type("7")
        assert "set the priority of resnet/1 to 7?" in await screen.press("enter")
        await screen.press("y")
        await screen.press("m", "down", "o", "y")
        assert screen.monitor.done[1:] == [("priority", job(1).id, 7), ("open", "lab1", None)]

    Screen(fleet()).run(act)


def test_read_only_refuses_and_names_the_command() -> None:
    async def act(screen: Screen) -> None:
        assert "read-only: nothing is changed; elsewhere: stoker cancel" in await screen.press("c")
        await screen.press("y")
        assert screen.monitor.done == []

    Screen(fleet(), is_read_only=True).run(act)


def test_a_refused_action_shows_why() -> None:
    async def act(screen: Screen) -> None:
        await screen.press("c")
        screen.monitor.trouble = Forbidden("role read may not cancel", hint="needs operate")
        assert "role read may not cancel; needs operate" in await screen.press("y")

    Screen(fleet()).run(act)


def test_a_lost_connection_shows_and_recovers() -> None:
    async def act(screen: Screen) -> None:
        screen.monitor.trouble = NoCoordinator("connection refused")
        await screen.fetch()
        screen.clock.advance(12)
        await screen.settle()
        assert "○ lost" in screen.text
        assert "connection lost 12 s ago, shown: 22:30:00, reconnect in 0 s: connection refused" in screen.text
        assert "resnet/1" in screen.text
        screen.monitor.trouble = None
        await screen.fetch()
        assert "● live" in screen.text
        assert "connection lost" not in screen.text

    Screen(fleet()).run(act)


def test_an_empty_list_names_the_command_that_fills_it() -> None:
    async def act(screen: Screen) -> None:
        assert "stoker submit manifest.toml" in screen.text
        assert "stoker machines invite" in await screen.press("m")
        assert "nothing is selected" in await screen.press("q", "c")

    Screen(MemoryMonitor()).run(act)


def test_a_job_that_vanished_says_so() -> None:
    async def act(screen: Screen) -> None:
        await screen.press("down", "enter")
        screen.monitor.change(gone=[job(1).id])
        await screen.fetch()
        assert "resnet/1: not found, perhaps deleted or pruned" in screen.text
        await screen.press("q", "colon")
        await screen.type("show nothing")
        assert "nothing: not found" in await screen.press("enter")

    Screen(fleet()).run(act)


def test_a_log_is_followed_until_it_is_scrolled_and_can_be_searched() -> None:
    async def act(screen: Screen) -> None:
        assert "step 99 " in await screen.press("down", "l")
        screen.monitor.log_lines.append("step 100 done")
        screen.clock.advance(2)
        await screen.settle()
        assert "step 100 done" in screen.text
        screen.monitor.log_unfinished = ["step 101: 20%"]
        screen.clock.advance(2)
        await screen.settle()
        assert "step 101: 20%" in screen.text
        screen.monitor.log_unfinished = []
        assert "not following" in await screen.press("up")
        screen.monitor.log_lines.append("step 101 more")
        screen.clock.advance(2)
        await screen.settle()
        assert "step 101" not in screen.text
        assert "step 101" in await screen.press("f")
        await screen.press("slash")
        await screen.type("LOSS=2.0")
        text = await screen.press("enter")
        assert "step 0 loss=2.0000" in text
        assert "1 lines hold 'LOSS=2.0'" in text
        assert "step 101" in await screen.press("escape")

    Screen(fleet()).run(act)


def test_the_cursor_stays_on_its_job_when_others_come() -> None:
    async def act(screen: Screen) -> None:
        await screen.press("down")
        screen.monitor.change(*(job(number) for number in range(100, 103)))
        await screen.fetch()
        assert "cancel resnet/1?" in await screen.press("c")

    Screen(fleet()).run(act)


def test_only_lines_that_changed_are_drawn_again() -> None:
    async def act(screen: Screen) -> None:
        assert screen.app.draw() == 0
        screen.monitor.change(job(1, step=64, of=100, metrics={"loss": 0.4}))
        screen.controls.feed.step()
        assert screen.app.draw() == 1

    Screen(fleet()).run(act)


def test_a_click_selects_and_a_second_one_opens() -> None:
    async def act(screen: Screen) -> None:
        assert screen.pilot is not None
        await screen.pilot.click(offset=(5, 3))
        await screen.settle()
        await screen.pilot.click(offset=(5, 3))
        await screen.settle()
        assert "job ▸ resnet/1" in screen.text

    Screen(fleet()).run(act)


@pytest.mark.parametrize("name", ["jobs-80x24", "curves-80x24", "machine-80x24"])
def test_the_guide_shows_what_is_drawn(name: str) -> None:
    assert f"```text\n{(GOLDEN / f'{name}.txt').read_text('utf-8')}```\n" in GUIDE.read_text("utf-8")
