"""What a side of a gate is, by the text that names it: a program, a model, scored documents, a result, or a job.

--baseline "python old.py" --candidate "python new.py"     two programs
--baseline ../main --candidate . -- python bench.py        one program in two folders
--baseline a.bench.json --candidate b.bench.json           two benchmark results
--baseline a.nll.jsonl --candidate b.nll.jsonl             the same documents, scored by two models
--baseline last --candidate resnet/3                       two jobs, or one trial of a sweep
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from stoker.core.errors import LocalFile, NotFound, Usage
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import loads, loads_strict
from stoker.core.text import lazy_pattern
from stoker.crossval.bench import BenchResult, is_result, read_result, require_completed
from stoker.crossval.measures import WALL, in_one_number, numbers_in
from stoker.crossval.runtimes import model_form
from stoker.crossval.scored_documents import PERPLEXITY, read_documents
from stoker.crossval.stored_sides import StoredSide
from stoker.host.durable import read_regular
from stoker.jobs.comparison import TrialFacts
from stoker.store.trees import hash_file

DOCUMENTS = ".jsonl"
_PLAN_BYTES = 16 << 20
_LANGUAGE = "language/"
_TRIAL = lazy_pattern(r"[\w.@-]+/\d+")
_LOSSES = ("eval_loss", "val_loss")


@frozen
class ProgramSide:
    """A program to be run."""

    argv: tuple[str, ...]
    folder: str


@frozen
class JobSide:
    """A job whose results are to be read."""

    name: str


@frozen
class ModelSide:
    """A model to be loaded: a file, a folder, or the address of a server."""

    path: str
    runtime: str = ""
    """The choice that a result was measured with; empty: that of the request."""


GateSide = ProgramSide | ModelSide | StoredSide


def read_side(text: str, *, folder: str, program: Sequence[str] = (), search: str | None = None) -> GateSide | JobSide:
    """Return what a side is; with a `program`, the text is the folder to run it in. `search` is the PATH.

    Raises `Usage` for a text that can be nothing, and what reading a file raises.
    """
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(text)))
    if program:
        if not os.path.isdir(path):
            raise Usage(f"{text!r} is not a folder", hint="with a program after --, each side is a folder to run it in")
        return ProgramSide(argv=tuple(program), folder=path)
    if model_form(text if "://" in text else path):
        return ModelSide(path=text if "://" in text else path)
    if os.path.isdir(path):
        raise Usage(f"{text!r} is a folder without a model", hint="to run a program in each folder: -- PROGRAM")
    if os.path.isfile(path):
        return _side_of_file(text, path, folder)
    if _TRIAL.fullmatch(text) and not os.path.lexists(path):
        return JobSide(name=text)
    words = _words(text)
    if len(words) > 1 or os.sep in text:
        if not words or not is_program(words[0], folder, search):
            raise NotFound(f"{text!r}: no such file or program", hint="stoker help gate")
        return ProgramSide(argv=words, folder=folder)
    if text.endswith(".json"):
        raise LocalFile(f"there is no file {text!r}", hint="stoker bench -o FILE makes one", path=path)
    return JobSide(name=text)


def is_program(word: str, folder: str, search: str | None) -> bool:
    """Return True if a word names a program: by its path, or on the PATH."""
    path = os.path.join(folder, word) if os.sep in word else word
    return shutil.which(path, path=search) is not None


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Usage(f"{text!r} is not a command line: {error}", hint="quote it as a shell does") from None


def _side_of_file(text: str, path: str, folder: str) -> GateSide:
    if path.endswith(DOCUMENTS):
        return changed(_facts_of(text, path), documents=read_documents(path))
    if is_result(path):
        return side_of_result(_facts_of(text, path), read_result(path))
    if path.endswith(".json") and (nodes := _nodes_of_plan(path)):
        words = ("run", path, "--rerun", ",".join(nodes), "--no-out")
        return ProgramSide(argv=(sys.executable, "-m", "stoker", *words), folder=folder)
    if os.access(path, os.X_OK):
        return ProgramSide(argv=(path,), folder=folder)
    if path.endswith(".json") and (samples := _samples_in(path)):
        return changed(_facts_of(text, path), samples=samples)
    hint = "a benchmark result (stoker bench), numbers (.json), scored documents (.jsonl), a plan, or a program"
    if path.endswith(".py"):
        hint = f'name its interpreter, too: "python {text}"'
    raise Usage(f"{text}: neither can be run nor has measurements", hint=hint)


def _nodes_of_plan(path: str) -> list[str]:
    """Return the names of a plan's nodes, all of which have to run again; none if the file is no plan."""
    try:
        body = loads(read_regular(path, _PLAN_BYTES))
        return list(body["nodes"]) if "stoker_plan" in body else []
    except (ValueError, KeyError, TypeError):
        return []


def _samples_in(path: str) -> tuple[dict[str, float], ...]:
    """Return the numbers of a JSON file, or of each object of a list in it; none if there are none."""
    try:
        body = loads_strict(read_regular(path, _PLAN_BYTES), most_bytes=_PLAN_BYTES)
    except ValueError as error:
        raise LocalFile(f"{path} has no numbers: {error}", hint='{"perplexity": 9.8}') from error
    listed = body if isinstance(body, list) else [body]
    found = tuple(in_one_number(numbers_in(one)) for one in listed if isinstance(one, dict))
    return tuple(one for one in found if one)


def _facts_of(text: str, path: str) -> StoredSide:
    return StoredSide(shown=text, facts={"kind": "file", "file": text, "digest": {"sha256": hash_file(path)[0]}})


def side_of_result(side: StoredSide, result: BenchResult) -> StoredSide:
    """Return the runs of a benchmark. Raises `Usage` for one that did not finish, or has none."""
    require_completed(result, side.shown)
    return changed(
        side,
        machine=shown_machine(result.machine),
        samples=tuple(in_one_number(run.measures) for run in result.runs),
        subject=result.subject,
    )


def shown_machine(facts: Mapping[str, object]) -> str:
    """Return the machine of a measurement in one line: its name, processor and devices."""
    listed = facts.get("devices")
    devices = sorted(str(one.get("name", "")) for one in (listed if isinstance(listed, list) else ()))
    processor = str(facts.get("processor", ""))
    return " ".join(filter(None, (str(facts.get("name", "")), processor and f"({processor})", *devices)))


# Jobs.


def side_of_job(shown: str, recipe: str, trials: Sequence[TrialFacts], machine: str) -> StoredSide:
    """Return the metrics of a job's trials, each with its label; a language model's loss is a perplexity, too."""
    done = [one.end for one in trials if one.end.state == "completed"]
    if not done:
        raise NotFound(f"{shown}: no trial has completed", hint=f"stoker jobs show {shown}")
    samples = []
    for end in done:
        measures = dict(end.metrics)
        loss = next((measures[name] for name in _LOSSES if name in measures), None)
        if recipe.startswith(_LANGUAGE) and loss is not None and PERPLEXITY not in measures:
            measures[PERPLEXITY] = math.exp(loss) if loss < 700.0 else math.inf
        if end.seconds is not None and not end.is_kept:
            measures.setdefault(WALL, end.seconds)
        samples.append(measures)
    return StoredSide(
        shown=shown,
        machine=machine,
        samples=tuple(samples),
        labels=tuple(end.trial.spec.label for end in done),
        facts={"kind": "job", "job": shown, "digest": {"stokerJob": done[0].trial.spec.id}},
    )
