"""`stoker store du`: how much is kept: results by stage, what was put by name, and the rest of the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.cli.cleanup import show_environments, unfinished_bytes
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar
from stoker.cli.prune_all import models_cache
from stoker.core.digests import Digest
from stoker.core.text import format_size
from stoker.host.resources import folder_bytes
from stoker.store.local_store import LocalStore
from stoker.store.places import QuarantinedItem, list_quarantine
from stoker.store.prune import all_records
from stoker.store.records import Record
from stoker.store.refs import PUT, list_pins, list_refs
from stoker.views.text_tables import ago, table

_LISTED = 5

DU_GRAMMAR = Grammar(
    "store",
    about=(
        "Say how much is kept: results by stage and kind, what was put by name, Python environments that jobs run in, "
        "and the rest of the store. Bytes that several of them share are counted once, for the first. `stoker "
        "clean-cache` also lists what else lies outside of the store."
    ),
    examples=("stoker store", "stoker store du --json", "stoker store prune --max-size 10G"),
)


def perform_du(call: CommandContext, _given: dict[str, Any]) -> int:
    """Show what is kept."""
    out, store = call.out, call.parts.store
    seen: set[str] = set()
    results: dict[tuple[str, str], list[int]] = {}
    puts: dict[Digest, int] = {}
    total = 0
    for record in _unwanted_last(store):
        size_bytes = _own_bytes(record, seen)
        total += size_bytes
        if record.body.get("stage") == PUT:
            if not record.is_tombstone:
                puts[record.key] = size_bytes
            continue
        group = results.setdefault((str(record.body.get("stage", "?")), str(record.body.get("kind", "?"))), [0, 0, 0])
        group[0] += 1
        group[1] += int(record.is_tombstone)
        group[2] += size_bytes
    has_results = _show_results(call, results)
    has_puts = _show_puts(call, puts, is_first=not has_results)
    places = {
        name: folder_bytes(path)
        for name, path in (
            ("quarantine", store.places.quarantine),
            ("staging", store.places.staging),
            ("uploads", store.places.uploads),
            ("views", store.places.views),
        )
    }
    places["unfinished downloads"] = unfinished_bytes(models_cache(call))
    has_environments, places["environments"] = show_environments(call, is_first=not (has_results or has_puts))
    out.object(
        {
            "total_bytes": total,
            **{f"{name.replace(' ', '_')}_bytes": size for name, size in places.items()},
            "root": store.places.root,
        }
    )
    beside = "".join(f", {format_size(size)} in {name}" for name, size in places.items() if size)
    gap = "\n" if has_results or has_puts or has_environments else ""
    out.line(f"{gap}{format_size(total)} in {store.places.root}{beside}")
    _show_quarantine(call, list_quarantine(store.places.quarantine))
    return 0


def _unwanted_last(store: LocalStore) -> Iterator[Record]:
    """Return every record; last those that nothing keeps, so that no bytes are counted for them that stay."""
    named = {ref.key for ref in list_refs(store.places)}
    unwanted = []
    for record, _ in all_records(store):
        if record.body.get("stage") == PUT and record.key not in named:
            unwanted.append(record)
        else:
            yield record
    yield from unwanted


def _own_bytes(record: Record, seen: set[str]) -> int:
    size_bytes = sum(map(len, record.inline.values()))
    for entry in record.blobs():
        if entry.sha256 not in seen:
            seen.add(entry.sha256)
            size_bytes += entry.size_bytes
    return size_bytes


def _show_results(call: CommandContext, results: dict[tuple[str, str], list[int]]) -> bool:
    rows = []
    for (stage, kind), (count, pruned, size_bytes) in sorted(results.items(), key=lambda item: -item[1][2]):
        call.out.object({"stage": stage, "kind": kind, "results": count, "pruned": pruned, "bytes": size_bytes})
        rows.append([format_size(size_bytes), str(count), str(pruned) if pruned else "", stage, kind])
    header = ("size", "results", "pruned", "stage", "kind") if rows else ()
    for line in table(rows, header=header, columns=call.out.columns):
        call.out.line(line)
    return bool(rows)


def _show_puts(call: CommandContext, puts: dict[Digest, int], *, is_first: bool) -> bool:
    """Show what was put: under its names, and what no name stands for any more."""
    refs = list_refs(call.parts.store.places)
    named = {ref.key for ref in refs}
    let_go = [size_bytes for key, size_bytes in puts.items() if key not in named]
    rows = []
    for ref in refs:
        size_bytes = puts.pop(ref.key, 0)
        call.out.object({"name": ref.name, "digest": ref.digest, "kind": ref.kind, "bytes": size_bytes})
        rows.append([format_size(size_bytes), ref.name, ref.digest[:12], ref.damage or ref.kind])
    if let_go:
        call.out.object({"name": None, "things": len(let_go), "bytes": sum(let_go)})
        rows.append(
            [format_size(sum(let_go)), "(no name)", "", f"{len(let_go)} to go with a prune, an hour after the last use"]
        )
    if rows and not is_first:
        call.out.line()
    for line in table(rows, header=("size", "put as", "digest", "kind"), columns=call.out.columns) if rows else ():
        call.out.line(line)
    return bool(rows)


def _show_quarantine(call: CommandContext, aside: list[QuarantinedItem]) -> None:
    if not aside:
        return
    now_s = call.parts.clock.wall_s()
    call.out.line("\nin quarantine")
    for one in aside[-_LISTED:]:
        call.out.line(f"  {ago(one.at_s, now_s)}: {one.reason}")
    if len(aside) > _LISTED:
        call.out.line(f"  … and {len(aside) - _LISTED} before these")


# `stoker store pins`: what is kept whatever is pruned.

PINS_GRAMMAR = Grammar(
    "store pins",
    about="List the pins: results that stay whatever is pruned.",
    examples=("stoker store pins", "stoker store pin gbt --remove"),
)


def perform_pins(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the pins."""
    out = call.out
    pins = list_pins(call.parts.store.places)
    for one in pins:
        out.object({"pin": one.name, "keys": list(one.keys)})
    rows = [[one.name, str(len(one.keys))] for one in pins]
    for line in table(rows, header=("pin", "results")) if rows else ["nothing is pinned"]:
        out.line(line)
    return 0
