"""`stoker logs`: what a job's stages printed, then or while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.cli.job_facts import nodes_named, split_target
from stoker.host.durable import open_regular, translate
from stoker.host.log_file import older_log
from stoker.model.events import Kinds
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.plan.run_folders import safe_name
from stoker.plan.status import older_generation
from stoker.worker.job_folder import JobFolder
from stoker.worker.reordering import trials_of_job
from stoker.worker.story import NodeStory, Story

_LOOK_AGAIN_S = 0.2

GRAMMAR = Grammar(
    "logs",
    about="Show what a job's stages printed. A stage whose result was known printed nothing in this job.",
    positionals=(
        Positional(
            "NAME[/STAGE]", key="target", help="a job (a name, `last`, an id), one stage of it, or a trial (`last/3`)"
        ),
    ),
    options=(Option("-f", "--follow", help="go on until the job ends"),),
    examples=("stoker logs last", "stoker logs gbt/train_gbt", "stoker logs last -f"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Show a job's logs."""
    name, stage = split_target(given["target"])
    folder = call.find_job(name)
    reading = _Reading(call, folder, stage)
    call.out.is_watched = given["follow"]
    while True:
        is_running = given["follow"] and folder.state()[0] is JobState.RUNNING
        reading.read_on()
        if not is_running:
            reading.finish()
            return 0
        call.parts.clock.sleep(_LOOK_AGAIN_S)


class _Reading:
    """The logs of one job, read from where the last look ended: files of stages in processes, events of the others."""

    def __init__(self, call: Call, folder: JobFolder, stage: str) -> None:
        self._call = call
        self._folder = folder
        self._stage = stage
        self._trials = trials_of_job(folder)
        self._titles = {node: one.label for one in self._trials for node in one.nodes.nodes if one.label}
        self._story = Story()
        self._journal = _Lines(older_generation(folder.status_path), folder.status_path)
        self._logs: dict[str, _Lines] = {}
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

    def _log(self, name: str) -> _Lines:
        if name not in self._logs:
            path = os.path.join(self._folder.log_folder, f"{safe_name(name)}.log")
            self._logs[name] = _Lines(older_log(path), path)
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


class _Lines:
    """Whole lines of files that may still grow. Several files are read one after the other; the last one grows."""

    def __init__(self, *paths: str) -> None:
        self._before = paths[:-1]
        self._path = paths[-1]
        self._read_bytes = 0
        self._rest = b""

    def fresh(self) -> Iterator[bytes]:
        """Give the lines that were finished since the last time."""
        for path in self._before:
            yield from self._from(path, 0)
        self._before = ()
        try:
            # A journal that was set aside begins anew.
            self._read_bytes = min(self._read_bytes, os.stat(self._path).st_size)
        except FileNotFoundError:
            return
        yield from self._from(self._path, self._read_bytes)

    def rest(self) -> Iterator[bytes]:
        """Give a last line that has no end."""
        if self._rest:
            yield self._rest
            self._rest = b""

    def _from(self, path: str, start: int) -> Iterator[bytes]:
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate(error, path) from error
        with file:
            file.seek(start)
            self._read_bytes = start
            # Line by line: a log may be larger than the memory.
            for line in file:
                self._read_bytes += len(line)
                self._rest += line
                if line.endswith(b"\n"):
                    whole, self._rest = self._rest[:-1], b""
                    yield whole


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
