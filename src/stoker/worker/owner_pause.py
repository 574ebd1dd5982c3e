"""A machine's owner needs it for a while: a wish in a file, heard by every worker of this home."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime

from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import read_regular, write_file

PAUSE = "pause.json"
PAUSED = "paused"
"""What everybody's word for a pause begins with, the coordinator's, too."""
_LARGEST_BYTES = 4096


@frozen
class Pause:
    """Take no work until then."""

    until_s: float | None
    """By the wall clock; nothing: until it is taken back."""
    since_s: float
    by: str = ""

    def why(self) -> str:
        """Say it in a line."""
        until = "" if self.until_s is None else f" until {datetime.fromtimestamp(self.until_s, UTC):%Y-%m-%d %H:%M} UTC"
        who = f" by {self.by}" if self.by else ""
        return f"{PAUSED}{who}{until}"


def write_pause(state: str, pause: Pause) -> None:
    """Wish for a pause; the newest wish counts."""
    body = {"v": 1, "until_s": pause.until_s, "since_s": pause.since_s, "by": pause.by}
    write_file(os.path.join(state, PAUSE), dumps(body).encode())


def clear_pause(state: str) -> None:
    """Take the wish back."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(state, PAUSE))


def read_pause(state: str, *, now_s: float) -> Pause | None:
    """Return the pause that holds now, if any."""
    try:
        raw = loads(read_regular(os.path.join(state, PAUSE), _LARGEST_BYTES))
        until = raw["until_s"]
        pause = Pause(until_s=None if until is None else float(until), since_s=float(raw["since_s"]), by=str(raw["by"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if pause.until_s is not None and now_s >= pause.until_s else pause
