"""What each key does: moves, pages, prompts, and actions after a question. Nothing here waits for a request."""

from __future__ import annotations

from stoker.api.monitor import JobQuery, Monitor
from stoker.core.clock import Clock
from stoker.core.errors import Usage
from stoker.core.text import one_line
from stoker.protocol.view_messages import JobView
from stoker.tui.cockpit_state import CockpitState, ListCursor, Prompt
from stoker.tui.feed import CockpitFeed
from stoker.tui.job_feed import JobFeed
from stoker.tui.job_filter import filter_text, parse_filter
from stoker.tui.machine_feed import MachineFeed
from stoker.tui.requests import RequestThreads, failure_text
from stoker.tui.typed_commands import TABS, CockpitAction, GoTo, Quit, SetFilter, parse_command

WIDE_COLUMNS = 160
"""From this width on, the list and the selected job are shown side by side."""
_AHEAD_ROWS = 100
_SIDE_STEP = 20
_MESSAGE_S = 10.0
_STAYS_S = 0.5
"""Before it is asked why a selected job waits: nobody reads that while scrolling."""

_MOVES = {"down": 1, "j": 1, "up": -1, "k": -1, "home": -(10**9), "g": -(10**9), "end": 10**9, "G": 10**9}
_JOB_KEYS = {"c": "cancel", "r": "requeue"}
_MACHINE_KEYS = {"d": "drain", "o": "open", "x": "cordon"}
_TAB_KEYS = {"l": "logs", "e": "explain", "s": "stages", **{str(at): tab for at, tab in enumerate(TABS, 1)}}


