"""What a job's stages printed, read from its folder, from where the last look ended."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.job_facts import nodes_named
from stoker.host.log_file import older_log
from stoker.model.events import Kinds
from stoker.model.json_text import loads
from stoker.plan.run_folders import safe_name
from stoker.plan.status import older_generation
from stoker.worker.growing_lines import GrowingLines
from stoker.worker.job_folder import JobFolder
from stoker.worker.reordering import trials_of_job
from stoker.worker.story import NodeStory, Story


class LogReading:
    """The logs of one job, read from where the last look ended: files of stages in processes, events of the others."""

    def __init__(self, call: Call, folder: JobFolder, stage: str) -> None:
        self._call = call
        self._folder = folder
        self._stage = stage
        self._trials = trials_of_job(folder)
        self._titles = {node: one.label for one in self._trials for node in one.nodes.nodes if one.label}
        self._story = Story()
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
                self._call.out.note(f"note: {node.node} printed nothing here: {_why_silent(node)}")
        if not self._has_spoken and not self._stage:
            self._call.out.note("note: nothing was printed: no stage ran, or none had anything to say")

    def _nodes(self) -> list[NodeStory]:
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


def _why_silent(node: NodeStory) -> str:
    if node.ending == "hit":
        return "its result was known, so it did not run"
    return node.message or node.ending
