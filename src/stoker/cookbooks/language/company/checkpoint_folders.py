"""Folders that a user asked for, which outlive the run: `epoch-N` after every epoch, `best` at the best evaluation.

Each is an adapter that PEFT loads with `metadata.json` beside it, and appears whole or not at all. `best` takes the
place of the one before it; a crash in that moment leaves `best.old`, which `read_best` knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.cookbooks.language.records import METADATA, Metadata, best_folder, read_metadata, write_metadata
from stoker.host.durable import remove_tree, translated
from stoker.model.errors import LocalFile, StokerError


def write_checkpoint(root: Path, name: str, metadata: Metadata, write_adapter: Callable[[Path], None]) -> Path:
    """Make a folder of that name below `root`, in place of one that is there; `write_adapter` fills an empty one.

    Raises `LocalFile` if what is there is no checkpoint, and stays.
    """
    target, new, old = root / name, root / f".{name}.new", root / f"{name}.old"
    with translated(str(target)):
        for there in (target, old):
            if os.path.lexists(there) and not (there / METADATA).exists():
                hint = "move it away, or name another folder for the checkpoints"
                raise LocalFile(f"in the way, and no checkpoint: {there}", hint=hint, path=str(there))
        root.mkdir(parents=True, exist_ok=True)
        remove_tree(new)
        try:
            new.mkdir()
            write_adapter(new)
            write_metadata(metadata, new)
        except BaseException:
            # Most often the disk is full, and half of it would be in the way of whatever makes room.
            with suppress(StokerError):
                remove_tree(new)
            raise
        if target.exists():
            remove_tree(old)
            os.rename(target, old)
        os.rename(new, target)
        remove_tree(old)
    return target


def read_best(root: Path) -> Metadata:
    """Read what is known of the best below `root`. Raises `BadInput` if there is none."""
    return read_metadata(best_folder(root))


def epoch_folder(epoch: int) -> str:
    """Give the name of an epoch's folder, counted from 1."""
    return f"epoch-{epoch}"
