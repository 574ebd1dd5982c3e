"""How far a training is, in one file of its scratch folder: written whole or not at all, after every few epochs."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch

from stoker.cookbooks.sequence.science.training import Progress
from stoker.host.durable import write_file

FILE = "progress.pt"


class FileKeeper:
    """Keeps progress in a folder that survives the process. What can't be read again is told, and begun anew."""

    def __init__(self, folder: Path, *, every: int, say: Callable[[str], None], device: str = "cpu") -> None:
        self._path = folder / FILE
        self._every = every
        self._say = say
        self._device = device

    def recall(self) -> Progress | None:
        """Give what was kept, if anything was and it is whole."""
        if not self._path.is_file():
            return None
        try:
            raw = torch.load(self._path, map_location=self._device, weights_only=True)
            progress = Progress(**{one.name: raw[one.name] for one in fields(Progress)})
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
            self._say(f"{FILE} can't be used ({type(error).__name__}): training begins anew")
            return None
        self._say(f"goes on after epoch {progress.epoch}")
        return progress

    def keep(self, progress: Progress) -> None:
        """Write it down, every few epochs."""
        if progress.epoch % self._every == 0:
            text = io.BytesIO()
            torch.save({one.name: getattr(progress, one.name) for one in fields(Progress)}, text)
            write_file(str(self._path), text.getvalue())
