"""Folders that a user asked for, which outlive the run: `epoch-N` after every epoch, `best` at the best evaluation.

Each is an adapter that PEFT loads with `metadata.json` beside it, and appears whole or not at all. `best` takes the
place of the one before it; a crash in that moment leaves `best.old`, which `read_best` knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.cookbooks.language.records import Metadata, best_folder, read_metadata, write_metadata
from stoker.host.durable import remove_tree, translated
from stoker.model.errors import BadInput, LocalFile, StokerError

_HINT = "move it away, or name another folder for the checkpoints"


_NAMED = re.compile(r"best|epoch-[1-9][0-9]*")
_PARTS = re.compile(r"metadata\.json|(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
"""Files of a checkpoint that another may lack: weights in more or fewer files, what a removal had not come to."""


def is_checkpoint_name(name: str) -> bool:
    """Say whether a folder of that name is one that trainings write, and replace."""
    return _NAMED.fullmatch(name) is not None


def refuse_strangers(root: Path) -> None:
    """Raise `LocalFile` if something below `root` is called as a checkpoint is, and is none: it would be in the way."""
    with translated(str(root)):
        for there in sorted(root.iterdir()):
            if is_checkpoint_name(there.name):
                _refuse_stranger(there)


def write_checkpoint(root: Path, name: str, metadata: Metadata, write_adapter: Callable[[Path], None]) -> Path:
    """Make a folder of that name below `root`, in place of one that is there; `write_adapter` fills an empty one.

    Raises `LocalFile` if what is there is no checkpoint, or holds what is not of one, and stays.
    """
    target, new, old = root / name, root / f".{name}.new", root / f"{name}.old"
    with translated(str(target)):
        _refuse_stranger(target)
        root.mkdir(parents=True, exist_ok=True)
        remove_tree(new)
        try:
            new.mkdir()
            write_adapter(new)
            write_metadata(metadata, new)
            for there in (target, old):
                _refuse_more(there, new)
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


def _refuse_stranger(there: Path) -> None:
    if os.path.lexists(there) and not _is_checkpoint(there):
        raise LocalFile(f"in the way, and no checkpoint: {there}", hint=_HINT, path=str(there))


def _refuse_more(there: Path, new: Path) -> None:
    """Refuse to replace a folder with anything in it that a checkpoint as the new one has not."""
    if not os.path.lexists(there):
        return
    more = sorted(set(os.listdir(there)) - set(os.listdir(new))) if there.is_dir() else [there.name]
    strange = [name for name in more if not _PARTS.fullmatch(name)]
    if strange:
        where = str(there / strange[0])
        raise LocalFile(f"in the way, and not of a checkpoint: {where}", hint=_HINT, path=where)


def _is_checkpoint(there: Path) -> bool:
    try:
        read_metadata(there)
    except BadInput:
        return False
    return True


def read_best(root: Path) -> Metadata:
    """Read what is known of the best below `root`. Raises `BadInput` if there is none."""
    return read_metadata(best_folder(root))


def epoch_folder(epoch: int) -> str:
    """Give the name of an epoch's folder, counted from 1."""
    return f"epoch-{epoch}"
