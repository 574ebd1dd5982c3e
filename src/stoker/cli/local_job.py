"""What a job's stages printed, read from its folder, from where the last look ended."""

from __future__ import annotations

import os
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.job_handle import nodes_named
from stoker.core.digests import Digest
from stoker.core.events import Kinds
from stoker.core.frozen import frozen
from stoker.core.jsontext import loads
from stoker.engine.journal import older_generation
from stoker.engine.runners.stage_runner import safe_name
from stoker.host.writers import older_log
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import NodeHistory, RunHistory
from stoker.jobs.log_tail import GrowingLines
from stoker.jobs.rerun_spec import trials_of_job
from stoker.store.records import Record

_MAKERS_NAMED = 3


@frozen
class _Maker:
    """Who made a result: a job's id, and the stage as that job calls it."""

    attempt: str
    node: str


class JobLogReader:
    """The logs of one job, read from where the last look ended: files of stages in processes, events of the others."""

    def __init__(self, call: CommandContext, folder: JobFolder, stage: str) -> None:
        self._call = call
        self._folder = folder
        self._stage = stage
        self._trials = trials_of_job(folder)
        self._titles = {node: one.label for one in self._trials for node in one.nodes.nodes if one.label}
        self._story = RunHistory()
        self._journal = GrowingLines(older_generation(folder.status_path), folder.status_path)
        self._logs: dict[str, GrowingLines] = {}
        self._has_spoken: set[str] = set()
        self._shown = ""

    def read_on(self) -> None:
        """Show what was printed since the last look."""
        said = []
        for line in self._journal.fresh():
            event = _event(line)
            self._story.take(event)
            if event.get("kind") == Kinds.STAGE_LOG:
                said.append((str(event.get("node")), str(event.get("text"))))
        wanted = {node.node for node in self._nodes()}
        for name, text in said:
            if name in wanted:
                self._show(name, text)
        for name in self._story.nodes:
            if name in wanted:
                for line in self._log(name).fresh():
                    self._show(name, line.decode(errors="backslashreplace"))

    def finish(self) -> None:
        """Show last lines without an end, and say why there is nothing if there is nothing."""
        for name, log in self._logs.items():
            for line in log.rest():
                self._show(name, line.decode(errors="backslashreplace"))
        for node in self._nodes() if self._stage else []:
            if node.node not in self._has_spoken:
                why = self._why_silent(node)
                self._call.out.note(f"note: {node.node} printed nothing here{f': {why}' if why else ''}")
        if not self._has_spoken and not self._stage:
            self._call.out.note("note: nothing was printed: no stage ran, or none had anything to say")
            made = dict.fromkeys(maker.attempt for node in self._nodes() if (maker := self._maker_of(node)))
            if made:
                listed = ", ".join(f"stoker logs {attempt}" for attempt in list(made)[:_MAKERS_NAMED])
                more = f" and {len(made) - _MAKERS_NAMED} more" if len(made) > _MAKERS_NAMED else ""
                self._call.out.note(f"note: what was known was made earlier: {listed}{more}")

    def _why_silent(self, node: NodeHistory) -> str:
        if node.ending != "hit":
            return node.message or ("" if node.ending == "ran" else node.ending)
        maker = self._maker_of(node)
        where = f"; where it did: stoker logs {maker.attempt}/{maker.node}" if maker else ""
        return f"its result was known, so it did not run{where}"

    def _maker_of(self, node: NodeHistory) -> _Maker | None:
        """Return the job and stage that made a result which was known, if that job is still here."""
        if node.ending != "hit" or not node.key:
            return None
        record = self._call.parts.store.peek(Digest(node.key))
        body = record.body if isinstance(record, Record) else {}
        attempt, name = body.get("attempt"), body.get("node")
        if not isinstance(attempt, str) or not isinstance(name, str) or os.path.basename(attempt) != attempt:
            return None
        is_here = os.path.isdir(os.path.join(os.path.dirname(self._folder.path), attempt))
        return _Maker(attempt=attempt, node=name) if is_here else None

    def _nodes(self) -> list[NodeHistory]:
        if not self._stage:
            return list(self._story.nodes.values())
        return nodes_named(self._story, self._stage, self._folder.spec().name, self._trials)

    def _log(self, name: str) -> GrowingLines:
        if name not in self._logs:
            path = os.path.join(self._folder.log_folder, f"{safe_name(name)}.log")
            self._logs[name] = GrowingLines(older_log(path), path)
        return self._logs[name]

    def _show(self, name: str, text: str) -> None:
        out = self._call.out
        self._has_spoken.add(name)
        if not self._stage and self._shown != name:
            title = f" ({self._titles[name]})" if name[:1].isdigit() and name in self._titles else ""
            out.line(f"{'' if not self._shown else chr(10)}==> {name}{title} <==")
            self._shown = name
        out.object({"node": name, "line": text})
        out.line(text)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
