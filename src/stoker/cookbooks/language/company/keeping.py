"""A member's checkpoint in its scratch folder: all that it needs to go on as if it had never been interrupted.

One file with the keys model, opt, config, step, rng, sched and best; numbers and names alone, nothing that could run.
It is kept, with the one before it, by the rule that programs' checkpoints are kept by, so a fleet brings it along to
the next machine. Another configuration's, other data's or a damaged one is refused, and told.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stoker.model.digests import Digest, digest_value, is_digest
from stoker.plan.checkpoints import choose_checkpoint
from stoker.trainer.stoker_trainer import keep_checkpoint

CONTRACT = 1
_NAME = "adapter.pt"
_KEYS = ("model", "opt", "config", "step", "rng", "sched", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was found in a scratch folder: a state to go on from, if one may be used, and what to tell."""

    state: dict[str, Any] | None
    told: tuple[str, ...]


def keep(scratch: Path, state: dict[str, Any]) -> None:
    """Write a state durably; the one before it stays beside it. Raises `OSError`."""
    file = scratch / f".{state['step']}-{_NAME}"
    try:
        torch.save({name: state[name] for name in _KEYS}, file)
        keep_checkpoint(str(file), state["step"], str(scratch), resume_key(scratch, state["config"]))
    finally:
        file.unlink(missing_ok=True)


def recall(scratch: Path, config: dict[str, Any]) -> Kept:
    """Find the newest state that was kept for this very configuration."""
    choice = choose_checkpoint(str(scratch), resume_key(scratch, config))
    told = list(choice.refused)
    if choice.checkpoint is None:
        return Kept(state=None, told=tuple(told))
    name = os.path.basename(choice.checkpoint.path)
    try:
        raw = torch.load(choice.checkpoint.path, map_location="cpu", weights_only=True)
        state = {key: raw[key] for key in _KEYS}
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        return Kept(state=None, told=(*told, f"{name} can't be used ({type(error).__name__})"))
    if state["config"] != config:
        return Kept(state=None, told=(*told, f"{name} was made from another configuration or other data"))
    return Kept(state=state, told=tuple(told))


def resume_key(scratch: Path, config: dict[str, Any]) -> Digest:
    """Bind checkpoints to what they are made from: of a stage's scratch folder its name, which is the stage's key."""
    return Digest(scratch.name) if is_digest(scratch.name) else digest_value("resume", [CONTRACT, config])
