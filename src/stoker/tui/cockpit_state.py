"""Where the cockpit is: page, selected rows, open prompt, question and message. No drawing, no requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stoker.protocol.view_messages import JobView, MachineView
from stoker.tui.typed_commands import TABS, CockpitAction, Selected

_MOST_TYPED = 500


class ListCursor:
    """The selected row of a list and the part of the list that is shown; it stays with its row when others come."""

    def __init__(self) -> None:
        self.index = 0
        self.top = 0
        self.key = ""
        """Identifies the selected row; empty: always the first."""

    def follow(self, keys: Sequence[str], height: int) -> None:
        """Find the selected row again in a changed list."""
        if not self.key or not keys:
            self.index = self.top = 0
            return
        if self.index >= len(keys) or keys[self.index] != self.key:
            try:
                found = keys.index(self.key)
            except ValueError:
                # It is gone: the row in its place is selected.
                found = min(self.index, len(keys) - 1)
                self.key = keys[found]
            self.top += found - self.index
            self.index = found
        self.top = max(0, min(self.top, len(keys) - height))
        self.top = min(max(self.top, self.index - height + 1), self.index)

    def move(self, step: int, keys: Sequence[str]) -> None:
        """Select another row."""
        if keys:
            self.index = min(max(self.index + step, 0), len(keys) - 1)
            self.key = keys[self.index]


class Prompt:
    """A line that is being typed: a filter, a command, or a text to search."""

    def __init__(self, kind: str, text: str = "") -> None:
        self.kind = kind
        """`/` for a filter or a search, `:` for a command."""
        self.text = text
        self.at = len(text)

    def insert(self, text: str) -> None:
        """Insert typed or pasted text; line breaks and control characters are left out."""
        clean = "".join(char for char in text if char.isprintable())[: _MOST_TYPED - len(self.text)]
        self.text = f"{self.text[: self.at]}{clean}{self.text[self.at :]}"
        self.at += len(clean)

    def edit(self, key: str) -> bool:
        """Perform an editing key; return False if it is none."""
        if key == "backspace" and self.at:
            self.text, self.at = self.text[: self.at - 1] + self.text[self.at :], self.at - 1
        elif key == "delete":
            self.text = self.text[: self.at] + self.text[self.at + 1 :]
        elif key == "ctrl+u":
            self.text, self.at = self.text[self.at :], 0
        elif key == "ctrl+w":
            kept = self.text[: self.at].rstrip().rpartition(" ")
            before = kept[0] + kept[1]
            self.text, self.at = before + self.text[self.at :], len(before)
        elif key in ("left", "right"):
            self.at = min(max(self.at + (1 if key == "right" else -1), 0), len(self.text))
        elif key in ("home", "ctrl+a"):
            self.at = 0
        elif key in ("end", "ctrl+e"):
            self.at = len(self.text)
        else:
            return key == "backspace"
        return True


class CockpitState:
    """The state of the screen."""

    def __init__(self, *, is_read_only: bool = False, message: str = "") -> None:
        self.is_read_only = is_read_only
        self.page = "jobs"
        """`jobs`, `machines`, `job` or `machine`."""
        self.before = "jobs"
        """The page behind an open job."""
        self.is_help = False
        self.filter = ""
        self.jobs = ListCursor()
        self.machines = ListCursor()
        self.ref = ""
        """The open job."""
        self.machine = ""
        """The open machine."""
        self.tab = TABS[0]
        self.scroll = 0
        """Lines above the first that is shown, in the open tab."""
        self.column = 0
        """Columns left of the first that is shown, in logs."""
        self.is_following = True
        """The end of the log stays in view."""
        self.log_start: int | None = None
        """Number of the first line of the log that was held when it was drawn last."""
        self.search = ""
        self.prompt: Prompt | None = None
        self.question: CockpitAction | None = None
        self.message = message
        self.is_error = False
        self.version = 0
        """Grows with every change."""

    def say(self, text: str, *, is_error: bool = False) -> None:
        """Show a message until the next key."""
        self.message, self.is_error = text, is_error
        self.version += 1

    def open_job(self, ref: str, tab: str = "") -> None:
        """Show one job."""
        if self.page != "job":
            self.before = self.page
        self.page = "job"
        self.show_tab(tab or self.tab, is_new=ref != self.ref)
        self.ref = ref

    def open_machine(self, name: str) -> None:
        """Show one machine."""
        self.page, self.machine, self.scroll = "machine", name, 0

    def show_tab(self, tab: str, *, is_new: bool = False) -> None:
        """Show another tab, from its beginning; of the log the end."""
        if tab != self.tab or is_new:
            self.scroll = self.column = 0
            self.is_following, self.search, self.log_start = True, "", None
        self.tab = tab

    def next_tab(self, step: int) -> None:
        """Show the tab beside the open one."""
        self.show_tab(TABS[(TABS.index(self.tab) + step) % len(TABS)])

    def window(self, total: int, height: int) -> int:
        """Return the first of `total` lines to show in `height` rows; the scroll position is kept within them."""
        last = max(0, total - height)
        is_log = self.tab == "logs" and self.page != "machine"
        if is_log and self.scroll > last:
            # Scrolling past the end follows it again.
            self.is_following = True
        self.scroll = last if is_log and self.is_following else min(self.scroll, last)
        return self.scroll

    def keep_log_place(self, numbers: Sequence[int]) -> None:
        """Show the same lines after older ones were added before them; `numbers` are those of all held lines."""
        if numbers and self.log_start is not None and not self.is_following:
            self.scroll += bisect_left(numbers, self.log_start)
        self.log_start = numbers[0] if numbers else None

    def close_job(self) -> None:
        """Return to the list."""
        self.page = self.before

    def selected(self, rows: Sequence[JobView], machines: Sequence[MachineView], view: JobView | None) -> Selected:
        """Return what a command without a name means; `view` is the open job."""
        job = view if self.page == "job" else rows[self.jobs.index] if self.jobs.index < len(rows) else None
        if self.page in ("machines", "machine"):
            job = None
        machine = self.machine if self.page == "machine" else ""
        if self.page == "machines" and self.machines.index < len(machines):
            machine = machines[self.machines.index].name
        return Selected(job=job.name if job is not None else "", ref=job.id if job is not None else "", machine=machine)
