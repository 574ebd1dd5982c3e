"""What would be fetched, before anything is: file by file, what is there, what is to come, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fetch.session import Session, session
from stoker.faces.view.tables import table
from stoker.faces.view.transfers import short_name
from stoker.model.units import format_size
from stoker.store.download.preview import Preview, Upcoming
from stoker.store.download.wanted import Status


def preview_with(call: Call, given: dict[str, Any], look: Callable[[Session], Preview], *, within: str = "") -> int:
    """Let `look` find out within a session what would be fetched, and show it. Nothing on the disk is touched.

    `within` is the repository that all files are of, if there is one.
    """
    with session(call, given, memo=call.parts.memo) as one:
        preview = one.run(look)
    return show_preview(call, preview, within)


def show_preview(call: Call, preview: Preview, within: str) -> int:
    """Show what would be fetched and where to."""
    out, files = call.out, preview.files
    for one in files:
        out.object(
            {
                "file": one.label,
                "path": one.path,
                "bytes": one.size_bytes,
                "is_there": one.is_there,
                "is_missing": one.is_missing,
                "partial_bytes": one.partial_bytes,
                "to_come_bytes": one.to_come_bytes,
            }
        )
    out.object(
        {
            "files": len(files),
            "bytes": preview.size_bytes,
            "to_come_bytes": preview.to_come_bytes,
            "needed_bytes": preview.needed_bytes,
            "free_bytes": preview.free_bytes,
            "has_space": preview.has_space,
            "is_missing": bool(preview.missing),
            "folder": preview.folder,
        }
    )
    rows = [[_size(one.size_bytes), _state(one), short_name(one.label, within)] for one in files]
    for line in table(rows, columns=out.columns):
        out.line(line)
    count = f"{len(files):,} file{'' if len(files) == 1 else 's'}"
    total, to_come, free = _size(preview.size_bytes), _size(preview.to_come_bytes), format_size(preview.free_bytes)
    out.line(f"\n{count}, {total}: {to_come} to come into {preview.folder}, {free} free there")
    if preview.has_space is False:
        out.note("note: that does not fit: free some space, or choose another folder with --out DIR")
    if preview.missing:
        out.note(f"note: {preview.missing:,} of {count} would not come: not on this machine, and --offline asks nobody")
    return 0


def _state(one: Upcoming) -> str:
    if one.is_missing:
        return "not here"
    if one.is_there:
        return "there" if one.status is Status.CACHED else "on this machine"
    return f"to come, {format_size(one.partial_bytes)} are there" if one.partial_bytes else "to come"


def _size(size_bytes: int | None) -> str:
    return "size unknown" if size_bytes is None else format_size(size_bytes)
