"""The cockpit on a terminal: Textual reads keys and writes the lines that changed, at most four times a second.

Drawn with the Line API by one widget. A table widget that updates a hundred cells a second takes half of a core.
"""

from __future__ import annotations

import asyncio
import signal
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from stoker.core.display_width import text_width
from stoker.tui.controls import CockpitControls
from stoker.tui.frame import frame
from stoker.tui.styled_text import ScreenLook, StyledLine, line_text

_DRAW_EVERY_S = 0.25
_WHEEL_ROWS = 3
_COLOURS = frozenset({"red", "green", "yellow", "cyan"})


class FrameView(Widget):
    """Shows lines of styled text, and redraws those that differ from the ones before."""

    DEFAULT_CSS = "FrameView { width: 100%; height: 100%; background: ansi_default; color: ansi_default; }"
    can_focus = True

    def __init__(self, *, has_colour: bool) -> None:
        super().__init__()
        self._has_colour = has_colour
        self._lines: list[StyledLine] = []
        self._styles: dict[str, Style] = {}

    def show(self, lines: list[StyledLine]) -> int:
        """Show lines; return how many were drawn again."""
        before, self._lines = self._lines, lines
        if len(before) != len(lines):
            self.refresh()
            return len(lines)
        changed = [
            Region(*changed_columns(before[row], line, self.size.width), 1).translate((0, row))
            for row, line in enumerate(lines)
            if line != before[row]
        ]
        if changed:
            self.refresh(*changed)
        return len(changed)

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen."""
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        segments = [Segment(text, self._style(name)) for text, name in self._lines[y]]
        return Strip(segments).adjust_cell_length(self.size.width)

    def text(self) -> str:
        """Return everything that is shown, without styles."""
        return "\n".join(line_text(line).rstrip() for line in self._lines)

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            words = [word for word in name.split() if self._has_colour or word not in _COLOURS]
            style = self._styles[name] = Style.parse(" ".join(words))
        return style


def changed_columns(before: StyledLine, after: StyledLine, width: int) -> tuple[int, int, int]:
    """Return the first changed column of a line, 0, and the number of columns up to the last changed one."""
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    first = sum(text_width(text) for text, _ in after[:same])
    if len(before) != len(after):
        return first, 0, width - first
    end = len(after)
    while end > same and before[end - 1] == after[end - 1]:
        end -= 1
    last = sum(text_width(text) for text, _ in after[end:])
    is_same_width = sum(text_width(text) for text, _ in before[end:]) == last
    return first, 0, width - first - (last if is_same_width else 0)


class CockpitApp(App[int]):
    """The program on the terminal."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []
    CSS = "Screen { background: ansi_default; overflow: hidden; }"

    def __init__(
        self,
        controls: CockpitControls,
        *,
        has_colour: bool = True,
        is_ascii: bool = False,
        end_signals: tuple[signal.Signals, ...] = (),
    ) -> None:
        super().__init__(ansi_color=True)
        self._end_signals = end_signals
        self.controls = controls
        self._is_ascii = is_ascii
        self._view = FrameView(has_colour=has_colour)
        self._drawn: tuple[int, ...] = ()

    def compose(self) -> ComposeResult:
        """Return the only widget."""
        yield self._view

    def on_mount(self) -> None:
        """Start the threads and the drawing."""
        self._view.focus()
        self.app_resume_signal.subscribe(self, lambda _: self.draw_all())
        for number in self._end_signals:
            # The terminal is restored before the process ends.
            asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + signal.SIGTERM)
        self.controls.requests.start()
        self.controls.feed.start()
        self.set_interval(_DRAW_EVERY_S, self.draw_if_changed)
        self.draw()

    def draw_if_changed(self) -> None:
        """Draw unless nothing changed since the last time; times on the screen change every second."""
        controls = self.controls
        if controls.is_over:
            self.exit(0)
            return
        versions = (
            controls.feed.data.version,
            controls.job_feed.data.version,
            controls.machine_feed.data.version,
            controls.state.version,
            int(controls.clock.wall_s()),
        )
        if versions != self._drawn:
            self._drawn = versions
            self.draw()

    def draw(self) -> int:
        """Draw the screen; return how many lines changed."""
        controls, size = self.controls, self.size
        controls.columns, controls.rows = size.width, size.height
        controls.sync()
        now_s = controls.clock.wall_s() + controls.feed.data.offset_s
        look = ScreenLook(columns=size.width, rows=size.height, now_s=now_s, is_ascii=self._is_ascii)
        return self._view.show(frame(controls, look))

    def draw_all(self) -> None:
        """Draw every line again: something else wrote to the terminal."""
        self.draw()
        self.screen.refresh(layout=True)

    def shown_text(self) -> str:
        """Return the screen as text."""
        return self._view.text()

    def on_key(self, event: events.Key) -> None:
        """Perform a key and draw at once."""
        event.stop()
        event.prevent_default()
        if event.key == "ctrl+z":
            self.action_suspend_process()
            return
        if event.key == "ctrl+l":
            self.draw_all()
            return
        self.controls.on_key(event.key, event.character)
        self._draw_or_exit()

    async def action_quit(self) -> None:
        """Leave; jobs continue."""
        self.exit(0)

    def on_paste(self, event: events.Paste) -> None:
        """Insert into the open prompt."""
        self.controls.on_paste(event.text)
        self._draw_or_exit()

    def on_click(self, event: events.Click) -> None:
        """Select or open a row."""
        self.controls.on_click(event.screen_y)
        self._draw_or_exit()

    def on_mouse_scroll_down(self, _event: events.MouseScrollDown) -> None:
        """Move down."""
        self.controls.on_scroll(_WHEEL_ROWS)
        self._draw_or_exit()

    def on_mouse_scroll_up(self, _event: events.MouseScrollUp) -> None:
        """Move up."""
        self.controls.on_scroll(-_WHEEL_ROWS)
        self._draw_or_exit()

    def on_resize(self, _event: events.Resize) -> None:
        """Draw in the new size."""
        self.call_after_refresh(self.draw)

    def on_unmount(self) -> None:
        """Stop the threads."""
        self.controls.feed.close()
        self.controls.requests.close()

    def _draw_or_exit(self) -> None:
        if self.controls.is_over:
            self.exit(0)
        else:
            self.draw()


def run_cockpit(controls: CockpitControls, *, has_colour: bool, is_ascii: bool, has_mouse: bool) -> int:
    """Show the cockpit until it is left; return the exit code."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    app = CockpitApp(controls, has_colour=has_colour, is_ascii=is_ascii, end_signals=ends)
    code = app.run(mouse=has_mouse)
    return app.return_code or 0 if code is None else code
