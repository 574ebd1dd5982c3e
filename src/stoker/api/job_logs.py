"""The logs of a job's folder, read while they grow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from stoker.api.job import StageLogLine, nodes_named
from stoker.core.digests import Digest
from stoker.core.events import Kinds
from stoker.core.jsontext import loads
from stoker.core.text import safe_name
from stoker.engine.journal import older_generation
from stoker.host.writers import older_log
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import GrowingLines, NodeHistory, RunHistory
from stoker.jobs.trials import trials_of_job
from stoker.store.records import Record

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts

_MAKERS_NAMED = 3


class JobLogReader:
    """The logs of one job folder, read from where the last look ended: log files of stages, events of the others."""

    def __init__(self, folder: JobFolder, stage: str, parts: AppParts) -> None:
        self._folder = folder
        self._stage = stage
        self._parts = parts
        self._trials = trials_of_job(folder)
        self._story = RunHistory()
        self._journal = GrowingLines(older_generation(folder.status_path), folder.status_path)
        self._logs: dict[str, GrowingLines] = {}
        self._printed: set[str] = set()
        self._shown = ""

    def read_on(self) -> Iterator[StageLogLine]:
        """Return what was printed since the last look."""
        said = []
        for line in self._journal.fresh():
            try:
                event = loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._story.take(event)
                if event.get("kind") == Kinds.STAGE_LOG:
                    said.append((str(event.get("node")), str(event.get("text"))))
        wanted = {node.node for node in self._nodes()}
        for name, text in said:
            if name in wanted:
                yield self._line(name, text)
        for name in self._story.nodes:
            if name in wanted:
                for line in self._log(name).fresh():
                    yield self._line(name, line.decode(errors="backslashreplace"))

    def finish(self) -> Iterator[StageLogLine | str]:
        """Return last lines without an end, and why there is nothing if there is nothing."""
        for name, log in self._logs.items():
            for line in log.rest():
                yield self._line(name, line.decode(errors="backslashreplace"))
        if self._stage:
            for node in self._nodes():
                if node.node not in self._printed:
                    why = self._why_silent(node)
                    yield f"note: {node.node} printed nothing here{f': {why}' if why else ''}"
        elif not self._printed:
            yield "note: nothing was printed: no stage ran, or none had anything to say"
            made = list(dict.fromkeys(maker[0] for node in self._nodes() if (maker := self._maker_of(node))))
            if made:
                listed = ", ".join(f"stoker logs {attempt}" for attempt in made[:_MAKERS_NAMED])
                more = f" and {len(made) - _MAKERS_NAMED} more" if len(made) > _MAKERS_NAMED else ""
                yield f"note: what was known was made earlier: {listed}{more}"

    def _why_silent(self, node: NodeHistory) -> str:
        if node.ending != "hit":
            return node.message or ("" if node.ending == "ran" else node.ending)
        maker = self._maker_of(node)
        where = f"; where it did: stoker logs {'/'.join(maker)}" if maker else ""
        return f"its result was known, so it did not run{where}"

    def _maker_of(self, node: NodeHistory) -> tuple[str, str] | None:
        """Return the job and the stage that made a result which was known, if that job is still here."""
        if node.ending != "hit" or not node.key:
            return None
        record = self._parts.store.peek(Digest(node.key))
        body = record.body if isinstance(record, Record) else {}
        attempt, name = body.get("attempt"), body.get("node")
        if not isinstance(attempt, str) or not isinstance(name, str) or os.path.basename(attempt) != attempt:
            return None
        is_here = os.path.isdir(os.path.join(os.path.dirname(self._folder.path), attempt))
        return (attempt, name) if is_here else None

    def _nodes(self) -> list[NodeHistory]:
        if not self._stage:
            return list(self._story.nodes.values())
        return nodes_named(self._story, self._stage, self._folder.spec().name, self._trials)

    def _log(self, name: str) -> GrowingLines:
        if name not in self._logs:
            path = os.path.join(self._folder.log_folder, f"{safe_name(name)}.log")
            self._logs[name] = GrowingLines(older_log(path), path)
        return self._logs[name]

    @cached_property
    def _titles(self) -> dict[str, str]:
        return {node: one.spec.label for one in self._trials for node in one.nodes.nodes if one.spec.label}

    def _line(self, name: str, text: str) -> StageLogLine:
        self._printed.add(name)
        if self._stage or self._shown == name:
            return StageLogLine(node=name, text=text)
        before, self._shown = self._shown, name
        title = f" ({self._titles[name]})" if name[:1].isdigit() and name in self._titles else ""
        return StageLogLine(node=name, text=text, heading=f"{name}{title}", has_gap=bool(before))
