"""The progress of a run as lines: finished work stays on the screen, running work is redrawn.

Cached results are held back until a stage runs, so that a run of only hits prints one line. On a terminal a live screen
draws running work; elsewhere each end is a plain line, and long work prints a line now and then. Listens to the
journal: called from several threads, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from stoker.cli.context import CliOutput
from stoker.cli.screens import Screen
from stoker.core.events import Event, Kinds
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.views.stage_lines import StageStepRate, finished_text, running_text, sign_of, waiting_text
from stoker.views.text_tables import span
from stoker.views.trial_lines import SharedProcessRunView, Titles, shared_speed_text, trial_text

_HITS_LISTED = 8


class ProgressLines:
    """Prints the events of a run as lines."""

    def __init__(
        self, screen: Screen, out: CliOutput, titles: Titles, *, near: str, shared: SharedProcessRunView | None = None
    ) -> None:
        self._screen = screen
        self._out = out
        self._signs = out.signs
        self._story = RunHistory()
        self._lock = threading.Lock()
        self._known: list[NodeHistory] = []
        self._kept: list[dict[str, Any]] = []
        self._paces: dict[str, StageStepRate] = {}
        self._has_begun = False
        self._apart = 0
        self._shared = shared or SharedProcessRunView()
        self._is_introduced = False
        self._shown_together: set[str] = set()
        self._titles = titles
        self._width = titles.width
        self._near = near

    def take(self, event: Event, at_s: float, _seq: int) -> None:
        """Handle one event of the journal."""
        with self._lock:
            node = self._story.take({"kind": event.kind, "ts": at_s, **event.fields})
            if node is not None:
                node.title = self._titles.names.get(node.node, "")
                self._keep_pace(event.kind, node, at_s)
            is_hit = event.kind == Kinds.STAGE_SKIPPED and node is not None
            if is_hit and node is not None and not self._has_begun and node.node not in self._titles.of_trials:
                self._known.append(node)
                return
            if event.kind == Kinds.TRIAL_END and event.fields.get("is_kept"):
                self._kept.append(event.fields)
                self._apart += 1
                return
            lines = list(self._lines(event.kind, event.fields, node))
            if self._kept and (lines or event.kind == Kinds.RUN_END):
                lines = [*self._kept_lines(), *lines]
            if event.kind == Kinds.STAGE_BEGIN or lines:
                self._begin()
        for line in lines:
            self._screen.lasting(line)

    def running(self, now_s: float, at_least_s: float) -> list[str]:
        """Return a line for each stage that has been running, or waiting for devices, for `at_least_s`."""
        with self._lock:
            nodes = self._story.nodes.values()
            waiting = [
                waiting_text(node, self._width, now_s)
                for node in nodes
                if node.ending == "waiting" and now_s - (node.waits_since_s or now_s) >= max(at_least_s, 0.1)
            ]
            shown = [
                node
                for node in nodes
                if node.ending == "running" and node.instances is None and now_s - (node.began_s or now_s) >= at_least_s
            ]
            # For a trial with several stages, the name includes the stage.
            width = max((self._width, *(len(node.title or node.node) for node in shown)))
            speed = [shared_speed_text(self._shared.speed, width)] if self._shared.speed.members > 1 else []
            return [
                *waiting,
                *speed,
                *(running_text(node, width, now_s, self._paces.get(node.node)) for node in shown),
            ]

    def _keep_pace(self, kind: str, node: NodeHistory, at_s: float) -> None:
        if kind == Kinds.STAGE_STEP and isinstance(node.step, int):
            self._paces.setdefault(node.node, StageStepRate(node.step, at_s)).hear(node.step, at_s)
        elif kind == Kinds.STAGE_BEGIN or kind in _ENDS:
            self._paces.pop(node.node, None)
        if node.node in self._titles.together:
            if kind == Kinds.STAGE_STEP:
                self._shared.speed.hear(node.node, node.metrics, at_s)
            elif kind in _ENDS:
                self._shared.speed.leave(node.node, at_s)

    def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        if len(self._known) > _HITS_LISTED:
            self._screen.lasting(f"{self._signs.hit} {len(self._known)} stages cached")
        else:
            for node in self._known:
                self._screen.lasting(self._finished(node))
        self._screen.begin(self.running)

    def _kept_lines(self) -> list[str]:
        """Return lines for cached trials: each of a few, or the number of many."""
        kept, self._kept = self._kept, []
        if len(kept) > _HITS_LISTED:
            return [f"{self._signs.hit} {len(kept):,} trials cached"]
        return [self._trial(fields) for fields in kept]

    def _lines(self, kind: str, fields: dict[str, Any], node: NodeHistory | None) -> Iterable[str]:
        if node is not None:
            yield from self._lines_about(node, kind, fields)
        elif kind == Kinds.TRIAL_END:
            yield self._trial(fields)
        elif kind == Kinds.WARNING:
            yield self._warning("", str(fields.get("message", "")))

    def _lines_about(self, node: NodeHistory, kind: str, fields: dict[str, Any]) -> Iterable[str]:
        if kind == Kinds.STAGE_BEGIN and node.node in self._titles.together and not self._is_introduced:
            self._is_introduced = True
            yield from self._shared.lines
        if kind == Kinds.STAGE_TOLD:
            yield from self._message_lines(node, fields)
        elif kind in _ENDS:
            # The end of a trial has its own line, with label and result folder.
            if node.node not in self._titles.of_trials:
                yield self._finished(node)
        elif kind == Kinds.STAGE_RETRYING:
            pause = span(float(fields.get("delay_s", 0.0)))
            yield f"{self._signs.again} {node.node:<{self._width}}  {node.message}; retry in {pause}"
        elif kind == Kinds.STAGE_WAITING:
            why = str(fields.get("why", ""))
            text = why if why.startswith("waits ") else f"waits: {why}"
            yield f"{self._signs.again} {node.title or node.node:<{self._width}}  {text}"
        elif kind == Kinds.STAGE_REWIND:
            text = f"runs again: its result was pruned and {fields.get('wanted_by')} needs it"
            yield f"{self._signs.again} {node.node:<{self._width}}  {text}"
        elif kind == Kinds.CACHE_CORRUPT:
            yield self._warning(node.node, f"{fields.get('damage')}; quarantined, runs again")
        elif kind == Kinds.CACHE_DIFFERS and not fields.get("expected"):
            kept = "new" if fields.get("kept") == fields.get("ours") else "first"
            yield self._warning(node.node, f"different result from the same inputs; the {kept} one is kept")

    def _message_lines(self, node: NodeHistory, fields: dict[str, Any]) -> Iterable[str]:
        """Yield a stage's message, except if its end shows it; once for stages that share a process."""
        if fields.get("at_once"):
            yield f"  {node.title or node.node:<{self._width}}  {fields.get('text', '')}"
        elif node.node in self._titles.together:
            if node.status_text not in self._shown_together:
                self._shown_together.add(node.status_text)
                yield node.status_text
        elif node.node in self._titles.of_trials:
            yield f"  {node.title:<{self._width}}  {node.status_text}"

    def _finished(self, node: NodeHistory) -> str:
        sign = sign_of(node, self._signs)
        colour = {self._signs.ran: "green", self._signs.failed: "red"}.get(sign, "dim")
        is_shown = node.node in self._titles.together
        return f"{self._out.paint(sign, colour)} {finished_text(node, self._width, is_message_shown=is_shown)}"

    def _trial(self, fields: dict[str, Any]) -> str:
        state = fields.get("state")
        signs = self._signs
        sign = {"completed": signs.hit if fields.get("is_kept") else signs.ran, "failed": signs.failed}.get(
            str(state), signs.left
        )
        colour = {"completed": "green", "failed": "red"}.get(str(state), "dim")
        self._apart += state == "failed"
        # Failed and cached trials can not be affected.
        others = max(0, self._titles.trials - self._apart) if self._titles.together else 0
        return f"{self._out.paint(sign, colour)} {trial_text(fields, self._titles, self._near, others=others)}"

    def _warning(self, name: str, text: str) -> str:
        sign = self._out.paint(self._signs.warned, "yellow")
        return f"{sign} {name:<{self._width}}  {text}" if name else f"{sign} {text}"


_ENDS = frozenset(
    {
        Kinds.STAGE_END,
        Kinds.STAGE_SKIPPED,
        Kinds.STAGE_FAILED,
        Kinds.STAGE_PRUNED,
        Kinds.STAGE_CANCELLED,
    }
)
