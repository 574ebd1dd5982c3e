"""One screen of the cockpit as lines of styled text: numbers, list, reason, message and keys.

Everything that reaches the terminal passes `ScreenLook.safe`: no control character does, and every line has exactly the
width of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stoker.core.display_width import cut, cut_middle, on_screen, padded, text_width, wrapped
from stoker.core.frozen import changed, frozen
from stoker.core.text import counted, format_duration, one_line
from stoker.protocol.view_messages import JobView
from stoker.tui.cockpit_state import CockpitState, Prompt
from stoker.tui.controls import CockpitControls
from stoker.tui.feed import ConnectionState, ScreenData
from stoker.tui.job_frame import job_panel, short_id
from stoker.tui.machine_frame import machine_list, machine_panel, machine_reason
from stoker.tui.styled_text import ScreenLook, StyledLine, filled_lines, joined, line_text, plain, whole
from stoker.views.fleet_lines import progress_text, state_text, took_s
from stoker.views.placement_lines import change_text
from stoker.views.text_tables import ASCII, UNICODE, ago, moment, span

_STATE_STYLES = {
    "running": "green",
    "claimed": "green",
    "pending": "",
    "completed": "dim",
    "failed": "red",
    "cancelled": "dim",
    "cancelling": "yellow",
}
_LONGEST_WHY = 2000

_KEYS = {
    "jobs": "enter open  l logs  e explain  c cancel  r requeue  p priority  / filter  m machines  : command  ? help",
    "machines": "enter open  d drain  x cordon  o open again  m jobs  : command  ? help  q back",
    "machine": "up down scroll  d drain  x cordon  o open again  m jobs  : command  ? help  q back",
    "job": "tab next  l logs  e explain  c cancel  r requeue  : command  ? help  q back",
    "logs": "f follow  / search  up down scroll  left right columns  tab next  c cancel  ? help  q back",
}
_WIDE_KEYS = {
    "jobs": "enter open  tab 1-5 tabs  l logs  e explain  s stages  c cancel  r requeue  p priority  / filter  "
    "m machines  : command  ? help",
}
_HERE_KEYS = {
    "jobs": "enter open  l logs  e explain  c cancel  / filter  m machines  : command  ? help",
    "machines": "enter open  m jobs  : command  ? help  q back",
    "machine": "up down scroll  m jobs  : command  ? help  q back",
    "job": "tab next  l logs  e explain  c cancel  : command  ? help  q back",
}
"""Of this machine's own jobs, which have no queue."""
_SHORT_KEYS = {
    "jobs": "enter open  l logs  e explain  c cancel  / filter  : command  ? help",
    "machine": "d drain  x cordon  o open again  m jobs  : command  ? help  q back",
    "job": "tab next  l logs  e explain  c cancel  : command  ? help  q back",
    "logs": "f follow  / search  tab next  c cancel  ? help  q back",
}

HELP = (
    "Keys",
    "  up down j k    move              enter      open the job or machine",
    "  pgup pgdn      a screen          g G        first, last",
    "  tab 1-5        tabs of a job     m          machines, and back",
    "  l e s          logs, explain, stages of the job",
    "  /              filter jobs; in logs: show lines that hold a text",
    "  f              follow the end of the log",
    "  c r p          cancel, requeue, priority of the job, after a question",
    "  d x o          drain, cordon, open the machine, after a question",
    "  q esc          back; q in the list leaves the cockpit",
    "",
    "Filter",
    "  state:failed,running user:anna machine:desk recipe:tabular/gbt sweep:resnet text",
    "",
    "Commands, after :",
    "  cancel [NAME]  requeue [NAME]  priority [NAME] N",
    "  drain MACHINE  cordon MACHINE  pause MACHINE [2h]  open MACHINE",
    "  show|curves|logs|stages|explain|config [NAME]  machine [NAME]",
    "  jobs  machines  filter TEXT  q",
)


def frame(controls: CockpitControls, look: ScreenLook) -> list[StyledLine]:
    """Return the lines of the screen, as many as it has rows."""
    data, state = controls.feed.data, controls.state
    if look.columns < 20 or look.rows < 8:
        lines = [plain("too small", look), *([plain("", look)] * look.rows)]
        return lines[: look.rows]
    middle_rows = controls.list_rows
    lines = [_numbers_line(data, look), _title_line(controls, look)]
    if state.is_help:
        lines += filled_lines([plain(f" {text}", look) for text in HELP], middle_rows + 2, look)
    elif state.page == "job":
        lines += job_panel(state, controls.job_feed.data, look, middle_rows + 2)
    elif state.page == "machine":
        lines += machine_panel(data, state, controls.machine_feed.data, look, middle_rows + 2)
    elif state.page == "machines":
        lines += _machines_part(controls, look, middle_rows)
    else:
        lines += _jobs_part(controls, look, middle_rows)
    lines += [_message_line(controls, look), _bottom_line(controls, look)]
    if look.is_ascii:
        # What was cut ends with a sign that is not ASCII.
        return [tuple((look.safe(text), style) for text, style in line) for line in lines]
    return lines


