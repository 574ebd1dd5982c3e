"""A program that does a stage's work: what to start, rendered before anything starts.

What it writes below `$STOKER_OUT`, and what it leaves under the `outputs` that its owner declared, is the stage's
result. It is the user's program, run by the user's interpreter, in the user's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.frozen import fresh, frozen

GANG = ("stoker", "gang", "run")
"""Our own words before those of a program that runs as ranks."""


def gang_words(ranks: int) -> tuple[str, ...]:
    """Give what stands before a program's words so that it runs as so many ranks."""
    return (*GANG, "--ranks", str(ranks), "--")


@frozen
class Program:
    """One program with its words."""

    argv: tuple[str, ...]
    folder: str
    """Where it starts, and what its `outputs` are relative to."""
    python: str = ""
    """Which interpreter a bare `python` means; empty: the one that its owner would get there."""
    env: Mapping[str, str] = fresh(factory=dict)
    """Added to the environment."""
    params: Mapping[str, Any] = fresh(factory=dict)
    """What it may ask of `stoker_trainer`."""
    outputs: tuple[str, ...] = ()
    """Files and folders below `folder` that belong to its result; of folders, what is new or changed."""
    silence_s: float | None = None
    """How long it may say nothing."""
