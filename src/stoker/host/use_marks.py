"""Marks that processes leave beside what they use: it stays while one of them may live."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.host.durable import read_regular
from stoker.host.folders import names_in
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.model.errors import StokerError
from stoker.model.json_text import loads

_LARGEST_BYTES = 1 << 20


def living_marks(folder: str, owner: Callable[[Any], Any] = lambda told: told) -> list[Any]:
    """Give what the marks in a folder say whose processes may still run; the others are taken away.

    `owner` gives, of what a mark says, the part that is the process.
    """
    living: list[Any] = []
    # A hidden one is just being written.
    for name in (name for name in names_in(folder) if not name.startswith(".")):
        path = os.path.join(folder, name)
        try:
            told = loads(read_regular(path, _LARGEST_BYTES))
            is_gone = is_alive(ProcessIdentity.from_dict(owner(told))) is Liveness.GONE
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StokerError):
            is_gone, told = True, None
        if is_gone:
            with suppress(OSError):
                os.unlink(path)
        else:
            living.append(told)
    return living
