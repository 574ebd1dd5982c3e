"""How much one attempt may leave with the coordinator, and how much may come at once."""

from __future__ import annotations

from stoker.model.errors import BadInput
from stoker.model.frozen import changed, frozen
from stoker.model.units import format_size

LEAST_UPLOAD_BYTES = 1 << 20
UPLOAD_OPTION = "stoker serve --upload-limit"


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
    """Whatever would leave less of the disk free is not taken: the queue's database needs some."""


def limits_for(upload_bytes: int | None) -> KeepingLimits:
    """Give the limits of a coordinator that takes no upload larger than this; nothing: the usual ones.

    Raises `BadInput` for one so small that no project's code would come.
    """
    usual = KeepingLimits()
    if upload_bytes is None:
        return usual
    if upload_bytes < LEAST_UPLOAD_BYTES:
        least = format_size(LEAST_UPLOAD_BYTES)
        raise BadInput(f"a limit of {format_size(upload_bytes)} lets no job's code come", hint=f"at least {least}")
    return changed(usual, archive_bytes=upload_bytes, tree_bytes=upload_bytes)
