"""What a preparing child says to its keeper, line by line: how far it is, and how it ended.

    {"says": "copies DATA 34 %", "count": 812345}
    {"line": "Downloaded torch", "says": "builds uv.lock: Downloaded torch", "count": 812400}
    {"end": "ready", "verified": ["env:DATA"]}
    {"end": "refused", "reason": "data", "message": "…", "lasts": true}

`count` only grows, and only with honest work: it is what keeps the lease.
"""

from __future__ import annotations

from typing import Any

from stoker.model.frozen import fields_of, frozen
from stoker.model.json_text import dumps, loads
from stoker.model.printable import one_line

LONGEST_LINE = 500
READY, REFUSED = "ready", "refused"


@frozen
class Told:
    """One line."""

    says: str = ""
    """For a heartbeat."""
    line: str = ""
    """For the job's log."""
    count: int = 0
    end: str = ""
    verified: tuple[str, ...] = ()
    """Inputs that were read where they lie, and are what was submitted."""
    reason: str = ""
    message: str = ""
    lasts: bool = False
    """It stays so until something is done on this machine; else it may pass."""

    def to_line(self) -> bytes:
        """Give it as a line."""
        said = {name: value for name, value in fields_of(self).items() if value}
        for name in ("says", "line", "message"):
            if name in said:
                said[name] = one_line(said[name], LONGEST_LINE)
        return dumps(said).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Told | None:
        """Read a line; nothing if it is none of ours."""
        try:
            raw: Any = loads(line)
            if not isinstance(raw, dict):
                return None
            return cls(**{**raw, "verified": tuple(raw.get("verified", ()))})
        except (ValueError, TypeError):
            return None
