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
    """One result, one checkpoint, or one file of a tree."""
    tree_bytes: int = 1 << 40
    """Code or data of a job, all files of one tree together."""
    tree_files: int = 500_000
    free_floor_bytes: int = 2 << 30
    """Code and data are refused where they would leave less of the disk free: results need it more."""
