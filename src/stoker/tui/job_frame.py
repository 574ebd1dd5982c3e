"""One job as lines of styled text: head, tabs, and the curves, log, stages, reasons or settings below them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stoker.core.display_width import cut, padded, text_width
from stoker.core.text import format_duration, one_line
from stoker.protocol.screen_messages import Series, SeriesView, StageGraph, StageNode
from stoker.protocol.view_messages import JobView
from stoker.tui.cockpit_state import CockpitState
from stoker.tui.job_feed import JobData, LogTail, metric_groups, metric_of
from stoker.tui.styled_text import ScreenLook, StyledLine, joined, plain, wrapped_line
from stoker.tui.typed_commands import TABS
from stoker.views.charts import ChartLine, curve_panel
from stoker.views.fleet_lines import progress_text, state_text, took_s
from stoker.views.placement_lines import explanation_lines
from stoker.views.stage_lines import number
from stoker.views.text_chart import FEWEST_ROWS, panel_lines
from stoker.views.text_tables import ASCII, UNICODE, ago, span, value_text

_MOST_CHARTS = 6
_HIGHEST_CHART = 20
_LONGEST_LINE = 4096
_LONGEST_VALUE = 200


def job_panel(state: CockpitState, data: JobData, look: ScreenLook, rows: int) -> list[StyledLine]:
    """Return a job in so many lines."""
    head = [*_head_lines(data, look), _tab_line(state, look)]
    body = _body(state, data, look, rows - len(head))
    return [*head, *body, *([plain("", look)] * rows)][:rows]


def _head_lines(data: JobData, look: ScreenLook) -> list[StyledLine]:
    view = data.view
    if data.is_missing:
        name = view.name if view is not None else data.ref
        return [plain(f" {name}: not found, perhaps deleted or pruned", look, "yellow"), plain("", look)]
    if view is None:
        return [plain(f" {data.ref}: loading…", look), plain("", look)]
    where = f" on {view.machine}" if view.machine else ""
    took = took_s(view, look.now_s)
    parts = (
        f"{view.name} {state_text(view)}{where}",
        progress_text(view),
        span(took) if took is not None else f"submitted {ago(view.submitted_s, look.now_s)}",
        f"attempt {view.attempt}" if view.attempt > 1 else "",
        f"priority {view.priority}" if view.priority else "",
    )
    separator = " - " if look.is_ascii else " · "
    first = plain(f" {separator.join(filter(None, parts))}", look, "bold")
    why = (
        f"why: {one_line(view.why)}" if view.why else "  ".join(filter(None, (view.recipe, view.label, short_id(view))))
    )
    return [first, plain(f" {why}", look)]


def short_id(view: JobView) -> str:
    """Return the beginning of a fleet job's id; ids of local jobs are short."""
    return view.id[:12] if len(view.id) == 64 else view.id


def _tab_line(state: CockpitState, look: ScreenLook) -> StyledLine:
    pieces = []
    for number_, tab in enumerate(TABS, 1):
        pieces += [(f" {number_} {tab} ", "reverse" if tab == state.tab else "dim")]
    right = ""
    if state.tab == "logs":
        right = f"search: {look.safe(cut(state.search, 20))} " if state.search else ""
        right += "following " if state.is_following else "not following (f) "
    return joined([(" ", ""), *pieces], right, look)


def _body(state: CockpitState, data: JobData, look: ScreenLook, rows: int) -> list[StyledLine]:
    if data.is_missing:
        return []
    if state.tab == "logs" and data.log is not None:
        return _log_lines(state, data.log, look, rows)
    texts = _texts(state, data, look, rows)
    if texts is None:
        error = data.errors.get(state.tab, "")
        texts = [error or "loading…"]
    first = state.window(len(texts), rows)
    return [plain(f" {text}", look) for text in texts[first : first + rows]]


