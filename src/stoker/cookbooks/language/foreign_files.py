"""What a stranger wrote: small files, read only if they are files and not endless, and how a message shows them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from stoker.host.durable import read_regular
from stoker.model.printable import one_line

_LONGEST_BYTES = 64 * 1024 * 1024
_LONGEST_SHOWN = 200
_WRONG = {errno.EINVAL: "it is no file", errno.EFBIG: "it is too large"}


def read_foreign(path: Path) -> bytes:
    """Read a small file. `ValueError` says what is wrong with it, `OSError` why it can't be read."""
    try:
        # The hub's cache is made of links.
        return read_regular(os.path.realpath(path), _LONGEST_BYTES)
    except OSError as error:
        if error.errno not in _WRONG:
            raise
        raise ValueError(_WRONG[error.errno]) from None


def read_foreign_json(path: Path) -> Any:
    """Read a small file's JSON, as `read_foreign` does; what is nested without end is wrong, too."""
    try:
        return json.loads(read_foreign(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def shown(text: str) -> str:
    """Give a stranger's text as a part of a message."""
    return one_line(text, _LONGEST_SHOWN)
