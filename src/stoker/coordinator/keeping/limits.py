"""How much one attempt may leave with the coordinator, and how much may come at once."""

from __future__ import annotations

from stoker.model.frozen import frozen


@frozen
class KeepingLimits:
    """Settings of what is kept. Whoever sends more is refused and told so; nothing of theirs is cut in silence."""

    attempt_files: int = 5_000
    """Mirrored files of one attempt."""
    attempt_bytes: int = 4 << 30
    """Their bytes, all together."""
    chunk_bytes: int = 8 << 20
    """In one piece of a file."""
    archive_bytes: int = 1 << 40
    """One result, or one checkpoint."""