# The first two lines.


def one_frame(controls: CockpitControls, look: ScreenLook) -> list[str]:
    """Return the screen as text, without the line of keys and what is empty below the list. Blocks until it is fetched.

    Raises the error of the connection if nothing could be fetched.
    """
    controls.columns, controls.rows = look.columns, look.rows
    controls.feed.fetch_all()
    for _ in range(2):
        controls.sync()
        controls.requests.run_queued()
    controls.sync()
    shown = changed(look, now_s=look.now_s + controls.feed.data.offset_s)
    lines = [line_text(line).rstrip() for line in frame(controls, shown)[:-1]]
    while lines and not lines[-1]:
        lines.pop()
    return [line for at, line in enumerate(lines) if line or lines[at - 1]]


def _numbers_line(data: ScreenData, look: ScreenLook) -> StyledLine:
    overview, counts = data.overview, data.counts
    live = ("o" if look.is_ascii else "●", "live", "green")
    if not data.connection.is_live:
        live = ("x" if look.is_ascii else "○", "lost", "red")
    elif overview is None:
        live = ("." if look.is_ascii else "○", "connecting", "yellow")
    name = cut_middle(look.safe(overview.name if overview is not None else "stoker"), 20)
    pieces = [(f" {name} ", "bold"), (f"{live[0]} {live[1]}  ", live[2])]
    for state in ("running", "pending"):
        count = counts.get(state, 0) + (counts.get("claimed", 0) if state == "running" else 0)
        pieces.append((f"{state} {count:,} ", ""))
    failed = overview.failed_count if overview is not None else 0
    pieces.append((f"failed {failed:,} ", "red" if failed else ""))
    if overview is not None and overview.devices:
        pieces.append((f"idle {overview.idle_devices}/{overview.devices} ", ""))
    if overview is not None and overview.settling_s > 0:
        pieces.append((f"recovering {format_duration(overview.settling_s)} ", "yellow"))
    done = ""
    if overview is not None and overview.done_s is not None:
        done = f"~{moment(overview.done_s, look.now_s)}   "
    return joined(pieces, f"{done}{clock_text(look.now_s)} ", look)


def clock_text(at_s: float) -> str:
    """Return a local time of day with seconds."""
    return f"{datetime.fromtimestamp(at_s).astimezone():%H:%M:%S}"


def _title_line(controls: CockpitControls, look: ScreenLook) -> StyledLine:
    state, data = controls.state, controls.feed.data
    arrow = ">" if look.is_ascii else "▸"
    if state.page == "machines":
        return joined([(" machines", "bold")], f"{counted(len(data.machines), 'machine')} ", look)
    if state.page == "machine":
        return joined([(f" machine {arrow} ", ""), (look.safe(state.machine), "bold")], "", look)
    if state.page == "job":
        view = controls.job_feed.data.view
        name = look.safe(view.name if view is not None else state.ref)
        return joined([(f" job {arrow} ", ""), (name, "bold")], "", look)
    count = len(data.rows)
    last = min(state.jobs.top + controls.list_rows, count)
    total = f"{data.total:,}" if data.total is not None else f"{count:,} or more"
    dash = "-" if look.is_ascii else "–"
    shown = f"{state.jobs.top + 1:,}{dash}{last:,} of {total} " if count else ""
    name = f"{arrow} {look.safe(state.filter)}" if state.filter else ""
    return joined([(" jobs ", "bold"), (name, "cyan")], shown, look)


# The list of jobs.


@frozen
class _JobColumns:
    name: int
    detail: int
    machine: int
    took: int = 7


_STATE = 10


