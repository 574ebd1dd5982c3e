"""Results: a job's record never points at bytes that are not there."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.queue.moves import json_or_empty
from stoker.coordinator.queue.turn import Turn
from stoker.model.fleet_errors import Conflict
from stoker.model.json_text import loads
from stoker.wire.leasing import Finish


def see_archive(turn: Turn, archive_sha256: str, size_bytes: int) -> None:
    """Refuse to point at an archive that does not lie here whole."""
    found_bytes = turn.setting.has_object(archive_sha256)
    if found_bytes is None:
        raise Conflict(
            f"the archive {archive_sha256[:12]} is not here", hint="upload it first", archive_sha256=archive_sha256
        )
    if found_bytes != size_bytes:
        raise Conflict(
            f"the archive {archive_sha256[:12]} has {found_bytes} bytes here, not {size_bytes}",
            hint="say its true size",
            archive_sha256=archive_sha256,
            size_bytes=found_bytes,
        )


def is_checkpoint_here(turn: Turn, checkpoint: str) -> bool:
    """Whether the bytes of a job's checkpoint are here: of one that has ended they may have been pruned."""
    return turn.setting.has_object(loads(checkpoint)["archive_sha256"]) is not None


def facts_text(said: Finish) -> str:
    """Give what an attempt's row keeps of where, and from which code, its result was made."""
    return json_or_empty({**said.facts, "code": said.code} if said.code else said.facts)


def result_row(turn: Turn, seq: int, attempt: int, said: Finish) -> dict[str, Any]:
    """Enter a result into the index, and give what its job's row says of it."""
    book = turn.book
    book.bundle_id += 1
    bundle = {"tree": said.tree, "archive_sha256": said.archive_sha256, "size_bytes": said.size_bytes}
    turn.write(turn.statements.add_bundle, id=book.bundle_id, seq=seq, attempt=attempt, at_s=turn.now_s, **bundle)
    return {**bundle, "metrics": json_or_empty(said.metrics), "seconds": said.seconds}