class CockpitControls:
    """The cockpit without a terminal: takes keys, and holds state and data for the frame."""

    def __init__(
        self,
        monitor: Monitor,
        clock: Clock,
        state: CockpitState,
        requests: RequestThreads,
        query: JobQuery | None = None,
    ) -> None:
        self.monitor = monitor
        self.clock = clock
        self.state = state
        self.requests = requests
        self.feed = CockpitFeed(monitor, clock, requests, query or JobQuery())
        self.job_feed = JobFeed(monitor, clock, requests)
        self.machine_feed = MachineFeed(monitor, clock, requests)
        self.columns, self.rows = 80, 24
        self.is_over = False
        self._actions = 0
        self._shown_message, self._shown_s = "", 0.0
        self._selected_id, self._selected_s = "", 0.0

    @property
    def is_wide(self) -> bool:
        """True if the selected job is shown beside the list."""
        return self.columns >= WIDE_COLUMNS

    @property
    def list_rows(self) -> int:
        """Number of rows of the list on the screen."""
        return max(1, self.rows - 6)

    def sync(self) -> None:
        """Bring cursors up to date with the data, and request what the screen shows."""
        data, state = self.feed.data, self.state
        self._forget_message()
        state.jobs.follow([view.id for view in data.rows], self.list_rows)
        state.machines.follow([machine.name for machine in data.machines], self.list_rows)
        if state.page == "jobs":
            self.feed.want_rows(state.jobs.top + self.list_rows + _AHEAD_ROWS)
        if state.page == "job":
            row = next((view for view in data.rows if state.ref in (view.id, view.name)), None)
            self.job_feed.open(state.ref, row)
            if self.feed.is_gone(state.ref):
                self.job_feed.mark_missing()
            else:
                self.job_feed.refresh(state.tab)
        elif state.page == "jobs" and data.rows:
            self._sync_selected(data.rows[state.jobs.index])
        elif state.page in ("machines", "machine"):
            self._sync_machine()

    def _sync_selected(self, row: JobView) -> None:
        """Request what is shown of the selected job: beside a wide list everything, below a list why it waits."""
        now_s = self.clock.monotonic_s()
        if row.id != self._selected_id:
            self._selected_id, self._selected_s = row.id, now_s
        is_waiting = row.state == "pending" and now_s - self._selected_s >= _STAYS_S
        if self.is_wide or is_waiting:
            self.job_feed.open(row.id, row)
        if self.is_wide:
            self.job_feed.refresh(self.state.tab)
        if is_waiting:
            self.job_feed.refresh("explain")

    def _sync_machine(self) -> None:
        """Request what the pages of machines show: rows, and telemetry of the machine that is shown."""
        data, state = self.feed.data, self.state
        self.feed.want_machines()
        name = state.machine
        if state.page == "machines":
            name = data.machines[state.machines.index].name if data.machines and self.is_wide else ""
        self.machine_feed.open(name)
        self.machine_feed.refresh()

    def _forget_message(self) -> None:
        """Remove a message that was shown for long enough."""
        state, now_s = self.state, self.clock.monotonic_s()
        if state.message != self._shown_message:
            self._shown_message, self._shown_s = state.message, now_s
        elif state.message and now_s - self._shown_s > _MESSAGE_S:
            state.message, state.is_error = "", False

    def on_key(self, key: str, char: str | None = None) -> None:
        """Perform a key: its name, and the character that it types."""
        state = self.state
        state.version += 1
        state.message, state.is_error = "", False
        if key == "ctrl+c":
            self.is_over = True
        elif state.question is not None:
            self._answer(state.question, key)
        elif state.prompt is not None:
            self._type(state.prompt, key, char)
        elif state.is_help:
            state.is_help = False
        else:
            # `?`, `/`, `:` and capital letters have long names; the character is what a person pressed.
            self._command_key(char if char and char.isprintable() and char != " " else key)

    def on_paste(self, text: str) -> None:
        """Insert pasted text into the open prompt; elsewhere it does nothing."""
        if self.state.prompt is not None:
            self.state.prompt.insert(text)
            self.state.version += 1

    def on_click(self, row: int) -> None:
        """Select the row of a list; a second click opens it."""
        state = self.state
        cursor = self._cursor()
        if cursor is None or state.question is not None or state.prompt is not None or state.is_help:
            return
        at = cursor.top + row - 2
        if 0 <= row - 2 < self.list_rows and at < len(self._keys()):
            if at == cursor.index and cursor.key:
                self._open_selected(state.tab) if state.page == "jobs" else self._open_selected_machine()
            else:
                cursor.move(at - cursor.index, self._keys())
            state.version += 1

    def on_scroll(self, step: int) -> None:
        """Move by the wheel of a mouse."""
        if self.state.question is None and self.state.prompt is None:
            self._move(step)
            self.state.version += 1

    # Keys outside of prompts.

    def _command_key(self, key: str) -> None:
        state = self.state
        if key in ("q", "escape"):
            self._back(key)
        elif key == "?":
            state.is_help = True
        elif key == ":":
            state.prompt = Prompt(":")
        elif key == "/":
            is_log = state.page == "job" and state.tab == "logs"
            state.prompt = Prompt("/", state.search if is_log else state.filter)
            if state.page in ("machines", "machine") or (state.page == "job" and not is_log):
                state.prompt = None
                state.say("/ filters jobs, and searches in logs")
        elif key in _MOVES:
            self._move(_MOVES[key])
        elif key in ("pagedown", "pageup", "ctrl+f", "ctrl+b"):
            self._move((self.list_rows - 1) * (1 if key in ("pagedown", "ctrl+f") else -1))
        elif state.page in ("machines", "machine"):
            self._machine_key(key)
        else:
            self._job_key(key)

    def _back(self, key: str) -> None:
        state = self.state
        if state.page == "job":
            if key == "escape" and state.search:
                self._set_search("")
            else:
                state.close_job()
        elif state.page == "machine":
            state.page = "machines"
        elif state.page == "machines":
            state.page = "jobs"
        elif key == "q":
            self.is_over = True
        elif state.filter:
            self._set_filter("")

    def _machine_key(self, key: str) -> None:
        if key in ("m", "tab"):
            self.state.page = "jobs"
        elif key == "enter" and self.state.page == "machines":
            self._open_selected_machine()
        elif key in _MACHINE_KEYS:
            self._run_typed(_MACHINE_KEYS[key])

    def _job_key(self, key: str) -> None:
        state = self.state
        if key in _JOB_KEYS:
            self._run_typed(_JOB_KEYS[key])
        elif key == "p":
            if self._selected_name("priority"):
                state.prompt = Prompt(":", "priority ")
        elif key in _TAB_KEYS and (state.page == "job" or (self.is_wide and key.isdecimal())):
            state.show_tab(_TAB_KEYS[key])
        elif state.page == "jobs" and (key == "enter" or key in _TAB_KEYS):
            self._open_selected(_TAB_KEYS.get(key, ""))
        elif key == "m" or (key == "tab" and state.page == "jobs" and not self.is_wide):
            state.page = "machines"
        else:
            self._tab_key(key)

    def _tab_key(self, key: str) -> None:
        """Move between the tabs of the job that is shown, and within one."""
        state = self.state
        if state.page != "job" and not self.is_wide:
            return
        if key in ("right", "left"):
            self._sideways(1 if key == "right" else -1)
        elif key in ("tab", "shift+tab"):
            state.next_tab(1 if key == "tab" else -1)
        elif key == "f" and state.tab == "logs":
            state.is_following = not state.is_following

    def _sideways(self, step: int) -> None:
        """Show the next tab; in a log whose lines are cut, the columns beside those shown."""
        state = self.state
        if state.page == "job" and state.tab == "logs":
            state.column = max(0, state.column + step * _SIDE_STEP)
        else:
            state.next_tab(step)

    def _move(self, step: int) -> None:
        state = self.state
        cursor = self._cursor()
        if cursor is not None:
            cursor.move(step, self._keys())
        else:
            state.is_following = state.is_following and step > 0
            state.scroll = max(0, state.scroll + step)
            if state.page == "job" and state.tab == "logs" and state.scroll == 0 and step < 0:
                self.job_feed.older_lines()

    def _cursor(self) -> ListCursor | None:
        return {"jobs": self.state.jobs, "machines": self.state.machines}.get(self.state.page)

    def _keys(self) -> list[str]:
        data = self.feed.data
        if self.state.page == "machines":
            return [machine.name for machine in data.machines]
        return [view.id for view in data.rows]

    def _open_selected(self, tab: str) -> None:
        rows = self.feed.data.rows
        if self.state.jobs.index < len(rows):
            row = rows[self.state.jobs.index]
            self.state.jobs.key = row.id
            self.state.open_job(row.id, tab)

    def _open_selected_machine(self) -> None:
        machines, cursor = self.feed.data.machines, self.state.machines
        if cursor.index < len(machines):
            cursor.key = machines[cursor.index].name
            self.state.open_machine(cursor.key)

    def _selected_name(self, verb: str) -> str:
        selected = self.state.selected(self.feed.data.rows, self.feed.data.machines, self.job_feed.data.view)
        if not selected.job:
            self.state.say(f"{verb}: nothing is selected", is_error=True)
        return selected.job

    # Prompts, questions and actions.

    def _type(self, prompt: Prompt, key: str, char: str | None) -> None:
        if key in ("escape", "ctrl+g") or (key == "backspace" and not prompt.text):
            self.state.prompt = None
        elif key in ("enter", "ctrl+j"):
            self.state.prompt = None
            if prompt.kind == ":":
                self._run_typed(prompt.text)
            elif self.state.page == "job":
                self._set_search(prompt.text.strip())
            else:
                self._set_filter(prompt.text)
        elif not prompt.edit(key) and char:
            prompt.insert(char)

    def _set_filter(self, text: str) -> None:
        try:
            query = parse_filter(text)
        except Usage as error:
            self.state.say(error.message, is_error=True)
            return
        self.state.filter = filter_text(query)
        self.state.page = "jobs"
        self.state.jobs = ListCursor()
        self.feed.set_query(query)

    def _set_search(self, text: str) -> None:
        self.state.search, self.state.scroll, self.state.is_following = text, 0, True
        self.job_feed.search(text)

    def _run_typed(self, text: str) -> None:
        """Perform a command; one that changes something becomes a question first."""
        data, state = self.feed.data, self.state
        selected = state.selected(data.rows, data.machines, self.job_feed.data.view)
        try:
            typed = parse_command(text, selected)
        except Usage as error:
            state.say(error.message, is_error=True)
            return
        if isinstance(typed, Quit):
            self.is_over = True
        elif isinstance(typed, SetFilter):
            self._set_filter(typed.text)
        elif isinstance(typed, GoTo):
            self._go(typed)
        elif state.is_read_only:
            state.say(f"read-only: nothing is changed; elsewhere: {typed.command}", is_error=True)
        else:
            state.question = typed

    def _go(self, to: GoTo) -> None:
        state = self.state
        if to.page == "help":
            state.is_help = True
        elif to.page == "job":
            rows = self.feed.data.rows
            found = next((view.id for view in rows if view.name == to.job), to.job)
            state.open_job(found, to.tab)
        elif to.page == "machine":
            state.open_machine(to.machine)
        else:
            state.page = to.page

    def _answer(self, action: CockpitAction, key: str) -> None:
        """Act if the answer to the question is yes; every other key means no."""
        self.state.question = None
        if key not in ("y", "Y"):
            self.state.say(f"not done: {action.command}")
            return
        self._actions += 1
        self.state.say(f"{action.command} …")
        self.requests.put(f"action-{self._actions}", lambda: self._perform(action))

    def _perform(self, action: CockpitAction) -> None:
        try:
            done = action.perform(self.monitor)
        except Exception as error:  # noqa: BLE001 - the thread goes on, and the message line says what is wrong
            self.state.say(failure_text(error), is_error=True)
            return
        target = action.target if len(done.changed) < 2 else f"{len(done.changed):,} of {action.target}"
        text = "; ".join(done.notes) or (f"{action.verb}: {target}" if done.changed else f"{target}: nothing to change")
        self.state.say(one_line(text, 300))