def _job_columns(columns: int) -> _JobColumns:
    name = min(max(columns // 4, 12), 40)
    machine = min(columns // 8, 16) if columns >= 60 else 0
    # A sign with blanks, and one blank behind each column.
    rest = columns - 3 - name - 1 - _STATE - 1 - (machine + 1 if machine else 0) - 9
    return _JobColumns(name=name, detail=max(rest, 0), machine=machine)


def _jobs_part(controls: CockpitControls, look: ScreenLook, rows: int) -> list[StyledLine]:
    data, state = controls.feed.data, controls.state
    if not controls.is_wide:
        return [*_job_list(data, state, look, rows), *_reason_lines(_job_reason(controls, look), look)]
    left, right = _halves(look)
    lists = [*_job_list(data, state, left, rows), *_reason_lines(_job_reason(controls, left), left)]
    panels = [plain("", right)] * (rows + 2)
    if data.rows:
        panels = job_panel(state, controls.job_feed.data, right, rows + 2)
    return _beside(lists, panels, look)


def _machines_part(controls: CockpitControls, look: ScreenLook, rows: int) -> list[StyledLine]:
    data, state = controls.feed.data, controls.state
    if not controls.is_wide:
        return [*machine_list(data, state, look, rows), *_reason_lines(machine_reason(data, state), look)]
    left, right = _halves(look)
    lists = [*machine_list(data, state, left, rows), *_reason_lines(machine_reason(data, state), left)]
    return _beside(lists, machine_panel(data, state, controls.machine_feed.data, right, rows + 2), look)


def _halves(look: ScreenLook) -> tuple[ScreenLook, ScreenLook]:
    """Return the looks of a list and of what is beside it."""
    left = look.narrowed(look.columns * 45 // 100)
    return left, look.narrowed(look.columns - left.columns - 1)


def _beside(lists: Sequence[StyledLine], panels: Sequence[StyledLine], look: ScreenLook) -> list[StyledLine]:
    border = "|" if look.is_ascii else "│"
    return [(*one, (border, "dim"), *other) for one, other in zip(lists, panels, strict=True)]


def _job_list(data: ScreenData, state: CockpitState, look: ScreenLook, rows: int) -> list[StyledLine]:
    if not data.rows:
        return filled_lines([plain(f" {text}", look) for text in _no_jobs(data, state)], rows, look)
    columns = _job_columns(look.columns)
    top = state.jobs.top
    lines = []
    for index, view in enumerate(data.rows[top : top + rows], top):
        line = job_line(view, look, columns)
        lines.append(whole(line, "reverse") if index == state.jobs.index else line)
    return filled_lines(lines, rows, look)


def job_line(view: JobView, look: ScreenLook, columns: _JobColumns) -> StyledLine:
    """Return a job as one line of the list."""
    state = state_text(view)
    style = _STATE_STYLES.get(state, "")
    name = padded(cut_middle(look.safe(view.name), columns.name), columns.name)
    why = view.why if view.state in ("pending", "failed", "cancelled") else ""
    parts = (one_line(why, _LONGEST_WHY), progress_text(view), _left_text(view, look.now_s), view.label)
    detail = look.safe("  ".join(filter(None, parts)))
    took = span(took_s(view, look.now_s))
    end = f" {padded(took, columns.took, is_right=True)} "
    if columns.machine:
        end = f" {padded(cut_middle(look.safe(view.machine), columns.machine), columns.machine)}{end}"
    room = columns.detail
    if not took and not view.machine:
        # A job that never started has nothing else to show than its reason.
        room, end = room + text_width(end) - 1, " "
    return (
        (f" {_sign(view, look)} ", style),
        (f"{name} ", ""),
        (f"{padded(state, _STATE)} ", style),
        (f"{padded(detail, room)}{end}", "dim" if view.state in ("completed", "cancelled") else ""),
    )


def _left_text(view: JobView, now_s: float) -> str:
    """Return the estimated time left of a running job; "" if unknown."""
    took = took_s(view, now_s)
    # An attempt that resumed from a checkpoint did not take its first steps in this time.
    if view.state != "running" or not view.step or not view.of or took is None or view.attempt > 1:
        return ""
    return f"~{format_duration(took * max(view.of - view.step, 0) / view.step)}"


def _sign(view: JobView, look: ScreenLook) -> str:
    signs = ASCII if look.is_ascii else UNICODE
    return {
        "running": ">" if look.is_ascii else "▶",
        "claimed": ">" if look.is_ascii else "▷",
        "pending": "." if look.is_ascii else "·",
        "completed": signs.ran,
        "failed": signs.failed,
        "cancelled": signs.left,
    }[view.state]


def _no_jobs(data: ScreenData, state: CockpitState) -> list[str]:
    if data.overview is None and not data.connection.is_live:
        return ["no data yet: " + one_line(data.connection.error, 300)]
    if data.is_loading or data.overview is None:
        return ["loading…"]
    if state.filter:
        return [f"no job matches {state.filter}", "", "escape clears the filter"]
    if data.overview.is_fleet:
        return ["no jobs in the fleet; submit some:", "", "  stoker submit manifest.toml"]
    return ["no jobs on this machine; start one:", "", "  stoker run tabular/gbt data=iris", "  stoker recipes"]


def _job_reason(controls: CockpitControls, look: ScreenLook) -> str:
    """Return why the selected job waits or failed, or what it is."""
    data, state, job = controls.feed.data, controls.state, controls.job_feed.data
    if state.jobs.index >= len(data.rows):
        return ""
    view = data.rows[state.jobs.index]
    if view.state == "pending" and job.ref == view.id and job.explanation is not None:
        return f"why: {'; '.join([job.explanation.verdict, *map(change_text, job.explanation.changes[:1])])}"
    if view.why and view.state in ("pending", "failed", "cancelled"):
        return f"why: {view.why}"
    by = f"by {view.submitter}" if view.submitter else ""
    attempt = f"attempt {view.attempt}" if view.attempt > 1 else ""
    parts = (view.recipe, view.label, by, attempt, f"submitted {ago(view.submitted_s, look.now_s)}", short_id(view))
    return ", ".join(filter(None, parts))


def _reason_lines(text: str, look: ScreenLook) -> list[StyledLine]:
    """Return two lines of text."""
    safe = look.safe(one_line(text, _LONGEST_WHY))
    room = look.columns - 2
    lines = wrapped(safe, room)
    if len(lines) > 2:
        lines = [lines[0], cut(f"{lines[1]} …", room)]
    return filled_lines([plain(f" {line}", look) for line in lines], 2, look)


# The last two lines.


def _message_line(controls: CockpitControls, look: ScreenLook) -> StyledLine:
    state, data = controls.state, controls.feed.data
    if state.question is not None:
        answers = "y yes  n no"
        question = cut_middle(look.safe(state.question.question), look.columns - len(answers) - 3)
        return joined([(f" {question} ", "bold yellow"), (answers, "")], "", look)
    if state.message:
        return joined([(f" {look.safe(state.message)}", "red" if state.is_error else "")], "", look)
    if not data.connection.is_live:
        text = lost_text(data.connection, data.shown_s, controls.clock.monotonic_s())
        return joined([(f" {look.safe(text)}", "yellow")], "", look)
    return plain(f" {data.trouble}" if data.trouble else "", look, "red")


def lost_text(connection: ConnectionState, shown_s: float, monotonic_s: float) -> str:
    """Return since when no data arrives, of when the shown data is, and when the next attempt is."""
    lost_s = max(0, int(monotonic_s - connection.lost_s))
    retry_s = max(0, round(connection.retry_s - monotonic_s))
    shown = f", shown: {clock_text(shown_s)}" if shown_s else ""
    return f"connection lost {lost_s} s ago{shown}, reconnect in {retry_s} s: {connection.error}"


def _bottom_line(controls: CockpitControls, look: ScreenLook) -> StyledLine:
    state = controls.state
    if state.prompt is not None:
        return _prompt_line(state.prompt, look)
    if state.question is not None:
        return plain(f" same: {look.safe(state.question.command)}", look, "dim")
    if state.is_help:
        return plain(" any key closes this page", look, "dim")
    page = "logs" if state.page == "job" and state.tab == "logs" else state.page
    keys = (_WIDE_KEYS if controls.is_wide else _KEYS).get(page, _KEYS[page])
    if not controls.monitor.is_fleet:
        keys = _HERE_KEYS.get(page, keys)
    if text_width(keys) + 2 > look.columns:
        keys = _SHORT_KEYS.get(page, keys)
    right = "read-only " if state.is_read_only and text_width(keys) + 12 <= look.columns else ""
    return joined([(f" {keys}", "dim")], right, look)


def _prompt_line(prompt: Prompt, look: ScreenLook) -> StyledLine:
    """Return what is being typed, with its cursor in view."""
    room = look.columns - 3
    before, under, after = prompt.text[: prompt.at], prompt.text[prompt.at :][:1] or " ", prompt.text[prompt.at + 1 :]
    while text_width(on_screen(before)) > room - 2:
        before = before[1:]
    pieces = [(f"{prompt.kind}{look.safe(before)}", ""), (look.safe(under), "reverse"), (look.safe(after), "")]
    return joined(pieces, "", look)
