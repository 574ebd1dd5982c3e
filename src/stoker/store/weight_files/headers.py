"""What the readers of headers share: tensors and their places, faults, untrusted small files.

Small files are read only if they are regular and bounded.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from stoker.core.errors import Damaged
from stoker.core.frozen import frozen
from stoker.core.text import first_line, one_line
from stoker.host.durable import read_regular

_LONGEST_BYTES = 64 * 1024 * 1024
_LONGEST_SHOWN = 200
_WRONG = {errno.EINVAL: "not a regular file", errno.EFBIG: "it is too large"}


class DamagedHeader(ValueError):
    """A file does not match its header, or has none."""


@frozen
class TensorEntry:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    """The last axis is the one that is contiguous in the file."""
    begin: int
    """Offset of its first byte in the file."""
    end: int


@frozen
class Header:
    """The header of a file."""

    tensors: Mapping[str, TensorEntry]
    size_bytes: int


def open_weights(path: Path) -> BinaryIO:
    """Open a file of weights. Raises `DamagedHeader` if it is not a regular file, `OSError` if it can't be opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        # A pipe or device may block, or never end.
        raise DamagedHeader("not a regular file")
    return path.open("rb")


def unreadable_weights(what: str, error: Exception) -> Damaged:
    """Return the error for weights that do not match their file's header."""
    hint = "copy or download them again: stoker fetch org/name replaces damaged files"
    return Damaged(f"the weights in {what} can't be read: {first_line(error)}", hint=hint)


def read_foreign(path: Path) -> bytes:
    """Read a small file. Raises `ValueError` with its fault, `OSError` if it can't be read."""
    try:
        # The hub's cache has links.
        return read_regular(os.path.realpath(path), _LONGEST_BYTES)
    except OSError as error:
        if error.errno not in _WRONG:
            raise
        raise ValueError(_WRONG[error.errno]) from None


def read_foreign_json(path: Path) -> Any:
    """Read a small JSON file like `read_foreign`; a file that is nested too deeply is a fault, too."""
    try:
        return json.loads(read_foreign(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def shown(text: str) -> str:
    """Return untrusted text for a message."""
    return one_line(text, _LONGEST_SHOWN)