def _texts(state: CockpitState, data: JobData, look: ScreenLook, rows: int) -> list[str] | None:
    """Return all lines of a tab; None if they are not there yet."""
    if state.tab == "curves" and data.series is not None:
        return _CURVES.texts(data.series, look, rows)
    if state.tab == "stages" and data.stages is not None:
        return stage_texts(data.stages, look)
    if state.tab == "explain" and data.explanation is not None:
        room = look.columns - 2
        lines = explanation_lines(data.explanation, now_s=look.now_s, columns=room)
        return [part for line in lines for part in wrapped_line(line, room)]
    if state.tab == "config" and data.config is not None:
        # What was set comes before defaults.
        settings = sorted(data.config.settings, key=lambda one: one.origin == "default")
        if not settings:
            return ["no settings"]
        width = min(max(text_width(one.path) for one in settings), look.columns // 2)
        return [
            f"{padded(look.safe(one.path), width)}  {one_line(value_text(one.value), _LONGEST_VALUE)}"
            f"{f'  ({one.origin})' if one.origin else ''}"
            for one in settings
        ]
    return None


# Curves.


def curve_texts(view: SeriesView, look: ScreenLook, rows: int) -> list[str]:
    """Return the metrics of a job as charts, one below the other, each with its last and best value."""
    with_values = {one.name: one for one in view.series if one.values}
    if not with_values:
        return ["no metrics yet: the program prints lines such as `loss=0.5`, or calls `stoker.report`"]
    drawn = [[with_values[name] for name in group] for group in metric_groups(list(with_values))][:_MOST_CHARTS]
    count = max(1, min(len(drawn), rows // 9))
    each = min(max(rows // count - 1, FEWEST_ROWS), _HIGHEST_CHART)
    lines: list[str] = []
    for some in drawn:
        lines += [_series_head(some), *_chart(some, view, look, each)]
    shown = {one.name for some in drawn for one in some}
    hidden = [name for name in view.names if name not in shown]
    if hidden:
        lines.append(one_line(f"also: {', '.join(hidden)}", 500))
    return lines


class _DrawnCurves:
    """The curves that were drawn last: the screen is drawn more often than they change."""

    def __init__(self) -> None:
        self._of: tuple[SeriesView, int, int, bool] | None = None
        self._texts: list[str] = []

    def texts(self, view: SeriesView, look: ScreenLook, rows: int) -> list[str]:
        of = (view, look.columns, rows, look.is_ascii)
        if self._of is None or self._of[0] is not view or self._of[1:] != of[1:]:
            self._of, self._texts = of, curve_texts(view, look, rows)
        return self._texts


_CURVES = _DrawnCurves()


def _series_head(some: Sequence[Series]) -> str:
    """Return the values of a curve; of several the best one."""
    if len(some) > 1:
        return _group_head(some)
    one = some[0]
    last = ""
    if one.last is not None and one.last_step is not None:
        last = f" {number(one.last)} at step {one.last_step:,}"
    total = f", {one.total:,} values" if one.total else ""
    return f"{one.name}{last}{_best_text(one)}{total}"


def _group_head(some: Sequence[Series]) -> str:
    known = [one for one in some if one.best is not None and math.isfinite(one.best)]
    head = f"{metric_of(some[0].name)} of {len(some)} stages"
    if not known:
        return head
    is_lower = known[0].is_lower_better is not False
    best = min(known, key=lambda one: (one.best or 0.0) * (1 if is_lower else -1))
    return f"{head}{_best_text(best)} of {best.name.partition(': ')[0]}"


def _best_text(one: Series) -> str:
    return (
        f", best {number(one.best)} at step {one.best_step:,}"
        if one.best is not None and one.best_step is not None
        else ""
    )


def _chart(some: Sequence[Series], view: SeriesView, look: ScreenLook, rows: int) -> list[str]:
    lines = [
        ChartLine(
            label=one.name,
            points=tuple((float(step), value) for step, value in zip(one.steps, one.values, strict=False)),
            rank=rank,
        )
        for rank, one in enumerate(some)
    ]
    panel = curve_panel(metric_of(some[0].name), lines)
    if panel is None:
        return ["no finite value"]
    borders = [float(step) for step in view.attempts.values()] if len(some) == 1 else []
    return panel_lines(panel, columns=look.columns - 2, rows=rows, borders=borders, is_ascii=look.is_ascii)


# Logs.


def _log_lines(state: CockpitState, log: LogTail, look: ScreenLook, rows: int) -> list[StyledLine]:
    found = (*log.lines, *log.unfinished)
    if not found:
        text = f"no line holds {log.search!r}" if log.search else "no output yet"
        return [plain(f" {text}", look)]
    state.keep_log_place([line.number for line in found])
    count = len(found) if log.matches is None else log.matches
    rows -= 1 if log.search else 0
    first = state.window(len(found), rows)
    several = len({line.node for line in found}) > 1
    lines = []
    for line in found[first : first + rows]:
        text = look.safe(line.text[: _LONGEST_LINE + state.column])
        node = f"{look.safe(line.node)}: " if several and line.node else ""
        more = " …" if line.is_cut else ""
        lines.append(plain(f" {node}{_from_column(text, state.column)}{more}", look))
    if log.search:
        note = f"; {one_line(log.note, 200)}" if log.note else ""
        lines.append(plain(f" {count:,} lines hold {log.search!r}; escape shows all{note}", look, "yellow"))
    return lines


def _from_column(text: str, column: int) -> str:
    """Return what is shown of a line after columns were scrolled out on the left."""
    if not column:
        return text
    hidden = 0
    for place, char in enumerate(text):
        if hidden >= column:
            return text[place:]
        hidden += text_width(char)
    return ""


# Stages.


def stage_texts(graph: StageGraph, look: ScreenLook) -> list[str]:
    """Return the stages of a job by layer, each with its state and what it needs."""
    if not graph.nodes:
        return ["no stages yet"]
    needs: dict[int, list[str]] = {}
    for before, after in graph.edges:
        if before < len(graph.nodes) and after < len(graph.nodes):
            needs.setdefault(after, []).append(graph.nodes[before].name)
    order = sorted(range(len(graph.nodes)), key=lambda at: (graph.nodes[at].layer, graph.nodes[at].place))
    deepest = max(node.layer for node in graph.nodes)
    indent = 2 if deepest * 2 < look.columns // 3 else 1
    lines = [_stage_text(graph.nodes[at], needs.get(at, ()), look, indent) for at in order]
    return [*lines, f"{graph.left_out:,} more stages"] if graph.left_out else lines


def _stage_text(node: StageNode, needs: Sequence[str], look: ScreenLook, indent: int) -> str:
    signs = ASCII if look.is_ascii else UNICODE
    sign = {
        "hit": signs.hit,
        "ran": signs.ran,
        "failed": signs.failed,
        "diverged": signs.failed,
        "running": ">" if look.is_ascii else "▶",
    }.get(node.ending, "." if look.is_ascii else "·")
    arrow = "<-" if look.is_ascii else "←"
    step = f"{100 * node.step // node.of} %" if node.step is not None and node.of else ""
    several = f"x{node.instances:,}" if node.instances else ""
    took = format_duration(node.seconds) if node.seconds is not None else ""
    detail = one_line(node.message or node.why, 300)
    after = f"{arrow} {', '.join(needs[:4])}{' …' if len(needs) > 4 else ''}" if needs else ""
    endings = ", ".join(f"{count:,} {ending}" for ending, count in node.endings.items()) or node.ending
    parts = (node.title or node.name, several, endings, step, took, after, detail)
    depth = min(node.layer * indent, look.columns // 2)
    return f"{' ' * depth}{sign} {'  '.join(filter(None, parts))}"
