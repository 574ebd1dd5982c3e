"""Benchmark results whose program or model is still what it was: they can be run again beside a candidate.

A result is a file that anybody may have written. Only what was measured on this machine, and whose files have the
recorded digests, is run again. A runtime that is a program, or has an interpreter of its own, is not: its files are not
recorded. A program that the PATH finds is not either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from stoker.core.errors import StokerError, Usage
from stoker.crossval.bench import program_files
from stoker.crossval.gate_sides import ModelSide, ProgramSide
from stoker.crossval.runtimes import RUNTIMES, read_runtime
from stoker.crossval.stored_sides import StoredSide
from stoker.jobs.job_receipt import named_digest


def can_run_again(side: StoredSide, machine: str, digest_of: Callable[[str], str]) -> bool:
    """Return True if a side is a benchmark's result that can be run again on this machine."""
    try:
        run_again(side, machine, digest_of)
    except StokerError:
        return False
    return True


def run_again(side: StoredSide, machine: str, digest_of: Callable[[str], str]) -> ProgramSide | ModelSide:
    """Return what to run. Raises `Usage` with the reason if it is not what it was."""
    if not side.subject:
        raise _refusal(side, "it only has numbers")
    if side.machine != machine:
        raise _refusal(side, f"it was measured on {side.machine or 'an unknown machine'}")
    if side.subject.get("kind") == "model":
        return _model(side, side.subject, digest_of)
    return _program(side, side.subject)


def _program(side: StoredSide, subject: Mapping[str, object]) -> ProgramSide:
    argv, folder, files = subject.get("argv"), subject.get("folder"), subject.get("files")
    if not (isinstance(argv, list) and argv and all(isinstance(one, str) for one in argv) and isinstance(folder, str)):
        raise _refusal(side, "it does not name a program")
    if not isinstance(files, dict) or not files:
        raise _refusal(side, "no files of its program are recorded")
    now = program_files(argv, folder) if os.path.isdir(folder) else {}
    if odd := sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name)):
        raise _refusal(side, f"{odd[0]} has changed since")
    return ProgramSide(argv=tuple(argv), folder=folder)


def _model(side: StoredSide, subject: Mapping[str, object], digest_of: Callable[[str], str]) -> ModelSide:
    path, runtime, digest = subject.get("model"), subject.get("choice"), subject.get("digest")
    if not isinstance(path, str) or not isinstance(runtime, str) or not digest:
        raise _refusal(side, "no digest of its model is recorded")
    choice = read_runtime(runtime)
    if choice.name not in RUNTIMES or choice.python or choice.variables:
        raise _refusal(side, f"its runtime is {runtime}")
    for place, known in ((path, digest), (subject.get("base", ""), subject.get("base_digest"))):
        if place and (not os.path.exists(str(place)) or named_digest(digest_of(str(place))) != known):
            raise _refusal(side, f"{place} is gone or has changed since")
    return ModelSide(path=path, runtime=runtime)


def _refusal(side: StoredSide, why: str) -> Usage:
    return Usage(f"{side.shown} can't be run again: {why}", hint="name a program or a model on both sides")
