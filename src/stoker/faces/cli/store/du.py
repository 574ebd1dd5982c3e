"""`stoker store du`: how much is kept, by stage."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar
from stoker.faces.view.tables import table
from stoker.model.units import format_size
from stoker.store.prune import all_records

GRAMMAR = Grammar(
    "store",
    about=(
        "Say how much is kept: results by stage and kind, and the rest of the store. Bytes that several results share "
        "are counted once, for the first of them."
    ),
    examples=("stoker store", "stoker store du --json", "stoker store prune --max-size 10G"),
)


def perform(call: Call, _given: dict[str, Any]) -> int:
    """Show what is kept."""
    out, store = call.out, call.parts.store
    seen: set[str] = set()
    groups: dict[tuple[str, str], list[int]] = {}
    for record, _ in all_records(store):
        stage, kind = str(record.body.get("stage", "?")), str(record.body.get("kind", "?"))
        group = groups.setdefault((stage, kind), [0, 0, 0])
        size_bytes = sum(map(len, record.inline.values()))
        for entry in record.blobs():
            if entry.sha256 not in seen:
                seen.add(entry.sha256)
                size_bytes += entry.size_bytes
        group[0] += 1
        group[1] += int(record.is_tombstone)
        group[2] += size_bytes
    rows = []
    for (stage, kind), (count, pruned, size_bytes) in sorted(groups.items(), key=lambda item: -item[1][2]):
        out.object({"stage": stage, "kind": kind, "results": count, "pruned": pruned, "bytes": size_bytes})
        rows.append([format_size(size_bytes), str(count), str(pruned) if pruned else "", stage, kind])
    total = sum(group[2] for group in groups.values())
    places = {name: folder_bytes(path) for name, path in (
        ("quarantine", store.places.quarantine), ("staging", store.places.staging)
    )}  # fmt: skip
    out.object(
        {"total_bytes": total, **{f"{name}_bytes": size for name, size in places.items()}, "root": store.places.root}
    )
    header = ("size", "results", "pruned", "stage", "kind") if rows else ()
    for line in table(rows, header=header, columns=out.columns):
        out.line(line)
    beside = "".join(f", {format_size(size)} in {name}" for name, size in places.items() if size)
    out.line(f"{'' if not rows else chr(10)}{format_size(total)} in {store.places.root}{beside}")
    return 0


def folder_bytes(path: str) -> int:
    """Add up the files below a folder."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
