"""Programs for the tests of program stages: real ones, mostly a few lines of Python."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from stoker.cookbooks.command.cookbook import KnownProgramArgs, OpenProgramArgs, run, run_known
from stoker.engine.arg_types import InputPath
from stoker.engine.metrics.metrics_file import read_metrics
from stoker.engine.plan import Plan
from stoker.store.records import Record
from tests.unit.engine.lab import Lab, Ran, plan_of

PYTHON = (sys.executable, "-S", "-E")
"""Starts quickly; knows nothing of `stoker_trainer`."""
TRAINER = (sys.executable, "-S")


class Project:
    """A folder with programs, and the engine that runs them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def script(self, name: str, body: str) -> str:
        """Write a script; gives its path."""
        path = self.folder / name
        path.write_text(textwrap.dedent(body))
        path.chmod(0o755)
        return str(path)

    def plan(self, *argv: str, how: dict[str, Any] | None = None, **args: Any) -> Plan:
        """A plan of one program that nobody knows the inputs of."""
        return plan_of(run, OpenProgramArgs(argv=argv, folder=str(self.folder), **args), id="run", **(how or {}))

    def known_plan(self, *argv: str, inputs: tuple[str, ...] = (), code: tuple[str, ...] = (), **args: Any) -> Plan:
        """A plan of one program whose inputs and code are declared."""
        known = KnownProgramArgs(
            argv=argv,
            folder=str(self.folder),
            inputs=tuple(InputPath(str(self.folder / name)) for name in inputs),
            code={name: InputPath(str(self.folder / name)) for name in code},
            **args,
        )
        return plan_of(run_known, known, id="run")

    def python(self, body: str, *words: str, how: dict[str, Any] | None = None, **args: Any) -> Plan:
        """A plan of a few lines of Python."""
        return self.plan(*PYTHON, "-c", _plain(body), *words, how=how, **args)

    def trainer(self, body: str, *words: str, how: dict[str, Any] | None = None, **args: Any) -> Plan:
        """The same with `stoker_trainer` to be imported."""
        return self.plan(*TRAINER, "-c", _plain(body), *words, how=how, **args)

    def shell(self, body: str, how: dict[str, Any] | None = None, **args: Any) -> Plan:
        return self.plan("/bin/sh", "-c", _plain(body), how=how, **args)

    def files(self, ran: Ran) -> dict[str, str]:
        """What a finished program gave."""
        (product,) = ran["run"].products
        record = product.record
        return {
            entry.path: f"-> {entry.link_to}"
            if entry.link_to
            else self.lab.store.read_bytes(record, entry.path).decode()
            for entry in record.tree.entries
        }

    def record(self, ran: Ran) -> Record:
        (product,) = ran["run"].products
        return product.record

    def scratches(self) -> list[Path]:
        """Scratch folders that were left; locks on outputs lie beside them."""
        root = self.lab.folder / "scratch"
        return sorted(path for path in root.iterdir() if path.name != ".locks") if root.is_dir() else []

    def told(self, ran: Ran) -> str:
        """What was said about the run beside the program's own output."""
        return "\n".join(str(event["text"]) for event in ran.of_kind("stage_log"))

    def rows(self) -> list[tuple[int, str, float]]:
        """What the curves that we write hold."""
        path = self.lab.folder / "metrics" / "run.skm"
        return [(row.step, row.name, row.value) for row in read_metrics([str(path)])] if path.exists() else []


def _plain(body: str) -> str:
    """Return some code as a word in which no brace is a place."""
    return textwrap.dedent(body).replace("{", "{{").replace("}", "}}")
