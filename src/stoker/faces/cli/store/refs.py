"""`stoker store refs`: what was put, by name; what is in one of them; take a name away."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.view.tables import table
from stoker.faces.view.times import ago
from stoker.model.errors import NotFound, Usage
from stoker.model.suggest import did_you_mean
from stoker.model.units import format_size
from stoker.store.by_name import resolve
from stoker.store.put_index import add_row
from stoker.store.refs import list_refs, remove_ref

_LISTED = 50

GRAMMAR = Grammar(
    "store refs",
    about=(
        "List what was put into the store, by name, or the files of one thing. A name keeps its thing from pruning; "
        "when it is taken away, the next prune takes the bytes that nothing else needs."
    ),
    positionals=(Positional("NAME", help="a name, or the beginning of a digest", is_required=False),),
    options=(Option("--remove", help="take the name away"),),
    examples=("stoker store refs", "stoker store refs base", "stoker store refs base --remove"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List, show or take away."""
    if given["remove"]:
        return _remove(call, given["name"])
    return _show(call, given["name"]) if given["name"] else _list(call)


def _list(call: Call) -> int:
    out, now_s = call.out, call.parts.clock.wall_s()
    refs = list_refs(call.parts.store.places)
    rows = []
    for ref in refs:
        out.object({**ref.to_json(), "damage": ref.damage or None})
        told = [ref.digest[:12], format_size(ref.size_bytes), str(ref.files), ago(ref.at_s, now_s), ref.kind]
        rows.append([ref.name, *(told if not ref.damage else ["damaged", "", "", "", ref.damage])])
    header = ("name", "digest", "size", "files", "put", "kind")
    lines = table(rows, header=header, columns=out.columns) if rows else ["nothing was put; stoker store put PATH"]
    for line in lines:
        out.line(line)
    return 0


def _show(call: Call, name: str) -> int:
    out = call.out
    record = resolve(call.parts.store, name)[0]
    entries = record.tree.entries
    for entry in entries:
        out.object(
            {
                "path": entry.path,
                "bytes": entry.size_bytes,
                "sha256": entry.sha256,
                "executable": entry.executable,
                "link_to": entry.link_to,
            }
        )
    rows = [
        [
            format_size(entry.size_bytes),
            entry.sha256[:12],
            f"{entry.path} -> {entry.link_to}" if entry.link_to else entry.path,
        ]
        for entry in entries[:_LISTED]
    ]
    for line in table(rows, header=("size", "sha256", "file")) if rows else ["it is empty"]:
        out.line(line)
    if len(entries) > _LISTED:
        out.line(f"… and {len(entries) - _LISTED:,} more")
    return 0


def _remove(call: Call, name: str) -> int:
    places, out = call.parts.store.places, call.out
    if not name:
        raise Usage("--remove needs the name to take away", hint="stoker store refs lists them")
    if not remove_ref(places, name):
        known = [ref.name for ref in list_refs(places)]
        raise NotFound(
            f"nothing was put as {name!r}", hint=did_you_mean(name, known) or "`stoker store refs` lists the names"
        )
    add_row(places, {"did": "remove", "name": name, "at_s": call.parts.clock.wall_s()})
    out.object({"name": name, "removed": True})
    out.line(f"took the name {name} away; `stoker store prune` frees what nothing else needs")
    return 0
